package watch

import (
	"errors"
	"log/slog"
	"sync"
)

// DefaultChanSize is the capacity of a [RaceFreeFakeWatcher].
const DefaultChanSize = 100

// ErrFull is returned by the methods of a RaceFreeFakeWatcher when its channel is full.
var ErrFull = errors.New("the fake's channel is full: the event was not sent; read from it first, or make it larger")

// FakeOptions are the options of [NewFakeWithOptions].
type FakeOptions struct {
	// Logger logs a refused event, in addition to the returned error. nil means slog.Default().
	Logger *slog.Logger
	// ChannelSize is the number of events that the channel holds until they are read; 0 means none.
	ChannelSize int
}

// fake has what both fakes are: a channel that Reset replaces, and the methods that send events.
type fake[T any] struct {
	logger *slog.Logger
	size   int
	put    func(*outlet[T], Event[T]) error
	mu     sync.Mutex
	out    *outlet[T]
}

func (f *fake[T]) outlet() *outlet[T] {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out
}

// Stop closes the channel, whose events can still be read, and ends the waits of senders.
func (f *fake[T]) Stop() { f.outlet().stop() }

// IsStopped reports whether Stop was called since the last Reset.
func (f *fake[T]) IsStopped() bool { return f.outlet().isStopped() }

// Reset gives the fake a new channel of the same size. Readers of the former channel find it closed.
func (f *fake[T]) Reset() {
	f.mu.Lock()
	former := f.out
	f.out = newOutlet[T](f.size)
	f.mu.Unlock()
	former.stop()
}

// ResultChan returns the channel, which is another one after Reset.
func (f *fake[T]) ResultChan() <-chan Event[T] { return f.outlet().c }

// Add sends an Added event.
func (f *fake[T]) Add(obj T) error { return f.Action(Added, obj) }

// Modify sends a Modified event whose old state is not known.
func (f *fake[T]) Modify(obj T) error { return f.Action(Modified, obj) }

// Delete sends a Deleted event with the last state.
func (f *fake[T]) Delete(lastValue T) error { return f.Action(Deleted, lastValue) }

// Error sends an Error event. Error does not stop the fake.
func (f *fake[T]) Error(err error) error { return f.Send(Event[T]{Type: Error, Err: err}) }

// Action sends an event of any type. For type Error, Event.Err is the object if it is an error,
// otherwise a *Status with its text.
func (f *fake[T]) Action(action EventType, obj T) error {
	return f.Send(explained(Event[T]{Type: action, Object: obj}))
}

// Send sends an event unchanged, for example with a revision.
func (f *fake[T]) Send(e Event[T]) error {
	err := f.put(f.outlet(), e)
	if err != nil {
		logger := f.logger
		if logger == nil {
			logger = slog.Default()
		}
		logger.Warn("watch: a fake refused an event", "type", string(e.Type), "error", err)
	}
	return err
}

// FakeWatcher is a watch for tests, to which methods send events. Without capacity in its channel
// they wait until the event was read, or until Stop. After Stop they return ErrStopped and send
// nothing. The methods may be called from any goroutine.
type FakeWatcher[T any] struct{ fake[T] }

// NewFake makes a fake whose methods wait for the reader.
func NewFake[T any]() *FakeWatcher[T] { return NewFakeWithOptions[T](FakeOptions{}) }

// NewFakeWithChanSize makes a fake whose channel has the given capacity. blocking has no effect, as
// in apimachinery: if the channel is full, sending waits.
func NewFakeWithChanSize[T any](size int, blocking bool) *FakeWatcher[T] {
	_ = blocking
	return NewFakeWithOptions[T](FakeOptions{ChannelSize: size})
}

// NewFakeWithOptions makes a fake. A negative ChannelSize panics, as make does.
func NewFakeWithOptions[T any](options FakeOptions) *FakeWatcher[T] {
	return &FakeWatcher[T]{fake[T]{
		logger: options.Logger,
		size:   options.ChannelSize,
		put:    (*outlet[T]).send,
		out:    newOutlet[T](options.ChannelSize),
	}}
}

// RaceFreeFakeWatcher is a fake whose methods never wait: its channel holds 100 events. They return
// ErrFull if the channel is full; the event is logged and not sent. After Stop they do nothing.
// The methods may be called from any goroutine.
type RaceFreeFakeWatcher[T any] struct{ fake[T] }

// NewRaceFreeFake makes a RaceFreeFakeWatcher.
func NewRaceFreeFake[T any]() *RaceFreeFakeWatcher[T] {
	return NewRaceFreeFakeWithLogger[T](nil)
}

// NewRaceFreeFakeWithLogger makes a RaceFreeFakeWatcher that logs refused events to a logger; nil
// means slog.Default().
func NewRaceFreeFakeWithLogger[T any](logger *slog.Logger) *RaceFreeFakeWatcher[T] {
	return &RaceFreeFakeWatcher[T]{fake[T]{
		logger: logger,
		size:   DefaultChanSize,
		put: func(out *outlet[T], e Event[T]) error {
			if err := out.offer(e); err != ErrStopped {
				return err
			}
			return nil
		},
		out: newOutlet[T](DefaultChanSize),
	}}
}
