package watch_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/watch"
)

// A channel with as many places, and a publisher that drops what finds none, is the oracle:
// random publishes and takes on one goroutine, compared to the event.
func TestBroadcasterDropEqualsAChannel(t *testing.T) {
	for seed := range uint64(150) {
		dice := rand.New(rand.NewPCG(seed, 1))
		queue := 1 + dice.IntN(9)
		m, err := watch.NewBroadcasterWithOptions[int](watch.BroadcasterOptions{Queue: watch.DropQueue(queue), History: 100_000})
		check(t, err)
		type queued struct {
			object int
			lost   uint64
		}
		var oracle []queued
		var lost, dropped uint64
		w, err := m.Watch()
		check(t, err)
		for i := range 2000 {
			if dice.IntN(3) > 0 {
				check(t, m.Action(watch.Added, i))
				if len(oracle) < queue {
					oracle = append(oracle, queued{i, lost})
					lost = 0
				} else {
					lost++
					dropped++
				}
				continue
			}
			if dice.IntN(4) == 0 {
				want(t, "dropped", w.Dropped(), dropped)
			}
			if len(oracle) == 0 {
				continue
			}
			into := make([]watch.Event[int], 1+dice.IntN(4))
			n, err := w.NextBatch(bounded.Context(t), into)
			check(t, err)
			want(t, "events of a batch", n, min(len(into), len(oracle)))
			for k, e := range into[:n] {
				if e.Object != oracle[k].object || e.Lost != oracle[k].lost {
					t.Fatalf("seed %d: %v, not %+v", seed, e, oracle[k])
				}
			}
			oracle = oracle[n:]
		}
	}
}

// What a stalled watcher has accepted leaves with the log's window, and is counted as lost.
func TestBroadcasterAcceptedEventsLeaveWithTheWindow(t *testing.T) {
	m := watch.NewBroadcaster[int](2, watch.DropIfChannelFull)
	w, err := m.Watch()
	check(t, err)
	for i := range 1000 {
		check(t, m.Action(watch.Added, i))
		if i == 1 {
			// Two are accepted, and no place is left.
			want(t, "dropped", w.Dropped(), 0)
		}
		if i == 2 {
			want(t, "dropped", w.Dropped(), 1)
		}
	}
	want(t, "dropped, all but the two", w.Dropped(), 998)
	// They are gone, so nothing is there, and a reader waits for what comes.
	got := make(chan watch.Event[int])
	go func() {
		e, _ := w.Next(context.Background())
		got <- e
	}()
	bounded.Eventually(t, "the two are counted", func() bool { return w.Dropped() == 1000 })
	check(t, m.Action(watch.Added, 1000))
	if e := bounded.Receive(t, "an event", got); e.Object != 1000 || e.Lost != 1000 {
		t.Fatalf("%v, not 1000 with 1000 lost", e)
	}
	want(t, "dropped", w.Dropped(), 1000)
}

// A reader that waits takes one event past the queue, as a receiver of a channel does.
func TestBroadcasterWaitingReaderIsAPlace(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			m := watch.NewBroadcaster[int](1, watch.DropIfChannelFull)
			w, err := m.Watch()
			check(t, err)
			go func() {
				if e, err := w.Next(context.Background()); err != nil || e.Object != 1 {
					t.Errorf("%v (%v)", e, err)
				}
			}()
			synctest.Wait()
			check(t, m.Action(watch.Added, 1))
			check(t, m.Action(watch.Added, 2))
			synctest.Wait()
			want(t, "dropped", w.Dropped(), 0)
		})
	}
}

// Publishers, watchers of both policies and faces that come and go: order, no duplicates, and what is
// missing is what Lost says.
func TestBroadcasterEverybodyAtOnce(t *testing.T) {
	noLeak(t)
	const events, publishers = 4000, 3
	m := watch.NewBroadcaster[[2]int](4, watch.WaitIfChannelFull)
	var watching, publishing sync.WaitGroup
	var stopped atomic.Bool
	for i := range 8 {
		watching.Add(1)
		go func() {
			defer watching.Done()
			for !stopped.Load() {
				options := watch.WatchOptions[[2]int]{}
				if i%2 == 0 {
					options.Queue = watch.DropQueue(i)
				}
				w, err := m.WatchWithOptions(options)
				if err != nil {
					return
				}
				follow(t, w, i, events/10)
				w.Stop()
			}
		}()
	}
	for p := range publishers {
		publishing.Add(1)
		go func() {
			defer publishing.Done()
			for i := range events {
				if err := m.Action(watch.Added, [2]int{p, i}); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	publishing.Wait()
	stopped.Store(true)
	m.Shutdown()
	watching.Wait()
}

func follow(t *testing.T, w *watch.Watcher[[2]int], face, most int) {
	var revision, total uint64
	newest := map[int]int{}
	if face%4 >= 2 {
		w.ResultChan()
	}
	for range most {
		e, err := w.Next(context.Background())
		if err != nil {
			return
		}
		if revision > 0 && e.Revision != revision+e.Lost+1 {
			t.Errorf("%v after %d", e, revision)
		}
		revision = e.Revision
		total += e.Lost
		if before, ok := newest[e.Object[0]]; ok && e.Object[1] <= before {
			t.Errorf("%v after %d of the same publisher", e, before)
		}
		newest[e.Object[0]] = e.Object[1]
	}
	if total > w.Dropped() {
		t.Errorf("%d lost were reported, %d counted", total, w.Dropped())
	}
}
