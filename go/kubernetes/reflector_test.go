package kubernetes_test

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/kubernetes"
)

// reflects runs client-go's reflector into a store until the end of the test.
func reflects(t testing.TB, l cache.ListerWatcher, pageSize int64) (cache.Store, *cache.Reflector) {
	t.Helper()
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	r := cache.NewReflectorWithOptions(l, &corev1.Pod{}, store, cache.ReflectorOptions{Name: t.Name()})
	r.WatchListPageSize = pageSize
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.RunWithContext(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		bounded.Receive(t, "the end of the reflector", ended)
	})
	return store, r
}

// client-go's reflector lists in the pages that it asks for, and its revision moves with events and with
// bookmarks.
func TestKU24ReflectorListsInPagesAndItsRevisionMoves(t *testing.T) {
	bounded.LeavesNothing(t)
	c := newCluster(t, watchcore.Config{})
	for number := range 20 {
		c.put("ns", strconv.Itoa(number), nil, "")
	}
	l := &counted{ListWatch: newListWatch(t, c, func(config *kubernetes.Config) {
		config.NoWatchList, config.BookmarkInterval = true, time.Millisecond
		config.Range = watchcore.RangePrefix(prefix)
	})}
	store, r := reflects(t, l, 7)
	c.sees("store", store)
	bounded.Eventually(t, "the watch", func() bool { return l.watches.Load() == 1 })
	// With resourceVersion "0" there is one page, as from Kubernetes' cache.
	want(t, "lists", l.lists.Load(), 1)
	revision := c.put("ns", "new", nil, "")
	bounded.Eventually(t, "the revision of an event", func() bool { return r.LastSyncResourceVersion() == strconv.FormatUint(revision, 10) })
	c.mu.Lock()
	c.revision++
	check(t, c.writer.Apply(c.revision, watchcore.Put("/registry/nodes/n", "elsewhere")))
	revision = c.revision
	c.mu.Unlock()
	bounded.Eventually(t, "the revision of a bookmark", func() bool { return r.LastSyncResourceVersion() == strconv.FormatUint(revision, 10) })
}

// interrupted asks for the newest state in pages, and compacts the cache after the first one.
type interrupted struct {
	*counted
	cluster *cluster
	done    atomic.Bool
}

func (i *interrupted) List(o metav1.ListOptions) (kruntime.Object, error) {
	return i.ListWithContext(context.Background(), o)
}

func (i *interrupted) ListWithContext(ctx context.Context, o metav1.ListOptions) (kruntime.Object, error) {
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
	list, err := i.counted.ListWithContext(ctx, o)
	if o.Continue == "" && i.done.CompareAndSwap(false, true) {
		revision := i.cluster.put("ns", "interrupts", nil, "")
		check(i.cluster.t, i.cluster.writer.Compact(revision))
	}
	return list, err
}

// Where the revision of its first page has left the window, the reflector lists everything at once, and has one
// state and not two halves.
func TestKU24ReflectorListsAgainWhenItsPagesExpire(t *testing.T) {
	bounded.LeavesNothing(t)
	c := newCluster(t, watchcore.Config{})
	for number := range 20 {
		c.put("ns", strconv.Itoa(number), nil, "")
	}
	noWatchList := func(config *kubernetes.Config) { config.NoWatchList = true }
	l := &interrupted{counted: &counted{ListWatch: newListWatch(t, c, noWatchList)}, cluster: c}
	store, _ := reflects(t, l, 7)
	c.sees("store", store)
	want(t, "lists", l.lists.Load(), 3) // the first page, the second one in vain, everything
	for number := range 5 {
		c.remove("ns", strconv.Itoa(number))
	}
	bounded.Eventually(t, fmt.Sprint("the rest of ", c.state()), func() bool { return maps.Equal(stateOf(t, store.List()), c.state()) })
}
