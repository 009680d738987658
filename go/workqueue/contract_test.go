package workqueue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/internal/handclock"
	"github.com/watchcore/watchcore/go/internal/rows"
	"github.com/watchcore/watchcore/go/workqueue"
)

// The rows of contract/toolkit that are about a queue.
func TestContractRowsOfTheQueue(t *testing.T) {
	rows.Run(t, "../../contract/toolkit", "go", "run queue", func(t *testing.T) rows.Machine {
		return &worker{t: t, clock: newClock(), cancel: map[string]func(){}}
	})
}

// The rows of contract/toolkit that are about a limiter.
func TestContractRowsOfTheLimiter(t *testing.T) {
	rows.Run(t, "../../contract/toolkit", "go", "run limiter", func(*testing.T) rows.Machine {
		return &limiting{clock: newClock()}
	})
}

// limiter is "keys FIRST MOST" and "tokens RATE BURST", in the order in which they stand.
func limiter(words []string, clock *handclock.Clock) workqueue.RateLimiter[string] {
	var all []workqueue.RateLimiter[string]
	for three := range slices.Chunk(words, 3) {
		if three[0] == "keys" {
			all = append(all, workqueue.Exponential[string](rows.Duration(three[1]), rows.Duration(three[2])))
			continue
		}
		rate, err := strconv.ParseFloat(three[1], 64)
		if err != nil || three[0] != "tokens" {
			panic(three[0] + " is no limiter")
		}
		all = append(all, workqueue.TokenBucket[string](rate, int(rows.Number(three[2])), clock))
	}
	return workqueue.MaxOf(all...)
}

// limiting runs the steps of a row that asks a limiter.
type limiting struct {
	clock   *handclock.Clock
	limiter workqueue.RateLimiter[string]
}

func (l *limiting) Close() {}

func (l *limiting) Run(words []string) []string {
	switch words[0] {
	case "run":
		l.limiter = limiter(words[2:], l.clock)
	case "delay":
		return []string{fmt.Sprint(l.limiter.When(words[1]).Milliseconds(), "ms")}
	case "failures":
		return []string{fmt.Sprint(l.limiter.NumRequeues(words[1]))}
	case "forget":
		l.limiter.Forget(words[1])
	case "advance":
		l.clock.Advance(rows.Duration(words[1]))
	default:
		panic(words[0] + " is no word of a limiter")
	}
	return nil
}

// broken is a limiter that panics where it is asked for one key.
type broken struct {
	workqueue.RateLimiter[string]
	key string
}

func (b broken) When(key string) time.Duration {
	b.fail(key)
	return b.RateLimiter.When(key)
}

func (b broken) Forget(key string) {
	b.fail(key)
	b.RateLimiter.Forget(key)
}

func (b broken) fail(key string) {
	if key == b.key {
		panic("as the row says")
	}
}

// worker runs the steps of a row that works at a queue.
type worker struct {
	t      *testing.T
	clock  *handclock.Clock
	queue  *workqueue.Queue[string]
	cancel map[string]func() // the waits, by the workers' names

	mu      sync.Mutex
	waiting int      // that have not ended
	got     []string // since the last "got"
	ended   []string // the same: "end" for each that the end of the queue has ended
	drained chan struct{}
}

func (w *worker) Close() {
	if w.queue != nil { // a row may have nothing before its first case
		w.queue.ShutDown()
	}
}

// Run is a step, and what it prints.
func (w *worker) Run(words []string) []string {
	switch word := words[0]; word {
	case "run":
		limits, key := words[2:], ""
		if limits[len(limits)-2] == "broken" {
			limits, key = limits[:len(limits)-2], limits[len(limits)-1]
		}
		limits = []string{"keys", limits[0], limits[1], "tokens", limits[2], limits[3]}
		w.queue = workqueue.New(workqueue.Options[string]{Clock: w.clock, RateLimiter: broken{limiter(limits, w.clock), key}})
	case "take", "done", "fail", "panic", "wait", "cancel", "got", "waiting":
		return w.work(word, words[min(1, len(words)-1)])
	case "shutdown":
		w.queue.ShutDown()
	case "drain", "drained":
		return w.drain(words)
	default:
		return w.addOrCount(word, words[1:])
	}
	return nil
}

