//go:build cgo

package watchcore

import (
	"context"
	"errors"
	"runtime"
)

// EventResult is an event, or an error, that ResultChan sends.
type EventResult struct {
	Event Event // owns its bytes
	Err   error
}

// ResultChan delivers the events one by one through a channel, for code that needs one; unlike it,
// Batches copies no event. The first call takes the subscription over (Next, Poll and Batches then
// return ErrBusy); later calls return the same channel.
//
// Errors come in order, as in Batches. The channel is closed after the last error, when the cache
// ends, and at once after Stop, Close and the end of Subscribe's context, even if nobody reads. The
// events are copies and need no release. Stop the subscription, or read until the channel is
// closed: an abandoned channel keeps the subscription open.
func (s *Subscription) ResultChan() <-chan EventResult {
	c := s.core
	defer runtime.KeepAlive(s)
	c.state.mu.Lock()
	before := c.results
	if before != nil && before != noResults {
		c.state.mu.Unlock()
		return before.to
	}
	r := &results{to: make(chan EventResult), done: make(chan struct{})}
	c.results = r
	if before == noResults {
		close(r.done)
	}
	state := c.gate.enterAlone() // here and not in run, so that a Next after this call is refused
	c.state.mu.Unlock()
	go s.run(r, state)
	return r.to
}

// Stop is Close, under the name that goes with ResultChan.
func (s *Subscription) Stop() { _ = s.Close() }

// results is the channel of a subscription.
type results struct {
	to   chan EventResult
	done chan struct{} // closed: nothing is sent any more
}

// noResults marks a subscription that ended before ResultChan was called.
var noResults = &results{}

func (s *Subscription) run(r *results, state entry) {
	defer runtime.KeepAlive(s)
	defer close(r.to)
	c := s.core
	switch state {
	case refused:
		r.send(EventResult{Err: errBusy("the subscription")})
		return
	case late:
		return
	}
	c.gate.unlock()
	for c.forward(r) {
	}
	c.gate.lock()
	c.exit()
}

// forward sends the next batch or error. forward returns false at the end.
func (c *subscriptionCore) forward(r *results) bool {
	c.gate.lock()
	b, err := c.next(context.Background())
	closed := c.gate.closed()
	c.gate.unlock()
	if err != nil {
		// After Close no error is sent: the closed channel says enough.
		if closed || errors.Is(err, ErrClosed) {
			return false
		}
		return r.send(EventResult{Err: err}) && continues(err)
	}
	events := b.Clone().events()
	b.Release() // so that it is not held while the reader is slow
	for i := range events {
		if !r.send(EventResult{Event: events[i].event(nil, 0)}) {
			return false
		}
	}
	return true
}

// send reports whether the reader took the result; nothing is sent after done is closed.
func (r *results) send(result EventResult) bool {
	select {
	case <-r.done:
		return false
	default:
	}
	select {
	case r.to <- result:
		return true
	case <-r.done:
		return false
	}
}
