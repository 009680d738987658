package informer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"sync"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/clocks"
	"github.com/watchcore/watchcore/go/internal/foreign"
	"github.com/watchcore/watchcore/go/internal/listwatch"
	"github.com/watchcore/watchcore/go/watch"
)

// DefaultPageSize is the default of Options.PageSize: listwatch.PageSize, in numbers for the reader of the documentation.
const DefaultPageSize = 500

// NewFromSource makes an informer of a source that can be listed and watched, and starts it. key
// returns the key of an object; it must not change.
//
// The informer lists all pages, publishes the first state, and delivers the difference to later
// lists, deletions first. Then it watches from that revision on. The section "List, watch, resume"
// of docs/internals/toolkit.md says which error leads to another watch, which to another list, and
// after which delay (there the informer is a mirror). Only Stop ends it.
//
// A revision is known to be whole after an event or a Bookmark above it, a Bookmark of it, or an
// event whose Revision is that revision if an earlier event of the same revision
// (Event.ObjectRevision) had a lower Revision. An event whose Revision equals its ObjectRevision is
// no proof by itself, so if a watch ends there, the next watch starts at the revision before:
// events that were delivered already come again and are ignored.
//
// Each failure is reported to Options.OnError. If the source, its watch or key panics or ends the goroutine
// that calls it, that counts as an error 500. A list that has a key twice, or an object above the list's
// revision, counts as failed. WaitUntil reaches a revision when a bookmark or a change of the source does. A
// revision is published whole if the source sets Event.ObjectRevision. If several events have the same
// Revision without it, the first one already shows that revision, and the others follow.
//
// An event that is not newer than the stored object changes nothing. If a source sets no
// ObjectRevision, an event at the revision of the stored object may still be a change, and is
// delivered unless its value is equal.
func NewFromSource[T any](source watch.ListerWatcher[T], key func(T) string, options Options[T]) (*Informer[T], error) {
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
	b := options.Backoff
	r := &reflector[T]{in: in, source: source, key: key, page: options.PageSize,
		machine: listwatch.NewMirror(listwatch.Backoff{Min: b.Min, Max: b.Max, Reset: b.Reset, Dice: rand.Float64})}
	if r.page == 0 {
		r.page = DefaultPageSize
	}
	in.start(r)
	return in, nil
}

// reflector fills a store from a ListerWatcher. Fields that mu does not protect belong to its goroutine.
type reflector[T any] struct {
	in      *Informer[T]
	source  watch.ListerWatcher[T]
	key     func(T) string
	page    int
	machine *listwatch.Machine
	action  listwatch.Action // the machine's last order; the zero action starts

	at      watchcore.Position
	behind  uint64    // the revisions up to here are known to be whole: a watch starts after it
	newest  uint64    // the newest revision that was known when the watch was requested
	from    uint64    // the revision after which the watch starts
	reached uint64    // the newest revision that the open watch has shown
	marked  uint64    // the revision of which an event had a lower Revision: the source marks the last event of a revision
	held    []held[T] // events of a revision that is not complete yet
	whole   uint64    // the highest revision in held; held is complete when the position reaches it
	owed    bool      // changes were put into the store and are not committed yet

	mu     sync.Mutex
	does   string
	failed error
}

// panicked makes the error for a panic of the program's code.
var panicked foreign.Error = func(text string) error { return &watchcore.Error{Code: watchcore.ErrPanic, Message: text} }

// held is an event with its object's key.
type held[T any] struct {
	watch.Event[T]
	key string
	old bool // its revision is below one that had arrived earlier
}

// own returns the revision of the change, as far as it is known.
func (e *held[T]) own() uint64 { return cmp.Or(e.ObjectRevision, e.Revision) }

// repeats reports whether an event repeats the stored object's state.
func (e *held[T]) repeats(old *Object[T]) bool {
	switch own := e.own(); {
	case old == nil || old.Revision < own:
		return false
	case e.Type == watch.Deleted:
		return old.Revision > own
	case old.Revision > own || e.ObjectRevision != 0:
		return true
	}
	// Only the position is known, and the object may have been changed again by a revision after
	// it, of which more is to come. An additional update is harmless, a lost change is not.
	return isEqual(&old.Value, &e.Object)
}

func (r *reflector[T]) say(doing string, failed error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.does = doing
	if failed != nil {
		r.failed = failed
	}
}

func (r *reflector[T]) explain() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != nil {
		return fmt.Sprintf("its source %s; its last error was: %v", r.does, r.failed)
	}
	return fmt.Sprintf("its source %s, and nothing has come", r.does)
}

func (r *reflector[T]) await(context.Context, uint64) error { return nil }

