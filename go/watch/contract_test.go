package watch_test

import (
	"context"
	"strings"
	"testing"

	"watchcore/internal/bounded"
	"watchcore/internal/contract"
	"watchcore/internal/handclock"
	"watchcore/watch"
)

// retried is a RetryWatcher that a row drives.
type retried struct {
	w     *watch.RetryWatcher[string]
	given []string
	ended bool
}

func (r *retried) Poll() bool {
	for !r.ended {
		select {
		case e, more := <-r.w.ResultChan():
			if r.ended = !more; more {
				r.given = append(r.given, contract.Shown(e))
			} else {
				r.given = append(r.given, "end")
			}
		default:
			return false
		}
	}
	return true
}

func (r *retried) Objects() string { return "a watch has no objects" }
func (r *retried) At() uint64      { return r.w.Stats().Revision }

func (r *retried) Given() string {
	given := strings.Join(r.given, " ")
	r.given = nil
	return given
}

// The rows of contract/toolkit that are about a RetryWatcher.
func TestContractRowsOfTheRetryWatcher(t *testing.T) {
	contract.Rows(t, "retry", func(t *testing.T, words []string, lines []contract.Line) {
		contract.Run(t, lines, func(source *contract.Source, clock *handclock.Clock) contract.Machine {
			options := watch.RetryOptions[string]{Clock: clock, Logger: quiet()}
			if len(words) > 1 {
				options.OnGone = watch.RelistOnGone(watch.ListerFunc[string](func(context.Context) (watch.Listing[string], error) {
					page := source.List("list")
					return watch.Listing[string]{Items: page.Items, Revision: page.Revision}, page.Err
				}), contract.Key)
			}
			w, err := watch.NewRetryWatcherWithOptions[string](context.Background(), contract.Number(t, words[0]), source, options)
			check(t, err)
			t.Cleanup(func() {
				w.Stop()
				bounded.Receive(t, "the end of a RetryWatcher", w.Done())
			})
			return &retried{w: w}
		})
	})
}
