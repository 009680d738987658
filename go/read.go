package watchcore

// #include "abi.h"
// #cgo noescape wc_get
// #cgo nocallback wc_get
// #cgo noescape wc_get_newest
// #cgo nocallback wc_get_newest
// #cgo noescape wc_list
// #cgo nocallback wc_list
// #cgo noescape wc_diff
// #cgo nocallback wc_diff
// #cgo noescape wc_count
// #cgo nocallback wc_count
// #cgo nocallback watchcore_key_value_release
// #cgo nocallback watchcore_text_get
// #cgo nocallback watchcore_text_free
import "C"

import (
	"context"
	"errors"
	"iter"
	"runtime"
	"sync"
	"time"
	"unsafe"
)

// DefaultWaitTimeout is how long a read waits for its revision if its options do not say.
const DefaultWaitTimeout = 3 * time.Second

// Read says which state to read. The zero Read is ReadAny.
type Read struct {
	mode uint32
	at   Position
}

// ReadAny reads the cache's present state; it never waits.
func ReadAny() Read { return Read{mode: C.WATCHCORE_READ_ANY} }

// ReadAtLeast reads the newest state, and waits until the state has at least the given revision.
func ReadAtLeast(revision uint64) Read { return ReadAtLeastPosition(Position{Revision: revision}) }

// ReadAtLeastPosition is ReadAtLeast within one history: the error is ErrCompacted if the history
// was replaced before the call, and ErrResynced if it is replaced during the wait.
func ReadAtLeastPosition(position Position) Read {
	return Read{C.WATCHCORE_READ_AT_LEAST, position}
}

// ReadExact reads the state at exactly a revision, and waits for a future one. The error is
// ErrCompacted if the revision is older than the window.
func ReadExact(revision uint64) Read { return ReadExactPosition(Position{Revision: revision}) }

// ReadExactPosition is ReadExact within one history, with the errors of ReadAtLeastPosition.
func ReadExactPosition(position Position) Read { return Read{C.WATCHCORE_READ_EXACT, position} }

// ReadOptions says which state Get and Count read, and which part of it. The zero value is the
// whole present state.
type ReadOptions struct {
	// Read selects the state; the zero Read is ReadAny.
	Read Read
	// WaitTimeout limits how long the read waits for its revision, in addition to its context: the
	// error is then ErrFutureRevision, with the numbers. 0 is DefaultWaitTimeout; with a negative
	// value only the context limits the wait.
	WaitTimeout time.Duration
	// LabelSelector and FieldSelector have the same meaning as in SubscribeOptions.
	LabelSelector, FieldSelector string
}

// ListOptions says which state List reads, and which part of it. The zero value is the whole range
// in the present state.
type ListOptions struct {
	// Read selects the state; the zero Read is ReadAny.
	Read Read
	// WaitTimeout has the same meaning as in ReadOptions.
	WaitTimeout time.Duration
	// LabelSelector and FieldSelector have the same meaning as in SubscribeOptions.
	LabelSelector, FieldSelector string
	// Limit is the maximum number of items of a page; 0 is all.
	Limit int
	// Continue starts after the page that returned this token (Page.Continue), at the same revision. The
	// range and the selectors must be the same, and Read must be ReadAny. "" starts at the beginning.
	Continue string
}

func (r *ReadOptions) fill(o *C.watchcore_read_options, pin *runtime.Pinner) error {
	var check checker
	*o = C.watchcore_read_options{
		size:     C.sizeof_watchcore_read_options,
		mode:     C.uint32_t(r.Read.mode),
		revision: C.uint64_t(r.Read.at.Revision),
		epoch:    C.uint64_t(r.Read.at.Epoch),
		labels:   check.text("LabelSelector", pin, r.LabelSelector),
		fields:   check.text("FieldSelector", pin, r.FieldSelector),
	}
	return check.err
}

