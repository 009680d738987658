package watchcore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"watchcore"
	"watchcore/internal/bounded"
)

// view is what a consumer makes of its events.
type view struct {
	t     testing.TB
	shown map[string]uint64 // by key, the revision of the value
	marks []watchcore.ResyncMark
	lost  []*watchcore.Error
}

// follow reads what there is now, and checks that the types fit what was shown.
func (v *view) follow(sub *watchcore.Subscription) {
	v.t.Helper()
	for {
		batch, err := sub.Poll(0)
		var lagged *watchcore.Error
		if errors.Is(err, watchcore.ErrLagged) && errors.As(err, &lagged) {
			v.lost = append(v.lost, lagged)
			continue
		}
		check(v.t, err)
		if batch == nil {
			return
		}
		for e := range batch.Events() {
			v.see(e)
		}
		batch.Release()
	}
}

func (v *view) see(e watchcore.Event) {
	v.t.Helper()
	key := e.Key()
	before, there := v.shown[key]
	switch e.Type {
	case watchcore.EventAdded, watchcore.EventModified:
		if there != (e.Type == watchcore.EventModified) || e.ModRevision() < before {
			v.t.Fatalf("%s: shown was %d, %v", text(e), before, there)
		}
		v.shown[key] = e.ModRevision()
	case watchcore.EventDeleted:
		if !there {
			v.t.Fatalf("%s was never shown", text(e))
		}
		delete(v.shown, key)
	case watchcore.EventResync:
		v.marks = append(v.marks, e.Resync())
	}
}

// equals compares with the cache's own state.
func (v *view) equals(cache *watchcore.Cache) {
	v.t.Helper()
	page, err := cache.List(bounded.Context(v.t), watchcore.RangeAll(), watchcore.ListOptions{})
	check(v.t, err)
	defer page.Release()
	want(v.t, "keys", len(v.shown), page.Len())
	for item := range page.All() {
		want(v.t, item.Key(), v.shown[item.Key()], item.ModRevision())
	}
}

// lapped is a small cache, and a subscription that has read its state and then
// fallen behind the window.
func lapped(t *testing.T, policy watchcore.LagPolicy) (*watchcore.Cache, *watchcore.Writer, *watchcore.Subscription, *view) {
	t.Helper()
	cache, writer := embedded(t, watchcore.Config{Capacity: 128})
	check(t, writer.Apply(1, watchcore.Put("/gone", ""), watchcore.Put("/kept", ""), watchcore.Put("/n/0", "")))
	sub := subscribe(t, cache, watchcore.SubscribeOptions{OnLag: policy})
	v := &view{t: t, shown: map[string]uint64{}}
	v.follow(sub)
	v.equals(cache)
	check(t, writer.Apply(2, watchcore.Delete("/gone")))
	writeOn(t, cache, writer, 1000)
	return cache, writer, sub, v
}

func writeOn(t testing.TB, cache *watchcore.Cache, writer *watchcore.Writer, revisions int) {
	t.Helper()
	from := cache.Position().Revision
	for i := range revisions {
		check(t, writer.Apply(from+uint64(i)+1, watchcore.Put(fmt.Sprintf("/n/%d", i%50), "")))
	}
}

func lostOnce(t *testing.T, v *view, cache *watchcore.Cache, from uint64) {
	t.Helper()
	want(t, "losses that were told", len(v.lost), 1)
	lost := v.lost[0]
	want(t, "first lost", lost.LostFrom, from)
	want(t, "current", lost.Current, cache.Position().Revision)
	want(t, "oldest", lost.Oldest, cache.Status().Oldest)
	if lost.LostTo < lost.LostFrom || lost.LostTo > lost.Current {
		t.Fatalf("numbers that cannot be: %+v", *lost)
	}
}

