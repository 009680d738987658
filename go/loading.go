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

// Loading is a first listing that is written in pieces: Writer.BeginLoad starts it, Add adds a
// piece, Finish publishes it. Nothing is visible before. Only one goroutine at a time may use a
// Loading or its writer: a second one gets ErrBusy. Close it when it is no longer needed; the
// garbage collector closes an unreachable one some time later.
type Loading struct {
	writer  *Writer
	handle  *handle
	cleanup runtime.Cleanup
}

// BeginLoad starts a first listing that is written in pieces. Unlike with Load, each piece is
// copied, so the program may free it before the next piece. The cache must be made with ExpectLoad.
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

// Add copies key-values into the listing, in any order, each key once. After an error that names a
// key, the key-values before it are part of the listing; after any other error nothing has changed.
func (l *Loading) Add(listing ...KeyValue) error {
	return l.with(func(p *C.watchcore_loading, writer *C.watchcore_writer) error {
		changes, count := l.writer.arena.listing(listing)
		return failed(C.wc_loading_add(p, writer, changes, count))
	})
}

// Finish publishes the listing and makes the cache ready. A refused listing, for example with a key twice, or
// a second one, has not changed the cache. Finish closes the loading, except if it returns ErrBusy.
func (l *Loading) Finish() error {
	err := l.with(func(p *C.watchcore_loading, writer *C.watchcore_writer) error {
		return failed(C.wc_loading_finish(p, writer))
	})
	if !errors.Is(err, ErrBusy) {
		l.Close()
	}
	return err
}

// Close discards a listing that was not finished; the cache is unchanged. Idempotent, from any
// goroutine. The error is always nil.
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
