package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// The rows about informers, in the shape of client-go's own benchmark: all objects lie in one
// namespace, each read lists it through the index of namespaces, and a writer has at
// most ten changes under way to a handler.

const (
	oneNamespace = "default"
	underWay     = 10
)

// informed is an informer with a source that is written to.
type informed interface {
	// write changes an object.
	write(number int)
	// handle adds a handler and waits until it has the state; changed is called for each change.
	handle(changed func())
	// list is what the namespace has, each object seen once.
	list() int
	// close ends the informer, and opens another one of the same source.
	close() (reopen func() informed)
}

type informers struct {
	name, note string
	// open makes one of objects that are there already, and waits until it has them.
	open func(objects []*object) informed
}

var informerKinds = []informers{
	{"watchcore", "go/informer over a cache: what the cache does is in it", openOurInformer},
	{"watchcore, walk", "the same; its readers walk over the newest state and make no list", openWalkingInformer},
	{"client-go", "SharedInformer; its source is a channel of decoded objects", openSharedInformer},
}

func informing() (all []contestant) {
	for _, kind := range informerKinds {
		add := func(row string, run func(informers, int) measured, sizes ...int) {
			body := func(size int) measured { return run(kind, size) }
			all = append(all, contestant{row, kind.name, kind.note, sizes, body})
		}
		for _, readers := range []int{0, 8, 80} {
			beside := func(of func(reading) measured) func(informers, int) measured {
				return func(kind informers, objects int) measured { return of(readBeside(kind, objects, readers)) }
			}
			add(fmt.Sprint("informer-write-", readers), beside(reading.writes), 10_000, 150_000)
			if readers > 0 {
				add(fmt.Sprint("informer-read-", readers), beside(reading.reads), 10_000, 150_000)
			}
		}
		if kind.name == "watchcore, walk" {
			continue // as watchcore
		}
		add("informer-beside-stalled", besideStalled, 10_000)
		add("informer-stalled-bytes", bytesOfStalled, 100_000)
		for _, handlers := range []int{1, 10} {
			add(fmt.Sprint("informer-bytes-", handlers), func(kind informers, objects int) measured {
				return bytesOfInformer(kind, objects, handlers)
			}, 150_000)
		}
	}
	return all
}

func informerKey(number int) string { return fmt.Sprintf("%s%s/p-%06d", prefix, oneNamespace, number) }

// made are objects as an informer has them.
func made(count int) []*object {
	all := make([]*object, count)
	for number := range all {
		all[number] = newObject(uint64(number+1), informerKey(number), value)
	}
	return all
}

// flow is a writer that has some changes under way to a handler.
type flow struct {
	informed
	tokens  chan struct{}
	handled atomic.Uint64
	order   scattered
}

func begun(i informed, objects int) *flow {
	f := &flow{informed: i, tokens: make(chan struct{}, underWay), order: scattered{count: objects}}
	i.handle(func() {
		f.handled.Add(1)
		<-f.tokens
	})
	return f
}

// writeOne waits for a place first.
func (f *flow) writeOne() {
	f.tokens <- struct{}{}
	f.write(f.order.next())
}

// settle waits until everything is handled.
func (f *flow) settle() { until(func() bool { return len(f.tokens) == 0 }) }

// reading is what happened in a section.
type reading struct {
	wall, cpu    time.Duration
	read, handed uint64
}

func (r reading) of(count uint64) measured {
	if count == 0 {
		check(fmt.Errorf("nothing happened within %v", r.wall))
	}
	wall, cpu := float64(r.wall)/float64(count), float64(r.cpu)/float64(count)
	return measured{Value: wall, Beside: &cpu, Count: count}
}

func (r reading) writes() measured { return r.of(r.handed) }
func (r reading) reads() measured  { return r.of(r.read) }

// leastOf is how many reads and writes make a measurement.
const leastOf = 20

// readBeside lets readers read and one writer write.
func readBeside(kind informers, objects, readers int) reading {
	f := begun(kind.open(made(objects)), objects)
	f.writeOne()
	f.settle()
	var read atomic.Uint64
	var stop atomic.Bool
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			for !stop.Load() {
				whole(f.list(), objects)
				read.Add(1)
			}
		})
	}
	s := begin()
	reads, handed := read.Load(), f.handled.Load()
	all.Go(func() {
		for !stop.Load() {
			f.writeOne()
		}
	})
	enough := func() bool {
		return time.Since(s.begun) >= atLeast() && f.handled.Load()-handed >= leastOf && (readers == 0 || read.Load()-reads >= leastOf)
	}
	for end := s.begun.Add(bound); !enough() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	done := s.end(1)
	r := reading{time.Duration(*done.Beside), time.Duration(done.Value), read.Load() - reads, f.handled.Load() - handed}
	stop.Store(true)
	all.Wait()
	return r
}

