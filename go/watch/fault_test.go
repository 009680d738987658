package watch_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/watch"
)

// In the original ActionOrDrop waits for the lock of an Action that waits.
func TestFaultActionOrDropWaitsBehindAction(t *testing.T) {
	noLeak(t)
	b := watch.NewBroadcaster[int](0, watch.WaitIfChannelFull)
	w, err := b.Watch()
	check(t, err)
	published := make(chan error, 1)
	go func() {
		for i := range 27 {
			_ = b.Action(watch.Added, i)
		}
		published <- nil
	}()
	bounded.Eventually(t, "the publisher is as far as it gets", func() bool { return b.Revision() == 26 })
	for range 100 {
		ok, err := b.ActionOrDrop(watch.Added, -1)
		check(t, err)
		want(t, "sent", ok, false)
	}
	w.Stop()
	check(t, bounded.Receive(t, "the publisher", published))
}

// heap is what is in use after a collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Watchers that are never read, of each face, while ten million events with an object each pass.
func TestFaultStalledWatcherGrowsMemory(t *testing.T) {
	noLeak(t)
	millions := 10
	if raceEnabled {
		millions = 2
	}
	b := watch.NewBroadcaster[*[64]byte](100, watch.DropIfChannelFull)
	var stalled []*watch.Watcher[*[64]byte]
	for i := range 10 {
		w, err := b.Watch()
		check(t, err)
		if i%2 == 0 {
			w.ResultChan()
		}
		stalled = append(stalled, w)
	}
	publish := func(n int) {
		for range n {
			check(t, b.Action(watch.Added, new([64]byte)))
		}
	}
	publish(10_000)
	before := heap()
	publish(millions * 1_000_000)
	after := heap()
	if grown := after - before; grown > 1<<20 {
		t.Fatalf("%d bytes more after %d million events", grown, millions)
	}
	for _, w := range stalled {
		bounded.Eventually(t, "counted", func() bool { return w.Dropped() == b.Revision()-100 })
		w.Stop()
	}
	t.Logf("%d bytes before, %d after %d million events", before, after, millions)
}

// Watchers that come and go leave nothing behind, read or not.
func TestFaultWatchersLeaveGoroutinesBehind(t *testing.T) {
	noLeak(t)
	b := watch.NewBroadcaster[int](2, watch.WaitIfChannelFull)
	for i := range 10_000 {
		w, err := b.Watch()
		check(t, err)
		if i%10 == 0 {
			w.ResultChan()
		}
		if i%3 == 0 {
			check(t, b.Action(watch.Added, i))
		}
		w.Stop()
	}
}

// A consumer that publishes to its own broadcaster, and stops itself in the middle of its loop.
func TestBroadcasterFromInsideItsOwnConsumer(t *testing.T) {
	noLeak(t)
	b := watch.NewBroadcaster[int](0, watch.WaitIfChannelFull)
	w, err := b.Watch()
	check(t, err)
	check(t, b.Action(watch.Added, 1))
	sum := 0
	for e := range w.All(bounded.Context(t)) {
		sum += e.Object
		if e.Object == 20 {
			w.Stop()
			b.Shutdown()
		}
		if e.Object < 30 {
			_ = b.Action(watch.Added, e.Object+1)
		}
	}
	want(t, "sum", sum, 210)
}

// A wait that its context ends loses nothing.
func TestBroadcasterNextWithAContextThatEnds(t *testing.T) {
	noLeak(t)
	b := watch.NewBroadcaster[int](1, watch.DropIfChannelFull)
	w, err := b.Watch()
	check(t, err)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	expected := 0
	for i := range 200 {
		ctx, cancel := context.WithCancel(context.Background())
		published := make(chan struct{})
		go func() {
			defer close(published)
			_ = b.Action(watch.Added, i)
		}()
		go cancel()
		e, err := w.Next(ctx)
		bounded.Receive(t, "the publisher", published)
		if err != nil {
			_, err = w.Next(ended)
			want(t, "error", err, context.Canceled)
			e = take(t, w)
		}
		want(t, "object", e.Object, expected)
		want(t, "lost", e.Lost, 0)
		expected++
	}
}

// A context that ends is the error of the publisher that waits for it, and of one that comes behind that.
func TestPublishContextThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := watch.NewBroadcasterWithOptions[int](watch.BroadcasterOptions{Incoming: -1})
		check(t, err)
		w, err := b.Watch()
		check(t, err)
		check(t, b.Action(watch.Added, 1))
		ctx, cancel := context.WithCancel(context.Background())
		var waiting error
		go func() { waiting = b.PublishContext(ctx, watch.Event[int]{Type: watch.Added, Object: 2}) }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		want(t, "the one that waited", waiting, context.Canceled)
		w.Stop()
		want(t, "one behind it", b.PublishContext(ctx, watch.Event[int]{Type: watch.Added}), context.Canceled)
		want(t, "published", b.Revision(), 1)
	})
}
