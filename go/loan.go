package watchcore

// #include "abi.h"
// #cgo nocallback watchcore_page_free
// #cgo nocallback watchcore_iterator_free
import "C"

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// loan is memory of the library that a batch, a page or a walk over a snapshot
// shows, from the call that brought it until it is released.
//
//  1. Methods that copy (Key, Value, ModRevision) hold it while they copy: what is
//     released meanwhile stays until they are through. After that they panic, so
//     that no order of calls reads memory that is no longer there.
//  2. Methods that return views (KeyView) mark it. A view is not seen by the garbage
//     collector, so that a loan with one ends by Release only.
//  3. Release ends it. A loan without a view whose owner is no longer reachable
//     is released by the cleanup that catch adds.
//
// It lies inside its owner: who has the loan has the owner. A nil loan is memory of
// the program's own, which nobody gives back.
type loan struct {
	handle handle
	goods  goods
	viewed atomic.Bool
	bytes  []byte // build tag debug: what is overwritten at the end

	mu     sync.Mutex // for all below
	caught bool       // net is there
	net    runtime.Cleanup
}

// goods is what is released: one of the first three.
type goods struct {
	batch rawBatch
	page  *C.watchcore_page
	walk  *C.watchcore_iterator
	count *atomic.Int64 // of the loans of its kind; nil: not counted
}

func (g *goods) release() {
	switch {
	case g.page != nil:
		C.watchcore_page_free(g.page)
	case g.walk != nil:
		C.watchcore_iterator_free(g.walk)
	default:
		g.batch.release()
	}
	if g.count != nil {
		g.count.Add(-1)
	}
}

// begin is called once, before anybody else has the loan.
func (l *loan) begin(g goods) {
	l.goods = g
	l.handle.pointer, l.handle.free = unsafe.Pointer(l), endLoan
	if g.count != nil {
		g.count.Add(1)
	}
}

func endLoan(p unsafe.Pointer) {
	l := (*loan)(p)
	poison(l.bytes)
	l.goods.release()
}

// end releases it, once: now, or when the last method that copies is through.
func (l *loan) end() {
	l.mu.Lock()
	if l.caught {
		l.net.Stop()
		l.caught = false
	}
	l.viewed.Store(false)
	l.mu.Unlock()
	l.handle.close()
}

// enter holds the memory until exit.
func (l *loan) enter() {
	if l != nil && !l.handle.acquire() {
		usedLate()
	}
}

func (l *loan) exit() {
	if l != nil {
		l.handle.release()
	}
}

// view is called before a view is taken.
func (l *loan) view() {
	if l != nil && !l.viewed.Load() {
		l.viewFirst()
	}
}

func (l *loan) viewFirst() {
	l.enter()
	defer l.exit()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.caught {
		l.net.Stop()
		l.caught = false
	}
	l.viewed.Store(true)
}

// catch lets the garbage collector release it. It costs several allocations:
// it is called where Release may be missing.
func (l *loan) catch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.caught || l.viewed.Load() || l.handle.closed() {
		return
	}
	l.net = runtime.AddCleanup(l, func(g goods) { g.release() }, l.goods)
	l.caught = true
}

func usedLate() {
	panic("watchcore: a batch, a page or an item was used after it was released. Clone what is to be kept")
}
