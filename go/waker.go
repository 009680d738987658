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
	start func() (*C.watchcore_wakeset, error) // with the first that waits; it never ends
	set   *C.watchcore_wakeset
	file  *os.File        // never closed: the descriptor is the set's
	conn  syscall.RawConn // nil: the descriptor cannot be polled, one thread waits
	tags  [256]C.uint64_t // that are listed
	count C.size_t        // how many of them

	mu      sync.Mutex
	members []chan struct{} // by tag: one token, look again; nil: nobody's
	free    []uint32        // tags that were left
}

var theWaker = newWaker()

func newWaker() *waker {
	w := &waker{members: make([]chan struct{}, 1)} // no tag is 0
	w.start = sync.OnceValues(w.open)
	return w
}

func (w *waker) open() (*C.watchcore_wakeset, error) {
	var fd C.int32_t
	if err := failed(C.wc_set(&w.set, &fd)); err != nil {
		return nil, err
	}
	// Never w.file.Fd(): it would make the descriptor blocking.
	w.file = os.NewFile(uintptr(fd), "watchcore-wakeset")
	conn, err := w.file.SyscallConn()
	if err == nil && w.file.SetReadDeadline(time.Time{}) == nil {
		w.conn = conn
	}
	go w.run()
	return w.set, nil
}

// join gives tokens to what waits at a channel with room for one. The waker holds nothing
// that owns a handle, so that what nobody can reach any more is still found to be so.
func (w *waker) join(awake chan struct{}) (tag uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last := len(w.free) - 1; last >= 0 {
		tag, w.free = w.free[last], w.free[:last]
		w.members[tag] = awake
		return tag
	}
	w.members = append(w.members, awake)
	return uint32(len(w.members) - 1)
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

func (w *waker) run() {
	// The descriptor is only a hint: where no tag is listed the set is armed, and false lets
	// the goroutine wait for the next edge.
	listed := func(uintptr) bool { return w.take() }
	for {
		if w.conn == nil || w.conn.Read(listed) != nil {
			must(C.wc_set_wait(w.set))
			w.take()
		}
		w.mu.Lock()
		for _, tag := range w.tags[:w.count] {
			w.give(uint32(tag))
		}
		w.mu.Unlock()
	}
}

// take takes the tags that are listed. False: none is, and the set is armed.
func (w *waker) take() bool {
	must(C.wc_set_take(w.set, &w.tags[0], C.size_t(len(w.tags)), &w.count))
	return w.count != 0
}

// must is for calls that only fail where the library is broken: without them
// nobody would be woken again.
func must(e *C.watchcore_error) {
	if e != nil {
		panic(taken(e))
	}
}
