package watch_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/watchcore/watchcore/go/watch"
)

func ExampleStatusOf() {
	err := fmt.Errorf("watching pods: %w", &watch.Status{Code: 410, Message: "revision 7 was compacted"})
	if s, ok := watch.StatusOf(err); ok {
		fmt.Println(s.Code, watch.IsGone(err), watch.RetryAfter(err))
	}
	fmt.Println(err)
	// Output:
	// 410 true 0s
	// watching pods: 410 Gone: revision 7 was compacted
}

func ExampleNext() {
	fake := watch.NewRaceFreeFake[string]()
	fake.Add("a")
	fake.Stop()
	for {
		e, err := watch.Next[string](context.Background(), fake)
		if errors.Is(err, watch.ErrEnded) {
			break
		}
		fmt.Println(e)
	}
	// Output: ADDED@0: a
}

func ExampleAll() {
	fake := watch.NewRaceFreeFake[string]()
	fake.Add("a")
	fake.Send(watch.Event[string]{Type: watch.Bookmark, Revision: 9})
	fake.Stop()
	for e := range watch.All[string](context.Background(), fake) {
		fmt.Println(e)
	}
	// Output:
	// ADDED@0: a
	// BOOKMARK@9
}

func ExampleNewEmptyWatch() {
	for range watch.NewEmptyWatch[string]().ResultChan() {
		fmt.Println("never")
	}
	fmt.Println("ended")
	// Output: ended
}

// The sender owns the channel: it sees Stop in StopChan, and closes.
func ExampleProxyWatcher() {
	c := make(chan watch.Event[int])
	w := watch.NewProxyWatcher(c)
	go func() {
		defer close(c)
		for i := 0; ; i++ {
			select {
			case c <- watch.Event[int]{Type: watch.Added, Object: i}:
			case <-w.StopChan():
				return
			}
		}
	}()
	for e := range w.ResultChan() {
		fmt.Println(e.Object)
		if e.Object == 2 {
			w.Stop()
			break
		}
	}
	// Output:
	// 0
	// 1
	// 2
}

func ExampleMockWatcher() {
	w := watch.MockWatcher[int]{StopFunc: func() { fmt.Println("stopped") }}
	w.Stop()
	_, err := watch.Next[int](context.Background(), w)
	fmt.Println(err)
	// Output:
	// stopped
	// the watch has ended: its last event was taken
}

// A broadcaster that keeps a history, and a watcher that first gets what the program has saved.
func ExampleBroadcaster_WatchWithPrefix() {
	b := watch.NewBroadcaster[string](1, watch.WaitIfChannelFull)
	w, _ := b.WatchWithPrefix([]watch.Event[string]{{Type: watch.Added, Object: "saved"}})
	b.Action(watch.Added, "new")
	b.Shutdown()
	for e := range w.ResultChan() {
		fmt.Println(e)
	}
	// Output:
	// ADDED@0: saved
	// ADDED@1: new
}

// inventory is a state with its watch, as an informer is one.
type inventory struct{ items []string }

func (i inventory) Watch(context.Context) (watch.Interface[string], error) {
	w := watch.NewRaceFreeFake[string]()
	for _, item := range i.items {
		w.Add(item)
	}
	return w, nil
}
func (i inventory) WaitForSync(context.Context) error { return nil }
func (i inventory) Store() []string                   { return i.items }

func ExampleUntilWithSync() {
	empty := func(items []string) (bool, error) { return len(items) == 0, nil }
	last, err := watch.UntilWithSync(context.Background(), inventory{[]string{"bolt", "nut"}}, empty,
		func(e watch.Event[string]) (bool, error) { return e.Object == "nut", nil })
	fmt.Println(last, err)
	last, err = watch.UntilWithSync(context.Background(), inventory{}, empty,
		func(watch.Event[string]) (bool, error) { return false, nil })
	fmt.Println(last, err)
	// Output:
	// ADDED@0: nut <nil>
	// <nil> <nil>
}
