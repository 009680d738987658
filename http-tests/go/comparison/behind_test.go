package comparison

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"

	"watchcore.test/http/internal/suite"
	"watchcore.test/http/internal/world"
)

// What is asked of a server that is behind etcd: {AHEAD} is a revision that etcd has, and the server has not.
var asksBehind = []ask{
	{name: "list at 0", target: "gizmos" + query("resourceVersion", "0")},
	{name: "list, at least", target: "gizmos" + query("resourceVersion", "{AHEAD}")},
	{name: "list, not older", target: "gizmos" + query("resourceVersion", "{AHEAD}", "resourceVersionMatch", "NotOlderThan")},
	{name: "list, not older, namespace", target: "namespaces/lab/widgets" + query("resourceVersion", "{AHEAD}", "resourceVersionMatch", "NotOlderThan")},
	{name: "list, exact", target: "gizmos" + query("resourceVersion", "{AHEAD}", "resourceVersionMatch", "Exact")},
	{name: "list, exact by limit", target: "gizmos" + query("resourceVersion", "{AHEAD}", "limit", "2")},
	{name: "list, table", target: "gizmos" + query("resourceVersion", "{AHEAD}"), accept: tables},
	{name: "get at 0", target: "namespaces/default/widgets/{NAME}" + query("resourceVersion", "0")},
	{name: "get at least", target: "namespaces/default/widgets/{NAME}" + query("resourceVersion", "{AHEAD}")},
	{name: "watch, state", target: "gizmos" + query("watch", "1", "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan",
		"allowWatchBookmarks", "true", "resourceVersion", "{AHEAD}"), events: 1},
	{name: "watch, ends by itself", target: "gizmos" + query("watch", "1", "resourceVersion", "{AHEAD}", "timeoutSeconds", "1")},
}

// What is asked meanwhile is answered when the server goes on.
var asksWaiting = []ask{
	{name: "watch", target: "gizmos" + query("watch", "1", "resourceVersion", "{AHEAD}"), events: 2},
	{name: "watch, label", target: "gizmos" + query("watch", "1", "resourceVersion", "{AHEAD}", "labelSelector", "color=red"), events: 1},
	{name: "watch, old path", target: "/apis/matrix.test/v1/watch/gizmos" + query("resourceVersion", "{AHEAD}"), events: 2},
}

// Kubernetes counts what it was told of one resource, and this server what it was told of the prefix of its cache.
var currentRevision = regexp.MustCompile(`current: \d+`)

type answers struct{ theirs, ours answer }

// askBoth asks both servers at once.
func askBoth(ctx context.Context, t *testing.T, kubernetes, watchcore string, one ask) <-chan answers {
	done := make(chan answers, 1)
	go func() {
		var both answers
		var asked sync.WaitGroup
		asked.Go(func() { both.theirs = get(ctx, t, kubernetes, one) })
		asked.Go(func() { both.ours = get(ctx, t, watchcore, one) })
		asked.Wait()
		for _, one := range []answer{both.theirs, both.ours} {
			for field, value := range one {
				one[field] = currentRevision.ReplaceAllString(value, "current: C")
			}
			delete(one, "metadata.resourceVersion")
		}
		done <- both
	}()
	return done
}

// The same requests to both servers while what etcd sends to them is held. All fields of the answers agree, and a watch from a
// revision that the server has not waits until it has it.
func TestBehindComparison(t *testing.T) {
	ctx := suite.Bounded(t)
	w := newWorld(ctx, t)
	proxy, err := world.StartProxy(strings.TrimPrefix(w.Etcd.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	kubernetes := newKubernetes(ctx, t, proxy.URL)
	replace := prepare(ctx, t, w)
	shows(ctx, t, w, kubernetes.URL)

	releaseOurs, releaseTheirs := w.Proxy.Hold(), proxy.Hold()
	defer releaseOurs()
	defer releaseTheirs()
	if err := w.Writer.Churn(ctx, 20); err != nil {
		t.Fatal(err)
	}
	// A revision without objects: watches from one of several objects differ on purpose.
	put, err := w.Etcd.Client.Put(ctx, "/watchcore-test/ahead", "")
	if err != nil {
		t.Fatal(err)
	}
	var report bytes.Buffer
	begin := func(asks []ask) (begun []<-chan answers) {
		for _, one := range asks {
			one.target = strings.ReplaceAll(replace.Replace(one.target), "{AHEAD}", fmt.Sprint(put.Header.Revision))
			begun = append(begun, askBoth(ctx, t, kubernetes.URL, w.Server.URL, one))
		}
		return begun
	}
	waiting := begin(asksWaiting)
	finish := func(asks []ask, begun []<-chan answers) {
		for i, one := range asks {
			t.Run(one.name, func(t *testing.T) {
				both := <-begun[i]
				compare(t, one, both.theirs, both.ours, &report)
			})
		}
	}
	finish(asksBehind, begin(asksBehind))
	for i, one := range asksWaiting {
		if len(waiting[i]) > 0 {
			t.Errorf("%s: both servers answered before they had the revision", one.name)
		}
	}
	releaseOurs()
	releaseTheirs()
	if err := w.Writer.Churn(ctx, 50); err != nil {
		t.Fatal(err)
	}
	finish(asksWaiting, waiting)
	t.Logf("\n%s", report.String())
}

// shows waits until a server has what the writer wrote of each resource.
func shows(ctx context.Context, t *testing.T, w *world.World, base string) {
	t.Helper()
	for _, plural := range []string{"widgets", "gizmos"} {
		last := fmt.Sprint(w.Writer.History.Last(plural + "/"))
		url := base + "/apis/matrix.test/v1/" + plural + query("resourceVersion", last, "resourceVersionMatch", "NotOlderThan")
		err := world.Until(ctx, "the API server reaches revision "+last, func() error {
			if code, _, body := suite.Fetch(ctx, t, url, ""); code != 200 {
				return fmt.Errorf("%d: %.300s", code, body)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
