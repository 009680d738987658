package informer

import (
	"context"
	"fmt"
	"runtime/debug"

	"watchcore"
)

// guarded calls code of the program's. Its panic is an error. Where it ends this goroutine there is nobody to answer to: ended
// is told the error before.
func guarded(what string, f func(), ended func(error)) (err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if why := recover(); why != nil {
			err = &watchcore.Error{Code: watchcore.ErrPanic, Message: fmt.Sprintf("%s panicked: %v\n%s", what, why, debug.Stack())}
			return
		}
		ended(&watchcore.Error{Code: watchcore.ErrPanic, Message: what + " ended its goroutine. It has to return"})
	}()
	f()
	returned = true
	return nil
}

// call calls a source, which may wait for the network, and returns when the context is done even if
// the source does not: what it gives then goes to late. A panic, or the end of the goroutine, is an error.
func call[R any](ctx context.Context, f func(context.Context) (R, error), late func(R)) (R, error) {
	type answer struct {
		result R
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		var a answer
		defer func() { answers <- a }()
		if err := guarded("the source", func() { a.result, a.err = f(ctx) }, func(err error) { a.err = err }); err != nil {
			a.err = err
		}
	}()
	select {
	case a := <-answers:
		return a.result, a.err
	case <-ctx.Done():
		go func() {
			if a := <-answers; a.err == nil && late != nil {
				late(a.result)
			}
		}()
		var none R
		return none, ctx.Err()
	}
}
