package watch

import "fmt"

// FullChannelBehavior is what happens when a watcher of a [Broadcaster] is as far behind as its
// queue is long.
type FullChannelBehavior int

const (
	// WaitIfChannelFull: publishers wait until the watcher has taken something, or has stopped.
	WaitIfChannelFull FullChannelBehavior = iota
	// DropIfChannelFull: the watcher loses what comes; a queue of 0 counts as 1. The next event that it takes says how much in
	// Event.Lost, and Watcher.Dropped counts all of it.
	DropIfChannelFull
)

// String is the constant's name.
func (f FullChannelBehavior) String() string {
	switch f {
	case WaitIfChannelFull:
		return "WaitIfChannelFull"
	case DropIfChannelFull:
		return "DropIfChannelFull"
	}
	return fmt.Sprintf("FullChannelBehavior(%d)", int(f))
}

// Queue is how far behind a watcher may be, and what happens then. [WaitQueue] and [DropQueue] make
// one; the zero value is that of the broadcaster.
type Queue struct {
	length   int
	behavior FullChannelBehavior
	given    bool
}

// WaitQueue makes publishers wait for a watcher that is behind: see [NewBroadcaster] for how far.
func WaitQueue(length int) Queue { return Queue{length, WaitIfChannelFull, true} }

// DropQueue has places for as many events; what comes when they are full is lost, and counted. 0
// counts as 1.
func DropQueue(length int) Queue { return Queue{length, DropIfChannelFull, true} }

func (q Queue) check() error {
	if q.length < 0 || q.length > maxQueue {
		return fmt.Errorf("a queue of %d places was asked for: 0 to %d are possible", q.length, maxQueue)
	}
	if q.behavior != WaitIfChannelFull && q.behavior != DropIfChannelFull {
		return fmt.Errorf("a queue with the behavior %d was asked for: WaitIfChannelFull (0) and DropIfChannelFull (1) exist", q.behavior)
	}
	return nil
}

// run is a stretch of the log that a watcher with the policy Drop has accepted and not taken.
type run struct {
	from, end uint64
	lost      uint64 // how many it lost directly before
}

// accepted is the queue of such a watcher as numbers: what a channel with as many places would
// have in it, without the channel. It has at most a run for each place.
type accepted struct {
	runs  []run  // the oldest first
	count uint64 // how many events they are
	seen  uint64 // everything of the log below it has been accepted or lost
	lost  uint64 // behind the last run
}

// look takes what was published meanwhile: between two takes a channel only fills up, so the
// first of them come in and the rest is lost. It returns how many that is. To look more often
// changes nothing, but where the log has gone on so far that the first ones are not there any more:
// then those from the oldest one on come in.
func (a *accepted) look(head, oldest, places uint64) (dropped uint64) {
	if head <= a.seen {
		return 0
	}
	if oldest = min(oldest, head); oldest > a.seen {
		dropped = oldest - a.seen
		a.lost += dropped
		a.seen = oldest
	}
	var free uint64
	if places > a.count {
		free = places - a.count
	}
	come := head - a.seen
	in := min(free, come)
	if in > 0 {
		a.add(run{a.seen, a.seen + in, a.lost})
		a.lost = 0
	}
	a.lost += come - in
	a.seen = head
	return dropped + come - in
}

func (a *accepted) add(r run) {
	a.count += r.end - r.from
	if last := len(a.runs) - 1; last >= 0 && r.lost == 0 && a.runs[last].end == r.from {
		a.runs[last].end = r.end
		return
	}
	a.runs = append(a.runs, r)
}

// first is the oldest accepted events.
func (a *accepted) first() (r run, ok bool) {
	if len(a.runs) == 0 {
		return run{}, false
	}
	return a.runs[0], true
}

// took removes the first n of them.
func (a *accepted) took(n uint64) {
	r := &a.runs[0]
	r.from += n
	r.lost = 0
	a.count -= n
	if r.from == r.end {
		a.pop()
	}
}

func (a *accepted) pop() {
	a.runs = a.runs[1:]
	if len(a.runs) == 0 {
		a.runs = nil
	}
}

// forget makes accepted events lost that have left the log: those below oldest. It returns how many.
func (a *accepted) forget(oldest uint64) (gone uint64) {
	var lost uint64
	for len(a.runs) > 0 {
		r := &a.runs[0]
		lost += r.lost
		r.lost = 0
		left := min(max(oldest, r.from), r.end) - r.from
		gone, lost = gone+left, lost+left
		r.from += left
		a.count -= left
		if r.from < r.end {
			r.lost = lost
			return gone
		}
		a.pop()
	}
	a.lost += lost
	return gone
}
