package watch

import (
	"context"
	"fmt"
	"sync"

	"github.com/watchcore/watchcore/go/internal/listwatch"
)

// Decoder reads events from a stream, such as the body of an HTTP response.
type Decoder[T any] interface {
	// Decode waits for the next event. io.EOF is the end of the stream. The object of an event of
	// type Error should be an error; if it cannot be, use an EventDecoder, which sets Err.
	Decode() (action EventType, object T, err error)
	// Close closes the stream. A Decode in progress must return an error soon.
	Close()
}

// EventDecoder is a Decoder that returns whole events, for example with revisions.
type EventDecoder[T any] interface {
	// DecodeEvent returns the next event, like Decoder.Decode.
	DecodeEvent() (Event[T], error)
	// Close closes the stream, like Decoder.Close.
	Close()
}

// Reporter converts a decoder's error for consumers, usually into a *Status. If it returns nil,
// consumers get the same error as without a Reporter.
type Reporter interface {
	AsError(err error) error
}

// StreamWatcher makes a watch of a decoder, with one event per decoded event.
//
// The end of the stream ends the watch without an event. This is io.EOF, and also a connection that
// broke or timed out, as in apimachinery; Err distinguishes these. Any other error of the decoder,
// or a panic of the decoder or the reporter, comes as one event of type Error, which ends the watch.
// A decoded event of type Error ends it too: its Err is the one that the decoder set, or its object if
// that is an error, such as a *Status, otherwise a *Status with the code 500 and the object's text.
//
// Only Close interrupts Decode, so the watch has a goroutine from the first Next or ResultChan on.
// The goroutine ends when Decode returns after Stop. The channel is unbuffered, because a consumer can add a
// buffer, but cannot remove one.
type StreamWatcher[T any] struct {
	decode   func() (Event[T], error)
	close    func()
	reporter Reporter

	stop  sync.Once
	start sync.Once
	gone  chan struct{}
	c     chan Event[T]

	mu  sync.Mutex
	err error
}

// NewStreamWatcher makes a watch of a decoder. reporter may be nil: then the error event has a
// *Status with the code 500 and the error's text.
func NewStreamWatcher[T any](d Decoder[T], r Reporter) *StreamWatcher[T] {
	return newStream(func() (e Event[T], err error) {
		e.Type, e.Object, err = d.Decode()
		return e, err
	}, d.Close, r)
}

// NewEventStreamWatcher makes a watch of a decoder whose events have revisions.
func NewEventStreamWatcher[T any](d EventDecoder[T], r Reporter) *StreamWatcher[T] {
	return newStream(d.DecodeEvent, d.Close, r)
}

func newStream[T any](decode func() (Event[T], error), closeStream func(), r Reporter) *StreamWatcher[T] {
	return &StreamWatcher[T]{
		decode:   decode,
		close:    closeStream,
		reporter: r,
		gone:     make(chan struct{}),
		c:        make(chan Event[T]),
	}
}

// Stop closes the decoder, once, and ends the waits of the consumer. An unread event is lost.
func (s *StreamWatcher[T]) Stop() {
	s.stop.Do(func() {
		close(s.gone)
		s.close()
		// If no reader has started the goroutine, the channel is closed here.
		s.start.Do(func() { close(s.c) })
	})
}

// ResultChan returns the channel of the decoded events. The first call starts decoding.
func (s *StreamWatcher[T]) ResultChan() <-chan Event[T] {
	s.start.Do(func() { go s.receive() })
	return s.c
}

// Next takes from the channel.
func (s *StreamWatcher[T]) Next(ctx context.Context) (Event[T], error) {
	return receive(ctx, s.ResultChan())
}

// Err returns the decoder's error that ended the watch, or the error of its event of type Error:
// io.EOF for the regular end; nil while the watch continues, and if Stop ended it.
func (s *StreamWatcher[T]) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *StreamWatcher[T]) receive() {
	defer close(s.c)
	// The stream is of no use after its end.
	defer s.Stop()
	for {
		e, err := s.next()
		if err != nil {
			s.fail(err)
			return
		}
		if e = explained(e); e.Type == Error {
			s.ended(e.Err)
		}
		if !s.send(e) || e.Type == Error {
			return
		}
	}
}

// ended stores the result of Err.
func (s *StreamWatcher[T]) ended(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// next calls decode and returns a panic as an error: server data caused it, and must not end the program.
func (s *StreamWatcher[T]) next() (e Event[T], err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the decoder panicked: %v", p)
		}
	}()
	return s.decode()
}

func (s *StreamWatcher[T]) send(e Event[T]) bool {
	select {
	case <-s.gone:
		return false
	default:
	}
	select {
	case s.c <- e:
		return true
	case <-s.gone:
		return false
	}
}

func (s *StreamWatcher[T]) fail(err error) {
	select {
	case <-s.gone:
		// Close caused the error.
		return
	default:
	}
	s.ended(err)
	if listwatch.IsEndOfStream(err) {
		return
	}
	err = fmt.Errorf("unable to decode an event from the watch stream: %w", err)
	s.send(Event[T]{Type: Error, Err: s.report(err)})
}

// report is what consumers are shown of a decoder's error. A panic of the reporter, which may come from what a server sent, must
// not end the program.
func (s *StreamWatcher[T]) report(err error) (reported error) {
	defer func() {
		if p := recover(); p != nil {
			reported = &Status{Code: 500, Message: fmt.Sprintf("the reporter panicked: %v; it was to report: %v", p, err)}
		}
	}()
	if s.reporter != nil {
		reported = s.reporter.AsError(err)
	}
	if reported == nil {
		reported = &Status{Code: 500, Message: err.Error()}
	}
	return reported
}
