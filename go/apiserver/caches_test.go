package apiserver

import (
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/testserver"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

func open(t *testing.T, decorator generic.StorageDecorator, config *storagebackend.Config, resource string) (storage.Interface, factory.DestroyFunc) {
	t.Helper()
	s, destroy, err := decorator(config.ForResource(schema.GroupResource{Resource: resource}), "/"+resource+"/", nil,
		func() runtime.Object { return &example.Pod{} }, func() runtime.Object { return &example.PodList{} }, podAttributes, nil, &cache.Indexers{})
	must(t, err)
	return s, destroy
}

// All resources of one etcd have one cache. A resource that comes later is served at once, and the last one that goes ends the cache.
func TestResourcesShareACache(t *testing.T) {
	client := testserver.RunEtcd(t, nil)
	config := storagebackend.NewDefaultConfig("/registry", protobufCodec)
	config.Transport.ServerList = client.Endpoints()
	caches := NewCaches(Config{})
	pods, destroyPods := open(t, caches.Decorator(), config, "pods")
	must(t, caches.Wait(t.Context()))
	key, out := "/pods/default/a", &example.Pod{}
	must(t, pods.Create(t.Context(), key, &example.Pod{}, out, 0))

	later, destroyLater := open(t, caches.Decorator(), config, "laterkinds")
	must(t, later.ReadinessCheck())
	if len(caches.open) != 1 {
		t.Errorf("%d caches are open", len(caches.open))
	}
	kept := pods.(*store).cache
	destroyPods()
	destroyPods() // as a subresource does
	must(t, later.GetList(t.Context(), "/laterkinds/", storage.ListOptions{ResourceVersion: out.ResourceVersion, Predicate: storage.Everything, Recursive: true},
		&example.PodList{}))
	destroyLater()
	if len(caches.open) != 0 || kept.Ready() {
		t.Errorf("%d caches are open, the first one is ready: %v", len(caches.open), kept.Ready())
	}
}

// The watches of a resource end when its storage is destroyed, as when a custom resource's definition changes or goes: they decode by
// that definition. The other resources' watches stay.
func TestDestroyedStorageEndsItsWatches(t *testing.T) {
	client := testserver.RunEtcd(t, nil)
	config := storagebackend.NewDefaultConfig("/registry", protobufCodec)
	config.Transport.ServerList = client.Endpoints()
	caches := NewCaches(Config{})
	going, destroy := open(t, caches.Decorator(), config, "going")
	staying, destroyStaying := open(t, caches.Decorator(), config, "staying")
	defer destroyStaying()
	must(t, caches.Wait(t.Context()))
	all := storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true}
	ending, err := going.Watch(t.Context(), "/going/", all)
	must(t, err)
	other, err := staying.Watch(t.Context(), "/staying/", all)
	must(t, err)
	destroy()
	for e := range ending.ResultChan() {
		t.Errorf("the watch got %s %v", e.Type, e.Object)
	}
	if _, err := going.Watch(t.Context(), "/going/", all); !apierrors.IsTooManyRequests(err) {
		t.Errorf("a watch of a destroyed storage: %v", err)
	}
	must(t, staying.Create(t.Context(), "/staying/default/a", &example.Pod{}, &example.Pod{}, 0))
	if e := <-other.ResultChan(); e.Type != watch.Added {
		t.Errorf("the other resource's watch got %s %v", e.Type, e.Object)
	}
}

// A watch resumes at a server that was started since, behind a revision of the history that its cache takes in.
func TestWatchesResumeAfterRestart(t *testing.T) {
	client := testserver.RunEtcd(t, nil)
	config := storagebackend.NewDefaultConfig("/registry", protobufCodec)
	config.Transport.ServerList = client.Endpoints()
	first, second := &example.Pod{}, &example.Pod{}
	for history, want := range map[int]watch.EventType{0: watch.Added, -1: watch.Error} {
		resource := fmt.Sprintf("restart%d", -history)
		before := NewCaches(Config{})
		s, destroy := open(t, before.Decorator(), config, resource)
		must(t, before.Wait(t.Context()))
		must(t, s.Create(t.Context(), "/"+resource+"/default/a", &example.Pod{}, first, 0))
		must(t, s.Create(t.Context(), "/"+resource+"/default/b", &example.Pod{}, second, 0))
		destroy()

		after := NewCaches(Config{History: history})
		s, destroy = open(t, after.Decorator(), config, resource)
		defer destroy()
		must(t, after.Wait(t.Context()))
		w, err := s.Watch(t.Context(), "/"+resource+"/", storage.ListOptions{ResourceVersion: first.ResourceVersion, Predicate: storage.Everything, Recursive: true})
		must(t, err)
		if e := <-w.ResultChan(); e.Type != want {
			t.Errorf("with History %d the watch got %s %v", history, e.Type, e.Object)
		}
	}
}

func TestServersAreNeeded(t *testing.T) {
	if _, _, err := NewCaches(Config{}).get(storagebackend.NewDefaultConfig("/registry", protobufCodec)); err == nil {
		t.Error("a cache of no server was made")
	}
}

type getter struct{ decorator generic.StorageDecorator }

func (g getter) GetRESTOptions(schema.GroupResource, runtime.Object) (generic.RESTOptions, error) {
	return generic.RESTOptions{Decorator: g.decorator}, nil
}

// A resource that is to have no watch cache gets none.
func TestUncachedResourcesStay(t *testing.T) {
	cached := func(*storagebackend.ConfigForResource, string, func(runtime.Object) (string, error), func() runtime.Object, func() runtime.Object,
		storage.AttrFunc, storage.IndexerFuncs, *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		panic("the inner decorator was asked")
	}
	for name, c := range map[string]struct {
		decorator generic.StorageDecorator
		ours      bool
	}{"undecorated": {generic.UndecoratedStorage, false}, "none": {nil, false}, "with a watch cache": {cached, true}} {
		options, err := RESTOptionsGetter(getter{c.decorator}).GetRESTOptions(schema.GroupResource{}, nil)
		must(t, err)
		if ours := isCached(options); ours != c.ours {
			t.Errorf("%s: a cache is there: %v", name, ours)
		}
	}
}
