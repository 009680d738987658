package watchcore

// #include "abi.h"
import "C"

import (
	"strconv"
	"unsafe"
)

// Position is a point in a history. Save both numbers and give them to StartAfterPosition to
// continue from there, also after a restart.
type Position struct {
	Epoch    uint64 // the history; 0 = unchecked
	Revision uint64
}

// EventType is the kind of an event.
type EventType uint32

// The types of events.
const (
	EventAdded    EventType = 1 // a key was created, or entered the filter
	EventModified EventType = 2 // the value of an existing key changed
	EventDeleted  EventType = 3 // a key was deleted, or left the filter
	EventBookmark EventType = 4 // everything up to this revision was delivered
	EventResync   EventType = 5 // the history was replaced: begin or end of the difference
	EventPut      EventType = 6 // with SubscribeOptions.RawTypes: etcd's PUT
	EventDelete   EventType = 7 // with SubscribeOptions.RawTypes: etcd's DELETE
)

// String returns the name that every language prints, such as "ADDED".
func (t EventType) String() string {
	switch t {
	case EventAdded:
		return "ADDED"
	case EventModified:
		return "MODIFIED"
	case EventDeleted:
		return "DELETED"
	case EventBookmark:
		return "BOOKMARK"
	case EventResync:
		return "RESYNC"
	case EventPut:
		return "PUT"
	case EventDelete:
		return "DELETE"
	}
	return "EventType(" + strconv.FormatUint(uint64(t), 10) + ")"
}

// Event is one event. Key, Value and PrevValue return copies, which the program may keep and
// modify. KeyView, ValueView and PrevValueView return the library's memory without a copy, under
// the conditions in their documentation.
//
// An event keeps its batch reachable, and its methods panic after the batch was released: Clone the
// event to keep it longer. An Event from ResultChan or of a cloned batch owns its bytes. Events are
// small: pass them by value.
type Event struct {
	Revision   uint64 // of the change; an initial object's own; a resync's new state
	Type       EventType
	generation generation // of the borrow
	eventRef
}

// eventRef points to an event. It is a struct of its own because the compiler keeps at most four
// fields of a struct in registers.
type eventRef struct {
	raw    *rawEvent
	borrow *borrow // nil: the memory is Go's
}

// rawEvent has the layout of watchcore_event.
type rawEvent struct {
	revision, sequence uint64
	kind               EventType
	flags              uint32
	kv, prev           *keyValue
	from, epoch        uint64
	reason             uint32
	_                  uint32
}

// kv returns nil for an event without a key-value, and for the zero Event.
func (e Event) kv() *keyValue {
	if e.raw == nil {
		return nil
	}
	return e.raw.kv
}

// prev returns nil for an event without a previous key-value, and for the zero Event.
func (e Event) prev() *keyValue {
	if e.raw == nil {
		return nil
	}
	return e.raw.prev
}

func (e Event) has(flag uint32) bool {
	if e.raw == nil {
		return false
	}
	e.borrow.enter(e.generation)
	defer e.borrow.exit()
	return e.raw.flags&flag != 0
}

func (r *rawEvent) event(borrowed *borrow, generation generation) Event {
	return Event{r.revision, r.kind, generation, eventRef{r, borrowed}}
}

// keyValue has the layout of watchcore_key_value.
type keyValue struct {
	key, value             unsafe.Pointer
	keyLength, valueLength uint32
	create, mod, version   uint64
	lease                  int64
}

