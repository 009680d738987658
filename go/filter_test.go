package watchcore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"watchcore"
	"watchcore/internal/bounded"
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

func TestSelectors(t *testing.T) {
	cache, writer := podCache(t)
	start := cache.Position()
	check(t, writer.Apply(1,
		watchcore.Put("/pods/a/1", pod("Running", "app=web,size=5")),
		watchcore.Put("/pods/a/2", pod("Pending", "app=db")),
		watchcore.Put("/pods/b/3", pod("Running", "app=web")),
		watchcore.Put("/pods/b/4", "no JSON"),
	))
	snapshot, err := cache.Snapshot()
	check(t, err)
	defer snapshot.Close()
	keys := watchcore.RangePrefix("/pods/")
	for name, row := range map[string]struct {
		labels, fields string
		want           string
	}{
		"none":        {"", "", "1 2 3 4"},
		"equal":       {"app=web", "", "1 3"},
		"unequal":     {"app!=web", "", "2 4"},
		"set":         {"app in (db, web), size notin (7)", "", "1 2 3"},
		"present":     {"size", "", "1"},
		"absent":      {"!app", "", "4"},
		"greater":     {"size>4,size<6", "", "1"},
		"field":       {"", "phase==Running", "1 3"},
		"empty field": {"", "phase=", "4"},
		"segment":     {"", "ns!=a", "3 4"},
		"both":        {"app", "phase=Running,ns=b", "3"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := selected(t, cache, snapshot, start, keys, row.labels, row.fields)
			for what, keys := range seen {
				want(t, what, strings.Join(keys, " "), row.want)
			}
		})
	}
	for what, keys := range selected(t, cache, snapshot, start, watchcore.RangeNone(), "app", "") {
		if what != "get" { // which names its key
			want(t, "nothing: "+what, strings.Join(keys, " "), "")
		}
	}
}

// selected is what each way of asking gives; the keys without what they begin with.
func selected(t *testing.T, cache *watchcore.Cache, snapshot *watchcore.Snapshot, start watchcore.Position,
	keys watchcore.Range, labels, fields string,
) map[string][]string {
	t.Helper()
	seen := map[string][]string{}
	see := func(what, key string) { seen[what] = append(seen[what], key[len("/pods/x/"):]) }
	for what, start := range map[string]watchcore.Start{"state": {}, "after": watchcore.StartAfterPosition(start)} {
		seen[what] = nil
		sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: start, Range: keys, LabelSelector: labels, FieldSelector: fields})
		for {
			batch, err := sub.Poll(0)
			check(t, err)
			if batch == nil {
				break
			}
			for e := range batch.Events() {
				if e.Type == watchcore.EventAdded {
					see(what, e.Key())
				}
			}
			batch.Release()
		}
	}
	seen["list"], seen["get"], seen["walk"], seen["diff"] = nil, nil, nil, nil
	page, err := cache.List(bounded.Context(t), keys, watchcore.ListOptions{LabelSelector: labels, FieldSelector: fields})
	check(t, err)
	for item := range page.All() {
		see("list", item.Key())
	}
	page.Release()
	options := watchcore.ReadOptions{LabelSelector: labels, FieldSelector: fields}
	for _, key := range []string{"/pods/a/1", "/pods/a/2", "/pods/b/3", "/pods/b/4"} {
		kv, at, err := cache.Get(bounded.Context(t), key, options)
		check(t, err)
		want(t, "revision of a get", at, 1)
		if kv != nil {
			see("get", key)
		}
	}
	count, _, err := cache.Count(bounded.Context(t), keys, options)
	check(t, err)
	want(t, "count", int(count), len(seen["list"]))

	some := watchcore.SelectOptions{LabelSelector: labels, FieldSelector: fields}
	for item, err := range snapshot.Range(keys, some) {
		check(t, err)
		see("walk", item.Key())
	}
	count, err = snapshot.Count(keys, some)
	check(t, err)
	want(t, "count of the snapshot", int(count), len(seen["list"]))
	batch, err := cache.Diff(start, cache.Position(), watchcore.DiffOptions{Range: keys, LabelSelector: labels, FieldSelector: fields})
	check(t, err)
	for e := range batch.Events() {
		see("diff", e.Key())
	}
	batch.Release()
	return seen
}