func (l *ListOptions) fill(o *C.watchcore_read_options, pin *runtime.Pinner) error {
	var check checker
	if l.Limit < 0 {
		check.refuse("ListOptions.Limit is %d: it cannot be negative. Give 0 for all", l.Limit)
	}
	read := ReadOptions{Read: l.Read, LabelSelector: l.LabelSelector, FieldSelector: l.FieldSelector}
	if err := read.fill(o, pin); err != nil {
		return err
	}
	o.limit, o.continue_token = C.uint64_t(l.Limit), check.text("ListOptions.Continue", pin, l.Continue)
	return check.err
}

// Get reads one key. The key-value is a copy; nil means that the key is absent or that the
// selectors do not select it, at the returned revision.
func (c *Cache) Get(ctx context.Context, key string, options ReadOptions) (*KeyValue, uint64, error) {
	var f found
	buffer := valueBuffers.Get().(*valueBuffer)
	value, err := c.find(ctx, key, &options, &f, buffer[:])
	if err != nil || f.found == 0 {
		valueBuffers.Put(buffer)
		return nil, f.revision, err
	}
	kv := newKeyValue(key, value)
	f.fill(kv)
	valueBuffers.Put(buffer)
	return kv, f.revision, nil
}

// GetInto is Get into memory of the caller: it overwrites the key and the value of into, and
// enlarges them if they are too small. It reports whether there was such a key-value; if not, into
// is unchanged. Reading many keys without keeping them allocates nothing:
//
//	var kv watchcore.KeyValue
//	for _, key := range keys {
//		found, revision, err := cache.GetInto(ctx, key, watchcore.ReadOptions{}, &kv)
//		...
//	}
func (c *Cache) GetInto(ctx context.Context, key string, options ReadOptions, into *KeyValue) (bool, uint64, error) {
	var f found
	buffer := into.Value[:cap(into.Value)]
	if len(buffer) == 0 {
		buffer = make([]byte, 512)
	}
	value, err := c.find(ctx, key, &options, &f, buffer)
	if err != nil || f.found == 0 {
		return false, f.revision, err
	}
	if f.kept != nil {
		value = append(buffer[:0], value...)
	}
	into.Key, into.Value = append(into.Key[:0], key...), value
	f.fill(into)
	return true, f.revision, nil
}

// GetView is Get without a copy: view receives the key-value in place. Key and Value of kv are the
// library's memory: valid until view returns, and read-only, because other readers share the bytes.
// GetView reports whether there was such a key-value; if not, view is not called. It allocates
// nothing, whatever the size of the value.
//
// view is called on this goroutine, without any lock: it may take long, call the cache, close it, or panic.
//
//	var parsed error
//	found, revision, err := cache.GetView(ctx, key, watchcore.ReadOptions{}, func(kv watchcore.KeyValue) {
//		parsed = json.Unmarshal(kv.Value, &object)
//	})
func (c *Cache) GetView(ctx context.Context, key string, options ReadOptions, view func(kv KeyValue)) (bool, uint64, error) {
	var f found
	if _, err := c.find(ctx, key, &options, &f, nil); err != nil || f.found == 0 {
		return false, f.revision, err
	}
	defer f.release()
	f.show(view)
	return true, f.revision, nil
}

// valueBuffer is memory into which C copies a value that fits, so that a get is one cgo call.
type valueBuffer [4096]byte

var valueBuffers = sync.Pool{New: func() any { return new(valueBuffer) }}

// found has the layout of wc_found.
type found struct {
	revision             uint64
	kept                 *keyValue // the library's memory until release
	found, length        uint64
	create, mod, version uint64
	lease                int64
}

var (
	_ = [1]struct{}{}[unsafe.Sizeof(found{})-unsafe.Sizeof(C.wc_found{})]
	_ = [1]struct{}{}[unsafe.Offsetof(found{}.length)-unsafe.Offsetof(C.wc_found{}.value_length)]
	_ = [1]struct{}{}[unsafe.Offsetof(found{}.lease)-unsafe.Offsetof(C.wc_found{}.lease)]
)

// fill is called after the value was copied.
func (f *found) fill(kv *KeyValue) {
	kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease = f.create, f.mod, f.version, f.lease
	f.release()
}

