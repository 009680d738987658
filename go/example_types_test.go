package watchcore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
)

// A service: it follows etcd, and is ready once the first listing is there.
func ExampleOpen() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cache, err := watchcore.Open(ctx, watchcore.EtcdConfig{
		Endpoints: []string{"https://10.0.0.1:2379", "https://10.0.0.2:2379"},
		TLS:       watchcore.TLSConfig{CAFile: "/etc/etcd/ca.crt", CertFile: "/etc/etcd/client.crt", KeyFile: "/etc/etcd/client.key"},
	}, watchcore.Config{Prefix: "/registry/"})
	if err != nil {
		log.Fatal(err) // the context's error, and why etcd did not answer
	}
	defer cache.Close()
	// Read your own writes: at least what etcd has committed now.
	revision, err := cache.ConsistentRevision(ctx)
	if err != nil {
		log.Fatal(err)
	}
	kv, _, err := cache.Get(ctx, "/registry/pods/a", watchcore.ReadOptions{Read: watchcore.ReadAtLeast(revision)})
	fmt.Println(kv, err)
}

// A feeder that starts when somebody is subscribed already: nothing of the history is missed.
func ExampleCache_StartFeeder() {
	cache, err := watchcore.New(watchcore.Config{Prefix: "/registry/", ExpectLoad: true})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	sub, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Start: watchcore.StartAfter(1000)})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	err = cache.StartFeeder(watchcore.EtcdConfig{
		Endpoints:     []string{"http://127.0.0.1:2379"},
		StartRevision: 1000,
		Pace:          sub,
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A cache that knows what its subscriptions ask for.
func ExampleConfig() {
	cache, err := watchcore.New(watchcore.Config{
		Prefix:   "/registry/",
		Name:     "registry",
		Capacity: 4096,
		Fields: []watchcore.Attribute{
			watchcore.AttributeJSON("spec.nodeName", "/spec/nodeName"),
			watchcore.AttributeKeySegment("namespace", 2),
		},
		Labels:  watchcore.LabelsJSON("/metadata/labels"),
		Indexes: []watchcore.Index{watchcore.IndexByKey(), watchcore.IndexByField("spec.nodeName")},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	sub, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{
		Start:         watchcore.StartNow(),
		FieldSelector: "spec.nodeName=node-7",
	})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	writer, err := cache.Writer()
	if err != nil {
		log.Fatal(err)
	}
	defer writer.Close()
	// The writer answers at its next revision which bucket of the index it is.
	for revision := uint64(1); revision <= 3; revision++ {
		if err := writer.Apply(revision, watchcore.Put("/registry/pods/default/a", `{"spec":{"nodeName":"node-7"}}`)); err != nil {
			log.Fatal(err)
		}
		batch, err := sub.Poll(0)
		if err != nil {
			log.Fatal(err)
		}
		batch.Release()
	}
	fmt.Println(cache.Name(), cache.Prefix(), sub.Stats().ReadPath, sub.Stats().Index)
	// Output: registry /registry/ Chain field spec.nodeName
}

// What is refused names the field.
func ExampleConfig_refused() {
	_, err := watchcore.New(watchcore.Config{Capacity: -1})
	fmt.Println(errors.Is(err, watchcore.ErrInvalidArgument))
	fmt.Println(err)
	// Output:
	// true
	// watchcore: Config.Capacity is -1: it cannot be negative. Give 0 for the default
}

// All changes of one revision become visible together.
func ExampleWriter_Apply() {
	cache, err := watchcore.New(watchcore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	writer, err := cache.Writer()
	if err != nil {
		log.Fatal(err)
	}
	defer writer.Close()
	if err := writer.Apply(5, watchcore.Put("/a", "1"), watchcore.Put("/b", []byte("2"))); err != nil {
		log.Fatal(err)
	}
	if err := writer.Apply(6, watchcore.Delete("/a")); err != nil {
		log.Fatal(err)
	}
	err = writer.Apply(6, watchcore.Put("/c", "3")) // a revision must rise
	fmt.Println(errors.Is(err, watchcore.ErrOutOfOrder), cache.Revision(), cache.Ready())
	// Output: true 6 true
}

// What each mode of a read answers.
func ExampleReadOptions() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	ctx := context.Background()
	for _, options := range []watchcore.ReadOptions{
		{}, // what is there now
		{Read: watchcore.ReadExact(2)},
		{Read: watchcore.ReadAtLeast(99), WaitTimeout: time.Millisecond},
	} {
		count, at, err := cache.Count(ctx, watchcore.RangePrefix("/pods/"), options)
		var e *watchcore.Error
		if errors.As(err, &e) {
			fmt.Println("asked for", e.Asked, "the cache is at", e.Current, errors.Is(err, watchcore.ErrFutureRevision))
			continue
		}
		fmt.Println(count, "keys at", at)
	}
	// Output:
	// 2 keys at 4
	// 2 keys at 2
	// asked for 99 the cache is at 4 true
}

func ExampleRange() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	for _, keys := range []watchcore.Range{
		watchcore.RangeAll(),
		watchcore.RangeKey("/pods/a"),
		watchcore.RangePrefix("/pod"),
		watchcore.RangePath("/pods"),
		watchcore.RangeBetween("/nodes/", "/pods/b"),
		watchcore.RangeNone(),
	} {
		count, _, err := cache.Count(context.Background(), keys, watchcore.ReadOptions{})
		fmt.Println(count, err)
	}
	// Output:
	// 3 <nil>
	// 1 <nil>
	// 2 <nil>
	// 2 <nil>
	// 2 <nil>
	// 0 <nil>
}

// Items may be kept by Clone, or by what Key and Value return.
func ExamplePage() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	page, err := cache.List(context.Background(), watchcore.RangePrefix("/pods/"), watchcore.ListOptions{})
	if err != nil {
		log.Fatal(err)
	}
	first := page.At(0).Clone()
	fmt.Println(page.Len(), "items of revision", page.Revision())
	page.Release()
	fmt.Printf("%s is of revision %d, changed %d times\n", first.Key, first.ModRevision, first.Version-1)
	// Output:
	// 2 items of revision 4
	// /pods/a is of revision 4, changed 1 times
}

// A batch that is kept is a clone: one allocation, and nothing to release.
func ExampleBatch_Clone() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	sub, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Start: watchcore.StartAfter(2)})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	var kept []*watchcore.Batch
	batch, err := sub.Poll(0)
	if err != nil {
		log.Fatal(err)
	}
	kept = append(kept, batch.Clone())
	batch.Release()
	for e := range kept[0].Events() {
		fmt.Println(e.Type, e.Key())
	}
	// Output:
	// ADDED /nodes/x
	// MODIFIED /pods/a
}

