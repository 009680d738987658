package watchcore_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"watchcore"
	"watchcore/internal/bounded"
)

// only is how the one subscription of a cache stands.
func only(t testing.TB, cache *watchcore.Cache) watchcore.SubscriptionInfo {
	t.Helper()
	all := cache.Subscriptions()
	if len(all) != 1 {
		t.Fatalf("one subscription expected, not %v", all)
	}
	return all[0]
}

func TestIdleConsumerIsSeen(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{Capacity: 128})
	idle := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow(), Name: "billing"})
	info := only(t, cache)
	want(t, "a new one", info, watchcore.SubscriptionInfo{
		ID: 1, Name: "billing", State: watchcore.SubscriptionLive, Position: cache.Position(), ReadPath: watchcore.ReadPathScan,
	})
	if !info.LastPoll.IsZero() {
		t.Errorf("never polled, but at %v", info.LastPoll)
	}
	for revision := uint64(1); revision <= 50; revision++ {
		check(t, writer.Apply(revision, watchcore.Put("/k", "")))
	}
	info = only(t, cache)
	want(t, "lag", [2]uint64{info.Lag.Events, info.Lag.Revisions}, [2]uint64{50, 50})
	status := cache.Status()
	want(t, "status", [3]uint64{status.MaxLagEvents, status.MaxLagSeen, status.Lapped}, [3]uint64{50, 50, 0})
	// Its place leaves the window.
	writeOn(t, cache, writer, 450)
	info = only(t, cache)
	want(t, "state", info.State, watchcore.SubscriptionLapped)
	want(t, "losses", [2]uint64{info.Lagged, cache.Stats().Lagged}, [2]uint64{1, 1})
	status = cache.Status()
	want(t, "status", [3]uint64{status.MaxLagEvents, status.MaxLagSeen, status.Lapped}, [3]uint64{500, 500, 1})
	_, err := idle.Poll(1)
	if !errors.Is(err, watchcore.ErrLagged) || !strings.Contains(err.Error(), `subscription "billing": `) {
		t.Errorf("an error without its name: %v", err)
	}
	info = only(t, cache)
	want(t, "state", info.State, watchcore.SubscriptionEnded)
	if age := time.Since(info.LastPoll); age < 0 || age > time.Hour {
		t.Errorf("polled %v ago", age)
	}
	// Gone, but for what happened.
	idle.Close()
	want(t, "subscriptions", len(cache.Subscriptions()), 0)
	status = cache.Status()
	want(t, "status", [3]uint64{status.MaxLagEvents, status.MaxLagSeen, status.Lapped}, [3]uint64{0, 500, 0})
	want(t, "losses", cache.Stats().Lagged, 1)
	cache.Close()
	want(t, "of a closed cache", len(cache.Subscriptions()), 0)
}

