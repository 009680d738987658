package kubernetes_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/kubernetes"
)

const prefix = "/registry/pods/"

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want[T comparable](t testing.TB, what string, got, expected T) {
	t.Helper()
	if got != expected {
		t.Fatalf("%s: got %v, want %v", what, got, expected)
	}
}

func mustContain(t testing.TB, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Fatalf("got %v, want an error with %q", err, word)
		}
	}
}

// cluster is a cache of pods and its writer.
type cluster struct {
	t      testing.TB
	cache  *watchcore.Cache
	writer *watchcore.Writer

	mu       sync.Mutex
	revision uint64
	pods     map[string]watchcore.KeyValue // by key
}

func newCluster(t testing.TB, config watchcore.Config) *cluster {
	t.Helper()
	config.Prefix = "/registry/"
	c := &cluster{t: t, pods: map[string]watchcore.KeyValue{}}
	var err error
	c.cache, err = watchcore.New(config)
	check(t, err)
	t.Cleanup(func() { c.cache.Close() })
	c.writer, err = c.cache.Writer()
	check(t, err)
	t.Cleanup(func() { c.writer.Close() })
	return c
}

func podKey(namespace, name string) string { return prefix + namespace + "/" + name }

func podValue(namespace, name string, labels map[string]string, node string) []byte {
	pod := corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec:       corev1.PodSpec{NodeName: node},
	}
	value, err := json.Marshal(pod)
	if err != nil {
		panic(err)
	}
	return value
}

// put writes a pod in a revision of its own, which it returns.
func (c *cluster) put(namespace, name string, labels map[string]string, node string) uint64 {
	return c.putValue(podKey(namespace, name), podValue(namespace, name, labels, node))
}

func (c *cluster) putValue(key string, value []byte) uint64 {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.revision++
	check(c.t, c.writer.Apply(c.revision, watchcore.Put(key, value)))
	kv := c.pods[key]
	if kv.Version == 0 {
		kv.Key, kv.CreateRevision = []byte(key), c.revision
	}
	kv.Value, kv.ModRevision = value, c.revision
	kv.Version++
	c.pods[key] = kv
	return c.revision
}

func (c *cluster) remove(namespace, name string) uint64 {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.revision++
	check(c.t, c.writer.Apply(c.revision, watchcore.Delete(podKey(namespace, name))))
	delete(c.pods, podKey(namespace, name))
	return c.revision
}

// resync replaces the state by what change makes of it, at a revision.
func (c *cluster) resync(revision uint64, reason watchcore.ResyncReason, change func(map[string]watchcore.KeyValue)) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c.pods)
	var listing []watchcore.KeyValue
	for _, kv := range c.pods {
		listing = append(listing, kv)
	}
	c.revision = revision
	_, err := c.writer.Resync(revision, listing, reason)
	check(c.t, err)
}

// churn makes random changes of a few pods.
func (c *cluster) churn(random *rand.Rand, changes, pods int) {
	c.t.Helper()
	for range changes {
		number := random.IntN(pods)
		namespace, name := "ns"+strconv.Itoa(number%3), "pod"+strconv.Itoa(number)
		c.mu.Lock()
		_, there := c.pods[podKey(namespace, name)]
		c.mu.Unlock()
		if there && random.IntN(4) == 0 {
			c.remove(namespace, name)
			continue
		}
		c.put(namespace, name, map[string]string{"app": string(rune('a' + random.IntN(3)))}, "node"+strconv.Itoa(random.IntN(3)))
	}
}

// state is the resourceVersions of all pods, by namespace/name.
func (c *cluster) state() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := map[string]string{}
	for key, kv := range c.pods {
		state[key[len(prefix):]] = strconv.FormatUint(kv.ModRevision, 10)
	}
	return state
}

// decodePod is Decode of the tests: JSON of corev1.Pod.
func decodePod(_ string, value []byte) (kruntime.Object, error) {
	pod := &corev1.Pod{}
	return pod, json.Unmarshal(value, pod)
}

func podConfig() kubernetes.Config {
	return kubernetes.Config{Prototype: &corev1.Pod{}, Decode: decodePod}
}

func newListWatch(t testing.TB, c *cluster, edits ...func(*kubernetes.Config)) *kubernetes.ListWatch {
	t.Helper()
	config := podConfig()
	for _, edit := range edits {
		edit(&config)
	}
	l, err := kubernetes.New(c.cache, config)
	check(t, err)
	return l
}

// bothModes runs a test with reflectors that take their state from a watch, and with such
// that list.
func bothModes(t *testing.T, test func(*testing.T, func(*kubernetes.Config))) {
	for name, off := range map[string]bool{"watch-list": false, "list": true} {
		t.Run(name, func(t *testing.T) {
			test(t, func(config *kubernetes.Config) { config.NoWatchList = off })
		})
	}
}

