package watch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/watch"
)

func at(revision uint64) watch.Event[string] {
	return watch.Event[string]{Type: watch.Added, Object: "o", Revision: revision}
}

func failing(code int) watch.Event[string] {
	return watch.Event[string]{Type: watch.Error, Err: &watch.Status{Code: code}}
}

// script is a server: all of its events, of which a watch gets those above its revision (and errors
// only behind one of these), with at most closeAfter of them to a connection, if that is not 0. What
// refuse has is answered to the first opens.
type script struct {
	events     []watch.Event[string]
	closeAfter int
	stayOpen   bool
	refuse     []error
	always     error
	listed     uint64

	mu    sync.Mutex
	after []uint64
}

var errNothing = errors.New("neither a watch nor an error")

// List is the empty state of a revision.
func (s *script) List(context.Context, watch.ListRequest) (watch.ListPage[string], error) {
	return watch.ListPage[string]{Revision: s.listed}, nil
}

func (s *script) Watch(_ context.Context, after uint64) (watch.Interface[string], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.after = append(s.after, after)
	if s.always != nil {
		return nil, s.always
	}
	if n := len(s.after) - 1; n < len(s.refuse) {
		if s.refuse[n] == errNothing {
			return nil, nil
		}
		return nil, s.refuse[n]
	}
	f := watch.NewRaceFreeFakeWithLogger[string](quiet())
	given := 0
	for _, e := range s.events {
		if e.Type == watch.Error && given == 0 || e.Type != watch.Error && e.Revision <= after && e.Revision != 0 {
			continue
		}
		_ = f.Send(e)
		if given++; given == s.closeAfter {
			break
		}
	}
	if s.closeAfter > 0 && given == s.closeAfter && !s.stayOpen {
		f.Stop()
	}
	return f, nil
}

func (s *script) opens() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]uint64(nil), s.after...)
}

func retry(t *testing.T, after uint64, source watch.ListerWatcher[string], options watch.RetryOptions[string]) *watch.RetryWatcher[string] {
	t.Helper()
	if options.Clock == nil && options.MinRestartDelay == 0 {
		options.MinRestartDelay = -1
	}
	options.Logger = quiet()
	w, err := watch.NewRetryWatcherWithOptions(context.Background(), after, source, options)
	check(t, err)
	t.Cleanup(func() {
		w.Stop()
		bounded.Receive(t, "the end of a RetryWatcher", w.Done())
	})
	return w
}

func TestRW01EmptyRevisionIsRefused(t *testing.T) {
	_, err := watch.NewRetryWatcher[string]("", &script{})
	want(t, "error", fmt.Sprint(err), `initial RV "" is not supported due to issues with underlying WATCH`)
	for _, revision := range []string{"-1", "1.0", "x", "99999999999999999999"} {
		if _, err := watch.NewRetryWatcher[string](revision, &script{}); err == nil {
			t.Errorf("%q was accepted", revision)
		}
	}
	if _, err := watch.NewRetryWatcher[string]("1", nil); err == nil {
		t.Error("a RetryWatcher without a source was accepted")
	}
}

// rowOfRetry is a source, what has to come of it, and after which revisions it has to be opened.
type rowOfRetry struct {
	after  uint64
	source *script
	given  []watch.Event[string]
	opens  []uint64
	ends   bool
}

func (row rowOfRetry) run(t *testing.T) {
	t.Helper()
	noLeak(t)
	w := retry(t, row.after, row.source, watch.RetryOptions[string]{})
	for _, expected := range row.given {
		e := take[string](t, w)
		if !reflect.DeepEqual(e, expected) {
			t.Fatalf("%v, not %v", e, expected)
		}
	}
	if row.ends {
		ends[string](t, w)
		bounded.Receive(t, "the end", w.Done())
	} else {
		// Opens the first watch where nothing is to come.
		w.ResultChan()
	}
	bounded.Eventually(t, "the last watch is open", func() bool { return len(row.source.opens()) >= len(row.opens) })
	select {
	case e, ok := <-w.ResultChan():
		if ok {
			t.Fatalf("%v is one too many", e)
		}
	default:
	}
	if opens := row.source.opens(); !reflect.DeepEqual(opens, row.opens) {
		t.Fatalf("opened after %v, not %v", opens, row.opens)
	}
	w.Stop()
	bounded.Receive(t, "the end of a RetryWatcher", w.Done())
}

func events(revisions ...uint64) (all []watch.Event[string]) {
	for _, revision := range revisions {
		all = append(all, at(revision))
	}
	return all
}

func TestRW03RecoversFromTheEndOfAConnection(t *testing.T) {
	rowOfRetry{1, &script{events: events(2), refuse: []error{io.EOF, io.ErrUnexpectedEOF}}, events(2), []uint64{1, 1, 1}, false}.run(t)
}

func with(first watch.Event[string], then ...watch.Event[string]) []watch.Event[string] {
	return append([]watch.Event[string]{first}, then...)
}

func TestRW15RecoversFromAnErrorThatSaysNothing(t *testing.T) {
	s := &script{events: with(at(6), watch.Event[string]{Type: watch.Error}, at(7))}
	rowOfRetry{5, s, events(6, 7), []uint64{5, 6}, false}.run(t)
}

