package apiserver

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	watchcore "github.com/watchcore/watchcore/go"
)

func podKey(name string) string { return "/pods/default/" + name }

func (w *world) create(t *testing.T, name string) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	must(t, w.Create(t.Context(), podKey(name), &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}, out, 0))
	return out
}

// label gives a pod another label, and returns its resourceVersion.
func (w *world) label(t *testing.T, name, label string) uint64 {
	t.Helper()
	out := &example.Pod{}
	must(t, w.GuaranteedUpdate(t.Context(), podKey(name), out, false, nil, storage.SimpleUpdate(func(o runtime.Object) (runtime.Object, error) {
		o.(*example.Pod).Labels = map[string]string{"n": label}
		return o, nil
	}), nil))
	revision, err := w.versioner.ObjectResourceVersion(out)
	must(t, err)
	return revision
}

func (w *world) follow(t *testing.T, resourceVersion string) watch.Interface {
	t.Helper()
	open, err := w.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: resourceVersion, Predicate: storage.Everything, Recursive: true})
	must(t, err)
	t.Cleanup(open.Stop)
	return open
}

func podOf(t *testing.T, e watch.Event) *example.Pod {
	t.Helper()
	cacheable, ok := e.Object.(runtime.CacheableObject)
	if !ok {
		t.Fatalf("%s has a %T: %v", e.Type, e.Object, e.Object)
	}
	return cacheable.GetObject().(*example.Pod)
}

// A watcher that does not read while more happens than the log has is not ended. It gets the newest version of each object, in the order
// of the revisions.
func TestSlowWatcherCatchesUp(t *testing.T) {
	w := newWorld(t, withCache(watchcore.Config{Capacity: 512}))
	first := w.create(t, "a")
	w.create(t, "b")
	slow := w.follow(t, first.ResourceVersion)
	w.letBeSlow(t, "a")
	var newest uint64
	for i := range 1200 {
		newest = w.label(t, []string{"b", "a"}[i%2], fmt.Sprint(i))
	}
	w.create(t, "last")
	until(t, "the cache has everything", func() bool { return w.cache.Revision() > newest })

	state, last, events := map[string]string{}, uint64(0), 0
	for e := range slow.ResultChan() {
		events++
		pod := podOf(t, e)
		revision, err := w.versioner.ObjectResourceVersion(pod)
		must(t, err)
		if revision <= last {
			t.Fatalf("%s of %s has revision %d behind %d", e.Type, pod.Name, revision, last)
		}
		last = revision
		state[pod.Name] = pod.Labels["n"]
		if pod.Name == "last" {
			break
		}
	}
	want := map[string]string{"a": "1199", "b": "1198", "last": ""}
	if fmt.Sprint(state) != fmt.Sprint(want) || events > 600 {
		t.Fatalf("after %d events the watcher has %v, not %v", events, state, want)
	}
}

// remembers says whether a watch of the world's cache remembers keys.
func (w *world) remembers() bool {
	return slices.ContainsFunc(w.cache.Subscriptions(), func(s watchcore.SubscriptionInfo) bool { return strings.HasSuffix(s.Name, remembering) })
}

// letBeSlow changes a pod until a watch that is not read remembers keys: before that the window must not pass it.
func (w *world) letBeSlow(t *testing.T, name string) {
	t.Helper()
	changes := 0
	until(t, "the slow watch remembers keys", func() bool {
		changes++
		w.label(t, name, fmt.Sprint("slow-", changes))
		return w.remembers()
	})
}

// Only a slow watcher, and one that gets the state, costs memory for each key. A difference needs the keys; who reads needs none.
func TestOnlySlowWatchersRememberKeys(t *testing.T) {
	w := newWorld(t)
	from := w.create(t, "a").ResourceVersion
	open := w.follow(t, from)
	w.label(t, "a", "first")
	<-open.ResultChan()
	if w.remembers() {
		t.Error("a watcher that reads remembers keys")
	}
	w.letBeSlow(t, "a")
	w.label(t, "a", "read")
	for podOf(t, <-open.ResultChan()).Labels["n"] != "read" {
	}
	until(t, "the watcher that is not slow any more remembers none", func() bool { return !w.remembers() })
	w.label(t, "a", "last")
	if pod := podOf(t, <-open.ResultChan()); pod.Labels["n"] != "last" {
		t.Errorf("the next event has %v", pod.Labels)
	}

	state := w.follow(t, "")
	<-state.ResultChan()
	until(t, "a watcher that has the state remembers none", func() bool { return !w.remembers() })
}

