package watch

import "fmt"

// FullChannelBehavior says what happens when a watcher of a [Broadcaster] is as far behind as its
// queue is long.
type FullChannelBehavior int

const (
	// WaitIfChannelFull makes publishers wait until the watcher has taken an event, or has stopped.
	WaitIfChannelFull FullChannelBehavior = iota
	// DropIfChannelFull makes the watcher lose new events; a queue of 0 counts as 1. The next event
	// that it takes reports their number in Event.Lost, and Watcher.Dropped counts all of them.
	DropIfChannelFull
)

// String returns the constant's name.
func (f FullChannelBehavior) String() string {
	switch f {
	case WaitIfChannelFull:
		return "WaitIfChannelFull"
	case DropIfChannelFull:
		return "DropIfChannelFull"
	}
	return fmt.Sprintf("FullChannelBehavior(%d)", int(f))
}

// Queue says how far behind a watcher may be, and what happens then. [WaitQueue] and [DropQueue]
// make one; the zero value is the broadcaster's.
type Queue struct {
	length   int
	behavior FullChannelBehavior
	given    bool
}

// WaitQueue makes publishers wait for a watcher that is behind: [NewBroadcaster] says how far.
func WaitQueue(length int) Queue { return Queue{length, WaitIfChannelFull, true} }

// DropQueue has room for length events; events that arrive when it is full are lost, and counted. 0
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

// run is a range of the log that a Drop watcher has accepted and not taken.
type run struct {
	from, end uint64
	lost      uint64 // the number of events lost directly before
}

// accepted is the queue of a Drop watcher as numbers: the events that a channel of the same
// capacity would contain, without the channel. accepted has at most one run per slot.
type accepted struct {
	runs  []run  // the oldest first
	count uint64 // the number of events in the runs
	seen  uint64 // everything of the log below it has been accepted or lost
	lost  uint64 // after the last run
}

// look processes events that were published since its last call. Between two takes a channel only
// fills up, so the first of these events are accepted and the rest is lost. look returns the number
// of lost events. Calling it more often changes nothing, unless the log has dropped the first of
// them: then the events from the oldest one on are accepted.
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

// first returns the oldest accepted events.
func (a *accepted) first() (r run, ok bool) {
	if len(a.runs) == 0 {
		return run{}, false
	}
	return a.runs[0], true
}

// took removes the first n accepted events.
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

// forget marks accepted events below oldest, which have left the log, as lost. forget returns their number.
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
