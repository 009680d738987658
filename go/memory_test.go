package watchcore_test

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"runtime"
	"strings"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

// keys writes n keys, each by a revision of its own from first on, with values that say
// which they are.
func keys(t testing.TB, writer *watchcore.Writer, first uint64, n int) {
	t.Helper()
	for i := range n {
		check(t, writer.Apply(first+uint64(i), watchcore.Put(fmt.Sprintf("/key/%04d", i), valueOf(i))))
	}
}

func valueOf(i int) string { return fmt.Sprintf("value %04d %s", i, strings.Repeat("v", i%50)) }

// collected runs the garbage collector until it holds.
func collected(t testing.TB, what string, holds func() bool) {
	t.Helper()
	bounded.Eventually(t, what, func() bool {
		runtime.GC()
		return holds()
	})
}

func panics(t testing.TB, what string, use func()) {
	t.Helper()
	defer func() {
		if why := recover(); why == nil || !strings.Contains(fmt.Sprint(why), "after it was released") {
			t.Errorf("%s: it should say that it comes too late, got %v", what, why)
		}
	}()
	use()
}

// What a program gathers by Key and Value while it walks over batches is its own.
func TestCopiesOutliveTheirBatch(t *testing.T) {
	const n = 500
	cache, writer := embedded(t, watchcore.Config{Capacity: 1024})
	sub := subscribe(t, cache)
	keys(t, writer, 1, n)
	gathered, before := map[string][]byte{}, map[string][]byte{}
	var order []string
	for batch, err := range sub.Batches(bounded.Context(t)) {
		check(t, err)
		for e := range batch.Events() {
			if e.Type == watchcore.EventBookmark {
				continue
			}
			gathered[e.Key()] = e.Value()
			before[e.Key()] = e.PrevValue()
			order = append(order, e.Key())
		}
		if len(order) == n {
			keys(t, writer, n+1, n)
		}
		if len(order) == 2*n {
			break
		}
	}
	churn(t, writer, 2*n, 50_000)
	runtime.GC()
	wrong := 0
	for i, key := range order {
		at := i % n
		if key != fmt.Sprintf("/key/%04d", at) || string(gathered[key]) != valueOf(at) || string(before[key]) != valueOf(at) {
			wrong++
		}
	}
	want(t, "wrong values", wrong, 0)
}

// The same of pages and of walks over snapshots.
func TestCopiesOutliveTheirPage(t *testing.T) {
	const n = 500
	cache, writer := embedded(t, watchcore.Config{Capacity: 1024})
	keys(t, writer, 1, n)
	gathered := map[string][]byte{}
	page, err := cache.List(context.Background(), watchcore.RangeAll(), watchcore.ListOptions{})
	check(t, err)
	for item := range page.All() {
		gathered["page "+item.Key()] = item.Value()
	}
	page.Release()
	snapshot, err := cache.Snapshot()
	check(t, err)
	for item, err := range snapshot.Range(watchcore.RangeAll(), watchcore.SelectOptions{}) {
		check(t, err)
		gathered["walk "+item.Key()] = item.Value()
	}
	snapshot.Close()
	for i := range n {
		check(t, writer.Apply(uint64(n+1+i), watchcore.Delete(fmt.Sprintf("/key/%04d", i))))
	}
	churn(t, writer, 2*n, 50_000)
	for i := range n {
		for _, from := range []string{"page", "walk"} {
			want(t, "kept value", string(gathered[fmt.Sprintf("%s /key/%04d", from, i)]), valueOf(i))
		}
	}
}

// Who writes to a value that it was given changes nobody's but its own.
func TestValuesMayBeWrittenTo(t *testing.T) {
	cache, writer := embedded(t)
	sub, other := subscribe(t, cache), subscribe(t, cache)
	check(t, writer.Apply(1, watchcore.Put("/a", "first")))
	check(t, writer.Apply(2, watchcore.Put("/a", "again")))
	spoil := func(bytes []byte) {
		for i := range bytes {
			bytes[i] = '!'
		}
	}
	for drained := false; !drained; {
		batch, err := sub.Poll(0)
		check(t, err)
		for e := range batch.Events() {
			spoil(e.Value())
			spoil(e.PrevValue())
		}
		batch.Release()
		drained = batch == nil
	}
	page, err := cache.List(context.Background(), watchcore.RangeAll(), watchcore.ListOptions{})
	check(t, err)
	spoil(page.At(0).Value())
	want(t, "the page's item", string(page.At(0).Value()), "again")
	page.Release()
	kv, _, err := cache.Get(context.Background(), "/a", watchcore.ReadOptions{})
	check(t, err)
	want(t, "the cache's value", string(kv.Value), "again")
	want(t, "another reader's events", drain(t, other), lines("0 BOOKMARK end", "1 ADDED /a first<-", "2 MODIFIED /a again<first"))
}

