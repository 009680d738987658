package watch

import (
	"context"
	"sync"
	"sync/atomic"
)

// pump is the channel face of a watch that is pulled: it starts a goroutine with the first call of
// results, which pulls until the end. stop ends it, also while it waits for the source or for the
// consumer.
type pump[T any] struct {
	// next pulls one event; any error ends the stream. It must end with its context.
	next func(context.Context) (Event[T], error)
	// room is how many events the channel holds for a consumer that is not there.
	room int

	once   sync.Once
	c      chan Event[T]
	begun  atomic.Bool // c is there
	mu     sync.Mutex
	cancel context.CancelFunc
	ended  bool
}

// results is the channel. Stop closes it, behind what it holds.
func (p *pump[T]) results() <-chan Event[T] {
	p.once.Do(func() {
		p.c = make(chan Event[T], p.room)
		ctx, cancel := context.WithCancel(context.Background())
		p.mu.Lock()
		p.cancel = cancel
		ended := p.ended
		p.mu.Unlock()
		if ended {
			cancel()
		}
		p.begun.Store(true)
		go p.run(ctx, cancel)
	})
	return p.c
}

// started is the channel, or nil where results was not called yet.
func (p *pump[T]) started() <-chan Event[T] {
	if p.begun.Load() {
		return p.c
	}
	return nil
}

func (p *pump[T]) run(ctx context.Context, cancel context.CancelFunc) {
	defer close(p.c)
	defer cancel()
	for {
		e, err := p.next(ctx)
		if err != nil {
			return
		}
		select {
		case p.c <- e:
			continue
		default:
		}
		select {
		case p.c <- e:
		case <-ctx.Done():
			return
		}
	}
}

// stop ends the goroutine, if there is one, and lets none wait that begins later.
func (p *pump[T]) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	if p.cancel != nil {
		p.cancel()
	}
}
