package watch_test

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/internal/contract"
	"github.com/watchcore/watchcore/go/internal/handclock"
	"github.com/watchcore/watchcore/go/internal/rows"
	"github.com/watchcore/watchcore/go/watch"
)

// retried is a RetryWatcher that a row drives.
type retried struct {
	t     *testing.T
	w     *watch.RetryWatcher[string]
	given []watch.Event[string]
	held  bool
	ended bool
	said  bool // that it has ended
}

func (r *retried) Poll() (took bool) {
	for !r.ended && !r.held {
		select {
		case e, more := <-r.w.ResultChan():
			if took, r.ended = true, !more; more {
				r.given = append(r.given, e)
			}
		default:
			return took
		}
	}
	return took
}

func (r *retried) Say(words []string) (printed []string) {
	switch strings.Join(words, " ") {
	case "given":
		for _, e := range r.given {
			printed = append(printed, contract.Shown(e))
		}
		if r.ended && !r.said {
			r.said = true
			printed = append(printed, "end")
		}
		printed = contract.Line(strings.Join(printed, " "))
		r.given = nil
	case "given full":
		for _, e := range r.given {
			printed = append(printed, fmt.Sprint(e.Revision, " ", contract.ShownWithOld(e)))
		}
		r.given = nil
	case "hold":
		r.held = true
	case "release":
		r.held = false
	case "stop":
		r.w.Stop()
		r.w.Stop()
		bounded.Receive(r.t, "the end of a RetryWatcher", r.w.Done())
	default:
		panic(words[0] + " is no word of a retrying watch")
	}
	return printed
}

func newRetried(t *testing.T, words []string, source *contract.Source, clock *handclock.Clock) (*watch.RetryWatcher[string], error) {
	options := watch.RetryOptions[string]{Clock: clock, Logger: quiet()}
	if slices.Contains(words, "lister") {
		options.OnGone = watch.RelistOnGone(contract.Key)
	}
	w, err := watch.NewRetryWatcherWithOptions[string](context.Background(), rows.Number(words[0]), contract.Lister{Source: source}, options)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		w.Stop()
		bounded.Receive(t, "the end of a RetryWatcher", w.Done())
	})
	return w, nil
}

// The rows of contract/toolkit that are about a RetryWatcher.
func TestContractRowsOfTheRetryWatcher(t *testing.T) {
	contract.Rows(t, "retry", func(t *testing.T, words []string, source *contract.Source, clock *handclock.Clock) (contract.Machine, error) {
		w, err := newRetried(t, words, source, clock)
		return &retried{t: t, w: w}, err
	})
}

// The rows that are about a wait on a watch, or on a RetryWatcher.
func TestContractRowsOfUntil(t *testing.T) {
	begin := func(w *contract.Wait, over watch.Interface[string]) contract.Machine {
		contract.Begin(w, contract.Shown, func(ctx context.Context, conditions []watch.ConditionFunc[string]) (*watch.Event[string], error) {
			return watch.UntilWithoutRetry(ctx, over, conditions...)
		})
		return w
	}
	contract.Rows(t, "until watch", func(t *testing.T, words []string, source *contract.Source, clock *handclock.Clock) (contract.Machine, error) {
		over, err := source.Watch(context.Background(), 0)
		check(t, err)
		return begin(contract.NewWait(t, words, clock, true), over), nil
	})
	contract.Rows(t, "until retry", func(t *testing.T, words []string, source *contract.Source, clock *handclock.Clock) (contract.Machine, error) {
		over, err := newRetried(t, words, source, clock)
		check(t, err)
		w := contract.NewWait(t, words[1:], clock, true)
		return begin(w, over), nil
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
