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

	"watchcore/internal/bounded"
	"watchcore/internal/handclock"
	"watchcore/watch"
	"watchcore/workqueue"
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
	for i := range keys {
		want(t, "the last addition was seen", seen[i].Load(), int64(4*rounds))
	}
	want(t, "the end", bounded.Receive(t, "the end", done), nil)
}

func TestWQ02AddedWhileProcessedComesAgainAfterwards(t *testing.T) {
	q, _ := made(t)
	q.Add("a")
	q.Add("a")
	want(t, "length", q.Len(), 1)
	want(t, "key", next(t, q), "a")
	q.Add("a")
	q.Add("a")
	want(t, "while it is processed", q.Len(), 0)
	q.Done("a")
	want(t, "afterwards", q.Len(), 1)
	want(t, "again", next(t, q), "a")
	q.Done("a")
	q.Done("a")
	q.Done("never")
	want(t, "length", q.Len(), 0)
}

// First in, first out, over more keys than the first memory has room for; a key that comes back goes to
// the end; Len counts what can be taken.
func TestWQ04OrderIsFirstInFirstOut(t *testing.T) {
	q, _ := made(t)
	var got, expected []string
	for i := range 5 {
		q.Add(fmt.Sprint(i))
	}
	for range 3 {
		key := next(t, q)
		q.Add(key)
		q.Done(key)
	}
	for i := 5; i < 100; i++ {
		q.Add(fmt.Sprint(i))
	}
	want(t, "length", q.Len(), 100)
	expected = append(expected, "3", "4", "0", "1", "2")
	for i := 5; i < 100; i++ {
		expected = append(expected, fmt.Sprint(i))
	}
	for range 100 {
		got = append(got, next(t, q))
	}
	want(t, "order", strings.Join(got, " "), strings.Join(expected, " "))
}

// A drain waits for what is ready and what is processed, with what was added meanwhile; it takes nothing new.
func TestWQ05DrainWaitsForEverything(t *testing.T) {
	q, _ := made(t)
	q.Add("a")
	q.Add("b")
	want(t, "taken", next(t, q), "a")
	q.Add("a")
	drained := make(chan error, 1)
	go func() { drained <- q.Drain(bounded.Context(t)) }()
	bounded.Eventually(t, "it shuts down", q.ShuttingDown)
	q.Add("c")
	q.AddAfter("d", time.Second)
	want(t, "b", next(t, q), "b")
	q.Done("b")
	q.Done("a")
	select {
	case err := <-drained:
		t.Fatal("drained while a key waits", err)
	default:
	}
	want(t, "a again", next(t, q), "a")
	q.Done("a")
	want(t, "drained", <-drained, nil)
	_, shutdown := q.Get()
	want(t, "nothing new", shutdown, true)
	q.ShutDownWithDrain()
}

// A shut-down lets the rest be taken and ends every wait.
func TestWQ06ShutDownLetsTheRestBeTaken(t *testing.T) {
	q, _ := made(t)
	ends := make(chan bool, 10)
	for range 10 {
		go func() { _, shutdown := q.Get(); ends <- shutdown }()
	}
	q.Add("a")
	want(t, "one has it", <-ends, false)
	q.ShutDown()
	q.ShutDown()
	for range 9 {
		want(t, "the others", <-ends, true)
	}
	rest, _ := made(t)
	rest.Add("a")
	rest.ShutDown()
	want(t, "the rest", next(t, rest), "a")
	_, err := rest.GetContext(bounded.Context(t))
	want(t, "the end", err, workqueue.ErrShutDown)
}

func TestWQ08DrainInVainSaysHowManyAreLeft(t *testing.T) {
	q, clock := made(t)
	q.Add("a")
	q.Add("b")
	next(t, q)
	clock.Advance(time.Minute)
	err := q.Drain(soon(t))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `"q" is not drained: 1 keys wait, 1 are processed, the longest for 1m0s`) {
		t.Fatal(err)
	}
}

// Delayed keys come in the order of their times, the earlier time of two, and an earlier
// key does not wait for a later one's timer; they wake who waits.
func TestWQ10DelayedKeysComeWhenTheyAreDue(t *testing.T) {
	q, clock := made(t)
	q.AddAfter("late", time.Hour)
	q.AddAfter("twice", 30*time.Minute)
	q.AddAfter("twice", time.Minute)
	q.AddAfter("twice", 2*time.Hour)
	q.AddAfter("soon", time.Second)
	q.AddAfter("now", 0)
	q.AddAfter("now", -1)
	want(t, "at once", next(t, q), "now")
	want(t, "delayed", q.Status().Delayed, 3)
	got := make(chan string, 1)
	ctx := bounded.Context(t)
	go func() { key, _ := q.GetContext(ctx); got <- key }()
	bounded.Eventually(t, "it waits", func() bool { return clock.Armed() == 1 })
	clock.Advance(time.Second - 1)
	want(t, "not yet", q.Len(), 0)
	clock.Advance(1)
	want(t, "the first", bounded.Receive(t, "the first", got), "soon")
	for _, step := range []struct {
		after time.Duration
		key   string
	}{{time.Minute, "twice"}, {time.Hour, "late"}} {
		bounded.Eventually(t, "armed", func() bool { return clock.Armed() == 1 })
		clock.Advance(step.after)
		want(t, "key", next(t, q), step.key)
	}
	want(t, "nothing is left", q.Status().Delayed, 0)
	q.AddAfter("again", time.Second) // the goroutine has ended, or ends just now
	bounded.Eventually(t, "armed", func() bool { return clock.Armed() == 1 })
	clock.Advance(time.Hour)
	want(t, "key", next(t, q), "again")
	q.AddAfter("dropped", time.Second)
	q.ShutDown()
	bounded.Eventually(t, "no timer is left", func() bool { return clock.Armed() == 0 })
	want(t, "with the shut-down", q.Status().Delayed, 0)
}

