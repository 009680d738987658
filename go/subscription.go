package watchcore

// #include "abi.h"
// #cgo noescape wc_subscribe
// #cgo nocallback wc_subscribe
// #cgo noescape wc_poll
// #cgo nocallback wc_poll
// #cgo noescape wc_position
// #cgo nocallback wc_position
// #cgo noescape wc_lag
// #cgo nocallback wc_lag
// #cgo noescape wc_subscription_stats
// #cgo nocallback wc_subscription_stats
// #cgo nocallback wc_set_add_subscription
import "C"

import (
	"context"
	"errors"
	"iter"
	"runtime"
	"strconv"
	"sync"
	"time"
	"unsafe"
)

// Subscription is a cursor with a filter over a cache. For one goroutine at a
// time: a second one is answered ErrBusy. Close, Stop, Position and Lag may be
// called from any. Close it; one that is no longer reachable is closed too, some
// time later.
type Subscription struct {
	cache   *Cache // stays open as long as somebody can ask for events
	core    *subscriptionCore
	cleanup runtime.Cleanup
	results func() <-chan Result // ResultChan, once
}

// subscriptionCore is what goroutines, contexts and cleanups may hold without
// keeping the Subscription.
type subscriptionCore struct {
	handle *handle
	guard  guard      // for all below it
	calls  sync.Mutex // around calls with a handle for one at a time: Stats comes from any goroutine
	max    int
	member *member // nil: not in the wake set yet
	raw    rawBatch
	last   *Batch // the batch of the last poll, which should be released by the next one
	state  *coreState
	stop   func() bool // takes the context's hook away

	done     chan struct{} // closed: no more events
	once     sync.Once
	end      error    // why; read after done
	position Position // the last one; read after done
}

// Subscribe opens a subscription; without a start option it begins with the
// state. Where it begins is fixed when this returns, and nothing is waited for;
// before the first listing it is accepted and begins there. When the context is
// done the subscription ends with the context's error.
func (c *Cache) Subscribe(ctx context.Context, options ...SubscribeOption) (*Subscription, error) {
	defer runtime.KeepAlive(c)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	config := &subscribeConfig{}
	for _, option := range options {
		option.subscribe(config)
	}
	if config.err != nil {
		return nil, config.err
	}
	if err := c.core.enter(); err != nil {
		return nil, err
	}
	defer c.core.cache.release()
	var pin runtime.Pinner
	defer pin.Unpin()
	var given C.watchcore_subscription_options
	config.fill(&given, &pin)
	var made *C.watchcore_subscription
	if err := failed(C.wc_subscribe(c.core.c(), &given, &made)); err != nil {
		return nil, err
	}
	core := &subscriptionCore{max: config.max, state: c.core.state, done: make(chan struct{})}
	core.handle = newHandle(unsafe.Pointer(made), core.free)
	if ctx.Done() != nil {
		core.handle.acquire() // it is not freed before the next line is through
		core.stop = context.AfterFunc(ctx, func() { core.close(ctx.Err()) })
		core.handle.release()
	}
	s := &Subscription{cache: c, core: core}
	s.results = sync.OnceValue(s.startResults)
	s.cleanup = runtime.AddCleanup(s, func(core *subscriptionCore) { core.close(errClosed("the subscription")) }, core)
	return s, nil
}

// Close ends the subscription at once, also a wait in progress. Its batches stay
// valid until they are released. Idempotent, from any goroutine.
func (s *Subscription) Close() {
	s.cleanup.Stop()
	s.core.close(errClosed("the subscription"))
	runtime.KeepAlive(s)
}

func (c *subscriptionCore) close(why error) {
	c.once.Do(func() {
		c.position = c.where()
		c.end = why
		close(c.done)
		c.handle.close()
	})
}

// free runs when the last call is through.
func (c *subscriptionCore) free(p unsafe.Pointer) {
	C.watchcore_subscription_free((*C.watchcore_subscription)(p))
	if c.stop != nil {
		c.stop()
	}
	if c.member != nil {
		c.member.leave()
	}
	c.settle()
}

