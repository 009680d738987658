package watch

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/watchcore/watchcore/go/internal/foreign"
	"github.com/watchcore/watchcore/go/internal/listwatch"
)

// GonePolicy says what a [RetryWatcher] does at 410. [StopOnGone], the zero value, and
// [RelistOnGone] make one.
type GonePolicy[T any] struct{ key func(T) string }

// StopOnGone delivers the Error event and ends the watch.
func StopOnGone[T any]() GonePolicy[T] { return GonePolicy[T]{} }

// RelistOnGone lists the source, and delivers the difference to what the consumer has received:
// first Deleted for objects that are gone, with their last known state, then Added, and Modified
// with the old state, in the order of the objects' revisions (Event.ObjectRevision; for a deletion
// the listing's revision, by which the object was gone). Event.Lost of the first one says how many
// revisions were not delivered one by one. The position (Event.Revision) advances with the last
// one, because before that the consumer's state is incomplete.
//
// An object with the revision that was delivered is unchanged, and not delivered again. A listing below the
// position belongs to another history, which may use revisions again: then all its objects are delivered. If
// another history has passed the position, its numbers do not tell it from the former one.
//
// A listing without a revision is a failed attempt, except an empty one at the start, after which
// all events follow.
//
// The watch stores one object for each key that the consumer received. Objects that existed before
// the watch started and never changed were not delivered, so they come as Added. The types and old
// values of all events are relative to that: Modified if the key was delivered before, and, from
// the first list on, Added if it was not.
func RelistOnGone[T any](key func(T) string) GonePolicy[T] { return GonePolicy[T]{key} }

// known is the last delivered state of a key.
type known[T any] struct {
	object   T
	revision uint64
}

// repeats reports whether this event was delivered before the connection was cut inside its
// revision. For Added and Modified, ObjectRevision decides; with only a Revision the event may be
// another change of the same object.
func (r *RetryWatcher[T]) repeats(e Event[T]) bool {
	if r.known == nil || !e.hasObject() {
		return false
	}
	key := r.options.OnGone.key(e.Object)
	old, given := r.known[key]
	if e.Type == Deleted {
		return !given && (r.complete || r.deleted[key])
	}
	return given && e.ObjectRevision != 0 && old.revision == e.ObjectRevision
}

// relative returns the event with the type and the old value relative to the delivered state, if
// that is known.
func (r *RetryWatcher[T]) relative(e Event[T]) Event[T] {
	if r.known == nil || !e.hasObject() {
		return e
	}
	old, given := r.known[r.options.OnGone.key(e.Object)]
	switch {
	case e.Type == Deleted && given && e.FinalStateUnknown:
		e.Object, e.Old, e.HasOld, e.FinalStateUnknown = old.object, old.object, true, false
	case e.Type == Deleted:
	case given:
		e.Type, e.Old, e.HasOld = Modified, old.object, true
	case r.complete:
		var none T
		e.Type, e.Old, e.HasOld = Added, none, false
	}
	return e
}

// remember records a delivered event.
func (r *RetryWatcher[T]) remember(e Event[T]) {
	if r.known == nil || !e.hasObject() {
		return
	}
	if r.deletedAt != e.Revision || r.deleted == nil {
		r.deleted, r.deletedAt = map[string]bool{}, e.Revision
	}
	key := r.options.OnGone.key(e.Object)
	if e.Type == Deleted {
		r.deleted[key] = true
		delete(r.known, key)
		return
	}
	r.known[key] = known[T]{e.Object, cmp.Or(e.ObjectRevision, e.Revision)}
}

// list lists all pages of the newest state, and delivers the difference.
func (r *RetryWatcher[T]) list(action listwatch.Action) listwatch.Input {
	r.relists.Add(1)
	from, listing := r.last.Load(), ListPage[T]{}
	request := ListRequest{Limit: listwatch.PageSize}
	if action.Whole {
		request.Limit = 0
	}
	revision, in := listwatch.Gather(from > 0, func(token string) (int, uint64, string, error) {
		request.Continue = token
		page, err := foreign.Call(r.ctx, panicked, func(ctx context.Context) (ListPage[T], error) {
			return r.source.List(ctx, request)
		}, func(ListPage[T]) {})
		listing.Items, listing.Refused = append(listing.Items, page.Items...), append(listing.Refused, page.Refused...)
		return len(page.Items), page.Revision, page.Continue, err
	})
	if in.Kind != listwatch.Synced {
		return in
	}
	listing.Revision = revision
	r.complete = true
	another := listing.Revision < from
	difference := r.difference(listing, another)
	switch {
	case !r.begun:
		difference = append(difference, Event[T]{Type: Synced})
		r.begun = true
	case another: // the number of lost revisions is unknown, but not 0
		r.carry++
	default:
		r.carry += listing.Revision - from
	}
	for i, e := range difference {
		e.Revision = from
		if i == len(difference)-1 {
			e.Revision = listing.Revision
		}
		if !r.give(e) {
			return in
		}
	}
	r.last.Store(listing.Revision)
	return in
}

// difference compares a listing with the delivered state: first the deletions by key, then the
// others by revision. In another history no object counts as unchanged.
func (r *RetryWatcher[T]) difference(listing ListPage[T], another bool) []Event[T] {
	var puts []Event[T]
	there := make(map[string]bool, len(listing.Items)+len(listing.Refused))
	for _, key := range listing.Refused {
		there[key] = true
	}
	for _, item := range listing.Items {
		key := r.options.OnGone.key(item.Object)
		there[key] = true
		old, given := r.known[key]
		if given && !another && old.revision == item.Revision && item.Revision != 0 {
			continue
		}
		e := Event[T]{Type: Added, Object: item.Object, ObjectRevision: item.Revision}
		if given {
			e.Type, e.Old, e.HasOld = Modified, old.object, true
		}
		puts = append(puts, e)
	}
	slices.SortStableFunc(puts, func(a, b Event[T]) int { return cmp.Compare(a.ObjectRevision, b.ObjectRevision) })
	var all []Event[T]
	for _, key := range slices.Sorted(maps.Keys(r.known)) {
		if !there[key] {
			old := r.known[key].object
			all = append(all, Event[T]{Type: Deleted, Object: old, Old: old, HasOld: true, ObjectRevision: listing.Revision})
		}
	}
	return append(all, puts...)
}
