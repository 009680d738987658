package informer

import (
	"context"
	"sync"

	"watchcore/internal/pump"
	"watchcore/watch"
)

// Watch is the informer as a watch: what is there as Added events, then Synced, then what
// follows, each with its old value; a deletion has the last one. The watch ends with the context,
// by its Stop, and behind the last change of an informer that has ended. It does not wait; where
// it begins is fixed when it returns, or, where there is no state yet, with the first one.
//
// It is a watch.Puller: Next costs no goroutine. It has a place of its own as a handler has, and
// is given a difference where it is overtaken: Event.Lost of the first one says how many changes it was not given
// one by one. With WaitForSync and Store this makes an Informer what watch.UntilWithSync takes.
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

// WaitForSync is WaitSynced by the name that watch.SyncedSource has for it.
func (in *Informer[T]) WaitForSync(ctx context.Context) error { return in.WaitSynced(ctx) }

// Store is Lister by the name that watch.SyncedSource has for it.
func (in *Informer[T]) Store() *Lister[T] { return in.Lister() }

// watcher is a cursor that is pulled.
type watcher[T any] struct {
	cursor[T]
	in      *Informer[T]
	turn    chan struct{} // who has put something in is alone
	started bool
	at      *state[T] // where it begins; nil: as soon as there is a state

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

// ResultChan is the channel face, which has a goroutine.
func (w *watcher[T]) ResultChan() <-chan watch.Event[*Object[T]] {
	return w.pump.Results()
}

// Next is the next event.
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

// look is the next event, or what to wait for; neither is the end.
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
		case w.list != nil: // empty, and ended above the next time
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
	switch { // the position moves with the last change of a list
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
	case w.to != nil: // by then it was gone
		e.ObjectRevision = w.to.position.Revision
	}
	return e
}
