//! The state that all parts of one cache share: log, store, waiters, gauges, and the report of the source.
//!
//! [`Inner`] is counted: handles, the writer, subscriptions, snapshots and waiters each have a count, and the drop of
//! the last one sends the store to the reclaimer. The words here announce states of the cache, and the state is in
//! place before its word:
//!
//! | stored | loaded | order |
//! | --- | --- | --- |
//! | root, head and progress of the listing, then `ready` | `ready`, then any of these | Release / Acquire |
//! | `failed` and `Info::last_error` under one lock, then the hub is notified | `failed`, then the error under the lock | Release / Acquire |
//! | `failed` and `Info::last_error`, then `broken` | `broken` | Release / Acquire |
//! | a keeper's work, then the decrement of its count | the decrement of the last keeper, which closes the cache | AcqRel |
//! | `Info::consistent_revision` under the lock, then `served` | `served`, then the revision under the lock | Release / Acquire |
//!
//! `docs/internals/memory-model.md` has the order of a commit.

#![forbid(unsafe_code)]

use super::consumer::ConsumerOf;
use super::core::Core;
use super::gauges::{ConsumerGauges, Gauges};
use super::registry::{Registry, SubscriptionTotals};
use super::{Source, SourceReport, Stats};
use crate::attribute::schema::Schema;
use crate::data::decoded::Decoder;
use crate::data::slot::OwnedSlot;
use crate::error::{Code, Error, Result, say};
use crate::filter::indexes::Indexes;
use crate::filter::matcher::Matcher;
use crate::foreign;
use crate::heap::{HeapArc, HeapBytes};
use crate::log::buckets::Requests;
use crate::log::ring::{LogEnd, Ring, Run, progress_of};
use crate::log::segment::{Held, Segment};
use crate::position::Position;
use crate::reclaim::{self, Allowance, Guard, Published};
use crate::store::root::Root;
use crate::store::table::TablePages;
use crate::sync::{AcqRel, Acquire, AtomicBool, AtomicU32, Mutex, Relaxed, Release, lock, ord};
use crate::wake::{
    CacheFrontier, FilterCode, FirstMatch, HubOwner, Hubs, Overtaken, Searched, VisitEvent, Waiters, Watched,
};
use crate::worker::{self, Need};
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::{Instant, SystemTime};

#[derive(Clone, Copy)]
pub(crate) struct SizeLimits {
    pub(crate) key: usize,
    pub(crate) value: usize,
}

#[derive(Default)]
pub(crate) struct Info {
    pub(crate) stale_since: Option<SystemTime>,
    pub(crate) last_error: Option<Error>,
    pub(crate) report: SourceReport,
    pub(crate) source: Option<Arc<dyn Source>>,
    /// The revision of the last consistent read.
    pub(crate) consistent_revision: u64,
    /// The head and position at which the cache became Ready, if that was not at its listing.
    pub(crate) began: Option<(u64, Position)>,
}

impl Info {
    /// The reason why the source is not followed now, if it is not. `last_error` stays when the source is back, and is no
    /// reason then.
    pub(crate) fn source_error(&self) -> Option<&Error> {
        self.last_error.as_ref().filter(|_| self.stale_since.is_some())
    }
}

/// The filters of the last subscriptions, so that ten thousand watchers of one filter share one matcher.
#[derive(Default)]
pub(crate) struct RecentMatchers {
    last: [Weak<Matcher>; 8],
    /// The index of the one that was replaced last.
    newest: usize,
}

impl RecentMatchers {
    /// An equal matcher that is in use, or this one. Matchers with code of the user are not shared: the thread that
    /// made one should be the one that drops it.
    fn share(&mut self, matcher: Matcher) -> Arc<Matcher> {
        let mut living = self.last.iter().filter_map(Weak::upgrade);
        if let Some(same) = living.find(|other| **other == matcher) {
            return same;
        }
        let fresh = Arc::new(matcher);
        self.newest = (self.newest + 1) % self.last.len();
        self.last[self.newest] = Arc::downgrade(&fresh);
        fresh
    }
}

pub(crate) const NOT_READY: u32 = 0;
pub(crate) const READY: u32 = 1;

/// A subscription of a cache, and a counted reference to it: its handle, its registry and each handle that may close it have one.
pub(crate) type Consumer = ConsumerOf<Inner>;
pub(crate) type ConsumerRef = crate::sync::Arc<Consumer>;

