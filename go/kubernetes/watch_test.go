package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/kubernetes"
)

// declared has the labels and the fields of the tests' selectors.
func declared() watchcore.Config {
	return watchcore.Config{
		Labels: watchcore.LabelsJSON("/metadata/labels"),
		Fields: []watchcore.Attribute{
			watchcore.AttributeJSON("metadata.name", "/metadata/name"),
			watchcore.AttributeJSON("metadata.namespace", "/metadata/namespace"),
			watchcore.AttributeJSON("spec.nodeName", "/spec/nodeName"),
		},
	}
}

func podAttributes(object kruntime.Object) (labels.Set, fields.Set, error) {
	pod := object.(*corev1.Pod)
	return pod.Labels, fields.Set{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "spec.nodeName": pod.Spec.NodeName,
	}, nil
}

// bothSelectors runs a test with a cache that evaluates the selectors itself, and with one that
// leaves them to this package.
func bothSelectors(t *testing.T, test func(*testing.T, *cluster, *kubernetes.ListWatch)) {
	withAttributes := func(config *kubernetes.Config) { config.Attributes = podAttributes }
	t.Run("cache", func(t *testing.T) {
		c := newCluster(t, declared())
		test(t, c, newListWatch(t, c))
	})
	t.Run("object", func(t *testing.T) {
		c := newCluster(t, watchcore.Config{})
		test(t, c, newListWatch(t, c, withAttributes))
	})
	t.Run("half", func(t *testing.T) {
		config := declared()
		config.Fields = config.Fields[:2]
		c := newCluster(t, config)
		test(t, c, newListWatch(t, c, withAttributes))
	})
}

// An object that comes into the selectors is added, one that leaves them is deleted with its last value
// and the event's revision, and a deletion outside of them is nothing.
func TestKU12TypesAreRightAtTheSelectorsBoundary(t *testing.T) {
	bothSelectors(t, func(t *testing.T, c *cluster, l *kubernetes.ListWatch) {
		w := watching(t, l, metav1.ListOptions{LabelSelector: "app in (a,b)", FieldSelector: "spec.nodeName=n1"})
		app := func(value string) map[string]string { return map[string]string{"app": value} }
		c.put("ns", "x", app("c"), "n1") // 1: outside
		c.put("ns", "x", app("a"), "n1") // 2: comes in
		c.put("ns", "x", app("b"), "n1") // 3: stays
		c.put("ns", "x", app("b"), "n2") // 4: leaves
		c.put("ns", "x", nil, "n2")      // 5: outside
		c.put("ns", "x", app("a"), "n1") // 6: comes in
		c.remove("ns", "x")              // 7
		c.put("ns", "y", app("c"), "n1") // 8
		c.remove("ns", "y")              // 9: outside
		c.put("ns", "z", app("a"), "n1") // 10
		takes(t, w, "ADDED ns/x@2", "MODIFIED ns/x@3", "DELETED ns/x@4", "ADDED ns/x@6", "DELETED ns/x@7", "ADDED ns/z@10")
		list, err := l.List(metav1.ListOptions{LabelSelector: "app=a", FieldSelector: "metadata.name!=y,spec.nodeName==n1"})
		want(t, "list", listed(t, list, err), "[ns/z@10] 10")
	})
}

// The deleted object is the last value, as it was before the deletion.
func TestKU12DeletedHasTheLastValue(t *testing.T) {
	for _, share := range []bool{false, true} {
		c := newCluster(t, watchcore.Config{})
		l := newListWatch(t, c, func(config *kubernetes.Config) { config.Share = share })
		w := watching(t, l, metav1.ListOptions{})
		c.put("ns", "x", map[string]string{"app": "a"}, "n1")
		c.put("ns", "x", map[string]string{"app": "b"}, "n2")
		c.remove("ns", "x")
		takes(t, w, "ADDED ns/x@1")
		modified := asked(t, (<-w.ResultChan()).Object)
		deleted := <-w.ResultChan()
		want(t, "type", deleted.Type, watch.Deleted)
		pod := asked(t, deleted.Object)
		want(t, "value", pod.Labels["app"]+pod.Spec.NodeName+pod.ResourceVersion, "bn23")
		want(t, "the object that was given before", modified.ResourceVersion, "2")
	}
}

