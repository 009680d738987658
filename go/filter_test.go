package watchcore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"watchcore"
)

// podCache declares what the tests of filters look at: labels, the phase, the
// namespace of the key, and any further options.
func podCache(t testing.TB, options ...watchcore.Option) (*watchcore.Cache, *watchcore.Writer) {
	t.Helper()
	return embedded(t, append([]watchcore.Option{
		watchcore.LabelsFrom("/metadata/labels"),
		watchcore.Field("phase", "/status/phase"),
		watchcore.KeySegment("ns", 1),
	}, options...)...)
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
	keys := watchcore.KeyPrefix("/pods/")
	type conditions = []watchcore.Condition
	for name, row := range map[string]struct {
		conditions
		want string
	}{
		"none":        {nil, "1 2 3 4"},
		"empty":       {conditions{watchcore.Labels(""), watchcore.Fields("")}, "1 2 3 4"},
		"equal":       {conditions{watchcore.Labels("app=web")}, "1 3"},
		"unequal":     {conditions{watchcore.Labels("app!=web")}, "2 4"},
		"set":         {conditions{watchcore.Labels("app in (db, web), size notin (7)")}, "1 2 3"},
		"present":     {conditions{watchcore.Labels("size")}, "1"},
		"absent":      {conditions{watchcore.Labels("!app")}, "4"},
		"greater":     {conditions{watchcore.Labels("size>4,size<6")}, "1"},
		"field":       {conditions{watchcore.Fields("phase==Running")}, "1 3"},
		"empty field": {conditions{watchcore.Fields("phase=")}, "4"},
		"segment":     {conditions{watchcore.Fields("ns!=a")}, "3 4"},
		"both":        {conditions{watchcore.Labels("app"), watchcore.Fields("phase=Running,ns=b")}, "3"},
		"nothing":     {conditions{watchcore.Labels("app"), watchcore.Nothing()}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			see := func(key string, seen *[]string) { *seen = append(*seen, key[len("/pods/x/"):]) }
			agree := func(what string, seen []string) {
				t.Helper()
				want(t, what, strings.Join(seen, " "), row.want)
			}
			subscribeOptions, listOptions := []watchcore.SubscribeOption{keys}, []watchcore.ListOption{}
			diffOptions := []watchcore.DiffOption{keys}
			for _, condition := range row.conditions {
				subscribeOptions = append(subscribeOptions, condition)
				listOptions = append(listOptions, condition)
				diffOptions = append(diffOptions, condition)
			}
			for what, options := range map[string][]watchcore.SubscribeOption{
				"state": subscribeOptions,
				"after": append([]watchcore.SubscribeOption{watchcore.AfterPosition(start)}, subscribeOptions...),
			} {
				var seen []string
				sub := subscribe(t, cache, options...)
				for {
					batch, err := sub.Poll(0)
					check(t, err)
					if batch == nil {
						break
					}
					for e := range batch.Events() {
						if e.Type == watchcore.Added {
							see(e.Key(), &seen)
						}
					}
					batch.Release()
				}
				agree(what, seen)
			}

			var listed, got []string
			page, err := cache.List(bounded(t), keys, watchcore.Any(), listOptions...)
			check(t, err)
			for item := range page.All() {
				see(item.Key(), &listed)
			}
			page.Release()
			agree("list", listed)
			for _, key := range []string{"/pods/a/1", "/pods/a/2", "/pods/b/3", "/pods/b/4"} {
				kv, at, err := cache.Get(bounded(t), key, watchcore.Any(), row.conditions...)
				check(t, err)
				want(t, "revision of a get", at, 1)
				if kv != nil {
					see(key, &got)
				}
			}
			agree("get", got)
			count, _, err := cache.Count(bounded(t), keys, watchcore.Any(), row.conditions...)
			check(t, err)
			want(t, "count", int(count), len(listed))

			var walked, changed []string
			for item, err := range snapshot.Range(keys, row.conditions...) {
				check(t, err)
				see(item.Key(), &walked)
			}
			agree("walk", walked)
			count, err = snapshot.Count(keys, row.conditions...)
			check(t, err)
			want(t, "count of the snapshot", int(count), len(listed))
			batch, err := cache.Diff(start, cache.Position(), diffOptions...)
			check(t, err)
			for e := range batch.Events() {
				see(e.Key(), &changed)
			}
			batch.Release()
			agree("diff", changed)
		})
	}
}

