package watch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/watch"
)

type decoder struct {
	items  chan watch.Event[string]
	err    error
	closes atomic.Int32
}

func (d *decoder) Decode() (watch.EventType, string, error) {
	if d.err != nil {
		return "", "", d.err
	}
	e, open := <-d.items
	if !open {
		return "", "", io.EOF
	}
	return e.Type, e.Object, nil
}

func (d *decoder) Close() {
	if d.closes.Add(1) == 1 && d.items != nil {
		close(d.items)
	}
}

type reporter struct{}

func (reporter) AsError(err error) error { return &watch.Status{Code: 418, Message: err.Error()} }

// Err is the decoder's error, or nothing where Stop was the end. The decoder is closed once.
func TestStreamWatcherSaysWhyItEnded(t *testing.T) {
	noLeak(t)
	d := &decoder{err: errFive}
	w := watch.NewStreamWatcher[string](d, nil)
	take[string](t, w)
	ends[string](t, w)
	want(t, "why", errors.Is(w.Err(), errFive), true)
	w.Stop()
	want(t, "closed the decoder", d.closes.Load(), 1)
	d = &decoder{items: make(chan watch.Event[string], 1)}
	d.items <- sent[0]
	w = watch.NewStreamWatcher[string](d, nil)
	take[string](t, w)
	w.Stop()
	w.Stop()
	ends[string](t, w)
	want(t, "closed the decoder", d.closes.Load(), 1)
	want(t, "why", w.Err(), nil)
}

// The error comes, nobody reads, and Stop: nothing is left to send, and nobody waits.
func TestAW20StreamWatcherStoppedWithAPendingError(t *testing.T) {
	noLeak(t)
	for i := range 200 {
		w := watch.NewStreamWatcher[string](&decoder{err: errFive}, reporter{})
		if i%2 == 0 {
			results := w.ResultChan()
			bounded.Eventually(t, "the error", func() bool { return w.Err() != nil })
			w.Stop()
			if i%4 == 0 {
				// Nobody reads, and the goroutine ends.
				continue
			}
			_, open := receiveFrom(t, results)
			// The send may have met this receive before it saw the Stop.
			if open {
				_, open = receiveFrom(t, results)
			}
			want(t, "open", open, false)
			continue
		}
		w.Stop()
		if _, open := receiveFrom(t, w.ResultChan()); open {
			t.Fatal("an event behind Stop")
		}
	}
}

type timeout struct{}

func (timeout) Error() string   { return "slow" }
func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }

var _ net.Error = timeout{}

// Connections end in many ways, and none of them is an event.
func TestStreamWatcherEndsOfConnectionsAreNoEvents(t *testing.T) {
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, fmt.Errorf("read: %w", net.ErrClosed), timeout{}, os.ErrDeadlineExceeded,
		errors.New("http2: server sent GOAWAY and closed the connection; LastStreamID=1")} {
		w := watch.NewStreamWatcher[string](&decoder{err: err}, reporter{})
		ends[string](t, w)
		want(t, "why", errors.Is(w.Err(), err), true)
	}
}

type eventDecoder struct{ revision uint64 }

func (d *eventDecoder) DecodeEvent() (watch.Event[string], error) {
	if d.revision++; d.revision > 2 {
		return watch.Event[string]{}, io.EOF
	}
	return watch.Event[string]{Type: watch.Added, Revision: d.revision}, nil
}
func (d *eventDecoder) Close() {}

func TestStreamWatcherOfEventsWithRevisions(t *testing.T) {
	w := watch.NewEventStreamWatcher[string](&eventDecoder{}, nil)
	want(t, "first", take[string](t, w).Revision, 1)
	want(t, "second", take[string](t, w).Revision, 2)
	ends[string](t, w)
}

