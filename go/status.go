package watchcore

// #include "abi.h"
// #cgo nocallback wc_where
// #cgo nocallback wc_ready
// #cgo noescape wc_status
// #cgo nocallback wc_status
// #cgo noescape wc_stats
// #cgo nocallback wc_stats
// #cgo noescape wc_text
// #cgo nocallback wc_text
// #cgo noescape wc_feeder_counters
// #cgo nocallback wc_feeder_counters
import "C"

import (
	"runtime"
	"strconv"
	"time"
	"unsafe"
)

// State is the condition of a cache.
type State uint32

// The states of caches.
const (
	StateNotReady State = 0 // the first listing is not complete
	StateReady    State = 1 // up to date, as far as the cache knows
	StateStale    State = 2 // the source is unreachable; reads return the last state
	StateFailed   State = 3 // the source refuses the cache; see LastError
	StateClosed   State = 4 // closed
)

// String returns the state's name, such as "Ready".
func (s State) String() string {
	switch s {
	case StateNotReady:
		return "NotReady"
	case StateReady:
		return "Ready"
	case StateStale:
		return "Stale"
	case StateFailed:
		return "Failed"
	case StateClosed:
		return "Closed"
	}
	return "State(" + strconv.FormatUint(uint64(s), 10) + ")"
}

// Status describes a cache.
type Status struct {
	Name          string // the cache's: see Config
	State         State
	Position      Position
	Oldest        uint64        // the oldest revision of the window: StartAfter(Oldest-1) is possible
	WindowAge     time.Duration // how far back the window reaches: it has every event since then
	Objects       uint64        // live keys
	Bytes         uint64        // all memory of the cache: the sum of the bytes in Stats
	Subscriptions uint64        // open subscriptions
	MaxLagEvents  uint64        // the largest present Lag.Events of a subscription, read or not; Cache.Subscriptions shows whose it is
	MaxLagSeen    uint64        // the largest Lag.Events ever measured, including closed subscriptions
	Overrun       uint64        // open subscriptions that have lost events and not reported it by a poll: SubscriptionOverrun
	StaleSince    time.Time     // StateStale: since when; else zero
	LastError     *Error        // the source's last error, which stays set after the source has recovered
	SourceError   *Error        // why the source is not followed now: LastError, or nil if it is followed
	Source        Source
}

// Source describes what feeds a cache; it is zero for an embedded cache.
type Source struct {
	Endpoint      string // the endpoint in use
	ServerVersion string
	Revision      uint64 // the newest revision of the feeder's last report
	ClusterID     uint64
	MemberID      uint64
	Connects      uint64
	Reconnects    uint64 // connects after the first
	Resyncs       uint64
	Warning       string // a problem that needs a person although the source is followed, such as a bad certificate file
}

// Status returns the cache's present status, or the last one of a closed cache.
func (c *Cache) Status() Status {
	defer runtime.KeepAlive(c)
	if c.core.cache.acquire() {
		defer c.core.cache.release()
		if status, err := c.core.status(); err == nil {
			return *status
		}
	} else if last := c.core.last.Load(); last != nil {
		return *last
	}
	return Status{Name: c.core.name, State: StateClosed}
}

// Position returns the cache's position in the history, or the last one of a closed cache, in O(1).
func (c *Cache) Position() Position {
	position, _ := c.stands()
	return position
}

// Revision returns the cache's revision, or the last one of a closed cache, in O(1).
func (c *Cache) Revision() uint64 { return c.Position().Revision }

// Oldest returns the oldest revision of the window: StartAfter(Oldest-1) is possible. For a closed
// cache it returns the last value. Oldest takes O(1).
func (c *Cache) Oldest() uint64 {
	_, oldest := c.stands()
	return oldest
}

// Ready reports whether the first listing is complete and the cache open, so that reads succeed and WaitReady
// returns at once. Ready stays true while etcd is unreachable, which Status shows. Ready takes O(1).
func (c *Cache) Ready() bool {
	core := c.core
	if !core.cache.acquire() {
		return false
	}
	ready := C.wc_ready(core.c()) != 0
	core.cache.release()
	runtime.KeepAlive(c)
	return ready
}

