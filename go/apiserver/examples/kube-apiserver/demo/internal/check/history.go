// Package check says whether a client saw what happened.
//
// A History has every change of one resource, as etcd numbered it. A Log has what one watcher received: lists, events and bookmarks, in
// sessions of which each is one request. Check walks both side by side. It knows which event the watcher must receive next, and names the
// first one that was lost, doubled, received in another order, as another type or with another object.
package check

import (
	"crypto/sha256"
	"slices"
	"sort"
	"sync"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// Digest is that of an object's content, without its resourceVersion.
type Digest [sha256.Size]byte

// Object is one version of an object, as a client sees it.
type Object struct {
	Key      string // namespace/name, or the name alone
	Revision int64  // of the change that made this version
	Labels   labels.Set
	Fields   fields.Set // what field selectors select by
	Whole    Digest
	Metadata Digest // what clients of PartialObjectMetadata receive
}

// Change is what one revision did to one object. Before and After are nil where there is no object.
type Change struct {
	Revision      int64
	Before, After *Object
}

// Key is that of the changed object.
func (c Change) Key() string {
	if c.After != nil {
		return c.After.Key
	}
	return c.Before.Key
}

// History is the changes of one resource in the order of their revisions. Any goroutine.
type History struct {
	mutex   sync.Mutex
	changes []Change
	state   map[string]*Object
}

// Put adds a version.
func (h *History) Put(o *Object) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.state == nil {
		h.state = map[string]*Object{}
	}
	h.changes = append(h.changes, Change{o.Revision, h.state[o.Key], o})
	h.state[o.Key] = o
}

// Delete adds a deletion.
func (h *History) Delete(key string, revision int64) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.changes = append(h.changes, Change{revision, h.state[key], nil})
	delete(h.state, key)
}

// Changes are all that were added so far.
func (h *History) Changes() []Change {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return slices.Clip(h.changes)
}

// View is what a watcher asks for.
type View struct {
	Namespace string // empty: all
	Labels    labels.Selector
	Fields    fields.Selector
	Metadata  bool // PartialObjectMetadata
}

func (v View) selects(o *Object) bool {
	return o != nil && (v.Namespace == "" || o.Fields["metadata.namespace"] == v.Namespace) &&
		(v.Labels == nil || v.Labels.Matches(o.Labels)) && (v.Fields == nil || v.Fields.Matches(o.Fields))
}

// Digest is that of what a watcher of this view receives of an object.
func (v View) Digest(o *Object) Digest {
	if v.Metadata {
		return o.Metadata
	}
	return o.Whole
}

// event is what a watcher of this view receives for a change; false if that is nothing.
func (v View) event(c Change) (Event, bool) {
	before, after := v.selects(c.Before), v.selects(c.After)
	e := Event{Key: c.Key(), Revision: c.Revision}
	switch {
	case before && after:
		e.Type, e.Digest = Modified, v.Digest(c.After)
	case after:
		e.Type, e.Digest = Added, v.Digest(c.After)
	case before:
		e.Type, e.Digest = Deleted, v.Digest(c.Before)
	default:
		return e, false
	}
	return e, true
}

// Expected is what a watcher of this view receives of changes, in their order.
func (v View) Expected(changes []Change) []Event {
	var events []Event
	for _, c := range changes {
		if e, ok := v.event(c); ok {
			events = append(events, e)
		}
	}
	return events
}

// above is the number of the first event above a revision.
func above(events []Event, revision int64) int {
	return sort.Search(len(events), func(i int) bool { return events[i].Revision > revision })
}

// stateAt is what the events up to a revision leave.
func stateAt(events []Event, revision int64) State {
	state := State{}
	for _, e := range events[:above(events, revision)] {
		state.apply(e)
	}
	return state
}

// State is that after all changes.
func (h *History) State() State {
	state := State{}
	for _, e := range (View{}).Expected(h.Changes()) {
		state.apply(e)
	}
	return state
}
