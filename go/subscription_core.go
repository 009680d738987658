package watchcore

// #include "abi.h"
// #cgo noescape wc_poll
// #cgo nocallback wc_poll
// #cgo noescape wc_subscription_end
// #cgo nocallback wc_subscription_end
// #cgo nocallback wc_set_add_subscription
import "C"

import (
	"context"
	"sync"
	"sync/atomic"
	"unsafe"
)

// subscriptionCore is the part of a Subscription that goroutines, contexts and cleanups may refer
// to without keeping the Subscription reachable. State that only a wait, a context or a channel
// needs is allocated by the first of them, so that ten thousand idle subscriptions cost little.
//
// The goroutine in Next or Poll has entered the gate alone; an exclusive call into the library also
// has the gate's lock, because Stats may come from any goroutine.
type subscriptionCore struct {
	gate   gate
	handle *C.watchcore_subscription
	state  *coreState
	last   *buffer       // of the last batch, or free for the next; under the gate's lock
	awake  chan struct{} // one token: check again; nil: not in the wake set yet. Used by the goroutine that is alone
	tag    atomic.Uint32 // in the wake set; 0: not in it
	max    int32         // the maximum number of events of a batch
	stop   func() bool   // removes the context's AfterFunc
	ending atomic.Pointer[ending]

	// Under the lock of state:
	results             *results          // noResults: the subscription was closed without ResultChan
	previous, following *subscriptionCore // the list of the cache's open subscriptions
}

// ending records why, and at which position, a subscription ended.
type ending struct {
	why      error
	position Position
}

// coreState outlives its cache: it counts the unreleased batches and pages.
type coreState struct {
	cache          string       // the cache's name
	batches, pages atomic.Int64 // without the batches that subscriptions keep
	leaks          leaks

	mu            sync.Mutex
	subscriptions *subscriptionCore // the first of the list
}

// unreleasedBatches counts the unreleased batches, including those that subscriptions keep.
func (s *coreState) unreleasedBatches() int64 {
	var left []*subscriptionCore
	count := int64(0)
	s.mu.Lock()
	for c := s.subscriptions; c != nil; c = c.following {
		c.gate.lock()
		if c.last != nil && c.last.borrow.isKept() {
			count++
		}
		if c.gate.unlock() {
			left = append(left, c)
		}
	}
	s.mu.Unlock()
	for _, c := range left {
		c.free()
	}
	return count + s.batches.Load()
}

// begin is called once, before another goroutine has the core.
func (c *subscriptionCore) begin(ctx context.Context) {
	s := c.state
	s.mu.Lock()
	if c.following = s.subscriptions; c.following != nil {
		c.following.previous = c
	}
	s.subscriptions = c
	s.mu.Unlock()
	open[kindSubscription].Add(1)
	if ctx.Done() != nil {
		c.gate.enter() // prevents a concurrent close from freeing it before the next statement is done
		c.stop = context.AfterFunc(ctx, func() { c.close(ctx.Err()) })
		c.leave()
	}
}

// remove removes the subscription from the list, under the lock of state.
func (c *subscriptionCore) remove() {
	if c.previous != nil {
		c.previous.following = c.following
	} else {
		c.state.subscriptions = c.following
	}
	if c.following != nil {
		c.following.previous = c.previous
	}
	c.previous, c.following = nil, nil
}

// enter admits one goroutine, with the lock. The caller must call exit, with the lock.
func (c *subscriptionCore) enter() error {
	switch c.gate.enterAlone() {
	case refused:
		return errBusy("the subscription")
	case late:
		return c.why()
	}
	return nil
}

func (c *subscriptionCore) exit() {
	if c.gate.leaveAlone() {
		c.free()
	}
}

// leave follows gate.enter.
func (c *subscriptionCore) leave() {
	if c.gate.leave() {
		c.free()
	}
}

// closed closes the subscription for the program or the garbage collector.
func (c *subscriptionCore) closed() { c.close(nil) }

// close ends the subscription for a reason; nil means that it was closed without an error.
func (c *subscriptionCore) close(why error) {
	first, only := c.gate.closeInside()
	if !first {
		c.ended()
		return
	}
	open[kindSubscription].Add(-1)
	e := &ending{why: why}
	if only {
		e.position = c.finish()
	} else {
		e.position = c.position()
	}
	c.ending.Store(e)
	c.wakeAll()
	c.leave()
}

