package watchcore_test

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

func TestClosedWriter(t *testing.T) {
	_, writer := embedded(t)
	writer.Close()
	writer.Close()
	wantError(t, "apply", writer.Apply(1, watchcore.Put("/a", "")), watchcore.ErrClosed)
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
