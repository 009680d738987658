package watch_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"watchcore/internal/bounded"
	"watchcore/watch"
)

type object struct {
	name     string
	revision uint64
}

func listing(revision uint64, objects ...object) watch.ListPage[object] {
	l := watch.ListPage[object]{Revision: revision}
	for _, o := range objects {
		l.Items = append(l.Items, watch.Item[object]{Object: o, Revision: o.revision})
	}
	return l
}

// What was gone comes as the difference to what the consumer has: deletes first, with the last state, then
// puts by revision, and the position moves with the last.
func TestRetryWatcherRelistGivesTheDifference(t *testing.T) {
	noLeak(t)
	put := func(kind watch.EventType, o object) watch.Event[object] {
		return watch.Event[object]{Type: kind, Object: o, Revision: o.revision}
	}
	var opens atomic.Int32
	source := watch.ListWatch[object]{WatchFunc: func(_ context.Context, after uint64) (watch.Interface[object], error) {
		f := watch.NewRaceFreeFake[object]()
		switch opens.Add(1) {
		case 1:
			want(t, "opened after", after, 1)
			for _, o := range []object{{"same", 2}, {"changed", 3}, {"gone", 4}, {"deleted", 5}} {
				check(t, f.Send(put(watch.Added, o)))
			}
			check(t, f.Send(put(watch.Deleted, object{"deleted", 6})))
			check(t, f.Send(watch.Event[object]{Type: watch.Error, Err: &watch.Status{Code: 410}}))
		case 2:
			want(t, "opened after", after, 20)
			check(t, f.Send(put(watch.Modified, object{"new", 21})))
		}
		return f, nil
	}}
	lists := 0
	source.ListFunc = func(context.Context, watch.ListRequest) (watch.ListPage[object], error) {
		if lists++; lists < 3 {
			return watch.ListPage[object]{}, []error{&watch.Status{Code: 410}, errFive}[lists-1]
		}
		return listing(20, object{"new", 19}, object{"same", 2}, object{"changed", 15}), nil
	}
	w, err := watch.NewRetryWatcherWithOptions(context.Background(), 1, source, watch.RetryOptions[object]{
		MinRestartDelay: -1, Logger: quiet(),
		OnGone: watch.RelistOnGone(func(o object) string { return o.name }),
	})
	check(t, err)
	for range 5 {
		take[object](t, w)
	}
	for _, expected := range []watch.Event[object]{
		{Type: watch.Deleted, Object: object{"gone", 4}, Old: object{"gone", 4}, HasOld: true, Revision: 6, ObjectRevision: 20, Lost: 14},
		{Type: watch.Modified, Object: object{"changed", 15}, Old: object{"changed", 3}, HasOld: true, Revision: 6, ObjectRevision: 15},
		{Type: watch.Added, Object: object{"new", 19}, Revision: 20, ObjectRevision: 19},
		{Type: watch.Modified, Object: object{"new", 21}, Old: object{"new", 19}, HasOld: true, Revision: 21},
	} {
		want(t, "event", take[object](t, w), expected)
	}
	want(t, "revision", w.Stats().Revision >= 20, true)
	want(t, "lists", w.Stats().Relists, 3)
	w.Stop()
	bounded.Receive(t, "the end", w.Done())
}

// relisting begins after a revision; the first watch gives events and then that its place is gone, the others nothing.
func relisting(t *testing.T, after uint64, lists []watch.ListPage[object], events ...watch.Event[object]) (*watch.RetryWatcher[object], func() string) {
	t.Helper()
	var mu sync.Mutex
	var opens []uint64
	source := watch.ListWatch[object]{WatchFunc: func(_ context.Context, after uint64) (watch.Interface[object], error) {
		mu.Lock()
		defer mu.Unlock()
		opens = append(opens, after)
		f := watch.NewRaceFreeFake[object]()
		if len(opens) == 1 {
			for _, e := range append(events, watch.Event[object]{Type: watch.Error, Err: &watch.Status{Code: 410}}) {
				check(t, f.Send(e))
			}
		}
		return f, nil
	}}
	source.ListFunc = func(context.Context, watch.ListRequest) (watch.ListPage[object], error) {
		first := lists[0]
		lists = lists[1:]
		return first, nil
	}
	w, err := watch.NewRetryWatcherWithOptions(context.Background(), after, source, watch.RetryOptions[object]{
		MinRestartDelay: -1, Logger: quiet(), OnGone: watch.RelistOnGone(func(o object) string { return o.name }),
	})
	check(t, err)
	t.Cleanup(func() {
		w.Stop()
		bounded.Receive(t, "the end of a RetryWatcher", w.Done())
	})
	return w, func() string {
		mu.Lock()
		defer mu.Unlock()
		return fmt.Sprint(opens)
	}
}

