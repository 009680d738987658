package kubernetes

import (
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"watchcore"
)

// translator makes the events of one watch out of those of its subscription. The cache has made
// the types right for its part of the selectors; this does it for the rest of them, and for
// values that cannot be decoded.
type translator struct {
	l         *ListWatch
	filter    *filter // nil: there is no rest
	seesState bool    // the watch begins with the state, so that the consumer has what it was given and nothing else

	// replaced has the keys whose present value cannot be decoded, with what the consumer has
	// of them instead. Empty without Config.Undecodable.
	replaced map[string]shown
}

// shown is what the consumer has of a key.
type shown struct {
	has    bool
	object runtime.Object // nil: not decoded, or it has none
}

// translate gives the zero event where the consumer gets nothing.
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
		if matches && before.has {
			return watch.Event{Type: watch.Modified, Object: now}, nil
		} else if matches {
			return watch.Event{Type: watch.Added, Object: now}, nil
		}
	}
	if !before.has {
		return watch.Event{}, nil
	}
	if err := stamp(before.object, e.Revision); err != nil {
		return watch.Event{}, err
	}
	return watch.Event{Type: watch.Deleted, Object: before.object}, nil
}

func isDeletion(e watchcore.Event) bool {
	return e.Type == watchcore.EventDeleted || e.Type == watchcore.EventDelete
}

// before is what the consumer has of the event's key. It is decoded where that has to be
// known, or where it may have to be shown as the last value.
func (t *translator) before(e watchcore.Event) (shown, error) {
	if len(t.replaced) > 0 {
		if before, found := t.replaced[e.Key()]; found {
			delete(t.replaced, e.Key())
			return before, nil
		}
	}
	lenient := t.l.config.Undecodable != nil
	switch {
	case e.Type == watchcore.EventAdded, e.Type == watchcore.EventPut && e.PrevValue() == nil:
		return shown{}, nil
	case !isDeletion(e) && t.filter == nil && (t.seesState || !lenient):
		return shown{has: true}, nil
	}
	object, err := t.l.oldObject(e)
	switch {
	case errors.Is(err, errPreviousLost):
		return shown{}, err
	case err != nil && lenient: // the consumer was not given it
		return shown{}, nil
	case err != nil:
		return shown{}, errCorrupt(e.Key(), e.Revision, err)
	}
	matches, err := t.filter.matches(object)
	if err != nil {
		return shown{}, errCorrupt(e.Key(), e.Revision, err)
	}
	return shown{matches, object}, nil
}

// undecodable leaves the consumer with what it has of the key, and remembers that.
func (t *translator) undecodable(e watchcore.Event, before shown, why error) error {
	if t.l.config.Undecodable == nil {
		return errCorrupt(e.Key(), e.ModRevision(), why)
	}
	t.l.config.Undecodable(e.Key(), e.ModRevision(), why)
	if before.has && before.object == nil {
		object, err := t.l.oldObject(e)
		if errors.Is(err, errPreviousLost) {
			return err
		}
		before = shown{err == nil, object}
	}
	if t.replaced == nil {
		t.replaced = map[string]shown{}
	}
	t.replaced[e.Key()] = before
	return nil
}
