package watchcore_test

import (
	"context"
	"runtime"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

func TestResultChan(t *testing.T) {
	cache, writer := embedded(t)
	check(t, writer.Apply(1, watchcore.Put("/a", "1")))
	sub := subscribe(t, cache)
	results := sub.ResultChan()
	want(t, "a second call", sub.ResultChan(), results)
	_, err := sub.Poll(0)
	wantError(t, "poll beside it", err, watchcore.ErrBusy)
	check(t, writer.Apply(2, watchcore.Put("/a", "2")))
	var kept []watchcore.EventResult
	for range 3 {
		kept = append(kept, <-results)
	}
	churn(t, writer, 2, 100)
	sub.Stop()
	sub.Stop()
	for range results { // closed, also with events unread
	}
	runtime.GC()
	for i, expected := range []string{"1 ADDED /a 1<- initial", "1 BOOKMARK end", "2 MODIFIED /a 2<1"} {
		check(t, kept[i].Err)
		want(t, "event", text(kept[i].Event), expected)
	}
	bounded.Eventually(t, "nothing is held", func() bool {
		stats := cache.Stats()
		return stats.UnreleasedBatches == 0 && stats.Subscriptions == 0
	})
}

func TestResultChanEnds(t *testing.T) {
	cache, writer := embedded(t)
	ctx, cancel := context.WithCancel(context.Background())
	sub, err := cache.Subscribe(ctx, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	check(t, err)
	results := sub.ResultChan()
	cancel()
	for result := range results {
		t.Fatalf("a result after the context was done: %+v", result)
	}

	stopping := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow(), StopOnResync: true})
	results = stopping.ResultChan()
	_, err = writer.Resync(5, nil, watchcore.ReasonRequested)
	check(t, err)
	result := <-results
	wantError(t, "the error", result.Err, watchcore.ErrResynced)
	for result := range results {
		t.Fatalf("a result behind the error: %+v", result)
	}

	last := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	results = last.ResultChan()
	check(t, writer.Apply(6, watchcore.Put("/a", "1")))
	cache.Close()
	want(t, "what was left", text((<-results).Event), "6 ADDED /a 1<-")
	for result := range results {
		t.Fatalf("a result behind the end: %+v", result)
	}

	closed := subscribe(t, mustNew(t), watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	closed.Close()
	for result := range closed.ResultChan() {
		t.Fatalf("a result of a closed subscription: %+v", result)
	}
}

func mustNew(t testing.TB) *watchcore.Cache {
	cache, _ := embedded(t)
	return cache
}