// The resume point moves when the consumer has taken an event, and not when the watch gave it.
func TestRW24ResumePointMovesWithATake(t *testing.T) {
	noLeak(t)
	w := retry(t, 5, &script{events: events(6, 7, 8)}, watch.RetryOptions[string]{})
	w.ResultChan()
	bounded.Eventually(t, "the watch is open", func() bool { return w.Stats().Opens == 1 })
	want(t, "at first", w.Stats().Revision, 5)
	take[string](t, w)
	take[string](t, w)
	// The second take is behind the first move, and only maybe before the second.
	if r := w.Stats().Revision; r < 6 || r > 7 {
		t.Fatalf("the resume point is %d behind a take of 7", r)
	}
	bounded.Eventually(t, "the resume point", func() bool { return w.Stats().Revision == 7 })
}

// A clock that is moved while a delay is set makes no attempt late.
func TestRW25ClockMovedMeanwhileMakesNoAttemptLate(t *testing.T) {
	clock := watch.NewManualClock(time.Unix(1000, 0))
	due := clock.Now().Add(time.Second)
	s := &script{refuse: []error{errFive}, events: events(2), closeAfter: 1}
	w := retry(t, 1, s, watch.RetryOptions[string]{Clock: &movingClock{clock}})
	w.ResultChan()
	_, err := clock.AwaitTimer(bounded.Context(t))
	check(t, err)
	clock.Advance(due.Sub(clock.Now()))
	want(t, "event", take[string](t, w).Revision, 2)
}

// movingClock is moved after each look at it.
type movingClock struct{ *watch.ManualClock }

func (c *movingClock) Now() time.Time {
	now := c.ManualClock.Now()
	c.Advance(time.Millisecond)
	return now
}

func TestRetryWatcherEndsOnWhatItCannotKnow(t *testing.T) {
	for _, row := range []struct {
		event   watch.Event[string]
		message string
	}{
		{watch.Event[string]{Type: watch.Added, Object: "o"}, "retryWatcher: doesn't support resourceVersion"},
		{watch.Event[string]{Type: watch.Bookmark}, "retryWatcher: doesn't support resourceVersion"},
		{watch.Event[string]{Type: "STRANGE", Revision: 9}, `failed to recognize Event type "STRANGE"`},
	} {
		expected := watch.Event[string]{Type: watch.Error, Err: &watch.Status{Code: 500, Message: row.message}}
		rowOfRetry{5, &script{events: with(at(6), row.event)}, with(at(6), expected), []uint64{5}, true}.run(t)
	}
}

func TestRetryWatcherEndsWithItsContext(t *testing.T) {
	noLeak(t)
	for _, begun := range []bool{true, false} {
		ctx, cancel := context.WithCancel(context.Background())
		w, err := watch.NewRetryWatcherWithContext[string](ctx, "1", &script{})
		check(t, err)
		if begun {
			w.ResultChan()
		}
		cancel()
		bounded.Receive(t, "the end", w.Done())
		ends[string](t, w)
	}
}

// A source that ignores its context and does not return keeps nobody; the watch that it gives in the
// end is stopped.
func TestRetryWatcherStopsWhileASourceHangs(t *testing.T) {
	noLeak(t)
	release := make(chan struct{})
	late := watch.NewFake[string]()
	w := retry(t, 1, watch.ListWatch[string]{WatchFunc: func(context.Context, uint64) (watch.Interface[string], error) {
		<-release
		return late, nil
	}}, watch.RetryOptions[string]{})
	w.ResultChan()
	bounded.Eventually(t, "an open that hangs", func() bool { return w.Stats().Opens == 1 })
	w.Stop()
	bounded.Receive(t, "the end", w.Done())
	close(release)
	bounded.Eventually(t, "the late watch is stopped", late.IsStopped)
}

// A source that ends its goroutine and answers nothing is asked again.
func TestRetryWatcherOutlivesASourceThatEndsItsGoroutine(t *testing.T) {
	noLeak(t)
	given := watch.NewFake[string]()
	first := true
	w := retry(t, 1, watch.ListWatch[string]{WatchFunc: func(context.Context, uint64) (watch.Interface[string], error) {
		if first {
			first = false
			runtime.Goexit()
		}
		return given, nil
	}}, watch.RetryOptions[string]{MinRestartDelay: -1})
	w.ResultChan()
	bounded.Eventually(t, "another attempt", func() bool { return w.Stats().Opens == 2 })
	if err := w.Stats().LastError; !strings.Contains(fmt.Sprint(err), "ended its goroutine") {
		t.Fatal(err)
	}
	w.Stop()
	bounded.Receive(t, "the end", w.Done())
}

type closedCache struct{}

func (closedCache) Error() string { return "the cache was closed" }
func (closedCache) Fatal() bool   { return true }

// A cache that was closed is an end: nothing can come of asking it again.
func TestRetryWatcherEndsOnAFatalError(t *testing.T) {
	err := fmt.Errorf("watch: %w", closedCache{})
	rowOfRetry{5, &script{always: err}, []watch.Event[string]{{Type: watch.Error, Err: err}}, []uint64{5}, true}.run(t)
}
