package watch

import (
	"context"

	"github.com/watchcore/watchcore/go/internal/foreign"
)

// ListRequest says what a ListerWatcher should list.
type ListRequest struct {
	Revision uint64 // the state at this revision or later; 0 is the newest
	Limit    int    // the maximum number of items of a page, which a source may exceed; 0 is all
	Continue string // the token of the page before; "" starts
}

// Item is one object of a list, with the revision of its last change, or 0 if that is unknown.
type Item[T any] struct {
	Object   T
	Revision uint64
}

// ListPage is a page of a listed state.
type ListPage[T any] struct {
	Items    []Item[T]
	Revision uint64 // of the state, the same in each page; 0 only for an empty state in which nothing has happened
	Continue string // "" on the last page
	// Refused are the keys of objects that exist and cannot be listed, for example because their
	// values do not decode: the consumer keeps its last state of them.
	Refused []string
}

// ListerWatcher is a server that can be listed, page by page, and watched from a revision on: the
// source of a [RetryWatcher] and of informer.NewFromSource. Errors that are a [Status] decide how
// these continue. The calls should return when their context is done; a call that does not is
// abandoned when its caller is stopped. [ListWatch] makes a ListerWatcher of functions.
type ListerWatcher[T any] interface {
	List(ctx context.Context, request ListRequest) (ListPage[T], error)
	// Watch delivers the changes after a revision: Added, Modified and Deleted with their
	// revisions, and Bookmark. If a revision changes several objects, all but its last event should
	// have a lower Revision (see Event), and their own ObjectRevision: then an informer publishes
	// the revision whole, with its last event.
	Watch(ctx context.Context, after uint64) (Interface[T], error)
}

// ListWatch is a ListerWatcher made of functions. Without a ListFunc, List returns a Status 405;
// without a WatchFunc, Watch does.
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

// panicked makes an error 500 of a panic of the source.
var panicked foreign.Error = func(text string) error { return &Status{Code: 500, Message: text} }
