package apiserver

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/delegator"
	cachermetrics "k8s.io/apiserver/pkg/storage/cacher/metrics"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/flowcontrol"

	watchcore "github.com/watchcore/watchcore/go"
)

const (
	// bookmarkPeriod and bookmarkBeforeEnd are when a watch gets bookmarks: as those of the cacher of k8s.io/apiserver.
	bookmarkPeriod    = time.Minute
	bookmarkBeforeEnd = 2 * time.Second
	// decodedAhead is how many events are ready for a watcher that is slower. The rest stays in the log, at no cost.
	decodedAhead = 10
	// taken is how many events are taken from the log at a time.
	taken = 64
)

// Watch watches from the cache. A watch whose start is not possible gets one event of type Error, as in k8s.io/apiserver.
func (s *store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.WatchList) {
		opts.SendInitialEvents = nil
	}
	prepared, err := s.prepare(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	revision, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	if s.open.Err() != nil {
		return nil, apierrors.NewTooManyRequests("storage is stopped", retrySeconds)
	}
	if !s.cache.Ready() {
		return nil, apierrors.NewTooManyRequests("storage is (re)initializing", retrySeconds)
	}
	parts := s.split(ctx, &opts.Predicate)
	w := &watcher{
		store: s, predicate: opts.Predicate, rest: parts.rest, isAll: parts.rest.Empty(), bookmarks: opts.Predicate.AllowWatchBookmarks,
		out: make(chan watch.Event, decodedAhead),
	}
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithCancel(ctx)
	leave := context.AfterFunc(s.open, cancel)
	w.reading, w.cancel = w.ctx, func() { leave(); cancel() }
	if w.selects = parts.byCache(); w.selects {
		reading, end := context.WithCancel(w.ctx)
		unread := context.AfterFunc(s.reads.ended, end)
		w.reading, w.cancel = reading, func() { leave(); unread(); cancel() }
	}
	keys := keysOf(prepared, opts.Recursive)
	start, err := s.start(w.ctx, keys, revision, opts)
	if err != nil {
		return w.refused(err), nil
	}
	w.endMark, w.after = isListWatch(opts), revision
	w.starting = start == watchcore.StartState() || opts.SendInitialEvents != nil && *opts.SendInitialEvents
	w.options = watchcore.SubscribeOptions{
		StartTimeout:   freshTimeout,
		Range:          keys,
		LabelSelector:  parts.labels,
		FieldSelector:  parts.fields,
		WholeRevisions: true,
		MaxBatch:       taken,
	}
	// A lost initial state is completed by a difference, for which the subscription has the keys that it gave out.
	if err := w.subscribe(start, w.starting); err != nil {
		return w.refused(s.statusError(err)), nil
	}
	w.began = s.cache.Revision()
	go w.run()
	return w, nil
}

// keysOf are the keys of one object, or of all below a directory.
func keysOf(prepared string, recursive bool) watchcore.Range {
	if recursive {
		return watchcore.RangePrefix(prepared)
	}
	return watchcore.RangeKey(prepared)
}

// isListWatch says whether the initial state ends with a bookmark that says so.
func isListWatch(opts storage.ListOptions) bool {
	return opts.SendInitialEvents != nil && *opts.SendInitialEvents && opts.Predicate.AllowWatchBookmarks
}

// start says where a watch begins:
//
//	resourceVersion   sendInitialEvents unset   true                             false
//	unset             the state of the cache    the state, as new as etcd's      behind what etcd has
//	0                 the state of the cache    the state of the cache           behind what the cache has
//	N                 behind N                  the state, not older than N      behind N
//
// A cache that is not at N yet, or never will be, is no error: the watch passes over what comes until N.
func (s *store) start(ctx context.Context, keys watchcore.Range, revision uint64, opts storage.ListOptions) (start watchcore.Start, err error) {
	if isListWatch(opts) && !delegator.ConsistentReadSupported() {
		return start, errors.New("a watch stream was requested by the client but the required storage feature RequestWatchProgress is disabled")
	}
	if opts.ResourceVersion == "" && opts.SendInitialEvents != nil {
		if revision, err = s.writes.GetCurrentResourceVersion(ctx); err != nil {
			return start, err
		}
	}
	switch state := opts.SendInitialEvents; {
	case state != nil && *state && revision > 0:
		return watchcore.StartStateAtLeast(revision), nil
	case revision > 0:
		return watchcore.StartAfter(s.resumable(ctx, keys, min(revision, s.cache.Revision()))), nil
	case state != nil && !*state:
		return watchcore.StartNow(), nil
	}
	return watchcore.StartState(), nil
}

// watcher is one watch. Its goroutine reads the subscription; it ends with the context, by Stop, with the store, or behind an
// event of type Error.
type watcher struct {
	store     *store
	predicate storage.SelectionPredicate
	rest      storage.SelectionPredicate // what the cache does not evaluate of it
	isAll     bool                       // that is nothing
	selects   bool                       // the cache evaluates the other part
	bookmarks bool
	sub       *watchcore.Subscription
	options   watchcore.SubscribeOptions // of sub, but for its start
	remembers bool                       // sub knows which keys the watcher has
	out       chan watch.Event
	ctx       context.Context
	cancel    context.CancelFunc
	reading   context.Context // ends with ctx, or when the cache cannot select any more
	after     uint64          // the revision that the client named
	endMark   bool            // the initial state ends with a bookmark
	starting  bool            // the initial state is not complete
	began     uint64          // the cache's revision when the watch began: what came until then is init events

	catchingUp bool    // between the marks of a resync
	difference []given // what came since its beginning
}

