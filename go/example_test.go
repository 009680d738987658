package watchcore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"

	watchcore "github.com/watchcore/watchcore/go"
)

// The state first, then what follows, without a gap between the two.
func Example() {
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
	if err := writer.Apply(17, watchcore.Put("/a", "1"), watchcore.Put("/b", "2")); err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	sub, err := cache.Subscribe(ctx, watchcore.SubscribeOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	if err := writer.Apply(18, watchcore.Put("/a", "3"), watchcore.Delete("/b")); err != nil {
		log.Fatal(err)
	}
	cache.Close() // the subscription hands out what is left, then ends

	for batch, err := range sub.Batches(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		for e := range batch.Events() {
			if e.EndsInitialState() {
				fmt.Println(e.Revision, "that was the state")
				continue
			}
			fmt.Printf("%d %v %s = %q, before %q\n", e.Revision, e.Type, e.Key(), e.Value(), e.PrevValue())
		}
	}
	// Output:
	// 17 ADDED /a = "1", before ""
	// 17 ADDED /b = "2", before ""
	// 17 that was the state
	// 18 MODIFIED /a = "3", before "1"
	// 18 DELETED /b = "", before "2"
}

// A listing that comes page by page is in memory once, in the cache.
func ExampleWriter_BeginLoad() {
	cache, err := watchcore.New(watchcore.Config{Prefix: "/", ExpectLoad: true})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	writer, err := cache.Writer()
	if err != nil {
		log.Fatal(err)
	}
	defer writer.Close()

	loading, err := writer.BeginLoad(40)
	if err != nil {
		log.Fatal(err)
	}
	defer loading.Close() // after a Finish it does nothing
	for page := range 3 {
		key := fmt.Sprintf("/page/%d", page)
		kv := watchcore.KeyValue{Key: []byte(key), Value: []byte("x"), CreateRevision: 30, ModRevision: 31, Version: 2}
		if err := loading.Add(kv); err != nil {
			log.Fatal(err)
		}
	}
	if err := loading.Finish(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(cache.Position().Revision, cache.Status().Objects)
	// Output: 40 3
}

// filled is the cache of the examples: "/pods/a", "/pods/b" and "/nodes/x", and
// one change of each revision up to 4.
func filled() (*watchcore.Cache, *watchcore.Writer) {
	cache, err := watchcore.New(watchcore.Config{Prefix: "/"})
	if err != nil {
		log.Fatal(err)
	}
	writer, err := cache.Writer()
	if err != nil {
		log.Fatal(err)
	}
	for revision, change := range []watchcore.Change{
		watchcore.Put("/pods/a", "1"),
		watchcore.Put("/pods/b", "1"),
		watchcore.Put("/nodes/x", "1"),
		watchcore.Put("/pods/a", "2"),
	} {
		if err := writer.Apply(uint64(revision+1), change); err != nil {
			log.Fatal(err)
		}
	}
	return cache, writer
}

func ExampleCache_Subscribe() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()

	sub, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{
		Start: watchcore.StartAfter(1),
		Range: watchcore.RangePrefix("/pods/"),
		Types: []watchcore.EventType{watchcore.EventModified},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	batch, err := sub.Poll(0) // never waits
	if err != nil {
		log.Fatal(err)
	}
	defer batch.Release()
	for e := range batch.Events() {
		fmt.Println(e.Revision, e.Type, e.Key(), string(e.Value()))
	}
	fmt.Println("position", sub.Position().Revision)
	// Output:
	// 4 MODIFIED /pods/a 2
	// position 4
}

// Save the position, and go on from there: also in another process, as long as
// the window reaches back so far.
func ExampleStartAfterPosition() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	saved := watchcore.Position{Epoch: cache.Position().Epoch, Revision: 2}

	sub, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Start: watchcore.StartAfterPosition(saved)})
	if errors.Is(err, watchcore.ErrCompacted) {
		sub, err = cache.Subscribe(context.Background(), watchcore.SubscribeOptions{}) // too old: from the state
	}
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	batch, err := sub.Next(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	defer batch.Release()
	for e := range batch.Events() {
		fmt.Println(e.Revision, e.Type, e.Key())
	}
	// Output:
	// 3 ADDED /nodes/x
	// 4 MODIFIED /pods/a
}

// A copy of the state: what Key and Value return may be kept.
func ExampleEvent_Value() {
	cache, writer := filled()
	defer writer.Close()
	sub, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Range: watchcore.RangePrefix("/pods/")})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	cache.Close() // so that the loop ends
	state := map[string][]byte{}
	for batch, err := range sub.Batches(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		for e := range batch.Events() {
			switch e.Type {
			case watchcore.EventAdded, watchcore.EventModified:
				state[e.Key()] = e.Value()
			case watchcore.EventDeleted:
				delete(state, e.Key())
			}
		}
	}
	fmt.Printf("%s\n", state)
	// Output:
	// map[/pods/a:2 /pods/b:1]
}