// lateUses are the calls of a released batch, and of an event of it, that panic.
func lateUses(batch *watchcore.Batch, event watchcore.Event) map[string]func() {
	return map[string]func(){
		"Batch.Len":              func() { batch.Len() },
		"Batch.At":               func() { batch.At(0) },
		"Batch.Events":           func() { batch.Events()(func(watchcore.Event) bool { return true }) },
		"Batch.Clone":            func() { batch.Clone() },
		"Event.Key":              func() { event.Key() },
		"Event.Value":            func() { event.Value() },
		"Event.PrevValue":        func() { event.PrevValue() },
		"Event.KeyView":          func() { event.KeyView() },
		"Event.ValueView":        func() { event.ValueView() },
		"Event.PrevValueView":    func() { event.PrevValueView() },
		"Event.Sequence":         func() { event.Sequence() },
		"Event.CreateRevision":   func() { event.CreateRevision() },
		"Event.ModRevision":      func() { event.ModRevision() },
		"Event.Version":          func() { event.Version() },
		"Event.Lease":            func() { event.Lease() },
		"Event.Synthetic":        func() { event.Synthetic() },
		"Event.EndsInitialState": func() { event.EndsInitialState() },
		"Event.Clone":            func() { event.Clone() },
	}
}

// An event, an item and what they came from say so where they are asked too late.
func TestLateUsePanics(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	check(t, writer.Apply(1, watchcore.Put("/a", "value")))
	batch := oneBatch(t, sub)
	event, position := batch.At(0), batch.Position()
	clone := event.Clone()
	page, err := cache.List(context.Background(), watchcore.RangeAll(), watchcore.ListOptions{})
	check(t, err)
	item := page.At(0)
	snapshot, err := cache.Snapshot()
	check(t, err)
	defer snapshot.Close()
	var walked watchcore.KeyValueRef
	for each, err := range snapshot.Range(watchcore.RangeAll(), watchcore.SelectOptions{}) {
		check(t, err)
		walked = each
	}
	decoder := watchcore.NewDecoder(func(_, value []byte) (string, error) { return string(value), nil }, 1)
	batch.Release()
	page.Release()
	uses := lateUses(batch, event)
	maps.Copy(uses, map[string]func(){
		"Decoder.Value":          func() { decoder.Value(event) },
		"Page.Len":               func() { page.Len() },
		"Page.At":                func() { page.At(0) },
		"Page.All":               func() { page.All()(func(watchcore.KeyValueRef) bool { return true }) },
		"Item.Key":               func() { item.Key() },
		"Item.Value":             func() { item.Value() },
		"Item.KeyView":           func() { item.KeyView() },
		"Item.ValueView":         func() { item.ValueView() },
		"Item.CreateRevision":    func() { item.CreateRevision() },
		"Item.ModRevision":       func() { item.ModRevision() },
		"Item.Version":           func() { item.Version() },
		"Item.Lease":             func() { item.Lease() },
		"Item.Clone":             func() { item.Clone() },
		"Decoder.Item":           func() { decoder.Item(item) },
		"an item after the walk": func() { walked.Key() },
	})
	for what, use := range uses {
		panics(t, what, use)
	}
	want(t, "type and revision", fmt.Sprint(event.Type, event.Revision), "ADDED 1")
	want(t, "position", batch.Position(), position)
	want(t, "page", fmt.Sprintf("%t %q %d %d", page.More(), page.Continue(), page.Remaining(), page.Revision()), `false "" 0 1`)
	want(t, "clone", text(clone), "1 ADDED /a value<-")
	want(t, "held", cache.Stats().UnreleasedBatches+cache.Stats().UnreleasedPages, 0)
}

