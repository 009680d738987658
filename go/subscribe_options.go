package watchcore

// #include "abi.h"
import "C"

import (
	"math"
	"runtime"
	"time"
)

// SubscribeOption says where a subscription begins and what it hands out. A
// Range, a Condition and a TypeMask are options, too.
type SubscribeOption interface{ subscribe(*subscribeConfig) }

type subscribeConfig struct {
	start            uint32
	from             Position
	filter           filter
	raw, whole, stop bool
	onLag            LagPolicy
	maxLagEvents     uint64
	maxLagAge        time.Duration
	bookmarks        bool
	interval         time.Duration
	startTimeout     time.Duration
	max              int32
	name             string
	started          bool
	err              error
}

type subscribeFunc func(*subscribeConfig)

func (f subscribeFunc) subscribe(c *subscribeConfig) { f(c) }

func startOption(start uint32, from Position) SubscribeOption {
	return subscribeFunc(func(c *subscribeConfig) {
		if c.started {
			c.refuse("two starts were given. Give one of FromState, FromStateAtLeast, FromNow, After, AfterPosition")
		}
		c.started, c.start, c.from = true, start, from
	})
}

func (c *subscribeConfig) refuse(why string) {
	if c.err == nil {
		c.err = newError(ErrInvalidArgument, "subscribe: %s", why)
	}
}

// FromState begins with the whole matching state, as Added events in key order
// and a bookmark that ends it (EndsInitialState); then follows what is new.
func FromState() SubscribeOption { return startOption(C.WATCHCORE_START_STATE, Position{}) }

// FromStateAtLeast is FromState once the cache has a revision.
func FromStateAtLeast(revision uint64) SubscribeOption {
	return startOption(C.WATCHCORE_START_STATE_AT_LEAST, Position{Revision: revision})
}

// FromNow begins after the present revision.
func FromNow() SubscribeOption { return startOption(C.WATCHCORE_START_NOW, Position{}) }

// After begins after a revision: ErrCompacted where it is older than the window;
// a future one is waited for.
func After(revision uint64) SubscribeOption {
	return startOption(C.WATCHCORE_START_AFTER, Position{Revision: revision})
}

// AfterPosition begins after a position that was saved, and knows when the
// history is another one.
func AfterPosition(position Position) SubscribeOption {
	return startOption(C.WATCHCORE_START_AFTER, position)
}

// StartTimeout is how long FromStateAtLeast waits for its revision. Without it, 3 s.
func StartTimeout(timeout time.Duration) SubscribeOption {
	return subscribeFunc(func(c *subscribeConfig) { c.startTimeout = timeout })
}

func (c Condition) subscribe(s *subscribeConfig) {
	if err := s.filter.conditions.add(c); err != nil {
		s.refuse(err.(*Error).Message)
	}
}

func (m TypeMask) subscribe(c *subscribeConfig) {
	if why := m.add(&c.filter.types); why != "" {
		c.refuse(why)
	}
}

// RawTypes hands out etcd's types, RawPut and RawDelete.
func RawTypes() SubscribeOption {
	return subscribeFunc(func(c *subscribeConfig) { c.raw = true })
}

// Bookmarks asks for a bookmark where the position moved without an event, at
// most one per interval (0: 1 s).
func Bookmarks(interval time.Duration) SubscribeOption {
	return subscribeFunc(func(c *subscribeConfig) { c.bookmarks, c.interval = true, interval })
}

// WholeRevisions lets no batch end inside a revision.
func WholeRevisions() SubscribeOption {
	return subscribeFunc(func(c *subscribeConfig) { c.whole = true })
}

// StopOnResync ends the subscription with ErrResynced where the history is replaced.
func StopOnResync() SubscribeOption {
	return subscribeFunc(func(c *subscribeConfig) { c.stop = true })
}

// OnLag chooses what happens where events were lost. Without it, Stop.
func OnLag(policy LagPolicy) SubscribeOption {
	return subscribeFunc(func(c *subscribeConfig) { c.onLag = policy })
}

