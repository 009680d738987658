package informer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/goroutine"
)

// Registration is a handler that was added to an informer: it reports the handler's state, and
// removes it. Its methods may be called from any goroutine, also from the handler's own callbacks.
type Registration struct {
	name      string
	now       func() time.Time
	lag       func() (events uint64, age time.Duration, overtakings, skipped uint64)
	waitsFor  func() string // why the informer has no initial state yet; "" if it has
	goroutine atomic.Uint64 // the id of the goroutine that runs the callbacks

	stop   chan struct{} // closed: no callback starts any more
	done   chan struct{} // closed: the last callback has returned
	synced chan struct{} // closed: the initial state was handled

	mu      sync.Mutex
	running *string // the key of the running callback; nil: none runs
	since   time.Time
	removed bool
	why     error // why the handler ended
	handled uint64
	panics  uint64
}

// HandlerStatus describes a handler's state and progress.
type HandlerStatus struct {
	Name          string
	Synced        bool          // every object of its initial state was handled
	Handled       uint64        // changes whose callback has returned or panicked
	Panics        uint64        // callbacks that panicked or ended their goroutine
	LagEvents     uint64        // changes that were not delivered yet
	LagAge        time.Duration // how long the oldest of them has waited, as far as the window shows
	Resnapshots   uint64        // how often the informer's window overtook the handler
	Lost          uint64        // changes that SkipToOldest has skipped
	Handling      string        // the key of the running callback; "" if none runs
	HandlingSince time.Time     // when that callback started; the zero time if none runs
	Removed       bool          // Remove or RemoveAndWait was called
	Err           error         // why the handler ended; nil while it runs, and if it was removed
	NotSynced     string        // why it is not synced yet; "" if it is
}

// begin records that a callback starts. begin returns false if the handler was removed: no callback
// may start then.
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

// finish records the end of the handler's goroutine.
func (r *Registration) finish(why error) {
	r.mu.Lock()
	r.why = why
	r.mu.Unlock()
	close(r.done)
}

// HasSynced reports whether the callbacks for every object of the handler's initial state have returned.
func (r *Registration) HasSynced() bool {
	select {
	case <-r.synced:
		return true
	default:
		return false
	}
}

// Synced returns a channel that is closed when HasSynced becomes true. Synced stays open if the handler
// ends before that.
func (r *Registration) Synced() <-chan struct{} { return r.synced }

// Done returns a channel that is closed when the handler has ended: no callback runs, and none will start.
func (r *Registration) Done() <-chan struct{} { return r.done }

// WaitSynced waits until HasSynced. The error gives the reason, for example the key whose callback is running
// and for how long, and wraps the context's error, or ErrClosed if the handler was removed or ended before it
// was synced.
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

// notSynced says why the handler is not synced.
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

// Status returns the handler's present state, in O(1).
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

// Remove removes the handler from its informer and returns at once. No callback starts after Remove
// has returned; a running callback runs to its end. Idempotent.
func (r *Registration) Remove() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.removed {
		r.removed = true
		close(r.stop)
	}
}

// RemoveAndWait is Remove, and waits until no callback runs any more. If the context is done first,
// the error names the key of the running callback and how long it has run; the handler is removed
// nevertheless. Inside the handler's own callbacks, where it would wait for itself, it returns
// ErrBusy and removes nothing: call Remove there.
//
// If a callback waits for another goroutine that calls RemoveAndWait, that call lasts until its
// context is done: use a context with a deadline.
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