// run executes the machine's actions. All state is in the struct: the program's code may end this
// goroutine, and a new one then continues.
func (r *reflector[T]) run() error {
	for r.in.ctx.Err() == nil {
		switch {
		case r.owed: // an index's function has ended the previous goroutine
			r.commit()
		case r.action.Err != nil:
			err := r.action.Err
			r.action.Err = nil
			r.in.report(err)
		case r.action.Do == listwatch.List:
			r.list()
		case r.action.Do == listwatch.Watch:
			r.watch()
		case r.action.Do == listwatch.Read: // reading the watch has ended the previous goroutine
			r.ended(watch.ErrEnded)
		case clocks.SleepUntil(r.in.ctx, r.in.clock, r.action.Until):
			r.step(listwatch.Input{Kind: listwatch.Due})
		}
	}
	return r.in.stopped()
}

// step gives the machine the result of its last action. step is called before the error is reported, because
// OnError may end this goroutine, and a test that sees the report may then advance the clock.
func (r *reflector[T]) step(in listwatch.Input) {
	doing := "watch"
	if r.machine.Attempt() == listwatch.List {
		doing = "list"
	}
	in.RetryAfter = watch.RetryAfter(in.Err)
	if r.action = r.machine.Step(r.in.clock.Now(), in); r.action.Err != nil {
		r.action.Err = fmt.Errorf("informer %q: %s: %w", r.in.name, doing, r.action.Err)
		r.say("could not be "+doing+"ed", r.action.Err)
	}
}

// commit publishes the changes that were put into the store.
func (r *reflector[T]) commit() {
	r.owed = true
	if id := r.in.goroutine.Load(); r.in.HasSynced() {
		r.in.store.commit(id, r.at)
	} else {
		r.in.store.complete(id, r.at)
	}
	r.owed = false
}

// list lists all pages, and publishes the difference.
func (r *reflector[T]) list() {
	r.say("is being listed", nil)
	var items []watch.Item[T]
	refused := map[string]bool{}
	request := watch.ListRequest{Limit: max(r.page, 0), Revision: r.at.Revision}
	if r.action.Newest {
		request.Revision = 0
	}
	if r.action.Whole {
		request.Limit = 0
	}
	revision, in := listwatch.Gather(r.at.Revision > 0, func(token string) (int, uint64, string, error) {
		request.Continue = token
		page, err := foreign.Call(r.in.ctx, panicked, func(ctx context.Context) (watch.ListPage[T], error) {
			return r.source.List(ctx, request)
		}, func(watch.ListPage[T]) {})
		items = append(items, page.Items...)
		for _, key := range page.Refused {
			refused[key] = true
		}
		return len(page.Items), page.Revision, page.Continue, err
	})
	var objects map[string]*Object[T]
	if in.Kind == listwatch.Synced {
		var err error
		if objects, err = r.objects(items, revision); err != nil {
			in = listwatch.Input{Kind: listwatch.Failed, Err: err}
		}
	}
	if r.in.ctx.Err() != nil {
		return
	}
	if r.step(in); in.Kind == listwatch.Synced {
		r.replace(objects, refused, revision)
	}
}

// objects returns the objects of a list by key.
func (r *reflector[T]) objects(items []watch.Item[T], revision uint64) (map[string]*Object[T], error) {
	objects := make(map[string]*Object[T], len(items))
	for _, item := range items {
		key, err := r.keyOf(item.Object, func(err error) { r.step(listwatch.Input{Kind: listwatch.Failed, Err: err}) })
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

// keyOf returns the key of an object. keyOf calls ended if the function for keys ends the goroutine.
func (r *reflector[T]) keyOf(object T, ended func(error)) (key string, err error) {
	err = panicked.Guard("the function for keys", func() { key = r.key(object) }, ended)
	return key, err
}

// replace makes the listed state the store's state. If a listed object has no revision, the stored
// object stays if the values are equal; otherwise the new object gets the list's revision. Stored
// objects with refused keys stay.
func (r *reflector[T]) replace(listed map[string]*Object[T], refused map[string]bool, revision uint64) {
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
		if listed[old.Key] == nil && !refused[old.Key] {
			s.remove(s.kinds.objects.Hash(old.Key), old.Key, r.at)
		}
	}
	for _, o := range slices.SortedFunc(maps.Values(listed), byRevision) {
		hash := s.kinds.objects.Hash(o.Key)
		old := s.known(hash, o.Key)
		// Revisions of two histories cannot be compared. After this list all objects are of one history.
		if old != nil && !another && (old.Revision == o.Revision || o.Revision == 0 && isEqual(&old.Value, &o.Value)) {
			continue
		}
		o.Revision = cmp.Or(o.Revision, revision)
		r.in.decoded.Add(1)
		s.put(hash, o, r.at)
	}
	r.commit()
}

// byRevision orders objects by revision, and those of one revision by key.
func byRevision[T any](a, b *Object[T]) int {
	return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Key, b.Key))
}

