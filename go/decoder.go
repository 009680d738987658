//go:build cgo

package watchcore

import (
	"hash/maphash"
	stack "runtime/debug"
	"sync"
)

// Decoder makes values of the caller's own type out of the library's bytes, once
// each: whoever asks for the same value gets the same result, through whichever
// subscription, page or snapshot it came. It may be used from many goroutines at
// once.
//
// Results are kept in a table of a fixed size, from which the oldest go first; what
// is no longer there is decoded again when somebody asks. A value is known by its
// key, its revision and its bytes: where a history was replaced, another value of
// the same revision is another value. Treat results as shared: do not change them.
type Decoder[T any] struct {
	decode func(key, value []byte) (T, error)
	seed   maphash.Seed

	mu    sync.Mutex
	table map[valueID]*decoded[T]
	order []valueID // a ring, once it is full
	next  int       // the oldest
	size  int
}

// valueID identifies a value. Only values of different histories or caches
// can agree in key and revision; their bytes are compared by length and hash.
type valueID struct {
	key           string
	revision, sum uint64
	length        int
}

type decoded[T any] struct {
	done  chan struct{} // closed: value and err are there
	value T
	err   error
}

// DefaultDecoderSize is how many results a Decoder keeps where no size was given.
const DefaultDecoderSize = 8192

// NewDecoder makes a decoder that keeps at most size results (0 or less:
// DefaultDecoderSize). The function's key and value are the library's memory: valid
// only during the call, and not to be written to; what it keeps of them it must
// copy. An error of it belongs to the value and is what everybody gets who asks for
// it; so is a panic, as ErrPanic. It must not ask the decoder for the value that it
// is called for.
func NewDecoder[T any](decode func(key, value []byte) (T, error), size int) *Decoder[T] {
	if decode == nil {
		panic("watchcore: NewDecoder without a function")
	}
	if size <= 0 {
		size = DefaultDecoderSize
	}
	return &Decoder[T]{decode: decode, seed: maphash.MakeSeed(), table: map[valueID]*decoded[T]{}, size: size}
}

// Value is the event's value, decoded. An event without one (a deletion, a bookmark,
// a resync mark) is ErrInvalidArgument. Where another goroutine decodes it just now, it
// waits for that.
func (d *Decoder[T]) Value(e Event) (T, error) {
	e.loan.enter(e.turn)
	defer e.loan.exit()
	kv := e.kv()
	if kv.valueBytes() == nil {
		return noValue[T]("the event %v of revision %d has no value; a deletion has PrevValue", e.Type, e.Revision)
	}
	return d.of(kv)
}

// PrevValue is the value before the event, decoded: of a deletion the last one.
// An event without one is ErrInvalidArgument.
func (d *Decoder[T]) PrevValue(e Event) (T, error) {
	e.loan.enter(e.turn)
	defer e.loan.exit()
	kv := e.prev()
	if kv.valueBytes() == nil {
		return noValue[T]("there is no value before the event %v of revision %d. Ask Event.PrevValue first", e.Type, e.Revision)
	}
	return d.of(kv)
}

// Item is the value of an item of a page or a snapshot, decoded.
func (d *Decoder[T]) Item(item KeyValueRef) (T, error) {
	item.loan.enter(0)
	defer item.loan.exit()
	return d.of(item.kv)
}

// KeyValue is the value of a key-value that Get gave, decoded; nil is
// ErrInvalidArgument.
func (d *Decoder[T]) KeyValue(kv *KeyValue) (T, error) {
	if kv == nil {
		return noValue[T]("there is no key-value. Get answers nil for a key that is absent")
	}
	return d.shared(kv.Key, kv.Value, kv.ModRevision)
}

func noValue[T any](format string, numbers ...any) (none T, err error) {
	return none, newError(ErrInvalidArgument, "decode: "+format, numbers...)
}

func (d *Decoder[T]) of(kv *keyValue) (T, error) {
	return d.shared(kv.keyBytes(), kv.valueBytes(), kv.mod)
}

func (d *Decoder[T]) shared(key, value []byte, revision uint64) (T, error) {
	sum := maphash.Bytes(d.seed, value)
	d.mu.Lock()
	result, found := d.table[valueID{string(key), revision, sum, len(value)}]
	if found {
		d.mu.Unlock()
		<-result.done
		return result.value, result.err
	}
	result = &decoded[T]{done: make(chan struct{})}
	d.keep(valueID{string(key), revision, sum, len(value)}, result)
	d.mu.Unlock()
	d.run(result, key, value, revision)
	return result.value, result.err
}

// keep puts a result in the place of the oldest.
func (d *Decoder[T]) keep(id valueID, result *decoded[T]) {
	if len(d.order) < d.size {
		d.order = append(d.order, id)
	} else {
		delete(d.table, d.order[d.next])
		d.order[d.next] = id
		d.next = (d.next + 1) % d.size
	}
	d.table[id] = result
}

// run decodes, and wakes those that wait for it however the function ends.
func (d *Decoder[T]) run(result *decoded[T], key, value []byte, revision uint64) {
	returned := false
	defer close(result.done)
	defer func() {
		if panicked := recover(); panicked != nil {
			result.err = newError(ErrPanic, "decode %q of revision %d: the decoder panicked: %v. Correct it; nothing else is harmed\n%s",
				key, revision, panicked, stack.Stack())
		} else if !returned {
			result.err = newError(ErrPanic, "decode %q of revision %d: the decoder ended its goroutine. It has to return", key, revision)
		}
	}()
	result.value, result.err = d.call(key, value)
	returned = true
}
