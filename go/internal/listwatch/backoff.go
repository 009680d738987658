package listwatch

import (
	"cmp"
	"time"
)

// Backoff is how long a mirror waits between attempts: Min, doubled with each failure, at most Max, of which each delay is a
// part between the half and the whole that Dice chooses. After a calm time of Reset it begins anew.
type Backoff struct {
	Min, Max, Reset time.Duration  // 0 is 800 ms, 30 s, 2 min
	Dice            func() float64 // from 0 to 1

	now  time.Duration
	last time.Time
}

// next is how long to wait after a failure at a time, where the server has asked for least. The calm is counted from the end of
// that wait: a server that asks for ten minutes each time does not begin anew each time.
func (b *Backoff) next(at time.Time, least time.Duration) time.Duration {
	first, most := cmp.Or(max(b.Min, 0), 800*time.Millisecond), cmp.Or(max(b.Max, 0), 30*time.Second)
	if b.now *= 2; b.now == 0 || at.Sub(b.last) > cmp.Or(max(b.Reset, 0), 2*time.Minute) {
		b.now = first
	}
	b.now = min(b.now, most)
	wait := max(b.now/2+time.Duration(b.Dice()*float64(b.now/2)), least)
	b.last = at.Add(wait)
	return wait
}