// settle leaves a batch that was not released yet to the garbage collector too. (Not
// when it is made: that would cost those that are released.)
func (c *subscriptionCore) settle() {
	if c.last != nil {
		c.last.loan.catch()
		c.last = nil
	}
}

// Poll takes the next events, at most max (0: 1024). It never waits: nil without an
// error means nothing now. The batch is the caller's: Release it.
func (s *Subscription) Poll(max int) (*Batch, error) {
	defer runtime.KeepAlive(s)
	c := s.core
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.exit()
	b, _, err := c.poll(max, false)
	return b, err
}

// Next waits for events. A cancelled context ends the wait at once and loses
// nothing. The batch is the caller's: Release it.
func (s *Subscription) Next(ctx context.Context) (*Batch, error) {
	defer runtime.KeepAlive(s)
	c := s.core
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.exit()
	return c.next(ctx)
}

// Batches walks over the events batch by batch, and waits where there are none.
// A batch is released when the loop's body ends, also by break or panic; Clone it
// to keep it. What Key and Value of its events return may be kept.
//
// Beside an error the batch is nil. ErrLagged and ErrResynced come in their
// place, and the loop may continue with what the policy allows; any other error, and a
// cancelled context, ends the sequence. It ends without an error when the
// subscription or the cache is closed.
func (s *Subscription) Batches(ctx context.Context) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		for {
			b, err := s.Next(ctx)
			switch {
			case err == nil:
				if !lend(b, yield) {
					return
				}
			case errors.Is(err, ErrClosed):
				return
			case !yield(nil, err) || !goesOn(err):
				return
			}
		}
	}
}

func lend(b *Batch, yield func(*Batch, error) bool) bool {
	defer b.Release()
	return yield(b, nil)
}

func goesOn(err error) bool {
	return errors.Is(err, ErrLagged) || errors.Is(err, ErrResynced)
}

// Position is how far the subscription has come: everything that matches up to
// and with its revision was handed out; 0 during the initial state. Save it for a
// restart with AfterPosition.
func (s *Subscription) Position() Position {
	defer runtime.KeepAlive(s)
	return s.core.where()
}

func (c *subscriptionCore) where() Position {
	if !c.handle.acquire() {
		<-c.done
		return c.position
	}
	defer c.handle.release()
	var revision, epoch C.uint64_t
	if e := C.wc_position(c.c(), &revision, &epoch); e != nil {
		taken(e)
		return Position{}
	}
	return Position{Epoch: uint64(epoch), Revision: uint64(revision)}
}

// Lag is how far a subscription is behind.
type Lag struct {
	Events    uint64        // events of the log that it has not looked at; too many, perhaps, once its place has left the window
	Revisions uint64        // revisions that it has not looked at
	Age       time.Duration // of the oldest of them
}

// Lag is how far the subscription is behind; zero when it is closed.
func (s *Subscription) Lag() Lag {
	defer runtime.KeepAlive(s)
	c := s.core
	if !c.handle.acquire() {
		return Lag{}
	}
	defer c.handle.release()
	lag := C.watchcore_lag{size: C.sizeof_watchcore_lag}
	if e := C.wc_lag(c.c(), &lag); e != nil {
		taken(e)
		return Lag{}
	}
	return Lag{uint64(lag.events), uint64(lag.revisions), time.Duration(lag.age_ms) * time.Millisecond}
}

// ReadPath says how a subscription reads.
type ReadPath uint32

const (
	Scan  ReadPath = C.WATCHCORE_READ_PATH_SCAN  // every event of the log, or of the segments that could hold one of its own
	Chain ReadPath = C.WATCHCORE_READ_PATH_CHAIN // only the events of one bucket of an index
)

// String is the read path's name, such as "Scan".
func (p ReadPath) String() string {
	switch p {
	case Scan:
		return "Scan"
	case Chain:
		return "Chain"
	}
	return "ReadPath(" + strconv.FormatUint(uint64(p), 10) + ")"
}

