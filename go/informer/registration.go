package informer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"watchcore"
	"watchcore/internal/goroutine"
)

// Registration is a handler of an informer: how it stands, and how to be rid of it. Its
// methods may be called from any goroutine, also from the handler's own callbacks.
type Registration struct {
	name      string
	now       func() time.Time
	lag       func() (events uint64, age time.Duration, overtakings, skipped uint64)
	waitsFor  func() string // what of the informer keeps its initial state from it; "" is nothing
	goroutine atomic.Uint64 // the one that its callbacks run on

	stop   chan struct{} // closed: no callback begins any more
	done   chan struct{} // closed: none runs any more
	synced chan struct{} // closed: the initial state was handled

	mu      sync.Mutex
	running *string // the key of the callback that runs; nil: none does
	since   time.Time
	removed bool
	why     error // how it ended
	handled uint64
	panics  uint64
}

// HandlerStatus is how a handler stands.
type HandlerStatus struct {
	Name          string
	Synced        bool          // every object of its initial state was handled
	Handled       uint64        // changes whose callback has ended, also by a panic
	Panics        uint64        // callbacks that panicked or ended their goroutine
	LagEvents     uint64        // changes that it was not given yet
	LagAge        time.Duration // how long the oldest of them has waited, as far as the window tells
	Resnapshots   uint64        // how often it was overtaken by the informer's window
	Lost          uint64        // changes that SkipToOldest has skipped
	Handling      string        // the key of the callback that runs; "" where none does
	HandlingSince time.Time     // when that callback began; the zero time where none runs
	Removed       bool          // Remove or RemoveAndWait was called
	Err           error         // how it ended; nil while it runs, and where it was removed
	NotSynced     string        // why it is not synced yet; "" where it is
}

// begin says that a callback begins, unless none may.
func (r *Registration) begin(key *string) bool {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.removed {
		return false
	}
	r.running, r.since = key, now
	return true
}

func (r *Registration) end(panicked bool) {
	r.mu.Lock()
	r.running, r.since = nil, time.Time{}
	r.handled++
	if panicked {
		r.panics++
	}
	r.mu.Unlock()
}

// finish is the last thing that the handler's goroutine does.
func (r *Registration) finish(why error) {
	r.mu.Lock()
	r.why = why
	r.mu.Unlock()
	close(r.done)
}

// HasSynced says whether every object of the handler's initial state was handled: given, and
// its callback ended.
func (r *Registration) HasSynced() bool {
	select {
	case <-r.synced:
		return true
	default:
		return false
	}
}

// Synced is closed when HasSynced becomes true. It stays open where the handler ends before.
func (r *Registration) Synced() <-chan struct{} { return r.synced }

// Done is closed when the handler has ended: no callback runs any more, and none begins.
func (r *Registration) Done() <-chan struct{} { return r.done }

// WaitSynced waits until HasSynced. The error says why it does not hold yet, such as in
// which key's callback the handler is and for how long, and wraps the context's error, or
// ErrClosed where the handler was removed, or ended, before it was synced.
func (r *Registration) WaitSynced(ctx context.Context) error {
	if !firstOf(ctx, r.synced, r.stop, r.done) {
		return fmt.Errorf("handler %q is not synced: %s: %w", r.name, r.notSynced(), context.Cause(ctx))
	}
	if r.HasSynced() {
		return nil
	}
	return &watchcore.Error{Code: watchcore.ErrClosed, Message: fmt.Sprintf("handler %q ended before it was synced: %v", r.name, r.ending())}
}

func (r *Registration) ending() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.why != nil:
		return r.why.Error()
	case r.removed:
		return "it was removed"
	}
	return "its informer has ended"
}

// notSynced says why it is not.
func (r *Registration) notSynced() string {
	if r.HasSynced() {
		return ""
	}
	r.mu.Lock()
	running, since, handled := r.running, r.since, r.handled
	r.mu.Unlock()
	if running != nil {
		return fmt.Sprintf("it has handled %d objects, and its callback for %q has been running for %v",
			handled, *running, r.now().Sub(since).Round(time.Millisecond))
	}
	if why := r.waitsFor(); why != "" {
		return why
	}
	left, _, _, _ := r.lag()
	return fmt.Sprintf("it has handled %d objects of its initial state, %d are left", handled, left)
}

// Status is how the handler stands now. O(1).
func (r *Registration) Status() HandlerStatus {
	s := HandlerStatus{Name: r.name, Synced: r.HasSynced(), NotSynced: r.notSynced()}
	s.LagEvents, s.LagAge, s.Resnapshots, s.Lost = r.lag()
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Handled, s.Panics, s.Removed, s.Err = r.handled, r.panics, r.removed, r.why
	if r.running != nil {
		s.Handling, s.HandlingSince = *r.running, r.since
	}
	return s
}

// Remove takes the handler out of its informer and returns at once: no callback begins after
// it has returned; one that runs already runs to its end. Idempotent.
func (r *Registration) Remove() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.removed {
		r.removed = true
		close(r.stop)
	}
}

// RemoveAndWait is Remove, and returns when no callback runs any more. Where the context is done before,
// the error says which key's callback still runs and since when; the handler is removed all the same.
// Inside the handler's own callbacks it is refused with ErrBusy, and nothing is removed: it would
// wait for itself. Remove is what to call there.
//
// A callback that waits for another goroutine which calls this waits until the context is
// done: give one with a bound.
func (r *Registration) RemoveAndWait(ctx context.Context) error {
	if id := goroutine.ID(); id != 0 && id == r.goroutine.Load() {
		return &watchcore.Error{Code: watchcore.ErrBusy, Message: fmt.Sprintf(
			"RemoveAndWait of handler %q is called inside one of its own callbacks, and would wait for itself. Call Remove there, or RemoveAndWait from another goroutine", r.name)}
	}
	r.Remove()
	return r.wait(ctx)
}

// wait waits for the end of the last callback.
func (r *Registration) wait(ctx context.Context) error {
	if firstOf(ctx, r.done, nil, nil) {
		return nil
	}
	s := r.Status()
	if s.Handling == "" {
		return fmt.Errorf("handler %q is removed, and its goroutine is about to end: %w", r.name, context.Cause(ctx))
	}
	return fmt.Errorf("handler %q is removed, and its callback for %q still runs, for %v: %w",
		r.name, s.Handling, r.now().Sub(s.HandlingSince).Round(time.Millisecond), context.Cause(ctx))
}
