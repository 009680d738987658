package check

import (
	"fmt"
	"slices"
)

// Result is what a watcher received, in numbers.
type Result struct {
	Sessions, Lists, Events int
	// Skipped are the events that a difference stood for.
	Skipped int
}

// ContentError says that an object is not what etcd has at its revision.
type ContentError struct{ Got, Want Digest }

func (e *ContentError) Error() string { return "the object has another content" }

// Check compares what a watcher received with what happened. The first session begins with a list. Each later one continues where the one
// before it ended, or lists anew, at no older revision. The watcher ended when it had what happened up to the revision until.
func Check(h *History, log *Log, until int64) (Result, error) {
	w := walk{expected: log.View.Expected(h.Changes()), difference: log.Difference, have: State{}}
	sessions := log.Sessions()
	for number, s := range sessions {
		if err := w.session(s); err != nil {
			return w.Result, fmt.Errorf("%s: session %d: %w", log.Name, number, err)
		}
	}
	if !w.began {
		return w.Result, fmt.Errorf("%s: it never had a list", log.Name)
	}
	if err := w.finish(until); err != nil {
		return w.Result, fmt.Errorf("%s: at the end: %w", log.Name, err)
	}
	return w.Result, nil
}

// walk is how far a watcher has come.
type walk struct {
	Result
	expected   []Event
	difference bool

	began   bool
	have    State
	next    int   // of expected
	reached int64 // the highest revision that the watcher knows of
}

func (w *walk) session(s Session) error {
	w.Sessions++
	events := s.Events
	var err error
	switch s.Start {
	case Listed:
		err = w.list(s.Revision, s.Items)
	case Streamed:
		end := slices.IndexFunc(events, func(e Event) bool { return e.EndsList })
		if end < 0 {
			return nil // the list was cut off: the watcher lists anew
		}
		items := State{}
		for _, e := range events[:end] {
			items.apply(e)
		}
		w.Events += end
		err = w.list(events[end].Revision, items)
		events = events[end+1:]
	case Resumed:
		if s.Revision != w.reached {
			err = fmt.Errorf("resumed behind %d, but it had received %d", s.Revision, w.reached)
		}
	case Printed:
		events, err = w.printed(events)
	}
	if err != nil {
		return err
	}
	for number, e := range events {
		if err := w.event(e); err != nil {
			return fmt.Errorf("event %d (%v): %w", number, e, err)
		}
	}
	return nil
}

// list takes a list, which is the state of its revision.
func (w *walk) list(revision int64, items State) error {
	if revision < w.reached {
		return fmt.Errorf("back in time: a list of revision %d behind %d", revision, w.reached)
	}
	if wrong := items.Differs(stateAt(w.expected, revision)); wrong != "" {
		return fmt.Errorf("the list of revision %d: %s", revision, wrong)
	}
	w.began, w.have, w.reached, w.next = true, items, revision, above(w.expected, revision)
	w.Lists++
	return nil
}

// printed takes the list that a session begins with and that does not say where it ends: as many events as are the state right before the
// next one. It returns the events behind.
func (w *walk) printed(events []Event) ([]Event, error) {
	most := 0
	for most < len(events) && events[most].Type == Added && (most == 0 || events[most-1].Key < events[most].Key) {
		most++
	}
	for n := most; n >= 0; n-- {
		items := State{}
		for _, e := range events[:n] {
			items.apply(e)
		}
		for _, revision := range w.printedAt(events[n:]) {
			if revision >= w.reached && items.Differs(stateAt(w.expected, revision)) == "" {
				w.Events += n
				return events[n:], w.list(revision, items)
			}
		}
	}
	return nil, fmt.Errorf("no list of it is a state at or behind revision %d", w.reached)
}

// printedAt are the revisions that a list may have before these events.
func (w *walk) printedAt(events []Event) []int64 {
	if len(events) > 0 {
		return []int64{events[0].Revision - 1}
	}
	revisions := []int64{w.reached}
	for _, e := range w.expected[w.next:] {
		revisions = append(revisions, e.Revision)
	}
	return revisions
}

func (w *walk) event(e Event) error {
	if e.Type == Bookmark {
		return w.bookmark(e.Revision)
	}
	w.Events++
	if w.difference {
		return w.newest(e)
	}
	if w.next == len(w.expected) || e.Revision < w.expected[w.next].Revision {
		return fmt.Errorf("doubled or out of order: it had received %d", w.reached)
	}
	want := w.expected[w.next]
	switch {
	case e.Revision > want.Revision:
		return fmt.Errorf("lost: %v", want)
	case e.Key != want.Key:
		return fmt.Errorf("that revision is %v", want)
	case e.Type != want.Type:
		return fmt.Errorf("the type is not %s", want.Type)
	case e.Digest != want.Digest:
		return &ContentError{Got: e.Digest, Want: want.Digest}
	}
	w.have.apply(e)
	w.next++
	w.reached = e.Revision
	return nil
}

// newest takes an event where others may be missing before it.
func (w *walk) newest(e Event) error {
	if e.Revision <= w.reached {
		return fmt.Errorf("doubled or out of order: it had received %d", w.reached)
	}
	at := above(w.expected, e.Revision-1)
	if at == len(w.expected) || w.expected[at].Revision != e.Revision || w.expected[at].Key != e.Key {
		return fmt.Errorf("never happened")
	}
	want := w.expected[at]
	_, has := w.have[e.Key]
	switch {
	case want.Type == Deleted && !has:
		return fmt.Errorf("deleted, but it was not there")
	case want.Type != Deleted && has:
		want.Type = Modified
	case want.Type != Deleted:
		want.Type = Added
	}
	switch {
	case e.Type != want.Type:
		return fmt.Errorf("the type is not %s", want.Type)
	case e.Digest != want.Digest:
		return &ContentError{Got: e.Digest, Want: want.Digest}
	}
	w.Skipped += at - w.next
	w.have.apply(e)
	w.next, w.reached = at+1, e.Revision
	return nil
}

// bookmark takes a bookmark: everything up to its revision has been received.
func (w *walk) bookmark(revision int64) error {
	if revision < w.reached {
		return fmt.Errorf("back in time: it had received %d", w.reached)
	}
	if w.difference {
		if wrong := w.have.Differs(stateAt(w.expected, revision)); wrong != "" {
			return fmt.Errorf("lost: %s", wrong)
		}
		at := above(w.expected, revision)
		w.Skipped += at - w.next
		w.next = at
	} else if w.next < len(w.expected) && w.expected[w.next].Revision <= revision {
		return fmt.Errorf("lost: %v", w.expected[w.next])
	}
	w.reached = revision
	return nil
}

// finish compares the last state.
func (w *walk) finish(until int64) error {
	if w.next < len(w.expected) && w.expected[w.next].Revision <= until && !w.difference {
		return fmt.Errorf("lost: %v", w.expected[w.next])
	}
	until = max(until, w.reached)
	if wrong := w.have.Differs(stateAt(w.expected, until)); wrong != "" {
		return fmt.Errorf("%s", wrong)
	}
	w.Skipped += above(w.expected, until) - w.next
	return nil
}
