package watchcore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"watchcore"
	"watchcore/internal/bounded"
)

// pages lists page by page, with something done behind each.
func pages(t testing.TB, cache *watchcore.Cache, keys watchcore.Range, behind func(*watchcore.Page), options watchcore.ListOptions) []string {
	t.Helper()
	var items []string
	for token := ""; ; {
		options.Continue = token
		page, err := cache.List(bounded.Context(t), keys, options)
		check(t, err)
		for item := range page.All() {
			items = append(items, fmt.Sprintf("%s@%d", item.Key(), item.ModRevision()))
		}
		want(t, "more", page.More(), page.Continue() != "")
		behind(page)
		token = page.Continue()
		page.Release()
		want(t, "token of a released page", page.Continue(), token)
		if token == "" {
			return items
		}
	}
}

func TestPaging(t *testing.T) {
	cache, writer := hundred(t)
	keys := watchcore.RangeBetween("/0100", "/0201")
	whole, err := cache.List(bounded.Context(t), keys, watchcore.ListOptions{})
	check(t, err)
	defer whole.Release()
	var expected []string
	for item := range whole.All() {
		expected = append(expected, fmt.Sprintf("%s@%d", item.Key(), item.ModRevision()))
	}
	revision, left := uint64(2), 101
	got := pages(t, cache, keys, func(page *watchcore.Page) {
		left -= page.Len()
		want(t, "remaining", page.Remaining(), uint64(left))
		want(t, "revision", page.Revision(), 2)
		revision++
		check(t, writer.Apply(revision, watchcore.Put("/0150", "new"), watchcore.Put(fmt.Sprintf("/0150%d", revision), "")))
	}, watchcore.ListOptions{Limit: 10})
	want(t, "items", lines(got...), lines(expected...))
	// A page in every mode, from any key.
	for name, read := range map[string]watchcore.Read{"exact": watchcore.ReadExact(2), "at least": watchcore.ReadAtLeast(2)} {
		page, err := cache.List(bounded.Context(t), watchcore.RangeBetween("/0006x", "/0100"), watchcore.ListOptions{Read: read, Limit: 2})
		check(t, err)
		want(t, name+": first", page.At(0).Key(), "/0008")
		want(t, name+": items", page.Len(), 2)
		want(t, name+": more", page.More(), true)
		want(t, name+": remaining", page.Remaining(), 90)
		page.Release()
	}
	want(t, "nil has no token", (*watchcore.Page)(nil).Continue(), "")
	_, err = cache.List(bounded.Context(t), keys, watchcore.ListOptions{Limit: -1})
	wantError(t, "a negative limit", err, watchcore.ErrInvalidArgument)
}

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

// With conditions, too: a page may be short, and more says whether keys remain.
func TestPagingWithConditions(t *testing.T) {
	cache, writer := podCache(t)
	var changes []watchcore.Change
	for i := range 100 {
		changes = append(changes, watchcore.Put(fmt.Sprintf("/pods/a/%02d", i), pod(fmt.Sprint(i%10), fmt.Sprint("app=", i%4))))
	}
	check(t, writer.Apply(1, changes...))
	got := pages(t, cache, watchcore.RangeAll(), func(page *watchcore.Page) {
		want(t, "remaining, not counted", page.Remaining(), 0)
	}, watchcore.ListOptions{Limit: 3, FieldSelector: "phase=7"})
	want(t, "items", len(got), 10)
	want(t, "the last", got[9], "/pods/a/97@1")
	got = pages(t, cache, watchcore.RangeAll(), func(*watchcore.Page) {},
		watchcore.ListOptions{Limit: 3, FieldSelector: "phase=7", LabelSelector: "app in (1)"})
	want(t, "with both", strings.Join(got, " "), "/pods/a/17@1 /pods/a/37@1 /pods/a/57@1 /pods/a/77@1 /pods/a/97@1")
}