func (c *Cache) stands() (position Position, oldest uint64) {
	core := c.core
	if !core.cache.acquire() {
		status := c.Status()
		return status.Position, status.Oldest
	}
	now := C.wc_where(core.c())
	core.cache.release()
	runtime.KeepAlive(c)
	return Position{Epoch: uint64(now.epoch), Revision: uint64(now.revision)}, uint64(now.oldest)
}

// Prefix returns the cache's key range, also after Close.
func (c *Cache) Prefix() string { return c.core.prefix }

// Name returns the cache's name, also after Close.
func (c *Cache) Name() string { return c.core.name }

func (core *cacheCore) status() (*Status, error) {
	s := C.watchcore_status{size: C.sizeof_watchcore_status}
	if err := failed(C.wc_status(core.c(), &s)); err != nil {
		return nil, err
	}
	status := &Status{
		Name:          core.name,
		State:         State(s.state),
		Position:      Position{Epoch: uint64(s.epoch), Revision: uint64(s.revision)},
		Oldest:        uint64(s.oldest),
		WindowAge:     time.Duration(s.window_age_ms) * time.Millisecond,
		Objects:       uint64(s.objects),
		Bytes:         uint64(s.bytes),
		Subscriptions: uint64(s.subscriptions),
		MaxLagEvents:  uint64(s.max_lag_events),
		MaxLagSeen:    uint64(s.max_lag_seen),
		Overrun:       uint64(s.overrun),
		Source: Source{
			Revision:   uint64(s.source_revision),
			ClusterID:  uint64(s.cluster_id),
			MemberID:   uint64(s.member_id),
			Connects:   uint64(s.connects),
			Reconnects: uint64(s.reconnects),
			Resyncs:    uint64(s.resyncs),
		},
	}
	if s.stale_since_unix_ms != 0 {
		status.StaleSince = time.UnixMilli(int64(s.stale_since_unix_ms))
	}
	if s.last_error != 0 {
		status.LastError = &Error{Code: Code(s.last_error), Message: asError(core.text(C.WATCHCORE_TEXT_LAST_ERROR))}
	}
	if s.source_error != 0 {
		status.SourceError = status.LastError
	}
	if core.feeder.Load() != nil {
		status.Source.Endpoint = core.text(C.WATCHCORE_TEXT_ENDPOINT)
		status.Source.ServerVersion = core.text(C.WATCHCORE_TEXT_SERVER_VERSION)
		status.Source.Warning = inGo(core.text(C.WATCHCORE_TEXT_WARNING))
	}
	return status, nil
}

// text calls again with a larger buffer if the text does not fit.
func (core *cacheCore) text(which uint32) string {
	buffer := make([]byte, 128)
	for {
		var length C.size_t
		e := C.wc_text(core.c(), C.uint32_t(which), (*C.char)(unsafe.Pointer(&buffer[0])), C.size_t(len(buffer)), &length)
		if e != nil {
			taken(e)
			return ""
		}
		if int(length) < len(buffer) {
			return string(buffer[:length])
		}
		buffer = make([]byte, int(length)+1)
	}
}

