package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/watchcore/watchcore/go/internal/clocks"
	"github.com/watchcore/watchcore/go/internal/foreign"
	"github.com/watchcore/watchcore/go/internal/listwatch"
)

// DefaultMinRestartDelay is the minimum time between the starts of two attempts of a [RetryWatcher].
const DefaultMinRestartDelay = time.Second

// RetryWatcher is a watch that survives its connections: when one ends, it opens the next, after
// the last event that its consumer took. An error 410 (the source no longer has the revision) ends
// it, or makes it list, by [RetryOptions].OnGone. The section "List, watch, resume" of
// docs/internals/toolkit.md has the reaction to each error (there the RetryWatcher is a relay).
//
// Added, Modified and Deleted are delivered, and then the resume point advances; Bookmark and Synced advance
// it, and are not delivered. An event without a revision, or of an unknown type, is delivered as an Error
// 500, and ends the watch. A revision below the resume point counts as 410, because the source has another
// history. A panic of the source, or of its watch, counts as an error 500 of theirs.
//
// If a connection ends inside a revision, the next one repeats that revision's events: with
// RelistOnGone, those that were delivered are skipped (for Added and Modified only if they have
// ObjectRevision); without it they are delivered twice.
//
// The next attempt starts no earlier than MinRestartDelay after the *start* of the present one, and
// not before the time that an error requested (Status.RetryAfter). So a watch that lived longer is
// reopened at once, and one that fails at once is tried once a second. Lists have the same delay,
// from list to list: the first one after a 410 comes at once, and a server that rejects the
// revision which it has just listed is asked once a second.
//
// The watch has a goroutine from the first Next or ResultChan on, which ends with the watch. Stop ends it
// even if the source has not returned from opening a watch: that watch is stopped when it arrives.
type RetryWatcher[T any] struct {
	source  ListerWatcher[T]
	options RetryOptions[T]
	ctx     context.Context
	cancel  context.CancelFunc
	start   sync.Once
	c       chan Event[T]
	done    chan struct{}

	// The goroutine uses:
	known    map[string]known[T] // the delivered state by key, with RelistOnGone
	complete bool                // a list has come, so known has everything that the consumer has
	begun    bool                // there is no first state to deliver, or it was delivered
	carry    uint64              // lost, and not yet reported
	machine  *listwatch.Machine

	deleted   map[string]bool // keys of the deletions delivered at one revision, with RelistOnGone
	deletedAt uint64

	last    atomic.Uint64
	opens   atomic.Uint64
	relists atomic.Uint64
	mu      sync.Mutex
	failure error // of the last failed attempt
	err     error // what ended the watch
}

// RetryOptions are the options of [NewRetryWatcherWithOptions].
type RetryOptions[T any] struct {
	// OnGone says what happens at 410, from a watch or a list; the zero value is StopOnGone.
	OnGone GonePolicy[T]
	// MinRestartDelay is the minimum time between the starts of two attempts. 0 means a second; a
	// negative value means none.
	MinRestartDelay time.Duration
	// Clock is the clock of the delays; nil means the system's.
	Clock Clock
	// Logger logs failed attempts at level debug, and unexpected errors at level warn; nil means
	// slog.Default().
	Logger *slog.Logger
}

// NewRetryWatcher watches from a revision on, a decimal number. "" and "0" are refused, because it
// would be undefined which event comes first.
func NewRetryWatcher[T any](initialRevision string, source ListerWatcher[T]) (*RetryWatcher[T], error) {
	return NewRetryWatcherWithContext(context.Background(), initialRevision, source)
}

// NewRetryWatcherWithContext is NewRetryWatcher with a context, which ends the watch.
func NewRetryWatcherWithContext[T any](ctx context.Context, initialRevision string, source ListerWatcher[T]) (*RetryWatcher[T], error) {
	if initialRevision == "" || initialRevision == "0" {
		return nil, fmt.Errorf("initial RV %q is not supported due to issues with underlying WATCH", initialRevision)
	}
	after, err := strconv.ParseUint(initialRevision, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("initial RV %q is not supported: a decimal number was expected: %w", initialRevision, err)
	}
	return NewRetryWatcherWithOptions(ctx, after, source, RetryOptions[T]{})
}

