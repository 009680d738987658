package watchcore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

func writeOn(t testing.TB, cache *watchcore.Cache, writer *watchcore.Writer, revisions int) {
	t.Helper()
	from := cache.Position().Revision
	for i := range revisions {
		check(t, writer.Apply(from+uint64(i)+1, watchcore.Put(fmt.Sprintf("/n/%d", i%50), "")))
	}
}

// A loop over batches goes on behind a loss, which is a statistic of the subscription and of its cache.
func TestBatchesGoOnBehindALoss(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{Capacity: 128})
	sub := subscribe(t, cache, watchcore.SubscribeOptions{OnLag: watchcore.LagResnapshot})
	drain(t, sub)
	churn(t, writer, 0, 1000)
	var got []string
	for batch, err := range sub.Batches(bounded.Context(t)) {
		if errors.Is(err, watchcore.ErrLagged) {
			got = append(got, "LAGGED")
			continue
		}
		check(t, err)
		for e := range batch.Events() {
			got = append(got, e.Type.String())
		}
		if sub.Position() == cache.Position() {
			break
		}
	}
	want(t, "events", lines(got...), lines("LAGGED", "RESYNC", "ADDED", "RESYNC"))
	stats := sub.Stats()
	want(t, "losses in its statistics", stats.Lagged, 1)
	want(t, "losses in the cache's statistics", cache.Stats().Lagged, 1)
	want(t, "delivered keys", stats.DeliveredKeys, 1)
	want(t, "their memory is shown", stats.DeliveredBytes > 0, true)
	want(t, "the sum of it", cache.Stats().DeliveredBytes, stats.DeliveredBytes)
	want(t, "links that wait", cache.Stats().LinkBytes, 0)
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

// The statistics are there from any goroutine, also while another one sleeps in Next.
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
	want(t, "statistics of a closed subscription", sub.Stats(), watchcore.SubscriptionStats{})
}
