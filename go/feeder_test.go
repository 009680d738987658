package watchcore_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

// fill writes revisions of so many keys each, below /p/; the value is the number of
// the revision. It returns what etcd is at then.
func (s *server) fill(revisions, keys int) uint64 {
	s.T.Helper()
	for revision := range revisions {
		var puts []any
		for key := range keys {
			put := map[string]any{"key": fmt.Appendf(nil, "/p/%03d", key), "value": fmt.Append(nil, revision)}
			puts = append(puts, map[string]any{"requestPut": put})
		}
		s.Ask("kv/txn", map[string]any{"success": puts})
	}
	return uint64(revisions + 1)
}

// A replay that is longer than the log waits for a reader that does not read; one
// without Pace does not, and its reader has lost what the other one sees.
func TestPace(t *testing.T) {
	t.Parallel()
	const revisions, keys = 60, 100
	s := startServer(t)
	newest := s.fill(revisions, keys)
	follow := func(paced bool) (*watchcore.Cache, *watchcore.Subscription) {
		cache, err := watchcore.New(watchcore.Config{Prefix: "/p/", ExpectLoad: true, Capacity: 1024})
		check(t, err)
		t.Cleanup(func() { cache.Close() })
		sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartAfter(1)})
		etcd := watchcore.EtcdConfig{Endpoints: []string{s.Client}, StartRevision: 1}
		if paced {
			etcd.Pace = sub
		}
		check(t, cache.StartFeeder(etcd))
		check(t, cache.WaitReady(bounded.Context(t)))
		return cache, sub
	}
	cache, sub := follow(true)
	without, lost := follow(false)
	check(t, without.WaitUntil(bounded.Context(t), newest))
	_, err := lost.Next(bounded.Context(t))
	wantError(t, "a reader that nobody waited for", err, watchcore.ErrCompacted)
	if at := cache.Position().Revision; at >= newest {
		t.Fatalf("the feeder is at %d: it did not wait for the reader", at)
	}

	next := 0
	for batch, err := range sub.Batches(bounded.Context(t)) {
		check(t, err)
		for e := range batch.Events() {
			want(t, "event", text(e), eventOfFill(next/keys, next%keys))
			next++
		}
		if next == revisions*keys {
			break
		}
	}
	counters, err := cache.FeederCounters()
	check(t, err)
	want(t, "resyncs", len(counters.Resyncs), 0)

	// What is closed holds nothing up.
	third, closed := follow(true)
	closed.Close()
	check(t, third.WaitUntil(bounded.Context(t), newest))
}

// eventOfFill is the text of an event of fill.
func eventOfFill(revision, key int) string {
	if revision == 0 {
		return fmt.Sprintf("2 ADDED /p/%03d 0<-", key)
	}
	return fmt.Sprintf("%d MODIFIED /p/%03d %d<%d", revision+2, key, revision, revision-1)
}

// A cache that was there before its feeder, and is there behind it.
func TestStartFeeder(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.put("/p/a", "1") // revision 2
	from := watchcore.EtcdConfig{Endpoints: []string{s.Client}}
	cache, err := watchcore.New(watchcore.Config{Prefix: "/p/", ExpectLoad: true})
	check(t, err)
	defer cache.Close()
	sub := subscribe(t, cache)
	want(t, "events before the feeder", drain(t, sub), "")
	wantError(t, "stop what nobody started", cache.StopFeeder(), watchcore.ErrUnsupported)
	_, err = cache.FeederCounters()
	wantError(t, "counters of what nobody started", err, watchcore.ErrUnsupported)

	check(t, cache.StartFeeder(from))
	check(t, cache.WaitReady(bounded.Context(t)))
	want(t, "the state", collect(t, sub, 2), lines("2 ADDED /p/a 1<- initial", "2 BOOKMARK end"))
	s.put("/p/a", "2")
	want(t, "what follows", collect(t, sub, 1), "3 MODIFIED /p/a 2<1")
	wantError(t, "a second feeder", cache.StartFeeder(from), watchcore.ErrBusy)

	waiting, ctx := make(chan error), bounded.Context(t)
	go func() { waiting <- cache.WaitUntil(ctx, 100) }()
	bounded.Eventually(t, "it sleeps", func() bool { return cache.Stats().Waiting == 1 })
	check(t, cache.StopFeeder())
	check(t, cache.StopFeeder())
	wantError(t, "a wait when the feeder is stopped", <-waiting, watchcore.ErrClosed)
	s.put("/p/b", "")
	kv, at, err := cache.Get(bounded.Context(t), "/p/a", watchcore.ReadOptions{})
	check(t, err)
	want(t, "a read without a feeder", fmt.Sprintf("%s at %d", kv.Value, at), "2 at 3")
	counters, err := cache.FeederCounters()
	check(t, err)
	want(t, "events that it applied", counters.Events, 1)

	want(t, "state", cache.Status().State, watchcore.StateClosed)
	// For good: who wants to follow again opens another cache.
	wantError(t, "another feeder", cache.StartFeeder(from), watchcore.ErrClosed)
	_, err = cache.Writer()
	wantError(t, "a writer behind the feeder", err, watchcore.ErrClosed)
	_, err = sub.Next(bounded.Context(t))
	wantError(t, "a subscription behind the feeder", err, watchcore.ErrClosed)
	again := open(t, s, watchcore.EtcdConfig{}, watchcore.Config{Prefix: "/p/"})
	want(t, "what another cache has", again.Status().Objects, 2)
	cache.Close()
	wantError(t, "a feeder of a closed cache", cache.StartFeeder(from), watchcore.ErrClosed)
	wantError(t, "stop the feeder of a closed cache", cache.StopFeeder(), watchcore.ErrClosed)
}

