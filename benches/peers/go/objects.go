package main

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The rows about objects: see benches/peers/src/rows/objects.rs.

// store is written by one goroutine and read by any number. A write copies key and
// value; readers see it when it returns, or, where the store has a method wait, when
// that does.
type store interface {
	put(key string, value []byte)
	get(key string) uint64
}

// ordered is a store that lists in the order of the keys.
type ordered interface {
	store
	// list goes over a prefix, and loads a byte of each value if touch.
	list(prefix string, touch bool) int
	// takeState is what a new watcher does that takes all objects, which are so many.
	takeState(objects int) int
}

type keyed struct {
	name, note string
	ordered    bool
	most       int // with more objects it takes longer than a run can wait for
	fill       func(objects int) store
}

var stores = []keyed{
	{"watchcore", "get copies; lists are pages of views", true, unlimited, fillWatchcore},
	{"map", "under an RWMutex", false, unlimited, fillMap},
	{"btree", "google's under an RWMutex; lists walk a lazy clone", true, unlimited, fillTree},
	{"Kubernetes", "apiserver's cacher over a storage that is a channel; objects are decoded already; a list copies their structs", true, 150_000, fillKubernetes},
}

func objects() (all []contestant) {
	for _, s := range stores {
		add := func(row string, run func(store, int) measured, sizes ...int) {
			body := func(size int) measured { return run(s.fill(size), size) }
			all = append(all, contestant{row, s.name, s.note, upTo(s.most, sizes...), body})
		}
		add("overwrite", overwrite, 10_000, 100_000, 1_000_000)
		add("insert", insert, 10_000, 100_000, 1_000_000)
		add("get", get, 1000, 150_000, 1_000_000)
		add("get-many", getMany, 1000, 150_000, 1_000_000)
		all = append(all, contestant{"bytes-object", s.name, s.note, []int{100_000}, func(size int) measured {
			return bytesOfObjects(s.fill, size)
		}})
		if s.name == "watchcore" {
			all = append(all, contestant{"get-many", "watchcore, gets into", "as many gets, each over the one before",
				[]int{1000, 150_000, 1_000_000}, func(size int) measured { return getMany(fillWatchcoreInto(size), size) }})
			all = append(all, contestant{"get", "watchcore, into", "the copy is written over the one before: nothing is allocated",
				[]int{1000, 150_000, 1_000_000}, func(size int) measured { return get(fillWatchcoreInto(size), size) }})
		}
		if !s.ordered {
			continue
		}
		add("list", list(false), 1000, 10_000, 150_000)
		add("list-touched", list(true), 150_000)
		add("state", takeState, 150_000)
		for row, touch := range map[string]bool{"prefix": false, "prefix-touched": true} {
			all = append(all, contestant{row, s.name, s.note, []int{namespaceSize}, func(items int) measured {
				const objects = 150_000
				return listPrefix(s.fill(objects), namespace(objects/namespaceSize/2), items, touch)
			}})
		}
	}
	return all
}

// settle waits for what a store does after put has returned.
func settle(section *section, s store) {
	if waiter, is := s.(interface{ wait() }); is {
		section.waiting(waiter.wait)
	}
}

// chunk is the number of operations of which the keys are made at once.
const chunk = 1000

// ready has keys that are just made, as those of a request are that just came: whoever
// takes one waits for no line of memory.
type ready struct {
	order scattered
	key   func(int) string
	keys  []string
}

func makesReady(objects int, key func(int) string) ready {
	return ready{order: scattered{count: objects}, key: key, keys: make([]string, chunk)}
}

// next makes the next ones, while nothing is measured.
func (r *ready) next(section *section) []string {
	section.waiting(func() {
		for at := range r.keys {
			r.keys[at] = r.key(r.order.next())
		}
	})
	return r.keys
}

func overwrite(s store, objects int) measured {
	ready := makesReady(objects, key)
	write := func(section *section) uint64 {
		for _, key := range ready.next(section) {
			s.put(key, value)
		}
		settle(section, s)
		return chunk
	}
	for range fillsALog / chunk {
		write(&section{})
	}
	return repeat(write)
}

// insert adds as many new keys as there are objects, at most.
func insert(s store, objects int) measured {
	ready, left := makesReady(objects, newKey), objects
	return repeat(func(section *section) uint64 {
		if left < chunk {
			return 0
		}
		left -= chunk
		for _, key := range ready.next(section) {
			s.put(key, value)
		}
		settle(section, s)
		return chunk
	})
}

func get(s store, objects int) measured {
	ready := makesReady(objects, key)
	return repeat(func(section *section) uint64 {
		var sum uint64
		for _, key := range ready.next(section) {
			sum += s.get(key)
		}
		sink.Store(sum)
		return chunk
	})
}

// getMany gets a hundred keys at once, where the store can.
func getMany(s store, objects int) measured {
	const atOnce = 100
	ready := makesReady(objects, key)
	many, is := s.(interface{ getMany(keys []string) uint64 })
	return repeat(func(section *section) uint64 {
		var sum uint64
		for keys := range slices.Chunk(ready.next(section), atOnce) {
			if is {
				sum += many.getMany(keys)
				continue
			}
			for _, key := range keys {
				sum += s.get(key)
			}
		}
		sink.Store(sum)
		return chunk
	})
}

func list(touch bool) func(store, int) measured {
	return func(s store, objects int) measured { return listPrefix(s, prefix, objects, touch) }
}

func listPrefix(s store, prefix string, items int, touch bool) measured {
	return repeat(func(*section) uint64 {
		whole(s.(ordered).list(prefix, touch), items)
		return 1
	})
}

func whole(got, want int) {
	if got != want {
		check(fmt.Errorf("%d objects in place of %d", got, want))
	}
}

// takeState: ten watchers take the whole state at once beside 1000 writes a second.
func takeState(s store, objects int) measured {
	const watchers = 10
	var stop atomic.Bool
	var writer sync.WaitGroup
	writer.Go(func() {
		order := scattered{count: objects}
		for !stop.Load() {
			s.put(key(order.next()), value)
			time.Sleep(time.Millisecond)
		}
	})
	defer writer.Wait()
	defer stop.Store(true)
	return repeat(func(*section) uint64 {
		var all sync.WaitGroup
		for range watchers {
			all.Go(func() { whole(s.(ordered).takeState(objects), objects) })
		}
		all.Wait()
		return 1
	})
}

// bytesOfObjects is what an object takes beyond the bytes of its key and its value.
func bytesOfObjects(fill func(int) store, objects int) measured {
	before := resident()
	s := fill(objects)
	bytes := (resident() - before) / float64(objects)
	runtime.KeepAlive(s)
	return measured{Value: bytes - float64(len(key(0))+len(value)), Count: uint64(objects)}
}
