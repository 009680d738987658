package watch

import (
	"context"
	"errors"
	"fmt"
	"iter"
)

// EventType is what an event is about. Its values are those of the wire.
type EventType string

// The types of events.
const (
	// Added: the object is new to this watch. Event.Object is its state.
	Added EventType = "ADDED"
	// Modified: the object changed. Event.Object is its new state, Event.Old the former one
	// where it is known.
	Modified EventType = "MODIFIED"
	// Deleted: the object is gone. Event.Object is the last state that is known of it, or its key alone (FinalStateUnknown).
	Deleted EventType = "DELETED"
	// Synced: everything that existed when the watch began has been given. It has no object.
	Synced EventType = "SYNCED"
	// Bookmark: a position, and nothing else. A watch that begins behind it neither repeats
	// nor misses an event.
	Bookmark EventType = "BOOKMARK"
	// Error: the watch ends. Event.Err says why, mostly as a *Status.
	Error EventType = "ERROR"
)

// Event is one event of a watch. Write its fields with their names: fields are added.
type Event[T any] struct {
	// Type says which of the other fields count.
	Type EventType
	// Object is the new state of Added and Modified, the last known one of Deleted.
	Object T
	// Old is the state before, where HasOld is set.
	Old    T
	HasOld bool
	// FinalStateUnknown is set in a Deleted whose last state nobody knows, because its value could not be decoded: Object has
	// its key and nothing else. It is client-go's DeletedFinalStateUnknown.
	FinalStateUnknown bool
	// Revision is the position behind this event: a watch that begins after it goes on with the
	// next one. 0 where the source has no positions.
	Revision uint64
	// ObjectRevision is the revision of the change itself, of a deletion that of the deletion, where it is not Revision: a
	// source whose revisions change several objects gives all but the last of one a lower Revision, because a watch that
	// begins inside of it has to repeat it. 0 is the same as Revision, or not known.
	ObjectRevision uint64
	// Lost is how many events, or revisions, this consumer was not given one by one directly before
	// this one. 0 is the rule.
	Lost uint64
	// Err is set in an event of type Error.
	Err error
}

// hasObject says whether the event is about an object.
func (e *Event[T]) hasObject() bool {
	return e.Type == Added || e.Type == Modified || e.Type == Deleted
}

// String is short: the type, the revision, what was lost, and the object as fmt prints it.
func (e Event[T]) String() string {
	text := fmt.Sprintf("%s@%d", e.Type, e.Revision)
	if e.Lost > 0 {
		text += fmt.Sprintf(" (lost %d)", e.Lost)
	}
	switch {
	case e.Err != nil:
		return text + ": " + e.Err.Error()
	case e.hasObject():
		return text + fmt.Sprintf(": %v", e.Object)
	}
	return text
}

// Interface is a watch: a stream of events that can be stopped.
//
// The producer ends the stream by closing the channel; one that fails sends an event of type Error
// before. The consumer calls Stop when it wants no more: also if it never read, any number of
// times, from any goroutine. Stop waits for nobody. What was on its way may still be read until the
// channel is closed, and need not be.
type Interface[T any] interface {
	Stop()
	ResultChan() <-chan Event[T]
}

// Puller is a watch that can be asked for its next event without a channel. Every watch that this
// package makes over another one, and those of a Broadcaster, are pullers: until ResultChan is
// called they have no goroutine, unless they say so.
type Puller[T any] interface {
	Interface[T]
	// Next waits for the next event. Its error is ErrEnded behind the last one, or the
	// context's; by the latter nothing is lost, and the next call goes on.
	Next(ctx context.Context) (Event[T], error)
}

// ErrEnded is the answer of Next behind the last event: the watch was stopped, its source has
// ended, or its last event was of type Error. Ask no more.
var ErrEnded = errors.New("the watch has ended: its last event was taken")

// ErrStopped is the answer of a fake's verb after its Stop: the event went nowhere.
var ErrStopped = errors.New("the watch was stopped: the event was not sent")

// Next takes the next event of any watch: by its own Next where it has one, else from its channel.
// The errors are those of [Puller].
func Next[T any](ctx context.Context, w Interface[T]) (Event[T], error) {
	if p, ok := w.(Puller[T]); ok {
		return p.Next(ctx)
	}
	return receive(ctx, w.ResultChan())
}

func receive[T any](ctx context.Context, c <-chan Event[T]) (Event[T], error) {
	if err := ctx.Err(); err != nil {
		return Event[T]{}, err
	}
	select {
	case e, ok := <-c:
		if !ok {
			return Event[T]{}, ErrEnded
		}
		return e, nil
	case <-ctx.Done():
		return Event[T]{}, ctx.Err()
	}
}

// nextUntil is Next for a watch over w that was stopped when gone is closed: then it takes what w has
// and does not wait for more. A puller's own Stop ends its Next; a channel may stay open.
func nextUntil[T any](ctx context.Context, w Interface[T], gone <-chan struct{}) (Event[T], error) {
	if p, ok := w.(Puller[T]); ok {
		return p.Next(ctx)
	}
	if err := ctx.Err(); err != nil {
		return Event[T]{}, err
	}
	c := w.ResultChan()
	var e Event[T]
	ok := false
	select {
	case e, ok = <-c:
	case <-ctx.Done():
		return e, ctx.Err()
	case <-gone:
		select {
		case e, ok = <-c:
		default:
		}
	}
	if !ok {
		return e, ErrEnded
	}
	return e, nil
}

// All is a watch as a loop: the events of w until it ends or the context is done. To leave the loop
// does not stop the watch.
func All[T any](ctx context.Context, w Interface[T]) iter.Seq[Event[T]] {
	return func(yield func(Event[T]) bool) {
		for {
			e, err := Next(ctx, w)
			if err != nil || !yield(e) {
				return
			}
		}
	}
}
