//go:build cgo

package watchcore

import (
	"context"
	"errors"
	"runtime"
)

// EventResult is what ResultChan sends: an event, or an error.
type EventResult struct {
	Event Event // owns its bytes
	Err   error
}

// ResultChan hands the events out one by one through a channel, for code that is
// written that way; Batches copies no event. The first call takes the subscription over
// (Next, Poll and Batches answer ErrBusy from then on); later ones return the same
// channel.
//
// Errors come in their place, as in Batches. The channel is closed after the last
// one, when the cache ends, and at once after Stop, Close and the end of
// Subscribe's context, also while nobody reads. The events are copies: nothing
// need be released. Stop it, or read until it is closed: an abandoned channel
// keeps the subscription open.
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
	state := c.gate.enterAlone() // here, so that a Next after this call is refused
	c.state.mu.Unlock()
	go s.run(r, state)
	return r.to
}

// Stop is Close by the name that goes with ResultChan.
func (s *Subscription) Stop() { _ = s.Close() }

// results is a subscription that hands out by a channel.
type results struct {
	to   chan EventResult
	done chan struct{} // closed: nothing is sent any more
}

// noResults stands in the place of those that nobody asked for before the end.
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

// forward sends the next batch or error; false: that was the end.
func (c *subscriptionCore) forward(r *results) bool {
	c.gate.lock()
	b, err := c.next(context.Background())
	closed := c.gate.closed()
	c.gate.unlock()
	if err != nil {
		// Of a subscription that was closed it says why: the end of the channel says that.
		if closed || errors.Is(err, ErrClosed) {
			return false
		}
		return r.send(EventResult{Err: err}) && goesOn(err)
	}
	events := b.Clone().events()
	b.Release() // not held while the reader takes its time
	for i := range events {
		if !r.send(EventResult{Event: events[i].event(nil, 0)}) {
			return false
		}
	}
	return true
}

// send says whether somebody took it; nothing is sent once it is closed.
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
