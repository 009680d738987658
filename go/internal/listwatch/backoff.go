package listwatch

import (
	"cmp"
	"time"
)

// Backoff configures how long a mirror waits between attempts: Min, doubled with each failure, at
// most Max. Each delay is a part between half and all of that, chosen by Dice. After Reset without
// a failure it starts again at Min.
type Backoff struct {
	Min, Max, Reset time.Duration  // 0 is 800 ms, 30 s, 2 min
	Dice            func() float64 // from 0 to 1

	now  time.Duration
	last time.Time
}

// next returns the delay after a failure at the given time; the server has asked for at least
// least. Reset counts from the end of the delay: a server that asks for ten minutes each time does
// not reset the backoff each time.
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