// A batch that is released while a goroutine copies from it stays until that is through.
func TestReleaseBesideReaders(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{Capacity: 1024})
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	revision := uint64(0)
	for round := range 300 {
		revision++
		value := fmt.Sprintf("value of round %d", round)
		check(t, writer.Apply(revision, watchcore.Put("/a", value)))
		batch := oneBatch(t, sub)
		event := batch.At(0)
		first, through := make(chan struct{}), make(chan string)
		go func() {
			bad := ""
			defer func() {
				recover() // too late: that is what it says then
				through <- bad
			}()
			for i := 0; ; i++ {
				if got := string(event.Value()); got != value {
					bad = got
				}
				if i == 0 {
					close(first)
				}
			}
		}()
		bounded.Receive(t, "a first look", first)
		batch.Release()
		revision++
		check(t, writer.Apply(revision, watchcore.Put("/b", value)))
		oneBatch(t, sub).Release()
		want(t, "a value that is not the event's", bounded.Receive(t, "the end of the looks", through), "")
	}
	want(t, "held", cache.Stats().UnreleasedBatches, 0)
}

// What was never released is given back when nobody can reach it; not where a view of it
// may still be looked at.
func TestForgottenBorrowsAreCollected(t *testing.T) {
	cache, writer := embedded(t)
	sub, other := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()}), subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	list := func() *watchcore.Page {
		page, err := cache.List(context.Background(), watchcore.RangeAll(), watchcore.ListOptions{})
		check(t, err)
		return page
	}
	diff := func() *watchcore.Batch {
		batch, err := cache.Diff(watchcore.Position{}, cache.Position(), watchcore.DiffOptions{})
		check(t, err)
		return batch
	}
	for revision := uint64(1); revision <= 10; revision++ {
		check(t, writer.Apply(revision, watchcore.Put("/a", "value")))
		oneBatch(t, sub)
		oneBatch(t, other)
		list()
		diff()
	}
	// The last batch of each may still be released by the next poll's time.
	collected(t, "batches but the last ones", func() bool { return cache.Stats().UnreleasedBatches <= 2 })
	_, err := sub.Poll(0)
	check(t, err)
	other.Close()
	collected(t, "batches", func() bool { return cache.Stats().UnreleasedBatches == 0 })
	collected(t, "pages", func() bool { return cache.Stats().UnreleasedPages == 0 })

	check(t, writer.Apply(11, watchcore.Put("/a", "seen")))
	seen := oneBatch(t, sub).At(0).ValueView()
	item := list().At(0).ValueView()
	apart := diff().At(0).ValueView()
	list()
	diff()
	_, err = sub.Poll(0)
	check(t, err)
	collected(t, "those without a view", func() bool {
		return cache.Stats().UnreleasedBatches == 2 && cache.Stats().UnreleasedPages == 1
	})
	churn(t, writer, 11, 10_000)
	for range 3 {
		runtime.GC()
	}
	want(t, "views", string(seen)+string(item)+string(apart), "seenseenseen")
	want(t, "batches with a view", cache.Stats().UnreleasedBatches, 2)
	want(t, "pages with a view", cache.Stats().UnreleasedPages, 1)
}

// What was forgotten behind a view is held for ever: that is counted, and said once, with where it was taken in a build
// with the tag debug.
func TestForgottenViewsAreReported(t *testing.T) {
	defer quiet(t)
	s := listen(slog.LevelWarn)
	check(t, watchcore.SetLogger(slog.New(s)))
	cache, writer := embedded(t, watchcore.Config{Name: "pods"})
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	const of = "WARN: watchcore: cache \"pods\": a "
	batches, pages := of+"batch of which a view was taken", of+"page of which a view was taken"
	for revision := uint64(1); revision <= 10; revision++ {
		check(t, writer.Apply(revision, watchcore.Put("/a", "value")))
		oneBatch(t, sub).At(0).KeyView()
		page, err := cache.List(context.Background(), watchcore.RangeAll(), watchcore.ListOptions{})
		check(t, err)
		page.At(0).ValueView()
	}
	check(t, sub.Close()) // until then the last batch may still be released
	collected(t, "all of it", func() bool { return cache.Stats().LeakedBatches == 10 && cache.Stats().LeakedPages == 10 })
	want(t, "batches", cache.Stats().UnreleasedBatches, 10)
	want(t, "pages", cache.Stats().UnreleasedPages, 10)
	bounded.Eventually(t, "the log", func() bool { return s.count(batches) > 0 && s.count(pages) > 0 })
	want(t, "reports of the place", s.count("_test.TestForgottenViewsAreReported\n"), map[bool]int{true: 2}[watchcore.Debug])
	want(t, "what names the statistics", s.count("Stats.LeakedBatches")+s.count("Stats.LeakedPages"), 2)

	// Also behind the end of the cache.
	late, err := cache.List(context.Background(), watchcore.RangeAll(), watchcore.ListOptions{})
	check(t, err)
	late.At(0).KeyView()
	released, err := cache.List(context.Background(), watchcore.RangeAll(), watchcore.ListOptions{})
	check(t, err)
	released.At(0).KeyView()
	check(t, writer.Close())
	check(t, cache.Close())
	released.Release()
	late = nil
	collected(t, "the last page", func() bool { return cache.Stats().LeakedPages == 11 })
	// Once a kind; with the tag debug, once a place. The report comes after the count.
	reports := map[bool]int{false: 1, true: 2}[watchcore.Debug]
	bounded.Eventually(t, "the last report", func() bool { return s.count(pages) == reports })
	check(t, watchcore.SetLogger(nil))
	want(t, "reports of batches", s.count(batches), 1)
	want(t, "reports of pages", s.count(pages), reports)
}

