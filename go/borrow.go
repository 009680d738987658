package watchcore

// #include "abi.h"
// #cgo nocallback wc_free
import "C"

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// borrow is the library's memory behind a batch, a page or a walk over a snapshot, from the call
// that returned it until it is freed.
//
//  1. Methods that copy (Key, Value, ModRevision) and loops hold the borrow while they run: memory
//     that is released meanwhile stays until they return. Later calls panic, so
//     no order of calls reads freed memory.
//  2. Methods that return views (KeyView) mark the borrow. A view is a []byte in the library's memory, which
//     the garbage collector does not track, so only Release ends a marked borrow. A forgotten one is a leak,
//     which is counted and logged (leak.go).
//  3. Release closes the borrow, and frees its memory unless it is kept. A subscription keeps its newest batch
//     until its next poll, which frees a released batch in the same cgo
//     call (detach), and stops keeping one that is not released.
//  4. The garbage collector frees a borrow that is unreachable, or reports it as a leak, if it has a
//     finalizer. catch adds one where Release may be missing, and where Release came while a
//     loop was inside, because a panic may have left the loop without exit.
//  5. A released borrow that nobody is inside is reused for the next batch of its subscription
//     (open), so that a poll allocates a Batch only. Each use is a generation, whose
//     number batches and events carry: a call with an earlier generation
//     panics as after a release. Generations are not reused: after the last one the
//     borrow is left to the garbage collector.
//
// A borrow lies inside its owner, so a pointer to it keeps the owner reachable. A nil borrow stands
// for memory of Go's, which needs no release.
//
// An example: a poll returns batch A in generation 7, and A is released: closed, kept. The next
// poll detaches A's memory (closed, freed), and its events are batch B in generation 8, open and
// kept. If the program asks an event of A for its key, the call enters, finds generation 8 instead
// of 7, exits, and panics. If B is not released, the next poll stops keeping it: the borrow stays
// B's, and the next batch gets a new borrow, in generation 0.
type borrow struct {
	gate   gate
	copies shownCopies // build tag debug: overwritten at the end
	taken  origin      // build tag debug: the stack that took the memory
	resource
	finalizer unsafe.Pointer // *finalizer, or noFinalizer, atomically: see view
}

// generation counts the uses of a borrow. It is a part of the gate's state.
type generation uint32

// resource is what a borrow frees.
type resource struct {
	state       *coreState // of its cache, which counts unreleased resources; nil: a walk
	what        uintptr    // the library's pointer
	kind        uint32     // WC_BATCH, WC_PAGE, WC_MANY, WC_WALK
	noFinalizer uint32     // of a borrow, atomically; view writes here if there is no finalizer. The field fills padding
}

// finalizer is the state that a borrow shares with its cleanup.
type finalizer struct {
	viewed  uint32 // atomically; 1: a view was taken, and the memory must not be freed. The first field: see view
	cleanup runtime.Cleanup
}

func (g resource) free() {
	C.wc_free(C.uint32_t(g.kind), C.uintptr_t(g.what))
	g.count(-1)
}

// count counts the resources that are not freed.
func (g resource) count(n int64) {
	switch g.kind {
	case C.WC_BATCH:
		g.state.batches.Add(n)
	case C.WC_PAGE, C.WC_MANY:
		g.state.pages.Add(n)
		open[kindPage].Add(n)
	case C.WC_WALK:
		open[kindWalk].Add(n)
	}
}

// begin starts a use of the borrow, before another goroutine has the borrow or its new generation.
// A reused borrow keeps its kind and state, which a late call of an earlier generation may be
// reading. A kept resource is not counted until it is detached.
func (l *borrow) begin(g resource, kept bool) {
	if l.finalizer == nil {
		l.finalizer = unsafe.Pointer(&l.noFinalizer)
		l.resource = g
	} else {
		l.what = g.what
	}
	if kept {
		l.open(borrowKept)
	} else {
		g.count(1)
		l.open(0)
	}
}

// open starts the next generation, or the first. A late call of an earlier generation may be inside
// for a moment.
func (l *borrow) open(kept int64) {
	for {
		state := l.gate.state.Load()
		next := kept
		if state&gateClosed != 0 {
			next |= state&generationBits + generationStep
		}
		if l.gate.state.CompareAndSwap(state, state&^(gateInside-1)|next) {
			return
		}
	}
}

// generation returns the generation that the caller has just opened.
func (l *borrow) generation() generation { return generation(l.gate.state.Load() & generationBits) }

