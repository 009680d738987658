package watchcore

// #include "abi.h"
// #cgo noescape wc_set
// #cgo nocallback wc_set
// #cgo noescape wc_set_take
// #cgo nocallback wc_set_take
// #cgo nocallback wc_set_wait
import "C"

import (
	"os"
	"sync"
	"syscall"
	"time"
)

// waker wakes goroutines for the library: one wake set, one descriptor in the
// runtime's poller and one goroutine for the whole process, so that a waiting
// goroutine costs no thread.
type waker struct {
	mu      sync.Mutex
	set     *C.watchcore_wakeset // nil: nobody has waited yet, or there was no descriptor left
	members []chan struct{}      // by tag: one token, look again; nil: nobody's
	free    []uint32             // tags that were left

	// Of the goroutine that runs:
	file  *os.File        // never closed: the descriptor is the set's
	conn  syscall.RawConn // nil: the descriptor cannot be polled, one thread waits
	tags  [256]C.uint64_t // that are listed
	count C.size_t        // how many of them
}

var theWaker = &waker{members: make([]chan struct{}, 1)} // no tag is 0

// open is called with the lock, until it has succeeded once: what it makes never ends.
func (w *waker) open() error {
	var set *C.watchcore_wakeset
	var fd C.int32_t
	if err := failed(C.wc_set(&set, &fd)); err != nil {
		return err
	}
	// Never w.file.Fd(): it would make the descriptor blocking.
	w.file = os.NewFile(uintptr(fd), "watchcore-wakeset")
	conn, err := w.file.SyscallConn()
	if err == nil && w.file.SetReadDeadline(time.Time{}) == nil {
		w.conn = conn
	}
	w.set = set
	go w.run(set)
	return nil
}

// join gives tokens to what waits at a channel with room for one, once it is in the set
// under the tag. The waker holds nothing that owns a handle, so that what nobody can reach
// any more is still found to be so.
func (w *waker) join(awake chan struct{}) (set *C.watchcore_wakeset, tag uint32, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.set == nil {
		if err := w.open(); err != nil {
			return nil, 0, err
		}
	}
	if last := len(w.free) - 1; last >= 0 {
		tag, w.free = w.free[last], w.free[:last]
		w.members[tag] = awake
		return w.set, tag, nil
	}
	w.members = append(w.members, awake)
	return w.set, uint32(len(w.members) - 1), nil
}

// leave frees a tag. A late token for the goroutine that had it wakes the next one that
// has it, which looks again for nothing.
func (w *waker) leave(tag uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.members[tag] = nil
	w.free = append(w.free, tag)
}

// wake gives a token.
func (w *waker) wake(tag uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.give(tag)
}

// give needs the lock.
func (w *waker) give(tag uint32) {
	select {
	case w.members[tag] <- struct{}{}:
	default: // it has one, or left meanwhile
	}
}

func (w *waker) run(set *C.watchcore_wakeset) {
	// The descriptor is only a hint: where no tag is listed the set is armed, and false lets
	// the goroutine wait for the next edge.
	listed := func(uintptr) bool { return w.take(set) }
	for {
		if w.conn == nil || w.conn.Read(listed) != nil {
			must(C.wc_set_wait(set))
			w.take(set)
		}
		w.mu.Lock()
		for _, tag := range w.tags[:w.count] {
			w.give(uint32(tag))
		}
		w.mu.Unlock()
	}
}

// take takes the tags that are listed. False: none is, and the set is armed.
func (w *waker) take(set *C.watchcore_wakeset) bool {
	must(C.wc_set_take(set, &w.tags[0], C.size_t(len(w.tags)), &w.count))
	return w.count != 0
}

// must is for calls that only fail where the library is broken: without them
// nobody would be woken again.
func must(e *C.watchcore_error) {
	if e != nil {
		panic(taken(e))
	}
}
