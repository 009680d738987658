// Package bounded waits in tests: for a condition, and at most for Bound.
package bounded

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
)

// Bound is how long anything in a test may take before it counts as hanging. No test waits for it to pass.
const Bound = 60 * time.Second

// Context returns a context that is done when the test ends, or Bound has passed.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Bound)
	t.Cleanup(cancel)
	return ctx
}

// Eventually waits for a condition that other goroutines or threads bring about.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(Bound); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, Bound)
		}
		runtime.Gosched()
		// Yield: the goroutine that will make the condition true may need this processor.
		time.Sleep(10 * time.Microsecond)
	}
}

// Receive returns the next value of a channel. It fails the test if neither a value nor a close comes.
func Receive[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(Bound):
		t.Fatalf("%s: nothing within %v", what, Bound)
	}
	return v
}

// LeavesNothing fails the test if goroutines remain after it and its cleanups. Do not use it in
// parallel tests.
func LeavesNothing(t testing.TB) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		t.Helper()
		if left := moreThan(before); left != "" {
			t.Fatal(left)
		}
	})
}

// Main is for TestMain: it fails the tests of a package if goroutines remain after them.
func Main(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	if code == 0 {
		if left := moreThan(before); left != "" {
			fmt.Fprintln(os.Stderr, "the tests have left", left)
			code = 1
		}
	}
	os.Exit(code)
}

// moreThan waits until there are no more goroutines than before, and otherwise returns their
// stacks. moreThan runs the garbage collector, which ends the goroutines of unreachable objects.
func moreThan(before int) string {
	for end := time.Now().Add(Bound); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		runtime.GC()
		if time.Now().After(end) {
			stacks := make([]byte, 1<<20)
			return fmt.Sprintf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
	return ""
}
