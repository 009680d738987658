package comparison

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/url"
	"os"
	"sort"
	"strings"
	"testing"
	"time"

	"watchcore.test/http/internal/suite"
	"watchcore.test/http/internal/world"
)

// An ask is a request that both servers get. In its path, query and answer, {R} is etcd's revision, {OLD} one at which
// there were fewer objects, {FUTURE} one that does not come, {NAME} a widget in the namespace default, {TOKEN} the server's
// own token behind the first widget.
type ask struct {
	name   string
	target string // below /apis/matrix.test/v1 where it does not begin with a slash
	accept string
	// events is how many lines of a watch are read. 0: the whole answer is read.
	events int
	// ours are the fields in which the answers differ on purpose, each with the reason. A field ends with * for all
	// that begin so. The difference has to be there.
	ours map[string]string
}

const (
	tables   = "application/json;as=Table;v=v1;g=meta.k8s.io"
	metadata = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	partial  = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
)

// An answer as the fields of its parts: code, type, and each field of each JSON document in it.
type answer map[string]string

func get(ctx context.Context, t *testing.T, base string, one ask) answer {
	t.Helper()
	target := one.target
	if !strings.HasPrefix(target, "/") {
		target = "/apis/matrix.test/v1/" + target
	}
	ctx, cancel := context.WithTimeout(ctx, world.Timeout)
	defer cancel()
	if strings.Contains(target, "{TOKEN}") {
		target = strings.ReplaceAll(target, "{TOKEN}", url.QueryEscape(token(ctx, t, base)))
	}
	response := suite.Open(ctx, t, base+target, one.accept)
	defer response.Body.Close()
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	found := answer{"code": fmt.Sprint(response.StatusCode), "type": media}
	if code := found["code"]; code == "429" || code == "503" || code == "504" {
		found["Retry-After"] = response.Header.Get("Retry-After")
	}
	decoder := json.NewDecoder(response.Body)
	decoder.UseNumber()
	for number := 0; one.events == 0 || number < one.events; number++ {
		var document any
		if err := decoder.Decode(&document); err != nil {
			if one.events != 0 || number == 0 {
				found["end"] = fmt.Sprintf("after %d documents", number)
			}
			break
		}
		prefix := ""
		if one.events != 0 {
			prefix = fmt.Sprintf("event %d ", number)
		}
		flatten(prefix, "", document, found)
	}
	return found
}

// token is a server's continue token behind its first widget.
func token(ctx context.Context, t *testing.T, base string) string {
	t.Helper()
	response := suite.Open(ctx, t, base+"/apis/matrix.test/v1/widgets?limit=1", "")
	defer response.Body.Close()
	var list struct {
		Metadata struct {
			Continue string `json:"continue"`
		} `json:"metadata"`
	}
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		t.Fatal(err)
	}
	return list.Metadata.Continue
}

func flatten(prefix, path string, value any, into answer) {
	switch value := value.(type) {
	case map[string]any:
		for key, member := range value {
			below := path + "." + key
			if path == "" {
				below = key
			}
			flatten(prefix, below, member, into)
		}
	case []any:
		if path == "resources" {
			// Kubernetes' come in the order of a map.
			sort.Slice(value, func(i, j int) bool { return nameOf(value[i]) < nameOf(value[j]) })
		}
		into[prefix+path+" length"] = fmt.Sprint(len(value))
		for i, element := range value {
			flatten(prefix, fmt.Sprintf("%s[%d]", path, i), element, into)
		}
	default:
		text := fmt.Sprint(value)
		// No token, and a token that is empty, are one.
		if strings.HasSuffix(path, "metadata.continue") && text == "" {
			return
		}
		// The token is the server's own; that there is one is not.
		if strings.HasSuffix(path, "metadata.continue") && text != "" {
			text = "a token"
		}
		into[prefix+path] = text
	}
}

func nameOf(resource any) string {
	members, _ := resource.(map[string]any)
	return fmt.Sprint(members["name"])
}

