package watchcore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

// podCache declares what the tests of filters look at: labels, the phase, the
// namespace of the key, and anything further.
func podCache(t testing.TB, further ...watchcore.Config) (*watchcore.Cache, *watchcore.Writer) {
	t.Helper()
	config := one(further)
	config.Labels = watchcore.LabelsJSON("/metadata/labels")
	config.Fields = append([]watchcore.Attribute{
		watchcore.AttributeJSON("phase", "/status/phase"),
		watchcore.AttributeKeySegment("ns", 1),
	}, config.Fields...)
	return embedded(t, config)
}

// pod is an object with a phase and labels such as "app=web,tier=front".
func pod(phase, labels string) string {
	var members []string
	for _, label := range strings.Split(labels, ",") {
		if name, value, found := strings.Cut(label, "="); found {
			members = append(members, fmt.Sprintf("%q:%q", name, value))
		}
	}
	return fmt.Sprintf(`{"metadata":{"labels":{%s}},"status":{"phase":%q}}`, strings.Join(members, ","), phase)
}

func TestSelectorsAreRefused(t *testing.T) {
	cache, _ := podCache(t)
	bare, _ := embedded(t)
	huge := strings.Repeat("a!=b,", 1<<20/5)
	for name, row := range map[string]struct {
		cache          *watchcore.Cache
		labels, fields string
		says           string
	}{
		"open set":         {cache, "app in (web", "", "byte 11"},
		"no value":         {cache, "app=web,,x", "", "byte 8"},
		"field operator":   {cache, "", "phase>1", "byte 7"},
		"undeclared field": {cache, "", "nodeName=x", "nodeName"},
		"no labels":        {bare, "app=web", "", "label"},
		"no fields":        {bare, "", "phase=x", "phase"},
		"invalid UTF-8":    {cache, "app=\xff\xfe", "", "byte 4"},
		"NUL":              {cache, "a\x00b=c", "", "byte 1"},
		"parentheses":      {cache, strings.Repeat("(", 1<<20), "", "byte 0"},
		"1 MiB":            {cache, huge, "", "byte 1048575"},
		"1 MiB of a name":  {cache, strings.Repeat("n", 1<<20), "", "byte 63"},
		"field of 1 MiB":   {cache, "", strings.Repeat("\xf0", 1<<20), "byte 0"},
	} {
		t.Run(name, func(t *testing.T) {
			refused := func(what string, err error) {
				t.Helper()
				wantError(t, what, err, watchcore.ErrInvalidArgument)
				if text := err.Error(); !strings.Contains(text, row.says) || len(text) > 1024 {
					t.Errorf("%s: %.1024q does not say %q", what, text, row.says)
				}
			}
			_, err := row.cache.Subscribe(context.Background(), watchcore.SubscribeOptions{LabelSelector: row.labels, FieldSelector: row.fields})
			refused("subscribe", err)
			_, err = row.cache.List(bounded.Context(t), watchcore.RangeAll(), watchcore.ListOptions{LabelSelector: row.labels, FieldSelector: row.fields})
			refused("list", err)
			read := watchcore.ReadOptions{LabelSelector: row.labels, FieldSelector: row.fields}
			_, _, err = row.cache.Get(bounded.Context(t), "/a", read)
			refused("get", err)
			_, _, err = row.cache.Count(bounded.Context(t), watchcore.RangeAll(), read)
			refused("count", err)
			_, err = row.cache.Diff(watchcore.Position{}, watchcore.Position{}, watchcore.DiffOptions{LabelSelector: row.labels, FieldSelector: row.fields})
			refused("diff", err)
			snapshot, err := row.cache.Snapshot()
			check(t, err)
			defer snapshot.Close()
			some := watchcore.SelectOptions{LabelSelector: row.labels, FieldSelector: row.fields}
			_, err = snapshot.Count(watchcore.RangeAll(), some)
			refused("count of a snapshot", err)
			for _, err := range snapshot.Range(watchcore.RangeAll(), some) {
				refused("walk", err)
			}
		})
	}
	// A selector of 1 MiB that is right is taken.
	sub := subscribe(t, cache, watchcore.SubscribeOptions{LabelSelector: huge + "a!=b"})
	want(t, "events of a long selector", drain(t, sub), "0 BOOKMARK end")
}

