// Package workqueue passes keys from goroutines that see a change to workers that react to it: each
// key once, however often it was added, never to two workers at a time, and later if it failed.
//
//	queue := workqueue.New(workqueue.Options[string]{})
//	pods.AddHandler(informer.EnqueueKeys[*Pod](queue), informer.HandlerOptions{})
//	err := queue.Run(ctx, 4, func(ctx context.Context, key string) error { … })
//
// [Queue] is the main type; it has the methods of client-go's typed rate limiting queue, and
// [Queue.Run], the loop that every controller writes around it.
//
// # Life of a key
//
//  1. Add appends it to the queue, unless it is there already; AddAfter and AddRateLimited do so when its delay
//     has passed.
//  2. Get returns it to one worker, and from then on it is being processed.
//  3. If it is added meanwhile, it is not returned by Get, but marked, once.
//  4. Done ends the processing. A marked key is appended to the queue again.
//
// So a key is always processed once more after its last Add, with the state of that time or later.
package workqueue

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/watchcore/watchcore/go/internal/clocks"
	"github.com/watchcore/watchcore/go/watch"
)

// Options configures a queue. The zero value is client-go's default.
type Options[K comparable] struct {
	// Name is used in messages and metrics.
	Name string
	// RateLimiter decides how long AddRateLimited waits. nil is DefaultRateLimiter.
	RateLimiter RateLimiter[K]
	// Clock is for tests. nil is the system's clock.
	Clock watch.Clock
}

// Queue is a queue of keys. All methods may be called from any goroutine. Only Get, GetContext,
// ShutDownWithDrain, Drain and Run wait. Call ShutDown in the end, so that the workers end.
type Queue[K comparable] struct {
	name    string
	limiter RateLimiter[K]
	clock   watch.Clock

	mu         sync.Mutex
	ready      ring[K]
	wanted     map[K]struct{}    // ready, or marked while they are processed
	processing map[K]time.Time   // since when
	waiters    []chan struct{}   // of Get, in order of arrival; each has capacity for one token
	runs       map[*run]struct{} // calls of Run
	closed     bool
	idle       chan struct{} // closed when no key is ready or processed; nil: nobody waits
	added      uint64
	requeued   uint64

	delayed delays[K]
	due     map[K]*delay[K]
	numbers uint64         // of the delays: of several that are due at the same time, the first one added comes first
	limited map[K]struct{} // keys that were passed to the limiter, and not taken by a worker since
	earlier chan struct{}  // one token: the first delay has changed
	timing  bool           // a goroutine waits for the first delay
}

// New makes an empty queue.
func New[K comparable](options Options[K]) *Queue[K] {
	q := &Queue[K]{
		name: options.Name, limiter: options.RateLimiter, clock: options.Clock,
		wanted: map[K]struct{}{}, processing: map[K]time.Time{}, runs: map[*run]struct{}{},
		due: map[K]*delay[K]{}, limited: map[K]struct{}{}, earlier: make(chan struct{}, 1),
	}
	if q.clock == nil {
		q.clock = watch.SystemClock{}
	}
	if q.limiter == nil {
		q.limiter = DefaultRateLimiter[K](q.clock)
	}
	return q
}

// Add appends a key to the queue, unless it is there already. If the key is being processed, it is
// appended when that is done. Add does nothing after a shut-down.
func (q *Queue[K]) Add(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(key)
}

func (q *Queue[K]) add(key K) {
	if q.closed {
		return
	}
	if _, there := q.wanted[key]; there {
		return
	}
	q.added++
	q.wanted[key] = struct{}{}
	if _, busy := q.processing[key]; !busy {
		q.ready.push(key)
		q.wake()
	}
}

// wake wakes the first waiter.
func (q *Queue[K]) wake() {
	if len(q.waiters) > 0 {
		q.waiters[0] <- struct{}{}
		q.waiters = slices.Delete(q.waiters, 0, 1)
	}
}

// Len returns how many keys can be taken now, without keys that are being processed or delayed.
func (q *Queue[K]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ready.length
}

// Get waits for a key. The caller must call Done when it has processed the key. shutdown is true if
// the queue was shut down and all keys were taken.
func (q *Queue[K]) Get() (key K, shutdown bool) {
	key, err := q.GetContext(context.Background())
	return key, err != nil
}

