package trie

import (
	"slices"
	"sync/atomic"
)

// edit is one change, or those of a builder.
type edit[E any] struct {
	kind  *Kind[E]
	owner uint64 // 0: it writes to no node but those that this change makes
	old   *E     // what set or remove has replaced
}

// writable is the branch itself where the edit owns it, and a copy elsewhere.
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

// inserted is a copy with one slot more, and with a builder room for another one.
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

// remove takes a key out that is there.
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
			slots = append(slots, b.kids[i].slots()...) // leaves: a branch would have more items
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

// owners numbers the builders, so that none takes another's nodes for its own.
var owners atomic.Uint64

// Builder makes many changes at once: it copies a node only the first time. For one goroutine.
type Builder[E any] struct {
	edit[E]
	root ref[E]
}

// Builder begins with the map, which stays as it is.
func (m Map[E]) Builder() *Builder[E] {
	return &Builder[E]{edit: edit[E]{kind: m.kind, owner: owners.Add(1)}, root: m.root}
}

// Set puts an item in, and returns the one that had its key, nil where there was none.
func (b *Builder[E]) Set(item *E) *E {
	return b.SetHash(b.kind.Hash(b.kind.key(item)), item)
}

// SetHash is Set with the hash of the item's key.
func (b *Builder[E]) SetHash(hash uint64, item *E) *E {
	b.old = nil
	b.root = b.set(b.root, slot[E]{hash, item}, top)
	return b.old
}

// Delete takes a key out, and returns its item, nil where there was none.
func (b *Builder[E]) Delete(key string) *E {
	hash := b.kind.Hash(key)
	b.old = (Map[E]{b.kind, b.root}).GetHash(hash, key)
	if b.old != nil {
		b.root = b.remove(b.root, hash, key, top)
	}
	return b.old
}

// Map is what the builder has now. The builder may go on; it does not change this map.
func (b *Builder[E]) Map() Map[E] {
	b.owner = owners.Add(1)
	return Map[E]{b.kind, b.root}
}
