package watchcore

// #include "abi.h"
// #cgo noescape wc_batch_release
// #cgo nocallback wc_batch_release
import "C"

import (
	"iter"
	"sync/atomic"
	"unsafe"
)

// Batch is some events of one subscription, in order: a view into the library's
// memory until Release. It stays valid when the subscription and the cache are
// closed. A nil *Batch has no events; all its methods may be called.
type Batch struct {
	raw      rawBatch
	events   []rawEvent
	state    *coreState  // where it is counted; nil: a clone
	released atomic.Bool // Release may be called more than once
	poison   func()      // build tag debug
}

// rawBatch is watchcore_batch.
type rawBatch struct {
	events   unsafe.Pointer
	count    uintptr
	stride   uint32
	flags    uint32
	position uint64
	epoch    uint64
	owner    unsafe.Pointer
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
	if r.owner != nil {
		C.wc_batch_release(r.words())
	}
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

// newBatch takes over what a poll gave.
func newBatch(raw *rawBatch, state *coreState) *Batch {
	b := &Batch{raw: *raw, events: raw.view(), state: state}
	state.batches.Add(1)
	if debug {
		b.poisonable()
	}
	return b
}

// Release gives the batch back: neither its events nor what they returned may be
// used any more. It may be called again, from any goroutine. A batch that is
// never released holds its memory for ever; Stats counts those.
func (b *Batch) Release() {
	if b == nil || b.state == nil || b.released.Swap(true) {
		return
	}
	b.events = nil
	b.raw.release()
	b.state.batches.Add(-1)
	if debug {
		b.poison()
	}
}

func (b *Batch) check() {
	if debug && b.released.Load() {
		panic("watchcore: a batch was used after its Release")
	}
}

// Len is the number of events.
func (b *Batch) Len() int {
	if b == nil {
		return 0
	}
	b.check()
	return len(b.events)
}

// At is the event at an index.
func (b *Batch) At(i int) Event {
	b.check()
	return b.events[i].event()
}

// Events walks over the events.
func (b *Batch) Events() iter.Seq[Event] {
	return func(yield func(Event) bool) {
		if b == nil {
			return
		}
		b.check()
		for i := range b.events {
			if !yield(b.events[i].event()) {
				return
			}
		}
	}
}

// Continues says that the batch ends inside a revision: the next one goes on
// with it. Only where the revision is longer than 128 events or than MaxBatch;
// never with WholeRevisions.
func (b *Batch) Continues() bool {
	return b != nil && b.raw.flags&C.WATCHCORE_CONTINUES != 0
}

// Position is the subscription's position behind this batch.
func (b *Batch) Position() Position {
	if b == nil {
		return Position{}
	}
	return Position{Epoch: b.raw.epoch, Revision: b.raw.position}
}

// Clone is a copy that owns its memory, in one allocation for all bytes. It need
// not be released.
func (b *Batch) Clone() *Batch {
	if b == nil {
		return nil
	}
	b.check()
	own := &Batch{events: cloneEvents(b.events).events}
	own.raw.flags, own.raw.position, own.raw.epoch = b.raw.flags, b.raw.position, b.raw.epoch
	return own
}
