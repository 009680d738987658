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

// wakeLoop wakes goroutines for the library: one wake set, one descriptor in the runtime's poller and one
// goroutine for the whole process, so that a waiting goroutine costs no thread.
//
// It lives from the first tag that is asked for until the process has no user any more (process). Whoever has
// a tag is a user, so a loop that ends has nobody to wake.
type wakeLoop struct {
	process *process
	set     *C.watchcore_wakeset

	// Under the lock of process:
	members []chan struct{} // by tag: one token, look again; nil: nobody's
	free    []uint32        // tags that were left

	unused atomic.Bool   // end was called
	gone   chan struct{} // closed when the goroutine has ended, and the set is freed

	// Of the goroutine that runs:
	file  *os.File        // a descriptor of its own for what the set raises
	conn  syscall.RawConn // nil: the descriptor cannot be polled, one thread waits
	tags  [256]C.uint64_t // that are listed
	count C.size_t        // how many of them
}

// newWakeLoop makes one that is not started.
func newWakeLoop(p *process) (*wakeLoop, error) {
	l := &wakeLoop{process: p, members: make([]chan struct{}, 1), gone: make(chan struct{})} // no tag is 0
	var fd C.int32_t
	if err := failed(C.wc_set(&l.set, &fd)); err != nil {
		return nil, err
	}
	// Never l.file.Fd(): it would make the descriptor blocking.
	l.file = os.NewFile(uintptr(fd), "watchcore-wakeset")
	conn, err := l.file.SyscallConn()
	if err == nil && l.file.SetReadDeadline(time.Time{}) == nil {
		l.conn = conn
	}
	return l, nil
}

// start is called with the lock of the process.
func (l *wakeLoop) start() {
	l.process.loop = l
	l.process.started(l)
	go l.run()
}

func (l *wakeLoop) over() <-chan struct{} { return l.gone }

// join gives tokens to what waits at a channel with room for one, once it is in the set
// under the tag. The loop holds nothing that owns a handle, so that what nobody can reach
// any more is still found to be so.
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

// quit frees a tag, behind the end of what was in the set under it. A late token for the goroutine that had it
// wakes the next one that has it, which looks again for nothing.
func (p *process) quit(tag uint32) {
	p.mu.Lock()
	p.loop.members[tag] = nil
	p.loop.free = append(p.loop.free, tag)
	unused := p.left()
	p.mu.Unlock()
	unused.end()
}

// wake gives a token to whoever has the tag. The caller keeps the tag from being left meanwhile.
func (p *process) wake(tag uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loop.give(tag)
}

// give needs the lock of the process.
func (l *wakeLoop) give(tag uint32) {
	select {
	case l.members[tag] <- struct{}{}:
	default: // it has one, or left meanwhile
	}
}

// end lets the goroutine end, soon; nil does nothing. Once, and without the lock: closing the file waits for the
// goroutine's call of take, if it is inside one.
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
	// The descriptor is only a hint: where no tag is listed the set is armed, and false lets
	// the goroutine wait for the next edge.
	listed := func(uintptr) bool { return l.take() }
	for l.sleep(listed) {
		l.process.mu.Lock()
		for _, tag := range l.tags[:l.count] {
			l.give(uint32(tag))
		}
		l.process.mu.Unlock()
	}
}

// sleep returns with tags; false: the loop is unused.
func (l *wakeLoop) sleep(listed func(uintptr) bool) bool {
	if l.conn != nil && l.conn.Read(listed) == nil {
		return true
	}
	for !l.unused.Load() {
		// Nothing of Go's ends this wait, so it looks now and then whether it is unused.
		must(C.wc_set_wait(l.set, 1000))
		if l.take() {
			return true
		}
	}
	return false
}

// take takes the tags that are listed. False: none is, and the set is armed.
func (l *wakeLoop) take() bool {
	must(C.wc_set_take(l.set, &l.tags[0], C.size_t(len(l.tags)), &l.count))
	return l.count != 0
}

// must is for calls that only fail where the library is broken: without them
// nobody would be woken again.
func must(e *C.watchcore_error) {
	if e != nil {
		panic(taken(e))
	}
}
