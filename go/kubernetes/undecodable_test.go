package kubernetes_test

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/kubernetes"
)

// broken is no pod, and nothing that the cache can read an attribute of.
var broken = []byte("{")

// reports collects what Config.Undecodable is told.
type reports struct {
	mu    sync.Mutex
	lines []string
}

func (r *reports) config(config *kubernetes.Config) {
	config.Undecodable = func(key string, revision uint64, _ error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.lines = append(r.lines, fmt.Sprintf("%s@%d", key[len(prefix):], revision))
	}
}

func (r *reports) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, " ")
}

// A watch that began behind a broken value does not know whether its consumer has the one before it. Where
// that decides, it says so by 410, and does not take it that there is nothing to delete.
func TestKU18WatchBehindABrokenValueLosesNoDeletion(t *testing.T) {
	for name, then := range map[string]func(*cluster){
		"deleted":           func(c *cluster) { c.remove("ns", "a") },
		"left the selector": func(c *cluster) { c.put("ns", "a", map[string]string{"app": "other"}, "") },
		"broken again, then deleted": func(c *cluster) {
			c.putValue(podKey("ns", "a"), broken)
			c.remove("ns", "a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, watchcore.Config{})
			l := newListWatch(t, c, (&reports{}).config)
			mine := map[string]string{"app": "mine"}
			c.put("ns", "a", mine, "") // 1
			o := metav1.ListOptions{LabelSelector: "app=mine"}
			w := watching(t, l, o)
			c.putValue(podKey("ns", "a"), broken) // 2: it keeps 1
			c.put("ns", "b", mine, "")            // 3: where the next watch begins
			takes(t, w, "ADDED ns/a@1", "ADDED ns/b@3")
			w.Stop()
			o.ResourceVersion = "3"
			w = watching(t, l, o)
			then(c)
			takes(t, w, "ERROR 410 Expired", "closed")
		})
	}
}

// A list, or the state by a watch, is given to anybody: it leaves out what cannot be decoded, and an informer
// that takes one in place of what it has deletes the object that its watch had kept.
func TestKU18ListLeavesOutWhatCannotBeDecoded(t *testing.T) {
	bothModes(t, func(t *testing.T, mode func(*kubernetes.Config)) {
		c := newCluster(t, watchcore.Config{})
		var reported reports
		informer := newInformer(newListWatch(t, c, mode, reported.config))
		runs(t, informer)
		c.put("ns", "a", nil, "") // 1
		c.sees("the first value", informer.GetStore())
		c.putValue(podKey("ns", "a"), broken) // 2
		c.put("ns", "b", nil, "")             // 3
		stateIs := func(what string, expected map[string]string) {
			t.Helper()
			bounded.Eventually(t, what, func() bool { return maps.Equal(stateOf(t, informer.GetStore().List()), expected) })
		}
		stateIs("the watch keeps it", map[string]string{"ns/a": "1", "ns/b": "3"})
		c.resync(9, watchcore.ReasonRequested, func(map[string]watchcore.KeyValue) {})
		stateIs("the list does not", map[string]string{"ns/b": "3"})
		want(t, "it was reported", strings.HasPrefix(reported.String(), "ns/a@2"), true)
	})
}

// A value of which the cache can read no attributes has none for it: it leaves a selector that the cache evaluates, as
// any other that does not match, and nobody decodes it. A selector that this package evaluates is of the object.
func TestKU11ValueWithoutAttributesLeavesTheCachesSelectors(t *testing.T) {
	app := map[string]string{"app": "a"}
	for _, row := range []struct {
		name             string
		config           watchcore.Config
		lenient, strict  []string
		reported, listed string
	}{
		{"cache", declared(), []string{"DELETED ns/a@2", "ADDED ns/a@3"}, []string{"DELETED ns/a@2", "ADDED ns/a@3"}, "", "[ns/b@4] 5"},
		{"object", watchcore.Config{}, []string{"MODIFIED ns/a@3"}, []string{"ERROR 500 InternalError", "closed"}, "ns/a@2", "500 InternalError"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newCluster(t, row.config)
			var reported reports
			strictly := newListWatch(t, c)
			o := metav1.ListOptions{LabelSelector: "app=a"}
			lenient, strict := watching(t, newListWatch(t, c, reported.config), o), watching(t, strictly, o)
			c.put("ns", "a", app, "")             // 1
			c.putValue(podKey("ns", "a"), broken) // 2
			c.put("ns", "a", app, "")             // 3
			takes(t, lenient, append([]string{"ADDED ns/a@1"}, row.lenient...)...)
			takes(t, strict, append([]string{"ADDED ns/a@1"}, row.strict...)...)
			want(t, "reported", reported.String(), row.reported)
			c.put("ns", "b", app, "")             // 4
			c.putValue(podKey("ns", "a"), broken) // 5
			list, err := strictly.List(o)
			want(t, "a list", listed(t, list, err), row.listed)
		})
	}
}
