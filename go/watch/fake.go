package watch

import (
	"errors"
	"log/slog"
	"sync"
)

// DefaultChanSize is how many events a [RaceFreeFakeWatcher] holds.
const DefaultChanSize = 100

// ErrFull is the answer of a RaceFreeFakeWatcher's verb when its channel has no place.
var ErrFull = errors.New("the fake's channel is full: the event was not sent; read from it first, or make it larger")

// FakeOptions are those of [NewFakeWithOptions].
type FakeOptions struct {
	// Logger is where a refused event is reported, beside the error that the verb returns.
	// nil means slog.Default().
	Logger *slog.Logger
	// ChannelSize is how many events are held for a reader that is not there; 0 means none.
	ChannelSize int
}

// sender is the verbs, which both fakes have.
type sender[T any] struct {
	logger *slog.Logger
	put    func(Event[T]) error
}

// Add sends an Added event.
func (s *sender[T]) Add(obj T) error { return s.Action(Added, obj) }

// Modify sends a Modified event whose old state is not known.
func (s *sender[T]) Modify(obj T) error { return s.Action(Modified, obj) }

// Delete sends a Deleted event with the last state.
func (s *sender[T]) Delete(lastValue T) error { return s.Action(Deleted, lastValue) }

// Error sends an Error event. It does not stop the fake.
func (s *sender[T]) Error(err error) error { return s.Send(Event[T]{Type: Error, Err: err}) }

// Action sends an event of any type. The Err of one of type Error is the object, if that is an error, or else a *Status
// with its text.
func (s *sender[T]) Action(action EventType, obj T) error {
	return s.Send(explained(Event[T]{Type: action, Object: obj}))
}

// Send sends an event as it is, with a revision, say.
func (s *sender[T]) Send(e Event[T]) error {
	err := s.put(e)
	if err != nil {
		logger := s.logger
		if logger == nil {
			logger = slog.Default()
		}
		logger.Warn("watch: a fake refused an event", "type", string(e.Type), "error", err)
	}
	return err
}

// FakeWatcher is a watch for tests whose events come from its verbs. Without places in its channel
// a verb waits until the event was read, or until Stop. After Stop verbs return ErrStopped and send
// nothing. From any goroutine.
type FakeWatcher[T any] struct {
	sender[T]
	mu   sync.Mutex
	size int
	out  *outlet[T]
}

// NewFake makes a fake whose verbs wait for the reader.
func NewFake[T any]() *FakeWatcher[T] { return NewFakeWithOptions[T](FakeOptions{}) }

// NewFakeWithChanSize makes a fake whose channel holds that many events. blocking changes nothing, as
// in the original: with a full channel verbs wait.
func NewFakeWithChanSize[T any](size int, blocking bool) *FakeWatcher[T] {
	_ = blocking
	return NewFakeWithOptions[T](FakeOptions{ChannelSize: size})
}

// NewFakeWithOptions makes a fake. A negative ChannelSize panics, as make does.
func NewFakeWithOptions[T any](options FakeOptions) *FakeWatcher[T] {
	f := &FakeWatcher[T]{size: options.ChannelSize, out: newOutlet[T](options.ChannelSize)}
	f.sender = sender[T]{options.Logger, func(e Event[T]) error { return f.outlet().send(e) }}
	return f
}

func (f *FakeWatcher[T]) outlet() *outlet[T] {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out
}

// Stop closes the channel behind what it holds, and releases verbs that wait.
func (f *FakeWatcher[T]) Stop() { f.outlet().stop() }

// IsStopped says whether Stop was called since the last Reset.
func (f *FakeWatcher[T]) IsStopped() bool { return f.outlet().isStopped() }

// Reset makes the fake as new, with a channel of the same size. Readers of the former channel
// find it closed.
func (f *FakeWatcher[T]) Reset() {
	f.mu.Lock()
	former := f.out
	f.out = newOutlet[T](f.size)
	f.mu.Unlock()
	former.stop()
}

// ResultChan is the channel; after Reset another one.
func (f *FakeWatcher[T]) ResultChan() <-chan Event[T] { return f.outlet().c }

// RaceFreeFakeWatcher is a fake whose verbs never wait: it holds 100 events. With a full channel
// they return ErrFull, and after Stop ErrStopped; the event is reported to the log and goes nowhere.
// From any goroutine.
type RaceFreeFakeWatcher[T any] struct {
	sender[T]
	mu  sync.Mutex
	out *outlet[T]
}

// NewRaceFreeFake makes one.
func NewRaceFreeFake[T any]() *RaceFreeFakeWatcher[T] {
	return NewRaceFreeFakeWithLogger[T](nil)
}

// NewRaceFreeFakeWithLogger makes one that reports refused events to a logger; nil means slog.Default().
func NewRaceFreeFakeWithLogger[T any](logger *slog.Logger) *RaceFreeFakeWatcher[T] {
	f := &RaceFreeFakeWatcher[T]{out: newOutlet[T](DefaultChanSize)}
	f.sender = sender[T]{logger, func(e Event[T]) error { return f.outlet().offer(e) }}
	return f
}

func (f *RaceFreeFakeWatcher[T]) outlet() *outlet[T] {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out
}

// Stop closes the channel behind what it holds.
func (f *RaceFreeFakeWatcher[T]) Stop() { f.outlet().stop() }

// IsStopped says whether Stop was called since the last Reset.
func (f *RaceFreeFakeWatcher[T]) IsStopped() bool { return f.outlet().isStopped() }

// Reset makes the fake as new. Readers of the former channel find it closed.
func (f *RaceFreeFakeWatcher[T]) Reset() {
	f.mu.Lock()
	former := f.out
	f.out = newOutlet[T](DefaultChanSize)
	f.mu.Unlock()
	former.stop()
}

// ResultChan is the channel; after Reset another one.
func (f *RaceFreeFakeWatcher[T]) ResultChan() <-chan Event[T] { return f.outlet().c }
