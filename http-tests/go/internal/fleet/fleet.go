// Package fleet has several servers over one etcd, behind one address, and clients that move between them.
//
// Each server has a connection to etcd of its own, which can be held: then the server is behind. A round holds one server and
// ends the two others, one by kill -9 and one by SIGTERM, so that every client meets the server that is behind. Then that one
// goes on, and the two others are started again, at the addresses that they had.
package fleet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"watchcore.test/http/internal/clients"
	"watchcore.test/http/internal/world"
)

// Servers are so many. The last one begins without a history, so that clients that come to it are told 410 and list.
const Servers = 3

// A member is a server and its connection to etcd.
type member struct {
	*world.Server
	etcd *world.Proxy
}

// A Fleet is what runs.
type Fleet struct {
	*world.World // its etcd and writer
	// Traffic is what the clients were answered.
	Traffic *clients.Traffic

	url       string // of the balancer
	balancer  *world.Proxy
	haproxy   *world.Process
	members   []*member
	clients   []*clients.Client
	listers   []*lister
	kills     int
	refusals  int // that probes have asked for
	uncounted func()

	// The writer and the listers run until stop.
	stop    context.CancelFunc
	tasks   sync.WaitGroup
	failure chan error
}

// Start starts etcd with so many objects, the servers, and what stands before them: haproxy where a binary of it is named. Its
// Close ends it also where Start fails.
func Start(ctx context.Context, programs world.Programs, haproxy, directory string, objects int, say func(string, ...any)) (*Fleet, error) {
	f := &Fleet{World: &world.World{Say: say}, failure: make(chan error, 1), stop: func() {}}
	f.Traffic, f.uncounted = clients.CountTraffic()
	var err error
	if f.Etcd, err = world.StartEtcd(ctx, programs.Etcd, directory); err != nil {
		return f, err
	}
	f.Writer = world.NewWriter(f.Etcd, 1)
	if err := f.Writer.Fill(ctx, objects); err != nil {
		return f, err
	}
	var addresses []string
	for number := range Servers {
		one, err := f.startMember(ctx, programs.Watchcore, filepath.Join(directory, "server"+strconv.Itoa(number)), number)
		if err != nil {
			return f, err
		}
		addresses = append(addresses, strings.TrimPrefix(one.URL, "http://"))
	}
	if haproxy != "" {
		f.url, f.haproxy, err = world.StartHaproxy(ctx, haproxy, directory, addresses)
	} else if f.balancer, err = world.StartBalancer(addresses); err == nil {
		f.url = f.balancer.URL
	}
	return f, err
}

func (f *Fleet) startMember(ctx context.Context, binary, directory string, number int) (*member, error) {
	if err := os.Mkdir(directory, 0o700); err != nil {
		return nil, err
	}
	proxy, err := world.StartProxy(strings.TrimPrefix(f.Etcd.URL, "http://"))
	if err != nil {
		return nil, err
	}
	settings := world.Settings{History: 10_000, Grace: "1s"}
	if number == Servers-1 {
		settings.History = 0
	}
	one := &member{etcd: proxy}
	f.members = append(f.members, one)
	one.Server, err = world.StartServer(ctx, binary, proxy.URL, directory, settings)
	return one, err
}

// Close ends what runs.
func (f *Fleet) Close() {
	f.stop()
	f.tasks.Wait()
	for _, client := range f.clients {
		client.Stop()
	}
	if f.balancer != nil {
		f.balancer.Close()
	}
	if f.haproxy != nil {
		f.haproxy.Kill()
	}
	for _, one := range f.members {
		if one.Server != nil {
			one.Close()
		}
		one.etcd.Close()
	}
	f.World.Close()
	f.uncounted()
}

// Clients starts those that move: twenty informers, and watchers that keep the place where they resume themselves.
func (f *Fleet) Clients(ctx context.Context) error {
	type starter func() (*clients.Client, error)
	var all []starter
	for _, watchList := range []bool{clients.Lists, clients.WatchList} {
		for _, of := range []struct{ plural, namespace string }{
			{"widgets", ""}, {"widgets", "default"}, {"widgets", "lab"}, {"widgets", "plant"}, {"gizmos", ""},
		} {
			all = append(all, func() (*clients.Client, error) {
				return clients.DynamicInformer(ctx, f.url, of.plural, of.namespace, watchList)
			}, func() (*clients.Client, error) {
				return clients.MetadataInformer(ctx, f.url, of.plural, of.namespace, watchList)
			})
		}
	}
	all = append(all,
		func() (*clients.Client, error) { return clients.Plain(ctx, f.url, "widgets") },
		func() (*clients.Client, error) { return clients.Plain(ctx, f.url, "gizmos") },
		func() (*clients.Client, error) { return clients.RetryWatcher(ctx, f.url, "widgets") },
		func() (*clients.Client, error) { return clients.WebSocket(ctx, f.url, "gizmos") },
		func() (*clients.Client, error) { return clients.EventSource(ctx, f.url) },
	)
	for _, start := range all {
		client, err := start()
		if err != nil {
			return err
		}
		f.clients = append(f.clients, client)
	}
	return clients.Began(ctx, f.clients)
}

