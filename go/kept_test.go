//go:build !debug

package watchcore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

// held is how many segments are kept that are no longer the log's.
func held(cache *watchcore.Cache) uint64 {
	stats := cache.Stats()
	return stats.Segments - stats.WindowSegments
}

// What a released batch held is freed with the next poll, also with one that fails, or
// with the end of its subscription.
func TestReleasedBatchGoesBack(t *testing.T) {
	for name, end := range map[string]func(*watchcore.Subscription){
		"poll": func(sub *watchcore.Subscription) {
			batch, err := sub.Poll(0) // the rest of the segment that it reads
			for ; batch != nil; batch, err = sub.Poll(0) {
				batch.Release()
			}
			wantError(t, "poll of a place that has left", err, watchcore.ErrLagged)
		},
		"close": (*watchcore.Subscription).Stop,
	} {
		t.Run(name, func(t *testing.T) {
			cache, writer := embedded(t, watchcore.Config{Capacity: 1024})
			sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
			check(t, writer.Apply(1, watchcore.Put("/a", "")))
			batch := oneBatch(t, sub)
			churn(t, writer, 1, 20_000)
			bounded.Eventually(t, "it keeps its segment", func() bool { return held(cache) == 1 })
			batch.Release()
			want(t, "unreleased", cache.Stats().UnreleasedBatches, 0)
			end(sub)
			bounded.Eventually(t, "the segment is gone", func() bool { return held(cache) == 0 })
			batch.Release()
			panics(t, "a released batch", func() { batch.At(0) })
		})
	}
}

// A subscription whose consumer sleeps keeps no batch for the next poll.
func TestSleepingSubscriptionHoldsNoBatch(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{Capacity: 1024})
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow(), Range: watchcore.RangeKey("/mine"), OnLag: watchcore.LagSkipToOldest})
	check(t, writer.Apply(1, watchcore.Put("/mine", "")))
	oneBatch(t, sub).Release()
	ended := make(chan error)
	go func() {
		for {
			_, err := sub.Next(context.Background())
			if !errors.Is(err, watchcore.ErrLagged) {
				ended <- err
				return
			}
		}
	}()
	bounded.Eventually(t, "it sleeps", func() bool { return cache.Stats().Waiting == 1 })
	for revision := uint64(1); revision < 3000; {
		revision = churn(t, writer, revision, 100)
		bounded.Eventually(t, "it sleeps again", func() bool { return cache.Stats().Waiting == 1 })
	}
	bounded.Eventually(t, "nothing is held", func() bool { return held(cache) == 0 })
	sub.Close()
	wantError(t, "next", bounded.Receive(t, "next", ended), watchcore.ErrClosed)
}

// A batch that keeps key-values of a state does not wait for the next poll.
func TestReleasedInitialStateGoesBackAtOnce(t *testing.T) {
	cache, writer := embedded(t)
	for i := range uint64(20) {
		check(t, writer.Apply(i+1, watchcore.Put(fmt.Sprintf("/%02d", i), "")))
	}
	sub := subscribe(t, cache)
	batch := oneBatch(t, sub)
	want(t, "batches that keep a state", cache.Stats().Pages, 1)
	batch.Release()
	want(t, "batches that keep a state", cache.Stats().Pages, 0)
}

// Batches are released by other goroutines while their subscription polls, and closes.
func TestReleasesBesidePolls(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{Capacity: 1024})
	for round := range uint64(20) {
		sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
		var all sync.WaitGroup
		for i := range uint64(100) {
			check(t, writer.Apply(round*100+i+1, watchcore.Put("/a", "value")))
			batch := oneBatch(t, sub)
			for range 2 {
				all.Go(batch.Release)
			}
			all.Go(func() {
				defer func() { recover() }() // too late: that is what it says then
				if value := string(batch.At(0).Value()); value != "value" {
					t.Errorf("a value that is not the event's: %q", value)
				}
			})
			all.Go(func() { cache.Stats() })
		}
		sub.Close()
		all.Wait()
	}
	want(t, "unreleased", cache.Stats().UnreleasedBatches, 0)
	churn(t, writer, 2000, 20_000)
	bounded.Eventually(t, "nothing is held", func() bool { return held(cache) == 0 })
}

// In debug a view is of a copy.
func TestGetViewAllocatesNothing(t *testing.T) {
	cache, writer := embedded(t)
	check(t, writer.Apply(1, watchcore.Put("/a", strings.Repeat("v", 100_000))))
	ctx, length := context.Background(), 0
	view := func(kv watchcore.KeyValue) { length = len(kv.Value) }
	want(t, "allocations", testing.AllocsPerRun(100, func() { cache.GetView(ctx, "/a", watchcore.ReadOptions{}, view) }), 0)
	want(t, "length", length, 100_000)
}

