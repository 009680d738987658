package watch

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrWatchClosed is the answer of Until and its family where the watch ended before the conditions held.
var ErrWatchClosed = errors.New("watch closed before UntilWithoutRetry timeout")

// interrupted is the answer where the context ended the wait.
type interrupted struct{ cause error }

func (i *interrupted) Error() string { return "timed out waiting for the condition" }
func (i *interrupted) Unwrap() error { return i.cause }

// Interrupted says whether a wait was ended by its context and not by what it waited for. errors.Is
// with context.DeadlineExceeded or context.Canceled says which of them it was.
func Interrupted(err error) bool {
	var i *interrupted
	return errors.As(err, &i) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// ConditionFunc says whether an event is what is waited for. An error ends the wait.
type ConditionFunc[T any] func(event Event[T]) (bool, error)

// UntilWithoutRetry takes events of w until each of the conditions has held, one after the other. The
// event for which a condition held is tried on the next one, too. It returns the last event that was
// tried: where all held, its Revision is the position at which they did.
//
// The errors: that of a condition; [ErrWatchClosed] where w ended; one for which [Interrupted] is
// true where the context did. The last event comes with each of them, nil if there was none. The
// conditions see every event, also Synced, Bookmark and Error. w is stopped in any case.
func UntilWithoutRetry[T any](ctx context.Context, w Interface[T], conditions ...ConditionFunc[T]) (*Event[T], error) {
	defer w.Stop()
	var last *Event[T]
	for _, condition := range conditions {
		held := false
		if last != nil {
			var err error
			if held, err = condition(*last); err != nil {
				return last, err
			}
		}
		for !held {
			e, err := Next(ctx, w)
			switch {
			case errors.Is(err, ErrEnded):
				return last, ErrWatchClosed
			case err != nil:
				return last, &interrupted{err}
			}
			last = &e
			if held, err = condition(e); err != nil {
				return last, err
			}
		}
	}
	return last, nil
}

// Until is UntilWithoutRetry over a [RetryWatcher] of source from a revision on: it sees each event
// once and in order, over any number of connections, and ends with an Error event and ErrWatchClosed where the
// source has forgotten the revision. The revision is that of NewRetryWatcher.
func Until[T any](ctx context.Context, initialRevision string, source ListerWatcher[T], conditions ...ConditionFunc[T]) (*Event[T], error) {
	w, err := NewRetryWatcherWithContext(ctx, initialRevision, source)
	if err != nil {
		return nil, err
	}
	return UntilWithoutRetry[T](ctx, w, conditions...)
}

// SyncedSource is what UntilWithSync needs of an informer, or of a cache: S is how its state is read.
type SyncedSource[T, S any] interface {
	// Watch gives the present state as Added events and then what follows. It does not wait for
	// the state to be there.
	Watch(ctx context.Context) (Interface[T], error)
	// WaitForSync waits until the state is there. Its error is the context's, or why there will be none.
	WaitForSync(ctx context.Context) error
	// Store reads the state.
	Store() S
}

// PreconditionFunc says, from the state, whether there is nothing to wait for. An error ends the wait.
type PreconditionFunc[S any] func(store S) (bool, error)

// UntilWithSync waits for the conditions over the state of an informer and what follows it. It
// survives everything that the informer does; of several changes of one object it may see the last only.
//
// With a precondition it first waits until the state is there and asks it: true is (nil, nil) at
// once. The watch is opened before, so that nothing lies between the two. The errors are those of
// UntilWithoutRetry, and that of the precondition.
func UntilWithSync[T, S any](ctx context.Context, source SyncedSource[T, S], precondition PreconditionFunc[S], conditions ...ConditionFunc[T]) (*Event[T], error) {
	w, err := source.Watch(ctx)
	if err != nil {
		return nil, fmt.Errorf("UntilWithSync: unable to watch: %w", err)
	}
	// Once more than UntilWithoutRetry, for what returns before it.
	defer w.Stop()
	if precondition != nil {
		if err := source.WaitForSync(ctx); err != nil {
			return nil, fmt.Errorf("UntilWithSync: unable to sync caches: %w", err)
		}
		held, err := precondition(source.Store())
		if err != nil {
			return nil, err
		}
		if held {
			return nil, nil
		}
	}
	return UntilWithoutRetry(ctx, w, conditions...)
}

// ContextWithOptionalTimeout is context.WithTimeout where a timeout of 0 or less means none.
func ContextWithOptionalTimeout(parent context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return context.WithCancel(parent)
	}
	return context.WithTimeout(parent, timeout)
}
