package watch

import (
	"cmp"
	"context"
	"maps"
	"slices"
)

// Item is one object of a Listing, with the revision of its last change; 0 where that is not known.
type Item[T any] struct {
	Object   T
	Revision uint64
}

// Listing is a state and its revision.
type Listing[T any] struct {
	Items    []Item[T]
	Revision uint64
}

// Lister gives the present state.
type Lister[T any] interface {
	List(ctx context.Context) (Listing[T], error)
}

// ListerFunc is a function as a Lister.
type ListerFunc[T any] func(ctx context.Context) (Listing[T], error)

// List calls the function.
func (f ListerFunc[T]) List(ctx context.Context) (Listing[T], error) { return f(ctx) }

// GonePolicy is what a [RetryWatcher] does at 410. [StopOnGone], the zero value, and [RelistOnGone]
// make one.
type GonePolicy[T any] struct {
	lister Lister[T]
	key    func(T) string
}

// StopOnGone gives the Error event and ends.
func StopOnGone[T any]() GonePolicy[T] { return GonePolicy[T]{} }

// RelistOnGone lists, and gives the difference to what the consumer was given: first Deleted for what is
// gone, with its last known state, then Added, and Modified with the old state, in the order of the
// objects' revisions. Event.Lost of the first one says how many revisions were not given one by
// one. The position (Event.Revision) moves with the last one: before that the state is not whole.
//
// It keeps one object for each key that the consumer was given. What existed before the watch began and
// never changed was not given, so it comes as Added.
func RelistOnGone[T any](lister Lister[T], key func(T) string) GonePolicy[T] {
	return GonePolicy[T]{lister, key}
}

// known is what the consumer was given of a key.
type known[T any] struct {
	object   T
	revision uint64
}

// remember records what was given.
func (r *RetryWatcher[T]) remember(e Event[T]) {
	if r.known == nil || !e.hasObject() {
		return
	}
	key := r.options.OnGone.key(e.Object)
	if e.Type == Deleted {
		delete(r.known, key)
		return
	}
	r.known[key] = known[T]{e.Object, e.Revision}
}

// list is the state List.
func (r *RetryWatcher[T]) list() next {
	r.relists.Add(1)
	listing, err := abandonable(r.ctx, r.options.OnGone.lister.List, func(Listing[T]) {})
	if err != nil {
		return r.failed("list", err)
	}
	difference := r.difference(listing)
	from := r.last.Load()
	switch {
	case from == 0:
		difference = append(difference, change[T]{event: Event[T]{Type: Synced}})
	case listing.Revision < from:
		// Another history: how much is lost is unknown, and something is.
		r.carry++
	default:
		r.carry += listing.Revision - from
	}
	for i, item := range difference {
		e := item.event
		e.Revision = from
		if i == len(difference)-1 {
			e.Revision = listing.Revision
		}
		if !r.give(e) {
			return next{state: stateEnd}
		}
		if e.hasObject() && e.Type != Deleted {
			// Its own revision, which the next listing is compared with.
			r.known[item.key] = known[T]{e.Object, item.revision}
		}
	}
	r.last.Store(listing.Revision)
	return next{state: stateOpen}
}

// change is an event of a difference.
type change[T any] struct {
	event    Event[T]
	key      string
	revision uint64
}

// difference compares a listing with what was given: the deletes by key, then the puts by revision.
func (r *RetryWatcher[T]) difference(listing Listing[T]) []change[T] {
	var puts []change[T]
	there := make(map[string]bool, len(listing.Items))
	for _, item := range listing.Items {
		key := r.options.OnGone.key(item.Object)
		there[key] = true
		old, given := r.known[key]
		if given && old.revision == item.Revision && item.Revision != 0 {
			continue
		}
		e := Event[T]{Type: Added, Object: item.Object}
		if given {
			e.Type, e.Old, e.HasOld = Modified, old.object, true
		}
		puts = append(puts, change[T]{e, key, item.Revision})
	}
	slices.SortStableFunc(puts, func(a, b change[T]) int { return cmp.Compare(a.revision, b.revision) })
	var all []change[T]
	for _, key := range slices.Sorted(maps.Keys(r.known)) {
		if !there[key] {
			old := r.known[key].object
			all = append(all, change[T]{Event[T]{Type: Deleted, Object: old, Old: old, HasOld: true}, key, 0})
		}
	}
	return append(all, puts...)
}
