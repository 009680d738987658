package watch

import (
	"context"
	"slices"
	"sync"

	"watchcore/internal/pump"
)

// FilterFunc decides about an event and may change it. It is asked about events that have an object:
// Synced, Bookmark and Error pass unasked.
type FilterFunc[T any] func(in Event[T]) (out Event[T], keep bool)

// Filter gives the events of w that the function keeps, with the types that they have for somebody who
// sees nothing else:
//
//	| old state | new state | event                                            |
//	| --------- | --------- | ------------------------------------------------ |
//	| kept      | kept      | Modified                                         |
//	| not kept  | kept      | Added                                            |
//	| kept      | not kept  | Deleted, with the old state and the new revision |
//	| not kept  | not kept  | none                                             |
//
// So the function is also asked about the old state: with the event as it is and Object the old one.
// It should go by the object alone. It is not asked about a Deleted whose last state is unknown, which passes. Where an event does not know its old state (HasOld) the row
// cannot be found: use [FilterByKey], which remembers. A function that changes Type has
// decided by itself, and the table does not apply.
//
// What Event.Lost said of an event that is not kept comes with the next one that is. Stop stops w; the
// filter ends when w does, and behind an event of type Error, of w or of the function: then it stops w. Of several
// readers one at a time waits for w, so that events pass in their order. It has no goroutine until
// ResultChan is called.
func Filter[T any](w Interface[T], f FilterFunc[T]) Puller[T] {
	return newDerived(w, &filter[T]{f: f})
}

// FilterByKey is Filter for a watch whose events do not know the old state: it remembers by key what
// passed. It keeps one object for each key that its consumer has, and goes by what the consumer
// was given, also where the watch has lost events, or where the function changed a type. A Deleted whose last state is unknown
// comes with what was given.
func FilterByKey[T any, K comparable](w Interface[T], key func(T) K, f FilterFunc[T]) Puller[T] {
	return newDerived(w, &keyedFilter[T, K]{f: f, key: key, given: make(map[K]T)})
}

// step is what a derived watch does with an event that has an object. It is called by one goroutine
// at a time.
type step[T any] interface {
	apply(in Event[T]) (out Event[T], keep bool)
}

type filter[T any] struct {
	f FilterFunc[T]
}

func (f *filter[T]) apply(in Event[T]) (Event[T], bool) {
	if in.FinalStateUnknown {
		return in, true
	}
	out, now := f.f(in)
	if in.Type == Deleted || now && out.Type != in.Type {
		return out, now
	}
	if !in.HasOld {
		return out, now
	}
	former := in
	former.Object = in.Old
	old, before := f.f(former)
	return boundary(out, now, old.Object, before, in)
}

// boundary is the table of Filter.
func boundary[T any](out Event[T], now bool, old T, before bool, in Event[T]) (Event[T], bool) {
	var none T
	switch {
	case before && now:
		out.Type, out.Old, out.HasOld = Modified, old, true
	case now:
		out.Type, out.Old, out.HasOld = Added, none, false
	case before:
		out = in
		out.Type, out.Object, out.Old, out.HasOld = Deleted, old, old, true
	}
	return out, now || before
}

type keyedFilter[T any, K comparable] struct {
	f     FilterFunc[T]
	key   func(T) K
	given map[K]T
}

func (f *keyedFilter[T, K]) apply(in Event[T]) (Event[T], bool) {
	key := f.key(in.Object)
	old, before := f.given[key]
	out, keep := f.decide(in, old, before)
	if keep {
		switch out.Type {
		case Added, Modified:
			f.given[key] = out.Object
		case Deleted:
			delete(f.given, key)
		}
	}
	return out, keep
}

// decide is what the consumer is given, who has the old state if there was one before.
func (f *keyedFilter[T, K]) decide(in Event[T], old T, before bool) (Event[T], bool) {
	if in.FinalStateUnknown {
		if before {
			in.Object, in.Old, in.HasOld, in.FinalStateUnknown = old, old, true, false
		}
		return in, before
	}
	out, now := f.f(in)
	switch {
	case now && out.Type != in.Type:
		return out, true
	case in.Type != Deleted:
		return boundary(out, now, old, before, in)
	case !before:
		return out, false
	case !now:
		// The consumer has it, and the last state would not have passed.
		out = in
		out.Object = old
	}
	out.Old, out.HasOld = old, true
	return out, true
}

// derived is a watch over another one, with a step between.
type derived[T any] struct {
	source Interface[T]
	step   step[T]        // nil: none
	record func(Event[T]) // nil: none
	pump   *pump.Pump[Event[T]]
	stop   sync.Once
	gone   chan struct{} // closed by Stop

	// turn has one place: who has it takes an event from the source and passes it, so that events meet the step
	// in the order in which they were taken. A channel, since a context has to end the wait for it. The
	// fields below are of who has the turn.
	turn  chan struct{}
	lost  uint64 // of events that were not kept
	ended bool   // by an Error
}

func newDerived[T any](w Interface[T], s step[T]) *derived[T] {
	d := &derived[T]{source: w, step: s, gone: make(chan struct{}), turn: make(chan struct{}, 1)}
	// One place, so that an event which was taken from the source before a Stop is still there
	// for the consumer.
	d.pump = pump.New(d.pull, 1)
	return d
}

// Stop stops the source, and ends the waits of this watch, also where the source does not close.
func (d *derived[T]) Stop() {
	d.stop.Do(func() {
		close(d.gone)
		d.source.Stop()
		d.pump.Stop()
	})
}

func (d *derived[T]) ResultChan() <-chan Event[T] { return d.pump.Results() }

// Next takes from the channel once there is one: the goroutine has the source then.
func (d *derived[T]) Next(ctx context.Context) (Event[T], error) {
	if c := d.pump.Started(); c != nil {
		return receive(ctx, c)
	}
	return d.pull(ctx)
}

func (d *derived[T]) pull(ctx context.Context) (Event[T], error) {
	select {
	case d.turn <- struct{}{}:
	case <-ctx.Done():
		return Event[T]{}, ctx.Err()
	}
	defer func() { <-d.turn }()
	for !d.ended {
		in, err := nextUntil(ctx, d.source, d.gone)
		if err != nil {
			return in, err
		}
		if out, keep := d.pass(in); keep {
			return out, nil
		}
	}
	return Event[T]{}, ErrEnded
}

func (d *derived[T]) pass(in Event[T]) (out Event[T], keep bool) {
	d.lost += in.Lost
	out, keep = in, true
	if in.hasObject() && d.step != nil {
		out, keep = d.step.apply(in)
	}
	if !keep {
		return out, false
	}
	out.Lost, d.lost = d.lost, 0
	if d.record != nil {
		d.record(out)
	}
	if d.step == nil || out.Type != Error {
		return out, true
	}
	d.ended = true
	d.source.Stop()
	return explained(out), true
}

// Recorder passes the events of a watch on and keeps a copy of each, also of what comes behind an Error: for tests, since
// its memory grows with every event.
type Recorder[T any] struct {
	Interface[T]
	mu     sync.Mutex
	events []Event[T]
}

// NewRecorder records w. Read from the recorder, not from w.
func NewRecorder[T any](w Interface[T]) *Recorder[T] {
	r := &Recorder[T]{}
	d := newDerived(w, nil)
	d.record = r.add
	r.Interface = d
	return r
}

func (r *Recorder[T]) add(e Event[T]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// Events is a copy of what has passed so far.
func (r *Recorder[T]) Events() []Event[T] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// Next is that of the recorded watch.
func (r *Recorder[T]) Next(ctx context.Context) (Event[T], error) { return Next(ctx, r.Interface) }
