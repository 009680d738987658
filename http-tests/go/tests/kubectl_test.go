package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"watchcore.test/http/internal/clients"
	"watchcore.test/http/internal/suite"
	"watchcore.test/http/internal/world"
)

// run runs kubectl and gives what it printed.
func run(t *testing.T, home, url string, arguments ...string) (string, error) {
	t.Helper()
	first, environment := clients.KubectlArguments(url, home)
	var out strings.Builder
	process, err := world.Command{
		Name: programs.Kubectl, Arguments: append(first, arguments...), Environment: environment, Output: &out,
	}.Start()
	if err != nil {
		t.Fatal(err)
	}
	err = process.Wait()
	if strings.Contains(process.Output(), "panic") || strings.Contains(process.Output(), "goroutine ") {
		t.Errorf("kubectl %v crashed:\n%s", arguments, process.Output())
	}
	if err != nil {
		err = fmt.Errorf("kubectl %v: %w\n%s", arguments, err, process.Output())
	}
	return out.String(), err
}

func lines(text string) []string {
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// Each use of kubectl that reads, against what lies in etcd.
func TestKubectl(t *testing.T) {
	ctx := suite.Bounded(t)
	w := newWorld(ctx, t, 600)
	home := t.TempDir()
	kubectl := func(t *testing.T, arguments ...string) string {
		t.Helper()
		out, err := run(t, home, w.Server.URL, arguments...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	revision, err := w.Etcd.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	widgets := world.Keys(w.Writer.History.State("widgets/", revision))
	gizmos := world.Keys(w.Writer.History.State("gizmos/", revision))
	namesIn := func(namespace string) (names []string) {
		for _, key := range widgets {
			if name, found := strings.CutPrefix(key, "widgets/"+namespace+"/"); found {
				names = append(names, name)
			}
		}
		return names
	}
	one := namesIn("default")[0]

	t.Run("table", func(t *testing.T) {
		out := lines(kubectl(t, "get", "widgets", "-A"))
		if want := []string{"NAMESPACE", "NAME", "COLOR", "SERIAL", "AGE"}; !slices.Equal(strings.Fields(out[0]), want) {
			t.Errorf("the columns are %q", out[0])
		}
		if len(out) != len(widgets)+1 {
			t.Errorf("%d rows, want %d", len(out)-1, len(widgets))
		}
		if row := strings.Fields(out[1]); len(row) != 5 || row[0] != "default" || row[1] != one || !strings.HasSuffix(row[4], "d") {
			t.Errorf("the first row is %q", out[1])
		}
	})
	t.Run("namespace_and_short_name", func(t *testing.T) {
		if out := lines(kubectl(t, "get", "wd", "-n", "lab", "--no-headers")); len(out) != len(namesIn("lab")) {
			t.Errorf("%d rows, want %d", len(out), len(namesIn("lab")))
		}
		if out := lines(kubectl(t, "get", "gz", "--no-headers")); len(out) != len(gizmos) {
			t.Errorf("%d rows, want %d", len(out), len(gizmos))
		}
		if out := kubectl(t, "get", "widget", one, "-o", "name"); out != "widget.matrix.test/"+one+"\n" {
			t.Errorf("by the singular: %q", out)
		}
	})
	t.Run("json", func(t *testing.T) {
		var object struct {
			Kind     string
			Metadata struct{ Name, Namespace, ResourceVersion string }
			Spec     struct{ Serial int64 }
		}
		if err := json.Unmarshal([]byte(kubectl(t, "get", "widgets", one, "-o", "json")), &object); err != nil {
			t.Fatal(err)
		}
		put := w.Writer.History.BySerial()[object.Spec.Serial]
		if object.Kind != "Widget" || put.Key != "widgets/default/"+one || object.Metadata.ResourceVersion != fmt.Sprint(put.Revision) {
			t.Errorf("%+v, written %+v", object, put)
		}
		var list struct{ Items []json.RawMessage }
		if err := json.Unmarshal([]byte(kubectl(t, "get", "widgets", "-A", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != len(widgets) {
			t.Errorf("%d objects, want %d", len(list.Items), len(widgets))
		}
	})
	t.Run("yaml", func(t *testing.T) {
		if out := kubectl(t, "get", "widgets", one, "-o", "yaml"); !strings.Contains(out, "kind: Widget\n") || !strings.Contains(out, "  name: "+one+"\n") {
			t.Errorf("%s", out)
		}
	})
	t.Run("name", func(t *testing.T) {
		out := lines(kubectl(t, "get", "gizmos", "-o", "name"))
		for i, key := range gizmos {
			if want := "gizmo.matrix.test/" + strings.TrimPrefix(key, "gizmos/"); out[i] != want {
				t.Fatalf("name %d is %q, want %q", i, out[i], want)
			}
		}
	})
	t.Run("selectors", func(t *testing.T) {
		red := lines(kubectl(t, "get", "gizmos", "-l", "color=red", "--no-headers"))
		field := lines(kubectl(t, "get", "gizmos", "--field-selector", "spec.color=red", "--no-headers"))
		if !slices.Equal(red, field) || len(red) == 0 || len(red) == len(gizmos) {
			t.Errorf("%d by the label, %d by the field, of %d", len(red), len(field), len(gizmos))
		}
		for _, row := range red {
			if strings.Fields(row)[1] != "red" {
				t.Errorf("not red: %q", row)
			}
		}
		if out := lines(kubectl(t, "get", "widgets", "--field-selector", "metadata.name="+one, "--no-headers")); len(out) != 1 {
			t.Errorf("by its name: %q", out)
		}
		if out, err := run(t, home, w.Server.URL, "get", "gizmos", "--field-selector", "spec.unknown=1"); err == nil ||
			!strings.Contains(err.Error(), "field label not supported: spec.unknown") {
			t.Errorf("an unknown field: %q, %v", out, err)
		}
	})
	t.Run("chunks", func(t *testing.T) {
		whole := kubectl(t, "get", "widgets", "-A", "--chunk-size", "0", "-o", "name")
		if paged := kubectl(t, "get", "widgets", "-A", "--chunk-size", "7", "-o", "name"); paged != whole {
			t.Errorf("%d names in pages of 7, %d in one", len(lines(paged)), len(lines(whole)))
		}
	})
	t.Run("raw", func(t *testing.T) {
		var list struct {
			Kind  string
			Items []json.RawMessage
		}
		if err := json.Unmarshal([]byte(kubectl(t, "get", "--raw", "/apis/matrix.test/v1/gizmos?limit=3")), &list); err != nil {
			t.Fatal(err)
		}
		if list.Kind != "GizmoList" || len(list.Items) != 3 {
			t.Errorf("a %s of %d", list.Kind, len(list.Items))
		}
		if out := kubectl(t, "get", "--raw", "/readyz"); strings.TrimSpace(out) != "ok" {
			t.Errorf("/readyz is %q", out)
		}
	})
	t.Run("api_resources", func(t *testing.T) {
		out := kubectl(t, "api-resources", "-o", "wide", "--no-headers")
		for _, want := range [][]string{
			{"widgets", "wd", "matrix.test/v1", "true", "Widget", "get,list,watch"},
			{"gizmos", "gz", "matrix.test/v1", "false", "Gizmo", "get,list,watch"},
		} {
			if !slices.ContainsFunc(lines(out), func(line string) bool { return slices.Equal(strings.Fields(line), want) }) {
				t.Errorf("%v is not in\n%s", want, out)
			}
		}
		if out := kubectl(t, "api-versions"); !strings.Contains(out, "matrix.test/v1\n") {
			t.Errorf("the versions are %q", out)
		}
	})
	t.Run("explain", func(t *testing.T) {
		// It may know little of the kind, but neither crashes nor denies it.
		if out := kubectl(t, "explain", "widgets"); !strings.Contains(out, "KIND:") || !strings.Contains(out, "Widget") {
			t.Errorf("%s", out)
		}
	})
	t.Run("version", func(t *testing.T) {
		if out := kubectl(t, "version"); !strings.Contains(out, "Server Version: v1.") {
			t.Errorf("%s", out)
		}
	})
	t.Run("without_server_print", func(t *testing.T) {
		out := lines(kubectl(t, "get", "widgets", "-A", "--server-print=false", "--no-headers"))
		if len(out) != len(widgets) {
			t.Errorf("%d rows, want %d", len(out), len(widgets))
		}
	})
	t.Run("absent", func(t *testing.T) {
		if _, err := run(t, home, w.Server.URL, "get", "widgets", "nobody"); err == nil ||
			!strings.Contains(err.Error(), `Error from server (NotFound): widgets.matrix.test "nobody" not found`) {
			t.Errorf("an absent object: %v", err)
		}
	})
	t.Run("read_only", func(t *testing.T) {
		if _, err := run(t, home, w.Server.URL, "delete", "widgets", one, "--wait=false"); err == nil ||
			!strings.Contains(err.Error(), "MethodNotAllowed") {
			t.Errorf("a deletion: %v", err)
		}
	})
	t.Run("wait", func(t *testing.T) {
		if out := kubectl(t, "wait", "widget/"+one, "--for=jsonpath={.metadata.name}="+one, "--timeout=30s"); !strings.Contains(out, "condition met") {
			t.Errorf("%q", out)
		}
	})
	// The last: it changes objects.
	t.Run("watch_as_json", func(t *testing.T) { watchAsJSON(ctx, t, w, home) })
}

// get -w -o json prints each object as it changes.
func watchAsJSON(ctx context.Context, t *testing.T, w *world.World, home string) {
	first, environment := clients.KubectlArguments(w.Server.URL, home)
	read, write := io.Pipe()
	process, err := world.Command{
		Name: programs.Kubectl, Environment: environment, Output: write,
		Arguments: append(first, "get", "gizmos", "--watch-only", "-o", "json", "--output-watch-events"),
	}.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { process.Kill(); write.Close() }()
	// It is watching as soon as it prints anything: changes are made until it does.
	churn, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = w.Writer.Churn(churn, 1<<30) }()
	var event struct {
		Type   string
		Object struct {
			Kind     string
			Metadata struct{ ResourceVersion string }
		}
	}
	giveUp := time.AfterFunc(world.Timeout, func() { write.Close() })
	defer giveUp.Stop()
	err = json.NewDecoder(read).Decode(&event)
	read.Close()
	stop()
	<-done
	if err != nil || event.Object.Kind != "Gizmo" || event.Object.Metadata.ResourceVersion == "" {
		t.Errorf("%+v, %v", event, err)
	}
}
