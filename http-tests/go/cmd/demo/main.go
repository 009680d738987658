// Command demo shows watchcore serve with real clients: curl, client-go, kubectl, kube-rs, a WebSocket and an EventSource
// follow the same objects at once, while etcd is killed, its history compacted and the server restarted. At the end each
// client's state is compared with etcd's, and everything that it was told with everything that happened.
//
// With -moving it shows three servers behind one address instead, of which one is behind etcd and the others are ended, again
// and again: docs/SERVER.md, "Several servers".
//
// scripts/demo-http.sh builds what it runs.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"watchcore.test/http/internal/clients"
	"watchcore.test/http/internal/fleet"
	"watchcore.test/http/internal/world"
)

func main() {
	objects := flag.Int("objects", 10_000, "how many objects there are at first")
	changes := flag.Int("changes", 20_000, "how many changes are made")
	moving := flag.Duration("moving", 0, "for how long clients move between three servers, instead of all else")
	haproxy := flag.String("haproxy", "", "the program that stands before the three servers, instead of a balancer of connections")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	clients.Quiet()
	if err := show(func(programs world.Programs, directory string) error {
		if *moving > 0 {
			return move(ctx, programs, directory, *moving, *haproxy, min(*objects, 1000))
		}
		return run(ctx, programs, directory, *objects, *changes)
	}); err != nil {
		fmt.Printf("\nFAILED: %v\n", err)
		if ctx.Err() != nil {
			os.Exit(130)
		}
		os.Exit(1)
	}
}

// show runs one of the two, with a directory that is removed.
func show(one func(programs world.Programs, directory string) error) error {
	programs, err := world.ProgramsFromEnvironment()
	if err != nil {
		return err
	}
	directory, remove, err := world.Directory()
	if err != nil {
		return err
	}
	defer remove()
	return one(programs, directory)
}

var began = time.Now()

func say(format string, arguments ...any) {
	fmt.Printf("%6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, arguments...))
}

// A starter is one of the clients and how it is started.
type starter struct {
	name  string
	start func() (*clients.Client, error)
}

func run(ctx context.Context, programs world.Programs, directory string, objects, changes int) error {
	say("etcd starts, and %d objects of two resources are written", objects)
	w, err := world.New(ctx, programs, directory, objects, say)
	defer w.Close()
	if err != nil {
		return err
	}
	say("watchcore serve is ready at %s", w.Server.URL)

	var running []*clients.Client
	defer func() {
		for _, client := range running {
			client.Stop()
		}
	}()
	var names []string
	for _, one := range starters(ctx, w, programs, directory) {
		client, err := one.start()
		if err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
		running = append(running, client)
		names = append(names, one.name)
	}
	say("watching: %s", strings.Join(names, ", "))
	if err := clients.Began(ctx, running); err != nil {
		return err
	}
	if err := w.Disrupt(ctx, changes); err != nil {
		return err
	}
	say("all changes are made; each client is compared with etcd and with what happened")
	return report(ctx, w, running)
}

// move shows servers that take turns.
func move(ctx context.Context, programs world.Programs, directory string, duration time.Duration, haproxy string, objects int) error {
	f, err := fleet.Start(ctx, programs, haproxy, directory, objects, say)
	defer f.Close()
	if err != nil {
		return err
	}
	if err := f.Clients(ctx); err != nil {
		return err
	}
	f.Begin(ctx, 20*time.Millisecond)
	rounds := 0
	for end := time.Now().Add(duration); time.Now().Before(end); rounds++ {
		if err := f.Round(ctx, rounds); err != nil {
			return err
		}
	}
	say("no more changes are made; each client is compared with etcd and with what happened")
	if err := f.End(ctx); err != nil {
		return err
	}
	fmt.Printf("\n%d rounds: %v\nEach client ends with etcd's own state; none lost a change, and none went back in time.\n", rounds, f)
	return nil
}

func starters(ctx context.Context, w *world.World, programs world.Programs, directory string) []starter {
	url := w.Server.URL
	var all []starter
	for _, plural := range []string{"widgets", "gizmos"} {
		all = append(all,
			starter{"curl on " + plural, func() (*clients.Client, error) { return clients.Curl(ctx, url, plural) }},
			starter{"client-go's informer on " + plural, func() (*clients.Client, error) {
				return clients.DynamicInformer(ctx, url, plural, "", clients.WatchList)
			}},
			starter{"kubectl get -w on " + plural, func() (*clients.Client, error) {
				return clients.Kubectl(ctx, programs.Kubectl, url, plural, directory, w.Writer.History)
			}},
			starter{"a WebSocket on " + plural, func() (*clients.Client, error) { return clients.WebSocket(ctx, url, plural) }},
		)
	}
	return append(all,
		starter{"kube-rs on both", func() (*clients.Client, error) { return clients.KubeRust(ctx, programs.KubeRust, url) }},
		starter{"an EventSource on both", func() (*clients.Client, error) { return clients.EventSource(ctx, url) }},
	)
}

func report(ctx context.Context, w *world.World, running []*clients.Client) error {
	var failures []error
	watchers, events := 0, 0
	fmt.Printf("\n%-28s %-9s %7s %8s  %s\n", "client", "resource", "lists", "events", "result")
	for _, client := range running {
		err := client.Settle(ctx, w)
		if err != nil {
			failures = append(failures, err)
		}
		for _, log := range client.Logs {
			result := "equal to etcd, nothing lost or doubled"
			if err != nil {
				result = "FAILED"
			}
			resource := strings.TrimSuffix(log.Prefix, "/")
			if resource == "" {
				resource = "both"
			}
			lists, told := log.Counts()
			watchers, events = watchers+1, events+told
			fmt.Printf("%-28s %-9s %7d %8d  %s\n", log.Name, resource, lists, told, result)
		}
	}
	if len(failures) > 0 {
		fmt.Println()
		for _, failure := range failures {
			fmt.Println(failure)
		}
		return fmt.Errorf("%d of %d clients", len(failures), len(running))
	}
	fmt.Printf("\n%d watchers of real clients were told %d changes in %d events through a kill -9 of etcd, a compaction and two "+
		"restarts of the server: each ends with etcd's own state, and no event was lost or doubled but where the client itself listed anew.\n",
		watchers, w.Writer.History.Len(), events)
	return nil
}
