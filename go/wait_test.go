package watchcore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

func TestCancelledContextEndsNext(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})

	done, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := sub.Next(done)
	wantError(t, "a context that is done", err, context.Canceled)

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		_, err := sub.Next(ctx)
		ended <- err
	}()
	bounded.Eventually(t, "it sleeps", func() bool { return cache.Stats().Waiting == 1 })
	cancel()
	wantError(t, "a context cancelled meanwhile", bounded.Receive(t, "the end of the wait", ended), context.Canceled)

	check(t, writer.Apply(1, watchcore.Put("/a", "1")))
	_, err = sub.Next(done)
	wantError(t, "a context that is done, with events there", err, context.Canceled)
	want(t, "nothing was lost", drain(t, sub), "1 ADDED /a 1<-")

	for batch, err := range sub.Batches(done) {
		want(t, "batch beside an error", batch, nil)
		want(t, "error", err, context.Canceled)
	}
}

// The tag of one that sleeps is listed when it is closed, and dropped when it is freed. In between the waker may have seen it.
func TestSleeperIsWokenThoughManyOthersEnd(t *testing.T) {
	const rounds, others = 100, 500
	cache, writer := embedded(t)
	for revision := range uint64(rounds) {
		ctx, cancel := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		for range others {
			sub, err := cache.Subscribe(ctx, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
			check(t, err)
			ended.Go(func() { sub.Next(context.Background()) })
		}
		sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
		woken := make(chan error, 1)
		go func() {
			batch, err := sub.Next(context.Background())
			batch.Release()
			woken <- err
		}()
		bounded.Eventually(t, "all sleep", func() bool { return cache.Stats().Waiting == others+1 })
		cancel()
		ended.Wait()
		check(t, writer.Apply(revision+1, watchcore.Put("/a", "value")))
		check(t, bounded.Receive(t, "who sleeps on", woken))
		sub.Close()
	}
}

func TestContextOfSubscribeEndsIt(t *testing.T) {
	cache, _ := embedded(t)
	ctx, cancel := context.WithCancel(context.Background())
	sub, err := cache.Subscribe(ctx, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	check(t, err)
	ended := make(chan error)
	go func() {
		_, err := sub.Next(context.Background())
		ended <- err
	}()
	bounded.Eventually(t, "it sleeps", func() bool { return cache.Stats().Waiting == 1 })
	cancel()
	wantError(t, "next", bounded.Receive(t, "the end of the wait", ended), context.Canceled)
	_, err = sub.Poll(0)
	wantError(t, "poll", err, context.Canceled)
	bounded.Eventually(t, "it is closed in the library", func() bool { return cache.Stats().Subscriptions == 0 })
	_, err = cache.Subscribe(ctx, watchcore.SubscribeOptions{})
	wantError(t, "subscribe with a context that is done", err, context.Canceled)
}

func TestCloseEndsNext(t *testing.T) {
	cache, writer := embedded(t)
	check(t, writer.Apply(4, watchcore.Put("/a", "")))
	sub := subscribe(t, cache)
	drain(t, sub)
	ended := make(chan error)
	go func() {
		_, err := sub.Next(context.Background())
		ended <- err
	}()
	bounded.Eventually(t, "it sleeps", func() bool { return cache.Stats().Waiting == 1 })
	sub.Close()
	sub.Close()
	wantError(t, "next", bounded.Receive(t, "the end of the wait", ended), watchcore.ErrClosed)
	want(t, "position of a closed one", sub.Position(), cache.Position())
	want(t, "lag of a closed one", sub.Lag(), watchcore.Lag{})
	bounded.Eventually(t, "it is closed in the library", func() bool { return cache.Stats().Subscriptions == 0 })
}

func TestWaitUntilEndsWithItsContext(t *testing.T) {
	cache, _ := embedded(t)
	check(t, cache.WaitUntil(bounded.Context(t), 0))
	short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	want(t, "a revision that does not come", cache.WaitUntil(short, 9), context.DeadlineExceeded)
	cache.Close()
	wantError(t, "a wait on a closed cache", cache.WaitUntil(context.Background(), 1), watchcore.ErrClosed)
}

func TestCancelledReads(t *testing.T) {
	cache, _ := embedded(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		_, _, err := cache.Get(ctx, "/a", watchcore.ReadOptions{Read: watchcore.ReadAtLeast(99)})
		ended <- err
	}()
	bounded.Eventually(t, "it sleeps", func() bool { return cache.Stats().Waiting == 1 })
	cancel()
	want(t, "a read that slept", bounded.Receive(t, "the end of the read", ended), context.Canceled)
	_, _, err := cache.Get(ctx, "/a", watchcore.ReadOptions{})
	wantError(t, "a read that need not wait", err, context.Canceled)
}

// The limit of a read's own wait says what was asked and what is there, also where the
// context ends later; one that ends earlier is the context's error, bare.
func TestReadsEndByThemselves(t *testing.T) {
	t.Parallel()
	cache, writer := embedded(t)
	check(t, writer.Apply(1, watchcore.Put("/a", "1")))
	late := func(what string, err error) {
		t.Helper()
		wantError(t, what, err, watchcore.ErrFutureRevision)
		var numbers *watchcore.Error
		errors.As(err, &numbers)
		want(t, what+": asked", numbers.Asked, 99)
		want(t, what+": current", numbers.Current, 1)
	}
	future := watchcore.ReadAtLeast(99)
	_, _, err := cache.Get(context.Background(), "/a", watchcore.ReadOptions{Read: future}) // DefaultWaitTimeout
	late("without a deadline", err)
	_, _, err = cache.Get(bounded.Context(t), "/a", watchcore.ReadOptions{Read: future, WaitTimeout: time.Millisecond})
	late("get", err)
	_, _, err = cache.Count(bounded.Context(t), watchcore.RangeAll(), watchcore.ReadOptions{Read: future, WaitTimeout: time.Millisecond})
	late("count", err)
	_, err = cache.List(bounded.Context(t), watchcore.RangeAll(), watchcore.ListOptions{Read: future, WaitTimeout: time.Millisecond})
	late("list", err)

	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	for _, limit := range []time.Duration{bounded.Bound, -1} {
		_, _, err = cache.Get(ctx, "/a", watchcore.ReadOptions{Read: future, WaitTimeout: limit})
		want(t, "the context ends first", err, context.DeadlineExceeded)
	}
}

func threads(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Skipf("no list of threads here: %v", err)
	}
	return len(entries)
}

// 10,000 goroutines that wait, for events and for revisions, and no thread more
// than before.
func TestWaitingCostsNoThread(t *testing.T) {
	const subscriptions, waiters = 10_000, 1_000
	cache, writer := embedded(t)
	// The threads that exist anyway: the first wait starts the library's and the
	// waker, the first garbage collection its own.
	first := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	check(t, writer.Apply(1, watchcore.Put("/a", "")))
	oneBatch(t, first).Release()
	first.Close()
	runtime.GC()
	before := threads(t)

	ctx := bounded.Context(t)
	var all sync.WaitGroup
	failures := make(chan error, subscriptions+waiters)
	for range subscriptions {
		sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
		all.Go(func() {
			batch, err := sub.Next(ctx)
			if err == nil && text(batch.At(0)) != "2 MODIFIED /a last<" {
				err = fmt.Errorf("it got %s", text(batch.At(0)))
			}
			batch.Release()
			failures <- err
		})
	}
	for range waiters {
		all.Go(func() { failures <- cache.WaitUntil(ctx, 2) })
	}
	bounded.Eventually(t, "all sleep", func() bool { return cache.Stats().Waiting == subscriptions+waiters })
	// A few more may come at any time: the runtime starts one where a call is slow.
	if now := threads(t); now > before+30 {
		t.Errorf("%d threads while %d goroutines wait, %d before", now, subscriptions+waiters, before)
	}
	start := time.Now()
	check(t, writer.Apply(2, watchcore.Put("/a", "last")))
	all.Wait()
	t.Logf("woken in %v, %d threads before, %d after", time.Since(start), before, threads(t))
	if now := threads(t); now > before+30 {
		t.Errorf("%d threads after the waking, %d before", now, before)
	}
	close(failures)
	for err := range failures {
		check(t, err)
	}
}

// Writers, consumers, readers and closers at once: what the race detector is for.
func TestManyGoroutines(t *testing.T) {
	const consumers, revisions = 16, 2_000
	cache, writer := embedded(t)
	ctx := bounded.Context(t)
	var all sync.WaitGroup
	for i := range consumers {
		sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartState(), MaxBatch: 1 + i*7})
		all.Go(func() {
			var last uint64
			for batch, err := range sub.Batches(ctx) {
				if err != nil {
					t.Error(err)
					return
				}
				for e := range batch.Events() {
					if e.EndsInitialState() {
						continue
					}
					if e.Revision != last+1 {
						t.Errorf("revision %d follows %d", e.Revision, last)
						return
					}
					last = e.Revision
				}
				sub.Lag()
				if last == revisions {
					return
				}
			}
			t.Errorf("it ended at %d", last)
		})
		all.Go(func() { // one that is closed in the middle
			other := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
			all.Go(func() {
				for batch := range other.Batches(ctx) {
					batch.Clone()
				}
			})
			if err := cache.WaitUntil(ctx, revisions/2); err != nil {
				t.Error(err)
			}
			other.Position()
			other.Close()
		})
	}
	all.Go(func() {
		for revision := uint64(1); revision <= revisions; revision++ {
			if err := writer.Apply(revision, watchcore.Put("/a", "x")); err != nil {
				t.Error(err)
			}
			if kv, at, err := cache.Get(ctx, "/a", watchcore.ReadOptions{Read: watchcore.ReadAtLeast(revision)}); err != nil || at < revision || kv == nil {
				t.Errorf("get at %d: %v at %d, %v", revision, kv, at, err)
			}
		}
	})
	all.Wait()
	bounded.Eventually(t, "only the 16 are open", func() bool { return cache.Stats().Subscriptions == consumers })
	want(t, "batches held", cache.Stats().UnreleasedBatches, 0)
}
