package watch_test

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/watch"
)

var errFive = errors.New("five")

// verbs is what both fakes have.
type verbs interface {
	watch.Interface[string]
	Add(string) error
	Modify(string) error
	Delete(string) error
	Error(error) error
	Action(watch.EventType, string) error
	Send(watch.Event[string]) error
	Reset()
	IsStopped() bool
}

var sent = []watch.Event[string]{
	{Type: watch.Added, Object: "foo"},
	{Type: watch.Modified, Object: "qux"},
	{Type: watch.Modified, Object: "bar"},
	{Type: watch.Deleted, Object: "bar"},
	{Type: watch.Error, Err: errFive},
	{Type: watch.Bookmark, Revision: 7},
}

func sendAll(f verbs) error {
	return errors.Join(f.Add("foo"), f.Action(watch.Modified, "qux"), f.Modify("bar"), f.Delete("bar"),
		f.Error(errFive), f.Send(watch.Event[string]{Type: watch.Bookmark, Revision: 7}))
}

func consume(t *testing.T, f verbs) {
	t.Helper()
	got := rest(t, f.ResultChan())
	want(t, "events", len(got), len(sent))
	for i, e := range sent {
		want(t, "event", got[i], e)
	}
}

// Fakes that hold events are as new after a Reset.
func TestFakesThatBufferAfterAReset(t *testing.T) {
	for _, f := range []verbs{watch.NewFakeWithChanSize[string](len(sent), true), watch.NewRaceFreeFake[string]()} {
		for range 2 {
			check(t, sendAll(f))
			f.Stop()
			consume(t, f)
			want(t, "stopped", f.IsStopped(), true)
			f.Reset()
			want(t, "stopped after a reset", f.IsStopped(), false)
		}
	}
}

// An event that a fake refuses is reported to its log.
func TestFakeLogsWhatItRefuses(t *testing.T) {
	var log strings.Builder
	f := watch.NewFakeWithOptions[string](watch.FakeOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	f.Stop()
	want(t, "a verb after Stop", f.Add("foo"), watch.ErrStopped)
	if !strings.Contains(log.String(), "refused") {
		t.Fatalf("the log says %q", log.String())
	}
}

func TestAW14ProxyPassesThrough(t *testing.T) {
	c := make(chan watch.Event[string], len(sent))
	w := watch.NewProxyWatcher(c)
	for _, e := range sent {
		c <- e
		want(t, "event", take[string](t, w), e)
	}
	want(t, "stopping", w.Stopping(), false)
	w.Stop()
	bounded.Receive(t, "the channel of Stop", w.StopChan())
	want(t, "stopping", w.Stopping(), true)
	w.Stop()
	close(c)
	ends[string](t, w)
}

func TestMockDelegates(t *testing.T) {
	stops := 0
	f := watch.NewRaceFreeFake[string]()
	check(t, f.Add("foo"))
	w := watch.MockWatcher[string]{StopFunc: func() { stops++ }, ResultChanFunc: f.ResultChan}
	want(t, "event", take[string](t, w).Object, "foo")
	w.Stop()
	want(t, "stops", stops, 1)
	none := watch.MockWatcher[string]{}
	none.Stop()
	ends[string](t, none)
}

func TestFakeResetKeepsItsSize(t *testing.T) {
	f := watch.NewFakeWithOptions[string](watch.FakeOptions{ChannelSize: 2, Logger: quiet()})
	former := f.ResultChan()
	f.Reset()
	if _, ok := receiveFrom(t, former); ok {
		t.Fatal("the former channel is open")
	}
	check(t, f.Add("foo"))
	check(t, f.Add("bar"))
	want(t, "places", cap(f.ResultChan()), 2)
}

// Senders, stops, resets and readers at once, under the race detector.
func TestFakesUnderRaces(t *testing.T) {
	noLeak(t)
	for _, f := range []verbs{watch.NewFakeWithOptions[string](watch.FakeOptions{Logger: quiet()}), watch.NewRaceFreeFakeWithLogger[string](quiet())} {
		var all sync.WaitGroup
		for range 4 {
			all.Add(3)
			go func() {
				defer all.Done()
				for range 200 {
					_ = f.Add("foo")
				}
			}()
			go func() {
				defer all.Done()
				for range 50 {
					f.Stop()
					f.Reset()
				}
				f.Stop()
			}()
			go func() {
				defer all.Done()
				for range 50 {
					for range f.ResultChan() {
					}
				}
			}()
		}
		finished := make(chan struct{})
		go func() { all.Wait(); close(finished) }()
		for done := false; !done; {
			select {
			case <-finished:
				done = true
			default:
				// A reset may be the last, and then somebody has to stop.
				f.Stop()
			}
		}
	}
}