// The two structs must have the layout of those of the C interface: a difference does not compile.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(rawEvent{})-unsafe.Sizeof(C.watchcore_event{})]
	_ = [1]struct{}{}[unsafe.Sizeof(rawEvent{})-64]
	_ = [1]struct{}{}[unsafe.Offsetof(rawEvent{}.revision)-unsafe.Offsetof(C.watchcore_event{}.revision)]
	_ = [1]struct{}{}[unsafe.Offsetof(rawEvent{}.sequence)-unsafe.Offsetof(C.watchcore_event{}.sequence)]
	_ = [1]struct{}{}[unsafe.Offsetof(rawEvent{}.kind)-unsafe.Offsetof(C.watchcore_event{}._type)]
	_ = [1]struct{}{}[unsafe.Offsetof(rawEvent{}.flags)-unsafe.Offsetof(C.watchcore_event{}.flags)]
	_ = [1]struct{}{}[unsafe.Offsetof(rawEvent{}.kv)-unsafe.Offsetof(C.watchcore_event{}.kv)]
	_ = [1]struct{}{}[unsafe.Offsetof(rawEvent{}.prev)-unsafe.Offsetof(C.watchcore_event{}.prev_kv)]
	_ = [1]struct{}{}[unsafe.Offsetof(rawEvent{}.from)-unsafe.Offsetof(C.watchcore_event{}.resync_from)]
	_ = [1]struct{}{}[unsafe.Offsetof(rawEvent{}.epoch)-unsafe.Offsetof(C.watchcore_event{}.resync_epoch)]
	_ = [1]struct{}{}[unsafe.Offsetof(rawEvent{}.reason)-unsafe.Offsetof(C.watchcore_event{}.resync_reason)]

	_ = [1]struct{}{}[unsafe.Sizeof(keyValue{})-unsafe.Sizeof(C.watchcore_key_value{})]
	_ = [1]struct{}{}[unsafe.Offsetof(keyValue{}.value)-unsafe.Offsetof(C.watchcore_key_value{}.value)]
	_ = [1]struct{}{}[unsafe.Offsetof(keyValue{}.keyLength)-unsafe.Offsetof(C.watchcore_key_value{}.key_length)]
	_ = [1]struct{}{}[unsafe.Offsetof(keyValue{}.valueLength)-unsafe.Offsetof(C.watchcore_key_value{}.value_length)]
	_ = [1]struct{}{}[unsafe.Offsetof(keyValue{}.create)-unsafe.Offsetof(C.watchcore_key_value{}.create_revision)]
	_ = [1]struct{}{}[unsafe.Offsetof(keyValue{}.mod)-unsafe.Offsetof(C.watchcore_key_value{}.mod_revision)]
	_ = [1]struct{}{}[unsafe.Offsetof(keyValue{}.version)-unsafe.Offsetof(C.watchcore_key_value{}.version)]
	_ = [1]struct{}{}[unsafe.Offsetof(keyValue{}.lease)-unsafe.Offsetof(C.watchcore_key_value{}.lease)]
)

// view returns nil if the bytes are absent (NULL, of length 0), and an empty non-nil slice if they are empty.
func view(bytes unsafe.Pointer, length uint32) []byte {
	return unsafe.Slice((*byte)(bytes), length)
}

func (kv *keyValue) keyBytes() []byte {
	if kv == nil {
		return nil
	}
	return view(kv.key, kv.keyLength)
}

func (kv *keyValue) valueBytes() []byte {
	if kv == nil {
		return nil
	}
	return view(kv.value, kv.valueLength)
}

func (kv *keyValue) createRevision() uint64 {
	if kv == nil {
		return 0
	}
	return kv.create
}

func (kv *keyValue) modRevision() uint64 {
	if kv == nil {
		return 0
	}
	return kv.mod
}

func (kv *keyValue) changes() uint64 {
	if kv == nil {
		return 0
	}
	return kv.version
}

func (kv *keyValue) leaseID() int64 {
	if kv == nil {
		return 0
	}
	return kv.lease
}

// copied returns nil if the bytes are absent, and an empty non-nil slice if they are empty.
func copied(bytes []byte) []byte {
	if bytes == nil {
		return nil
	}
	return append([]byte{}, bytes...)
}

// Sequence returns the event's number in the log; 0: the event is not from the log.
func (e Event) Sequence() uint64 {
	if e.raw == nil {
		return 0
	}
	e.borrow.enter(e.generation)
	defer e.borrow.exit()
	return e.raw.sequence
}

// Key returns the key; "" in bookmarks and resync marks.
func (e Event) Key() string {
	e.borrow.enter(e.generation)
	defer e.borrow.exit()
	return string(e.kv().keyBytes())
}

// Value returns a copy of the new value: nil if there is none (deletions, bookmarks, resync marks),
// an empty non-nil slice if it is empty.
func (e Event) Value() []byte {
	e.borrow.enter(e.generation)
	defer e.borrow.exit()
	return copied(e.kv().valueBytes())
}

// PrevValue returns a copy of the previous value: nil if there was none (or it left the window), an
// empty non-nil slice if it was empty.
func (e Event) PrevValue() []byte {
	e.borrow.enter(e.generation)
	defer e.borrow.exit()
	return copied(e.prev().valueBytes())
}

