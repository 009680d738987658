package watchcore

// #include "abi.h"
// #cgo noescape wc_snapshot
// #cgo nocallback wc_snapshot
// #cgo noescape wc_snapshot_get
// #cgo nocallback wc_snapshot_get
// #cgo noescape wc_snapshot_count
// #cgo nocallback wc_snapshot_count
// #cgo noescape wc_iterator
// #cgo nocallback wc_iterator
// #cgo noescape wc_iterator_next
// #cgo nocallback wc_iterator_next
import "C"

import (
	"iter"
	"runtime"
	"unsafe"
)

// Snapshot is the state at one revision. Snapshot never changes, and holds the memory of that state until
// it is closed. Snapshot may be used from many goroutines at once. Close it when it is no longer needed;
// the garbage collector closes an unreachable one some time later.
type Snapshot struct {
	handle   *handle
	position Position
	state    *coreState // counts its pages
	cleanup  runtime.Cleanup
}

// Snapshot takes a snapshot of the whole cache without copying.
func (c *Cache) Snapshot() (*Snapshot, error) {
	defer runtime.KeepAlive(c)
	if err := c.core.enter(); err != nil {
		return nil, err
	}
	defer c.core.cache.release()
	var made *C.watchcore_snapshot
	var revision, epoch C.uint64_t
	if err := failed(C.wc_snapshot(c.core.c(), &made, &revision, &epoch)); err != nil {
		return nil, err
	}
	s := &Snapshot{
		handle:   newHandle(unsafe.Pointer(made), kindSnapshot, func(p unsafe.Pointer) { C.watchcore_snapshot_free((*C.watchcore_snapshot)(p)) }),
		position: Position{Epoch: uint64(epoch), Revision: uint64(revision)},
		state:    c.core.state,
	}
	s.cleanup = runtime.AddCleanup(s, func(h *handle) { h.close() }, s.handle)
	return s, nil
}

// Close frees the snapshot. Idempotent, from any goroutine; a loop in progress continues to its
// end. The error is always nil.
func (s *Snapshot) Close() error {
	s.cleanup.Stop()
	s.handle.close()
	runtime.KeepAlive(s)
	return nil
}

// Position returns the state's position in the history.
func (s *Snapshot) Position() Position { return s.position }

// Revision returns the state's revision.
func (s *Snapshot) Revision() uint64 { return s.position.Revision }

func (s *Snapshot) enter() (*C.watchcore_snapshot, error) {
	if !s.handle.acquire() {
		return nil, errClosed("the snapshot")
	}
	return (*C.watchcore_snapshot)(s.handle.pointer), nil
}

// Get reads one key. The key-value is a copy; nil means that the key is absent.
func (s *Snapshot) Get(key string) (*KeyValue, error) {
	defer runtime.KeepAlive(s)
	p, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer s.handle.release()
	var kv *C.watchcore_key_value
	if err := failed(C.wc_snapshot_get(p, characters(key), C.size_t(len(key)), &kv)); err != nil {
		return nil, err
	}
	if kv == nil {
		return nil, nil
	}
	own := (*keyValue)(unsafe.Pointer(kv)).clone()
	return &own, nil
}

// Count returns the number of keys of a range that the selectors select.
func (s *Snapshot) Count(keys Range, options SelectOptions) (uint64, error) {
	defer runtime.KeepAlive(s)
	p, err := s.enter()
	if err != nil {
		return 0, err
	}
	defer s.handle.release()
	var pin runtime.Pinner
	defer pin.Unpin()
	var given C.watchcore_filter
	if err := options.fill(&given, keys, &pin); err != nil {
		return 0, err
	}
	var count C.uint64_t
	if err := failed(C.wc_snapshot_count(p, &given, &count)); err != nil {
		return 0, err
	}
	return uint64(count), nil
}

// Range iterates over the key-values of a range that the selectors select, in key order. Views of
// an item are valid in the loop's body, the item itself until the loop ends: Clone it to keep it.
// An error comes last, with an empty item.
func (s *Snapshot) Range(keys Range, options SelectOptions) iter.Seq2[KeyValueRef, error] {
	return func(yield func(KeyValueRef, error) bool) {
		defer runtime.KeepAlive(s)
		walk, err := s.walk(keys, options)
		if err != nil {
			yield(KeyValueRef{}, err)
			return
		}
		borrowed := &borrow{}
		borrowed.begin(resource{what: uintptr(unsafe.Pointer(walk)), kind: C.WC_WALK}, false)
		defer borrowed.end(0)
		items := make([]*keyValue, 16)
		for {
			var count C.size_t
			// The pointers are passed as integers, so that cgo does not check them.
			array := (*C.uintptr_t)(unsafe.Pointer(&items[0]))
			if err := failed(C.wc_iterator_next(walk, array, C.size_t(len(items)), &count)); err != nil {
				yield(KeyValueRef{}, err)
				return
			}
			for i := range items[:count] {
				if !show(items[i:i+1], borrowed, yield) {
					return
				}
			}
			if int(count) < len(items) {
				return
			}
			if len(items) < 256 {
				items = make([]*keyValue, 256)
			}
		}
	}
}

// show runs the loop's body for one item.
func show(item []*keyValue, borrowed *borrow, yield func(KeyValueRef, error) bool) bool {
	if debug {
		copies, bytes := poisonableItems(item)
		defer bytes.poison()
		item = copies
	}
	return yield(KeyValueRef{item[0], borrowed}, nil)
}

func (s *Snapshot) walk(keys Range, options SelectOptions) (*C.watchcore_iterator, error) {
	p, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer s.handle.release()
	var pin runtime.Pinner
	defer pin.Unpin()
	var given C.watchcore_filter
	if err := options.fill(&given, keys, &pin); err != nil {
		return nil, err
	}
	var walk *C.watchcore_iterator
	if err := failed(C.wc_iterator(p, &given, &walk)); err != nil {
		return nil, err
	}
	return walk, nil
}