// SubscriptionStats is what a subscription did so far, and which way it reads.
type SubscriptionStats struct {
	ReadPath       ReadPath // how it reads now
	Index          string   // Chain: of which index, such as "key", "prefix of depth 3", "field phase" or "label app"
	LookedAt       uint64   // events that it looked at
	Skipped        uint64   // events of the log that it skipped without reading
	HandedOut      uint64   // events and marks that it handed out
	Lagged         uint64   // how often it lost events, reported or not
	DeliveredKeys  uint64   // keys that it remembers as handed out (Resnapshot, Conflate)
	DeliveredBytes uint64   // bytes of that memory
}

// Stats is the subscription's figures, from any goroutine; zero when it is
// closed.
func (s *Subscription) Stats() SubscriptionStats {
	defer runtime.KeepAlive(s)
	c := s.core
	if !c.handle.acquire() {
		return SubscriptionStats{}
	}
	defer c.handle.release()
	figures := C.watchcore_subscription_figures{size: C.sizeof_watchcore_subscription_figures}
	c.calls.Lock()
	e := C.wc_subscription_stats(c.c(), &figures)
	c.calls.Unlock()
	if e != nil {
		taken(e)
		return SubscriptionStats{}
	}
	return SubscriptionStats{
		ReadPath:       ReadPath(figures.read_path),
		Index:          C.GoStringN((*C.char)(figures.index.data), C.int(figures.index.length)),
		LookedAt:       uint64(figures.looked_at),
		Skipped:        uint64(figures.skipped),
		HandedOut:      uint64(figures.handed_out),
		Lagged:         uint64(figures.lagged),
		DeliveredKeys:  uint64(figures.delivered_keys),
		DeliveredBytes: uint64(figures.delivered_bytes),
	}
}

// ---- inside -------------------------------------------------------------------

func (c *subscriptionCore) c() *C.watchcore_subscription {
	return (*C.watchcore_subscription)(c.handle.pointer)
}

// enter lets one goroutine in; exit must follow.
func (c *subscriptionCore) enter() error {
	if err := c.guard.enter("the subscription"); err != nil {
		return err
	}
	if !c.handle.acquire() {
		c.guard.leave()
		<-c.done
		return c.end
	}
	return nil
}

func (c *subscriptionCore) exit() {
	c.handle.release()
	c.guard.leave()
}

// poll gives events, or an error, or neither; then, with arm, the member is armed,
// or ready says that something came meanwhile.
func (c *subscriptionCore) poll(most int, arm bool) (b *Batch, ready bool, err error) {
	c.settle()
	var now C.uint32_t
	c.calls.Lock()
	e := C.wc_poll(c.c(), C.size_t(max(most, 0)), c.raw.words(), bit(arm), &now)
	c.calls.Unlock()
	if err := failed(e); err != nil {
		return nil, false, err
	}
	if c.raw.count == 0 {
		c.raw.release()
		return nil, now != 0, nil
	}
	c.last = newBatch(&c.raw, c.state)
	return c.last, false, nil
}

func (c *subscriptionCore) next(ctx context.Context) (*Batch, error) {
	for {
		select {
		case <-c.done:
			return nil, c.end
		default:
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b, ready, err := c.poll(c.max, c.member != nil)
		if b != nil || err != nil {
			return b, err
		}
		if ready {
			continue
		}
		if c.member == nil {
			if err := c.join(); err != nil {
				return nil, err
			}
			continue
		}
		select {
		case <-c.member.awake:
		case <-c.done:
		case <-ctx.Done():
		}
	}
}

func (c *subscriptionCore) join() error {
	w, err := theWaker()
	if err != nil {
		return err
	}
	m := w.join()
	c.calls.Lock()
	e := C.wc_set_add_subscription(w.set, c.c(), C.uint64_t(m.tag))
	c.calls.Unlock()
	if err := failed(e); err != nil {
		m.leave()
		return err
	}
	c.member = m
	return nil
}
