package watchcore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

// window is a cache whose log holds n overwrites of 1000 keys behind revision 1.
func window(b *testing.B, n int, value string) *watchcore.Cache {
	b.Helper()
	cache, writer := embedded(b)
	changes := make([]watchcore.Change, 1000)
	for i := range changes {
		changes[i] = watchcore.Put(fmt.Sprintf("/registry/pods/namespace-%04d/p-%06d", i, i), value)
	}
	check(b, writer.Apply(1, changes...))
	for i := range n {
		check(b, writer.Apply(uint64(i+2), changes[i%len(changes)]))
	}
	return cache
}

// poll reads the window again and again, each round by a subscription of its own,
// and reports what an event costs: the median of the rounds, the best and the
// worst.
func poll(b *testing.B, cache *watchcore.Cache, n, batchSize int, read func(*watchcore.Batch) uint64) {
	b.Helper()
	var sum uint64
	var rounds []float64
	b.ReportAllocs()
	for b.Loop() {
		sub, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Start: watchcore.StartAfter(1)})
		check(b, err)
		start := time.Now()
		for got := 0; got < n; {
			batch, err := sub.Poll(batchSize)
			if batch == nil {
				b.Fatal(got, err)
			}
			got += batch.Len()
			sum += read(batch)
			batch.Release()
		}
		rounds = append(rounds, float64(time.Since(start).Nanoseconds())/float64(n))
		sub.Close()
	}
	if sum == 0 {
		b.Fatal("nothing was read")
	}
	slices.Sort(rounds)
	b.ReportMetric(rounds[len(rounds)/2], "ns/event")
	b.ReportMetric(rounds[0], "best-ns/event")
	b.ReportMetric(rounds[len(rounds)-1], "worst-ns/event")
}

func heads(batch *watchcore.Batch) (sum uint64) {
	for e := range batch.Events() {
		sum += e.Revision + uint64(e.Type) + uint64(uintptr(unsafe.Pointer(unsafe.SliceData(e.KeyView()))))
	}
	return sum
}

// copies is what a program gets that asks by the plain names.
func copies(batch *watchcore.Batch) (sum uint64) {
	for e := range batch.Events() {
		sum += e.Revision + uint64(e.Type) + uint64(len(e.Key())) + uint64(len(e.Value()))
	}
	return sum
}

func added(key, value []byte) (sum uint64) {
	for _, b := range key {
		sum += uint64(b)
	}
	for _, b := range value {
		sum += uint64(b)
	}
	return sum
}

// The goal is 15 ns an event in batches of 64 or more: revision, type and address
// of the key, the window in the cache of the processor. Copies of key and value are
// two allocations an event.
func BenchmarkPoll(b *testing.B) {
	cache := window(b, 8192, "small")
	for _, size := range []int{1, 64, 1024} {
		b.Run(fmt.Sprintf("views/batch=%d", size), func(b *testing.B) { poll(b, cache, 8192, size, heads) })
		b.Run(fmt.Sprintf("copies/batch=%d", size), func(b *testing.B) { poll(b, cache, 8192, size, copies) })
	}
}

// The same, reading every byte of key and value, of more than the caches hold.
func BenchmarkPollContents(b *testing.B) {
	cache := window(b, 60_000, strings.Repeat("v", 512))
	b.Run("views", func(b *testing.B) {
		poll(b, cache, 60_000, 64, func(batch *watchcore.Batch) (sum uint64) {
			for e := range batch.Events() {
				sum += e.Revision + added(e.KeyView(), e.ValueView())
			}
			return sum
		})
	})
	b.Run("copies", func(b *testing.B) {
		poll(b, cache, 60_000, 64, func(batch *watchcore.Batch) (sum uint64) {
			for e := range batch.Events() {
				sum += e.Revision + added([]byte(e.Key()), e.Value())
			}
			return sum
		})
	})
}

func BenchmarkPollClone(b *testing.B) {
	poll(b, window(b, 8192, "small"), 8192, 64, func(batch *watchcore.Batch) uint64 { return heads(batch.Clone()) })
}

func BenchmarkPollEmpty(b *testing.B) {
	cache, _ := embedded(b)
	sub := subscribe(b, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	for b.Loop() {
		if batch, err := sub.Poll(0); batch != nil || err != nil {
			b.Fatal(batch, err)
		}
	}
}

// From a subscription to its end, with nothing read.
func BenchmarkSubscribe(b *testing.B) {
	cache := window(b, 100, "small")
	b.ReportAllocs()
	for b.Loop() {
		sub, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Start: watchcore.StartAfter(1)})
		check(b, err)
		sub.Close()
	}
}

