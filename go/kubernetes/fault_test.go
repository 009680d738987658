package kubernetes_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/kubernetes"
)

// What depends on the cache is an event, with a selector as without one; only what is wrong with the
// options is an error of the call.
func TestKU09ClosedCacheIsAnEvent(t *testing.T) {
	c := newCluster(t, declared())
	l := newListWatch(t, c)
	c.cache.Close()
	for _, o := range []metav1.ListOptions{{}, {LabelSelector: "app=a"}, {FieldSelector: "metadata.name=a"}} {
		takes(t, watching(t, l, o), "ERROR 503 ServiceUnavailable", "closed")
		_, err := l.List(o)
		want(t, "a list", failure(t, err), "503 ServiceUnavailable")
	}
	_, err := l.Watch(metav1.ListOptions{LabelSelector: "a=b=c"})
	want(t, "no selector", failure(t, err), "400 BadRequest")
}

// The time is over while the watch waits for the source's newest revision: it ends as ever then, without an event.
func TestKU09TimeThatEndsTheStartIsNoEvent(t *testing.T) {
	c := newCluster(t, watchcore.Config{ExpectLoad: true})
	l := newListWatch(t, c, func(config *kubernetes.Config) { config.WaitTimeout = bounded.Bound })
	o := metav1.ListOptions{
		SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, TimeoutSeconds: ptr.To(int64(1)),
	}
	takes(t, watching(t, l, o), "closed")
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := l.WatchWithContext(cancelled, o)
	want(t, "cancelled", err, context.Canceled)
}

// A watch of no subscription says so.
func TestKU21OverNothingIsAnError(t *testing.T) {
	bounded.LeavesNothing(t)
	w := newListWatch(t, newCluster(t, watchcore.Config{})).Over(nil)
	takes(t, w, "ERROR 400 BadRequest", "closed")
	w.Stop()
}

// The functions of the configuration see values that somebody else wrote. A panic of one is an error that names the key.
func TestKU18PanicOfAFunctionHarmsNobody(t *testing.T) {
	attributes := func(config *kubernetes.Config) {
		config.Attributes = func(object kruntime.Object) (labels.Set, fields.Set, error) {
			if object.(*corev1.Pod).Name != "" { // not the prototype
				panic("no spec")
			}
			return nil, nil, nil
		}
	}
	undecodable := func(config *kubernetes.Config) {
		config.Undecodable = func(string, uint64, error) { panic("no counter") }
	}
	for word, edit := range map[string]func(*kubernetes.Config){"no spec": attributes, "no counter": undecodable} {
		c := newCluster(t, watchcore.Config{})
		c.put("ns", "a", nil, "")
		c.putValue(podKey("ns", "b"), broken)
		l := newListWatch(t, c, edit)
		o := metav1.ListOptions{LabelSelector: "!app"}
		if word == "no counter" {
			o = metav1.ListOptions{}
		}
		_, err := l.List(o)
		want(t, "list", failure(t, err), "500 InternalError")
		mustContain(t, err, word, podKey("ns", ""))
		w := watching(t, l, o)
		for got := take(t, w); got != "ERROR 500 InternalError"; got = take(t, w) {
			want(t, "before it", got, "ADDED ns/a@1")
		}
		takes(t, w, "closed")
	}
	c := newCluster(t, watchcore.Config{})
	config := podConfig()
	config.Attributes = func(kruntime.Object) (labels.Set, fields.Set, error) { panic("no spec") }
	_, err := kubernetes.New(c.cache, config)
	mustContain(t, err, "no spec", "refuses the prototype")
}
