// Package journal is an append-only log of values in Go's heap: one appender, any number of
// readers, and a window that forgets what is old.
//
// [Journal] is the type. A value has a sequence number: the first one 0, the next 1. [Journal.Append]
// writes it, [Journal.Read] copies it out for whoever names its number, and when as many values
// follow as the window holds, its segment leaves the directory and the garbage collector frees it.
// Readers are not known to the journal. They name a number, copy, and keep no reference into it: a
// reader that sleeps for a day holds no memory, and finds out with one comparison that its place
// has left the window.
//
// # Life of a value
//
//  1. The appender writes it into its place in the newest segment. No reader looks at that place
//     yet, because the head has not reached it. A place is written once and never again.
//  2. The appender publishes: it stores the head, which is the number of the value that will come
//     next.
//  3. Readers that load this head, or a later one, find the segment in the directory, by number.
//  4. A segment that is older than the window is taken out of the directory, whole. A reader that
//     has loaded its pointer before goes on copying: the collector keeps the segment for that long.
//
// # Orderings
//
// All atomics of Go are sequentially consistent; what each pair is needed for:
//
//	| written                          | before                   | read                        | before                      | gives                                                     |
//	| -------------------------------- | ------------------------ | --------------------------- | --------------------------- | --------------------------------------------------------- |
//	| a place of a segment (plain)     | head, by Append          | head                        | the place (plain)           | a reader below the head sees the value whole, and no race |
//	| a segment's slot, the directory  | head, by Append          | head                        | the directory, then a slot  | a slot is the wanted segment, nil or a later segment:     |
//	|                                  |                          |                             |                             | never an earlier one                                      |
//	| head, or closed                  | notice, loaded by Append | notice, stored by Wait      | head and closed, again      | of an appender and a waiter that meet at least one sees   |
//	|                                  | and Close                |                             |                             | the other: no wake-up is lost                             |
//	| head, by the last Append         | closed, by Close         | closed                      | head                        | who has seen closed and then the head has seen the end    |
//
// The second row is why an overtaken reader needs no lock: a segment knows its own number, and a
// reader that finds another one, or none, knows that it is too late. A place is never reused, so
// there is nothing that it could read half-written.
package journal

import (
	"math/bits"
	"sync/atomic"
)

const (
	// largestSegment is how many values a segment has in a journal of some size: the price of
	// an allocation and a directory slot is shared by as many.
	largestSegment = 256
	// smallestSegment is what it has in a journal for a few values, so that a small window
	// does not keep 256 of them.
	smallestSegment = 8
	// largestWindow bounds the arithmetic, not the memory: the directory grows with what is in it.
	largestWindow = 1 << 40
)

// segment is a run of values. Its number times the size of a segment is the sequence number of
// its first one.
type segment[T any] struct {
	number uint64
	values []T
}

// directory finds a segment by its number: it lies in slot number & mask, if it is in the window.
type directory[T any] struct {
	mask  uint64
	slots []atomic.Pointer[segment[T]]
}

func newDirectory[T any](length uint64) *directory[T] {
	return &directory[T]{mask: length - 1, slots: make([]atomic.Pointer[segment[T]], length)}
}

func (d *directory[T]) slot(number uint64) *atomic.Pointer[segment[T]] {
	return &d.slots[number&d.mask]
}

// notice is what waiters of one moment share. Its channel is closed once.
type notice struct {
	moved   chan struct{}
	waiters atomic.Int64
}

// fewWaiters is how many the appender wakes itself. The runtime wakes one after the other, so more of them
// are woken by a goroutine of their own (BenchmarkJournalAppendBesideSleepers).
const fewWaiters = 16

// happened is the channel for those who need not wait.
var happened = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Journal is the log. [New] makes one.
//
// Append, Reserve and Close are for its owner, which calls them one at a time. Every other method
// may be called by any goroutine at any time, and none of them waits for another or for the owner.
type Journal[T any] struct {
	head      atomic.Uint64
	closed    atomic.Bool
	notice    atomic.Pointer[notice]
	directory atomic.Pointer[directory[T]]
	// live is how many segments the window has. Written by the owner, read by Oldest.
	live atomic.Uint64

	shift  uint        // a sequence number >> shift is the number of its segment
	newest *segment[T] // the owner's
}

// New makes an empty journal that keeps at least the last capacity values: a segment leaves when
// as many values are younger than all of its own. It keeps up to one segment more, of 8 to 256
// values. A capacity below 1 counts as 1. Memory is taken as values come.
func New[T any](capacity int) *Journal[T] {
	size := segmentSize(capacity)
	j := &Journal[T]{shift: uint(bits.TrailingZeros64(size))}
	j.directory.Store(newDirectory[T](4))
	j.Reserve(capacity)
	return j
}

// segmentSize is a power of two, about a quarter of the capacity.
func segmentSize(capacity int) uint64 {
	size := uint64(smallestSegment)
	for size < largestSegment && size*8 <= uint64(max(capacity, 1)) {
		size *= 2
	}
	return size
}

// Reserve raises the capacity, never lowers it. What has left the window does not come back.
// For the owner, not at the same time as Append.
func (j *Journal[T]) Reserve(capacity int) {
	values := min(uint64(max(capacity, 1)), largestWindow)
	size := uint64(1) << j.shift
	// One more, because the newest segment is filled only in part.
	if live := (values+size-1)>>j.shift + 1; live > j.live.Load() {
		j.live.Store(live)
	}
}