// What is only looked at need not be copied: a view is valid until its batch is
// released, here at the end of the loop's body.
func ExampleEvent_ValueView() {
	cache, writer := filled()
	defer writer.Close()
	sub, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Range: watchcore.RangePrefix("/pods/")})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	cache.Close() // so that the loop ends
	bytes := 0
	for batch, err := range sub.Batches(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		for e := range batch.Events() {
			bytes += len(e.KeyView()) + len(e.ValueView())
		}
	}
	fmt.Println(bytes)
	// Output:
	// 16
}

func ExampleSubscription_ResultChan() {
	cache, writer := filled()
	defer writer.Close()
	sub, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Range: watchcore.RangeKey("/pods/a")})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Stop()
	cache.Close() // so that the channel ends
	for result := range sub.ResultChan() {
		if result.Err != nil {
			log.Fatal(result.Err)
		}
		fmt.Println(result.Event.Revision, result.Event.Type, result.Event.Key())
	}
	// Output:
	// 4 ADDED /pods/a
	// 4 BOOKMARK
}

func ExampleCache_Get() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	ctx := context.Background()
	for _, read := range []watchcore.Read{watchcore.ReadAny(), watchcore.ReadExact(2), watchcore.ReadAtLeast(4)} {
		kv, at, err := cache.Get(ctx, "/pods/a", watchcore.ReadOptions{Read: read})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s at %d, of revision %d\n", kv.Value, at, kv.ModRevision)
	}
	kv, at, err := cache.Get(ctx, "/none", watchcore.ReadOptions{})
	fmt.Println(kv == nil, at, err)
	// Output:
	// 2 at 4, of revision 4
	// 1 at 2, of revision 1
	// 2 at 4, of revision 4
	// true 4 <nil>
}

func ExampleCache_GetInto() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	var kv watchcore.KeyValue // the memory of all gets
	for _, key := range []string{"/pods/a", "/none", "/pods/b"} {
		found, at, err := cache.GetInto(context.Background(), key, watchcore.ReadOptions{}, &kv)
		if err != nil {
			log.Fatal(err)
		}
		if found {
			fmt.Printf("%s = %s\n", kv.Key, kv.Value)
		} else {
			fmt.Printf("no %s at %d\n", key, at)
		}
	}
	// Output:
	// /pods/a = 2
	// no /none at 4
	// /pods/b = 1
}

func ExampleCache_GetView() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	var first byte
	found, at, err := cache.GetView(context.Background(), "/pods/a", watchcore.ReadOptions{}, func(kv watchcore.KeyValue) {
		first = kv.Value[0] // the library's memory: what is kept is copied here
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(found, at, string(first))
	// Output:
	// true 4 2
}

func ExampleCache_List() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	page, err := cache.List(context.Background(), watchcore.RangeAll(), watchcore.ListOptions{Read: watchcore.ReadExact(3), Limit: 2})
	if err != nil {
		log.Fatal(err)
	}
	defer page.Release()
	for kv := range page.All() {
		fmt.Println(kv.Key(), string(kv.Value()))
	}
	fmt.Println("more:", page.More(), "remaining:", page.Remaining(), "revision:", page.Revision())
	// Output:
	// /nodes/x 1
	// /pods/a 1
	// more: true remaining: 1 revision: 3
}

func ExampleCache_Snapshot() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	snapshot, err := cache.Snapshot()
	if err != nil {
		log.Fatal(err)
	}
	defer snapshot.Close()
	if err := writer.Apply(5, watchcore.Delete("/pods/a")); err != nil {
		log.Fatal(err)
	}
	for kv, err := range snapshot.Range(watchcore.RangePrefix("/pods/"), watchcore.SelectOptions{}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(kv.Key(), string(kv.Value()))
	}
	// Output:
	// /pods/a 2
	// /pods/b 1
}

// What is refused says why, with the numbers.
func ExampleError() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	if err := writer.Compact(3); err != nil {
		log.Fatal(err)
	}
	_, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Start: watchcore.StartAfter(1)})
	var e *watchcore.Error
	if errors.Is(err, watchcore.ErrCompacted) && errors.As(err, &e) {
		fmt.Println(e.Code.Name(), e.Asked, e.Oldest, e.Current, e.Code.Retryable())
	}
	// Output: COMPACTED 1 4 4 false
}

