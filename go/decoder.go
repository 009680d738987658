//go:build cgo

package watchcore

import (
	"hash/maphash"
	stack "runtime/debug"
	"slices"
	"sync"
)

// Decoder decodes the library's bytes into values of the caller's type, once per value: all readers
// of the same value get the same result, from whichever subscription, page or snapshot the value
// came. Decoder may be used from many goroutines at once.
//
// Results are kept in a table of limited size, which drops the oldest first; a dropped value is decoded again
// on demand. A value is identified by its key, its revision and its bytes, because after a history was
// replaced another value can have the same key and revision. Results are shared: do not modify them.
type Decoder[T any] struct {
	decode func(key, value []byte) (T, error)
	seed   maphash.Seed

	mu    sync.Mutex
	table map[valueID]*decoded[T]
	order []valueID // the table's, the oldest first; those before next have been dropped
	next  int
	size  int
	bytes int // length of the table's values
	most  int // the largest bytes; 0: any
}

// valueID identifies a value. Only values of different histories or caches can agree in key and
// revision; the length and the hash of the bytes tell them apart.
type valueID struct {
	key           string
	revision, sum uint64
	length        int
}

type decoded[T any] struct {
	done  chan struct{} // closed when value and err are set
	value T
	err   error
}

// DefaultDecoderSize is the number of results that a Decoder keeps if no size is given.
const DefaultDecoderSize = 8192

// NewDecoder makes a decoder that keeps at most size results (0 or less: DefaultDecoderSize). The
// function gets the key and the value in the library's memory: they are valid only during the call
// and must not be modified, so the function must copy the parts that it keeps. An error belongs to
// the value: every reader of the value gets it. A panic becomes such an error, ErrPanic. The
// function must not ask the decoder for the value that it is decoding.
func NewDecoder[T any](decode func(key, value []byte) (T, error), size int) *Decoder[T] {
	if decode == nil {
		panic("watchcore: NewDecoder without a function")
	}
	if size <= 0 {
		size = DefaultDecoderSize
	}
	return &Decoder[T]{decode: decode, seed: maphash.MakeSeed(), table: map[valueID]*decoded[T]{}, size: size}
}

// LimitBytes limits, beside the number of results, the total length of the values that they were decoded from: a
// few large objects then do not take the memory of thousands of small ones. The newest result is kept, however long its value
// is. Call LimitBytes before the decoder is used; it returns the decoder.
func (d *Decoder[T]) LimitBytes(most int) *Decoder[T] {
	d.most = most
	return d
}

// Value returns the decoded value of the event, and ErrInvalidArgument for an event without a value
// (a deletion, a bookmark, a resync mark). If another goroutine is decoding the value, Value waits
// for its result.
func (d *Decoder[T]) Value(e Event) (T, error) {
	e.borrow.enter(e.generation)
	defer e.borrow.exit()
	kv := e.kv()
	if kv.valueBytes() == nil {
		return noValue[T]("the event %v of revision %d has no value; a deletion has PrevValue", e.Type, e.Revision)
	}
	return d.of(kv)
}

// PrevValue returns the decoded value before the event; for a deletion, the last value. An event
// without one is ErrInvalidArgument.
func (d *Decoder[T]) PrevValue(e Event) (T, error) {
	e.borrow.enter(e.generation)
	defer e.borrow.exit()
	kv := e.prev()
	if kv.valueBytes() == nil {
		return noValue[T]("there is no value before the event %v of revision %d. Ask Event.PrevValue first", e.Type, e.Revision)
	}
	return d.of(kv)
}

// Item returns the decoded value of an item of a page or a snapshot.
func (d *Decoder[T]) Item(item KeyValueRef) (T, error) {
	item.borrow.enter(0)
	defer item.borrow.exit()
	return d.of(item.kv)
}

// KeyValue returns the decoded value of a key-value that Get returned; nil is ErrInvalidArgument.
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

// keep stores a result, and drops the oldest ones while the table is too large. The new one stays, however large it is.
func (d *Decoder[T]) keep(id valueID, result *decoded[T]) {
	d.order, d.bytes = append(d.order, id), d.bytes+id.length
	d.table[id] = result
	for kept := len(d.order) - d.next; kept > d.size || d.most > 0 && d.bytes > d.most && kept > 1; kept-- {
		oldest := d.order[d.next]
		delete(d.table, oldest)
		d.next, d.bytes = d.next+1, d.bytes-oldest.length
	}
	if 2*d.next > len(d.order) { // each dropped one pays for moving one
		d.order, d.next = slices.Delete(d.order, 0, d.next), 0
	}
}

// run decodes, and wakes the waiting goroutines however the function ends.
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
