package watchcore

// #include "abi.h"
import "C"

import (
	"math"
	"runtime"
	"strconv"
	"time"
)

// SubscribeOptions says where a subscription begins and what it hands out. The zero
// value is the whole state of the cache, and then every event.
type SubscribeOptions struct {
	// Name is for people: in Cache.Subscriptions, in messages of its errors and in log
	// lines. It is UTF-8 and need not be unique.
	Name string

	// Start is where it begins; the zero Start is StartState.
	Start Start
	// StartTimeout is how long StartStateAtLeast waits for its revision. 0 is 3 s.
	StartTimeout time.Duration

	// Range is which keys; the zero Range is every key.
	Range Range
	// LabelSelector lets pass what it selects, in Kubernetes' grammar: a=b, a==b, a!=b,
	// a in (x,y), a notin (x,y), a, !a, a>1, a<1, joined by commas. It looks at the labels
	// that Config.Labels declares. "" selects everything. One that does not parse is
	// ErrInvalidArgument with the 0-based byte position and what was expected there. An
	// object that comes into the filter is added, one that leaves it is deleted.
	LabelSelector string
	// FieldSelector lets pass what it selects: name=value, name==value, name!=value, joined
	// by commas. The names are those of Config.Fields; on a value that does not have it a
	// field is the empty string. "" selects everything; errors as of LabelSelector.
	FieldSelector string
	// Types hands out only these types; nil is all. Bookmarks and resync marks come all the
	// same.
	Types []EventType

	// RawTypes hands out etcd's types, EventPut and EventDelete.
	RawTypes bool
	// WholeRevisions lets no batch end inside a revision.
	WholeRevisions bool
	// MaxBatch is the most events that Next, Batches and ResultChan take at a time. 0 is as
	// many as there are, which is 1024 at most.
	MaxBatch int
	// Bookmarks asks for a bookmark where the position moved without an event, at most one
	// per BookmarkInterval.
	Bookmarks bool
	// BookmarkInterval goes with Bookmarks. 0 is 1 s.
	BookmarkInterval time.Duration

	// OnLag is what happens where events were lost; the zero LagPolicy is LagStop.
	OnLag LagPolicy
	// MaxLagEvents ends the subscription with ErrLagged, whatever OnLag says, once it is more
	// than so many events behind. 0 is no limit. It is looked at by each poll and four times
	// a second.
	MaxLagEvents uint64
	// MaxLagAge ends the subscription with ErrLagged, whatever OnLag says, once it has been
	// behind for so long. 0 is no limit. It is looked at four times a second.
	MaxLagAge time.Duration
	// StopOnResync ends the subscription with ErrResynced where the history is replaced.
	StopOnResync bool
}

// Start is where a subscription begins. The zero Start is StartState.
type Start struct {
	kind uint32
	from Position
}

// StartState begins with the whole matching state, as added events in key order and a
// bookmark that ends it (Event.EndsInitialState); then follows what is new.
func StartState() Start { return Start{kind: C.WATCHCORE_START_STATE} }

// StartStateAtLeast is StartState once the cache has a revision.
func StartStateAtLeast(revision uint64) Start {
	return Start{C.WATCHCORE_START_STATE_AT_LEAST, Position{Revision: revision}}
}

// StartNow begins after the present revision.
func StartNow() Start { return Start{kind: C.WATCHCORE_START_NOW} }

// StartAfter begins after a revision: ErrCompacted where it is older than the window; a
// future one is waited for.
func StartAfter(revision uint64) Start {
	return Start{C.WATCHCORE_START_AFTER, Position{Revision: revision}}
}

// StartAfterPosition begins after a position that was saved, and knows when the history
// is another one.
func StartAfterPosition(position Position) Start {
	return Start{C.WATCHCORE_START_AFTER, position}
}

// LagPolicy says what a subscription does where it lost events.
type LagPolicy uint32

// The policies of SubscribeOptions.OnLag.
const (
	// LagStop is ErrLagged, then the end.
	LagStop LagPolicy = 0
	// LagSkipToOldest is ErrLagged, then on at the oldest revision of the window. In the
	// initial state it is LagStop.
	LagSkipToOldest LagPolicy = 1
	// LagResnapshot is ErrLagged, then the exact difference between what was handed out and
	// the state now, between two resync marks with ReasonLagged, then what follows. It
	// remembers what it has handed out: at most 32 bytes a matching key. Where the state that
	// it starts from (StartAfter; StartNow before the listing) has left the window before it
	// was seen, no difference can be made: as LagStop.
	LagResnapshot LagPolicy = 2
	// LagConflate is no error, but the latest change of each key; types are relative to what
	// was handed out. It remembers as LagResnapshot does, and ends with ErrLagged where that ends.
	LagConflate LagPolicy = 3
)

// String is the policy's name, such as "Resnapshot".
func (p LagPolicy) String() string {
	switch p {
	case LagStop:
		return "Stop"
	case LagSkipToOldest:
		return "SkipToOldest"
	case LagResnapshot:
		return "Resnapshot"
	case LagConflate:
		return "Conflate"
	}
	return "LagPolicy(" + strconv.FormatUint(uint64(p), 10) + ")"
}

func (s *SubscribeOptions) fill(o *C.watchcore_subscription_options, pin *runtime.Pinner) error {
	var check checker
	if s.BookmarkInterval != 0 && !s.Bookmarks {
		check.refuse("SubscribeOptions.BookmarkInterval is %v without Bookmarks. Set both, or neither", s.BookmarkInterval)
	}
	if s.OnLag > LagConflate {
		check.refuse("SubscribeOptions.OnLag is %v. Give one of LagStop, LagSkipToOldest, LagResnapshot, LagConflate", s.OnLag)
	}
	if s.MaxBatch < 0 {
		check.refuse("SubscribeOptions.MaxBatch is %d: it cannot be negative. Give 0 for as many as there are", s.MaxBatch)
	}
	keys, nothing := s.Range.inC()
	*o = C.watchcore_subscription_options{
		size:                 C.sizeof_watchcore_subscription_options,
		start:                C.uint32_t(s.Start.kind),
		revision:             C.uint64_t(s.Start.from.Revision),
		epoch:                C.uint64_t(s.Start.from.Epoch),
		_range:               C.uint32_t(keys.kind),
		types:                check.types("SubscribeOptions.Types", s.Types),
		from:                 keys.first(pin),
		to:                   absent(pin, keys.to),
		raw_types:            bit(s.RawTypes),
		bookmarks:            bit(s.Bookmarks),
		whole_revisions:      bit(s.WholeRevisions),
		stop_on_resync:       bit(s.StopOnResync),
		bookmark_interval_ms: check.time("SubscribeOptions.BookmarkInterval", s.BookmarkInterval),
		start_timeout_ms:     check.time("SubscribeOptions.StartTimeout", s.StartTimeout),
		labels:               check.text("SubscribeOptions.LabelSelector", pin, s.LabelSelector),
		fields:               check.text("SubscribeOptions.FieldSelector", pin, s.FieldSelector),
		on_lag:               C.uint32_t(s.OnLag),
		nothing:              nothing,
		max_lag_events:       C.uint64_t(s.MaxLagEvents),
		max_lag_age_ms:       check.time("SubscribeOptions.MaxLagAge", s.MaxLagAge),
		name:                 check.text("SubscribeOptions.Name", pin, s.Name),
	}
	return check.err
}

// maxBatch is what fits the core.
func (s *SubscribeOptions) maxBatch() int32 { return int32(min(s.MaxBatch, math.MaxInt32)) }
