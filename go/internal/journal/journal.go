// Package journal is an append-only log of values in Go's heap: one appender, any number of
// readers, and a window that drops old values.
//
// [Journal] is the main type. Each value has a sequence number: the first one 0, the next 1. [Journal.Append]
// writes a value, and [Journal.Read] copies values from a given number on. When as many newer values follow
// as the window holds, a segment leaves the directory and the garbage collector frees it. The journal does
// not know its readers. They name a number, copy, and keep no reference into it: a reader that sleeps for a
// day holds no memory, and finds out with one comparison that its position has left the window.
//
// # Life of a value
//
//  1. The appender writes it into its slot of the newest segment. No reader looks at that slot
//     yet, because the head has not reached it. A slot is written once and never again.
//  2. The appender publishes: it stores the head, which is the number of the next value.
//  3. Readers that load this head, or a later one, find the segment in the directory, by number.
//  4. A segment that is older than the window is removed from the directory as a whole. A reader that
//     has loaded its pointer before continues to copy: the collector keeps the segment meanwhile.
//
// # Orderings
//
// All atomics of Go are sequentially consistent. Each pair is needed for this:
//
//	| written                          | before                   | read                        | before                      | gives                                                     |
//	| -------------------------------- | ------------------------ | --------------------------- | --------------------------- | --------------------------------------------------------- |
//	| a slot of a segment (plain)      | head, by Append          | head                        | the slot (plain)            | a reader below the head sees the value whole, and no race |
//	| a directory slot, the directory  | head, by Append          | head                        | the directory, then a slot  | a slot has the wanted segment, nil or a later segment:    |
//	|                                  |                          |                             |                             | never an earlier one                                      |
//	| head, or closed                  | notice, loaded by Append | notice, stored by Wait      | head and closed, again      | of an appender and a waiter that meet at least one sees   |
//	|                                  | and Close                |                             |                             | the other: no wake-up is lost                             |
//	| head, by the last Append         | closed, by Close         | closed                      | head                        | a reader of closed and then of the head has seen the end  |
//
// The second row is why an overtaken reader needs no lock: a segment knows its own number, and a
// reader that finds another segment, or none, knows that it is too late. A slot is never reused, so
// a reader cannot see a half-written value.
package journal

import (
	"math/bits"
	"sync/atomic"
)

const (
	// largestSegment is the number of values per segment in a large journal: they share the cost of
	// an allocation and a directory entry.
	largestSegment = 256
	// smallestSegment is the number of values per segment in a small journal, so that a small
	// window does not keep 256 of them.
	smallestSegment = 8
	// largestWindow bounds the arithmetic, not the memory: the directory grows with its content.
	largestWindow = 1 << 40
)

// segment is a run of values. Its number times the segment size is the sequence number of its first value.
type segment[T any] struct {
	number uint64
	values []T
}

// directory finds a segment by its number: a segment in the window is at index number & mask.
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

// notice is shared by all waiters between two appends. Its channel is closed once.
type notice struct {
	moved   chan struct{}
	waiters atomic.Int64
}

// fewWaiters is the number of waiters up to which the appender itself wakes them. The runtime wakes one after
// the other, so a separate goroutine wakes larger numbers (BenchmarkJournalAppendBesideSleepers).
const fewWaiters = 16

// happened is the closed channel that Wait returns when there is no need to wait.
var happened = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Journal is the log. [New] makes one.
//
// Append, Reserve and Close belong to the owner, which calls them one at a time. Any goroutine may
// call the other methods at any time, and none of them waits for another call or for the owner.
type Journal[T any] struct {
	head      atomic.Uint64
	closed    atomic.Bool
	notice    atomic.Pointer[notice]
	directory atomic.Pointer[directory[T]]
	// live is the number of segments in the window. The owner writes it, Oldest reads it.
	live atomic.Uint64

	shift  uint        // a sequence number >> shift is the number of its segment
	newest *segment[T] // used by the owner only
}

