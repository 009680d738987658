package history

import (
	"maps"
	"sync"
)

// Kinds of an Entry.
const (
	// Listed: the client read the whole state. Revision is the list's, or 0 where the client does not say.
	Listed = "list"
	// Happened: an event. Revision is that of the object; of a deletion the deletion's own.
	Happened = "event"
	// Marked: everything up to Revision has been told.
	Marked = "bookmark"
)

// Applied is the type of an event where the client does not tell ADDED from MODIFIED.
const Applied = "APPLIED"

// An Entry is one thing that a client was told. A client program prints one as a line of JSON.
type Entry struct {
	Kind     string           `json:"kind"`
	Revision int64            `json:"revision,omitempty"`
	Type     string           `json:"type,omitempty"`
	Key      string           `json:"key,omitempty"`
	Items    map[string]int64 `json:"items,omitempty"`
}

// A Log is what one client was told of one resource. Its methods may be called from several goroutines.
type Log struct {
	// Name of the client, for messages.
	Name string
	// Prefix of the keys that the client reads: "widgets/" is one resource, "widgets/red/" a namespace of it.
	Prefix string

	mutex   sync.Mutex
	entries []Entry
	initial map[string]int64
	state   map[string]int64
	reached int64
	lists   int
	events  int
}

// NewLog is an empty one.
func NewLog(name, prefix string) *Log {
	return &Log{Name: name, Prefix: prefix}
}

// List adds a list that the client read, with the revision of the list or 0.
func (l *Log) List(revision int64, items map[string]int64) {
	l.add(Entry{Kind: Listed, Revision: revision, Items: items})
}

// Event adds an event: ADDED, MODIFIED or DELETED.
func (l *Log) Event(kind, key string, revision int64) {
	l.mutex.Lock()
	if l.initial != nil {
		// The objects of a state that is streamed are a list that is not complete yet.
		l.initial[key] = revision
		l.mutex.Unlock()
		return
	}
	l.mutex.Unlock()
	l.add(Entry{Kind: Happened, Type: kind, Key: key, Revision: revision})
}

// Initial says that a watch begins which tells the whole state first: until End its events are a list.
func (l *Log) Initial() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.initial = make(map[string]int64)
}

// Resume says that a watch begins after what is known. A state that was not told to its end is dropped.
func (l *Log) Resume() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.initial = nil
}

// Bookmark adds a bookmark, which is the end of the initial state where one is open.
func (l *Log) Bookmark(revision int64) {
	l.mutex.Lock()
	items := l.initial
	l.initial = nil
	l.mutex.Unlock()
	if items != nil {
		l.List(revision, items)
		return
	}
	l.add(Entry{Kind: Marked, Revision: revision})
}

// Add adds an entry that a client program printed.
func (l *Log) Add(entry Entry) { l.add(entry) }

func (l *Log) add(entry Entry) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.entries = append(l.entries, entry)
	switch entry.Kind {
	case Listed:
		l.lists++
		l.state = make(map[string]int64, len(entry.Items))
		for key, revision := range entry.Items {
			l.state[key] = revision
			l.reached = max(l.reached, revision)
		}
	case Happened:
		l.events++
		if entry.Type == "DELETED" {
			delete(l.state, entry.Key)
		} else if l.state != nil {
			l.state[entry.Key] = entry.Revision
		}
	}
	l.reached = max(l.reached, entry.Revision)
}

// Holds says whether the client's state is this one.
func (l *Log) Holds(state map[string]int64) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.state != nil && Difference(l.state, state) == ""
}

// Difference says how the client's state differs from this one, or is empty.
func (l *Log) Difference(state map[string]int64) string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return Difference(l.state, state)
}

// State is what the client has now, as its log says: nil before its first list.
func (l *Log) State() map[string]int64 {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return maps.Clone(l.state)
}

// Resumable is the revision of the last entry: where a client that keeps the rules of Kubernetes resumes.
func (l *Log) Resumable() int64 {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if len(l.entries) == 0 {
		return 0
	}
	return l.entries[len(l.entries)-1].Revision
}

// Reached is the highest revision that the client was told of.
func (l *Log) Reached() int64 {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.reached
}

// Counts are the numbers of lists and of events.
func (l *Log) Counts() (lists, events int) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.lists, l.events
}

func (l *Log) copied() []Entry {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return append([]Entry(nil), l.entries...)
}
