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
//  2. Methods that return views (KeyView) mark it. A view is a []byte in the library's memory, which the garbage
//     collector does not see, so that a loan with one ends by Release only. One that was forgotten is leaked:
//     counted, and said in the log (leak.go).
//  3. Release ends it, and frees it where it is not kept. A batch is kept by its
//     subscription until that polls again: then what was released is freed in the same
//     crossing (detach), and what was not is kept no longer.
//  4. What nobody can reach any more is freed by the garbage collector, or found to be leaked, where a net
//     is there: catch adds one where Release may be missing, and where it came while a
//     loop was inside, for a panic may have left that for ever.
//  5. A loan that was released, and that nobody is inside, is lent again with the next
//     batch of its subscription (open): what is made for a poll is a Batch alone. Each
//     time is a turn, which batches and events carry: one of an earlier turn comes late,
//     and panics as after its release. Turns are not used twice: a loan that has had all
//     of them is left to the garbage collector.
//
// It lies inside its owner: who has the loan has the owner. A nil loan is memory of
// the program's own, which nobody frees.
//
// An example: a poll brings batch A in turn 7, and A is released: closed, kept. The next
// poll takes what A showed back (closed, freed), and its events are batch B in turn 8, open
// and kept. Somebody asks an event of A for its key: it comes in, finds turn 8 in place of
// 7, goes out, and panics. B is not released, and the poll after that keeps it no longer:
// the loan is B's for good, and the next batch gets another one, in turn 0.
type loan struct {
	gate   gate
	copies lentCopies // build tag debug: what is overwritten at the end
	taken  origin     // build tag debug: where the program took it
	goods
	net unsafe.Pointer // *net, or noNet, atomically: see view
}

// turn is which time a loan is lent: those bits of its state.
type turn uint32

// goods is what is freed.
type goods struct {
	state *coreState // of its cache, which counts what is out; nil: a walk
	what  uintptr    // the library's
	kind  uint32     // WC_BATCH, WC_PAGE, WC_WALK
	noNet uint32     // of a loan, atomically; stands for a net's first word where there is none. Here it costs nothing
}

// net is what the garbage collector has of a loan.
type net struct {
	viewed  uint32 // atomically; 1: a view was taken, and the memory is not freed. First: see view
	cleanup runtime.Cleanup
}

func (g goods) free() {
	C.wc_free(C.uint32_t(g.kind), C.uintptr_t(g.what))
	g.count(-1)
}

// count counts what is out and not freed.
func (g goods) count(n int64) {
	switch g.kind {
	case C.WC_BATCH:
		g.state.batches.Add(n)
	case C.WC_PAGE:
		g.state.pages.Add(n)
		open[kindPage].Add(n)
	case C.WC_WALK:
		open[kindWalk].Add(n)
	}
}

// begin is called before anybody else has the loan, or its turn; what is lent again is of the
// same kind: who comes late may look at that just now. What is kept does not count until it
// is detached.
func (l *loan) begin(g goods, kept bool) {
	if l.net == nil {
		l.net = unsafe.Pointer(&l.noNet)
		l.goods = g
	} else {
		l.what = g.what
	}
	if kept {
		l.open(loanKept)
	} else {
		g.count(1)
		l.open(0)
	}
}

// open ends the turn before, if there was one. Who comes late may be inside for a moment.
func (l *loan) open(kept int64) {
	for {
		state := l.gate.state.Load()
		next := kept
		if state&gateClosed != 0 {
			next |= state&loanTurns + loanTurn
		}
		if l.gate.state.CompareAndSwap(state, state&^(gateInside-1)|next) {
			return
		}
	}
}

// turn is of whoever has opened it just now.
func (l *loan) turn() turn { return turn(l.gate.state.Load() & loanTurns) }

// end releases it: it is freed now, when the last call inside is through, or by its
// subscription. A turn that is over was released.
func (l *loan) end(turn turn) {
	for {
		state := l.gate.state.Load()
		switch {
		case state&(gateClosed|loanTurns) != int64(turn):
			return
		case state < gateInside || state&loanKept != 0: // nobody is inside, or it is freed later
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

// detach ends that it is kept, unless it was released: then the caller has to free what it
// returns (0: nothing), and may lend the loan again.
func (l *loan) detach() (what uintptr, again bool) {
	for {
		state := l.gate.state.Load()
		again = state&loanKept != 0 && state&loanTurns != loanTurns
		switch {
		case state&gateFreed != 0:
			// Of one that is kept nobody frees anything but whoever calls this.
			return 0, again
		case state&(gateClosed|loanKept) == gateClosed|loanKept && state < gateInside:
			if !l.gate.state.CompareAndSwap(state, state|gateFreed) {
				continue
			}
			return l.what, again
		case state&loanKept != 0:
			l.count(1)
			l.gate.state.Add(gateInside - loanKept)
			l.catch()
		case l.gate.enter():
			l.catch()
		}
		l.exit()
		return 0, false
	}
}

// catch leaves it to the garbage collector, which does not free one of which a view may still be
// used. It costs several allocations: it is called where Release may be missing. The
// caller is inside.
func (l *loan) catch() {
	n := &net{}
	n.cleanup = runtime.AddCleanup(l, caught.end, caught{goods{state: l.state, what: l.what, kind: l.kind}, l.taken, n})
	l.hang(unsafe.Pointer(n))
	if l.isViewed() {
		atomic.StoreUint32(&n.viewed, 1)
	}
}

// hang puts a net, or none, in the place of the one before.
func (l *loan) hang(n unsafe.Pointer) {
	if before := atomic.SwapPointer(&l.net, n); before != unsafe.Pointer(&l.noNet) {
		(*net)(before).cleanup.Stop()
	}
}

// isViewed says that a view may still be used.
func (l *loan) isViewed() bool { return l.gate.state.Load()&(gateClosed|loanViewed) == loanViewed }

// caught is what a net has of a loan that nobody can reach any more.
type caught struct {
	goods
	taken origin
	net   *net
}

func (c caught) end() {
	if atomic.LoadUint32(&c.net.viewed) == 0 {
		c.goods.free()
	} else {
		c.state.leaked(c.kind, c.taken)
	}
}

// free is called once.
func (l *loan) free() {
	l.hang(unsafe.Pointer(&l.noNet))
	l.copies.poison()
	l.goods.free()
}

// enter holds the memory until exit.
func (l *loan) enter(turn turn) {
	if l != nil && int64(turn) != l.gate.state.Add(gateInside)&(gateClosed|loanTurns) {
		l.exit()
		usedLate()
	}
}

// isLate says whether the turn is over.
func (l *loan) isLate(turn turn) bool {
	return l != nil && int64(turn) != l.gate.state.Load()&(gateClosed|loanTurns)
}

func (l *loan) exit() {
	if l != nil && l.gate.leave() {
		l.free()
	}
}

// view is called before a view is taken. It is short enough to be inlined with what
// takes one: a call costs as much as the rest. One that comes late may mark the turn after:
// that is then left alone by the garbage collector, and no more.
func (l *loan) view(turn int64) {
	if l != nil && l.gate.state.Load()&(gateClosed|loanViewed|loanTurns) != turn|loanViewed {
		if l.gate.state.Or(loanViewed)&(gateClosed|loanTurns) != turn {
			panic(usedLateText)
		}
		atomic.StoreUint32((*uint32)(atomic.LoadPointer(&l.net)), 1)
	}
}

const usedLateText = "watchcore: a batch, a page or an item was used after it was released. Clone what is to be kept"

func usedLate() { panic(usedLateText) }
