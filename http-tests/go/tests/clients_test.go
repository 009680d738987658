package tests

import (
	"context"
	"testing"

	"watchcore.test/http/internal/clients"
	"watchcore.test/http/internal/suite"
)

// All clients follow the same changes at once, through a kill -9 of etcd, a compaction that the server does not see, a
// kill -9 of the server and a SIGTERM to it. Each ends with etcd's own state, and was told everything once, but for what
// a list that it read itself has in it.
func TestClients(t *testing.T) {
	ctx := suite.Bounded(t)
	w := newWorld(ctx, t, 1000)
	url, directory := w.Server.URL, t.TempDir()
	type client = clients.Client
	all := []struct {
		name  string
		start func() (*client, error)
	}{
		{"dynamic_informer_by_lists", func() (*client, error) {
			return clients.DynamicInformer(ctx, url, "widgets", "", clients.Lists)
		}},
		{"dynamic_informer_by_watch_list", func() (*client, error) {
			return clients.DynamicInformer(ctx, url, "widgets", "", clients.WatchList)
		}},
		{"dynamic_informer_of_a_namespace", func() (*client, error) {
			return clients.DynamicInformer(ctx, url, "widgets", "lab", clients.WatchList)
		}},
		{"dynamic_informer_without_namespaces", func() (*client, error) {
			return clients.DynamicInformer(ctx, url, "gizmos", "", clients.WatchList)
		}},
		{"metadata_informer_by_lists", func() (*client, error) {
			return clients.MetadataInformer(ctx, url, "widgets", "", clients.Lists)
		}},
		{"metadata_informer_by_watch_list", func() (*client, error) {
			return clients.MetadataInformer(ctx, url, "gizmos", "", clients.WatchList)
		}},
		{"retry_watcher", func() (*client, error) { return clients.RetryWatcher(ctx, url, "widgets") }},
		{"curl", func() (*client, error) { return clients.Curl(ctx, url, "widgets") }},
		{"websocket", func() (*client, error) { return clients.WebSocket(ctx, url, "gizmos") }},
		{"event_source", func() (*client, error) { return clients.EventSource(ctx, url) }},
		{"kubectl_watch_of_widgets", func() (*client, error) {
			return clients.Kubectl(ctx, programs.Kubectl, url, "widgets", directory, w.Writer.History)
		}},
		{"kubectl_watch_of_gizmos", func() (*client, error) {
			return clients.Kubectl(ctx, programs.Kubectl, url, "gizmos", directory, w.Writer.History)
		}},
		{"kube_rs", func() (*client, error) { return clients.KubeRust(ctx, programs.KubeRust, url) }},
	}
	running := make([]*client, len(all))
	for i, one := range all {
		var err error
		if running[i], err = one.start(); err != nil {
			t.Fatalf("%s: %v", one.name, err)
		}
		t.Cleanup(running[i].Stop)
	}
	if err := clients.Began(ctx, running); err != nil {
		t.Fatal(err)
	}
	if err := w.Disrupt(ctx, 5000); err != nil {
		t.Fatal(err)
	}
	for i, one := range all {
		t.Run(one.name, func(t *testing.T) {
			if err := running[i].Settle(ctx, w); err != nil {
				t.Error(err)
			}
			for _, log := range running[i].Logs {
				lists, events := log.Counts()
				t.Logf("%s (%s): %d lists, %d events", log.Name, log.Prefix, lists, events)
				if lists < 2 || events == 0 {
					t.Errorf("%s (%s) was not tried: the restart of the server makes each client list anew", log.Name, log.Prefix)
				}
			}
		})
	}
}

// churning writes until the test is over, while other clients read.
func churning(ctx context.Context, t *testing.T, churn func(context.Context, int) error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- churn(ctx, 1<<30) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
}