// A key that is due earlier does not wait for the timer of a later one.
func TestWQ12EarlierKeyMovesTheTimer(t *testing.T) {
	q, clock := made(t)
	q.AddAfter("late", time.Hour)
	bounded.Eventually(t, "armed", func() bool { return clock.Armed() == 1 })
	q.AddAfter("soon", time.Second)
	bounded.Eventually(t, "armed for the earlier one", func() bool {
		count, first := clock.Timers()
		return count == 1 && first == time.Second
	})
	clock.Advance(time.Second)
	want(t, "key", next(t, q), "soon")
	want(t, "the late one waits", q.Status().Delayed, 1)
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

// All workers wake where many keys are due together.
func TestWQ21KeysDueTogetherWakeAllWorkers(t *testing.T) {
	q, clock := made(t)
	var waiting sync.WaitGroup
	for i := range 20 {
		q.AddAfter(fmt.Sprint(i), time.Second)
		waiting.Go(func() {
			if _, err := q.GetContext(bounded.Context(t)); err != nil {
				t.Error(err)
			}
		})
	}
	bounded.Eventually(t, "armed", func() bool { return clock.Armed() == 1 })
	clock.Advance(time.Second)
	waiting.Wait()
}

func TestWQ14ExponentialLimiterDoublesAndForgets(t *testing.T) {
	l := workqueue.Exponential[string](time.Millisecond, 10*time.Millisecond)
	for _, expected := range []time.Duration{1, 2, 4, 8, 10, 10} {
		want(t, "a", l.When("a"), expected*time.Millisecond)
	}
	want(t, "another key", l.When("b"), time.Millisecond)
	want(t, "failures", l.NumRequeues("a"), 6)
	l.Forget("a")
	want(t, "failures", l.NumRequeues("a"), 0)
	want(t, "forgotten", l.When("a"), time.Millisecond)
	for range 2000 { // no overflow, ever
		l.When("c")
	}
	want(t, "many failures", l.When("c"), 10*time.Millisecond)
	most := workqueue.Exponential[string](time.Hour, math.MaxInt64)
	for range 100 {
		if wait := most.When("a"); wait <= 0 {
			t.Fatal(wait)
		}
	}
}

func TestWQ16TokenBucketLimitsAllKeysTogether(t *testing.T) {
	clock := newClock()
	l := workqueue.TokenBucket[string](10, 3, clock)
	var waits []string
	for i := range 6 {
		waits = append(waits, l.When(fmt.Sprint(i)).String())
	}
	want(t, "waits", strings.Join(waits, " "), "0s 0s 0s 100ms 200ms 300ms")
	clock.Advance(400 * time.Millisecond)
	want(t, "one token is back", l.When("x"), 0)
	want(t, "and no more", l.When("x"), 100*time.Millisecond)
	clock.Advance(time.Hour)
	for range 3 {
		want(t, "the burst", l.When("x"), 0)
	}
	want(t, "beyond it", l.When("x"), 100*time.Millisecond)
	defer func() { want(t, "a rate of 0 is refused", recover() != nil, true) }()
	workqueue.TokenBucket[string](0, 1, nil)
}

func TestWQ17LongestDelayWins(t *testing.T) {
	clock := newClock()
	l := workqueue.MaxOf(workqueue.Exponential[string](time.Second, time.Minute), workqueue.TokenBucket[string](0.5, 1, clock))
	want(t, "exponential", l.When("a"), time.Second)
	want(t, "equal", l.When("a"), 2*time.Second)
	want(t, "bucket", l.When("b"), 4*time.Second)
	want(t, "failures", fmt.Sprint(l.NumRequeues("a"), l.NumRequeues("b")), "2 1")
	l.Forget("a")
	want(t, "forgotten", l.NumRequeues("a"), 0)
	l = workqueue.MaxOf(workqueue.TokenBucket[string](0.5, 1, clock), workqueue.Exponential[string](time.Second, time.Minute))
	l.When("a")
	l.Forget("a")
	want(t, "forgotten by the last one", l.NumRequeues("a"), 0)
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

func TestWQ22BusyKeyDoesNotStarveTenThousand(t *testing.T) {
	q, _ := made(t)
	for i := range 10_000 {
		q.Add(fmt.Sprint(i))
	}
	q.Add("busy")
	for range 10_000 {
		key := next(t, q)
		want(t, "busy comes at its turn", key == "busy", false)
		q.Add("busy")
		q.Done(key)
	}
	want(t, "its turn", next(t, q), "busy")
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

func TestLongestProcessingIsTheFirstTaken(t *testing.T) {
	q, clock := made(t)
	for i := range 20 {
		q.Add(fmt.Sprint(i))
		next(t, q)
		clock.Advance(time.Second)
	}
	for range 20 { // the keys lie in no order
		want(t, "the longest", q.Status().LongestProcessing, 20*time.Second)
	}
}
