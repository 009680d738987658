package informer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/informer"
	"github.com/watchcore/watchcore/go/watch"
	"github.com/watchcore/watchcore/go/workqueue"
)

type Pod struct {
	Node  string `json:"node"`
	Phase string `json:"phase"`
}

func decodePod(_ string, value []byte) (*Pod, error) {
	pod := new(Pod)
	return pod, json.Unmarshal(value, pod)
}

// cluster is a cache with three pods, as Open would give it.
func cluster() (*watchcore.Cache, *watchcore.Writer) {
	cache, err := watchcore.New(watchcore.Config{Name: "pods", Labels: watchcore.LabelsJSON("/labels")})
	if err != nil {
		log.Fatal(err)
	}
	writer, err := cache.Writer()
	if err != nil {
		log.Fatal(err)
	}
	err = writer.Apply(1,
		watchcore.Put("/pods/red/a", `{"node":"n1","phase":"Running","labels":{"app":"web"}}`),
		watchcore.Put("/pods/red/b", `{"node":"n2","phase":"Pending","labels":{"app":"db"}}`),
		watchcore.Put("/pods/blue/a", `{"node":"n1","phase":"Running","labels":{"app":"web"}}`))
	if err != nil {
		log.Fatal(err)
	}
	return cache, writer
}

