// Package workqueue hands keys from those that see a change to those that do something about it:
// each key once, however often it was added, never to two workers at a time, later where
// it failed.
//
//	queue := workqueue.New(workqueue.Options[string]{})
//	pods.AddHandler(informer.EnqueueKeys[*Pod](queue), informer.HandlerOptions{})
//	err := queue.Run(ctx, 4, func(ctx context.Context, key string) error { … })
//
// [Queue] is the type; it has the methods of client-go's typed rate limiting queue, and [Queue.Run],
// the loop that every controller writes around it.
//
// # Life of a key
//
//  1. Add puts it at the end, unless it is there already; AddAfter and AddRateLimited do so when its time
//     has come.
//  2. Get hands it to one worker, and from then on it is being processed.
//  3. Added meanwhile, it is not handed out: it is noted, once.
//  4. Done ends that. Where it was noted, it goes to the end and is handed out again.
//
// So a key is always processed once more after it was added last, with what was true then or later.
package workqueue

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"watchcore/internal/clocks"
	"watchcore/watch"
)

// Options says how a queue limits and waits. The zero value is what client-go's default is.
type Options[K comparable] struct {
	// Name is for messages and figures.
	Name string
	// RateLimiter is how long AddRateLimited waits. nil is DefaultRateLimiter.
	RateLimiter RateLimiter[K]
	// Clock is for tests. nil is the system's.
	Clock watch.Clock
}

// Queue is a queue of keys. All methods may be called from any goroutine. Only Get, GetContext,
// ShutDownWithDrain, Drain and Run wait. ShutDown it, so that its workers end.
type Queue[K comparable] struct {
	name    string
	limiter RateLimiter[K]
	clock   watch.Clock

	mu         sync.Mutex
	ready      ring[K]
	wanted     map[K]struct{}    // ready, or noted while it is processed
	processing map[K]time.Time   // since when
	waiters    []chan struct{}   // of Get, first come, first served; each has room for one token
	runs       map[*run]struct{} // calls of Run
	closed     bool
	idle       chan struct{} // closed when there is nothing ready nor processed; nil: nobody waits
	added      uint64
	requeued   uint64

	delayed delays[K]
	due     map[K]*delay[K]
	numbers uint64         // of the delays: of several that are due at a time the first one comes first
	limited map[K]struct{} // they have asked the limiter, and no worker has taken them since
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

// Add puts a key at the end, unless it waits there already. One that is being processed comes again
// when that is done. Ignored after a shut-down.
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

// wake lets the first of those that wait look.
func (q *Queue[K]) wake() {
	if len(q.waiters) > 0 {
		q.waiters[0] <- struct{}{}
		q.waiters = slices.Delete(q.waiters, 0, 1)
	}
}

// Len is how many keys can be taken now: neither those that are processed nor those whose time
// has not come.
func (q *Queue[K]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ready.length
}

// Get waits for a key. The caller calls Done when it is through with it. shutdown is true where the queue
// was shut down and everything was taken.
func (q *Queue[K]) Get() (key K, shutdown bool) {
	key, err := q.GetContext(context.Background())
	return key, err != nil
}

// GetContext is Get with a context. ErrShutDown where the queue was shut down and
// everything was taken; the context's error where it is done before a key comes: none is lost by that.
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
		q.wake() // it was woken for a key that another one is to take now
	}
	return err
}

// Done says that a key was processed. Where it was added meanwhile it goes to the end. Of a
// key that is not being processed it does nothing.
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

// settle wakes those that wait for the end of everything.
func (q *Queue[K]) settle() {
	if q.idle != nil && q.ready.length == 0 && len(q.processing) == 0 {
		close(q.idle)
		q.idle = nil
	}
}

// ShutDown takes no more keys, drops those whose time has not come by then, and lets the rest be taken; then every Get
// answers that it is over. Idempotent; it does not wait.
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

// ShutDownWithDrain is ShutDown, and waits until the workers are through with every key, also with those that were
// added while they were processed. It needs workers: see Drain for one with a bound.
func (q *Queue[K]) ShutDownWithDrain() { _ = q.Drain(context.Background()) }

// Drain is ShutDownWithDrain with a context. The error says how many keys are left, and for how long the
// oldest has been processed.
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

// ShuttingDown says whether ShutDown was called.
func (q *Queue[K]) ShuttingDown() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// AddRateLimited adds a key after as long as the rate limiter says. Call Forget when it has
// succeeded.
//
// A key that waits already, in the queue or since it was added so before, asks the limiter for nothing: neither a failure is
// counted nor a token taken, however often it is added until a worker takes it. (client-go's queue asks each time, so that one
// such key makes all others wait.) A key that AddAfter has delayed asks, and comes at the earlier time.
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

// claim says whether a key may ask the limiter, and notes that it does.
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

// Forget lets the rate limiter treat a key as one that never failed. It says nothing about the
// queue: Done is still to be called.
func (q *Queue[K]) Forget(key K) { q.limiter.Forget(key) }

// NumRequeues is how often a key has failed since it was forgotten last.
func (q *Queue[K]) NumRequeues(key K) int { return q.limiter.NumRequeues(key) }

// Status is how a queue stands.
type Status struct {
	Name              string
	Ready             int           // keys that can be taken now
	Processing        int           // keys that were taken and are not done
	Delayed           int           // keys whose time has not come
	Added             uint64        // keys, without those that were there already
	Requeued          uint64        // calls of AddRateLimited for keys that did not wait already
	LongestProcessing time.Duration // of those that are not done
	ShuttingDown      bool
}

// Status is how the queue stands now. O(keys that are processed).
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

// delay is a key whose time has not come.
type delay[K comparable] struct {
	key    K
	due    time.Time
	number uint64
	place  int
}

// delays is a heap, the first due first.
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

// AddAfter adds a key when a duration has passed; at once where that is not above 0. A key that
// is delayed already comes at the earlier of both times, once. Ignored after a shut-down.
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
		go q.time()
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

// moveDue adds the keys whose time has come. With the lock.
func (q *Queue[K]) moveDue() {
	now := q.clock.Now()
	for len(q.delayed) > 0 && !q.delayed[0].due.After(now) {
		one := heap.Pop(&q.delayed).(*delay[K])
		delete(q.due, one.key)
		q.add(one.key)
	}
}

// time adds delayed keys as their times come, until there are none.
func (q *Queue[K]) time() {
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

// ring is a first-in, first-out queue that uses its memory again.
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
		r.keys, r.first = nil, 0 // not held after a burst
	}
	return key
}
