package leak

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/informer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSubscription(t *testing.T) {
	defer goleak.VerifyNone(t)
	cache, writer := embedded(t)
	defer cache.Close()
	defer writer.Close()
	sub, err := cache.Subscribe(t.Context(), watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	go sub.Next(t.Context())
	go cache.WaitUntil(t.Context(), 2)
	for cache.Stats().Waiting < 2 {
		// Both are about to sleep.
	}
}

func TestChannel(t *testing.T) {
	defer goleak.VerifyNone(t)
	cache, writer := embedded(t)
	defer cache.Close()
	defer writer.Close()
	sub, err := cache.Subscribe(t.Context(), watchcore.SubscribeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Stop()
	if result := <-sub.ResultChan(); result.Err != nil {
		t.Fatal(result.Err)
	}
}

func TestInformer(t *testing.T) {
	defer goleak.VerifyNone(t)
	cache, writer := embedded(t)
	defer cache.Close()
	defer writer.Close()
	in, err := informer.New(cache, func(_ string, value []byte) (string, error) { return string(value), nil }, informer.Options[string]{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Stop()
	added := make(chan string, 1)
	_, err = in.AddHandler(informer.HandlerFuncs[string]{Add: func(o *informer.Object[string], _ bool) { added <- o.Value }}, informer.HandlerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if value := <-added; value != "1" {
		t.Fatalf("the value is %q", value)
	}
}

func TestFollowedCache(t *testing.T) {
	defer goleak.VerifyNone(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cache, err := watchcore.New(watchcore.Config{ExpectLoad: true})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	if err := cache.StartFeeder(watchcore.EtcdConfig{Endpoints: []string{"http://127.0.0.1:1"}}); err != nil {
		t.Fatal(err)
	}
	if cache.WaitReady(ctx) == nil {
		t.Fatal("there is no server")
	}
}

func embedded(t *testing.T) (*watchcore.Cache, *watchcore.Writer) {
	t.Helper()
	cache, err := watchcore.New(watchcore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	writer, err := cache.Writer()
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Apply(1, watchcore.Put("/a", "1")); err != nil {
		t.Fatal(err)
	}
	return cache, writer
}
