package clients

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	"watchcore.test/http/internal/history"
)

// A recorder stands between an informer and its client, and writes down what the client was told.
type recorder struct {
	plural string
	log    *history.Log

	mutex sync.Mutex
	items map[string]int64 // of the pages of a list that is not complete yet
}

// listed takes a page of a list.
func (r *recorder) listed(options metav1.ListOptions, list runtime.Object) error {
	objects, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if options.Continue == "" || r.items == nil {
		r.items = map[string]int64{}
	}
	for _, object := range objects {
		if key, revision, ok := place(r.plural, object); ok {
			r.items[key] = revision
		}
	}
	if accessor.GetContinue() == "" {
		r.log.List(metadataOf{ResourceVersion: accessor.GetResourceVersion()}.revision(), r.items)
		r.items = nil
	}
	return nil
}

// watched takes a watch that begins, and its events as they come.
func (r *recorder) watched(options metav1.ListOptions, events watch.Interface) watch.Interface {
	if options.SendInitialEvents != nil && *options.SendInitialEvents {
		r.log.Initial()
	} else {
		r.log.Resume()
	}
	return watch.Filter(events, func(event watch.Event) (watch.Event, bool) {
		key, revision, ok := place(r.plural, event.Object)
		switch {
		case event.Type == watch.Error || !ok:
		case event.Type == watch.Bookmark:
			r.log.Bookmark(revision)
		default:
			r.log.Event(string(event.Type), key, revision)
		}
		return event, true
	})
}

// semantics says whether a reflector over this client may use watches that tell the first state.
type semantics bool

// IsWatchListSemanticsUnSupported is what a reflector asks.
func (s semantics) IsWatchListSemanticsUnSupported() bool { return !bool(s) }

type recordDynamic struct {
	dynamic.Interface
	log *history.Log
	semantics
}

func (r recordDynamic) Resource(resource schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return recordDynamicResource{r.Interface.Resource(resource), &recorder{plural: resource.Resource, log: r.log}}
}

type recordDynamicResource struct {
	dynamic.NamespaceableResourceInterface
	*recorder
}

func (r recordDynamicResource) Namespace(namespace string) dynamic.ResourceInterface {
	return recordDynamicNamespace{r.NamespaceableResourceInterface.Namespace(namespace), r.recorder}
}

func (r recordDynamicResource) List(ctx context.Context, options metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	return recordDynamicNamespace{r.NamespaceableResourceInterface, r.recorder}.List(ctx, options)
}

func (r recordDynamicResource) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return recordDynamicNamespace{r.NamespaceableResourceInterface, r.recorder}.Watch(ctx, options)
}

type recordDynamicNamespace struct {
	dynamic.ResourceInterface
	*recorder
}

func (r recordDynamicNamespace) List(ctx context.Context, options metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	list, err := r.ResourceInterface.List(ctx, options)
	if err != nil {
		return nil, err
	}
	return list, r.listed(options, list)
}

func (r recordDynamicNamespace) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	events, err := r.ResourceInterface.Watch(ctx, options)
	if err != nil {
		return nil, err
	}
	return r.watched(options, events), nil
}

type recordMetadata struct {
	metadata.Interface
	log *history.Log
	semantics
}

func (r recordMetadata) Resource(resource schema.GroupVersionResource) metadata.Getter {
	return recordMetadataGetter{r.Interface.Resource(resource), &recorder{plural: resource.Resource, log: r.log}}
}

type recordMetadataGetter struct {
	metadata.Getter
	*recorder
}

func (r recordMetadataGetter) Namespace(namespace string) metadata.ResourceInterface {
	return recordMetadataNamespace{r.Getter.Namespace(namespace), r.recorder}
}

func (r recordMetadataGetter) List(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	return recordMetadataNamespace{r.Getter, r.recorder}.List(ctx, options)
}

func (r recordMetadataGetter) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return recordMetadataNamespace{r.Getter, r.recorder}.Watch(ctx, options)
}

type recordMetadataNamespace struct {
	metadata.ResourceInterface
	*recorder
}

func (r recordMetadataNamespace) List(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	list, err := r.ResourceInterface.List(ctx, options)
	if err != nil {
		return nil, err
	}
	return list, r.listed(options, list)
}

func (r recordMetadataNamespace) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	events, err := r.ResourceInterface.Watch(ctx, options)
	if err != nil {
		return nil, err
	}
	return r.watched(options, events), nil
}
