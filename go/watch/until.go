package watch

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrWatchClosed is returned by Until and its relatives if the watch ended before the conditions held.
var ErrWatchClosed = errors.New("watch closed before UntilWithoutRetry timeout")

// interrupted is returned if the context ended the wait.
type interrupted struct{ cause error }

func (i *interrupted) Error() string { return "timed out waiting for the condition" }
func (i *interrupted) Unwrap() error { return i.cause }

// Interrupted reports whether the context ended a wait before the awaited event came. errors.Is
// with context.DeadlineExceeded or context.Canceled distinguishes the two.
func Interrupted(err error) bool {
	var i *interrupted
	return errors.As(err, &i) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// ConditionFunc reports whether an event fulfils the condition. An error ends the wait.
type ConditionFunc[T any] func(event Event[T]) (bool, error)

// UntilWithoutRetry takes events of w until each of the conditions has held, one after the other.
// The event for which a condition held is also passed to the next condition. The result is the last
// event that was checked: if all conditions held, its Revision is the position at which they did.
//
// The error is that of a condition, [ErrWatchClosed] if w ended or delivered an Error event for which the
// condition did not hold, because no event follows an Error, or one for which [Interrupted] is true if
// the context ended the wait, or w with it. The last event is returned with each of them, nil if there was none. The
// conditions get every event, including Synced, Bookmark and Error. w is stopped in any case.
func UntilWithoutRetry[T any](ctx context.Context, w Interface[T], conditions ...ConditionFunc[T]) (*Event[T], error) {
	defer w.Stop()
	var last *Event[T]
	var tried bool // the last event, on the condition that is waited for
	for held := 0; held < len(conditions); {
		if last == nil || tried {
			e, err := Next(ctx, w)
			switch {
			case errors.Is(err, ErrEnded):
				return last, closed(ctx)
			case err != nil:
				return last, &interrupted{err}
			}
			last = &e
		}
		holds, err := conditions[held](*last)
		switch {
		case err != nil:
			return last, err
		case holds:
			held++
		case last.Type == Error:
			return last, closed(ctx)
		}
		tried = !holds
	}
	return last, nil
}

// closed returns the error of a wait whose watch has ended. A watch that was opened with the context ends
// with it, so a context that is done is the reason.
func closed(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return &interrupted{err}
	}
	return ErrWatchClosed
}

// Until is UntilWithoutRetry over a [RetryWatcher] of source from a revision on: it gets each event
// once and in order, over any number of connections, and ends with an Error event and
// ErrWatchClosed if the source no longer has the revision. The revision is as in NewRetryWatcher.
func Until[T any](ctx context.Context, initialRevision string, source ListerWatcher[T], conditions ...ConditionFunc[T]) (*Event[T], error) {
	w, err := NewRetryWatcherWithContext(ctx, initialRevision, source)
	if err != nil {
		return nil, err
	}
	return UntilWithoutRetry[T](ctx, w, conditions...)
}

// SyncedSource is the interface of an informer, or of a cache, for UntilWithSync. S is the type
// that reads its state.
type SyncedSource[T, S any] interface {
	// Watch delivers the present state as Added events and then the changes. Watch does not wait until
	// the state is complete.
	Watch(ctx context.Context) (Interface[T], error)
	// WaitForSync waits until the state is complete. Its error is the context's, or the reason why
	// it will not be.
	WaitForSync(ctx context.Context) error
	// Store returns a reader of the state.
	Store() S
}

// PreconditionFunc reports, from the state, whether the wait is unnecessary. An error ends the wait.
type PreconditionFunc[S any] func(store S) (bool, error)

// UntilWithSync waits for the conditions over the state of an informer and its changes. It survives all
// interruptions that the informer survives; of several changes of one object it may get only the last.
//
// With a precondition it first waits until the state is complete and calls the precondition: if that returns
// true, the result is (nil, nil) at once. The watch is opened before, so that no change between the two is
// missed. The errors are those of UntilWithoutRetry, and that of the precondition.
func UntilWithSync[T, S any](ctx context.Context, source SyncedSource[T, S], precondition PreconditionFunc[S], conditions ...ConditionFunc[T]) (*Event[T], error) {
	w, err := source.Watch(ctx)
	if err != nil {
		return nil, fmt.Errorf("UntilWithSync: unable to watch: %w", err)
	}
	// This Stop, in addition to that of UntilWithoutRetry, is for the returns before it.
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

// ContextWithOptionalTimeout is context.WithTimeout, except that a timeout of 0 or less means none.
func ContextWithOptionalTimeout(parent context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return context.WithCancel(parent)
	}
	return context.WithTimeout(parent, timeout)
}