// differences are the fields that differ, each with both values.
func differences(kubernetes, watchcore answer) map[string]string {
	found := map[string]string{}
	for field, value := range kubernetes {
		if other, there := watchcore[field]; !there {
			found[field] = fmt.Sprintf("%q, ours has none", value)
		} else if other != value {
			found[field] = fmt.Sprintf("%q, ours %q", value, other)
		}
	}
	for field, value := range watchcore {
		if _, there := kubernetes[field]; !there {
			found[field] = fmt.Sprintf("none, ours %q", value)
		}
	}
	return found
}

func matches(pattern, field string) bool {
	if before, star := strings.CutSuffix(pattern, "*"); star {
		return strings.HasPrefix(field, before)
	}
	return pattern == field
}

// The same requests to Kubernetes' API server and to watchcore serve over one etcd. All fields of the answers agree, but
// for those that a request names with the reason.
func TestComparison(t *testing.T) {
	ctx := suite.Bounded(t)
	w := newWorld(ctx, t)
	kubernetes := newKubernetes(ctx, t, w.Etcd.URL)
	replace := prepare(ctx, t, w)

	var report bytes.Buffer
	fmt.Fprintf(&report, "%-44s %-10s %-9s %s\n", "request", "Kubernetes", "watchcore", "answers")
	for _, one := range asks {
		t.Run(one.name, func(t *testing.T) {
			asked := one
			asked.target = replace.Replace(one.target)
			theirs, ours := get(ctx, t, kubernetes.URL, asked), get(ctx, t, w.Server.URL, asked)
			compare(t, asked, theirs, ours, &report)
		})
	}
	t.Logf("\n%s", report.String())
	if path := os.Getenv("HTTP_TESTS_REPORT"); path != "" {
		if err := os.WriteFile(path, report.Bytes(), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// prepare makes some history, and says what stands for it in requests.
func prepare(ctx context.Context, t *testing.T, w *world.World) *strings.Replacer {
	t.Helper()
	// Not before the caches of both servers begin.
	old := settled(ctx, t, w)
	if err := w.Writer.Churn(ctx, 30); err != nil {
		t.Fatal(err)
	}
	revision := settled(ctx, t, w)
	if _, err := w.CaughtUp(ctx); err != nil {
		t.Fatal(err)
	}
	name := ""
	for _, key := range world.Keys(w.Writer.History.State("widgets/default/", revision)) {
		name = strings.TrimPrefix(key, "widgets/default/")
		break
	}
	return strings.NewReplacer("{R}", fmt.Sprint(revision), "{OLD}", fmt.Sprint(old),
		"{FUTURE}", fmt.Sprint(revision+1000), "{NAME}", name)
}

// settled is etcd's revision when nobody writes any more: the API server writes the states of its resources.
func settled(ctx context.Context, t *testing.T, w *world.World) int64 {
	t.Helper()
	last, since := int64(0), time.Now()
	for {
		revision, err := w.Etcd.Revision(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if revision != last {
			last, since = revision, time.Now()
		}
		if time.Since(since) > 500*time.Millisecond {
			return revision
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func compare(t *testing.T, one ask, theirs, ours answer, report *bytes.Buffer) {
	found := differences(theirs, ours)
	reasons, used := map[string]bool{}, map[string]bool{}
	var fields []string
	for field := range found {
		fields = append(fields, field)
	}
	sort.Strings(fields)
	failed := false
fields:
	for _, field := range fields {
		for pattern, reason := range one.ours {
			if matches(pattern, field) {
				reasons[reason], used[pattern] = true, true
				continue fields
			}
		}
		failed = true
		t.Errorf("%s %s: Kubernetes has %s", one.target, field, found[field])
	}
	for pattern, reason := range one.ours {
		if !used[pattern] {
			failed = true
			t.Errorf("%s %s: no longer differs (%s)", one.target, pattern, reason)
		}
	}
	said := "equal"
	if len(reasons) > 0 {
		var all []string
		for reason := range reasons {
			all = append(all, reason)
		}
		sort.Strings(all)
		said = "ours: " + strings.Join(all, "; ")
	}
	if failed {
		said = "DIFFER"
	}
	fmt.Fprintf(report, "%-44s %-10s %-9s %s\n", one.name, theirs["code"], ours["code"], said)
}

func query(pairs ...string) string {
	values := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
	}
	// A placeholder stays one.
	return "?" + strings.NewReplacer("%7B", "{", "%7D", "}").Replace(values.Encode())
}