func (w *worker) addOrCount(word string, rest []string) []string {
	q := w.queue
	switch word {
	case "add":
		q.Add(rest[0])
	case "limited":
		q.AddRateLimited(rest[0])
	case "after":
		q.AddAfter(rest[0], rows.Duration(rest[1]))
	case "forget":
		q.Forget(rest[0])
	case "advance":
		w.clock.Advance(rows.Duration(rest[0]))
		bounded.Eventually(w.t, "what is due is added", func() bool { return !q.HasDue() })
	case "timers":
		bounded.Eventually(w.t, "timers", func() bool { return w.clock.Armed() == int(rows.Number(rest[0])) })
	case "ready":
		return []string{fmt.Sprint(q.Len())}
	case "processing":
		return []string{fmt.Sprint(q.Status().Processing)}
	case "delayed":
		return []string{fmt.Sprint(q.Status().Delayed)}
	case "added":
		return []string{fmt.Sprint(q.Status().Added)}
	case "retries":
		return []string{fmt.Sprint(q.Status().Requeued)}
	case "failures":
		return []string{fmt.Sprint(q.NumRequeues(rest[0]))}
	default:
		panic(word + " is no word of a queue")
	}
	return nil
}

// work is the words of workers.
func (w *worker) work(word, key string) []string {
	switch word {
	case "take":
		if w.queue.Len() == 0 && !w.queue.ShuttingDown() {
			return []string{"nothing"}
		}
		key, end := w.queue.Get()
		if end {
			key = "end"
		}
		return []string{key}
	case "done":
		w.queue.Done(key)
	case "fail":
		w.queue.Process(key, func() error { return errors.New("as the row says") })
	case "panic":
		w.queue.Process(key, func() error { panic("as the row says") })
	case "wait":
		w.wait(key)
	case "cancel":
		w.cancel[key]()
	default:
		w.settle()
		w.mu.Lock()
		defer w.mu.Unlock()
		if word == "waiting" {
			return []string{fmt.Sprint(w.waiting)}
		}
		slices.Sort(w.got)
		got := strings.Join(append(w.got, w.ended...), " ")
		if w.got, w.ended = nil, nil; got != "" {
			return []string{got}
		}
	}
	return nil
}

// wait lets a worker wait for a key.
func (w *worker) wait(name string) {
	ctx, cancel := context.WithCancel(context.Background())
	through := make(chan struct{})
	w.mu.Lock()
	w.waiting++
	w.mu.Unlock()
	go func() {
		defer close(through)
		key, err := w.queue.GetContext(ctx)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.waiting--
		switch {
		case err == nil:
			w.got = append(w.got, key)
		case errors.Is(err, workqueue.ErrShutDown):
			w.ended = append(w.ended, "end")
		}
	}()
	w.cancel[name] = func() {
		cancel()
		bounded.Receive(w.t, "the end of a wait", through)
	}
	w.settle()
}

// settle waits until every worker that waits sleeps.
func (w *worker) settle() {
	bounded.Eventually(w.t, "the workers sleep", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.waiting == w.queue.Waiters()
	})
}

// drain begins one, with "now" one without time, or says whether it is over.
func (w *worker) drain(words []string) []string {
	over := func() bool {
		select {
		case <-w.drained:
			return true
		default:
			return false
		}
	}
	settle := func() {
		bounded.Eventually(w.t, "the drain sleeps, or is over", func() bool { return over() || w.queue.HasDrain() })
	}
	switch {
	case words[0] == "drained":
		if settle(); over() {
			return []string{"yes"}
		}
		return []string{"no"}
	case len(words) > 1:
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		var ready, processing int
		if _, err := fmt.Sscanf(w.queue.Drain(ctx).Error(), `work queue "" is not drained: %d keys wait, %d are processed`, &ready, &processing); err != nil {
			panic(err)
		}
		return []string{fmt.Sprint(processing, " processing ", ready, " ready")}
	}
	w.drained = make(chan struct{})
	go func() {
		defer close(w.drained)
		_ = w.queue.Drain(bounded.Context(w.t))
	}()
	settle()
	return nil
}