// NewRetryWatcherWithOptions watches after a revision. With RelistOnGone the revision may be 0: then the
// watch starts with a list, whose objects come as Added, followed by Synced. Otherwise 0 is refused.
func NewRetryWatcherWithOptions[T any](ctx context.Context, after uint64, source ListerWatcher[T], options RetryOptions[T]) (*RetryWatcher[T], error) {
	if after == 0 && options.OnGone.key == nil {
		return nil, errors.New(`initial RV "0" is not supported due to issues with underlying WATCH`)
	}
	if source == nil {
		return nil, errors.New("watch: a RetryWatcher was asked for without a source: give it a ListerWatcher")
	}
	switch {
	case options.MinRestartDelay == 0:
		options.MinRestartDelay = DefaultMinRestartDelay
	case options.MinRestartDelay < 0:
		options.MinRestartDelay = 0
	}
	if options.Clock == nil {
		options.Clock = SystemClock{}
	}
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	r := &RetryWatcher[T]{source: source, options: options, c: make(chan Event[T]), done: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancel(ctx)
	r.last.Store(after)
	if options.OnGone.key != nil {
		r.known = make(map[string]known[T])
	}
	// The context also ends a watch that nobody has started to read.
	context.AfterFunc(r.ctx, func() { r.start.Do(r.finish) })
	return r, nil
}

// Stop ends the watch soon, without waiting; Done is closed at the end. Stop may be called any number
// of times.
func (r *RetryWatcher[T]) Stop() {
	r.cancel()
	r.start.Do(r.finish)
}

// Done returns a channel that is closed when the watch has ended and its channel is closed.
func (r *RetryWatcher[T]) Done() <-chan struct{} { return r.done }

// ResultChan returns the channel, which is unbuffered. The first call starts the watch.
func (r *RetryWatcher[T]) ResultChan() <-chan Event[T] {
	r.start.Do(func() { go r.run() })
	return r.c
}

// Next takes from the channel.
func (r *RetryWatcher[T]) Next(ctx context.Context) (Event[T], error) {
	return receive(ctx, r.ResultChan())
}

// RetryStats describes the state of a RetryWatcher.
type RetryStats struct {
	Revision  uint64 // where it would open the next watch
	Opens     uint64 // how often it has tried to open one
	Relists   uint64 // how often it has tried to list
	LastError error  // of the last attempt that failed; nil if none has
	Err       error  // what ended it; nil while it runs, and if Stop or the context ended it
}

// Stats returns the present state, without waiting.
func (r *RetryWatcher[T]) Stats() RetryStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return RetryStats{r.last.Load(), r.opens.Load(), r.relists.Load(), r.failure, r.err}
}

func (r *RetryWatcher[T]) finish() {
	close(r.c)
	close(r.done)
}

// run executes the machine's actions.
func (r *RetryWatcher[T]) run() {
	defer r.finish()
	defer r.cancel()
	first := listwatch.Watch
	if r.begun = r.last.Load() > 0; !r.begun {
		first = listwatch.List
	}
	r.machine = listwatch.NewRelay(r.options.MinRestartDelay, r.known != nil, first)
	in := listwatch.Input{Kind: listwatch.Due}
	for {
		action := r.step(in)
		if r.ctx.Err() != nil {
			return
		}
		switch action.Do {
		case listwatch.List:
			in = r.list(action)
		case listwatch.Watch:
			in = r.attempt()
		case listwatch.End:
			r.mu.Lock()
			r.failure, r.err = action.Err, action.Err
			r.mu.Unlock()
			r.give(Event[T]{Type: Error, Err: action.Err})
			return
		default:
			r.failed(action.Err)
			if !clocks.SleepUntil(r.ctx, r.options.Clock, action.Until) {
				return
			}
			in = listwatch.Input{Kind: listwatch.Due}
		}
	}
}

func (r *RetryWatcher[T]) step(in listwatch.Input) listwatch.Action {
	in.RetryAfter = RetryAfter(in.Err)
	return r.machine.Step(r.options.Clock.Now(), in)
}

