package watch_test

import (
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/watch"
)

type pod struct {
	Name, Value string
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want[T comparable](t testing.TB, what string, got, expected T) {
	t.Helper()
	if got != expected {
		t.Fatalf("%s: %v, not %v", what, got, expected)
	}
}

// noLeak fails the test if there are goroutines behind it beside its own and those of the tests that
// it is part of. What an earlier test has left fails it, too.
func noLeak(t testing.TB) {
	t.Helper()
	before := 2 + strings.Count(t.Name(), "/")
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		for deadline := time.Now().Add(bounded.Bound); runtime.NumGoroutine() > before; {
			if time.Now().After(deadline) {
				stacks := make([]byte, 1<<16)
				t.Fatalf("%d goroutines in place of %d:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
			}
			time.Sleep(100 * time.Microsecond)
		}
	})
}

// take is the next event, which has to come.
func take[T any](t testing.TB, w watch.Interface[T]) watch.Event[T] {
	t.Helper()
	e, err := watch.Next(bounded.Context(t), w)
	check(t, err)
	return e
}

// ends fails if another event comes before the end of the watch.
func ends[T any](t testing.TB, w watch.Interface[T]) {
	t.Helper()
	e, err := watch.Next(bounded.Context(t), w)
	if !errors.Is(err, watch.ErrEnded) {
		t.Fatalf("%v (%v) in place of the end", e, err)
	}
}

// receiveFrom is the next event of a channel, which has to come or to end.
func receiveFrom[T any](t testing.TB, c <-chan watch.Event[T]) (watch.Event[T], bool) {
	t.Helper()
	select {
	case e, ok := <-c:
		return e, ok
	case <-time.After(bounded.Bound):
		t.Fatalf("neither an event nor the end in %s", bounded.Bound)
	}
	panic("unreachable")
}

// rest is everything up to the end of a channel.
func rest[T any](t testing.TB, c <-chan watch.Event[T]) (all []watch.Event[T]) {
	t.Helper()
	for {
		e, ok := receiveFrom(t, c)
		if !ok {
			return all
		}
		all = append(all, e)
	}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }
