package trie

// Diff iterates over the differences between two maps of one [Kind]: it calls visit with the old
// item and the new one of a key, nil if there is none. If visit returns false, the iteration ends
// and Diff returns false. Two items are equal if their pointers are.
//
// Diff skips nodes that both maps share, so its cost is proportional to the changes, not to the
// size of the maps.
func Diff[E any](old, new Map[E], visit func(old, new *E) bool) bool {
	kind := old.kind
	if kind == nil {
		kind = new.kind
	}
	d := differ[E]{kind, visit}
	return d.refs(old.root, new.root, top)
}

type differ[E any] struct {
	kind  *Kind[E]
	visit func(old, new *E) bool
}

// side is a subtree of one map: a branch, or slots.
type side[E any] struct {
	branch *branch[E]
	slots  []slot[E]
}

// child takes the child at an index: the branch's child, or the slots with that index at the
// beginning of the remaining ones.
func (s *side[E]) child(i uint64, shift int) (child side[E]) {
	if s.branch != nil {
		r := s.branch.kids[i]
		return side[E]{r.branch, r.slots()}
	}
	child.slots, s.slots = part(s.slots, i, shift)
	return child
}

func (d *differ[E]) refs(old, new ref[E], shift int) bool {
	return old == new || d.sides(side[E]{old.branch, old.slots()}, side[E]{new.branch, new.slots()}, shift)
}

func (d *differ[E]) sides(old, new side[E], shift int) bool {
	switch {
	case old.branch == nil && new.branch == nil:
		return d.slots(old.slots, new.slots)
	case old.branch != nil && new.branch != nil:
		for i := range old.branch.kids {
			if !d.refs(old.branch.kids[i], new.branch.kids[i], shift-bits) {
				return false
			}
		}
		return true
	}
	for i := range uint64(width) {
		if !d.sides(old.child(i, shift), new.child(i, shift), shift-bits) {
			return false
		}
	}
	return true
}

// slots merges two leaves.
func (d *differ[E]) slots(old, new []slot[E]) bool {
	for len(old) > 0 && len(new) > 0 {
		var a, b *E
		order := d.kind.compare(old[0], new[0])
		if order <= 0 {
			a, old = old[0].item, old[1:]
		}
		if order >= 0 {
			b, new = new[0].item, new[1:]
		}
		if a != b && !d.visit(a, b) {
			return false
		}
	}
	for _, s := range old {
		if !d.visit(s.item, nil) {
			return false
		}
	}
	for _, s := range new {
		if !d.visit(nil, s.item) {
			return false
		}
	}
	return true
}
