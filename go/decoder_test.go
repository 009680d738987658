package watchcore_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

// counting decodes to a string of its own, and counts how often.
func counting(calls *atomic.Int64, size int) *watchcore.Decoder[*string] {
	return watchcore.NewDecoder(func(key, value []byte) (*string, error) {
		calls.Add(1)
		made := string(key) + "=" + string(value)
		return &made, nil
	}, size)
}

func oneOf[T any](t testing.TB) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		check(t, err)
		return value
	}
}

func TestDecodedOnce(t *testing.T) {
	const consumers, keys = 20, 100
	var calls atomic.Int64
	decoder := counting(&calls, 2*keys)
	cache, writer := embedded(t)
	var all sync.WaitGroup
	results := make([][]*string, consumers)
	for i := range consumers {
		sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
		all.Go(func() {
			for batch, err := range sub.Batches(context.Background()) {
				if err != nil {
					t.Error(err)
					return
				}
				for e := range batch.Events() {
					value, err := decoder.Value(e)
					if err != nil {
						t.Error(err)
					}
					results[i] = append(results[i], value)
				}
			}
		})
	}
	for key := range keys {
		check(t, writer.Apply(uint64(key+1), watchcore.Put(fmt.Sprintf("/%02d", key), fmt.Sprint(key))))
	}
	snapshot, err := cache.Snapshot()
	check(t, err)
	defer snapshot.Close()
	page, err := cache.List(bounded.Context(t), watchcore.RangeAll(), watchcore.ListOptions{})
	check(t, err)
	defer page.Release()
	kv, _, err := cache.Get(bounded.Context(t), "/07", watchcore.ReadOptions{})
	check(t, err)
	late := subscribe(t, cache)
	cache.Close()
	all.Wait()
	want(t, "calls for the events", calls.Load(), keys)

	// Whatever else shows the same values has the same results.
	one := oneOf[*string](t)
	for i, result := range results {
		want(t, "events", len(result), keys)
		for at := range result {
			want(t, "result", result[at], results[0][at])
		}
		want(t, "content", *results[i][7], "/07=7")
	}
	at := 0
	for item, err := range snapshot.Range(watchcore.RangeAll(), watchcore.SelectOptions{}) {
		check(t, err)
		want(t, "of a snapshot", one(decoder.Item(item)), results[0][at])
		want(t, "of a page", one(decoder.Item(page.At(at))), results[0][at])
		at++
	}
	want(t, "of a get", one(decoder.KeyValue(kv)), results[0][7])
	batch := oneBatch(t, late)
	defer batch.Release()
	want(t, "of an initial state", one(decoder.Value(batch.At(7))), results[0][7])
	want(t, "of a copy", one(decoder.Value(batch.At(7).Clone())), results[0][7])
	want(t, "calls", calls.Load(), keys)
}

// Others wait for the one that decodes.
func TestDecodingIsWaitedFor(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	check(t, writer.Apply(1, watchcore.Put("/a", "1")))
	batch := oneBatch(t, sub)
	defer batch.Release()
	for name, end := range map[string]func() (*string, error){
		"a value":  func() (*string, error) { made := "made"; return &made, nil },
		"an error": func() (*string, error) { return nil, errors.New("mine") },
		"a panic":  func() (*string, error) { panic("mine") },
		"an exit":  func() (*string, error) { runtime.Goexit(); return nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int64
			var asked sync.WaitGroup
			const consumers = 50
			asked.Add(consumers)
			decoder := watchcore.NewDecoder(func(key, value []byte) (*string, error) {
				calls.Add(1)
				asked.Wait() // until all are on their way
				return end()
			}, 1)
			type result struct {
				value *string
				err   error
			}
			results := make(chan result, consumers)
			var all sync.WaitGroup
			for range consumers {
				all.Go(func() {
					asked.Done()
					value, err := decoder.Value(batch.At(0))
					results <- result{value, err} // not where the goroutine ends
				})
			}
			all.Wait()
			close(results)
			first, more := <-results
			count := 1
			for result := range results {
				count++
				want(t, "value", result.value, first.value)
				want(t, "error", result.err, first.err)
			}
			want(t, "calls", calls.Load(), 1)
			want(t, "somebody got it", more, true)
			switch name {
			case "a value":
				check(t, first.err)
				want(t, "value", *first.value, "made")
			case "an error":
				want(t, "text", first.err.Error(), "mine")
			case "a panic":
				wantError(t, name, first.err, watchcore.ErrPanic)
				if text := first.err.Error(); !strings.Contains(text, `"/a"`) || !strings.Contains(text, "mine") {
					t.Errorf("it does not say what panicked where: %s", text)
				}
			case "an exit":
				wantError(t, name, first.err, watchcore.ErrPanic)
				count++ // the goroutine itself
			}
			want(t, "results", count, consumers)
			// It stays so for those who come later.
			value, err := decoder.Value(batch.At(0))
			want(t, "value later", value, first.value)
			want(t, "error later", err, first.err)
			want(t, "calls", calls.Load(), 1)
		})
	}
}