// The whole of it: an informer with an index, a handler, and a read of one's own write.
func Example() {
	ctx := context.Background()
	cache, writer := cluster()
	defer cache.Close()

	pods, err := informer.New(cache, decodePod, informer.Options[*Pod]{
		Indexers: informer.Indexers[*Pod]{"node": func(o *informer.Object[*Pod]) []string { return []string{o.Value.Node} }},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer pods.Stop()
	reg, err := pods.AddHandler(informer.HandlerFuncs[*Pod]{
		Update: func(old, new *informer.Object[*Pod]) {
			fmt.Println(new.Key, "was", old.Value.Phase, "and is", new.Value.Phase)
		},
		Delete: func(last *informer.Object[*Pod]) { fmt.Println(last.Key, "was", last.Value.Phase, "and is gone") },
	}, informer.HandlerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	if err := informer.WaitForSync(ctx, pods, reg); err != nil {
		log.Fatal(err)
	}
	onNode, _ := pods.Lister().ByIndex("node", "n1")
	fmt.Println(len(onNode), "on n1")

	_ = writer.Apply(2, watchcore.Put("/pods/red/b", `{"node":"n1","phase":"Running"}`))
	_ = pods.WaitUntil(ctx, 2) // read what was just written
	onNode, _ = pods.Lister().ByIndex("node", "n1")
	fmt.Println(len(onNode), "on n1")

	_ = writer.Apply(3, watchcore.Delete("/pods/red/b"))
	cache.Close() // what it has handed out is still given
	<-reg.Done()
	// Unordered output:
	// 2 on n1
	// 3 on n1
	// /pods/red/b was Pending and is Running
	// /pods/red/b was Running and is gone
}

// made is an informer that is synced.
func made(options informer.Options[*Pod]) (*informer.Informer[*Pod], *watchcore.Cache, *watchcore.Writer) {
	cache, writer := cluster()
	pods, err := informer.New(cache, decodePod, options)
	if err != nil {
		log.Fatal(err)
	}
	if err := pods.WaitSynced(context.Background()); err != nil {
		log.Fatal(err)
	}
	return pods, cache, writer
}

func ExampleLister() {
	pods, cache, _ := made(informer.Options[*Pod]{NamespaceSegment: 1})
	defer cache.Close()
	lister := pods.Lister()
	pod, found := lister.Get("/pods/red/a")
	fmt.Println(found, pod.Value.Phase, "at revision", pod.Revision)
	fmt.Println(lister.Len(), "pods,", len(lister.Namespace("red")), "of them in red")
	web, err := lister.SelectLabels(context.Background(), "app=web")
	if err != nil {
		log.Fatal(err)
	}
	for _, pod := range web {
		fmt.Println(pod.Key)
	}
	// Output:
	// true Running at revision 1
	// 3 pods, 2 of them in red
	// /pods/blue/a
	// /pods/red/a
}

// What is added while a lister that stays is read does not show in it.
func ExampleInformer_Current() {
	ctx := context.Background()
	pods, cache, writer := made(informer.Options[*Pod]{})
	defer cache.Close()
	now := pods.Current()
	_ = writer.Apply(2, watchcore.Put("/pods/red/c", `{}`))
	_ = pods.WaitUntil(ctx, 2)
	fmt.Println(now.Len(), "then,", pods.Lister().Len(), "now")
	// Output: 3 then, 4 now
}

func ExampleIndexers() {
	pods, cache, _ := made(informer.Options[*Pod]{})
	defer cache.Close()
	err := pods.AddIndexers(informer.Indexers[*Pod]{
		"phase":                 func(o *informer.Object[*Pod]) []string { return []string{o.Value.Phase} },
		informer.NamespaceIndex: informer.ByKeySegment[*Pod](1), // makes Lister.Namespace fast
	})
	if err != nil {
		log.Fatal(err)
	}
	phases, _ := pods.Lister().IndexValues("phase")
	pending, _ := pods.Lister().ByIndex("phase", "Pending")
	fmt.Println(phases, pending[0].Key)
	// Output: [Pending Running] /pods/red/b
}

// Two informers of one cache, at one revision: what one says of the other holds.
func ExampleSameRevision() {
	ctx := context.Background()
	pods, cache, _ := made(informer.Options[*Pod]{})
	defer cache.Close()
	running, err := informer.New(cache, func(key string, _ []byte) (string, error) { return key, nil },
		informer.Options[string]{LabelSelector: "app=web"})
	if err != nil {
		log.Fatal(err)
	}
	both, err := informer.SameRevision(ctx, pods, running)
	if err != nil {
		log.Fatal(err)
	}
	all, _ := pods.At(both)
	web, _ := running.At(both)
	fmt.Println(all.Len(), "pods,", web.Len(), "of them web, at revision", both.Position().Revision)
	// Output: 3 pods, 2 of them web, at revision 1
}

// A Registration says how a handler stands; waiting for its removal inside its own callback
// would never end, and is refused.
func ExampleRegistration() {
	ctx := context.Background()
	pods, cache, _ := made(informer.Options[*Pod]{})
	defer cache.Close()
	var reg *informer.Registration
	registered := make(chan struct{})
	reg, _ = pods.AddHandler(informer.HandlerFuncs[*Pod]{Add: func(o *informer.Object[*Pod], isInInitialList bool) {
		<-registered
		if err := reg.RemoveAndWait(ctx); errors.Is(err, watchcore.ErrBusy) && o.Key == "/pods/red/a" {
			fmt.Println("refused")
		}
	}}, informer.HandlerOptions{Name: "counter", ResyncPeriod: time.Hour})
	close(registered)
	_ = reg.WaitSynced(ctx)
	status := reg.Status()
	fmt.Println(status.Name, "has handled", status.Handled)
	_ = reg.RemoveAndWait(ctx) // from here on no callback runs
	// Output:
	// refused
	// counter has handled 3
}

// What the decoder refuses is reported; the object's last good value stays.
func ExampleDecodeError() {
	reported := make(chan error, 1)
	pods, cache, writer := made(informer.Options[*Pod]{OnError: func(err error) { reported <- err }})
	defer cache.Close()
	_ = writer.Apply(2, watchcore.Put("/pods/red/a", `{"node":`))
	var refused *informer.DecodeError
	is := errors.As(<-reported, &refused)
	fmt.Println(is, refused.Key, refused.Revision)
	pod, _ := pods.Lister().Get("/pods/red/a")
	fmt.Println(pod.Value.Phase)
	// Output:
	// true /pods/red/a 2
	// Running
}

func ExampleEnqueueKeys() {
	ctx := context.Background()
	pods, cache, _ := made(informer.Options[*Pod]{})
	defer cache.Close()
	queue := workqueue.New(workqueue.Options[string]{})
	reg, _ := pods.AddHandler(informer.EnqueueKeys[*Pod](queue), informer.HandlerOptions{})
	_ = reg.WaitSynced(ctx)
	fmt.Println(queue.Len(), "keys to look at")
	// Output: 3 keys to look at
}

// shop is a server with a list that never changes, such as a test has.
type shop struct{}

func (shop) List(context.Context, watch.ListRequest) (watch.ListPage[Pod], error) {
	return watch.ListPage[Pod]{Items: []watch.Item[Pod]{{Object: Pod{Node: "n1", Phase: "Running"}, Revision: 3}}, Revision: 7}, nil
}

func (shop) Watch(_ context.Context, after uint64) (watch.Interface[Pod], error) {
	w := watch.NewFakeWithChanSize[Pod](1, false)
	return w, w.Send(watch.Event[Pod]{Type: watch.Modified, Object: Pod{Node: "n1", Phase: "Failed"}, Revision: after + 1})
}

// An informer of anything that can be listed and watched.
func ExampleNewFromSource() {
	ctx := context.Background()
	pods, err := informer.NewFromSource(shop{}, func(pod Pod) string { return pod.Node }, informer.Options[Pod]{})
	if err != nil {
		log.Fatal(err)
	}
	defer pods.Stop()
	_ = pods.WaitUntil(ctx, 8)
	pod, _ := pods.Lister().Get("n1")
	fmt.Println(pod.Value.Phase, "at revision", pod.Revision)
	// Output: Failed at revision 8
}

// An informer is a watch, too: the state, Synced, and what follows.
func ExampleInformer_Watch() {
	ctx := context.Background()
	pods, cache, writer := made(informer.Options[*Pod]{})
	defer cache.Close()
	running := func(e watch.Event[*informer.Object[*Pod]]) (bool, error) {
		return e.Object != nil && e.Object.Key == "/pods/red/b" && e.Object.Value.Phase == "Running", nil
	}
	w, _ := pods.Watch(ctx)
	_ = writer.Apply(2, watchcore.Put("/pods/red/b", `{"phase":"Running"}`))
	e, err := watch.UntilWithoutRetry(ctx, w, running)
	fmt.Println(e.Type, e.Old.Value.Phase, err)
	// Output: MODIFIED Pending <nil>
}
