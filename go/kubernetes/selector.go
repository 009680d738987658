package kubernetes

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"

	watchcore "github.com/watchcore/watchcore/go"
)

// query holds a request's selectors: the part that the cache evaluates, and the rest.
type query struct {
	labels, fields string // for the cache
	rest           *filter
}

// selective reports whether any object may be excluded.
func (q *query) selective() bool { return q.labels != "" || q.fields != "" || q.rest != nil }

// filter is evaluated on decoded objects.
type filter struct {
	labels     labels.Selector
	fields     fields.Selector
	attributes func(runtime.Object) (labels.Set, fields.Set, error)
}

func (f *filter) matches(object runtime.Object) (bool, error) {
	if f == nil {
		return true, nil
	}
	l, s, err := f.attributes(object)
	if err != nil {
		return false, fmt.Errorf("Config.Attributes refuses an object: %w", err)
	}
	return f.labels.Matches(l) && f.fields.Matches(s), nil
}

// query parses the selectors of a request. Its error is a status if they are wrong, and otherwise
// the cache's error. The cache evaluates what it has declared, because it has these attributes
// beside each value, so that objects that do not match are not decoded.
func (l *ListWatch) query(labelSelector, fieldSelector string) (query, error) {
	var q query
	rest := filter{labels.Everything(), fields.Everything(), l.attributes}
	left := false
	byLabel, err := labels.Parse(labelSelector)
	if err != nil {
		return q, apierrors.NewBadRequest(fmt.Sprintf("the label selector %q: %v", labelSelector, err))
	}
	if !byLabel.Empty() {
		accepted, err := l.accepts(watchcore.SubscribeOptions{LabelSelector: byLabel.String()})
		if err != nil {
			return q, err
		}
		if accepted {
			q.labels = byLabel.String()
		} else {
			rest.labels, left = byLabel, true
		}
	}
	byField, err := fields.ParseSelector(fieldSelector)
	if err != nil {
		return q, apierrors.NewBadRequest(fmt.Sprintf("the field selector %q: %v", fieldSelector, err))
	}
	var here []fields.Selector
	for _, requirement := range byField.Requirements() {
		one := fieldSelectorOf(requirement)
		accepted, err := l.accepts(watchcore.SubscribeOptions{FieldSelector: one.String()})
		switch {
		case err != nil:
			return q, err
		case accepted && q.fields == "":
			q.fields = one.String()
		case accepted:
			q.fields += "," + one.String()
		case !l.known.Has(requirement.Field):
			return q, apierrors.NewBadRequest(fmt.Sprintf("the field selector %q: field label not supported: %s. "+
				"Declare it in Config.Fields of the cache, or give it by Config.Attributes", fieldSelector, requirement.Field))
		default:
			here = append(here, one)
		}
	}
	if len(here) > 0 {
		rest.fields, left = fields.AndSelectors(here...), true
	}
	if left {
		q.rest = &rest
	}
	return q, nil
}

func fieldSelectorOf(r fields.Requirement) fields.Selector {
	if r.Operator == selection.NotEquals {
		return fields.OneTermNotEqualSelector(r.Field, r.Value)
	}
	return fields.OneTermEqualSelector(r.Field, r.Value)
}

// accepts asks the cache whether it can evaluate a selector, by a subscription that gets no event
// and is closed at once. Requests are too rare for caching the answer to be worthwhile.
func (l *ListWatch) accepts(selector watchcore.SubscribeOptions) (bool, error) {
	selector.Range, selector.Start = watchcore.RangeNone(), watchcore.StartNow()
	sub, err := l.cache.Subscribe(context.Background(), selector)
	switch {
	case err == nil:
		return true, sub.Close()
	case errors.Is(err, watchcore.ErrInvalidArgument):
		return false, nil
	}
	return false, err
}