// From a write to the consumer that sleeps for it, and back.
func BenchmarkWake(b *testing.B) {
	cache, writer := embedded(b)
	sub := subscribe(b, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	ctx := context.Background()
	seen := make(chan uint64)
	go func() {
		defer close(seen)
		for batch, err := range sub.Batches(ctx) {
			if err != nil {
				b.Error(err)
				return
			}
			seen <- batch.At(batch.Len() - 1).Revision
		}
	}()
	revision := uint64(0)
	for b.Loop() {
		revision++
		check(b, writer.Apply(revision, watchcore.Put("/a", "")))
		<-seen
	}
	sub.Close()
	for range seen {
	}
}

// One write for 10,000 goroutines that sleep.
func BenchmarkWakeMany(b *testing.B) {
	const consumers = 10_000
	cache, writer := embedded(b)
	var round, all sync.WaitGroup
	for range consumers {
		sub := subscribe(b, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
		all.Go(func() {
			for batch, err := range sub.Batches(context.Background()) {
				if err != nil {
					b.Error(err)
				}
				for range batch.Len() {
					round.Done()
				}
			}
		})
	}
	revision := uint64(0)
	for b.Loop() {
		b.StopTimer()
		bounded.Eventually(b, "all sleep", func() bool { return cache.Stats().Waiting == consumers })
		round.Add(consumers)
		revision++
		b.StartTimer()
		check(b, writer.Apply(revision, watchcore.Put("/a", "")))
		round.Wait()
	}
	cache.Close()
	all.Wait()
}

func BenchmarkApply(b *testing.B) {
	_, writer := embedded(b)
	revision := uint64(0)
	for b.Loop() {
		revision++
		check(b, writer.Apply(revision, watchcore.Put("/registry/pods/default/web-000001", "value")))
	}
}

func BenchmarkGet(b *testing.B) {
	cache := window(b, 0, "value")
	ctx := context.Background()
	for b.Loop() {
		if kv, _, err := cache.Get(ctx, "/registry/pods/namespace-0471/p-000471", watchcore.ReadOptions{}); kv == nil || err != nil {
			b.Fatal(kv, err)
		}
	}
}

// Into memory of the caller's, without an allocation.
func BenchmarkGetInto(b *testing.B) {
	cache := window(b, 0, "value")
	ctx := context.Background()
	var kv watchcore.KeyValue
	for b.Loop() {
		if found, _, err := cache.GetInto(ctx, "/registry/pods/namespace-0471/p-000471", watchcore.ReadOptions{}, &kv); !found || err != nil {
			b.Fatal(found, err)
		}
	}
}

// Where it lies, without a copy.
func BenchmarkGetView(b *testing.B) {
	cache := window(b, 0, "value")
	ctx, length := context.Background(), 0
	for b.Loop() {
		if found, _, err := cache.GetView(ctx, "/registry/pods/namespace-0471/p-000471", watchcore.ReadOptions{}, func(kv watchcore.KeyValue) {
			length = len(kv.Value)
		}); !found || err != nil {
			b.Fatal(found, err)
		}
	}
	want(b, "length", length, len("value"))
}

// What is left of a get that gives memory of its own: the two allocations alone, of an object
// of 549 bytes, and their collection.
func BenchmarkGetAllocations(b *testing.B) {
	key, value := "/registry/pods/namespace-0471/p-00471", make([]byte, 512)
	b.ReportAllocs()
	for b.Loop() {
		bytes := append(append(make([]byte, 0, len(key)+len(value)), key...), value...)
		allocated = &watchcore.KeyValue{Key: bytes[:len(key):len(key)], Value: bytes[len(key):]}
	}
}

var allocated *watchcore.KeyValue

func BenchmarkSnapshot(b *testing.B) {
	cache := window(b, 0, "value")
	b.Run("take", func(b *testing.B) {
		for b.Loop() {
			snapshot, err := cache.Snapshot()
			check(b, err)
			snapshot.Close()
		}
	})
	b.Run("walk", func(b *testing.B) {
		snapshot, err := cache.Snapshot()
		check(b, err)
		defer snapshot.Close()
		items := 0
		for b.Loop() {
			for _, err := range snapshot.Range(watchcore.RangeAll(), watchcore.SelectOptions{}) {
				check(b, err)
				items++
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(items), "ns/item")
	})
}

// What asking for a decoded value costs an event: where it is there already, where
// it is not (the table is too small), and beside it the decoding alone, of objects
// of 2 KiB.
func BenchmarkDecoder(b *testing.B) {
	const n = 1000
	value := fmt.Sprintf(`{"metadata":{"name":"a","labels":{"app":"web"}},"data":%q}`, strings.Repeat("v", 2000))
	cache := window(b, n, value)
	decode := func(_, value []byte) (made map[string]any, err error) {
		err = json.Unmarshal(value, &made)
		return made, err
	}
	through := func(decoder *watchcore.Decoder[map[string]any]) func(*watchcore.Batch) uint64 {
		return func(batch *watchcore.Batch) (sum uint64) {
			for e := range batch.Events() {
				made, err := decoder.Value(e)
				check(b, err)
				sum += uint64(len(made))
			}
			return sum
		}
	}
	shared := watchcore.NewDecoder(decode, n)
	b.Run("shared", func(b *testing.B) { poll(b, cache, n, 64, through(shared)) })
	b.Run("missed", func(b *testing.B) { poll(b, cache, n, 64, through(watchcore.NewDecoder(decode, n/2))) })
	b.Run("alone", func(b *testing.B) {
		poll(b, cache, n, 64, func(batch *watchcore.Batch) (sum uint64) {
			for e := range batch.Events() {
				made, err := decode(e.KeyView(), e.ValueView())
				check(b, err)
				sum += uint64(len(made))
			}
			return sum
		})
	})
	b.Run("many", func(b *testing.B) {
		batch, err := cache.Diff(watchcore.Position{Revision: 1}, cache.Position(), watchcore.DiffOptions{})
		check(b, err)
		defer batch.Release()
		b.RunParallel(func(pb *testing.PB) {
			for at := 0; pb.Next(); at = (at + 1) % batch.Len() {
				if _, err := shared.Value(batch.At(at)); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}

// What a server asks with each request, beside a whole status.
func BenchmarkRevision(b *testing.B) {
	cache, writer := embedded(b)
	check(b, writer.Apply(5, watchcore.Put("/a", "")))
	b.Run("revision", func(b *testing.B) {
		for b.Loop() {
			if cache.Revision() != 5 {
				b.Fatal("another revision")
			}
		}
	})
	b.Run("ready", func(b *testing.B) {
		for b.Loop() {
			if !cache.Ready() {
				b.Fatal("not ready")
			}
		}
	})
	b.Run("status", func(b *testing.B) {
		for b.Loop() {
			if cache.Status().Position.Revision != 5 {
				b.Fatal("another revision")
			}
		}
	})
}
