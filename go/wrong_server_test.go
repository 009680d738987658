package watchcore_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"watchcore"
	"watchcore/internal/bounded"
)

// fakeEtcdProgram is the path of the fake etcd; the program is built where need be.
var fakeEtcdProgram = sync.OnceValues(func() (string, error) {
	command := exec.Command("../scripts/fake-etcd.sh")
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("scripts/fake-etcd.sh: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
})

// fakeEtcd is a server that answers as etcd does until a command names a fault. It
// ends with the test. All of them say that they are members of one cluster.
type fakeEtcd struct {
	t       testing.TB
	url     string
	input   io.Writer
	answers *bufio.Scanner
}

func startFakeEtcd(t testing.TB) *fakeEtcd {
	t.Helper()
	program, err := fakeEtcdProgram()
	check(t, err)
	running := exec.Command(program)
	running.Stderr = os.Stderr
	input, err := running.StdinPipe()
	check(t, err)
	output, err := running.StdoutPipe()
	check(t, err)
	check(t, running.Start())
	t.Cleanup(func() {
		_ = input.Close() // the program ends with its input
		_ = running.Wait()
	})
	f := &fakeEtcd{t: t, input: input, answers: bufio.NewScanner(output)}
	f.url = f.line()
	return f
}

func (f *fakeEtcd) line() string {
	f.t.Helper()
	if !f.answers.Scan() {
		f.t.Fatalf("the fake etcd ended: %v", f.answers.Err())
	}
	return f.answers.Text()
}

// do is one command of tests/support/fake/mod.rs; it returns a revision or a count.
func (f *fakeEtcd) do(format string, arguments ...any) uint64 {
	f.t.Helper()
	command := fmt.Sprintf(format, arguments...)
	_, err := fmt.Fprintln(f.input, command)
	check(f.t, err)
	answer := f.line()
	number, err := strconv.ParseUint(answer, 10, 64)
	if err != nil {
		f.t.Fatalf("%s: %s", command, answer)
	}
	return number
}

// wrongScene is a cache of /x/ and the servers that it follows: the first one is wrong,
// and the others hold the same.
type wrongScene struct {
	t       testing.TB
	servers []*fakeEtcd
	cache   *watchcore.Cache
	last    uint64 // the newest revision of the servers
}

func newWrongScene(t testing.TB, servers int) *wrongScene {
	t.Helper()
	scene := &wrongScene{t: t, last: 1} // an empty etcd
	for range servers {
		scene.servers = append(scene.servers, startFakeEtcd(t))
	}
	cache, err := watchcore.New(watchcore.Config{Prefix: "/x/", ExpectLoad: true})
	check(t, err)
	t.Cleanup(func() { cache.Close() })
	scene.cache = cache
	scene.put()
	return scene
}

// follow starts the feeder.
func (w *wrongScene) follow() {
	w.t.Helper()
	etcd := watchcore.EtcdConfig{ProgressInterval: 10 * time.Millisecond}
	for _, server := range w.servers {
		etcd.Endpoints = append(etcd.Endpoints, server.url)
	}
	check(w.t, w.cache.StartFeeder(etcd))
}

// put writes the next value of /x/a, which is the revision before it, to each server.
func (w *wrongScene) put() {
	w.t.Helper()
	before := w.last
	for _, server := range w.servers {
		w.last = server.do("put /x/a %d", before)
	}
}

func (w *wrongScene) counters() watchcore.FeederCounters {
	w.t.Helper()
	counters, err := w.cache.FeederCounters()
	check(w.t, err)
	return counters
}

// eventually waits for a condition. Meanwhile it writes whenever the cache has what was
// written before, and nothing is said to be the user's mistake.
func (w *wrongScene) eventually(what string, holds func(watchcore.Status) bool) {
	w.t.Helper()
	bounded.Eventually(w.t, what, func() bool {
		status := w.cache.Status()
		if status.State == watchcore.StateFailed {
			w.t.Fatalf("%s: the cache has failed: %v", what, status.LastError)
		}
		if status.LastError != nil && !errors.Is(status.LastError, watchcore.ErrUnavailable) {
			w.t.Fatalf("%s: %v", what, status.LastError)
		}
		if holds(status) {
			return true
		}
		if status.Position.Revision >= w.last {
			w.put()
		}
		return false
	})
}

// isEqual says whether the cache is ready and holds what the servers do.
func (w *wrongScene) isEqual(status watchcore.Status) bool {
	w.t.Helper()
	if status.State != watchcore.StateReady || status.Position.Revision != w.last || status.Objects != 1 {
		return false
	}
	kv, at, err := w.cache.Get(bounded.Context(w.t), "/x/a", watchcore.ReadOptions{})
	return err == nil && at == w.last && kv != nil && kv.ModRevision == w.last
}

// isReason says whether the last error, which stays when the source is back, says this.
func isReason(status watchcore.Status, reason string) bool {
	return status.LastError != nil && strings.Contains(status.LastError.Message, reason)
}

// wrongServers are what a server does wrong again and again.
var wrongServers = []struct {
	name, fault string
	first       bool            // the fault is there before the first listing, else behind the first watch
	state       watchcore.State // of a cache that has this server alone
	reason      string          // a part of the message of the last error then
	violations  uint64          // counted until the other endpoint is taken
	failures    uint64          // sessions that failed until then
}{
	{"key outside the range in a listing", "lists-foreign-key", true, watchcore.StateNotReady, "a key outside the range that was asked for", 4, 2},
	{"listing that is compacted", "compacted-reads", true, watchcore.StateNotReady, "twice in a row", 0, 1},
	{"watch that is compacted", "compacted-watches", true, watchcore.StateStale, "reason Compacted", 0, 1},
	{"key outside the range in an event", "sends-foreign-key", false, watchcore.StateStale, "a key outside the range that was asked for", 2, 2},
	{"corrupt member", "sends-wrong-version", false, watchcore.StateStale, "a changed key whose version is not the next", 2, 2},
	{"watch that stands still", "old-progress", false, watchcore.StateStale, "the watch stands at revision", 0, 1},
}

// A server that is wrong again and again is the reason that the status names, until the server is well again.
func TestWrongServerAlone(t *testing.T) {
	t.Parallel()
	for _, wrong := range wrongServers {
		t.Run(wrong.name, func(t *testing.T) {
			t.Parallel()
			w := newWrongScene(t, 1)
			w.begin(wrong.fault, wrong.first)
			w.eventually("the reason", func(status watchcore.Status) bool {
				return w.counters().Failures >= 3 && status.State == wrong.state && isReason(status, wrong.reason)
			})
			w.eventually("two more failures", func(status watchcore.Status) bool {
				want(t, "the state between failures", status.State, wrong.state)
				return w.counters().Failures >= 5
			})
			counters := w.counters()
			want(t, "violations", counters.IntegrityViolations > 0, wrong.violations > 0)
			w.servers[0].do("heal")
			w.eventually("calm", w.isEqual)
			want(t, "other histories", w.counters().Resyncs[watchcore.ReasonHistoryReset], 0)
		})
	}
}

// A server that is wrong again and again is left for one that is well.
func TestWrongServerBesideAnother(t *testing.T) {
	t.Parallel()
	for _, wrong := range wrongServers {
		t.Run(wrong.name, func(t *testing.T) {
			t.Parallel()
			w := newWrongScene(t, 2)
			w.begin(wrong.fault, wrong.first)
			w.eventually("the other endpoint", func(status watchcore.Status) bool {
				return status.Source.Endpoint == w.servers[1].url && w.isEqual(status)
			})
			want(t, "the reason", isReason(w.cache.Status(), wrong.reason), true)
			counters := w.counters()
			want(t, "violations", counters.IntegrityViolations, wrong.violations)
			want(t, "failures", counters.Failures, wrong.failures)
		})
	}
}

// begin follows the servers, of which the first one has the fault: from the beginning, or as soon as it is watched.
func (w *wrongScene) begin(fault string, first bool) {
	w.t.Helper()
	if !first {
		w.follow()
		w.eventually("the first watch", func(status watchcore.Status) bool { return w.servers[0].do("watches") > 0 && w.isEqual(status) })
	}
	w.servers[0].do("fault %s", fault)
	if first {
		w.follow()
	}
}

// An event that comes twice is applied once, counted, and no reason to list again.
func TestEventsThatComeTwice(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"sends-twice", "events-twice"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			const writes = 100
			w := newWrongScene(t, 1)
			w.follow()
			check(t, w.cache.WaitReady(bounded.Context(t)))
			sub := subscribe(t, w.cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
			w.servers[0].do("fault %s", fault)
			var expected []string
			for range writes {
				before := w.last
				w.put()
				expected = append(expected, fmt.Sprintf("%d MODIFIED /x/a %d<%d", w.last, before, before-1))
			}
			want(t, "events", collect(t, sub, writes), lines(expected...))
			bounded.Eventually(t, "the last repetition", func() bool { return w.counters().RepeatedEvents == writes })
			counters := w.counters()
			want(t, "violations", counters.IntegrityViolations, 0)
			want(t, "listings", counters.Listings, 1)
			want(t, "failures", counters.Failures, 0)
			want(t, "events applied", counters.Events, writes)
			want(t, "state", w.cache.Status().State, watchcore.StateReady)
		})
	}
}
