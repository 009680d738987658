package watch_test

import (
	"context"
	"math/rand/v2"
	"reflect"
	"sync/atomic"
	"testing"

	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/watch"
)

func notB(e watch.Event[string]) (watch.Event[string], bool) { return e, e.Object[0] != 'b' }

// boundaryRows are what a consumer of "in" objects must be given: old and new state, "" for none.
var boundaryRows = []struct {
	old, now string
	expected watch.Event[string]
}{
	{"", "in", watch.Event[string]{Type: watch.Added, Object: "in"}},
	{"", "out", watch.Event[string]{}},
	{"in", "in2", watch.Event[string]{Type: watch.Modified, Object: "in2", Old: "in", HasOld: true}},
	{"out", "in", watch.Event[string]{Type: watch.Added, Object: "in"}},
	{"in", "out", watch.Event[string]{Type: watch.Deleted, Object: "in", Old: "in", HasOld: true}},
	{"out", "out2", watch.Event[string]{}},
	{"in", "", watch.Event[string]{Type: watch.Deleted, Object: "in", Old: "in", HasOld: true}},
	{"out", "", watch.Event[string]{}},
}

func change(old, now string, revision uint64) watch.Event[string] {
	e := watch.Event[string]{Type: watch.Modified, Object: now, Old: old, HasOld: old != "", Revision: revision}
	switch {
	case now == "":
		e.Type, e.Object = watch.Deleted, old
	case old == "":
		e.Type = watch.Added
	}
	return e
}

func isIn(e watch.Event[string]) (watch.Event[string], bool) { return e, e.Object[0] == 'i' }

func TestAW21FilterKeepsTypesAtItsBoundary(t *testing.T) {
	for i, row := range boundaryRows {
		source := watch.NewRaceFreeFake[string]()
		w := watch.Filter[string](source, isIn)
		check(t, source.Send(change(row.old, row.now, uint64(i+10))))
		source.Stop()
		if row.expected.Type != "" {
			row.expected.Revision = uint64(i + 10)
			want(t, row.old+" to "+row.now, take(t, w), row.expected)
		}
		ends(t, w)
	}
}

// A recorder's events are its reader's own, and those of its channel are recorded, too.
func TestRecorderGivesACopy(t *testing.T) {
	noLeak(t)
	source := watch.NewFakeWithChanSize[string](len(sent), true)
	check(t, sendAll(source))
	source.Stop()
	recorder := watch.NewRecorder(source)
	want(t, "given", len(rest(t, recorder.Interface.ResultChan())), len(sent))
	events := recorder.Events()
	if !reflect.DeepEqual(events, sent) {
		t.Fatalf("%v", events)
	}
	events[0].Object = "mine"
	want(t, "a copy", recorder.Events()[0].Object, "foo")
}

// A function that has changed the type is not corrected.
func TestFilterKeepsTheTypeOfItsFunction(t *testing.T) {
	source := watch.NewRaceFreeFake[string]()
	w := watch.Filter(source, func(e watch.Event[string]) (watch.Event[string], bool) {
		e.Type = watch.Added
		return e, true
	})
	check(t, source.Send(watch.Event[string]{Type: watch.Modified, Object: "renamed", Old: "renamed", HasOld: true}))
	want(t, "the function's type", take(t, w).Type, watch.Added)
}

