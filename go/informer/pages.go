package informer

import (
	"fmt"

	"watchcore/watch"
)

// emptyPages may follow each other: a server that filters has some.
const emptyPages = 1000

// pages are those of a list, put together.
type pages[T any] struct {
	items    []watch.Item[T]
	revision uint64
	asked    map[string]bool // where pages began: each place once, or the list has no end
	empty    int             // pages without an item, since the last one that had some
}

// brokenPages are none of one state, or have no end: a list without pages may succeed.
type brokenPages struct{ err error }

func (b *brokenPages) Error() string { return b.err.Error() }
func (b *brokenPages) Unwrap() error { return b.err }

// add adds a page. A page that does not say its revision has that of the others.
func (p *pages[T]) add(page ListPage[T]) error {
	if page.Revision != 0 {
		if p.revision != 0 && page.Revision != p.revision {
			return &brokenPages{fmt.Errorf("the pages of a list are of several revisions: %d, %d", p.revision, page.Revision)}
		}
		p.revision = page.Revision
	}
	if p.empty++; len(page.Items) > 0 {
		p.empty = 0
	}
	p.items = append(p.items, page.Items...)
	switch {
	case page.Continue == "":
		return nil
	case p.empty == emptyPages:
		return &brokenPages{fmt.Errorf("%d pages of a list have no item, and more are to come", emptyPages)}
	case p.asked[page.Continue]:
		return &brokenPages{fmt.Errorf("the pages of a list have no end: the token %q came twice", page.Continue)}
	}
	if p.asked == nil {
		p.asked = map[string]bool{}
	}
	p.asked[page.Continue] = true
	return nil
}
