package watch

import (
	"math"
	"sync/atomic"
)

// member is a watcher for which publishers wait: one whose queue has the policy Wait.
type member struct {
	// base + taken is the sequence number at which a publisher waits for this watcher. It only grows.
	base  uint64
	taken atomic.Uint64
	// length is how many events of the taken ones lie in the watcher's channel still. nil: none.
	length atomic.Pointer[func() int]
	// awaited: a publisher sleeps until this watcher takes something.
	awaited atomic.Bool
	index   int
}

// limit is the sequence number that may not be published yet. The count is loaded before the
// channel's length, so that a watcher which moves an event into its channel meanwhile makes the limit
// lower than it is, and never higher.
func (m *member) limit() uint64 {
	limit := m.base + m.taken.Load()
	if length := m.length.Load(); length != nil {
		limit -= uint64((*length)())
	}
	return limit
}

// gate is what publishers pass: it knows the waiting watchers, and how far the publishers may go
// without looking at them. Its methods are called under the broadcaster's lock.
//
// A publisher that finds it shut marks the watcher that is in its way (awaited), looks once more,
// and sleeps on opened. A watcher that takes an event stores its count, then loads the mark. One of
// the two sees the other, since the atomics are sequentially consistent. A watcher that was marked
// goes on with the walk where the publisher stopped: it marks the next one that is in the way, or
// opens the gate. So the publisher is woken when it can go, and not by each of a thousand watchers.
type gate struct {
	freeUntil uint64 // sequence numbers below it may be published
	members   []*member
	checked   int    // members below this index let the present head pass: limits only grow
	least     uint64 // of their limits, as they were
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
	// The one that moved here may not have been looked at.
	g.checked = min(g.checked, i)
}

// shutFor is the watcher that has no place for the event with this number; nil where all have.
// The walk over the members happens once in as many events as the fullest queue has places, and
// continues where it stopped.
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

// open wakes the publisher that waits, if there is one and nobody is in its way any more. The channel
// has one place, and a publisher that is woken for nothing looks again.
func (g *gate) open(head uint64) {
	if g.shutFor(head) == nil {
		select {
		case g.opened <- struct{}{}:
		default:
		}
	}
}