// Whether the cache or this package evaluates a selector makes no difference: random selectors of
// Kubernetes' grammar over random objects.
func TestKU11SelectorsAreKubernetesOwn(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 7))
	here, there := newCluster(t, watchcore.Config{}), newCluster(t, declared())
	for number := range 60 {
		set := map[string]string{}
		for _, key := range []string{"app", "example.com/tier", "n"} {
			if random.IntN(3) > 0 {
				set[key] = []string{"", "a", "b-c", "5", "-7", "x_y.z"}[random.IntN(6)]
			}
		}
		node := []string{"", "n1", "a,b", `back\slash`, "x=y", "é"}[random.IntN(6)]
		for _, c := range []*cluster{here, there} {
			c.put("ns"+strconv.Itoa(number%2), "pod"+strconv.Itoa(number), set, node)
		}
	}
	slow := newListWatch(t, here, func(config *kubernetes.Config) { config.Attributes = podAttributes })
	fast := newListWatch(t, there) // would refuse spec.nodeName if the cache did not take it
	value := func() string { return []string{"", "a", "b-c", "5", "x_y.z", "3"}[random.IntN(6)] }
	label := func() string {
		key := []string{"app", "example.com/tier", "n"}[random.IntN(3)]
		return []string{
			key, "!" + key, key + "=" + value(), key + "==" + value(), key + "!=" + value(), key + " in (" + value() + "," + value() + ")",
			key + " notin (" + value() + ", " + value() + ")", key + ">3", key + "<6", key + "  in  (a)",
		}[random.IntN(10)]
	}
	field := func() string {
		name := []string{"metadata.name", "metadata.namespace", "spec.nodeName"}[random.IntN(3)]
		text := []string{"", "n1", "pod7", "ns1", "a,b", `back\slash`, "x=y", "é"}[random.IntN(8)]
		return name + []string{"=", "==", "!="}[random.IntN(3)] + fields.EscapeValue(text)
	}
	for range 150 {
		o := metav1.ListOptions{LabelSelector: label(), FieldSelector: field()}
		for range random.IntN(3) {
			o.LabelSelector += "," + label()
			o.FieldSelector += "," + field()
		}
		expected, err := slow.List(o)
		check(t, err)
		got, err := fast.List(o)
		check(t, err)
		want(t, fmt.Sprintf("%q %q", o.LabelSelector, o.FieldSelector), fmt.Sprint(itemsOf(t, got)), fmt.Sprint(itemsOf(t, expected)))
	}
}

// A selector that does not parse, or of a field that nobody knows, is refused at once.
func TestKU11WrongSelectorsAreRefused(t *testing.T) {
	c := newCluster(t, watchcore.Config{})
	l := newListWatch(t, c)
	for _, o := range []metav1.ListOptions{
		{LabelSelector: "a=b=c"}, {LabelSelector: "a in ("}, {FieldSelector: "metadata.name"}, {FieldSelector: "spec.nodeName=x"},
	} {
		_, err := l.List(o)
		want(t, fmt.Sprintf("list %+v", o), failure(t, err), "400 BadRequest")
		_, err = l.Watch(o)
		want(t, fmt.Sprintf("watch %+v", o), failure(t, err), "400 BadRequest")
	}
}

