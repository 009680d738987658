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

	"watchcore/internal/bounded"
	"watchcore/watch"
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

func TestRW02RevisionZeroIsRefused(t *testing.T) {
	expected := `initial RV "0" is not supported due to issues with underlying WATCH`
	_, err := watch.NewRetryWatcher[string]("0", &script{})
	want(t, "error", fmt.Sprint(err), expected)
	_, err = watch.NewRetryWatcherWithOptions[string](context.Background(), 0, &script{}, watch.RetryOptions[string]{})
	want(t, "error", fmt.Sprint(err), expected)
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

func TestRW03RecoversFromAnErrorAtOpen(t *testing.T) {
	rowOfRetry{1, &script{events: events(2), refuse: []error{errFive}}, events(2), []uint64{1, 1}, false}.run(t)
	rowOfRetry{1, &script{events: events(2), refuse: []error{io.EOF, io.ErrUnexpectedEOF, failing(504).Err, failing(429).Err}}, events(2), []uint64{1, 1, 1, 1, 1}, false}.run(t)
}

// One rule for 410: with StopOnGone it ends the watch wherever it comes, with RelistOnGone the list
// takes the place of what is gone.
func TestRW04GoneAtOpen(t *testing.T) {
	gone := &watch.Status{Code: 410, Message: "too old"}
	rowOfRetry{1, &script{always: gone}, []watch.Event[string]{{Type: watch.Error, Err: gone}}, []uint64{1}, true}.run(t)

	s := &script{events: events(2, 9), refuse: []error{gone}, listed: 8}
	w := retry(t, 1, s, watch.RetryOptions[string]{OnGone: watch.RelistOnGone(func(o string) string { return o })})
	e := take[string](t, w)
	want(t, "behind the list", e.Revision, 9)
	want(t, "lost", e.Lost, 7)
	want(t, "opens", fmt.Sprint(s.opens()), "[1 8]")
}

func TestRW05RecoversFromNoWatchAtOpen(t *testing.T) {
	rowOfRetry{1, &script{events: events(2), refuse: []error{errNothing}}, events(2), []uint64{1, 1}, false}.run(t)
}

func TestRW06FirstRevision(t *testing.T) {
	rowOfRetry{1, &script{events: events(2)}, events(2), []uint64{1}, false}.run(t)
}

func TestRW07BeginsBehindItsRevision(t *testing.T) {
	rowOfRetry{1, &script{events: events(1, 2)}, events(2), []uint64{1}, false}.run(t)
}

func TestRW08NothingFollowsItsRevision(t *testing.T) {
	rowOfRetry{3, &script{events: events(2)}, nil, []uint64{3}, false}.run(t)
}

func with(first watch.Event[string], then ...watch.Event[string]) []watch.Event[string] {
	return append([]watch.Event[string]{first}, then...)
}

func TestRW09GoneInTheStreamEnds(t *testing.T) {
	s := &script{events: with(at(5), at(6), failing(410), at(7), at(8))}
	rowOfRetry{5, s, with(at(6), failing(410)), []uint64{5}, true}.run(t)
}

func TestRW10ForbiddenEnds(t *testing.T) {
	rowOfRetry{5, &script{always: failing(403).Err}, with(failing(403)), []uint64{5}, true}.run(t)
	// In the stream it is an error as others: the next watch is refused too, if it is still so.
	rowOfRetry{5, &script{events: with(at(6), failing(403), at(7))}, events(6, 7), []uint64{5, 6}, false}.run(t)
}

func TestRW11UnauthorizedEnds(t *testing.T) {
	rowOfRetry{5, &script{always: failing(401).Err}, with(failing(401)), []uint64{5}, true}.run(t)
}

func TestRW12RecoversFromATimeout(t *testing.T) {
	rowOfRetry{5, &script{events: with(at(6), failing(504), at(7))}, events(6, 7), []uint64{5, 6}, false}.run(t)
}

func TestRW13RecoversFromAnInternalError(t *testing.T) {
	rowOfRetry{5, &script{events: with(at(6), failing(500), at(7))}, events(6, 7), []uint64{5, 6}, false}.run(t)
}

func TestRW14RecoversFromAnUnknownCode(t *testing.T) {
	rowOfRetry{5, &script{events: with(at(6), failing(666), at(7))}, events(6, 7), []uint64{5, 6}, false}.run(t)
}

func TestRW15RecoversFromAnUnknownError(t *testing.T) {
	for _, err := range []error{errFive, nil} {
		s := &script{events: with(at(6), watch.Event[string]{Type: watch.Error, Err: err}, at(7))}
		rowOfRetry{5, s, events(6, 7), []uint64{5, 6}, false}.run(t)
	}
}

func TestRW16SurvivesOneClosedWatch(t *testing.T) {
	rowOfRetry{5, &script{events: events(6), closeAfter: 1}, events(6), []uint64{5, 6}, false}.run(t)
}

func TestRW17SurvivesTwoClosedWatches(t *testing.T) {
	rowOfRetry{4, &script{events: events(5, 6), closeAfter: 1}, events(5, 6), []uint64{4, 5, 6}, false}.run(t)
}

func TestRW18SurvivesClosedWatchesOverAGap(t *testing.T) {
	rowOfRetry{4, &script{events: events(5, 7), closeAfter: 1}, events(5, 7), []uint64{4, 5, 7}, false}.run(t)
}

func TestRW19SurvivesClosedWatchesFarAbove(t *testing.T) {
	rowOfRetry{2, &script{events: events(5, 7), closeAfter: 1}, events(5, 7), []uint64{2, 5, 7}, false}.run(t)
}

func TestRW20SurvivesFourClosedWatches(t *testing.T) {
	rowOfRetry{2, &script{events: events(5, 6, 7, 11), closeAfter: 1}, events(5, 6, 7, 11), []uint64{2, 5, 6, 7, 11}, false}.run(t)
}

func TestRW21SurvivesFourClosedWatchesBehindItsRevision(t *testing.T) {
	rowOfRetry{2, &script{events: events(1, 2, 5, 6, 7, 11), closeAfter: 1}, events(5, 6, 7, 11), []uint64{2, 5, 6, 7, 11}, false}.run(t)
}

func TestRW22SurvivesClosedWatchesOfTwoEvents(t *testing.T) {
	rowOfRetry{1, &script{events: events(1, 2, 5, 6, 7, 11), closeAfter: 2}, events(2, 5, 6, 7, 11), []uint64{1, 5, 7}, false}.run(t)
}

func TestRW23StopWithAnUnreadEvent(t *testing.T) {
	noLeak(t)
	for _, begun := range []bool{true, false} {
		w, err := watch.NewRetryWatcher[string]("1", &script{events: events(2)})
		check(t, err)
		if begun {
			w.ResultChan()
			bounded.Eventually(t, "the watch is open", func() bool { return w.Stats().Opens == 1 })
		}
		began := time.Now()
		w.Stop()
		w.Stop()
		bounded.Receive(t, "the end", w.Done())
		if took := time.Since(began); took > time.Second {
			t.Fatalf("Stop took %s", took)
		}
		if _, ok := receiveFrom(t, w.ResultChan()); ok {
			t.Fatal("the channel is open")
		}
	}
}

// The resume point follows a bookmark, which the consumer does not see.
func TestRW24BookmarksMoveTheResumePoint(t *testing.T) {
	s := &script{closeAfter: 2, events: with(at(6), watch.Event[string]{Type: watch.Bookmark, Revision: 9}, at(12))}
	rowOfRetry{5, s, events(6, 12), []uint64{5, 9}, false}.run(t)
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

// Attempts begin at least a second apart, or as late as the server asked; a watch that has lived for
// longer is opened again at once.
func TestRW25RestartDelays(t *testing.T) {
	clock := watch.NewManualClock(time.Unix(1000, 0))
	asked := &watch.Status{Code: 429, RetryAfter: 3 * time.Second}
	s := &script{refuse: []error{errFive, asked}, events: events(2, 3), closeAfter: 1}
	w := retry(t, 1, s, watch.RetryOptions[string]{Clock: clock})
	w.ResultChan()
	step := func(opens int, expected time.Duration) {
		t.Helper()
		left, err := clock.AwaitTimer(bounded.Context(t))
		check(t, err)
		want(t, "opens", len(s.opens()), opens)
		want(t, "the delay", left, expected)
		clock.Advance(left - 1)
		want(t, "opens a nanosecond before", len(s.opens()), opens)
		clock.Advance(1)
	}
	step(1, time.Second)
	step(2, 3*time.Second)
	// The third one is a watch. It lives for 0.4 of its second, so the rest is waited for.
	bounded.Eventually(t, "a watch", func() bool { return len(s.opens()) == 3 })
	clock.Advance(400 * time.Millisecond)
	want(t, "event", take[string](t, w).Revision, 2)
	step(3, 600*time.Millisecond)
	// The next one lives for a minute, and nothing is waited for behind it.
	bounded.Eventually(t, "a watch", func() bool { return len(s.opens()) == 4 })
	clock.Advance(time.Minute)
	want(t, "event", take[string](t, w).Revision, 3)
	bounded.Eventually(t, "a watch at once", func() bool { return len(s.opens()) == 5 })
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

// The original tries a revision that is gone again and again, once a second for ever.
func TestFaultGoneAtOpenLoopsForEver(t *testing.T) {
	noLeak(t)
	clock := watch.NewManualClock(time.Unix(0, 0))
	s := &script{always: &watch.Status{Code: 410}}
	w := retry(t, 7, s, watch.RetryOptions[string]{Clock: clock})
	e := take[string](t, w)
	want(t, "gone", watch.IsGone(e.Err), true)
	bounded.Receive(t, "the end", w.Done())
	want(t, "opens", len(s.opens()), 1)
	want(t, "why it ended", watch.IsGone(w.Stats().Err), true)
}
