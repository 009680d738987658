package watchcore

// #include "abi.h"
// #cgo noescape wc_get
// #cgo nocallback wc_get
// #cgo noescape wc_list
// #cgo nocallback wc_list
// #cgo noescape wc_count
// #cgo nocallback wc_count
// #cgo nocallback watchcore_key_value_release
// #cgo nocallback watchcore_page_items
// #cgo nocallback watchcore_page_count
// #cgo nocallback watchcore_page_revision
// #cgo nocallback watchcore_page_epoch
// #cgo nocallback watchcore_page_more
// #cgo nocallback watchcore_page_remaining
import "C"

import (
	"context"
	"errors"
	"iter"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// DefaultWait is how long a read waits for its revision where its context has no
// deadline.
const DefaultWait = 3 * time.Second

// Read says which state is asked for.
type Read struct {
	mode     uint32
	revision uint64
}

// Any is whatever the cache has now; it never waits.
func Any() Read { return Read{mode: C.WATCHCORE_READ_ANY} }

// AtLeast is the newest state, at least at a revision; it waits for that.
func AtLeast(revision uint64) Read { return Read{C.WATCHCORE_READ_AT_LEAST, revision} }

// Exact is the state at exactly a revision; it waits for a future one.
// ErrCompacted where it is older than the window.
func Exact(revision uint64) Read { return Read{C.WATCHCORE_READ_EXACT, revision} }

func (r Read) options(limit int) C.watchcore_read_options {
	return C.watchcore_read_options{
		size:     C.sizeof_watchcore_read_options,
		mode:     C.uint32_t(r.mode),
		revision: C.uint64_t(r.revision),
		limit:    C.uint64_t(max(limit, 0)),
	}
}

// Get reads one key. The key-value is a copy; nil is "there was none", and the
// revision says when that was so.
func (c *Cache) Get(ctx context.Context, key string, read Read) (*KeyValue, uint64, error) {
	defer runtime.KeepAlive(c)
	options := read.options(0)
	answer := C.watchcore_answer{size: C.sizeof_watchcore_answer}
	err := c.core.read(ctx, read, func(cache *C.watchcore_cache) *C.watchcore_error {
		return C.wc_get(cache, characters(key), C.size_t(len(key)), &options, &answer)
	})
	if err != nil {
		return nil, 0, err
	}
	if answer.found == 0 {
		return nil, uint64(answer.revision), nil
	}
	kv := (*keyValue)(unsafe.Pointer(answer.kv)).clone()
	C.watchcore_key_value_release(answer.kv)
	return &kv, uint64(answer.revision), nil
}

// characters is typed so that cgo does not look inside.
func characters(text string) *C.char {
	return (*C.char)(unsafe.Pointer(unsafe.StringData(text)))
}

// ListOption is for List.
type ListOption func(*listConfig)

type listConfig struct {
	limit int
}

// Limit is the most items of a page; 0 is all.
func Limit(items int) ListOption { return func(c *listConfig) { c.limit = items } }

// List reads the key-values of a range in key order, all of one revision. Release
// the page.
func (c *Cache) List(ctx context.Context, keys Range, read Read, options ...ListOption) (*Page, error) {
	defer runtime.KeepAlive(c)
	var config listConfig
	for _, option := range options {
		option(&config)
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	var span C.watchcore_range
	keys.fill(&span, &pin)
	given := read.options(config.limit)
	var made *C.watchcore_page
	err := c.core.read(ctx, read, func(cache *C.watchcore_cache) *C.watchcore_error {
		return C.wc_list(cache, &span, &given, &made)
	})
	if err != nil {
		return nil, err
	}
	p := &Page{page: made, state: c.core.state}
	p.items = unsafe.Slice((**keyValue)(unsafe.Pointer(C.watchcore_page_items(made))), int(C.watchcore_page_count(made)))
	p.state.pages.Add(1)
	return p, nil
}

// Count is the number of keys of a range, and the revision of the state that was
// counted.
func (c *Cache) Count(ctx context.Context, keys Range, read Read) (count, revision uint64, err error) {
	defer runtime.KeepAlive(c)
	var pin runtime.Pinner
	defer pin.Unpin()
	var span C.watchcore_range
	keys.fill(&span, &pin)
	given := read.options(0)
	var number, at C.uint64_t
	err = c.core.read(ctx, read, func(cache *C.watchcore_cache) *C.watchcore_error {
		return C.wc_count(cache, &span, &given, &number, &at)
	})
	if err != nil {
		return 0, 0, err
	}
	return uint64(number), uint64(at), nil
}

// read calls without waiting in C; where the revision is not there yet it waits
// here and calls again.
func (core *cacheCore) read(ctx context.Context, read Read, call func(*C.watchcore_cache) *C.watchcore_error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := core.enter(); err != nil {
		return err
	}
	defer core.cache.release()
	err := failed(call(core.c()))
	if read.mode == C.WATCHCORE_READ_ANY || !isFuture(err) {
		return err
	}
	limit := time.Duration(-1)
	if _, set := ctx.Deadline(); !set {
		limit = DefaultWait
	}
	if _, waited := core.wait(ctx, C.WATCHCORE_WANT_REVISION, read.revision, limit); waited != nil && !errors.Is(waited, ErrTimeout) {
		return waited
	}
	return failed(call(core.c())) // after the timeout: the numbers as they are now
}

func isFuture(err error) bool {
	return errors.Is(err, ErrFutureRevision) || errors.Is(err, ErrTimeout)
}

// KeyValueRef is a view of a key-value of a page or a snapshot: the library's
// memory, valid as long as what it came from and never to be written to; Clone
// copies.
type KeyValueRef struct {
	kv *keyValue
}

// Key is the key.
func (r KeyValueRef) Key() []byte { return r.kv.keyBytes() }

// KeyString is a copy of the key.
func (r KeyValueRef) KeyString() string { return string(r.kv.keyBytes()) }

// Value is the value.
func (r KeyValueRef) Value() []byte { return r.kv.valueBytes() }

// CreateRevision is the revision at which the key was created.
func (r KeyValueRef) CreateRevision() uint64 { return r.kv.create }

// ModRevision is the revision of the last change.
func (r KeyValueRef) ModRevision() uint64 { return r.kv.mod }

// Version is 1 + the number of changes since the key was created.
func (r KeyValueRef) Version() uint64 { return r.kv.generation }

// Lease is the lease, 0 for none.
func (r KeyValueRef) Lease() int64 { return r.kv.lease }

// Clone is a copy that owns its bytes.
func (r KeyValueRef) Clone() KeyValue { return r.kv.clone() }

func (kv *keyValue) clone() KeyValue {
	key, value := kv.keyBytes(), kv.valueBytes()
	bytes := append(append(make([]byte, 0, len(key)+len(value)), key...), value...)
	return KeyValue{
		Key:            bytes[:len(key):len(key)],
		Value:          bytes[len(key):],
		CreateRevision: kv.create,
		ModRevision:    kv.mod,
		Version:        kv.generation,
		Lease:          kv.lease,
	}
}

// Page is some key-values of one revision, valid until Release. A nil *Page is
// empty.
type Page struct {
	page     *C.watchcore_page
	items    []*keyValue
	state    *coreState
	released atomic.Bool
}

// Release gives the page back: neither its items nor what they returned may be
// used any more. It may be called again, from any goroutine.
func (p *Page) Release() {
	if p == nil || p.released.Swap(true) {
		return
	}
	p.items = nil
	C.watchcore_page_free(p.page)
	p.page = nil
	p.state.pages.Add(-1)
}

// Len is the number of items.
func (p *Page) Len() int {
	if p == nil {
		return 0
	}
	return len(p.items)
}

// At is the item at an index.
func (p *Page) At(i int) KeyValueRef { return KeyValueRef{p.items[i]} }

// All walks over the items in key order.
func (p *Page) All() iter.Seq[KeyValueRef] {
	return func(yield func(KeyValueRef) bool) {
		if p == nil {
			return
		}
		for _, kv := range p.items {
			if !yield(KeyValueRef{kv}) {
				return
			}
		}
	}
}

// More says whether keys of the range remain behind the last item.
func (p *Page) More() bool {
	return p != nil && p.page != nil && C.watchcore_page_more(p.page) != 0
}

// Remaining is how many keys of the range remain behind the last item.
func (p *Page) Remaining() uint64 {
	if p == nil || p.page == nil {
		return 0
	}
	return uint64(C.watchcore_page_remaining(p.page))
}

// Position is the state that the page was read from.
func (p *Page) Position() Position {
	if p == nil || p.page == nil {
		return Position{}
	}
	return Position{Epoch: uint64(C.watchcore_page_epoch(p.page)), Revision: uint64(C.watchcore_page_revision(p.page))}
}

// Revision is the revision of that state.
func (p *Page) Revision() uint64 { return p.Position().Revision }
