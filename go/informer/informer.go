package informer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"watchcore"
	"watchcore/internal/goroutine"
	"watchcore/watch"
)

// DefaultWindow is Options.Window where none is given.
const DefaultWindow = 4096

// Backoff is how long a source waits between attempts: Min, doubled with each failure, at most Max, of
// which each delay is a random part between the half and the whole. After a calm time of Reset it begins anew.
type Backoff struct {
	Min, Max, Reset time.Duration // 0 is 800 ms, 30 s, 2 min
}

// Options says what an informer watches and how. The zero value is every key of the cache.
type Options[T any] struct {
	// Name is for messages and figures. "" is the cache's name, or "informer".
	Name string
	// Range, LabelSelector and FieldSelector say which keys: see watchcore.SubscribeOptions. Only for an
	// informer of a cache. An object that leaves the filter is deleted.
	Range         watchcore.Range
	LabelSelector string
	FieldSelector string
	// Window is how many changes are kept for handlers that are behind. 0 is DefaultWindow. A
	// handler that is further behind is given a difference: see HandlerOptions.OnLag.
	Window int
	// Indexers are the indexes that are there from the beginning: see Informer.AddIndexers.
	Indexers Indexers[T]
	// NamespaceSegment is which segment of a key is its namespace, for Lister.Namespace: as in
	// ByKeySegment. 0 is 2, that of "/registry/pods/ns/name".
	NamespaceSegment int
	// PageSize is how many items of a list are asked for at a time, and Backoff how long is waited after a
	// failure. Only for an informer of NewFromSource. 0 is DefaultPageSize; less than 0 is no pages.
	PageSize int
	Backoff  Backoff
	// OnError is called for each error that ends nothing: a value that was refused, a callback
	// that panicked, a source that failed. From several goroutines; it should return soon.
	OnError func(error)
	// Clock is for tests. nil is the system's.
	Clock watch.Clock
}

// Informer keeps the decoded objects of a cache, or of anything that can be listed and watched,
// and calls handlers for what changes. Each value is decoded once and held once, whatever
// the number of handlers and listers. All methods may be called from any goroutine. Stop it.
type Informer[T any] struct {
	name      string
	clock     watch.Clock
	onError   func(error)
	namespace int
	store     *store[T]
	source    source

	ctx    context.Context // done: stopped
	cancel context.CancelFunc
	ended  context.Context // done: the source has ended, and nothing follows
	end    context.CancelFunc
	over   <-chan struct{} // ended's

	goroutine atomic.Uint64 // the source's
	decoded   atomic.Uint64
	refused   atomic.Uint64
	lagged    atomic.Uint64
	resyncs   atomic.Uint64

	mu       sync.Mutex
	handlers []*Registration
	names    names // theirs
	numbered int
	last     error // that was reported
	why      error // how the source ended
}

// source is where an informer's objects come from.
type source interface {
	// run changes the store until it ends. It may end its goroutine: then it is called again on
	// another one.
	run() error
	// await waits until the source's own side has a revision, and asks it to go there.
	await(ctx context.Context, revision uint64) error
	// explain says why there is no initial state yet.
	explain() string
}

// Status is how an informer stands.
type Status struct {
	Name           string
	Synced         bool
	Position       watchcore.Position // everything up to it is in the lister
	Objects        int
	Changes        uint64 // since the initial state
	Decoded        uint64 // values that were decoded
	DecodeFailures uint64 // values that the decoder refused; each object's last good one stays
	Lagged         uint64 // how often the informer itself was overtaken by the cache's window
	Resyncs        uint64 // how often the source's history was replaced, or listed again
	LastError      error  // the last that was reported
	Err            error  // how it ended; nil while it runs
	NotSynced      string // why it is not synced yet; "" where it is
	Handlers       []HandlerStatus
}