// show calls view with the library's key-value.
func (f *found) show(view func(kv KeyValue)) {
	shown := [1]*keyValue{f.kept}
	items, copies := poisonableItems(shown[:])
	defer copies.poison()
	view(KeyValue{items[0].keyBytes(), items[0].valueBytes(), f.create, f.mod, f.version, f.lease})
}

func (f *found) release() {
	if f.kept != nil {
		C.watchcore_key_value_release((*C.watchcore_key_value)(unsafe.Pointer(f.kept)))
	}
}

// find makes one cgo call. The value is in buffer if it fits, otherwise in the library's memory until
// release. A read of the present state does not wait, so it skips the preparations for a wait.
func (c *Cache) find(ctx context.Context, key string, options *ReadOptions, f *found, buffer []byte) (value []byte, err error) {
	words, bytes := (*C.uint64_t)(unsafe.Pointer(f)), (*C.char)(unsafe.Pointer(unsafe.SliceData(buffer)))
	if *options != (ReadOptions{}) {
		err = c.core.findAt(ctx, key, options, words, bytes, len(buffer))
	} else if err = ctx.Err(); err == nil {
		core := c.core
		if err = core.enter(); err == nil {
			e := C.wc_get_newest(integer(core.cache.pointer), characters(key), C.size_t(len(key)), words, bytes, C.size_t(len(buffer)))
			core.cache.release()
			err = failed(e)
		}
	}
	runtime.KeepAlive(c)
	if f.kept != nil {
		return f.kept.valueBytes(), err
	}
	return buffer[:f.length], err
}

func (core *cacheCore) findAt(ctx context.Context, key string, options *ReadOptions, words *C.uint64_t, buffer *C.char, capacity int) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	var given C.watchcore_read_options
	if err := options.fill(&given, &pin); err != nil {
		return err
	}
	return core.read(ctx, wait{options.Read, options.WaitTimeout}, func(cache *C.watchcore_cache) *C.watchcore_error {
		return C.wc_get(cache, characters(key), C.size_t(len(key)), &given, words, buffer, C.size_t(capacity))
	})
}

// characters returns a pointer of a type that cgo does not check. characters is never NULL, even for an
// empty text.
func characters(text string) *C.char {
	if text == "" {
		return (*C.char)(unsafe.Pointer(&nothing))
	}
	return (*C.char)(unsafe.Pointer(unsafe.StringData(text)))
}

// List reads the key-values of a range in key order, all of one revision. Release the page. With
// Limit, continue page by page with Continue: if the revision of the first page has left the window
// in between, the error is ErrCompacted, and Error.Continue continues in the newest state.
func (c *Cache) List(ctx context.Context, keys Range, options ListOptions) (*Page, error) {
	defer runtime.KeepAlive(c)
	var pin runtime.Pinner
	defer pin.Unpin()
	var given C.watchcore_read_options
	if err := options.fill(&given, &pin); err != nil {
		return nil, err
	}
	var span C.watchcore_range
	keys, given.nothing = keys.inC()
	keys.fill(&span, &pin)
	var made *C.watchcore_page
	var token *C.watchcore_text
	err := c.core.read(ctx, wait{options.Read, options.WaitTimeout}, func(cache *C.watchcore_cache) *C.watchcore_error {
		return C.wc_list(cache, &span, &given, &made, &token)
	})
	if token != nil {
		if e, ok := err.(*Error); ok {
			e.Continue = textOf(C.watchcore_text_get(token))
		}
		C.watchcore_text_free(token)
	}
	if err != nil {
		return nil, err
	}
	return newPage(made, c.core.state), nil
}

// DefaultPageSize is the number of items that ListAll reads at a time if its options do not say.
const DefaultPageSize = 500