// Stats counts what a cache has done, and the memory that it holds.
type Stats struct {
	Events            uint64        // published since the cache was made
	Revisions         uint64        // published since the cache was made
	Objects           uint64        // live keys
	VersionBytes      uint64        // of live keys with their values, and of tombstones
	IndexBytes        uint64        // of the indexes, and of memory reserved for future writes
	LogBytes          uint64        // of the log, and of the replaced versions that it keeps
	Segments          uint64        // of the log, including those that only batches, subscriptions and snapshots keep
	WindowSegments    uint64        // of the log
	WindowBytes       uint64        // bytes that count against CapacityBytes: the log, and what its deletes keep; included in the bytes above
	WindowAge         time.Duration // how far back the window reaches: it has every event since then
	KeptBytes         uint64        // the part of LogBytes outside the window: kept by snapshots, batches and subscriptions
	Snapshots         uint64        // open snapshots; each keeps the log from its creation on
	Pages             uint64        // unreleased pages of more than 8 items, and initial batches of more than 8 events
	PageBytes         uint64        // of their key-values that are older than the window
	Tombstones        uint64        // deleted keys whose tombstones are not purged yet
	TombstoneBytes    uint64        // what remains of those keys until then
	Subscriptions     uint64        // open subscriptions
	Waiting           uint64        // waiters that sleep now
	NotifierOverruns  uint64        // how often events left the window before the notifier had looked at them
	NotifierBehind    uint64        // events that the notifier must still match for waiting subscriptions, if it is overloaded; else 0
	OldestSnapshot    time.Duration // the age of the oldest open snapshot
	Buckets           uint64        // of the declared indexes
	ExtractFailures   uint64        // values whose attributes could not be extracted
	Lagged            uint64        // how often a subscription lost events, reported or not, including closed subscriptions
	CaughtPanics      uint64        // panics of the program's code that the library caught, in this process
	DeliveredBytes    uint64        // of the keys that subscriptions remember as delivered, including deleted keys
	LinkBytes         uint64        // of the positions of events that subscriptions have looked up and not read
	UnfreedBytes      uint64        // replaced and not freed yet, in this process; above a bound writers wait
	UnreleasedBatches int64         // delivered and not released, neither by Release nor by the garbage collector
	UnreleasedPages   int64         // likewise pages
	LeakedBatches     int64         // unreachable, and not freed because a view was taken: held for ever
	LeakedPages       int64         // likewise pages
}

// Stats returns the cache's statistics; for a closed cache, only the unreleased batches and pages.
func (c *Cache) Stats() Stats {
	defer runtime.KeepAlive(c)
	core := c.core
	var s C.watchcore_stats
	if core.cache.acquire() {
		s.size = C.sizeof_watchcore_stats
		if e := C.wc_stats(core.c(), &s); e != nil {
			taken(e)
		}
		core.cache.release()
	}
	return Stats{
		Events:            uint64(s.events),
		Revisions:         uint64(s.revisions),
		Objects:           uint64(s.objects),
		VersionBytes:      uint64(s.version_bytes),
		IndexBytes:        uint64(s.index_bytes),
		LogBytes:          uint64(s.log_bytes),
		Segments:          uint64(s.segments),
		WindowSegments:    uint64(s.window_segments),
		WindowBytes:       uint64(s.window_bytes),
		WindowAge:         time.Duration(s.window_age_ms) * time.Millisecond,
		KeptBytes:         uint64(s.kept_bytes),
		Snapshots:         uint64(s.snapshots),
		Pages:             uint64(s.pages),
		PageBytes:         uint64(s.page_bytes),
		Tombstones:        uint64(s.tombstones),
		TombstoneBytes:    uint64(s.tombstone_bytes),
		Subscriptions:     uint64(s.subscriptions),
		Waiting:           uint64(s.waiting),
		NotifierOverruns:  uint64(s.notifier_overruns),
		NotifierBehind:    uint64(s.notifier_behind),
		OldestSnapshot:    time.Duration(s.oldest_snapshot_ms) * time.Millisecond,
		Buckets:           uint64(s.buckets),
		ExtractFailures:   uint64(s.extract_failures),
		Lagged:            uint64(s.lagged),
		CaughtPanics:      uint64(s.caught_panics),
		DeliveredBytes:    uint64(s.delivered_bytes),
		LinkBytes:         uint64(s.link_bytes),
		UnfreedBytes:      uint64(s.unfreed_bytes),
		UnreleasedBatches: core.state.unreleasedBatches(),
		UnreleasedPages:   core.state.pages.Load(),
		LeakedBatches:     core.state.leaks.batches.Load(),
		LeakedPages:       core.state.leaks.pages.Load(),
	}
}

