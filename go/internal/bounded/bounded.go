// Package bounded is how tests wait: for a condition, and at most for Bound.
package bounded

import (
	"context"
	"runtime"
	"testing"
	"time"
)

// Bound is how long anything in a test may take before it counts as hanging. Nothing waits for it to pass.
const Bound = 60 * time.Second

// Context ends when the test does, or Bound has passed.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Bound)
	t.Cleanup(cancel)
	return ctx
}

// Eventually asks until it holds: a condition that other goroutines, or threads, bring about.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(Bound); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, Bound)
		}
		runtime.Gosched()
		// Whoever is to bring it about may need this processor.
		time.Sleep(10 * time.Microsecond)
	}
}

// Receive is what comes on a channel, which has to come, or has to be closed.
func Receive[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(Bound):
		t.Fatalf("%s: nothing within %v", what, Bound)
	}
	return v
}
