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

// Cache is the log and the store of one key range. It may be used from many
// goroutines at once. Close it; one that is no longer reachable is closed too,
// some time later.
type Cache struct {
	core    *cacheCore
	cleanup runtime.Cleanup
}

// cacheCore is what goroutines and cleanups may hold without keeping the Cache.
type cacheCore struct {
	cache   *handle
	name    string
	prefix  string
	feeder  atomic.Pointer[handle] // nil: embedded
	feeding sync.Mutex             // while a feeder is started
	closing bool                   // none is started any more; under feeding
	last    atomic.Pointer[Status]
	state   *coreState
}

// Version is the library's version.
func Version() string {
	return C.GoString(C.watchcore_version())
}

// ABIVersion is the number of the library's binary interface: the one in the
// shared library's soname.
func ABIVersion() uint32 {
	return uint32(C.watchcore_abi_version())
}

// Open makes a cache that follows etcd and waits until its first listing is there, or
// until the context is done; the context means nothing afterwards. Without a deadline it
// waits as long as it takes for a server to answer, and says meanwhile in the log (see
// SetLogger) what keeps it. The error of a context that ended first wraps why the source
// is not followed then, too.
//
// It is New with ExpectLoad, StartFeeder and WaitReady: who wants to subscribe before the
// first listing, or not to wait for it, calls these.
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

// New makes an embedded cache, empty and ready at revision 0: what comes into it comes
// from its Writer. With Config.ExpectLoad it is not ready before its first listing.
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
		// Of no kind: it is closed when the feeder has stopped, and the cache is as soon as that is asked for.
		cache: newHandle(unsafe.Pointer(made), kinds, func(p unsafe.Pointer) {
			C.watchcore_cache_free((*C.watchcore_cache)(p))
			theProcess.leave()
		}),
		state: &coreState{},
	}
	core.name, core.prefix = core.text(C.WATCHCORE_TEXT_NAME), config.Prefix
	core.state.cache = core.name
	c := &Cache{core: core}
	// Stopping a feeder takes time; other cleanups must not wait for it.
	c.cleanup = runtime.AddCleanup(c, func(core *cacheCore) { go core.close() }, core)
	return c, nil
}

// StartFeeder lets a cache that New made follow etcd, as one of Open does from its
// birth: for subscriptions that are there before the first listing, such as that of
// EtcdConfig.Pace. Make the cache with ExpectLoad: without it a cache that has
// subscriptions is refused (ErrBusy), for they would miss the listing.
//
// It returns at once; see WaitReady. It takes the cache's writer: while another has it,
// and while a feeder runs, it is ErrBusy. A cache has one feeder for life. From any
// goroutine.
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

// StopFeeder stops what feeds the cache, for good: no call to etcd after it
// returns; that takes at most 2 s. What the cache has can still be read, and its
// state is StateClosed; subscriptions hand out what is left and then end, and who
// waits for what was still to come ends with ErrClosed. Idempotent, from any
// goroutine. ErrUnsupported for a cache that nothing feeds.
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

// enter holds the cache's handle; core.cache.release must follow.
func (core *cacheCore) enter() error {
	if !core.cache.acquire() {
		return errClosed("the cache")
	}
	return nil
}

// Close stops the feeder (no call to etcd after it returns; that takes at most
// 2 s) and closes the cache. Subscriptions hand out what is left and then end;
// batches, pages and snapshots stay valid until they are released. Idempotent, from any
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
			taken(e) // it ends with the handle at the latest
		}
		f.release()
		f.close()
	}
	if core.cache.acquire() {
		if status, err := core.status(); err == nil {
			status.State = StateClosed
			core.last.CompareAndSwap(nil, status)
		}
		if e := C.wc_cache_close(core.c()); e != nil { // ends those that wait inside
			taken(e)
		}
		core.cache.release()
	}
	core.cache.close()
}

// RequestResync asks the feeder to list anew. It returns at once; the difference
// comes as a resync with ReasonRequested.
func (c *Cache) RequestResync() error {
	defer runtime.KeepAlive(c)
	f, err := c.core.enterFeeder("ask for a resync")
	if err != nil {
		return err
	}
	defer f.release()
	return failed(C.wc_feeder_request_resync((*C.watchcore_feeder)(f.pointer)))
}

// Compact lets the log's events up to and with a revision go, as Writer.Compact does, of a
// cache that etcd feeds: for a program that makes etcd's compactions, or learns of them
// first, and does not want to wait for EtcdConfig.FollowCompaction. The state at the
// revision stays: ReadExact and StartAfter of it work, below it they are ErrCompacted.
//
// It returns at once. What the cache has goes in a moment; a revision that it has not
// reached is compacted when it has. A request that waits is dropped where the history is
// replaced meanwhile, and one below the window does nothing. From any goroutine.
// ErrUnsupported for a cache that nothing feeds: its Writer compacts.
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
