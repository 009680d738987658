package apiserver

import (
	"context"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"

	watchcore "github.com/watchcore/watchcore/go"
)

const nodeName = "spec.nodeName"

// declare says what a cache knows of each object without decoding it, and what is found quickly: the watches of one object, of a
// namespace, and of a node's pods.
func declare(c *watchcore.Config) {
	c.Labels = watchcore.LabelsJSON("/metadata/labels")
	c.Fields = []watchcore.Attribute{
		watchcore.AttributeJSON("metadata.name", "/metadata/name"),
		watchcore.AttributeJSON("metadata.namespace", "/metadata/namespace"),
		watchcore.AttributeJSON(nodeName, "/spec/nodeName", 2, 10),
	}
	c.Indexes = []watchcore.Index{watchcore.IndexByKey(), watchcore.IndexByPrefix(3), watchcore.IndexByField(nodeName)}
}

// selected is a predicate in two parts: what the cache evaluates, and the rest, which is evaluated on decoded objects.
type selected struct {
	labels, fields string
	rest           storage.SelectionPredicate
}

// byCache says whether the cache evaluates anything.
func (p *selected) byCache() bool { return p.labels != "" || p.fields != "" }

// split gives the cache what it can evaluate: labels, and the fields that declare names, of values that etcd has as they are. Pods
// alone have spec.nodeName where it is declared.
func (s *store) split(ctx context.Context, p *storage.SelectionPredicate) selected {
	parts := selected{rest: *p}
	if (p.Label == nil || p.Label.Empty()) && (p.Field == nil || p.Field.Empty()) || !s.reads.all(ctx) {
		return parts
	}
	if p.Label != nil && !p.Label.Empty() {
		parts.labels, parts.rest.Label = p.Label.String(), labels.Everything()
	}
	if p.Field == nil || p.Field.Empty() {
		return parts
	}
	var here, rest []fields.Selector
	for _, r := range p.Field.Requirements() {
		one := fields.OneTermEqualSelector(r.Field, r.Value)
		if r.Operator == selection.NotEquals {
			one = fields.OneTermNotEqualSelector(r.Field, r.Value)
		}
		switch {
		case r.Field == "metadata.name", r.Field == "metadata.namespace", r.Field == nodeName && s.resource == pods:
			here = append(here, one)
		default:
			rest = append(rest, one)
		}
	}
	parts.rest.Field = fields.AndSelectors(rest...)
	if len(here) > 0 {
		parts.fields = fields.AndSelectors(here...).String()
	}
	return parts
}

var pods = schema.GroupResource{Resource: "pods"}
