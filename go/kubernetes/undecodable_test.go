package kubernetes_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watchcore"
	"watchcore/kubernetes"
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