func TestStatesOfSubscriptions(t *testing.T) {
	cache, err := watchcore.New(watchcore.Config{ExpectLoad: true, Indexes: []watchcore.Index{watchcore.IndexByKey()}, Capacity: 128})
	check(t, err)
	t.Cleanup(func() { cache.Close() })
	writer, err := cache.Writer()
	check(t, err)
	t.Cleanup(func() { writer.Close() })
	is := func(state watchcore.SubscriptionState) watchcore.SubscriptionInfo {
		t.Helper()
		info := only(t, cache)
		want(t, "state", info.State, state)
		return info
	}
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Range: watchcore.RangeKey("/a")})
	is(watchcore.SubscriptionAwaitsListing)
	check(t, writer.Load(5, []watchcore.KeyValue{{Key: []byte("/a"), Value: []byte{}, CreateRevision: 1, ModRevision: 1, Version: 1}}))
	is(watchcore.SubscriptionInitialState)
	follow := func() {
		t.Helper()
		for {
			batch, err := sub.Poll(0)
			check(t, err)
			if batch == nil {
				return
			}
			batch.Release()
		}
	}
	follow()
	is(watchcore.SubscriptionLive)
	ctx, cancel := context.WithCancel(bounded.Context(t))
	ended := make(chan error)
	go func() {
		_, err := sub.Next(ctx)
		ended <- err
	}()
	bounded.Eventually(t, "it waits", func() bool { return only(t, cache).State == watchcore.SubscriptionParked })
	cancel()
	if err := bounded.Receive(t, "the end of the wait", ended); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that was cancelled: %v", err)
	}
	check(t, writer.Apply(6, watchcore.Put("/a", "")))
	bounded.Eventually(t, "it is woken", func() bool { return only(t, cache).State == watchcore.SubscriptionLive })
	follow()
	info := is(watchcore.SubscriptionParked) // it has waited once: each poll that gives nothing arms it
	want(t, "read path", info.ReadPath.String()+" "+info.Index, "Chain key")
	want(t, "position", info.Position, watchcore.Position{Epoch: info.Position.Epoch, Revision: 6})
	want(t, "handed out", info.HandedOut, sub.Stats().HandedOut)
	sub.Close()

	sub = subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartStateAtLeast(10)})
	is(watchcore.SubscriptionAwaitsRevision)
	sub.Close()
	sub = subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow(), MaxLagEvents: 3})
	writeOn(t, cache, writer, 10)
	bounded.Eventually(t, "it is closed for its lag", func() bool { return only(t, cache).State == watchcore.SubscriptionTooSlow })
	sub.Close()
	sub = subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow(), OnLag: watchcore.LagResnapshot})
	writeOn(t, cache, writer, 1000)
	is(watchcore.SubscriptionLapped)
	if _, err := sub.Poll(0); !errors.Is(err, watchcore.ErrLagged) {
		t.Errorf("after a loss: %v", err)
	}
	is(watchcore.SubscriptionCatchingUp)
	want(t, "id", only(t, cache).ID, 4)
	for state, name := range map[watchcore.SubscriptionState]string{
		watchcore.SubscriptionAwaitsListing: "AwaitsListing", watchcore.SubscriptionAwaitsRevision: "AwaitsRevision",
		watchcore.SubscriptionInitialState: "InitialState", watchcore.SubscriptionLive: "Live",
		watchcore.SubscriptionParked: "Parked", watchcore.SubscriptionLapped: "Lapped",
		watchcore.SubscriptionCatchingUp: "CatchingUp", watchcore.SubscriptionTooSlow: "TooSlow",
		watchcore.SubscriptionClosing: "Closing", watchcore.SubscriptionEnded: "Ended",
		99: "SubscriptionState(99)",
	} {
		want(t, "name", state.String(), name)
	}
}

func TestNamesOfSubscriptions(t *testing.T) {
	cache, _ := embedded(t)
	for _, name := range []string{"one", "", `bill "ing"`, "eins\x00zwei", strings.Repeat("long", 1000)} {
		subscribe(t, cache, watchcore.SubscribeOptions{Name: name})
		all := cache.Subscriptions()
		want(t, "name", all[len(all)-1].Name, name)
	}
	_, err := cache.Subscribe(bounded.Context(t), watchcore.SubscribeOptions{Name: "\xff"})
	if !errors.Is(err, watchcore.ErrInvalidArgument) {
		t.Errorf("a name that is not UTF-8: %v", err)
	}
}

// Lists beside consumers that come, wait, and go.
func TestSubscriptionsBesideConsumers(t *testing.T) {
	cache, writer := embedded(t)
	ctx, cancel := context.WithCancel(bounded.Context(t))
	var consumers sync.WaitGroup
	for i := range 8 {
		name := strconv.Itoa(i)
		consumers.Go(func() {
			for ctx.Err() == nil {
				sub, err := cache.Subscribe(ctx, watchcore.SubscribeOptions{Name: name})
				if err != nil {
					return
				}
				for range 5 {
					batch, err := sub.Next(ctx)
					if err != nil {
						break
					}
					batch.Release()
				}
				sub.Close()
			}
		})
	}
	seen := map[uint64]string{}
	for revision := uint64(1); revision <= 1000 || len(seen) < 100; revision++ {
		check(t, writer.Apply(revision, watchcore.Put("/k", "")))
		before, shown := uint64(0), map[string]bool{}
		for _, info := range cache.Subscriptions() {
			if info.ID <= before || info.Lag.Events > revision || info.Position.Revision > revision {
				t.Fatalf("at revision %d, after number %d: %+v", revision, before, info)
			}
			before = info.ID
			if name, known := seen[info.ID]; known && name != info.Name {
				t.Fatalf("%d was %q and is %q", info.ID, name, info.Name)
			}
			seen[info.ID] = info.Name
			if shown[info.Name] {
				t.Fatalf("%q has closed one before it opened the next", info.Name)
			}
			shown[info.Name] = true
		}
		if err := ctx.Err(); err != nil {
			t.Fatalf("%d seen: %v", len(seen), err)
		}
	}
	cancel()
	consumers.Wait()
	bounded.Eventually(t, "they are gone", func() bool { return len(cache.Subscriptions()) == 0 })
}
