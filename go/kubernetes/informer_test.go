package kubernetes_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/kubernetes"
)

// witness is a handler that checks what it is given: additions of what is absent, changes and
// deletions of what it was given, and no object that gets older.
type witness struct {
	t testing.TB

	mu       sync.Mutex
	pods     map[string]*corev1.Pod
	unknown  int // deletions whose last value is not known for sure (DeletedFinalStateUnknown)
	handled  int
	complain string
}

func newWitness(t testing.TB) *witness { return &witness{t: t, pods: map[string]*corev1.Pod{}} }

func (w *witness) wrong(format string, arguments ...any) {
	if w.complain == "" {
		w.complain = fmt.Sprintf(format, arguments...)
	}
}

func (w *witness) OnAdd(object any, _ bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handled++
	pod := object.(*corev1.Pod)
	if before := w.pods[nameOf(pod)]; before != nil {
		w.wrong("%s@%s was added, but is there @%s", nameOf(pod), pod.ResourceVersion, before.ResourceVersion)
	}
	w.pods[nameOf(pod)] = pod
}

func (w *witness) OnUpdate(old, object any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handled++
	pod, before := object.(*corev1.Pod), w.pods[nameOf(object.(*corev1.Pod))]
	if before != old {
		w.wrong("%s@%s: the old value is not what was given", nameOf(pod), pod.ResourceVersion)
	}
	if before != nil && versionOf(pod) < versionOf(before) {
		w.wrong("%s went from %s to %s", nameOf(pod), before.ResourceVersion, pod.ResourceVersion)
	}
	w.pods[nameOf(pod)] = pod
}

func (w *witness) OnDelete(object any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handled++
	if last, is := object.(cache.DeletedFinalStateUnknown); is {
		w.unknown++
		object = last.Obj
	}
	pod := object.(*corev1.Pod)
	before := w.pods[nameOf(pod)]
	if before == nil {
		w.wrong("%s@%s was deleted, but is not there", nameOf(pod), pod.ResourceVersion)
	}
	delete(w.pods, nameOf(pod))
}

func versionOf(pod *corev1.Pod) uint64 {
	revision, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	if err != nil {
		panic(err)
	}
	return revision
}

// sees waits until the handler was given the cluster's state.
func (w *witness) sees(what string, c *cluster) {
	w.t.Helper()
	bounded.Eventually(w.t, what, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		state := map[string]string{}
		for name, pod := range w.pods {
			state[name] = pod.ResourceVersion
		}
		return maps.Equal(state, c.state())
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.complain != "" {
		w.t.Fatal(w.complain)
	}
}

// runs runs an informer until the end of the test.
func runs(t testing.TB, informer cache.SharedIndexInformer) context.CancelFunc {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		informer.RunWithContext(ctx)
	}()
	stop := func() {
		cancel()
		bounded.Receive(t, "the end of the informer", ended)
	}
	t.Cleanup(stop)
	return stop
}

