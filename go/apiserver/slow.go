package apiserver

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	watchcore "github.com/watchcore/watchcore/go"
)

// slowLook is how often a watch whose client does not read looks whether it is slow.
const slowLook = time.Second

// remembering is what the name of a subscription ends in that knows the keys of its watcher.
const remembering = ", remembers keys"

// subscribe opens the subscription of the watch. One that remembers costs some bytes for each key that the watcher has, and to begin
// behind a revision it reads all keys of the range; the others cost nothing of that, and cannot go on when they have lost events.
func (w *watcher) subscribe(start watchcore.Start, remembers bool) (err error) {
	options := w.options
	options.Name, options.Start = w.store.resource.String(), start
	if remembers {
		options.Name, options.OnLag = options.Name+remembering, watchcore.LagResnapshot
	}
	sub, err := w.store.cache.Subscribe(w.ctx, options)
	if err != nil {
		return err
	}
	if w.sub != nil {
		_ = w.sub.Close() // never fails
	}
	w.sub, w.remembers = sub, remembers
	return nil
}

// next returns the next batch. A watcher that has everything is not slow any more: its subscription need not remember.
func (w *watcher) next(ctx context.Context) (*watchcore.Batch, error) {
	if w.remembers && !w.starting && !w.catchingUp {
		batch, err := w.sub.Poll(taken)
		if batch != nil || err != nil {
			return batch, err
		}
		w.again(false)
	}
	return w.sub.Next(ctx)
}

// again goes on where the subscription stands with one that remembers, or with one that does not. If that is not possible, the old
// one goes on.
func (w *watcher) again(remembers bool) {
	if remembers { // takes a processor some milliseconds: many watchers may become slow at once
		w.store.seeding.Lock()
		defer w.store.seeding.Unlock()
	}
	_ = w.subscribe(watchcore.StartAfterPosition(w.sub.Position()), remembers)
}

// isSlow says whether the watch stands in the older half of the window, by time.
func (w *watcher) isSlow() bool { return 2*w.sub.Lag().Age > w.store.cache.Stats().WindowAge }

// send says whether the watch has taken the event; if not, it has ended. While its client does not read, the window moves on: a slow
// watch gets a subscription that can go on when the window has passed it.
func (w *watcher) send(e watch.Event) bool {
	select {
	case w.out <- e:
		return true
	case <-w.ctx.Done():
		return false
	default:
	}
	look := time.NewTicker(w.store.slow)
	defer look.Stop()
	for {
		select {
		case w.out <- e:
			return true
		case <-w.ctx.Done():
			return false
		case <-look.C:
			if w.remembers || w.starting {
				look.Stop()
			} else if w.isSlow() {
				w.again(true)
			}
		}
	}
}
