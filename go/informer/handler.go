package informer

import (
	"fmt"
	"runtime/debug"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/clocks"
	"github.com/watchcore/watchcore/go/internal/goroutine"
)

// Handler is called for each change, one call at a time, in the order of the changes, on its own
// goroutine, so a slow handler delays no other. When a callback runs, the informer's listers
// already show its change, or a later one.
//
// A callback that panics or calls runtime.Goexit is caught, reported (Options.OnError) and counted;
// its change counts as handled, and the handler continues with the next one.
type Handler[T any] interface {
	// OnAdd is called for a new object. isInInitialList marks an object of the handler's initial
	// state, whose objects come in no particular order.
	OnAdd(object *Object[T], isInInitialList bool)
	// OnUpdate is called for a change. old is the object that this handler received before. In a
	// resync both are the same pointer.
	OnUpdate(old, new *Object[T])
	// OnDelete is called for a deleted object, with the last value that this handler received.
	OnDelete(last *Object[T])
}

// HandlerFuncs is a Handler made of functions; nil functions are skipped.
type HandlerFuncs[T any] struct {
	Add    func(object *Object[T], isInInitialList bool)
	Update func(old, new *Object[T])
	Delete func(last *Object[T])
}

// OnAdd calls Add.
func (f HandlerFuncs[T]) OnAdd(object *Object[T], isInInitialList bool) {
	if f.Add != nil {
		f.Add(object, isInInitialList)
	}
}

// OnUpdate calls Update.
func (f HandlerFuncs[T]) OnUpdate(old, new *Object[T]) {
	if f.Update != nil {
		f.Update(old, new)
	}
}

// OnDelete calls Delete.
func (f HandlerFuncs[T]) OnDelete(last *Object[T]) {
	if f.Delete != nil {
		f.Delete(last)
	}
}

// HandlerOptions says how a handler is called. The zero value suits most programs.
type HandlerOptions struct {
	// Name is used in messages and metrics. "" is "handler N". If another handler of the informer
	// has the name, it becomes "NAME 2" and so on.
	Name string
	// ResyncPeriod is the interval, counted from AddHandler, at which the handler receives every object that
	// it knows again, as an update with the same old and new. A resync never asks the source. 0 is never. If
	// the previous resync is still running, the next one is skipped; between two resyncs a pending change is
	// delivered, so even a very short period does not hold back changes.
	ResyncPeriod time.Duration
	// OnLag says what happens if the informer's window overtakes the handler; the zero OnLag is
	// Resnapshot.
	OnLag OnLag
}

// AddHandler adds a handler, which receives the state first, then the changes, without a gap or a duplicate.
// Any number of handlers may be added, at any time, also from inside a callback. AddHandler returns at once;
// the callbacks run on the handler's own goroutine. The error is ErrClosed if the informer has ended.
func (in *Informer[T]) AddHandler(handler Handler[T], options HandlerOptions) (*Registration, error) {
	if handler == nil {
		return nil, invalid("AddHandler of informer %q without a handler", in.name)
	}
	if options.ResyncPeriod < 0 {
		return nil, invalid("HandlerOptions.ResyncPeriod is %v: it cannot be negative. Give 0 for no resync", options.ResyncPeriod)
	}
	if options.OnLag > SkipToOldest {
		return nil, invalid("HandlerOptions.OnLag is %d. Give one of Resnapshot, Stop, SkipToOldest", options.OnLag)
	}
	h := &runner[T]{cursor: cursor[T]{store: in.store}, in: in, handler: handler, policy: options.OnLag, period: options.ResyncPeriod}
	r := &Registration{
		name:     options.Name,
		now:      in.clock.Now,
		lag:      h.counts,
		waitsFor: in.notSynced,
		stop:     make(chan struct{}),
		done:     make(chan struct{}),
		synced:   make(chan struct{}),
	}
	h.reg = r
	if err := in.enlist(r); err != nil {
		return nil, err
	}
	if h.period > 0 {
		h.tick = in.clock.Now().Add(h.period)
		h.timer, h.disarm = clocks.TimerAt(in.clock, h.tick)
	}
	go h.run()
	return r, nil
}

func invalid(format string, arguments ...any) error {
	return &watchcore.Error{Code: watchcore.ErrInvalidArgument, Message: fmt.Sprintf(format, arguments...)}
}

// runner is a handler's goroutine: a cursor that calls functions. All of its state is in this
// struct and none on the stack, because a callback may end the goroutine: then a new one continues.
type runner[T any] struct {
	cursor[T]
	reg     *Registration
	in      *Informer[T]
	handler Handler[T]
	policy  OnLag
	period  time.Duration
	timer   <-chan time.Time // nil: no resync
	disarm  func()
	tick    time.Time // when the timer fires
	due     bool      // a resync is due
	again   bool      // no change was delivered since the last resync: a pending change goes before the next resync
	started bool      // the initial state was listed
	why     error
}

func (h *runner[T]) run() {
	h.reg.goroutine.Store(goroutine.ID())
	through := false
	defer func() {
		if !through {
			go h.run()
			return
		}
		if h.timer != nil {
			h.disarm()
		}
		h.in.delist(h.reg)
		h.reg.finish(h.why)
	}()
	for h.step() {
	}
	through = true
}

