package contract

import (
	"context"
	"fmt"

	"github.com/watchcore/watchcore/go/watch"
)

// Lister makes a Source a watch.ListerWatcher.
type Lister struct{ *Source }

// List records the request in the words of a row, and answers.
func (l Lister) List(ctx context.Context, r watch.ListRequest) (watch.ListPage[string], error) {
	word := "list"
	if r.Limit == 0 {
		word = "whole"
	}
	switch {
	case r.Continue != "":
		word = "list+" + r.Continue
	case r.Revision > 0:
		word = fmt.Sprint(word, "@", r.Revision)
	}
	return l.Source.List(ctx, word).answer()
}

// Besieged makes a Hostile a watch.ListerWatcher.
type Besieged struct{ *Hostile }

// List lists a state that is not older than the requested revision.
func (b Besieged) List(_ context.Context, r watch.ListRequest) (watch.ListPage[string], error) {
	return b.Hostile.List(r.Revision).answer()
}

func (p Page) answer() (watch.ListPage[string], error) {
	return watch.ListPage[string]{Items: p.Items, Revision: p.Revision, Continue: p.Continue}, p.Err
}
