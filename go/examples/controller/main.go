// Controller keeps as many instances of each application as requested: /demo/apps/NAME has the
// number, and /demo/pods/NAME-0 to NAME-9 are the instances. Like every controller it consists of
// two informers, a work queue, and a function that compares the wanted state with the present one.
//
//	scripts/with-etcd.sh bash -c 'cd go && go run ./examples/controller $WATCHCORE_TEST_ENDPOINT'
//
// It clears /demo/, writes some applications, changes them, and ends when everything is as wanted.
// For each application it prints these lines in this order, interleaved with those of the others:
//
//	web: 3 wanted, 0 there
//	db: 1 wanted, 0 there
//	web: 1 wanted, 3 there
//	db: 0 wanted, 1 there
//	the end: web-0
//
// Each line comes once: the worker waits until the lister shows its own writes before it finishes
// an application, so it never acts twice on the same difference.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/informer"
	"github.com/watchcore/watchcore/go/workqueue"
)

const (
	apps = "/demo/apps/"
	pods = "/demo/pods/"
)

// controller is the state of the program.
type controller struct {
	etcd  etcd
	print sync.Mutex // out is used by all workers
	out   io.Writer
	apps  *informer.Informer[int]    // how many are wanted
	pods  *informer.Informer[string] // of which application
	queue *workqueue.Queue[string]   // names of applications
}

const byApp = "app"

func newController(cache *watchcore.Cache, server etcd, out io.Writer) (*controller, error) {
	c := &controller{etcd: server, out: out, queue: workqueue.New(workqueue.Options[string]{Name: "apps"})}
	failed := func(err error) { log.Print(err) }
	var err error
	if c.apps, err = informer.New(cache, func(_ string, value []byte) (int, error) { return strconv.Atoi(string(value)) },
		informer.Options[int]{Name: "apps", Range: watchcore.RangePrefix(apps), OnError: failed}); err != nil {
		return nil, err
	}
	if c.pods, err = informer.New(cache, func(_ string, value []byte) (string, error) { return string(value), nil },
		informer.Options[string]{Name: "pods", Range: watchcore.RangePrefix(pods), OnError: failed,
			Indexers: informer.Indexers[string]{byApp: func(o *informer.Object[string]) []string { return []string{o.Value} }}}); err != nil {
		c.apps.Stop()
		return nil, err
	}
	return c, nil
}

// watch puts the application of each change into the queue.
func (c *controller) watch(ctx context.Context) error {
	app := func(o *informer.Object[int]) { c.queue.Add(strings.TrimPrefix(o.Key, apps)) }
	pod := func(o *informer.Object[string]) { c.queue.Add(o.Value) }
	ofApps, err := c.apps.AddHandler(informer.HandlerFuncs[int]{
		Add: func(o *informer.Object[int], _ bool) { app(o) }, Update: func(_, o *informer.Object[int]) { app(o) }, Delete: app,
	}, informer.HandlerOptions{Name: "apps"})
	if err != nil {
		return err
	}
	ofPods, err := c.pods.AddHandler(informer.HandlerFuncs[string]{
		Add: func(o *informer.Object[string], _ bool) { pod(o) }, Update: func(_, o *informer.Object[string]) { pod(o) }, Delete: pod,
	}, informer.HandlerOptions{Name: "pods"})
	if err != nil {
		return err
	}
	return informer.WaitForSync(ctx, c.apps, c.pods, ofApps, ofPods)
}

// compare returns how many instances of an application are wanted and which exist, both at one revision.
func (c *controller) compare(ctx context.Context, name string) (wanted int, there []string, err error) {
	now, err := informer.SameRevision(ctx, c.apps, c.pods)
	if err != nil {
		return 0, nil, err
	}
	ofApps, err := c.apps.At(now)
	if err != nil {
		return 0, nil, err
	}
	ofPods, err := c.pods.At(now)
	if err != nil {
		return 0, nil, err
	}
	if app, found := ofApps.Get(apps + name); found {
		wanted = app.Value
	}
	found, err := ofPods.ByIndex(byApp, name)
	for _, pod := range found {
		there = append(there, pod.Key)
	}
	slices.Sort(there)
	return wanted, there, err
}

// reconcile creates and deletes instances as wanted. After an error the queue calls it again later.
func (c *controller) reconcile(ctx context.Context, name string) error {
	wanted, there, err := c.compare(ctx, name)
	if err != nil || wanted == len(there) {
		return err
	}
	c.print.Lock()
	fmt.Fprintf(c.out, "%s: %d wanted, %d there\n", name, wanted, len(there))
	c.print.Unlock()
	var last uint64
	for i := range max(wanted, 10) {
		key := fmt.Sprintf("%s%s-%d", pods, name, i)
		_, is := slices.BinarySearch(there, key)
		switch {
		case i < wanted && !is:
			last, err = c.etcd.put(ctx, key, name)
		case i >= wanted && is:
			last, err = c.etcd.remove(ctx, key)
		}
		if err != nil {
			return err
		}
	}
	return c.pods.WaitUntil(ctx, last) // the next comparison sees these writes
}

// settled waits until the instances are the expected ones.
func (c *controller) settled(ctx context.Context, revision uint64, expected ...string) error {
	if err := c.pods.WaitUntil(ctx, revision); err != nil {
		return err
	}
	w, err := c.pods.Watch(ctx) // delivers an event for each change
	if err != nil {
		return err
	}
	defer w.Stop()
	for range w.ResultChan() {
		var keys []string
		for o := range c.pods.Lister().All() {
			keys = append(keys, strings.TrimPrefix(o.Key, pods))
		}
		slices.Sort(keys)
		if slices.Equal(keys, expected) {
			return nil
		}
	}
	return fmt.Errorf("the instances are not %v: %w", expected, context.Cause(ctx))
}

func run(ctx context.Context, endpoint string, out io.Writer) error {
	server := etcd(endpoint)
	if _, err := server.clear(ctx, "/demo/"); err != nil {
		return err
	}
	cache, err := watchcore.Open(ctx, watchcore.EtcdConfig{Endpoints: []string{endpoint}}, watchcore.Config{Prefix: "/demo/"})
	if err != nil {
		return err
	}
	defer cache.Close()
	c, err := newController(cache, server, out)
	if err != nil {
		return err
	}
	defer c.apps.Stop()
	defer c.pods.Stop()
	if err := c.watch(ctx); err != nil {
		return err
	}
	working := make(chan error, 1)
	go func() {
		working <- c.queue.Run(ctx, 4, c.reconcile, func(name string, err error) { log.Printf("%s: %v", name, err) })
	}()
	for _, step := range []struct {
		web, db  string
		expected []string
	}{{"3", "1", []string{"db-0", "web-0", "web-1", "web-2"}}, {"1", "0", []string{"web-0"}}} {
		if _, err := server.put(ctx, apps+"web", step.web); err != nil {
			return err
		}
		revision, err := server.put(ctx, apps+"db", step.db)
		if err != nil {
			return err
		}
		if err := c.settled(ctx, revision, step.expected...); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, "the end: web-0")
	return errors.Join(c.queue.Drain(ctx), <-working)
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: controller ENDPOINT, such as http://127.0.0.1:2379")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, os.Args[1], os.Stdout); err != nil {
		log.Print(err)
		os.Exit(1)
	}
}
