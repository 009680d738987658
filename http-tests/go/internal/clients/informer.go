package clients

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"watchcore.test/http/internal/history"
	"watchcore.test/http/internal/world"
)

// Resource is one of the resources that the writer writes, by its plural.
func Resource(plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: world.Group, Version: world.Version, Resource: plural}
}

// Config is that of client-go for a server, without a limit of requests.
func Config(url string) *rest.Config {
	return &rest.Config{Host: url, QPS: -1}
}

// How an informer reads its first state: by lists, or by a watch that tells it (client-go's feature WatchListClient).
const (
	Lists     = false
	WatchList = true
)

// DynamicInformer starts client-go's informer of whole objects. namespace is empty for all of them.
func DynamicInformer(ctx context.Context, url, plural, namespace string, watchList bool) (*Client, error) {
	client, err := dynamic.NewForConfig(Config(url))
	if err != nil {
		return nil, err
	}
	log := newLog("dynamic informer", plural, namespace, watchList)
	recorder := recordDynamic{client, log, semantics(watchList)}
	informer := dynamicinformer.NewFilteredDynamicInformer(
		recorder, Resource(plural), namespace, 0, cache.Indexers{}, nil).Informer()
	return runInformer(ctx, informer, log, plural), nil
}

// MetadataInformer starts client-go's informer of objects' metadata.
func MetadataInformer(ctx context.Context, url, plural, namespace string, watchList bool) (*Client, error) {
	client, err := metadata.NewForConfig(Config(url))
	if err != nil {
		return nil, err
	}
	log := newLog("metadata informer", plural, namespace, watchList)
	recorder := recordMetadata{client, log, semantics(watchList)}
	informer := metadatainformer.NewFilteredMetadataInformer(
		recorder, Resource(plural), namespace, 0, cache.Indexers{}, nil).Informer()
	return runInformer(ctx, informer, log, plural), nil
}

func newLog(name, plural, namespace string, watchList bool) *history.Log {
	prefix := plural + "/"
	if namespace != "" {
		prefix += namespace + "/"
	}
	if watchList {
		name += " by WatchList"
	}
	return history.NewLog(name, prefix)
}

func runInformer(ctx context.Context, informer cache.SharedIndexInformer, log *history.Log, plural string) *Client {
	c, ctx := start(ctx, log)
	c.State = func(*history.Log) (map[string]int64, error) {
		if !informer.HasSynced() {
			return nil, fmt.Errorf("the informer has not synchronized")
		}
		return stateOf(plural, informer.GetStore().List()), nil
	}
	seen := &revisions{informer: informer, plural: plural, highest: map[string]int64{}}
	// AddEventHandler fails for an informer that has stopped, which this one has not.
	_, _ = informer.AddEventHandler(seen)
	c.Back = seen.back
	c.run(func() error {
		informer.RunWithContext(ctx)
		return nil
	})
	return c
}

// revisions are those that an informer's handler sees. They must not go back.
type revisions struct {
	informer cache.SharedIndexInformer
	plural   string

	mutex   sync.Mutex
	highest map[string]int64 // of each object, also of one that is gone
	synced  int64            // the informer's LastSyncResourceVersion
	fell    string
}

// OnAdd, OnUpdate and OnDelete are what an informer calls.
func (r *revisions) OnAdd(object any, _ bool) { r.see(object) }
func (r *revisions) OnUpdate(_, object any)   { r.see(object) }
func (r *revisions) OnDelete(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	r.see(object)
}

func (r *revisions) see(object any) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	key, revision, ok := place(r.plural, object)
	synced := metadataOf{ResourceVersion: r.informer.LastSyncResourceVersion()}.revision()
	switch {
	case r.fell != "":
	case !ok || revision < r.highest[key]:
		r.fell = fmt.Sprintf("%s is at %d, and was at %d", key, revision, r.highest[key])
	case synced < r.synced:
		r.fell = fmt.Sprintf("LastSyncResourceVersion is %d, and was %d", synced, r.synced)
	}
	r.highest[key], r.synced = max(r.highest[key], revision), max(r.synced, synced)
}

func (r *revisions) back() string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.fell
}

func stateOf(plural string, objects []any) map[string]int64 {
	state := map[string]int64{}
	for _, object := range objects {
		if key, revision, ok := place(plural, object); ok {
			state[key] = revision
		}
	}
	return state
}

func place(plural string, object any) (key string, revision int64, ok bool) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return "", 0, false
	}
	m := metadataOf{Name: accessor.GetName(), Namespace: accessor.GetNamespace(), ResourceVersion: accessor.GetResourceVersion()}
	return m.key(plural), m.revision(), true
}
