package kubernetes

import (
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	watchcore "github.com/watchcore/watchcore/go"
)

// translator converts the events of a subscription into those of one watch. The cache has set the
// right types for its part of the selectors; translator does so for the rest of them, and for
// values that cannot be decoded.
type translator struct {
	l         *ListWatch
	filter    *filter // nil: there is no rest
	seesState bool    // the watch starts with the state, so its consumer has exactly the delivered objects

	// replaced has the keys whose present value cannot be decoded, with the objects that the
	// consumer has instead. replaced is empty without Config.Undecodable.
	replaced map[string]held
}

// held is the consumer's object of a key.
type held struct {
	has    holds
	object runtime.Object // nil: not decoded, or the consumer has none
}

// holds says whether the consumer has an object of a key.
type holds uint8

const (
	hasNone holds = iota
	hasOne
	// The last value of the key that the consumer received may date from before this watch,
	// followed by a value that cannot be decoded.
	notKnown
)

// ofRefused returns the consumer's object of a key whose former value cannot be decoded, so that
// the consumer did not get that value: none, if the watch started with the state, because an object
// from then would be in replaced. Other consumers may have one from before.
func (t *translator) ofRefused() held {
	if t.seesState {
		return held{}
	}
	return held{has: notKnown}
}

// translate returns the zero event if the consumer gets nothing.
func (t *translator) translate(e watchcore.Event) (watch.Event, error) {
	before, err := t.before(e)
	if err != nil {
		return watch.Event{}, err
	}
	var now runtime.Object
	if !isDeletion(e) {
		if now, err = t.l.newObject(e); err != nil {
			return watch.Event{}, t.undecodable(e, before, err)
		}
		matches, err := t.filter.matches(now)
		if err != nil {
			return watch.Event{}, errCorrupt(e.Key(), e.ModRevision(), err)
		}
		switch {
		case matches && before.has == hasOne:
			return watch.Event{Type: watch.Modified, Object: now}, nil
		case matches: // a consumer that has one without this watch's knowledge replaces it
			return watch.Event{Type: watch.Added, Object: now}, nil
		}
	}
	switch before.has {
	case hasNone:
		return watch.Event{}, nil
	case notKnown:
		return watch.Event{}, errNotKnown(e.Key())
	}
	if err := stamp(before.object, e.Revision); err != nil {
		return watch.Event{}, err
	}
	return watch.Event{Type: watch.Deleted, Object: before.object}, nil
}

func isDeletion(e watchcore.Event) bool {
	return e.Type == watchcore.EventDeleted || e.Type == watchcore.EventDelete
}

// before returns the consumer's object of the event's key. before decodes the object only if the result
// depends on it, or if it may be delivered as the last value.
func (t *translator) before(e watchcore.Event) (held, error) {
	if len(t.replaced) > 0 {
		if before, found := t.replaced[e.Key()]; found {
			delete(t.replaced, e.Key())
			return before, nil
		}
	}
	lenient := t.l.config.Undecodable != nil
	switch {
	case e.Type == watchcore.EventAdded, e.Type == watchcore.EventPut && e.PrevValue() == nil:
		return held{}, nil
	case !isDeletion(e) && t.filter == nil && (t.seesState || !lenient):
		return held{has: hasOne}, nil
	}
	object, err := t.l.oldObject(e)
	switch {
	case errors.Is(err, errPreviousLost):
		return held{}, err
	case err != nil && lenient:
		return t.ofRefused(), nil
	case err != nil:
		return held{}, errCorrupt(e.Key(), e.Revision, err)
	}
	matches, err := t.filter.matches(object)
	switch {
	case err != nil:
		return held{}, errCorrupt(e.Key(), e.Revision, err)
	case !matches:
		return held{}, nil
	}
	return held{hasOne, object}, nil
}

// undecodable records that the consumer keeps its object of the key.
func (t *translator) undecodable(e watchcore.Event, before held, why error) error {
	if err := t.l.refused(e.Key(), e.ModRevision(), why); err != nil {
		return err
	}
	if before.has == hasOne && before.object == nil {
		object, err := t.l.oldObject(e)
		switch {
		case errors.Is(err, errPreviousLost):
			return err
		case err != nil:
			before = t.ofRefused()
		default:
			before.object = object
		}
	}
	if t.replaced == nil {
		t.replaced = map[string]held{}
	}
	t.replaced[e.Key()] = before
	return nil
}
