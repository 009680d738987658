package informer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/goroutine"
	"github.com/watchcore/watchcore/go/watch"
)

// DefaultWindow is the default of Options.Window.
const DefaultWindow = 4096

// Backoff configures how long a source waits between attempts: Min, doubled with each failure, at
// most Max. Each delay is a random part between half and all of that. After Reset without a failure
// it starts again at Min.
type Backoff struct {
	Min, Max, Reset time.Duration // 0 is 800 ms, 30 s, 2 min
}

// Options configures an informer. The zero value is every key of the cache.
type Options[T any] struct {
	// Name is used in messages and metrics. "" is the cache's name, or "informer".
	Name string
	// Range, LabelSelector and FieldSelector select the keys: see watchcore.SubscribeOptions. They
	// are only for an informer of a cache. An object that leaves the filter is deleted.
	Range         watchcore.Range
	LabelSelector string
	FieldSelector string
	// Window is the number of changes that are kept for handlers that are behind. 0 is
	// DefaultWindow. For a handler that is further behind, see HandlerOptions.OnLag.
	Window int
	// Indexers are the initial indexes: see Informer.AddIndexers.
	Indexers Indexers[T]
	// NamespaceSegment is the segment of a key that is its namespace, for Lister.Namespace: see
	// ByKeySegment. 0 is 2, the namespace of "/registry/pods/ns/name".
	NamespaceSegment int
	// PageSize is the number of items per page of a list, and Backoff the delays after failures. They are
	// only for an informer of NewFromSource. 0 is DefaultPageSize; a negative PageSize disables pages.
	PageSize int
	Backoff  Backoff
	// OnError is called for each error that does not end the informer: a refused value, a callback that
	// panicked, a source that failed. Several goroutines may call it; it should return quickly.
	OnError func(error)
	// Clock is for tests. nil is the system's clock.
	Clock watch.Clock
}

// Informer keeps the decoded objects of a cache, or of another source that can be listed and watched, and
// calls handlers for changes. Each value is decoded once and held once, whatever the number of handlers and
// listers. All methods may be called from any goroutine. Stop it when it is no longer needed.
type Informer[T any] struct {
	name      string
	clock     watch.Clock
	onError   func(error)
	namespace int
	store     *store[T]
	source    source

	ctx    context.Context // done when the informer is stopped
	cancel context.CancelFunc
	ended  context.Context // done when the source has ended, so that nothing follows
	end    context.CancelFunc
	over   <-chan struct{} // ended.Done()

	goroutine atomic.Uint64 // the id of the source's goroutine
	decoded   atomic.Uint64
	refused   atomic.Uint64
	lagged    atomic.Uint64
	resyncs   atomic.Uint64

	mu       sync.Mutex
	handlers []*Registration
	names    names // of the handlers
	numbered int
	last     error // the last reported error
	why      error // why the source ended
}

// source provides an informer's objects.
type source interface {
	// run changes the store until it returns. If it ends its goroutine instead, it is called again
	// on a new one.
	run() error
	// await waits until the source has reached a revision, and makes it publish its position.
	await(ctx context.Context, revision uint64) error
	// explain says why there is no initial state yet.
	explain() string
}

// Status describes an informer's state and progress.
type Status struct {
	Name           string
	Synced         bool
	Position       watchcore.Position // the lister shows everything up to it
	Objects        int
	Changes        uint64 // since the initial state
	Decoded        uint64 // values that were decoded
	DecodeFailures uint64 // values that the decoder refused; the object's last good value stays
	Lagged         uint64 // how often the cache's window overtook the informer
	Resyncs        uint64 // how often the source's history was replaced, or the source was listed again
	LastError      error  // the last reported error
	Err            error  // why the informer ended; nil while it runs
	NotSynced      string // why it is not synced yet; "" if it is
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

func (in *Informer[T]) start(s source) {
	in.source = s
	go in.follow()
}

// follow is the source's goroutine. If the program's decoder ends the goroutine, follow starts another.
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

// Stop ends the informer and returns at once. No callback of a handler starts afterwards. The
// listers keep the last state. Idempotent.
func (in *Informer[T]) Stop() { in.cancel() }

// StopAndWait is Stop, and waits until no callback runs any more and the source has ended. Inside a
// callback, the decoder or an index's function it returns ErrBusy without stopping anything.
func (in *Informer[T]) StopAndWait(ctx context.Context) error {
	handlers := in.registrations()
	// An index's function runs on the source's goroutine, or on a caller's goroutine that has the
	// store's lock.
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

// Done returns a channel that is closed when the informer has ended: it was stopped, or its cache was closed.
func (in *Informer[T]) Done() <-chan struct{} { return in.over }

// HasSynced reports whether the initial state is complete. Handlers may still be processing it:
// each Registration has its own HasSynced.
func (in *Informer[T]) HasSynced() bool { return in.store.current.Load().synced }

// Synced returns a channel that is closed when HasSynced becomes true.
func (in *Informer[T]) Synced() <-chan struct{} { return in.store.synced }

// WaitSynced waits until the initial state is complete. The error gives the reason, with the
// source's last error, and wraps the context's error, or ErrClosed if the informer ended first.
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

// Syncer is implemented by *Informer and *Registration.
type Syncer interface {
	WaitSynced(ctx context.Context) error
}

// WaitForSync waits until all are synced. The error joins the errors of those that are not, each
// with its reason.
func WaitForSync(ctx context.Context, all ...Syncer) error {
	var errs []error
	for _, one := range all {
		errs = append(errs, one.WaitSynced(ctx)) // once the context is done, each returns at once
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

// AddIndexers adds indexes, and builds them from the present objects before it returns, so that
// listers see them. If a name is in use, it adds none and returns an error. Inside an index's
// function it returns ErrBusy. Each index costs O(objects).
func (in *Informer[T]) AddIndexers(indexers Indexers[T]) error {
	list, err := declared(indexers)
	if err != nil {
		return err
	}
	return in.store.add(goroutine.ID(), list)
}

// WaitUntil waits until the listers show everything up to and including a revision. To read your
// own writes, take the revision of the write, wait for it here, and read. Do not call it inside the
// decoder, for which it would wait. The error is ErrClosed if the informer ends first. For an
// informer of a source, NewFromSource says which revisions are reached.
func (in *Informer[T]) WaitUntil(ctx context.Context, revision uint64) error {
	return in.waitFor(ctx, watchcore.Position{Revision: revision})
}

// reached reports whether a state is at a position or after it. A position without an epoch refers
// to any epoch.
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
	// This context ends every part of the wait: the source's await looks at the context only.
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
	if s.current.Load().reached(p) { // the last state may have been published just before the end
		return nil
	}
	return fmt.Errorf("informer %q waits for revision %d and is at %d: %w", in.name, p.Revision, s.current.Load().position.Revision, err)
}

// Status returns the state of the informer and its handlers. Status costs O(handlers).
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
	r.name = in.names.reserve(r.name)
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

// ending says why the informer ended.
func (in *Informer[T]) ending() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.why != nil {
		return in.why
	}
	return in.stopped()
}

// report stores an error, and calls OnError with it. It ignores a panic of OnError.
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
