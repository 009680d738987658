package watch

import (
	"context"
	"errors"
	"fmt"
	"iter"
)

// EventType is the kind of an event. Its values are those of Kubernetes' watch protocol.
type EventType string

// The types of events.
const (
	// Added means that the object is new to this watch. Event.Object is its state.
	Added EventType = "ADDED"
	// Modified means that the object changed. Event.Object is its new state, Event.Old the former
	// one if it is known.
	Modified EventType = "MODIFIED"
	// Deleted means that the object is gone. Event.Object is its last known state, or has only its
	// key (FinalStateUnknown).
	Deleted EventType = "DELETED"
	// Synced means that all objects that existed when the watch started have been delivered. Synced has
	// no object.
	Synced EventType = "SYNCED"
	// Bookmark carries only a position. A watch that starts after it neither repeats nor misses an event.
	Bookmark EventType = "BOOKMARK"
	// Error ends the watch. Event.Err is the reason, usually a *Status.
	Error EventType = "ERROR"
)

// Event is one event of a watch. Write its fields with their names, because fields are added.
type Event[T any] struct {
	// Type says which of the other fields are meaningful.
	Type EventType
	// Object is the new state of Added and Modified, and the last known one of Deleted.
	Object T
	// Old is the previous state if HasOld is set.
	Old    T
	HasOld bool
	// FinalStateUnknown is set in a Deleted event whose last state is unknown, because its value could not be
	// decoded: Object has only its key. It corresponds to client-go's DeletedFinalStateUnknown.
	FinalStateUnknown bool
	// Revision is the position after this event: a watch that starts after it continues with the
	// next event. 0 if the source has no positions.
	Revision uint64
	// ObjectRevision is the revision of the change itself (of a deletion, the deletion's) if it
	// differs from Revision. If a revision changes several objects, the source gives all but its
	// last event a lower Revision, because a watch that resumes inside the revision must repeat it.
	// 0 means the same as Revision, or unknown.
	ObjectRevision uint64
	// Lost is the number of events, or revisions, directly before this one that this consumer did
	// not get one by one. Lost is normally 0.
	Lost uint64
	// Err is set in an event of type Error.
	Err error
}

// hasObject reports whether the event is about an object.
func (e *Event[T]) hasObject() bool {
	return e.Type == Added || e.Type == Modified || e.Type == Deleted
}

// String returns the type, the revision, the number of lost events, and the object as fmt prints it.
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
// The producer ends the stream by closing the channel; after a failure it sends an event of type
// Error first. The consumer calls Stop when it wants no more events, also if it never read: any
// number of times, from any goroutine. Stop does not wait. Events that are in flight may still be
// read until the channel is closed, but need not be.
type Interface[T any] interface {
	Stop()
	ResultChan() <-chan Event[T]
}

// Puller is a watch that returns its next event without a channel. Every watch that this package
// makes from another one, and those of a Broadcaster, are pullers: until ResultChan is called they
// have no goroutine, unless their documentation says so.
type Puller[T any] interface {
	Interface[T]
	// Next waits for the next event. Its error is ErrEnded after the last event, or the context's;
	// in the latter case no event is lost, and the next call continues.
	Next(ctx context.Context) (Event[T], error)
}

// ErrEnded is returned by Next after the last event: the watch was stopped, its source has ended,
// or its last event was of type Error. No event follows.
var ErrEnded = errors.New("the watch has ended: its last event was taken")

// ErrStopped is returned by the methods of a fake after its Stop: the event was not sent.
var ErrStopped = errors.New("the watch was stopped: the event was not sent")

// Next takes the next event of any watch: by its own Next method if it has one, otherwise from its
// channel. The errors are those of [Puller].
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

// nextUntil is Next for a watch derived from w. After gone is closed, which means that the derived
// watch was stopped, it takes available events without waiting. A puller's own Stop ends its Next,
// but a channel may stay open.
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

// All iterates over the events of w until w ends or the context is done. Leaving the loop does not
// stop the watch.
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
