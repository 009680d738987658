package watchcore

// #include "abi.h"
// #cgo noescape wc_writer
// #cgo nocallback wc_writer
// #cgo nocallback wc_load
// #cgo nocallback wc_apply
// #cgo noescape wc_apply_one
// #cgo nocallback wc_apply_one
// #cgo noescape wc_resync
// #cgo nocallback wc_resync
// #cgo nocallback wc_progress
// #cgo nocallback wc_compact
import "C"

import (
	"runtime"
	"unsafe"
)

// KeyValue is a key-value that owns its bytes: Get returns it, and Load, Resync and PutExact take it.
type KeyValue struct {
	Key            []byte
	Value          []byte
	CreateRevision uint64
	ModRevision    uint64
	Version        uint64 // 1 + the number of changes since the key was created
	Lease          int64
}

// Change is one change of one key.
type Change struct {
	op uint32
	kv KeyValue
}

// Put sets a key. The creation revision and the version are derived, the lease is 0.
func Put[K, V ~string | ~[]byte](key K, value V) Change {
	return Change{op: C.WATCHCORE_CHANGE_PUT, kv: KeyValue{Key: bytesOf(key), Value: bytesOf(value)}}
}

// Delete removes a present key.
func Delete[K ~string | ~[]byte](key K) Change {
	return Change{op: C.WATCHCORE_CHANGE_DELETE, kv: KeyValue{Key: bytesOf(key)}}
}

// bytesOf returns the bytes without copying them; the bytes of a Change are never written. A string
// header begins like a slice header: with address and length.
func bytesOf[B ~string | ~[]byte](b B) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&b)), len(b))
}

// PutExact sets a key with a given creation revision, revision, version and lease.
func PutExact(kv KeyValue) Change {
	return Change{op: C.WATCHCORE_CHANGE_PUT_EXACT, kv: kv}
}

// Writer is the only handle that may change an embedded cache. Only one goroutine at a time may use
// it: a second one gets ErrBusy. A refused call changes nothing.
type Writer struct {
	cache  *Cache // kept reachable, hence open, as long as the writer is
	handle *handle
	arena  *arena // used by the goroutine inside, freed with the handle
}

// Writer takes the cache's writer. The error is ErrBusy until a writer that was taken before is closed.
func (c *Cache) Writer() (*Writer, error) {
	defer runtime.KeepAlive(c)
	if err := c.core.enter(); err != nil {
		return nil, err
	}
	defer c.core.cache.release()
	var made *C.watchcore_writer
	if err := failed(C.wc_writer(c.core.c(), &made)); err != nil {
		return nil, err
	}
	arena := &arena{}
	w := &Writer{cache: c, arena: arena}
	w.handle = newHandle(unsafe.Pointer(made), kindWriter, func(p unsafe.Pointer) {
		C.watchcore_writer_free((*C.watchcore_writer)(p))
		C.free(arena.memory)
	})
	runtime.AddCleanup(w, func(h *handle) { h.close() }, w.handle)
	return w, nil
}

// Close frees the writer, so that another one can be taken. The cache is not changed. Idempotent,
// from any goroutine. The error is always nil.
func (w *Writer) Close() error {
	w.handle.close()
	runtime.KeepAlive(w)
	return nil
}

// Load publishes the first listing and makes the cache ready: once, and only for a cache made with
// ExpectLoad.
func (w *Writer) Load(revision uint64, listing []KeyValue) error {
	return w.write(func(p *C.watchcore_writer) error {
		changes, count := w.arena.listing(listing)
		return failed(C.wc_load(p, C.uint64_t(revision), changes, count))
	})
}

// Apply applies one revision: all its changes become visible together. The revision must be above
// the last one; each key may occur once; a deletion needs a present key.
func (w *Writer) Apply(revision uint64, changes ...Change) error {
	if err := w.handle.enterAlone("the writer"); err != nil {
		return err
	}
	p := (*C.watchcore_writer)(w.handle.pointer)
	var e *C.watchcore_error
	if len(changes) == 1 {
		e = changes[0].apply(p, C.uint64_t(revision))
	} else {
		array, count := w.arena.changes(changes)
		e = C.wc_apply(p, C.uint64_t(revision), array, count)
		w.arena.done()
	}
	w.handle.leaveAlone()
	runtime.KeepAlive(w)
	return failed(e)
}

// apply passes the key and the value to C without copying them. Several changes are copied, because
// an array for C must not contain Go pointers.
func (c *Change) apply(p *C.watchcore_writer, revision C.uint64_t) *C.watchcore_error {
	kv := &c.kv
	var value *C.char
	if c.op != C.WATCHCORE_CHANGE_DELETE {
		value = borrowedBytes(kv.Value)
	}
	return C.wc_apply_one(integer(unsafe.Pointer(p)), revision, C.uint32_t(c.op), borrowedBytes(kv.Key), C.size_t(len(kv.Key)), value, C.size_t(len(kv.Value)),
		C.uint64_t(kv.CreateRevision), C.uint64_t(kv.ModRevision), C.uint64_t(kv.Version), C.int64_t(kv.Lease))
}

