package history

import (
	"strings"
	"testing"
)

// A history of two keys: x is made, changed, deleted and made again; y is made in the transaction that changes x.
func written() *History {
	h := &History{}
	h.Append(Change{Revision: 2, Key: "w/x", Serial: 1})
	h.Append(Change{Revision: 3, Key: "w/x", Serial: 2}, Change{Revision: 3, Key: "w/y", Serial: 3})
	h.Append(Change{Revision: 5, Key: "w/x", Deleted: true})
	h.Append(Change{Revision: 6, Key: "w/x", Serial: 4})
	return h
}

func listed(revision int64, items map[string]int64) Entry {
	return Entry{Kind: Listed, Revision: revision, Items: items}
}

func event(kind, key string, revision int64) Entry {
	return Entry{Kind: Happened, Type: kind, Key: key, Revision: revision}
}

func TestCheck(t *testing.T) {
	at2 := listed(2, map[string]int64{"w/x": 2})
	x3, y3 := event("MODIFIED", "w/x", 3), event("ADDED", "w/y", 3)
	x5, x6 := event("DELETED", "w/x", 5), event("ADDED", "w/x", 6)
	mark := func(revision int64) Entry { return Entry{Kind: Marked, Revision: revision} }
	for name, test := range map[string]struct {
		entries []Entry
		gap     *Gap
		want    string
	}{
		"everything":           {entries: []Entry{at2, x3, y3, x5, x6}},
		"another order":        {entries: []Entry{at2, y3, x3, mark(4), x5, x6, mark(9)}},
		"list without number":  {entries: []Entry{listed(0, map[string]int64{"w/x": 2}), x3, y3, x5, x6}},
		"relist":               {entries: []Entry{at2, x3, listed(5, map[string]int64{"w/y": 3}), x6}},
		"gap":                  {entries: []Entry{at2, y3, event("MODIFIED", "w/x", 6)}, gap: &Gap{2, 6}},
		"gap with deletion":    {entries: []Entry{at2, event("DELETED", "w/x", 6), x6, y3}, gap: &Gap{2, 6}},
		"nothing":              {want: "never read a list"},
		"lost":                 {entries: []Entry{at2, x3, y3, x6}, want: "lost: the change of w/x at 5"},
		"lost in a revision":   {entries: []Entry{at2, x3, x5, x6}, want: "lost: the change of w/y at 3"},
		"lost at the end":      {entries: []Entry{at2, x3, y3, x5}, want: "lost: the change of w/x at 6"},
		"lost before a mark":   {entries: []Entry{at2, x3, y3, mark(5), x5, x6}, want: "lost: the change of w/x at 5"},
		"lost before any list": {entries: []Entry{x3}, want: "before any list"},
		"doubled":              {entries: []Entry{at2, x3, y3, x5, x5, x6}, want: "doubled or out of order"},
		"resumed inside":       {entries: []Entry{at2, x3, x3, y3, x5, x6}},
		"resumed behind":       {entries: []Entry{at2, x3, y3, x3, y3, mark(4), x5, x6}},
		"resumed twice":        {entries: []Entry{at2, x3, y3, x3, x3, y3, x5, x6}},
		"resumed at its list":  {entries: []Entry{listed(0, map[string]int64{"w/x": 3, "w/y": 3}), x3, y3, x5, x6}},
		"resumed in part":      {entries: []Entry{at2, x3, y3, x3, x5, x6}, want: "1 changes of it were not"},
		"resumed later":        {entries: []Entry{at2, x3, y3, x5, x3, y3, x6}, want: "doubled or out of order"},
		"doubled at the end":   {entries: []Entry{at2, x3, y3, x5, x6, x6}, want: "doubled: all"},
		"out of order":         {entries: []Entry{at2, x3, y3, x6, x5}, want: "lost"},
		"another type":         {entries: []Entry{at2, event("ADDED", "w/x", 3)}, want: "told as ADDED, was MODIFIED"},
		"never happened":       {entries: []Entry{at2, event("ADDED", "w/z", 3)}, want: "never happened"},
		"wrong list":           {entries: []Entry{listed(3, map[string]int64{"w/x": 3})}, want: "w/y at 3 is not there"},
		"wrong float":          {entries: []Entry{listed(0, map[string]int64{"w/x": 2}), x5}, want: "not that of revision 4"},
		"gap with a hole":      {entries: []Entry{at2, y3}, gap: &Gap{2, 6}, want: "not that of revision 6"},
		"gap with old":         {entries: []Entry{at2, x3}, gap: &Gap{2, 6}, want: "behind which it is at 6"},
		"back by a list":       {entries: []Entry{at2, x3, y3, at2, x3, y3, x5, x6}, want: "back in time"},
		"back by a mark":       {entries: []Entry{at2, x3, y3, mark(4), mark(3), x5, x6}, want: "back in time"},
		"back behind a mark":   {entries: []Entry{at2, x3, y3, mark(4), listed(3, map[string]int64{"w/x": 3, "w/y": 3}), x5, x6}, want: "back in time"},
		"doubled in gap":       {entries: []Entry{at2, y3, y3}, gap: &Gap{2, 6}, want: "doubled in a gap"},
	} {
		t.Run(name, func(t *testing.T) {
			h, log := written(), NewLog("client", "w/")
			if test.gap != nil {
				h.AddGap(*test.gap)
			}
			for _, entry := range test.entries {
				log.Add(entry)
			}
			err := h.Check(log)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// The log may end while the last revision is told again to a client that has just resumed there.
func TestCheckOfALogThatEndsInARepetition(t *testing.T) {
	h, log := &History{}, NewLog("client", "w/")
	h.Append(Change{Revision: 2, Key: "w/x", Serial: 1})
	h.Append(Change{Revision: 3, Key: "w/x", Serial: 2}, Change{Revision: 3, Key: "w/y", Serial: 3})
	log.Add(listed(2, map[string]int64{"w/x": 2}))
	for _, entry := range []Entry{event("MODIFIED", "w/x", 3), event("ADDED", "w/y", 3), event("MODIFIED", "w/x", 3)} {
		log.Add(entry)
	}
	if err := h.Check(log); err != nil {
		t.Error(err)
	}
}
