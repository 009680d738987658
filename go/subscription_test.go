package watchcore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"watchcore"
	"watchcore/internal/bounded"
)

func TestFilters(t *testing.T) {
	cache, writer := embedded(t)
	keys := []string{"/a/foo", "/a/foo/x", "/a/foobar", "/b", "/c"}
	var changes []watchcore.Change
	for _, key := range keys {
		changes = append(changes, watchcore.Put(key, "v"))
	}
	check(t, writer.Apply(1, changes...))
	for _, row := range []struct {
		name string
		keys watchcore.Range
		want []int
	}{
		{"all", watchcore.RangeAll(), []int{0, 1, 2, 3, 4}},
		{"zero", watchcore.Range{}, []int{0, 1, 2, 3, 4}},
		{"key", watchcore.RangeKey("/a/foo"), []int{0}},
		{"prefix", watchcore.RangePrefix("/a/foo"), []int{0, 1, 2}},
		{"empty prefix", watchcore.RangePrefix(""), []int{0, 1, 2, 3, 4}},
		{"path", watchcore.RangePath("/a/foo"), []int{0, 1}},
		{"range", watchcore.RangeBetween("/a/foobar", "/c"), []int{2, 3}},
		{"open range", watchcore.RangeBetween("/b", ""), []int{3, 4}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var expected []string
			for _, i := range row.want {
				expected = append(expected, "1 ADDED "+keys[i]+" v<- initial")
			}
			sub := subscribe(t, cache, watchcore.SubscribeOptions{Range: row.keys})
			want(t, "events", drain(t, sub), lines(append(expected, "1 BOOKMARK end")...))
			page, err := cache.List(bounded.Context(t), row.keys, watchcore.ListOptions{})
			check(t, err)
			defer page.Release()
			want(t, "items", page.Len(), len(row.want))
			for i, at := range row.want {
				want(t, "item", page.At(i).Key(), keys[at])
			}
		})
	}
}

func TestOptionsOfSubscribe(t *testing.T) {
	cache, writer := embedded(t)
	types := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow(), Types: []watchcore.EventType{watchcore.EventDeleted}})
	raw := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow(), RawTypes: true})
	marks := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow(), Bookmarks: true})
	check(t, writer.Apply(1, watchcore.Put("/a", "1")))
	check(t, writer.Apply(2, watchcore.Delete("/a")))
	want(t, "types", drain(t, types), "2 DELETED /a -<1")
	want(t, "raw", drain(t, raw), lines("1 PUT /a 1<-", "2 DELETE /a -<1"))
	want(t, "events before a mark", drain(t, marks), lines("1 ADDED /a 1<-", "2 DELETED /a -<1"))
	check(t, writer.Progress(7))
	batch, err := marks.Next(bounded.Context(t)) // woken for it by a timer
	check(t, err)
	want(t, "mark", text(batch.At(0)), "7 BOOKMARK")
	batch.Release()

	for name, options := range map[string]watchcore.SubscribeOptions{
		"a type":                     {Types: []watchcore.EventType{99}},
		"a mark":                     {Types: []watchcore.EventType{watchcore.EventBookmark}},
		"a time":                     {Start: watchcore.StartStateAtLeast(1), StartTimeout: -time.Second},
		"an interval":                {Bookmarks: true, BookmarkInterval: -time.Second},
		"an interval without a mark": {BookmarkInterval: time.Second},
		"a batch":                    {MaxBatch: -1},
	} {
		_, err := cache.Subscribe(context.Background(), options)
		wantError(t, name, err, watchcore.ErrInvalidArgument)
	}
}

func TestBatchSizes(t *testing.T) {
	cache, writer := embedded(t)
	parts := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow(), MaxBatch: 2})
	whole := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow(), MaxBatch: 2, WholeRevisions: true})
	check(t, writer.Apply(1, watchcore.Put("/a", ""), watchcore.Put("/b", ""), watchcore.Put("/c", "")))

	batch, err := parts.Next(bounded.Context(t))
	check(t, err)
	want(t, "first part", batch.Len(), 2)
	want(t, "it goes on", batch.Continues(), true)
	want(t, "position inside a revision", batch.Position().Revision, 0)
	batch.Release()
	batch, err = parts.Next(bounded.Context(t))
	check(t, err)
	want(t, "last part", batch.Len(), 1)
	want(t, "it goes on", batch.Continues(), false)
	want(t, "position behind it", batch.Position(), cache.Position())
	batch.Release()

	batch, err = whole.Next(bounded.Context(t))
	check(t, err)
	want(t, "whole revision", batch.Len(), 3)
	batch.Release()
}

