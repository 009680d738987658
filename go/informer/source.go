package informer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/pump"
	"github.com/watchcore/watchcore/go/watch"
)

// SourceOptions says what a [CacheSource] watches. The zero value is every key of the cache.
type SourceOptions struct {
	// Name, Range, LabelSelector and FieldSelector have the same meaning as in watchcore.SubscribeOptions.
	Name          string
	Range         watchcore.Range
	LabelSelector string
	FieldSelector string
	// OnError is called for each value that decode refuses, on the goroutine that lists or watches.
	// nil logs it to slog.Default() at level warn.
	OnError func(error)
}

// CacheSource lists a cache and watches it from a revision on: it is a [watch.ListerWatcher] for a
// [watch.RetryWatcher] and for watch.Until.
//
//	pods, err := informer.NewCacheSource(cache, decodePod, informer.SourceOptions{Range: watchcore.RangePrefix("/registry/pods/")})
//	w, err := watch.NewRetryWatcherWithOptions(ctx, cache.Revision(), pods, watch.RetryOptions[*informer.Object[*Pod]]{})
//
// A watch delivers every change of the window exactly once, in order, and never skips one. If the
// window has passed its position, or the history was replaced, the watch ends with an error 410
// (watch.IsGone), after which a RetryWatcher ends or lists. The end of the cache ends the watch for
// good. Lists and watches use the same keys:
//
//	watch.RelistOnGone(func(pod *informer.Object[*Pod]) string { return pod.Key })
//
// A value that decode refuses, by an error or a panic, is reported and skipped, and is not a deletion.
type CacheSource[T any] struct {
	cache   *watchcore.Cache
	decoder func(key string, value []byte) (T, error)
	options SourceOptions
	listed  atomic.Pointer[watchcore.Position] // of the last list: a watch that starts there can tell whether the history was replaced
}

// NewCacheSource makes a CacheSource. decode is called for each value, of which it may keep the
// bytes, on the goroutines that list or watch.
func NewCacheSource[T any](cache *watchcore.Cache, decode func(key string, value []byte) (T, error), options SourceOptions) (*CacheSource[T], error) {
	if cache == nil || decode == nil {
		return nil, invalid("NewCacheSource without a cache or a decoder. Give both")
	}
	if options.OnError == nil {
		options.OnError = func(err error) {
			slog.Default().Warn("informer: a value is skipped", "cache", cache.Name(), "error", err)
		}
	}
	return &CacheSource[T]{cache: cache, decoder: decode, options: options}, nil
}

// Watch delivers the changes after a revision. Event.Old is the previous value, without its
// revision. Event.Revision advances with the last change of a revision. Bookmarks report that the
// position advanced without a change. Next needs no goroutine; ResultChan runs one until Stop, the
// end of the context, or the last event.
func (s *CacheSource[T]) Watch(ctx context.Context, after uint64) (watch.Interface[*Object[T]], error) {
	position := watchcore.Position{Revision: after}
	if listed := s.listed.Load(); listed != nil && listed.Revision == after {
		position = *listed
	}
	sub, err := s.cache.Subscribe(ctx, watchcore.SubscribeOptions{
		Name: s.options.Name, Range: s.options.Range, LabelSelector: s.options.LabelSelector, FieldSelector: s.options.FieldSelector,
		Start: watchcore.StartAfterPosition(position), WholeRevisions: true, MaxBatch: 128, Bookmarks: true, StopOnResync: true,
	})
	if err != nil {
		return nil, err
	}
	w := &sourceWatch[T]{source: s, sub: sub, position: after, turn: make(chan struct{}, 1), stopped: make(chan struct{})}
	w.pump = pump.New(w.Next, 0)
	return w, nil
}

// List waits for the cache's first listing and returns its present state in one page. ListPage.Refused has
// the keys of values that decode refused. A revision that the cache has not reached yields a Status 504.
func (s *CacheSource[T]) List(ctx context.Context, request watch.ListRequest) (listing watch.ListPage[*Object[T]], err error) {
	if err := s.cache.WaitReady(ctx); err != nil {
		return listing, err
	}
	page, err := s.cache.List(ctx, s.options.Range, watchcore.ListOptions{LabelSelector: s.options.LabelSelector, FieldSelector: s.options.FieldSelector})
	if err != nil {
		return listing, err
	}
	defer page.Release()
	position := page.Position()
	if position.Revision < request.Revision {
		return listing, &watch.Status{Code: 504, Message: fmt.Sprintf("the cache is at %d, and was asked for %d", position.Revision, request.Revision)}
	}
	for kv := range page.All() {
		o := &Object[T]{Key: kv.Key(), Revision: kv.ModRevision(), CreateRevision: kv.CreateRevision(), Version: kv.Version()}
		if s.decode(o, kv.Value()) {
			listing.Items = append(listing.Items, watch.Item[*Object[T]]{Object: o, Revision: o.Revision})
		} else {
			listing.Refused = append(listing.Refused, o.Key)
		}
	}
	listing.Revision = position.Revision
	s.listed.Store(&position)
	return listing, nil
}