func TestDeclarations(t *testing.T) {
	// A pod of Kubernetes' storage form: k8s\0, then runtime.Unknown{2: raw}, where raw
	// is Pod{1: ObjectMeta{1: name, 11: labels}, 2: PodSpec{10: nodeName}}.
	field := func(number int, bytes string) string {
		return string([]byte{byte(number<<3 | 2), byte(len(bytes))}) + bytes
	}
	object := field(1, field(1, "web-1")+field(11, field(1, "app")+field(2, "web"))) + field(2, field(10, "node-7"))
	cache, writer := podCache(t, watchcore.Config{Fields: []watchcore.Attribute{watchcore.AttributeJSON("nodeName", "/spec/nodeName", 2, 10),
		watchcore.AttributeJSON("name", "/metadata/name"),
		watchcore.AttributeJSON("ready", "/ready"),
		watchcore.AttributeJSON("whole", "")}},
	)
	check(t, writer.Apply(1,
		watchcore.Put("/pods/a/1", "k8s\x00"+field(2, object)),
		watchcore.Put("/pods/a/2", `{"spec":{"nodeName":"node-7"},"ready":true}`),
		watchcore.Put("/pods/a/3", `"text"`),
		watchcore.Put("/pods/a/4", `{"spec":`),
	))
	for selector, expected := range map[string]uint64{
		"nodeName=node-7":            2,
		"nodeName=node-7,name=web-1": 1,
		"ready=true":                 1,
		"whole=text":                 1,
		"nodeName=,ready=,whole=":    1,
	} {
		count, _, err := cache.Count(bounded.Context(t), watchcore.RangeAll(), watchcore.ReadOptions{FieldSelector: selector})
		check(t, err)
		want(t, selector, count, expected)
	}
	count, _, err := cache.Count(bounded.Context(t), watchcore.RangeAll(), watchcore.ReadOptions{LabelSelector: "app=web"})
	check(t, err)
	want(t, "labels of the storage form", count, 1)
	want(t, "values that could not be read", cache.Stats().ExtractFailures, 1)

	many := make([]watchcore.Attribute, 65)
	for i := range many {
		many[i] = watchcore.AttributeKeySegment(fmt.Sprint("s", i), i)
	}
	nine := []watchcore.Index{watchcore.IndexByKey()}
	for depth := range 8 {
		nine = append(nine, watchcore.IndexByPrefix(depth+1))
	}
	for name, fields := range map[string][]watchcore.Attribute{
		"field without a name":    {watchcore.AttributeJSON("", "/a")},
		"segment without a name":  {watchcore.AttributeKeySegment("", 1)},
		"a name twice":            {watchcore.AttributeJSON("a", "/a"), watchcore.AttributeKeySegment("a", 1)},
		"a name that is no text":  {watchcore.AttributeJSON("\xff", "/a")},
		"a pointer without slash": {watchcore.AttributeJSON("a", "spec")},
		"a pointer that escapes":  {watchcore.AttributeJSON("a", "/a~2")},
		"a field number 0":        {watchcore.AttributeJSON("a", "/a", 2, 0)},
		"a path of 101":           {watchcore.AttributeJSON("a", "/a", make([]uint32, 101)...)},
		"a negative segment":      {watchcore.AttributeKeySegment("a", -1)},
		"a segment beyond":        {watchcore.AttributeKeySegment("a", 1<<32)},
		"too many attributes":     many,
	} {
		cache, err := watchcore.New(watchcore.Config{Fields: fields})
		wantError(t, name, err, watchcore.ErrInvalidArgument)
		want(t, name, cache, nil)
	}
	for name, indexes := range map[string][]watchcore.Index{
		"index of no field":        {watchcore.IndexByField("phase")},
		"index of an empty field":  {watchcore.IndexByField("")},
		"index of a label nowhere": {watchcore.IndexByLabel("app")},
		"index of depth 0":         {watchcore.IndexByPrefix(0)},
		"index of depth -1":        {watchcore.IndexByPrefix(-1)},
		"an index twice":           {watchcore.IndexByKey(), watchcore.IndexByKey()},
		"nine indexes":             nine,
	} {
		cache, err := watchcore.New(watchcore.Config{Indexes: indexes})
		wantError(t, name, err, watchcore.ErrInvalidArgument)
		want(t, name, cache, nil)
	}
	for name, config := range map[string]watchcore.Config{
		"labels without slash": {Labels: watchcore.LabelsJSON("labels")},
		"negative buckets":     {MaxBuckets: -1},
	} {
		cache, err := watchcore.New(config)
		wantError(t, name, err, watchcore.ErrInvalidArgument)
		want(t, name, cache, nil)
	}
}

