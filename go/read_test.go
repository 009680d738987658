package watchcore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

// What a get gives is the program's own, whether it was copied in the crossing or behind it.
func TestGetOfEverySize(t *testing.T) {
	cache, writer := embedded(t)
	for revision, size := range []int{0, 1, 549, 4095, 4096, 4097, 100_000} {
		value := strings.Repeat("v", size)
		check(t, writer.Apply(uint64(revision+1), watchcore.Put("/a", value)))
		for _, read := range []watchcore.Read{watchcore.ReadAny(), watchcore.ReadAtLeast(1)} {
			kv, at, err := cache.Get(bounded.Context(t), "/a", watchcore.ReadOptions{Read: read})
			check(t, err)
			want(t, fmt.Sprint(size), string(kv.Value), value)
			want(t, "an empty value is nil", kv.Value == nil, false)
			want(t, "its revision", kv.ModRevision, at)
			other, _, err := cache.Get(bounded.Context(t), "/a", watchcore.ReadOptions{})
			check(t, err)
			clear(other.Value)
			want(t, "beside another", string(kv.Value), value)
		}
	}
}

// One key-value for many keys: it grows where it is too small, and stays what it is where there is nothing.
func TestGetInto(t *testing.T) {
	cache, writer := embedded(t)
	var into watchcore.KeyValue
	for revision, size := range []int{0, 1, 549, 4097, 3, 100_000, 0} {
		value := strings.Repeat("v", size)
		check(t, writer.Apply(uint64(revision+1), watchcore.PutExact(watchcore.KeyValue{
			Key: []byte("/a"), Value: []byte(value), Lease: int64(size),
			CreateRevision: 1, ModRevision: uint64(revision + 1), Version: uint64(revision + 1),
		})))
		for _, read := range []watchcore.Read{watchcore.ReadAny(), watchcore.ReadExact(uint64(revision + 1))} {
			found, at, err := cache.GetInto(bounded.Context(t), "/a", watchcore.ReadOptions{Read: read}, &into)
			check(t, err)
			want(t, "found", found, true)
			want(t, fmt.Sprint(size), string(into.Key)+string(into.Value), "/a"+value)
			want(t, "its numbers", [...]uint64{into.CreateRevision, into.ModRevision, into.Version, uint64(into.Lease)},
				[...]uint64{1, at, uint64(revision + 1), uint64(size)})
			if into.Value == nil {
				t.Error("the value is nil")
			}
			found, now, err := cache.GetInto(bounded.Context(t), "/none", watchcore.ReadOptions{Read: read}, &into)
			check(t, err)
			want(t, "none", found, false)
			want(t, "its revision", now, at)
			want(t, "what was there", string(into.Key)+string(into.Value), "/a"+value)
		}
	}
	kv, _, err := cache.Get(bounded.Context(t), "/a", watchcore.ReadOptions{Read: watchcore.ReadExact(3)})
	check(t, err)
	_, _, err = cache.GetInto(bounded.Context(t), "/a", watchcore.ReadOptions{Read: watchcore.ReadExact(6)}, kv)
	check(t, err)
	clear(kv.Value)
	want(t, "key beside value", string(kv.Key), "/a")
	kv, _, err = cache.Get(bounded.Context(t), "/a", watchcore.ReadOptions{Read: watchcore.ReadExact(6)})
	check(t, err)
	want(t, "the cache's value", string(kv.Value), strings.Repeat("v", 100_000))
	var none watchcore.KeyValue
	found, _, err := cache.GetInto(bounded.Context(t), "/none", watchcore.ReadOptions{}, &none)
	check(t, err)
	want(t, "found and a value where there is none", found || none.Value != nil, false)
	found, _, err = cache.GetInto(bounded.Context(t), "", watchcore.ReadOptions{}, &into)
	wantError(t, "an empty key", err, watchcore.ErrInvalidArgument)
	want(t, "found beside an error", found, false)
	ctx := context.Background()
	want(t, "allocations", testing.AllocsPerRun(100, func() { cache.GetInto(ctx, "/a", watchcore.ReadOptions{}, &into) }), 0)
}

