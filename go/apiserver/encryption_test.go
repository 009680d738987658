package apiserver

import (
	"bytes"
	"context"
	"crypto/aes"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	watchcore "github.com/watchcore/watchcore/go"
)

// key is a transformer as Kubernetes makes it of a key in its configuration of encryption.
func key(t *testing.T, name string) value.PrefixTransformer {
	block, err := aes.NewCipher(bytes.Repeat([]byte(name[:1]), 32))
	must(t, err)
	gcm, err := aestransformer.NewGCMTransformer(block)
	must(t, err)
	return value.PrefixTransformer{Prefix: []byte("k8s:enc:aesgcm:v1:" + name + ":"), Transformer: gcm}
}

// unencrypted is the provider identity of such a configuration.
var unencrypted = value.PrefixTransformer{Transformer: identity.NewEncryptCheckTransformer()}

func keys(of ...value.PrefixTransformer) value.Transformer {
	return value.NewPrefixTransformers(nil, of...)
}

// label gives an object a label, and returns its resourceVersion.
func (s *store) label(t *testing.T, name, label string) string {
	t.Helper()
	out := &example.Pod{}
	must(t, s.GuaranteedUpdate(t.Context(), s.resourcePrefix+"default/"+name, out, false, nil, storage.SimpleUpdate(func(o apiruntime.Object) (apiruntime.Object, error) {
		o.(*example.Pod).Labels = map[string]string{"n": label}
		return o, nil
	}), nil))
	return out.ResourceVersion
}

// named selects the object of a name with the label n=1.
func named(name string) storage.SelectionPredicate {
	return storage.SelectionPredicate{
		Label: labels.SelectorFromSet(labels.Set{"n": "1"}), Field: fields.OneTermEqualSelector("metadata.name", name), GetAttrs: podAttributes,
	}
}

// selects checks what lists and watches with a selector say of an object that comes, changes, leaves the selector and is deleted.
func (s *store) selects(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	from := s.label(t, name, "0")
	w, err := s.Watch(ctx, s.resourcePrefix, storage.ListOptions{ResourceVersion: from, Predicate: named(name), Recursive: true})
	must(t, err)
	list := func(at string) (names string) {
		all := &example.PodList{}
		must(t, s.GetList(ctx, s.resourcePrefix, storage.ListOptions{ResourceVersion: at, Predicate: named(name), Recursive: true}, all))
		for _, pod := range all.Items {
			names += pod.Name
		}
		return names
	}
	if got := list(from); got != "" {
		t.Errorf("before %s has the label the list has %q", name, got)
	}
	if got := list(s.label(t, name, "1")); got != name {
		t.Errorf("the list has %q, not %q", got, name)
	}
	s.label(t, name, "2")
	s.label(t, name, "1")
	must(t, s.Delete(ctx, s.resourcePrefix+"default/"+name, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))
	for _, want := range []watch.EventType{watch.Added, watch.Deleted, watch.Added, watch.Deleted} {
		if e := <-w.ResultChan(); e.Type != want {
			t.Errorf("%s: the watch got %s %v, not %s", name, e.Type, e.Object, want)
		}
	}
}

// stored is what etcd has of an object.
func (w *kinds) stored(t *testing.T, s *store, name string) string {
	kv, _, err := s.cache.Get(t.Context(), s.prefix+strings.TrimPrefix(s.resourcePrefix, "/")+"default/"+name, watchcore.ReadOptions{})
	must(t, err)
	return string(kv.Value)
}

// A key is replaced as Kubernetes describes it: read with both, written with the new one, then every object written again. Lists, gets and
// watches with selectors read all of it, before, between and after.
func TestEncryptionAndItsRotation(t *testing.T) {
	k := newKinds(t, Config{})
	first, second := key(t, "first"), key(t, "second")
	use := func(transformer value.Transformer) (*store, func()) {
		k.config.Transformer = transformer
		s, destroy := k.kind(t, "secrets")
		must(t, k.caches.Wait(t.Context()))
		return s, destroy
	}
	_, keep := k.kind(t, "others") // the cache stays while the kind is opened again
	defer keep()
	for at, step := range []struct {
		transformer value.Transformer
		writes      string // what stored objects begin with when they are written again
	}{
		{keys(unencrypted, first), "k8s\x00"},
		{keys(first, unencrypted), string(first.Prefix)},
		{keys(second, first), string(second.Prefix)},
		{keys(second), string(second.Prefix)},
		{keys(unencrypted, second), "k8s\x00"},
	} {
		s, destroy := use(step.transformer)
		if at == 0 {
			s.put(t, "kept", &example.Pod{})
		}
		s.put(t, "moving", &example.Pod{})
		s.selects(t, "moving")
		before := &example.Pod{}
		must(t, s.Get(t.Context(), s.resourcePrefix+"default/kept", storage.GetOptions{ResourceVersion: "0"}, before))
		out := &example.Pod{}
		must(t, s.GuaranteedUpdate(t.Context(), s.resourcePrefix+"default/kept", out, false, nil, storage.SimpleUpdate(func(o apiruntime.Object) (apiruntime.Object, error) {
			return o, nil // changes nothing: what is stored by an old key is written anyway
		}), nil))
		until(t, "the cache has it", func() bool { return fmt.Sprint(s.cache.Revision()) >= out.ResourceVersion })
		if got := k.stored(t, s, "kept"); !strings.HasPrefix(got, step.writes) {
			t.Errorf("step %d: etcd has %.30q, not %q", at, got, step.writes)
		}
		if again := before.ResourceVersion != out.ResourceVersion; again != (at != 0 && at != 3) {
			t.Errorf("step %d: it was written again: %v", at, again)
		}
		destroy()
	}
}

// Selectors are the cache's where it can read all objects of the kind: also beside a kind that is encrypted, but not once there was an
// object of the kind itself that is.
func TestEncryptionOfAnotherKind(t *testing.T) {
	k := newKinds(t, Config{})
	first := key(t, "first")
	k.config.Transformer = keys(first, unencrypted)
	secrets, destroySecrets := k.kind(t, "secrets")
	defer destroySecrets()
	must(t, k.caches.Wait(t.Context()))
	k.config.Transformer = keys(unencrypted, first) // no longer encrypted
	pods, destroyPods := k.kind(t, "pods")
	defer destroyPods()
	byCache := func(s *store) bool {
		p := named("a")
		return s.split(t.Context(), &p).fields != ""
	}
	secrets.put(t, "a", &example.Pod{})
	pods.put(t, "a", &example.Pod{})
	until(t, "the cache has both", func() bool { return secrets.cache.Status().Objects == 2 })
	if pods.cache.Stats().ExtractFailures == 0 {
		t.Fatal("the cache can read an encrypted object")
	}
	if byCache(secrets) || !byCache(pods) {
		t.Errorf("the cache selects secrets: %v, pods: %v", byCache(secrets), byCache(pods))
	}
	pods.selects(t, "a")
	// Another server, with the old configuration, writes a pod.
	k.config.Transformer = keys(first)
	old, destroyOld := k.kind(t, "pods")
	defer destroyOld()
	old.put(t, "b", &example.Pod{})
	until(t, "the cache has it", func() bool { return !byCache(pods) })
	must(t, old.Delete(t.Context(), "/pods/default/b", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))
	until(t, "it is gone", func() bool { return pods.cache.Status().Objects == 1 })
	if byCache(pods) {
		t.Error("the cache selects again, though its window has what it cannot read")
	}
}
