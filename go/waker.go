package watchcore

// #include "abi.h"
// #cgo noescape wc_set
// #cgo nocallback wc_set
// #cgo noescape wc_set_take
// #cgo nocallback wc_set_take
// #cgo nocallback wc_set_wait
// #cgo nocallback watchcore_wakeset_free
import "C"

import (
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// wakeLoop wakes goroutines for the library: one wake set, one descriptor in the runtime's poller
// and one goroutine for the whole process, so that a waiting goroutine costs no thread.
//
// The loop lives from the first request for a tag until the process has no user any more (see
// process). The holder of a tag is a user, so a loop that ends has nobody to wake.
type wakeLoop struct {
	process *process
	set     *C.watchcore_wakeset

	// Under the lock of process:
	members []chan struct{} // by tag; a token in a channel means: check again; nil: an unused tag
	free    []uint32        // unused tags

	unused atomic.Bool   // end was called
	gone   chan struct{} // closed when the goroutine has ended, and the set is freed

	// The goroutine that runs the loop uses:
	file  *os.File        // the set's descriptor
	conn  syscall.RawConn // nil: the descriptor cannot be polled, so one thread waits
	tags  [256]C.uint64_t // the tags that take returned
	count C.size_t        // their number
}

// newWakeLoop makes a loop that is not started.
func newWakeLoop(p *process) (*wakeLoop, error) {
	l := &wakeLoop{process: p, members: make([]chan struct{}, 1), gone: make(chan struct{})} // tag 0 is never used
	var fd C.int32_t
	if err := failed(C.wc_set(&l.set, &fd)); err != nil {
		return nil, err
	}
	// l.file.Fd() must not be called: it would make the descriptor blocking.
	l.file = os.NewFile(uintptr(fd), "watchcore-wakeset")
	conn, err := l.file.SyscallConn()
	if err == nil && l.file.SetReadDeadline(time.Time{}) == nil {
		l.conn = conn
	}
	return l, nil
}

// start is called under the lock of the process.
func (l *wakeLoop) start() {
	l.process.loop = l
	l.process.started(l)
	go l.run()
}

func (l *wakeLoop) over() <-chan struct{} { return l.gone }

// join allocates a tag, whose tokens go to the given channel of capacity 1 once the caller has put
// its member into the set under the tag. The loop refers to nothing that owns a handle, so that the
// garbage collector still finds unreachable objects.
func (p *process) join(awake chan struct{}) (set *C.watchcore_wakeset, tag uint32, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loop == nil {
		l, err := newWakeLoop(p)
		if err != nil {
			return nil, 0, err
		}
		l.start()
	}
	p.users++
	l := p.loop
	if last := len(l.free) - 1; last >= 0 {
		tag, l.free = l.free[last], l.free[:last]
		l.members[tag] = awake
		return l.set, tag, nil
	}
	l.members = append(l.members, awake)
	return l.set, uint32(len(l.members) - 1), nil
}

// quit frees a tag after its member has left the set. If a late token for the former holder reaches
// the next holder of the tag, that one checks once in vain.
func (p *process) quit(tag uint32) {
	p.mu.Lock()
	p.loop.members[tag] = nil
	p.loop.free = append(p.loop.free, tag)
	unused := p.left()
	p.mu.Unlock()
	unused.end()
}

// wake gives a token to the holder of the tag. The caller must prevent that the tag is freed meanwhile.
func (p *process) wake(tag uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loop.give(tag)
}

// give needs the lock of the process.
func (l *wakeLoop) give(tag uint32) {
	select {
	case l.members[tag] <- struct{}{}:
	default: // it has a token, or has left
	}
}

// end makes the goroutine end soon; nil does nothing. end must be called once, and without the lock:
// closing the file waits for the goroutine's call of take, which may be in progress.
func (l *wakeLoop) end() {
	if l == nil {
		return
	}
	l.unused.Store(true)
	l.file.Close()
}

func (l *wakeLoop) run() {
	defer func() {
		C.watchcore_wakeset_free(l.set)
		l.process.ended(l)
		close(l.gone)
	}()
	// The descriptor is only a hint: if take finds no tag, it has armed the set, and returning
	// false makes the goroutine wait for the next edge.
	listed := func(uintptr) bool { return l.take() }
	for l.sleep(listed) {
		l.process.mu.Lock()
		for _, tag := range l.tags[:l.count] {
			l.give(uint32(tag))
		}
		l.process.mu.Unlock()
	}
}

// sleep waits for tags. sleep returns false when the loop is unused.
func (l *wakeLoop) sleep(listed func(uintptr) bool) bool {
	if l.conn != nil && l.conn.Read(listed) == nil {
		return true
	}
	for !l.unused.Load() {
		// Go cannot interrupt this wait, so it checks once a second whether the loop is unused.
		must(C.wc_set_wait(l.set, 1000))
		if l.take() {
			return true
		}
	}
	return false
}

// take takes the tags that are ready. take returns false if there are none; then the set is armed.
func (l *wakeLoop) take() bool {
	must(C.wc_set_take(l.set, &l.tags[0], C.size_t(len(l.tags)), &l.count))
	return l.count != 0
}

// must is for calls that fail only if the library is broken: without them no goroutine would be woken again.
func must(e *C.watchcore_error) {
	if e != nil {
		panic(taken(e))
	}
}