func TestResync(t *testing.T) {
	cache, writer := embedded(t)
	check(t, writer.Apply(5, watchcore.Put("/a", "1"), watchcore.Put("/b", "1")))
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	stopping := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow(), StopOnResync: true})
	before := cache.Position()
	position, err := writer.Resync(9, []watchcore.KeyValue{
		{Key: []byte("/b"), Value: []byte("2"), CreateRevision: 5, ModRevision: 8, Version: 2},
	}, watchcore.ReasonTooFarBehind)
	check(t, err)
	want(t, "position", position, cache.Position())
	want(t, "revision", position.Revision, 9)
	if position.Epoch <= before.Epoch {
		t.Fatalf("epoch %d is not above %d", position.Epoch, before.Epoch)
	}
	mark := watchcore.ResyncMark{Phase: watchcore.ResyncBegin, Reason: watchcore.ReasonTooFarBehind, Epoch: position.Epoch, From: 5, To: 9}
	begin := fmt.Sprintf("9 RESYNC %+v", mark)
	mark.Phase = watchcore.ResyncEnd
	want(t, "events", drain(t, sub), lines(
		begin,
		"9 DELETED /a -<1 synthetic",
		"9 MODIFIED /b 2<1 synthetic",
		fmt.Sprintf("9 RESYNC %+v", mark),
	))
	_, err = stopping.Next(bounded.Context(t))
	wantError(t, "stop on resync", err, watchcore.ErrResynced)
	_, err = stopping.Next(bounded.Context(t))
	wantError(t, "behind it", err, watchcore.ErrClosed)
}

func TestLagged(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{Capacity: 1024})
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	var revision uint64
	for cache.Status().Oldest < 2 {
		revision++
		check(t, writer.Apply(revision, watchcore.Put("/a", "")))
	}
	if lag := sub.Lag(); lag.Events == 0 || lag.Revisions == 0 {
		t.Fatalf("no lag is shown: %+v", lag)
	}
	var told []error
	for batch, err := range sub.Batches(bounded.Context(t)) { // ends by itself behind the error
		if batch.Len() != 0 {
			t.Fatalf("%d events came before the loss was told", batch.Len())
		}
		told = append(told, err)
	}
	want(t, "errors", len(told), 1)
	wantError(t, "lagged", told[0], watchcore.ErrLagged)
	var numbers *watchcore.Error
	errors.As(told[0], &numbers)
	want(t, "first lost", numbers.LostFrom, 1)
	want(t, "current", numbers.Current, revision)
	if numbers.LostTo < numbers.LostFrom || numbers.LostTo > revision || numbers.Oldest != numbers.LostTo+1 {
		t.Fatalf("numbers that cannot be: %+v", *numbers)
	}
	want(t, "position", sub.Position().Revision, 0)
}

func TestBatchesReleases(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow(), MaxBatch: 1})
	for revision := uint64(1); revision <= 3; revision++ {
		check(t, writer.Apply(revision, watchcore.Put("/a", "")))
	}
	var seen []uint64
	for batch, err := range sub.Batches(bounded.Context(t)) {
		check(t, err)
		want(t, "batches held in the body", cache.Stats().UnreleasedBatches, 1)
		seen = append(seen, batch.At(0).Revision)
		break
	}
	want(t, "batches held after break", cache.Stats().UnreleasedBatches, 0)
	func() {
		defer func() { want(t, "panic", recover(), any("mine")) }()
		for batch := range sub.Batches(bounded.Context(t)) {
			seen = append(seen, batch.At(0).Revision)
			panic("mine")
		}
	}()
	want(t, "batches held after a panic", cache.Stats().UnreleasedBatches, 0)
	for batch, err := range sub.Batches(bounded.Context(t)) {
		check(t, err)
		seen = append(seen, batch.At(0).Revision)
		writer.Close()
		cache.Close() // the sequence ends without an error
	}
	want(t, "revisions", fmt.Sprint(seen), "[1 2 3]")
	_, err := sub.Next(bounded.Context(t))
	wantError(t, "next behind the end", err, watchcore.ErrClosed)
}

func TestCacheCloseHandsOutTheRest(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	check(t, writer.Apply(1, watchcore.Put("/a", "1")))
	cache.Close()
	batch, err := sub.Next(bounded.Context(t))
	check(t, err)
	want(t, "the rest", text(batch.At(0)), "1 ADDED /a 1<-")
	_, err = sub.Next(bounded.Context(t))
	wantError(t, "behind it", err, watchcore.ErrClosed)
	sub.Close()
	want(t, "a batch after everything was closed", text(batch.At(0)), "1 ADDED /a 1<-")
	batch.Release()
}

func TestSecondConsumerIsRefused(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	inside := make(chan *watchcore.Batch)
	go func() {
		batch, _ := sub.Next(context.Background())
		inside <- batch
	}()
	bounded.Eventually(t, "the first sleeps", func() bool { return cache.Stats().Waiting == 1 })
	_, err := sub.Next(bounded.Context(t))
	wantError(t, "second Next", err, watchcore.ErrBusy)
	_, err = sub.Poll(0)
	wantError(t, "Poll beside Next", err, watchcore.ErrBusy)
	want(t, "position beside Next", sub.Position().Revision, 0)
	check(t, writer.Apply(1, watchcore.Put("/a", "1")))
	batch := bounded.Receive(t, "what the first got", inside)
	want(t, "what the first got", batch.Len(), 1)
	batch.Release()
}
