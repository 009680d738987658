package workqueue

import (
	"math"
	"sync"
	"time"

	"github.com/watchcore/watchcore/go/watch"
)

// RateLimiter says how long a key that failed must wait. Its methods may be called from any goroutine.
type RateLimiter[K comparable] interface {
	// When counts a failure of a key, and returns how long the key must wait.
	When(key K) time.Duration
	// Forget resets a key to one that never failed.
	Forget(key K)
	// NumRequeues returns how often a key has failed since Forget.
	NumRequeues(key K) int
}

// DefaultRateLimiter is the usual limiter of controllers: 5 ms, doubled with each failure of a key, up to
// 1000 s, and for all keys together 10 a second after a burst of 100; the longer wait applies.
func DefaultRateLimiter[K comparable](clock watch.Clock) RateLimiter[K] {
	return MaxOf[K](Exponential[K](5*time.Millisecond, 1000*time.Second), TokenBucket[K](10, 100, clock))
}

// Exponential waits base after the first failure of a key, doubled with each further one, at most
// most. Forget frees the memory of a key.
func Exponential[K comparable](base, most time.Duration) RateLimiter[K] {
	return &exponential[K]{base: base, most: most, failures: map[K]int{}}
}

type exponential[K comparable] struct {
	base, most time.Duration
	mu         sync.Mutex
	failures   map[K]int
}

func (e *exponential[K]) When(key K) time.Duration {
	e.mu.Lock()
	failures := e.failures[key]
	e.failures[key]++
	e.mu.Unlock()
	wait := float64(e.base) * math.Pow(2, float64(min(failures, 1000)))
	if wait >= float64(e.most) {
		return e.most
	}
	return time.Duration(wait)
}

func (e *exponential[K]) Forget(key K) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.failures, key)
}

func (e *exponential[K]) NumRequeues(key K) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.failures[key]
}

// TokenBucket lets burst failures of all keys together pass at once, and then perSecond a second:
// the others wait for their tokens. TokenBucket does not distinguish keys. A rate that is not above 0 counts
// as one an hour. A nil clock is the system's.
func TokenBucket[K comparable](perSecond float64, burst int, clock watch.Clock) RateLimiter[K] {
	if !(perSecond > 0) {
		perSecond = 1.0 / 3600
	}
	if clock == nil {
		clock = watch.SystemClock{}
	}
	return &bucket[K]{rate: perSecond, burst: float64(burst), tokens: float64(burst), clock: clock, filled: clock.Now()}
}

type bucket[K comparable] struct {
	rate, burst float64
	clock       watch.Clock

	mu     sync.Mutex
	tokens float64 // negative: the number of keys that wait for tokens
	filled time.Time
}

func (b *bucket[K]) When(K) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	b.tokens = min(b.burst, b.tokens+max(0, now.Sub(b.filled).Seconds())*b.rate)
	b.filled = now
	b.tokens--
	if b.tokens >= 0 {
		return 0
	}
	return time.Duration(math.Ceil(min(-b.tokens/b.rate*float64(time.Second), float64(1<<62))))
}

func (b *bucket[K]) Forget(K)          {}
func (b *bucket[K]) NumRequeues(K) int { return 0 }

// MaxOf combines several limiters: each counts each failure, and the longest wait applies.
func MaxOf[K comparable](limiters ...RateLimiter[K]) RateLimiter[K] { return maxOf[K](limiters) }

type maxOf[K comparable] []RateLimiter[K]

func (m maxOf[K]) When(key K) (wait time.Duration) {
	for _, one := range m {
		wait = max(wait, one.When(key))
	}
	return wait
}

func (m maxOf[K]) Forget(key K) {
	for _, one := range m {
		one.Forget(key)
	}
}

func (m maxOf[K]) NumRequeues(key K) (times int) {
	for _, one := range m {
		times = max(times, one.NumRequeues(key))
	}
	return times
}
