package watchcore

// #include "abi.h"
import "C"

import (
	"runtime"
	"strconv"
)

// Condition is what key-values must fulfil: an option of Subscribe, and of reads,
// walks and Diff. Of several all must hold.
type Condition struct {
	kind conditionKind
	text string
}

type conditionKind uint8

const (
	byLabels conditionKind = iota
	byFields
	byNothing
)

// Labels lets pass what a label selector selects, in Kubernetes' grammar: a=b,
// a==b, a!=b, a in (x,y), a notin (x,y), a, !a, a>1, a<1, joined by commas. It looks
// at the labels that LabelsFrom declares. "" selects everything. A selector that
// does not parse is ErrInvalidArgument with the 0-based byte position and what was
// expected there.
func Labels(selector string) Condition { return Condition{byLabels, selector} }

// Fields lets pass what a field selector selects: name=value, name==value,
// name!=value, joined by commas. The names are those that Field and KeySegment
// declare; on a value that does not have it a field is the empty string. ""
// selects everything; errors are as those of Labels.
func Fields(selector string) Condition { return Condition{byFields, selector} }

// Nothing lets no key-value pass. A subscription gets its marks all the same.
func Nothing() Condition { return Condition{kind: byNothing} }

// conditions is the sum of the Conditions of one call.
type conditions struct {
	labels, fields string
	given          [2]bool // by kind: a selector was given
	nothing        bool
}

func (c *conditions) add(one Condition) error {
	if one.kind == byNothing {
		c.nothing = true
		return nil
	}
	if c.given[one.kind] {
		return newError(ErrInvalidArgument, "two %s selectors were given. Give one, with their requirements joined by a comma",
			[...]string{"label", "field"}[one.kind])
	}
	c.given[one.kind] = true
	if one.kind == byLabels {
		c.labels = one.text
	} else {
		c.fields = one.text
	}
	return nil
}

// filter is what C calls one.
type filter struct {
	keys       Range
	conditions conditions
	types      uint32
	ranged     bool
	err        error
}

func (f *filter) add(option Condition) {
	if err := f.conditions.add(option); err != nil && f.err == nil {
		f.err = err
	}
}

func (f *filter) fill(o *C.watchcore_filter, pin *runtime.Pinner) {
	*o = C.watchcore_filter{
		size:    C.sizeof_watchcore_filter,
		_range:  C.uint32_t(f.keys.kind),
		from:    f.keys.first(pin),
		to:      absent(pin, f.keys.to),
		labels:  absent(pin, f.conditions.labels),
		fields:  absent(pin, f.conditions.fields),
		types:   C.uint32_t(f.types),
		nothing: bit(f.conditions.nothing),
	}
}

// filterOf is a range with conditions.
func filterOf(keys Range, given []Condition) (*filter, error) {
	f := &filter{keys: keys}
	for _, condition := range given {
		f.add(condition)
	}
	return f, f.err
}

// TypeMask is what Types gives: an option of Subscribe and of Diff.
type TypeMask struct {
	bits    uint32
	refused string // why it is none
}

// Types hands out only these types. Bookmarks and resync marks are not masked.
func Types(types ...EventType) TypeMask {
	var mask TypeMask
	for _, t := range types {
		if t < Added || t > RawDelete {
			mask.refused = t.String() + " is no type of event"
			return mask
		}
		mask.bits |= 1 << t
	}
	return mask
}

// add gives "" or why it is refused.
func (m TypeMask) add(bits *uint32) string {
	*bits |= m.bits
	return m.refused
}

// LagPolicy says what a subscription does where it lost events.
type LagPolicy uint32

const (
	// Stop: ErrLagged, then the end.
	Stop LagPolicy = C.WATCHCORE_ON_LAG_STOP
	// SkipToOldest: ErrLagged, then on at the oldest revision of the window. In the
	// initial state as Stop.
	SkipToOldest LagPolicy = C.WATCHCORE_ON_LAG_SKIP_TO_OLDEST
	// Resnapshot: ErrLagged, then the exact difference between what was handed out
	// and the state now, between two resync marks with ReasonLagged, then what
	// follows. It remembers what it has handed out: at most 32 bytes a matching key.
	Resnapshot LagPolicy = C.WATCHCORE_ON_LAG_RESNAPSHOT
	// Conflate: no error, but the latest change of each key; types are relative to
	// what was handed out. It remembers as Resnapshot does.
	Conflate LagPolicy = C.WATCHCORE_ON_LAG_CONFLATE
)

// String is the policy's name, such as "Resnapshot".
func (p LagPolicy) String() string {
	switch p {
	case Stop:
		return "Stop"
	case SkipToOldest:
		return "SkipToOldest"
	case Resnapshot:
		return "Resnapshot"
	case Conflate:
		return "Conflate"
	}
	return "LagPolicy(" + strconv.FormatUint(uint64(p), 10) + ")"
}