// decode sets the value of an object. decode reports a value that was refused, and returns false.
func (s *CacheSource[T]) decode(o *Object[T], value []byte) bool {
	var refused error
	err := panicked.Guard("the decoder", func() { o.Value, refused = s.decoder(o.Key, value) }, func(error) {})
	if err = errors.Join(err, refused); err != nil {
		s.options.OnError(fmt.Errorf("the value of %q of revision %d: %w", o.Key, o.Revision, err))
	}
	return err == nil
}

// sourceWatch is a watch of a CacheSource.
type sourceWatch[T any] struct {
	source  *CacheSource[T]
	sub     *watchcore.Subscription
	stop    sync.Once
	stopped chan struct{}

	turn     chan struct{}             // a lock: the goroutine that sent into the channel has it
	pending  []watch.Event[*Object[T]] // of whole revisions
	position uint64                    // the position after the pending events
	over     bool                      // no event follows the pending ones

	pump *pump.Pump[watch.Event[*Object[T]]]
}

func (w *sourceWatch[T]) Stop() {
	w.stop.Do(func() {
		close(w.stopped)
		w.pump.Stop()
		_ = w.sub.Close()
	})
}

// ResultChan returns a channel of the events, which a goroutine fills.
func (w *sourceWatch[T]) ResultChan() <-chan watch.Event[*Object[T]] {
	return w.pump.Results()
}

// Next returns the next event.
func (w *sourceWatch[T]) Next(ctx context.Context) (e watch.Event[*Object[T]], err error) {
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return e, ctx.Err()
	}
	for len(w.pending) == 0 {
		if w.over {
			return e, watch.ErrEnded
		}
		batch, err := w.sub.Next(ctx)
		switch {
		case err == nil:
			own := batch.Clone()
			batch.Release()
			w.translate(own)
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return e, err
		default:
			w.end(err)
		}
	}
	e, w.pending = w.pending[0], w.pending[1:]
	return e, nil
}

// end appends the error as the last event, unless it comes from Stop or from the context of Watch.
func (w *sourceWatch[T]) end(err error) {
	w.over = true
	select {
	case <-w.stopped:
		return
	default:
	}
	_ = w.sub.Close()
	if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		w.pending = append(w.pending, watch.Event[*Object[T]]{Type: watch.Error, Err: err})
	}
}

// translate converts the events of a batch, which ends at the end of a revision.
func (w *sourceWatch[T]) translate(batch *watchcore.Batch) {
	for i := range batch.Len() {
		e := batch.At(i)
		given, refused := w.event(e)
		last := i+1 == batch.Len() || batch.At(i+1).Revision != e.Revision
		if last {
			w.position = e.Revision
		}
		switch {
		case !refused:
			given.Revision = w.position
			w.pending = append(w.pending, given)
		case last:
			w.pending = append(w.pending, watch.Event[*Object[T]]{Type: watch.Bookmark, Revision: w.position})
		}
	}
}

// event converts an event, without its position.
func (w *sourceWatch[T]) event(e watchcore.Event) (given watch.Event[*Object[T]], refused bool) {
	if e.Type == watchcore.EventBookmark {
		return watch.Event[*Object[T]]{Type: watch.Bookmark}, false
	}
	o := &Object[T]{Key: e.Key(), Revision: e.ModRevision(), CreateRevision: e.CreateRevision(), Version: e.Version()}
	given = watch.Event[*Object[T]]{Object: o, ObjectRevision: e.Revision}
	switch e.Type {
	case watchcore.EventAdded:
		given.Type = watch.Added
		return given, !w.source.decode(o, e.Value())
	case watchcore.EventModified:
		given.Type = watch.Modified
		old := &Object[T]{Key: o.Key, CreateRevision: o.CreateRevision, Version: o.Version - 1}
		if value := e.PrevValue(); value != nil && w.source.decode(old, value) {
			given.Old, given.HasOld = old, true
		}
		return given, !w.source.decode(o, e.Value())
	}
	// A deletion is delivered even if its last value was refused: the consumer may have an earlier value.
	given.Type = watch.Deleted
	if value := e.PrevValue(); value != nil && w.source.decode(o, value) {
		given.Old, given.HasOld = o, true
	} else {
		given.FinalStateUnknown = true
	}
	return given, false
}