// A position moves also where nothing matches, and bookmarks say so; the last one comes when
// the time is over.
func TestKU20BookmarksMoveWhereNothingMatches(t *testing.T) {
	c := newCluster(t, declared())
	l := newListWatch(t, c, func(config *kubernetes.Config) { config.BookmarkInterval = time.Millisecond })
	c.put("ns", "a", nil, "n1")
	w := watching(t, l, metav1.ListOptions{
		ResourceVersion: "1", AllowWatchBookmarks: true, FieldSelector: "spec.nodeName=n1", TimeoutSeconds: ptr.To(int64(1)),
	})
	last := c.put("ns", "b", nil, "n2")
	seen := ""
	for e := range w.ResultChan() { // ends by timeoutSeconds
		seen = text(t, e)
		if e.Type != watch.Bookmark {
			t.Fatalf("got %s", seen)
		}
	}
	want(t, "the last event", seen, fmt.Sprintf("BOOKMARK %d", last))

	w = watching(t, l, metav1.ListOptions{ResourceVersion: "1", TimeoutSeconds: ptr.To(int64(1))})
	takes(t, w, "ADDED ns/b@2", "closed") // no bookmark that nobody asked for
}

// holdsBack decodes a pod that is called late when it is released: into itself, or an error.
func holdsBack(release <-chan struct{}, err error) func(*kubernetes.Config) {
	return func(config *kubernetes.Config) {
		config.Decode = func(key string, value []byte) (kruntime.Object, error) {
			if strings.HasSuffix(key, "/late") {
				if <-release; err != nil {
					return nil, err
				}
			}
			return decodePod(key, value)
		}
	}
}

// The end by time says where to go on only if the consumer was given everything: not what was still
// being decoded when the time was over.
func TestKU20BookmarkAtTheEndLosesNothing(t *testing.T) {
	c := newCluster(t, watchcore.Config{})
	release := make(chan struct{})
	l := newListWatch(t, c, holdsBack(release, nil))
	c.put("ns", "early", nil, "")
	c.put("ns", "late", nil, "")
	w := watching(t, l, metav1.ListOptions{ResourceVersion: "0", AllowWatchBookmarks: true, TimeoutSeconds: ptr.To(int64(1))})
	takes(t, w, "ADDED ns/early@1")
	bounded.Eventually(t, "the time is over", func() bool { return len(c.cache.Subscriptions()) == 0 })
	close(release)
	takes(t, w, "closed")
}

// An error that comes while the time ends is no bookmark: behind the position lies what it has kept back.
func TestKU20ErrorBesideTheEndIsNoBookmark(t *testing.T) {
	c := newCluster(t, watchcore.Config{})
	release := make(chan struct{})
	l := newListWatch(t, c, holdsBack(release, errors.New("no pod")))
	for _, name := range []string{"early", "late", "third"} {
		c.put("ns", name, nil, "")
	}
	w := watching(t, l, metav1.ListOptions{ResourceVersion: "1", AllowWatchBookmarks: true, TimeoutSeconds: ptr.To(int64(1))})
	w.ResultChan()
	bounded.Eventually(t, "the time is over", func() bool { return len(c.cache.Subscriptions()) == 0 })
	close(release)
	takes(t, w, "ERROR 500 InternalError", "closed")
}

// Who goes on from the last event behind the end by time has all of that revision, or none.
func TestKU20EndIsBetweenRevisions(t *testing.T) {
	bounded.LeavesNothing(t)
	c := newCluster(t, watchcore.Config{})
	l := newListWatch(t, c)
	c.put("ns", "early", nil, "")
	w := watching(t, l, metav1.ListOptions{ResourceVersion: "1", TimeoutSeconds: ptr.To(int64(1))})
	var changes []watchcore.Change
	for number := range 300 {
		name := fmt.Sprintf("%03d", number)
		changes = append(changes, watchcore.Put(podKey("ns", name), podValue("ns", name, nil, "")))
	}
	check(t, c.writer.Apply(2, changes...))
	check(t, c.writer.Apply(3, watchcore.Put(podKey("ns", "next"), podValue("ns", "next", nil, ""))))
	w.ResultChan()
	bounded.Eventually(t, "the time is over", func() bool { return len(c.cache.Subscriptions()) == 0 })
	of := map[string]int{}
	for e := range w.ResultChan() {
		of[asked(t, e.Object).ResourceVersion]++
	}
	want(t, "events of revision 2", of["2"], 300)
}