// A lister that forgets the revision has failed: a watch from 0 would begin anywhere. Only the empty state at the
// beginning has none.
func TestRW27ListingWithoutARevisionIsAFailure(t *testing.T) {
	noLeak(t)
	type o = object
	w, opens := relisting(t, 5, []watch.ListPage[object]{{}, listing(0, o{"b", 9}), listing(9, o{"b", 9})},
		watch.Event[object]{Type: watch.Added, Object: o{"a", 6}, Revision: 6})
	take[object](t, w)
	want(t, "the difference", take[object](t, w),
		watch.Event[object]{Type: watch.Deleted, Object: o{"a", 6}, Old: o{"a", 6}, HasOld: true, Revision: 6, ObjectRevision: 9, Lost: 3})
	take[object](t, w)
	bounded.Eventually(t, "it is watched from there", func() bool { return opens() == "[5 9]" })
	want(t, "why", fmt.Sprint(w.Stats().LastError), "the list has no revision: a watch cannot begin behind it")

	w, opens = relisting(t, 0, []watch.ListPage[object]{listing(0, o{"a", 1}), {}, listing(2, o{"a", 1})})
	want(t, "the state is empty", take[object](t, w), watch.Event[object]{Type: watch.Synced})
	want(t, "and complete once", take[object](t, w),
		watch.Event[object]{Type: watch.Added, Object: o{"a", 1}, Revision: 2, ObjectRevision: 1, Lost: 2})
	bounded.Eventually(t, "it is watched from there", func() bool { return opens() == "[0 2]" })
}

// Without a revision it begins with the state, and says when that is complete.
func TestRetryWatcherBeginsWithAList(t *testing.T) {
	noLeak(t)
	var opens []uint64
	source := watch.ListWatch[object]{WatchFunc: func(_ context.Context, after uint64) (watch.Interface[object], error) {
		opens = append(opens, after)
		f := watch.NewRaceFreeFake[object]()
		return f, f.Send(watch.Event[object]{Type: watch.Deleted, Object: object{"a", 3}, Revision: 10})
	}}
	source.ListFunc = func(context.Context, watch.ListRequest) (watch.ListPage[object], error) {
		return listing(9, object{"b", 7}, object{"a", 3}), nil
	}
	// The system's clock: nothing waits for a second.
	w, err := watch.NewRetryWatcherWithOptions(context.Background(), 0, source, watch.RetryOptions[object]{
		OnGone: watch.RelistOnGone(func(o object) string { return o.name }),
	})
	check(t, err)
	for _, expected := range []watch.Event[object]{
		{Type: watch.Added, Object: object{"a", 3}, ObjectRevision: 3},
		{Type: watch.Added, Object: object{"b", 7}, ObjectRevision: 7},
		{Type: watch.Synced, Revision: 9},
		{Type: watch.Deleted, Object: object{"a", 3}, Revision: 10},
	} {
		want(t, "event", take[object](t, w), expected)
	}
	w.Stop()
	bounded.Receive(t, "the end", w.Done())
	want(t, "opens", fmt.Sprint(opens), "[9]")
}

// A source that cannot be listed, or watched, says so: to list it again is of no use.
func TestRW27SourceThatCannotBeListed(t *testing.T) {
	noLeak(t)
	w, err := watch.NewRetryWatcherWithOptions(bounded.Context(t), 0, watch.ListWatch[string]{}, watch.RetryOptions[string]{
		OnGone: watch.RelistOnGone(func(o string) string { return o }), Logger: quiet()})
	check(t, err)
	s, coded := watch.StatusOf(take[string](t, w).Err)
	want(t, "an error with a code", coded, true)
	want(t, "the code", s.Code, 405)
	bounded.Receive(t, "the end", w.Done())
	_, err = watch.ListWatch[string]{}.Watch(bounded.Context(t), 1)
	s, coded = watch.StatusOf(err)
	want(t, "a watch without a function", coded && s.Code == 405, true)
}

type closedCache struct{}

func (closedCache) Error() string { return "the cache was closed" }
func (closedCache) Fatal() bool   { return true }

// A cache that was closed is an end: nothing can come of asking it again.
func TestRetryWatcherEndsOnAFatalError(t *testing.T) {
	err := fmt.Errorf("watch: %w", closedCache{})
	rowOfRetry{5, &script{always: err}, []watch.Event[string]{{Type: watch.Error, Err: err}}, []uint64{5}, true}.run(t)
}
