package informer

import (
	"watchcore"
	"watchcore/internal/trie"
)

// Object is one decoded value with its key. Whoever asks for it gets the same pointer:
// listers, indexes and the handlers of an informer share it, so nobody may write to it,
// nor to what its Value points to. An update makes a new Object.
type Object[T any] struct {
	Key   string
	Value T // what the decoder made

	Revision       uint64 // of the change that gave the key this value
	CreateRevision uint64 // of the change that created the key; 0 where the source does not say
	Version        uint64 // 1 + the number of changes since then; 0 where the source does not say
}

// change is what a handler is given: old is nil where the object is new, new where it is gone.
type change[T any] struct{ old, new *Object[T] }

func (c change[T]) key() *string {
	if c.new != nil {
		return &c.new.Key
	}
	return &c.old.Key
}

// state is everything that an informer knows at one moment. It never changes.
type state[T any] struct {
	objects  trie.Map[Object[T]]
	indexes  []trie.Map[bucket[T]] // by the place of their indexer
	indexers []*indexer[T]

	next     uint64             // the number of the first entry of the journal that is not in it
	position watchcore.Position // everything up to it is in it
	stamp    int64              // when it was made, by the clock, in ns of Unix time
	synced   bool               // the initial state is complete
}

// entry is a change with the state after it.
type entry[T any] struct {
	change[T]
	after *state[T]
}

// before says whether a position lies before another one: a later epoch is a later history.
func before(a, b watchcore.Position) bool {
	return a.Epoch < b.Epoch || a.Epoch == b.Epoch && a.Revision < b.Revision
}