// FeederCounters counts what the feeder has done since it was started.
type FeederCounters struct {
	Resyncs             map[ResyncReason]uint64 // by reason
	Connects            uint64                  // watches opened
	Reconnects          uint64                  // watches opened after the first
	Failures            uint64                  // sessions that failed or could not be opened
	Silences            uint64                  // watches abandoned because no message came
	FragmentSwitches    uint64                  // watches opened again with fragments
	Listings            uint64                  // listings begun
	Pages               uint64                  // pages of listings, and messages of streamed listings
	Probes              uint64                  // reads that proved that the history is unchanged
	Responses           uint64                  // messages on the watch
	Fragments           uint64                  // fragments among them
	Revisions           uint64                  // revisions applied
	Events              uint64                  // events applied
	Bytes               uint64                  // of the keys and values of these events
	IntegrityViolations uint64                  // messages that broke a rule of etcd's API, or did not match the cache's content
	ProgressReports     uint64                  // progress notifications received
	ProgressRequests    uint64                  // progress notifications requested
	ConsistentReads     uint64                  // linearizable reads for waiting requests
	CertificateReloads  uint64                  // replaced certificate files that were loaded
	CertificateFailures uint64                  // connections for which a certificate file could not be used
	MaxEventsQueued     uint64                  // the most events in one message
	MaxRevisionEvents   uint64                  // the most events of one revision
	SampledKeys         uint64                  // keys compared with etcd right after a reconnect
	Audits              uint64                  // comparisons of the whole range with etcd
	AuditedKeys         uint64                  // keys that these comparisons covered
	AuditTime           time.Duration           // the total time of these comparisons
	Differences         uint64                  // samples and audits that found a difference between etcd and the cache
	ComparedReads       uint64                  // consistent reads answered by a comparison with etcd's state
	ProgressUnanswered  uint64                  // 1 while requests for progress remain unanswered
	RepeatedEvents      uint64                  // identical events that came again, and were dropped
	LivenessReads       uint64                  // linearizable reads that check whether a watch is alive and up to date
	StaleWatches        uint64                  // watches abandoned because they did not reach a revision that etcd had
}

// FeederCounters returns the feeder's counters; the error is ErrUnsupported for an embedded cache.
func (c *Cache) FeederCounters() (FeederCounters, error) {
	defer runtime.KeepAlive(c)
	f, err := c.core.enterFeeder("ask for the feeder's counters")
	if err != nil {
		return FeederCounters{}, err
	}
	defer f.release()
	n := C.watchcore_counters{size: C.sizeof_watchcore_counters}
	if err := failed(C.wc_feeder_counters((*C.watchcore_feeder)(f.pointer), &n)); err != nil {
		return FeederCounters{}, err
	}
	resyncs := map[ResyncReason]uint64{}
	for reason, count := range n.resyncs {
		if reason > 0 && count > 0 { // element 0 is the sum
			resyncs[ResyncReason(reason)] = uint64(count)
		}
	}
	return FeederCounters{
		Resyncs:             resyncs,
		Connects:            uint64(n.connects),
		Reconnects:          uint64(n.reconnects),
		Failures:            uint64(n.failures),
		Silences:            uint64(n.silences),
		FragmentSwitches:    uint64(n.fragment_switches),
		Listings:            uint64(n.listings),
		Pages:               uint64(n.pages),
		Probes:              uint64(n.probes),
		Responses:           uint64(n.responses),
		Fragments:           uint64(n.fragments),
		Revisions:           uint64(n.revisions),
		Events:              uint64(n.events),
		Bytes:               uint64(n.bytes),
		IntegrityViolations: uint64(n.integrity_violations),
		ProgressReports:     uint64(n.progress_notifications),
		ProgressRequests:    uint64(n.progress_requests),
		ConsistentReads:     uint64(n.consistent_reads),
		CertificateReloads:  uint64(n.certificate_reloads),
		CertificateFailures: uint64(n.certificate_failures),
		MaxEventsQueued:     uint64(n.max_events_queued),
		MaxRevisionEvents:   uint64(n.max_revision_events),
		SampledKeys:         uint64(n.sampled_keys),
		Audits:              uint64(n.audits),
		AuditedKeys:         uint64(n.audited_keys),
		AuditTime:           time.Duration(n.audit_milliseconds) * time.Millisecond,
		Differences:         uint64(n.differences),
		ComparedReads:       uint64(n.compared_reads),
		ProgressUnanswered:  uint64(n.progress_unanswered),
		RepeatedEvents:      uint64(n.repeated_events),
		LivenessReads:       uint64(n.liveness_reads),
		StaleWatches:        uint64(n.stale_watches),
	}, nil
}
