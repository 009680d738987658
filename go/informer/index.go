package informer

import (
	"fmt"
	"slices"
	"strings"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/trie"
)

// IndexFunc returns the values under which an index finds an object: any number of them, or none
// for an object that is not in the index. IndexFunc is called once for each version of an object, when the
// version arrives; its result is remembered until the next version or the deletion. IndexFunc must not
// keep the slice that it returns, nor call the informer. If it panics, this version is not in the
// index, and the panic is reported and counted.
type IndexFunc[T any] func(object *Object[T]) []string

// Indexers maps names to index functions.
type Indexers[T any] map[string]IndexFunc[T]

// NamespaceIndex is the name of the index that Lister.Namespace uses.
const NamespaceIndex = "namespace"

// ByKeySegment indexes by a segment of the key. The key is split at '/', and a leading '/' is ignored:
// segment 2 of "/registry/pods/ns/name" is "ns". Keys without the segment are not in the index.
func ByKeySegment[T any](segment int) IndexFunc[T] {
	return func(object *Object[T]) []string {
		if value, found := keySegment(object.Key, segment); found {
			return []string{value}
		}
		return nil
	}
}

func keySegment(key string, segment int) (string, bool) {
	rest, found := strings.TrimPrefix(key, "/"), true
	for range segment {
		if _, rest, found = strings.Cut(rest, "/"); !found {
			return "", false
		}
	}
	value, _, _ := strings.Cut(rest, "/")
	return value, segment >= 0
}

// indexer is a declared index.
type indexer[T any] struct {
	name string
	of   IndexFunc[T]
	// given maps each object of the newest state and of the pending changes to the values that the
	// function returned for it. A removal uses these values, because the function might return
	// others by now. Protected by the store's lock.
	given map[*Object[T]][]string
}

// bucket holds the objects of an index under one value. A bucket without objects is removed.
type bucket[T any] struct {
	value   string
	objects trie.Map[Object[T]]
}

// kinds holds the key functions that all maps of one informer share.
type kinds[T any] struct {
	objects *trie.Kind[Object[T]]
	buckets *trie.Kind[bucket[T]]
}

func newKinds[T any]() kinds[T] {
	return kinds[T]{
		objects: trie.NewKind(func(o *Object[T]) string { return o.Key }),
		buckets: trie.NewKind(func(b *bucket[T]) string { return b.value }),
	}
}

// values returns the function's values for an object, and calls the function if it was not called
// yet. The caller has the store's lock.
func (x *indexer[T]) values(o *Object[T], failed func(error)) []string {
	if o == nil {
		return nil
	}
	values, known := x.given[o]
	if !known {
		if x.given == nil {
			x.given = map[*Object[T]][]string{}
		}
		x.given[o] = nil // if the function ends this goroutine, the next one must not call it again
		values = x.call(o, failed)
		x.given[o] = values
	}
	return values
}

// call calls the function, and returns no values if it panics. The caller has the store's lock.
func (x *indexer[T]) call(o *Object[T], failed func(error)) (values []string) {
	returned := false
	defer func() {
		if returned {
			return
		}
		values = nil
		why := recover()
		if why == nil {
			why = "it ended its goroutine"
		}
		failed(&watchcore.Error{Code: watchcore.ErrPanic, Message: fmt.Sprintf(
			"the function of index %q panicked at %q: %v. The object is not in this index until it changes; correct the function", x.name, o.Key, why)})
	}()
	values = x.of(o)
	returned = true
	if len(values) > 1 {
		values = slices.Compact(slices.Sorted(slices.Values(values)))
	}
	return values
}

// forget drops the remembered values of objects that committed changes have replaced.
func (x *indexer[T]) forget(changes []entry[T]) {
	for _, e := range changes {
		if e.old != nil && e.old != e.new {
			delete(x.given, e.old)
		}
	}
}

// change returns the index after a change of one object, which has led from one map of all objects to the next. A bucket
// that has as many objects has the same ones, and shares that map: an informer of one namespace pays for no second map.
func (x *indexer[T]) change(index trie.Map[bucket[T]], from, to trie.Map[Object[T]], hash uint64, c change[T], failed func(error)) trie.Map[bucket[T]] {
	added := x.values(c.new, failed)
	for _, value := range x.given[c.old] {
		if slices.Contains(added, value) {
			continue
		}
		if b := index.Get(value); b != nil {
			left := to
			if c.new != nil || b.objects.Len() < from.Len() {
				left = b.objects.DeleteHash(hash, c.old.Key)
			}
			if left.Len() > 0 {
				index = index.Set(&bucket[T]{value, left})
			} else {
				index = index.Delete(value)
			}
		}
	}
	for _, value := range added {
		objects := trie.New(to.Kind())
		if b := index.Get(value); b != nil {
			objects = b.objects
		}
		if objects.Len() == from.Len() {
			objects = to
		} else {
			objects = objects.SetHash(hash, c.new)
		}
		index = index.Set(&bucket[T]{value, objects})
	}
	return index
}

// build makes the index of the objects of the newest state.
func (x *indexer[T]) build(objects trie.Map[Object[T]], k kinds[T], failed func(error)) trie.Map[bucket[T]] {
	return x.buildOf(objects, k, func(o *Object[T]) []string { return x.values(o, failed) })
}

// buildOlder makes the index of an older state. buildOlder remembers no values for objects that are not in
// the newest state.
func (x *indexer[T]) buildOlder(objects trie.Map[Object[T]], k kinds[T], failed func(error)) trie.Map[bucket[T]] {
	return x.buildOf(objects, k, func(o *Object[T]) []string {
		if values, known := x.given[o]; known {
			return values
		}
		return x.call(o, failed)
	})
}

func (x *indexer[T]) buildOf(objects trie.Map[Object[T]], k kinds[T], values func(*Object[T]) []string) trie.Map[bucket[T]] {
	sets := map[string]*trie.Builder[Object[T]]{}
	for o := range objects.All() {
		for _, value := range values(o) {
			set := sets[value]
			if set == nil {
				set = trie.New(k.objects).Builder()
				sets[value] = set
			}
			set.Set(o)
		}
	}
	index := trie.New(k.buckets).Builder()
	for value, set := range sets {
		of := set.Map()
		if of.Len() == objects.Len() {
			of = objects // see change
		}
		index.Set(&bucket[T]{value, of})
	}
	return index.Map()
}
