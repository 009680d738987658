package informer

import (
	"fmt"
	"runtime/debug"
	"time"

	"watchcore"
	"watchcore/internal/clocks"
	"watchcore/internal/goroutine"
)

// Handler is called for each change, one call at a time, in the order of the changes, on a
// goroutine of its own: a slow handler delays no other. When a change is given, the informer's listers
// show it, or a later one.
//
// A callback that panics is caught, reported (Options.OnError) and counted; its change counts
// as handled, and the next one follows. So does one that calls runtime.Goexit.
type Handler[T any] interface {
	// OnAdd is called for a new object. One of the handler's initial state says so; those are in no
	// particular order.
	OnAdd(object *Object[T], isInInitialList bool)
	// OnUpdate is called for a change: old is what this handler was given before. In a resync both
	// are the same pointer.
	OnUpdate(old, new *Object[T])
	// OnDelete is called for an object that has gone, with the last value that this handler was given.
	OnDelete(last *Object[T])
}

// HandlerFuncs is a Handler of functions; nil ones are not called.
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

// HandlerOptions says how a handler is to be called. Its zero value is what most want.
type HandlerOptions struct {
	// Name is for messages and figures. "" is "handler N". Where another handler of the informer has the name, it is "NAME 2" and so on.
	Name string
	// ResyncPeriod gives the handler every object that it knows once more, as an update with the
	// same old and new, every so often, counted from its beginning. It never asks the source. 0 is never. A resync
	// that is due while the one before still runs is left out, and between two of them a change that is there is given:
	// no period is too short for the changes.
	ResyncPeriod time.Duration
	// OnLag is what happens where the handler is overtaken by the informer's window; the zero OnLag is
	// Resnapshot.
	OnLag OnLag
}

// AddHandler adds a handler: it is given the state first, then what changes, without a gap or a
// change twice. Any number, at any time, also from inside a callback. It returns at once;
// the callbacks run on a goroutine of the handler's own. ErrClosed where the informer has ended.
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
		lag:      h.figures,
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

// runner is a handler's goroutine: a cursor that calls functions. All of its state is in
// here and none on the stack, because a callback may end the goroutine: then another one
// goes on where it was.
type runner[T any] struct {
	cursor[T]
	reg     *Registration
	in      *Informer[T]
	handler Handler[T]
	policy  OnLag
	period  time.Duration
	timer   <-chan time.Time // nil: there is no resync
	disarm  func()
	tick    time.Time // when the timer fires
	due     bool      // a resync is
	again   bool      // nothing was given since the last resync: a change comes first
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

// step does one thing; false: the handler has ended.
func (h *runner[T]) step() bool {
	if h.why != nil { // decided, and its report has ended the goroutine
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
	if h.list != nil { // empty, and ended above the next time
		return true
	}
	if h.again = false; !h.due {
		h.sleep(h.wait())
	}
	return true
}

// start waits for the informer's initial state, and lists it.
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

// sleep waits for a channel, and for what ends or interrupts a handler.
func (h *runner[T]) sleep(something <-chan struct{}) {
	select {
	case <-something:
	case <-h.timer:
		h.rearm()
	case <-h.reg.stop:
	case <-h.in.ctx.Done():
	case <-h.in.over: // the journal wakes only those that wait for it
	}
}

// rearm says that a resync is due, unless one runs, and sets the timer for the next multiple of the period.
func (h *runner[T]) rearm() {
	h.due = h.started && (h.list == nil || h.from != resync)
	missed := max(h.in.clock.Now().Sub(h.tick), 0) / h.period
	h.tick = h.tick.Add((missed + 1) * h.period)
	h.timer, h.disarm = clocks.TimerAt(h.in.clock, h.tick)
}

// lag is what happens to a handler that was overtaken.
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

// figures is for the handler's status, from any goroutine.
func (h *runner[T]) figures() (events uint64, age time.Duration, overtakings, skipped uint64) {
	overtakings, skipped = h.overtakings.Load(), h.skipped.Load()
	next, head := h.next.Load(), h.store.log.Head()
	events = uint64(h.remaining.Load())
	head = max(head, h.store.current.Load().next) // committed, and on its way into the journal
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

// PanicError is what Options.OnError is given where a handler's callback panicked or ended its
// goroutine.
type PanicError struct {
	Handler string // its name
	Key     string // of the change that it was given
	Value   any    // what it panicked with
	Stack   []byte // where; nil where it ended its goroutine
}

// Error says what panicked, where.
func (e *PanicError) Error() string {
	return fmt.Sprintf("handler %q panicked at %q: %v. The change counts as handled; correct the handler", e.Handler, e.Key, e.Value)
}

// Unwrap is watchcore.ErrPanic.
func (e *PanicError) Unwrap() error { return watchcore.ErrPanic }