func ExampleSnapshot_Range() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	snapshot, err := cache.Snapshot()
	if err != nil {
		log.Fatal(err)
	}
	defer snapshot.Close()
	count, err := snapshot.Count(watchcore.RangeAll(), watchcore.SelectOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(count, "keys at", snapshot.Revision())
	for item, err := range snapshot.Range(watchcore.RangeBetween("/pods/b", ""), watchcore.SelectOptions{}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(item.Key(), item.CreateRevision(), item.Version())
	}
	// Output:
	// 3 keys at 4
	// /pods/b 2 1
}

// A replaced history: what differs comes as one revision between two marks.
func ExampleResyncMark() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	sub, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	_, err = writer.Resync(9, []watchcore.KeyValue{
		{Key: []byte("/pods/c"), Value: []byte("1"), CreateRevision: 8, ModRevision: 8, Version: 1},
	}, watchcore.ReasonHistoryReset)
	if err != nil {
		log.Fatal(err)
	}
	batch, err := sub.Poll(0)
	if err != nil {
		log.Fatal(err)
	}
	defer batch.Release()
	for e := range batch.Events() {
		if e.Type == watchcore.EventResync {
			mark := e.Resync()
			fmt.Println(mark.Phase, mark.Reason, "from", mark.From, "to", mark.To)
			continue
		}
		fmt.Println(e.Type, e.Key(), e.Synthetic())
	}
	// Output:
	// Begin HistoryReset from 4 to 9
	// DELETED /nodes/x true
	// DELETED /pods/a true
	// DELETED /pods/b true
	// ADDED /pods/c true
	// End HistoryReset from 4 to 9
}

// How a cache stands, and what it holds.
func ExampleCache_Status() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	status, stats := cache.Status(), cache.Stats()
	fmt.Println(status.State, status.Position.Revision, status.Oldest, status.Objects, status.LastError == nil)
	fmt.Println(stats.Events, stats.Revisions, stats.UnreleasedBatches)
	// Output:
	// Ready 4 1 3 true
	// 4 4 0
}

func ExampleSubscription_Lag() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	sub, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Start: watchcore.StartAfter(1)})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	lag := sub.Lag()
	fmt.Println(lag.Events, "events of", lag.Revisions, "revisions")
	// Output: 3 events of 3 revisions
}

// A code is an error: it is what errors.Is is asked for.
func ExampleCode() {
	err := fmt.Errorf("list pods: %w", &watchcore.Error{Code: watchcore.ErrCompacted, Message: "too old"})
	fmt.Println(errors.Is(err, watchcore.ErrCompacted), err)
	fmt.Println(watchcore.ErrCompacted.Name(), watchcore.ErrCompacted.HTTPStatus(), watchcore.ErrCompacted.Retryable())
	// Output:
	// true list pods: watchcore: too old
	// COMPACTED 410 false
}

// The library's messages as JSON, warnings and errors only.
func ExampleSetLogger() {
	handler := slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})
	if err := watchcore.SetLogger(slog.New(handler)); err != nil {
		log.Fatal(err)
	}
	defer watchcore.SetLogger(nil) // slog.Default() again
}

// What has a Close is an io.Closer.
var (
	_ io.Closer = (*watchcore.Cache)(nil)
	_ io.Closer = (*watchcore.Subscription)(nil)
	_ io.Closer = (*watchcore.Snapshot)(nil)
	_ io.Closer = (*watchcore.Writer)(nil)
	_ io.Closer = (*watchcore.Loading)(nil)
)