// MaxLagEvents ends the subscription with ErrLagged, whatever OnLag says, once it
// is more than so many events behind. 0 is no limit. It is looked at by each poll
// and four times a second.
func MaxLagEvents(events uint64) SubscribeOption {
	return subscribeFunc(func(c *subscribeConfig) { c.maxLagEvents = events })
}

// MaxLagAge ends the subscription with ErrLagged, whatever OnLag says, once it has
// been behind for so long. 0 is no limit. It is looked at four times a second.
func MaxLagAge(age time.Duration) SubscribeOption {
	return subscribeFunc(func(c *subscribeConfig) { c.maxLagAge = age })
}

// Named gives the subscription a name for people: in Cache.Subscriptions, in messages of
// its errors and in log lines. It is UTF-8 and need not be unique.
func Named(name string) SubscribeOption {
	return subscribeFunc(func(c *subscribeConfig) { c.name = name })
}

// MaxBatch is the most events that Next, Batches and ResultChan take at a time.
// Without it, as many as there are, which is 1024 at most.
func MaxBatch(events int) SubscribeOption {
	return subscribeFunc(func(c *subscribeConfig) { c.max = int32(min(max(events, 0), math.MaxInt32)) })
}

// Range says which keys: an option of Subscribe and Diff, and what List, Count and
// a snapshot are asked for. The zero Range is every key.
type Range struct {
	kind     uint32
	from, to string
}

// AllKeys is every key of the cache.
func AllKeys() Range { return Range{kind: C.WATCHCORE_RANGE_ALL} }

// Key is one key.
func Key(key string) Range { return Range{kind: C.WATCHCORE_RANGE_KEY, from: key} }

// KeyPrefix is the keys that start with these bytes.
func KeyPrefix(prefix string) Range { return Range{kind: C.WATCHCORE_RANGE_PREFIX, from: prefix} }

// Path is the keys below a path: "/a/foo" is "/a/foo" and "/a/foo/x", not "/a/foobar".
func Path(path string) Range { return Range{kind: C.WATCHCORE_RANGE_PATH, from: path} }

// KeyRange is the keys from one (inclusive) to another (exclusive; "" is the end).
func KeyRange(from, to string) Range {
	return Range{kind: C.WATCHCORE_RANGE_BETWEEN, from: from, to: to}
}

func (r Range) subscribe(c *subscribeConfig) {
	if c.filter.ranged {
		c.refuse(twoRanges)
	}
	c.filter.ranged, c.filter.keys = true, r
}

const twoRanges = "two ranges of keys were given. Give one of Key, KeyPrefix, Path, KeyRange"

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

func (c *subscribeConfig) fill(o *C.watchcore_subscription_options, pin *runtime.Pinner) {
	*o = C.watchcore_subscription_options{
		size:                 C.sizeof_watchcore_subscription_options,
		start:                C.uint32_t(c.start),
		revision:             C.uint64_t(c.from.Revision),
		epoch:                C.uint64_t(c.from.Epoch),
		_range:               C.uint32_t(c.filter.keys.kind),
		types:                C.uint32_t(c.filter.types),
		from:                 c.filter.keys.first(pin),
		to:                   absent(pin, c.filter.keys.to),
		raw_types:            bit(c.raw),
		bookmarks:            bit(c.bookmarks),
		whole_revisions:      bit(c.whole),
		stop_on_resync:       bit(c.stop),
		bookmark_interval_ms: milliseconds(c.interval),
		start_timeout_ms:     milliseconds(c.startTimeout),
		labels:               absent(pin, c.filter.conditions.labels),
		fields:               absent(pin, c.filter.conditions.fields),
		on_lag:               C.uint32_t(c.onLag),
		nothing:              bit(c.filter.conditions.nothing),
		max_lag_events:       C.uint64_t(c.maxLagEvents),
		max_lag_age_ms:       milliseconds(c.maxLagAge),
		name:                 absent(pin, c.name),
	}
}