// KeyView returns the key in the library's memory: valid until the batch is released, and
// read-only, because other readers share the bytes. The program must release a batch of which it
// took a view: the garbage collector does not. KeyView returns nil in bookmarks and resync marks.
func (e Event) KeyView() []byte {
	e.borrow.view(int64(e.generation))
	raw := e.raw
	if raw == nil || raw.kv == nil {
		return nil
	}
	return unsafe.Slice((*byte)(raw.kv.key), raw.kv.keyLength)
}

// ValueView returns the new value in the library's memory, under the conditions of KeyView. The
// result is nil or empty when that of Value is.
func (e Event) ValueView() []byte {
	e.borrow.view(int64(e.generation))
	raw := e.raw
	if raw == nil || raw.kv == nil {
		return nil
	}
	return unsafe.Slice((*byte)(raw.kv.value), raw.kv.valueLength)
}

// PrevValueView returns the previous value in the library's memory, under the conditions of
// KeyView. The result is nil or empty when that of PrevValue is.
func (e Event) PrevValueView() []byte {
	e.borrow.view(int64(e.generation))
	raw := e.raw
	if raw == nil || raw.prev == nil {
		return nil
	}
	return unsafe.Slice((*byte)(raw.prev.value), raw.prev.valueLength)
}

// CreateRevision returns the revision at which the key was created. In a deletion it and the next
// three methods describe the last value.
func (e Event) CreateRevision() uint64 {
	e.borrow.enter(e.generation)
	defer e.borrow.exit()
	return e.kv().createRevision()
}

// ModRevision returns the revision of the event's value.
func (e Event) ModRevision() uint64 {
	e.borrow.enter(e.generation)
	defer e.borrow.exit()
	return e.kv().modRevision()
}

// Version returns 1 + the number of changes since the key was created.
func (e Event) Version() uint64 {
	e.borrow.enter(e.generation)
	defer e.borrow.exit()
	return e.kv().changes()
}

// Lease returns the etcd lease of the key, 0 for none.
func (e Event) Lease() int64 {
	e.borrow.enter(e.generation)
	defer e.borrow.exit()
	return e.kv().leaseID()
}

// Synthetic reports whether a resync made the event, instead of a change at its revision.
func (e Event) Synthetic() bool { return e.has(C.WATCHCORE_FLAG_SYNTHETIC) }

// InitialState reports whether the event is part of the initial state.
func (e Event) InitialState() bool { return e.has(C.WATCHCORE_FLAG_INITIAL_STATE) }

// EndsInitialState reports whether the event is the bookmark that ends the initial state. The
// bookmark's revision is that of the state.
func (e Event) EndsInitialState() bool {
	// A reader of a state calls this for every event. Only bookmarks can have the flag, so for
	// other types the memory is neither read nor held; has panics if the batch was released.
	if e.Type != EventBookmark && !e.borrow.isLate(e.generation) {
		return false
	}
	return e.has(C.WATCHCORE_FLAG_INITIAL_STATE_END)
}

// ResyncPhase says which of the two marks of a resync an event is.
type ResyncPhase uint32

// The two marks of a resync.
const (
	ResyncBegin ResyncPhase = 8  // before the difference
	ResyncEnd   ResyncPhase = 16 // after it
)

// String returns the mark's name, "Begin" or "End".
func (p ResyncPhase) String() string {
	switch p {
	case ResyncBegin:
		return "Begin"
	case ResyncEnd:
		return "End"
	}
	return "ResyncPhase(" + strconv.FormatUint(uint64(p), 10) + ")"
}

// ResyncReason says why the history was replaced.
type ResyncReason uint32

// The reasons of resyncs.
const (
	ReasonCompacted    ResyncReason = 1 // the source compacted events that were not read yet
	ReasonHistoryReset ResyncReason = 2 // the source's history went back, or was replaced by another
	ReasonChainBroken  ResyncReason = 3 // an event did not fit the versions before it
	ReasonTooFarBehind ResyncReason = 4 // replaying would have taken longer than listing
	ReasonRequested    ResyncReason = 5 // the program requested it
	ReasonLagged       ResyncReason = 6 // one subscription only: it caught up after losing events
)