func TestContinueBehindTheWindow(t *testing.T) {
	cache, writer := hundred(t)
	page, err := cache.List(bounded.Context(t), watchcore.RangeAll(), watchcore.ListOptions{Limit: 500})
	check(t, err)
	token := page.Continue()
	want(t, "last of the first page", page.At(499).Key(), "/0500")
	page.Release()
	check(t, writer.Apply(3, watchcore.Put("/0000", "new"), watchcore.Put("/0999", "new")))
	check(t, writer.Compact(3))

	_, err = cache.List(bounded.Context(t), watchcore.RangeAll(), watchcore.ListOptions{Continue: token})
	wantError(t, "continue", err, watchcore.ErrCompacted)
	var e *watchcore.Error
	if !errors.As(fmt.Errorf("list: %w", err), &e) || e.Continue == "" || e.Continue == token {
		t.Fatalf("no token to go on with: %v", err)
	}
	want(t, "asked", e.Asked, 2)
	page, err = cache.List(bounded.Context(t), watchcore.RangeAll(), watchcore.ListOptions{Continue: e.Continue})
	check(t, err)
	defer page.Release()
	want(t, "items that were left", page.Len(), 499)
	want(t, "it goes on at the same key", page.At(0).Key(), "/0501")
	want(t, "in the newest state", page.Revision(), 3)
	want(t, "its last", string(page.At(498).Value()), "new")

	// Other errors bring none.
	_, err = cache.List(bounded.Context(t), watchcore.RangeAll(), watchcore.ListOptions{Continue: "x"})
	wantError(t, "damaged", err, watchcore.ErrInvalidArgument)
	want(t, "token of another error", err.(*watchcore.Error).Continue, "")
}

func TestTokensOfOthers(t *testing.T) {
	fill := func(revisions int, name string) (*watchcore.Cache, *watchcore.Writer) {
		cache, writer := podCache(t, watchcore.Config{Name: name})
		for revision := range revisions {
			check(t, writer.Apply(uint64(revision+1), watchcore.Put(fmt.Sprintf("/%d", revision), pod("p", ""))))
		}
		return cache, writer
	}
	all := watchcore.RangeAll()
	name := "one name"
	first, _ := fill(5, name)
	page, err := first.List(bounded.Context(t), all, watchcore.ListOptions{Limit: 2})
	check(t, err)
	token := page.Continue()
	page.Release()

	// Another cache of the same name goes on with it, as after a restart.
	second, _ := fill(7, name)
	page, err = second.List(bounded.Context(t), all, watchcore.ListOptions{Continue: token})
	check(t, err)
	want(t, "the rest", page.Len(), 3)
	want(t, "revision", page.Revision(), 5)
	page.Release()

	// One that is behind waits for the token's revision.
	third, writer := fill(4, name)
	type listed struct {
		page *watchcore.Page
		err  error
	}
	done := make(chan listed)
	go func() {
		page, err := third.List(bounded.Context(t), all, watchcore.ListOptions{Continue: token})
		done <- listed{page, err}
	}()
	bounded.Eventually(t, "it waits", func() bool { return third.Stats().Waiting == 1 })
	check(t, writer.Apply(5, watchcore.Put("/4", "")))
	late := bounded.Receive(t, "the late one", done)
	check(t, late.err)
	want(t, "the rest", late.page.Len(), 3)
	late.page.Release()

	stranger, _ := fill(7, "another")
	for what, try := range map[string]struct {
		cache   *watchcore.Cache
		keys    watchcore.Range
		options watchcore.ListOptions
	}{
		"another cache":    {stranger, all, watchcore.ListOptions{Continue: token}},
		"another range":    {first, watchcore.RangePrefix("/"), watchcore.ListOptions{Continue: token}},
		"another selector": {first, all, watchcore.ListOptions{Continue: token, FieldSelector: "phase=p"}},
		"a mode":           {first, all, watchcore.ListOptions{Continue: token, Read: watchcore.ReadExact(5)}},
		"cut":              {first, all, watchcore.ListOptions{Continue: token[:len(token)-1]}},
		"changed":          {first, all, watchcore.ListOptions{Continue: "B" + token[1:]}},
		"no text":          {first, all, watchcore.ListOptions{Continue: "\xff\x00"}},
		"1 MiB":            {first, all, watchcore.ListOptions{Continue: strings.Repeat("A", 1<<20)}},
	} {
		_, err := try.cache.List(bounded.Context(t), try.keys, try.options)
		wantError(t, what, err, watchcore.ErrInvalidArgument)
	}
	want(t, "waits that are left", third.Stats().Waiting, 0)
}