// The key-value where it lies, whatever the size, and only as long as view runs.
func TestGetView(t *testing.T) {
	cache, writer := embedded(t)
	for revision, size := range []int{0, 1, 549, 4097, 100_000} {
		value := strings.Repeat("v", size)
		check(t, writer.Apply(uint64(revision+1), watchcore.PutExact(watchcore.KeyValue{
			Key: []byte("/a"), Value: []byte(value), Lease: int64(size),
			CreateRevision: 1, ModRevision: uint64(revision + 1), Version: uint64(revision + 1),
		})))
		for _, read := range []watchcore.Read{watchcore.ReadAny(), watchcore.ReadExact(uint64(revision + 1))} {
			calls := 0
			found, at, err := cache.GetView(bounded.Context(t), "/a", watchcore.ReadOptions{Read: read}, func(kv watchcore.KeyValue) {
				calls++
				want(t, fmt.Sprint(size), string(kv.Key)+string(kv.Value), "/a"+value)
				want(t, "its numbers", [...]uint64{kv.CreateRevision, kv.ModRevision, kv.Version, uint64(kv.Lease)},
					[...]uint64{1, uint64(revision + 1), uint64(revision + 1), uint64(size)})
				if kv.Value == nil {
					t.Error("the value is nil")
				}
			})
			check(t, err)
			want(t, "found and its revision", [...]any{found, at, calls}, [...]any{true, uint64(revision + 1), 1})
		}
	}
	never := func(watchcore.KeyValue) { t.Error("there is nothing to view") }
	found, at, err := cache.GetView(bounded.Context(t), "/none", watchcore.ReadOptions{}, never)
	check(t, err)
	want(t, "none", [...]any{found, at}, [...]any{false, uint64(5)})
	_, _, err = cache.GetView(bounded.Context(t), "", watchcore.ReadOptions{}, never)
	wantError(t, "an empty key", err, watchcore.ErrInvalidArgument)
}

// A view may do anything: the version is kept until it returns, and given back where it does not.
func TestGetViewKeepsWhatItShows(t *testing.T) {
	cache, writer := embedded(t)
	check(t, writer.Apply(1, watchcore.Put("/a", strings.Repeat("v", 549))))
	for range 3 {
		func() {
			defer func() { want(t, "the panic", recover(), any("of the view")) }()
			cache.GetView(bounded.Context(t), "/a", watchcore.ReadOptions{}, func(watchcore.KeyValue) { panic("of the view") })
		}()
	}
	found, at, err := cache.GetView(bounded.Context(t), "/a", watchcore.ReadOptions{}, func(kv watchcore.KeyValue) {
		check(t, writer.Apply(2, watchcore.Delete("/a")))
		check(t, writer.Compact(2))
		got, _, err := cache.Get(bounded.Context(t), "/a", watchcore.ReadOptions{})
		check(t, err)
		want(t, "the key now", got == nil, true)
		check(t, cache.Close())
		want(t, "what is viewed", string(kv.Key)+string(kv.Value), "/a"+strings.Repeat("v", 549))
	})
	check(t, err)
	want(t, "found and its revision", [...]any{found, at}, [...]any{true, uint64(1)})
	_, _, err = cache.GetView(bounded.Context(t), "/a", watchcore.ReadOptions{}, func(watchcore.KeyValue) { t.Error("it is closed") })
	wantError(t, "a closed cache", err, watchcore.ErrClosed)
}

func hundred(t testing.TB) (*watchcore.Cache, *watchcore.Writer) {
	t.Helper()
	cache, writer := embedded(t)
	var changes []watchcore.Change
	for i := range 1000 {
		changes = append(changes, watchcore.Put(fmt.Sprintf("/%04d", i), fmt.Sprint(i)))
	}
	check(t, writer.Apply(1, changes...))
	check(t, writer.Apply(2, watchcore.Delete("/0007"), watchcore.Put("/0008", "new")))
	return cache, writer
}

// A page is the cache's until it is released: what it shows stays, and asking it afterwards panics.
func TestReleasedPage(t *testing.T) {
	cache, writer := hundred(t)
	page, err := cache.List(bounded.Context(t), watchcore.RangeBetween("/0005", "/0900"), watchcore.ListOptions{Limit: 4})
	check(t, err)
	want(t, "position", page.Position(), cache.Position())
	want(t, "pages held", cache.Stats().UnreleasedPages, 1)
	kept, token := page.At(0).Clone(), page.Continue()
	check(t, writer.Apply(3, watchcore.Delete("/0005")))
	want(t, "an item after the key was deleted", page.At(0).Key(), "/0005")
	page.Release()
	page.Release()
	want(t, "pages held", cache.Stats().UnreleasedPages, 0)
	want(t, "a copy of an item", string(kept.Key)+"="+string(kept.Value), "/0005=5")
	panics(t, "length of a released page", func() { page.Len() })
	want(t, "remaining of a released page", page.Remaining(), 890)
	want(t, "token of a released page", page.Continue(), token)
	want(t, "token of no page", (*watchcore.Page)(nil).Continue(), "")
}

