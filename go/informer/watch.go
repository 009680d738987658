package informer

import (
	"context"
	"sync"

	"github.com/watchcore/watchcore/go/internal/pump"
	"github.com/watchcore/watchcore/go/watch"
)

// Watch returns a watch of the informer: the present objects as Added events, then Synced, then the changes,
// each with its old value; a deletion has the last value. The watch ends with the context, by its Stop, or
// after the last change of an informer that has ended. Watch does not wait. The watch starts with the state
// at the time of the call, or with the first state if there is none yet.
//
// The result is a watch.Puller: Next costs no goroutine. The watch has its own position, as a handler has,
// and if the window overtakes it, it delivers a difference, whose first event says in Event.Lost
// how many changes were not delivered one by one. With WaitForSync and Store, it makes an Informer
// a watch.SyncedSource for watch.UntilWithSync.
func (in *Informer[T]) Watch(ctx context.Context) (watch.Interface[*Object[T]], error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if in.ctx.Err() != nil {
		return nil, in.stopped()
	}
	w := &watcher[T]{cursor: cursor[T]{store: in.store}, in: in, turn: make(chan struct{}, 1), stop: make(chan struct{})}
	if now := in.store.current.Load(); now.synced {
		w.at = now
	}
	w.pump = pump.New(w.Next, 0)
	w.forget = context.AfterFunc(ctx, w.end)
	return w, nil
}

// WaitForSync is WaitSynced under the name that watch.SyncedSource requires.
func (in *Informer[T]) WaitForSync(ctx context.Context) error { return in.WaitSynced(ctx) }

// Store is Lister under the name that watch.SyncedSource requires.
func (in *Informer[T]) Store() *Lister[T] { return in.Lister() }

// watcher is a cursor from which the consumer pulls events.
type watcher[T any] struct {
	cursor[T]
	in      *Informer[T]
	turn    chan struct{} // a lock: the goroutine that sent into the channel has it
	started bool
	at      *state[T] // the state with which it starts; nil: the first one

	once   sync.Once
	stop   chan struct{}
	forget func() bool

	pump *pump.Pump[watch.Event[*Object[T]]]
}

func (w *watcher[T]) Stop() {
	w.forget()
	w.end()
}

func (w *watcher[T]) end() {
	w.once.Do(func() {
		close(w.stop)
		w.pump.Stop()
	})
}

// ResultChan returns a channel of the events, which a goroutine fills.
func (w *watcher[T]) ResultChan() <-chan watch.Event[*Object[T]] {
	return w.pump.Results()
}

// Next returns the next event.
func (w *watcher[T]) Next(ctx context.Context) (none watch.Event[*Object[T]], err error) {
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return none, ctx.Err()
	case <-w.stop:
		return none, watch.ErrEnded
	}
	for {
		select {
		case <-w.stop:
			return none, watch.ErrEnded
		case <-w.in.ctx.Done():
			return none, watch.ErrEnded
		case <-ctx.Done():
			return none, ctx.Err()
		default:
		}
		e, given, wait := w.look()
		switch {
		case given:
			e.Lost, w.lost = w.lost, 0
			return e, nil
		case wait == nil:
			return none, watch.ErrEnded
		}
		select {
		case <-wait:
		case <-w.in.over:
		case <-w.stop:
		case <-w.in.ctx.Done():
		case <-ctx.Done():
		}
	}
}

// look returns the next event, or a channel to wait for; neither means that the watch has ended.
func (w *watcher[T]) look() (e watch.Event[*Object[T]], given bool, wait <-chan struct{}) {
	if !w.started {
		select {
		case <-w.store.synced:
			if w.started = true; w.at == nil {
				w.at = w.store.current.Load()
			}
			w.begin(w.at)
			w.at = nil
		default:
			if w.store.log.Closed() {
				return e, false, nil
			}
			return e, false, w.store.synced
		}
	}
	for {
		if from, ended := w.listed(); ended && from == initial {
			return watch.Event[*Object[T]]{Type: watch.Synced, Revision: w.known.position.Revision}, true, nil
		}
		if c, _, taken := w.take(); taken {
			e = w.event(c)
			w.handled()
			return e, true, nil
		}
		switch {
		case w.overtaken():
			w.compare()
		case w.list != nil: // the empty list is finished above in the next iteration
		case w.ended():
			return e, false, nil
		default:
			return e, false, w.wait()
		}
	}
}

func (w *watcher[T]) event(c change[T]) watch.Event[*Object[T]] {
	e := watch.Event[*Object[T]]{Type: watch.Modified, Object: c.new, Old: c.old, HasOld: c.old != nil}
	switch {
	case c.old == nil:
		e.Type = watch.Added
	case c.new == nil:
		e.Type, e.Object = watch.Deleted, c.old
	}
	switch { // the position advances with the last change of a list
	case w.taken != nil:
		e.Revision = w.taken.position.Revision
	case w.place == len(w.list) && w.from != initial:
		e.Revision = w.to.position.Revision
	case w.known != nil:
		e.Revision = w.known.position.Revision
	}
	switch {
	case c.new != nil:
		e.ObjectRevision = c.new.Revision
	case w.to != nil: // the object was deleted at some revision up to this one
		e.ObjectRevision = w.to.position.Revision
	}
	return e
}
