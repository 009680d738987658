package watch

import (
	"context"
	"slices"
	"sync"

	"github.com/watchcore/watchcore/go/internal/pump"
)

// FilterFunc decides whether to keep an event, and may change it. FilterFunc is called for events that have
// an object: Synced, Bookmark and Error are always kept.
type FilterFunc[T any] func(in Event[T]) (out Event[T], keep bool)

// Filter returns the events of w that the function keeps, with the types that are right for a
// consumer that sees only these:
//
//	| old state | new state | event                                            |
//	| --------- | --------- | ------------------------------------------------ |
//	| kept      | kept      | Modified                                         |
//	| not kept  | kept      | Added                                            |
//	| kept      | not kept  | Deleted, with the old state and the new revision |
//	| not kept  | not kept  | none                                             |
//
// So the function is also called for the old state: with the event as it is and Object the old
// object. It should decide by the object alone. It is not called for a Deleted event whose last
// state is unknown, which is kept. If an event has no old state (HasOld), the table cannot be
// applied: use [FilterByKey], which remembers old states. If the function changes Type, it has
// decided by itself, and the table does not apply.
//
// The next kept event also reports the Event.Lost of events that were not kept. Stop stops w. The
// filter ends when w does, and after an event of type Error, from w or from the function: then it
// stops w. If it has several readers, one at a time waits for w, so that events stay in order. It
// has no goroutine until ResultChan is called.
func Filter[T any](w Interface[T], f FilterFunc[T]) Puller[T] {
	return newDerived(w, &filter[T]{f: f})
}

// FilterByKey is Filter for a watch whose events do not carry the old state: it remembers the kept
// objects by key. FilterByKey stores one object for each key that its consumer has, and decides relative to
// what the consumer has received, also if the watch has lost events or the function changed a type.
// A Deleted event whose last state is unknown gets the remembered object.
func FilterByKey[T any, K comparable](w Interface[T], key func(T) K, f FilterFunc[T]) Puller[T] {
	return newDerived(w, &keyedFilter[T, K]{f: f, key: key, given: make(map[K]T)})
}

// step is the operation of a derived watch on an event with an object. One goroutine at a time calls it.
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

// boundary applies the table of Filter.
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

// decide returns the event for the consumer, which has the old state if before is true.
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
		// The consumer has the object, and the filter would not keep its last state.
		out = in
		out.Object = old
	}
	out.Old, out.HasOld = old, true
	return out, true
}

// derived is a watch over another watch, with a step in between.
type derived[T any] struct {
	source Interface[T]
	step   step[T]        // nil: none
	record func(Event[T]) // nil: none
	pump   *pump.Pump[Event[T]]
	stop   sync.Once
	gone   chan struct{} // closed by Stop

	// turn has capacity 1 and serves as a lock: the goroutine that has sent into it takes an event
	// from the source and passes it through the step, so that the step sees the events in order. It
	// is a channel because a context can end the wait for it. It protects the fields below.
	turn  chan struct{}
	lost  uint64 // of events that were not kept
	ended bool   // after an Error
}

func newDerived[T any](w Interface[T], s step[T]) *derived[T] {
	d := &derived[T]{source: w, step: s, gone: make(chan struct{}), turn: make(chan struct{}, 1)}
	// The capacity of 1 keeps an event that was taken from the source before a Stop for the consumer.
	d.pump = pump.New(d.pull, 1)
	return d
}

// Stop stops the source, and ends the waits of this watch, even if the source does not close its channel.
func (d *derived[T]) Stop() {
	d.stop.Do(func() {
		close(d.gone)
		d.source.Stop()
		d.pump.Stop()
	})
}

func (d *derived[T]) ResultChan() <-chan Event[T] { return d.pump.Results() }

// Next takes from the channel if ResultChan was called, because its goroutine then reads the source.
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

// Recorder passes on the events of a watch and keeps a copy of each, also of events after an Error.
// Recorder is for tests, because its memory grows with every event.
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

// Events returns a copy of the events so far.
func (r *Recorder[T]) Events() []Event[T] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// Next returns the next event of the recorded watch.
func (r *Recorder[T]) Next(ctx context.Context) (Event[T], error) { return Next(ctx, r.Interface) }
