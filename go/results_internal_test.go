//go:build cgo

package watchcore

import (
	"context"
	"testing"
	"time"
)

// A reader that waits while the context ends gets the end of the channel, not why: also
// in the moment in which the subscription is closed, and its channel not yet.
func TestResultChanTellsNotWhyItEnds(t *testing.T) {
	cache, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	ctx, cancel := context.WithCancel(context.Background())
	sub, err := cache.Subscribe(ctx, SubscribeOptions{Start: StartNow()})
	if err != nil {
		t.Fatal(err)
	}
	results := sub.ResultChan()
	state := sub.core.state
	state.mu.Lock() // whoever closes takes it before it ends the channel
	defer state.mu.Unlock()
	cancel()
	select {
	case result, open := <-results:
		if open {
			t.Fatalf("a result after the context was done: %+v", result)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the channel was not closed")
	}
}