func TestReadsInAnEpoch(t *testing.T) {
	cache, writer := embedded(t)
	check(t, writer.Apply(5, watchcore.Put("/a", "1")))
	old := cache.Position()
	for name, read := range map[string]watchcore.Read{"at least": watchcore.ReadAtLeastPosition(old), "exact": watchcore.ReadExactPosition(old)} {
		kv, at, err := cache.Get(bounded.Context(t), "/a", watchcore.ReadOptions{Read: read})
		check(t, err)
		want(t, name, fmt.Sprintf("%s at %d", kv.Value, at), "1 at 5")
	}
	check(t, cache.WaitUntilPosition(bounded.Context(t), old))

	// Who waits in a history that is replaced is told.
	future := watchcore.Position{Epoch: old.Epoch, Revision: 9}
	ends := make(chan error)
	go func() {
		_, _, err := cache.Get(bounded.Context(t), "/a", watchcore.ReadOptions{Read: watchcore.ReadAtLeastPosition(future)})
		ends <- err
	}()
	go func() { ends <- cache.WaitUntilPosition(bounded.Context(t), future) }()
	bounded.Eventually(t, "both wait", func() bool { return cache.Stats().Waiting == 2 })
	_, err := writer.Resync(3, []watchcore.KeyValue{
		{Key: []byte("/a"), Value: []byte("other"), CreateRevision: 2, ModRevision: 2, Version: 1},
	}, watchcore.ReasonHistoryReset)
	check(t, err)
	for range 2 {
		wantError(t, "a wait in a former history", <-ends, watchcore.ErrResynced)
	}
	_, _, err = cache.Get(bounded.Context(t), "/a", watchcore.ReadOptions{Read: watchcore.ReadExactPosition(watchcore.Position{Epoch: old.Epoch, Revision: 3})})
	wantError(t, "exact in a former history", err, watchcore.ErrCompacted)
	_, err = cache.List(bounded.Context(t), watchcore.RangeAll(), watchcore.ListOptions{Read: watchcore.ReadAtLeastPosition(watchcore.Position{Epoch: old.Epoch, Revision: 2})})
	wantError(t, "at least in a former history", err, watchcore.ErrCompacted)
	wantError(t, "a wait for a former history", cache.WaitUntilPosition(bounded.Context(t), future), watchcore.ErrResynced)
	kv, _, err := cache.Get(bounded.Context(t), "/a", watchcore.ReadOptions{Read: watchcore.ReadExactPosition(cache.Position())})
	check(t, err)
	want(t, "exact now", string(kv.Value), "other")
}

