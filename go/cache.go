package watchcore

// #include "abi.h"
// #cgo noescape wc_cache_new
// #cgo nocallback wc_cache_new
// #cgo nocallback wc_cache_close
// #cgo noescape wc_feeder_start
// #cgo nocallback wc_feeder_start
// #cgo nocallback wc_feeder_stop
// #cgo nocallback wc_feeder_request_resync
// #cgo nocallback wc_feeder_compact
// #cgo nocallback watchcore_version
// #cgo nocallback watchcore_abi_version
import "C"

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Cache is the log and the store of one key range. Cache may be used from many goroutines at once. Close it
// when it is no longer needed; the garbage collector closes an unreachable cache some time later.
type Cache struct {
	core    *cacheCore
	cleanup runtime.Cleanup
}

// cacheCore is the part of a Cache that goroutines and cleanups may refer to without keeping the
// Cache reachable.
type cacheCore struct {
	cache   *handle
	name    string
	prefix  string
	feeder  atomic.Pointer[handle] // nil: the cache is embedded
	feeding sync.Mutex             // held while a feeder is started
	closing bool                   // no feeder may start any more; protected by feeding
	last    atomic.Pointer[Status]
	state   *coreState
}

// Version returns the library's version.
func Version() string {
	return C.GoString(C.watchcore_version())
}

// ABIVersion returns the number of the library's binary interface, which is also in the shared
// library's soname.
func ABIVersion() uint32 {
	return uint32(C.watchcore_abi_version())
}

// Open makes a cache that follows etcd and waits until its first listing is complete or the context
// is done; the context has no effect after Open has returned. Without a deadline Open waits until a
// server answers, and meanwhile logs what delays it (see SetLogger). If the context ends first, the
// error also wraps the reason why the source is not followed.
//
// Open is New with ExpectLoad, StartFeeder and WaitReady. Call these instead in order to subscribe
// before the first listing, or not to wait for it.
func Open(ctx context.Context, etcd EtcdConfig, config Config) (*Cache, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	config.ExpectLoad = true
	c, err := New(config)
	if err != nil {
		return nil, err
	}
	if err := c.StartFeeder(etcd); err != nil {
		c.Close()
		return nil, err
	}
	if err := c.WaitReady(ctx); err != nil {
		if why := c.Status().SourceError; why != nil && ctx.Err() != nil {
			err = fmt.Errorf("%w, before the first listing came: %w", err, why)
		}
		c.Close()
		return nil, err
	}
	return c, nil
}

// New makes an embedded cache, empty and ready at revision 0: its Writer provides its content. With
// Config.ExpectLoad it is not ready before its first listing.
func New(config Config) (*Cache, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	var options C.watchcore_cache_options
	if err := config.fill(&options, &pin); err != nil {
		return nil, err
	}
	if err := theProcess.enter(); err != nil {
		return nil, err
	}
	var made *C.watchcore_cache
	if err := failed(C.wc_cache_new(&options, &made)); err != nil {
		theProcess.leave()
		return nil, err
	}
	open[kindCache].Add(1)
	core := &cacheCore{
		// The handle is not counted by its kind: it is closed only after the feeder has stopped,
		// whereas the cache counts as closed as soon as Close is called.
		cache: newHandle(unsafe.Pointer(made), kinds, func(p unsafe.Pointer) {
			C.watchcore_cache_free((*C.watchcore_cache)(p))
			theProcess.leave()
		}),
		state: &coreState{},
	}
	core.name, core.prefix = core.text(C.WATCHCORE_TEXT_NAME), config.Prefix
	core.state.cache = core.name
	c := &Cache{core: core}
	// Stopping a feeder takes time, and the runtime's other cleanups must not wait for it.
	c.cleanup = runtime.AddCleanup(c, func(core *cacheCore) { go core.close() }, core)
	return c, nil
}

// StartFeeder makes a cache of New follow etcd, as Open does at once. StartFeeder is for subscriptions that
// must exist before the first listing, such as EtcdConfig.Pace. Make the cache with ExpectLoad: without it
// StartFeeder returns ErrBusy for a cache that has subscriptions, because they would miss the listing.
//
// StartFeeder returns at once; see WaitReady. The feeder takes the cache's writer: the error is
// ErrBusy while somebody else has the writer, and while a feeder runs. A cache has at most one
// feeder in its life. StartFeeder may be called from any goroutine.
func (c *Cache) StartFeeder(etcd EtcdConfig) error {
	defer runtime.KeepAlive(c)
	core := c.core
	core.feeding.Lock()
	defer core.feeding.Unlock()
	if core.closing {
		return errClosed("the cache")
	}
	if err := core.enter(); err != nil {
		return err
	}
	defer core.cache.release()
	var pin runtime.Pinner
	defer pin.Unpin()
	var options C.watchcore_etcd_options
	if err := etcd.fill(&options, &pin); err != nil {
		return err
	}
	if sub := etcd.Pace; sub != nil {
		if sub.cache != c {
			return newError(ErrInvalidArgument, "EtcdConfig.Pace is a subscription of another cache. "+
				"Make this one with New and ExpectLoad, subscribe to it, and give Pace to StartFeeder")
		}
		defer sub.core.leave()
		if !sub.core.gate.enter() {
			return errClosed("the subscription of EtcdConfig.Pace")
		}
		sub.core.gate.lock()
		defer sub.core.gate.unlock()
		options.pace = sub.core.handle
	}
	var made *C.watchcore_feeder
	if err := failed(C.wc_feeder_start(core.c(), &options, &made)); err != nil {
		return err
	}
	core.feeder.Store(newHandle(unsafe.Pointer(made), kinds, func(p unsafe.Pointer) { C.watchcore_feeder_free((*C.watchcore_feeder)(p)) }))
	return nil
}

