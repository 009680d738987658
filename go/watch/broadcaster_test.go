package watch_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/watch"
)

var history = []watch.Event[*pod]{
	{Type: watch.Added, Object: &pod{"foo", "hello world 1"}, Revision: 1},
	{Type: watch.Added, Object: &pod{"bar", "hello world 2"}, Revision: 2},
	{Type: watch.Modified, Object: &pod{"foo", "goodbye world 3"}, Revision: 3},
	{Type: watch.Deleted, Object: &pod{"bar", "hello world 4"}, Revision: 4},
}

// faces are the two ways to read a watcher.
func faces(t *testing.T, test func(t *testing.T, read func(w *watch.Watcher[*pod]) (watch.Event[*pod], bool))) {
	t.Run("channel", func(t *testing.T) {
		noLeak(t)
		test(t, func(w *watch.Watcher[*pod]) (watch.Event[*pod], bool) { return receiveFrom(t, w.ResultChan()) })
	})
	t.Run("pull", func(t *testing.T) {
		noLeak(t)
		test(t, func(w *watch.Watcher[*pod]) (watch.Event[*pod], bool) {
			e, err := w.Next(bounded.Context(t))
			if err != nil && !errors.Is(err, watch.ErrEnded) {
				t.Fatal(err)
			}
			return e, err == nil
		})
	})
}

// Both directions: whoever of the two receives stops the other one, for which the publisher may wait.
func TestAW03StoppingABlockedWatcherReleasesThePublisher(t *testing.T) {
	noLeak(t)
	for range 200 {
		m, err := watch.NewBroadcasterWithOptions[*pod](watch.BroadcasterOptions{Incoming: -1})
		check(t, err)
		w0, err := m.Watch()
		check(t, err)
		w1, err := m.Watch()
		check(t, err)
		published := make(chan error, 1)
		go func() {
			// The second one waits for the watcher that does not read.
			err := m.Action(watch.Added, history[0].Object)
			published <- errors.Join(err, m.Action(watch.Added, history[1].Object))
		}()
		select {
		case <-w0.ResultChan():
			go w1.Stop()
			<-w0.ResultChan()
		case <-w1.ResultChan():
			go w0.Stop()
			<-w1.ResultChan()
		}
		check(t, bounded.Receive(t, "the publisher", published))
		m.Shutdown()
		w0.Stop()
		w1.Stop()
	}
}

// Watchers stop, publishers publish and the broadcaster shuts down, all at once.
func TestAW07StopBesideShutdown(t *testing.T) {
	noLeak(t)
	for round := range 300 {
		m := watch.NewBroadcaster[int](1, watch.FullChannelBehavior(round%2))
		var all sync.WaitGroup
		for i := range 6 {
			w, err := m.Watch()
			check(t, err)
			all.Add(1)
			go func() {
				defer all.Done()
				switch i % 3 {
				case 0:
					w.Stop()
				case 1:
					<-w.ResultChan()
					w.Stop()
				case 2:
					_, _ = w.Next(context.Background())
					w.Stop()
				}
			}()
		}
		for range 2 {
			all.Add(1)
			go func() {
				defer all.Done()
				for m.Action(watch.Added, round) == nil {
					runtime.Gosched()
				}
			}()
		}
		all.Add(1)
		go func() { defer all.Done(); m.Shutdown() }()
		done := make(chan struct{})
		go func() { all.Wait(); close(done) }()
		bounded.Receive(t, "stops beside a shutdown", done)
	}
}

// Watchers that come while events are published begin somewhere, and miss nothing from there.
func TestAW09NewWatchersBesideAPublisher(t *testing.T) {
	noLeak(t)
	m := watch.NewBroadcaster[int](10, watch.WaitIfChannelFull)
	var watching sync.WaitGroup
	for range 4 {
		watching.Add(1)
		go func() {
			defer watching.Done()
			for range 50 {
				w, err := m.Watch()
				if err != nil {
					t.Error(err)
					return
				}
				before := -1
				for range 20 {
					e, err := w.Next(context.Background())
					if err != nil || before >= 0 && e.Object != before+1 || e.Lost != 0 {
						t.Errorf("%v (%v) after %d", e, err, before)
					}
					before = e.Object
				}
				w.Stop()
			}
		}()
	}
	var over atomic.Bool
	published := make(chan struct{})
	go func() {
		defer close(published)
		for i := 0; !over.Load(); i++ {
			_ = m.Action(watch.Added, i)
		}
	}()
	watching.Wait()
	over.Store(true)
	bounded.Receive(t, "the publisher", published)
}