// step does one unit of work. step returns false when the handler has ended.
func (h *runner[T]) step() bool {
	if h.why != nil { // the end was decided, and OnError ended the former goroutine
		return false
	}
	select {
	case <-h.reg.stop:
		return false
	case <-h.in.ctx.Done():
		h.why = h.in.stopped()
		return false
	default:
	}
	if !h.started {
		return h.start()
	}
	select {
	case <-h.timer:
		h.rearm()
	default:
	}
	if from, ended := h.listed(); ended {
		if from == initial {
			close(h.reg.synced)
		}
		return true
	}
	if h.due && !h.again && h.list == nil {
		h.due, h.again = false, true
		h.resync()
	}
	if c, from, given := h.take(); given {
		h.again = h.again && from == resync
		h.call(c, from)
		return true
	}
	if h.overtaken() {
		return h.lag()
	}
	if h.ended() {
		h.why = h.in.ending()
		return false
	}
	if h.list != nil { // the empty list is finished above in the next step
		return true
	}
	if h.again = false; !h.due {
		h.sleep(h.wait())
	}
	return true
}

// start waits for the informer's initial state, and makes a list of it.
func (h *runner[T]) start() bool {
	select {
	case <-h.store.synced:
		h.begin(h.store.current.Load())
		h.started = true
		return true
	default:
	}
	if h.store.log.Closed() {
		h.why = h.in.ending()
		return false
	}
	h.sleep(h.store.synced)
	return true
}

// sleep waits for a channel, and for everything that ends or interrupts a handler.
func (h *runner[T]) sleep(something <-chan struct{}) {
	select {
	case <-something:
	case <-h.timer:
		h.rearm()
	case <-h.reg.stop:
	case <-h.in.ctx.Done():
	case <-h.in.over: // something may be synced, which the end of the source does not close
	}
}

// rearm marks a resync as due, unless one is running, and sets the timer for the next multiple of the period.
func (h *runner[T]) rearm() {
	h.due = h.started && (h.list == nil || h.from != resync)
	missed := max(h.in.clock.Now().Sub(h.tick), 0) / h.period
	h.tick = h.tick.Add((missed + 1) * h.period)
	h.timer, h.disarm = clocks.TimerAt(h.in.clock, h.tick)
}

// lag applies the policy to a handler that was overtaken.
func (h *runner[T]) lag() bool {
	switch h.policy {
	case Stop:
		h.overtakings.Add(1)
		oldest := h.store.log.Oldest()
		h.why = &watchcore.Error{Code: watchcore.ErrLagged,
			Message: fmt.Sprintf("handler %q of informer %q has not taken %d changes before they left the window (Options.Window). "+
				"Add it again, or give it the policy Resnapshot", h.reg.name, h.in.name, oldest-min(h.next.Load(), oldest)),
			LostFrom: h.known.position.Revision + 1, Position: h.known.position.Revision, Epoch: h.known.position.Epoch,
			Current: h.store.current.Load().position.Revision}
		h.in.report(h.why)
		return false
	case SkipToOldest:
		h.skip()
	default:
		h.compare()
	}
	return true
}

// call runs a callback.
func (h *runner[T]) call(c change[T], from phase) {
	if !h.reg.begin(c.key()) {
		return
	}
	returned := false
	defer func() {
		h.handled()
		if returned {
			h.reg.end(false)
			return
		}
		why, trace := recover(), debug.Stack()
		h.reg.end(true)
		if why == nil {
			why, trace = "it ended its goroutine, which runtime.Goexit and a test's FailNow do", nil
		}
		h.in.report(&PanicError{Handler: h.reg.name, Key: *c.key(), Value: why, Stack: trace})
	}()
	switch {
	case c.old == nil:
		h.handler.OnAdd(c.new, from == initial)
	case c.new == nil:
		h.handler.OnDelete(c.old)
	default:
		h.handler.OnUpdate(c.old, c.new)
	}
	returned = true
}

// counts returns the values for the handler's status. Any goroutine may call it.
func (h *runner[T]) counts() (events uint64, age time.Duration, overtakings, skipped uint64) {
	overtakings, skipped = h.overtakings.Load(), h.skipped.Load()
	next, head := h.next.Load(), h.store.log.Head()
	events = uint64(h.remaining.Load())
	head = max(head, h.store.current.Load().next) // include changes that are committed but not in the journal yet
	if next < head {
		events += head - next
		var one [1]entry[T]
		if n, _ := h.store.log.Read(max(next, h.store.log.Oldest()), one[:]); n == 1 {
			age = time.Duration(h.in.clock.Now().UnixNano() - one[0].after.stamp)
		}
	}
	h.reg.mu.Lock()
	since := h.reg.since
	h.reg.mu.Unlock()
	if !since.IsZero() && events > 0 {
		age = max(age, h.in.clock.Now().Sub(since))
	}
	return events, max(age, 0), overtakings, skipped
}

// PanicError is the error that Options.OnError receives when a handler's callback panicked or ended
// its goroutine.
type PanicError struct {
	Handler string // the handler's name
	Key     string // the key of its change
	Value   any    // the panic's value
	Stack   []byte // nil if the callback ended its goroutine
}

// Error names the handler and the key.
func (e *PanicError) Error() string {
	return fmt.Sprintf("handler %q panicked at %q: %v. The change counts as handled; correct the handler", e.Handler, e.Key, e.Value)
}

// Unwrap returns watchcore.ErrPanic.
func (e *PanicError) Unwrap() error { return watchcore.ErrPanic }
