package check

import (
	"crypto/sha256"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

func text(s string) Digest { return sha256.Sum256([]byte(s)) }

func put(h *History, key string, revision int64, tier, content string) {
	h.Put(&Object{
		Key: key, Revision: revision, Labels: labels.Set{"tier": tier}, Fields: fields.Set{"metadata.namespace": key[:1]},
		Whole: text(content), Metadata: text("metadata of " + content),
	})
}

// happened is a history whose objects come into the view of tier=a and leave it.
func happened() *History {
	h := &History{}
	put(h, "n/x", 10, "a", "x1")
	put(h, "n/y", 11, "b", "y1")
	put(h, "n/x", 13, "a", "x2")
	put(h, "n/y", 14, "a", "y2")
	put(h, "n/x", 16, "b", "x3")
	h.Delete("n/y", 18)
	put(h, "n/y", 20, "a", "y3")
	put(h, "n/z", 21, "a", "z1")
	return h
}

var tierA = View{Labels: labels.SelectorFromSet(labels.Set{"tier": "a"})}

// received is what a watcher of tier=a must have: a list at 12, events, a break behind a bookmark, more events.
func received() []Session {
	return []Session{
		{Start: Listed, Revision: 12, Items: State{"n/x": {10, text("x1")}}},
		{Start: Resumed, Revision: 12, Events: []Event{
			{Type: Modified, Key: "n/x", Revision: 13, Digest: text("x2")},
			{Type: Added, Key: "n/y", Revision: 14, Digest: text("y2")},
			{Type: Bookmark, Revision: 15},
		}},
		{Start: Resumed, Revision: 15, Events: []Event{
			{Type: Deleted, Key: "n/x", Revision: 16, Digest: text("x2")},
			{Type: Deleted, Key: "n/y", Revision: 18, Digest: text("y2")},
			{Type: Added, Key: "n/y", Revision: 20, Digest: text("y3")},
			{Type: Added, Key: "n/z", Revision: 21, Digest: text("z1")},
		}},
	}
}

func checked(difference bool, sessions []Session) (Result, error) {
	log := &Log{Name: "w", View: tierA, Difference: difference}
	for _, s := range sessions {
		log.Begin(s)
	}
	return Check(happened(), log, 21)
}

func TestRightLogPasses(t *testing.T) {
	if result, err := checked(false, received()); err != nil || result.Events != 6 || result.Lists != 1 {
		t.Fatalf("%+v, %v", result, err)
	}
}

// Each thing that can be wrong is found, and said.
func TestWrongLogsFail(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(s []Session) []Session
		says  string
	}{
		"an event is lost":            {func(s []Session) []Session { s[1].Events = slices.Delete(s[1].Events, 0, 1); return s }, "lost: MODIFIED n/x at 13"},
		"an event before a bookmark":  {func(s []Session) []Session { s[1].Events = slices.Delete(s[1].Events, 1, 2); return s }, "lost: ADDED n/y at 14"},
		"the last event is lost":      {func(s []Session) []Session { s[2].Events = s[2].Events[:3]; return s }, "at the end: lost: ADDED n/z at 21"},
		"an event is doubled":         {func(s []Session) []Session { s[2].Events = slices.Insert(s[2].Events, 1, s[2].Events[0]); return s }, "doubled"},
		"two events change places":    {func(s []Session) []Session { e := s[2].Events; e[0], e[1] = e[1], e[0]; return s }, "lost: DELETED n/x at 16"},
		"the type is another":         {func(s []Session) []Session { s[1].Events[1].Type = Modified; return s }, "the type is not ADDED"},
		"the object is another":       {func(s []Session) []Session { s[1].Events[0].Digest = text("x1"); return s }, "another content"},
		"the deleted object is newer": {func(s []Session) []Session { s[2].Events[0].Digest = text("x3"); return s }, "another content"},
		"the key is another":          {func(s []Session) []Session { s[1].Events[0].Key = "n/y"; return s }, "that revision is MODIFIED n/x"},
		"a list lacks an object":      {func(s []Session) []Session { s[0].Items = State{}; return s }, "n/x at 10 is missing"},
		"a list has an old object": {func(s []Session) []Session {
			s[0].Revision = 14
			s[1].Events = s[1].Events[2:]
			s[1].Revision = 14
			return s
		}, "n/x is at 10, not at 13"},
		"a list has another object":    {func(s []Session) []Session { s[0].Items["n/q"] = Version{9, text("q")}; return s }, "n/q at 9 should not be there"},
		"a list goes back":             {func(s []Session) []Session { return append(s, s[0]) }, "back in time"},
		"a bookmark goes back":         {func(s []Session) []Session { s[1].Events[2].Revision = 13; s[2].Revision = 13; return s }, "back in time"},
		"a watch is resumed elsewhere": {func(s []Session) []Session { s[2].Revision = 14; return s }, "resumed behind 14"},
		"there is no list":             {func(s []Session) []Session { return nil }, "never had a list"},
	} {
		if _, err := checked(false, c.spoil(received())); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A difference may leave versions out, and no deletion of what the watcher has.
func TestDifferencesMayLeaveVersionsOut(t *testing.T) {
	catchUp := func() []Session {
		s := received()[:1]
		return append(s, Session{Start: Resumed, Revision: 12, Events: []Event{
			{Type: Deleted, Key: "n/x", Revision: 16, Digest: text("x2")},
			{Type: Added, Key: "n/y", Revision: 20, Digest: text("y3")},
			{Type: Added, Key: "n/z", Revision: 21, Digest: text("z1")},
		}})
	}
	if result, err := checked(true, catchUp()); err != nil || result.Skipped != 3 {
		t.Fatalf("%+v, %v", result, err)
	}
	if _, err := checked(false, catchUp()); err == nil {
		t.Error("it passes for a watcher that may lose nothing")
	}
	for name, c := range map[string]struct {
		spoil func(e []Event) []Event
		says  string
	}{
		"a deletion is lost":      {func(e []Event) []Event { return e[1:] }, "n/x at 10 should not be there"},
		"an object is lost":       {func(e []Event) []Event { return e[:2] }, "n/z at 21 is missing"},
		"the order is another":    {func(e []Event) []Event { e[1], e[2] = e[2], e[1]; return e }, "doubled or out of order"},
		"nobody had the object":   {func(e []Event) []Event { e[0].Key, e[0].Revision, e[0].Digest = "n/y", 18, text("y2"); return e }, "was not there"},
		"it never happened":       {func(e []Event) []Event { e[1].Revision = 19; return e }, "never happened"},
		"the type is another":     {func(e []Event) []Event { e[1].Type = Modified; return e }, "the type is not ADDED"},
		"a bookmark is too early": {func(e []Event) []Event { return slices.Insert(e, 1, Event{Type: Bookmark, Revision: 20}) }, "lost: n/y at 20"},
	} {
		s := catchUp()
		s[1].Events = c.spoil(s[1].Events)
		if _, err := checked(true, s); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A streamed list is the events before its bookmark; one that was cut off does not count.
func TestStreamedLists(t *testing.T) {
	x := Event{Type: Added, Key: "n/x", Revision: 10, Digest: text("x1")}
	sessions := append([]Session{
		{Start: Streamed, Events: []Event{{Type: Added, Key: "n/q", Revision: 9}}},
		{Start: Streamed, Events: append([]Event{x, {Type: Bookmark, Revision: 12, EndsList: true}}, received()[1].Events...)},
	}, received()[2])
	if result, err := checked(false, sessions); err != nil || result.Lists != 1 {
		t.Fatalf("%+v, %v", result, err)
	}
	sessions[1].Events = sessions[1].Events[1:]
	if _, err := checked(false, sessions); err == nil || !strings.Contains(err.Error(), "n/x at 10 is missing") {
		t.Errorf("a list without its object: %v", err)
	}
}

// A printed list does not say where it ends.
func TestPrintedLists(t *testing.T) {
	added := func(key string, revision int64, content string) Event {
		return Event{Type: Added, Key: key, Revision: revision, Digest: text(content)}
	}
	sessions := func() []Session {
		return []Session{
			{Start: Printed, Events: slices.Concat([]Event{added("n/x", 10, "x1")}, received()[1].Events[:2])},
			{Start: Printed, Events: []Event{added("n/y", 20, "y3"), added("n/z", 21, "z1")}}, // the second one is an event, or of the list
		}
	}
	if result, err := checked(false, sessions()); err != nil || result.Lists != 2 {
		t.Fatalf("%+v, %v", result, err)
	}
	for name, spoil := range map[string]func(s []Session){
		"an event is lost":    func(s []Session) { s[0].Events = slices.Delete(s[0].Events, 1, 2) },
		"the list goes back":  func(s []Session) { s[1].Events = []Event{added("n/x", 10, "x1")} },
		"the list lacks one":  func(s []Session) { s[1].Events = s[1].Events[1:] },
		"the object is other": func(s []Session) { s[1].Events[0].Digest = text("y2") },
	} {
		s := sessions()
		spoil(s)
		if _, err := checked(false, s); err == nil {
			t.Errorf("%s: it passes", name)
		}
	}
}

func TestViews(t *testing.T) {
	all := happened().Changes()
	if n := len((View{}).Expected(all)); n != 8 {
		t.Errorf("a watcher of everything receives %d events", n)
	}
	if events := (View{Metadata: true}).Expected(all); events[0].Digest != text("metadata of x1") {
		t.Error("a watcher of metadata receives another content")
	}
	if n := len((View{Namespace: "n"}).Expected(all)); n != 8 {
		t.Errorf("a watcher of the namespace receives %d events", n)
	}
	if n := len((View{Namespace: "m"}).Expected(all)); n != 0 {
		t.Errorf("a watcher of another namespace receives %d events", n)
	}
}
