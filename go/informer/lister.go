package informer

import (
	"context"
	"errors"
	"iter"
	"slices"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/goroutine"
	"github.com/watchcore/watchcore/go/internal/trie"
)

// Lister reads an informer's objects without a lock and without waiting, so no reader delays the informer.
// Each call answers from one revision: a Lister of Informer.Lister from the newest revision at the moment of
// the call, a Lister of Informer.Current or At always from the same. It may be used from any goroutine.
//
// Lists are in no particular order. Their objects are shared: do not modify them.
type Lister[T any] struct {
	in     *Informer[T]
	frozen *state[T] // nil: the newest state
}

// Lister returns a lister whose calls each read the newest state.
func (in *Informer[T]) Lister() *Lister[T] { return &Lister[T]{in: in} }

// Current returns a lister of the present state, so that several calls agree. Current costs nothing to
// make, and keeps that state's objects in memory as long as it is reachable.
func (in *Informer[T]) Current() *Lister[T] {
	return &Lister[T]{in, in.store.current.Load()}
}

func (l *Lister[T]) state() *state[T] {
	if l.frozen != nil {
		return l.frozen
	}
	return l.in.store.current.Load()
}

// Position returns the state's position: zero before the initial state is complete.
func (l *Lister[T]) Position() watchcore.Position { return l.state().position }

// Len returns the number of objects, in O(1).
func (l *Lister[T]) Len() int { return l.state().objects.Len() }

// Get returns the object of a key, in O(log n).
func (l *Lister[T]) Get(key string) (*Object[T], bool) {
	o := l.state().objects.Get(key)
	return o, o != nil
}

// List returns all objects, in O(n).
func (l *Lister[T]) List() []*Object[T] {
	objects := l.state().objects
	return objects.AppendTo(make([]*Object[T], 0, objects.Len()))
}

// All iterates over all objects of one revision, without copying the list.
func (l *Lister[T]) All() iter.Seq[*Object[T]] { return l.state().objects.All() }

// Select returns the objects for which a function returns true, in O(n).
func (l *Lister[T]) Select(holds func(*Object[T]) bool) []*Object[T] {
	var list []*Object[T]
	for o := range l.All() {
		if holds(o) {
			list = append(list, o)
		}
	}
	return list
}

// SelectLabels returns the objects that a label selector in Kubernetes' grammar selects, in the
// order of their keys. The labels are those that watchcore.Config.Labels declares: the cache
// evaluates the selector at the lister's revision. The error is ErrCompacted if that revision has
// left the cache's window, and ErrUnsupported for an informer without a cache.
func (l *Lister[T]) SelectLabels(ctx context.Context, selector string) ([]*Object[T], error) {
	r, ok := l.in.source.(*reader[T])
	if !ok {
		return nil, &watchcore.Error{Code: watchcore.ErrUnsupported, Message: "a label selector for an informer without a cache. Use Select with a function, or an index"}
	}
	for tries := 0; ; tries++ {
		now := l.state()
		list, err := r.selected(ctx, now, selector)
		if tries < 3 && l.frozen == nil && errors.Is(err, watchcore.ErrCompacted) && l.state() != now {
			continue // there is a newer state: try that
		}
		return list, err
	}
}

func (r *reader[T]) selected(ctx context.Context, now *state[T], selector string) ([]*Object[T], error) {
	var list []*Object[T]
	if !now.synced {
		return nil, nil
	}
	options := watchcore.ListOptions{Read: watchcore.ReadExactPosition(now.position), LabelSelector: selector}
	page, err := r.cache.List(ctx, watchcore.RangeAll(), options)
	if err != nil {
		return nil, err
	}
	defer page.Release()
	for item := range page.All() {
		if o := now.objects.Get(item.Key()); o != nil { // the cache may have keys that the informer has not
			list = append(list, o)
		}
	}
	return list, nil
}

// ByIndex returns the objects that an index has under a value, in O(objects found), or in O(n) if the
// lister's state is older than the index. The error is ErrInvalidArgument if no index has the name.
func (l *Lister[T]) ByIndex(name, value string) ([]*Object[T], error) {
	index, err := l.index(name)
	if err != nil {
		return nil, err
	}
	return members(index.Get(value)), nil
}

func members[T any](b *bucket[T]) []*Object[T] {
	if b == nil {
		return nil
	}
	return b.objects.AppendTo(make([]*Object[T], 0, b.objects.Len()))
}

// IndexValues returns the values under which an index has objects, sorted. Costs and errors are
// those of ByIndex, with O(values).
func (l *Lister[T]) IndexValues(name string) ([]string, error) {
	index, err := l.index(name)
	if err != nil {
		return nil, err
	}
	values := make([]string, 0, index.Len())
	for b := range index.All() {
		values = append(values, b.value)
	}
	slices.Sort(values)
	return values, nil
}

func (l *Lister[T]) index(name string) (trie.Map[bucket[T]], error) {
	now := l.state()
	if n := now.indexer(name); n >= 0 {
		return now.indexes[n], nil
	}
	newest := l.in.store.current.Load()
	n := newest.indexer(name)
	if n < 0 {
		return trie.Map[bucket[T]]{}, invalid("informer %q has no index %q. Declare it in Options.Indexers or by AddIndexers", l.in.name, name)
	}
	// The index was added after this state was made.
	return l.in.store.indexed(goroutine.ID(), newest.indexers[n], now.objects)
}

// Namespace returns the objects whose keys have the given namespace segment (Options.NamespaceSegment). With
// an index named NamespaceIndex, such as ByKeySegment(2), it takes O(objects found), otherwise O(n).
func (l *Lister[T]) Namespace(namespace string) []*Object[T] {
	now := l.state()
	if n := now.indexer(NamespaceIndex); n >= 0 {
		return members(now.indexes[n].Get(namespace))
	}
	return (&Lister[T]{l.in, now}).Select(func(o *Object[T]) bool {
		value, found := keySegment(o.Key, l.in.namespace)
		return found && value == namespace
	})
}
