package informer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/informer"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/watch"
)

type object = *informer.Object[string]

// cacheSource is a source of the keys below "/a", and how many values it has refused.
func cacheSource(t testing.TB, cache *watchcore.Cache) (*informer.CacheSource[string], *atomic.Int64) {
	t.Helper()
	refused := &atomic.Int64{}
	s, err := informer.NewCacheSource(cache, decode, informer.SourceOptions{
		Range: watchcore.RangePrefix("/a"), OnError: func(error) { refused.Add(1) },
	})
	check(t, err)
	return s, refused
}

// follow is a RetryWatcher over it that does not wait between attempts.
func follow(t testing.TB, source *informer.CacheSource[string], after uint64, relist bool) *watch.RetryWatcher[object] {
	t.Helper()
	options := watch.RetryOptions[object]{MinRestartDelay: -1}
	if relist {
		options.OnGone = watch.RelistOnGone(func(o object) string { return o.Key })
	}
	w, err := watch.NewRetryWatcherWithOptions(bounded.Context(t), after, source, options)
	check(t, err)
	t.Cleanup(w.Stop)
	return w
}

// seen is the next events as text: "ADDED /a1=x at 3 behind 2 was y".
func seen(t testing.TB, w watch.Interface[object], n int) string {
	t.Helper()
	var lines []string
	for range n {
		e, err := watch.Next(bounded.Context(t), w)
		check(t, err)
		line := string(e.Type)
		if e.Object != nil {
			line += fmt.Sprintf(" %s=%s at %d", e.Object.Key, e.Object.Value, e.ObjectRevision)
		}
		line += fmt.Sprintf(" behind %d", e.Revision)
		if e.HasOld {
			line += " was " + e.Old.Value
		}
		if e.Err != nil {
			line = "ERROR " + fmt.Sprint(watch.IsGone(e.Err))
		}
		if e.FinalStateUnknown {
			line += " unknown"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func text(lines ...string) string { return strings.Join(lines, "\n") }

// Every change of the range comes once, in order, with its value before; the position moves with the last change of a revision.
func TestRW30CacheIsASource(t *testing.T) {
	bounded.LeavesNothing(t)
	s := newSource(t, watchcore.Config{})
	s.apply("/a1=1")
	from, refused := cacheSource(t, s.cache)
	w := follow(t, from, 1, false)
	s.apply("/b=1", "/a1=2", "/a2=1")
	s.apply("/a3=bad")
	s.apply("/a3=good")
	s.apply("-/a1", "/a3=bad")
	s.apply("-/a3")
	want(t, "events", seen(t, w, 5), text(
		"MODIFIED /a1=2 at 2 behind 1 was 1",
		"ADDED /a2=1 at 2 behind 2",
		"MODIFIED /a3=good at 4 behind 4",
		"DELETED /a1=2 at 5 behind 4 was 2",
		"DELETED /a3= at 6 behind 6 unknown"))
	want(t, "refused", refused.Load(), 4) // two values, each of them once more as the one before
	s.cache.Close()
	want(t, "the end", seen(t, w, 1), "ERROR false")
	_, err := w.Next(bounded.Context(t))
	wantError(t, "behind the end", err, watch.ErrEnded)
	wantError(t, "why", w.Stats().Err, watchcore.ErrClosed)
}

// Where the window has left a place, the watch is gone: it ends, or what has changed since then is listed.
func TestRW30CacheThatHasGoneOn(t *testing.T) {
	bounded.LeavesNothing(t)
	s := newSource(t, watchcore.Config{})
	s.apply("/a1=1")
	s.apply("/a2=1")
	from, _ := cacheSource(t, s.cache)
	stopped, listed := follow(t, from, 1, false), follow(t, from, 0, true)
	want(t, "the state", seen(t, listed, 3), text("ADDED /a1=1 at 1 behind 0", "ADDED /a2=1 at 2 behind 0", "SYNCED behind 2"))
	want(t, "what follows", seen(t, stopped, 1), "ADDED /a2=1 at 2 behind 2")
	reflected, err := informer.NewFromSource(from, func(o object) string { return o.Key }, informer.Options[object]{OnError: func(error) {}})
	check(t, err)
	defer func() { check(t, reflected.StopAndWait(bounded.Context(t))) }()
	check(t, reflected.WaitUntil(bounded.Context(t), 2))
	keys := func(in *informer.Informer[object]) string {
		var all []string
		for o := range in.Lister().All() {
			all = append(all, o.Key+"="+o.Value.Value)
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	resync := func(revision uint64, values ...string) {
		t.Helper()
		var list []watchcore.KeyValue
		for _, value := range values {
			key, value, _ := strings.Cut(value, "=")
			list = append(list, watchcore.KeyValue{Key: []byte(key), Value: []byte(value), CreateRevision: revision, ModRevision: revision, Version: 1})
		}
		_, err := s.writer.Resync(revision, list, watchcore.ReasonRequested)
		check(t, err)
	}
	resync(9, "/a2=bad", "/a3=1")
	want(t, "the end", seen(t, stopped, 1), "ERROR true")
	want(t, "the difference", seen(t, listed, 2), text("DELETED /a1=1 at 9 behind 2 was 1", "ADDED /a3=1 at 9 behind 9"))
	check(t, reflected.WaitUntil(bounded.Context(t), 9))
	want(t, "an informer keeps what is refused", keys(reflected), "/a2=1 /a3=1")
	_, err = from.List(bounded.Context(t), watch.ListRequest{Revision: 99})
	want(t, "a revision that is not there", watch.IsTimeout(err), true)
	late := follow(t, from, 1, false)
	want(t, "a start in the former history", seen(t, late, 2), text("ADDED /a2=1 at 2 behind 2", "ERROR true"))
}

// Each watch ends with its Stop and with its context, in its wait and with an event that nobody takes.
func TestSourceWatchEnds(t *testing.T) {
	bounded.LeavesNothing(t)
	s := newSource(t, watchcore.Config{})
	s.apply("/a1=1")
	from, _ := cacheSource(t, s.cache)
	for name, end := range map[string]func(watch.Interface[object], context.CancelFunc){
		"stop":    func(w watch.Interface[object], _ context.CancelFunc) { w.Stop(); w.Stop() },
		"context": func(_ watch.Interface[object], cancel context.CancelFunc) { cancel() },
	} {
		for _, after := range []uint64{0, 1} {
			t.Run(fmt.Sprint(name, " after ", after), func(t *testing.T) {
				ctx, cancel := context.WithCancel(bounded.Context(t))
				defer cancel()
				w, err := from.Watch(ctx, after)
				check(t, err)
				defer w.Stop()
				c := w.ResultChan()
				end(w, cancel)
				for range c {
				}
				_, err = watch.Next(bounded.Context(t), w)
				if !errors.Is(err, watch.ErrEnded) {
					t.Errorf("behind the end: %v", err)
				}
			})
		}
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := from.Watch(over, 1)
	wantError(t, "a context that is over", err, context.Canceled)
	_, err = from.List(over, watch.ListRequest{})
	wantError(t, "a list with it", err, context.Canceled)
	_, err = informer.NewCacheSource[string](nil, nil, informer.SourceOptions{})
	wantError(t, "no cache", err, watchcore.ErrInvalidArgument)
}

// An embedded cache begins at revision 0: what is behind it comes from its first revision on.
func TestRW30CacheThatBeginsEmpty(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	from, _ := cacheSource(t, s.cache)
	w := follow(t, from, 0, true)
	want(t, "the state", seen(t, w, 1), "SYNCED behind 0")
	s.apply("/a1=1", "/a2=2")
	want(t, "the first revision", seen(t, w, 2), text("ADDED /a1=1 at 1 behind 0", "ADDED /a2=2 at 1 behind 1"))
}

func ExampleNewCacheSource() {
	cache, err := watchcore.New(watchcore.Config{})
	if err != nil {
		panic(err)
	}
	defer cache.Close()
	writer, err := cache.Writer()
	if err != nil {
		panic(err)
	}
	defer writer.Close()
	_ = writer.Apply(1, watchcore.Put("/jobs/a", "waits"))
	jobs, err := informer.NewCacheSource(cache, func(_ string, value []byte) (string, error) { return string(value), nil }, informer.SourceOptions{})
	if err != nil {
		panic(err)
	}
	_ = writer.Apply(2, watchcore.Put("/jobs/a", "runs"))
	_ = writer.Apply(3, watchcore.Put("/jobs/a", "done"))
	last, err := watch.Until(context.Background(), "1", jobs, func(e watch.Event[*informer.Object[string]]) (bool, error) {
		return e.Object.Value == "done", nil
	})
	fmt.Println(last.Type, last.Object.Value, last.Revision, err)
	// Output: MODIFIED done 3 <nil>
}