// Stop may be called at any time, by anybody, as often as one likes, never waits, and closes the
// channel; nothing stays behind.
func TestKU14StopNeverWaitsAndLeavesNothing(t *testing.T) {
	bounded.LeavesNothing(t)
	c := newCluster(t, watchcore.Config{})
	l := newListWatch(t, c)
	for number := range 300 {
		c.put("ns", strconv.Itoa(number), nil, "")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for number := range 60 {
		w, err := l.WatchWithContext(ctx, metav1.ListOptions{})
		check(t, err)
		switch number % 6 {
		case 0: // never read
		case 1: // one read, the rest not
			<-w.ResultChan()
		case 2: // read by another goroutine meanwhile
			go func() {
				for range w.ResultChan() {
				}
			}()
		case 3: // ends by its context
			w.ResultChan()
			continue
		case 4: // has nothing to read
			w.Stop()
			w, err = l.WatchWithContext(ctx, metav1.ListOptions{ResourceVersion: "300"})
			check(t, err)
			w.ResultChan()
		case 5: // ended by an error
			w.Stop()
			w, err = l.WatchWithContext(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatUint(watchcore.MaxRevision+1, 10)})
			check(t, err)
		}
		var all sync.WaitGroup
		for range 3 {
			all.Go(w.Stop)
		}
		all.Wait()
		for range w.ResultChan() { // what was there is drained; then it is closed
		}
		w.Stop()
	}
	cancel()
	bounded.Eventually(t, "no subscription is left", func() bool { return len(c.cache.Subscriptions()) == 0 })
}

// A consumer that does not read falls behind alone: it gets 410, and the others everything.
func TestKU02ConsumerThatFallsBehindGets410Alone(t *testing.T) {
	c := newCluster(t, watchcore.Config{Capacity: 256})
	l := newListWatch(t, c)
	slow := watching(t, l, metav1.ListOptions{})
	fast := watching(t, l, metav1.ListOptions{})
	last := uint64(0)
	for number := range 3000 {
		last = c.put("ns", strconv.Itoa(number%50), nil, "")
		if got := take(t, fast); !strings.HasSuffix(got, fmt.Sprintf("@%d", last)) {
			t.Fatalf("got %s, want revision %d", got, last)
		}
	}
	count := 0
	for e := range slow.ResultChan() {
		if e.Type == watch.Error {
			want(t, "the last", text(t, e), "ERROR 410 Expired")
			break
		}
		count++
	}
	takes(t, slow, "closed")
	if count >= 3000 {
		t.Fatalf("the slow consumer got all %d events", count)
	}
}

// A replaced history ends a watch with 410, in whatever way it was opened.
func TestKU03ResyncEndsAWatchWith410(t *testing.T) {
	c := three(t, watchcore.Config{})
	l := newListWatch(t, c)
	sub, err := c.cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Start: watchcore.StartAfter(3)})
	check(t, err)
	watches := []watch.Interface{watching(t, l, metav1.ListOptions{ResourceVersion: "3"}), l.Over(sub)}
	c.resync(9, watchcore.ReasonRequested, func(pods map[string]watchcore.KeyValue) { delete(pods, podKey("ns", "b")) })
	for _, w := range watches {
		takes(t, w, "MODIFIED ns/a@4", "ERROR 410 Expired", "closed")
		w.Stop()
	}
}

