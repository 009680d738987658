package kubernetes_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/kubernetes"
)

// three has one pod of each revision from 1 to 3, and at 4 the first changed.
func three(t testing.TB, config watchcore.Config) *cluster {
	c := newCluster(t, config)
	for _, name := range []string{"a", "b", "c", "a"} {
		c.put("ns", name, nil, "")
	}
	return c
}

// Each row of the table in Kubernetes' API concepts: what a list reads by resourceVersion,
// resourceVersionMatch and limit.
func TestKU08ListFollowsKubernetesTable(t *testing.T) {
	c := three(t, watchcore.Config{})
	l := newListWatch(t, c, func(config *kubernetes.Config) { config.WaitTimeout = 50 * time.Millisecond })
	now, past := "[ns/a@4 ns/b@2 ns/c@3] 4", "[ns/a@1 ns/b@2 ns/c@3] 3"
	for _, row := range []struct {
		version string
		match   metav1.ResourceVersionMatch
		limit   int64
		want    string
	}{
		{"", "", 0, now},
		{"", "", 2, "[ns/a@4 ns/b@2] 4 more"},
		{"0", "", 0, now},
		{"0", "", 2, now}, // as with Kubernetes' cache
		{"3", "", 0, now},
		{"3", "", 2, "[ns/a@1 ns/b@2] 3 more"},
		{"3", "NotOlderThan", 0, now},
		{"3", "NotOlderThan", 2, "[ns/a@4 ns/b@2] 4 more"},
		{"0", "NotOlderThan", 0, now},
		{"3", "Exact", 0, past},
		{"3", "Exact", 2, "[ns/a@1 ns/b@2] 3 more"},
		{"5", "", 0, "504 Timeout"},
		{"5", "Exact", 0, "504 Timeout"},
		{"0", "Exact", 0, "422 Invalid"},
		{"", "Exact", 0, "422 Invalid"},
		{"", "NotOlderThan", 0, "422 Invalid"},
		{"3", "Sometimes", 0, "422 Invalid"},
		{"x", "", 0, "400 BadRequest"},
		{"-1", "", 0, "400 BadRequest"},
		{"", "", -1, "400 BadRequest"},
	} {
		list, err := l.List(metav1.ListOptions{ResourceVersion: row.version, ResourceVersionMatch: row.match, Limit: row.limit})
		want(t, fmt.Sprintf("%+v", row), listed(t, list, err), row.want)
	}
	check(t, c.writer.Compact(3))
	_, err := l.List(metav1.ListOptions{ResourceVersion: "2", ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	want(t, "a compacted revision", failure(t, err), "410 Expired")
	_, err = l.List(metav1.ListOptions{SendInitialEvents: ptr.To(true)})
	want(t, "sendInitialEvents of a list", failure(t, err), "422 Invalid")
	_, err = l.List(metav1.ListOptions{ShardSelector: "shardRange(object.metadata.uid, '0x0', '0x8')"})
	want(t, "a shard selector", failure(t, err), "400 BadRequest")
}

func listed(t testing.TB, list kruntime.Object, err error) string {
	t.Helper()
	if err != nil {
		return failure(t, err)
	}
	m, err := meta.ListAccessor(list)
	check(t, err)
	text := fmt.Sprint(itemsOf(t, list), " ", m.GetResourceVersion())
	if m.GetContinue() != "" {
		text += " more"
	}
	return text
}

// failure is an error's status.
func failure(t testing.TB, err error) string {
	t.Helper()
	status, is := err.(apierrors.APIStatus)
	if !is {
		t.Fatalf("got the error %v (%T), want a status", err, err)
	}
	return fmt.Sprintf("%d %s", status.Status().Code, status.Status().Reason)
}

// Each row of the table in Kubernetes' API concepts: where a watch begins by resourceVersion and
// sendInitialEvents.
func TestKU09WatchFollowsKubernetesTable(t *testing.T) {
	c := three(t, watchcore.Config{})
	l := newListWatch(t, c, func(config *kubernetes.Config) { config.WaitTimeout = 50 * time.Millisecond })
	state := []string{"ADDED ns/a@4", "ADDED ns/b@2", "ADDED ns/c@3"}
	with := func(more ...string) []string { return append(append([]string{}, state...), more...) }
	rows := []struct {
		version   string
		initial   *bool
		bookmarks bool
		want      []string
	}{
		{"", nil, false, state},
		{"", nil, true, with("BOOKMARK 4")},
		{"0", nil, false, state},
		{"3", nil, false, []string{"MODIFIED ns/a@4"}},
		{"4", nil, false, nil},
		{"", ptr.To(true), true, with("BOOKMARK 4 end")},
		{"", ptr.To(true), false, state},
		{"0", ptr.To(true), true, with("BOOKMARK 4 end")},
		{"3", ptr.To(true), true, with("BOOKMARK 4 end")},
		{"", ptr.To(false), false, nil},
		{"0", ptr.To(false), false, nil},
		{"2", ptr.To(false), false, []string{"ADDED ns/c@3", "MODIFIED ns/a@4"}},
	}
	after := uint64(4)
	for _, row := range rows {
		o := metav1.ListOptions{ResourceVersion: row.version, SendInitialEvents: row.initial, AllowWatchBookmarks: row.bookmarks}
		if row.initial != nil {
			o.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
		}
		t.Run(fmt.Sprintf("%q-%v-%v", row.version, row.initial != nil && *row.initial, row.bookmarks), func(t *testing.T) {
			w := watching(t, l, o)
			takes(t, w, row.want...)
			w.Stop()
			takes(t, w, "closed")
		})
	}
	w := watching(t, l, metav1.ListOptions{SendInitialEvents: ptr.To(false), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	after = c.put("ns", "d", nil, "")
	takes(t, w, fmt.Sprintf("ADDED ns/d@%d", after))
	w = watching(t, l, metav1.ListOptions{
		ResourceVersion: "100", SendInitialEvents: ptr.To(true), AllowWatchBookmarks: true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	takes(t, w, "ERROR 504 Timeout", "closed")
	for _, wrong := range []metav1.ListOptions{
		{SendInitialEvents: ptr.To(true)},
		{ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
		{SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchExact, ResourceVersion: "1"},
	} {
		_, err := l.Watch(wrong)
		want(t, fmt.Sprintf("%+v", wrong), failure(t, err), "422 Invalid")
	}
	_, err := l.Watch(metav1.ListOptions{ResourceVersion: "x"})
	want(t, "no number", failure(t, err), "400 BadRequest")
}

// A revision that has left the window is an event of the watch, and not an error of its opening: a
// RetryWatcher of client-go would open again and again there, for ever.
func TestKU09WatchFromACompactedRevisionIsAnEvent(t *testing.T) {
	c := three(t, watchcore.Config{})
	check(t, c.writer.Compact(3))
	l := newListWatch(t, c)
	takes(t, watching(t, l, metav1.ListOptions{ResourceVersion: "1"}), "ERROR 410 Expired", "closed")
}

// Pages are of one revision, whatever happens meanwhile; where it has left the window the
// answer is 410 with a token that goes on in the newest state.
func TestKU10PagesAreOfOneRevision(t *testing.T) {
	c := three(t, watchcore.Config{})
	l := newListWatch(t, c)
	list, err := l.List(metav1.ListOptions{Limit: 1})
	want(t, "the first page", listed(t, list, err), "[ns/a@4] 4 more")
	m, _ := meta.ListAccessor(list)
	want(t, "remaining", *m.GetRemainingItemCount(), 2)
	token := m.GetContinue()
	c.remove("ns", "b")
	c.put("ns", "c", nil, "")
	_, err = l.List(metav1.ListOptions{Limit: 1, Continue: token, ResourceVersion: "4"})
	want(t, "a token and a revision", failure(t, err), "400 BadRequest")
	_, err = l.List(metav1.ListOptions{Limit: 1, Continue: token[:len(token)-2]})
	want(t, "a damaged token", failure(t, err), "400 BadRequest")
	list, err = l.List(metav1.ListOptions{Continue: token})
	want(t, "the rest", listed(t, list, err), "[ns/b@2 ns/c@3] 4")

	check(t, c.writer.Compact(5))
	_, err = l.List(metav1.ListOptions{Continue: token})
	want(t, "a compacted page", failure(t, err), "410 Expired")
	token = err.(apierrors.APIStatus).Status().ListMeta.Continue
	list, err = l.List(metav1.ListOptions{Continue: token})
	want(t, "the rest of now", listed(t, list, err), "[ns/c@6] 6")
}

// A list can be of the type that the program wants.
func TestKU10ListIsOfTheAskedType(t *testing.T) {
	c := three(t, watchcore.Config{})
	l := newListWatch(t, c, func(config *kubernetes.Config) {
		config.NewList = func() kruntime.Object { return &corev1.PodList{} }
	})
	list, err := l.List(metav1.ListOptions{})
	check(t, err)
	pods := list.(*corev1.PodList)
	want(t, "items", len(pods.Items), 3)
	want(t, "the first", pods.Items[0].Name+pods.Items[0].ResourceVersion, "a4")
	want(t, "revision", pods.ResourceVersion, "4")

	l = newListWatch(t, c, func(config *kubernetes.Config) {
		config.NewList = func() kruntime.Object { return &corev1.ConfigMapList{} }
	})
	_, err = l.List(metav1.ListOptions{})
	want(t, "another type", failure(t, err), "500 InternalError")
}

// Before its first listing a cache answers a watch with nothing yet, and a list waits, with 503
// at the limit.
func TestKU09CacheThatIsNotReadyIsWaitedFor(t *testing.T) {
	c := newCluster(t, watchcore.Config{ExpectLoad: true})
	soon := newListWatch(t, c, func(config *kubernetes.Config) { config.WaitTimeout = 10 * time.Millisecond })
	_, err := soon.List(metav1.ListOptions{})
	want(t, "no listing yet", failure(t, err), "503 ServiceUnavailable")
	l := newListWatch(t, c, func(config *kubernetes.Config) { config.WaitTimeout = bounded.Bound })
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = l.ListWithContext(cancelled, metav1.ListOptions{})
	want(t, "cancelled", err, context.Canceled)
	_, err = l.List(metav1.ListOptions{TimeoutSeconds: ptr.To(int64(1))})
	want(t, "timeoutSeconds", failure(t, err), "504 Timeout")

	w := watching(t, l, metav1.ListOptions{})
	lists := make(chan string, 1)
	go func() {
		list, err := l.List(metav1.ListOptions{ResourceVersion: "0"})
		lists <- listed(t, list, err)
	}()
	check(t, c.writer.Load(7, []watchcore.KeyValue{{
		Key: []byte(podKey("ns", "a")), Value: podValue("ns", "a", nil, ""), CreateRevision: 5, ModRevision: 6, Version: 2,
	}}))
	takes(t, w, "ADDED ns/a@6")
	want(t, "the list", <-lists, "[ns/a@6] 7")
}

// New says which field is wrong.
func TestKU08ConfigurationIsChecked(t *testing.T) {
	c := newCluster(t, watchcore.Config{})
	for word, edit := range map[string]func(*kubernetes.Config){
		"Prototype is nil":      func(config *kubernetes.Config) { config.Prototype = nil },
		"Decode is nil":         func(config *kubernetes.Config) { config.Decode = nil },
		"without Share":         func(config *kubernetes.Config) { config.ShareSize = 5 },
		"is negative":           func(config *kubernetes.Config) { config.WaitTimeout = -1 },
		"which has no metadata": func(config *kubernetes.Config) { config.Prototype = &metav1.Status{} },
	} {
		config := podConfig()
		edit(&config)
		if _, err := kubernetes.New(c.cache, config); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("got %v, want an error with %q", err, word)
		}
	}
	if _, err := kubernetes.New(nil, podConfig()); err == nil {
		t.Error("a nil cache was accepted")
	}
}
