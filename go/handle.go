package watchcore

import (
	"sync/atomic"
	"unsafe"
)

// handle owns a handle of the library. Calls hold it while they run; the first
// close frees it when the last of them is through, so that Close may come
// from any goroutine at any time.
type handle struct {
	pointer unsafe.Pointer // the library's memory
	state   atomic.Int64   // calls inside + the bits below
	free    func(unsafe.Pointer)
}

const (
	handleClosed int64 = 1 << 62
	handleFreed  int64 = 1 << 61
)

func newHandle(pointer unsafe.Pointer, free func(unsafe.Pointer)) *handle {
	return &handle{pointer: pointer, free: free}
}

// acquire says whether the handle may be used; then release must follow.
func (h *handle) acquire() bool {
	if h.state.Add(1)&handleClosed != 0 {
		h.release()
		return false
	}
	return true
}

func (h *handle) release() {
	if h.state.Add(-1) == handleClosed {
		h.end()
	}
}

func (h *handle) closed() bool { return h.state.Load()&handleClosed != 0 }

// close may be called more than once.
func (h *handle) close() {
	if h.state.Or(handleClosed) == 0 {
		h.end()
	}
}

func (h *handle) end() {
	if h.state.CompareAndSwap(handleClosed, handleClosed|handleFreed) {
		h.free(h.pointer)
	}
}

// guard lets one goroutine in at a time and turns the others away.
type guard struct {
	inside atomic.Bool
}

func (g *guard) enter(what string) error {
	if !g.inside.CompareAndSwap(false, true) {
		return errBusy(what)
	}
	return nil
}

func (g *guard) leave() {
	g.inside.Store(false)
}
