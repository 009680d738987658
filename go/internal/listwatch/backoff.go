package listwatch

import "time"

// Backoff is how long a mirror waits between attempts: Min, doubled with each failure, at most Max, of which each delay is a
// part between the half and the whole that Dice chooses. After a calm time of Reset it begins anew.
type Backoff struct {
	Min, Max, Reset time.Duration
	Dice            func() float64 // from 0 to 1

	now  time.Duration
	last time.Time
}

func (b Backoff) orDefault() *Backoff {
	if b.Min <= 0 {
		b.Min = 800 * time.Millisecond
	}
	if b.Max <= 0 {
		b.Max = 30 * time.Second
	}
	if b.Reset <= 0 {
		b.Reset = 2 * time.Minute
	}
	return &b
}

// next is how long to wait after a failure at a time, where the server has asked for least. The calm is counted from the end of
// that wait: a server that asks for ten minutes each time does not begin anew each time.
func (b *Backoff) next(at time.Time, least time.Duration) time.Duration {
	if b.now == 0 || at.Sub(b.last) > b.Reset {
		b.now = b.Min
	} else {
		b.now = min(2*b.now, b.Max)
	}
	b.now = min(b.now, b.Max)
	wait := max(b.now/2+time.Duration(b.Dice()*float64(b.now/2)), least)
	b.last = at.Add(wait)
	return wait
}