/// See the module.
pub(crate) struct Inner {
    /// Handles of the cache, and subscriptions that have not ended: the last one closes the cache.
    pub(super) keepers: AtomicUsize,
    pub(crate) prefix: Box<[u8]>,
    pub(crate) name: String,
    pub(crate) limits: SizeLimits,
    /// The declared attributes, indexes and decoder.
    pub(crate) schema: Arc<Schema>,
    pub(crate) indexes: Arc<Indexes>,
    pub(crate) decoder: Option<Decoder>,
    pub(crate) requests: Requests,
    pub(crate) matchers: Mutex<RecentMatchers>,
    pub(crate) registry: Registry<Consumer>,
    pub(crate) ring: Ring,
    pub(crate) root: Published<Root>,
    /// The slots by the hash of their keys, for reads of one key.
    pub(crate) slots: Arc<TablePages<OwnedSlot>>,
    /// Free bytes of the writer's heap.
    pub(super) heap: HeapBytes,
    pub(crate) hubs: CachePadded<Hubs>,
    /// Whether a publisher may call the wakers of tasks.
    pub(super) trusts_wakers: bool,
    /// NOT_READY or READY: stored Release once, after the listing's root and progress.
    pub(super) ready: AtomicU32,
    /// A panic inside a commit stopped the writer for good: stored Release after `info` has the error.
    pub(super) broken: AtomicBool,
    /// The source refused for good. Stored before the hub is notified, with `Info::last_error` in place.
    pub(super) failed: AtomicBool,
    pub(crate) info: Mutex<Info>,
    /// The writer's state while no writer lives.
    pub(crate) core: Mutex<Option<Box<Core>>>,
    /// On their own cache lines, because the writer stores here with each revision, and consumers load the fields beside.
    pub(crate) gauges: CachePadded<Gauges>,
    pub(crate) consumers: ConsumerGauges,
    /// Tickets of consistent reads: asked and served.
    pub(crate) asked: AtomicU64,
    pub(crate) served: AtomicU64,
    /// This cache's share of the bytes that may wait to be freed.
    pub(super) _allowance: Allowance,
    /// Keeps the threads of the process running as long as memory of this cache is to be freed; taken by `drop`.
    pub(super) need: Option<Need>,
}