func TestSkipToOldest(t *testing.T) {
	cache, _, sub, v := lapped(t, watchcore.LagSkipToOldest)
	_, err := sub.Next(bounded.Context(t))
	wantError(t, "lagged", err, watchcore.ErrLagged)
	v.lost = append(v.lost, err.(*watchcore.Error))
	lostOnce(t, v, cache, 2)
	batch, err := sub.Next(bounded.Context(t))
	check(t, err)
	want(t, "it goes on at the oldest", batch.At(0).Revision, v.lost[0].Oldest)
	batch.Release()
	for sub.Position() != cache.Position() {
		batch, err := sub.Next(bounded.Context(t))
		check(t, err)
		batch.Release()
	}
	want(t, "losses in its figures", sub.Stats().Lagged, 1)
	want(t, "losses in the cache's figures", cache.Stats().Lagged, 1)
}

func TestResnapshot(t *testing.T) {
	cache, writer, sub, v := lapped(t, watchcore.LagResnapshot)
	for round := range uint64(3) { // also again, after it has caught up
		position := sub.Position().Revision
		v.lost, v.marks = nil, nil
		v.follow(sub)
		lostOnce(t, v, cache, position+1)
		v.equals(cache)
		want(t, "marks", len(v.marks), 2)
		want(t, "begin", v.marks[0].Phase, watchcore.ResyncBegin)
		want(t, "end", v.marks[1].Phase, watchcore.ResyncEnd)
		want(t, "reason", v.marks[0].Reason, watchcore.ReasonLagged)
		want(t, "position", sub.Position(), cache.Position())
		want(t, "losses in its figures", sub.Stats().Lagged, round+1)
		writeOn(t, cache, writer, 1000)
	}
	v.follow(sub)
	stats := sub.Stats()
	want(t, "keys remembered", stats.DeliveredKeys, 51)
	if stats.DeliveredBytes == 0 {
		t.Errorf("their memory is not shown: %+v", stats)
	}
	want(t, "the sum of it", cache.Stats().DeliveredBytes, stats.DeliveredBytes)
	want(t, "links that wait", cache.Stats().LinkBytes, 0)
}

// Who began in the middle is taken to know the state there, and nothing else.
func TestShownAtTheStart(t *testing.T) {
	for name, start := range map[string]watchcore.Start{"now": watchcore.StartNow(), "after": watchcore.StartAfter(2)} {
		t.Run(name, func(t *testing.T) {
			cache, writer := embedded(t, watchcore.Config{Capacity: 128})
			check(t, writer.Apply(1, watchcore.Put("/gone", ""), watchcore.Put("/kept", "")))
			check(t, writer.Apply(2, watchcore.Put("/changed", "")))
			sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: start, OnLag: watchcore.LagResnapshot})
			v := &view{t: t, shown: map[string]uint64{"/gone": 1, "/kept": 1, "/changed": 2}}
			check(t, writer.Apply(3, watchcore.Delete("/gone"), watchcore.Put("/changed", ""), watchcore.Put("/made", "")))
			writeOn(t, cache, writer, 1000)
			v.follow(sub) // it checks that the types fit
			lostOnce(t, v, cache, 3)
			v.equals(cache)
			want(t, "events: one is gone, one changed, one made, fifty written, two marks", sub.Stats().HandedOut, 55)
		})
	}
}

// The state of a start that this cache has lost before it was seen: no difference leads from there to the state now.
func TestStartThatLeft(t *testing.T) {
	for name, policy := range map[string]watchcore.LagPolicy{"resnapshot": watchcore.LagResnapshot, "conflate": watchcore.LagConflate} {
		t.Run(name, func(t *testing.T) {
			cache, writer := embedded(t, watchcore.Config{Capacity: 128})
			check(t, writer.Apply(10, watchcore.Put("/old", "")))
			sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartAfter(20), OnLag: policy})
			check(t, writer.Apply(15, watchcore.Delete("/old")))
			writeOn(t, cache, writer, 1000)
			_, err := sub.Poll(0)
			wantError(t, "its start has left", err, watchcore.ErrLagged)
			want(t, "first lost", err.(*watchcore.Error).LostFrom, 21)
			_, err = sub.Poll(0)
			wantError(t, "then", err, watchcore.ErrClosed)
		})
	}
}

