package watchcore

// #include "abi.h"
// #cgo noescape wc_waiter
// #cgo nocallback wc_waiter
// #cgo noescape wc_waiter_try
// #cgo nocallback wc_waiter_try
// #cgo nocallback wc_set_add_waiter
import "C"

import (
	"context"
	"runtime"
	"time"
)

// WaitReady waits until the first listing is complete. If the source refuses the feeder before
// that, WaitReady returns the reason.
func (c *Cache) WaitReady(ctx context.Context) error {
	_, err := c.waitFor(ctx, C.WATCHCORE_WANT_READY, Position{})
	return err
}

// WaitUntil waits until the cache has a revision, for example to read your own writes. If a proxy
// drops requests for etcd's progress notifications, the wait ends with the next event, or with the
// notification that etcd sends by itself every ten minutes.
func (c *Cache) WaitUntil(ctx context.Context, revision uint64) error {
	return c.WaitUntilPosition(ctx, Position{Revision: revision})
}

// WaitUntilPosition waits for a revision of one history: the error is ErrResynced if that history
// is replaced during the wait, or was before.
func (c *Cache) WaitUntilPosition(ctx context.Context, position Position) error {
	_, err := c.waitFor(ctx, C.WATCHCORE_WANT_REVISION, position)
	return err
}

// ConsistentRevision returns a revision at which the cache has every change of its keys that was complete
// before this call: one linearizable read of etcd serves all concurrent calls; an embedded cache returns its
// present revision. Pass it to ReadAtLeast. If a proxy drops etcd's progress notifications, the result is the
// cache's position, after a comparison has shown that its state equals etcd's.
func (c *Cache) ConsistentRevision(ctx context.Context) (uint64, error) {
	position, err := c.waitFor(ctx, C.WATCHCORE_WANT_CONSISTENT, Position{})
	return position.Revision, err
}

func (c *Cache) waitFor(ctx context.Context, want uint32, asked Position) (Position, error) {
	defer runtime.KeepAlive(c)
	if err := ctx.Err(); err != nil {
		return Position{}, err
	}
	if err := c.core.enter(); err != nil {
		return Position{}, err
	}
	defer c.core.cache.release()
	return c.core.wait(ctx, want, asked, -1)
}

// wait waits in the wake set for a waiter of the library: until its condition holds, the context is
// done or, with limit >= 0, the limit passes (ErrTimeout). The caller holds the cache's handle;
// Close ends the wait with ErrClosed.
func (core *cacheCore) wait(ctx context.Context, want uint32, asked Position, limit time.Duration) (Position, error) {
	var w *C.watchcore_waiter
	if err := failed(C.wc_waiter(core.c(), C.uint32_t(want), C.uint64_t(asked.Revision), C.uint64_t(asked.Epoch), &w)); err != nil {
		return Position{}, err
	}
	tag := uint32(0)
	defer func() {
		C.watchcore_waiter_free(w)
		if tag != 0 {
			theProcess.quit(tag)
		}
	}()
	if position, done, err := tryWaiter(w); done || err != nil {
		return position, err
	}
	awake := make(chan struct{}, 1)
	var set *C.watchcore_wakeset
	var err error
	if set, tag, err = theProcess.join(awake); err != nil {
		return Position{}, err
	}
	if err := failed(C.wc_set_add_waiter(set, w, C.uint64_t(tag))); err != nil {
		return Position{}, err
	}
	var late <-chan time.Time
	if limit >= 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	for {
		// The waiter was armed when it joined, and each unsuccessful try arms it again.
		select {
		case <-awake:
		case <-ctx.Done():
			return Position{}, ctx.Err()
		case <-late:
			return Position{}, newError(ErrTimeout, "wait on a cache: nothing within %v; nothing is lost. Wait again", limit)
		}
		if position, done, err := tryWaiter(w); done || err != nil {
			return position, err
		}
	}
}

// tryWaiter checks the waiter's condition. In the wake set, an unsuccessful try arms the waiter.
func tryWaiter(w *C.watchcore_waiter) (Position, bool, error) {
	var done C.uint32_t
	var revision, epoch C.uint64_t
	if err := failed(C.wc_waiter_try(w, &done, &revision, &epoch)); err != nil {
		return Position{}, false, err
	}
	return Position{Epoch: uint64(epoch), Revision: uint64(revision)}, done != 0, nil
}
