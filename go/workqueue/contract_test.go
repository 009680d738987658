package workqueue_test

import (
	"fmt"
	"testing"

	"watchcore/internal/bounded"
	"watchcore/internal/contract"
	"watchcore/workqueue"
)

// The rows of contract/toolkit that are about a queue.
func TestContractRowsOfTheQueue(t *testing.T) {
	contract.Rows(t, "queue", func(t *testing.T, words []string, lines []contract.Line) {
		clock := newClock()
		queue := workqueue.New(workqueue.Options[string]{Clock: clock, RateLimiter: workqueue.MaxOf(
			workqueue.Exponential[string](contract.Duration(t, words[0]), contract.Duration(t, words[1])),
			workqueue.TokenBucket[string](float64(contract.Number(t, words[2])), int(contract.Number(t, words[3])), clock))})
		defer queue.ShutDown()
		for _, line := range lines {
			var key string
			if len(line.Words) > 1 {
				key = line.Words[1]
			}
			switch line.Words[0] {
			case "add":
				queue.Add(key)
			case "limited":
				times := uint64(1)
				if len(line.Words) > 2 {
					times = contract.Number(t, line.Words[2])
				}
				for range times {
					queue.AddRateLimited(key)
				}
			case "after":
				queue.AddAfter(key, contract.Duration(t, line.Words[2]))
			case "take":
				line.Expect(t, queue.Len() > 0, true)
				came, _ := queue.Get()
				line.Expect(t, came, key)
			case "fail":
				queue.AddRateLimited(key)
				queue.Done(key)
			case "done":
				queue.Done(key)
			case "forget":
				queue.Forget(key)
			case "advance":
				clock.Advance(contract.Duration(t, key))
			case "ready":
				line.Expect(t, fmt.Sprint(queue.Len()), key)
			case "delayed":
				line.Expect(t, fmt.Sprint(queue.Status().Delayed), key)
			case "failures":
				line.Expect(t, fmt.Sprint(queue.NumRequeues(key)), line.Words[2])
			default:
				line.Unknown(t)
			}
			bounded.Eventually(t, "what is due was added", func() bool {
				_, left := clock.Timers()
				return queue.Status().Delayed == 0 || left > 0
			})
		}
	})
}
