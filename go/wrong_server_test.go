package watchcore_test

import (
	"bufio"
	"context"
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

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
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
	keys    []string // all are written in one revision
	etcd    watchcore.EtcdConfig
	cache   *watchcore.Cache
	last    uint64 // the newest revision of the servers
}

const maxValue = 100000

func newWrongScene(t testing.TB, servers int, keys ...string) *wrongScene {
	t.Helper()
	scene := &wrongScene{t: t, keys: keys, last: 1} // an empty etcd
	scene.etcd.ProgressInterval = 10 * time.Millisecond
	for range servers {
		scene.servers = append(scene.servers, startFakeEtcd(t))
	}
	cache, err := watchcore.New(watchcore.Config{Prefix: "/x/", ExpectLoad: true, MaxValueBytes: maxValue})
	check(t, err)
	t.Cleanup(func() { cache.Close() })
	scene.cache = cache
	scene.put()
	return scene
}

// follow starts the feeder.
func (w *wrongScene) follow() {
	w.t.Helper()
	for _, server := range w.servers {
		w.etcd.Endpoints = append(w.etcd.Endpoints, server.url)
	}
	check(w.t, w.cache.StartFeeder(w.etcd))
}

// put writes the next value of each key, which is the revision before it, to each server.
func (w *wrongScene) put() {
	w.t.Helper()
	command := "put"
	for _, key := range w.keys {
		command += fmt.Sprintf(" %s %d", key, w.last)
	}
	for _, server := range w.servers {
		w.last = server.do("%s", command)
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
	if status.State != watchcore.StateReady || status.Position.Revision != w.last || status.Objects != uint64(len(w.keys)) {
		return false
	}
	kv, at, err := w.cache.Get(bounded.Context(w.t), "/x/a", watchcore.ReadOptions{})
	return err == nil && at == w.last && kv != nil && kv.ModRevision == w.last
}

// settle waits until the cache holds what the servers do.
func (w *wrongScene) settle() {
	w.t.Helper()
	w.eventually("the servers' state", w.isEqual)
}

// isReason says whether the last error, which stays when the source is back, says this.
func isReason(status watchcore.Status, reason string) bool {
	return status.LastError != nil && strings.Contains(status.LastError.Message, reason)
}

// wrongServers are what a server does wrong again and again.
var wrongServers = []struct {
	name, commands string
	first          bool   // it is wrong before the first listing, else behind the first watch
	reason         string // a part of the message of the last error then
	violations     uint64 // counted until the other endpoint is taken
	failures       uint64 // sessions that failed until then
}{
	{"key outside the range in a listing", "fault lists-foreign-key", true, "a key outside the range that was asked for", 4, 2},
	{"empty key in a listing", "fault lists-empty-key", true, "an empty key", 4, 2},
	{"key twice in a listing", "fault lists-key-twice", true, "keys of a listing that do not rise", 4, 2},
	{"large revision in a listing", "fault lists-large-revision", true, "numbers that no value has", 4, 2},
	{"negative version in a listing", "fault lists-negative-version", true, "numbers that no value has", 4, 2},
	{"key from the future in a listing", "fault lists-future-key", true, "numbers that no value has", 4, 2},
	{"large revision of each answer", "fault large-revision", true, "a revision that no etcd reaches", 2, 2},
	{"pages that never end", "fault no-streams;fault endless-pages", true, "a page of a listing", 2, 2},
	{"listing that is compacted", "fault compacted-reads", true, "twice in a row", 0, 1},
	{"stream that is compacted", "fault compacted-streams", true, "twice in a row", 0, 1},
	{"watch that is compacted", "fault compacted-watches", true, "reason Compacted", 0, 1},
	{"key outside the range in an event", "fault sends-foreign-key", false, "a key outside the range that was asked for", 2, 2},
	{"empty key in an event", "fault sends-empty-key", false, "an empty key", 2, 2},
	{"key twice in a revision", "fault sends-key-twice", false, "a key that changes twice in one revision", 2, 2},
	{"large revision of an event", "fault sends-large-revision", false, "a revision that no etcd reaches", 2, 2},
	{"negative revision of an event", "fault sends-negative-revision", false, "a revision that no etcd reaches", 2, 2},
	{"event from the future", "fault sends-future-event", false, "an event after the revision of its message", 2, 2},
	{"corrupt member", "fault sends-wrong-version", false, "a changed key whose version is not the next", 2, 2},
	{"events of another watch", "fault other-watch", false, "a message of another watch", 2, 2},
	{"progress between fragments", "fault progress-in-fragments", false, "a progress notification between fragments", 2, 2},
	{"watch that stands still", "fault old-progress", false, "the watch stands at revision", 0, 1},
}

// wrongState is that of a cache that has this server alone: without a listing it is not ready. The first listing of a
// watch that is compacted succeeds.
func wrongState(commands string, first bool) watchcore.State {
	if first && !strings.Contains(commands, "watches") {
		return watchcore.StateNotReady
	}
	return watchcore.StateStale
}

// A server that is wrong again and again is the reason that the status names, until the server is well again.
func TestWrongServerAlone(t *testing.T) {
	t.Parallel()
	for _, wrong := range wrongServers {
		t.Run(wrong.name, func(t *testing.T) {
			t.Parallel()
			w := newWrongScene(t, 1, "/x/a", "/x/b")
			state := wrongState(wrong.commands, wrong.first)
			w.begin(wrong.commands, wrong.first)
			w.eventually("the reason", func(status watchcore.Status) bool {
				return w.counters().Failures >= 3 && status.State == state && isReason(status, wrong.reason)
			})
			w.eventually("another failure", func(status watchcore.Status) bool {
				want(t, "the state between failures", status.State, state)
				want(t, "a reason", status.SourceError != nil && isReason(status, status.SourceError.Message), true)
				return w.counters().Failures >= 4
			})
			counters := w.counters()
			want(t, "violations", counters.IntegrityViolations > 0, wrong.violations > 0)
			w.servers[0].do("heal")
			w.servers[0].do("puts /x/a 1000") // so many revisions are calm
			w.put()
			w.settle()
			status := w.cache.Status()
			want(t, "no reason any more", status.SourceError == nil && status.LastError != nil, true)
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
			w := newWrongScene(t, 2, "/x/a", "/x/b")
			w.begin(wrong.commands, wrong.first)
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
func (w *wrongScene) begin(commands string, first bool) {
	w.t.Helper()
	if !first {
		w.watch()
	}
	for _, command := range strings.Split(commands, ";") {
		w.servers[0].do("%s", command)
	}
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
			w := newWrongScene(t, 1, "/x/a")
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

// watch starts the feeder and waits until it watches.
func (w *wrongScene) watch() {
	w.t.Helper()
	w.follow()
	w.eventually("the first watch", func(status watchcore.Status) bool { return w.servers[0].do("watches") > 0 && w.isEqual(status) })
}

// oddServers are not as they should be, and need not be left. The steps are commands of the fake etcd, and follow, which
// starts the feeder and waits for its watch, settle, put, read, which is a consistent read, far and near, which wait until
// the server's newest revision is one that it cannot have, or can, and differs, which waits for an audit that found something. At the end the cache holds what the server does.
var oddServers = []struct {
	name, steps              string
	progress, timeout, audit time.Duration
	violations               uint64
	failures                 uint64 // at most: cuts are among them
	resets                   uint64 // resyncs as of another history
	compared                 uint64 // consistent reads by a comparison
}{
	{"server without streams", "fault no-streams;follow", 10 * time.Millisecond, 0, 0, 0, 0, 0, 0},
	{"stream that never ends", "fault endless-stream;follow", 10 * time.Millisecond, 300 * time.Millisecond, 0, 0, 0, 0, 0},
	{"stream that repeats a key", "fault repeating-stream;follow", 10 * time.Millisecond, 0, 0, 1, 0, 0, 0},
	{"stream whose keys rise for ever", "fault rising-stream;follow", 10 * time.Millisecond, 0, 0, 1, 0, 0, 0},
	{"fragments", "follow;fault fragments;put", 10 * time.Millisecond, 0, 0, 0, 0, 0, 0},
	{"message under way", "follow;fault slow 1;fill /x/b 25000", 50 * time.Millisecond, 0, 0, 0, 0, 0, 0},
	{"headers without a cluster", "follow;fault no-cluster;cut;put;settle;heal;cut;put", 10 * time.Millisecond, 0, 0, 0, 9, 0, 0},
	{"headers far away for a while", "follow;fault far-header;far;heal;near", 60000 * time.Millisecond, 0, 0, 0, 0, 0, 0},
	{"requests for progress without an answer", "fault no-progress;follow;put /y/n 1;read;heal;put", 10 * time.Millisecond, 0, 0, 0, 0, 0, 1},
	{"differing value", "follow;corrupt /x/a other;differs", 10 * time.Millisecond, 0, 10 * time.Millisecond, 0, 0, 1, 0},
}

func (w *wrongScene) step(step string) {
	w.t.Helper()
	switch step {
	case "follow":
		w.watch()
	case "settle":
		w.settle()
	case "put":
		w.put()
	case "read":
		// As long as a request over HTTP waits; nothing has to be waited for behind it.
		ctx, cancel := context.WithTimeout(w.t.Context(), 3*time.Second)
		defer cancel()
		revision, err := w.cache.ConsistentRevision(ctx)
		check(w.t, err)
		want(w.t, "the revision is reached", w.cache.Status().Position.Revision >= revision, true)
	case "far", "near":
		w.eventually(step, func(status watchcore.Status) bool { return (status.Source.Revision > w.last) == (step == "far") })
	case "differs":
		// The next write would be the repair.
		bounded.Eventually(w.t, "the other value", func() bool {
			kv, _, err := w.cache.Get(bounded.Context(w.t), "/x/a", watchcore.ReadOptions{})
			return err == nil && string(kv.Value) == "other"
		})
		want(w.t, "differences", w.counters().Differences, 1)
	default:
		revision := w.servers[0].do("%s", step)
		if strings.Contains(step, " /x/") {
			w.last = revision
		}
	}
}

// A server that is odd is followed all the same.
func TestOddServer(t *testing.T) {
	t.Parallel()
	for _, odd := range oddServers {
		t.Run(odd.name, func(t *testing.T) {
			t.Parallel()
			w := newWrongScene(t, 1, "/x/a", "/x/b")
			w.etcd.ProgressInterval, w.etcd.RequestTimeout, w.etcd.AuditInterval = odd.progress, odd.timeout, odd.audit
			for _, step := range strings.Split(odd.steps, ";") {
				w.step(step)
			}
			w.settle()
			counters := w.counters()
			want(t, "violations", counters.IntegrityViolations, odd.violations)
			want(t, "failures in their bound", counters.Failures <= odd.failures, true)
			want(t, "other histories", counters.Resyncs[watchcore.ReasonHistoryReset], odd.resets)
			want(t, "compared reads", counters.ComparedReads, odd.compared)
			want(t, "silences", counters.Silences, 0)
		})
	}
}

// A value above the cache's limit is the user's matter, unless another endpoint has a shorter one.
func TestRefusedValue(t *testing.T) {
	t.Parallel()
	for servers := 1; servers <= 2; servers++ {
		t.Run(fmt.Sprint(servers), func(t *testing.T) {
			t.Parallel()
			w := newWrongScene(t, servers, "/x/a")
			w.last = w.servers[0].do("fill /x/a %d", maxValue+1)
			if servers == 2 {
				want(t, "the revision", w.servers[1].do("put /x/a short"), w.last)
				w.follow()
				// The refusal shows for a moment.
				bounded.Eventually(t, "the other endpoint", func() bool { return w.isEqual(w.cache.Status()) })
				want(t, "endpoint", w.cache.Status().Source.Endpoint, w.servers[1].url)
				return
			}
			w.follow()
			bounded.Eventually(t, "the refusal", func() bool { return w.cache.Status().State == watchcore.StateFailed })
			status := w.cache.Status()
			want(t, "code", errors.Is(status.LastError, watchcore.ErrInvalidArgument), true)
			want(t, "the key", isReason(status, "/x/a"), true)
		})
	}
}