// Random changes of a few keys, some of them lost on the way: whoever applies the filtered events has
// exactly the objects that pass, as far as the source has shown them.
func TestFilterByKeyEqualsAModel(t *testing.T) {
	type object struct{ key, value int }
	passes := func(o object) bool { return o.value%3 == 0 }
	for seed := range uint64(100) {
		dice := rand.New(rand.NewPCG(seed, 3))
		source := make(chan watch.Event[object], 2)
		w := watch.FilterByKey(watch.NewProxyWatcher(source), func(o object) int { return o.key },
			func(e watch.Event[object]) (watch.Event[object], bool) { return e, passes(e.Object) })
		oracle, given := map[int]object{}, map[int]object{}
		var sent, reported uint64
		for range 300 {
			o := object{dice.IntN(5), dice.IntN(10)}
			e := watch.Event[object]{Type: watch.Modified, Object: o, Lost: dice.Uint64N(3)}
			before, had := oracle[o.key]
			if dice.IntN(4) == 0 {
				// The last state that the source shows is not always the last that the consumer has.
				e.Type = watch.Deleted
				delete(oracle, o.key)
			} else if oracle[o.key] = o; !passes(o) {
				delete(oracle, o.key)
			}
			source <- e
			// Behind it, so that something comes in any case.
			source <- watch.Event[object]{Type: watch.Bookmark}
			sent += e.Lost
			_, has := oracle[o.key]
			out := take(t, w)
			reported += out.Lost
			if !had && !has {
				want(t, "behind an event that is not kept", out.Type, watch.Bookmark)
				continue
			}
			want(t, "behind an event that is kept", take(t, w).Type, watch.Bookmark)
			expected := map[bool]map[bool]watch.EventType{
				false: {true: watch.Added}, true: {true: watch.Modified, false: watch.Deleted},
			}[had][has]
			if out.Type != expected || had && (!out.HasOld || out.Old != before) {
				t.Fatalf("seed %d: %v, old %v, not %s of %v", seed, out, out.Old, expected, before)
			}
			if given[o.key] = out.Object; out.Type == watch.Deleted {
				delete(given, o.key)
			}
			if reported != sent || !reflect.DeepEqual(given, oracle) {
				t.Fatalf("seed %d: %v of %v, lost %d of %d", seed, given, oracle, reported, sent)
			}
		}
	}
}

// What a function gave under a type of its own is given like the rest: the filter remembers it, and forgets
// what it gave as Deleted.
func TestFilterByKeyGoesByTheTypeThatWasGiven(t *testing.T) {
	source := watch.NewRaceFreeFake[string]()
	w := watch.FilterByKey(source, func(object string) string { return object[:1] }, func(e watch.Event[string]) (watch.Event[string], bool) {
		switch {
		case e.Object == "a renamed":
			e.Type = watch.Added
		case e.Object == "b marked":
			e.Type = watch.Deleted
		}
		return e, true
	})
	for _, row := range []struct {
		send     watch.Event[string]
		expected watch.Event[string] // the zero one: nothing
	}{
		{watch.Event[string]{Type: watch.Modified, Object: "a renamed"}, watch.Event[string]{Type: watch.Added, Object: "a renamed"}},
		{watch.Event[string]{Type: watch.Deleted, Object: "a"}, watch.Event[string]{Type: watch.Deleted, Object: "a", Old: "a renamed", HasOld: true}},
		{watch.Event[string]{Type: watch.Added, Object: "b"}, watch.Event[string]{Type: watch.Added, Object: "b"}},
		{watch.Event[string]{Type: watch.Modified, Object: "b marked"}, watch.Event[string]{Type: watch.Deleted, Object: "b marked"}},
		{watch.Event[string]{Type: watch.Deleted, Object: "b"}, watch.Event[string]{}},
		{watch.Event[string]{Type: watch.Modified, Object: "b back"}, watch.Event[string]{Type: watch.Added, Object: "b back"}},
	} {
		check(t, source.Send(row.send))
		check(t, source.Send(watch.Event[string]{Type: watch.Bookmark}))
		if row.expected.Type != "" {
			want(t, "behind "+row.send.String(), take(t, w), row.expected)
		}
		want(t, "behind "+row.send.String(), take(t, w).Type, watch.Bookmark)
	}
}

