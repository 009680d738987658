package workqueue_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/watchcore/watchcore/go/workqueue"
)

func ExampleQueue() {
	queue := workqueue.New(workqueue.Options[string]{})
	queue.Add("a")
	queue.Add("b")
	queue.Add("a") // it is there already
	fmt.Println(queue.Len(), "keys")

	key, _ := queue.Get()
	queue.Add(key) // comes again after Done
	fmt.Println(queue.Len(), "can be taken")
	queue.Done(key)
	fmt.Println(queue.Len(), "can be taken")
	// Output:
	// 2 keys
	// 1 can be taken
	// 2 can be taken
}

// The loop of a controller: what fails comes again, later each time.
func ExampleQueue_Run() {
	queue := workqueue.New(workqueue.Options[string]{RateLimiter: workqueue.Exponential[string](time.Millisecond, time.Second)})
	queue.Add("web")
	tries := 0
	err := queue.Run(context.Background(), 1, func(_ context.Context, key string) error {
		if tries++; tries < 3 {
			return errors.New("not yet")
		}
		fmt.Println(key, "is done at try", tries)
		queue.ShutDown()
		return nil
	}, func(key string, err error) { fmt.Println(key, "failed:", err) })
	fmt.Println(err)
	// Output:
	// web failed: not yet
	// web failed: not yet
	// web is done at try 3
	// <nil>
}

// Each limiter counts, and the longest wait counts.
func ExampleRateLimiter() {
	limiter := workqueue.MaxOf(
		workqueue.Exponential[string](time.Second, time.Minute),
		workqueue.TokenBucket[string](1, 100, nil))
	fmt.Println(limiter.When("a"), limiter.When("a"), limiter.When("b"), limiter.NumRequeues("a"))
	limiter.Forget("a")
	fmt.Println(limiter.When("a"))
	// Output:
	// 1s 2s 1s 2
	// 1s
}