func ExampleSubscribeOptions() {
	cache, err := watchcore.New(watchcore.Config{
		Labels:  watchcore.LabelsJSON("/labels"),
		Fields:  []watchcore.Attribute{watchcore.AttributeJSON("phase", "/phase")},
		Indexes: []watchcore.Index{watchcore.IndexByLabel("app")},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	writer, err := cache.Writer()
	if err != nil {
		log.Fatal(err)
	}
	defer writer.Close()
	sub, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{
		Start:         watchcore.StartNow(),
		LabelSelector: "app=web",
		FieldSelector: "phase!=Failed",
	})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	for revision, value := range []string{
		`{"labels":{"app":"web"},"phase":"Running"}`,
		`{"labels":{"app":"web"},"phase":"Failed"}`, // it leaves the filter
		`{"labels":{"app":"db"},"phase":"Running"}`, // not of interest
	} {
		if err := writer.Apply(uint64(revision+1), watchcore.Put("/pods/a", value)); err != nil {
			log.Fatal(err)
		}
	}
	batch, err := sub.Poll(0)
	if err != nil {
		log.Fatal(err)
	}
	defer batch.Release()
	for e := range batch.Events() {
		fmt.Println(e.Revision, e.Type, e.Key())
	}
	_, err = cache.Subscribe(context.Background(), watchcore.SubscribeOptions{LabelSelector: "app in (web"})
	fmt.Println(errors.Is(err, watchcore.ErrInvalidArgument))
	// Output:
	// 1 ADDED /pods/a
	// 2 DELETED /pods/a
	// true
}

// A consumer that falls behind is told what it lost, and then what it takes to have
// the state again.
func ExampleLagPolicy() {
	cache, err := watchcore.New(watchcore.Config{Capacity: 128})
	if err != nil {
		log.Fatal(err)
	}
	writer, err := cache.Writer()
	if err != nil {
		log.Fatal(err)
	}
	defer writer.Close()
	ctx := context.Background()
	sub, err := cache.Subscribe(ctx, watchcore.SubscribeOptions{Start: watchcore.StartNow(), OnLag: watchcore.LagResnapshot})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	for revision := uint64(1); revision <= 1000; revision++ {
		if err := writer.Apply(revision, watchcore.Put("/a", fmt.Sprint(revision))); err != nil {
			log.Fatal(err)
		}
	}
	cache.Close() // so that the loop ends

	for batch, err := range sub.Batches(ctx) {
		var lost *watchcore.Error
		if errors.Is(err, watchcore.ErrLagged) && errors.As(err, &lost) {
			fmt.Println("lost from revision", lost.LostFrom)
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		for e := range batch.Events() {
			if e.Type == watchcore.EventResync {
				fmt.Println(e.Resync().Phase == watchcore.ResyncBegin, e.Resync().Reason == watchcore.ReasonLagged)
				continue
			}
			fmt.Println(e.Type, e.Key(), string(e.Value()))
		}
	}
	// Output:
	// lost from revision 1
	// true true
	// ADDED /a 1000
	// false true
}

// Page by page, all of one revision.
func ExampleListOptions() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	ctx := context.Background()
	for token := ""; ; {
		page, err := cache.List(ctx, watchcore.RangeAll(), watchcore.ListOptions{Limit: 2, Continue: token})
		var e *watchcore.Error
		if errors.As(err, &e) && e.Continue != "" {
			token = e.Continue // the revision has left the window: the rest is of a newer one
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		for kv := range page.All() {
			fmt.Println(kv.Key(), string(kv.Value()))
		}
		fmt.Println("revision", page.Revision(), "more", page.More())
		token = page.Continue()
		page.Release()
		if token == "" {
			break
		}
	}
	// Output:
	// /nodes/x 1
	// /pods/a 2
	// revision 4 more true
	// /pods/b 1
	// revision 4 more false
}

func ExampleCache_Diff() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	batch, err := cache.Diff(watchcore.Position{Revision: 1}, cache.Position(), watchcore.DiffOptions{Range: watchcore.RangePrefix("/pods/")})
	if err != nil {
		log.Fatal(err)
	}
	defer batch.Release()
	for e := range batch.Events() {
		fmt.Printf("%d %v %s %s, before %q\n", e.Revision, e.Type, e.Key(), e.Value(), e.PrevValue())
	}
	// Output:
	// 4 MODIFIED /pods/a 2, before "1"
	// 2 ADDED /pods/b 1, before ""
}

// Two consumers, one decoding.
func ExampleDecoder() {
	type object struct{ Name string }
	decoder := watchcore.NewDecoder(func(key, value []byte) (*object, error) {
		fmt.Printf("decoding %s\n", key)
		made := &object{}
		return made, json.Unmarshal(value, made)
	}, 1000)

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
	if err := writer.Apply(1, watchcore.Put("/good", `{"Name":"mine"}`), watchcore.Put("/poor", "no JSON")); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		sub, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Start: watchcore.StartAfter(0)})
		if err != nil {
			log.Fatal(err)
		}
		batch, err := sub.Poll(0)
		if err != nil {
			log.Fatal(err)
		}
		for e := range batch.Events() {
			value, err := decoder.Value(e)
			fmt.Println(e.Key(), value.Name, err != nil)
		}
		batch.Release()
		sub.Close()
	}
	// Output:
	// decoding /good
	// /good mine false
	// decoding /poor
	// /poor  true
	// /good mine false
	// /poor  true
}

// Who is subscribed, and how far behind is each: also one that nobody reads.
func ExampleCache_Subscriptions() {
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
	sub, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Start: watchcore.StartNow(), Name: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	if err := writer.Apply(1, watchcore.Put("/a", "1"), watchcore.Put("/b", "2")); err != nil {
		log.Fatal(err)
	}
	for _, info := range cache.Subscriptions() {
		fmt.Println(info.ID, info.Name, info.State, info.Lag.Events, info.LastPoll.IsZero())
	}
	// Output: 1 billing Live 2 true
}
