package watchcore_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
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

// The states are row 6.44; one that has waited once is armed by each poll that gives nothing.
func TestPolledSubscriptionIsParked(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
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
	want(t, "its event", drain(t, sub), "6 ADDED /a <-")
	info := only(t, cache)
	want(t, "state", info.State, watchcore.SubscriptionParked)
	want(t, "handed out", info.HandedOut, sub.Stats().HandedOut)
	if age := time.Since(info.LastPoll); age < 0 || age > time.Hour {
		t.Errorf("polled %v ago", age)
	}
	cache.Close()
	want(t, "of a closed cache", len(cache.Subscriptions()), 0)
	for state, name := range map[watchcore.SubscriptionState]string{
		watchcore.SubscriptionAwaitsListing: "AwaitsListing", watchcore.SubscriptionAwaitsRevision: "AwaitsRevision",
		watchcore.SubscriptionInitialState: "InitialState", watchcore.SubscriptionLive: "Live",
		watchcore.SubscriptionParked: "Parked", watchcore.SubscriptionOverrun: "Overrun",
		watchcore.SubscriptionCatchingUp: "CatchingUp", watchcore.SubscriptionTooSlow: "TooSlow",
		watchcore.SubscriptionClosing: "Closing", watchcore.SubscriptionEnded: "Ended",
		99: "SubscriptionState(99)",
	} {
		want(t, "name", state.String(), name)
	}
}

// The rest is row 6.46.
func TestNamesOfSubscriptions(t *testing.T) {
	cache, _ := embedded(t)
	for _, name := range []string{`bill "ing"`, "eins\x00zwei"} {
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
