package watchcore

// #include "abi.h"
// #cgo noescape wc_subscribe
// #cgo nocallback wc_subscribe
// #cgo noescape wc_position
// #cgo nocallback wc_position
// #cgo noescape wc_lag
// #cgo nocallback wc_lag
// #cgo noescape wc_subscription_stats
// #cgo nocallback wc_subscription_stats
import "C"

import (
	"context"
	"errors"
	"iter"
	"runtime"
	"strconv"
	"time"
)

// Subscription is a cursor with a filter over a cache. Only one goroutine at a time may use it: a
// second one gets ErrBusy. Close, Stop, Position and Lag may be called from any goroutine. Close it
// when it is no longer needed; the garbage collector closes an unreachable one some time later.
type Subscription struct {
	cache   *Cache // kept reachable, hence open, as long as events can be read
	core    *subscriptionCore
	cleanup runtime.Cleanup
}

// Subscribe opens a subscription; with the zero options it starts with the state. The start position is fixed
// when Subscribe returns, without waiting; a subscription that is opened before the first listing starts with
// that listing. When the context is done the subscription ends with the context's error.
func (c *Cache) Subscribe(ctx context.Context, options SubscribeOptions) (*Subscription, error) {
	defer runtime.KeepAlive(c)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	var given C.watchcore_subscription_options
	if err := options.fill(&given, &pin); err != nil {
		return nil, err
	}
	if err := c.core.enter(); err != nil {
		return nil, err
	}
	defer c.core.cache.release()
	var made *C.watchcore_subscription
	if err := failed(C.wc_subscribe(c.core.c(), &given, &made)); err != nil {
		return nil, err
	}
	core := &subscriptionCore{handle: made, max: options.maxBatch(), state: c.core.state}
	core.begin(ctx)
	s := &Subscription{cache: c, core: core}
	s.cleanup = runtime.AddCleanup(s, (*subscriptionCore).closed, core)
	return s, nil
}

// Close ends the subscription, including a wait in progress, at once. Its batches stay valid until
// they are released. Idempotent, from any goroutine. The error is always nil.
func (s *Subscription) Close() error {
	s.cleanup.Stop()
	s.core.closed()
	runtime.KeepAlive(s)
	return nil
}

// Poll takes the next events, at most max (0: 1024). Poll never waits: nil without an error means
// that there are none now. The caller must release the batch.
func (s *Subscription) Poll(max int) (*Batch, error) {
	c := s.core
	if err := c.enter(); err != nil {
		return nil, err
	}
	b, err := c.poll(max)
	s.exit()
	return b, err
}

// Next waits for events. A cancelled context ends the wait at once, without losing events. The
// caller must release the batch.
func (s *Subscription) Next(ctx context.Context) (*Batch, error) {
	if err := s.core.enter(); err != nil {
		return nil, err
	}
	defer s.exit()
	return s.core.next(ctx)
}

// exit follows core.enter. Until then s must be reachable, so that no cleanup closes it.
func (s *Subscription) exit() {
	s.core.exit()
	runtime.KeepAlive(s)
}

// Batches iterates over the events batch by batch, and waits for more. A batch is released when the
// loop's body ends, also by break or panic; Clone it to keep it. Key and Value of its events return
// copies, which may be kept.
//
// With an error the batch is nil. ErrLagged and ErrResynced come in order between the batches, and
// the loop may continue if the policy allows; any other error, and a cancelled context, ends the
// sequence. The sequence ends without an error when the subscription or the cache is closed.
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
			case !yield(nil, err) || !continues(err):
				return
			}
		}
	}
}

func lend(b *Batch, yield func(*Batch, error) bool) bool {
	defer b.Release()
	return yield(b, nil)
}

func continues(err error) bool {
	return errors.Is(err, ErrLagged) || errors.Is(err, ErrResynced)
}

// Position returns the subscription's position: everything that matches up to and including its revision was
// delivered; 0 during the initial state. Save it for a restart with StartAfterPosition.
func (s *Subscription) Position() Position {
	defer runtime.KeepAlive(s)
	return s.core.where()
}

// Lag says how far a subscription is behind.
type Lag struct {
	Events    uint64        // events of the log that it has not examined; an upper bound once its position has left the window
	Revisions uint64        // revisions that it has not examined
	Age       time.Duration // since it was last known to have everything, up to some milliseconds less; zero if it has
}

// Lag returns how far the subscription is behind; zero after Close.
func (s *Subscription) Lag() Lag {
	defer runtime.KeepAlive(s)
	c := s.core
	defer c.leave()
	if !c.gate.enter() {
		return Lag{}
	}
	lag := C.watchcore_lag{size: C.sizeof_watchcore_lag}
	if e := C.wc_lag(c.handle, &lag); e != nil {
		taken(e)
		return Lag{}
	}
	return Lag{uint64(lag.events), uint64(lag.revisions), time.Duration(lag.age_ms) * time.Millisecond}
}

// ReadPath says how a subscription reads the log.
type ReadPath uint32

// The read paths.
const (
	ReadPathScan  ReadPath = 0 // every event of the log, except segments without a matching event
	ReadPathChain ReadPath = 1 // only the events of one bucket of an index
)

// String returns the read path's name, such as "Scan".
func (p ReadPath) String() string {
	switch p {
	case ReadPathScan:
		return "Scan"
	case ReadPathChain:
		return "Chain"
	}
	return "ReadPath(" + strconv.FormatUint(uint64(p), 10) + ")"
}

// SubscriptionStats counts what a subscription has done, and says how it reads.
type SubscriptionStats struct {
	ReadPath       ReadPath // the present read path
	Index          string   // ReadPathChain: the index, such as "key", "prefix of depth 3", "field phase" or "label app"
	LookedAt       uint64   // events that it examined
	Skipped        uint64   // events of the log that it skipped without reading
	HandedOut      uint64   // events and marks that it delivered
	Lagged         uint64   // how often it lost events, reported or not
	DeliveredKeys  uint64   // keys that it remembers as delivered (LagResnapshot, LagConflate)
	DeliveredBytes uint64   // memory of these keys, in bytes
}

// Stats returns the subscription's statistics; zero after Close. Stats may be called from any goroutine.
func (s *Subscription) Stats() SubscriptionStats {
	defer runtime.KeepAlive(s)
	c := s.core
	defer c.leave()
	if !c.gate.enter() {
		return SubscriptionStats{}
	}
	stats := C.watchcore_subscription_statistics{size: C.sizeof_watchcore_subscription_statistics}
	c.gate.lock()
	e := C.wc_subscription_stats(c.handle, &stats)
	c.gate.unlock()
	if e != nil {
		taken(e)
		return SubscriptionStats{}
	}
	return SubscriptionStats{
		ReadPath:       ReadPath(stats.read_path),
		Index:          C.GoStringN((*C.char)(stats.index.data), C.int(stats.index.length)),
		LookedAt:       uint64(stats.looked_at),
		Skipped:        uint64(stats.skipped),
		HandedOut:      uint64(stats.handed_out),
		Lagged:         uint64(stats.lagged),
		DeliveredKeys:  uint64(stats.delivered_keys),
		DeliveredBytes: uint64(stats.delivered_bytes),
	}
}
