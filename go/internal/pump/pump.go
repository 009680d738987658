// Package pump is the channel face of watches that are pulled.
package pump

import (
	"context"
	"sync"
	"sync/atomic"
)

// Pump starts a goroutine with the first call of Results, which pulls until the end. Stop ends it, also while it waits for the
// source or for the consumer.
type Pump[E any] struct {
	next func(context.Context) (E, error)
	room int

	once   sync.Once
	c      chan E
	begun  atomic.Bool // c is there
	ctx    context.Context
	cancel context.CancelFunc
}

// New makes one. next pulls one event; any error ends the stream. It must end with its context. room is how many events the
// channel holds for a consumer that is not there.
func New[E any](next func(context.Context) (E, error), room int) *Pump[E] {
	p := &Pump[E]{next: next, room: room}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Results is the channel. Stop closes it, behind what it holds.
func (p *Pump[E]) Results() <-chan E {
	p.once.Do(func() {
		p.c = make(chan E, p.room)
		p.begun.Store(true)
		go p.run()
	})
	return p.c
}

// Started is the channel, or nil where Results was not called yet.
func (p *Pump[E]) Started() <-chan E {
	if p.begun.Load() {
		return p.c
	}
	return nil
}

func (p *Pump[E]) run() {
	defer close(p.c)
	for {
		e, err := p.next(p.ctx)
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
		case <-p.ctx.Done():
			return
		}
	}
}

// Stop ends the goroutine, if there is one, and lets none wait that begins later.
func (p *Pump[E]) Stop() { p.cancel() }
