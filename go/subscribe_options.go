package watchcore

// #include "abi.h"
import "C"

import (
	"math"
	"runtime"
	"strconv"
	"time"
)

// SubscribeOptions says where a subscription starts and what it delivers. The zero value delivers
// the whole state of the cache, and then every event.
type SubscribeOptions struct {
	// Name is for people: it appears in Cache.Subscriptions, in error messages and in log lines. It
	// is UTF-8 and need not be unique.
	Name string

	// Start is the start position; the zero Start is StartState.
	Start Start
	// StartTimeout limits how long StartStateAtLeast waits for its revision. 0 is 3 s.
	StartTimeout time.Duration

	// Range selects the keys; the zero Range is every key.
	Range Range
	// LabelSelector selects by labels, in Kubernetes' grammar: a=b, a==b, a!=b, a in (x,y), a notin
	// (x,y), a, !a, a>1, a<1, joined by commas. The labels are those that Config.Labels declares.
	// "" selects everything. For a selector that does not parse the error is ErrInvalidArgument,
	// with the 0-based byte position and what was expected there. An object that enters the filter
	// is added, one that leaves it is deleted.
	LabelSelector string
	// FieldSelector selects by fields: name=value, name==value, name!=value, joined by commas. The
	// names are those of Config.Fields; a missing field counts as the empty string. "" selects
	// everything. Errors are as for LabelSelector.
	FieldSelector string
	// Types selects the types of events; nil is all. Bookmarks and resync marks are always delivered.
	Types []EventType

	// RawTypes delivers etcd's types, EventPut and EventDelete.
	RawTypes bool
	// WholeRevisions makes every batch end at the end of a revision.
	WholeRevisions bool
	// MaxBatch is the maximum number of events that Next, Batches and ResultChan take at a time. 0
	// is all available events, at most 1024.
	MaxBatch int
	// Bookmarks requests a bookmark when the position has advanced without an event, at most one
	// per BookmarkInterval.
	Bookmarks bool
	// BookmarkInterval is the minimum interval between bookmarks. 0 is 1 s.
	BookmarkInterval time.Duration

	// OnLag says what happens when events were lost; the zero LagPolicy is LagStop.
	OnLag LagPolicy
	// MaxLagEvents ends the subscription with ErrLagged, whatever OnLag says, when it is more than this
	// number of events behind. 0 is no limit. Each poll checks the limit, and a timer four times a second.
	MaxLagEvents uint64
	// MaxLagAge ends the subscription with ErrLagged, whatever OnLag says, when it has been behind
	// for this time. 0 is no limit. The limit is checked four times a second.
	MaxLagAge time.Duration
	// StopOnResync ends the subscription with ErrResynced when the history is replaced.
	StopOnResync bool
}

// Start is the start position of a subscription. The zero Start is StartState.
type Start struct {
	kind uint32
	from Position
}

// StartState delivers the whole matching state first, as added events in key order, and a bookmark
// at its end (Event.EndsInitialState); then the new events.
func StartState() Start { return Start{kind: C.WATCHCORE_START_STATE} }

// StartStateAtLeast is StartState after waiting for a revision.
func StartStateAtLeast(revision uint64) Start {
	return Start{C.WATCHCORE_START_STATE_AT_LEAST, Position{Revision: revision}}
}

// StartNow starts after the present revision.
func StartNow() Start { return Start{kind: C.WATCHCORE_START_NOW} }

// StartAfter starts after a revision. If it is older than the window, the error is ErrCompacted; if
// it is in the future, the subscription waits for it.
func StartAfter(revision uint64) Start {
	return Start{C.WATCHCORE_START_AFTER, Position{Revision: revision}}
}

// StartAfterPosition starts after a saved position, and detects that the history was replaced in between.
func StartAfterPosition(position Position) Start {
	return Start{C.WATCHCORE_START_AFTER, position}
}

// LagPolicy says what a subscription does after losing events.
type LagPolicy uint32

// The policies of SubscribeOptions.OnLag.
const (
	// LagStop reports ErrLagged and ends the subscription.
	LagStop LagPolicy = 0
	// LagSkipToOldest reports ErrLagged and continues at the oldest revision of the window. In the
	// initial state it is LagStop.
	LagSkipToOldest LagPolicy = 1
	// LagResnapshot reports ErrLagged, then delivers the exact difference between what was
	// delivered and the present state, between two resync marks with ReasonLagged, then the new
	// events. The subscription remembers the delivered keys: at most 32 bytes per matching key. If
	// the state that it starts from (StartAfter; StartNow before the listing) has left the window
	// before the first poll, there is no known state to compare with: then it is LagStop.
	LagResnapshot LagPolicy = 2
	// LagConflate reports no error, and delivers the latest change of each key; types are relative
	// to the delivered state. LagConflate remembers keys as LagResnapshot does, and ends with ErrLagged in
	// the same case.
	LagConflate LagPolicy = 3
)

// String returns the policy's name, such as "Resnapshot".
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
		bookmark_interval_ms: check.duration("SubscribeOptions.BookmarkInterval", s.BookmarkInterval),
		start_timeout_ms:     check.duration("SubscribeOptions.StartTimeout", s.StartTimeout),
		labels:               check.text("SubscribeOptions.LabelSelector", pin, s.LabelSelector),
		fields:               check.text("SubscribeOptions.FieldSelector", pin, s.FieldSelector),
		on_lag:               C.uint32_t(s.OnLag),
		nothing:              nothing,
		max_lag_events:       C.uint64_t(s.MaxLagEvents),
		max_lag_age_ms:       check.duration("SubscribeOptions.MaxLagAge", s.MaxLagAge),
		name:                 check.text("SubscribeOptions.Name", pin, s.Name),
	}
	return check.err
}

// maxBatch limits MaxBatch to an int32.
func (s *SubscribeOptions) maxBatch() int32 { return int32(min(s.MaxBatch, math.MaxInt32)) }
