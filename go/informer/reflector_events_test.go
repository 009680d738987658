package informer_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/informer"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/watch"
)

// Events that cannot be are errors, and a list mends what they may have hidden.
func TestRF14EventsThatCannotBeAreMended(t *testing.T) {
	for what, e := range map[string]watch.Event[string]{
		"no revision":  {Type: watch.Added, Object: "b=1"},
		"unknown type": {Type: "MOVED", Object: "b=1", Revision: 11},
		"no error":     {Type: watch.Error},
	} {
		s := newServer(t)
		s.lists = append(s.lists, listed(10, "a=1@1"), listed(20, "a=2@20"))
		in, clock, reported := s.informer(options{})
		send(t, s.fake(), e)
		bounded.Eventually(t, what, func() bool { return clock.Armed() == 1 })
		clock.Advance(time.Second)
		check(t, in.WaitUntil(bounded.Context(t), 20))
		want(t, what, objects(in), "a=2")
		want(t, what, len(reported.all()), 1)
	}
}

// Indexes, resync and handlers are the same over a source as over a cache, also where an index's
// function ends the goroutine.
func TestRF17SourceHasIndexesAndResync(t *testing.T) {
	s := newServer(t)
	s.lists = append(s.lists, listed(10, "a=1@1", "b=exit@2"))
	in, clock, _ := s.informer(options{Indexers: informer.Indexers[string]{"value": func(o *informer.Object[string]) []string {
		_, value, _ := strings.Cut(o.Value, "=")
		if value == "exit" {
			runtime.Goexit()
		}
		return []string{value}
	}}})
	var mu sync.Mutex
	resynced := 0
	reg := add(t, in, informer.HandlerFuncs[string]{Update: func(old, new *informer.Object[string]) {
		mu.Lock()
		defer mu.Unlock()
		if old == new {
			resynced++
		}
	}}, informer.HandlerOptions{ResyncPeriod: time.Minute})
	check(t, reg.WaitSynced(bounded.Context(t)))
	f := s.fake()
	send(t, f, watch.Event[string]{Type: watch.Added, Object: "c=exit", Revision: 11})
	f = s.fake() // the goroutine ended with its watch
	send(t, f, watch.Event[string]{Type: watch.Added, Object: "d=1", Revision: 12})
	check(t, in.WaitUntil(bounded.Context(t), 12))
	list, err := in.Lister().ByIndex("value", "1")
	check(t, err)
	want(t, "found", len(list), 2)
	_, err = in.Lister().SelectLabels(bounded.Context(t), "a=b")
	wantError(t, "labels", err, watchcore.ErrUnsupported)
	bounded.Eventually(t, "handled", func() bool { return reg.Status().LagEvents == 0 })
	clock.Advance(time.Minute)
	bounded.Eventually(t, "resynced", func() bool { mu.Lock(); defer mu.Unlock(); return resynced == 4 })
}

// An event's revision is the position behind it: of several changes at one revision all but the last have a lower one,
// also that of the object as it is known, and are given.
func TestRF02EventInsideARevisionIsGiven(t *testing.T) {
	s := newServer(t)
	s.lists = append(s.lists, listed(10, "a=1@10"))
	in, _, reported := s.informer(options{})
	f := s.fake()
	send(t, f, watch.Event[string]{Type: watch.Modified, Object: "a=2", Revision: 10}) // 11
	send(t, f, watch.Event[string]{Type: watch.Added, Object: "b=1", Revision: 11})
	check(t, in.WaitUntil(bounded.Context(t), 11))
	want(t, "objects", objects(in), "a=2 b=1")
	send(t, f, watch.Event[string]{Type: watch.Deleted, Object: "b=1", Revision: 11}) // 12
	send(t, f, watch.Event[string]{Type: watch.Added, Object: "c=1", Revision: 12})
	check(t, in.WaitUntil(bounded.Context(t), 12))
	want(t, "objects", objects(in), "a=2 c=1")
	want(t, "errors", len(reported.all()), 0)
}

// The difference that a RetryWatcher gives after a list has its first position until its last event.
func TestRF02DifferenceOfARetryWatcherIsGiven(t *testing.T) {
	s := newServer(t)
	s.lists = append(s.lists, listed(10, "a=1@10", "c=1@9"))
	s.watches = append(s.watches, func() (watch.Interface[string], error) {
		source := watch.ListWatch[string]{WatchFunc: func(_ context.Context, after uint64) (watch.Interface[string], error) {
			if after == 10 {
				return nil, status(410)
			}
			return watch.NewFake[string](), nil
		}}
		source.ListFunc = func(context.Context, watch.ListRequest) (watch.ListPage[string], error) {
			return watch.ListPage[string]{Revision: 16, Items: []watch.Item[string]{{Object: "a=2", Revision: 15}, {Object: "b=1", Revision: 16}, {Object: "c=1", Revision: 9}}}, nil
		}
		return watch.NewRetryWatcherWithOptions(bounded.Context(t), 10, source, watch.RetryOptions[string]{OnGone: watch.RelistOnGone(keyOf)})
	})
	in, _, _ := s.informer(options{})
	check(t, in.WaitUntil(bounded.Context(t), 16))
	want(t, "objects", objects(in), "a=2 b=1 c=1")
	want(t, "changes", in.Status().Changes, 2)
	o, _ := in.Lister().Get("a")
	want(t, "revision", o.Revision, 15)
}

