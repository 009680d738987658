// Package history says whether a client saw what happened.
//
// A History has every change that was made, as etcd numbered it. A Log has what one client was told: lists, events and
// bookmarks in the order in which they came. Check walks both side by side: it knows of each moment which change the
// client must be told of next, and names the first one that was lost, doubled or told as something else.
package history

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
)

// A Change is one key's new state. Keys are those of Kubernetes' clients: plural/namespace/name or plural/name.
type Change struct {
	Revision int64
	Key      string
	Deleted  bool
	// Serial is what the writer put into the object; no two changes have the same. A deletion has none.
	Serial int64
}

// A Gap is a stretch of revisions that the server itself could not read: they were compacted while it was away. In it a
// client is told the difference of the states before and after, and not every change.
type Gap struct{ From, To int64 } // the changes above From, up to To

// History is written by the writer and read by checks. Its methods may be called from several goroutines.
type History struct {
	mutex   sync.Mutex
	changes []Change
	gaps    []Gap
}

// Append adds the changes of one transaction, whose revision is above all before.
func (h *History) Append(changes ...Change) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.changes = append(h.changes, changes...)
}

// AddGap adds a stretch that the server could not read.
func (h *History) AddGap(gap Gap) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.gaps = append(h.gaps, gap)
}

// Len is the number of changes.
func (h *History) Len() int {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return len(h.changes)
}

// Last is the revision of the last change of a key that begins with prefix, 0 without one.
func (h *History) Last(prefix string) int64 {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for _, change := range slices.Backward(h.changes) {
		if strings.HasPrefix(change.Key, prefix) {
			return change.Revision
		}
	}
	return 0
}

// BySerial finds the put that wrote an object's serial.
func (h *History) BySerial() map[int64]Change {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	puts := make(map[int64]Change, len(h.changes))
	for _, change := range h.changes {
		if !change.Deleted {
			puts[change.Serial] = change
		}
	}
	return puts
}

// Deletions are the revisions in which each key was deleted, in their order.
type Deletions map[string][]int64

// After is the first deletion of a key above a revision, or -1.
func (d Deletions) After(key string, revision int64) int64 {
	for _, deleted := range d[key] {
		if deleted > revision {
			return deleted
		}
	}
	return -1
}

// Deletions are those of all keys.
func (h *History) Deletions() Deletions {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	deletions := Deletions{}
	for _, change := range h.changes {
		if change.Deleted {
			deletions[change.Key] = append(deletions[change.Key], change.Revision)
		}
	}
	return deletions
}

// State is each key that begins with prefix, with its revision, as of a revision.
func (h *History) State(prefix string, revision int64) map[string]int64 {
	changes, _ := h.scope(prefix)
	return stateOf(changes, revision)
}

func (h *History) scope(prefix string) ([]Change, []Gap) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	var changes []Change
	for _, change := range h.changes {
		if strings.HasPrefix(change.Key, prefix) {
			changes = append(changes, change)
		}
	}
	return changes, append([]Gap(nil), h.gaps...)
}

func stateOf(changes []Change, revision int64) map[string]int64 {
	state := make(map[string]int64)
	for _, change := range changes {
		if change.Revision > revision {
			break
		}
		if change.Deleted {
			delete(state, change.Key)
		} else {
			state[change.Key] = change.Revision
		}
	}
	return state
}

// Difference names the first keys in which two states differ, or is empty.
func Difference(got, want map[string]int64) string {
	var differences []string
	for key, revision := range want {
		if have, there := got[key]; !there {
			differences = append(differences, fmt.Sprintf("%s at %d is not there", key, revision))
		} else if have != revision {
			differences = append(differences, fmt.Sprintf("%s is at %d, not at %d", key, have, revision))
		}
	}
	for key, revision := range got {
		if _, there := want[key]; !there {
			differences = append(differences, fmt.Sprintf("%s at %d is there and should not be", key, revision))
		}
	}
	if len(differences) == 0 {
		return ""
	}
	sort.Strings(differences)
	more := ""
	if len(differences) > 3 {
		more = fmt.Sprintf(" and %d more", len(differences)-3)
		differences = differences[:3]
	}
	return strings.Join(differences, "; ") + more
}
