package informer

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/journal"
	"github.com/watchcore/watchcore/go/internal/trie"
)

// store is an informer's data. The goroutine of its source changes it; any goroutine reads it.
//
// A change passes through it in these steps. The source decodes values and calls put or remove, which makes
// states that no reader sees yet. At the end of a revision, commit publishes the newest state and then
// appends the changes to the journal. So the lister shows a change before a handler receives it, and never
// shows a part of a revision, as far as the source knows where the revision ends.
type store[T any] struct {
	kinds   kinds[T]
	log     *journal.Journal[entry[T]]
	current atomic.Pointer[state[T]]
	report  func(error) // OnError; not called under the lock, because it may call the informer
	now     func() int64

	// Fields of the source's goroutine, which publishes them under the lock:
	initial *trie.Builder[Object[T]] // nil: the initial state is complete
	work    *state[T]                // includes changes that are not committed yet
	pending []entry[T]

	publishing sync.Mutex // held by the source, or by a goroutine that adds an index
	failures   []error    // of index functions; reported after publishing is unlocked, which protects it
	holder     atomic.Uint64

	syncedOnce sync.Once
	synced     chan struct{} // closed: the initial state is complete

	waiting atomic.Int32 // the number of goroutines that wait for a position
	moved   sync.Mutex
	notice  chan struct{} // closed when the position moves; nil: nobody waits
}

func newStore[T any](window int, indexers []*indexer[T], now func() int64, report func(error)) *store[T] {
	s := &store[T]{kinds: newKinds[T](), log: journal.New[entry[T]](window), report: report, now: now, synced: make(chan struct{})}
	empty := &state[T]{objects: trie.New(s.kinds.objects), indexers: indexers}
	for range indexers {
		empty.indexes = append(empty.indexes, trie.New(s.kinds.buckets))
	}
	s.initial = empty.objects.Builder()
	s.work = empty
	s.current.Store(empty)
	return s
}

// enter locks publishing. enter refuses a goroutine that has the lock already, because that goroutine
// is inside an index's function and would wait for itself.
func (s *store[T]) enter(goroutine uint64) error {
	if goroutine != 0 && s.holder.Load() == goroutine {
		return &watchcore.Error{Code: watchcore.ErrBusy, Message: "the informer is called from inside an index's function, and would wait for itself. Call it from another goroutine"}
	}
	s.publishing.Lock()
	s.holder.Store(goroutine)
	return nil
}

func (s *store[T]) leave() {
	failures := s.failures
	s.failures = nil
	s.holder.Store(0)
	s.publishing.Unlock()
	for _, err := range failures {
		s.report(err)
	}
}

// failed stores the error of an index's function until leave reports it.
func (s *store[T]) failed(err error) { s.failures = append(s.failures, err) }

// put sets an object, invisibly until commit. Before the initial state is complete there is no
// history, so put only fills the builder.
func (s *store[T]) put(hash uint64, o *Object[T], at watchcore.Position) {
	if s.initial != nil {
		s.initial.SetHash(hash, o)
		return
	}
	objects, old := s.work.objects.Replace(hash, o)
	s.apply(objects, change[T]{old, o}, at)
}

// remove deletes an object. An absent key changes nothing.
func (s *store[T]) remove(hash uint64, key string, at watchcore.Position) {
	if s.initial != nil {
		s.initial.Delete(key)
		return
	}
	if old := s.work.objects.GetHash(hash, key); old != nil {
		s.apply(s.work.objects.DeleteHash(hash, key), change[T]{old, nil}, at)
	}
}

// find returns the object of a key given as bytes, including changes that are not committed.
func (s *store[T]) find(hash uint64, key []byte) *Object[T] {
	if s.initial != nil {
		return nil
	}
	return s.work.objects.GetBytes(hash, key)
}

// known returns the object of a key, including changes that are not committed.
func (s *store[T]) known(hash uint64, key string) *Object[T] {
	if s.initial != nil {
		return nil
	}
	return s.work.objects.GetHash(hash, key)
}

func (s *store[T]) apply(objects trie.Map[Object[T]], c change[T], at watchcore.Position) {
	next := *s.work
	next.next++
	next.position, next.objects = at, objects
	s.work = &next
	s.pending = append(s.pending, entry[T]{c, &next})
}

// index updates the indexes of the pending states. index needs the lock, because the indexers may have
// changed since the put. index may run again for the same changes.
func (s *store[T]) index(last *state[T]) {
	now, indexes, objects := s.now(), last.indexes, last.objects
	for i := range s.pending {
		e := &s.pending[i]
		if len(last.indexers) > 0 {
			indexes = slices.Clone(indexes)
			hash := s.kinds.objects.Hash(*e.key())
			for n, x := range last.indexers {
				indexes[n] = x.change(indexes[n], objects, e.after.objects, hash, e.change, s.failed)
			}
			objects = e.after.objects
		}
		e.after.indexes, e.after.indexers, e.after.stamp = indexes, last.indexers, now
	}
	// This follows the last call of a function: if a function ends its goroutine, index runs again
	// with the same remembered values.
	for _, x := range last.indexers {
		x.forget(s.pending)
	}
}

