package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/kubernetes"
)

// short lets each watch end after a second: a RetryWatcher opens the next.
type short struct{ *counted }

func (s short) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.TimeoutSeconds = ptr.To(int64(1))
	return s.counted.WatchWithContext(ctx, o)
}

// client-go's RetryWatcher gives every event once and in order over watches that end, and leaves
// nothing behind.
func TestKU05RetryWatcherGivesEveryEventOnce(t *testing.T) {
	bounded.LeavesNothing(t)
	c := newCluster(t, watchcore.Config{})
	c.put("ns", "first", nil, "")
	l := short{&counted{ListWatch: newListWatch(t, c)}}
	w, err := toolswatch.NewRetryWatcherWithContext(bounded.Context(t), "1", l)
	check(t, err)
	for number := range 300 {
		revision := c.put("ns", strconv.Itoa(number), nil, "")
		takes(t, w, fmt.Sprintf("ADDED ns/%d@%d", number, revision))
		if number%100 == 50 { // the watch ends while nothing comes
			before := l.watches.Load()
			bounded.Eventually(t, "the next watch", func() bool { return l.watches.Load() > before })
		}
	}
	w.Stop()
	bounded.Receive(t, "the end of the watcher", w.Done())
	w.Stop()
}

// A RetryWatcher that begins at a revision which has left the window says so and ends. Over a server that
// answers 410 to the opening it opens again for ever.
func TestFaultRetryWatcherDoesNotLoopAtACompactedRevision(t *testing.T) {
	bounded.LeavesNothing(t)
	c := three(t, watchcore.Config{})
	check(t, c.writer.Compact(4))
	l := &counted{ListWatch: newListWatch(t, c)}
	w, err := toolswatch.NewRetryWatcherWithContext(bounded.Context(t), "1", l)
	check(t, err)
	takes(t, w, "ERROR 410 Expired", "closed")
	bounded.Receive(t, "the end of the watcher", w.Done())
	want(t, "watches", l.watches.Load(), 1)
}

// client-go's Until: conditions in their order, on every event after a revision; one that has left the
// window is an error.
func TestKU06UntilSeesEveryEvent(t *testing.T) {
	c := three(t, watchcore.Config{})
	l := newListWatch(t, c)
	until := func(revision string, conditions ...toolswatch.ConditionFunc) (*watch.Event, error) {
		return toolswatch.Until(bounded.Context(t), revision, l, conditions...)
	}
	at := func(line string) toolswatch.ConditionFunc {
		return func(e watch.Event) (bool, error) { return text(t, e) == line, nil }
	}
	e, err := until("1", at("ADDED ns/b@2"), at("ADDED ns/c@3"), at("MODIFIED ns/a@4"))
	check(t, err)
	want(t, "the last", text(t, *e), "MODIFIED ns/a@4")
	check(t, c.writer.Compact(4))
	failed := errors.New("seen")
	_, err = until("1", func(e watch.Event) (bool, error) {
		if e.Type == watch.Error {
			return false, fmt.Errorf("%w: %s", failed, text(t, e))
		}
		return false, nil
	})
	if !errors.Is(err, failed) || err.Error() != "seen: ERROR 410 Expired" {
		t.Fatalf("got %v", err)
	}
}

// client-go's UntilWithSync: a condition on the synced store first, then on events, over a resync in
// between.
func TestKU07UntilWithSyncSurvivesAResync(t *testing.T) {
	bounded.LeavesNothing(t)
	c := three(t, watchcore.Config{})
	l := newListWatch(t, c)
	e, err := toolswatch.UntilWithSync(bounded.Context(t), l, &corev1.Pod{}, func(store cache.Store) (bool, error) {
		return len(store.List()) == 3, nil
	})
	check(t, err)
	if e != nil {
		t.Fatalf("got the event %v", e)
	}
	e, err = toolswatch.UntilWithSync(bounded.Context(t), l, &corev1.Pod{}, func(store cache.Store) (bool, error) {
		c.resync(20, watchcore.ReasonCompacted, func(pods map[string]watchcore.KeyValue) { delete(pods, podKey("ns", "b")) })
		return false, nil
	}, func(e watch.Event) (bool, error) {
		return e.Type == watch.Deleted && asked(t, e.Object).Name == "b", nil
	})
	check(t, err)
	want(t, "the last value", text(t, *e), "DELETED ns/b@2")
}

// client-go's informer watcher: what is there as added, then what follows, no bookmark, and stopping it in the middle
// leaves nothing.
func informerWatcher(t *testing.T, mode func(*kubernetes.Config)) {
	bounded.LeavesNothing(t)
	c := three(t, watchcore.Config{})
	_, _, w, done := toolswatch.NewIndexerInformerWatcher(newListWatch(t, c, mode), &corev1.Pod{})
	seen := map[string]bool{}
	for range 3 {
		seen[take(t, w)] = true
	}
	for _, line := range []string{"ADDED ns/a@4", "ADDED ns/b@2", "ADDED ns/c@3"} {
		if !seen[line] {
			t.Fatalf("%s is missing: %v", line, seen)
		}
	}
	c.put("ns", "a", nil, "n1")
	takes(t, w, "MODIFIED ns/a@5")
	c.remove("ns", "a")
	takes(t, w, "DELETED ns/a@6")
	c.churn(rand.New(rand.NewPCG(1, 1)), 100, 20)
	take(t, w)
	w.Stop()
	bounded.Receive(t, "the end of the watch", done)
}

func TestIW03InformerWatcherByLists(t *testing.T) {
	informerWatcher(t, func(config *kubernetes.Config) { config.NoWatchList = true })
}

func TestIW03InformerWatcherByWatchLists(t *testing.T) {
	informerWatcher(t, func(config *kubernetes.Config) { config.NoWatchList = false })
}

// What was deleted while the watch was away comes as deleted, with the last value that was there.
func TestIW05InformerWatcherGivesTheLastValueAfterAGap(t *testing.T) {
	bothModes(t, func(t *testing.T, mode func(*kubernetes.Config)) {
		bounded.LeavesNothing(t)
		c := newCluster(t, watchcore.Config{})
		c.put("ns", "gone", map[string]string{"app": "a"}, "n1")
		l := &counted{ListWatch: newListWatch(t, c, mode)}
		_, _, w, done := toolswatch.NewIndexerInformerWatcher(l, &corev1.Pod{})
		takes(t, w, "ADDED ns/gone@1")
		c.resync(9, watchcore.ReasonCompacted, func(pods map[string]watchcore.KeyValue) { clear(pods) })
		e := <-w.ResultChan()
		want(t, "type", e.Type, watch.Deleted)
		pod := asked(t, e.Object)
		want(t, "last value", nameOf(pod)+pod.Labels["app"]+pod.Spec.NodeName, "ns/gonean1")
		if l.initial() < 2 {
			t.Fatalf("%d whole states, want 2 or more", l.initial())
		}
		w.Stop()
		bounded.Receive(t, "the end of the watch", done)
	})
}