// ListAll iterates over the key-values of a range in key order, all of one revision, and reads them
// page by page, so that a long loop keeps one page in memory. options.Limit is the length of a
// page; 0 is DefaultPageSize. Each page is released when the loop has finished with it, also by
// break or panic: an item is valid in the loop's body only; Clone it to keep it.
//
// An error comes last, with an empty item. If the revision of the first page has left the window in
// between, the error is ErrCompacted: Error.Continue, given to another ListAll, continues after the
// last item in the newest state.
func (c *Cache) ListAll(ctx context.Context, keys Range, options ListOptions) iter.Seq2[KeyValueRef, error] {
	if options.Limit == 0 {
		options.Limit = DefaultPageSize
	}
	return func(yield func(KeyValueRef, error) bool) {
		for options := options; ; {
			page, err := c.List(ctx, keys, options)
			if err != nil {
				yield(KeyValueRef{}, err)
				return
			}
			if !page.lend(yield) || !page.More() {
				return
			}
			options.Read, options.Continue = Read{}, page.Continue()
		}
	}
}

func textOf(bytes C.watchcore_bytes) string {
	return string(unsafe.Slice((*byte)(bytes.data), int(bytes.length)))
}

// Count returns the number of keys of a range that the selectors select, and the revision of the
// counted state.
func (c *Cache) Count(ctx context.Context, keys Range, options ReadOptions) (count, revision uint64, err error) {
	defer runtime.KeepAlive(c)
	var pin runtime.Pinner
	defer pin.Unpin()
	var given C.watchcore_read_options
	if err := options.fill(&given, &pin); err != nil {
		return 0, 0, err
	}
	var span C.watchcore_range
	keys, given.nothing = keys.inC()
	keys.fill(&span, &pin)
	var number, at C.uint64_t
	err = c.core.read(ctx, wait{options.Read, options.WaitTimeout}, func(cache *C.watchcore_cache) *C.watchcore_error {
		return C.wc_count(cache, &span, &given, &number, &at)
	})
	if err != nil {
		return 0, 0, err
	}
	return uint64(number), uint64(at), nil
}

// Diff returns the net changes from the state at one position to the state at another: at most one event per
// key, in key order, added, modified or deleted relative to the state at from, with the revision of the key's
// newest change; PrevValue is the value at from. Diff never waits: the error is ErrCompacted below the
// window, and ErrFutureRevision above the cache's revision. An Epoch of 0 is unchecked. Release the batch.
func (c *Cache) Diff(from, to Position, options DiffOptions) (*Batch, error) {
	defer runtime.KeepAlive(c)
	var pin runtime.Pinner
	defer pin.Unpin()
	var given C.watchcore_filter
	if err := options.fill(&given, &pin); err != nil {
		return nil, err
	}
	if err := c.core.enter(); err != nil {
		return nil, err
	}
	defer c.core.cache.release()
	var raw rawBatch
	if err := failed(C.wc_diff(c.core.c(), C.uint64_t(from.Revision), C.uint64_t(from.Epoch),
		C.uint64_t(to.Revision), C.uint64_t(to.Epoch), &given, raw.words())); err != nil {
		return nil, err
	}
	b := newBatch(&buffer{}, &raw, c.core.state, false)
	b.buffer.borrow.catch()
	return b, nil
}

// wait is the position for which a read waits, and the limit: see ReadOptions.
type wait struct {
	read  Read
	limit time.Duration
}

// read calls C without waiting there. If the revision has not arrived, read waits here and calls
// again: see settle.
func (core *cacheCore) read(ctx context.Context, wait wait, call func(*C.watchcore_cache) *C.watchcore_error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := core.enter(); err != nil {
		return err
	}
	defer core.cache.release()
	err := failed(call(core.c()))
	if err == nil || !isFuture(err) {
		return err
	}
	at := wait.read.at
	if wait.read.mode == C.WATCHCORE_READ_ANY { // a continue token has its own revision
		at = Position{Revision: err.(*Error).Asked}
	}
	limit := wait.limit
	if limit == 0 {
		limit = DefaultWaitTimeout
	}
	return settle(limit, func(left time.Duration) error {
		_, err := core.wait(ctx, C.WATCHCORE_WANT_REVISION, at, left)
		return err
	}, func() error { return failed(call(core.c())) })
}

