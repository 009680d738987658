package informer

import (
	"math/rand/v2"
	"time"
)

// Backoff is how long a source waits between attempts: Min, doubled with each failure, at most Max, of
// which each delay is a random part between the half and the whole. After a calm time of Reset it begins anew.
type Backoff struct {
	Min, Max, Reset time.Duration // 0 is 800 ms, 30 s, 2 min
}

// backoff is the state of a Backoff.
type backoff struct {
	Backoff
	now  time.Duration
	last time.Time
	dice func() float64
}

func newBackoff(b Backoff) *backoff {
	if b.Min <= 0 {
		b.Min = 800 * time.Millisecond
	}
	if b.Max <= 0 {
		b.Max = 30 * time.Second
	}
	if b.Reset <= 0 {
		b.Reset = 2 * time.Minute
	}
	return &backoff{Backoff: b, dice: rand.Float64}
}

// next is how long to wait after a failure at a time, where the server has asked for least. The calm is counted from the end of
// that wait: a server that asks for ten minutes each time does not begin anew each time.
func (b *backoff) next(at time.Time, least time.Duration) time.Duration {
	if b.now == 0 || at.Sub(b.last) > b.Reset {
		b.now = b.Min
	} else {
		b.now = min(2*b.now, b.Max)
	}
	b.now = min(b.now, b.Max)
	wait := max(b.now/2+time.Duration(b.dice()*float64(b.now/2)), least)
	b.last = at.Add(wait)
	return wait
}
