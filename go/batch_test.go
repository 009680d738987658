package watchcore_test

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

func oneBatch(t testing.TB, sub *watchcore.Subscription) *watchcore.Batch {
	t.Helper()
	batch, err := sub.Next(bounded.Context(t))
	check(t, err)
	return batch
}

func TestSequencesRiseByOne(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	check(t, writer.Apply(3, watchcore.Put("/a", ""), watchcore.Put("/b", "")))
	check(t, writer.Apply(8, watchcore.Delete("/a")))
	batch := oneBatch(t, sub)
	defer batch.Release()
	for i := range batch.Len() {
		want(t, "sequence", batch.At(i).Sequence(), batch.At(0).Sequence()+uint64(i))
	}
}

func TestZeroEvent(t *testing.T) {
	var e watchcore.Event
	want(t, "numbers", e.Revision+e.Sequence()+e.CreateRevision()+e.ModRevision()+e.Version(), 0)
	want(t, "bytes", e.Key()+bytesText(e.Value())+bytesText(e.PrevValue())+bytesText(e.KeyView())+bytesText(e.ValueView())+bytesText(e.PrevValueView()), "-----")
	want(t, "flags", e.InitialState() || e.EndsInitialState() || e.Synthetic() || e.Lease() != 0, false)
	want(t, "resync", e.Resync(), watchcore.ResyncMark{})
	want(t, "clone", e.Clone(), e)
}

func TestNilBatch(t *testing.T) {
	var batch *watchcore.Batch
	want(t, "length", batch.Len(), 0)
	want(t, "continues", batch.Continues(), false)
	want(t, "position", batch.Position(), watchcore.Position{})
	want(t, "clone", batch.Clone(), nil)
	for e := range batch.Events() {
		t.Fatalf("an event of nil: %v", e)
	}
	batch.Release()
	batch = &watchcore.Batch{}
	want(t, "length of the zero value", batch.Len(), 0)
	want(t, "length of its clone", batch.Clone().Len(), 0)
	for e := range batch.Events() {
		t.Fatalf("an event of the zero value: %v", e)
	}
	batch.Release()
	var page *watchcore.Page
	want(t, "page length", page.Len(), 0)
	want(t, "page more", page.More(), false)
	page.Release()
}

func TestReleaseTwice(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	check(t, writer.Apply(1, watchcore.Put("/a", "")))
	batch := oneBatch(t, sub)
	want(t, "held", cache.Stats().UnreleasedBatches, 1)
	batch.Release()
	batch.Release()
	want(t, "held after two releases", cache.Stats().UnreleasedBatches, 0)
}

// churn overwrites keys until the segments that a batch lay in are used for others.
func churn(t testing.TB, writer *watchcore.Writer, revision uint64, revisions int) uint64 {
	t.Helper()
	for range revisions {
		revision++
		check(t, writer.Apply(revision, watchcore.Put("/a", fmt.Sprintf("other %d", revision))))
	}
	return revision
}

func TestCloneOwnsItsMemory(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{Capacity: 1024})
	sub := subscribe(t, cache)
	check(t, writer.Apply(1, watchcore.Put("/a", "old"), watchcore.Put("/e", "")))
	check(t, writer.Apply(2, watchcore.Put("/a", "new"), watchcore.Delete("/e")))
	var batches []*watchcore.Batch
	var one watchcore.Event
	for batch, err := range sub.Batches(bounded.Context(t)) {
		check(t, err)
		clone := batch.Clone()
		for i := range batch.Len() {
			was, own, single := batch.At(i), clone.At(i), batch.At(i).Clone()
			for _, copies := range [][3][]byte{
				{was.KeyView(), own.KeyView(), single.KeyView()},
				{was.ValueView(), own.ValueView(), single.ValueView()},
				{was.PrevValueView(), own.PrevValueView(), single.PrevValueView()},
			} {
				at := unsafe.SliceData(copies[0])
				if at != nil && (at == unsafe.SliceData(copies[1]) || at == unsafe.SliceData(copies[2])) {
					t.Fatalf("a clone of %s shares its bytes", text(was))
				}
			}
		}
		batches = append(batches, clone.Clone())
		if last := batch.At(batch.Len() - 1); last.Revision == 2 {
			one = last.Clone()
			break
		}
	}
	position := sub.Position()
	churn(t, writer, 2, 5000)
	sub.Close()
	cache.Close()
	runtime.GC()
	var got []string
	for _, batch := range batches {
		for e := range batch.Events() {
			got = append(got, text(e))
		}
	}
	want(t, "clones", lines(got...), lines(
		"0 BOOKMARK end",
		"1 ADDED /a old<-", "1 ADDED /e <-",
		"2 MODIFIED /a new<old", "2 DELETED /e -<",
	))
	want(t, "clone of an event", text(one), "2 DELETED /e -<")
	want(t, "position of the clone", batches[len(batches)-1].Position(), position)
	batches[0].Release()
	want(t, "a clone after its release", text(batches[0].At(0)), "0 BOOKMARK end")
}

func TestCloneAllocations(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	for revision := uint64(1); revision <= 100; revision++ {
		check(t, writer.Apply(revision, watchcore.Put(fmt.Sprint("/", revision), "value")))
	}
	batch := oneBatch(t, sub)
	defer batch.Release()
	want(t, "events", batch.Len(), 100)
	want(t, "allocations", testing.AllocsPerRun(10, func() { batch.Clone() }), 1)
	event := batch.At(0)
	want(t, "allocations of an event", testing.AllocsPerRun(10, func() { event.Clone() }), 1)
}

// A held batch keeps its content while the log goes round.
func TestBatchOutlivesTheWindow(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{Capacity: 1024})
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	check(t, writer.Apply(1, watchcore.Put("/a", "mine")))
	batch := oneBatch(t, sub)
	churn(t, writer, 1, 20_000)
	if cache.Status().Oldest < 1000 {
		t.Fatalf("the log did not go round: oldest is %d", cache.Status().Oldest)
	}
	want(t, "event", text(batch.At(0)), "1 ADDED /a mine<-")
	batch.Release()
}
