package watch_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/watchcore/watchcore/go/watch"
)

type Job struct {
	Name  string
	State string
}

func (j Job) String() string { return j.Name + " " + j.State }

func ExampleBroadcaster() {
	b := watch.NewBroadcaster[Job](10, watch.WaitIfChannelFull)
	w, _ := b.Watch()
	b.Action(watch.Added, Job{"backup", "queued"})
	b.Action(watch.Modified, Job{"backup", "running"})
	b.Shutdown()
	for e := range w.All(context.Background()) {
		fmt.Println(e)
	}
	// Output:
	// ADDED@1: backup queued
	// MODIFIED@2: backup running
}

// A watcher that is behind loses what finds no place, and its next event says how much.
func ExampleBroadcaster_drop() {
	b := watch.NewBroadcaster[int](2, watch.DropIfChannelFull)
	w, _ := b.Watch()
	for i := range 5 {
		b.Action(watch.Added, i)
	}
	ctx := context.Background()
	for range 2 {
		e, _ := w.Next(ctx)
		fmt.Println(e)
	}
	b.Action(watch.Added, 5)
	e, _ := w.Next(ctx)
	fmt.Println(e)
	fmt.Println("dropped:", w.Dropped())
	// Output:
	// ADDED@1: 0
	// ADDED@2: 1
	// ADDED@6 (lost 3): 5
	// dropped: 3
}

// A watcher that comes later begins behind a revision, with its own queue.
func ExampleBroadcaster_WatchWithOptions() {
	b, _ := watch.NewBroadcasterWithOptions[string](watch.BroadcasterOptions{
		Queue:   watch.WaitQueue(10),
		History: 1000,
	})
	for _, s := range []string{"a", "b", "c"} {
		b.Action(watch.Added, s)
	}
	w, _ := b.WatchWithOptions(watch.WatchOptions[string]{
		Queue: watch.DropQueue(100),
		Start: watch.StartAfter(1),
	})
	b.Shutdown()
	for e := range w.ResultChan() {
		fmt.Println(e)
	}
	// Output:
	// ADDED@2: b
	// ADDED@3: c
}

// Several events at a time.
func ExampleWatcher_NextBatch() {
	b := watch.NewBroadcaster[int](100, watch.WaitIfChannelFull)
	w, _ := b.Watch()
	for i := range 10 {
		b.Action(watch.Added, i)
	}
	b.Shutdown()
	batch := make([]watch.Event[int], 8)
	for {
		n, err := w.NextBatch(context.Background(), batch)
		if errors.Is(err, watch.ErrEnded) {
			break
		}
		fmt.Println(n, "events")
	}
	// Output:
	// 8 events
	// 2 events
}

// Objects come into the view of a filter and leave it: the types say so.
func ExampleFilter() {
	source := watch.NewRaceFreeFake[Job]()
	running := watch.Filter[Job](source, func(e watch.Event[Job]) (watch.Event[Job], bool) {
		return e, e.Object.State == "running"
	})
	states := []string{"queued", "running", "done"}
	for i := range states[1:] {
		source.Send(watch.Event[Job]{
			Type: watch.Modified, Revision: uint64(i + 2), HasOld: true,
			Old: Job{"backup", states[i]}, Object: Job{"backup", states[i+1]},
		})
	}
	source.Stop()
	for e := range running.ResultChan() {
		fmt.Println(e)
	}
	// Output:
	// ADDED@2: backup running
	// DELETED@3: backup running
}

// A source whose events do not know the old state: the filter remembers.
func ExampleFilterByKey() {
	source := watch.NewRaceFreeFake[Job]()
	running := watch.FilterByKey[Job](source,
		func(j Job) string { return j.Name },
		func(e watch.Event[Job]) (watch.Event[Job], bool) { return e, e.Object.State == "running" })
	source.Add(Job{"backup", "queued"})
	source.Modify(Job{"backup", "running"})
	source.Modify(Job{"backup", "done"})
	source.Stop()
	for e := range running.ResultChan() {
		fmt.Println(e)
	}
	// Output:
	// ADDED@0: backup running
	// DELETED@0: backup running
}

func ExampleNewRecorder() {
	fake := watch.NewRaceFreeFake[string]()
	recorder := watch.NewRecorder(fake)
	fake.Add("a")
	fake.Delete("a")
	fake.Stop()
	for range recorder.ResultChan() {
	}
	fmt.Println(recorder.Events())
	// Output: [ADDED@0: a DELETED@0: a]
}

