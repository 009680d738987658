// Package pump fills a channel from a watch with a Next method.
package pump

import (
	"context"
	"sync"
	"sync/atomic"
)

// Pump starts a goroutine with the first call of Results, which pulls events until the end. Stop
// ends the goroutine even if it waits for the source or for the consumer.
type Pump[E any] struct {
	next func(context.Context) (E, error)
	room int

	once   sync.Once
	c      chan E
	begun  atomic.Bool // c is set
	ctx    context.Context
	cancel context.CancelFunc
}

// New makes a Pump. next pulls one event; any error ends the stream. next must return when its
// context is done. room is the capacity of the channel.
func New[E any](next func(context.Context) (E, error), room int) *Pump[E] {
	p := &Pump[E]{next: next, room: room}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Results returns the channel. Stop closes it; the events in it can still be read.
func (p *Pump[E]) Results() <-chan E {
	p.once.Do(func() {
		p.c = make(chan E, p.room)
		p.begun.Store(true)
		go p.run()
	})
	return p.c
}

// Started returns the channel, or nil if Results was not called yet.
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

// Stop ends the goroutine, if there is one; a goroutine that starts later ends at once.
func (p *Pump[E]) Stop() { p.cancel() }
