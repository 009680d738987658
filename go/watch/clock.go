package watch

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Clock is where delays come from. The zero value of options means the system's; tests move a
// [ManualClock] by hand.
type Clock interface {
	Now() time.Time
	// Timer gives a channel that receives once when the time has passed, and a function that
	// gives the timer up. A duration of 0 or less has passed already.
	Timer(d time.Duration) (fired <-chan time.Time, stop func())
}

// DeadlineClock is a Clock that can be asked for a point of time. Who waits for one asks TimerAt where a
// clock has it, for between Now and Timer a clock that is moved by hand may move, and the timer would
// come too late by as much.
type DeadlineClock interface {
	Clock
	// TimerAt is as Timer, for a point of time. One that has passed fires at once.
	TimerAt(at time.Time) (fired <-chan time.Time, stop func())
}

// SystemClock is the machine's clock.
type SystemClock struct{}

// Now is time.Now.
func (SystemClock) Now() time.Time { return time.Now() }

// Timer is a time.Timer.
func (SystemClock) Timer(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

// ManualClock stands still until it is moved. For tests; from any goroutine.
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

// NewManualClock makes a clock that says start.
func NewManualClock(start time.Time) *ManualClock {
	return &ManualClock{now: start, changed: make(chan struct{})}
}

// Now is what the clock was moved to.
func (c *ManualClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Timer fires when the clock is moved far enough.
func (c *ManualClock) Timer(d time.Duration) (<-chan time.Time, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timer(c.now.Add(d))
}

// TimerAt fires when the clock is moved there, at once where it is there.
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

// Advance moves the clock and fires what is due, the earliest first.
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

// AwaitTimer waits until somebody waits for the clock, and says how long the first of them still
// has to: the moment at which a test can Advance.
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
