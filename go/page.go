package watchcore

// #include "abi.h"
// #cgo nocallback wc_page
import "C"

import (
	"iter"
	"unsafe"
)

// Page is some key-values of one revision, in the library's memory until Release. It keeps
// nothing of the log that is not in the window. A nil *Page is empty.
type Page struct {
	loan      loan
	items     []*keyValue
	position  Position
	remaining uint64
	token     string
	more      bool
}

// newPage takes over what a list gave.
func newPage(made *C.watchcore_page, state *coreState) *Page {
	info := C.wc_page(made)
	p := &Page{
		items:     unsafe.Slice((**keyValue)(unsafe.Pointer(info.items)), int(info.count)),
		position:  Position{Epoch: uint64(info.epoch), Revision: uint64(info.revision)},
		remaining: uint64(info.remaining),
		token:     textOf(info.token),
		more:      info.more != 0,
	}
	if debug {
		p.items, p.loan.copies = poisonableItems(p.items)
	}
	p.loan.taken = origins()
	p.loan.begin(goods{state: state, what: uintptr(unsafe.Pointer(made)), kind: C.WC_PAGE}, false)
	p.loan.catch()
	return p
}

// Release frees the page. It may be called again, from any goroutine. From then
// on views of it must not be used any more, and its items, Len, At and All panic.
//
// A page that is not released is released by the garbage collector some time after
// neither it nor one of its items is reachable, but for one of which a view was taken:
// that is held for ever, counted in Stats.LeakedPages, and said once in the log, as a batch is.
func (p *Page) Release() {
	if p != nil {
		p.loan.end(0)
	}
}

// Len is the number of items.
func (p *Page) Len() int {
	if p == nil {
		return 0
	}
	if p.loan.gate.closed() {
		usedLate()
	}
	return len(p.items)
}

// At is the item at an index.
func (p *Page) At(i int) KeyValueRef {
	p.loan.enter(0)
	defer p.loan.exit()
	return KeyValueRef{p.items[i], &p.loan}
}

// All walks over the items of this page in key order; Cache.ListAll walks over all pages. Where a panic (or runtime.Goexit) leaves the
// loop, the garbage collector frees the page's memory, also of one that is released.
func (p *Page) All() iter.Seq[KeyValueRef] {
	// Without defer, so that it is inlined with the loop's body.
	return func(yield func(KeyValueRef) bool) {
		if p == nil {
			return
		}
		p.loan.enter(0)
		for _, kv := range p.items {
			if !yield(KeyValueRef{kv, &p.loan}) {
				break
			}
		}
		p.loan.exit()
	}
}

// lend runs a loop's body for each item, and releases the page; false: the loop has ended.
func (p *Page) lend(yield func(KeyValueRef, error) bool) bool {
	defer p.Release()
	for kv := range p.All() {
		if !yield(kv, nil) {
			return false
		}
	}
	return true
}

// More says whether keys of the range remain after the last one looked at, whether
// the selectors let them pass or not.
func (p *Page) More() bool { return p != nil && p.more }

// Continue is the token of the next page, for ListOptions.Continue; "" where there is no
// more. It can be kept: it is good in another process too, while the page's
// revision is in the window there.
func (p *Page) Continue() string {
	if p == nil {
		return ""
	}
	return p.token
}

// Remaining is how many keys of the range remain after the last item; 0 where the
// list had selectors: they were not counted then.
func (p *Page) Remaining() uint64 {
	if p == nil {
		return 0
	}
	return p.remaining
}

// Position is the state that the page was read from.
func (p *Page) Position() Position {
	if p == nil {
		return Position{}
	}
	return p.position
}

// Revision is the revision of that state.
func (p *Page) Revision() uint64 { return p.Position().Revision }