// Where the last value of a deleted object is lost, a list alone tells: the watch ends with 410.
func TestLostDeletionIsExpired(t *testing.T) {
	w := newWorld(t, withCache(watchcore.Config{Capacity: 512}))
	w.create(t, "a")
	slow := w.follow(t, w.create(t, "gone").ResourceVersion)
	w.letBeSlow(t, "a")
	var newest uint64
	for i := range 1200 {
		if i == 500 { // behind what is ready for the watcher, before what the log has in the end
			must(t, w.Delete(t.Context(), podKey("gone"), &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))
		}
		newest = w.label(t, "a", fmt.Sprint(i))
	}
	until(t, "the cache has everything", func() bool { return w.cache.Revision() >= newest })
	var last watch.Event
	for e := range slow.ResultChan() {
		last = e
	}
	if status, _ := last.Object.(*metav1.Status); status == nil || status.Reason != metav1.StatusReasonExpired {
		t.Fatalf("the last event is %s %v", last.Type, last.Object)
	}
}

// The cache selects by labels and by a pod's node, and the rest is selected here: by both ways an object comes and goes by a change.
func TestSelectors(t *testing.T) {
	for name, settings := range map[string][]setting{
		"by the cache": nil, "by the cache, of JSON": {withCodec(testCodec())}, "by decoded objects": {withTransformer(&reversing{})},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, settings...)
			from := w.create(t, "a").ResourceVersion
			must(t, w.cache.WaitUntil(t.Context(), w.label(t, "a", "first")))
			if reads := w.reads.all(t.Context()); reads != strings.HasPrefix(name, "by the cache") {
				t.Fatalf("the cache reads the objects: %v", reads)
			}
			p := storage.SelectionPredicate{
				Label: labels.SelectorFromSet(labels.Set{"n": "1"}), Field: fields.ParseSelectorOrDie("metadata.name=a,status.phase!=Failed,spec.nodeName="),
				GetAttrs: podAttributes,
			}
			open, err := w.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: from, Predicate: p, Recursive: true})
			must(t, err)
			defer open.Stop()
			w.create(t, "b")
			var at uint64
			for _, label := range []string{"0", "1", "1", "2", "1"} {
				w.label(t, "b", label)
				at = w.label(t, "a", label)
			}
			var types []watch.EventType
			for range 3 { // the second "1" changes nothing
				types = append(types, (<-open.ResultChan()).Type)
			}
			if want := []watch.EventType{watch.Added, watch.Deleted, watch.Added}; !slices.Equal(types, want) {
				t.Errorf("the watcher got %v, not %v", types, want)
			}
			list := &example.PodList{}
			must(t, w.GetList(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: fmt.Sprint(at), Predicate: p, Recursive: true}, list))
			if len(list.Items) != 1 || list.Items[0].Name != "a" {
				t.Errorf("the list has %v", list.Items)
			}
		})
	}
}

// An encryption configuration may be loaded again while watches are open: they go on by decoded objects. Nothing is encrypted but what is
// stored.
func TestEncryptionIsReloaded(t *testing.T) {
	transformer := &reloading{Transformer: identity.NewEncryptCheckTransformer(), inner: reversing{}}
	w := newWorld(t, withTransformer(transformer))
	from := w.create(t, "a").ResourceVersion
	selected := func(r string) watch.Interface {
		open, err := w.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: from, Recursive: true, Predicate: storage.SelectionPredicate{
			Label: labels.Everything(), Field: fields.ParseSelectorOrDie(r), GetAttrs: podAttributes,
		}})
		must(t, err)
		t.Cleanup(open.Stop)
		return open
	}
	coming, staying := selected("metadata.name=b"), selected("metadata.name=a")
	if !w.reads.all(t.Context()) {
		t.Error("the cache does not select")
	}
	transformer.on.Store(true)
	w.create(t, "b")
	w.create(t, "c")
	w.label(t, "a", "1")
	for _, want := range []struct {
		watch.Interface
		watch.EventType
		name string
	}{{coming, watch.Added, "b"}, {staying, watch.Modified, "a"}} {
		select {
		case e := <-want.ResultChan():
			if pod := podOf(t, e); pod.Name != want.name || e.Type != want.EventType {
				t.Errorf("the watcher of %s got %s of %s", want.name, e.Type, pod.Name)
			}
		case <-time.After(time.Minute):
			t.Errorf("the watcher of %s got nothing", want.name)
		}
	}
	if stored := transformer.stored.Load(); stored != 4 {
		t.Errorf("%d objects were encrypted, not 4", stored)
	}
}

