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

	"watchcore/internal/clocks"
	"watchcore/internal/foreign"
	"watchcore/internal/listwatch"
)

// DefaultMinRestartDelay is the least time between the beginnings of two attempts of a [RetryWatcher].
const DefaultMinRestartDelay = time.Second

// RetryWatcher is a watch that outlives its connections: where one ends it opens the next, behind the last
// event that its consumer took. What its source has forgotten (410) ends it, or is listed, by [RetryOptions].OnGone. Which
// error leads to what stands in docs/internals/toolkit.md, "List, watch, resume", as what a relay does.
//
// Added, Modified and Deleted are given, and then the resume point moves; Bookmark and Synced move it, and are not given. An
// event without a revision, or of a type that is not known, is given as an Error 500, and ends it. A revision below the resume
// point is as 410, because the source has another history. A panic of the source, or of its watch, is an error 500 of theirs.
//
// The events of a revision that a connection has cut in two come again behind the cut: with RelistOnGone those that were given
// are left out (of Added and Modified where they say ObjectRevision), without it they are given twice.
//
// The next attempt begins no earlier than MinRestartDelay after the *beginning* of this
// one, and not before the time that an error asked for (Status.RetryAfter). So a watch that
// lived for longer is opened again at once, and one that fails at once is tried once a second. Lists
// have the same delay, from list to list: the first one after a 410 comes at once, and a server
// that does not know the revision which it has just listed is asked once a second.
//
// It has a goroutine from the first Next or ResultChan on, which ends with the watch. Stop ends it also
// while the source opens a watch and does not return: that watch is stopped when it comes.
type RetryWatcher[T any] struct {
	source  ListerWatcher[T]
	options RetryOptions[T]
	ctx     context.Context
	cancel  context.CancelFunc
	start   sync.Once
	c       chan Event[T]
	done    chan struct{}

	// The goroutine's.
	known    map[string]known[T] // what was given, with RelistOnGone
	complete bool                // known has everything that the consumer has: a list has come
	begun    bool                // there is no first state to give, or it was given
	carry    uint64              // lost, and not yet reported
	machine  *listwatch.Machine

	deleted   map[string]bool // keys of the deletions that were given at one revision, with RelistOnGone
	deletedAt uint64

	last    atomic.Uint64
	opens   atomic.Uint64
	relists atomic.Uint64
	mu      sync.Mutex
	failure error // the last one
	err     error // what ended it
}

// RetryOptions are those of [NewRetryWatcherWithOptions].
type RetryOptions[T any] struct {
	// OnGone is what happens at 410, wherever it comes; the zero value is StopOnGone.
	OnGone GonePolicy[T]
	// MinRestartDelay is the least time between the beginnings of two attempts. 0 means a
	// second; below 0 means none.
	MinRestartDelay time.Duration
	// Clock is where the delays come from; nil means the system's.
	Clock Clock
	// Logger is where failed attempts are reported, at level debug, and errors that are not expected, at
	// level warn; nil means slog.Default().
	Logger *slog.Logger
}

// NewRetryWatcher watches from a revision on, a decimal number. "" and "0" are refused: behind them
// it is not decided what comes first.
func NewRetryWatcher[T any](initialRevision string, source ListerWatcher[T]) (*RetryWatcher[T], error) {
	return NewRetryWatcherWithContext(context.Background(), initialRevision, source)
}

// NewRetryWatcherWithContext is one that ends with a context, too.
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

// NewRetryWatcherWithOptions watches after a revision. With RelistOnGone it may be 0: then it begins
// with a list, whose objects come as Added, and Synced behind them. Otherwise 0 is refused.
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
	// Also where the context ends what nobody has begun to read.
	context.AfterFunc(r.ctx, func() { r.start.Do(r.finish) })
	return r, nil
}

// Stop ends the watch, soon: it waits for nobody, and Done is closed when the end is there. Any
// number of times.
func (r *RetryWatcher[T]) Stop() {
	r.cancel()
	r.start.Do(r.finish)
}

// Done is closed when the watch has ended, and its channel is closed.
func (r *RetryWatcher[T]) Done() <-chan struct{} { return r.done }

// ResultChan is the channel, which has no places. The first call begins to watch.
func (r *RetryWatcher[T]) ResultChan() <-chan Event[T] {
	r.start.Do(func() { go r.run() })
	return r.c
}

// Next takes from the channel.
func (r *RetryWatcher[T]) Next(ctx context.Context) (Event[T], error) {
	return receive(ctx, r.ResultChan())
}

// RetryStats is how a RetryWatcher stands.
type RetryStats struct {
	Revision  uint64 // where it would open the next watch
	Opens     uint64 // how often it has tried to open one
	Relists   uint64 // how often it has tried to list
	LastError error  // of the last attempt that failed; nil if none has
	Err       error  // what has ended it; nil while it runs, and where Stop or the context has
}

// Stats is how it stands. It waits for nobody.
func (r *RetryWatcher[T]) Stats() RetryStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return RetryStats{r.last.Load(), r.opens.Load(), r.relists.Load(), r.failure, r.err}
}

func (r *RetryWatcher[T]) finish() {
	close(r.c)
	close(r.done)
}

// run does what the machine says.
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

// failed records why an attempt is made again, if it has failed.
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

// read gives the events of a watch, until it ends.
func (r *RetryWatcher[T]) read(w Interface[T]) listwatch.Input {
	var e Event[T]
	var err error
	next, ended := func() { e, err = nextUntil(r.ctx, w, r.ctx.Done()) }, func(error) {}
	for {
		if bad := panicked.Guard("the source's watch", next, ended); bad != nil {
			return listwatch.Input{Kind: listwatch.Failed, Err: bad}
		}
		if err != nil { // the end of this watch, or of all
			return listwatch.Input{Kind: listwatch.Ended}
		}
		if in, ends := r.take(e); ends {
			return in
		}
	}
}

// take takes an event of a watch. ends: nothing else of that watch is read.
func (r *RetryWatcher[T]) take(e Event[T]) (in listwatch.Input, ends bool) {
	// Whether the event is given or not, the next one that is given says it.
	r.carry += e.Lost
	e.Lost = 0
	in.Kind = listwatch.Failed
	switch e.Type {
	case Synced: // a state was not asked for: it is a Bookmark, where it has a revision
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
	case e.Revision == 0 && (e.ObjectRevision == 0 || last > 0): // behind an empty state of revision 0 the first revision has position 0
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

// give hands an event to the consumer; false where the watch was stopped first.
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
