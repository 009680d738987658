package watch

import "testing"

// A watcher takes an event at each point at which a publisher looks at it: before the publisher has
// marked it, and after. Either the publisher sees the place, or the watcher sees the mark. The look
// calls the length of the watcher's channel, which does here what the watcher would do meanwhile.
func TestBroadcasterGateLosesNoTake(t *testing.T) {
	for _, takesAt := range []int{1, 2} {
		g := newGate()
		m := &member{base: 5}
		looks, woken := 0, false
		var length func() int
		length = func() int {
			if looks++; looks == takesAt {
				m.taken.Add(1)
				woken = m.awaited.Load() && m.awaited.Swap(false)
			}
			return 0
		}
		g.add(m)
		m.length.Store(&length)
		if waits := g.shutFor(5) != nil; waits && !woken {
			t.Fatalf("the watcher took at look %d: the publisher sleeps, and nobody wakes it", takesAt)
		}
		if g.shutFor(5) != nil {
			t.Fatalf("the watcher took at look %d: a publisher that was woken finds the gate shut", takesAt)
		}
	}
}

// The walk continues where it stopped, and a watcher that moves into the place of one that has gone is
// looked at.
func TestBroadcasterGateLooksAtWhoMoved(t *testing.T) {
	g := newGate()
	var members []*member
	for i := range 4 {
		m := &member{base: 5}
		if i < 2 {
			m.base = 100
		}
		members = append(members, m)
		g.add(m)
	}
	if g.shutFor(5) != members[2] {
		t.Fatal("the third one is in the way")
	}
	// The last one, which was not looked at, moves into the first place, which was.
	g.remove(members[0])
	if g.shutFor(5) != members[3] {
		t.Fatal("the one that moved is in the way")
	}
	g.remove(members[3])
	g.remove(members[3])
	if g.shutFor(5) != members[2] {
		t.Fatal("the third one still is")
	}
	members[2].taken.Add(1)
	if g.shutFor(5) != nil || g.freeUntil != 6 {
		t.Fatalf("nobody is in the way up to %d", g.freeUntil)
	}
	g.remove(members[2])
	if g.shutFor(6) != nil || g.shutFor(99) != nil || g.shutFor(100) != members[1] {
		t.Fatal("the second one has a place up to 100")
	}
}
