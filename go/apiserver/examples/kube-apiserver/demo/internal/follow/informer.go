package follow

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/check"
)

// Informer is client-go's reflector and the store that it keeps.
type Informer struct {
	Name     string
	Resource Resource
	store    cache.Store
}

// NewInformer makes one of all objects of a resource; it runs until the context ends.
func NewInformer(ctx context.Context, clients *Clients, r Resource, example runtime.Object) *Informer {
	from := clients.source(r, Protobuf, check.View{})
	i := &Informer{Name: r.Resource + ": client-go's reflector", Resource: r, store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	reflector := cache.NewReflector(&cache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return from.list(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return from.watch(ctx, o) },
	}, example, i.store, 0)
	go reflector.RunWithContext(ctx)
	return i
}

// Check compares the store with the last state.
func (i *Informer) Check(h *check.History) (int, error) {
	have := check.State{}
	for _, one := range i.store.List() {
		o, err := object(one.(runtime.Object).DeepCopyObject())
		if err != nil {
			return 0, err
		}
		have[o.Key] = check.Version{Revision: o.Revision, Digest: o.Whole}
	}
	if wrong := have.Differs(h.State()); wrong != "" {
		return len(have), fmt.Errorf("%s: %s", i.Name, wrong)
	}
	return len(have), nil
}