// Wherever a channel's goroutine waits, for its source or for its consumer, Stop ends that.
func TestIW01StopAlwaysUnblocks(t *testing.T) {
	noLeak(t)
	silent := make(chan watch.Event[string])
	source := watch.ListWatch[string]{WatchFunc: func(context.Context, uint64) (watch.Interface[string], error) {
		return watch.NewProxyWatcher(silent), nil
	}}
	makers := map[string]func() watch.Interface[string]{
		"filter": func() watch.Interface[string] { return watch.Filter[string](watch.NewProxyWatcher(silent), notB) },
		"stream": func() watch.Interface[string] {
			return watch.NewStreamWatcher[string](&decoder{items: make(chan watch.Event[string], 9)}, nil)
		},
		"retry": func() watch.Interface[string] {
			w, err := watch.NewRetryWatcher[string]("1", source)
			check(t, err)
			return w
		},
		"broadcaster": func() watch.Interface[string] {
			w, err := watch.NewBroadcaster[string](0, watch.WaitIfChannelFull).Watch()
			check(t, err)
			return w
		},
	}
	for name, make := range makers {
		t.Run(name, func(t *testing.T) {
			w := make()
			results := w.ResultChan()
			go w.Stop()
			want(t, "events of a blocked read", len(rest(t, results)), 0)
		})
	}
	t.Run("blocked write", func(t *testing.T) {
		b := watch.NewBroadcaster[string](0, watch.WaitIfChannelFull)
		w, err := b.Watch()
		check(t, err)
		r, err := watch.NewRetryWatcher[string]("1", watch.ListWatch[string]{WatchFunc: func(context.Context, uint64) (watch.Interface[string], error) {
			f := watch.NewRaceFreeFake[string]()
			return f, f.Send(watch.Event[string]{Type: watch.Added, Revision: 2})
		}})
		check(t, err)
		d := &decoder{items: make(chan watch.Event[string], 9)}
		s := watch.NewStreamWatcher[string](d, nil)
		for _, w := range []watch.Interface[string]{w, r, s} {
			w.ResultChan()
		}
		check(t, b.Action(watch.Added, "nobody reads"))
		d.items <- sent[0]
		bounded.Eventually(t, "the decoder", func() bool { return len(d.items) == 0 })
		for _, w := range []watch.Interface[string]{w, r, s} {
			w.Stop()
			if n := len(rest(t, w.ResultChan())); n > 1 {
				t.Fatalf("%d events", n)
			}
		}
	})
}

func TestIW02ThousandInOrder(t *testing.T) {
	noLeak(t)
	const events = 1000
	b := watch.NewBroadcaster[int](10, watch.WaitIfChannelFull)
	w, err := b.Watch()
	check(t, err)
	all := watch.Filter[int](watch.NewRecorder[int](w), func(e watch.Event[int]) (watch.Event[int], bool) { return e, true })
	var publishing sync.WaitGroup
	publishing.Add(1)
	go func() {
		defer publishing.Done()
		for i := range events {
			_ = b.Action(watch.Modified, i)
		}
		b.Shutdown()
	}()
	got := rest(t, all.ResultChan())
	want(t, "events", len(got), events)
	for i, e := range got {
		want(t, "object", e.Object, i)
	}
	publishing.Wait()
}

// anyDecoder decodes what an API server sends: the object of an ERROR is a status.
type anyDecoder struct {
	watch.Event[any]
	decoded int
}

func (d *anyDecoder) Decode() (watch.EventType, any, error) {
	d.decoded++
	return d.Type, d.Object, nil
}

func (d *anyDecoder) DecodeEvent() (watch.Event[any], error) {
	d.decoded++
	return d.Event, nil
}

func (d *anyDecoder) Close() {}

// An event of type Error that a decoder gives says why in Err, and is the end: also where the decoder would go on.
func TestStreamWatcherEndsWithADecodedError(t *testing.T) {
	noLeak(t)
	gone := &watch.Status{Code: 410}
	for name, row := range map[string]struct {
		event watch.Event[any]
		code  int
		text  string
	}{
		"a status":         {watch.Event[any]{Object: gone}, 410, "410 Gone"},
		"any other error":  {watch.Event[any]{Object: errFive}, 0, "five"},
		"any other object": {watch.Event[any]{Object: map[string]int{"code": 410}}, 500, "map[code:410]"},
		"nothing":          {watch.Event[any]{}, 500, "<nil>"},
		"no status":        {watch.Event[any]{Object: (*watch.Status)(nil)}, 0, "no status"},
	} {
		row.event.Type = watch.Error
		d := &anyDecoder{Event: row.event}
		for kind, w := range map[string]*watch.StreamWatcher[any]{
			"decoder": watch.NewStreamWatcher[any](d, nil), "of events": watch.NewEventStreamWatcher[any](d, nil),
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				d.decoded = 0
				e := take[any](t, w)
				want(t, "type", e.Type, watch.Error)
				if e.Err == nil || !strings.Contains(e.Err.Error(), row.text) {
					t.Fatalf("the error is %v", e.Err)
				}
				if s, ok := watch.StatusOf(e.Err); ok != (row.code > 0) || ok && s.Code != row.code {
					t.Fatalf("the status is %v", s)
				}
				ends[any](t, w)
				want(t, "decoded", d.decoded, 1)
				want(t, "why", w.Err(), e.Err)
			})
		}
	}
	w := watch.NewEventStreamWatcher[any](&anyDecoder{Event: watch.Event[any]{Type: watch.Error, Object: "x", Err: gone}}, nil)
	want(t, "the decoder's own error", take[any](t, w).Err, error(gone))
	ends[any](t, w)
}

