package apiserver

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	cachermetrics "k8s.io/apiserver/pkg/storage/cacher/metrics"
	etcd3metrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/storage/etcd3/testserver"
	storagemetrics "k8s.io/apiserver/pkg/storage/metrics"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/component-base/metrics/legacyregistry"

	watchcore "github.com/watchcore/watchcore/go"
)

// notGiven are metrics of the cacher of k8s.io/apiserver that have no series here, and why.
var notGiven = map[string]string{
	"watch_cache_capacity_increase_total":        "the window has one size",
	"watch_cache_capacity_decrease_total":        "the window has one size",
	"apiserver_storage_consistency_checks_total": "counted by Kubernetes' checker itself, after five minutes",
	"apiserver_watch_shards_total":               "registered with the feature ShardedListAndWatch only",
	"apiserver_watch_filtered_events_total":      "registered with the feature ShardedListAndWatch only",
}

// upstreamNames are the metrics that the cacher of k8s.io/apiserver registers, read from the source that this test is built of.
func upstreamNames(t *testing.T) (names []string) {
	register := reflect.ValueOf(cachermetrics.Register).Pointer()
	path, _ := runtime.FuncForPC(register).FileLine(register)
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	must(t, err)
	known := map[string]string{"namespace": "apiserver", "subsystem": "watch_cache"}
	ast.Inspect(file, func(n ast.Node) bool {
		literal, ok := n.(*ast.CompositeLit)
		if !ok || !strings.HasSuffix(fmt.Sprint(literal.Type), "Opts}") {
			return true
		}
		parts := map[string]string{}
		for _, element := range literal.Elts {
			pair := element.(*ast.KeyValueExpr)
			switch value := pair.Value.(type) {
			case *ast.Ident:
				parts[fmt.Sprint(pair.Key)] = known[value.Name]
			case *ast.BasicLit:
				parts[fmt.Sprint(pair.Key)], _ = strconv.Unquote(value.Value)
			}
		}
		names = append(names, strings.TrimLeft(strings.Join([]string{parts["Namespace"], parts["Subsystem"], parts["Name"]}, "_"), "_"))
		return true
	})
	for i, name := range names {
		names[i] = strings.ReplaceAll(name, "__", "_")
	}
	if len(names) < 20 {
		t.Fatalf("the source names only %v", names)
	}
	return names
}

// scrape is what /metrics shows: the series by name.
func scrape(t *testing.T) map[string][]*dto.Metric {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	must(t, err)
	series := map[string][]*dto.Metric{}
	for _, family := range families {
		if series[family.GetName()] != nil {
			t.Fatalf("%s comes twice", family.GetName())
		}
		series[family.GetName()] = family.Metric
	}
	return series
}