func TestIndexesAreUsed(t *testing.T) {
	cache, writer := podCache(t, watchcore.Config{Indexes: []watchcore.Index{watchcore.IndexByKey(), watchcore.IndexByPrefix(2), watchcore.IndexByField("phase"),
		watchcore.IndexByLabel("app")}, MaxBuckets: 4})
	for i := range 200 {
		check(t, writer.Apply(uint64(i+1), watchcore.Put(fmt.Sprintf("/pods/%d/x", i%10), pod(fmt.Sprint(i%5), fmt.Sprintf("app=%d", i%4)))))
	}
	for _, row := range []struct {
		name    string
		options watchcore.SubscribeOptions
		path    string
		index   string
	}{
		{"key", watchcore.SubscribeOptions{Range: watchcore.RangeKey("/pods/3/x")}, "Chain", "key"},
		{"prefix", watchcore.SubscribeOptions{Range: watchcore.RangePrefix("/pods/3/")}, "Chain", "prefix of depth 2"},
		{"field", watchcore.SubscribeOptions{FieldSelector: "phase=3"}, "Chain", "field phase"},
		{"label", watchcore.SubscribeOptions{LabelSelector: "app=3"}, "Chain", "label app"},
		{"unfit", watchcore.SubscribeOptions{FieldSelector: "phase!=3"}, "Scan", ""},
		{"one too many", watchcore.SubscribeOptions{Range: watchcore.RangeKey("/pods/4/x")}, "Scan", ""},
	} {
		row.options.Start = watchcore.StartNow()
		sub := subscribe(t, cache, row.options)
		for i := range 50 {
			revision := cache.Position().Revision + 1
			check(t, writer.Apply(revision, watchcore.Put(fmt.Sprintf("/pods/%d/x", i%10), pod(fmt.Sprint(i%5), fmt.Sprintf("app=%d", i%4)))))
		}
		events := strings.Count(drain(t, sub), "MODIFIED")
		stats := sub.Stats()
		want(t, row.name+": read path", stats.ReadPath.String(), row.path)
		want(t, row.name+": index", stats.Index, row.index)
		if events == 0 {
			t.Errorf("%s: no event came", row.name)
		}
		if row.path == "Chain" && (stats.LookedAt >= 50 || stats.Skipped == 0) {
			t.Errorf("%s: it looked at what is not its own: %+v", row.name, stats)
		}
		if stats.HandedOut == 0 {
			t.Errorf("%s: nothing was handed out: %+v", row.name, stats)
		}
	}
	want(t, "buckets", cache.Stats().Buckets, 4)
	want(t, "a read path that is none", watchcore.ReadPath(9).String(), "ReadPath(9)")
}
