package apiserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/testserver"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// kinds are resources that come and go over one etcd.
type kinds struct {
	caches *Caches
	config *storagebackend.Config
}

func newKinds(t *testing.T, config Config) *kinds {
	client := testserver.RunEtcd(t, nil)
	k := &kinds{NewCaches(config), storagebackend.NewDefaultConfig("/registry", protobufCodec)}
	k.config.Transport.ServerList = client.Endpoints()
	return k
}

// kind opens a resource.
func (k *kinds) kind(t *testing.T, name string) (*store, func()) {
	t.Helper()
	s, destroy := open(t, k.caches.Decorator(), k.config, name)
	return s.(*store), destroy
}

func (s *store) put(t *testing.T, name string, object *example.Pod) string {
	t.Helper()
	out := &example.Pod{}
	object.ObjectMeta = metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: object.Annotations}
	must(t, s.Create(t.Context(), s.resourcePrefix+"default/"+name, object, out, 0))
	return out.ResourceVersion
}

// touch writes an object anew, and returns its resourceVersion.
func (s *store) touch(t *testing.T, name string) string {
	t.Helper()
	out := &example.Pod{}
	must(t, s.GuaranteedUpdate(t.Context(), s.resourcePrefix+"default/"+name, out, false, nil, storage.SimpleUpdate(func(o apiruntime.Object) (apiruntime.Object, error) {
		o.(*example.Pod).Generation++
		return o, nil
	}), nil))
	return out.ResourceVersion
}

func (s *store) watch(ctx context.Context, t *testing.T, resourceVersion string) watch.Interface {
	t.Helper()
	w, err := s.Watch(ctx, s.resourcePrefix, storage.ListOptions{ResourceVersion: resourceVersion, Predicate: storage.Everything, Recursive: true})
	must(t, err)
	return w // ends with the test
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A kind that goes takes along what it had: its decoded objects, its checker, its watches and its etcd client.
func TestDeletedKindFreesItsMemory(t *testing.T) {
	k := newKinds(t, Config{})
	_, destroy := k.kind(t, "stays")
	defer destroy()
	must(t, k.caches.Wait(t.Context()))
	round := func() (gone weak.Pointer[store], full uint64) {
		s, destroy := k.kind(t, "goes")
		defer destroy()
		list := func() int {
			var list example.PodList
			must(t, s.GetList(t.Context(), s.resourcePrefix, storage.ListOptions{Predicate: storage.Everything, Recursive: true}, &list))
			return len(list.Items)
		}
		for i := list(); i < 300; i++ {
			s.put(t, fmt.Sprint(i), &example.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"large": strings.Repeat("x", 30_000)}}})
		}
		list()
		<-s.watch(t.Context(), t, "0").ResultChan() // is left open
		full = heap()
		return weak.Make(s), full
	}
	round()
	bothWatch(t) // what is made once is there now
	goroutines, before := runtime.NumGoroutine(), heap()
	gone, full := round()
	until(t, "the goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines })
	until(t, "the store and its decoded objects are freed", func() bool { runtime.GC(); return gone.Value() == nil })
	if full < before+8<<20 { // 300 objects of 30 KB
		t.Errorf("the heap was %d, and %d with the decoded objects", before, full)
	}
	until(t, "the heap is as before", func() bool { return heap() < before+2<<20 })
	for _, one := range k.caches.open {
		if len(one.meter.measured) != 1 {
			t.Errorf("%d kinds are counted", len(one.meter.measured))
		}
	}
}

// etcdWatches is how many watches the etcds of this process have.
func etcdWatches(t *testing.T) (watches float64) {
	families, err := prometheus.DefaultGatherer.Gather()
	must(t, err)
	for _, family := range families {
		if family.GetName() == "etcd_debugging_mvcc_watcher_total" {
			return family.Metric[0].GetGauge().GetValue()
		}
	}
	t.Fatal("etcd does not say how many watches it has")
	return 0
}

