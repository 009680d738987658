package watchcore

// #include "abi.h"
import "C"

import (
	"iter"
	"unsafe"
)

// Batch is some events of one subscription, in order, in the library's memory until
// Release. It stays valid when the subscription and the cache are closed. A nil
// *Batch has no events; all its methods may be called. It keeps the segments of the log that
// its events lie in, at most four where no whole revisions were asked for; one of an initial
// state keeps its key-values.
//
// What the plain methods of its events return (Key, Value, PrevValue) is the
// program's own. Views (KeyView and the like) are valid until Release.
type Batch struct {
	shelf *shelf // nil, of the zero Batch: it has none
	turn  turn   // of its loan
	size  uint32 // how many events; goesOnInside
	at    Position
}

// goesOnInside is the bit of a batch's size that says that it ends inside a revision.
const goesOnInside = 1 << 31

// shelf is where the events of a batch are. Its subscription puts those of the next one on the
// same, where this one was released.
type shelf struct {
	loan  loan           // no kind, of a clone: its memory is Go's
	first unsafe.Pointer // the events, where they lie
}

// rawBatch is watchcore_batch.
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

// words is how C is given it: without pointers, so that cgo does not look inside.
func (r *rawBatch) words() *C.uint64_t {
	return (*C.uint64_t)(unsafe.Pointer(r))
}

func (r *rawBatch) release() {
	C.wc_free(C.WC_BATCH, C.uintptr_t(r.owner))
}

// view is the events where they lie. A library whose events are longer than
// those known here has them copied, for a slice cannot step over the rest.
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

// newBatch takes over what C gave. After its release the subscription keeps it until its
// next poll, but for a batch that keeps key-values of an initial state.
func newBatch(on *shelf, raw *rawBatch, state *coreState, kept bool) *Batch {
	goods := goods{state: state, what: raw.owner, kind: C.WC_BATCH}
	events := raw.view()
	if raw.flags&C.WATCHCORE_BATCH_KEEPS_STATE != 0 {
		kept = false
	}
	if debug {
		events, on.loan.copies = poisonable(events)
		raw.release()
		goods.what = 0
	}
	size := uint32(len(events))
	if raw.flags&C.WATCHCORE_BATCH_CONTINUES != 0 {
		size |= goesOnInside
	}
	on.first = unsafe.Pointer(unsafe.SliceData(events))
	on.loan.taken = origins()
	on.loan.begin(goods, kept && !debug)
	return &Batch{on, on.loan.turn(), size, Position{Epoch: raw.epoch, Revision: raw.position}}
}

// events is for callers that hold the loan.
func (b *Batch) events() []rawEvent {
	if b.shelf == nil {
		return nil
	}
	return unsafe.Slice((*rawEvent)(b.shelf.first), b.size&^goesOnInside)
}

// lender is nil for a clone, and where there are no events.
func (b *Batch) lender() *loan {
	if b.shelf == nil || b.shelf.loan.kind == 0 {
		return nil
	}
	return &b.shelf.loan
}

// Release frees the batch. It may be called again, from any goroutine. From
// then on views of it must not be used any more, and its events and methods panic,
// but for Position, Continues and what was cloned.
//
// Of the batch that its subscription handed out last the memory (of at most four
// segments of the log; with WholeRevisions, of all in which its revision lies) is freed
// with the subscription's next Poll or Next, or with its end; that of an initial state,
// and of any other batch, at once.
//
// A batch that is not released is released by the garbage collector some time
// after neither it nor one of its events is reachable, but for one of which a view
// was taken: nobody knows who still looks at it, so it is held for ever, counted in Stats.LeakedBatches, and said once
// in the log (see SetLogger), with the build tag debug together with the place where the batch was taken.
func (b *Batch) Release() {
	if b == nil {
		return
	}
	if lender := b.lender(); lender != nil {
		lender.end(b.turn)
	}
}

// Len is the number of events.
func (b *Batch) Len() int {
	if b == nil {
		return 0
	}
	if b.lender().isLate(b.turn) {
		usedLate()
	}
	return int(b.size &^ goesOnInside)
}

// At is the event at an index.
func (b *Batch) At(i int) Event {
	lender := b.lender()
	lender.enter(b.turn)
	defer lender.exit()
	return b.events()[i].event(lender, b.turn)
}

// Events walks over the events. Where a panic (or runtime.Goexit) leaves the loop, the
// garbage collector frees the batch's memory, also of one that is released.
func (b *Batch) Events() iter.Seq[Event] {
	// Without defer, so that it is inlined with the loop's body.
	return func(yield func(Event) bool) {
		if b == nil {
			return
		}
		lender, turn := b.lender(), b.turn
		lender.enter(turn)
		events := b.events()
		for i := range events {
			if !yield(events[i].event(lender, turn)) {
				break
			}
		}
		lender.exit()
	}
}

// Continues says that the batch ends inside a revision: the next one continues
// it. Only where the revision is longer than 128 events or than
// SubscribeOptions.MaxBatch; never with WholeRevisions.
func (b *Batch) Continues() bool {
	return b != nil && b.size&goesOnInside != 0
}

// Position is the subscription's position after this batch.
func (b *Batch) Position() Position {
	if b == nil {
		return Position{}
	}
	return b.at
}

// Clone is a copy that owns its memory, made by one allocation. It need not be
// released. One event of it that is kept keeps all of it: Event.Clone copies one.
func (b *Batch) Clone() *Batch {
	if b == nil {
		return nil
	}
	lender := b.lender()
	lender.enter(b.turn)
	defer lender.exit()
	start, events, _ := cloneEvents(unsafe.Sizeof(ownBatch{}), b.events())
	own := (*ownBatch)(start)
	own.shelf = shelf{first: unsafe.Pointer(unsafe.SliceData(events))}
	own.Batch = Batch{shelf: &own.shelf, size: b.size, at: b.at}
	return &own.Batch
}

// ownBatch is a clone, before what it shows.
type ownBatch struct {
	Batch
	shelf shelf
}