// What the log has is counted from one revision on, exactly; an event that is published gets its revision, and has lost nothing.
func TestBroadcasterWatchAfterTheOldest(t *testing.T) {
	faces(t, func(t *testing.T, read func(*watch.Watcher[*pod]) (watch.Event[*pod], bool)) {
		for _, behavior := range []watch.FullChannelBehavior{watch.WaitIfChannelFull, watch.DropIfChannelFull} {
			m := watch.NewBroadcaster[*pod](0, behavior)
			for _, e := range history {
				check(t, m.Action(e.Type, e.Object))
			}
			newest, err := m.WatchAfter(m.Revision())
			check(t, err)
			check(t, m.Publish(watch.Event[*pod]{Type: watch.Added, Object: &pod{"another", ""}, Revision: 3, Lost: 7}))
			e, _ := read(newest)
			want(t, "the revision is the broadcaster's", e.Revision, 5)
			want(t, "and what was lost the watcher's", e.Lost, 0)
			newest.Stop()
			for range 100 {
				check(t, m.Action(watch.Added, history[0].Object))
			}
			if _, err = m.WatchAfter(2); !watch.IsGone(err) {
				t.Fatalf("after a revision that has left: %v", err)
			}
			_, told, _ := strings.Cut(err.Error(), "the oldest possible is ")
			var oldest uint64
			_, err = fmt.Sscan(strings.ReplaceAll(told, ":", " "), &oldest)
			check(t, err)
			w, err := m.WatchAfter(oldest)
			check(t, err)
			e, _ = read(w)
			want(t, "the first behind the oldest", e.Revision, oldest+1)
			w.Stop()
			if _, err = m.WatchAfter(oldest - 1); !watch.IsGone(err) {
				t.Fatalf("after a revision that has left just now: %v", err)
			}
		}
	})
}

// Late watchers that begin at the oldest event must not make the log longer each.
func TestBroadcasterHistoryDoesNotGrowByLateWatchers(t *testing.T) {
	for _, behavior := range []watch.FullChannelBehavior{watch.WaitIfChannelFull, watch.DropIfChannelFull} {
		m := watch.NewBroadcaster[int](1, behavior)
		backlog := 0
		for i := range 2000 {
			check(t, m.Action(watch.Added, i))
			if i%10 != 9 {
				continue
			}
			oldest := uint64(0)
			w, err := m.WatchAfter(oldest)
			for ; watch.IsGone(err); w, err = m.WatchAfter(oldest) {
				oldest++
			}
			check(t, err)
			backlog = int(m.Revision() - oldest)
			w.Stop()
		}
		if backlog > 100 {
			t.Fatalf("%s: a broadcaster with queue 1 keeps %d events", behavior, backlog)
		}
	}
}

// How far a publisher runs ahead where the incoming queue is not the original's 25.
func TestLongQueueBroadcasterPublishesAhead(t *testing.T) {
	for _, row := range []struct{ queue, ahead int }{{0, 1}, {30, 61}} {
		for _, channel := range []bool{false, true} {
			m := watch.NewLongQueueBroadcaster[int](row.queue, watch.WaitIfChannelFull)
			w, err := m.Watch()
			check(t, err)
			if channel {
				w.ResultChan()
			}
			for i := range row.ahead {
				if ok, err := m.ActionOrDrop(watch.Added, i); !ok || err != nil {
					t.Fatalf("queue %d: event %d of %d found no place: %v", row.queue, i, row.ahead, err)
				}
			}
			if ok, _ := m.ActionOrDrop(watch.Added, -1); ok {
				t.Fatalf("queue %d: more than %d found a place", row.queue, row.ahead)
			}
			want(t, "the first", take(t, w).Object, 0)
			// With a channel the count follows the take as soon as its goroutine runs.
			bounded.Eventually(t, "a place after a take", func() bool {
				ok, err := m.ActionOrDrop(watch.Added, row.ahead)
				check(t, err)
				return ok
			})
			for i := range row.ahead {
				want(t, "the next", take(t, w).Object, i+1)
			}
			w.Stop()
			m.Shutdown()
		}
	}
}

// Options of single watchers: each has its own queue and policy.
func TestBroadcasterQueuesOfSingleWatchers(t *testing.T) {
	noLeak(t)
	m := watch.NewBroadcaster[int](0, watch.WaitIfChannelFull)
	w, err := m.WatchWithOptions(watch.WatchOptions[int]{Queue: watch.DropQueue(2)})
	check(t, err)
	long, err := m.WatchWithOptions(watch.WatchOptions[int]{Queue: watch.WaitQueue(5000)})
	check(t, err)
	for i := range 5000 {
		check(t, m.Action(watch.Added, i))
	}
	want(t, "dropped", w.Dropped(), 4998)
	m.Shutdown()
	want(t, "first", take(t, w).Object, 0)
	want(t, "second", take(t, w).Object, 1)
	ends(t, w)
	expected := 0
	for e := range long.All(bounded.Context(t)) {
		want(t, "object", e.Object, expected)
		expected++
	}
	want(t, "events", expected, 5000)
	for _, options := range []watch.WatchOptions[int]{{Queue: watch.DropQueue(-1)}, {Queue: watch.WaitQueue(-5)}} {
		m := watch.NewBroadcaster[int](0, watch.WaitIfChannelFull)
		if _, err := m.WatchWithOptions(options); err == nil {
			t.Fatal("a queue of less than nothing was accepted")
		}
	}
}

func TestBroadcasterRefusesOptionsOutOfBounds(t *testing.T) {
	for _, options := range []watch.BroadcasterOptions{
		{Queue: watch.WaitQueue(-1)}, {Incoming: -2}, {History: -1}, {Incoming: 1 << 40}, {History: 1 << 40}, {Queue: watch.DropQueue(1 << 40)},
	} {
		if _, err := watch.NewBroadcasterWithOptions[int](options); err == nil {
			t.Errorf("%+v was accepted", options)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a length of -1 was accepted")
		}
	}()
	watch.NewBroadcaster[int](-1, watch.WaitIfChannelFull)
}