func TestDiff(t *testing.T) {
	cache, writer := podCache(t)
	check(t, writer.Apply(1, watchcore.Put("/a", pod("1", "app=web")), watchcore.Put("/b", pod("1", "app=web")), watchcore.Put("/same", "")))
	check(t, writer.Apply(2, watchcore.Put("/a", pod("2", "app=web")), watchcore.Put("/c", pod("2", "app=db"))))
	check(t, writer.Apply(3, watchcore.Put("/a", pod("3", "app=db")), watchcore.Delete("/b"), watchcore.Put("/gone", "")))
	check(t, writer.Apply(4, watchcore.Put("/c", pod("4", "app=web")), watchcore.Delete("/gone")))
	at := func(revision uint64) watchcore.Position {
		return watchcore.Position{Epoch: cache.Position().Epoch, Revision: revision}
	}
	for name, row := range map[string]struct {
		from, to uint64
		options  watchcore.DiffOptions
		want     string
	}{
		"all": {1, 4, watchcore.DiffOptions{}, lines(
			"3 MODIFIED /a "+pod("3", "app=db")+"<"+pod("1", "app=web"),
			"3 DELETED /b -<"+pod("1", "app=web"),
			"4 ADDED /c "+pod("4", "app=web")+"<-",
		)},
		"labels": {1, 4, watchcore.DiffOptions{LabelSelector: "app=web"}, lines(
			"3 DELETED /a -<"+pod("1", "app=web"),
			"3 DELETED /b -<"+pod("1", "app=web"),
			"4 ADDED /c "+pod("4", "app=web")+"<-",
		)},
		"fields":  {1, 2, watchcore.DiffOptions{FieldSelector: "phase=2", Range: watchcore.RangeKey("/c")}, "2 ADDED /c " + pod("2", "app=db") + "<-"},
		"types":   {1, 4, watchcore.DiffOptions{Types: []watchcore.EventType{watchcore.EventDeleted}}, "3 DELETED /b -<" + pod("1", "app=web")},
		"none":    {4, 4, watchcore.DiffOptions{}, ""},
		"nothing": {1, 4, watchcore.DiffOptions{Range: watchcore.RangeNone()}, ""},
	} {
		batch, err := cache.Diff(at(row.from), at(row.to), row.options)
		check(t, err)
		var got []string
		for e := range batch.Events() {
			got = append(got, text(e))
		}
		want(t, name, lines(got...), row.want)
		want(t, name+": position", batch.Position(), at(row.to))
		want(t, "batches held", cache.Stats().UnreleasedBatches, 1)
		batch.Release()
	}
	check(t, writer.Compact(2))
	for name, row := range map[string]struct {
		from, to watchcore.Position
		types    []watchcore.EventType
		want     error
	}{
		"backwards": {at(4), at(3), nil, watchcore.ErrInvalidArgument},
		"compacted": {at(1), at(4), nil, watchcore.ErrCompacted},
		"future":    {at(3), at(5), nil, watchcore.ErrFutureRevision},
		"a mark":    {at(3), at(4), []watchcore.EventType{watchcore.EventBookmark}, watchcore.ErrInvalidArgument},
		"no type":   {at(3), at(4), []watchcore.EventType{0}, watchcore.ErrInvalidArgument},
	} {
		_, err := cache.Diff(row.from, row.to, watchcore.DiffOptions{Types: row.types})
		wantError(t, name, err, row.want)
	}
	former := at(4)
	_, err := writer.Resync(4, nil, watchcore.ReasonHistoryReset)
	check(t, err)
	check(t, writer.Apply(5, watchcore.Put("/a", pod("5", ""))))
	_, err = cache.Diff(former, at(5), watchcore.DiffOptions{})
	wantError(t, "from a former history", err, watchcore.ErrCompacted)
	_, err = cache.Diff(at(4), watchcore.Position{Epoch: former.Epoch, Revision: 5}, watchcore.DiffOptions{})
	wantError(t, "to a former history", err, watchcore.ErrCompacted)
	batch, err := cache.Diff(at(4), at(5), watchcore.DiffOptions{})
	check(t, err)
	want(t, "in this history", batch.Len(), 1)
	batch.Release()
	cache.Close()
	_, err = cache.Diff(at(3), at(4), watchcore.DiffOptions{})
	wantError(t, "a closed cache", err, watchcore.ErrClosed)
	want(t, "batches held", cache.Stats().UnreleasedBatches, 0)
}

// A start after any revision of the window, also one that no event has. Of a
// former history a position is refused; of another birth it is unchecked.
func TestStartsInAnEpoch(t *testing.T) {
	cache, writer := embedded(t)
	for _, revision := range []uint64{5, 9, 10} {
		check(t, writer.Apply(revision, watchcore.Put("/a", fmt.Sprint(revision))))
	}
	old := cache.Position()
	all := []string{"5 ADDED /a 5<-", "9 MODIFIED /a 9<5", "10 MODIFIED /a 10<9"}
	for after, left := range []int{0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 3} {
		sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartAfterPosition(watchcore.Position{Epoch: old.Epoch, Revision: uint64(after)})})
		want(t, fmt.Sprint("after ", after), drain(t, sub), lines(all[left:]...))
	}

	_, err := writer.Resync(3, nil, watchcore.ReasonHistoryReset)
	check(t, err)
	_, err = cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Start: watchcore.StartAfterPosition(old)})
	wantError(t, "after a position of a former history", err, watchcore.ErrCompacted)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartAfterPosition(cache.Position())})
	want(t, "after the present one", drain(t, sub), "")

	again, writer := embedded(t)
	check(t, writer.Apply(11, watchcore.Put("/a", "11")))
	check(t, writer.Apply(12, watchcore.Put("/a", "12")))
	later := old
	later.Revision = 11
	want(t, "after a position from before a restart", drain(t, subscribe(t, again, watchcore.SubscribeOptions{Start: watchcore.StartAfterPosition(later)})), "12 MODIFIED /a 12<11")
}