// What a change is depends on whether the value before and the one now pass.
func TestTransitionsAtTheBoundary(t *testing.T) {
	cache, writer := podCache(t, watchcore.IndexByLabel("app"))
	check(t, writer.Apply(1, watchcore.Put("/pods/a/in", pod("1", "app=web")), watchcore.Put("/pods/a/out", pod("1", "app=db"))))
	by := watchcore.Labels("app=web")
	subs := map[string]*watchcore.Subscription{
		"scan":  subscribe(t, cache, watchcore.FromNow(), watchcore.Labels("app in (web)"), watchcore.Fields("ns!=")),
		"chain": subscribe(t, cache, watchcore.FromNow(), by),
	}
	masked := subscribe(t, cache, watchcore.FromNow(), by, watchcore.KeyPrefix("/pods/"), watchcore.Types(watchcore.Deleted))
	raw := subscribe(t, cache, watchcore.FromNow(), by, watchcore.RawTypes())
	nothing := subscribe(t, cache, watchcore.Nothing())
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
	over := subscribe(t, cache, watchcore.FromNow(), by)
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
		cache     *watchcore.Cache
		condition watchcore.Condition
		says      string
	}{
		"open set":         {cache, watchcore.Labels("app in (web"), "byte 11"},
		"no value":         {cache, watchcore.Labels("app=web,,x"), "byte 8"},
		"field operator":   {cache, watchcore.Fields("phase>1"), "byte 7"},
		"undeclared field": {cache, watchcore.Fields("nodeName=x"), "nodeName"},
		"no labels":        {bare, watchcore.Labels("app=web"), "label"},
		"no fields":        {bare, watchcore.Fields("phase=x"), "phase"},
		"invalid UTF-8":    {cache, watchcore.Labels("app=\xff\xfe"), "byte 4"},
		"NUL":              {cache, watchcore.Labels("a\x00b=c"), "byte 1"},
		"parentheses":      {cache, watchcore.Labels(strings.Repeat("(", 1<<20)), "byte 0"},
		"1 MiB":            {cache, watchcore.Labels(huge), "byte 1048575"},
		"1 MiB of a name":  {cache, watchcore.Labels(strings.Repeat("n", 1<<20)), "byte 63"},
		"field of 1 MiB":   {cache, watchcore.Fields(strings.Repeat("\xf0", 1<<20)), "byte 0"},
	} {
		t.Run(name, func(t *testing.T) {
			refused := func(what string, err error) {
				t.Helper()
				wantError(t, what, err, watchcore.ErrInvalidArgument)
				if text := err.Error(); !strings.Contains(text, row.says) || len(text) > 1024 {
					t.Errorf("%s: %.1024q does not say %q", what, text, row.says)
				}
			}
			_, err := row.cache.Subscribe(context.Background(), row.condition)
			refused("subscribe", err)
			_, err = row.cache.List(bounded(t), watchcore.AllKeys(), watchcore.Any(), row.condition)
			refused("list", err)
			_, _, err = row.cache.Get(bounded(t), "/a", watchcore.Any(), row.condition)
			refused("get", err)
			_, _, err = row.cache.Count(bounded(t), watchcore.AllKeys(), watchcore.Any(), row.condition)
			refused("count", err)
			_, err = row.cache.Diff(watchcore.Position{}, watchcore.Position{}, row.condition)
			refused("diff", err)
			snapshot, err := row.cache.Snapshot()
			check(t, err)
			defer snapshot.Close()
			_, err = snapshot.Count(watchcore.AllKeys(), row.condition)
			refused("count of a snapshot", err)
			for _, err := range snapshot.Range(watchcore.AllKeys(), row.condition) {
				refused("walk", err)
			}
		})
	}
	// A selector of 1 MiB that is right is taken.
	sub := subscribe(t, cache, watchcore.Labels(huge+"a!=b"))
	want(t, "events of a long selector", drain(t, sub), "0 BOOKMARK end")

	two := []watchcore.Condition{watchcore.Labels("a in (b"), watchcore.Labels("c)")}
	_, err := cache.Subscribe(context.Background(), two[0], two[1])
	wantError(t, "subscribe with two", err, watchcore.ErrInvalidArgument)
	_, err = cache.List(bounded(t), watchcore.AllKeys(), watchcore.Any(), two[0], two[1])
	wantError(t, "list with two", err, watchcore.ErrInvalidArgument)
	_, _, err = cache.Count(bounded(t), watchcore.AllKeys(), watchcore.Any(), watchcore.Fields("ns=a"), watchcore.Fields("ns=b"))
	wantError(t, "count with two", err, watchcore.ErrInvalidArgument)
	_, _, err = cache.Get(bounded(t), "/a", watchcore.Any(), two...)
	wantError(t, "get with two", err, watchcore.ErrInvalidArgument)
}

