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

// subscriptionCore is what goroutines, contexts and cleanups may hold without
// keeping the Subscription. What only a wait, a context or a channel needs is made by
// the first of them: ten thousand subscriptions that sleep should cost little.
//
// The goroutine in Next or Poll is alone in the gate; a call that is for one at a time has
// the gate's lock, too, for Stats may come from any goroutine.
type subscriptionCore struct {
	gate   gate
	handle *C.watchcore_subscription
	state  *coreState
	last   *shelf        // of the last batch, or free for the next; with the lock
	awake  chan struct{} // one token: look again; nil: not in the wake set yet. Of the goroutine that is alone
	tag    atomic.Uint32 // in the wake set; 0: not there
	max    int32         // events of a batch
	stop   func() bool   // takes the context's hook away
	ending atomic.Pointer[ending]

	// Under the lock of state:
	results             *results          // noResults: it is closed, and had none
	previous, following *subscriptionCore // the open ones of the cache
}

// ending is how a subscription ended.
type ending struct {
	why      error
	position Position
}

// coreState is what outlives a cache: what of its batches and pages is not released.
type coreState struct {
	cache          string       // its name
	batches, pages atomic.Int64 // not those that subscriptions keep
	leaks          leaks

	mu            sync.Mutex
	subscriptions *subscriptionCore // the first
}

// unreleasedBatches is how many are out.
func (s *coreState) unreleasedBatches() int64 {
	var left []*subscriptionCore
	count := int64(0)
	s.mu.Lock()
	for c := s.subscriptions; c != nil; c = c.following {
		c.gate.lock()
		if c.last != nil && c.last.loan.isKept() {
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

// begin is called once, before anybody else has the core.
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
		c.gate.enter() // it is not freed before the next line is through
		c.stop = context.AfterFunc(ctx, func() { c.close(ctx.Err()) })
		c.leave()
	}
}

// remove takes it out of the open ones. With the lock of state.
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

// enter lets one goroutine in, with the lock; exit must follow, with the lock.
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

// closed is close by the program, or by the garbage collector.
func (c *subscriptionCore) closed() { c.close(nil) }

// close ends it for a reason; nil: somebody has closed it.
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

// ended waits for the goroutine that closes it just now.
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

// where is for any goroutine.
func (c *subscriptionCore) where() Position {
	defer c.leave()
	if !c.gate.enter() {
		return c.ended().position
	}
	return c.position()
}

// position is for callers that are inside.
func (c *subscriptionCore) position() Position {
	var revision, epoch C.uint64_t
	if e := C.wc_position(c.handle, &revision, &epoch); e != nil {
		taken(e)
		return Position{}
	}
	return Position{Epoch: uint64(epoch), Revision: uint64(revision)}
}

// finish frees the library's subscription, and answers its last position. Nobody else
// is inside, and nobody comes.
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

// free runs when the last call is through.
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

// wakeAll ends the wait for events, and that of a reader of the channel, after the close.
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

// settle keeps the last batch no longer. It returns what the caller has to free of it;
// one that was not released yet is left to the garbage collector, too. (Not when it is
// made: that would cost those that are released.)
func (c *subscriptionCore) settle() C.uintptr_t {
	if c.last == nil {
		return 0
	}
	what, again := c.last.loan.detach()
	if again {
		c.last.first = nil // the collector meets no address that is not the library's any more
	} else {
		c.last = nil
	}
	return C.uintptr_t(what)
}

// poll gives events, or an error, or neither; then a member of the wake set is armed.
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
		c.last = &shelf{} // what is lent again is of the same kind
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

// sleep until somebody says to look again, or the context is done. Stats may come in
// meanwhile.
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

// join puts it into the wake set, which arms it. The caller looks again afterwards: a close
// from before woke nobody.
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
