//go:build cgo

package watchcore

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// gate is the state word of an object that is closed once, and freed when the last call inside it
// returns: so Close may be called from any goroutine at any time. Exactly one call of leave,
// leaveAlone, unlock or close returns true; its caller frees the object.
type gate struct {
	state atomic.Int64
}

const (
	gateClosed     int64 = 1 << iota
	gateFreed            // set by the caller that frees
	gateAlone            // the one goroutine that may stay inside for long is inside
	gateCalling          // held during a short call into the library that needs exclusive access
	borrowKept           // of a borrow: its subscription frees it
	borrowViewed         // of a borrow: a view was taken; the flag does not delay freeing
	generationStep       // of a borrow: the rest of the lower half is its generation

	gateInside     int64 = 1 << 32                     // the upper half counts the calls that are inside
	generationBits       = gateInside - generationStep // the bits of the generation
)

// enter reports whether the gate is open. The caller must call leave afterwards in either case.
func (g *gate) enter() bool { return g.state.Add(gateInside)&gateClosed == 0 }

func (g *gate) leave() bool { return g.left(g.state.Add(-gateInside)) }

// close may be called more than once. close reports whether this was the first call, and whether the
// caller must free.
func (g *gate) close() (first, free bool) {
	before := g.state.Or(gateClosed)
	return before&gateClosed == 0, g.left(before | gateClosed)
}

// closeInside reports whether the caller is the first to close the gate, and whether nobody else
// was inside. The first caller has then also entered, and must call leave.
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

// left reports whether the gate is closed and empty, and this caller is the first to see that: it must free.
func (g *gate) left(state int64) bool {
	return state&^(borrowViewed|generationBits) == gateClosed && g.state.Or(gateFreed)&gateFreed == 0
}

// entry is the result of enterAlone.
type entry int

const (
	entered entry = iota
	refused       // another goroutine is inside
	late          // the gate is closed
)

// enterAlone admits one goroutine at a time and refuses others. The admitted goroutine also has the
// lock (gateCalling). That goroutine must call leaveAlone while it has the lock.
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

// lock waits for other exclusive calls, which are short. The caller must know that the object is not freed.
func (g *gate) lock() {
	for spins := 0; g.state.Or(gateCalling)&gateCalling != 0; {
		pause(&spins)
	}
}

func (g *gate) unlock() bool { return g.left(g.state.Add(-gateCalling)) }

// pause yields the processor. It suffices for spinning because exclusive calls are short.
func pause(spins *int) {
	if *spins++; *spins < 64 {
		runtime.Gosched()
	} else {
		time.Sleep(20 * time.Microsecond)
	}
}

// handle owns a handle of the C library, and frees it after its last user has released it.
type handle struct {
	gate    gate
	pointer unsafe.Pointer // the library's memory
	free    func(unsafe.Pointer)
	kind    kind
}

// newHandle counts the handle by its kind; kinds stands for a handle that is closed with another
// object and not counted.
func newHandle(pointer unsafe.Pointer, kind kind, free func(unsafe.Pointer)) *handle {
	if kind < kinds {
		open[kind].Add(1)
	}
	return &handle{pointer: pointer, free: free, kind: kind}
}

// acquire reports whether the handle may be used. If so, the caller must call release.
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

func (h *handle) close() {
	first, free := h.gate.close()
	if first && h.kind < kinds {
		open[h.kind].Add(-1)
	}
	if free {
		h.free(h.pointer)
	}
}

// enterAlone admits one goroutine at a time to a handle; the caller must call leaveAlone after success.
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