// ResultChan returns the channel of the events.
func (w *watcher) ResultChan() <-chan watch.Event { return w.out }

// Stop ends the watch. Any goroutine, more than once.
func (w *watcher) Stop() { w.cancel() }

// refused makes it a watch that has an error only, or nothing where its context is done.
func (w *watcher) refused(err error) watch.Interface {
	if w.ctx.Err() == nil {
		w.out <- errorEvent(err)
	}
	w.cancel()
	close(w.out)
	return w
}

func errorEvent(err error) watch.Event {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		s := status.Status()
		return watch.Event{Type: watch.Error, Object: &s}
	}
	return watch.Event{Type: watch.Error, Object: &metav1.Status{
		Status: metav1.StatusFailure, Message: err.Error(), Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError,
	}}
}

func (w *watcher) run() {
	defer close(w.out)
	defer w.cancel()
	defer func() { w.sub.Close() }()
	if w.store.sharded(&w.rest) {
		cachermetrics.RecordShardedWatchStarted(w.store.resource)
		defer cachermetrics.RecordShardedWatchStopped(w.store.resource)
	}
	if err := w.forward(); err != nil && w.ctx.Err() == nil {
		w.send(errorEvent(w.store.statusError(err)))
	}
}

// forward gives out events until there are no more, and bookmarks when it is time for them.
func (w *watcher) forward() error {
	if !w.starting {
		flowcontrol.WatchInitialized(w.ctx)
	}
	var lost error
	waiting, cancel := w.untilBookmark()
	defer func() { cancel() }()
	for {
		before := w.sub.Position()
		batch, err := w.next(waiting)
		isDue := errors.Is(err, context.DeadlineExceeded)
		if isDue {
			cancel()
			waiting, cancel = w.untilBookmark()
			batch, err = w.sub.Poll(taken) // moves the position past what does not concern this watch, too
		}
		switch {
		case w.ctx.Err() != nil:
			batch.Release()
			return nil
		case w.reading.Err() != nil || w.selects && w.store.reads.encrypts && !w.store.reads.all(w.ctx):
			batch.Release()
			if err := w.selectHere(before); err != nil {
				return err
			}
			cancel()
			waiting, cancel = w.untilBookmark()
			continue
		case errors.Is(err, watchcore.ErrLagged) && lost == nil:
			lost = err // what was lost follows as a difference, or the subscription has ended
			continue
		case err != nil && lost != nil:
			return w.tooSlow(lost)
		case err != nil:
			return err
		}
		if batch.Len() > 0 {
			lost = nil
		}
		given, err := w.take(batch)
		batch.Release() // the watcher may be slow
		if err := cmp.Or(w.give(given), err); err != nil {
			return err
		}
		if at := w.sub.Position().Revision; isDue && !w.starting && !w.catchingUp && at >= w.after {
			mark, err := w.bookmark(at, false)
			if err != nil {
				return err
			}
			w.send(mark)
		}
	}
}

// selectHere goes on behind a position by selecting decoded objects, as the cache cannot read all of them any more. In the middle of a
// state or of a difference that is not possible.
func (w *watcher) selectHere(before watchcore.Position) error {
	if w.starting || w.catchingUp {
		return errUnreadable()
	}
	w.rest, w.isAll, w.selects, w.reading = w.predicate, false, false, w.ctx
	w.options.LabelSelector, w.options.FieldSelector = "", ""
	return w.subscribe(watchcore.StartAfterPosition(before), false)
}

// untilBookmark is the context of the watch until its next bookmark is due.
func (w *watcher) untilBookmark() (context.Context, context.CancelFunc) {
	if !w.bookmarks {
		return w.reading, func() {}
	}
	return context.WithDeadline(w.reading, w.nextBookmark(time.Now()))
}

// nextBookmark is when the next bookmark is due: each minute, and shortly before the watch has to end.
func (w *watcher) nextBookmark(now time.Time) time.Time {
	next := now.Add(bookmarkPeriod)
	if end, ok := w.ctx.Deadline(); ok {
		if last := end.Add(-bookmarkBeforeEnd); last.After(now) && last.Before(next) {
			return last
		}
	}
	return next
}

// given is what a watcher gets, or an event of a difference, which is decoded when its turn comes: there may be many.
type given struct {
	watch.Event
	changed *watchcore.Event
	initial bool // it came before the watch began
}