// borrowedBytes passes bytes to C without copying them. The pointer is not NULL even if there are no bytes.
func borrowedBytes(bytes []byte) *C.char {
	if len(bytes) == 0 {
		return (*C.char)(unsafe.Pointer(&nothing))
	}
	return (*C.char)(unsafe.Pointer(unsafe.SliceData(bytes)))
}

// Resync replaces the state by a new listing: the difference becomes one atomic revision between two resync
// marks, in a new epoch. The revision may be lower than the last one. Resync returns the position after it.
func (w *Writer) Resync(revision uint64, listing []KeyValue, reason ResyncReason) (Position, error) {
	if reason < ReasonCompacted || reason > ReasonRequested {
		return Position{}, newError(ErrInvalidArgument, "resync: the reason %v is none of a writer. Give one of ReasonCompacted to ReasonRequested", reason)
	}
	var position, epoch C.uint64_t
	err := w.write(func(p *C.watchcore_writer) error {
		changes, count := w.arena.listing(listing)
		return failed(C.wc_resync(p, C.uint64_t(revision), changes, count, C.uint32_t(reason), &position, &epoch))
	})
	if err != nil {
		return Position{}, err
	}
	return Position{Epoch: uint64(epoch), Revision: uint64(position)}, nil
}

// Progress records that the source has reached a revision without a change of this range: positions
// advance, and bookmarks are delivered.
func (w *Writer) Progress(revision uint64) error {
	return w.write(func(p *C.watchcore_writer) error {
		return failed(C.wc_progress(p, C.uint64_t(revision)))
	})
}

// Compact discards the log's events up to and including a revision; the state at that revision
// stays readable.
func (w *Writer) Compact(revision uint64) error {
	return w.write(func(p *C.watchcore_writer) error {
		return failed(C.wc_compact(p, C.uint64_t(revision)))
	})
}

func (w *Writer) write(call func(*C.watchcore_writer) error) error {
	defer runtime.KeepAlive(w)
	if err := w.handle.enterAlone("the writer"); err != nil {
		return err
	}
	defer w.handle.leaveAlone()
	defer w.arena.done()
	return call((*C.watchcore_writer)(w.handle.pointer))
}

// arena is C memory for the changes of one call and their bytes, because memory that is passed to C
// must not contain Go pointers.
type arena struct {
	memory unsafe.Pointer
	size   uintptr
}

// arenaKept is the maximum memory that a writer keeps between two calls.
const arenaKept = 64 << 10

const changeSize = uintptr(C.sizeof_watchcore_change)

func (a *arena) changes(changes []Change) (*C.watchcore_change, C.size_t) {
	bytes := 0
	for i := range changes {
		bytes += changes[i].kv.size()
	}
	f := a.filler(len(changes), bytes)
	for i := range changes {
		f.add(changes[i].op, &changes[i].kv)
	}
	return f.array, f.count
}

func (a *arena) listing(listing []KeyValue) (*C.watchcore_change, C.size_t) {
	bytes := 0
	for i := range listing {
		bytes += listing[i].size()
	}
	f := a.filler(len(listing), bytes)
	for i := range listing {
		f.add(C.WATCHCORE_CHANGE_PUT_EXACT, &listing[i])
	}
	return f.array, f.count
}

// size is one byte more than the data, so that the address of an empty value lies inside.
func (kv *KeyValue) size() int { return len(kv.Key) + len(kv.Value) + 1 }

// filler writes an array and the bytes of its elements into an arena.
type filler struct {
	array *C.watchcore_change
	count C.size_t
	free  []byte
}

func (a *arena) filler(count, bytes int) filler {
	if count == 0 {
		return filler{}
	}
	head := changeSize * uintptr(count)
	if size := head + uintptr(bytes); size > a.size {
		C.free(a.memory)
		a.memory, a.size = C.malloc(C.size_t(size)), size
	}
	return filler{array: (*C.watchcore_change)(a.memory), free: unsafe.Slice((*byte)(unsafe.Add(a.memory, head)), bytes)}
}

func (f *filler) add(op uint32, kv *KeyValue) {
	change := (*C.watchcore_change)(unsafe.Add(unsafe.Pointer(f.array), uintptr(f.count)*changeSize))
	*change = C.watchcore_change{
		size:            C.uint32_t(changeSize),
		op:              C.uint32_t(op),
		key:             f.put(kv.Key),
		create_revision: C.uint64_t(kv.CreateRevision),
		mod_revision:    C.uint64_t(kv.ModRevision),
		version:         C.uint64_t(kv.Version),
		lease:           C.int64_t(kv.Lease),
	}
	if op != C.WATCHCORE_CHANGE_DELETE {
		change.value = f.put(kv.Value)
	}
	f.free = f.free[1:]
	f.count++
}

func (f *filler) put(bytes []byte) C.watchcore_bytes {
	n := copy(f.free, bytes)
	given := C.watchcore_bytes{data: unsafe.Pointer(unsafe.SliceData(f.free)), length: C.size_t(n)}
	f.free = f.free[n:]
	return given
}

func (a *arena) done() {
	if a.size > arenaKept {
		C.free(a.memory)
		a.memory, a.size = nil, 0
	}
}