// GetContext is Get with a context. The error is ErrShutDown if the queue was shut down and all
// keys were taken, and the context's if it is done before a key comes; no key is lost.
func (q *Queue[K]) GetContext(ctx context.Context) (key K, err error) {
	if err := ctx.Err(); err != nil {
		return key, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.ready.length == 0 {
		if q.closed {
			return key, ErrShutDown
		}
		if err := q.wait(ctx); err != nil {
			return key, err
		}
	}
	key = q.ready.pop()
	q.processing[key] = q.clock.Now()
	delete(q.wanted, key)
	delete(q.limited, key)
	return key, nil
}

// wait sleeps until it is woken, without the lock.
func (q *Queue[K]) wait(ctx context.Context) error {
	token := make(chan struct{}, 1)
	q.waiters = append(q.waiters, token)
	q.mu.Unlock()
	var err error
	select {
	case <-token:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	q.mu.Lock()
	if err == nil {
		return nil
	}
	if i := slices.Index(q.waiters, token); i >= 0 {
		q.waiters = slices.Delete(q.waiters, i, i+1)
	} else if q.ready.length > 0 {
		q.wake() // this waiter was woken for a key: pass the wake-up on to another waiter
	}
	return err
}

// Done ends the processing of a key. If the key was added meanwhile, it is appended to the queue.
// For a key that is not being processed, Done does nothing.
func (q *Queue[K]) Done(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, busy := q.processing[key]; !busy {
		return
	}
	delete(q.processing, key)
	if _, again := q.wanted[key]; again {
		q.ready.push(key)
		q.wake()
	}
	q.settle()
}

// settle wakes the callers of Drain when no key is left.
func (q *Queue[K]) settle() {
	if q.idle != nil && q.ready.length == 0 && len(q.processing) == 0 {
		close(q.idle)
		q.idle = nil
	}
}

// ShutDown makes the queue refuse new keys and drop delayed ones that are not due. The remaining
// keys can still be taken; then every Get returns shutdown. Idempotent; it does not wait.
func (q *Queue[K]) ShutDown() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.moveDue()
	q.closed = true
	for r := range q.runs {
		r.first = context.Cause(r.ctx)
	}
	q.delayed, q.due, q.limited = nil, map[K]*delay[K]{}, map[K]struct{}{}
	q.nudge()
	for len(q.waiters) > 0 {
		q.wake()
	}
}

// ShutDownWithDrain is ShutDown, and waits until the workers have processed every key, including
// keys that were added while they were processed. ShutDownWithDrain needs running workers: Drain has a time limit.
func (q *Queue[K]) ShutDownWithDrain() { _ = q.Drain(context.Background()) }

// Drain is ShutDownWithDrain with a context. The error says how many keys are left, and for how
// long the oldest has been processed.
func (q *Queue[K]) Drain(ctx context.Context) error {
	q.ShutDown()
	q.mu.Lock()
	if q.ready.length == 0 && len(q.processing) == 0 {
		q.mu.Unlock()
		return nil
	}
	if q.idle == nil {
		q.idle = make(chan struct{})
	}
	idle := q.idle
	q.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		s := q.Status()
		return fmt.Errorf("work queue %q is not drained: %d keys wait, %d are processed, the longest for %v: %w",
			q.name, s.Ready, s.Processing, s.LongestProcessing, context.Cause(ctx))
	}
}

// ShuttingDown reports whether ShutDown was called.
func (q *Queue[K]) ShuttingDown() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// AddRateLimited adds a key after the delay that the rate limiter returns. Call Forget when the key
// has succeeded.
//
// For a key that waits already, in the queue or for its rate limit, the limiter is not called:
// neither a failure is counted nor a token taken, however often the key is added until a worker
// takes it. (client-go's queue calls it each time, so that one such key makes all others wait.) For
// a key that AddAfter has delayed the limiter is called, and the earlier time applies.
func (q *Queue[K]) AddRateLimited(key K) {
	if !q.claim(key) {
		return
	}
	asked := false
	defer func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if asked {
			q.requeued++
		} else { // the limiter panicked, or ended the goroutine
			delete(q.limited, key)
		}
	}()
	after := q.limiter.When(key)
	asked = true
	q.AddAfter(key, after)
}

// claim reports whether the limiter may be called for a key, and records that it is.
func (q *Queue[K]) claim(key K) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, wanted := q.wanted[key]
	_, busy := q.processing[key]
	_, limited := q.limited[key]
	if q.closed || limited || wanted && !busy {
		return false
	}
	q.limited[key] = struct{}{}
	return true
}

// Forget resets a key in the rate limiter to one that never failed. Forget has no effect on the queue:
// Done must still be called.
func (q *Queue[K]) Forget(key K) { q.limiter.Forget(key) }

