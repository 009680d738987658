package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

const (
	reportCount   = 100
	reportBytes   = 1 << 20
	resourceCount = 100
	warmUp        = 40 // changes that are not measured
	listRepeats   = 5
	slowShare     = 10 // one of so many watchers is slow
	leaseRate     = 1000
)

// ready is the time from the start of the process until /readyz.
func (b *bench) ready(_ context.Context, s *server) error {
	b.add(s, "ready", "until /readyz, s", s.ready.Seconds())
	return nil
}

// memory is what the server takes with the pods in etcd.
func (b *bench) memory(ctx context.Context, s *server) error {
	return b.addMemory(ctx, s, "memory", "at rest")
}

// addMemory adds what the process takes when its garbage is collected, and the peak.
func (b *bench) addMemory(ctx context.Context, s *server, row, when string) error {
	peak, err := s.status("status", "VmHWM")
	if err != nil {
		return err
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	resident, err := s.status("smaps_rollup", "Pss")
	if err != nil {
		return err
	}
	heap, err := s.metric(ctx, "go_memstats_heap_alloc_bytes")
	if err != nil {
		return err
	}
	b.add(s, row, when+": PSS, MiB", float64(resident)/(1<<10))
	b.add(s, row, when+": Go's heap, MiB", heap/(1<<20))
	b.add(s, row, when+": peak of RSS, MiB", float64(peak)/(1<<10))
	return nil
}

// lists asks for a tenth of the pods by label, and for those of a namespace, again and again.
func (b *bench) lists(ctx context.Context, s *server) error {
	for _, l := range []struct{ name, path, form string }{
		{"by label, protobuf, from the cache", "/api/v1/pods?labelSelector=app%3Dapp-3&resourceVersion=0", protobufForm},
		{"by label, protobuf, newest", "/api/v1/pods?labelSelector=app%3Dapp-4", protobufForm},
		{"by label, JSON, from the cache", "/api/v1/pods?labelSelector=app%3Dapp-5&resourceVersion=0", "application/json"},
		{"by label, JSON, newest", "/api/v1/pods?labelSelector=app%3Dapp-6", "application/json"},
		{"of a namespace, protobuf, newest", "/api/v1/namespaces/bench-7/pods", protobufForm},
		{"of a namespace, JSON, newest", "/api/v1/namespaces/bench-8/pods", "application/json"},
	} {
		if err := b.list(ctx, s, l.name, l.path, l.form); err != nil {
			return err
		}
	}
	return b.addMemory(ctx, s, "lists", "behind them")
}

func (b *bench) list(ctx context.Context, s *server, name, path, form string) error {
	var length int
	for i := range listRepeats + 1 {
		before, err := s.cpu()
		if err != nil {
			return err
		}
		begin := time.Now()
		text, err := s.get(ctx, path, form)
		took := time.Since(begin)
		if err != nil {
			return err
		}
		after, err := s.cpu()
		if err != nil {
			return err
		}
		if length != 0 && length != len(text) {
			return fmt.Errorf("%s: %d bytes, then %d", path, length, len(text))
		}
		when := ""
		if length = len(text); i == 0 {
			when = ", first"
		}
		b.add(s, "lists", name+when+": ms", milliseconds(took))
		b.add(s, "lists", name+when+": processor, ms", milliseconds(after-before))
	}
	return nil
}

// latency is that of changes of pods at a rate below saturation, until every watcher has them.
func (b *bench) latency(ctx context.Context, s *server) error {
	return b.watched(ctx, s, "latency", 0)
}

// slow is the same while a tenth of the watchers do not read.
func (b *bench) slow(ctx context.Context, s *server) error {
	return b.watched(ctx, s, "slow", b.watchers/slowShare)
}

func (b *bench) watched(ctx context.Context, s *server, row string, slow int) error {
	changes := warmUp + int(b.rate*float64(b.seconds))
	terminated, err := s.metric(ctx, "apiserver_terminated_watchers_total")
	if err != nil {
		return err
	}
	f, err := s.watchPods(ctx, b.watchers, slow, changes)
	if err != nil {
		return err
	}
	defer f.close()
	if err := f.change(ctx, b, 0, warmUp, b.rate); err != nil {
		return err
	}
	before, err := s.cpu()
	if err != nil {
		return err
	}
	if err := f.change(ctx, b, warmUp, changes, b.rate); err != nil {
		return err
	}
	after, err := s.cpu()
	if err != nil {
		return err
	}
	if slow == 0 {
		if err := b.addMemory(ctx, s, row, "with the watchers"); err != nil {
			return err
		}
	} else {
		ended, caughtUp, err := f.wake(ctx, changes-1)
		if err != nil {
			return err
		}
		now, err := s.metric(ctx, "apiserver_terminated_watchers_total")
		if err != nil {
			return err
		}
		b.add(s, row, "slow watches that the server ended", float64(ended))
		b.add(s, row, "slow watches that have the last change", float64(caughtUp))
		b.add(s, row, "ended by the server's own count", now-terminated)
	}
	f.close()
	latencies, err := f.latencies(warmUp, changes)
	if err != nil {
		return err
	}
	b.add(s, row, "p50, ms", milliseconds(quantile(latencies, 0.5)))
	b.add(s, row, "p99, ms", milliseconds(quantile(latencies, 0.99)))
	b.add(s, row, "processor for a change and a watcher, us", float64((after-before).Microseconds())/float64(len(latencies)))
	return nil
}

func (b *bench) fillReports(ctx context.Context) error {
	return b.fill(ctx, reportCount, func(number int) (string, string, error) { return report(number, reportBytes) })
}

// reports is the memory with large custom objects, before and after a client has read them all.
func (b *bench) reports(ctx context.Context, s *server) error {
	if err := s.served(ctx, reports); err != nil {
		return err
	}
	if err := b.addMemory(ctx, s, "reports", "at rest"); err != nil {
		return err
	}
	if _, err := s.get(ctx, resourcePath(reports)+"?resourceVersion=0", "application/json"); err != nil {
		return err
	}
	return b.addMemory(ctx, s, "reports", "after a list")
}

// resourceNames are those of many custom resources.
func resourceNames() (names []string) {
	for i := range resourceCount {
		names = append(names, fmt.Sprintf("things%ds", i))
	}
	return names
}

func (b *bench) declareResources(ctx context.Context) error {
	s, err := b.startServer(ctx, released)
	if err != nil {
		return err
	}
	defer s.stop()
	return s.declare(ctx, resourceNames()...)
}

// resources is what many custom resources add when each of them was asked for.
func (b *bench) resources(ctx context.Context, s *server) error {
	before, err := b.load(ctx, s)
	if err != nil {
		return err
	}
	for _, name := range resourceNames() {
		if err := s.served(ctx, name); err != nil {
			return err
		}
	}
	after, err := b.load(ctx, s)
	if err != nil {
		return err
	}
	for i, what := range loads {
		b.add(s, "resources", what, after[i]-before[i])
	}
	return nil
}

// leases asks whether a watch may resume behind the last change of a kind that changes seldom, while leases are renewed.
func (b *bench) leases(ctx context.Context, s *server) error {
	if err := s.served(ctx, reports); err != nil {
		return err
	}
	put := func() (int64, error) {
		key, value, err := report(0, 1000)
		if err != nil {
			return 0, err
		}
		answer, err := b.client.Put(ctx, key, value)
		if err != nil {
			return 0, err
		}
		return answer.Header.Revision, nil
	}
	from, err := put()
	if err != nil {
		return err
	}
	begin := time.Now()
	for _, after := range []int{30, 60, 100} {
		if err := b.renew(ctx, begin, time.Duration(after)*time.Second); err != nil {
			return err
		}
		if _, err := put(); err != nil {
			return err
		}
		resumed, err := s.resumes(ctx, from)
		if err != nil {
			return err
		}
		b.add(s, "leases", fmt.Sprintf("a watch resumes after %d s (1) or has to list (0)", after), resumed)
	}
	return nil
}

// renew renews leases at leaseRate until so long after the beginning.
func (b *bench) renew(ctx context.Context, begin time.Time, until time.Duration) error {
	at := time.Since(begin)
	return b.fill(ctx, int(leaseRate*(until-at).Seconds()), func(number int) (string, string, error) {
		time.Sleep(time.Until(begin.Add(at + time.Duration(number)*time.Second/leaseRate)))
		return lease(number%nodes, number)
	})
}

// resumes is 1 if a watch behind a revision gets a change, 0 if it gets an error.
func (s *server) resumes(ctx context.Context, from int64) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := s.request(ctx, s.client, http.MethodGet, fmt.Sprintf("%s?watch=1&resourceVersion=%d", resourcePath(reports), from), "application/json", nil)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	var event struct{ Type string }
	if err := json.NewDecoder(answer.Body).Decode(&event); err != nil {
		return 0, err
	}
	if event.Type == "ERROR" {
		return 0, nil
	}
	return 1, nil
}