func newInformer(l cache.ListerWatcher) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(l, &corev1.Pod{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

func handles(t testing.TB, informer cache.SharedIndexInformer) *witness {
	t.Helper()
	w := newWitness(t)
	_, err := informer.AddEventHandler(w)
	check(t, err)
	return w
}

// client-go's SharedInformer, with handlers that come early and late, has the cluster's state
// after each burst of changes, and asks for the whole state once.
func TestKU01SharedInformerSeesTheStateUnderChurn(t *testing.T) {
	bothModes(t, func(t *testing.T, mode func(*kubernetes.Config)) {
		bounded.LeavesNothing(t)
		c := newCluster(t, watchcore.Config{})
		random := rand.New(rand.NewPCG(1, 2))
		c.churn(random, 200, 40)
		l := &counted{ListWatch: newListWatch(t, c, mode)}
		informer := newInformer(l)
		early := handles(t, informer)
		runs(t, informer)
		for round := range 5 {
			c.churn(random, 300, 40)
			late := handles(t, informer)
			c.sees(fmt.Sprintf("store, round %d", round), informer.GetStore())
			early.sees("the early handler", c)
			late.sees("the late handler", c)
		}
		want(t, "whole states", l.initial(), 1)
		want(t, "unknown last values", early.unknown, 0)
		inNamespace, err := informer.GetIndexer().ByIndex(cache.NamespaceIndex, "ns1")
		check(t, err)
		for _, object := range inNamespace {
			want(t, "namespace", asked(t, object).Namespace, "ns1")
		}
	})
}

// A reflector that was held up so long that the log has moved on gets 410, lists again, and
// handlers see the difference.
func TestKU02SharedInformerRecoversFromLag(t *testing.T) {
	bothModes(t, func(t *testing.T, mode func(*kubernetes.Config)) {
		c := newCluster(t, watchcore.Config{Capacity: 256})
		random := rand.New(rand.NewPCG(3, 4))
		c.churn(random, 100, 30)
		l := &counted{ListWatch: newListWatch(t, c, mode)}
		informer := newInformer(l)
		gate := &sync.RWMutex{}
		check(t, informer.SetTransform(func(object any) (any, error) { // called by the reflector
			gate.RLock()
			defer gate.RUnlock()
			return object, nil
		}))
		w := handles(t, informer)
		runs(t, informer)
		w.sees("before", c)
		gate.Lock()
		c.churn(random, 3000, 30)
		gate.Unlock()
		w.sees("after", c)
		c.sees("store", informer.GetStore())
		if l.initial() < 2 {
			t.Fatal("the reflector did not fall behind")
		}
	})
}

// Where the feed lists anew, what was deleted meanwhile reaches handlers as deleted, with the last
// value that they were given.
func TestKU03SharedInformerSeesTheDifferenceOfAResync(t *testing.T) {
	bothModes(t, func(t *testing.T, mode func(*kubernetes.Config)) {
		c := newCluster(t, watchcore.Config{})
		random := rand.New(rand.NewPCG(5, 6))
		c.churn(random, 100, 30)
		l := &counted{ListWatch: newListWatch(t, c, mode)}
		informer := newInformer(l)
		w := handles(t, informer)
		runs(t, informer)
		w.sees("before", c)
		c.resync(c.revision+50, watchcore.ReasonCompacted, func(pods map[string]watchcore.KeyValue) {
			gone := 0
			for key, kv := range pods {
				if gone++; gone <= 5 {
					delete(pods, key)
				} else {
					kv.ModRevision, kv.Version = c.revision+40, kv.Version+3
					pods[key] = kv
				}
			}
		})
		w.sees("after", c)
		want(t, "deletions whose last value is from the store", w.unknown, 5)
		want(t, "whole states", l.initial(), 2)
		c.churn(random, 100, 30)
		w.sees("after that", c)
	})
}

// A restored backup has lower revisions. Reflectors that ask for one which is no longer there learn
// that it is too large, and take the state as it is.
func TestKU04SharedInformerFollowsARestoredBackup(t *testing.T) {
	bothModes(t, func(t *testing.T, mode func(*kubernetes.Config)) {
		c := newCluster(t, watchcore.Config{})
		random := rand.New(rand.NewPCG(7, 8))
		c.churn(random, 200, 30)
		l := newListWatch(t, c, mode, func(config *kubernetes.Config) { config.WaitTimeout = 10 * time.Millisecond })
		informer := newInformer(l)
		runs(t, informer)
		c.sees("before", informer.GetStore())
		c.resync(20, watchcore.ReasonHistoryReset, func(pods map[string]watchcore.KeyValue) {
			clear(pods)
			for number := range 5 {
				key := podKey("ns", strconv.Itoa(number))
				pods[key] = watchcore.KeyValue{
					Key: []byte(key), Value: podValue("ns", strconv.Itoa(number), nil, ""),
					CreateRevision: 11, ModRevision: uint64(12 + number), Version: 1,
				}
			}
		})
		c.sees("after", informer.GetStore())
		c.churn(random, 50, 30)
		c.sees("after that", informer.GetStore())
	})
}

// Handlers that were added while the informer began see everything.
func TestKU22HandlersAddedDuringTheStartSeeAll(t *testing.T) {
	bothModes(t, func(t *testing.T, mode func(*kubernetes.Config)) {
		c := newCluster(t, watchcore.Config{})
		c.churn(rand.New(rand.NewPCG(9, 9)), 300, 60)
		informer := newInformer(newListWatch(t, c, mode))
		runs(t, informer)
		witnesses := make([]*witness, 10)
		var all sync.WaitGroup
		for at := range witnesses {
			all.Go(func() { witnesses[at] = handles(t, informer) })
		}
		all.Wait()
		for _, w := range witnesses {
			w.sees("a handler", c)
		}
	})
}

// Handlers come and go while objects change.
func TestKU23HandlersComeAndGoUnderChurn(t *testing.T) {
	bounded.LeavesNothing(t)
	c := newCluster(t, watchcore.Config{})
	informer := newInformer(newListWatch(t, c))
	runs(t, informer)
	steady := handles(t, informer)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 20 {
				w := newWitness(t)
				registration, err := informer.AddEventHandler(w)
				if err != nil {
					t.Error(err)
					return
				}
				if err := wait.PollUntilContextTimeout(context.Background(), time.Millisecond, bounded.Bound, true, func(context.Context) (bool, error) {
					return registration.HasSynced(), nil
				}); err != nil {
					t.Error("a handler is not synced: ", err)
				}
				if err := informer.RemoveEventHandler(registration); err != nil {
					t.Error(err)
				}
			}
		})
	}
	c.churn(rand.New(rand.NewPCG(1, 1)), 2000, 50)
	all.Wait()
	steady.sees("the handler that stays", c)
}

