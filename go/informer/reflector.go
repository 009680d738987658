package informer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"time"

	"watchcore"
	"watchcore/internal/clocks"
	"watchcore/internal/verdict"
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

// DefaultPageSize is Options.PageSize where none is given.
const DefaultPageSize = 500

// NewFromSource makes an informer of anything that can be listed and watched, and starts it. key says
// under which key an object is kept; it must not change.
//
//	| state    | input                                      | what happens                                   | next                         |
//	| -------- | ------------------------------------------ | ---------------------------------------------- | ---------------------------- |
//	| List     | all pages, revision R                      | the first is the state; later ones give the    | Watch(R)                     |
//	|          |                                            | difference, deletions first                    |                              |
//	|          | 410 at a later page, pages that have no    | once at once, without pages                    | List                         |
//	|          | end or are of several revisions            |                                                |                              |
//	|          | 410, 504                                   | once at once, without a revision, and so until | List                         |
//	|          |                                            | a list succeeds                                |                              |
//	|          | any other error, no revision               | the backoff                                    | List                         |
//	| Watch(R) | Added, Modified, Deleted with a revision   | R moves with what is proven whole; given when  | Watch(R)                     |
//	|          |                                            | the position has reached its own revision      |                              |
//	|          | Bookmark, Synced with a revision           | R moves                                        | Watch(R)                     |
//	|          | the end, io.EOF, with a newer revision or  |                                                | Watch(R)                     |
//	|          | after a second                             |                                                |                              |
//	|          | the end otherwise, or inside a revision;   | the backoff                                    | Watch(R); the third in a row |
//	|          | no watch                                   |                                                | without a newer one: List    |
//	|          | 410, events that do not fit, a Bookmark    | at once where the last list that came so is    | List                         |
//	|          | below R                                    | 30 s ago, else the backoff                     |                              |
//	|          | 429, 503, no connection                    | the backoff, or what Retry-After asks for      | Watch(R)                     |
//	|          | any other 5xx, a panic of the source       | the backoff, or what Retry-After asks for      | Watch(R); the third in a row |
//	|          |                                            |                                                | without a newer one: List    |
//	|          | any other error, no revision, unknown type | the backoff                                    | List                         |
//	| any      | Stop                                       |                                                | end                          |
//
// What proves that a revision is whole: an event or a Bookmark above it, a Bookmark of it, and its own Revision where an event
// before it in the same revision (Event.ObjectRevision) had a lower one. An event whose Revision is its own proves nothing
// by itself, so a watch that ends there is opened at the revision before: what was given comes again, and is no event.
//
// Each failure is reported to Options.OnError. A panic of the source, of its watch or of key, or one that ends the goroutine which
// calls it, is an error 500. A list that has a key twice, or an object above its own revision, has failed. WaitUntil works where the source's bookmarks, or
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
	behind   uint64    // the revisions up to here are proven whole: a watch is opened behind it
	reached  uint64    // the newest revision that the open watch has said to be there
	marked   uint64    // the revision of which an event had a lower position: the source says which one is its last
	held     []held[T] // events of a revision of which more is to come
	whole    uint64    // the highest revision of these: where the position is there, nothing more is
	watching bool      // or it is to list
	anew     bool      // the next list is without a revision
	owed     bool      // what was put is not committed yet
	pause    time.Time // until then nothing else; the zero time: there is none
	relisted time.Time // when a 410 has last led to a list

	fruitless verdict.Fruitless // watches in a row without a newer revision

	mu     sync.Mutex
	doing  string
	failed error
}

// held is an event with its object's key.
type held[T any] struct {
	watch.Event[T]
	key string
	old bool // it is of a revision below one that had arrived before it
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
	return isEqual(&old.Value, &e.Object)
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
	for whole := false; ; {
		if r.anew {
			request.Revision = 0
		}
		objects, revision, err := r.listed(request)
		if err == nil {
			r.anew, r.watching = false, true
			r.fruitless.Reset()
			r.replace(objects, revision)
			return
		}
		var broken *brokenPages
		switch {
		case errors.As(err, &broken) && !whole:
			whole, request.Limit = true, 0
		case lacksRevision(err) && !r.anew:
			r.anew = true
			r.report("list", err)
		default:
			r.fail("list", err)
			return
		}
	}
}

