package watch_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/watch"
)

// Publishers that may be one event ahead, and watchers that take it at once: they meet at the gate as
// often as they can, and a wake-up that got lost would leave both asleep.
func TestBroadcasterNoPublisherSleepsOn(t *testing.T) {
	noLeak(t)
	for _, watchers := range []int{1, 3} {
		const events = 60_000
		m, err := watch.NewBroadcasterWithOptions[int](watch.BroadcasterOptions{Incoming: -1})
		check(t, err)
		var all sync.WaitGroup
		for i := range watchers {
			w, err := m.Watch()
			check(t, err)
			all.Add(1)
			go func() {
				defer all.Done()
				if i == 2 {
					w.ResultChan()
				}
				for n := 0; ; n++ {
					e, err := w.Next(context.Background())
					if err != nil {
						if n != events {
							t.Errorf("%d events", n)
						}
						return
					}
					if e.Object != n || e.Lost != 0 {
						t.Errorf("%v in place of %d", e, n)
					}
				}
			}()
		}
		all.Add(1)
		go func() {
			defer all.Done()
			for i := range events {
				if err := m.Action(watch.Added, i); err != nil {
					t.Error(err)
				}
			}
			m.Shutdown()
		}()
		done := make(chan struct{})
		go func() { all.Wait(); close(done) }()
		bounded.Receive(t, "publisher and watchers", done)
	}
}

// The end is behind the last event, however close they are.
func TestBroadcasterEndIsBehindTheLastEvent(t *testing.T) {
	noLeak(t)
	for round := range 20_000 {
		m := watch.NewBroadcaster[int](1, watch.FullChannelBehavior(round%2))
		w, err := m.Watch()
		check(t, err)
		seen := make(chan int)
		var ready atomic.Bool
		go func() {
			n := 0
			ready.Store(true)
			for range w.All(context.Background()) {
				n++
			}
			seen <- n
		}()
		// From here on the reader looks while the event and the end are published.
		for !ready.Load() {
			runtime.Gosched()
		}
		check(t, m.Action(watch.Added, 1))
		m.Shutdown()
		want(t, "events", <-seen, 1)
	}
}