func TestConflate(t *testing.T) {
	cache, writer, sub, v := lapped(t, watchcore.LagConflate)
	for range 3 {
		v.follow(sub)
		v.equals(cache)
		writeOn(t, cache, writer, 1000)
	}
	want(t, "losses that were told", len(v.lost), 0)
	want(t, "marks", len(v.marks), 0)
	want(t, "losses in its figures", sub.Stats().Lagged, 3)
	// While it keeps up it sees every event.
	v.follow(sub)
	before := sub.Stats().HandedOut
	writeOn(t, cache, writer, 100)
	v.follow(sub)
	want(t, "events while it keeps up", sub.Stats().HandedOut-before, 100)
}

func TestBatchesGoOnBehindALoss(t *testing.T) {
	cache, _, sub, v := lapped(t, watchcore.LagResnapshot)
	for batch, err := range sub.Batches(bounded.Context(t)) {
		if errors.Is(err, watchcore.ErrLagged) {
			v.lost = append(v.lost, err.(*watchcore.Error))
			continue
		}
		check(t, err)
		for e := range batch.Events() {
			v.see(e)
		}
		if sub.Position() == cache.Position() {
			break
		}
	}
	lostOnce(t, v, cache, 2)
	v.equals(cache)
}

func TestMaximumLag(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{Capacity: 128})
	behind := func(events uint64, age time.Duration) *watchcore.Subscription {
		return subscribe(t, cache, watchcore.SubscribeOptions{
			Start: watchcore.StartNow(), OnLag: watchcore.LagConflate, MaxLagEvents: events, MaxLagAge: age,
		})
	}
	events, age, none := behind(10, 0), behind(0, time.Millisecond), behind(0, 0)
	writeOn(t, cache, writer, 11)
	_, err := events.Next(bounded.Context(t))
	wantError(t, "events", err, watchcore.ErrLagged)
	// The age is looked at four times a second: a poll that comes before that is served.
	bounded.Eventually(t, "too old", func() bool {
		bounded.Eventually(t, "the lag has an age", func() bool { return age.Lag().Age > 300*time.Millisecond })
		batch, err := age.Poll(0)
		if batch != nil {
			batch.Release()
			writeOn(t, cache, writer, 1)
		}
		return errors.Is(err, watchcore.ErrLagged)
	})
	for name, sub := range map[string]*watchcore.Subscription{"events": events, "age": age} {
		_, err = sub.Next(bounded.Context(t))
		wantError(t, name+", behind it", err, watchcore.ErrClosed)
	}
	batch, err := none.Next(bounded.Context(t))
	check(t, err)
	if batch.Len() < 11 {
		t.Fatalf("%d events without a maximum", batch.Len())
	}
	batch.Release()

	for name, options := range map[string]watchcore.SubscribeOptions{
		"a policy": {OnLag: 99},
		"an age":   {MaxLagAge: -time.Second},
	} {
		_, err := cache.Subscribe(context.Background(), options)
		wantError(t, name, err, watchcore.ErrInvalidArgument)
	}
	for policy, name := range map[watchcore.LagPolicy]string{watchcore.LagStop: "Stop", watchcore.LagSkipToOldest: "SkipToOldest",
		watchcore.LagResnapshot: "Resnapshot", watchcore.LagConflate: "Conflate", 99: "LagPolicy(99)"} {
		want(t, "name", policy.String(), name)
	}
}

// The figures are there from any goroutine, also while another one sleeps in Next.
func TestStatsOfASubscription(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	end := make(chan uint64)
	go func() {
		seen := uint64(0)
		for batch, err := range sub.Batches(context.Background()) {
			if err != nil {
				t.Error(err)
			}
			seen += uint64(batch.Len())
		}
		end <- seen
	}()
	for revision := uint64(1); revision <= 1000; revision++ {
		check(t, writer.Apply(revision, watchcore.Put("/a", "")))
		if handed := sub.Stats().HandedOut; handed > revision {
			t.Fatalf("%d events of %d were handed out", handed, revision)
		}
	}
	bounded.Eventually(t, "all is handed out", func() bool { return sub.Stats().HandedOut == 1000 })
	want(t, "read path", sub.Stats().ReadPath, watchcore.ReadPathScan)
	cache.Close()
	want(t, "events", <-end, 1000)
	sub.Close()
	want(t, "figures of a closed subscription", sub.Stats(), watchcore.SubscriptionStats{})
}
