package watchcore

import (
	"context"
	"errors"
	"runtime"
)

// Result is what ResultChan sends: an event, or an error.
type Result struct {
	Event Event // owns its bytes
	Err   error
}

// ResultChan hands the events out one by one through a channel, for code that is
// written that way; Batches is cheaper. The first call takes the subscription over
// (Next, Poll and Batches answer ErrBusy from then on); later ones return the same
// channel.
//
// Errors come in their place, as in Batches. The channel is closed after the last
// one, when the cache ends, and at once after Stop, Close and the end of
// Subscribe's context, also while nobody reads. The events are copies: nothing
// need be released. Stop it, or read until it is closed: an abandoned channel
// keeps the subscription open.
func (s *Subscription) ResultChan() <-chan Result {
	return s.results()
}

// Stop is Close by the name that goes with ResultChan.
func (s *Subscription) Stop() {
	s.Close()
}

func (s *Subscription) startResults() <-chan Result {
	results := make(chan Result)
	entered := s.core.enter() // here, so that a Next after this call is refused
	go func() {
		defer runtime.KeepAlive(s)
		defer close(results)
		if entered != nil {
			s.core.send(results, Result{Err: entered})
			return
		}
		defer s.core.exit()
		for s.core.forward(results) {
		}
	}()
	return results
}

// forward sends the next batch or error; false: that was the end.
func (c *subscriptionCore) forward(results chan<- Result) bool {
	b, err := c.next(context.Background())
	if err != nil {
		if errors.Is(err, ErrClosed) {
			return false
		}
		return c.send(results, Result{Err: err}) && goesOn(err)
	}
	events := b.Clone().events
	b.Release() // not held while the reader takes its time
	for i := range events {
		if !c.send(results, Result{Event: events[i].event(nil)}) {
			return false
		}
	}
	return true
}

// send says whether somebody took it; nothing is sent once it is closed.
func (c *subscriptionCore) send(results chan<- Result, result Result) bool {
	select {
	case <-c.done:
		return false
	default:
	}
	select {
	case results <- result:
		return true
	case <-c.done:
		return false
	}
}
