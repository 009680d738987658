package watch

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Clock provides the time and timers. The zero value of options means the system's clock; tests
// advance a [ManualClock].
type Clock interface {
	Now() time.Time
	// Timer returns a channel that receives once when the duration has passed, and a function that
	// cancels the timer. A duration of 0 or less has passed already.
	Timer(d time.Duration) (fired <-chan time.Time, stop func())
}

// DeadlineClock is a Clock with timers for a point of time. Waits for a point of time use TimerAt
// if the clock has it, because a manual clock may advance between Now and Timer, which would make
// the timer late by that much.
type DeadlineClock interface {
	Clock
	// TimerAt is Timer for a point of time. A point that has passed fires at once.
	TimerAt(at time.Time) (fired <-chan time.Time, stop func())
}

// SystemClock is the machine's clock.
type SystemClock struct{}

// Now returns time.Now().
func (SystemClock) Now() time.Time { return time.Now() }

// Timer starts a time.Timer.
func (SystemClock) Timer(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

// ManualClock stands still until Advance. ManualClock is for tests, and may be used from any goroutine.
type ManualClock struct {
	mu      sync.Mutex
	now     time.Time
	timers  []*manualTimer
	changed chan struct{}
}

type manualTimer struct {
	at    time.Time
	fired chan time.Time
}

// NewManualClock makes a clock that shows start.
func NewManualClock(start time.Time) *ManualClock {
	return &ManualClock{now: start, changed: make(chan struct{})}
}

// Now returns the time to which the clock was advanced.
func (c *ManualClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Timer fires when the clock has advanced far enough.
func (c *ManualClock) Timer(d time.Duration) (<-chan time.Time, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timer(c.now.Add(d))
}

// TimerAt fires when the clock reaches the time, or at once if it has.
func (c *ManualClock) TimerAt(at time.Time) (<-chan time.Time, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timer(at)
}

func (c *ManualClock) timer(at time.Time) (<-chan time.Time, func()) {
	t := &manualTimer{at: at, fired: make(chan time.Time, 1)}
	if !at.After(c.now) {
		t.fired <- c.now
		return t.fired, func() {}
	}
	c.timers = append(c.timers, t)
	c.change()
	return t.fired, func() { c.remove(t) }
}

func (c *ManualClock) remove(t *manualTimer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.timers, t); i >= 0 {
		c.timers = slices.Delete(c.timers, i, i+1)
		c.change()
	}
}

// change wakes AwaitTimer. The caller holds the lock.
func (c *ManualClock) change() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Advance advances the clock and fires the timers that are due, the earliest first.
func (c *ManualClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	slices.SortStableFunc(c.timers, func(a, b *manualTimer) int { return a.at.Compare(b.at) })
	due := 0
	for due < len(c.timers) && !c.timers[due].at.After(c.now) {
		c.timers[due].fired <- c.timers[due].at
		due++
	}
	if due > 0 {
		c.timers = slices.Delete(c.timers, 0, due)
		c.change()
	}
}

// AwaitTimer waits until a timer is set, and returns the remaining time of the earliest one: then a
// test can call Advance.
func (c *ManualClock) AwaitTimer(ctx context.Context) (time.Duration, error) {
	for {
		c.mu.Lock()
		if len(c.timers) > 0 {
			first := slices.MinFunc(c.timers, func(a, b *manualTimer) int { return a.at.Compare(b.at) })
			left := first.at.Sub(c.now)
			c.mu.Unlock()
			return left, nil
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}
