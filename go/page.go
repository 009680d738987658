package watchcore

// #include "abi.h"
// #cgo nocallback wc_page
import "C"

import (
	"iter"
	"unsafe"
)

// Page is a list of key-values of one revision, in the library's memory until Release. Page does not
// keep events of the log that have left the window. A page of List has the key-values that are there, in key
// order; one of GetMany has an item for each key, in the order of the keys. A nil *Page is empty.
type Page struct {
	borrow    borrow
	items     []*keyValue
	position  Position
	remaining uint64
	token     string
	more      bool
}

// newPage takes over a page that C returned.
func newPage(made *C.watchcore_page, state *coreState) *Page {
	content := C.wc_page(made)
	info := &content.info
	p := &Page{
		items:     unsafe.Slice((**keyValue)(unsafe.Pointer(content.items)), int(info.count)),
		position:  Position{Epoch: uint64(info.epoch), Revision: uint64(info.revision)},
		remaining: uint64(info.remaining),
		token:     textOf(info.continue_token),
		more:      info.more != 0,
	}
	p.begin(resource{state: state, what: uintptr(unsafe.Pointer(made)), kind: C.WC_PAGE})
	return p
}

// begin takes over the memory that the items lie in.
func (p *Page) begin(memory resource) {
	if debug {
		p.items, p.borrow.copies = poisonableItems(p.items)
	}
	p.borrow.taken = origins()
	p.borrow.begin(memory, false)
	p.borrow.catch()
}

// Release frees the page. Release may be called more than once and from any goroutine. Afterwards views
// of the page must not be used any more, and its items, Len, At and All panic.
//
// The garbage collector releases a page some time after neither the page nor one of its items is
// reachable. If a view was taken, the memory stays for ever instead, Stats.LeakedPages counts it,
// and the log reports it once, as for a batch.
func (p *Page) Release() {
	if p != nil {
		p.borrow.end(0)
	}
}

// Len returns the number of items.
func (p *Page) Len() int {
	if p == nil {
		return 0
	}
	if p.borrow.gate.closed() {
		usedLate()
	}
	return len(p.items)
}

// At returns the item at an index.
func (p *Page) At(i int) KeyValueRef {
	p.borrow.enter(0)
	defer p.borrow.exit()
	return KeyValueRef{p.items[i], &p.borrow}
}

// All iterates over the items of this page in their order; Cache.ListAll iterates over all pages. If
// a panic (or runtime.Goexit) leaves the loop, the garbage collector frees the page's memory, even
// if the page was released.
func (p *Page) All() iter.Seq[KeyValueRef] {
	// There is no defer, so that the compiler can inline this together with the loop's body.
	return func(yield func(KeyValueRef) bool) {
		if p == nil {
			return
		}
		p.borrow.enter(0)
		for _, kv := range p.items {
			if !yield(KeyValueRef{kv, &p.borrow}) {
				break
			}
		}
		p.borrow.exit()
	}
}

// lend runs a loop's body for each item, and releases the page. lend returns false if the body has
// ended the loop.
func (p *Page) lend(yield func(KeyValueRef, error) bool) bool {
	defer p.Release()
	for kv := range p.All() {
		if !yield(kv, nil) {
			return false
		}
	}
	return true
}

// More reports whether keys of the range remain after this page, whether the selectors select them or not.
func (p *Page) More() bool { return p != nil && p.more }

// Continue returns the token of the next page, for ListOptions.Continue, or "" if there is none. The token
// can be stored, and is also valid in another process while the page's revision is in the window there.
func (p *Page) Continue() string {
	if p == nil {
		return ""
	}
	return p.token
}

// Remaining returns how many keys of the range remain after the last item; 0 if the list had
// selectors, because then they are not counted.
func (p *Page) Remaining() uint64 {
	if p == nil {
		return 0
	}
	return p.remaining
}

// Position returns the position of the state that the page shows.
func (p *Page) Position() Position {
	if p == nil {
		return Position{}
	}
	return p.position
}

// Revision returns the revision of that state.
func (p *Page) Revision() uint64 { return p.Position().Revision }
