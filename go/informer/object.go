package informer

import (
	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/trie"
)

// Object is one decoded value with its key. Listers, indexes and the handlers of an informer share one
// pointer, so do not modify the object, nor anything that its Value points to. An update makes a new Object.
type Object[T any] struct {
	Key   string
	Value T // the decoder's result

	Revision       uint64 // of the change that gave the key this value
	CreateRevision uint64 // of the change that created the key; 0 if the source does not report it
	Version        uint64 // 1 + the number of changes since then; 0 if the source does not report it
}

// change is one change for a handler: old is nil if the object is new, new is nil if it is deleted.
type change[T any] struct{ old, new *Object[T] }

func (c change[T]) key() *string {
	if c.new != nil {
		return &c.new.Key
	}
	return &c.old.Key
}

// state is everything that an informer knows at one moment. state is immutable.
type state[T any] struct {
	objects  trie.Map[Object[T]]
	indexes  []trie.Map[bucket[T]] // in the order of indexers
	indexers []*indexer[T]

	next     uint64             // the number of the first journal entry that is not included
	position watchcore.Position // everything up to it is included
	stamp    int64              // when it was made, by the clock, in ns of Unix time
	synced   bool               // the initial state is complete
}

// entry is a change with the state after it.
type entry[T any] struct {
	change[T]
	after *state[T]
}

// before reports whether position a lies before b: a higher epoch is a later history.
func before(a, b watchcore.Position) bool {
	return a.Epoch < b.Epoch || a.Epoch == b.Epoch && a.Revision < b.Revision
}
