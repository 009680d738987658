package watchcore

// #include "abi.h"
import "C"

import (
	"iter"
	"unsafe"
)

// Batch is a run of events of one subscription, in order, in the library's memory until Release. It
// stays valid when the subscription and the cache are closed. A nil *Batch has no events; all its
// methods may be called. A batch keeps in memory the segments of the log that hold its events (at
// most four, unless WholeRevisions is set); a batch of an initial state keeps its key-values.
//
// Plain methods of its events (Key, Value, PrevValue) return memory that belongs to the program.
// Views (KeyView and the like) are valid until Release.
type Batch struct {
	buffer     *buffer    // nil for the zero Batch
	generation generation // the generation of the buffer's borrow
	size       uint32     // the number of events, and continuesBit
	at         Position
}

// continuesBit is the bit of Batch.size that says that the batch ends inside a revision.
const continuesBit = 1 << 31

// buffer refers to the memory in which the events of a batch lie. A subscription uses the buffer of
// a released batch again for its next batch.
type buffer struct {
	borrow borrow         // its kind is 0 for a clone, whose memory is Go's
	first  unsafe.Pointer // the first event
}

// rawBatch has the layout of watchcore_batch.
type rawBatch struct {
	events   unsafe.Pointer
	count    uintptr
	stride   uint32
	flags    uint32
	position uint64
	epoch    uint64
	owner    uintptr
	reserved [2]uint64
}

var (
	_ = [1]struct{}{}[unsafe.Sizeof(rawBatch{})-unsafe.Sizeof(C.watchcore_batch{})]
	_ = [1]struct{}{}[unsafe.Offsetof(rawBatch{}.stride)-unsafe.Offsetof(C.watchcore_batch{}.stride)]
	_ = [1]struct{}{}[unsafe.Offsetof(rawBatch{}.position)-unsafe.Offsetof(C.watchcore_batch{}.position)]
	_ = [1]struct{}{}[unsafe.Offsetof(rawBatch{}.owner)-unsafe.Offsetof(C.watchcore_batch{}.owner)]
)

// words converts the pointer for C to one without Go pointers behind it, so that cgo does not check them.
func (r *rawBatch) words() *C.uint64_t {
	return (*C.uint64_t)(unsafe.Pointer(r))
}

func (r *rawBatch) release() {
	C.wc_free(C.WC_BATCH, C.uintptr_t(r.owner))
}

// view returns the events without copying them, unless the library's event struct is longer than
// rawEvent: then it copies, because a slice cannot skip the additional fields.
func (r *rawBatch) view() []rawEvent {
	if uintptr(r.stride) == unsafe.Sizeof(rawEvent{}) {
		return unsafe.Slice((*rawEvent)(r.events), r.count)
	}
	events := make([]rawEvent, r.count)
	for i := range events {
		events[i] = *(*rawEvent)(unsafe.Add(r.events, uintptr(i)*uintptr(r.stride)))
	}
	return events
}

// newBatch takes over a batch that C returned. With kept, the subscription frees its memory at the
// next poll after the release; a batch that keeps key-values of an initial state is freed at once.
func newBatch(on *buffer, raw *rawBatch, state *coreState, kept bool) *Batch {
	resource := resource{state: state, what: raw.owner, kind: C.WC_BATCH}
	events := raw.view()
	if raw.flags&C.WATCHCORE_BATCH_KEEPS_STATE != 0 {
		kept = false
	}
	if debug {
		events, on.borrow.copies = poisonable(events)
		raw.release()
		resource.what = 0
	}
	size := uint32(len(events))
	if raw.flags&C.WATCHCORE_BATCH_CONTINUES != 0 {
		size |= continuesBit
	}
	on.first = unsafe.Pointer(unsafe.SliceData(events))
	on.borrow.taken = origins()
	on.borrow.begin(resource, kept && !debug)
	return &Batch{on, on.borrow.generation(), size, Position{Epoch: raw.epoch, Revision: raw.position}}
}

// events may be called only while the caller holds the borrow.
func (b *Batch) events() []rawEvent {
	if b.buffer == nil {
		return nil
	}
	return unsafe.Slice((*rawEvent)(b.buffer.first), b.size&^continuesBit)
}

// borrowed returns nil for a clone and for a batch without events: there is nothing to hold.
func (b *Batch) borrowed() *borrow {
	if b.buffer == nil || b.buffer.borrow.kind == 0 {
		return nil
	}
	return &b.buffer.borrow
}

// Release frees the batch. Release may be called more than once and from any goroutine. Afterwards views
// of the batch must not be used any more, and its methods and those of its events panic, except
// Position, Continues and the methods of clones.
//
// The memory of the newest batch of a subscription (at most four segments of the log; with WholeRevisions,
// all segments of its revision) is freed by the subscription's next Poll or Next, or when the subscription
// ends. The memory of an initial state, and of any older batch, is freed at once.
//
// A batch that is never released is freed by the garbage collector after the batch and its events
// have become unreachable. If a view was taken, the collector cannot know who still reads it: the
// memory then stays for ever, Stats.LeakedBatches counts it, and the log reports it once (see
// SetLogger), with the stack that took the batch if the build tag debug is set.
func (b *Batch) Release() {
	if b == nil {
		return
	}
	if borrowed := b.borrowed(); borrowed != nil {
		borrowed.end(b.generation)
	}
}

// Len returns the number of events.
func (b *Batch) Len() int {
	if b == nil {
		return 0
	}
	if b.borrowed().isLate(b.generation) {
		usedLate()
	}
	return int(b.size &^ continuesBit)
}

// At returns the event at an index.
func (b *Batch) At(i int) Event {
	borrowed := b.borrowed()
	borrowed.enter(b.generation)
	defer borrowed.exit()
	return b.events()[i].event(borrowed, b.generation)
}

// Events iterates over the events. If a panic (or runtime.Goexit) leaves the loop, the garbage
// collector frees the batch's memory, even if the batch was released.
func (b *Batch) Events() iter.Seq[Event] {
	// There is no defer, so that the compiler can inline this together with the loop's body.
	return func(yield func(Event) bool) {
		if b == nil {
			return
		}
		borrowed, generation := b.borrowed(), b.generation
		borrowed.enter(generation)
		events := b.events()
		for i := range events {
			if !yield(events[i].event(borrowed, generation)) {
				break
			}
		}
		borrowed.exit()
	}
}

// Continues reports whether the batch ends inside a revision, which the next batch continues. A
// batch does so only if the revision has more than 128 events, or more than
// SubscribeOptions.MaxBatch; with WholeRevisions it never does.
func (b *Batch) Continues() bool {
	return b != nil && b.size&continuesBit != 0
}

// Position returns the subscription's position after this batch.
func (b *Batch) Position() Position {
	if b == nil {
		return Position{}
	}
	return b.at
}

// Clone returns a copy that owns its memory, made by one allocation. It need not be released.
// Keeping one event of the clone keeps all of it: Event.Clone copies a single event.
func (b *Batch) Clone() *Batch {
	if b == nil {
		return nil
	}
	borrowed := b.borrowed()
	borrowed.enter(b.generation)
	defer borrowed.exit()
	start, events, _ := cloneEvents(unsafe.Sizeof(ownBatch{}), b.events())
	own := (*ownBatch)(start)
	own.buffer = buffer{first: unsafe.Pointer(unsafe.SliceData(events))}
	own.Batch = Batch{buffer: &own.buffer, size: b.size, at: b.at}
	return &own.Batch
}

// ownBatch is the allocation of a clone: the batch and its buffer, followed by the events.
type ownBatch struct {
	Batch
	buffer buffer
}