// StopFeeder stops the feeder for good: no call to etcd is made after StopFeeder has returned, which takes at
// most 2 s. The cache's content can still be read, and its state is StateClosed. Subscriptions deliver the
// remaining events and then end; a wait for anything that has not arrived ends with ErrClosed. StopFeeder is
// idempotent, may be called from any goroutine, and returns ErrUnsupported for a cache without a feeder.
func (c *Cache) StopFeeder() error {
	defer runtime.KeepAlive(c)
	f, err := c.core.enterFeeder("stop the feeder")
	if err != nil {
		return err
	}
	defer f.release()
	return failed(C.wc_feeder_stop((*C.watchcore_feeder)(f.pointer)))
}

func (core *cacheCore) c() *C.watchcore_cache {
	return (*C.watchcore_cache)(core.cache.pointer)
}

// enter holds the cache's handle; the caller must call core.cache.release afterwards.
func (core *cacheCore) enter() error {
	if !core.cache.acquire() {
		return errClosed("the cache")
	}
	return nil
}

// Close stops the feeder (no call to etcd is made after Close has returned, which takes at most 2
// s) and closes the cache. Subscriptions deliver the remaining events and then end; batches, pages
// and snapshots stay valid until they are released. Close is idempotent and may be called from any
// goroutine. The error is always nil.
func (c *Cache) Close() error {
	c.cleanup.Stop()
	c.core.close()
	runtime.KeepAlive(c)
	return nil
}

func (core *cacheCore) close() {
	core.feeding.Lock()
	if !core.closing {
		core.closing = true
		open[kindCache].Add(-1)
	}
	core.feeding.Unlock()
	if f := core.feeder.Load(); f != nil && f.acquire() {
		if e := C.wc_feeder_stop((*C.watchcore_feeder)(f.pointer)); e != nil {
			taken(e) // closing the handle below stops the feeder in any case
		}
		f.release()
		f.close()
	}
	if core.cache.acquire() {
		if status, err := core.status(); err == nil {
			status.State = StateClosed
			core.last.CompareAndSwap(nil, status)
		}
		if e := C.wc_cache_close(core.c()); e != nil { // ends the waits inside the library
			taken(e)
		}
		core.cache.release()
	}
	core.cache.close()
}

// RequestResync asks the feeder to list anew. RequestResync returns at once; subscriptions get the difference
// as a resync with ReasonRequested.
func (c *Cache) RequestResync() error {
	defer runtime.KeepAlive(c)
	f, err := c.core.enterFeeder("ask for a resync")
	if err != nil {
		return err
	}
	defer f.release()
	return failed(C.wc_feeder_request_resync((*C.watchcore_feeder)(f.pointer)))
}

// Compact discards the log's events up to and including a revision, as Writer.Compact does, in a cache that a
// feeder fills. Compact is for a program that compacts etcd itself, or learns of compactions first, and does
// not want to wait for EtcdConfig.FollowCompaction. The state at the revision stays readable: ReadExact and
// StartAfter succeed at it, and fail with ErrCompacted below it.
//
// Compact returns at once. Events that the cache has already are discarded soon; a revision that the cache
// has not reached yet is compacted when it arrives. A pending request is dropped if the history is replaced
// in the meantime, and a request below the window does nothing. Compact may be called from any goroutine.
// Compact returns ErrUnsupported for a cache without a feeder: use its Writer.
func (c *Cache) Compact(revision uint64) error {
	defer runtime.KeepAlive(c)
	f, err := c.core.enterFeeder("compact")
	if err != nil {
		return err
	}
	defer f.release()
	return failed(C.wc_feeder_compact((*C.watchcore_feeder)(f.pointer), C.uint64_t(revision)))
}

func (core *cacheCore) enterFeeder(what string) (*handle, error) {
	f := core.feeder.Load()
	if f == nil {
		return nil, newError(ErrUnsupported, "%s: the cache is embedded, nothing feeds it. Use its Writer", what)
	}
	if !f.acquire() {
		return nil, errClosed("the cache")
	}
	return f, nil
}
