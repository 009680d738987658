package watchcore

// #include "abi.h"
import "C"

import (
	"runtime"
)

// Range says which keys. The zero Range is every key.
type Range struct {
	kind     uint32
	from, to string
}

// rangeNone is no kind of C's: there it is a filter that nothing passes.
const rangeNone = 1 << 31

// RangeAll is every key of the cache.
func RangeAll() Range { return Range{kind: C.WATCHCORE_RANGE_ALL} }

// RangeNone is no key. A subscription gets its marks all the same.
func RangeNone() Range { return Range{kind: rangeNone} }

// RangeKey is one key.
func RangeKey(key string) Range { return Range{kind: C.WATCHCORE_RANGE_KEY, from: key} }

// RangePrefix is the keys that start with these bytes.
func RangePrefix(prefix string) Range { return Range{kind: C.WATCHCORE_RANGE_PREFIX, from: prefix} }

// RangePath is the keys below a path: "/a/foo" is "/a/foo" and "/a/foo/x", not "/a/foobar".
func RangePath(path string) Range { return Range{kind: C.WATCHCORE_RANGE_PATH, from: path} }

// RangeBetween is the keys from one (inclusive) to another (exclusive; "" is the end).
func RangeBetween(from, to string) Range {
	return Range{kind: C.WATCHCORE_RANGE_BETWEEN, from: from, to: to}
}

// inC is the range as C knows it, and whether nothing is to pass.
func (r Range) inC() (keys Range, nothing C.uint32_t) {
	if r.kind == rangeNone {
		return Range{}, 1
	}
	return r, 0
}

// fill is for ranges that C knows.
func (r Range) fill(o *C.watchcore_range, pin *runtime.Pinner) {
	*o = C.watchcore_range{
		size: C.sizeof_watchcore_range,
		kind: C.uint32_t(r.kind),
		from: r.first(pin),
		to:   absent(pin, r.to),
	}
}

// first is present, though empty, where the range has one.
func (r Range) first(pin *runtime.Pinner) C.watchcore_bytes {
	if r.kind == C.WATCHCORE_RANGE_ALL {
		return C.watchcore_bytes{}
	}
	return present(pin, r.from)
}

// SelectOptions says which key-values of a range of a snapshot. The zero value is all.
type SelectOptions struct {
	// LabelSelector and FieldSelector are as those of SubscribeOptions.
	LabelSelector, FieldSelector string
}

// DiffOptions says which changes Cache.Diff gives. The zero value is all.
type DiffOptions struct {
	// Range is which keys; the zero Range is every key.
	Range Range
	// LabelSelector and FieldSelector are as those of SubscribeOptions. An object that came
	// into them or left them meanwhile is added or deleted.
	LabelSelector, FieldSelector string
	// Types gives only these types of events; nil is all.
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

// fill is a range of keys and what of them.
func (s *SelectOptions) fill(o *C.watchcore_filter, keys Range, pin *runtime.Pinner) error {
	all := DiffOptions{Range: keys, LabelSelector: s.LabelSelector, FieldSelector: s.FieldSelector}
	return all.fill(o, pin)
}

// types refuses what is no type of an event; nil is all.
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
