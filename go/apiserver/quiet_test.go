package apiserver

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	watchcore "github.com/watchcore/watchcore/go"
)

// A client of a kind that changes seldom goes on behind its last event, however often others have changed since. Where its own kind
// has changed out of the window, it has to list.
func TestQuietKindsResume(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(*world)
		late      bool // the kind changes, and the window has that
		resumes   bool
	}{
		"nothing happens":        {func(*world) {}, false, true},
		"a change in the window": {func(*world) {}, true, true},
		"a change":               {func(w *world) { w.label(t, "a", "meanwhile") }, false, false},
		"two changes":            {func(w *world) { w.label(t, "a", "meanwhile") }, true, false},
		"a deletion": {func(w *world) {
			must(t, w.Delete(t.Context(), podKey("b"), &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))
		}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, withCache(watchcore.Config{Capacity: 128}))
			w.create(t, "b")
			until(t, "deletions are followed", func() bool { return w.deletions.begun.Load() > 0 })
			from := w.create(t, "a").ResourceVersion
			at, err := w.versioner.ParseResourceVersion(from)
			must(t, err)
			c.meanwhile(w)
			for i := 0; w.cache.Oldest() <= at+10 || w.deletions.seen.Load() < w.cache.Oldest(); i++ {
				answer, err := w.client.Put(t.Context(), w.prefix+"leases/one", fmt.Sprint(i))
				must(t, err)
				must(t, w.cache.WaitUntil(t.Context(), uint64(answer.Header.Revision)))
			}
			first := "last"
			if c.late {
				first = "late"
				changed := w.label(t, "a", first)
				until(t, "that is known", func() bool { return w.deletions.seen.Load() >= changed })
			}
			open := w.follow(t, from)
			w.label(t, "a", "last")
			e := <-open.ResultChan()
			if c.resumes && e.Type == watch.Modified {
				if pod := podOf(t, e); pod.Labels["n"] != first {
					t.Errorf("the first event is the change %q, not %q", pod.Labels["n"], first)
				}
			}
			if resumes := e.Type == watch.Modified; resumes != c.resumes || !resumes && e.Type != watch.Error {
				t.Errorf("the first event is %s %v", e.Type, e.Object)
			}
		})
	}
}

// What has changed out of the window, and again since the deletions were last noted, is a change that was missed.
func TestKindsThatChangeTwiceDoNotResume(t *testing.T) {
	w := newWorld(t, withCache(watchcore.Config{Capacity: 128}), func(o *options, _ *watchcore.Config) { o.quiet = time.Hour })
	until(t, "deletions are followed", func() bool { return w.deletions.begun.Load() > 0 })
	from, err := w.versioner.ParseResourceVersion(w.create(t, "a").ResourceVersion)
	must(t, err)
	w.label(t, "a", "missed")
	for i := 0; w.cache.Oldest() <= from+10; i++ {
		answer, err := w.client.Put(t.Context(), w.prefix+"leases/one", fmt.Sprint(i))
		must(t, err)
		must(t, w.cache.WaitUntil(t.Context(), uint64(answer.Header.Revision)))
	}
	w.deletions.seen.Store(w.cache.Revision())
	must(t, w.cache.WaitUntil(t.Context(), w.label(t, "a", "last")))
	if at := w.resumable(t.Context(), watchcore.RangePrefix(w.prefix+"pods/"), from); at != from {
		t.Errorf("a watch behind %d begins behind %d", from, at)
	}
}