// A subscription with options of the program's own is a watch, too.
func TestKU21SubscriptionOfTheProgramIsAWatch(t *testing.T) {
	bounded.LeavesNothing(t)
	c := three(t, watchcore.Config{})
	l := newListWatch(t, c)
	sub, err := c.cache.Subscribe(context.Background(), watchcore.SubscribeOptions{RawTypes: true, Name: "mine"})
	check(t, err)
	w := l.Over(sub)
	takes(t, w, "ADDED ns/a@4", "ADDED ns/b@2", "ADDED ns/c@3", "BOOKMARK 4 end")
	c.put("ns", "a", nil, "n1")
	c.remove("ns", "b")
	c.put("ns", "d", nil, "n1")
	takes(t, w, "MODIFIED ns/a@5", "DELETED ns/b@6", "ADDED ns/d@7")
	c.cache.Close()
	takes(t, w, "ERROR 503 ServiceUnavailable", "closed")
	w.Stop()
}

// Values that cannot be decoded end a list and a watch with 500, or are reported and left
// out: then the consumer keeps what it had of the key, and types stay right.
func TestKU18UndecodableValues(t *testing.T) {
	c := newCluster(t, watchcore.Config{})
	strict := newListWatch(t, c)
	var mu sync.Mutex
	var reported []string
	lenient := newListWatch(t, c, func(config *kubernetes.Config) {
		config.Undecodable = func(key string, revision uint64, err error) {
			mu.Lock()
			defer mu.Unlock()
			reported = append(reported, fmt.Sprintf("%s@%d", key[len(prefix):], revision))
		}
	})
	w, strictly := watching(t, lenient, metav1.ListOptions{}), watching(t, strict, metav1.ListOptions{})
	broken := []byte("{")
	c.put("ns", "a", nil, "")                // 1
	c.putValue(podKey("ns", "a"), broken)    // 2: it keeps 1
	c.putValue(podKey("ns", "a"), broken)    // 3
	c.put("ns", "a", nil, "")                // 4: modified, for it has 1
	c.putValue(podKey("ns", "new"), broken)  // 5: never shown
	c.put("ns", "new", nil, "")              // 6: added
	c.putValue(podKey("ns", "new"), broken)  // 7: it keeps 6
	c.remove("ns", "new")                    // 8: deleted, with the value of 6
	c.putValue(podKey("ns", "none"), broken) // 9
	c.remove("ns", "none")                   // 10: nothing
	c.putValue(podKey("ns", "late"), broken) // 11
	takes(t, w, "ADDED ns/a@1", "MODIFIED ns/a@4", "ADDED ns/new@6", "DELETED ns/new@8")
	takes(t, strictly, "ADDED ns/a@1", "ERROR 500 InternalError", "closed")
	list, err := lenient.List(metav1.ListOptions{})
	want(t, "the lenient list", listed(t, list, err), "[ns/a@4] 11")
	_, err = strict.List(metav1.ListOptions{})
	want(t, "the strict list", failure(t, err), "500 InternalError")
	if !strings.Contains(err.Error(), podKey("ns", "late")) || !strings.Contains(err.Error(), "Config.Undecodable") {
		t.Fatalf("the message does not say which key and what to do: %v", err)
	}

	after := watching(t, lenient, metav1.ListOptions{ResourceVersion: "11"})
	c.put("ns", "late", nil, "") // 12: added for who came after the broken one
	takes(t, after, "ADDED ns/late@12")
	takes(t, w, "ADDED ns/late@12")
	mu.Lock()
	defer mu.Unlock()
	for _, line := range []string{"ns/a@2", "ns/a@3", "ns/new@5", "ns/new@7", "ns/none@9", "ns/late@11"} {
		if !slices.Contains(reported, line) {
			t.Errorf("%s was not reported: %v", line, reported)
		}
	}
}

