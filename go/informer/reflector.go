package informer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"reflect"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"watchcore"
	"watchcore/internal/clocks"
	"watchcore/watch"
)

// ListRequest is what a ListerWatcher is asked to list.
type ListRequest struct {
	Revision uint64 // at this one or a later one; 0 is the newest
	Limit    int    // the most items of a page; 0 is all
	Continue string // of the page before; "" begins
}

// ListPage is a page of a state.
type ListPage[T any] struct {
	Items    []watch.Item[T]
	Revision uint64 // of the state, the same in each page; 0 only of the empty one of a source where nothing has happened
	Continue string // "" is the last
}

// ListerWatcher is a server that can be listed, page by page, and watched from a revision on. Errors that are
// a watch.Status decide what happens: see NewFromSource. The calls should end with their context; one
// that does not is left alone when the informer is stopped.
type ListerWatcher[T any] interface {
	List(ctx context.Context, request ListRequest) (ListPage[T], error)
	// Watch gives what follows a revision: Added, Modified and Deleted with their revisions, and Bookmark. Of a revision that
	// changes several objects all but the last event have a lower Revision (see watch.Event), and its own as ObjectRevision:
	// then it is shown whole, and with its last one.
	Watch(ctx context.Context, after uint64) (watch.Interface[T], error)
}

// Backoff is how long a source waits between attempts: Min, doubled with each failure, at most Max, of
// which each delay is a random part between the half and the whole. After a calm time of Reset it begins anew.
type Backoff struct {
	Min, Max, Reset time.Duration // 0 is 800 ms, 30 s, 2 min
}

// DefaultPageSize is Options.PageSize where none is given.
const DefaultPageSize = 500

// NewFromSource makes an informer of anything that can be listed and watched, and starts it. key says
// under which key an object is kept; it must not change.
//
//	| state    | input                                      | what happens                                   | next                         |
//	| -------- | ------------------------------------------ | ---------------------------------------------- | ---------------------------- |
//	| List     | all pages, revision R                      | the first is the state; later ones give the    | Watch(R)                     |
//	|          |                                            | difference, deletions first                    |                              |
//	|          | 410 at a later page                        | once at once, without pages                    | List                         |
//	|          | 410                                        | once at once, without a revision               | List                         |
//	|          | any other error, pages that do not fit     | the backoff                                    | List                         |
//	| Watch(R) | Added, Modified, Deleted with a revision   | R moves; given when R has reached its own      | Watch(R)                     |
//	|          | Bookmark                                   | R moves                                        | Watch(R)                     |
//	|          | the end, io.EOF                            | the backoff where it was short and empty       | Watch(R)                     |
//	|          | 410                                        |                                                | List                         |
//	|          | 429, connection refused                    | the backoff, or what Retry-After asks for      | Watch(R)                     |
//	|          | any other error, no revision, unknown type | the backoff                                    | List                         |
//	| any      | Stop                                       |                                                | end                          |
//
// Each failure is reported to Options.OnError. A panic of the source, of its watch or of key, and the end of the goroutine that calls
// them, is any other error. WaitUntil works where the source's bookmarks, or
// changes, come so far. A revision is whole where the source says which events are of it, by Event.ObjectRevision; of one that
// gives several events the same Revision and nothing else the first shows that revision, and the rest follows.
//
// An event that is no newer than what is there changes nothing. Where a source says no ObjectRevision, one at the
// revision of what is there may be a change all the same, and is given unless it has an equal value.
func NewFromSource[T any](source ListerWatcher[T], key func(T) string, options Options[T]) (*Informer[T], error) {
	if source == nil || key == nil {
		return nil, invalid("NewFromSource without a source or a function for keys. Give both")
	}
	if options.Range != (watchcore.Range{}) || options.LabelSelector != "" || options.FieldSelector != "" {
		return nil, invalid("Options.Range, LabelSelector and FieldSelector are for an informer of a cache. Let the source itself select")
	}
	in, err := newInformer("informer", options)
	if err != nil {
		return nil, err
	}
	r := &reflector[T]{in: in, source: source, key: key, page: options.PageSize, backoff: newBackoff(options.Backoff)}
	if r.page == 0 {
		r.page = DefaultPageSize
	}
	in.start(r)
	return in, nil
}

