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

	"watchcore/internal/bounded"
	"watchcore/watch"
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

func TestAW18StreamWatcherDecodes(t *testing.T) {
	noLeak(t)
	d := &decoder{items: make(chan watch.Event[string], 5)}
	w := watch.NewStreamWatcher[string](d, nil)
	for _, e := range sent[:4] {
		d.items <- e
		got, open := receiveFrom(t, w.ResultChan())
		want(t, "open", open, true)
		want(t, "event", got, e)
	}
	w.Stop()
	w.Stop()
	if _, open := receiveFrom(t, w.ResultChan()); open {
		t.Fatal("an event behind Stop")
	}
	want(t, "closed the decoder", d.closes.Load(), 1)
	want(t, "error", w.Err(), nil)
}

func TestAW19StreamWatcherReportsAnError(t *testing.T) {
	noLeak(t)
	for _, row := range []struct {
		reporter watch.Reporter
		code     int
	}{{reporter{}, 418}, {nil, 500}} {
		d := &decoder{err: errFive}
		w := watch.NewStreamWatcher[string](d, row.reporter)
		e := take[string](t, w)
		want(t, "type", e.Type, watch.Error)
		s, ok := watch.StatusOf(e.Err)
		if !ok || s.Code != row.code || !strings.Contains(s.Message, "unable to decode an event from the watch stream: five") {
			t.Fatalf("%v", e)
		}
		ends[string](t, w)
		w.Stop()
		ends[string](t, w)
		want(t, "why", errors.Is(w.Err(), errFive), true)
		want(t, "closed the decoder", d.closes.Load(), 1)
	}
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
	source := watch.SourceFunc[string](func(context.Context, uint64) (watch.Interface[string], error) {
		return watch.NewProxyWatcher(silent), nil
	})
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
		r, err := watch.NewRetryWatcher[string]("1", watch.SourceFunc[string](func(context.Context, uint64) (watch.Interface[string], error) {
			f := watch.NewRaceFreeFake[string]()
			return f, f.Send(watch.Event[string]{Type: watch.Added, Revision: 2})
		}))
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

type panicking struct{}

func (panicking) Decode() (watch.EventType, string, error) { panic("a nil map") }
func (panicking) Close()                                   {}

// In the original the panic of a decoder ends the program.
func TestFaultDecoderPanicEndsTheProgram(t *testing.T) {
	noLeak(t)
	w := watch.NewStreamWatcher[string](panicking{}, nil)
	e := take[string](t, w)
	if e.Type != watch.Error || !strings.Contains(e.Err.Error(), "the decoder panicked: a nil map") {
		t.Fatalf("%v", e)
	}
	ends[string](t, w)
}