// An Error that passes a filter, or that it makes, is its end, and that of its source.
func TestFilterEndsWithAnError(t *testing.T) {
	noLeak(t)
	fails := func(e watch.Event[string]) (watch.Event[string], bool) {
		if e.Object == "fails" {
			return watch.Event[string]{Type: watch.Error, Err: errFive}, true
		}
		return e, true
	}
	for name, send := range map[string]watch.Event[string]{
		"passes": {Type: watch.Error, Err: errFive},
		"made":   {Type: watch.Added, Object: "fails"},
	} {
		for kind, make := range map[string]func(watch.Interface[string]) watch.Puller[string]{
			"filter": func(w watch.Interface[string]) watch.Puller[string] { return watch.Filter(w, fails) },
			"by key": func(w watch.Interface[string]) watch.Puller[string] {
				return watch.FilterByKey(w, func(object string) string { return object }, fails)
			},
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				source := watch.NewRaceFreeFake[string]()
				w := make(source)
				check(t, source.Send(send))
				check(t, source.Add("behind"))
				want(t, "Error", take(t, w).Err, errFive)
				ends(t, w)
				want(t, "the source is stopped", source.IsStopped(), true)
				want(t, "events of the channel", len(rest(t, w.ResultChan())), 0)

				source = watch.NewRaceFreeFake[string]()
				check(t, source.Send(send))
				check(t, source.Add("behind"))
				want(t, "events of a channel from the beginning", len(rest(t, make(source).ResultChan())), 1)
			})
		}
	}
}

// heldSource holds its first event back until it is released, when it has taken it already.
type heldSource struct {
	watch.Interface[string]
	events          []watch.Event[string]
	taken           atomic.Int64
	inside, release chan struct{}
}

func (s *heldSource) Next(context.Context) (watch.Event[string], error) {
	at := int(s.taken.Add(1)) - 1
	switch {
	case at == 0:
		close(s.inside)
		<-s.release
	case at >= len(s.events):
		return watch.Event[string]{}, watch.ErrEnded
	}
	return s.events[at], nil
}

// Of two readers the second one waits for the first, or for its context: the events pass in their order.
func TestFilterOfTwoReadersKeepsTheOrder(t *testing.T) {
	source := &heldSource{
		Interface: watch.NewEmptyWatch[string](),
		events:    []watch.Event[string]{{Type: watch.Added, Object: "in"}, {Type: watch.Deleted, Object: "in"}},
		inside:    make(chan struct{}), release: make(chan struct{}),
	}
	w := watch.FilterByKey(source, func(string) string { return "the key" }, isIn)
	first := make(chan watch.EventType, 1)
	go func() {
		e, _ := w.Next(context.Background())
		first <- e.Type
	}()
	bounded.Receive(t, "the first reader", source.inside)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := w.Next(cancelled)
	want(t, "the second reader", err, context.Canceled)
	close(source.release)
	want(t, "the first event", bounded.Receive(t, "the first event", first), watch.Added)
	want(t, "the second event", take(t, w).Type, watch.Deleted)
	ends(t, w)
}

// In the original the goroutine of a filter whose consumer has gone waits for ever.
func TestFaultFilterGoroutineOutlivesStop(t *testing.T) {
	noLeak(t)
	c := make(chan watch.Event[string])
	for _, w := range []watch.Interface[string]{
		// A source that does not close when it is stopped.
		watch.Filter[string](watch.NewProxyWatcher(c), notB),
		watch.NewRecorder[string](watch.NewProxyWatcher(c)),
	} {
		results := w.ResultChan()
		for range 2 {
			c <- watch.Event[string]{Type: watch.Added, Object: "nobody reads"}
		}
		w.Stop()
		w.Stop()
		// The channel holds one, and the other one is given or not.
		if n := len(rest(t, results)); n < 1 || n > 2 {
			t.Fatalf("%d events", n)
		}
	}
	// A consumer that has gone: nobody reads behind Stop.
	gone := watch.Filter[string](watch.NewProxyWatcher(c), notB)
	gone.ResultChan()
	for range 2 {
		c <- watch.Event[string]{Type: watch.Added, Object: "nobody reads"}
	}
	gone.Stop()
	w := watch.Filter[string](watch.NewProxyWatcher(c), notB)
	waiting := make(chan error)
	go func() {
		_, err := w.Next(context.Background())
		waiting <- err
	}()
	w.Stop()
	want(t, "a reader that waits", <-waiting, watch.ErrEnded)
}