func TestStartFeederIsRefused(t *testing.T) {
	cache, err := watchcore.New(watchcore.Config{ExpectLoad: true})
	check(t, err)
	defer cache.Close()
	other, _ := embedded(t)
	closed := subscribe(t, cache)
	closed.Close()
	nobody := []string{"http://127.0.0.1:1"}
	from := watchcore.EtcdConfig{Endpoints: nobody}
	for name, etcd := range map[string]watchcore.EtcdConfig{
		"no endpoint":      {PageSize: 5},
		"nothing":          {},
		"negative":         {Endpoints: nobody, PageSize: -1},
		"no url":           {Endpoints: []string{"not a url"}},
		"a negative time":  {Endpoints: nobody, FollowCompaction: -time.Second},
		"a password alone": {Endpoints: nobody, Password: "p"},
		"pace of a friend": {Endpoints: nobody, Pace: subscribe(t, other)},
	} {
		wantError(t, name, cache.StartFeeder(etcd), watchcore.ErrInvalidArgument)
	}
	wantError(t, "pace of what is closed", cache.StartFeeder(watchcore.EtcdConfig{Endpoints: nobody, Pace: closed}), watchcore.ErrClosed)
	_, err = watchcore.Open(bounded.Context(t), watchcore.EtcdConfig{Endpoints: nobody, Pace: subscribe(t, cache)}, watchcore.Config{})
	wantError(t, "open with a pace", err, watchcore.ErrInvalidArgument)
	wantError(t, "a cache with a writer", other.StartFeeder(from), watchcore.ErrBusy)

	// A cache that was ready at birth has subscriptions that would miss the listing.
	ready, err := watchcore.New(watchcore.Config{})
	check(t, err)
	defer ready.Close()
	sub := subscribe(t, ready)
	wantError(t, "a cache with subscriptions", ready.StartFeeder(from), watchcore.ErrBusy)
	sub.Close()
	check(t, ready.StartFeeder(from))
	want(t, "state", ready.Status().State, watchcore.StateNotReady)

	// Whoever comes first.
	for range 100 {
		cache, err := watchcore.New(watchcore.Config{})
		check(t, err)
		done := make(chan error)
		go func() { done <- cache.StartFeeder(from) }()
		cache.Close()
		if err := bounded.Receive(t, "the feeder", done); err != nil {
			wantError(t, "a feeder beside a close", err, watchcore.ErrClosed)
		}
	}
}

func TestFollowCompaction(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	follows := open(t, s, watchcore.EtcdConfig{FollowCompaction: 20 * time.Millisecond}, watchcore.Config{})
	keeps := open(t, s, watchcore.EtcdConfig{}, watchcore.Config{})
	const last = 21
	for revision := uint64(2); revision <= last; revision++ {
		s.put("/a", strconv.FormatUint(revision, 10))
	}
	for _, cache := range []*watchcore.Cache{follows, keeps} {
		check(t, cache.WaitUntil(bounded.Context(t), last))
	}
	s.Ask("kv/compaction", map[string]any{"revision": last - 5})
	bounded.Eventually(t, "the compaction is followed", func() bool { return follows.Status().Oldest == last-4 })
	kv, _, err := follows.Get(bounded.Context(t), "/a", watchcore.ReadOptions{Read: watchcore.ReadExact(last - 5)})
	check(t, err)
	want(t, "the state that stays", string(kv.Value), strconv.Itoa(last-5))
	_, _, err = follows.Get(bounded.Context(t), "/a", watchcore.ReadOptions{Read: watchcore.ReadExact(last - 6)})
	wantError(t, "what was compacted", err, watchcore.ErrCompacted)
	_, err = follows.Subscribe(context.Background(), watchcore.SubscribeOptions{Start: watchcore.StartAfter(last - 6)})
	wantError(t, "a start before it", err, watchcore.ErrCompacted)
	_, _, err = keeps.Get(bounded.Context(t), "/a", watchcore.ReadOptions{Read: watchcore.ReadExact(last - 6)})
	check(t, err)
}