// settle waits for a revision and calls. A reset to a lower revision may undo the wait before the
// call: then settle waits again for the rest of the limit (for ever if the limit is negative).
// After the limit the call's result is final: it has the present numbers.
func settle(limit time.Duration, wait func(left time.Duration) error, call func() error) error {
	begin := time.Now()
	for left := limit; ; {
		waited := wait(left)
		if waited != nil && !errors.Is(waited, ErrTimeout) {
			return waited
		}
		if err := call(); waited != nil || err == nil || !isFuture(err) {
			return err
		}
		if limit >= 0 {
			left = max(limit-time.Since(begin), 0)
		}
	}
}

func isFuture(err error) bool {
	return errors.Is(err, ErrFutureRevision) || errors.Is(err, ErrTimeout)
}

// KeyValueRef is a key-value of a page or a snapshot. Key and Value return copies, which belong to the
// program. A KeyValueRef keeps its page reachable, and its methods, except Found, panic after the page was
// released or the loop over the snapshot has ended: Clone it to keep it longer. The zero KeyValueRef is empty.
type KeyValueRef struct {
	kv     *keyValue
	borrow *borrow
}

// Found reports whether there is a key-value: false in the zero KeyValueRef, and for an absent key of GetMany.
func (r KeyValueRef) Found() bool { return r.kv != nil }

// Key returns the key.
func (r KeyValueRef) Key() string {
	r.borrow.enter(0)
	defer r.borrow.exit()
	return string(r.kv.keyBytes())
}

// Value returns a copy of the value.
func (r KeyValueRef) Value() []byte {
	r.borrow.enter(0)
	defer r.borrow.exit()
	return copied(r.kv.valueBytes())
}

// KeyView returns the key in the library's memory: valid until the page is released (for a
// snapshot, in the loop's body), and read-only, because other readers share the bytes. The program
// must release a page of which it took a view: the garbage collector does not.
func (r KeyValueRef) KeyView() []byte {
	r.borrow.view(0)
	return r.kv.keyBytes()
}

// ValueView returns the value in the library's memory, under the conditions of KeyView.
func (r KeyValueRef) ValueView() []byte {
	r.borrow.view(0)
	return r.kv.valueBytes()
}

// CreateRevision returns the revision at which the key was created.
func (r KeyValueRef) CreateRevision() uint64 {
	r.borrow.enter(0)
	defer r.borrow.exit()
	return r.kv.createRevision()
}

// ModRevision returns the revision of the last change.
func (r KeyValueRef) ModRevision() uint64 {
	r.borrow.enter(0)
	defer r.borrow.exit()
	return r.kv.modRevision()
}

// Version returns 1 + the number of changes since the key was created.
func (r KeyValueRef) Version() uint64 {
	r.borrow.enter(0)
	defer r.borrow.exit()
	return r.kv.changes()
}

// Lease returns the etcd lease of the key, 0 for none.
func (r KeyValueRef) Lease() int64 {
	r.borrow.enter(0)
	defer r.borrow.exit()
	return r.kv.leaseID()
}

// Clone returns a copy that owns its bytes.
func (r KeyValueRef) Clone() KeyValue {
	r.borrow.enter(0)
	defer r.borrow.exit()
	return r.kv.clone()
}

// newKeyValue copies the key and the value.
func newKeyValue(key string, value []byte) *KeyValue {
	bytes := append(append(make([]byte, 0, len(key)+len(value)), key...), value...)
	return &KeyValue{Key: bytes[:len(key):len(key)], Value: bytes[len(key):]}
}

func (kv *keyValue) clone() KeyValue {
	if kv == nil {
		return KeyValue{}
	}
	key, value := kv.keyBytes(), kv.valueBytes()
	bytes := append(append(make([]byte, 0, len(key)+len(value)), key...), value...)
	return KeyValue{
		Key:            bytes[:len(key):len(key)],
		Value:          bytes[len(key):],
		CreateRevision: kv.create,
		ModRevision:    kv.mod,
		Version:        kv.version,
		Lease:          kv.lease,
	}
}