// sample is the value of a series that has these labels: of a histogram the number of samples, of an absent one -1.
func sample(series []*dto.Metric, labels ...string) float64 {
	for _, m := range series {
		var has []string
		for _, label := range m.Label {
			has = append(has, label.GetName()+"="+label.GetValue())
		}
		if slices.ContainsFunc(labels, func(l string) bool { return !slices.Contains(has, l) }) {
			continue
		}
		if m.Histogram != nil {
			return float64(m.Histogram.GetSampleCount())
		}
		return m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return -1
}

// A scrape shows what the cacher of k8s.io/apiserver shows, and watchcore's own statistics.
func TestMetricsOfTheCacher(t *testing.T) {
	cachermetrics.Register() // as the server does
	etcd3metrics.Register()
	storagemetrics.Register()
	client := testserver.RunEtcd(t, nil)
	config := storagebackend.NewDefaultConfig("/registry", protobufCodec)
	config.Transport.ServerList = append([]string{"http://127.0.0.1:1"}, client.Endpoints()...) // nobody answers at the first one
	caches := NewCaches(Config{WindowEvents: 128})
	s, destroy := open(t, caches.Decorator(), config, "measuredpods")
	defer destroy()
	must(t, caches.Wait(t.Context()))
	later, destroyLater := open(t, caches.Decorator(), config, "measuredlater")
	defer destroyLater()
	must(t, later.ReadinessCheck())

	w := &world{store: s.(*store)}
	key := func(name string) string { return "/measuredpods/default/" + name }
	put := func(name string) *example.Pod {
		out := &example.Pod{}
		must(t, s.Create(t.Context(), key(name), &example.Pod{}, out, 0))
		return out
	}
	everything := storage.ListOptions{Predicate: storage.Everything, Recursive: true}
	from := put("a")
	watched := everything
	watched.ResourceVersion = from.ResourceVersion
	slow, err := s.Watch(t.Context(), "/measuredpods/", watched)
	must(t, err)
	defer slow.Stop()
	put("b")
	<-slow.ResultChan()
	written := 2
	var newest uint64
	write := func(name string) {
		out := &example.Pod{}
		must(t, s.GuaranteedUpdate(t.Context(), key(name), out, false, nil, storage.SimpleUpdate(func(o apiruntime.Object) (apiruntime.Object, error) {
			o.(*example.Pod).Labels = map[string]string{"n": strconv.Itoa(written)}
			return o, nil
		}), nil))
		written++
		newest, err = w.versioner.ObjectResourceVersion(out)
		must(t, err)
	}
	// A list after a write waits for the write, unless the cache was faster.
	pods := "resource=measuredpods"
	until(t, "a read waits", func() bool {
		write("b")
		must(t, s.GetList(t.Context(), "/measuredpods/", everything, &example.PodList{}))
		return sample(scrape(t)["apiserver_watch_cache_read_wait_seconds"], pods) > 0
	})
	for i := range 400 {
		if i == 150 { // behind what is ready for the watcher
			must(t, s.Delete(t.Context(), key("a"), &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))
			written++
		}
		write("b")
	}
	until(t, "the cache has everything", func() bool { return w.cache.Revision() >= newest })
	for range slow.ResultChan() { // until it ends with 410
	}
	watched.ResourceVersion = "0" // the state
	fresh, err := s.Watch(t.Context(), "/measuredpods/", watched)
	must(t, err)
	defer fresh.Stop()
	<-fresh.ResultChan()
	write("b")
	<-fresh.ResultChan()

	var now map[string][]*dto.Metric
	until(t, "all events are counted", func() bool {
		now = scrape(t)
		return sample(now["apiserver_watch_cache_events_received_total"], pods) == float64(written) &&
			sample(now["apiserver_watch_cache_resource_version"], pods) == float64(w.cache.Revision())
	})
	for _, name := range upstreamNames(t) {
		reason, without := notGiven[name]
		if given := sample(now[name], pods) > 0; given == without {
			t.Errorf("%s has a series: %v; the reason why not is %q", name, given, reason)
		}
	}
	for name, want := range map[string]float64{
		"apiserver_watch_cache_events_dispatched_total":         float64(written),
		"apiserver_storage_events_received_total":               float64(written),
		"apiserver_watch_cache_initializations_total":           1,
		"apiserver_watch_cache_initialization_duration_seconds": 1,
		"apiserver_terminated_watchers_total":                   1,
		"watch_cache_capacity":                                  128,
	} {
		if got := sample(now[name], pods); got != want {
			t.Errorf("%s is %v, not %v", name, got, want)
		}
	}
	if got := sample(now["apiserver_watch_cache_initialization_errors_total"], pods); got < 1 {
		t.Errorf("an endpoint that does not answer is %v errors", got)
	}
	if got := sample(now["apiserver_watch_cache_initializations_total"], "resource=measuredlater"); got != 1 {
		t.Errorf("the resource that came later was initialized %v times", got)
	}
	lists := sample(now["apiserver_watch_cache_consistent_read_total"], pods, "success=true", "fallback=false")
	if got := sample(now["apiserver_cache_list_total"], pods); got < 1 || got != lists {
		t.Errorf("%v lists, %v consistent reads", got, lists)
	}
	if got, want := sample(now["apiserver_cache_list_returned_objects_total"], pods), 2*lists; got != want {
		t.Errorf("%v objects were listed, not %v", got, want)
	}
	// watchcore's own, beside them.
	var text strings.Builder
	must(t, watchcore.WriteMetrics(&text, watchcore.MetricsOptions{}, w.cache))
	for line := range strings.Lines(text.String()) {
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ := strings.Cut(rest, " ")
			if now[name] == nil {
				t.Errorf("%s is not shown", name)
			}
		}
	}
	if got := sample(now["watchcore_objects"], "cache=/registry/"); got != 1 {
		t.Errorf("watchcore_objects is %v", got)
	}
}

// A meter knows whose a key is: by the longest prefix.
func TestMeterFindsTheResource(t *testing.T) {
	m := &meter{prefix: "/registry/", measured: map[string]*measured{}}
	for _, keys := range []string{"/registry/pods/", "/registry/services/", "/registry/services/specs/", "/registry/example.com/things/"} {
		m.measured[keys] = &measured{GroupResource: schema.GroupResource{Resource: keys}}
	}
	for key, want := range map[string]string{
		"/registry/pods/default/a":           "/registry/pods/",
		"/registry/services/specs/default/a": "/registry/services/specs/",
		"/registry/services/other/a":         "/registry/services/",
		"/registry/example.com/things/a":     "/registry/example.com/things/",
		"/registry/podsandmore/a":            "",
		"/registry/pods":                     "",
		"/registry/":                         "",
	} {
		got := ""
		if r := m.resource([]byte(key)); r != nil {
			got = r.Resource
		}
		if got != want {
			t.Errorf("%s belongs to %q, not %q", key, got, want)
		}
	}
}
