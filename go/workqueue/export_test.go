package workqueue

// HasDue says whether a key whose time has come waits for the goroutine that adds it.
func (q *Queue[K]) HasDue() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.delayed) > 0 && !q.delayed[0].due.After(q.clock.Now())
}