// New makes an empty journal that keeps at least the last capacity values: a segment leaves when
// capacity values are newer than all of its own. The journal keeps up to one segment more, of 8 to
// 256 values. A capacity below 1 counts as 1. Memory is allocated as values arrive.
func New[T any](capacity int) *Journal[T] {
	size := segmentSize(capacity)
	j := &Journal[T]{shift: uint(bits.TrailingZeros64(size))}
	j.directory.Store(newDirectory[T](4))
	j.Reserve(capacity)
	return j
}

// segmentSize returns a power of two, about a quarter of the capacity.
func segmentSize(capacity int) uint64 {
	size := uint64(smallestSegment)
	for size < largestSegment && size*8 <= uint64(max(capacity, 1)) {
		size *= 2
	}
	return size
}

// Reserve raises the capacity, never lowers it. Values that have left the window do not come back.
// Only the owner may call it, not concurrently with Append.
func (j *Journal[T]) Reserve(capacity int) {
	values := min(uint64(max(capacity, 1)), largestWindow)
	size := uint64(1) << j.shift
	// There is one segment more, because the newest segment is filled only in part.
	if live := (values+size-1)>>j.shift + 1; live > j.live.Load() {
		j.live.Store(live)
	}
}

// Append adds a value and returns its sequence number. Append wakes the waiters. Append allocates once per
// segment, and does not wait. Only the owner may call it, one call at a time. After Close it
// panics, because no reader would see the value.
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

// begin puts an empty segment into the directory and removes the one that leaves the window.
func (j *Journal[T]) begin(number uint64) *segment[T] {
	d := j.directory.Load()
	live := j.live.Load()
	if min(number+1, live) > d.mask+1 {
		d = j.grow(d)
	}
	s := &segment[T]{number: number, values: make([]T, 1<<j.shift)}
	if number >= live {
		// The slots of the window are distinct, so this slot holds either the segment that leaves
		// or, if the window has just grown, nothing or a segment that is not old enough.
		left := d.slot(number - live)
		if old := left.Load(); old != nil && old.number == number-live {
			left.Store(nil)
		}
	}
	d.slot(number).Store(s)
	return s
}

// grow makes a directory of twice the length with the same segments. Readers that use the former
// directory find every segment below their head in it: they loaded the head before it.
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

// Close ends the journal: no value follows, and waiters are woken. Its values can still be read.
// Close may be called repeatedly; only the owner may call it, not concurrently with Append.
func (j *Journal[T]) Close() {
	j.closed.Store(true)
	j.wake()
}

// Closed reports whether the journal was closed. A head that is loaded after Closed returned true is the end.
func (j *Journal[T]) Closed() bool { return j.closed.Load() }

// Head returns the sequence number of the next value, which is the number of values so far.
func (j *Journal[T]) Head() uint64 { return j.head.Load() }

// Oldest returns the sequence number of the oldest value in the window, or the head if the window
// is empty. The value may have left by the time it is read: only Read's result tells.
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

// firstThere returns the first segment in the directory: after Reserve the window is longer than
// its content until it has filled up.
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

// Read copies the available values from a sequence number on, at most len(into). Read returns (0,
// true) if the head has not passed from, and (0, false) if the value has left the window: then
// continue at Oldest. Read does not wait; its cost is that of the copy.
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
			// The values copied from older segments are valid.
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

// Wait returns a channel that is closed as soon as the head differs from the given one, or the
// journal is closed; it is closed already if that is so now. The channel may also be closed early: check
// again. All waiters share one channel, so an append costs one load if nobody waits, and otherwise
// the same for twenty waiters and for ten thousand.
func (j *Journal[T]) Wait(head uint64) <-chan struct{} {
	n := j.notice.Load()
	if n == nil {
		fresh := &notice{moved: make(chan struct{})}
		if j.notice.CompareAndSwap(nil, fresh) {
			n = fresh
		} else if n = j.notice.Load(); n == nil {
			// Another goroutine's notice was installed and removed: the head has moved meanwhile.
			return happened
		}
	}
	if j.head.Load() != head || j.closed.Load() {
		return happened
	}
	n.waiters.Add(1)
	return n.moved
}

// wake closes the notice, if there is one. The caller has stored the head, or closed, before.
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
