// Package follow has the watchers of the demonstration: through the API server, in the ways in which clients watch, and etcd itself.
package follow

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/check"
)

// Resource is one resource of the API server and where it lies in etcd.
type Resource struct {
	schema.GroupVersionResource
	// Directory of etcd's keys, below Prefix.
	Directory string
	// Custom: etcd has JSON, and clients receive it without a Go type.
	Custom bool
	// Decode is for resources that etcd has in another version; nil for the others.
	Decode func(value []byte) (runtime.Object, error)
}

// Prefix is what all keys of the API server begin with.
const Prefix = "/registry/"

// Builtin is a resource that client-go has a Go type of.
func Builtin(group, version, resource, directory string) Resource {
	return Resource{GroupVersionResource: schema.GroupVersionResource{Group: group, Version: version, Resource: resource}, Directory: directory}
}

// Custom is a resource without a Go type.
func Custom(group, version, resource string) Resource {
	r := Builtin(group, version, resource, group+"/"+resource)
	r.Custom = true
	return r
}

// key is the object's, of one of etcd's; false if it is not of this resource.
func (r Resource) key(key string) (string, bool) {
	return strings.CutPrefix(key, Prefix+r.Directory+"/")
}

// stored decodes what etcd has.
func (r Resource) stored(value []byte) (runtime.Object, error) {
	switch {
	case r.Decode != nil:
		return r.Decode(value)
	case r.Custom:
		o := &unstructured.Unstructured{}
		return o, o.UnmarshalJSON(value)
	}
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(value, nil, nil)
	return o, err
}

// contents has the text of each digest, for messages.
var contents sync.Map

// Content is the text that a digest is of.
func Content(d check.Digest) string {
	text, _ := contents.Load(d)
	b, _ := text.([]byte)
	return string(b)
}

func digest(of any) (check.Digest, error) {
	text, err := json.Marshal(of)
	if err != nil {
		return check.Digest{}, err
	}
	d := check.Digest(sha256.Sum256(text))
	contents.LoadOrStore(d, text)
	return d, nil
}

// object describes a decoded object, and takes it over.
func object(o runtime.Object) (*check.Object, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	described := &check.Object{Key: m.GetName(), Labels: m.GetLabels(), Fields: fieldsOf(o, m)}
	if m.GetNamespace() != "" {
		described.Key = m.GetNamespace() + "/" + m.GetName()
	}
	if text := m.GetResourceVersion(); text != "" {
		if described.Revision, err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, err
		}
	}
	m.SetResourceVersion("")
	whole, metadata := any(o), any(nil)
	if u, ok := o.(*unstructured.Unstructured); ok {
		u.SetAPIVersion("") // of the same object in another version
		whole = u.Object
		typed := &metav1.ObjectMeta{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object["metadata"].(map[string]any), typed); err != nil {
			return nil, err
		}
		metadata = typed
	} else {
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		metadata = o.(metav1.ObjectMetaAccessor).GetObjectMeta()
	}
	if described.Whole, err = digest(whole); err != nil {
		return nil, err
	}
	described.Metadata, err = digest(metadata)
	return described, err
}

func fieldsOf(o runtime.Object, m metav1.Object) fields.Set {
	set := fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()}
	if pod, ok := o.(*corev1.Pod); ok {
		set["spec.nodeName"], set["status.phase"] = pod.Spec.NodeName, string(pod.Status.Phase)
	}
	return set
}

// Difference names the first place where two contents differ.
func Difference(got, want check.Digest) string {
	g, w := []byte(Content(got)), []byte(Content(want))
	at := 0
	for at < len(g) && at < len(w) && g[at] == w[at] {
		at++
	}
	part := func(b []byte) []byte { return bytes.TrimSpace(b[max(0, at-60):min(len(b), at+100)]) }
	return fmt.Sprintf("received …%s…, etcd has …%s…", part(g), part(w))
}

// Unstructured is an object of a decoded JSON value, with its numbers as JSON has them.
func Unstructured(content map[string]any) (runtime.Object, error) {
	text, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	o := &unstructured.Unstructured{}
	return o, o.UnmarshalJSON(text)
}