// reflector feeds a store from a ListerWatcher. All but what has the lock is its goroutine's.
type reflector[T any] struct {
	in      *Informer[T]
	source  ListerWatcher[T]
	key     func(T) string
	page    int
	backoff *backoff

	at       watchcore.Position
	held     []held[T] // events of a revision of which more is to come
	whole    uint64    // the highest revision of these: where the position is there, nothing more is
	watching bool      // or it is to list
	anew     bool      // the next list is without a revision
	owed     bool      // what was put is not committed yet
	pause    time.Time // until then nothing else; the zero time: there is none

	mu     sync.Mutex
	doing  string
	failed error
}

// held is an event with its object's key.
type held[T any] struct {
	watch.Event[T]
	key string
}

// own is the revision of the change, as far as it is known.
func (e *held[T]) own() uint64 { return cmp.Or(e.ObjectRevision, e.Revision) }

// repeats says whether an event tells nothing new about an object.
func (e *held[T]) repeats(old *Object[T]) bool {
	switch own := e.own(); {
	case old == nil || old.Revision < own:
		return false
	case e.Type == watch.Deleted:
		return old.Revision > own
	case old.Revision > own || e.ObjectRevision != 0:
		return true
	}
	// The position is all that is known, and the object may have been changed by the revision behind it, of which more is
	// to come. An update too many is told, a change is never lost.
	return reflect.ValueOf(&old.Value).Elem().Comparable() && any(old.Value) == any(e.Object)
}

func (r *reflector[T]) say(doing string, failed error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doing = doing
	if failed != nil {
		r.failed = failed
	}
}

func (r *reflector[T]) explain() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != nil {
		return fmt.Sprintf("its source %s; its last error was: %v", r.doing, r.failed)
	}
	return fmt.Sprintf("its source %s, and nothing has come", r.doing)
}

func (r *reflector[T]) await(context.Context, uint64) error { return nil }

func (r *reflector[T]) run() error {
	for r.in.ctx.Err() == nil {
		switch {
		case !r.pause.IsZero():
			r.sleep()
		case r.owed: // an index's function has ended the goroutine meanwhile
			r.commit()
		case r.watching:
			r.watch()
		default:
			r.list()
		}
	}
	return r.in.stopped()
}

// commit publishes what was put.
func (r *reflector[T]) commit() {
	r.owed = true
	if id := r.in.goroutine.Load(); r.in.HasSynced() {
		r.in.store.commit(id, r.at)
	} else {
		r.in.store.complete(id, r.at)
	}
	r.owed = false
}

// list lists all pages, and publishes what differs.
func (r *reflector[T]) list() {
	r.say("is being listed", nil)
	request := ListRequest{Limit: max(r.page, 0), Revision: r.at.Revision}
	if r.anew {
		request.Revision = 0
	}
	var items []watch.Item[T]
	var revision uint64
	asked := map[string]bool{} // for the pages behind these tokens
	whole := false             // it is asked for without pages
	for {
		page, err := call(r.in.ctx, func(ctx context.Context) (ListPage[T], error) { return r.source.List(ctx, request) }, nil)
		if err != nil {
			if watch.IsGone(err) && request.Continue != "" && !whole { // the state of the first page is gone
				items, request.Continue, request.Limit, whole = nil, "", 0, true
				clear(asked)
				continue
			}
			if watch.IsGone(err) && !r.anew {
				r.anew = true // at once, but once only
				r.report("list", err)
				return
			}
			r.fail("list", err)
			return
		}
		switch items = append(items, page.Items...); {
		case request.Continue != "" && page.Revision != revision:
			err = fmt.Errorf("a page is of revision %d, and the one before of %d: pages are of one state", page.Revision, revision)
		case asked[page.Continue]:
			err = fmt.Errorf("the token %q came before: the pages have no end", page.Continue)
		case page.Continue == "" && page.Revision == 0 && (r.at.Revision > 0 || len(items) > 0):
			err = errors.New("the list has no revision: a watch cannot begin behind it")
		}
		if err != nil {
			r.fail("list", err)
			return
		}
		if revision, request.Continue = page.Revision, page.Continue; page.Continue != "" {
			asked[page.Continue] = true
			continue
		}
		objects, err := r.objects(items)
		if err != nil {
			r.fail("list", err)
			return
		}
		r.anew, r.watching = false, true
		r.replace(objects, page.Revision)
		return
	}
}