func newInformer[T any](name string, options Options[T]) (*Informer[T], error) {
	if options.Window < 0 {
		return nil, invalid("Options.Window is %d: it cannot be negative. Give 0 for %d", options.Window, DefaultWindow)
	}
	if options.Window == 0 {
		options.Window = DefaultWindow
	}
	if options.NamespaceSegment < 0 {
		return nil, invalid("Options.NamespaceSegment is %d: a key has no such segment", options.NamespaceSegment)
	}
	if options.NamespaceSegment == 0 {
		options.NamespaceSegment = 2
	}
	if options.Clock == nil {
		options.Clock = watch.SystemClock{}
	}
	indexers, err := declared(options.Indexers)
	if err != nil {
		return nil, err
	}
	in := &Informer[T]{name: options.Name, clock: options.Clock, onError: options.OnError, namespace: options.NamespaceSegment,
		names: names{}}
	if in.name == "" {
		in.name = name
	}
	in.ctx, in.cancel = context.WithCancel(context.Background())
	in.ended, in.end = context.WithCancel(context.Background())
	in.over = in.ended.Done()
	in.store = newStore(options.Window, indexers, func() int64 { return in.clock.Now().UnixNano() }, in.report)
	return in, nil
}

func declared[T any](indexers Indexers[T]) ([]*indexer[T], error) {
	var list []*indexer[T]
	for name, of := range indexers {
		if of == nil {
			return nil, invalid("index %q has no function", name)
		}
		list = append(list, &indexer[T]{name: name, of: of})
	}
	return list, nil
}

// start runs the source.
func (in *Informer[T]) start(s source) {
	in.source = s
	go in.follow()
}

// follow is the source's goroutine. Where the program's decoder ends it, another one follows.
func (in *Informer[T]) follow() {
	in.goroutine.Store(goroutine.ID())
	through := false
	defer func() {
		if !through {
			go in.follow()
		}
	}()
	why := in.source.run()
	through = true
	in.mu.Lock()
	in.why = why
	in.mu.Unlock()
	in.store.log.Close()
	in.end()
	in.store.move()
}

// Stop ends the informer, and returns at once: no callback of a handler begins any more. What
// the lister has stays. Idempotent.
func (in *Informer[T]) Stop() { in.cancel() }

// StopAndWait is Stop, and returns when no callback runs any more and the source has ended. Inside a
// callback, the decoder or an index's function it is refused with ErrBusy, and nothing is stopped.
func (in *Informer[T]) StopAndWait(ctx context.Context) error {
	handlers := in.registrations()
	// An index's function runs on the source's goroutine, or with the store's lock on the one that asks for it.
	if id := goroutine.ID(); id != 0 && (id == in.goroutine.Load() || id == in.store.holder.Load() ||
		slices.ContainsFunc(handlers, func(r *Registration) bool { return r.goroutine.Load() == id })) {
		return &watchcore.Error{Code: watchcore.ErrBusy, Message: fmt.Sprintf(
			"StopAndWait of informer %q is called inside one of its own callbacks, and would wait for itself. Call Stop there", in.name)}
	}
	in.Stop()
	for _, r := range append(handlers, in.registrations()...) {
		if err := r.wait(ctx); err != nil {
			return err
		}
	}
	if !firstOf(ctx, in.over, nil, nil) {
		return fmt.Errorf("informer %q is stopped, and its decoder still runs: %w", in.name, context.Cause(ctx))
	}
	return nil
}

// Done is closed when the informer has ended: it was stopped, or its cache was closed.
func (in *Informer[T]) Done() <-chan struct{} { return in.over }

// HasSynced says whether the initial state is there. Handlers may still be busy with it:
// each Registration has a HasSynced of its own.
func (in *Informer[T]) HasSynced() bool { return in.store.current.Load().synced }

// Synced is closed when HasSynced becomes true.
func (in *Informer[T]) Synced() <-chan struct{} { return in.store.synced }

// WaitSynced waits until the initial state is there. The error says why it is not, with the source's last
// error, and wraps the context's, or ErrClosed where the informer ended before.
func (in *Informer[T]) WaitSynced(ctx context.Context) error {
	if !firstOf(ctx, in.store.synced, in.over, nil) {
		return fmt.Errorf("informer %q is not synced: %s: %w", in.name, in.notSynced(), context.Cause(ctx))
	}
	if in.HasSynced() {
		return nil
	}
	return fmt.Errorf("informer %q ended before it was synced: %w", in.name, in.ending())
}