// bothWatch waits for the watches that etcd has whatever the number of kinds: the cache's, and that of Kubernetes' compactor, which
// begins a second later.
func bothWatch(t *testing.T) {
	t.Helper()
	until(t, "cache and compactor watch", func() bool { return etcdWatches(t) == 2 })
}

// threads is how many threads the library has.
func threads(t *testing.T) (count int) {
	names, err := filepath.Glob("/proc/self/task/*/comm")
	must(t, err)
	for _, name := range names {
		if text, _ := os.ReadFile(name); strings.HasPrefix(string(text), "watchcore-") {
			count++
		}
	}
	return count
}

// A hundred kinds are one connection of the cache, one watch in etcd, and as many threads as one. Each is served within a second.
func TestHundredKindsAreOneWatch(t *testing.T) {
	k := newKinds(t, Config{})
	first, destroy := k.kind(t, "first")
	defer destroy()
	must(t, k.caches.Wait(t.Context()))
	following := first.watch(t.Context(), t, first.put(t, "one", &example.Pod{}))
	first.touch(t, "one")
	<-following.ResultChan()
	bothWatch(t)
	running := threads(t)
	if running < 1 {
		t.Fatal("the library has no threads")
	}
	for i := range 100 {
		began, cancel := context.WithTimeout(t.Context(), time.Second)
		s, destroy := k.kind(t, fmt.Sprint("kind", i))
		defer destroy()
		must(t, s.ReadinessCheck())
		at := s.put(t, "one", &example.Pod{})
		list := &example.PodList{}
		must(t, s.GetList(began, s.resourcePrefix, storage.ListOptions{ResourceVersion: at, Predicate: storage.Everything, Recursive: true}, list))
		w := s.watch(began, t, at)
		s.touch(t, "one")
		if e, ok := <-w.ResultChan(); !ok || len(list.Items) != 1 || e.Type != watch.Modified {
			t.Fatalf("kind %d has %d objects and the event %v after at most a second", i, len(list.Items), e)
		}
		cancel()
	}
	if now := etcdWatches(t); now != 2 {
		t.Errorf("etcd has %v watches, and had 2 with one kind", now)
	}
	if now := threads(t); now > running {
		t.Errorf("the library has %d threads, and had %d with one kind", now, running)
	}
	if counters, err := first.cache.FeederCounters(); err != nil || counters.Connects != 1 || counters.Listings != 1 {
		t.Errorf("the feeder connected %d times and listed %d times: %v", counters.Connects, counters.Listings, err)
	}
}

// The window is one for all kinds. As long as it holds what a busy kind writes, a rare kind's watch resumes behind its last event. A
// burst beyond it expires the resumption, and no watch that is open.
func TestRareKindResumesBesideABusyOne(t *testing.T) {
	k := newKinds(t, Config{WindowEvents: 1024})
	rare, destroyRare := k.kind(t, "rare")
	defer destroyRare()
	busy, destroyBusy := k.kind(t, "leases")
	defer destroyBusy()
	must(t, k.caches.Wait(t.Context()))
	busy.put(t, "lease", &example.Pod{})
	from := rare.put(t, "one", &example.Pod{})
	open := rare.watch(t.Context(), t, from)
	burst := func(events int) {
		last := ""
		for range events {
			last = busy.touch(t, "lease")
		}
		must(t, busy.GetList(t.Context(), busy.resourcePrefix, storage.ListOptions{ResourceVersion: last, Predicate: storage.Everything, Recursive: true}, &example.PodList{}))
	}
	burst(900)
	rare.touch(t, "one")
	for what, w := range map[string]watch.Interface{"open": open, "resumed": rare.watch(t.Context(), t, from)} {
		if e := <-w.ResultChan(); e.Type != watch.Modified {
			t.Fatalf("the %s watch got %s %v", what, e.Type, e.Object)
		}
	}
	burst(1300)
	if e := <-rare.watch(t.Context(), t, from).ResultChan(); e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Fatalf("a watch from before the window got %s %v", e.Type, e.Object)
	}
	rare.touch(t, "one")
	if e := <-open.ResultChan(); e.Type != watch.Modified {
		t.Fatalf("the open watch got %s %v", e.Type, e.Object)
	}
}
