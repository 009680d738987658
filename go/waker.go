package watchcore

// #include "abi.h"
// #cgo noescape wc_set
// #cgo nocallback wc_set
// #cgo noescape wc_set_arm
// #cgo nocallback wc_set_arm
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
	set  *C.watchcore_wakeset
	file *os.File        // never closed: the descriptor is the set's
	conn syscall.RawConn // nil: the descriptor cannot be polled, one thread waits

	mu      sync.Mutex
	last    uint64
	members map[uint64]*member
}

// member is something that waits. It holds nothing that owns a handle, so that
// what nobody can reach any more is still found to be so.
type member struct {
	waker *waker
	tag   uint64
	awake chan struct{} // one token: look again
}

// theWaker starts with the first that waits, and never ends.
var theWaker = sync.OnceValues(func() (*waker, error) {
	w, err := newWaker()
	if err == nil {
		go w.run()
	}
	return w, err
})

func newWaker() (*waker, error) {
	w := &waker{members: map[uint64]*member{}}
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
	return w, nil
}

func (w *waker) join() *member {
	m := &member{waker: w, awake: make(chan struct{}, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	m.tag = w.last
	w.members[m.tag] = m
	return m
}

func (m *member) leave() {
	w := m.waker
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.members, m.tag)
}

func (w *waker) run() {
	for {
		w.sleep()
		w.wake()
	}
}

// sleep until a tag is listed.
func (w *waker) sleep() {
	if w.conn != nil {
		// The descriptor is only a hint: arming empties it and says whether
		// something is listed. False lets the goroutine wait for the next edge.
		if w.conn.Read(func(uintptr) bool { return w.arm() }) == nil {
			return
		}
	}
	must(C.wc_set_wait(w.set))
}

func (w *waker) arm() bool {
	var ready C.uint32_t
	must(C.wc_set_arm(w.set, &ready))
	return ready != 0
}

// wake gives a token to everybody who is listed.
func (w *waker) wake() {
	var tags [256]C.uint64_t
	for {
		var count C.size_t
		must(C.wc_set_take(w.set, &tags[0], C.size_t(len(tags)), &count))
		w.mu.Lock()
		for _, tag := range tags[:count] {
			if m := w.members[uint64(tag)]; m != nil { // else it left meanwhile
				select {
				case m.awake <- struct{}{}:
				default: // it has one
				}
			}
		}
		w.mu.Unlock()
		if int(count) < len(tags) {
			return
		}
	}
}

// must is for calls that only fail where the library is broken: without them
// nobody would be woken again.
func must(e *C.watchcore_error) {
	if e != nil {
		panic(taken(e))
	}
}