// An event whose value cannot be decoded is delivered all the same, and so are the
// others.
func TestDecodeErrorsLoseNothing(t *testing.T) {
	cache, writer := embedded(t)
	decoder := watchcore.NewDecoder(func(_, value []byte) (int, error) {
		var number int
		_, err := fmt.Sscan(string(value), &number)
		return number, err
	}, 0)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	for i, value := range []string{"1", "no number", "3"} {
		check(t, writer.Apply(uint64(i+1), watchcore.Put("/a", value)))
	}
	check(t, writer.Apply(4, watchcore.Delete("/a")))
	var sum, failures, previous int
	batch := oneBatch(t, sub)
	defer batch.Release()
	for e := range batch.Events() {
		if number, err := decoder.Value(e); err == nil {
			sum += number
		} else {
			failures++
		}
		if number, err := decoder.PrevValue(e); err == nil {
			previous += number
		}
	}
	want(t, "events", batch.Len(), 4)
	want(t, "sum", sum, 4)
	want(t, "failures", failures, 2)
	want(t, "sum of what was before", previous, 4)
	for name, err := range map[string]error{
		"a deletion's value":        second(decoder.Value(batch.At(3))),
		"what was before the first": second(decoder.PrevValue(batch.At(0))),
		"no event":                  second(decoder.Value(watchcore.Event{})),
		"before no event":           second(decoder.PrevValue(watchcore.Event{})),
		"no key-value":              second(decoder.KeyValue(nil)),
	} {
		wantError(t, name, err, watchcore.ErrInvalidArgument)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a decoder without a function was made")
			}
		}()
		watchcore.NewDecoder[int](nil, 1)
	}()
}

func second[T any](_ T, err error) error { return err }

// The table is bounded: the oldest result goes first, and is made again.
func TestDecoderForgetsTheOldest(t *testing.T) {
	var calls atomic.Int64
	decoder := counting(&calls, 3)
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	for i := range uint64(5) {
		check(t, writer.Apply(i+1, watchcore.Put("/a", fmt.Sprint(i))))
	}
	batch := oneBatch(t, sub)
	defer batch.Release()
	one := oneOf[*string](t)
	for i, row := range []struct {
		event int
		calls int64
	}{{0, 1}, {1, 2}, {2, 3}, {0, 3}, {3, 4}, {1, 4}, {2, 4}, {0, 5}, {1, 6}, {3, 6}, {0, 6}, {2, 7}} {
		want(t, "content", *one(decoder.Value(batch.At(row.event))), fmt.Sprintf("/a=%d", row.event))
		want(t, fmt.Sprint("calls at ", i), calls.Load(), row.calls)
	}
}

func TestDecoderLimitsBytes(t *testing.T) {
	var calls atomic.Int64
	decoder := counting(&calls, 100).LimitBytes(8)
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	for i, length := range []int{4, 4, 4, 20, 1} {
		check(t, writer.Apply(uint64(i+1), watchcore.Put("/a", strings.Repeat("x", length))))
	}
	batch := oneBatch(t, sub)
	defer batch.Release()
	for i, row := range []struct {
		event int
		calls int64
	}{{0, 1}, {1, 2}, {0, 2}, {2, 3}, {1, 3}, {2, 3}, {0, 4}, {2, 4}, {3, 5}, {3, 5}, {2, 6}, {4, 7}, {2, 7}, {4, 7}, {3, 8}} {
		oneOf[*string](t)(decoder.Value(batch.At(row.event)))
		want(t, fmt.Sprint("calls at ", i), calls.Load(), row.calls)
	}
}

// Where the history was replaced, another value of the same revision is another
// value; so is one of another cache.
func TestDecoderTellsHistoriesApart(t *testing.T) {
	var calls atomic.Int64
	decoder := counting(&calls, 100)
	one := oneOf[*string](t)
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	check(t, writer.Apply(5, watchcore.Put("/a", "old"), watchcore.Put("/b", "old")))
	_, err := writer.Resync(5, []watchcore.KeyValue{
		{Key: []byte("/a"), Value: []byte("new"), CreateRevision: 5, ModRevision: 5, Version: 1},
		{Key: []byte("/b"), Value: []byte("NEW"), CreateRevision: 4, ModRevision: 5, Version: 2},
	}, watchcore.ReasonHistoryReset)
	check(t, err)
	var got []string
	for {
		batch, err := sub.Poll(0)
		check(t, err)
		if batch == nil {
			break
		}
		for e := range batch.Events() {
			if e.Value() != nil {
				got = append(got, *one(decoder.Value(e)))
			}
			if e.PrevValue() != nil {
				got = append(got, "was "+*one(decoder.PrevValue(e)))
			}
		}
		batch.Release()
	}
	other, writerOfOther := embedded(t)
	check(t, writerOfOther.Apply(5, watchcore.Put("/a", "its")))
	kv, _, err := other.Get(bounded.Context(t), "/a", watchcore.ReadOptions{})
	check(t, err)
	got = append(got, *one(decoder.KeyValue(kv)))
	want(t, "values", strings.Join(got, ", "), "/a=old, /b=old, was /b=old, /a=new, was /a=old, /b=NEW, /a=its")
	want(t, "calls", calls.Load(), 5)
}
