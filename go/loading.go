package watchcore

// #include "abi.h"
// #cgo noescape wc_loading
// #cgo nocallback wc_loading
// #cgo nocallback wc_loading_add
// #cgo nocallback wc_loading_finish
import "C"

import (
	"errors"
	"runtime"
	"unsafe"
)

// Loading is a first listing under way, which comes in pieces: Writer.BeginLoad
// begins it, Add hands a piece over, Finish publishes it. Nothing shows before.
// For one goroutine at a time, together with its writer: a second one is answered
// ErrBusy. Close it; one that is no longer reachable is closed too, some time later.
type Loading struct {
	writer  *Writer
	handle  *handle
	cleanup runtime.Cleanup
}

// BeginLoad begins a first listing that comes in pieces: as Load, but what was
// handed over is copied, and may go, while the rest is still to come. Only on a
// cache made with ExpectLoad.
func (w *Writer) BeginLoad(revision uint64) (*Loading, error) {
	var made *C.watchcore_loading
	err := w.write(func(p *C.watchcore_writer) error {
		return failed(C.wc_loading(p, C.uint64_t(revision), &made))
	})
	if err != nil {
		return nil, err
	}
	l := &Loading{writer: w, handle: newHandle(unsafe.Pointer(made), kindLoading, func(p unsafe.Pointer) {
		C.watchcore_loading_free((*C.watchcore_loading)(p))
	})}
	l.cleanup = runtime.AddCleanup(l, func(h *handle) { h.close() }, l.handle)
	return l, nil
}

// Add copies key-values into the listing, in any order, each key once. After an
// error that names a key, those before it are part of the listing; after any
// other nothing has changed.
func (l *Loading) Add(listing ...KeyValue) error {
	return l.with(func(p *C.watchcore_loading, writer *C.watchcore_writer) error {
		changes, count := l.writer.arena.listing(listing)
		return failed(C.wc_loading_add(p, writer, changes, count))
	})
}

// Finish publishes the listing and makes the cache ready. What it refuses, such as
// a key twice or a second listing, has not changed the cache. However it
// ends, other than with ErrBusy, the loading is closed.
func (l *Loading) Finish() error {
	err := l.with(func(p *C.watchcore_loading, writer *C.watchcore_writer) error {
		return failed(C.wc_loading_finish(p, writer))
	})
	if !errors.Is(err, ErrBusy) {
		l.Close()
	}
	return err
}

// Close drops a listing that was not finished: the cache is as it was. Idempotent,
// from any goroutine. The error is always nil.
func (l *Loading) Close() error {
	l.cleanup.Stop()
	l.handle.close()
	runtime.KeepAlive(l)
	return nil
}

func (l *Loading) with(call func(*C.watchcore_loading, *C.watchcore_writer) error) error {
	defer runtime.KeepAlive(l)
	return l.writer.write(func(writer *C.watchcore_writer) error {
		if !l.handle.acquire() {
			return errClosed("the loading")
		}
		defer l.handle.release()
		return call((*C.watchcore_loading)(l.handle.pointer), writer)
	})
}
