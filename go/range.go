package watchcore

// #include "abi.h"
import "C"

import (
	"runtime"
)

// Range is a set of keys. The zero Range is every key.
type Range struct {
	kind     uint32
	from, to string
}

// rangeNone is not a kind of C's Range: in C it is a filter that selects nothing.
const rangeNone = 1 << 31

// RangeAll returns the range of every key of the cache.
func RangeAll() Range { return Range{kind: C.WATCHCORE_RANGE_ALL} }

// RangeNone returns the range of no key. A subscription to it still receives its marks.
func RangeNone() Range { return Range{kind: rangeNone} }

// RangeKey returns the range of one key.
func RangeKey(key string) Range { return Range{kind: C.WATCHCORE_RANGE_KEY, from: key} }

// RangePrefix returns the range of the keys that start with these bytes.
func RangePrefix(prefix string) Range { return Range{kind: C.WATCHCORE_RANGE_PREFIX, from: prefix} }

// RangePath returns the range of the keys at and below a path: "/a/foo" has "/a/foo" and
// "/a/foo/x", not "/a/foobar".
func RangePath(path string) Range { return Range{kind: C.WATCHCORE_RANGE_PATH, from: path} }

// RangeBetween returns the range of the keys from one (inclusive) to another (exclusive; "" is the end).
func RangeBetween(from, to string) Range {
	return Range{kind: C.WATCHCORE_RANGE_BETWEEN, from: from, to: to}
}

// inC returns the range for C, and whether the filter is to select nothing.
func (r Range) inC() (keys Range, nothing C.uint32_t) {
	if r.kind == rangeNone {
		return Range{}, 1
	}
	return r, 0
}

// fill accepts only the kinds of C.
func (r Range) fill(o *C.watchcore_range, pin *runtime.Pinner) {
	*o = C.watchcore_range{
		size: C.sizeof_watchcore_range,
		kind: C.uint32_t(r.kind),
		from: r.first(pin),
		to:   absent(pin, r.to),
	}
}

// first returns the range's first key, which may be empty but not NULL, unless the range is RangeAll.
func (r Range) first(pin *runtime.Pinner) C.watchcore_bytes {
	if r.kind == C.WATCHCORE_RANGE_ALL {
		return C.watchcore_bytes{}
	}
	return present(pin, r.from)
}

// SelectOptions selects key-values of a range of a snapshot. The zero value is all.
type SelectOptions struct {
	// LabelSelector and FieldSelector have the same meaning as in SubscribeOptions.
	LabelSelector, FieldSelector string
}

// DiffOptions selects the changes that Cache.Diff returns. The zero value is all.
type DiffOptions struct {
	// Range selects the keys; the zero Range is every key.
	Range Range
	// LabelSelector and FieldSelector have the same meaning as in SubscribeOptions. An object that
	// entered or left them in between is added or deleted.
	LabelSelector, FieldSelector string
	// Types selects the types of events; nil is all.
	Types []EventType
}

func (d *DiffOptions) fill(o *C.watchcore_filter, pin *runtime.Pinner) error {
	var check checker
	keys, nothing := d.Range.inC()
	*o = C.watchcore_filter{
		size:    C.sizeof_watchcore_filter,
		_range:  C.uint32_t(keys.kind),
		from:    keys.first(pin),
		to:      absent(pin, keys.to),
		labels:  check.text("LabelSelector", pin, d.LabelSelector),
		fields:  check.text("FieldSelector", pin, d.FieldSelector),
		types:   check.types("DiffOptions.Types", d.Types),
		nothing: nothing,
	}
	return check.err
}

// fill combines the selectors with a range.
func (s *SelectOptions) fill(o *C.watchcore_filter, keys Range, pin *runtime.Pinner) error {
	all := DiffOptions{Range: keys, LabelSelector: s.LabelSelector, FieldSelector: s.FieldSelector}
	return all.fill(o, pin)
}

// types refuses values that are no event types; nil is all.
func (c *checker) types(name string, types []EventType) C.uint32_t {
	var mask C.uint32_t
	for _, t := range types {
		if t < EventAdded || t > EventDelete {
			c.refuse("%s has %v, which is no type of an event", name, t)
			continue
		}
		mask |= 1 << t
	}
	return mask
}
