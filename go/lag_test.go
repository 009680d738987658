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
	want(t, "what it had", watchcore.Position{Epoch: lost.Epoch, Revision: lost.Position},
		watchcore.Position{Epoch: cache.Position().Epoch, Revision: from - 1})
	if lost.LostTo < lost.LostFrom || lost.LostTo > lost.Current {
		t.Fatalf("numbers that cannot be: %+v", *lost)
	}
}

// Losses and the memory of delivered keys are figures of the subscription and of its cache.
func TestFiguresOfALoss(t *testing.T) {
	cache, _, sub, v := lapped(t, watchcore.LagResnapshot)
	v.follow(sub)
	lostOnce(t, v, cache, 2)
	v.equals(cache)
	want(t, "marks", len(v.marks), 2)
	stats := sub.Stats()
	want(t, "losses in its figures", stats.Lagged, 1)
	want(t, "losses in the cache's figures", cache.Stats().Lagged, 1)
	want(t, "delivered keys", stats.DeliveredKeys, 51)
	want(t, "their memory is shown", stats.DeliveredBytes > 0, true)
	want(t, "the sum of it", cache.Stats().DeliveredBytes, stats.DeliveredBytes)
	want(t, "links that wait", cache.Stats().LinkBytes, 0)
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

func TestMaximumLagAge(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{Capacity: 128})
	age := subscribe(t, cache, watchcore.SubscribeOptions{
		Start: watchcore.StartNow(), OnLag: watchcore.LagConflate, MaxLagAge: time.Millisecond})
	writeOn(t, cache, writer, 11)
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
	_, err := age.Next(bounded.Context(t))
	wantError(t, "after its end", err, watchcore.ErrClosed)

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