// String returns the reason's name, such as "HistoryReset".
func (r ResyncReason) String() string {
	switch r {
	case ReasonCompacted:
		return "Compacted"
	case ReasonHistoryReset:
		return "HistoryReset"
	case ReasonChainBroken:
		return "ChainBroken"
	case ReasonTooFarBehind:
		return "TooFarBehind"
	case ReasonRequested:
		return "Requested"
	case ReasonLagged:
		return "Lagged"
	}
	return "ResyncReason(" + strconv.FormatUint(uint64(r), 10) + ")"
}

// ResyncMark is the content of an event of type EventResync. Between the marks ResyncBegin and ResyncEnd the
// subscription gets the difference between the former and the new state, as one revision To in a new epoch.
type ResyncMark struct {
	Phase  ResyncPhase
	Reason ResyncReason
	Epoch  uint64 // the new epoch
	From   uint64 // the last revision of the former state
	To     uint64 // the new state's revision
}

// Resync returns the mark's content, or the zero value for an event of another type.
func (e Event) Resync() ResyncMark {
	if e.Type != EventResync || e.raw == nil {
		return ResyncMark{}
	}
	phase := ResyncEnd
	if e.has(C.WATCHCORE_FLAG_BEGIN) {
		phase = ResyncBegin
	}
	e.borrow.enter(e.generation)
	defer e.borrow.exit()
	return ResyncMark{Phase: phase, Reason: ResyncReason(e.raw.reason), Epoch: e.raw.epoch, From: e.raw.from, To: e.Revision}
}

// Clone returns a copy that owns its bytes.
func (e Event) Clone() Event {
	if e.raw == nil {
		return e
	}
	e.borrow.enter(e.generation)
	defer e.borrow.exit()
	_, own, _ := cloneEvents(0, []rawEvent{*e.raw})
	return own[0].event(nil, 0)
}

// cloneEvents copies events into one allocation: first space for the caller (zeroed), then the
// events, their key-values, their bytes.
//
// All pointers in the allocation point into the allocation itself, so the collector need not scan it: any
// pointer to it keeps all of it. Do not store other pointers in it, because the collector would not see them.
func cloneEvents(room uintptr, events []rawEvent) (start unsafe.Pointer, copies []rawEvent, bytes []byte) {
	length, count := 0, 0
	for i := range events {
		for _, kv := range [2]*keyValue{events[i].kv, events[i].prev} {
			if kv != nil {
				count++
				length += kv.copySize()
			}
		}
	}
	const word = unsafe.Sizeof(uint64(0))
	kvsAt := room + uintptr(len(events))*unsafe.Sizeof(rawEvent{})
	bytesAt := kvsAt + uintptr(count)*unsafe.Sizeof(keyValue{})
	block := make([]uint64, (bytesAt+uintptr(length)+word-1)/word)
	start = unsafe.Pointer(unsafe.SliceData(block))
	if len(events) == 0 {
		return start, nil, nil
	}
	copies = unsafe.Slice((*rawEvent)(unsafe.Add(start, room)), len(events))
	copy(copies, events)
	if count == 0 {
		return start, copies, nil
	}
	bytes = unsafe.Slice((*byte)(unsafe.Add(start, bytesAt)), length)
	c := cloner{unsafe.Slice((*keyValue)(unsafe.Add(start, kvsAt)), count)[:0], bytes[:0]}
	for i := range copies {
		copies[i].kv = c.keyValue(copies[i].kv)
		copies[i].prev = c.keyValue(copies[i].prev)
	}
	return start, copies, bytes
}

// copySize is the number of bytes that a copy takes: one more than the data, so that the address of
// an empty value lies inside the allocation.
func (kv *keyValue) copySize() int {
	return len(kv.keyBytes()) + len(kv.valueBytes()) + 1
}

// cloner appends copies to slices whose capacity suffices for all of them.
type cloner struct {
	kvs   []keyValue
	bytes []byte
}

func (c *cloner) keyValue(kv *keyValue) *keyValue {
	if kv == nil {
		return nil
	}
	own := *kv
	own.key = c.keep(kv.keyBytes())
	if value := kv.valueBytes(); value != nil {
		own.value = c.keep(value)
	}
	c.bytes = append(c.bytes, 0)
	c.kvs = append(c.kvs, own)
	return &c.kvs[len(c.kvs)-1]
}

// keep appends a copy of the bytes and returns its address.
func (c *cloner) keep(bytes []byte) unsafe.Pointer {
	at := len(c.bytes)
	c.bytes = append(c.bytes, bytes...)
	return unsafe.Pointer(unsafe.SliceData(c.bytes[at:]))
}
