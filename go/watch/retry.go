package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"watchcore/internal/verdict"
)

// DefaultMinRestartDelay is the least time between the beginnings of two attempts of a [RetryWatcher].
const DefaultMinRestartDelay = time.Second

// Source is what can be watched from a revision on.
type Source[T any] interface {
	// Watch opens a watch of what follows a revision. Its events have revisions; where it fails with a
	// [Status], that decides what a RetryWatcher does.
	Watch(ctx context.Context, after uint64) (Interface[T], error)
}

// SourceFunc is a function as a Source.
type SourceFunc[T any] func(ctx context.Context, after uint64) (Interface[T], error)

// Watch calls the function.
func (f SourceFunc[T]) Watch(ctx context.Context, after uint64) (Interface[T], error) {
	return f(ctx, after)
}

// RetryWatcher is a watch that outlives its connections: where one ends it opens the next, behind the last
// event that its consumer took. It knows no list; what its source has forgotten (410) ends it, or is
// listed, by [RetryOptions].OnGone.
//
//	| state | input                                             | what happens                               | next                             |
//	| ----- | ------------------------------------------------- | ------------------------------------------ | -------------------------------- |
//	| Open  | a watch                                           |                                            | Read                             |
//	|       | 401, 403                                          | Error is given                             | end                              |
//	|       | 410, StopOnGone                                   | Error is given                             | end                              |
//	|       | 410, RelistOnGone                                 |                                            | List                             |
//	|       | an error that says Fatal() of itself              | Error is given                             | end                              |
//	|       | 429, 503, io.EOF, no connection                   |                                            | Open, after the delay            |
//	|       | neither watch nor error, any other error          |                                            | a fruitless attempt              |
//	| Read  | Added, Modified, Deleted with a revision          | given; then the resume point moves         | Read                             |
//	|       | Bookmark, Synced with a revision                  | not given; the resume point moves          | Read                             |
//	|       | Synced without a revision                         | not given                                  | Read                             |
//	|       | no revision, a type that is not known             | Error 500 is given                         | end                              |
//	|       | a revision below the resume point                 | as 410: the source has another history     |                                  |
//	|       | Error 410, StopOnGone                             | Error is given                             | end                              |
//	|       | Error 410, RelistOnGone                           |                                            | List                             |
//	|       | an Error that is fatal                            | Error is given                             | end                              |
//	|       | Error 429, 503, no connection                     | not given                                  | Open, after the delay            |
//	|       | any other Error, an end within a second without a | not given                                  | a fruitless attempt              |
//	|       | newer revision                                    |                                            |                                  |
//	|       | the end                                           |                                            | Open, after the delay            |
//	| a fruitless attempt | StopOnGone; RelistOnGone, and fewer than three in a row, or a list in the last 30 s |  | Open, after the delay            |
//	|       | RelistOnGone, the third without a newer revision  |                                            | List                             |
//	| List  | the state and its revision                        | the difference to what was given is given; | Open at that revision, at once   |
//	|       |                                                   | then the resume point moves                |                                  |
//	|       | 401, 403, fatal                                   | Error is given                             | end                              |
//	|       | no revision, any other error                      |                                            | List, after the delay            |
//	| any   | Stop, the context is done                         |                                            | end                              |
//
// The events of a revision that a connection has cut in two come again behind the cut: with RelistOnGone those that were given
// are left out (of Added and Modified where they say ObjectRevision), without it they are given twice.
//
// The delay: the next attempt begins no earlier than MinRestartDelay after the *beginning* of this
// one, and not before the time that an error asked for (Status.RetryAfter). So a watch that
// lived for longer is opened again at once, and one that fails at once is tried once a second. Lists
// have the same delay, from list to list: the first one after a 410 comes at once, and a server
// that does not know the revision which it has just listed is asked once a second.
//
// It has a goroutine from the first Next or ResultChan on, which ends with the watch. Stop ends it also
// while the source opens a watch and does not return: that watch is stopped when it comes.
type RetryWatcher[T any] struct {
	source  Source[T]
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

	deleted   map[string]bool // keys of the deletions that were given at one revision, with RelistOnGone
	deletedAt uint64

	fruitless verdict.Fruitless
	listed    time.Time // when the last list began; the zero time: there was none

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
func NewRetryWatcher[T any](initialRevision string, source Source[T]) (*RetryWatcher[T], error) {
	return NewRetryWatcherWithContext(context.Background(), initialRevision, source)
}

// NewRetryWatcherWithContext is one that ends with a context, too.
func NewRetryWatcherWithContext[T any](ctx context.Context, initialRevision string, source Source[T]) (*RetryWatcher[T], error) {
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
func NewRetryWatcherWithOptions[T any](ctx context.Context, after uint64, source Source[T], options RetryOptions[T]) (*RetryWatcher[T], error) {
	if after == 0 && options.OnGone.lister == nil {
		return nil, errors.New(`initial RV "0" is not supported due to issues with underlying WATCH`)
	}
	if source == nil {
		return nil, errors.New("watch: a RetryWatcher was asked for without a source: give it a Source")
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
	if options.OnGone.lister != nil {
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

// next is what follows an attempt.
type next struct {
	state retryState
	after time.Duration // what the server asked to wait
}

type retryState int

const (
	stateOpen retryState = iota
	stateList
	stateEnd
)

func (r *RetryWatcher[T]) run() {
	defer r.finish()
	defer r.cancel()
	clock, gap := r.options.Clock, r.options.MinRestartDelay
	state := stateOpen
	if r.begun = r.last.Load() > 0; !r.begun {
		state = stateList
	}
	var earliest [stateEnd]time.Time // when the next attempt of each kind may begin
	for r.ctx.Err() == nil {
		earliest[state] = clock.Now().Add(gap)
		var n next
		if state == stateList {
			n = r.list()
			// What was listed is watched at once.
			earliest[stateOpen] = time.Time{}
		} else {
			n = r.attempt()
		}
		if n.state == stateEnd {
			return
		}
		state = n.state
		at := earliest[state]
		if asked := clock.Now().Add(n.after); n.after > 0 && asked.After(at) {
			at = asked
		}
		if !sleepUntil(r.ctx, clock, at) {
			return
		}
	}
}

// attempt opens one watch and reads it to its end.
func (r *RetryWatcher[T]) attempt() next {
	r.opens.Add(1)
	after, began := r.last.Load(), r.options.Clock.Now()
	w, err := abandonable(r.ctx, func(ctx context.Context) (Interface[T], error) {
		return r.source.Watch(ctx, after)
	}, func(late Interface[T]) {
		if late != nil {
			late.Stop()
		}
	})
	if err != nil {
		return r.failed("open", err)
	}
	if w == nil {
		return r.failed("open", errors.New("the source gave neither a watch nor an error"))
	}
	defer w.Stop()
	for {
		e, err := nextUntil(r.ctx, w, r.ctx.Done())
		if err != nil {
			// The end of this watch, or of all.
			if r.last.Load() == after && r.options.Clock.Now().Sub(began) < verdict.Short {
				return r.nothingNew(0)
			}
			r.fruitless.Reset()
			return next{state: stateOpen}
		}
		if r.last.Load() != after {
			r.fruitless.Reset()
		}
		if n, done := r.read(e); done {
			return n
		}
	}
}

// read is the state Read: done where it is left.
func (r *RetryWatcher[T]) read(e Event[T]) (n next, done bool) {
	// Whether the event is given or not, the next one that is given says it.
	r.carry += e.Lost
	e.Lost = 0
	switch e.Type {
	case Synced: // a state was not asked for: it is a Bookmark, where it has a revision
		if e.Type = Bookmark; e.Revision > 0 {
			return r.read(e)
		}
		return next{}, false
	case Added, Modified, Deleted, Bookmark:
		// Behind an empty state of revision 0 the position stays 0 inside of the first revision.
		if e.Revision == 0 && (e.ObjectRevision == 0 || r.last.Load() > 0) {
			return r.end(&Status{Code: 500, Message: "retryWatcher: doesn't support resourceVersion"}), true
		}
		if last := r.last.Load(); e.Revision < last {
			return r.failed("read", &Status{Code: 410, Message: fmt.Sprintf(
				"the watch is at %d, and the source says that it is at %d", last, e.Revision)}), true
		}
		if e.Type != Bookmark && !r.repeats(e) && !r.give(r.relative(e)) {
			return next{state: stateEnd}, true
		}
		r.last.Store(e.Revision)
		return next{}, false
	case Error:
		err := e.Err
		if err == nil {
			err = errors.New("an event of type Error without an error")
		}
		return r.failed("read", err), true
	}
	return r.end(&Status{Code: 500, Message: fmt.Sprintf("failed to recognize Event type %q", string(e.Type))}), true
}

// failed is the one rule for errors, wherever they come.
func (r *RetryWatcher[T]) failed(during string, err error) next {
	if r.ctx.Err() != nil {
		return next{state: stateEnd}
	}
	r.mu.Lock()
	r.failure = err
	r.mu.Unlock()
	v := verdictOf(err)
	switch {
	case isFatal(err), v == verdict.Refused && during != "read":
		return r.end(err)
	case v == verdict.Gone && during != "list" && r.options.OnGone.lister == nil:
		return r.end(err)
	case v == verdict.Gone && during != "list":
		return next{stateList, RetryAfter(err)}
	}
	level := slog.LevelDebug
	if _, coded := StatusOf(err); !coded && !isEndOfStream(err) {
		level = slog.LevelWarn
	}
	r.options.Logger.Log(r.ctx, level, "watch: an attempt failed and is made again", "during", during, "revision", r.last.Load(), "error", err)
	switch {
	case during == "list":
		return next{stateList, RetryAfter(err)}
	case v == verdict.Busy:
		return next{stateOpen, RetryAfter(err)}
	}
	return r.nothingNew(RetryAfter(err))
}

// verdictOf is what an error says about the revision that was asked for. A connection that ended, or did not come about, says
// nothing.
func verdictOf(err error) verdict.Verdict {
	s, coded := StatusOf(err)
	if coded {
		return verdict.Of(s.Code)
	}
	var connection net.Error
	if isEndOfStream(err) || errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &connection) {
		return verdict.Busy
	}
	return verdict.Wrong
}

// nothingNew is a fruitless attempt: the watch is opened again, or listed after the third in a row.
func (r *RetryWatcher[T]) nothingNew(after time.Duration) next {
	due := r.fruitless.OneMore() && r.options.OnGone.lister != nil
	if due && (r.listed.IsZero() || r.options.Clock.Now().Sub(r.listed) >= verdict.RelistCalm) {
		return next{stateList, after}
	}
	return next{stateOpen, after}
}

// end gives the error as the last event.
func (r *RetryWatcher[T]) end(err error) next {
	r.mu.Lock()
	r.failure, r.err = err, err
	r.mu.Unlock()
	r.give(Event[T]{Type: Error, Err: err})
	return next{state: stateEnd}
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

// abandonable calls f, which may wait for the network, and returns when the context is done even if f
// does not. What f gives then is released by late.
func abandonable[R any](ctx context.Context, f func(context.Context) (R, error), late func(R)) (R, error) {
	type answer struct {
		result R
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		a := answer{err: errors.New("the source ended its goroutine, which runtime.Goexit and a test's FailNow do")}
		defer func() { answers <- a }()
		a.result, a.err = f(ctx)
	}()
	select {
	case a := <-answers:
		return a.result, a.err
	case <-ctx.Done():
		go func() {
			if a := <-answers; a.err == nil {
				late(a.result)
			}
		}()
		var none R
		return none, ctx.Err()
	}
}
