package workqueue

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// ErrShutDown is GetContext's answer when the queue was shut down and everything was taken.
var ErrShutDown = errors.New("workqueue: the queue was shut down, and every key was taken")

// Run processes keys with so many workers until the context is done, or the queue was shut down and
// everything was taken; then it waits for the workers, and returns. A key whose work fails or panics
// is added again by AddRateLimited; one that succeeds is forgotten. failed, where it is not nil, is called with
// each failure, from the workers' goroutines; a panic of it is lost. A key whose rate limiter panics is a failure, too, and
// comes again after a minute. The work is given the context.
//
// The answer is nil after a shut-down, and the context's error where that was first.
func (q *Queue[K]) Run(ctx context.Context, workers int, work func(ctx context.Context, key K) error, failed func(key K, err error)) error {
	r := &run{ctx: ctx}
	q.mu.Lock()
	q.runs[r] = struct{}{}
	q.mu.Unlock()
	var running sync.WaitGroup
	for range max(workers, 1) {
		running.Add(1)
		go q.worker(ctx, &running, work, failed)
	}
	running.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.runs, r)
	if q.closed {
		return r.first
	}
	return context.Cause(ctx)
}

// run is a call of Run, for the shut-down to say which was first.
type run struct {
	ctx   context.Context
	first error // what had ended the context when the queue was shut down
}

// worker processes keys. Where the work ends its goroutine, another one goes on.
func (q *Queue[K]) worker(ctx context.Context, running *sync.WaitGroup, work func(context.Context, K) error, failed func(K, error)) {
	through := false
	defer func() {
		if through {
			running.Done()
		} else {
			go q.worker(ctx, running, work, failed)
		}
	}()
	for {
		key, err := q.GetContext(ctx)
		if err != nil {
			break
		}
		q.process(ctx, key, work, failed)
	}
	through = true
}

// PanicError is the failure of work, or of the rate limiter, that panicked or ended its goroutine.
type PanicError struct {
	Value any    // what it panicked with
	Stack []byte // where; nil where it ended its goroutine
	of    string // the work, or the rate limiter
}

// Error says what it panicked with.
func (e *PanicError) Error() string {
	return fmt.Sprintf("the %s panicked: %v. The key comes again; correct the %s", e.of, e.Value, e.of)
}

// unlimited is how long a key waits whose limiter panicked: it is not lost, and not tried without a pause.
const unlimited = time.Minute

// process works at a key that was taken. Everything behind the work is deferred, because work that ends its goroutine
// leaves only that to run.
func (q *Queue[K]) process(ctx context.Context, key K, work func(context.Context, K) error, failed func(K, error)) {
	var err error
	defer q.Done(key) // last, so that a key that failed is not handed out before it is counted
	defer guarded("listener", new(error), func() error {
		if err != nil && failed != nil {
			failed(key, err)
		}
		return nil
	})
	defer func() {
		var broken error
		defer func() {
			if broken != nil {
				err = broken
				q.AddAfter(key, unlimited)
			}
		}()
		guarded("rate limiter", &broken, func() error {
			if err == nil {
				q.Forget(key)
			} else {
				q.AddRateLimited(key)
			}
			return nil
		})
	}()
	guarded("work", &err, func() error { return work(ctx, key) })
}

// guarded calls the program's code, and puts its answer into err: a PanicError where it panicked or ended its goroutine,
// which then goes on with what is deferred.
func guarded(of string, err *error, f func() error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		why, trace := recover(), debug.Stack()
		if why == nil {
			why, trace = "it ended its goroutine, which runtime.Goexit and a test's FailNow do", nil
		}
		*err = &PanicError{why, trace, of}
	}()
	*err = f()
	returned = true
}
