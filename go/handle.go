//go:build cgo

package watchcore

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// gate is the state word of what is closed once, and freed when the last call inside
// is through: so Close may come from any goroutine at any time. What it guards is
// freed by whom leave, leaveAlone, unlock or close answers true, once.
type gate struct {
	state atomic.Int64
}

const (
	gateClosed  int64 = 1 << iota
	gateFreed         // by the one who set it
	gateAlone         // the one goroutine that may stay inside for long is there
	gateCalling       // somebody is in a call of the library's that is for one at a time
	loanKept          // of a loan: its subscription frees it
	loanViewed        // of a loan: a view was taken; it keeps nobody from freeing
	loanTurn          // of a loan: the rest of the lower half counts how often it was lent again

	gateInside int64 = 1 << 32               // the upper half counts the calls that are inside
	loanTurns        = gateInside - loanTurn // the bits of the turn
)

// enter says whether it is open. leave must follow, also where it is not.
func (g *gate) enter() bool { return g.state.Add(gateInside)&gateClosed == 0 }

func (g *gate) leave() bool { return g.left(g.state.Add(-gateInside)) }

// close may be called more than once. It says whether this was the first call, and whether the caller has to free.
func (g *gate) close() (first, free bool) {
	before := g.state.Or(gateClosed)
	return before&gateClosed == 0, g.left(before | gateClosed)
}

// closeInside says whether the caller is the first to close it, and whether nobody else was
// inside. The first is inside himself then, and leave must follow.
func (g *gate) closeInside() (first, only bool) {
	for {
		state := g.state.Load()
		if state&gateClosed != 0 {
			return false, false
		}
		if g.state.CompareAndSwap(state, (state|gateClosed)+gateInside) {
			return true, state == 0
		}
	}
}

func (g *gate) closed() bool { return g.state.Load()&gateClosed != 0 }

// left says whether nobody is inside any more and the caller has to free.
func (g *gate) left(state int64) bool {
	return state&^(loanViewed|loanTurns) == gateClosed && g.state.Or(gateFreed)&gateFreed == 0
}

// entry is how enterAlone ended.
type entry int

const (
	entered entry = iota
	refused       // another one is inside
	late          // it is closed
)

// enterAlone lets one goroutine in at a time and turns the others away. The one let in
// has the lock, too; leaveAlone must follow, with the lock.
func (g *gate) enterAlone() entry {
	for spins := 0; ; {
		state := g.state.Load()
		switch {
		case state&gateAlone != 0:
			return refused
		case state&gateClosed != 0:
			return late
		case state&gateCalling != 0:
			pause(&spins)
		case g.state.CompareAndSwap(state, state|gateAlone|gateCalling):
			return entered
		}
	}
}

func (g *gate) leaveAlone() bool { return g.left(g.state.Add(-gateAlone - gateCalling)) }

// lock waits for calls of others that are for one at a time; they are short. Only of
// what is not freed.
func (g *gate) lock() {
	for spins := 0; g.state.Or(gateCalling)&gateCalling != 0; {
		pause(&spins)
	}
}

func (g *gate) unlock() bool { return g.left(g.state.Add(-gateCalling)) }

// pause lets others run: what is waited for is short.
func pause(spins *int) {
	if *spins++; *spins < 64 {
		runtime.Gosched()
	} else {
		time.Sleep(20 * time.Microsecond)
	}
}

// handle owns a handle of the library. Calls hold it while they run.
type handle struct {
	gate    gate
	pointer unsafe.Pointer // the library's memory
	free    func(unsafe.Pointer)
	kind    kind
}

// newHandle is of what the program has to close; kinds: of what goes with something else.
func newHandle(pointer unsafe.Pointer, kind kind, free func(unsafe.Pointer)) *handle {
	if kind < kinds {
		open[kind].Add(1)
	}
	return &handle{pointer: pointer, free: free, kind: kind}
}

// acquire says whether the handle may be used; then release must follow.
func (h *handle) acquire() bool {
	if !h.gate.enter() {
		h.release()
		return false
	}
	return true
}

func (h *handle) release() {
	if h.gate.leave() {
		h.free(h.pointer)
	}
}

// close may be called more than once.
func (h *handle) close() {
	first, free := h.gate.close()
	if first && h.kind < kinds {
		open[h.kind].Add(-1)
	}
	if free {
		h.free(h.pointer)
	}
}

// enterAlone is for a handle that is for one goroutine at a time; leaveAlone must follow.
func (h *handle) enterAlone(what string) error {
	switch h.gate.enterAlone() {
	case refused:
		return errBusy(what)
	case late:
		return errClosed(what)
	}
	return nil
}

func (h *handle) leaveAlone() {
	if h.gate.leaveAlone() {
		h.free(h.pointer)
	}
}
