package follow

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/check"
)

// Form is how the server encodes objects for a watcher.
type Form string

// The forms.
const (
	JSON     Form = "JSON"
	Protobuf Form = "protobuf"
)

// Clients are how watchers reach the API server.
type Clients struct {
	Config   *rest.Config
	Dynamic  dynamic.Interface
	Metadata metadata.Interface
}

// NewClients makes them.
func NewClients(config *rest.Config) (*Clients, error) {
	c := &Clients{Config: config}
	var err error
	if c.Dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, err
	}
	c.Metadata, err = metadata.NewForConfig(config)
	return c, err
}

// source lists and watches one resource.
type source struct {
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func (c *Clients) source(r Resource, form Form, view check.View) source {
	switch {
	case view.Metadata:
		of := c.Metadata.Resource(r.GroupVersionResource).Namespace(view.Namespace)
		return source{
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return of.List(ctx, o) },
			of.Watch,
		}
	case r.Custom || r.Decode != nil:
		of := c.Dynamic.Resource(r.GroupVersionResource).Namespace(view.Namespace)
		return source{
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return of.List(ctx, o) },
			of.Watch,
		}
	}
	client, err := c.typed(r, form)
	request := func(o metav1.ListOptions) *rest.Request {
		return client.Get().NamespaceIfScoped(view.Namespace, view.Namespace != "").Resource(r.Resource).VersionedParams(&o, scheme.ParameterCodec)
	}
	return source{
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if err != nil {
				return nil, err
			}
			return request(o).Do(ctx).Get()
		},
		func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if err != nil {
				return nil, err
			}
			o.Watch = true
			return request(o).Watch(ctx)
		},
	}
}

// typed is a client of a resource's group that decodes into Go types.
func (c *Clients) typed(r Resource, form Form) (*rest.RESTClient, error) {
	config := rest.CopyConfig(c.Config)
	version := r.GroupVersion()
	config.GroupVersion, config.NegotiatedSerializer, config.APIPath = &version, scheme.Codecs.WithoutConversion(), "/apis"
	if r.Group == "" {
		config.APIPath = "/api"
	}
	config.ContentType = "application/json"
	if form == Protobuf {
		config.ContentType = "application/vnd.kubernetes.protobuf"
		config.AcceptContentTypes = "application/vnd.kubernetes.protobuf"
	}
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Resource, err)
	}
	return client, nil
}
