// Package foreign calls functions that the program provides.
package foreign

import (
	"context"
	"fmt"
	"runtime/debug"
)

// Error makes an error from a text.
type Error func(text string) error

// Guard calls f and returns its panic as an error. If f ends this goroutine, Guard cannot return:
// it calls ended with the error instead.
func (fail Error) Guard(what string, f func(), ended func(error)) (err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if why := recover(); why != nil {
			err = fail(fmt.Sprintf("%s panicked: %v\n%s", what, why, debug.Stack()))
			return
		}
		ended(fail(what + " ended its goroutine, which runtime.Goexit and a test's FailNow do. It has to return"))
	}()
	f()
	returned = true
	return nil
}

// Call calls a source, which may wait for the network. Call returns when the context is done even if
// the source does not return: late then receives the source's result. A panic, or the end of the
// goroutine, is an error.
func Call[R any](ctx context.Context, fail Error, f func(context.Context) (R, error), late func(R)) (R, error) {
	type answer struct {
		result R
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		var a answer
		defer func() { answers <- a }()
		if err := fail.Guard("the source", func() { a.result, a.err = f(ctx) }, func(err error) { a.err = err }); err != nil {
			a.err = err
		}
	}()
	select {
	case a := <-answers:
		return a.result, a.err
	case <-ctx.Done():
		go func() {
			if a := <-answers; a.err == nil {
				late(a.result)
			}
		}()
		var none R
		return none, ctx.Err()
	}
}