// Append adds a value and returns its sequence number. It wakes who waits. It allocates once in a
// segment, and does not wait. For the owner, one call at a time; after Close it panics, since no
// reader would see the value.
func (j *Journal[T]) Append(v T) uint64 {
	if j.closed.Load() {
		panic("journal: Append after Close: the value would be seen by no reader; append before the journal is closed")
	}
	number := j.head.Load()
	place := number & (1<<j.shift - 1)
	if place == 0 {
		j.newest = j.begin(number >> j.shift)
	}
	j.newest.values[place] = v
	j.head.Store(number + 1)
	j.wake()
	return number
}

// begin puts an empty segment into the directory and takes out the one that leaves the window.
func (j *Journal[T]) begin(number uint64) *segment[T] {
	d := j.directory.Load()
	live := j.live.Load()
	if min(number+1, live) > d.mask+1 {
		d = j.grow(d)
	}
	s := &segment[T]{number: number, values: make([]T, 1<<j.shift)}
	if number >= live {
		// The slots of the window are distinct, so this one is either that of the segment that
		// leaves, or, where the window has just grown, already empty or not yet so old.
		left := d.slot(number - live)
		if old := left.Load(); old != nil && old.number == number-live {
			left.Store(nil)
		}
	}
	d.slot(number).Store(s)
	return s
}

// grow makes a directory of twice the length with the same segments. Readers that still have the
// former one loaded find everything in it that they came for: they loaded it after their head.
func (j *Journal[T]) grow(d *directory[T]) *directory[T] {
	larger := newDirectory[T]((d.mask + 1) * 2)
	for i := range d.slots {
		if s := d.slots[i].Load(); s != nil {
			larger.slot(s.number).Store(s)
		}
	}
	j.directory.Store(larger)
	return larger
}

// Close ends the journal: nothing follows, and who waits is woken. What it holds can still be
// read. Any number of times; for the owner, not at the same time as Append.
func (j *Journal[T]) Close() {
	j.closed.Store(true)
	j.wake()
}

// Closed says whether the journal was closed. The head that is loaded after it was true is the end.
func (j *Journal[T]) Closed() bool { return j.closed.Load() }

// Head is the sequence number that the next value will have, which is how many there were.
func (j *Journal[T]) Head() uint64 { return j.head.Load() }

// Oldest is the sequence number of the oldest value in the window; the head where it is empty.
// It may have left by the time it is read: only Read's answer says that.
func (j *Journal[T]) Oldest() uint64 {
	head := j.head.Load()
	if head == 0 {
		return 0
	}
	newest, live := (head-1)>>j.shift, j.live.Load()
	if newest < live {
		return j.firstThere(0, newest)
	}
	return j.firstThere(newest-live+1, newest)
}

// firstThere looks for the first segment that the directory has: after Reserve the window is
// longer than what it holds, until it has filled up.
func (j *Journal[T]) firstThere(number, newest uint64) uint64 {
	d := j.directory.Load()
	if newest > d.mask {
		number = max(number, newest-d.mask)
	}
	for ; number < newest; number++ {
		if s := d.slot(number).Load(); s != nil && s.number == number {
			break
		}
	}
	return number << j.shift
}

// Read copies the values from a sequence number on: as many as there are, at most len(into). It
// answers (0, true) where the head has not passed from, and (0, false) where the value has left
// the window: Oldest says where to go on. It does not wait; its cost is that of the copy.
func (j *Journal[T]) Read(from uint64, into []T) (n int, ok bool) {
	head := j.head.Load()
	if from >= head || len(into) == 0 {
		return 0, true
	}
	d := j.directory.Load()
	end := min(head, from+uint64(len(into)))
	for from < end {
		s := d.slot(from >> j.shift).Load()
		if s == nil || s.number != from>>j.shift {
			// What was copied of older segments is still right.
			return n, n > 0
		}
		place := from & (1<<j.shift - 1)
		last := min(end-from+place, 1<<j.shift)
		copied := copy(into[n:], s.values[place:last])
		n += copied
		from += uint64(copied)
	}
	return n, true
}

// Wait gives a channel that is closed as soon as the head is not the given one any more, or the
// journal is closed; at once where that is so already. It may be closed earlier, too: look again.
// All who wait share one channel, so the appender's work for those who do not wait is one load, and
// its work for those who do is the same for twenty and for ten thousand.
func (j *Journal[T]) Wait(head uint64) <-chan struct{} {
	n := j.notice.Load()
	if n == nil {
		fresh := &notice{moved: make(chan struct{})}
		if j.notice.CompareAndSwap(nil, fresh) {
			n = fresh
		} else if n = j.notice.Load(); n == nil {
			// Somebody else's notice came and went: the head has moved meanwhile.
			return happened
		}
	}
	if j.head.Load() != head || j.closed.Load() {
		return happened
	}
	n.waiters.Add(1)
	return n.moved
}

// wake closes the notice, if there is one. The head, or closed, was stored before.
func (j *Journal[T]) wake() {
	if j.notice.Load() == nil {
		return
	}
	n := j.notice.Swap(nil)
	switch {
	case n == nil:
	case n.waiters.Load() > fewWaiters:
		go close(n.moved)
	default:
		close(n.moved)
	}
}
