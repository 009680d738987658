package workqueue_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/internal/handclock"
	"github.com/watchcore/watchcore/go/watch"
	"github.com/watchcore/watchcore/go/workqueue"
)

func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func want[T comparable](t testing.TB, what string, got, expected T) {
	t.Helper()
	if got != expected {
		t.Fatalf("%s:\n got %v\nwant %v", what, got, expected)
	}
}

func made(t testing.TB) (*workqueue.Queue[string], *handclock.Clock) {
	t.Helper()
	clock := newClock()
	q := workqueue.New(workqueue.Options[string]{Name: "q", Clock: clock})
	t.Cleanup(q.ShutDown)
	return q, clock
}

func next(t testing.TB, q *workqueue.Queue[string]) string {
	t.Helper()
	key, err := q.GetContext(bounded.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Workers never share a key, and each key is processed once more after it was added last.
func TestWQ01TwoWorkersNeverShareAKey(t *testing.T) {
	q := workqueue.New(workqueue.Options[string]{})
	const keys, rounds = 20, 300
	var busy, added, seen [keys]atomic.Int64
	done := make(chan error, 1)
	go func() {
		done <- q.Run(bounded.Context(t), 8, func(_ context.Context, key string) error {
			var i int
			_, _ = fmt.Sscan(key, &i)
			if busy[i].Add(1) != 1 {
				t.Error("two workers have", key)
			}
			seen[i].Store(added[i].Load())
			runtime.Gosched()
			busy[i].Add(-1)
			return nil
		}, nil)
	}()
	var adding sync.WaitGroup
	for range 4 {
		adding.Go(func() {
			for range rounds {
				for i := range keys {
					added[i].Add(1)
					q.Add(fmt.Sprint(i))
				}
			}
		})
	}
	adding.Wait()
	if err := q.Drain(bounded.Context(t)); err != nil {
		t.Fatal(err)
	}
	q.ShutDownWithDrain() // nothing is left to wait for
	for i := range keys {
		want(t, "the last addition was seen", seen[i].Load(), int64(4*rounds))
	}
	want(t, "the end", bounded.Receive(t, "the end", done), nil)
}

// A clock that is moved while the queue sets its timer does not make a key late.
func TestWQ24ClockMovedMeanwhileMakesNoKeyLate(t *testing.T) {
	clock := watch.NewManualClock(time.Unix(0, 0))
	q := workqueue.New(workqueue.Options[string]{Clock: &movingClock{clock}})
	defer q.ShutDown()
	due := clock.Now().Add(time.Minute)
	q.AddAfter("key", time.Minute)
	if _, err := clock.AwaitTimer(bounded.Context(t)); err != nil {
		t.Fatal(err)
	}
	clock.Advance(due.Sub(clock.Now()))
	want(t, "key", next(t, q), "key")
}

// movingClock is moved after each look at it.
type movingClock struct{ *watch.ManualClock }

func (c *movingClock) Now() time.Time {
	now := c.ManualClock.Now()
	c.Advance(time.Millisecond)
	return now
}

// A failed key waits longer each time until it is forgotten; a panic, and work that ends its goroutine,
// count as failures; success forgets.
func TestWQ18FailedKeyWaitsLongerEachTime(t *testing.T) {
	clock := newClock()
	q := workqueue.New(workqueue.Options[string]{Clock: clock, RateLimiter: workqueue.Exponential[string](time.Second, time.Minute)})
	var attempts atomic.Int32
	failures := make(chan error, 10)
	done := make(chan error, 1)
	refused := errors.New("refused")
	go func() {
		done <- q.Run(bounded.Context(t), 1, func(_ context.Context, key string) error {
			switch attempts.Add(1) {
			case 1:
				return refused
			case 2:
				panic("bad work")
			case 3:
				runtime.Goexit()
			}
			return nil
		}, func(_ string, err error) { failures <- err })
	}()
	q.Add("a")
	for i := range 3 {
		err := bounded.Receive(t, "a failure", failures)
		var panicked *workqueue.PanicError
		want(t, "kind", fmt.Sprint(errors.Is(err, refused), errors.As(err, &panicked)), []string{"true false", "false true", "false true"}[i])
		want(t, "failures", q.NumRequeues("a"), i+1)
		bounded.Eventually(t, "it waits", func() bool { return clock.Armed() == 1 })
		clock.Advance(time.Second<<i - 1)
		want(t, "not yet", attempts.Load(), int32(i+1))
		clock.Advance(1)
	}
	bounded.Eventually(t, "it succeeds", func() bool { return attempts.Load() == 4 && q.NumRequeues("a") == 0 && q.Status().Processing == 0 })
	want(t, "requeued", q.Status().Requeued, 3)
	if err := q.Drain(bounded.Context(t)); err != nil {
		t.Fatal(err)
	}
	want(t, "the end", bounded.Receive(t, "the end", done), nil)
}

// What ends the work first is the answer: the context, though the queue is shut down while a worker is still at its
// key, or the shut-down, though the context ends then.
func TestWQ06RunAnswersWhatEndedItFirst(t *testing.T) {
	stopped := errors.New("stopped")
	for first, expected := range map[string]error{"context": stopped, "shut-down": nil} {
		q, _ := made(t)
		ctx, cancel := context.WithCancelCause(context.Background())
		begun, gate, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			done <- q.Run(ctx, 2, func(context.Context, string) error {
				close(begun)
				<-gate
				return nil
			}, nil)
		}()
		q.Add("a")
		bounded.Receive(t, "the work", begun)
		if first == "context" {
			cancel(stopped)
			q.ShutDown()
		} else {
			q.ShutDown()
			cancel(stopped)
		}
		close(gate)
		want(t, first, bounded.Receive(t, "the end", done), expected)
		want(t, "once more, behind the shut-down", q.Run(context.Background(), 1, nil, nil), nil)
	}
}

// What hears of a failure may panic, or end its goroutine: the key comes again, and the work goes on.
func TestWQ19PanicOfWhoHearsOfAFailureHarmsNothing(t *testing.T) {
	q := workqueue.New(workqueue.Options[string]{RateLimiter: workqueue.Exponential[string](0, 0)})
	done := make(chan error, 1)
	var heard, worked atomic.Int32
	go func() {
		done <- q.Run(bounded.Context(t), 1, func(context.Context, string) error {
			if worked.Add(1) < 3 {
				return errors.New("refused")
			}
			return nil
		}, func(string, error) {
			if heard.Add(1) == 1 {
				panic("a bad listener")
			}
			runtime.Goexit()
		})
	}()
	q.Add("a")
	bounded.Eventually(t, "it succeeds", func() bool { return worked.Load() == 3 && q.Status().Processing == 0 })
	want(t, "drained", q.Drain(bounded.Context(t)), nil)
	want(t, "the end", bounded.Receive(t, "the end", done), nil)
	want(t, "heard", heard.Load(), 2)
}

// A wait that is cancelled takes no key with it, and no wake-up of another's.
func TestWQ20CancelledWaitPassesTheKeyOn(t *testing.T) {
	for range 300 {
		q, _ := made(t)
		ctx, cancel := context.WithCancel(context.Background())
		hasty, patient := make(chan string, 2), make(chan string, 1)
		var waiting sync.WaitGroup
		for range 2 {
			waiting.Add(1)
			go func() {
				waiting.Done()
				key, _ := q.GetContext(ctx)
				hasty <- key
			}()
		}
		waiting.Wait()
		runtime.Gosched() // the two are first in line, mostly
		go func() { key, _ := q.Get(); patient <- key }()
		for range 5 {
			runtime.Gosched()
		}
		cancel()
		q.Add("a") // for one that does not want it any more
		if bounded.Receive(t, "a hasty one", hasty)+bounded.Receive(t, "the other", hasty) == "" {
			select {
			case key := <-patient:
				want(t, "the patient one's", key, "a")
			case <-time.After(bounded.Bound):
				t.Fatal("the wake-up is lost")
			}
		}
		q.ShutDown()
	}
	_, err := workqueue.New(workqueue.Options[string]{}).GetContext(soon(t))
	want(t, "cancelled", errors.Is(err, context.DeadlineExceeded), true)
}

// Ten million additions of few keys take no memory.
func TestFaultQueueOfFewKeysDoesNotGrow(t *testing.T) {
	q, _ := made(t)
	add := func(n int) {
		keys := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
		for i := range n {
			q.Add(keys[i%len(keys)])
			if i%1000 == 0 {
				key, _ := q.Get()
				q.Done(key)
			}
		}
	}
	add(1000)
	before := heap()
	add(3_000_000)
	if after := heap(); after > before+64<<10 {
		t.Fatalf("%d bytes before, %d after", before, after)
	}
}

func heap() uint64 {
	for range 3 {
		runtime.GC()
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// A program that never says Done, or a handler that calls the queue from inside the work, hangs nobody.
func TestWQ23CallsFromInsideTheWork(t *testing.T) {
	q := workqueue.New(workqueue.Options[string]{})
	done := make(chan error, 1)
	go func() {
		done <- q.Run(bounded.Context(t), 1, func(_ context.Context, key string) error {
			if key == "a" {
				q.Add("a")
				q.Add("b")
				q.Forget("a")
				_ = q.Status()
				return nil
			}
			q.ShutDown()
			return nil
		}, nil)
	}()
	q.Add("a")
	want(t, "the end", bounded.Receive(t, "the end", done), nil)
	want(t, "what is left", q.Len(), 0)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	want(t, "a context that is done", workqueue.New(workqueue.Options[string]{}).Run(ctx, 3, nil, nil), context.Canceled)
}

// The longest duration is no overflow, and a negative one is none.
func TestBordersOfDurations(t *testing.T) {
	most := workqueue.Exponential[string](time.Hour, math.MaxInt64)
	for range 100 {
		if wait := most.When("a"); wait <= 0 {
			t.Fatal(wait)
		}
	}
	q, _ := made(t)
	q.AddAfter("now", -1)
	want(t, "at once", next(t, q), "now")
}

func TestLongestProcessingIsTheFirstTaken(t *testing.T) {
	q, clock := made(t)
	for i := range 20 {
		q.Add(fmt.Sprint(i))
		next(t, q)
		clock.Advance(time.Second)
	}
	err := q.Drain(soon(t))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `work queue "q" is not drained: 0 keys wait, 20 are processed, the longest for 20s`) {
		t.Fatal(err)
	}
	for range 20 { // the keys lie in no order
		want(t, "the longest", q.Status().LongestProcessing, 20*time.Second)
	}
}
