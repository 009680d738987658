package informer_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/informer"
)

// benchPod is a decoded value of some size.
type benchPod struct {
	node string
	rest [10]uint64
}

func podKey(i int) string {
	return fmt.Sprintf("/registry/pods/namespace-%03d/pod-%06d", i%300, i)
}

// nodes makes 1000 index values, which the objects share.
var nodes = func() (all []string) {
	for i := range 1000 {
		all = append(all, "node-"+strconv.Itoa(i))
	}
	return all
}()

func decodeBench(_ string, value []byte) (*benchPod, error) {
	n, err := strconv.Atoi(string(value[:4]))
	return &benchPod{node: nodes[n%1000]}, err
}

func byNode(o *informer.Object[*benchPod]) []string { return []string{o.Value.node} }

func podValue(i int) []byte { return fmt.Appendf(nil, "%04d some more of a pod", i%1000) }

// filled is a cache with n pods, and an informer of it with an index.
func filled(b testing.TB, n int, o informer.Options[*benchPod]) (*source, *informer.Informer[*benchPod]) {
	b.Helper()
	s := newSource(b, watchcore.Config{ExpectLoad: true})
	listing := make([]watchcore.KeyValue, n)
	for i := range listing {
		listing[i] = watchcore.KeyValue{Key: []byte(podKey(i)), Value: podValue(i), CreateRevision: 1, ModRevision: 1, Version: 1}
	}
	check(b, s.writer.Load(1, listing))
	s.next = 2
	in, err := informer.New(s.cache, decodeBench, o)
	check(b, err)
	b.Cleanup(func() { check(b, in.StopAndWait(context.Background())) })
	check(b, in.WaitSynced(context.Background()))
	return s, in
}

// store is what is read: the informer's lister, or a map with a lock.
type store interface {
	get(key string) *informer.Object[*benchPod]
	list() []*informer.Object[*benchPod]
	byNode(node string) []*informer.Object[*benchPod]
}

type listerStore struct {
	*informer.Lister[*benchPod]
}

func (l listerStore) get(key string) *informer.Object[*benchPod] { o, _ := l.Get(key); return o }
func (l listerStore) list() []*informer.Object[*benchPod]        { return l.List() }
func (l listerStore) byNode(node string) []*informer.Object[*benchPod] {
	list, _ := l.ByIndex("node", node)
	return list
}

// lockedStore is a map and an index of keys under one RWMutex, as client-go's store is. A handler fills it.
type lockedStore struct {
	mu    sync.RWMutex
	items map[string]*informer.Object[*benchPod]
	index map[string]map[string]struct{}
}

func (l *lockedStore) set(o *informer.Object[*benchPod]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.items[o.Key]; old != nil {
		delete(l.index[old.Value.node], o.Key)
	}
	l.items[o.Key] = o
	set := l.index[o.Value.node]
	if set == nil {
		set = map[string]struct{}{}
		l.index[o.Value.node] = set
	}
	set[o.Key] = struct{}{}
}

func (l *lockedStore) get(key string) *informer.Object[*benchPod] {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.items[key]
}

func (l *lockedStore) list() []*informer.Object[*benchPod] {
	l.mu.RLock()
	defer l.mu.RUnlock()
	list := make([]*informer.Object[*benchPod], 0, len(l.items))
	for _, o := range l.items {
		list = append(list, o)
	}
	return list
}

func (l *lockedStore) byNode(node string) []*informer.Object[*benchPod] {
	l.mu.RLock()
	defer l.mu.RUnlock()
	list := make([]*informer.Object[*benchPod], 0, len(l.index[node]))
	for key := range l.index[node] {
		list = append(list, l.items[key])
	}
	return list
}

// BenchmarkSharedInformer is a write, through the cache to what readers see, beside readers that get a key, ask
// the index and, once in 10,000 times, list everything, as fast as they can. reads/s is theirs. Beside the informer's
// lister stands a map with a lock, fed by a handler of the same informer: writes are compared by what they
// cost beyond the cache's. client-go has the shape.
func BenchmarkSharedInformer(b *testing.B) {
	for _, objects := range []int{10_000, 150_000} {
		for _, readers := range []int{0, 8, 80} {
			for _, kind := range []string{"lister", "map+lock"} {
				b.Run(fmt.Sprintf("%s/objects=%d/readers=%d", kind, objects, readers), func(b *testing.B) {
					benchShared(b, kind, objects, readers)
				})
			}
		}
	}
}