// A panic of the decoder is an error of its value.
func TestKU18PanicOfTheDecoderHarmsNobody(t *testing.T) {
	c := three(t, watchcore.Config{})
	for _, share := range []bool{false, true} {
		l := newListWatch(t, c, func(config *kubernetes.Config) {
			config.Share = share
			config.Decode = func(string, []byte) (kruntime.Object, error) { panic("no") }
		})
		_, err := l.List(metav1.ListOptions{})
		want(t, "list", failure(t, err), "500 InternalError")
		takes(t, watching(t, l, metav1.ListOptions{}), "ERROR 500 InternalError", "closed")
	}
}

// With Share each value is decoded once for everybody.
func TestKU19SharedObjectsAreDecodedOnce(t *testing.T) {
	c := three(t, watchcore.Config{})
	var mu sync.Mutex
	decoded := 0
	l := newListWatch(t, c, func(config *kubernetes.Config) {
		config.Share = true
		config.Decode = func(key string, value []byte) (kruntime.Object, error) {
			mu.Lock()
			decoded++
			mu.Unlock()
			return decodePod(key, value)
		}
	})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			w := watching(t, l, metav1.ListOptions{})
			takes(t, w, "ADDED ns/a@4", "ADDED ns/b@2", "ADDED ns/c@3")
			_, err := l.List(metav1.ListOptions{})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	want(t, "decoded", decoded, 3)
}

// Each code of the library is a status that Kubernetes' clients know: that of the library's own table.
func TestKU13ErrorsAreStatuses(t *testing.T) {
	for code, expected := range map[watchcore.Code]string{
		watchcore.ErrCompacted:         "410 Expired",
		watchcore.ErrLagged:            "410 Expired",
		watchcore.ErrResynced:          "410 Expired",
		watchcore.ErrTimeout:           "504 Timeout",
		watchcore.ErrFutureRevision:    "504 Timeout",
		watchcore.ErrResourceExhausted: "429 TooManyRequests",
		watchcore.ErrNotReady:          "503 ServiceUnavailable",
		watchcore.ErrUnavailable:       "503 ServiceUnavailable",
		watchcore.ErrClosed:            "503 ServiceUnavailable",
		watchcore.ErrPermissionDenied:  "403 Forbidden",
		watchcore.ErrUnauthenticated:   "401 Unauthorized",
		watchcore.ErrInvalidArgument:   "400 BadRequest",
		watchcore.ErrBusy:              "409 Conflict",
		watchcore.ErrOutOfOrder:        "409 Conflict",
		watchcore.ErrUnsupported:       "501 ",
		watchcore.ErrPanic:             "500 InternalError",
	} {
		err := fmt.Errorf("around: %w", &watchcore.Error{Code: code, Message: "what holds", Asked: 7, Current: 5, Continue: "token"})
		status := kubernetes.StatusError(err)
		want(t, code.Name(), failure(t, status), expected)
		want(t, code.Name()+" by the table", failure(t, status), fmt.Sprintf("%d %s", code.HTTPStatus(), code.Reason()))
		if !strings.Contains(status.Error(), "what holds") {
			t.Errorf("%s: the message is lost: %v", code.Name(), status)
		}
		want(t, code.Name()+": once more", kubernetes.StatusError(fmt.Errorf("again: %w", status)), status)
		want(t, code.Name()+": continue", status.Status().ListMeta.Continue, "token")
		retry := 0
		if code.Retryable() && (code.HTTPStatus() == 429 || code.HTTPStatus() >= 503) {
			retry = 1
		}
		want(t, code.Name()+": retry", int(status.Status().Details.RetryAfterSeconds), retry)
		if code == watchcore.ErrFutureRevision {
			want(t, "cause", status.Status().Details.Causes[0].Type, metav1.CauseTypeResourceVersionTooLarge)
		}
	}
	want(t, "nil", kubernetes.StatusError(nil), nil)
	want(t, "time", failure(t, kubernetes.StatusError(context.DeadlineExceeded)), "504 Timeout")
	want(t, "other", failure(t, kubernetes.StatusError(errors.New("x"))), "500 InternalError")
}
