package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Type is that of an event.
type Type string

// The types of Kubernetes' watch events, but for errors: these end a session.
const (
	Added    Type = "ADDED"
	Modified Type = "MODIFIED"
	Deleted  Type = "DELETED"
	Bookmark Type = "BOOKMARK"
)

// Event is one event that a watcher received. A bookmark has no key.
type Event struct {
	Type     Type
	Key      string
	Revision int64 // the object's resourceVersion
	Digest   Digest
	EndsList bool // the bookmark behind the initial events of a stream
}

func (e Event) String() string { return fmt.Sprintf("%s %s at %d", e.Type, e.Key, e.Revision) }

// Version is what a watcher has of an object.
type Version struct {
	Revision int64
	Digest   Digest
}

// State is what a watcher has of all objects, by their keys.
type State map[string]Version

func (s State) apply(e Event) {
	switch e.Type {
	case Deleted:
		delete(s, e.Key)
	case Added, Modified:
		s[e.Key] = Version{e.Revision, e.Digest}
	}
}

// Differs names the first keys in which a state differs from the one that it should be; empty where it does not.
func (s State) Differs(want State) string {
	keys := maps.Clone(want)
	maps.Copy(keys, s)
	var all []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		have, there := s[key]
		switch right, exists := want[key]; {
		case !exists:
			all = append(all, fmt.Sprintf("%s at %d should not be there", key, have.Revision))
		case !there:
			all = append(all, fmt.Sprintf("%s at %d is missing", key, right.Revision))
		case have.Revision != right.Revision:
			all = append(all, fmt.Sprintf("%s is at %d, not at %d", key, have.Revision, right.Revision))
		case have.Digest != right.Digest:
			all = append(all, fmt.Sprintf("%s at %d has another content", key, have.Revision))
		}
	}
	if len(all) > 3 {
		all = append(all[:3], fmt.Sprintf("and %d more", len(all)-3))
	}
	return strings.Join(all, "; ")
}

// Start is how a session begins.
type Start int

const (
	// Listed begins with a list, whose items and revision the session has.
	Listed Start = iota
	// Streamed begins with the state as events, up to a bookmark.
	Streamed
	// Resumed begins behind a revision.
	Resumed
	// Printed begins with a list that is told as events, without a revision or an end: kubectl get -w.
	Printed
)

// Session is one request.
type Session struct {
	Start    Start
	Revision int64 // of the list, or the one resumed behind
	Items    State // of the list
	Events   []Event
	End      string // what ended it; empty if the watcher did
}

// Log is what one watcher received. Any goroutine.
type Log struct {
	Name string
	View View
	// Difference: the watcher may have lost events. It must have received the newest version of each object then, and each deletion.
	Difference bool

	mutex    sync.Mutex
	sessions []Session
}

// Begin adds a session.
func (l *Log) Begin(s Session) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.sessions = append(l.sessions, s)
}

// Add adds an event to the last session.
func (l *Log) Add(e Event) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	last := &l.sessions[len(l.sessions)-1]
	last.Events = append(last.Events, e)
}

// End says what ended the last session.
func (l *Log) End(why string) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.sessions[len(l.sessions)-1].End = why
}

// Sessions are those so far.
func (l *Log) Sessions() []Session {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	sessions := slices.Clone(l.sessions)
	for i := range sessions {
		sessions[i].Events = slices.Clip(sessions[i].Events)
	}
	return sessions
}

// Reached is the highest revision that the watcher knows of.
func (l *Log) Reached() int64 {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	reached := int64(0)
	for _, s := range l.sessions {
		if s.Start != Resumed {
			reached = max(reached, s.Revision)
		}
		if n := len(s.Events); n > 0 {
			reached = max(reached, s.Events[n-1].Revision)
		}
	}
	return reached
}