// firstOf waits for one of several channels, of which some may be nil; false: the context was done before. A context that is
// done hides none of them: the answer is the same each time.
func firstOf(ctx context.Context, one, two, three <-chan struct{}) bool {
	select {
	case <-one:
	case <-two:
	case <-three:
	default:
		select {
		case <-one:
		case <-two:
		case <-three:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// Syncer is an *Informer or a *Registration.
type Syncer interface {
	WaitSynced(ctx context.Context) error
}

// WaitForSync waits until all are synced. The error joins those of all that are not, each with its reason.
func WaitForSync(ctx context.Context, all ...Syncer) error {
	var errs []error
	for _, one := range all {
		errs = append(errs, one.WaitSynced(ctx)) // once the context is done, each answers at once
	}
	return errors.Join(errs...)
}

// notSynced says why there is no initial state.
func (in *Informer[T]) notSynced() string {
	if in.HasSynced() {
		return ""
	}
	return in.source.explain()
}

// AddIndexers adds indexes, and builds them of the present objects before it returns: listers see them then. A
// name that is taken is refused, and none is added. Inside an index's function it is ErrBusy.
// O(objects) for each.
func (in *Informer[T]) AddIndexers(indexers Indexers[T]) error {
	list, err := declared(indexers)
	if err != nil {
		return err
	}
	return in.store.add(goroutine.ID(), list)
}

// WaitUntil waits until the listers show everything up to and with a revision: write, take the revision of
// what was written, wait until it is here, and read your own write. Not from inside the
// decoder, which it would wait for. ErrClosed where the informer has ended before. For an informer of a source that
// goes as far as the source says: see NewFromSource.
func (in *Informer[T]) WaitUntil(ctx context.Context, revision uint64) error {
	return in.waitFor(ctx, watchcore.Position{Revision: revision})
}

// reached says whether a state is at a position, or behind it; one without an epoch is of any.
func (s *state[T]) reached(p watchcore.Position) bool {
	if p.Epoch == 0 {
		return s.position.Revision >= p.Revision
	}
	return !before(s.position, p)
}

func (in *Informer[T]) waitFor(ctx context.Context, p watchcore.Position) error {
	s := in.store
	if s.current.Load().reached(p) {
		return nil
	}
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	// One end for each part of the wait: the source's own side looks at the context alone.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(in.ended, func() { cancel(in.ending()) })()
	err := in.source.await(ctx, p.Revision)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	for err == nil {
		moves := s.moves()
		if s.current.Load().reached(p) {
			return nil
		}
		select {
		case <-moves:
			continue
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if s.current.Load().reached(p) { // the last that it published
		return nil
	}
	return fmt.Errorf("informer %q waits for revision %d and is at %d: %w", in.name, p.Revision, s.current.Load().position.Revision, err)
}

// Status is how the informer and its handlers stand. O(handlers).
func (in *Informer[T]) Status() Status {
	now := in.store.current.Load()
	s := Status{
		Name:           in.name,
		Synced:         now.synced,
		Position:       now.position,
		Objects:        now.objects.Len(),
		Changes:        in.store.log.Head(),
		Decoded:        in.decoded.Load(),
		DecodeFailures: in.refused.Load(),
		Lagged:         in.lagged.Load(),
		Resyncs:        in.resyncs.Load(),
		NotSynced:      in.notSynced(),
	}
	for _, r := range in.registrations() {
		s.Handlers = append(s.Handlers, r.Status())
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	s.LastError, s.Err = in.last, in.why
	return s
}

func (in *Informer[T]) registrations() []*Registration {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Clone(in.handlers)
}

func (in *Informer[T]) enlist(r *Registration) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ctx.Err() != nil || in.why != nil {
		return in.stopped()
	}
	if in.numbered++; r.name == "" {
		r.name = fmt.Sprintf("handler %d", in.numbered)
	}
	r.name = in.names.take(r.name)
	in.handlers = append(in.handlers, r)
	return nil
}

func (in *Informer[T]) delist(r *Registration) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.names, r.name)
	in.handlers = slices.DeleteFunc(in.handlers, func(other *Registration) bool { return other == r })
}

func (in *Informer[T]) stopped() error {
	return &watchcore.Error{Code: watchcore.ErrClosed, Message: fmt.Sprintf("informer %q has ended: it was stopped, or its cache was closed", in.name)}
}

// ending is how it ended.
func (in *Informer[T]) ending() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.why != nil {
		return in.why
	}
	return in.stopped()
}

// report keeps an error, and calls OnError with it. A panic of that is lost.
func (in *Informer[T]) report(err error) {
	in.mu.Lock()
	in.last = err
	in.mu.Unlock()
	if in.onError == nil {
		return
	}
	defer func() { _ = recover() }()
	in.onError(err)
}
