package watch_test

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"watchcore/internal/bounded"
	"watchcore/internal/contract"
	"watchcore/internal/handclock"
	"watchcore/internal/rows"
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
	contract.Rows(t, "retry", func(t *testing.T, words []string, source *contract.Source, clock *handclock.Clock) contract.Machine {
		options := watch.RetryOptions[string]{Clock: clock, Logger: quiet()}
		if len(words) > 1 {
			options.OnGone = watch.RelistOnGone(contract.Key)
		}
		w, err := watch.NewRetryWatcherWithOptions[string](context.Background(), rows.Number(words[0]), contract.Lister{Source: source}, options)
		check(t, err)
		t.Cleanup(func() {
			w.Stop()
			bounded.Receive(t, "the end of a RetryWatcher", w.Done())
		})
		return &retried{w: w}
	})
}

// Whatever the server did, what a RetryWatcher with a lister gave adds up to its state, and no deletion comes twice.
func TestRW33RetryWatcherSurvivesHostileServers(t *testing.T) {
	for seed := range uint64(1000) {
		server, clock := contract.NewHostile(seed, true), handclock.New()
		w, err := watch.NewRetryWatcherWithOptions[string](context.Background(), 0, contract.Besieged{Hostile: server}, watch.RetryOptions[string]{
			Clock: clock, Logger: quiet(), OnGone: watch.RelistOnGone(contract.Key)})
		check(t, err)
		state := map[string]string{}
		poll := func() {
			for range 20 {
				select {
				case e, more := <-w.ResultChan():
					key := contract.Key(e.Object)
					if _, there := state[key]; !more || e.Type == watch.Error || e.Type == watch.Deleted && !there {
						t.Fatalf("seed %d: %v does not fit", seed, e)
					}
					if delete(state, key); e.Type != watch.Deleted && e.Type != watch.Synced {
						state[key] = e.Object
					}
				default:
					runtime.Gosched()
				}
			}
		}
		server.Drive(t, clock, poll, func() bool {
			truth, _ := server.Truth()
			return slices.Equal(slices.Sorted(maps.Values(state)), truth)
		})
		w.Stop()
		bounded.Receive(t, "the end of a RetryWatcher", w.Done())
	}
}
