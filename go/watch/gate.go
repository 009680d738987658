package watch

import (
	"math"
	"sync/atomic"
)

// member is a watcher for which publishers wait: its queue has the policy Wait.
type member struct {
	// A publisher waits for this watcher at the sequence number base + taken, which only grows.
	base  uint64
	taken atomic.Uint64
	// length returns how many of the taken events are still in the watcher's channel. nil: none.
	length atomic.Pointer[func() int]
	// awaited is true while a publisher sleeps until this watcher takes an event.
	awaited atomic.Bool
	index   int
}

// limit returns the lowest sequence number that may not be published yet. limit loads the count before
// the channel's length: if the watcher moves an event into its channel in between, the result is
// too low, but never too high.
func (m *member) limit() uint64 {
	limit := m.base + m.taken.Load()
	if length := m.length.Load(); length != nil {
		limit -= uint64((*length)())
	}
	return limit
}

// gate admits publishers: it knows the Wait watchers, and how far the publishers may go without
// checking them. Its methods are called under the broadcaster's lock.
//
// A publisher that finds the gate shut marks the watcher that blocks it (awaited), checks once more, and
// sleeps on opened. A watcher that takes an event stores its count, then loads the mark. One of the two sees
// the other, because the atomics are sequentially consistent. A watcher that was marked continues the walk
// where the publisher stopped: it marks the next watcher that blocks, or opens the gate. So the publisher is
// woken when it can continue, and not by each of a thousand watchers.
type gate struct {
	freeUntil uint64 // sequence numbers below it may be published
	members   []*member
	checked   int    // members below this index admit the present head, and still will, because limits only grow
	least     uint64 // the minimum of their limits when they were checked
	opened    chan struct{}
}

func newGate() gate {
	return gate{freeUntil: math.MaxUint64, least: math.MaxUint64, opened: make(chan struct{}, 1)}
}

func (g *gate) add(m *member) {
	m.index = len(g.members)
	g.members = append(g.members, m)
	g.freeUntil = min(g.freeUntil, m.limit())
}

func (g *gate) remove(m *member) {
	i, last := m.index, len(g.members)-1
	if i > last || g.members[i] != m {
		return
	}
	g.members[i] = g.members[last]
	g.members[i].index = i
	g.members[last] = nil
	g.members = g.members[:last]
	// The member that moved here may not have been checked.
	g.checked = min(g.checked, i)
}

// shutFor returns a watcher that has no room for the event with this number; nil if all have. It walks over
// the members once per as many events as the fullest queue has free slots, and continues where it stopped.
func (g *gate) shutFor(head uint64) *member {
	if head < g.freeUntil {
		return nil
	}
	for ; g.checked < len(g.members); g.checked++ {
		m := g.members[g.checked]
		limit := m.limit()
		if limit <= head {
			m.awaited.Store(true)
			if limit = m.limit(); limit <= head {
				return m
			}
			m.awaited.Store(false)
		}
		g.least = min(g.least, limit)
	}
	g.freeUntil, g.checked, g.least = g.least, 0, math.MaxUint64
	return nil
}

// open wakes the publisher that waits, if there is one and no watcher blocks it any more. The
// channel has capacity 1, and a publisher that is woken in vain checks again.
func (g *gate) open(head uint64) {
	if g.shutFor(head) == nil {
		select {
		case g.opened <- struct{}{}:
		default:
		}
	}
}