// The place of a released batch is the next one's; what the program still has of it comes late, and
// changes nothing of the next one.
func TestReleasedBatchIsNotTheNextOne(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	var before *watchcore.Batch
	var event watchcore.Event
	for revision := uint64(1); revision <= 10; revision++ {
		value := strings.Repeat("v", int(revision))
		check(t, writer.Apply(revision, watchcore.Put("/a", value)))
		batch := oneBatch(t, sub)
		if before != nil {
			for what, use := range lateUses(before, event) {
				panics(t, what+" of the batch before", use)
			}
			before.Release()
			want(t, "position of the batch before", before.Position().Revision, revision-1)
			want(t, "events of it", event.Revision, revision-1)
		}
		want(t, "unreleased", cache.Stats().UnreleasedBatches, 1)
		event = batch.At(0)
		want(t, "value", string(event.ValueView()), value)
		want(t, "copy", string(event.Value()), value)
		batch.Release()
		before = batch
	}
	want(t, "unreleased", cache.Stats().UnreleasedBatches, 0)
}

// A batch that is not released when its subscription polls keeps its place, also while that goes on.
func TestUnreleasedBatchKeepsItsPlace(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	var all []*watchcore.Batch
	for revision := uint64(1); revision <= 20; revision++ {
		check(t, writer.Apply(revision, watchcore.Put("/a", valueOf(int(revision)))))
		batch := oneBatch(t, sub)
		if revision%3 == 0 {
			batch.Release()
		} else {
			all = append(all, batch)
		}
	}
	for _, batch := range all {
		event := batch.At(0)
		want(t, "value", string(event.Value()), valueOf(int(event.Revision)))
		batch.Release()
		panics(t, "a released batch", func() { event.Key() })
	}
	want(t, "unreleased", cache.Stats().UnreleasedBatches, 0)
}

// Events of earlier batches are asked by other goroutines while their place is lent again and again.
func TestLateEventsBesidePolls(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{Capacity: 1024})
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	events, done := make(chan watchcore.Event, 8), sync.WaitGroup{}
	for range 4 {
		done.Go(func() {
			for event := range events {
				func() {
					defer func() { recover() }() // too late: that is what it says then
					if value := string(event.Value()); value != valueOf(int(event.Revision)) {
						t.Errorf("the value of revision %d is %q", event.Revision, value)
					}
				}()
			}
		})
	}
	for revision := uint64(1); revision <= 5000; revision++ {
		check(t, writer.Apply(revision, watchcore.Put("/a", valueOf(int(revision)))))
		batch := oneBatch(t, sub)
		event := batch.At(0)
		for range 4 {
			events <- event
		}
		want(t, "value", string(event.Value()), valueOf(int(revision)))
		batch.Release()
	}
	close(events)
	done.Wait()
	want(t, "unreleased", cache.Stats().UnreleasedBatches, 0)
	churn(t, writer, 5000, 20_000)
	bounded.Eventually(t, "at most the last one is held", func() bool { return held(cache) <= 1 })
	sub.Close()
	bounded.Eventually(t, "nothing is held", func() bool { return held(cache) == 0 })
}

// A poll makes a batch, and nothing else.
func TestPollAllocatesABatch(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	revision := uint64(0)
	poll := func() {
		revision++
		check(t, writer.Apply(revision, watchcore.Put("/a", "value")))
		batch, err := sub.Poll(0)
		check(t, err)
		for event := range batch.Events() {
			event.KeyView()
		}
		batch.Release()
	}
	poll()
	want(t, "allocations", testing.AllocsPerRun(100, poll), 1)
}

// Pages and batches of an initial state keep what they show, and nothing of the log.
func TestPagesKeepNothingOfTheLog(t *testing.T) {
	for _, objects := range []uint64{1, 8, 9, 40} {
		cache, writer := embedded(t, watchcore.Config{Capacity: 128})
		for i := range objects {
			check(t, writer.Apply(i+1, watchcore.Put(fmt.Sprintf("/%02d", i), "1")))
		}
		page, err := cache.List(bounded.Context(t), watchcore.Range{}, watchcore.ListOptions{})
		check(t, err)
		sub := subscribe(t, cache)
		batch := oneBatch(t, sub)
		many := uint64(0)
		if objects > 8 {
			many = 2
		}
		want(t, "pages", cache.Stats().Pages, many)
		revision := objects
		for range 100 {
			for i := range objects {
				revision++
				check(t, writer.Apply(revision, watchcore.Put(fmt.Sprintf("/%02d", i), "2")))
			}
		}
		for range 500 {
			revision++
			check(t, writer.Apply(revision, watchcore.Put("/other", "2")))
		}
		bounded.Eventually(t, "the log is let go", func() bool { return cache.Stats().KeptBytes == 0 })
		want(t, "something is older than the window", cache.Stats().PageBytes > 0, many > 0)
		for item := range page.All() {
			want(t, "value", string(item.Value()), "1")
		}
		for i := range objects {
			want(t, "value", string(batch.At(int(i)).Value()), "1")
		}
		page.Release()
		batch.Release()
		stats := cache.Stats()
		want(t, "pages", stats.Pages, 0)
		want(t, "their bytes", stats.PageBytes, 0)
		want(t, "snapshots", stats.Snapshots, 0)
	}
}
