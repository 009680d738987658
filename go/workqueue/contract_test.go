package workqueue_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

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
				bounded.Eventually(t, "a key to take", func() bool { return queue.Len() > 0 })
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
				// The goroutine that adds what is due may be on its way.
				for end := time.Now().Add(bounded.Bound); fmt.Sprint(queue.Len()) != key && time.Now().Before(end); {
					runtime.Gosched()
				}
				line.Expect(t, fmt.Sprint(queue.Len()), key)
			case "delayed":
				line.Expect(t, fmt.Sprint(queue.Status().Delayed), key)
			case "added":
				line.Expect(t, fmt.Sprint(queue.Status().Added), key)
			case "shutdown":
				queue.ShutDown()
			case "failures":
				line.Expect(t, fmt.Sprint(queue.NumRequeues(key)), line.Words[2])
			default:
				line.Unknown(t)
			}
		}
	})
}
