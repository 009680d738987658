// Discovery is service discovery with an informer and an index: instances register themselves under
// /services/NAME/INSTANCE with their address, and callers of a service pick one of its instances,
// from memory.
//
//	go run ./examples/discovery              in a cache of its own
//	go run ./examples/discovery ENDPOINT     follows an etcd, until it is interrupted
//
// Without an endpoint it registers four instances, calls, lets one go and one become unhealthy, and prints:
//
//	web has 3 instances, db has 1
//	web is at 10.0.0.1:80 10.0.0.2:80 10.0.0.3:80
//	web lost 10.0.0.2:80
//	web at 10.0.0.3:80 is not healthy any more
//	web is at 10.0.0.1:80
//	cache: no instance
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/informer"
)

// instance is the value under /services/NAME/INSTANCE.
type instance struct {
	Address   string `json:"address"`
	Unhealthy bool   `json:"unhealthy,omitempty"`
}

// resolver knows the instances of all services.
type resolver struct {
	instances *informer.Informer[instance]
}

const byService = "service"

// newResolver follows the services of a cache.
func newResolver(cache *watchcore.Cache) (*resolver, error) {
	instances, err := informer.New(cache, func(_ string, value []byte) (i instance, err error) {
		err = json.Unmarshal(value, &i)
		return i, err
	}, informer.Options[instance]{
		Range: watchcore.RangePrefix("/services/"),
		// Only healthy instances are in the index; the others are only in the lister.
		Indexers: informer.Indexers[instance]{byService: func(o *informer.Object[instance]) []string {
			if o.Value.Unhealthy {
				return nil
			}
			return []string{service(o.Key)}
		}},
		OnError: func(err error) { log.Print(err) }, // the last good address stays
	})
	return &resolver{instances}, err
}

// service returns the NAME of /services/NAME/INSTANCE.
func service(key string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(key, "/services/"), "/")
	return name
}

// resolve returns the addresses of a service's healthy instances, without a request and without a lock.
func (r *resolver) resolve(name string) ([]string, error) {
	found, err := r.instances.Lister().ByIndex(byService, name)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: no instance", name)
	}
	var addresses []string
	for _, o := range found {
		addresses = append(addresses, o.Value.Address)
	}
	slices.Sort(addresses)
	return addresses, nil
}

// report returns a handler that prints the changes after the first listing.
func report(out io.Writer) informer.Handler[instance] {
	return informer.HandlerFuncs[instance]{
		Add: func(o *informer.Object[instance], isInInitialList bool) {
			if !isInInitialList {
				fmt.Fprintln(out, service(o.Key), "got", o.Value.Address)
			}
		},
		Update: func(old, new *informer.Object[instance]) {
			if new.Value.Unhealthy && !old.Value.Unhealthy {
				fmt.Fprintln(out, service(new.Key), "at", new.Value.Address, "is not healthy any more")
			}
		},
		Delete: func(last *informer.Object[instance]) {
			fmt.Fprintln(out, service(last.Key), "lost", last.Value.Address)
		},
	}
}

// tour runs the demonstration without an endpoint.
func tour(ctx context.Context, out io.Writer) error {
	cache, err := watchcore.New(watchcore.Config{})
	if err != nil {
		return err
	}
	defer cache.Close()
	writer, err := cache.Writer()
	if err != nil {
		return err
	}
	put := func(key, value string) watchcore.Change { return watchcore.Put("/services/"+key, value) }
	if err := writer.Apply(1, put("web/a", `{"address":"10.0.0.1:80"}`), put("web/b", `{"address":"10.0.0.2:80"}`),
		put("web/c", `{"address":"10.0.0.3:80"}`), put("db/a", `{"address":"10.0.1.1:5432"}`)); err != nil {
		return err
	}
	r, err := newResolver(cache)
	if err != nil {
		return err
	}
	defer r.instances.Stop()
	reports, err := r.instances.AddHandler(report(out), informer.HandlerOptions{})
	if err != nil {
		return err
	}
	if err := informer.WaitForSync(ctx, r.instances, reports); err != nil {
		return err
	}
	web, err := r.resolve("web")
	if err != nil {
		return err
	}
	db, err := r.resolve("db")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "web has %d instances, db has %d\n", len(web), len(db))
	fmt.Fprintln(out, "web is at", strings.Join(web, " "))

	if err := writer.Apply(2, watchcore.Delete("/services/web/b"), put("web/c", `{"address":"10.0.0.3:80","unhealthy":true}`)); err != nil {
		return err
	}
	if err := r.instances.WaitUntil(ctx, 2); err != nil {
		return err
	}
	for reports.Status().LagEvents > 0 { // so that the lines come in the order above
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	if web, err = r.resolve("web"); err != nil {
		return err
	}
	fmt.Fprintln(out, "web is at", strings.Join(web, " "))
	if _, err = r.resolve("cache"); err != nil {
		fmt.Fprintln(out, err)
	}
	return nil
}

// follow prints the changes of an etcd.
func follow(ctx context.Context, out io.Writer, endpoint string) error {
	cache, err := watchcore.Open(ctx, watchcore.EtcdConfig{Endpoints: []string{endpoint}}, watchcore.Config{Prefix: "/services/"})
	if err != nil {
		return err
	}
	defer cache.Close()
	r, err := newResolver(cache)
	if err != nil {
		return err
	}
	defer r.instances.Stop()
	if _, err := r.instances.AddHandler(report(out), informer.HandlerOptions{}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if len(os.Args) > 1 {
		err = follow(ctx, os.Stdout, os.Args[1])
	} else {
		err = tour(ctx, os.Stdout)
	}
	if err != nil {
		log.Fatal(err)
	}
}