func (r *reflector[T]) objects(items []watch.Item[T]) ([]*Object[T], error) {
	objects := make([]*Object[T], 0, len(items))
	for _, item := range items {
		key, err := r.keyOf("list", item.Object)
		if err != nil {
			return nil, err
		}
		objects = append(objects, &Object[T]{Key: key, Value: item.Object, Revision: item.Revision})
	}
	return objects, nil
}

func (r *reflector[T]) keyOf(doing string, object T) (key string, err error) {
	err = guarded("the function for keys", func() { key = r.key(object) }, func(err error) { r.relist(doing, err) })
	return key, err
}

// replace makes the listed state the store's.
func (r *reflector[T]) replace(objects []*Object[T], revision uint64) {
	s := r.in.store
	epoch := max(r.at.Epoch, 1)
	another := revision < r.at.Revision
	if another {
		epoch++
	}
	r.at = watchcore.Position{Epoch: epoch, Revision: revision}
	first := !r.in.HasSynced()
	if !first {
		r.in.resyncs.Add(1)
	}
	there := make(map[string]struct{}, len(objects))
	for _, o := range objects {
		there[o.Key] = struct{}{}
	}
	if !first {
		for old := range s.work.objects.All() {
			if _, is := there[old.Key]; !is {
				s.remove(s.kinds.objects.Hash(old.Key), old.Key, r.at)
			}
		}
		slices.SortStableFunc(objects, func(a, b *Object[T]) int { return cmp.Compare(a.Revision, b.Revision) })
	}
	for _, o := range objects {
		hash := s.kinds.objects.Hash(o.Key)
		// Revisions of two histories say nothing about each other. Behind this all objects are of one.
		if old := s.known(hash, o.Key); !another && old != nil && old.Revision == o.Revision && o.Revision != 0 {
			continue
		}
		r.in.decoded.Add(1)
		s.put(hash, o, r.at)
	}
	r.commit()
}

// watch opens a watch and reads it to its end.
func (r *reflector[T]) watch() {
	r.say("is being watched", nil)
	r.drop()
	began, events := r.in.clock.Now(), 0
	after := r.at.Revision
	w, err := call(r.in.ctx, func(ctx context.Context) (watch.Interface[T], error) { return r.source.Watch(ctx, after) },
		func(late watch.Interface[T]) {
			if late != nil {
				stop(late, r.in.report)
			}
		})
	if err == nil && w == nil {
		err = io.EOF
	}
	ended := func(err error) { r.relist("watch", err) }
	if err == nil {
		defer stop(w, ended)
	}
	for err == nil {
		var e watch.Event[T]
		if panicked := guarded("the source's watch", func() { e, err = watch.Next(r.in.ctx, w) }, ended); panicked != nil {
			err = panicked
		}
		if err == nil {
			events++
			err = r.take(e)
		}
	}
	switch {
	case r.in.ctx.Err() != nil:
	case errors.Is(err, watch.ErrEnded), errors.Is(err, io.EOF):
		if events == 0 && r.in.clock.Now().Sub(began) < time.Second {
			r.fail("watch", errors.New("the watch ended within a second without an event"))
		}
	case watch.IsGone(err):
		r.watching = false
		r.report("watch", err)
	case watch.IsTooManyRequests(err), errors.Is(err, syscall.ECONNREFUSED):
		r.fail("watch", err)
	default:
		r.relist("watch", err)
	}
}

// stop stops a watch, and tells failed where that panics, or ends the goroutine.
func stop[T any](w watch.Interface[T], failed func(error)) {
	if err := guarded("the stop of the source's watch", w.Stop, failed); err != nil {
		failed(err)
	}
}

// take is one event of a watch.
func (r *reflector[T]) take(e watch.Event[T]) error {
	switch e.Type {
	case watch.Error:
		if e.Err == nil {
			return &watch.Status{Code: http.StatusInternalServerError, Message: "an Error event without an error"}
		}
		return e.Err
	case watch.Synced:
		return nil
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark:
	default:
		return fmt.Errorf("an event of type %q is unknown", e.Type)
	}
	if e.Revision == 0 {
		return fmt.Errorf("an event of type %s has no revision", e.Type)
	}
	var key string
	if e.Type != watch.Bookmark {
		var err error
		if key, err = r.keyOf("watch", e.Object); err != nil {
			return err
		}
	}
	r.at.Revision = max(r.at.Revision, e.Revision)
	if h := (held[T]{e, key}); e.Type != watch.Bookmark {
		r.held, r.whole = append(r.held, h), max(r.whole, h.own())
	}
	if r.at.Revision >= r.whole {
		r.give()
	}
	r.commit()
	return nil
}

