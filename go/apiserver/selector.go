package apiserver

import (
	"bytes"
	"context"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

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

// split gives the cache what it can evaluate: labels, and the fields that declare names, of values that etcd has as they are. Pods
// alone have spec.nodeName where it is declared.
func (s *store) split(ctx context.Context, p *storage.SelectionPredicate) selected {
	parts := selected{rest: *p}
	if (p.Label == nil || p.Label.Empty()) && (p.Field == nil || p.Field.Empty()) || !s.readable(ctx) {
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

// readable says whether the cache can read all objects of the resource. The cache counts its failures for all resources together: where
// there are new ones, this looks whether they are of this resource. Encrypted secrets must not cost the pods their selectors.
func (s *store) readable(ctx context.Context) bool {
	if !s.plain || s.unreadable.Load() {
		return false
	}
	failures := s.cache.Stats().ExtractFailures
	if failures == s.read.Load() {
		return true
	}
	all, err := s.prepare(s.resourcePrefix, true)
	if err != nil {
		return false
	}
	nameless, _, err := s.cache.Count(ctx, watchcore.RangePrefix(all), watchcore.ReadOptions{FieldSelector: "metadata.name="})
	switch {
	case err != nil:
		return false
	case nameless > 0:
		s.unreadable.Store(true)
		return false
	}
	s.read.Store(failures)
	return true
}

var pods = schema.GroupResource{Resource: "pods"}

// isPlain says whether objects are stored as they are encoded, in a form that the cache reads. With an encryption configuration they are
// not: it may be loaded again at any time. To encrypt something for a test of that would use up a nonce of the key.
func isPlain(o *options) bool {
	if o.transformer != identity.NewEncryptCheckTransformer() {
		return false
	}
	var encoded bytes.Buffer
	if err := o.codec.Encode(o.newFunc(), &encoded); err != nil {
		return false
	}
	text := encoded.Bytes()
	return bytes.HasPrefix(text, []byte("{")) || bytes.HasPrefix(text, []byte("k8s\x00"))
}