func benchShared(b *testing.B, kind string, objects, readers int) {
	o := informer.Options[*benchPod]{Window: 65536}
	if kind == "lister" {
		o.Indexers = informer.Indexers[*benchPod]{"node": byNode}
	}
	s, in := filled(b, objects, o)
	var read store = listerStore{in.Lister()}
	var seen atomic.Uint64
	if kind != "lister" {
		locked := &lockedStore{items: map[string]*informer.Object[*benchPod]{}, index: map[string]map[string]struct{}{}}
		set := func(o *informer.Object[*benchPod]) { locked.set(o); seen.Store(o.Revision) }
		reg, err := in.AddHandler(informer.HandlerFuncs[*benchPod]{
			Add:    func(o *informer.Object[*benchPod], _ bool) { set(o) },
			Update: func(_, o *informer.Object[*benchPod]) { set(o) },
		}, informer.HandlerOptions{})
		check(b, err)
		check(b, reg.WaitSynced(context.Background()))
		read = locked
	}
	var stop atomic.Bool
	var reads atomic.Uint64
	var reading sync.WaitGroup
	for r := range readers {
		reading.Go(func() {
			n := uint64(0)
			for i := r * 7919; !stop.Load(); i += 13 {
				switch {
				case i%10_000 == 0:
					read.list()
				case i%2 == 0:
					read.byNode(nodes[i%1000])
				default:
					read.get(podKey(i % objects))
				}
				if n++; n%64 == 0 {
					reads.Add(64)
				}
			}
		})
	}
	b.ReportAllocs()
	reads.Store(0)
	b.ResetTimer()
	for i := range b.N {
		at := i * 101 % objects
		check(b, s.writer.Apply(s.next, watchcore.Put(podKey(at), podValue(at+i))))
		s.next++
		if i%1024 == 1023 {
			benchSettle(b, in, &seen, kind, s.next-1)
		}
	}
	benchSettle(b, in, &seen, kind, s.next-1)
	elapsed := b.Elapsed()
	b.ReportMetric(float64(reads.Load())/elapsed.Seconds(), "reads/s")
	b.StopTimer()
	stop.Store(true)
	reading.Wait()
}

func benchSettle(b *testing.B, in *informer.Informer[*benchPod], seen *atomic.Uint64, kind string, revision uint64) {
	check(b, in.WaitUntil(context.Background(), revision))
	for kind != "lister" && seen.Load() < revision {
		runtime.Gosched()
	}
}

// BenchmarkReads is single reads without writes.
func BenchmarkReads(b *testing.B) {
	const objects = 150_000
	_, in := filled(b, objects, informer.Options[*benchPod]{Indexers: informer.Indexers[*benchPod]{"node": byNode}})
	l := listerStore{in.Lister()}
	keys := make([]string, objects)
	for i := range keys {
		keys[i] = podKey(i)
	}
	b.Run("Get", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			l.get(keys[i*101%objects])
		}
	})
	b.Run("ByIndex of 150", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			l.byNode(nodes[i%1000])
		}
	})
	b.Run("List of 150000", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			l.list()
		}
	})
}

// BenchmarkHandlers is a change given to so many handlers.
func BenchmarkHandlers(b *testing.B) {
	for _, handlers := range []int{1, 10, 100} {
		b.Run(strconv.Itoa(handlers), func(b *testing.B) {
			s, in := filled(b, 1000, informer.Options[*benchPod]{Window: 65536})
			var rs []*informer.Registration
			for range handlers {
				r, err := in.AddHandler(informer.HandlerFuncs[*benchPod]{}, informer.HandlerOptions{})
				check(b, err)
				check(b, r.WaitSynced(context.Background()))
				rs = append(rs, r)
			}
			b.ResetTimer()
			for i := range b.N {
				check(b, s.writer.Apply(s.next, watchcore.Put(podKey(i%1000), podValue(i))))
				s.next++
				if i%1024 == 1023 || i == b.N-1 {
					check(b, in.WaitUntil(context.Background(), s.next-1))
					for _, r := range rs {
						for r.Status().LagEvents > 0 {
							runtime.Gosched()
						}
					}
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(handlers), "ns/delivery")
		})
	}
}

// BenchmarkFirstCallback is how long a handler of 150,000 objects takes to its first callback.
func BenchmarkFirstCallback(b *testing.B) {
	_, in := filled(b, 150_000, informer.Options[*benchPod]{})
	b.ResetTimer()
	for range b.N {
		first := make(chan struct{})
		var once sync.Once
		r, err := in.AddHandler(informer.HandlerFuncs[*benchPod]{Add: func(*informer.Object[*benchPod], bool) {
			once.Do(func() { close(first) })
		}}, informer.HandlerOptions{})
		check(b, err)
		<-first
		r.Remove()
	}
}

// BenchmarkMemory is what an informer of 150,000 objects takes in Go's heap, per object: without the objects
// themselves, with so many handlers that have handled everything.
func BenchmarkMemory(b *testing.B) {
	const objects = 150_000
	for _, handlers := range []int{0, 1, 10} {
		b.Run(strconv.Itoa(handlers)+" handlers", func(b *testing.B) {
			for range b.N {
				own := heap()
				plain := make([]*informer.Object[*benchPod], objects)
				for i := range plain {
					plain[i] = &informer.Object[*benchPod]{Key: podKey(i), Value: &benchPod{node: nodes[i%1000]}}
				}
				own = heap() - own - 8*objects
				runtime.KeepAlive(plain)
				plain = nil
				before := heap()
				s, in := filled(b, objects, informer.Options[*benchPod]{})
				for range handlers {
					r, err := in.AddHandler(informer.HandlerFuncs[*benchPod]{}, informer.HandlerOptions{})
					check(b, err)
					check(b, r.WaitSynced(context.Background()))
				}
				for i := range 20_000 { // some history
					at := i * 101 % objects
					check(b, s.writer.Apply(s.next, watchcore.Put(podKey(at), podValue(at))))
					s.next++
					if i%1000 == 0 {
						check(b, in.WaitUntil(context.Background(), s.next-1))
					}
				}
				check(b, in.WaitUntil(context.Background(), s.next-1))
				for _, h := range in.Status().Handlers {
					for h.LagEvents > 0 {
						time.Sleep(time.Millisecond)
						h = in.Status().Handlers[0]
					}
				}
				b.ReportMetric(float64(own)/objects, "B/object-itself")
				b.ReportMetric((float64(heap()-before)-float64(own))/objects, "B/object-beside")
				in.Stop()
			}
		})
	}
}
