package watchcore_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

// A loop over all pages gives what one page of everything has, though the cache goes on, and holds no page behind its end,
// however that comes.
func TestListAll(t *testing.T) {
	cache, writer := hundred(t)
	keys, ctx := watchcore.RangeBetween("/0100", "/0201"), bounded.Context(t)
	whole, err := cache.List(ctx, keys, watchcore.ListOptions{})
	check(t, err)
	var expected, got []string
	for item := range whole.All() {
		expected = append(expected, item.Key())
	}
	whole.Release()
	revision := cache.Revision()
	all := cache.ListAll(ctx, keys, watchcore.ListOptions{Limit: 10, Read: watchcore.ReadExact(revision)})
	for range 2 { // a sequence can be walked again
		got = nil
		for item, err := range all {
			check(t, err)
			want(t, "pages held", cache.Stats().UnreleasedPages, 1)
			got = append(got, item.Key())
			check(t, writer.Apply(cache.Revision()+1, watchcore.Put(fmt.Sprintf("/0150 %d", cache.Revision()), "")))
		}
		want(t, "items", lines(got...), lines(expected...))
	}
	var kept watchcore.KeyValueRef
	for kept = range all {
		break
	}
	panics(t, "an item behind its loop", func() { kept.Key() })
	func() {
		defer func() { recover() }()
		for range all {
			panic("mine")
		}
	}()
	collected(t, "pages held behind the loops", func() bool { return cache.Stats().UnreleasedPages == 0 })
	n := 0
	for range cache.ListAll(ctx, watchcore.RangeAll(), watchcore.ListOptions{}) {
		n++
	}
	want(t, "everything", n > watchcore.DefaultPageSize, true)

	// The window leaves the revision behind: the error says where to go on.
	n, token := 0, ""
	for item, err := range cache.ListAll(ctx, keys, watchcore.ListOptions{Limit: 10}) {
		var e *watchcore.Error
		switch {
		case err == nil && item.Key() == "/0105":
			check(t, writer.Apply(cache.Revision()+1, watchcore.Put("/new", "")))
			check(t, writer.Compact(cache.Revision()))
		case errors.As(err, &e):
			wantError(t, "the end", err, watchcore.ErrCompacted)
			token = e.Continue
			continue
		}
		n++
	}
	want(t, "items before the error", n, 10)
	for item, err := range cache.ListAll(ctx, keys, watchcore.ListOptions{Continue: token}) {
		check(t, err)
		want(t, "the next item", item.Key(), expected[10])
		break
	}
	for _, err := range cache.ListAll(ctx, keys, watchcore.ListOptions{Limit: -1}) {
		wantError(t, "a negative limit", err, watchcore.ErrInvalidArgument)
	}
}

// The rest is rows 5.12 and 5.13.
func TestTokensThatAreNoText(t *testing.T) {
	cache, _ := embedded(t)
	for what, token := range map[string]string{"no text": "\xff\x00", "1 MiB": strings.Repeat("A", 1<<20)} {
		_, err := cache.List(bounded.Context(t), watchcore.RangeAll(), watchcore.ListOptions{Continue: token})
		wantError(t, what, err, watchcore.ErrInvalidArgument)
	}
}

// A wait for a position is one of a history: it ends where that is replaced.
func TestWaitUntilPosition(t *testing.T) {
	cache, writer := embedded(t)
	check(t, writer.Apply(5, watchcore.Put("/a", "1")))
	old := cache.Position()
	check(t, cache.WaitUntilPosition(bounded.Context(t), old))
	future := watchcore.Position{Epoch: old.Epoch, Revision: 9}
	ended := make(chan error)
	go func() { ended <- cache.WaitUntilPosition(bounded.Context(t), future) }()
	bounded.Eventually(t, "it waits", func() bool { return cache.Stats().Waiting == 1 })
	_, err := writer.Resync(3, nil, watchcore.ReasonHistoryReset)
	check(t, err)
	wantError(t, "a wait in a former history", bounded.Receive(t, "the end of the wait", ended), watchcore.ErrResynced)
	wantError(t, "a wait for a former history", cache.WaitUntilPosition(bounded.Context(t), future), watchcore.ErrResynced)
}

func TestDiffOptions(t *testing.T) {
	cache, writer := embedded(t)
	check(t, writer.Apply(1, watchcore.Put("/a", "1"), watchcore.Put("/b", "1")))
	from := cache.Position()
	check(t, writer.Apply(2, watchcore.Put("/a", "2"), watchcore.Delete("/b")))
	batch, err := cache.Diff(from, cache.Position(), watchcore.DiffOptions{Types: []watchcore.EventType{watchcore.EventDeleted}})
	check(t, err)
	want(t, "events", batch.Len(), 1)
	want(t, "event", text(batch.At(0)), "2 DELETED /b -<1")
	want(t, "position", batch.Position(), cache.Position())
	want(t, "batches held", cache.Stats().UnreleasedBatches, 1)
	batch.Release()
	for _, wrong := range []watchcore.EventType{watchcore.EventBookmark, 0} {
		_, err := cache.Diff(from, cache.Position(), watchcore.DiffOptions{Types: []watchcore.EventType{wrong}})
		wantError(t, wrong.String(), err, watchcore.ErrInvalidArgument)
	}
	to := cache.Position()
	cache.Close()
	_, err = cache.Diff(from, to, watchcore.DiffOptions{})
	wantError(t, "a closed cache", err, watchcore.ErrClosed)
}