// Begin lets the writer change objects, a transaction each pace, and listers list as often, until End.
func (f *Fleet) Begin(ctx context.Context, pace time.Duration) {
	running, stop := context.WithCancel(ctx)
	f.stop = stop
	// A transaction that has begun is noted also when the others stop.
	f.run(running, pace, func() error { return f.Writer.Churn(ctx, 1) })
	for _, plural := range []string{"widgets", "gizmos"} {
		l := &lister{f: f, plural: plural}
		f.listers = append(f.listers, l)
		f.run(running, pace, func() error { return l.next(running) })
	}
}

// run calls a step each pace, until it fails or the context ends.
func (f *Fleet) run(ctx context.Context, pace time.Duration, step func() error) {
	f.tasks.Go(func() {
		ticker := time.NewTicker(pace)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if err := step(); err != nil && ctx.Err() == nil {
				select {
				case f.failure <- err:
				default: // another one came first
				}
				return
			}
		}
	})
}

// End stops what Begin has started, and checks each client: it has etcd's own state, was told everything once, and nothing
// went back in time.
func (f *Fleet) End(ctx context.Context) error {
	f.stop()
	f.tasks.Wait()
	var failures []error
	for _, client := range f.clients {
		failures = append(failures, client.Settle(ctx, f.World))
		if client.Back != nil {
			if back := client.Back(); back != "" {
				failures = append(failures, fmt.Errorf("%s: back in time: %s", client.Logs[0].Name, back))
			}
		}
	}
	return errors.Join(append(failures, f.failed())...)
}

// failed is the first failure of the writer or a lister.
func (f *Fleet) failed() error {
	select {
	case err := <-f.failure:
		return err
	default:
		return nil
	}
}

// Round is one round. Its number says which server is behind.
func (f *Fleet) Round(ctx context.Context, number int) error {
	// Most clients are at the server that was the last in the round before: it is the first to go.
	behind, first, second := f.members[number%Servers], f.members[(number+2)%Servers], f.members[(number+1)%Servers]
	f.Say("round %d: server %d is held behind etcd, and the others are ended", number, number%Servers)
	release := behind.etcd.Hold()
	defer release()
	revision, err := f.changes(ctx)
	if err != nil {
		return err
	}
	told := f.probe(ctx, behind, revision)
	defer told.close()
	// The first time each server is behind, it is soon the only one. The second time, the others are there as well for a while.
	if number/Servers%2 == 1 {
		if err := told.whileBehind(ctx); err != nil {
			return err
		}
	}
	for i, one := range []*member{first, second} {
		if err := f.end(one, (number+i)%2 == 0); err != nil {
			return err
		}
		if err := f.gather(ctx, []int{1, len(f.clients) / 2}[i], behind); err != nil {
			return err
		}
	}
	if err := told.whileBehind(ctx); err != nil {
		return err
	}
	last := f.members[Servers-1]
	if behind == last {
		release()
		if err := errors.Join(told.afterwards(ctx), f.gather(ctx, len(f.clients), behind)); err != nil {
			return err
		}
	} else if err := f.expire(ctx, behind, last); err != nil {
		return err
	}
	release()
	for _, one := range f.members {
		if err := f.restart(ctx, one); err != nil {
			return err
		}
	}
	return errors.Join(f.all(ctx), f.failed())
}

// expire starts a server that begins above what all clients have, who wait at the one that is behind. They move: to be told 410
// by the one and 504 by the other, until the other one is ended.
func (f *Fleet) expire(ctx context.Context, behind, begins *member) error {
	if err := f.restart(ctx, begins); err != nil {
		return err
	}
	before, late := f.Traffic.Refused(http.StatusGone), f.Traffic.Refused(http.StatusGatewayTimeout)
	if f.balancer != nil {
		f.balancer.Cut()
		f.balancer.Mend()
		err := world.Until(ctx, "clients are told 504, or watch", func() error {
			if f.Traffic.Refused(http.StatusGatewayTimeout) > late {
				return nil
			}
			return f.open(ctx, len(f.clients), behind, begins)
		})
		if err != nil {
			return err
		}
	}
	if err := f.end(behind, true); err != nil {
		return err
	}
	if err := f.gather(ctx, len(f.clients), begins); err != nil {
		return err
	}
	if f.Traffic.Refused(http.StatusGone) == before {
		return errors.New("no client was told 410 by a server that begins above what it has")
	}
	return nil
}