// What a change is depends on whether the value before and the one now pass.
func TestTransitionsAtTheBoundary(t *testing.T) {
	cache, writer := podCache(t, watchcore.Config{Indexes: []watchcore.Index{watchcore.IndexByLabel("app")}})
	check(t, writer.Apply(1, watchcore.Put("/pods/a/in", pod("1", "app=web")), watchcore.Put("/pods/a/out", pod("1", "app=db"))))
	by := watchcore.SubscribeOptions{Start: watchcore.StartNow(), LabelSelector: "app=web"}
	subs := map[string]*watchcore.Subscription{
		"scan":  subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow(), LabelSelector: "app in (web)", FieldSelector: "ns!="}),
		"chain": subscribe(t, cache, by),
	}
	masked := subscribe(t, cache, watchcore.SubscribeOptions{
		Start: watchcore.StartNow(), LabelSelector: "app=web", Range: watchcore.RangePrefix("/pods/"),
		Types: []watchcore.EventType{watchcore.EventDeleted},
	})
	raw := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow(), LabelSelector: "app=web", RawTypes: true})
	nothing := subscribe(t, cache, watchcore.SubscribeOptions{Range: watchcore.RangeNone()})
	for i, change := range []watchcore.Change{
		watchcore.Put("/pods/a/in", pod("2", "app=web")),
		watchcore.Put("/pods/a/in", pod("3", "app=db")),
		watchcore.Put("/pods/a/in", pod("4", "app=db")),
		watchcore.Put("/pods/a/in", pod("5", "app=web")),
		watchcore.Delete("/pods/a/in"),
		watchcore.Delete("/pods/a/out"),
	} {
		check(t, writer.Apply(uint64(i+2), change))
	}
	expected := lines(
		"2 MODIFIED /pods/a/in "+pod("2", "app=web")+"<"+pod("1", "app=web"),
		"3 DELETED /pods/a/in -<"+pod("2", "app=web"),
		"5 ADDED /pods/a/in "+pod("5", "app=web")+"<"+pod("4", "app=db"),
		"6 DELETED /pods/a/in -<"+pod("5", "app=web"),
	)
	for name, sub := range subs {
		want(t, name, drain(t, sub), expected)
	}
	want(t, "only deletions", drain(t, masked), lines(
		"3 DELETED /pods/a/in -<"+pod("2", "app=web"),
		"6 DELETED /pods/a/in -<"+pod("5", "app=web"),
	))
	want(t, "raw", strings.Count(drain(t, raw), "DELETE "), 2)
	want(t, "nothing", drain(t, nothing), "1 BOOKMARK end")
	want(t, "position of nothing", nothing.Position(), cache.Position())

	// The same over a resync: what left the filter meanwhile is deleted.
	over := subscribe(t, cache, by)
	check(t, writer.Apply(10, watchcore.Put("/pods/a/in", pod("1", "app=web"))))
	_, err := writer.Resync(20, []watchcore.KeyValue{
		{Key: []byte("/pods/a/in"), Value: []byte(pod("2", "app=db")), CreateRevision: 10, ModRevision: 15, Version: 2},
	}, watchcore.ReasonRequested)
	check(t, err)
	got := strings.Split(drain(t, over), "\n")
	want(t, "events over a resync", len(got), 4)
	want(t, "the marks behind a mask", strings.Count(drain(t, masked), " RESYNC "), 2)
	want(t, "what left the filter", got[2], "20 DELETED /pods/a/in -<"+pod("1", "app=web")+" synthetic")
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
