package history

import "fmt"

// Check compares what a client was told with what happened, up to the end of both: nil where each change was told once,
// as what it was for this client and in its order, but for those that a later list of the client contains and those of a
// gap. A revision of several changes may be told again, whole as far as it had been told: to a client that resumes there. No
// list and no bookmark may be of a revision below one that the client was told of before: it would go back in time.
func (h *History) Check(log *Log) error {
	changes, gaps := h.scope(log.Prefix)
	w := &walk{changes: changes, gaps: gaps, have: map[string]int64{}}
	for number, entry := range log.copied() {
		err := w.forward(entry)
		if err == nil {
			err = w.take(entry)
		}
		if err != nil {
			return fmt.Errorf("%s (%s): entry %d (%s): %w", log.Name, log.Prefix, number, describe(entry), err)
		}
	}
	if err := w.finish(); err != nil {
		return fmt.Errorf("%s (%s): at the end: %w", log.Name, log.Prefix, err)
	}
	return nil
}

func describe(entry Entry) string {
	if entry.Kind == Happened {
		return fmt.Sprintf("%s %s at %d", entry.Type, entry.Key, entry.Revision)
	}
	return fmt.Sprintf("%s at %d", entry.Kind, entry.Revision)
}

// A walk is how far the client has come. Changes below next have been told; those of the revision in which next lies
// may have been told in another order than here, and are in told then.
type walk struct {
	changes []Change
	gaps    []Gap
	have    map[string]int64
	next    int
	told    map[int]bool
	// Changes of a revision that is told again and that are still to come.
	again map[int]bool
	// A list without a revision has been read: where it belongs is found when the next event comes.
	floating bool
	started  bool
	// The highest revision that the client was told of.
	reached int64
	// The state behind the gap in which the client is, once it was needed.
	behind map[string]int64
}

// forward refuses what goes back in time. Events have a rule of their own, by which a revision may be told again.
func (w *walk) forward(entry Entry) error {
	if entry.Kind != Happened && entry.Revision != 0 && entry.Revision < w.reached {
		return fmt.Errorf("back in time: it had been told of revision %d", w.reached)
	}
	w.reached = max(w.reached, entry.Revision)
	return nil
}

func (w *walk) take(entry Entry) error {
	switch entry.Kind {
	case Listed:
		return w.list(entry)
	case Happened:
		if !w.started {
			return fmt.Errorf("an event before any list")
		}
		return w.event(entry)
	case Marked:
		return w.mark(entry.Revision)
	}
	return fmt.Errorf("unknown kind")
}

func (w *walk) list(entry Entry) error {
	w.started = true
	w.again = nil
	w.have = make(map[string]int64, len(entry.Items))
	for key, revision := range entry.Items {
		w.have[key] = revision
	}
	w.told = nil
	w.floating = entry.Revision == 0
	if w.floating {
		return nil
	}
	w.next = w.above(entry.Revision)
	return w.compare(entry.Revision)
}

