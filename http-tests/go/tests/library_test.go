package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	watchtools "k8s.io/client-go/tools/watch"

	"watchcore.test/http/internal/clients"
	"watchcore.test/http/internal/history"
	"watchcore.test/http/internal/suite"
	"watchcore.test/http/internal/world"
)

func dynamicClient(t *testing.T, url string) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(clients.Config(url))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func revisionOf(t *testing.T, version string) int64 {
	t.Helper()
	revision, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func keyOf(plural, namespace, name string) string {
	if namespace == "" {
		return plural + "/" + name
	}
	return plural + "/" + namespace + "/" + name
}

// known waits until the writer has noted all that it wrote up to a revision: etcd answers others before it.
func known(ctx context.Context, t *testing.T, w *world.World, revision int64) {
	t.Helper()
	err := world.Until(ctx, "the writer notes what it wrote", func() error {
		if last := w.Writer.History.Last(""); last < revision {
			return fmt.Errorf("it is at %d, not yet at %d", last, revision)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// client-go's pager reads pages of 37 while objects change: together they are the state of one revision.
func TestPagerReadsOneRevision(t *testing.T) {
	ctx := suite.Bounded(t)
	w := newWorld(ctx, t, 1000)
	resource := dynamicClient(t, w.Server.URL).Resource(clients.Resource("widgets"))
	churning(ctx, t, w.Writer.Churn)
	for round := range 5 {
		pages := 0
		read := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			pages++
			return resource.List(ctx, options)
		})
		read.PageSize = 37
		read.FullListIfExpired = false
		list, paginated, err := read.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !paginated || pages < 5 {
			t.Errorf("round %d: read %d pages", round, pages)
		}
		accessor, err := meta.ListAccessor(list)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := meta.ExtractList(list)
		if err != nil {
			t.Fatal(err)
		}
		state := map[string]int64{}
		for _, object := range objects {
			o := object.(*unstructured.Unstructured)
			state[keyOf("widgets", o.GetNamespace(), o.GetName())] = revisionOf(t, o.GetResourceVersion())
		}
		if len(state) != len(objects) {
			t.Errorf("round %d: %d objects have %d names", round, len(objects), len(state))
		}
		revision := revisionOf(t, accessor.GetResourceVersion())
		known(ctx, t, w, revision)
		if difference := history.Difference(state, w.Writer.History.State("widgets/", revision)); difference != "" {
			t.Errorf("round %d, revision %d: %s", round, revision, difference)
		}
	}
}

// A token of a revision that the server has no longer is refused with another token, with which the list goes on.
func TestPagerGoesOnAfterExpiry(t *testing.T) {
	ctx := suite.Bounded(t)
	w := newWorld(ctx, t, 500)
	resource := dynamicClient(t, w.Server.URL).Resource(clients.Resource("widgets"))
	first, err := resource.List(ctx, metav1.ListOptions{Limit: 20})
	if err != nil {
		t.Fatal(err)
	}
	// A server that starts anew knows nothing of what was before.
	if err := w.Writer.Churn(ctx, 50); err != nil {
		t.Fatal(err)
	}
	w.Server.Kill()
	if err := w.Server.Start(ctx); err != nil {
		t.Fatal(err)
	}
	_, err = resource.List(ctx, metav1.ListOptions{Limit: 20, Continue: first.GetContinue()})
	if !errors.IsResourceExpired(err) {
		t.Fatalf("the token was not refused: %v", err)
	}
	token := err.(errors.APIStatus).Status().ListMeta.Continue
	if token == "" {
		t.Fatalf("the refusal has no token to go on with: %v", err)
	}
	rest, err := resource.List(ctx, metav1.ListOptions{Continue: token})
	if err != nil {
		t.Fatal(err)
	}
	after := first.Items[len(first.Items)-1]
	state := w.Writer.History.State("widgets/", revisionOf(t, rest.GetResourceVersion()))
	want := 0
	for key := range state {
		if key > keyOf("widgets", after.GetNamespace(), after.GetName()) {
			want++
		}
	}
	if len(rest.Items) != want {
		t.Errorf("the rest has %d objects, want %d", len(rest.Items), want)
	}
}

// UntilWithSync sees the condition that a later change makes true, also if etcd is killed meanwhile.
func TestUntilWithSync(t *testing.T) {
	ctx := suite.Bounded(t)
	w := newWorld(ctx, t, 200)
	resource := dynamicClient(t, w.Server.URL).Resource(clients.Resource("gizmos"))
	lists := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return resource.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return resource.Watch(ctx, options)
		},
	}
	before := w.Writer.History.Last("gizmos/")
	synced, wrote := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(wrote)
		<-synced
		w.Etcd.Kill()
		if err := w.Etcd.Start(ctx); err != nil {
			t.Error(err)
			return
		}
		if err := w.Writer.Churn(ctx, 200); err != nil {
			t.Error(err)
		}
	}()
	event, err := watchtools.UntilWithSync(ctx, lists, &unstructured.Unstructured{},
		func(cache.Store) (bool, error) { close(synced); return false, nil },
		func(event watch.Event) (bool, error) {
			o := event.Object.(*unstructured.Unstructured)
			return event.Type == watch.Modified && revisionOf(t, o.GetResourceVersion()) > before, nil
		})
	if err != nil {
		t.Fatal(err)
	}
	<-wrote
	name := event.Object.(*unstructured.Unstructured).GetName()
	if !strings.HasPrefix(name, "object-") {
		t.Errorf("the condition holds for %q", name)
	}
}