// A revision of several objects, which the source says, is shown whole: who waits for it has all of it, and half of
// one whose watch ends comes again.
func TestRF20ObjectsOfOneRevisionAreOneRevision(t *testing.T) {
	s := newServer(t)
	s.lists = append(s.lists, listed(10, "a=1@10"))
	first, second := watch.NewFake[string](), watch.NewFake[string]() // what is sent was handled when the next is taken
	for _, f := range []*watch.FakeWatcher[string]{first, second} {
		s.watches = append(s.watches, func() (watch.Interface[string], error) { return f, nil })
	}
	in, clock, reported := s.informer(options{})
	send(t, first, watch.Event[string]{Type: watch.Modified, Object: "a=2", Revision: 10, ObjectRevision: 11})
	send(t, first, watch.Event[string]{Type: watch.Bookmark, Revision: 10})
	want(t, "half of it", fmt.Sprint(objects(in), in.Lister().Position()), "a=1{1 10}")
	first.Stop()
	bounded.Eventually(t, "the backoff", func() bool { return clock.Armed() == 1 })
	clock.Advance(time.Second)
	send(t, second, watch.Event[string]{Type: watch.Modified, Object: "a=2", Revision: 10, ObjectRevision: 11})
	send(t, second, watch.Event[string]{Type: watch.Added, Object: "b=1", Revision: 10, ObjectRevision: 11})
	send(t, second, watch.Event[string]{Type: watch.Bookmark, Revision: 10})
	want(t, "half of it", fmt.Sprint(objects(in), in.Lister().Position()), "a=1{1 10}")
	send(t, second, watch.Event[string]{Type: watch.Added, Object: "c=1", Revision: 11, ObjectRevision: 11})
	check(t, in.WaitUntil(bounded.Context(t), 11))
	want(t, "all of it", fmt.Sprint(objects(in), in.Lister().Position()), "a=2 b=1 c=1{1 11}")
	for range 2 { // of 11, in any order and number
		send(t, second, watch.Event[string]{Type: watch.Added, Object: "b=1", Revision: 11, ObjectRevision: 11})
		send(t, second, watch.Event[string]{Type: watch.Modified, Object: "a=2", Revision: 11, ObjectRevision: 11})
	}
	send(t, second, watch.Event[string]{Type: watch.Deleted, Object: "b=1", Revision: 11, ObjectRevision: 12})
	send(t, second, watch.Event[string]{Type: watch.Bookmark, Revision: 12})
	check(t, in.WaitUntil(bounded.Context(t), 12))
	want(t, "a bookmark ends it, too", objects(in), "a=2 c=1")
	want(t, "changes", in.Status().Changes, 4)
	want(t, "asked", s.questions(), "list0 watch10 watch10")
	want(t, "errors", len(reported.all()), 1)
}

// What is repeated changes nothing.
func TestRF22RepeatsAreNoEvents(t *testing.T) {
	s := newServer(t)
	s.lists = append(s.lists, listed(10, "a=1@9"))
	in, _, _ := s.informer(options{})
	f := s.fake()
	for range 2 {
		send(t, f, watch.Event[string]{Type: watch.Modified, Object: "a=1", Revision: 9})
		send(t, f, watch.Event[string]{Type: watch.Modified, Object: "a=2", Revision: 11})
	}
	send(t, f, watch.Event[string]{Type: watch.Deleted, Object: "a=1", Revision: 10}) // it was made again behind that
	send(t, f, watch.Event[string]{Type: watch.Deleted, Object: "none=1", Revision: 12})
	send(t, f, watch.Event[string]{Type: watch.Bookmark, Revision: 13})
	check(t, in.WaitUntil(bounded.Context(t), 13))
	want(t, "changes", in.Status().Changes, 1)
	want(t, "objects", objects(in), "a=2")
}

// cutter is a server whose watches end after a few events, wherever that is. It is listed once.
type cutter struct {
	mu     sync.Mutex
	dice   *rand.Rand
	events []watch.Event[string]
	lists  int
}

func (c *cutter) List(context.Context, watch.ListRequest) (watch.ListPage[string], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lists++; c.lists > 1 {
		return watch.ListPage[string]{}, &watch.Status{Code: 503}
	}
	return watch.ListPage[string]{Revision: 1}, nil
}

func (c *cutter) Watch(_ context.Context, after uint64) (watch.Interface[string], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dice.IntN(4) == 0 {
		return nil, &watch.Status{Code: 503}
	}
	f := watch.NewFakeWithChanSize[string](8, false)
	// At least two: the first one may be a repeat.
	for _, e := range c.events[after-1:][:min(2+c.dice.IntN(6), len(c.events)-int(after-1))] {
		if err := f.Send(e); err != nil {
			return nil, err
		}
	}
	f.Stop()
	return f, nil
}

// However the watches are cut, nothing is missed, and nothing comes twice.
func TestFaultCutWatchesMissNothing(t *testing.T) {
	dice := rand.New(rand.NewPCG(4, 4))
	c, state := &cutter{dice: dice}, map[string]string{}
	changes := uint64(0)
	for i := range 1000 {
		key, revision := fmt.Sprint(dice.IntN(20)), uint64(i+2)
		object := fmt.Sprint(key, "=", i)
		if old, there := state[key]; there && dice.IntN(3) == 0 {
			delete(state, key)
			c.events = append(c.events, watch.Event[string]{Type: watch.Deleted, Object: old, Revision: revision})
		} else {
			state[key] = object
			c.events = append(c.events, watch.Event[string]{Type: watch.Modified, Object: object, Revision: revision})
		}
		changes++
	}
	in, err := informer.NewFromSource[string](c, keyOf, options{Backoff: informer.Backoff{Min: time.Microsecond, Max: time.Microsecond}})
	check(t, err)
	t.Cleanup(in.Stop)
	check(t, in.WaitUntil(bounded.Context(t), 1001))
	want(t, "changes", in.Status().Changes, changes)
	want(t, "objects", objects(in), strings.Join(slices.Sorted(maps.Values(state)), " "))
}