// besideStalled is writing beside a handler that never returns.
func besideStalled(kind informers, objects int) measured {
	i := kind.open(made(objects))
	stalled := make(chan struct{})
	i.handle(func() { <-stalled })
	f := begun(i, objects)
	const chunk = 100
	return repeat(func(section *section) uint64 {
		for range chunk {
			f.writeOne()
		}
		section.waiting(f.settle)
		return chunk
	})
}

// bytesOfStalled is what each change takes that a handler which never returns has not
// been given.
func bytesOfStalled(kind informers, changes int) measured {
	const objects = 1000
	i := kind.open(made(objects))
	stalled := make(chan struct{})
	i.handle(func() { <-stalled })
	f := begun(i, objects)
	for range 20_000 { // the cache's log and the journal are as long as they become
		f.writeOne()
	}
	f.settle()
	before := collected()
	for range changes {
		f.writeOne()
	}
	f.settle()
	bytes := collected() - before
	runtime.KeepAlive(f)
	return measured{Value: math.Max(0, bytes) / float64(changes), Count: uint64(changes)}
}

// bytesOfInformer is what an object takes beyond itself, and beyond the cache that it
// comes from.
func bytesOfInformer(kind informers, objects, handlers int) measured {
	all := made(objects)
	i := kind.open(all)
	reopen := i.close()
	i = nil
	before := collected() // with the objects and the cache, and without the informer
	i = reopen()
	for range handlers {
		i.handle(func() {})
	}
	bytes := collected() - before
	runtime.KeepAlive(i)
	runtime.KeepAlive(all)
	return measured{Value: bytes / float64(objects), Count: uint64(objects)}
}

// collected is the memory of Go's objects: the cache's, in C, is no part of it.
func collected() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

// sharedInformer is client-go's. Its source is a channel, which the benchmark of client-go has too.
type sharedInformer struct {
	in       cache.SharedIndexInformer
	stop     func()
	events   chan watch.Event
	objects  []*object // the first ones, which the program has anyway
	keys     []string
	revision uint64
}

func openSharedInformer(objects []*object) informed {
	i := &sharedInformer{events: make(chan watch.Event, 1), objects: objects, keys: make([]string, len(objects)), revision: uint64(len(objects))}
	source := &listedOnce{events: i.events, revision: i.revision}
	source.items = make([]kruntime.Object, len(objects))
	for number, o := range objects {
		i.keys[number], source.items[number] = o.Key, o
	}
	i.in = cache.NewSharedIndexInformer(source, &object{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		i.in.RunWithContext(ctx)
	}()
	i.stop = func() {
		cancel()
		<-ended
	}
	until(i.in.HasSynced)
	return i
}

func (i *sharedInformer) write(number int) {
	i.revision++
	i.events <- watch.Event{Type: watch.Modified, Object: newObject(i.revision, i.keys[number], value)}
}

func (i *sharedInformer) handle(changed func()) {
	r := must(i.in.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, _ any) { changed() }}))
	until(r.HasSynced)
}

func (i *sharedInformer) list() (count int) {
	check(cache.ListAllByNamespace(i.in.GetIndexer(), oneNamespace, labels.Everything(), func(any) { count++ }))
	return count
}

func (i *sharedInformer) close() func() informed {
	i.stop()
	objects := i.objects
	return func() informed { return openSharedInformer(objects) }
}

// listedOnce is a source whose watch is a channel. It keeps the first listing no longer than
// the reflector does.
type listedOnce struct {
	items    []kruntime.Object
	revision uint64
	events   chan watch.Event
	once     sync.Once
}

func (s *listedOnce) List(metav1.ListOptions) (kruntime.Object, error) {
	l := &informedList{Items: s.items}
	s.items = nil
	l.ResourceVersion = strconv.FormatUint(s.revision, 10)
	return l, nil
}

func (s *listedOnce) Watch(metav1.ListOptions) (watch.Interface, error) { return s, nil }
func (s *listedOnce) ResultChan() <-chan watch.Event                    { return s.events }
func (s *listedOnce) Stop()                                             { s.once.Do(func() { close(s.events) }) }
func (s *listedOnce) IsWatchListSemanticsUnSupported() bool             { return true }

// informedList is a list of pointers, so that the reflector copies no object.
type informedList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []kruntime.Object
}

func (l *informedList) DeepCopyObject() kruntime.Object {
	c := *l
	c.Items = append([]kruntime.Object{}, l.Items...)
	return &c
}