// The whole cache is compared with etcd each interval, and a negative one is never.
func TestAudit(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.put("/a/1", "x")
	s.put("/a/2", "x")
	never := open(t, s, watchcore.EtcdConfig{AuditInterval: -1}, watchcore.Config{})
	often := open(t, s, watchcore.EtcdConfig{AuditInterval: time.Millisecond}, watchcore.Config{})
	bounded.Eventually(t, "three audits", func() bool {
		counters, err := often.FeederCounters()
		return err == nil && counters.Audits >= 3 && counters.AuditedKeys >= 6 && counters.Differences == 0
	})
	counters, err := never.FeederCounters()
	check(t, err)
	want(t, "audits that were switched off", counters.Audits, 0)
}

// Who learns of a compaction first says so: of what is there, and of what is to come.
func TestCompactOfAFedCache(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	cache := open(t, s, watchcore.EtcdConfig{}, watchcore.Config{})
	const last = 21
	for revision := uint64(2); revision <= last; revision++ {
		s.put("/a", strconv.FormatUint(revision, 10))
	}
	check(t, cache.WaitUntil(bounded.Context(t), last))
	check(t, cache.Compact(last-5))
	bounded.Eventually(t, "it is compacted", func() bool { return cache.Oldest() == last-4 })
	kv, _, err := cache.Get(bounded.Context(t), "/a", watchcore.ReadOptions{Read: watchcore.ReadExact(last - 5)})
	check(t, err)
	want(t, "the state that stays", string(kv.Value), strconv.Itoa(last-5))
	_, _, err = cache.Get(bounded.Context(t), "/a", watchcore.ReadOptions{Read: watchcore.ReadExact(last - 6)})
	wantError(t, "what was compacted", err, watchcore.ErrCompacted)

	check(t, cache.Compact(last+2))
	bounded.Eventually(t, "as far as it has come", func() bool { return cache.Oldest() == last+1 })
	for range 4 {
		s.put("/a", "")
	}
	bounded.Eventually(t, "the rest", func() bool { return cache.Oldest() == last+3 })

	wantError(t, "no revision", cache.Compact(1<<52), watchcore.ErrInvalidArgument)
	check(t, cache.StopFeeder())
	wantError(t, "a stopped feeder", cache.Compact(last), watchcore.ErrClosed)
	embedded, _ := embedded(t)
	wantError(t, "an embedded cache", embedded.Compact(1), watchcore.ErrUnsupported)
}

func TestOnlyKey(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, key := range []string{"/k/one", "/k/one/below", "/k/one2", "/k/other"} {
		s.put(key, "1") // revisions 2 to 5
	}
	only := watchcore.EtcdConfig{OnlyKey: "/k/one"}
	cache := open(t, s, only, watchcore.Config{Prefix: "/k/"})
	sub := subscribe(t, cache)
	want(t, "the state", collect(t, sub, 2), lines("2 ADDED /k/one 1<- initial", "5 BOOKMARK end"))
	s.put("/k/one2", "2")
	s.put("/k/one", "2")
	want(t, "what follows", collect(t, sub, 1), "7 MODIFIED /k/one 2<1")
	want(t, "objects", cache.Status().Objects, 1)

	_, err := watchcore.Open(bounded.Context(t), watchcore.EtcdConfig{Endpoints: []string{s.Client}, OnlyKey: "/elsewhere"}, watchcore.Config{Prefix: "/k/"})
	wantError(t, "a key outside the prefix", err, watchcore.ErrInvalidArgument)

	// Who may read nothing else has it, too.
	for _, step := range []struct {
		path    string
		request map[string]any
	}{
		{"auth/role/add", map[string]any{"name": "reader"}},
		{"auth/role/grant", map[string]any{"name": "reader", "perm": map[string]any{"permType": "READ", "key": []byte("/k/one")}}},
		{"auth/user/add", map[string]any{"name": "app", "password": "p"}},
		{"auth/user/grant", map[string]any{"user": "app", "role": "reader"}},
		{"auth/user/add", map[string]any{"name": "root", "password": "p"}},
		{"auth/role/add", map[string]any{"name": "root"}},
		{"auth/user/grant", map[string]any{"user": "root", "role": "root"}},
		{"auth/enable", map[string]any{}},
	} {
		s.Ask(step.path, step.request)
	}
	user := watchcore.EtcdConfig{Endpoints: []string{s.Client}, Username: "app", Password: "p"}
	_, err = watchcore.Open(bounded.Context(t), user, watchcore.Config{Prefix: "/k/"})
	wantError(t, "the whole prefix", err, watchcore.ErrPermissionDenied)
	user.OnlyKey = "/k/one"
	allowed := open(t, s, user, watchcore.Config{Prefix: "/k/"})
	kv, _, err := allowed.Get(bounded.Context(t), "/k/one", watchcore.ReadOptions{})
	check(t, err)
	want(t, "value", string(kv.Value), "2")
}
