package contract

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/internal/handclock"
	"github.com/watchcore/watchcore/go/internal/rows"
	"github.com/watchcore/watchcore/go/watch"
)

var errCondition = errors.New("as the row says")

// Wait is a wait that a row drives: `[if KEY|if fails] [within D] [for CONDITION...]`.
type Wait struct {
	t            *testing.T
	ctx          *timed
	over         chan struct{} // closed when it has ended
	end          string        // how
	saysWhere    bool          // at which revision its conditions held
	precondition string
	tried        []*atomic.Int64
	texts        []string
}

// timed is a context whose deadline is one of the row's clock: Poll looks at it.
type timed struct {
	context.Context
	clock *handclock.Clock
	due   time.Time // zero: never
	done  chan struct{}
	mu    sync.Mutex
	err   error
}

// expire ends it if its time is up, and reports whether this call did.
func (c *timed) expire() bool {
	if c.due.IsZero() || c.clock.Now().Before(c.due) || c.Err() != nil {
		return false
	}
	c.end(context.DeadlineExceeded)
	return true
}

func (c *timed) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.done)
	}
}

// Done is closed when it has ended.
func (c *timed) Done() <-chan struct{} { return c.done }

// Err is why it has ended.
func (c *timed) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// NewWait reads the words of a row.
func NewWait(t *testing.T, words []string, clock *handclock.Clock, saysWhere bool) *Wait {
	w := &Wait{t: t, saysWhere: saysWhere, over: make(chan struct{})}
	w.ctx = &timed{Context: context.Background(), clock: clock, done: make(chan struct{})}
	for at := 0; at < len(words); at++ {
		switch words[at] {
		case "if":
			w.precondition = words[at+1]
		case "within":
			if within := rows.Duration(words[at+1]); within > 0 {
				w.ctx.due = clock.Now().Add(within)
			}
		case "for":
			w.texts = words[at+1:]
			at = len(words)
		}
	}
	t.Cleanup(func() {
		w.ctx.end(context.Canceled)
		bounded.Receive(t, "the end of a wait", w.over)
	})
	return w
}

// Precondition asks for the key that the row names, of a state that has such a key or not. nil: there is none.
func Precondition[S any](w *Wait, has func(state S, key string) bool) watch.PreconditionFunc[S] {
	if w.precondition == "" {
		return nil
	}
	return func(state S) (bool, error) {
		if w.precondition == "fails" {
			return false, errCondition
		}
		return has(state, w.precondition), nil
	}
}

// Begin waits on a goroutine of its own. shown is an event as a row shows it.
func Begin[T any](w *Wait, shown func(watch.Event[T]) string, until func(context.Context, []watch.ConditionFunc[T]) (*watch.Event[T], error)) {
	var conditions []watch.ConditionFunc[T]
	for _, text := range w.texts {
		tried := &atomic.Int64{}
		w.tried = append(w.tried, tried)
		conditions = append(conditions, func(e watch.Event[T]) (bool, error) {
			if tried.Add(1); text == "fails" {
				return false, errCondition
			}
			return strings.HasPrefix(shown(e), text), nil
		})
	}
	go func() {
		defer close(w.over)
		last, err := until(w.ctx, conditions)
		w.end = ended(last, err, shown, w.saysWhere)
	}()
}

// ended is how a wait has ended, and what it saw last. Over a state an event of a difference has no place that all languages
// know.
func ended[T any](last *watch.Event[T], err error, shown func(watch.Event[T]) string, saysWhere bool) string {
	var end string
	switch {
	case err == nil && last == nil:
		return "held"
	case err == nil && !saysWhere:
		return "held " + shown(*last)
	case err == nil:
		return fmt.Sprint("held ", shown(*last), " at ", last.Revision)
	case err == watch.ErrWatchClosed && last != nil && last.Type == watch.Error:
		return shown(*last)
	case err == watch.ErrWatchClosed:
		end = "closed"
	case err == errCondition:
		end = "failed"
	case strings.HasPrefix(err.Error(), "UntilWithSync: unable to sync caches: ") && errors.Is(err, context.DeadlineExceeded):
		end = "no-state"
	case err.Error() == "timed out waiting for the condition" && errors.Is(err, context.DeadlineExceeded):
		end = "timeout"
	default:
		return err.Error()
	}
	if last != nil {
		end += " after " + shown(*last)
	}
	return end
}

// Poll ends the wait if its time is up.
func (w *Wait) Poll() bool { return w.ctx.expire() }

// Say is a word of a wait.
func (w *Wait) Say(words []string) []string {
	switch words[0] {
	case "ended":
		bounded.Receive(w.t, "the end of a wait", w.over)
		return Line(w.end)
	case "waits":
		select {
		case <-w.over:
			return Line(w.end)
		default:
			return nil
		}
	case "tried":
		var counts []string
		for _, tried := range w.tried {
			counts = append(counts, fmt.Sprint(tried.Load()))
		}
		return Line(strings.Join(counts, " "))
	case "stop":
		w.ctx.end(context.Canceled)
		bounded.Receive(w.t, "the end of a wait that is given up", w.over)
		return nil
	}
	panic(words[0] + " is no word of a wait")
}