// counted counts what a reflector asks for.
type counted struct {
	*kubernetes.ListWatch
	lists, watches atomic.Int64
	states         atomic.Int64 // watches with sendInitialEvents
}

func (c *counted) List(o metav1.ListOptions) (kruntime.Object, error) {
	return c.ListWithContext(context.Background(), o)
}

func (c *counted) ListWithContext(ctx context.Context, o metav1.ListOptions) (kruntime.Object, error) {
	c.lists.Add(1)
	return c.ListWatch.ListWithContext(ctx, o)
}

func (c *counted) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return c.WatchWithContext(context.Background(), o)
}

func (c *counted) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	c.watches.Add(1)
	if o.SendInitialEvents != nil && *o.SendInitialEvents {
		c.states.Add(1)
	}
	return c.ListWatch.WatchWithContext(ctx, o)
}

// initial is how many times a whole state was asked for.
func (c *counted) initial() int64 { return c.lists.Load() + c.states.Load() }

// asked is a pod of an event or a store.
func asked(t testing.TB, object any) *corev1.Pod {
	t.Helper()
	pod, is := object.(*corev1.Pod)
	if !is {
		t.Fatalf("got a %T, want a pod: %+v", object, object)
	}
	return pod
}

func nameOf(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// stateOf is a store's pods, as cluster.state.
func stateOf(t testing.TB, objects []any) map[string]string {
	t.Helper()
	state := map[string]string{}
	for _, object := range objects {
		pod := asked(t, object)
		state[nameOf(pod)] = pod.ResourceVersion
	}
	return state
}

// sees waits until a store has the cluster's state.
func (c *cluster) sees(what string, store cache.Store) {
	c.t.Helper()
	bounded.Eventually(c.t, what, func() bool { return maps.Equal(stateOf(c.t, store.List()), c.state()) })
}

// itemsOf is a list's objects.
func itemsOf(t testing.TB, list kruntime.Object) []string {
	t.Helper()
	var lines []string
	for _, object := range list.(*metainternalversion.List).Items {
		pod := asked(t, object)
		lines = append(lines, nameOf(pod)+"@"+pod.ResourceVersion)
	}
	return lines
}

// take is the next event of a watch, as text; "closed" where there is none any more.
func take(t testing.TB, w watch.Interface) string {
	t.Helper()
	select {
	case e, open := <-w.ResultChan():
		if !open {
			return "closed"
		}
		return text(t, e)
	case <-time.After(bounded.Bound):
		t.Fatalf("no event within %v", bounded.Bound)
		return ""
	}
}

func text(t testing.TB, e watch.Event) string {
	t.Helper()
	switch object := e.Object.(type) {
	case *metav1.Status:
		return fmt.Sprintf("%s %d %s", e.Type, object.Code, object.Reason)
	case *corev1.Pod:
		if e.Type == watch.Bookmark {
			end := ""
			if object.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
				end = " end"
			}
			return fmt.Sprintf("%s %s%s", e.Type, object.ResourceVersion, end)
		}
		return fmt.Sprintf("%s %s@%s", e.Type, nameOf(object), object.ResourceVersion)
	}
	t.Fatalf("got an event with a %T", e.Object)
	return ""
}

func takes(t testing.TB, w watch.Interface, expected ...string) {
	t.Helper()
	for at, line := range expected {
		if got := take(t, w); got != line {
			t.Fatalf("event %d: got %q, want %q", at, got, line)
		}
	}
}

func watching(t testing.TB, l cache.Watcher, o metav1.ListOptions) watch.Interface {
	t.Helper()
	w, err := l.Watch(o)
	check(t, err)
	t.Cleanup(w.Stop)
	return w
}

// selected adds a field selector to what a reflector asks for.
type selected struct {
	*kubernetes.ListWatch
	fields string
}

func (s selected) List(o metav1.ListOptions) (kruntime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

func (s selected) ListWithContext(ctx context.Context, o metav1.ListOptions) (kruntime.Object, error) {
	o.FieldSelector = s.fields
	return s.ListWatch.ListWithContext(ctx, o)
}

func (s selected) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

func (s selected) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.FieldSelector = s.fields
	return s.ListWatch.WatchWithContext(ctx, o)
}

// protobufOf is the serializer of the form in which API servers store objects.
func protobufOf(t testing.TB) kruntime.Encoder {
	t.Helper()
	info, found := kruntime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), kruntime.ContentTypeProtobuf)
	if !found {
		t.Fatal("the scheme has no protobuf serializer")
	}
	return info.Serializer
}
