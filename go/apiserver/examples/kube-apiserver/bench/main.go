// Command bench measures kube-apiserver as it is released and kube-apiserver with watchcore's storage over one etcd, in turns:
// `make bench-apiserver`.
package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
)

// The two servers.
const (
	released = "kubernetes"
	replaced = "watchcore"
)

const reports = "reports"

// bench is one run.
type bench struct {
	programs  map[string]string
	directory string // of etcd, of logs and of certificates
	key       string // signs service accounts
	profiles  string // a directory for profiles; empty: none are made

	count    int // pods
	watchers int
	rate     float64
	seconds  int // of the changes of a row
	rounds   int
	rows     []string
	servers  []string // in the order of their turns

	etcd   *process
	client *clientv3.Client
	pods   *corev1.Pod // what all pods are made of
	figures
}

func main() {
	b := &bench{}
	etcd := flag.String("etcd", "etcd", "the program")
	programs := flag.String("programs", "", "directory of the programs kubernetes and watchcore")
	servers := flag.String("servers", released+" "+replaced, "which servers, in the order of their turns")
	rows := flag.String("rows", "ready memory lists latency slow reports resources leases", "which rows")
	out := flag.String("figures", "", "file to which the figures are appended, and whose figures the table has")
	flag.IntVar(&b.count, "pods", 100_000, "pods in etcd")
	flag.IntVar(&b.watchers, "watchers", 1000, "watchers of all pods")
	flag.Float64Var(&b.rate, "rate", 20, "changes a second")
	flag.IntVar(&b.seconds, "seconds", 20, "how long changes are made, in each row")
	flag.IntVar(&b.rounds, "rounds", 2, "turns of each server")
	flag.StringVar(&b.profiles, "profiles", "", "directory for processor profiles of the servers; they add to the figures")
	flag.Parse()
	b.rows = strings.Fields(*rows)
	b.servers = strings.Fields(*servers)
	b.programs = map[string]string{released: filepath.Join(*programs, released), replaced: filepath.Join(*programs, replaced)}
	b.figures.file = *out
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	if err := b.run(ctx, *etcd); err != nil {
		fmt.Fprintln(os.Stderr, "bench-apiserver:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context, etcd string) (err error) {
	if b.directory, err = os.MkdirTemp("", "bench-apiserver-"); err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(b.directory)
		}
	}()
	if err := b.makeKey(); err != nil {
		return err
	}
	if b.etcd, b.client, err = startEtcd(ctx, etcd, b.directory); err != nil {
		return err
	}
	defer b.etcd.stop()
	defer b.client.Close()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	for _, rows := range []struct {
		fill, empty func(context.Context) error
		run         []row
	}{
		{b.fillReports, func(ctx context.Context) error { return b.remove(ctx, customKey(reports, "")) }, []row{{"reports", (*bench).reports}}},
		{nil, nil, []row{{"leases", (*bench).leases}}},
		{b.declareResources, nil, []row{{"resources", (*bench).resources}}},
		{b.fillPods, nil, []row{
			{"ready", (*bench).ready}, {"memory", (*bench).memory}, {"lists", (*bench).lists},
			{"latency", (*bench).latency}, {"slow", (*bench).slow},
		}},
	} {
		if err := b.turns(ctx, rows.fill, rows.empty, rows.run); err != nil {
			return err
		}
	}
	return b.table(os.Stdout)
}

// row is what is measured of one server.
type row struct {
	name    string
	measure func(*bench, context.Context, *server) error
}

// turns fills etcd and measures rows, with each server in its turn.
func (b *bench) turns(ctx context.Context, fill, empty func(context.Context) error, rows []row) error {
	rows = slices.DeleteFunc(rows, func(r row) bool { return !slices.Contains(b.rows, r.name) })
	if len(rows) == 0 {
		return nil
	}
	if fill != nil {
		if err := fill(ctx); err != nil {
			return err
		}
	}
	for range b.rounds {
		for _, name := range b.servers {
			if err := b.turn(ctx, name, rows); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if empty != nil {
		return empty(ctx)
	}
	return nil
}

func (b *bench) turn(ctx context.Context, name string, rows []row) error {
	s, err := b.startServer(ctx, name)
	if err != nil {
		return err
	}
	defer s.stop()
	for _, r := range rows {
		stopProfile := b.profile(ctx, s, r.name)
		err := r.measure(b, ctx, s)
		stopProfile()
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return nil
}

// prepare makes what needs an API server before anything is measured.
func (b *bench) prepare(ctx context.Context) error {
	s, err := b.startServer(ctx, released)
	if err != nil {
		return err
	}
	defer s.stop()
	if err := s.declare(ctx, reports); err != nil {
		return err
	}
	b.pods, err = b.template(ctx, s)
	return err
}

func (b *bench) makeKey() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	b.key = filepath.Join(b.directory, "key.pem")
	return os.WriteFile(b.key, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600)
}
