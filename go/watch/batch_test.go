package watch_test

import (
	"fmt"
	"testing"

	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/watch"
)

// A loop takes several events at once; those that it has not seen are the next ones, whichever way the
// watch is read then.
func TestBroadcasterAllGivesBackWhatItHasNotSeen(t *testing.T) {
	for _, behavior := range []watch.FullChannelBehavior{watch.WaitIfChannelFull, watch.DropIfChannelFull} {
		noLeak(t)
		m := watch.NewBroadcaster[int](40, behavior)
		w, err := m.Watch()
		check(t, err)
		for i := range 40 {
			check(t, m.Action(watch.Added, i))
		}
		expected := 0
		loop := func(most int) {
			for e := range w.All(bounded.Context(t)) {
				want(t, "object", e.Object, expected)
				if expected++; expected == most {
					break
				}
			}
		}
		loop(3)
		loop(18)
		func() {
			defer func() { want(t, "panic", fmt.Sprint(recover()), "in the loop") }()
			for e := range w.All(bounded.Context(t)) {
				want(t, "object", e.Object, expected)
				expected++
				panic("in the loop")
			}
		}()
		want(t, "object", take(t, w).Object, expected)
		expected++
		loop(expected + 2)
		if behavior == watch.WaitIfChannelFull {
			// 40 and 26 places from the first that was not taken, which is 22.
			ahead := 0
			for ok := true; ok; ahead++ {
				ok, err = m.ActionOrDrop(watch.Added, 40+ahead)
				check(t, err)
			}
			want(t, "published", m.Revision(), 22+40+26)
		}
		m.Shutdown()
		results := rest(t, w.ResultChan())
		for _, e := range results {
			want(t, "object", e.Object, expected)
			expected++
		}
		want(t, "all", uint64(expected), m.Revision())
		want(t, "dropped", w.Dropped(), 0)
	}
}

// What was published before a Stop can be read behind it, and nothing else.
func TestBroadcasterNothingBehindStop(t *testing.T) {
	for _, behavior := range []watch.FullChannelBehavior{watch.WaitIfChannelFull, watch.DropIfChannelFull} {
		for _, channel := range []bool{false, true} {
			noLeak(t)
			m := watch.NewBroadcaster[int](5, behavior)
			w, err := m.Watch()
			check(t, err)
			for i := range 3 {
				check(t, m.Action(watch.Added, i))
			}
			w.Stop()
			for i := range 3 {
				check(t, m.Action(watch.Added, 100+i))
			}
			if channel {
				w.ResultChan()
			}
			for i := range 3 {
				want(t, "before the Stop", take(t, w).Object, i)
			}
			ends(t, w)
		}
	}
}