func TestClosedSnapshot(t *testing.T) {
	cache, _ := hundred(t)
	snapshot, err := cache.Snapshot()
	check(t, err)
	want(t, "position", snapshot.Position(), cache.Position())
	for kv, err := range snapshot.Range(watchcore.RangePrefix("/05"), watchcore.SelectOptions{}) {
		check(t, err)
		want(t, "first of a range", kv.Key(), "/0500")
		break
	}
	snapshot.Close()
	snapshot.Close()
	_, err = snapshot.Get("/0008")
	wantError(t, "get", err, watchcore.ErrClosed)
	_, err = snapshot.Count(watchcore.RangeAll(), watchcore.SelectOptions{})
	wantError(t, "count", err, watchcore.ErrClosed)
	for _, err := range snapshot.Range(watchcore.RangeAll(), watchcore.SelectOptions{}) {
		wantError(t, "range", err, watchcore.ErrClosed)
	}
}

// A walk goes on although the snapshot is closed under it.
func TestSnapshotClosedDuringAWalk(t *testing.T) {
	cache, writer := hundred(t)
	snapshot, err := cache.Snapshot()
	check(t, err)
	walked := 0
	for kv, err := range snapshot.Range(watchcore.RangeAll(), watchcore.SelectOptions{}) {
		check(t, err)
		if walked == 0 {
			snapshot.Close()
			churn(t, writer, 2, 5000)
		}
		want(t, "length of the key", len(kv.Key()), 5)
		walked++
	}
	want(t, "walked", walked, 999)
}

func TestStatusAndStats(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{Prefix: "/p/", Name: "mine"})
	check(t, writer.Apply(4, watchcore.Put("/p/a", "12345"), watchcore.Put("/p/b", "")))
	check(t, writer.Apply(5, watchcore.Delete("/p/b")))
	subscribe(t, cache)
	status := cache.Status()
	want(t, "state", fmt.Sprint(status.State), "Ready")
	want(t, "revision", status.Position.Revision, 5)
	want(t, "oldest", status.Oldest, 1)
	want(t, "objects", status.Objects, 1)
	want(t, "subscriptions", status.Subscriptions, 1)
	want(t, "last error", status.LastError, nil)
	want(t, "source", status.Source, watchcore.Source{})
	want(t, "prefix", cache.Prefix(), "/p/")
	want(t, "name", cache.Name()+" "+status.Name, "mine mine")
	stats := cache.Stats()
	want(t, "events", stats.Events, 3)
	want(t, "revisions", stats.Revisions, 2)
	if stats.LogBytes == 0 || stats.Segments == 0 || stats.VersionBytes == 0 {
		t.Fatalf("impossible statistics: %+v", stats)
	}
	_, err := cache.FeederCounters()
	wantError(t, "counters of an embedded cache", err, watchcore.ErrUnsupported)
	wantError(t, "resync of an embedded cache", cache.RequestResync(), watchcore.ErrUnsupported)
	cache.Close()
	closed := cache.Status()
	want(t, "state of a closed cache", closed.State, watchcore.StateClosed)
	want(t, "position of a closed cache", closed.Position, status.Position)
	want(t, "prefix of a closed cache", cache.Prefix(), "/p/")
	want(t, "name of a closed cache", cache.Name()+" "+closed.Name, "mine mine")
	_, err = cache.Snapshot()
	wantError(t, "snapshot of a closed cache", err, watchcore.ErrClosed)
	_, err = cache.Subscribe(context.Background(), watchcore.SubscribeOptions{})
	wantError(t, "subscription of a closed cache", err, watchcore.ErrClosed)
	_, err = cache.Writer()
	wantError(t, "writer of a closed cache", err, watchcore.ErrClosed)
}

func TestLongTexts(t *testing.T) {
	name := fmt.Sprintf("%0300d", 7)
	cache, _ := embedded(t, watchcore.Config{Name: name})
	want(t, "name", cache.Name(), name)
}

// What a server asks of a cache with each request.
func TestWhereACacheStands(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{ExpectLoad: true})
	want(t, "ready without a listing", cache.Ready(), false)
	want(t, "revision without a listing", cache.Revision(), 0)
	check(t, writer.Load(4, nil))
	want(t, "ready", cache.Ready(), true)
	check(t, writer.Apply(5, watchcore.Put("/a", "")))
	check(t, writer.Progress(9))
	want(t, "revision", cache.Revision(), 9)
	want(t, "position", cache.Position(), cache.Status().Position)
	want(t, "oldest", cache.Oldest(), cache.Status().Oldest)
	check(t, writer.Compact(7))
	want(t, "oldest behind a compaction", cache.Oldest(), 8)
	cache.Close()
	want(t, "ready when closed", cache.Ready(), false)
	want(t, "revision when closed", cache.Revision(), 9)
	want(t, "oldest when closed", cache.Oldest(), 8)
	if allocations := testing.AllocsPerRun(100, func() { cache.Ready(); cache.Revision(); cache.Oldest() }); allocations != 0 {
		t.Errorf("%v allocations to ask where a cache stands", allocations)
	}
}
