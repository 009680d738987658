package workqueue_test

import (
	"fmt"
	"testing"

	"watchcore/internal/bounded"
	"watchcore/internal/handclock"
	"watchcore/internal/rows"
	"watchcore/workqueue"
)

// The rows of contract/toolkit that are about a queue.
func TestContractRowsOfTheQueue(t *testing.T) {
	rows.Run(t, "../../contract/toolkit", "go", "run queue", func(t *testing.T) rows.Machine {
		return &worker{t: t, clock: newClock()}
	})
}

// worker runs the steps of a row.
type worker struct {
	t     *testing.T
	clock *handclock.Clock
	queue *workqueue.Queue[string]
}

func (w *worker) Close() { w.queue.ShutDown() }

// Run is a step, and what it prints.
func (w *worker) Run(words []string) []string {
	word, key := words[0], words[min(1, len(words)-1)]
	switch word {
	case "run":
		w.queue = workqueue.New(workqueue.Options[string]{Clock: w.clock, RateLimiter: workqueue.MaxOf(
			workqueue.Exponential[string](rows.Duration(words[2]), rows.Duration(words[3])),
			workqueue.TokenBucket[string](float64(rows.Number(words[4])), int(rows.Number(words[5])), w.clock))})
	case "add":
		w.queue.Add(key)
	case "limited":
		w.queue.AddRateLimited(key)
	case "after":
		w.queue.AddAfter(key, rows.Duration(words[2]))
	case "fail":
		w.queue.AddRateLimited(key)
		w.queue.Done(key)
	case "done":
		w.queue.Done(key)
	case "forget":
		w.queue.Forget(key)
	case "advance":
		w.clock.Advance(rows.Duration(key))
		bounded.Eventually(w.t, "what is due is added", func() bool { return !w.queue.HasDue() })
	case "shutdown":
		w.queue.ShutDown()
	case "take":
		if w.queue.Len() == 0 {
			return []string{"nothing"}
		}
		key, _ := w.queue.Get()
		return []string{key}
	case "ready":
		return []string{fmt.Sprint(w.queue.Len())}
	case "delayed":
		return []string{fmt.Sprint(w.queue.Status().Delayed)}
	case "added":
		return []string{fmt.Sprint(w.queue.Status().Added)}
	case "failures":
		return []string{fmt.Sprint(w.queue.NumRequeues(key))}
	default:
		panic(word + " is no word of a queue")
	}
	return nil
}
