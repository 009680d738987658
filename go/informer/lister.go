package informer

import (
	"context"
	"errors"
	"iter"
	"slices"

	"watchcore"
	"watchcore/internal/goroutine"
	"watchcore/internal/trie"
)

// Lister reads what an informer knows, without a lock and without waiting: no reader ever
// delays the informer. Each call answers from one revision; a Lister of Informer.Lister from the newest one
// of that moment, one of Informer.Current or At always from the same. From any goroutine.
//
// Lists are in no particular order. Their objects are shared: nobody may write to them.
type Lister[T any] struct {
	in     *Informer[T]
	frozen *state[T] // nil: the newest
}

// Lister reads the newest state, call by call.
func (in *Informer[T]) Lister() *Lister[T] { return &Lister[T]{in: in} }

// Current reads the state of now, whatever comes: several calls that agree. It costs nothing to
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

// Position is the state's place in the history: zero before the initial state is there.
func (l *Lister[T]) Position() watchcore.Position { return l.state().position }

// Len is the number of objects. O(1).
func (l *Lister[T]) Len() int { return l.state().objects.Len() }

// Get is the object of a key. O(log n).
func (l *Lister[T]) Get(key string) (*Object[T], bool) {
	o := l.state().objects.Get(key)
	return o, o != nil
}

// List is all objects. O(n).
func (l *Lister[T]) List() []*Object[T] {
	objects := l.state().objects
	return objects.AppendTo(make([]*Object[T], 0, objects.Len()))
}

// All walks over all objects of one revision, without a copy of the list.
func (l *Lister[T]) All() iter.Seq[*Object[T]] { return l.state().objects.All() }

// Select is the objects for which a function holds. O(n).
func (l *Lister[T]) Select(holds func(*Object[T]) bool) []*Object[T] {
	var list []*Object[T]
	for o := range l.All() {
		if holds(o) {
			list = append(list, o)
		}
	}
	return list
}

// SelectLabels is the objects whose labels a selector selects, in Kubernetes' grammar, in the order of their
// keys. The labels are those that watchcore.Config.Labels declares: the cache itself
// looks them up, at the lister's revision. ErrCompacted where that has left the cache's
// window, ErrUnsupported for an informer that has no cache.
func (l *Lister[T]) SelectLabels(ctx context.Context, selector string) ([]*Object[T], error) {
	r, ok := l.in.source.(*reader[T])
	if !ok {
		return nil, &watchcore.Error{Code: watchcore.ErrUnsupported, Message: "a label selector for an informer without a cache. Use Select with a function, or an index"}
	}
	for tries := 0; ; tries++ {
		now := l.state()
		list, err := r.selected(ctx, now, selector)
		if tries < 3 && l.frozen == nil && errors.Is(err, watchcore.ErrCompacted) && l.state() != now {
			continue // the newest state has moved on meanwhile
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
		if o := now.objects.Get(item.Key()); o != nil { // others are none of the informer's
			list = append(list, o)
		}
	}
	return list, nil
}

// ByIndex is the objects that an index has under a value. O(the objects found), of a state that is older
// than the index O(n). ErrInvalidArgument where no index has the name.
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

// IndexValues is the values under which an index has objects, in order. O(the values); else as ByIndex.
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
	// It is younger than this state.
	return l.in.store.indexed(goroutine.ID(), newest.indexers[n], now.objects)
}

// Namespace is the objects whose keys have a value as their namespace segment (Options.NamespaceSegment). With an index
// of the name NamespaceIndex, such as ByKeySegment(2), O(the objects found); without, O(n).
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