// take makes of a batch what the watcher gets: decoded objects, which all watchers share, and copies of the events of a difference.
func (w *watcher) take(batch *watchcore.Batch) (all []given, err error) {
	for e := range batch.Events() {
		one := given{initial: w.starting || e.Revision <= w.began}
		switch {
		case e.Type == watchcore.EventResync:
			var difference []given
			difference, err = w.resync(e.Resync())
			all = append(all, difference...)
		case e.Type == watchcore.EventBookmark:
			if e.EndsInitialState() && w.starting {
				w.starting = false
				if w.endMark {
					one.Event, err = w.bookmark(e.Revision, true)
				}
				flowcontrol.WatchInitialized(w.ctx)
			}
		case w.catchingUp:
			copied := e.Clone()
			one.changed = &copied
			w.difference = append(w.difference, one)
		default:
			one.Event, err = w.translated(e, one.initial)
		}
		if err != nil {
			return all, err
		}
		if one.Type != "" {
			all = append(all, one)
		}
	}
	return all, nil
}

// resync begins and ends the difference to the state that the watcher had when it lost events. The difference is given out in the
// order of its revisions: a client that resumes behind one of them has everything before it.
func (w *watcher) resync(mark watchcore.ResyncMark) (difference []given, err error) {
	if mark.Reason != watchcore.ReasonLagged {
		return nil, apierrors.NewResourceExpired("the history of etcd was replaced: " + mark.Reason.String())
	}
	if w.catchingUp = mark.Phase == watchcore.ResyncBegin; w.catchingUp {
		return nil, nil
	}
	difference, w.difference = w.difference, nil
	slices.SortStableFunc(difference, func(a, b given) int { return cmp.Compare(a.changed.ModRevision(), b.changed.ModRevision()) })
	return difference, nil
}

// give gives out what was taken.
func (w *watcher) give(all []given) (err error) {
	for _, one := range all {
		if one.Type == "" {
			if one.Event, err = w.translated(*one.changed, one.initial); err != nil {
				return err
			}
		}
		if one.Type == "" { // not selected
			continue
		}
		ready := time.Now()
		if !w.send(one.Event) {
			return nil
		}
		if !one.initial && one.Type != watch.Bookmark {
			w.store.handed.Observe(time.Since(ready).Seconds())
		}
	}
	return nil
}

// translated translates an event that the client does not know, and counts it if it came before the watch began.
func (w *watcher) translated(e watchcore.Event, initial bool) (out watch.Event, err error) {
	if !w.starting && e.Revision <= w.after {
		return out, nil
	}
	out, err = w.translate(e)
	if err == nil && initial {
		cachermetrics.InitCounter.WithLabelValues(w.store.resource.Group, w.store.resource.Resource).Inc()
	}
	return out, err
}

// tooSlow counts a watch that ends because its client did not read.
func (w *watcher) tooSlow(err error) error {
	cachermetrics.TerminatedWatchersCounter.WithLabelValues(w.store.resource.Group, w.store.resource.Resource).Inc()
	return err
}

// translate says what an event is for this watch. With the part of the predicate that the cache does not evaluate an object may come
// or go by being modified. An object that a watcher has and whose last value is lost ends the watch with 410: only a list tells then.
func (w *watcher) translate(e watchcore.Event) (out watch.Event, err error) {
	s := w.store
	var before, now *item
	lost := false
	switch {
	case e.Type == watchcore.EventAdded:
	case e.Type == watchcore.EventModified && w.isAll: // there was an object, which nobody needs
		lost = true
	default:
		if lost = e.PrevValueView() == nil; !lost {
			before, err = s.side(&w.rest, e, s.items.PrevValue)
		}
	}
	if err == nil && e.Type != watchcore.EventDeleted {
		now, err = s.side(&w.rest, e, s.items.Value)
	}
	if err != nil {
		return out, err
	}
	var object *object
	switch {
	case now != nil:
		out.Type = watch.Modified
		if before == nil && !lost {
			out.Type = watch.Added
		}
		object, err = now.at(e.ModRevision(), s.versioner)
	case lost:
		return out, w.tooSlow(apierrors.NewResourceExpired("the last value of " + e.Key() + " has left the window"))
	case before != nil:
		out.Type = watch.Deleted
		object, err = before.deletedAt(e.Revision, s.versioner)
	default:
		return out, nil
	}
	out.Object = object
	return out, err
}

// side decodes one side of an event; nil if the predicate does not select it.
func (s *store) side(p *storage.SelectionPredicate, e watchcore.Event, value func(watchcore.Event) (*item, error)) (*item, error) {
	i, err := value(e)
	if err != nil {
		return nil, err
	}
	within, err := s.within(p, i)
	if err == nil && !within {
		cachermetrics.RecordWatchFilteredEvent(s.resource)
	}
	if err != nil || !within || !p.MatchesObjectAttributes(i.labels, i.fields) {
		return nil, err
	}
	return i, nil
}

// bookmark is the event of a position.
func (w *watcher) bookmark(revision uint64, endsState bool) (e watch.Event, err error) {
	object := w.store.newFunc()
	if err := w.store.versioner.UpdateObject(object, revision); err != nil {
		return e, err
	}
	if endsState {
		if err := markEnd(object); err != nil {
			return e, err
		}
	}
	return watch.Event{Type: watch.Bookmark, Object: object}, nil
}

func markEnd(object runtime.Object) error {
	m, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return nil
}