// Nothing is given back that an event or an item can still be asked for.
func TestEventsKeepTheirBatch(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{Capacity: 1024})
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	check(t, writer.Apply(1, watchcore.Put("/a", "mine")))
	event := oneBatch(t, sub).At(0)
	page, err := cache.List(context.Background(), watchcore.RangeAll(), watchcore.ListOptions{})
	check(t, err)
	item := page.At(0)
	page = nil
	check(t, writer.Apply(2, watchcore.Put("/a", "other")))
	oneBatch(t, sub).Release() // the first one is the collector's from here on
	churn(t, writer, 2, 10_000)
	for range 5 {
		runtime.GC()
	}
	want(t, "event", text(event), "1 ADDED /a mine<-")
	want(t, "item", item.Key()+" "+string(item.Value()), "/a mine")
	runtime.KeepAlive(event)
}

// A borrow that is already the collector's can still be released, and looked at.
func TestCaughtBorrowsAreStillTheCallers(t *testing.T) {
	cache, writer := embedded(t)
	check(t, writer.Apply(1, watchcore.Put("/a", "value")))
	released, err := cache.List(context.Background(), watchcore.RangeAll(), watchcore.ListOptions{})
	check(t, err)
	viewed, err := cache.List(context.Background(), watchcore.RangeAll(), watchcore.ListOptions{})
	check(t, err)
	view := viewed.At(0).ValueView()
	released.Release()
	released.Release()
	want(t, "held", cache.Stats().UnreleasedPages, 1)
	viewed.Release()
	want(t, "held after the second", cache.Stats().UnreleasedPages, 0)
	_ = view
}

// A sequence that is pulled and never finished is no loss of its batches.
func TestPulledBatches(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	check(t, writer.Apply(1, watchcore.Put("/a", "value")))
	next, stop := iter.Pull2(sub.Batches(bounded.Context(t)))
	batch, err, ok := next()
	check(t, err)
	want(t, "there is one", ok, true)
	want(t, "event", text(batch.At(0)), "1 ADDED /a value<-")
	stop()
	want(t, "held", cache.Stats().UnreleasedBatches, 0)
	panics(t, "a batch after its sequence", func() { batch.At(0) })
}

// A panic that leaves a loop over a batch or a page does not keep its memory for ever.
func TestLoopsLeftByAPanic(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	left := func(walk func()) {
		defer func() { want(t, "panic", recover(), any("mine")) }()
		walk()
	}
	loops := func(release bool) {
		batch := oneBatch(t, sub)
		left(func() {
			for range batch.Events() {
				panic("mine")
			}
		})
		page, err := cache.List(context.Background(), watchcore.RangeAll(), watchcore.ListOptions{})
		check(t, err)
		left(func() {
			for range page.All() {
				panic("mine")
			}
		})
		diff, err := cache.Diff(watchcore.Position{}, cache.Position(), watchcore.DiffOptions{})
		check(t, err)
		left(func() {
			for e := range diff.Events() {
				e.KeyView()
				panic("mine")
			}
		})
		diff.Release()
		if release {
			batch.Release()
			page.Release()
			panics(t, "a released batch", func() { batch.At(0) })
		}
	}
	for revision := uint64(1); revision <= 4; revision++ {
		check(t, writer.Apply(revision, watchcore.Put("/a", "value")))
		loops(revision%2 == 0)
	}
	_, err := sub.Poll(0)
	check(t, err)
	collected(t, "all of it", func() bool {
		return cache.Stats().UnreleasedBatches == 0 && cache.Stats().UnreleasedPages == 0
	})
}
