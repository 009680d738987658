package workqueue_test

import (
	"slices"
	"sync"
	"time"
)

// testClock is moved by hand, and says how many timers run.
type testClock struct {
	mu     sync.Mutex
	now    time.Time
	timers []*testTimer
}

type testTimer struct {
	due time.Time
	c   chan time.Time
}

func newClock() *testClock { return &testClock{now: time.Unix(1_000_000, 0)} }

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) Timer(d time.Duration) (<-chan time.Time, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &testTimer{c.now.Add(d), make(chan time.Time, 1)}
	c.timers = append(c.timers, t)
	c.fire()
	return t.c, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.timers = slices.DeleteFunc(c.timers, func(other *testTimer) bool { return other == t })
	}
}

func (c *testClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	c.fire()
}

// fire sends to the timers that are due. With the lock.
func (c *testClock) fire() {
	c.timers = slices.DeleteFunc(c.timers, func(t *testTimer) bool {
		if t.due.After(c.now) {
			return false
		}
		t.c <- c.now
		return true
	})
}

// armed is how many timers run.
func (c *testClock) armed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

// first is how long the first timer still has.
func (c *testClock) first() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.MinFunc(c.timers, func(a, b *testTimer) int { return a.due.Compare(b.due) }).due.Sub(c.now)
}
