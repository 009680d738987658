package informer

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/watchcore/watchcore/go/internal/trie"
)

// OnLag says what happens to a handler that has not read a change before the change left the
// informer's window.
type OnLag uint8

const (
	// Resnapshot delivers the difference between the state that the handler knows and the current
	// state: deletions first, then new and changed objects in the order of their revisions. The
	// handler does not see intermediate changes, but sees the last state of every object.
	Resnapshot OnLag = iota
	// Stop ends the handler with ErrLagged.
	Stop
	// SkipToOldest continues with the oldest change of the window. HandlerStatus.Lost counts the
	// skipped changes. A resync is skipped until the next change has been delivered.
	SkipToOldest
)

// String returns the policy's name, such as "Resnapshot".
func (o OnLag) String() string {
	switch o {
	case Resnapshot:
		return "Resnapshot"
	case Stop:
		return "Stop"
	case SkipToOldest:
		return "SkipToOldest"
	}
	return "OnLag(" + string('0'+rune(o%10)) + ")"
}

// phase says where a list of changes comes from.
type phase uint8

const (
	live     phase = iota // the journal
	initial               // the state with which a consumer starts
	caughtUp              // the difference after the consumer was overtaken
	resync                // every object that the consumer knows, again
)

// cursor is a consumer's position: it has received everything up to the state known. cursor belongs to
// one goroutine; its atomic fields may be read by any.
//
// The cursor keeps no undelivered changes: if it is overtaken by the window, it compares the state
// known with the newest one. The two trees share all unchanged nodes, so even a cursor that sleeps
// for long holds one old state, whatever the number of changes.
type cursor[T any] struct {
	store *store[T]
	known *state[T] // nil: unknown, because changes were skipped

	list  []change[T] // to be delivered before anything else
	place int
	from  phase
	to    *state[T] // the state known after the list

	entries [64]entry[T] // read from the journal
	first   int
	count   int

	taken     *state[T]     // the state known once the current change of the journal is handled
	next      atomic.Uint64 // the number of the first entry of the journal that is not handled
	remaining atomic.Int64  // of the list

	lost        uint64 // not reported yet
	overtakings atomic.Uint64
	skipped     atomic.Uint64
}

// begin makes a list of the initial state.
func (c *cursor[T]) begin(at *state[T]) {
	c.to = at
	c.list = make([]change[T], 0, c.to.objects.Len())
	for o := range c.to.objects.All() {
		c.list = append(c.list, change[T]{nil, o})
	}
	c.place, c.from = 0, initial
	c.moved()
}

// resync makes a list of every object that the consumer knows, unless it skipped changes or another
// list is in progress.
func (c *cursor[T]) resync() {
	if c.known == nil || c.list != nil {
		return
	}
	c.list = make([]change[T], 0, c.known.objects.Len())
	for o := range c.known.objects.All() {
		c.list = append(c.list, change[T]{o, o})
	}
	c.place, c.from, c.to = 0, resync, c.known
	c.remaining.Store(int64(len(c.list)))
}

// listed finishes a list whose last change was handled. listed returns false if there is none.
func (c *cursor[T]) listed() (phase, bool) {
	if c.list == nil || c.place < len(c.list) {
		return 0, false
	}
	c.list, c.known, c.to = nil, c.to, nil
	return c.from, true
}

// take returns the next change, and false if there is none now. The caller must call handled before
// the next take.
func (c *cursor[T]) take() (change[T], phase, bool) {
	if c.list != nil {
		if c.place == len(c.list) {
			return change[T]{}, 0, false
		}
		given := c.list[c.place]
		c.list[c.place] = change[T]{}
		c.place++
		return given, c.from, true
	}
	if c.first == c.count && !c.read() {
		return change[T]{}, 0, false
	}
	e := c.entries[c.first]
	c.entries[c.first] = entry[T]{}
	c.first++
	c.taken = e.after
	return e.change, live, true
}

// handled records that the consumer has finished with the change that take returned.
func (c *cursor[T]) handled() {
	if c.taken == nil {
		c.remaining.Add(-1)
		return
	}
	c.known, c.taken = c.taken, nil
	c.next.Store(c.known.next)
}

// read fills the entries. read returns false if there are none, or if the consumer was overtaken.
func (c *cursor[T]) read() bool {
	n, there := c.store.log.Read(c.next.Load(), c.entries[:])
	c.first, c.count = 0, n
	return there && n > 0
}

// overtaken reports whether the next change has left the window. The result may be true only when take has
// nothing to return.
func (c *cursor[T]) overtaken() bool {
	if c.list != nil || c.first < c.count {
		return false
	}
	n, there := c.store.log.Read(c.next.Load(), c.entries[:1])
	c.entries[0] = entry[T]{}
	return n == 0 && !there
}

// compare makes a list of the difference between the state known and the newest state.
func (c *cursor[T]) compare() {
	c.overtakings.Add(1)
	c.to = c.store.current.Load()
	c.lost += c.to.next - c.next.Load()
	deletes, puts := []change[T]{}, []change[T]{}
	trie.Diff(c.known.objects, c.to.objects, func(old, new *Object[T]) bool {
		if new == nil {
			deletes = append(deletes, change[T]{old, nil})
		} else {
			puts = append(puts, change[T]{old, new})
		}
		return true
	})
	slices.SortFunc(puts, func(a, b change[T]) int { return cmp.Compare(a.new.Revision, b.new.Revision) })
	c.list, c.place, c.from = append(deletes, puts...), 0, caughtUp
	c.moved()
}

// moved sets the position to the end of the list's state. moved stores the length of the list first: a
// goroutine that sees the new position then also sees the list, so the lag never looks like zero in between.
func (c *cursor[T]) moved() {
	c.remaining.Store(int64(len(c.list)))
	c.next.Store(c.to.next)
}

// skip continues at the oldest change of the window.
func (c *cursor[T]) skip() {
	c.overtakings.Add(1)
	oldest := c.store.log.Oldest()
	n := oldest - min(c.next.Load(), oldest)
	c.lost += n
	c.skipped.Add(n)
	c.next.Store(max(oldest, c.next.Load()))
	c.known = nil
}

// wait returns a channel that is closed when there may be something to take, or when the source has
// ended.
func (c *cursor[T]) wait() <-chan struct{} {
	head := c.store.log.Head()
	if next := c.next.Load(); next < head {
		head = next
	}
	return c.store.log.Wait(head)
}

// ended reports whether everything was taken and nothing will follow.
func (c *cursor[T]) ended() bool {
	return c.store.log.Closed() && c.store.log.Head() <= c.next.Load() && c.list == nil && c.first == c.count
}
