package watchcore

// #include "abi.h"
// #cgo noescape wc_get_many
// #cgo nocallback wc_get_many
// #cgo noescape wc_snapshot_get_many
// #cgo nocallback wc_snapshot_get_many
import "C"

import (
	"context"
	"runtime"
	"sync"
	"unsafe"
)

// GetMany reads many keys of one state, in one call of the library: with many objects in less than half of the
// time of as many calls of Get. Item i of the page is that of keys[i]; its Found is false if that key is absent, or
// not selected, at the page's revision. A key may occur twice. The error concerns all keys: it is
// ErrInvalidArgument if one of them is outside the cache's prefix, and otherwise as that of Get. Nothing is copied:
// Release the page.
//
//	page, err := cache.GetMany(ctx, keys, watchcore.ReadOptions{})
//	if err != nil {
//		return err
//	}
//	defer page.Release()
//	for i, key := range keys {
//		if kv := page.At(i); kv.Found() {
//			fmt.Println(key, kv.ModRevision())
//		}
//	}
func (c *Cache) GetMany(ctx context.Context, keys []string, options ReadOptions) (*Page, error) {
	defer runtime.KeepAlive(c)
	var pin runtime.Pinner
	defer pin.Unpin()
	var given C.watchcore_read_options
	if err := options.fill(&given, &pin); err != nil {
		return nil, err
	}
	joined := join(keys)
	defer joined.done()
	var made *C.wc_many
	err := c.core.read(ctx, wait{options.Read, options.WaitTimeout}, func(cache *C.watchcore_cache) *C.watchcore_error {
		return C.wc_get_many(cache, borrowedBytes(joined.bytes), unsafe.SliceData(joined.lengths), C.size_t(len(keys)), &given, &made)
	})
	if err != nil {
		return nil, err
	}
	return pageOfMany(made, Position{Epoch: uint64(made.epoch), Revision: uint64(made.revision)}, c.core.state), nil
}

// GetMany reads many keys, as Cache.GetMany does. The page may outlive the snapshot: Release it.
func (s *Snapshot) GetMany(keys []string) (*Page, error) {
	defer runtime.KeepAlive(s)
	p, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer s.handle.release()
	joined := join(keys)
	defer joined.done()
	var made *C.wc_many
	if err := failed(C.wc_snapshot_get_many(p, borrowedBytes(joined.bytes), unsafe.SliceData(joined.lengths), C.size_t(len(keys)), &made)); err != nil {
		return nil, err
	}
	return pageOfMany(made, s.position, s.state), nil
}

// joinedKeys is a copy of keys, one after another, because memory that is passed to C must not contain Go pointers.
type joinedKeys struct {
	bytes   []byte
	lengths []C.size_t
}

var joinedPool = sync.Pool{New: func() any { return new(joinedKeys) }}

func join(keys []string) *joinedKeys {
	j := joinedPool.Get().(*joinedKeys)
	j.bytes, j.lengths = j.bytes[:0], j.lengths[:0]
	for _, key := range keys {
		j.bytes = append(j.bytes, key...)
		j.lengths = append(j.lengths, C.size_t(len(key)))
	}
	return j
}

// done keeps the memory for the next call, unless it is large.
func (j *joinedKeys) done() {
	if cap(j.bytes) <= arenaKept && cap(j.lengths) <= arenaKept/8 {
		joinedPool.Put(j)
	}
}

// pageOfMany takes over what C returned.
func pageOfMany(made *C.wc_many, position Position, state *coreState) *Page {
	first := (**keyValue)(unsafe.Add(unsafe.Pointer(made), C.sizeof_wc_many))
	p := &Page{items: unsafe.Slice(first, int(made.count)), position: position}
	p.begin(resource{state: state, what: uintptr(unsafe.Pointer(made)), kind: C.WC_MANY})
	return p
}
