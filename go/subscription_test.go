package watchcore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

func TestOptionsThatAreRefused(t *testing.T) {
	cache, _ := embedded(t)
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

// Resync answers the position that it made, which its marks have, too.
func TestPositionOfAResync(t *testing.T) {
	cache, writer := embedded(t)
	check(t, writer.Apply(5, watchcore.Put("/a", "1")))
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	before := cache.Position()
	position, err := writer.Resync(9, nil, watchcore.ReasonTooFarBehind)
	check(t, err)
	want(t, "position", position, cache.Position())
	want(t, "a later epoch", position.Epoch > before.Epoch, true)
	mark := watchcore.ResyncMark{Phase: watchcore.ResyncBegin, Reason: watchcore.ReasonTooFarBehind, Epoch: position.Epoch, From: 5, To: 9}
	batch := oneBatch(t, sub)
	defer batch.Release()
	want(t, "the first mark", batch.At(0).Resync(), mark)
	mark.Phase = watchcore.ResyncEnd
	want(t, "the last mark", batch.At(batch.Len()-1).Resync(), mark)
}

// A sequence of batches ends by itself after a loss that ends its subscription.
func TestBatchesEndBehindALoss(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{Capacity: 128})
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	writeOn(t, cache, writer, 1000)
	var told []error
	for batch, err := range sub.Batches(bounded.Context(t)) {
		want(t, "batch beside an error", batch, nil)
		told = append(told, err)
	}
	want(t, "errors", len(told), 1)
	wantError(t, "lagged", told[0], watchcore.ErrLagged)
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
