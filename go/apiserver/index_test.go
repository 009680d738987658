package apiserver

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	watchcore "github.com/watchcore/watchcore/go"
)

// The pods of a node are found without decoding those of other nodes, and a node's watch reads the log by its index. Of another kind
// whose registry has an index on the same field, every object is decoded, and the answer is the same.
func TestIndexOfTheNode(t *testing.T) {
	for resource, indexed := range map[string]bool{"pods": true, "resourceslices": false} {
		t.Run(resource, func(t *testing.T) {
			codec := &counting{Codec: protobufCodec}
			w := newWorld(t, withCodec(codec), func(o *options, _ *watchcore.Config) { o.resource = schema.GroupResource{Resource: resource} })
			on := func(name string, node int) string {
				out := &example.Pod{}
				must(t, w.Create(t.Context(), podKey(name), &example.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: example.PodSpec{NodeName: fmt.Sprint("node-", node)},
				}, out, 0))
				return out.ResourceVersion
			}
			at := ""
			for i := range 50 {
				at = on(fmt.Sprint("pod-", i), i%5)
			}
			opts := storage.ListOptions{ResourceVersion: at, Recursive: true, Predicate: storage.SelectionPredicate{
				Label: labels.Everything(), Field: fields.ParseSelectorOrDie("spec.nodeName=node-3"), GetAttrs: podAttributes, IndexFields: []string{"spec.nodeName"},
			}}
			list := &example.PodList{}
			must(t, w.GetList(t.Context(), "/pods/", opts, list))
			want := int64(50)
			if indexed {
				want = 10
			}
			if decoded := codec.decoded.Load(); len(list.Items) != 10 || decoded != want {
				t.Errorf("the list has %d objects, and decoded %d, not %d", len(list.Items), decoded, want)
			}
			open, err := w.Watch(t.Context(), "/pods/", opts)
			must(t, err)
			defer open.Stop()
			on("other", 2)
			on("own", 3)
			if pod := podOf(t, <-open.ResultChan()); pod.Name != "own" {
				t.Errorf("the watch got %s", pod.Name)
			}
			for _, sub := range w.cache.Subscriptions() { // as of the poll that gave the event
				if !strings.HasSuffix(sub.Name, following) && (sub.Index == "field "+nodeName) != indexed {
					t.Errorf("the watch reads by %v %q", sub.ReadPath, sub.Index)
				}
			}
		})
	}
}
