package workqueue

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// ErrShutDown is returned by GetContext when the queue was shut down and all keys were taken.
var ErrShutDown = errors.New("workqueue: the queue was shut down, and every key was taken")

// Run processes keys with the given number of workers until the context is done, or the queue was
// shut down and all keys were taken; then it waits for the workers, and returns. If the work of a
// key fails or panics, the key is added again by AddRateLimited; if it succeeds, Forget is called
// for it. failed, if it is not nil, is called with each failure, on the workers' goroutines; a
// panic of failed is ignored. A rate limiter that panics is a failure, too; its key comes again after
// a minute. The work receives the context.
//
// Run returns nil after a shut-down, and the context's error if that came first.
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

// run is a call of Run. It lets ShutDown record whether the context had ended before.
type run struct {
	ctx   context.Context
	first error // the context's cause at the shut-down
}

// worker processes keys. If the work ends its goroutine, another one continues.
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
	Value any    // the panic's value
	Stack []byte // nil if the code ended its goroutine
	of    string // the work, or the rate limiter
}

// Error includes the panic's value.
func (e *PanicError) Error() string {
	return fmt.Sprintf("the %s panicked: %v. The key comes again; correct the %s", e.of, e.Value, e.of)
}

// unlimited is the delay of a key whose limiter panicked: the key is neither lost nor tried without a pause.
const unlimited = time.Minute

// process runs the work for a key that was taken. Everything after the work is deferred, because only deferred calls run
// when the work ends its goroutine.
func (q *Queue[K]) process(ctx context.Context, key K, work func(context.Context, K) error, failed func(K, error)) {
	var err error
	defer q.Done(key) // last, so that a failed key is not taken again before its failure is counted
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

// guarded calls the program's code and stores its error: a PanicError if it panicked or ended its goroutine. In that
// case only the caller's deferred calls run.
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
