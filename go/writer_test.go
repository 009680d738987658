package watchcore_test

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"watchcore"
	"watchcore/internal/bounded"
)

func TestOneWriter(t *testing.T) {
	cache, writer := embedded(t)
	_, err := cache.Writer()
	wantError(t, "a second writer", err, watchcore.ErrBusy)
	writer.Close()
	writer.Close()
	wantError(t, "apply of a closed writer", writer.Apply(1, watchcore.Put("/a", "")), watchcore.ErrClosed)
	second, err := cache.Writer()
	check(t, err)
	check(t, second.Apply(1, watchcore.Put("/a", "")))
	second.Close()
}

func TestRefusalsChangeNothing(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{Prefix: "/", MaxKeyBytes: 10, MaxValueBytes: 10})
	check(t, writer.Apply(5, watchcore.Put("/a", "1")))
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	for name, row := range map[string]struct {
		err  error
		want error
	}{
		"a revision that does not rise": {writer.Apply(5, watchcore.Put("/a", "2")), watchcore.ErrOutOfOrder},
		"a progress back":               {writer.Progress(4), watchcore.ErrOutOfOrder},
		"a deletion of an absent key":   {writer.Apply(6, watchcore.Put("/b", ""), watchcore.Delete("/none")), watchcore.ErrInvalidArgument},
		"a key twice":                   {writer.Apply(6, watchcore.Put("/b", ""), watchcore.Delete("/b")), watchcore.ErrInvalidArgument},
		"an empty key":                  {writer.Apply(6, watchcore.Put("", "")), watchcore.ErrInvalidArgument},
		"a key outside":                 {writer.Apply(6, watchcore.Put("b", "")), watchcore.ErrInvalidArgument},
		"a long key":                    {writer.Apply(6, watchcore.Put("/234567890x", "")), watchcore.ErrInvalidArgument},
		"a long value":                  {writer.Apply(6, watchcore.Put("/b", "1234567890x")), watchcore.ErrInvalidArgument},
		"a load":                        {writer.Load(6, nil), watchcore.ErrOutOfOrder},
		"a key-value that cannot be":    {writer.Apply(6, watchcore.PutExact(watchcore.KeyValue{Key: []byte("/b"), ModRevision: 6})), watchcore.ErrInvalidArgument},
	} {
		wantError(t, name, row.err, row.want)
	}
	want(t, "revision", cache.Position().Revision, 5)
	want(t, "events", drain(t, sub), "")
	check(t, writer.Apply(6, watchcore.Put("/b", "2")))
	want(t, "events", drain(t, sub), "6 ADDED /b 2<-")
}

func TestLargeChanges(t *testing.T) {
	cache, writer := embedded(t)
	long := bytes.Repeat([]byte("x"), 3<<20)
	check(t, writer.Apply(1, watchcore.Put("/long", long), watchcore.Put("/short", "s")))
	want(t, "objects", cache.Status().Objects, 2)
	check(t, writer.Apply(2, watchcore.Put("/short", strings.Repeat("y", 100))))
	kv, _, err := cache.Get(bounded.Context(t), "/long", watchcore.ReadOptions{})
	check(t, err)
	want(t, "the long value is as it was", bytes.Equal(kv.Value, long), true)
	kv, _, err = cache.Get(bounded.Context(t), "/short", watchcore.ReadOptions{})
	check(t, err)
	want(t, "length of the short value", len(kv.Value), 100)
	check(t, writer.Apply(3)) // a revision without a change
	want(t, "revision", cache.Position().Revision, 3)
}

// What nobody can reach any more is closed.
func TestCleanups(t *testing.T) {
	cache, _ := embedded(t)
	func() {
		sub, err := cache.Subscribe(bounded.Context(t), watchcore.SubscribeOptions{ // with a context's hook
			Start: watchcore.StartNow()})
		check(t, err)
		short, _ := sub.Poll(0)
		want(t, "nothing yet", short, nil)
		_, err = cache.Subscribe(bounded.Context(t), watchcore.SubscribeOptions{})
		check(t, err)
		snapshot, err := cache.Snapshot()
		check(t, err)
		want(t, "subscriptions", cache.Stats().Subscriptions, 2)
		bounded.Eventually(t, "the snapshot has an age", func() bool { return cache.Stats().OldestSnapshot > 0 })
		want(t, "revision", snapshot.Revision(), 0)
	}()
	bounded.Eventually(t, "lost subscriptions are closed", func() bool {
		runtime.GC()
		return cache.Stats().Subscriptions == 0
	})
	bounded.Eventually(t, "a lost snapshot is closed", func() bool {
		runtime.GC()
		return cache.Stats().OldestSnapshot == 0
	})

	var sub *watchcore.Subscription
	func() {
		lost, err := watchcore.New(watchcore.Config{})
		check(t, err)
		writer, err := lost.Writer()
		check(t, err)
		sub, err = lost.Subscribe(bounded.Context(t), watchcore.SubscribeOptions{Start: watchcore.StartNow()})
		check(t, err)
		check(t, writer.Apply(1, watchcore.Put("/a", "")))
	}()
	runtime.GC()
	runtime.GC()
	// The subscription keeps its cache.
	want(t, "events", drain(t, sub), "1 ADDED /a <-")
	sub.Close()
}

// One change is lent to C: nothing is copied on Go's side, whatever form it has.
func TestApplyAllocations(t *testing.T) {
	cache, writer := embedded(t)
	key, value, revision := []byte("/a"), []byte("value"), uint64(0)
	want(t, "allocations", testing.AllocsPerRun(100, func() {
		check(t, writer.Apply(revision+1, watchcore.Put("/a", value)))
		check(t, writer.Apply(revision+2, watchcore.Put(key, "")))
		check(t, writer.Apply(revision+3, watchcore.Delete(key)))
		revision += 3
	}), 0)
	key[1] = 'b'
	check(t, writer.Apply(revision+1, watchcore.Put(key, []byte(nil))))
	sub := subscribe(t, cache)
	want(t, "state", drain(t, sub), lines(fmt.Sprint(revision+1, " ADDED /b <- initial"), fmt.Sprint(revision+1, " BOOKMARK end")))
}