func ExampleNewFake() {
	fake := watch.NewFake[string]()
	go func() {
		fake.Add("a") // waits for the reader
		fake.Stop()
	}()
	for e := range fake.ResultChan() {
		fmt.Println(e)
	}
	fmt.Println(fake.Add("b"))
	// Output:
	// ADDED@0: a
	// the watch was stopped: the event was not sent
}

func ExampleUntilWithoutRetry() {
	fake := watch.NewRaceFreeFake[Job]()
	fake.Send(watch.Event[Job]{Type: watch.Added, Object: Job{"backup", "queued"}, Revision: 7})
	fake.Send(watch.Event[Job]{Type: watch.Modified, Object: Job{"backup", "done"}, Revision: 9})
	ctx, cancel := watch.ContextWithOptionalTimeout(context.Background(), time.Minute)
	defer cancel()
	last, err := watch.UntilWithoutRetry(ctx, fake, func(e watch.Event[Job]) (bool, error) {
		return e.Object.State == "done", nil
	})
	fmt.Println(last.Object, "at", last.Revision, err)
	// Output: backup done at 9 <nil>
}

// A server that closes the connection after each event, and forgets the first ones in the end.
func ExampleRetryWatcher() {
	source := watch.ListWatch[string]{WatchFunc: func(_ context.Context, after uint64) (watch.Interface[string], error) {
		if after == 4 {
			return nil, &watch.Status{Code: 410, Message: "compacted"}
		}
		w := watch.NewRaceFreeFake[string]()
		defer w.Stop()
		return w, w.Send(watch.Event[string]{Type: watch.Added, Object: "x", Revision: after + 1})
	}}
	w, _ := watch.NewRetryWatcherWithOptions(context.Background(), 2, source, watch.RetryOptions[string]{MinRestartDelay: -1})
	for e := range w.ResultChan() {
		fmt.Println(e)
	}
	// Output:
	// ADDED@3: x
	// ADDED@4: x
	// ERROR@0: 410 Gone: compacted
}

// The same server, and a list of what is there.
func ExampleRelistOnGone() {
	gone := true
	source := watch.ListWatch[Job]{WatchFunc: func(_ context.Context, after uint64) (watch.Interface[Job], error) {
		if !gone {
			return nil, &watch.Status{Code: 403}
		}
		gone = false
		w := watch.NewRaceFreeFake[Job]()
		w.Send(watch.Event[Job]{Type: watch.Added, Object: Job{"backup", "running"}, Revision: 3})
		return w, w.Error(&watch.Status{Code: 410})
	}}
	source.ListFunc = func(context.Context, watch.ListRequest) (watch.ListPage[Job], error) {
		return watch.ListPage[Job]{Revision: 20, Items: []watch.Item[Job]{{Object: Job{"restore", "queued"}, Revision: 15}}}, nil
	}
	w, _ := watch.NewRetryWatcherWithOptions(context.Background(), 2, source, watch.RetryOptions[Job]{
		OnGone: watch.RelistOnGone(func(j Job) string { return j.Name }),
	})
	for e := range w.ResultChan() {
		fmt.Println(e)
	}
	// Output:
	// ADDED@3: backup running
	// DELETED@3 (lost 17): backup running
	// ADDED@20: restore queued
	// ERROR@0: 403 Forbidden
}

type lines struct{ left []string }

func (l *lines) Decode() (watch.EventType, string, error) {
	if len(l.left) == 0 {
		return "", "", errors.New("not a line")
	}
	line := l.left[0]
	l.left = l.left[1:]
	return watch.Added, line, nil
}
func (l *lines) Close() {}

func ExampleNewStreamWatcher() {
	w := watch.NewStreamWatcher[string](&lines{[]string{"a", "b"}}, nil)
	defer w.Stop()
	for e := range w.ResultChan() {
		fmt.Println(e)
	}
	// Output:
	// ADDED@0: a
	// ADDED@0: b
	// ERROR@0: 500 Internal Server Error: unable to decode an event from the watch stream: not a line
}

func ExampleManualClock() {
	clock := watch.NewManualClock(time.Unix(0, 0))
	fired, stop := clock.Timer(time.Hour)
	defer stop()
	clock.Advance(time.Hour)
	fmt.Println((<-fired).Unix())
	// Output: 3600
}
