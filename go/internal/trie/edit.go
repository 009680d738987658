package trie

import (
	"slices"
	"sync/atomic"
)

// edit is one change, or the changes of a builder.
type edit[E any] struct {
	kind  *Kind[E]
	owner uint64 // 0: it writes only to nodes that this change makes
	old   *E     // the item that set or remove has replaced
}

// writable returns the branch itself if the edit owns it, and a copy otherwise.
func (e *edit[E]) writable(b *branch[E]) *branch[E] {
	if e.owner != 0 && b.owner == e.owner {
		return b
	}
	own := *b
	own.owner = e.owner
	return &own
}

func (e *edit[E]) leaf(slots []slot[E]) ref[E] {
	return ref[E]{leaf: &leaf[E]{owner: e.owner, slots: slots}}
}

// set puts a slot into a subtree whose children differ in the bits at shift.
func (e *edit[E]) set(at ref[E], s slot[E], shift int) ref[E] {
	if b := at.branch; b != nil {
		b = e.writable(b)
		kid := &b.kids[s.hash>>shift%width]
		*kid = e.set(*kid, s, shift-bits)
		if e.old == nil {
			b.count++
		}
		return ref[E]{branch: b}
	}
	if at.leaf == nil {
		return e.leaf([]slot[E]{s})
	}
	slots, owned := at.leaf.slots, e.owner != 0 && at.leaf.owner == e.owner
	i, found := slices.BinarySearchFunc(slots, s, e.kind.compare)
	switch {
	case found && owned:
		e.old, slots[i].item = slots[i].item, s.item
		return at
	case found:
		e.old = slots[i].item
		slots = slices.Clone(slots)
		slots[i] = s
		return e.leaf(slots)
	case owned && len(slots) < cap(slots):
		slots = slots[:len(slots)+1]
		copy(slots[i+1:], slots[i:])
		slots[i] = s
	default:
		slots = e.inserted(slots, i, s)
	}
	if len(slots) > most && shift > below {
		return e.split(slots, shift)
	}
	if owned {
		at.leaf.slots = slots
		return at
	}
	return e.leaf(slots)
}

// inserted returns a copy with one more slot, and for a builder with capacity for another one.
func (e *edit[E]) inserted(slots []slot[E], i int, s slot[E]) []slot[E] {
	room := len(slots) + 1
	if e.owner != 0 {
		room++
	}
	own := make([]slot[E], len(slots)+1, room)
	copy(own, slots[:i])
	own[i] = s
	copy(own[i+1:], slots[i:])
	return own
}

// split makes the subtree of slots that are too many for a leaf.
func (e *edit[E]) split(slots []slot[E], shift int) ref[E] {
	b := &branch[E]{owner: e.owner, count: len(slots)}
	for child := range uint64(width) {
		var own []slot[E]
		own, slots = part(slots, child, shift)
		switch {
		case len(own) > most && shift-bits > below:
			b.kids[child] = e.split(own, shift-bits)
		case len(own) > 0:
			b.kids[child] = e.leaf(slices.Clone(own))
		}
	}
	return ref[E]{branch: b}
}

// remove removes a key, which must be present.
func (e *edit[E]) remove(at ref[E], hash uint64, key string, shift int) ref[E] {
	if b := at.branch; b != nil {
		b = e.writable(b)
		kid := &b.kids[hash>>shift%width]
		*kid = e.remove(*kid, hash, key, shift-bits)
		if b.count--; b.count > most {
			return ref[E]{branch: b}
		}
		slots := make([]slot[E], 0, b.count)
		for i := range b.kids {
			slots = append(slots, b.kids[i].slots()...) // the children are leaves: a branch would have more items
		}
		return e.leaf(slots)
	}
	slots := at.leaf.slots
	i := slices.IndexFunc(slots, func(s slot[E]) bool { return s.hash == hash && e.kind.key(s.item) == key })
	e.old = slots[i].item
	switch {
	case len(slots) == 1:
		return ref[E]{}
	case e.owner != 0 && at.leaf.owner == e.owner:
		at.leaf.slots = slices.Delete(slots, i, i+1)
		return at
	}
	own := make([]slot[E], 0, len(slots)-1)
	return e.leaf(append(append(own, slots[:i]...), slots[i+1:]...))
}

// owners numbers the builders, so that none writes to another's nodes.
var owners atomic.Uint64

// Builder makes many changes at once, and copies each node at most once. One goroutine may use it.
type Builder[E any] struct {
	edit[E]
	root ref[E]
}

// Builder returns a builder that starts with the map, which stays unchanged.
func (m Map[E]) Builder() *Builder[E] {
	return &Builder[E]{edit: edit[E]{kind: m.kind, owner: owners.Add(1)}, root: m.root}
}

// Set puts an item in, and returns the item that had its key, or nil.
func (b *Builder[E]) Set(item *E) *E {
	return b.SetHash(b.kind.Hash(b.kind.key(item)), item)
}

// SetHash is Set with the hash of the item's key.
func (b *Builder[E]) SetHash(hash uint64, item *E) *E {
	b.old = nil
	b.root = b.set(b.root, slot[E]{hash, item}, top)
	return b.old
}

// Delete removes a key, and returns its item, or nil.
func (b *Builder[E]) Delete(key string) *E {
	hash := b.kind.Hash(key)
	b.old = (Map[E]{b.kind, b.root}).GetHash(hash, key)
	if b.old != nil {
		b.root = b.remove(b.root, hash, key, top)
	}
	return b.old
}

// Map returns the builder's present content. Later changes of the builder do not change this map.
func (b *Builder[E]) Map() Map[E] {
	b.owner = owners.Add(1)
	return Map[E]{b.kind, b.root}
}
