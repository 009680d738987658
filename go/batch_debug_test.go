//go:build debug

package watchcore_test

import (
	"context"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
)

func TestDebugPoisonsReleasedBatches(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	check(t, writer.Apply(1, watchcore.Put("/a", "value")))
	batch := oneBatch(t, sub)
	key, value, copied := batch.At(0).KeyView(), batch.At(0).ValueView(), batch.At(0).Value()
	want(t, "value", string(value), "value")
	batch.Release()
	want(t, "views kept too long", string(key)+string(value), "\xdb\xdb\xdb\xdb\xdb\xdb\xdb")
	want(t, "a copy", string(copied), "value")
	batch.Release() // still allowed
	want(t, "batches held", cache.Stats().UnreleasedBatches, 0)
}

func TestDebugPoisonsPagesAndWalks(t *testing.T) {
	cache, writer := embedded(t)
	check(t, writer.Apply(1, watchcore.Put("/a", "one"), watchcore.Put("/b", "two")))
	page, err := cache.List(context.Background(), watchcore.RangeAll(), watchcore.ListOptions{})
	check(t, err)
	key, value := page.At(0).KeyView(), page.At(1).ValueView()
	want(t, "views of a page", string(key)+string(value), "/atwo")
	page.Release()
	want(t, "views of a released page", string(key)+string(value), "\xdb\xdb\xdb\xdb\xdb")
	snapshot, err := cache.Snapshot()
	check(t, err)
	defer snapshot.Close()
	var last []byte
	for item, err := range snapshot.Range(watchcore.RangeAll(), watchcore.SelectOptions{}) {
		check(t, err)
		if last != nil {
			want(t, "a view of the item before", string(last), "\xdb\xdb\xdb")
		}
		last = item.ValueView()
	}
	want(t, "a view of the last item", string(last), "\xdb\xdb\xdb")
}

func TestDebugPoisonsWhatADecoderKeeps(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	check(t, writer.Apply(1, watchcore.Put("/a", "value")))
	batch := oneBatch(t, sub)
	defer batch.Release()
	kept, err := watchcore.NewDecoder(func(_, value []byte) ([]byte, error) { return value, nil }, 1).Value(batch.At(0))
	check(t, err)
	want(t, "bytes kept too long", string(kept), "\xdb\xdb\xdb\xdb\xdb")
	want(t, "the event's own", string(batch.At(0).Value()), "value")
}

func TestDebugPoisonsViewsOfGets(t *testing.T) {
	cache, writer := embedded(t)
	check(t, writer.Apply(1, watchcore.Put("/a", "value")))
	var key, value []byte
	_, _, err := cache.GetView(context.Background(), "/a", watchcore.ReadOptions{}, func(kv watchcore.KeyValue) {
		key, value = kv.Key, kv.Value
		want(t, "what is viewed", string(key)+string(value), "/avalue")
	})
	check(t, err)
	want(t, "views kept too long", string(key)+string(value), "\xdb\xdb\xdb\xdb\xdb\xdb\xdb")
}
