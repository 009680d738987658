package kubernetes_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/kubernetes"
)

// A handler of an API server gives its own options on, and answers lists of the type that its scheme encodes.
func TestInternalOptionsAndTypedLists(t *testing.T) {
	c := newCluster(t, watchcore.Config{Labels: watchcore.LabelsJSON("/metadata/labels")})
	c.put("a", "one", map[string]string{"app": "x"}, "")
	c.put("a", "two", map[string]string{"app": "x"}, "")
	c.put("a", "three", map[string]string{"app": "y"}, "")
	newList, err := kubernetes.ListOf(scheme.Scheme, &corev1.Pod{})
	check(t, err)
	pods, err := kubernetes.New(c.cache, kubernetes.Config{
		Prototype: &corev1.Pod{}, Decode: kubernetes.DecodeWith(scheme.Codecs.UniversalDeserializer(), &corev1.Pod{}), NewList: newList,
	})
	check(t, err)
	ctx, yes, seconds := bounded.Context(t), true, int64(60)
	given := &metainternalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"app": "x"}), Limit: 1}
	options, err := kubernetes.OptionsOf(given)
	check(t, err)
	list, err := pods.ListWithContext(ctx, options)
	check(t, err)
	first := list.(*corev1.PodList)
	want(t, "the first page", len(first.Items), 1)
	want(t, "its item", first.Items[0].Name, "one")
	given.Continue = first.Continue
	options, err = kubernetes.OptionsOf(given)
	check(t, err)
	list, err = pods.ListWithContext(ctx, options)
	check(t, err)
	want(t, "the second page", list.(*corev1.PodList).Items[0].Name, "two")
	_, err = kruntime.Encode(scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion), list)
	check(t, err)
	again := newList().(*corev1.PodList)
	want(t, "items of a new list", len(again.Items), 0)

	options, err = kubernetes.OptionsOf(&metainternalversion.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", "three"), Watch: true, AllowWatchBookmarks: true,
		ResourceVersion: "1", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, SendInitialEvents: &yes, TimeoutSeconds: &seconds,
	})
	check(t, err)
	w, err := pods.WatchWithContext(ctx, options)
	check(t, err)
	defer w.Stop()
	want(t, "the state", take(t, w), "ADDED a/three@3")
	want(t, "its end", take(t, w), "BOOKMARK 3 end")
	none, err := kubernetes.OptionsOf(nil)
	check(t, err)
	want(t, "no options", none.String(), (&metav1.ListOptions{}).String())
	_, err = kubernetes.ListOf(kruntime.NewScheme(), &corev1.Pod{})
	mustContain(t, err, "Pod")
}