// listed is what a request and its pages give.
func (r *reflector[T]) listed(request ListRequest) (objects map[string]*Object[T], revision uint64, err error) {
	var all pages[T]
	for {
		page, err := call(r.in.ctx, func(ctx context.Context) (ListPage[T], error) { return r.source.List(ctx, request) }, nil)
		if err != nil && watch.IsGone(err) && request.Continue != "" { // the state of the first page is gone
			err = &brokenPages{err}
		}
		if err == nil {
			err = all.add(page)
		}
		if err != nil {
			return nil, 0, err
		}
		if request.Continue = page.Continue; request.Continue == "" {
			break
		}
	}
	if all.revision == 0 && (r.at.Revision > 0 || len(all.items) > 0) {
		return nil, 0, errors.New("the list has no revision: a watch cannot begin behind it")
	}
	objects, err = r.objects(all.items, all.revision)
	return objects, all.revision, err
}

// lacksRevision: the list failed because the source does not have the revision that it was to be of.
func lacksRevision(err error) bool {
	s, coded := watch.StatusOf(err)
	return coded && verdict.LacksRevision(s.Code)
}

// objects are those of a list, by their keys.
func (r *reflector[T]) objects(items []watch.Item[T], revision uint64) (map[string]*Object[T], error) {
	objects := make(map[string]*Object[T], len(items))
	for _, item := range items {
		key, err := r.keyOf(item.Object, func(err error) { r.fail("list", err) })
		switch {
		case err != nil:
			return nil, err
		case item.Revision > revision:
			return nil, fmt.Errorf("the list of revision %d has %q of revision %d", revision, key, item.Revision)
		case objects[key] != nil:
			return nil, fmt.Errorf("the list has %q twice", key)
		}
		objects[key] = &Object[T]{Key: key, Value: item.Object, Revision: item.Revision}
	}
	return objects, nil
}

// keyOf is the key of an object; ended is told where the function for keys ends the goroutine.
func (r *reflector[T]) keyOf(object T, ended func(error)) (key string, err error) {
	err = guarded("the function for keys", func() { key = r.key(object) }, ended)
	return key, err
}

// replace makes the listed state the store's. A listed object that does not say its revision is the one that is there where the
// values are equal; otherwise it has that of the list.
func (r *reflector[T]) replace(listed map[string]*Object[T], revision uint64) {
	s := r.in.store
	epoch := max(r.at.Epoch, 1)
	another := revision < r.at.Revision
	if another {
		epoch++
	}
	r.at, r.behind = watchcore.Position{Epoch: epoch, Revision: revision}, revision
	if r.in.HasSynced() {
		r.in.resyncs.Add(1)
	}
	for old := range s.work.objects.All() {
		if listed[old.Key] == nil {
			s.remove(s.kinds.objects.Hash(old.Key), old.Key, r.at)
		}
	}
	for _, o := range slices.SortedFunc(maps.Values(listed), byRevision) {
		hash := s.kinds.objects.Hash(o.Key)
		old := s.known(hash, o.Key)
		// Revisions of two histories say nothing about each other. Behind this all objects are of one.
		if old != nil && !another && (old.Revision == o.Revision || o.Revision == 0 && isEqual(&old.Value, &o.Value)) {
			continue
		}
		o.Revision = cmp.Or(o.Revision, revision)
		r.in.decoded.Add(1)
		s.put(hash, o, r.at)
	}
	r.commit()
}

// byRevision orders objects as they came about; those of one revision by key.
func byRevision[T any](a, b *Object[T]) int {
	return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Key, b.Key))
}

// isEqual compares values whose type can be compared.
func isEqual[T any](a, b *T) bool {
	return reflect.ValueOf(a).Elem().Comparable() && any(*a) == any(*b)
}

