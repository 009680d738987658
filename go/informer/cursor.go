package informer

import (
	"cmp"
	"slices"
	"sync/atomic"

	"watchcore/internal/trie"
)

// OnLag says what happens to a handler that has not taken a change before it has left the
// informer's window.
type OnLag uint8

const (
	// Resnapshot gives the difference between what the handler was given and the state now:
	// deletions first, then what is new or has changed in the order of the revisions. Changes
	// in between are not seen one by one; every object's last state is.
	Resnapshot OnLag = iota
	// Stop ends the handler with ErrLagged.
	Stop
	// SkipToOldest goes on with the oldest change of the window. What was skipped is counted in
	// HandlerStatus.Lost, and not given. A resync is left out until the next change has been given.
	SkipToOldest
)

// String is the policy's name, such as "Resnapshot".
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

// phase is where a list of changes comes from.
type phase uint8

const (
	live     phase = iota // the journal
	initial               // the state that a consumer begins with
	caughtUp              // the difference after it was overtaken
	resync                // what it knows, once more
)

// cursor is a consumer's place: everything up to the state known was given. For one
// goroutine; what is atomic may be read by any.
//
// It keeps nothing of what it was not given: overtaken, it compares the state that it knows with
// the newest one. The two trees share what has not changed, and so does the cursor that
// sleeps for long: it holds one old state, however much happens.
type cursor[T any] struct {
	store *store[T]
	known *state[T] // nil: not known, because changes were skipped

	list  []change[T] // to be given before anything else
	place int
	from  phase
	to    *state[T] // what is known after the list

	entries [64]entry[T] // of the journal
	first   int
	count   int

	taken     *state[T]     // of the journal: what is known once the change that was taken is handled
	next      atomic.Uint64 // the number of the first entry of the journal that was not handled
	remaining atomic.Int64  // of the list

	lost        uint64 // not reported yet
	overtakings atomic.Uint64
	skipped     atomic.Uint64
}

// begin lists a state, which is the initial one.
func (c *cursor[T]) begin(at *state[T]) {
	c.to = at
	c.list = make([]change[T], 0, c.to.objects.Len())
	for o := range c.to.objects.All() {
		c.list = append(c.list, change[T]{nil, o})
	}
	c.place, c.from = 0, initial
	c.moved()
}

// resync lists what the consumer knows, where it knows it and has been given everything else that is
// listed.
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

// listed ends a list whose last change was given: false where there is none.
func (c *cursor[T]) listed() (phase, bool) {
	if c.list == nil || c.place < len(c.list) {
		return 0, false
	}
	c.list, c.known, c.to = nil, c.to, nil
	return c.from, true
}

// take is the next change; false: there is none now. handled must follow before the next one.
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

// handled says that the consumer is through with the change that was taken.
func (c *cursor[T]) handled() {
	if c.taken == nil {
		c.remaining.Add(-1)
		return
	}
	c.known, c.taken = c.taken, nil
	c.next.Store(c.known.next)
}

// read fills the entries; false: there are none, or the consumer was overtaken.
func (c *cursor[T]) read() bool {
	n, there := c.store.log.Read(c.next.Load(), c.entries[:])
	c.first, c.count = 0, n
	return there && n > 0
}

// overtaken says whether the next change has left the window. Only where there is nothing
// to take.
func (c *cursor[T]) overtaken() bool {
	if c.list != nil || c.first < c.count {
		return false
	}
	n, there := c.store.log.Read(c.next.Load(), c.entries[:1])
	c.entries[0] = entry[T]{}
	return n == 0 && !there
}

// compare lists the difference between what is known and the newest state.
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

// moved says that the list stands for everything before its state. What remains of it is said
// first: who sees the place sees the list, too, and never a consumer that has nothing to do.
func (c *cursor[T]) moved() {
	c.remaining.Store(int64(len(c.list)))
	c.next.Store(c.to.next)
}

// skip goes on at the oldest change of the window.
func (c *cursor[T]) skip() {
	c.overtakings.Add(1)
	oldest := c.store.log.Oldest()
	n := oldest - min(c.next.Load(), oldest)
	c.lost += n
	c.skipped.Add(n)
	c.next.Store(max(oldest, c.next.Load()))
	c.known = nil
}

// wait gives a channel that is closed when there may be something to take, or the source has
// ended.
func (c *cursor[T]) wait() <-chan struct{} {
	head := c.store.log.Head()
	if next := c.next.Load(); next < head {
		head = next
	}
	return c.store.log.Wait(head)
}

// ended says whether nothing follows any more.
func (c *cursor[T]) ended() bool {
	return c.store.log.Closed() && c.store.log.Head() <= c.next.Load() && c.list == nil && c.first == c.count
}
