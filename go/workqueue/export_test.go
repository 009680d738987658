package workqueue

import "context"

// HasDue says whether a key whose time has come waits for the goroutine that adds it.
func (q *Queue[K]) HasDue() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.delayed) > 0 && !q.delayed[0].due.After(q.clock.Now())
}

// Waiters is how many calls of Get sleep.
func (q *Queue[K]) Waiters() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiters)
}

// HasDrain says whether a call of Drain sleeps.
func (q *Queue[K]) HasDrain() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.idle != nil
}

// Process is what a worker of Run does with a key that it has taken.
func (q *Queue[K]) Process(key K, work func() error) {
	q.process(context.Background(), key, func(context.Context, K) error { return work() }, nil)
}