// counting counts decoded objects.
type counting struct {
	runtime.Codec
	decoded atomic.Int64
}

func (c *counting) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if into == nil { // the storage below decodes into an object of its own
		c.decoded.Add(1)
	}
	return c.Codec.Decode(data, defaults, into)
}

// However many watch, an event's object is decoded once and encoded once for each form.
func TestEventsAreDecodedAndEncodedOnce(t *testing.T) {
	codec := &counting{Codec: protobufCodec}
	w := newWorld(t, withCodec(codec))
	from := w.create(t, "a").ResourceVersion
	var watchers []watch.Interface
	for range 10 {
		watchers = append(watchers, w.follow(t, from))
	}
	w.create(t, "b")
	var encoded atomic.Int64
	encode := func(o runtime.Object, to io.Writer) error {
		encoded.Add(1)
		return protobufCodec.Encode(o, to)
	}
	before := codec.decoded.Load()
	var all sync.WaitGroup
	for _, one := range watchers {
		all.Go(func() {
			e := <-one.ResultChan()
			if err := e.Object.(runtime.CacheableObject).CacheEncode("form", encode, io.Discard); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if decoded := codec.decoded.Load(); decoded > 1 || encoded.Load() != 1 {
		t.Errorf("decoded %d times (%d before the first watcher read), encoded %d times", decoded, before, encoded.Load())
	}
}

// What an encoder makes at random stays random: many watchers of one event do not all get one order of CBOR's maps.
func TestCBORVaries(t *testing.T) {
	w := newWorld(t)
	from := w.create(t, "a").ResourceVersion
	watcher := w.follow(t, from)
	w.create(t, "b")
	object := (<-watcher.ResultChan()).Object.(runtime.CacheableObject)
	for id, forms := range map[runtime.Identifier]int{"json": 1, `{"encoder":"cbor","name":"watch"}`: cborForms} {
		encoded := 0
		for range 1000 {
			must(t, object.CacheEncode(id, func(runtime.Object, io.Writer) error {
				encoded++
				return nil
			}, io.Discard))
		}
		if encoded != forms {
			t.Errorf("%s was encoded %d times, not %d", id, encoded, forms)
		}
	}
}

// What an object was before a change is not decoded where nothing is selected on decoded objects.
func TestPreviousValuesAreNotDecoded(t *testing.T) {
	codec := &counting{Codec: protobufCodec}
	w := newWorld(t, withCodec(codec))
	open := w.follow(t, w.create(t, "a").ResourceVersion)
	relabel := storage.SimpleUpdate(func(o runtime.Object) (runtime.Object, error) {
		o.(*example.Pod).Labels = map[string]string{"n": "1"}
		return o, nil
	})
	must(t, w.writes.GuaranteedUpdate(t.Context(), podKey("a"), &example.Pod{}, false, nil, relabel, nil))
	if e := <-open.ResultChan(); e.Type != watch.Modified || codec.decoded.Load() != 1 {
		t.Errorf("%s, and %d objects were decoded", e.Type, codec.decoded.Load())
	}
}

// A watcher's object is its own: what it changes, no other one sees.
func TestObjectsAreNotShared(t *testing.T) {
	w := newWorld(t)
	from := w.create(t, "a").ResourceVersion
	one, other := w.follow(t, from), w.follow(t, from)
	w.create(t, "b")
	podOf(t, <-one.ResultChan()).Labels = map[string]string{"changed": "yes"}
	if pod := podOf(t, <-other.ResultChan()); pod.Labels != nil {
		t.Errorf("the other watcher has %v", pod.Labels)
	}
}

// A history that etcd replaced ends a watch with 410, so that the client lists anew. A loss of this watch alone does not.
func TestReplacedHistoryIsExpired(t *testing.T) {
	for reason, ends := range map[watchcore.ResyncReason]bool{
		watchcore.ReasonHistoryReset: true, watchcore.ReasonCompacted: true, watchcore.ReasonLagged: false,
	} {
		_, err := (&watcher{}).resync(watchcore.ResyncMark{Reason: reason, Phase: watchcore.ResyncBegin})
		if apierrors.IsResourceExpired(err) != ends || !ends && err != nil {
			t.Errorf("%v: %v", reason, err)
		}
	}
}

// A watch ends with its context also where nobody reads it.
func TestUnreadWatchEnds(t *testing.T) {
	w := newWorld(t)
	from := w.create(t, "a").ResourceVersion
	ctx, cancel := context.WithCancel(t.Context())
	open, err := w.Watch(ctx, "/pods/", storage.ListOptions{ResourceVersion: from, Predicate: storage.Everything, Recursive: true})
	must(t, err)
	for i := range 2 * decodedAhead {
		w.label(t, "a", fmt.Sprint(i))
	}
	cancel()
	until(t, "no watch is open", func() bool {
		return !slices.ContainsFunc(w.cache.Subscriptions(), func(s watchcore.SubscriptionInfo) bool { return !strings.HasSuffix(s.Name, following) })
	})
	for range open.ResultChan() {
	}
}

// The bookmark of a quiet watch has the revision up to which nothing concerned it, so that it can be resumed when the window has left the
// revision where it began.
func TestBookmarksOfQuietWatchesAdvance(t *testing.T) {
	w := newWorld(t)
	from := w.create(t, "a").ResourceVersion
	for key, change := range map[string]func() uint64{
		"/pods/":       func() uint64 { return uint64(w.raise(t.Context(), t)) },
		"/pods/other/": func() uint64 { return w.label(t, "a", "1") },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), bookmarkBeforeEnd+time.Second)
		defer cancel()
		p := storage.Everything
		p.AllowWatchBookmarks = true
		open, err := w.Watch(ctx, key, storage.ListOptions{ResourceVersion: from, Predicate: p, Recursive: true})
		must(t, err)
		revision := change()
		must(t, w.cache.WaitUntil(ctx, revision))
		e := <-open.ResultChan()
		m, err := meta.Accessor(e.Object)
		must(t, err)
		if got, err := w.versioner.ParseResourceVersion(m.GetResourceVersion()); err != nil || e.Type != watch.Bookmark || got < revision {
			t.Errorf("%s: %s at %d, behind a change at %d (%v)", key, e.Type, got, revision, err)
		}
		from = strconv.FormatUint(revision, 10)
	}
}

// What ends a subscription ends its watch, also where the client wants bookmarks.
func TestWatchEndsWithItsCache(t *testing.T) {
	w := newWorld(t)
	p := storage.Everything
	p.AllowWatchBookmarks = true
	open, err := w.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: w.create(t, "a").ResourceVersion, Predicate: p, Recursive: true})
	must(t, err)
	w.cache.Close()
	for e := range open.ResultChan() {
		if e.Type != watch.Error {
			t.Fatalf("the watch got %s %v", e.Type, e.Object)
		}
	}
}