type forgetful struct{}

func (forgetful) AsError(error) error { return nil }

// Whoever makes an event of type Error without saying why, Err says something.
func TestErrorEventsAlwaysSayWhy(t *testing.T) {
	w := watch.NewStreamWatcher[string](&decoder{err: errFive}, forgetful{})
	want(t, "a reporter that answers nil", take[string](t, w).Err.Error(),
		"500 Internal Server Error: unable to decode an event from the watch stream: five")
	gone := &watch.Status{Code: 410}
	fake := watch.NewRaceFreeFake[any]()
	check(t, fake.Action(watch.Error, gone))
	want(t, "a fake", take[any](t, fake).Err, error(gone))
	b := watch.NewBroadcaster[any](2, watch.DropIfChannelFull)
	watcher, err := b.Watch()
	check(t, err)
	check(t, b.Action(watch.Error, gone))
	_, err = b.ActionOrDrop(watch.Error, errFive)
	check(t, err)
	want(t, "a broadcaster", take[any](t, watcher).Err, error(gone))
	want(t, "a broadcaster that drops", take[any](t, watcher).Err, errFive)
	source := watch.NewRaceFreeFake[any]()
	filter := watch.Filter(source, func(e watch.Event[any]) (watch.Event[any], bool) { e.Type = watch.Error; return e, true })
	check(t, source.Add(gone))
	want(t, "a filter's function", take[any](t, filter).Err, error(gone))
}

// A nil *Status is an error without a status, and no panic.
func TestStatusThatIsNilIsNone(t *testing.T) {
	none := (*watch.Status)(nil)
	if s, ok := watch.StatusOf(none); ok || s != nil {
		t.Fatalf("got %v", s)
	}
	want(t, "gone", watch.IsGone(none), false)
	want(t, "text", none.Error(), "no status")
	want(t, "code", none.HTTPStatus(), 0)
	opens := make(chan struct{}, 2)
	r, err := watch.NewRetryWatcherWithOptions(t.Context(), 1, watch.ListWatch[string]{WatchFunc: func(context.Context, uint64) (watch.Interface[string], error) {
		select {
		case opens <- struct{}{}:
		default:
		}
		return nil, none
	}}, watch.RetryOptions[string]{MinRestartDelay: -1, Logger: quiet()})
	check(t, err)
	r.ResultChan()
	for range 2 {
		bounded.Receive(t, "an attempt", opens)
	}
	r.Stop()
	bounded.Receive(t, "the end", r.Done())
}

type panicking struct{}

func (panicking) Decode() (watch.EventType, string, error) { panic("a nil map") }
func (panicking) Close()                                   {}

type panickingReporter struct{}

func (panickingReporter) AsError(error) error { panic("a nil map") }

// In the original such a panic ends the program. The event says what has panicked.
func TestStreamWatcherNamesAPanic(t *testing.T) {
	noLeak(t)
	for what, w := range map[string]*watch.StreamWatcher[string]{
		"the decoder panicked: a nil map":  watch.NewStreamWatcher[string](panicking{}, nil),
		"the reporter panicked: a nil map": watch.NewStreamWatcher[string](&decoder{err: errFive}, panickingReporter{}),
	} {
		if e := take[string](t, w); !strings.Contains(e.Err.Error(), what) {
			t.Fatalf("%v in place of: %s", e, what)
		}
		ends[string](t, w)
	}
}