// end releases the borrow: its memory is freed now, when the last call inside returns, or by the
// subscription. A generation that is over was released before.
func (l *borrow) end(generation generation) {
	for {
		state := l.gate.state.Load()
		switch {
		case state&(gateClosed|generationBits) != int64(generation):
			return
		case state < gateInside || state&borrowKept != 0: // nobody is inside, or the subscription frees later
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

// isKept reports whether the borrow is kept and not released. Such a borrow is not counted as unreleased.
func (l *borrow) isKept() bool { return l.gate.state.Load()&(gateClosed|borrowKept) == borrowKept }

// detach stops keeping the borrow. If it was released, detach returns the resource that the caller
// must free (0: none), and whether the borrow may be reused.
func (l *borrow) detach() (what uintptr, again bool) {
	for {
		state := l.gate.state.Load()
		again = state&borrowKept != 0 && state&generationBits != generationBits
		switch {
		case state&gateFreed != 0:
			// While the borrow is kept, only this function frees.
			return 0, again
		case state&(gateClosed|borrowKept) == gateClosed|borrowKept && state < gateInside:
			if !l.gate.state.CompareAndSwap(state, state|gateFreed) {
				continue
			}
			return l.what, again
		case state&borrowKept != 0:
			l.count(1)
			l.gate.state.Add(gateInside - borrowKept)
			l.catch()
		case l.gate.enter():
			l.catch()
		}
		l.exit()
		return 0, false
	}
}

// catch adds a finalizer, by which the garbage collector frees the memory unless a view may still be in use.
// catch costs several allocations, so it is called only where Release may be missing. The caller is inside.
func (l *borrow) catch() {
	n := &finalizer{}
	n.cleanup = runtime.AddCleanup(l, unreachable.end, unreachable{resource{state: l.state, what: l.what, kind: l.kind}, l.taken, n})
	l.setFinalizer(unsafe.Pointer(n))
	if l.isViewed() {
		atomic.StoreUint32(&n.viewed, 1)
	}
}

// setFinalizer replaces the finalizer and stops the former one's cleanup. It may be noFinalizer.
func (l *borrow) setFinalizer(n unsafe.Pointer) {
	if before := atomic.SwapPointer(&l.finalizer, n); before != unsafe.Pointer(&l.noFinalizer) {
		(*finalizer)(before).cleanup.Stop()
	}
}

// isViewed reports whether a view may still be in use.
func (l *borrow) isViewed() bool {
	return l.gate.state.Load()&(gateClosed|borrowViewed) == borrowViewed
}

// unreachable is what a finalizer needs of a borrow that has become unreachable.
type unreachable struct {
	resource
	taken     origin
	finalizer *finalizer
}

func (c unreachable) end() {
	if atomic.LoadUint32(&c.finalizer.viewed) == 0 {
		c.resource.free()
	} else {
		c.state.leaked(c.kind, c.taken)
	}
}

// free is called once.
func (l *borrow) free() {
	l.setFinalizer(unsafe.Pointer(&l.noFinalizer))
	l.copies.poison()
	l.resource.free()
}

// enter holds the memory until exit. enter panics if the generation is over.
func (l *borrow) enter(generation generation) {
	if l != nil && int64(generation) != l.gate.state.Add(gateInside)&(gateClosed|generationBits) {
		l.exit()
		usedLate()
	}
}

// isLate reports whether the generation is over.
func (l *borrow) isLate(generation generation) bool {
	return l != nil && int64(generation) != l.gate.state.Load()&(gateClosed|generationBits)
}

func (l *borrow) exit() {
	if l != nil && l.gate.leave() {
		l.free()
	}
}

// view is called before a view is taken. view is short enough to be inlined into its callers, because
// a call would double their cost. A late call may mark the following generation: that generation is
// then not freed by the garbage collector, which does no other harm.
func (l *borrow) view(generation int64) {
	if l != nil && l.gate.state.Load()&(gateClosed|borrowViewed|generationBits) != generation|borrowViewed {
		if l.gate.state.Or(borrowViewed)&(gateClosed|generationBits) != generation {
			panic(usedLateText)
		}
		atomic.StoreUint32((*uint32)(atomic.LoadPointer(&l.finalizer)), 1)
	}
}

const usedLateText = "watchcore: a batch, a page or an item was used after it was released. Clone what is to be kept"

func usedLate() { panic(usedLateText) }