impl Inner {
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Acquire) == READY
    }

    /// Release: partner of `is_ready`; root and progress of the listing are in place.
    pub(crate) fn set_ready(&self, ready: u32) {
        self.ready.store(ready, ord!(Ready, Release));
    }

    /// Whether its versions have neither attributes nor decoded values.
    #[inline]
    pub(crate) fn adds_nothing(&self) -> bool {
        self.schema.is_empty() && self.decoder.is_none()
    }

    /// Acquire: partner of [`Inner::set_failed`].
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Acquire)
    }

    /// Release: partner of [`Inner::has_failed`].
    pub(crate) fn set_failed(&self, failed: bool) {
        self.failed.store(failed, Release);
    }

    /// Whether it is closed, after which nothing is published.
    pub(crate) fn is_closed(&self) -> bool {
        self.ring.end().closed
    }

    /// Whether it is closed, or was closed during a commit whose end closes it: nothing is opened any more.
    pub(crate) fn is_closing(&self) -> bool {
        self.ring.is_closing()
    }

    /// Counts a handle or a subscription, for which the cache stays open.
    pub(crate) fn keep_open(&self) {
        self.keepers.fetch_add(1, Relaxed);
    }

    /// Subtracts one, and closes the cache with the last. AcqRel: the closing thread sees all that the others did before.
    pub(crate) fn keep_open_no_more(self: &Arc<Inner>) {
        if self.keepers.fetch_sub(1, AcqRel) == 1 {
            self.close();
            // No reader is left and the log moves no more: detach the pages that live on from the cache.
            let pages = self.ring.keepers.clone();
            reclaim::free(0, Box::new(move || pages.detach_below(u64::MAX)));
        }
    }

    pub(crate) fn close(self: &Arc<Inner>) {
        if self.ring.close() {
            self.closed();
        }
    }

    /// Wakes all waiters and the source. Called by the call that has closed the log.
    pub(crate) fn closed(self: &Arc<Inner>) {
        self.hubs.notify(self);
        self.wake_source();
    }

    /// Whether the writer panicked inside a commit. Acquire: partner of the store in `fail_for_good`.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Acquire)
    }

    /// Stops the cache after a panic inside a commit: readers stay at the published head, and no event will come.
    pub(crate) fn fail_for_good(self: &Arc<Inner>) {
        let error = Error::new(
            Code::Panic,
            "a panic inside a commit stopped the writer; readers stay at the revision before. Build a new cache.",
        );
        {
            let mut info = lock(&self.info);
            self.set_failed(true);
            info.last_error = Some(error.clone());
        }
        self.broken.store(true, Release);
        self.hubs.notify(self);
        // The tracing subscriber is foreign code, and a second panic during unwinding would abort.
        foreign::report(|| tracing::error!(cache = self.name, "{error}"));
    }

    /// The error that stopped the writer, if one did.
    pub(crate) fn broken(&self) -> Option<Error> {
        if self.is_broken() { lock(&self.info).last_error.clone() } else { None }
    }

    /// Loads progress, then head, and returns their position and head.
    pub(crate) fn now(&self, pin: &Guard) -> (Position, u64) {
        loop {
            let progress = self.ring.progress();
            let head = self.ring.head();
            if let Some(position) = self.ring.position(progress, head, pin) {
                return (position, head);
            }
        }
    }

    pub(crate) fn position(&self) -> Position {
        self.now(&reclaim::pin()).0
    }

    /// [`Inner::now`] without a loop: if the event below the head has left already, because a revision longer than the
    /// log is being written, the position is that of the progress word.
    pub(crate) fn stands_at(&self) -> (Position, u64) {
        let progress = self.ring.progress();
        let head = self.ring.head();
        let pin = reclaim::pin();
        let of_progress = || {
            let epoch = self.ring.epochs(&pin).at(head).epoch;
            Position { epoch, revision: progress_of(progress, epoch) }
        };
        (self.ring.position(progress, head, &pin).unwrap_or_else(of_progress), head)
    }

    /// An equal matcher that a subscription has, or this one.
    pub(crate) fn share(&self, matcher: Matcher) -> Arc<Matcher> {
        if matcher.has_predicates() { Arc::new(matcher) } else { lock(&self.matchers).share(matcher) }
    }

    /// Counts a new subscription, and returns whether the cache is Ready. Under the lock of [`crate::Writer::attach`],
    /// which makes a cache wait for a listing only while it has no subscription.
    pub(crate) fn count_subscription(&self) -> bool {
        let _info = lock(&self.info);
        self.consumers.subscriptions.fetch_add(1, Relaxed);
        self.is_ready()
    }

    /// NOT_READY before the first listing, or the source's failure.
    pub(crate) fn check_ready(&self, what: &str) -> Result<()> {
        if self.is_ready() { Ok(()) } else { Err(self.not_ready(what)) }
    }

    /// The error of a call that needs the listing while there is none.
    pub(crate) fn not_ready(&self, what: &str) -> Error {
        let info = lock(&self.info);
        match (&info.last_error, self.has_failed()) {
            (Some(error), true) => error.clone(),
            _ => say::not_ready(what, info.source_error().map(Error::message)),
        }
    }

    /// The present statistics of all subscriptions; raises the largest lag ever seen to theirs.
    pub(super) fn totals(&self) -> SubscriptionTotals {
        let now = self.registry.totals();
        self.consumers.max_lag.fetch_max(now.max_lag_events, Relaxed);
        now
    }

    /// Losses of events, as a counter that never falls, because metrics take a falling counter for a restart: a
    /// subscription that counted as overrun, and whose poll then escaped, stays counted.
    #[cfg(feature = "metrics")]
    pub(crate) fn losses_that_only_rise(&self, now: u64) -> u64 {
        self.consumers.losses_shown.fetch_max(now, Relaxed).max(now)
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn source(&self) -> Option<Arc<dyn Source>> {
        lock(&self.info).source.clone()
    }

    /// Wakes the source, if there is one, to look at the present demand. The source is foreign code: a panic of it, or of
    /// its last drop, is counted and logged, and the caller continues.
    pub(crate) fn wake_source(&self) {
        let Some(source) = lock(&self.info).source.clone() else { return };
        if foreign::guard(|| source.wake()).is_none() {
            foreign::report(|| tracing::error!(cache = self.name, "a source panicked when it was woken"));
        }
        foreign::drop_guarded(source, "a source");
    }

    pub(crate) fn has_source(&self) -> bool {
        lock(&self.info).source.is_some()
    }

    /// The sequence number after which a reader of `asked` continues: h(R) of [`Ring::seq_above`].
    pub(crate) fn resolve(&self, what: &str, asked: Position, strict: bool) -> Result<ResolvedAt> {
        loop {
            let pin = reclaim::pin();
            let (current, head) = self.now(&pin);
            let oldest = self.ring.oldest_at(head, &pin);
            let found = self.resolve_once(asked, strict, (current, head), oldest.revision, &pin);
            if !oldest.holds(&self.ring) {
                continue;
            }
            match found {
                Resolved::At(found) => return Ok(found),
                Resolved::Compacted => return Err(self.compacted(what, asked.revision)),
                Resolved::Left => {}
            }
        }
    }

    /// Resolves `asked` for a reader at `(current, head)`.
    fn resolve_once(
        &self,
        asked: Position,
        strict: bool,
        (current, head): (Position, u64),
        oldest: u64,
        pin: &Guard,
    ) -> Resolved {
        let epochs = self.ring.epochs(pin);
        let epoch_view = epochs.at(head);
        let revision = asked.revision;
        if epochs.is_of_a_former_history(asked, head) || revision.saturating_add(1) < oldest {
            return Resolved::Compacted;
        }
        if revision > current.revision {
            if strict && asked.epoch == 0 && revision <= epoch_view.highest_before {
                return Resolved::Compacted;
            }
            return Resolved::At(ResolvedAt { seq: head, epoch: current.epoch, future: true });
        }
        if epochs.gap_around(revision, head).is_some() {
            return Resolved::Compacted;
        }
        let seq = self.ring.seq_above(revision, &epoch_view, head, pin);
        // A segment that left during the search raised `oldest` first, unless a reset came between.
        let again = self.ring.oldest_at(head, pin);
        let left = revision.saturating_add(1) < again.revision || self.ring.oldest_seq() > seq;
        if left || !again.holds(&self.ring) {
            return Resolved::Left;
        }
        Resolved::At(ResolvedAt { seq, epoch: epochs.at(seq).epoch, future: false })
    }

    /// Calls `each` with the runs of [from, head), segment by segment, until it returns false. Each segment is held by
    /// a count and not by a pin: `each` may run foreign code. `Err`: `from` has left the window.
    fn visit(
        &self,
        from: u64,
        head: u64,
        mut each: impl FnMut(&Segment, std::ops::Range<u64>) -> bool,
    ) -> std::result::Result<(), Overtaken> {
        let (mut at, mut hand) = (from, None);
        loop {
            match self.ring.next_run(&mut at, &mut hand, head) {
                Run::Events(run) => {
                    at = run.end;
                    if hand.as_ref().is_none_or(|segment| !each(segment, run)) {
                        return Ok(());
                    }
                }
                Run::Head => return Ok(()),
                Run::Evicted => return Err(Overtaken),
            }
        }
    }

    /// The oldest revision of the window, and the position that goes with it.
    pub(crate) fn window(&self) -> (u64, Position) {
        loop {
            let pin = reclaim::pin();
            let (before, _) = self.now(&pin);
            let left = self.ring.oldest_revision();
            // Loaded after it: the events that left lie below what was published before.
            let (current, head) = self.now(&pin);
            let oldest = self.ring.oldest_at(head, &pin);
            if !oldest.holds(&self.ring) || before.epoch != current.epoch {
                continue;
            }
            return (if oldest.is_before_a_reset() { oldest.revision } else { left }, current);
        }
    }

    pub(crate) fn compacted(&self, what: &str, revision: u64) -> Error {
        let (oldest, current) = self.window();
        say::compacted(what, revision, oldest, current.revision)
    }

    /// Bytes of live keys and indexes, for status and stats.
    fn index_bytes(&self) -> u64 {
        let gauges = &self.gauges;
        let tables = gauges.table_bytes.load(Relaxed) + gauges.tree_bytes.load(Relaxed);
        gauges.slot_bytes.load(Relaxed) + tables + self.heap.get()
    }

    pub(super) fn stats(&self, totals: &SubscriptionTotals) -> Stats {
        let (gauges, consumers) = (&self.gauges, &self.consumers);
        let held: &Held = &self.ring.held;
        let log_bytes = held.segment_bytes.load(Relaxed) + gauges.open_bytes.load(Relaxed);
        let (oldest_snapshot, snapshots) = self.ring.snapshots();
        Stats {
            objects: gauges.objects.load(Relaxed),
            version_bytes: gauges.version_bytes.load(Relaxed),
            index_bytes: self.index_bytes(),
            segments: held.segments.load(Relaxed),
            window_segments: gauges.window_segments.load(Relaxed),
            window_bytes: gauges.window_bytes.load(Relaxed),
            window_age: self.ring.window_age(),
            log_bytes,
            kept_bytes: log_bytes.saturating_sub(gauges.window_log_bytes.load(Relaxed)),
            snapshots,
            pages: self.ring.keepers.living(),
            page_bytes: self.ring.keepers.detached_bytes(),
            subscriptions: consumers.subscriptions.load(Relaxed),
            waiting: self.hubs.waiting(),
            notifier_overruns: self.hubs.overruns(),
            notifier_behind: self.hubs.behind(self.ring.head()),
            // Computed from the head, which a commit publishes before it stores the gauge, so every event that a reader
            // has seen is counted. If the log cannot tell, no commit is between the two.
            events: self.ring.published_events().unwrap_or_else(|| gauges.events.load(Relaxed)),
            revisions: gauges.revisions.load(Relaxed),
            oldest_snapshot,
            tombstones: gauges.tombstones.load(Relaxed),
            tombstone_bytes: gauges.tombstone_bytes.load(Relaxed),
            decoded_values: self.decoder.as_ref().map_or(0, Decoder::values),
            decoded_bytes: self.decoder.as_ref().map_or(0, Decoder::bytes),
            buckets: gauges.buckets.load(Relaxed),
            extract_failures: gauges.extract_failures.load(Relaxed),
            lagged: totals.lagged,
            delivered_bytes: consumers.delivered_bytes.load(Relaxed) + self.heap.outliving(),
            link_bytes: consumers.link_bytes.load(Relaxed),
            unfreed_bytes: reclaim::held_bytes(),
            caught_panics: crate::foreign::caught(),
        }
    }
}