// failed records and logs the error of an attempt that will be repeated, if there is one.
func (r *RetryWatcher[T]) failed(err error) {
	if err == nil {
		return
	}
	r.mu.Lock()
	r.failure = err
	r.mu.Unlock()
	level := slog.LevelDebug
	if _, coded := StatusOf(err); !coded && !listwatch.IsEndOfStream(err) {
		level = slog.LevelWarn
	}
	r.options.Logger.Log(r.ctx, level, "watch: an attempt failed and is made again", "revision", r.last.Load(), "error", err)
}

// attempt opens one watch and reads it to its end.
func (r *RetryWatcher[T]) attempt() listwatch.Input {
	r.opens.Add(1)
	after := r.last.Load()
	w, err := foreign.Call(r.ctx, panicked, func(ctx context.Context) (Interface[T], error) {
		return r.source.Watch(ctx, after)
	}, func(late Interface[T]) {
		if late != nil {
			late.Stop()
		}
	})
	switch {
	case err != nil:
		return listwatch.Input{Kind: listwatch.Failed, Err: err}
	case w == nil:
		return listwatch.Input{Kind: listwatch.Cut, Err: listwatch.ErrNoWatch}
	}
	defer panicked.Guard("the stop of the source's watch", w.Stop, func(error) {})
	r.step(listwatch.Input{Kind: listwatch.Opened})
	in := r.read(w)
	if r.last.Load() != after {
		r.step(listwatch.Input{Kind: listwatch.Newer})
	}
	return in
}

// read delivers the events of a watch until it ends.
func (r *RetryWatcher[T]) read(w Interface[T]) listwatch.Input {
	var e Event[T]
	var err error
	next, ended := func() { e, err = nextUntil(r.ctx, w, r.ctx.Done()) }, func(error) {}
	for {
		if bad := panicked.Guard("the source's watch", next, ended); bad != nil {
			return listwatch.Input{Kind: listwatch.Failed, Err: bad}
		}
		if err != nil { // the end of this watch, or of the RetryWatcher
			return listwatch.Input{Kind: listwatch.Ended}
		}
		if in, ends := r.handleEvent(e); ends {
			return in
		}
	}
}

// handleEvent handles an event of a watch. If ends is true, nothing more is read from that watch.
func (r *RetryWatcher[T]) handleEvent(e Event[T]) (in listwatch.Input, ends bool) {
	// The next delivered event reports the loss, whether this event is delivered or not.
	r.carry += e.Lost
	e.Lost = 0
	in.Kind = listwatch.Failed
	switch e.Type {
	case Synced: // no initial state was requested, so this is a Bookmark if it has a revision
		if e.Type = Bookmark; e.Revision == 0 {
			return in, false
		}
	case Added, Modified, Deleted, Bookmark:
	case Error:
		if in.Err = e.Err; e.Err == nil {
			in.Err = errors.New("an event of type Error without an error")
		}
		if listwatch.IsEndOfStream(e.Err) {
			in.Kind = listwatch.Ended
		}
		return in, true
	default:
		in.Kind = listwatch.Unplaced
		in.Err = &Status{Code: 500, Message: fmt.Sprintf("failed to recognize Event type %q", string(e.Type))}
		return in, true
	}
	last := r.last.Load()
	switch {
	case e.Revision == 0 && (e.ObjectRevision == 0 || last > 0): // after an empty state of revision 0, the first revision may have position 0
		in.Kind = listwatch.Unplaced
		in.Err = &Status{Code: 500, Message: "retryWatcher: doesn't support resourceVersion"}
		return in, true
	case e.Revision < last:
		in.Err = &Status{Code: 410, Message: fmt.Sprintf("the watch is at %d, and the source says that it is at %d", last, e.Revision)}
		return in, true
	case e.Type != Bookmark && !r.repeats(e) && !r.give(r.relative(e)):
		return in, true
	}
	r.last.Store(e.Revision)
	return in, false
}

// give sends an event to the consumer. give returns false if the watch was stopped first.
func (r *RetryWatcher[T]) give(e Event[T]) bool {
	e.Lost += r.carry
	select {
	case r.c <- e:
	case <-r.ctx.Done():
		return false
	}
	r.carry = 0
	r.remember(e)
	return true
}