// isEqual compares values if their type is comparable.
func isEqual[T any](a, b *T) bool {
	return reflect.ValueOf(a).Elem().Comparable() && any(*a) == any(*b)
}

// watch opens a watch and reads it to its end.
func (r *reflector[T]) watch() {
	r.say("is being watched", nil)
	r.drop()
	r.newest, r.from, r.reached = r.at.Revision, r.behind, r.behind
	r.ended(r.read())
}

// ended handles the end of a watch, once: the watch may end the goroutine that reads it, and then
// the one that stops it.
func (r *reflector[T]) ended(err error) {
	isOpen := r.action.Do == listwatch.Read
	if !isOpen && r.action.Do != listwatch.Watch || r.in.ctx.Err() != nil {
		return
	}
	in := listwatch.Input{Kind: listwatch.Failed, Err: err}
	switch {
	case err == nil:
		in = listwatch.Input{Kind: listwatch.Cut, Err: listwatch.ErrNoWatch}
	case !isOpen || !errors.Is(err, watch.ErrEnded) && !listwatch.IsEndOfStream(err):
	case len(r.held) > 0: // the next watch repeats the incomplete revision
		in = listwatch.Input{Kind: listwatch.Cut, Err: listwatch.ErrInside}
	case r.reached < r.newest: // it started inside a revision, which should have come again
		in = listwatch.Input{Kind: listwatch.WentBack, Err: misfit("revision %d was seen, and the source says that it is at %d", r.newest, r.reached)}
	default:
		in = listwatch.Input{Kind: listwatch.Ended}
	}
	r.drop()
	if r.at.Revision > r.newest {
		r.step(listwatch.Input{Kind: listwatch.Newer})
	}
	r.step(in)
}

// read opens a watch, and handles its events until it ends. read returns the reason, or nil if there
// was no watch.
func (r *reflector[T]) read() error {
	w, err := foreign.Call(r.in.ctx, panicked, func(ctx context.Context) (watch.Interface[T], error) { return r.source.Watch(ctx, r.from) },
		func(late watch.Interface[T]) {
			if late != nil {
				r.stop(late, r.in.report)
			}
		})
	if err != nil || w == nil {
		return err
	}
	r.step(listwatch.Input{Kind: listwatch.Opened})
	defer r.stop(w, r.ended)
	for err == nil {
		var e watch.Event[T]
		if bad := panicked.Guard("the source's watch", func() { e, err = watch.Next(r.in.ctx, w) }, r.ended); bad != nil {
			err = bad
		}
		if err == nil {
			err = r.handleEvent(e)
		}
	}
	return err
}

// stop stops a watch. A panic is only reported. stop calls ended if the stop ends the goroutine.
func (r *reflector[T]) stop(w watch.Interface[T], ended func(error)) {
	if err := panicked.Guard("the stop of the source's watch", w.Stop, ended); err != nil {
		r.in.report(err)
	}
}

// handleEvent handles one event of a watch.
func (r *reflector[T]) handleEvent(e watch.Event[T]) error {
	switch e.Type {
	case watch.Error:
		if e.Err == nil {
			return errors.New("an Error event without an error")
		}
		return e.Err
	case watch.Synced: // no initial state was requested, so this is a Bookmark if it has a revision
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
		if e.Revision < r.from {
			// A server restored from a backup may accept a watch in its future: no events would
			// come until it gets there.
			return misfit("the watch begins behind %d, and the source says that it is at %d", r.from, e.Revision)
		}
		r.behind = max(r.behind, e.Revision)
	} else {
		key, err := r.keyOf(e.Object, r.ended)
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

// prove advances the revision at which a watch starts to the one that an event proves to be whole.
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

// misfit returns an error 410, upon which the machine lists: a list is correct whatever came before.
func misfit(format string, args ...any) error {
	return &watch.Status{Code: http.StatusGone, Message: fmt.Sprintf(format, args...)}
}

// give puts the held events of a complete revision into the store. An event of an old revision is
// an error, unless the stored object is already as the event says or newer: everything up to the
// position was delivered before.
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

// drop discards the held events: they were put into the store, or the next watch repeats them.
func (r *reflector[T]) drop() {
	clear(r.held)
	if r.held, r.whole = r.held[:0], 0; cap(r.held) > 1024 {
		r.held = nil
	}
}
