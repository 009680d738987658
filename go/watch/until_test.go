package watch_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/watch"
)

func isType(expected watch.EventType) watch.ConditionFunc[string] {
	return func(e watch.Event[string]) (bool, error) { return e.Type == expected, nil }
}

func fakeOf(t *testing.T, events ...watch.Event[string]) *watch.RaceFreeFakeWatcher[string] {
	t.Helper()
	f := watch.NewRaceFreeFake[string]()
	for _, e := range events {
		check(t, f.Send(e))
	}
	return f
}

var (
	added    = watch.Event[string]{Type: watch.Added, Object: "foo", Revision: 4}
	modified = watch.Event[string]{Type: watch.Modified, Object: "foo", Revision: 6}
)

func TestUN03UntilInterruptedHasTheLastEvent(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	seen := make(chan struct{})
	go func() { <-seen; cancel() }()
	tested := func(e watch.Event[string]) (bool, error) {
		close(seen)
		return e.Type == watch.Deleted, nil
	}
	last, err := watch.UntilWithoutRetry(ctx, fakeOf(t, added), isType(watch.Added), isType(watch.Added), tested)
	if !watch.Interrupted(err) || !errors.Is(err, context.Canceled) {
		t.Fatalf("%v is no interruption", err)
	}
	want(t, "text", err.Error(), "timed out waiting for the condition")
	want(t, "last", *last, added)
}

// Without a deadline it waits for as long as it takes.
func TestUN04UntilWithoutATimeout(t *testing.T) {
	noLeak(t)
	for _, timeout := range []time.Duration{0, -1} {
		ctx, cancel := watch.ContextWithOptionalTimeout(context.Background(), timeout)
		if _, limited := ctx.Deadline(); limited {
			t.Fatal("a timeout of 0 is none")
		}
		f := watch.NewFake[string]()
		go func() { _ = errors.Join(f.Add("foo"), f.Modify("foo")) }()
		last, err := watch.UntilWithoutRetry(ctx, f, isType(watch.Added), isType(watch.Modified))
		check(t, err)
		want(t, "last", last.Type, watch.Modified)
		cancel()
	}
	ctx, cancel := watch.ContextWithOptionalTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	last, err := watch.UntilWithoutRetry(ctx, fakeOf(t), isType(watch.Added))
	if !watch.Interrupted(err) || !errors.Is(err, context.DeadlineExceeded) || last != nil {
		t.Fatalf("%v, %v", last, err)
	}
}

func TestUntilOverARetryWatcher(t *testing.T) {
	noLeak(t)
	source := watch.ListWatch[string]{WatchFunc: func(_ context.Context, after uint64) (watch.Interface[string], error) {
		f := fakeOf(t)
		for _, e := range []watch.Event[string]{added, modified} {
			if e.Revision > after {
				check(t, f.Send(e))
				break
			}
		}
		f.Stop()
		return f, nil
	}}
	last, err := watch.Until(bounded.Context(t), "3", source, isType(watch.Added), isType(watch.Modified))
	check(t, err)
	want(t, "last", *last, modified)
	_, err = watch.Until(bounded.Context(t), "", source, isType(watch.Added))
	if err == nil {
		t.Fatal("a revision of nothing was accepted")
	}
	gone := watch.ListWatch[string]{WatchFunc: func(context.Context, uint64) (watch.Interface[string], error) {
		return nil, &watch.Status{Code: 410}
	}}
	last, err = watch.Until(bounded.Context(t), "3", gone, isType(watch.Added))
	if err != watch.ErrWatchClosed || last == nil || !watch.IsGone(last.Err) {
		t.Fatalf("%v, %v", last, err)
	}
}

// informer is a state and its watch, which never syncs if synced is nil.
type informer struct {
	state  []string
	synced chan struct{}
	mu     sync.Mutex
	opened *watch.RaceFreeFakeWatcher[string]
}

func (i *informer) Watch(context.Context) (watch.Interface[string], error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.opened = watch.NewRaceFreeFake[string]()
	if i.synced != nil {
		for _, object := range i.state {
			_ = i.opened.Add(object)
		}
	}
	return i.opened, nil
}

func (i *informer) WaitForSync(ctx context.Context) error {
	select {
	case <-i.synced:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (i *informer) Store() []string { return i.state }

func synced(state ...string) *informer {
	i := &informer{state: state, synced: make(chan struct{})}
	close(i.synced)
	return i
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// However it ends, its watch is stopped.
func TestUntilWithSyncStopsItsWatch(t *testing.T) {
	says := func(held bool, err error) watch.PreconditionFunc[[]string] {
		return func([]string) (bool, error) { return held, err }
	}
	for name, row := range map[string]struct {
		i            *informer
		precondition watch.PreconditionFunc[[]string]
	}{
		"no precondition": {&informer{}, nil},
		"no state":        {&informer{}, says(true, nil)},
		"it holds":        {synced("first"), says(true, nil)},
		"it fails":        {synced("first"), says(false, errFive)},
		"it does not":     {synced("first"), says(false, nil)},
	} {
		_, _ = watch.UntilWithSync(soon(t), row.i, row.precondition, isType(watch.Added))
		want(t, name, row.i.opened.IsStopped(), true)
	}
}