// watch opens a watch and reads it to its end.
func (r *reflector[T]) watch() {
	r.say("is being watched", nil)
	r.drop()
	a := &attempt{began: r.in.clock.Now(), newest: r.at.Revision, behind: r.behind}
	r.reached = a.behind
	if err := r.read(a); r.in.ctx.Err() == nil {
		r.ended(a, err)
	}
}

// attempt is what was known when a watch was asked for. A server may answer the request with its first event, so the time
// until its answer is a part of the watch's.
type attempt struct {
	began          time.Time
	newest, behind uint64 // the newest revision, and the one that the watch begins behind
	over           bool   // ended has seen to it: a watch may end the goroutine that reads it, and then the one that stops it
}

// ended is what follows a watch that has ended by an error.
func (r *reflector[T]) ended(a *attempt, err error) {
	if a.over {
		return
	}
	a.over = true
	inside := len(r.held) > 0 // of a revision of which more was to come; the next watch brings it again
	r.drop()
	if r.at.Revision > a.newest {
		r.fruitless.Reset()
	}
	if errors.Is(err, watch.ErrEnded) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		switch {
		case r.at.Revision > a.newest:
		case inside:
			r.fruitlessWatch(errors.New("the watch ended inside a revision"))
		case r.in.clock.Now().Sub(a.began) < verdict.Short:
			r.fruitlessWatch(errors.New("the watch ended within a second without a change"))
		case r.reached < a.newest: // it began inside a revision, which had to come again
			r.gone(misfit("revision %d was seen, and the source says that it is at %d", a.newest, r.reached))
		}
		return
	}
	switch verdictOf(err) {
	case verdict.Gone:
		r.gone(err)
	case verdict.Busy:
		r.fail("watch", err)
	case verdict.Failed:
		r.fruitlessWatch(err)
	default: // a list mends what is missing
		r.watching = false
		r.fail("watch", err)
	}
}

// verdictOf is what an error of a watch says about its revision. A panic is as an error 500.
func verdictOf(err error) verdict.Verdict {
	var connection net.Error
	switch s, coded := watch.StatusOf(err); {
	case errors.Is(err, watchcore.ErrPanic):
		return verdict.Failed
	case coded:
		return verdict.Of(s.Code)
	case errors.Is(err, syscall.ECONNREFUSED), errors.As(err, &connection):
		return verdict.Busy
	}
	return verdict.Wrong
}

// read opens a watch, and takes its events until it ends: why it did.
func (r *reflector[T]) read(a *attempt) error {
	w, err := call(r.in.ctx, func(ctx context.Context) (watch.Interface[T], error) { return r.source.Watch(ctx, a.behind) },
		func(late watch.Interface[T]) {
			if late != nil {
				r.stop(late, r.in.report)
			}
		})
	if err == nil && w == nil {
		err = &watch.Status{Code: 500, Message: "the source gave neither a watch nor an error"}
	}
	if err != nil {
		return err
	}
	ended := func(err error) { r.ended(a, err) }
	defer r.stop(w, ended)
	for err == nil {
		var e watch.Event[T]
		if panicked := guarded("the source's watch", func() { e, err = watch.Next(r.in.ctx, w) }, ended); panicked != nil {
			err = panicked
		}
		if err == nil {
			err = r.take(e, a)
		}
	}
	return err
}

// gone: the source has another history, or not enough of this one. A list mends it, at once unless the last one came so a
// moment ago: a source that says so of what it has just listed would be listed without a pause.
func (r *reflector[T]) gone(err error) {
	r.watching = false
	now := r.in.clock.Now()
	calm := r.relisted.IsZero() || now.Sub(r.relisted) >= verdict.RelistCalm
	if r.relisted = now; !calm {
		r.relisted = r.backOff(err)
	}
	r.report("watch", err)
}

// fruitlessWatch: a watch has brought nothing new. The third in a row leads to a list.
func (r *reflector[T]) fruitlessWatch(err error) {
	if r.fruitless.OneMore() {
		r.fruitless.Reset()
		r.watching = false
	}
	r.fail("watch", err)
}