func TestDeclarations(t *testing.T) {
	// A pod of Kubernetes' storage form: k8s\0, then runtime.Unknown{2: raw}, where raw
	// is Pod{1: ObjectMeta{1: name, 11: labels}, 2: PodSpec{10: nodeName}}.
	field := func(number int, bytes string) string {
		return string([]byte{byte(number<<3 | 2), byte(len(bytes))}) + bytes
	}
	object := field(1, field(1, "web-1")+field(11, field(1, "app")+field(2, "web"))) + field(2, field(10, "node-7"))
	cache, writer := podCache(t,
		watchcore.Field("nodeName", "/spec/nodeName", 2, 10),
		watchcore.Field("name", "/metadata/name"),
		watchcore.Field("ready", "/ready"),
		watchcore.Field("whole", ""),
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
		count, _, err := cache.Count(bounded(t), watchcore.AllKeys(), watchcore.Any(), watchcore.Fields(selector))
		check(t, err)
		want(t, selector, count, expected)
	}
	count, _, err := cache.Count(bounded(t), watchcore.AllKeys(), watchcore.Any(), watchcore.Labels("app=web"))
	check(t, err)
	want(t, "labels of the storage form", count, 1)
	want(t, "values that could not be read", cache.Stats().ExtractFailures, 1)

	many := make([]watchcore.Option, 65)
	for i := range many {
		many[i] = watchcore.KeySegment(fmt.Sprint("s", i), i)
	}
	nine := []watchcore.Option{watchcore.IndexByKey()}
	for depth := range 8 {
		nine = append(nine, watchcore.IndexByPrefix(depth+1))
	}
	for name, options := range map[string][]watchcore.Option{
		"field without a name":     {watchcore.Field("", "/a")},
		"segment without a name":   {watchcore.KeySegment("", 1)},
		"a name twice":             {watchcore.Field("a", "/a"), watchcore.KeySegment("a", 1)},
		"a name that is no text":   {watchcore.Field("\xff", "/a")},
		"a pointer without slash":  {watchcore.Field("a", "spec")},
		"a pointer that escapes":   {watchcore.Field("a", "/a~2")},
		"a field number 0":         {watchcore.Field("a", "/a", 2, 0)},
		"a path of 101":            {watchcore.Field("a", "/a", make([]uint32, 101)...)},
		"a negative segment":       {watchcore.KeySegment("a", -1)},
		"a segment beyond":         {watchcore.KeySegment("a", 1<<32)},
		"too many attributes":      many,
		"labels without slash":     {watchcore.LabelsFrom("labels")},
		"index of no field":        {watchcore.IndexByField("phase")},
		"index of an empty field":  {watchcore.IndexByField("")},
		"index of a label nowhere": {watchcore.IndexByLabel("app")},
		"index of depth 0":         {watchcore.IndexByPrefix(0)},
		"index of depth -1":        {watchcore.IndexByPrefix(-1)},
		"an index twice":           {watchcore.IndexByKey(), watchcore.IndexByKey()},
		"nine indexes":             nine,
		"negative buckets":         {watchcore.MaxBuckets(-1)},
	} {
		cache, err := watchcore.New(options...)
		wantError(t, name, err, watchcore.ErrInvalidArgument)
		want(t, name, cache, nil)
	}
}

func TestIndexesAreUsed(t *testing.T) {
	cache, writer := podCache(t, watchcore.IndexByKey(), watchcore.IndexByPrefix(2), watchcore.IndexByField("phase"),
		watchcore.IndexByLabel("app"), watchcore.MaxBuckets(4))
	for i := range 200 {
		check(t, writer.Apply(uint64(i+1), watchcore.Put(fmt.Sprintf("/pods/%d/x", i%10), pod(fmt.Sprint(i%5), fmt.Sprintf("app=%d", i%4)))))
	}
	for _, row := range []struct {
		name      string
		option    watchcore.SubscribeOption
		read_path string
		index     string
	}{
		{"key", watchcore.Key("/pods/3/x"), "Chain", "key"},
		{"prefix", watchcore.KeyPrefix("/pods/3/"), "Chain", "prefix of depth 2"},
		{"field", watchcore.Fields("phase=3"), "Chain", "field phase"},
		{"label", watchcore.Labels("app=3"), "Chain", "label app"},
		{"unfit", watchcore.Fields("phase!=3"), "Scan", ""},
		{"one too many", watchcore.Key("/pods/4/x"), "Scan", ""},
	} {
		sub := subscribe(t, cache, watchcore.FromNow(), row.option)
		for i := range 50 {
			revision := cache.Position().Revision + 1
			check(t, writer.Apply(revision, watchcore.Put(fmt.Sprintf("/pods/%d/x", i%10), pod(fmt.Sprint(i%5), fmt.Sprintf("app=%d", i%4)))))
		}
		events := strings.Count(drain(t, sub), "MODIFIED")
		stats := sub.Stats()
		want(t, row.name+": read path", stats.ReadPath.String(), row.read_path)
		want(t, row.name+": index", stats.Index, row.index)
		if events == 0 {
			t.Errorf("%s: no event came", row.name)
		}
		if row.read_path == "Chain" && (stats.LookedAt >= 50 || stats.Skipped == 0) {
			t.Errorf("%s: it looked at what is not its own: %+v", row.name, stats)
		}
		if stats.HandedOut == 0 {
			t.Errorf("%s: nothing was handed out: %+v", row.name, stats)
		}
	}
	want(t, "buckets", cache.Stats().Buckets, 4)
	want(t, "a read path that is none", watchcore.ReadPath(9).String(), "ReadPath(9)")
}
