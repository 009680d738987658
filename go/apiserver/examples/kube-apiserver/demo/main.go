// Command demo shows Kubernetes on watchcore: kube-apiserver with watchcore's storage, kube-controller-manager and kubectl over an etcd
// that is killed, and an API server that is killed. Dozens of watchers follow through all of it. At the end what each one received is
// compared with what etcd itself says, revision by revision.
//
// scripts/demo-apiserver.sh builds what it runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/cluster"
	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/follow"
)

func main() {
	var programs cluster.Programs
	here := filepath.Dir(os.Args[0])
	flag.StringVar(&programs.Etcd, "etcd", "etcd", "etcd")
	flag.StringVar(&programs.Server, "server", filepath.Join(here, "kube-apiserver"), "the API server")
	flag.StringVar(&programs.Manager, "manager", filepath.Join(here, "kube-controller-manager"), "the controller manager")
	flag.StringVar(&programs.Kubectl, "kubectl", filepath.Join(here, "kubectl"), "kubectl")
	fault := flag.String("fault", "", "drop or double: an event of one watcher is dropped or doubled on the way, and the demonstration must fail")
	keep := flag.Bool("keep", false, "keep the logs")
	pods := flag.Int("pods", 500, "how many pods the deployment has")
	flag.Parse()
	if *fault != "" && *fault != "drop" && *fault != "double" {
		fmt.Fprintf(os.Stderr, "demo: unknown fault %q (drop and double are known)\n", *fault)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	klog.LogToStderr(false) // client-go says there what fails while a server is away
	klog.SetOutput(io.Discard)
	directory, err := os.MkdirTemp("", "demo-apiserver-")
	if err == nil {
		d := &demo{Cluster: cluster.Cluster{Programs: programs, Directory: directory}, fault: *fault, pods: *pods}
		err = d.run(ctx)
		if *keep {
			fmt.Println("the logs are in", directory)
		} else {
			err = errors.Join(err, os.RemoveAll(directory))
		}
	}
	if err != nil {
		fmt.Printf("\nFAILED: %v\n", err)
		os.Exit(1)
	}
}

// demo is one run.
type demo struct {
	cluster.Cluster
	fault string
	pods  int

	clients   *follow.Clients
	etcd      *follow.Etcd
	watchers  []*follow.Watcher
	kubectls  []*follow.Kubectl
	informers []*follow.Informer
	slow      []*follow.Slow
	checks    map[string]float64 // of Kubernetes' consistency checker, by the result
	started   atomic.Int64       // etcd's revision when the API server was started anew
	lost      int                // 410s of slow watchers that had lost a deletion
}

var began = time.Now()

func say(format string, arguments ...any) {
	fmt.Printf("%6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, arguments...))
}

func (d *demo) run(ctx context.Context) error {
	defer d.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := d.StartEtcd(ctx); err != nil {
		return err
	}
	d.etcd = follow.FollowEtcd(ctx, d.Client)
	if err := d.startServer(ctx); err != nil {
		return err
	}
	say("etcd and kube-apiserver are ready")
	var err error
	if d.clients, err = follow.NewClients(d.Config); err != nil {
		return err
	}
	if err := d.StartManager(); err != nil {
		return err
	}
	watching, endWatching := context.WithCancel(ctx)
	defer endWatching()
	ended, err := d.watch(watching)
	if err != nil {
		return err
	}
	say("%d watchers, %d kubectl get -w and %d reflectors of client-go begin", len(d.watchers), len(d.kubectls), len(d.informers))
	writing, endWriting := context.WithCancel(ctx)
	defer endWriting()
	traffic, err := d.startTraffic(writing)
	if err != nil {
		return err
	}
	if err := d.startNodes(writing); err != nil {
		return err
	}
	failed := d.steps(ctx)
	if err := d.Alive(); err != nil {
		return errors.Join(failed, err)
	}
	if failed != nil {
		say("FAILED, but the watchers are compared all the same: %v", failed)
	}
	endWriting()
	<-traffic
	return errors.Join(failed, d.compare(ctx, endWatching, ended))
}

// steps shows one thing after the other.
func (d *demo) steps(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		d.namespaces, d.definitions, d.apply, d.slowWatchAndDeployment, d.killEtcd, d.killServer, d.slowWatchBehindWindow, d.deploymentAgain,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// startServer starts the API server. Its checker compares each cache with etcd often: the period's default is five minutes.
func (d *demo) startServer(ctx context.Context, flags ...string) error {
	if d.Starts > 0 {
		revision, err := d.Revision(ctx)
		if err != nil {
			return err
		}
		d.started.Store(revision)
	}
	return d.StartServer(ctx, append(flags, "--consistency-check-period=15s")...)
}