// end ends a server, by kill -9 or by SIGTERM.
func (f *Fleet) end(one *member, kill bool) error {
	f.kills++
	if kill {
		one.Kill()
		return nil
	}
	err := one.Terminate()
	if err == nil || strings.Contains(err.Error(), "exit status 143") || strings.Contains(err.Error(), "signal: terminated") {
		return nil
	}
	return fmt.Errorf("a server after SIGTERM: %w", err)
}

// changes waits for a change that is made from now on: its revision.
func (f *Fleet) changes(ctx context.Context) (int64, error) {
	begin := f.Writer.History.Last("")
	var last int64
	err := world.Until(ctx, "changes are made", func() error {
		// The next one may have been on its way before.
		if last = f.Writer.History.Last(""); last < begin+2 {
			return fmt.Errorf("the last one is at %d", last)
		}
		return nil
	})
	return last, err
}

// restart starts a server again, unless it runs. From its first answer on the server shows no state older than etcd's at its
// start.
func (f *Fleet) restart(ctx context.Context, one *member) error {
	if one.Runs() {
		return nil
	}
	if _, err := f.changes(ctx); err != nil {
		return err
	}
	revision, err := f.Etcd.Revision(ctx)
	if err != nil {
		return err
	}
	if err := one.Start(ctx); err != nil {
		return err
	}
	shown, err := one.shows(ctx)
	if err == nil && shown < revision {
		err = fmt.Errorf("a server shows revision %d, and etcd had %d before it was started", shown, revision)
	}
	return err
}

// gather waits until so many watches are open at some servers.
func (f *Fleet) gather(ctx context.Context, watches int, servers ...*member) error {
	return world.Until(ctx, "clients watch", func() error { return f.open(ctx, watches, servers...) })
}

// open is an error where fewer watches are open at some servers.
func (f *Fleet) open(ctx context.Context, watches int, servers ...*member) error {
	open := 0
	for _, one := range servers {
		here, err := one.watches(ctx)
		if err != nil {
			return err
		}
		open += here
	}
	if open < watches {
		return fmt.Errorf("%d of %d watches are open", open, watches)
	}
	return nil
}

// all waits until each client watches, and was told what has happened until now.
func (f *Fleet) all(ctx context.Context) error {
	if err := f.gather(ctx, len(f.clients), f.members...); err != nil {
		return err
	}
	for _, client := range f.clients {
		for _, log := range client.Logs {
			last := f.Writer.History.Last(log.Prefix)
			err := world.Until(ctx, fmt.Sprintf("%s (%s) is told of revision %d", log.Name, log.Prefix, last), func() error {
				if reached := log.Reached(); reached < last && client.Err() == nil {
					return fmt.Errorf("it is at %d", reached)
				}
				return nil
			})
			if err := errors.Join(client.Err(), err); err != nil {
				return fmt.Errorf("%s (%s): %w", log.Name, log.Prefix, err)
			}
		}
	}
	return nil
}

// watches is how many are open at a server, as it says itself.
func (m *member) watches(ctx context.Context) (int, error) {
	response, err := ask(ctx, m.URL+"/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	scanner := bufio.NewScanner(response.Body)
	for scanner.Scan() {
		if value, found := strings.CutPrefix(scanner.Text(), "watchcore_http_watches_open "); found {
			return strconv.Atoi(value)
		}
	}
	return 0, fmt.Errorf("%s: no number of its watches: %w", response.Status, scanner.Err())
}

// Each request of this package has a connection of its own, and so meets the next server. They are not the clients' traffic.
var single = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func ask(ctx context.Context, url string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return single.Do(request)
}

// String has the counts of what was done.
func (f *Fleet) String() string {
	lists, refused, anything, older := 0, 0, 0, 0
	for _, l := range f.listers {
		lists, refused, anything, older = lists+l.lists, refused+l.refused, anything+l.any, older+l.older
	}
	own, events := 0, 0
	for _, client := range f.clients {
		for _, log := range client.Logs {
			more, told := log.Counts()
			own, events = own+more, events+told
		}
	}
	return fmt.Sprintf(`%d ends of a server, %d changes, %d clients told %d events
%v; %d lists of these clients, each %d or more at the begin
%d lists at the next server each time, %d refused; of %d with resourceVersion=0 %d were older than one before
%d requests to a server that was behind, each refused as Kubernetes does`,
		f.kills, f.Writer.History.Len(), len(f.clients), events, f.Traffic, own, len(f.clients), lists, refused, anything, older,
		f.refusals)
}