// commit publishes the pending changes, as of a position. goroutine is the caller's id, for enter.
// Index functions run here: if one ends its goroutine, the changes stay pending.
func (s *store[T]) commit(goroutine uint64, at watchcore.Position) {
	if err := s.enter(goroutine); err != nil {
		panic(err) // unreachable: the source is never called from an index's function
	}
	defer s.leave()
	last := s.current.Load()
	if len(s.pending) == 0 {
		if last.position == at {
			return
		}
		next := *last
		next.position, next.stamp = at, s.now()
		s.work = &next
		s.current.Store(&next)
		s.move()
		return
	}
	s.index(last)
	if s.work.position != at {
		// The last change's state keeps its own revision, by which store.at finds it.
		next := *s.work
		next.position = at
		s.work = &next
	}
	s.current.Store(s.work)
	for _, e := range s.pending {
		s.log.Append(e)
	}
	clear(s.pending)
	if s.pending = s.pending[:0]; cap(s.pending) > 4096 {
		s.pending = nil
	}
	s.move()
}

func (s *store[T]) complete(goroutine uint64, at watchcore.Position) {
	if err := s.enter(goroutine); err != nil {
		panic(err)
	}
	defer s.leave()
	next := *s.current.Load()
	next.objects, next.position, next.stamp, next.synced = s.initial.Map(), at, s.now(), true
	next.indexes = make([]trie.Map[bucket[T]], len(next.indexers))
	for n, x := range next.indexers {
		next.indexes[n] = x.build(next.objects, s.kinds, s.failed)
	}
	s.initial, s.work = nil, &next
	s.current.Store(&next)
	s.syncedOnce.Do(func() { close(s.synced) })
	s.move()
}

// add adds indexes, and builds them from the present state.
func (s *store[T]) add(goroutine uint64, more []*indexer[T]) error {
	if err := s.enter(goroutine); err != nil {
		return err
	}
	defer s.leave()
	next := *s.current.Load()
	for _, x := range more {
		if next.indexer(x.name) >= 0 {
			return &watchcore.Error{Code: watchcore.ErrInvalidArgument, Message: fmt.Sprintf(
				"the informer has an index %q already. Give the other one another name; none of this call's was added", x.name)}
		}
	}
	next.indexers, next.indexes = slices.Clone(next.indexers), slices.Clone(next.indexes)
	for _, x := range more {
		next.indexers = append(next.indexers, x)
		next.indexes = append(next.indexes, x.build(next.objects, s.kinds, s.failed))
	}
	s.current.Store(&next)
	return nil
}

// indexer returns the position of an index by name, -1 if there is none.
func (s *state[T]) indexer(name string) int {
	return slices.IndexFunc(s.indexers, func(x *indexer[T]) bool { return x.name == name })
}

// move wakes the goroutines that wait for a position.
func (s *store[T]) move() {
	if s.waiting.Load() == 0 {
		return
	}
	s.moved.Lock()
	if s.notice != nil {
		close(s.notice)
		s.notice = nil
	}
	s.moved.Unlock()
}

// moves returns a channel that is closed when the state changes. The caller must increment waiting
// before, and check the state afterwards.
func (s *store[T]) moves() <-chan struct{} {
	s.moved.Lock()
	defer s.moved.Unlock()
	if s.notice == nil {
		s.notice = make(chan struct{})
	}
	return s.notice
}

// at returns the state at a position that the store has reached, if the journal still has the
// changes around it.
func (s *store[T]) at(p watchcore.Position) (*state[T], bool) {
	now := s.current.Load()
	low, high := s.log.Oldest(), now.next
	if before(now.position, p) || s.log.Head() < high { // the newest changes are not in the journal yet
		return nil, false
	}
	var one [1]entry[T]
	oldest := low
	for low < high { // the first entry after the position is in [low, high]
		middle := low + (high-low)/2
		if n, there := s.log.Read(middle, one[:]); !there || n == 0 {
			return nil, false
		}
		if before(p, one[0].after.position) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	if high == now.next {
		return now, true
	}
	if high == oldest {
		return nil, false
	}
	if n, there := s.log.Read(high-1, one[:]); !there || n == 0 {
		return nil, false
	}
	return one[0].after, true
}

// indexed builds an index of the objects of an older state.
func (s *store[T]) indexed(goroutine uint64, x *indexer[T], objects trie.Map[Object[T]]) (trie.Map[bucket[T]], error) {
	if err := s.enter(goroutine); err != nil {
		return trie.Map[bucket[T]]{}, err
	}
	defer s.leave()
	return x.buildOlder(objects, s.kinds, s.failed), nil
}