// A watch whose request is cancelled ends, and gives no error: its subscription ends by the same context.
func TestCancelledWatchesGiveNoError(t *testing.T) {
	w := newWorld(t)
	must(t, w.cache.WaitReady(t.Context()))
	for range 20 {
		request, cancel := context.WithCancel(t.Context())
		var open []watch.Interface
		for range 500 {
			one, err := w.Watch(request, "/pods/", storage.ListOptions{Predicate: storage.Everything, Recursive: true})
			must(t, err)
			open = append(open, one)
		}
		cancel()
		for _, one := range open {
			for e := range one.ResultChan() {
				t.Errorf("a cancelled watch gave %s %v", e.Type, e.Object)
			}
		}
	}
}

// A resourceVersion may be any number: one that will not come is too large, for a watch it has not come yet.
func TestRevisionsThatDoNotCome(t *testing.T) {
	w := newWorld(t)
	w.create(t, "a")
	for _, revision := range []uint64{1 << 40, 1 << 62, 1 << 63, math.MaxUint64} {
		at := strconv.FormatUint(revision, 10)
		if err := w.Get(t.Context(), podKey("a"), storage.GetOptions{ResourceVersion: at}, &example.Pod{}); !storage.IsTooLargeResourceVersion(err) {
			t.Errorf("get at %s: %v", at, err)
		}
		opts := storage.ListOptions{ResourceVersion: at, Predicate: storage.Everything, Recursive: true}
		if err := w.GetList(t.Context(), "/pods/", opts, &example.PodList{}); !storage.IsTooLargeResourceVersion(err) {
			t.Errorf("list at %s: %v", at, err)
		}
		select {
		case e := <-w.follow(t, at).ResultChan():
			t.Errorf("watch behind %s: %s %v", at, e.Type, e.Object)
		default:
		}
	}
}