// Many informers over one cache, as a program of many controllers has them: each sees its own part
// under churn and a resync, and shared objects are the same ones.
func TestKU15ManyInformersAtOnce(t *testing.T) {
	bounded.LeavesNothing(t)
	c := newCluster(t, declared())
	random := rand.New(rand.NewPCG(10, 11))
	c.churn(random, 300, 60)
	share := func(config *kubernetes.Config) { config.Share = true }
	informers := make([]cache.SharedIndexInformer, 20)
	for at := range informers {
		l := newListWatch(t, c, share, func(config *kubernetes.Config) {
			config.NoWatchList = at%2 == 0
			if at%5 == 0 {
				config.Range = watchcore.RangePrefix(prefix + "ns1/")
			}
		})
		informers[at] = newInformer(l)
		runs(t, informers[at])
	}
	c.churn(random, 1000, 60)
	c.resync(c.revision+10, watchcore.ReasonRequested, func(pods map[string]watchcore.KeyValue) { delete(pods, podKey("ns1", "pod1")) })
	c.churn(random, 1000, 60)
	for at, informer := range informers {
		bounded.Eventually(t, fmt.Sprintf("informer %d", at), func() bool {
			state := c.state()
			if at%5 == 0 {
				maps.DeleteFunc(state, func(name, _ string) bool { return name[:4] != "ns1/" })
			}
			return maps.Equal(stateOf(t, informer.GetStore().List()), state)
		})
	}
}

// A controller by client-go's queue: what it has made of each name in the end is what the cluster has, also of
// names that were deleted, by a change or by a resync.
func TestKU17WorkQueueHasEveryNameThatChanged(t *testing.T) {
	bounded.LeavesNothing(t)
	c := newCluster(t, watchcore.Config{})
	informer := newInformer(newListWatch(t, c))
	queue := workqueue.NewTyped[cache.ObjectName]()
	_, err := informer.AddEventHandler(kubernetes.Enqueue(queue))
	check(t, err)
	runs(t, informer)
	var mu sync.Mutex
	made := map[string]string{}
	var worker sync.WaitGroup
	worker.Go(func() {
		for {
			name, ended := queue.Get()
			if ended {
				return
			}
			object, there, err := informer.GetStore().GetByKey(name.String())
			mu.Lock()
			if delete(made, name.String()); err == nil && there {
				made[name.String()] = object.(*corev1.Pod).ResourceVersion
			}
			mu.Unlock()
			queue.Done(name)
		}
	})
	settled := func(what string) {
		bounded.Eventually(t, what, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return maps.Equal(made, c.state())
		})
	}
	c.churn(rand.New(rand.NewPCG(1, 7)), 300, 20)
	settled("changes")
	for name := range c.state() {
		namespace, pod, _ := strings.Cut(name, "/")
		c.remove(namespace, pod)
		break
	}
	settled("a deletion")
	c.resync(c.revision+5, watchcore.ReasonCompacted, func(pods map[string]watchcore.KeyValue) {
		for key := range pods {
			delete(pods, key)
			return
		}
	})
	settled("a deletion by a resync")
	kubernetes.Enqueue(queue).OnAdd(struct{}{}, false) // has no name: left out
	queue.ShutDown()
	worker.Wait()
}