var loads = [...]string{"watches in etcd", "connections to etcd", "goroutines", "threads", "PSS, MiB"}

// load is what the server takes of each of loads.
func (b *bench) load(ctx context.Context, s *server) (load [len(loads)]float64, err error) {
	if err := s.settle(ctx); err != nil {
		return load, err
	}
	if load[0], err = b.etcdMetric(ctx, "etcd_debugging_mvcc_watcher_total"); err != nil {
		return load, err
	}
	open, err := connections(b.etcd.port)
	if err != nil {
		return load, err
	}
	load[1] = float64(open)
	if load[2], err = s.metric(ctx, "go_goroutines"); err != nil {
		return load, err
	}
	threads, err := s.status("status", "Threads")
	if err != nil {
		return load, err
	}
	load[3] = float64(threads)
	resident, err := s.status("smaps_rollup", "Pss")
	load[4] = float64(resident) / (1 << 10)
	return load, err
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// profile makes profiles of a server while a row is measured: of its processor time, and of its heap at the end. The function waits.
func (b *bench) profile(ctx context.Context, s *server, row string) func() {
	if b.profiles == "" {
		return func() {}
	}
	save := func(kind, path string) {
		text, err := s.get(ctx, path, "")
		if err == nil {
			err = os.WriteFile(filepath.Join(b.profiles, s.name+"-"+row+"-"+kind+".pprof"), text, 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench-apiserver: no profile:", err)
		}
	}
	done := make(chan struct{})
	go func() {
		save("cpu", "/debug/pprof/profile?seconds=20")
		close(done)
	}()
	return func() {
		<-done
		save("heap", "/debug/pprof/heap?gc=1")
	}
}