// give puts the events of what is a whole revision now.
func (r *reflector[T]) give() {
	s := r.in.store
	for i := range r.held {
		e := &r.held[i]
		hash := s.kinds.objects.Hash(e.key)
		switch old := s.known(hash, e.key); {
		case e.repeats(old):
		case e.Type == watch.Deleted:
			s.remove(hash, e.key, r.at)
		default:
			r.in.decoded.Add(1)
			s.put(hash, &Object[T]{Key: e.key, Value: e.Object, Revision: e.own()}, r.at)
		}
	}
	r.drop()
}

// drop forgets the events of a revision: they were given, or a watch that begins at the position repeats them.
func (r *reflector[T]) drop() {
	clear(r.held)
	if r.held, r.whole = r.held[:0], 0; cap(r.held) > 1024 {
		r.held = nil
	}
}

func (r *reflector[T]) report(doing string, err error) {
	err = fmt.Errorf("informer %q: %s: %w", r.in.name, doing, err)
	r.say("could not be "+map[string]string{"list": "listed", "watch": "watched"}[doing], err)
	r.in.report(err)
}

// relist is a failure behind which a list mends what is missing.
func (r *reflector[T]) relist(doing string, err error) {
	r.watching = false
	r.fail(doing, err)
}

// fail reports a failure. The end of the pause is fixed before: OnError may end this goroutine, and who hears of the
// failure may move the clock. Of two failures, such as of a watch and then of its stop, the longer pause holds.
func (r *reflector[T]) fail(doing string, err error) {
	if r.in.ctx.Err() == nil {
		now := r.in.clock.Now()
		if pause := now.Add(max(r.backoff.next(now), watch.RetryAfter(err))); pause.After(r.pause) {
			r.pause = pause
		}
		r.report(doing, err)
	}
}

func (r *reflector[T]) sleep() {
	fired, stop := clocks.TimerAt(r.in.clock, r.pause)
	defer stop()
	select {
	case <-fired:
	case <-r.in.ctx.Done():
	}
	r.pause = time.Time{}
}

// backoff is the state of a Backoff.
type backoff struct {
	Backoff
	now  time.Duration
	last time.Time
	dice func() float64
}

func newBackoff(b Backoff) *backoff {
	if b.Min <= 0 {
		b.Min = 800 * time.Millisecond
	}
	if b.Max <= 0 {
		b.Max = 30 * time.Second
	}
	if b.Reset <= 0 {
		b.Reset = 2 * time.Minute
	}
	return &backoff{Backoff: b, dice: rand.Float64}
}

// next is how long to wait after a failure at a time.
func (b *backoff) next(at time.Time) time.Duration {
	if b.now == 0 || at.Sub(b.last) > b.Reset {
		b.now = b.Min
	} else {
		b.now = min(2*b.now, b.Max)
	}
	b.now = min(b.now, b.Max)
	b.last = at.Add(b.now)
	return b.now/2 + time.Duration(b.dice()*float64(b.now/2))
}

// guarded calls code of the program's. Its panic is an error. Where it ends this goroutine there is nobody to answer to: ended
// is told the error before.
func guarded(what string, f func(), ended func(error)) (err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if why := recover(); why != nil {
			err = &watchcore.Error{Code: watchcore.ErrPanic, Message: fmt.Sprintf("%s panicked: %v\n%s", what, why, debug.Stack())}
			return
		}
		ended(&watchcore.Error{Code: watchcore.ErrPanic, Message: what + " ended its goroutine. It has to return"})
	}()
	f()
	returned = true
	return nil
}

// call calls a source, which may wait for the network, and returns when the context is done even if
// the source does not: what it gives then goes to late. A panic, or the end of the goroutine, is an error.
func call[R any](ctx context.Context, f func(context.Context) (R, error), late func(R)) (R, error) {
	type answer struct {
		result R
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		var a answer
		defer func() { answers <- a }()
		if err := guarded("the source", func() { a.result, a.err = f(ctx) }, func(err error) { a.err = err }); err != nil {
			a.err = err
		}
	}()
	select {
	case a := <-answers:
		return a.result, a.err
	case <-ctx.Done():
		go func() {
			if a := <-answers; a.err == nil && late != nil {
				late(a.result)
			}
		}()
		var none R
		return none, ctx.Err()
	}
}