// A Table that is asked for by hand and read with Kubernetes' types, as a list and as a watch.
func TestTypedTables(t *testing.T) {
	ctx := suite.Bounded(t)
	w := newWorld(ctx, t, 300)
	const form = "application/json;as=Table;v=v1;g=meta.k8s.io"
	revision, err := w.Etcd.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	url := w.Server.URL + "/apis/matrix.test/v1/widgets"
	_, _, body := suite.Fetch(ctx, t, url, form)
	var list metav1.Table
	if err := json.Unmarshal(body, &list); err != nil {
		t.Fatal(err)
	}
	if len(list.ColumnDefinitions) != 4 {
		t.Errorf("the columns are %v", list.ColumnDefinitions)
	}
	if difference := history.Difference(tableState(t, &list), w.Writer.History.State("widgets/", revision)); difference != "" {
		t.Error(difference)
	}

	lines := stream(ctx, t, url+"?watch=1&resourceVersion="+list.ResourceVersion, form)
	log := history.NewLog("a watch of Tables", "widgets/")
	log.List(revisionOf(t, list.ResourceVersion), tableState(t, &list))
	if err := w.Writer.Churn(ctx, 200); err != nil {
		t.Fatal(err)
	}
	for log.Reached() < w.Writer.History.Last("widgets/") {
		var event struct {
			Type   string
			Object metav1.Table
		}
		if err := json.Unmarshal(next(t, lines), &event); err != nil {
			t.Fatal(err)
		}
		if len(event.Object.Rows) != 1 || len(event.Object.Rows[0].Cells) != 4 || len(event.Object.ColumnDefinitions) != 4 {
			t.Fatalf("no table of one row: %+v", event.Object)
		}
		for key, revision := range tableState(t, &event.Object) {
			log.Event(event.Type, key, revision)
		}
	}
	// The last revision may have several changes.
	deadline := time.After(world.Timeout)
	for w.Writer.History.Check(log) != nil {
		select {
		case line := <-lines:
			var event struct {
				Type   string
				Object metav1.Table
			}
			if err := json.Unmarshal(line, &event); err != nil {
				t.Fatal(err)
			}
			for key, revision := range tableState(t, &event.Object) {
				log.Event(event.Type, key, revision)
			}
		case <-deadline:
			t.Fatal(w.Writer.History.Check(log))
		}
	}
}

func tableState(t *testing.T, table *metav1.Table) map[string]int64 {
	t.Helper()
	state := map[string]int64{}
	for _, row := range table.Rows {
		var object metav1.PartialObjectMetadata
		if err := json.Unmarshal(row.Object.Raw, &object); err != nil {
			t.Fatal(err)
		}
		if row.Cells[0] != object.Name {
			t.Errorf("the row of %s begins with %v", object.Name, row.Cells[0])
		}
		state[keyOf("widgets", object.Namespace, object.Name)] = revisionOf(t, object.ResourceVersion)
	}
	return state
}