// above is the index of the first change above a revision.
func (w *walk) above(revision int64) int {
	low, high := 0, len(w.changes)
	for low < high {
		middle := (low + high) / 2
		if w.changes[middle].Revision > revision {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low
}

// compare says how the client's state differs from etcd's as of a revision.
func (w *walk) compare(revision int64) error {
	if difference := Difference(w.have, stateOf(w.changes, revision)); difference != "" {
		return fmt.Errorf("its state is not that of revision %d: %s", revision, difference)
	}
	return nil
}

// land finds where a list without a revision was: right before the next thing that the client was told.
func (w *walk) land(before int64) error {
	if !w.floating {
		return nil
	}
	w.floating = false
	w.next = w.above(before - 1)
	if w.inGap() != nil {
		return nil
	}
	err := w.compare(before - 1)
	// Or at that revision, which is then told again.
	if last := w.above(before); err != nil && last-w.next > 1 && w.compare(before) == nil {
		w.next = last
		return nil
	}
	return err
}

// repeat takes a change that was told before, where it is one of several of its revision and that is the last one told.
func (w *walk) repeat(entry Entry) (bool, error) {
	from, to := w.above(entry.Revision-1), w.above(entry.Revision)
	at := from
	for at < to && w.changes[at].Key != entry.Key {
		at++
	}
	was := at < to && to-from > 1 && (w.told[at] || to == w.next)
	if !was {
		return false, w.whole()
	}
	if !w.again[at] {
		// The connection may have broken here, too.
		w.again = map[int]bool{}
		for i := from; i < to; i++ {
			if w.told[i] || to == w.next {
				w.again[i] = true
			}
		}
	}
	delete(w.again, at)
	if w.changes[at].Deleted != (entry.Type == "DELETED") {
		return true, fmt.Errorf("told again as %s", entry.Type)
	}
	return true, nil
}

// whole says whether what was told again was told as far as before.
func (w *walk) whole() error {
	if len(w.again) > 0 {
		return fmt.Errorf("lost: a revision was told again, and %d changes of it were not", len(w.again))
	}
	return nil
}

// inGap is the gap in which the next change lies.
func (w *walk) inGap() *Gap {
	if w.next == len(w.changes) {
		return nil
	}
	for i := range w.gaps {
		if next := w.changes[w.next].Revision; w.gaps[i].From < next && next <= w.gaps[i].To {
			return &w.gaps[i]
		}
	}
	return nil
}

// leave ends a gap, if the client is in one and what it was told lies behind it.
func (w *walk) leave(revision int64) error {
	gap := w.inGap()
	if gap == nil || revision <= gap.To {
		return nil
	}
	w.next = w.above(gap.To)
	w.told, w.behind = nil, nil
	return w.compare(gap.To)
}

func (w *walk) event(entry Entry) error {
	if err := w.land(entry.Revision); err != nil {
		return err
	}
	if err := w.leave(entry.Revision); err != nil {
		return err
	}
	if gap := w.inGap(); gap != nil {
		return w.eventInGap(gap, entry)
	}
	if again, err := w.repeat(entry); again || err != nil {
		return err
	}
	if w.next == len(w.changes) {
		return fmt.Errorf("doubled: all %d changes had been told", len(w.changes))
	}
	revision := w.changes[w.next].Revision
	if entry.Revision < revision {
		return fmt.Errorf("doubled or out of order: everything below %d had been told", revision)
	}
	if entry.Revision > revision {
		lost := w.changes[w.next]
		for i := w.next; w.told[i]; i++ {
			lost = w.changes[i+1]
		}
		return fmt.Errorf("lost: the change of %s at %d was not told", lost.Key, lost.Revision)
	}
	for i := w.next; i < len(w.changes) && w.changes[i].Revision == revision; i++ {
		if w.changes[i].Key == entry.Key {
			return w.apply(i, entry)
		}
	}
	return fmt.Errorf("never happened: revision %d changed other keys", revision)
}

// apply takes a change as told, and goes to the next revision when it was the last of its own.
func (w *walk) apply(index int, entry Entry) error {
	change := w.changes[index]
	_, there := w.have[change.Key]
	want := "ADDED"
	if change.Deleted {
		want = "DELETED"
	} else if there {
		want = "MODIFIED"
	}
	if entry.Type != want && (entry.Type != Applied || want == "DELETED") {
		return fmt.Errorf("told as %s, was %s", entry.Type, want)
	}
	if change.Deleted {
		delete(w.have, change.Key)
	} else {
		w.have[change.Key] = change.Revision
	}
	if w.told == nil {
		w.told = map[int]bool{}
	}
	w.told[index] = true
	for i := w.next; i < len(w.changes) && w.changes[i].Revision == change.Revision; i++ {
		if !w.told[i] {
			return nil
		}
	}
	w.next = w.above(change.Revision)
	w.told = nil
	return nil
}

// eventInGap takes one event of the difference.
func (w *walk) eventInGap(gap *Gap, entry Entry) error {
	have, there := w.have[entry.Key]
	if entry.Type == "DELETED" {
		if !there {
			return fmt.Errorf("deleted in a gap, but was not there")
		}
		delete(w.have, entry.Key)
		return nil
	}
	if w.behind == nil {
		w.behind = stateOf(w.changes, gap.To)
	}
	if w.behind[entry.Key] != entry.Revision {
		return fmt.Errorf("told in the gap (%d, %d], behind which it is at %d", gap.From, gap.To, w.behind[entry.Key])
	}
	if there && have == entry.Revision {
		return fmt.Errorf("doubled in a gap")
	}
	if entry.Type != Applied && there != (entry.Type == "MODIFIED") {
		return fmt.Errorf("told in a gap as %s, but the client had it: %v", entry.Type, there)
	}
	w.have[entry.Key] = entry.Revision
	return nil
}

func (w *walk) mark(revision int64) error {
	if w.floating {
		if err := w.land(revision + 1); err != nil {
			return err
		}
	}
	if err := w.leave(revision + 1); err != nil {
		return err
	}
	if gap := w.inGap(); gap == nil && w.next < len(w.changes) && w.changes[w.next].Revision <= revision {
		lost := w.changes[w.next]
		return fmt.Errorf("lost: the change of %s at %d was not told", lost.Key, lost.Revision)
	}
	return nil
}

func (w *walk) finish() error {
	if !w.started {
		return fmt.Errorf("it never read a list")
	}
	last := int64(1) << 62
	if err := w.land(last); err != nil {
		return err
	}
	if err := w.leave(last); err != nil {
		return err
	}
	// A revision that is told again may be cut off by the end of the log: all of it was told before.
	if w.next < len(w.changes) {
		lost := w.changes[w.next]
		return fmt.Errorf("lost: the change of %s at %d was not told, nor anything behind it", lost.Key, lost.Revision)
	}
	return w.compare(last)
}