/// The result of looking for a revision.
enum Resolved {
    At(ResolvedAt),
    Compacted,
    /// The revision, or the event after it, left the window during the search.
    Left,
}

/// The place of a revision in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolvedAt {
    pub(crate) seq: u64,
    /// The epoch there.
    pub(crate) epoch: u64,
    /// Whether the revision lies above the current one.
    pub(crate) future: bool,
}

impl Watched for Inner {
    fn frontier(&self) -> CacheFrontier {
        let ready = self.is_ready();
        let consistent = self.served.load(Acquire);
        let failed = self.is_broken() || (!ready && self.has_failed());
        let (position, head) = self.now(&reclaim::pin());
        let closed = self.is_closed();
        CacheFrontier { position, head, ready, failed, closed, consistent }
    }

    fn end(&self) -> LogEnd {
        self.ring.end()
    }

    fn newest_mark(&self) -> u64 {
        self.ring.newest_mark()
    }

    fn waiters(&self, code: FilterCode) -> &Waiters {
        &self.hubs.of(code).waiters
    }

    fn notify(self: &Arc<Self>, code: FilterCode) {
        self.hubs.of(code).notify(self);
    }
}

impl Searched for Inner {
    fn first_match(
        &self,
        matcher: &Matcher,
        from: u64,
        head: u64,
        most: usize,
    ) -> std::result::Result<FirstMatch, Overtaken> {
        let mut first = FirstMatch { found: None, examined_to: head, looked: 0 };
        self.visit(from, head, |segment, run| {
            let end = run.end.min(run.start.saturating_add((most - first.looked) as u64));
            let events = segment.view(run.start..end);
            let passes = events.iter().position(|event| matcher.matches_guarded(event));
            first.found = passes.map(|at| run.start + at as u64);
            first.looked += passes.map_or(events.len(), |at| at + 1);
            let is_over = first.found.is_some() || first.looked == most;
            if is_over {
                first.examined_to = first.found.unwrap_or(end);
            }
            !is_over
        })?;
        Ok(first)
    }

