package watch

import "sync"

// outlet is a channel to which several goroutines send and which any of them may stop: a send after
// or during the stop is an error. The last sender that leaves closes the channel.
type outlet[T any] struct {
	c    chan Event[T]
	done chan struct{}

	mu      sync.Mutex
	senders int
	stopped bool
}

func newOutlet[T any](size int) *outlet[T] {
	return &outlet[T]{c: make(chan Event[T], size), done: make(chan struct{})}
}

func (o *outlet[T]) enter() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped {
		return false
	}
	o.senders++
	return true
}

func (o *outlet[T]) leave() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.senders--; o.stopped && o.senders == 0 {
		close(o.c)
	}
}

// send waits for the reader. send returns ErrStopped if stop came first.
func (o *outlet[T]) send(e Event[T]) error {
	if !o.enter() {
		return ErrStopped
	}
	defer o.leave()
	select {
	case o.c <- e:
		return nil
	case <-o.done:
		return ErrStopped
	}
}

// offer does not wait. offer returns ErrFull if the channel is full.
func (o *outlet[T]) offer(e Event[T]) error {
	if !o.enter() {
		return ErrStopped
	}
	defer o.leave()
	select {
	case o.c <- e:
		return nil
	default:
		return ErrFull
	}
}

func (o *outlet[T]) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped {
		return
	}
	o.stopped = true
	close(o.done)
	if o.senders == 0 {
		close(o.c)
	}
}

func (o *outlet[T]) isStopped() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stopped
}