// NumRequeues returns how often a key has failed since Forget.
func (q *Queue[K]) NumRequeues(key K) int { return q.limiter.NumRequeues(key) }

// Status describes a queue.
type Status struct {
	Name              string
	Ready             int           // keys that can be taken now
	Processing        int           // keys that were taken and are not done
	Delayed           int           // keys whose delay has not passed
	Added             uint64        // keys added, without those that were in the queue already
	Requeued          uint64        // calls of AddRateLimited for keys that did not wait already
	LongestProcessing time.Duration // of the keys that are not done
	ShuttingDown      bool
}

// Status returns the queue's present state, in O(keys that are processed).
func (q *Queue[K]) Status() Status {
	now := q.clock.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	s := Status{Name: q.name, Ready: q.ready.length, Processing: len(q.processing), Delayed: len(q.due),
		Added: q.added, Requeued: q.requeued, ShuttingDown: q.closed}
	for _, since := range q.processing {
		s.LongestProcessing = max(s.LongestProcessing, now.Sub(since))
	}
	return s
}

// delay is a delayed key.
type delay[K comparable] struct {
	key    K
	due    time.Time
	number uint64
	place  int
}

// delays is a heap, ordered by due time.
type delays[K comparable] []*delay[K]

func (d delays[K]) Len() int { return len(d) }
func (d delays[K]) Less(i, j int) bool {
	if d[i].due.Equal(d[j].due) {
		return d[i].number < d[j].number
	}
	return d[i].due.Before(d[j].due)
}
func (d delays[K]) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].place, d[j].place = i, j
}
func (d *delays[K]) Push(x any) {
	one := x.(*delay[K])
	one.place = len(*d)
	*d = append(*d, one)
}
func (d *delays[K]) Pop() any {
	last := len(*d) - 1
	one := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return one
}

// AddAfter adds a key after a duration, or at once if that is not above 0. A key that is delayed
// already comes once, at the earlier of both times. AddAfter does nothing after a shut-down.
func (q *Queue[K]) AddAfter(key K, after time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if after <= 0 {
		q.add(key)
		return
	}
	at := q.clock.Now().Add(after)
	q.numbers++
	if one := q.due[key]; one == nil {
		one = &delay[K]{key: key, due: at, number: q.numbers}
		q.due[key] = one
		heap.Push(&q.delayed, one)
	} else if at.Before(one.due) {
		one.due, one.number = at, q.numbers
		heap.Fix(&q.delayed, one.place)
	} else {
		return
	}
	if !q.timing {
		q.timing = true
		go q.addDelayed()
	} else if q.delayed[0].key == key {
		q.nudge()
	}
}

func (q *Queue[K]) nudge() {
	select {
	case q.earlier <- struct{}{}:
	default:
	}
}

// moveDue adds the keys that are due. The caller has the lock.
func (q *Queue[K]) moveDue() {
	now := q.clock.Now()
	for len(q.delayed) > 0 && !q.delayed[0].due.After(now) {
		one := heap.Pop(&q.delayed).(*delay[K])
		delete(q.due, one.key)
		q.add(one.key)
	}
}

// addDelayed adds delayed keys as they become due, until none is left.
func (q *Queue[K]) addDelayed() {
	for {
		q.mu.Lock()
		q.moveDue()
		if len(q.delayed) == 0 {
			q.timing = false
			q.mu.Unlock()
			return
		}
		due := q.delayed[0].due
		q.mu.Unlock()
		fired, stop := clocks.TimerAt(q.clock, due)
		select {
		case <-fired:
		case <-q.earlier:
		}
		stop()
	}
}

// ring is a first-in, first-out queue that reuses its memory.
type ring[K comparable] struct {
	keys          []K
	first, length int
}

func (r *ring[K]) push(key K) {
	if r.length == len(r.keys) {
		larger := make([]K, max(8, 2*len(r.keys)))
		n := copy(larger, r.keys[r.first:])
		copy(larger[n:], r.keys[:r.first])
		r.keys, r.first = larger, 0
	}
	r.keys[(r.first+r.length)%len(r.keys)] = key
	r.length++
}

func (r *ring[K]) pop() (key K) {
	var none K
	key, r.keys[r.first] = r.keys[r.first], none
	r.first = (r.first + 1) % len(r.keys)
	if r.length--; r.length == 0 && len(r.keys) > 1024 {
		r.keys, r.first = nil, 0 // do not keep the memory after a burst
	}
	return key
}