// ended waits for the goroutine that is closing the subscription.
func (c *subscriptionCore) ended() *ending {
	for spins := 0; ; pause(&spins) {
		if e := c.ending.Load(); e != nil {
			return e
		}
	}
}

func (c *subscriptionCore) why() error {
	if e := c.ended(); e.why != nil {
		return e.why
	}
	return errClosed("the subscription")
}

// where may be called by any goroutine.
func (c *subscriptionCore) where() Position {
	defer c.leave()
	if !c.gate.enter() {
		return c.ended().position
	}
	return c.position()
}

// position may be called only inside the gate.
func (c *subscriptionCore) position() Position {
	var revision, epoch C.uint64_t
	if e := C.wc_position(c.handle, &revision, &epoch); e != nil {
		taken(e)
		return Position{}
	}
	return Position{Epoch: uint64(epoch), Revision: uint64(revision)}
}

// finish frees the library's subscription, and returns its last position. No other goroutine is
// inside the gate or can enter.
func (c *subscriptionCore) finish() Position {
	c.state.mu.Lock()
	before := c.settle()
	c.remove()
	c.state.mu.Unlock()
	var revision, epoch C.uint64_t
	C.wc_subscription_end(c.handle, before, &revision, &epoch)
	c.handle = nil
	return Position{Epoch: uint64(epoch), Revision: uint64(revision)}
}

// free runs when the last call has left.
func (c *subscriptionCore) free() {
	if c.handle != nil {
		c.finish()
	}
	if c.stop != nil {
		c.stop()
	}
	if tag := c.tag.Load(); tag != 0 {
		theProcess.quit(tag)
	}
}

// wakeAll ends the waits for events and for the channel, after the close.
func (c *subscriptionCore) wakeAll() {
	if tag := c.tag.Load(); tag != 0 {
		theProcess.wake(tag)
	}
	c.state.mu.Lock()
	r := c.results
	if r == nil {
		c.results = noResults
	}
	c.state.mu.Unlock()
	if r != nil {
		close(r.done)
	}
}

// settle stops keeping the last batch. settle returns the resource that the caller must free. If the
// batch is not released, the garbage collector becomes responsible too. (A finalizer from the start
// would cost batches that are released as well.)
func (c *subscriptionCore) settle() C.uintptr_t {
	if c.last == nil {
		return 0
	}
	what, again := c.last.borrow.detach()
	if again {
		c.last.first = nil // so that the collector sees no address that is not the library's any more
	} else {
		c.last = nil
	}
	return C.uintptr_t(what)
}

// poll returns events, or an error, or neither: then a member of the wake set is armed.
func (c *subscriptionCore) poll(most int) (*Batch, error) {
	var raw rawBatch
	if e := C.wc_poll(integer(unsafe.Pointer(c.handle)), c.settle(), C.size_t(max(most, 0)), raw.words()); e != nil {
		return nil, taken(e)
	}
	if raw.count == 0 {
		if raw.owner != 0 {
			raw.release()
		}
		return nil, nil
	}
	if c.last == nil || raw.flags&C.WATCHCORE_BATCH_KEEPS_STATE != 0 {
		c.last = &buffer{} // a reused borrow must keep its kind
	}
	return newBatch(c.last, &raw, c.state, true), nil
}

func (c *subscriptionCore) next(ctx context.Context) (*Batch, error) {
	for {
		if c.gate.closed() {
			return nil, c.why()
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b, err := c.poll(int(c.max))
		switch {
		case b != nil || err != nil:
			return b, err
		case c.awake != nil:
			c.sleep(ctx)
		default:
			if err := c.join(); err != nil {
				return nil, err
			}
		}
	}
}

// sleep waits until awake has a token, or the context is done. sleep releases the lock meanwhile, for Stats.
func (c *subscriptionCore) sleep(ctx context.Context) {
	c.gate.unlock()
	if done := ctx.Done(); done == nil {
		<-c.awake
	} else {
		select {
		case <-c.awake:
		case <-done:
		}
	}
	c.gate.lock()
}

// join puts the subscription into the wake set, which arms it. The caller must check the gate again
// afterwards: a close before the join could not wake this goroutine.
func (c *subscriptionCore) join() error {
	awake := make(chan struct{}, 1)
	set, tag, err := theProcess.join(awake)
	if err != nil {
		return err
	}
	if err := failed(C.wc_set_add_subscription(set, c.handle, C.uint64_t(tag))); err != nil {
		theProcess.quit(tag)
		return err
	}
	c.awake = awake
	c.tag.Store(tag)
	return nil
}