// stop stops a watch. A panic is reported, and costs nothing else; ended is told where it ends the goroutine.
func (r *reflector[T]) stop(w watch.Interface[T], ended func(error)) {
	if err := guarded("the stop of the source's watch", w.Stop, ended); err != nil {
		r.in.report(err)
	}
}

// take is one event of a watch.
func (r *reflector[T]) take(e watch.Event[T], a *attempt) error {
	switch e.Type {
	case watch.Error:
		if e.Err == nil {
			return errors.New("an Error event without an error")
		}
		return e.Err
	case watch.Synced: // nobody has asked for a state: it is a Bookmark, where it has a revision
		if e.Type = watch.Bookmark; e.Revision == 0 {
			return nil
		}
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark:
	default:
		return fmt.Errorf("an event of type %q is unknown", e.Type)
	}
	if e.Revision == 0 {
		return fmt.Errorf("an event of type %s has no revision", e.Type)
	}
	r.reached = max(r.reached, e.Revision, e.ObjectRevision)
	if e.Type == watch.Bookmark {
		if e.Revision < a.behind {
			// A restored backup that lets a watch begin in its future: nothing would come until it is there.
			return misfit("the watch begins behind %d, and the source says that it is at %d", a.behind, e.Revision)
		}
		r.behind = max(r.behind, e.Revision)
	} else {
		key, err := r.keyOf(e.Object, func(err error) { r.ended(a, err) })
		if err != nil {
			return err
		}
		h := held[T]{Event: e, key: key}
		h.old = h.own() < r.at.Revision
		r.held, r.whole = append(r.held, h), max(r.whole, h.own())
		r.prove(&h)
	}
	r.at.Revision = max(r.at.Revision, e.Revision)
	if r.at.Revision >= r.whole {
		if err := r.give(); err != nil {
			return err
		}
	}
	r.commit()
	return nil
}

// prove moves the place where a watch is opened to what an event proves to be whole.
func (r *reflector[T]) prove(h *held[T]) {
	own := h.own()
	if h.Revision < own {
		r.marked = own
	}
	if h.Revision == own && r.marked != own {
		r.behind = max(r.behind, own-1)
	} else {
		r.behind = max(r.behind, h.Revision)
	}
}

// misfit is as 410: a list is right whatever came before.
func misfit(format string, args ...any) error {
	return &watch.Status{Code: http.StatusGone, Message: fmt.Sprintf(format, args...)}
}

// give puts the events of what is a whole revision now. One of an old revision does not fit, unless the object is as it says or
// newer: everything up to there was said to have been given.
func (r *reflector[T]) give() error {
	s := r.in.store
	for i := range r.held {
		e := &r.held[i]
		hash := s.kinds.objects.Hash(e.key)
		switch old := s.known(hash, e.key); {
		case e.repeats(old), e.old && e.Type == watch.Deleted && old == nil:
		case e.old:
			return misfit("an event %s of revision %d does not fit what is there, at %d", e.Type, e.own(), r.at.Revision)
		case e.Type == watch.Deleted:
			s.remove(hash, e.key, r.at)
		default:
			r.in.decoded.Add(1)
			s.put(hash, &Object[T]{Key: e.key, Value: e.Object, Revision: e.own()}, r.at)
		}
	}
	r.drop()
	return nil
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

// fail reports a failure, behind which there is a pause.
func (r *reflector[T]) fail(doing string, err error) {
	if r.in.ctx.Err() == nil {
		r.backOff(err)
		r.report(doing, err)
	}
}

// backOff sets the pause, and says when it ends. It comes before the report: OnError may end this goroutine, and who hears of
// the failure may move the clock. Of two failures, such as of a watch and then of its stop, the longer pause holds.
func (r *reflector[T]) backOff(err error) time.Time {
	now := r.in.clock.Now()
	if pause := now.Add(r.backoff.next(now, watch.RetryAfter(err))); pause.After(r.pause) {
		r.pause = pause
	}
	return r.pause
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