    fn visit_buckets(&self, from: u64, head: u64, each: &mut VisitEvent<'_>) -> std::result::Result<(), Overtaken> {
        self.visit(from, head, |segment, run| {
            segment.view(run).iter().all(|event| each(event, &mut segment.buckets(event.sequence())))
        })
    }

    fn window(&self) -> u64 {
        self.ring.window_slots()
    }
}

impl HubOwner for Inner {
    fn enforce_lag_limits(&self) -> Option<Instant> {
        self.registry.enforce_limits(self.is_closed())
    }

    fn wake_source(&self) {
        Inner::wake_source(self);
    }

    fn trusts_wakers(&self) -> bool {
        self.trusts_wakers
    }

    fn hubs(&self) -> &Hubs {
        &self.hubs
    }
}

/// The number of caches of this process that still have memory: the notifier or the reclaimer may have a dropped one
/// for a moment.
pub(crate) fn living() -> usize {
    worker::needs()
}

impl Drop for Inner {
    fn drop(&mut self) {
        let core = lock(&self.core).take();
        let need = self.need.take();
        let root = std::mem::replace(&mut self.root, Published::new(HeapArc::default()));
        let last = move || {
            drop(root);
            let gone = || drop(need);
            match core {
                Some(core) => core.destroy(gone),
                None => gone(),
            }
        };
        if reclaim::on_reclaimer() { last() } else { reclaim::free(0, Box::new(last)) }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("name", &self.name).finish()
    }
}
