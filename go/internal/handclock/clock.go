// Package handclock is a clock for tests: the test advances it, and can ask how many timers are armed.
package handclock

import (
	"slices"
	"sync"
	"time"
)

// Clock is a watch.Clock that stands still until Advance. Clock may be used from any goroutine.
type Clock struct {
	mu     sync.Mutex
	now    time.Time
	timers []*timer
}

type timer struct {
	due time.Time
	c   chan time.Time
}

// New returns a clock at a fixed time.
func New() *Clock { return &Clock{now: time.Unix(1_000_000, 0)} }

// Now returns the time to which the clock was advanced.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Timer implements watch.Clock.
func (c *Clock) Timer(d time.Duration) (<-chan time.Time, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timer(c.now.Add(d))
}

// TimerAt implements watch.DeadlineClock.
func (c *Clock) TimerAt(at time.Time) (<-chan time.Time, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timer(at)
}

func (c *Clock) timer(at time.Time) (<-chan time.Time, func()) {
	t := &timer{at, make(chan time.Time, 1)}
	c.timers = append(c.timers, t)
	c.fire()
	return t.c, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.timers = slices.DeleteFunc(c.timers, func(other *timer) bool { return other == t })
	}
}

// Advance advances the clock, and fires the timers that are due.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	c.fire()
}

// fire sends to the timers that are due. The caller has the lock.
func (c *Clock) fire() {
	c.timers = slices.DeleteFunc(c.timers, func(t *timer) bool {
		if t.due.After(c.now) {
			return false
		}
		t.c <- c.now
		return true
	})
}

// Armed returns the number of armed timers.
func (c *Clock) Armed() int {
	count, _ := c.Timers()
	return count
}

// Timers returns the number of armed timers, and the time until the first one fires. One call
// returns both, because a timer may be armed between two calls.
func (c *Clock) Timers() (count int, first time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, t := range c.timers {
		if left := t.due.Sub(c.now); i == 0 || left < first {
			first = left
		}
	}
	return len(c.timers), first
}
