package watch

import (
	"context"

	"watchcore/internal/foreign"
)

// ListRequest is what a ListerWatcher is asked to list.
type ListRequest struct {
	Revision uint64 // at this one or a later one; 0 is the newest
	Limit    int    // the most items of a page, of which a source may give more; 0 is all
	Continue string // of the page before; "" begins
}

// Item is one object of a list, with the revision of its last change; 0 where that is not known.
type Item[T any] struct {
	Object   T
	Revision uint64
}

// ListPage is a page of a state.
type ListPage[T any] struct {
	Items    []Item[T]
	Revision uint64 // of the state, the same in each page; 0 only of the empty one of a source where nothing has happened
	Continue string // "" is the last
	// Refused are the keys of objects that are there and cannot be shown, such as those whose values do not decode: what the
	// consumer has of them stays.
	Refused []string
}

// ListerWatcher is a server that can be listed, page by page, and watched from a revision on: the source of a
// [RetryWatcher] and of informer.NewFromSource. Errors that are a [Status] decide what happens. The calls should end with their
// context; one that does not is left alone when its caller is stopped. [ListWatch] makes one of functions.
type ListerWatcher[T any] interface {
	List(ctx context.Context, request ListRequest) (ListPage[T], error)
	// Watch gives what follows a revision: Added, Modified and Deleted with their revisions, and Bookmark. Of a revision that
	// changes several objects all but the last event have a lower Revision (see Event), and its own as ObjectRevision:
	// then an informer shows it whole, and with its last one.
	Watch(ctx context.Context, after uint64) (Interface[T], error)
}

// ListWatch is a ListerWatcher of functions. A source without a ListFunc answers a list with a Status 405, and one without a
// WatchFunc a watch.
type ListWatch[T any] struct {
	ListFunc  func(ctx context.Context, request ListRequest) (ListPage[T], error)
	WatchFunc func(ctx context.Context, after uint64) (Interface[T], error)
}

// List calls ListFunc.
func (l ListWatch[T]) List(ctx context.Context, request ListRequest) (ListPage[T], error) {
	if l.ListFunc == nil {
		return ListPage[T]{}, &Status{Code: 405, Message: "the source cannot be listed. Give its ListWatch a ListFunc"}
	}
	return l.ListFunc(ctx, request)
}

// Watch calls WatchFunc.
func (l ListWatch[T]) Watch(ctx context.Context, after uint64) (Interface[T], error) {
	if l.WatchFunc == nil {
		return nil, &Status{Code: 405, Message: "the source cannot be watched. Give its ListWatch a WatchFunc"}
	}
	return l.WatchFunc(ctx, after)
}

// panicked is a panic of the source: an error 500.
var panicked foreign.Error = func(text string) error { return &Status{Code: 500, Message: text} }
