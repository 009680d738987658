package main

// #include <stdint.h>
// #include <stdlib.h>
// #include <string.h>
//
// // An object lies where its table says: a word for the length of its value, then its key of 37 bytes, then the value.
// enum { KEY = 37 };
//
// // What a get cannot do without: the entry, the object, the compare of the key. NULL: it is another one.
// static const char *floor_view(char *const *table, size_t at, const char *key, size_t length)
// {
//     const char *object = table[at] + sizeof(uint64_t);
//     return length == KEY && memcmp(object, key, KEY) == 0 ? object + KEY : NULL;
// }
//
// // The same, and the copy of the value.
// static int64_t floor_get(char *const *table, size_t at, const char *key, size_t length, char *room)
// {
//     const char *found = floor_view(table, at, key, length);
//     if (found == NULL) {
//         return -1;
//     }
//     uint64_t value;
//     memcpy(&value, found - KEY - sizeof value, sizeof value);
//     memcpy(room, found, value);
//     return (int64_t)value;
// }
//
// // What a poll of events cannot do without: somebody says where they are.
// static uint64_t floor_poll(const uint64_t *from, size_t count, uint64_t *batch)
// {
//     batch[0] = (uint64_t)(uintptr_t)from;
//     batch[1] = count;
//     return count;
// }
//
// #cgo noescape floor_view
// #cgo nocallback floor_view
// #cgo noescape floor_get
// #cgo nocallback floor_get
// #cgo noescape floor_poll
// #cgo nocallback floor_poll
import "C"

import (
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"
)

// The contestants named floor are no peers: they do what nobody who comes by cgo, or by a
// goroutine that sleeps, can do without, and nothing else.

func floors() []contestant {
	delivery := fanout{"floor", "", false, window, unlimited, openFloor}
	delivered := func(run func(fanout, int) measured) func(int) measured {
		return func(watchers int) measured { return run(delivery, watchers) }
	}
	const woken = "a counter for all, and a channel for each goroutine that sleeps: a token wakes it"
	return []contestant{
		{"get", "floor", "an empty crossing of cgo that copies a value which it finds by a number", []int{1000, 150_000, 1_000_000}, getFloor(copyFloor)},
		{"get-view", "floor", "an empty crossing of cgo that finds a value by a number; nothing is counted, and nothing given back", []int{1000, 150_000, 1_000_000}, getFloor(viewFloor)},
		{"poll", "floor", "an empty crossing of cgo a batch, no subscription, and the head of every event", []int{64}, pollFloor},
		{"deliver", "floor", woken, []int{1, 10, 100, 1000, 10_000}, delivered(deliver)},
		{"wake", "floor", woken, []int{1}, delivered(wake)},
	}
}

// getFloor gets scattered objects.
func getFloor(get func(table **C.char, at int, key string) uint64) func(objects int) measured {
	return func(objects int) measured {
		table := (**C.char)(C.malloc(C.size_t(objects) * C.size_t(unsafe.Sizeof(uintptr(0)))))
		for number := range objects {
			length := 8 + C.KEY + len(value)
			pointer := (*C.char)(C.malloc(C.size_t(length)))
			object := unsafe.Slice((*byte)(unsafe.Pointer(pointer)), length)
			*(*uint64)(unsafe.Pointer(pointer)) = uint64(len(value))
			copy(object[8:], key(number))
			copy(object[8+C.KEY:], value)
			unsafe.Slice(table, objects)[number] = pointer
		}
		ready, order := makesReady(objects, key), scattered{count: objects}
		return repeat(func(section *section) uint64 {
			var sum uint64
			for _, key := range ready.next(section) {
				// In the same order as the keys.
				sum += get(table, order.next(), key)
			}
			sink.Store(sum)
			return chunk
		})
	}
}

var errWrongObject = errors.New("floor: the wrong object")

// lastCopy is the memory that every get copies into.
var lastCopy = make([]byte, len(value))

func copyFloor(table **C.char, at int, key string) uint64 {
	name, room := (*C.char)(unsafe.Pointer(unsafe.StringData(key))), (*C.char)(unsafe.Pointer(unsafe.SliceData(lastCopy)))
	if C.floor_get(table, C.size_t(at), name, C.size_t(len(key)), room) < 0 {
		check(errWrongObject)
	}
	return touched(lastCopy)
}

func viewFloor(table **C.char, at int, key string) uint64 {
	found := C.floor_view(table, C.size_t(at), (*C.char)(unsafe.Pointer(unsafe.StringData(key))), C.size_t(len(key)))
	if found == nil {
		check(errWrongObject)
	}
	return touched(unsafe.Slice((*byte)(unsafe.Pointer(found)), len(value)))
}

// floorEvent is as long as an event of watchcore, and has what its head has.
type floorEvent struct {
	revision uint64
	key      unsafe.Pointer
	rest     [6]uint64
}

func pollFloor(size int) measured {
	const events = 1024
	first := (*floorEvent)(C.calloc(events, C.size_t(unsafe.Sizeof(floorEvent{}))))
	all := unsafe.Slice(first, events)
	for at := range all {
		all[at].revision, all[at].key = uint64(at), unsafe.Pointer(&all[at])
	}
	return repeat(func(*section) (count uint64) {
		for at := 0; at < events; at += size {
			var batch [8]uint64
			from := (*C.uint64_t)(unsafe.Pointer(&all[at]))
			count += uint64(C.floor_poll(from, C.size_t(size), (*C.uint64_t)(unsafe.Pointer(&batch))))
			var sum uint64
			for _, event := range all[at : at+size] {
				sum += event.revision + uint64(uintptr(event.key))
			}
			sink.Store(sum)
		}
		return count
	})
}

// floorPublisher counts events; who has taken all of them waits for a token.
type floorPublisher struct {
	events   atomic.Uint64
	sleeping atomic.Bool // somebody is listed
	mutex    sync.Mutex
	listed   []chan struct{}
}

func openFloor(interests []interest) (publisher, []receiver) {
	p := &floorPublisher{}
	receivers := make([]receiver, len(interests))
	for at := range receivers {
		awake := make(chan struct{}, 1)
		receivers[at] = func(took func(int)) {
			for seen := uint64(0); ; {
				if events := p.events.Load(); events != seen {
					took(int(events - seen))
					seen = events
				} else if p.list(awake, seen) {
					<-awake
				}
			}
		}
	}
	return p, receivers
}

// list says whether the goroutine may sleep.
func (p *floorPublisher) list(awake chan struct{}, seen uint64) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.sleeping.Store(true)
	if p.events.Load() != seen {
		return false
	}
	p.listed = append(p.listed, awake)
	return true
}

func (p *floorPublisher) publish(string, []byte) {
	p.events.Add(1)
	if !p.sleeping.Load() {
		return
	}
	p.mutex.Lock()
	p.sleeping.Store(false)
	for _, awake := range p.listed {
		awake <- struct{}{}
	}
	p.listed = p.listed[:0]
	p.mutex.Unlock()
}
