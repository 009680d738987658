package watchcore

// #include "abi.h"
// #cgo nocallback wc_free
import "C"

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// loan is memory of the library that a batch, a page or a walk over a snapshot
// shows, from the call that brought it until it is freed.
//
//  1. Methods that copy (Key, Value, ModRevision) and loops hold it while they run: what
//     is released meanwhile stays until they are through. After that they panic, so
//     that no order of calls reads memory that is no longer there.
//  2. Methods that return views (KeyView) mark it. A view is not seen by the garbage
//     collector, so that a loan with one ends by Release only.
//  3. Release ends it, and frees it where it is not kept. A batch is kept by its
//     subscription until that polls again: then what was released is freed in the same
//     crossing (detach), and what was not is kept no longer.
//  4. What nobody can reach any more is freed by the garbage collector, where a net
//     is there: catch adds one where Release may be missing, and where it came while a
//     loop was inside, for a panic may have left that for ever.
//
// It lies inside its owner: who has the loan has the owner. A nil loan is memory of
// the program's own, which nobody frees.
type loan struct {
	gate   gate
	copies lentCopies // build tag debug: what is overwritten at the end
	goods
	net unsafe.Pointer // *net, atomically: the functions cost less where they are inlined
}

// goods is what is freed.
type goods struct {
	count *atomic.Int64 // of the loans of its kind that are out; nil: not counted
	what  uintptr       // the library's
	kind  uint32        // WC_BATCH, WC_PAGE, WC_WALK
}

// net is what the garbage collector has of a loan.
type net struct {
	viewed  uint32 // atomically; 1: a view was taken meanwhile, and it does nothing. First: see view
	cleanup runtime.Cleanup
}

func (g goods) free() {
	C.wc_free(C.uint32_t(g.kind), C.uintptr_t(g.what))
	if g.count != nil {
		g.count.Add(-1)
	}
}

// begin is called once, before anybody else has the loan. What is kept does not count
// until it is detached.
func (l *loan) begin(g goods, kept bool) {
	l.goods = g
	if kept {
		l.gate.state.Store(loanKept)
	} else if g.count != nil {
		g.count.Add(1)
	}
}

// end releases it: it is freed now, when the last call inside is through, or by its
// subscription.
func (l *loan) end() {
	for {
		state := l.gate.state.Load()
		switch {
		case state&gateClosed != 0:
			return
		case state < gateInside || state&loanKept != 0:
			if l.gate.state.CompareAndSwap(state, state|gateClosed) {
				if l.gate.left(state | gateClosed) {
					l.free()
				}
				return
			}
		case l.gate.state.CompareAndSwap(state, (state|gateClosed)+gateInside):
			l.catch()
			l.exit()
			return
		}
	}
}

// isKept says that it is kept and was not released: such do not count.
func (l *loan) isKept() bool { return l.gate.state.Load()&(gateClosed|loanKept) == loanKept }

// detach ends that it is kept. What was released the caller has to free: what it
// returns, or 0.
func (l *loan) detach() uintptr {
	switch state := l.gate.state.Load(); {
	case state&^loanViewed == gateClosed|loanKept: // it stays so: nobody comes in any more
		return l.what
	case state&loanKept != 0:
		l.count.Add(1)
		l.gate.state.Add(gateInside - loanKept)
	case !l.gate.enter():
		l.exit()
		return 0
	}
	l.catch()
	l.exit()
	return 0
}

// catch leaves it to the garbage collector, but for one of which a view may still be
// used. It costs several allocations: it is called where Release may be missing. The
// caller is inside.
func (l *loan) catch() {
	if l.isViewed() {
		return
	}
	n := &net{}
	n.cleanup = runtime.AddCleanup(l, caught.free, caught{l.goods, n})
	l.hang(n)
	if l.isViewed() {
		atomic.StoreUint32(&n.viewed, 1)
	}
}

// hang puts a net, or none, in the place of the one before.
func (l *loan) hang(n *net) {
	if before := (*net)(atomic.SwapPointer(&l.net, unsafe.Pointer(n))); before != nil {
		before.cleanup.Stop()
	}
}

// isViewed says that a view may still be used.
func (l *loan) isViewed() bool { return l.gate.state.Load()&(gateClosed|loanViewed) == loanViewed }

// caught is what a net frees.
type caught struct {
	goods
	net *net
}

func (c caught) free() {
	if atomic.LoadUint32(&c.net.viewed) == 0 {
		c.goods.free()
	}
}

// free is called once.
func (l *loan) free() {
	l.hang(nil)
	l.copies.poison()
	l.goods.free()
}

// enter holds the memory until exit.
func (l *loan) enter() {
	if l != nil && !l.gate.enter() {
		l.exit()
		usedLate()
	}
}

func (l *loan) exit() {
	if l != nil && l.gate.leave() {
		l.free()
	}
}

// view is called before a view is taken. It is short enough to be inlined with what
// takes one: a call costs as much as the rest.
func (l *loan) view() {
	if l != nil && l.gate.state.Load()&(gateClosed|loanViewed) != loanViewed {
		if l.gate.state.Or(loanViewed)&gateClosed != 0 {
			panic(usedLateText)
		}
		if viewed := (*uint32)(atomic.LoadPointer(&l.net)); viewed != nil {
			atomic.StoreUint32(viewed, 1)
		}
	}
}

const usedLateText = "watchcore: a batch, a page or an item was used after it was released. Clone what is to be kept"

func usedLate() { panic(usedLateText) }
