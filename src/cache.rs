//! The cache: log + store + waiters of one prefix, and the handles on it.

#![forbid(unsafe_code)]

use crate::decode::Decoder;
use crate::error::{Error, Result, say};
use crate::event::{Event, Position};
use crate::log::history::History;
use crate::log::ring::{Place, Ring, run_of};
use crate::log::segment::Held;
use crate::reclaim::{self, Guard, Published};
use crate::route::attribute::{Attribute, Labels, Schema};
use crate::route::bucket::{Requests, Router};
use crate::route::index::{Index, Indexes};
use crate::route::matcher::Matcher;
use crate::store::index::Index as Root;
use crate::subscription::Shared;
use crate::sync::{AcqRel, Acquire, AtomicBool, AtomicU32, Mutex, Relaxed, Release, lock, ord};
use crate::wake::{Glance, Hub, Watched};
use crate::writer::{Core, Writer};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

/// How fresh a cache is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum State {
    /// No listing yet: reads answer NOT_READY or wait.
    NotReady,
    /// Follows its source.
    Ready,
    /// The source is out of reach since then; reads answer what is known.
    Stale {
        /// Since when.
        since: SystemTime,
    },
    /// The source refused for good, or a bug stopped the writer.
    Failed,
    /// Closed.
    Closed,
}

/// What a feeder says of its source.
#[derive(Clone, Debug)]
pub enum SourceState {
    /// Connected and following.
    Fresh,
    /// Out of reach: why.
    Stale(Error),
    /// Refused: why.
    Failed(Error),
}

/// What a feeder tells about its source, as [`Status::source`] shows it.
#[derive(Clone, Debug, Default)]
pub struct SourceReport {
    /// The endpoint in use, or the last one tried.
    pub endpoint: String,
    /// Version that the server reports.
    pub server_version: String,
    /// The cluster's id.
    pub cluster_id: u64,
    /// The member's id.
    pub member_id: u64,
    /// Connections made.
    pub connects: u64,
    /// Connections made beyond the first.
    pub reconnects: u64,
    /// Resyncs.
    pub resyncs: u64,
    /// Newest revision seen in any header.
    pub etcd_revision: u64,
}

/// A cache at a glance.
#[derive(Clone, Debug)]
pub struct Status {
    /// How fresh.
    pub state: State,
    /// Where the cache stands.
    pub position: Position,
    /// See the crate's contract: `After` and `Exact` work from one below it.
    pub oldest: u64,
    /// Live keys.
    pub objects: u64,
    /// Bytes of the live keys and what the log holds beside them.
    pub bytes: u64,
    /// The source's last error.
    pub last_error: Option<Error>,
    /// Subscriptions that are open.
    pub subscriptions: u64,
    /// Largest lag of any subscription seen by one of its polls, in events (a high-water mark).
    pub max_lag_events: u64,
    /// What the feeder tells.
    pub source: SourceReport,
}

/// What a cache holds, in bytes, and by what.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Live keys.
    pub objects: u64,
    /// Versions of live keys, and tombstones not forgotten yet.
    pub version_bytes: u64,
    /// Slots and indexes.
    pub index_bytes: u64,
    /// Segments that exist: the window, and what batches, subscriptions and snapshots keep.
    pub segments: u64,
    /// Segments of the window.
    pub window_segments: u64,
    /// Segments and the replaced versions that they keep.
    pub log_bytes: u64,
    /// Subscriptions that are open.
    pub subscriptions: u64,
    /// Waiters that are parked now.
    pub waiting: u64,
    /// Times that the notifier itself was lapped.
    pub notifier_lapped: u64,
    /// Events published since birth.
    pub events: u64,
    /// Revisions published since birth.
    pub revisions: u64,
    /// Age of the oldest living snapshot, at most (of several that overlapped in one segment: of
    /// the first of them); zero if there is none.
    pub oldest_snapshot: Duration,
    /// Tombstones that wait to be forgotten.
    pub tombstones: u64,
    /// Buckets of the declared indexes.
    pub buckets: u64,
    /// Values whose attributes could not be extracted; they are absent there.
    pub extract_failures: u64,
    /// Times that a subscription lost events (told or not: see [`crate::OnLag`]).
    pub lagged: u64,
    /// Panics of foreign code that were caught in this process (decoders, drops of decoded values, wakers).
    pub caught_panics: u64,
}

impl Stats {
    /// All bytes held.
    pub fn bytes(&self) -> u64 {
        self.version_bytes + self.index_bytes + self.log_bytes
    }
}

/// Something that feeds a cache: told when somebody waits for news of it.
pub trait Source: Send + Sync {
    /// Somebody asks for progress or for a consistent read: see [`Writer::demand`]. Must be cheap
    /// and must not block; called from any thread.
    fn wake(&self);
}

#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) key: usize,
    pub(crate) value: usize,
}

#[derive(Default)]
pub(crate) struct Info {
    pub(crate) stale_since: Option<SystemTime>,
    pub(crate) failed: bool,
    pub(crate) last_error: Option<Error>,
    pub(crate) report: SourceReport,
    pub(crate) source: Option<Arc<dyn Source>>,
    /// Revision of the last consistent read.
    pub(crate) consistent_revision: u64,
}

/// Statistics that the writer raises.
#[derive(Default)]
pub(crate) struct Gauges {
    pub(crate) objects: AtomicU64,
    pub(crate) version_bytes: AtomicU64,
    pub(crate) slot_bytes: AtomicU64,
    pub(crate) table_bytes: AtomicU64,
    pub(crate) tree_bytes: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) revisions: AtomicU64,
    pub(crate) tombstones: AtomicU64,
    pub(crate) open_bytes: AtomicU64,
    pub(crate) window_segments: AtomicU64,
    pub(crate) subscriptions: AtomicU64,
    pub(crate) max_lag: AtomicU64,
    pub(crate) buckets: AtomicU64,
    pub(crate) extract_failures: AtomicU64,
    pub(crate) lagged: AtomicU64,
}

pub(crate) const NOT_READY: u32 = 0;
pub(crate) const READY: u32 = 1;

/// The state that threads and readers share; handles hold the right to close beside it.
pub(crate) struct Inner {
    pub(crate) prefix: Box<[u8]>,
    pub(crate) name: String,
    pub(crate) limits: Limits,
    /// The declared attributes, indexes and decoder.
    pub(crate) schema: Arc<Schema>,
    pub(crate) indexes: Arc<Indexes>,
    pub(crate) decoder: Option<Decoder>,
    pub(crate) requests: Requests,
    /// Subscriptions with a maximum lag.
    limited: Mutex<Vec<Weak<Shared>>>,
    pub(crate) ring: Ring,
    pub(crate) root: Published<Root>,
    pub(crate) hub: Hub,
    /// NOT_READY or READY: stored Release once, after the listing's root and progress.
    ready: AtomicU32,
    /// Stored before the head that nobody follows any more is looked at: see `subscription`.
    closed: AtomicBool,
    pub(crate) info: Mutex<Info>,
    /// The writer's state while no writer lives.
    pub(crate) core: Mutex<Option<Box<Core>>>,
    pub(crate) gauges: Gauges,
    /// Tickets of consistent reads: asked and served.
    pub(crate) asked: AtomicU64,
    pub(crate) served: AtomicU64,
}

impl Inner {
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Acquire) == READY
    }

    /// Release: partner of `is_ready`; root and progress of the listing are in place.
    pub(crate) fn set_ready(&self, ready: u32) {
        self.ready.store(ready, ord!(Ready, Release));
    }

    /// To be loaded before head: nothing published before the close is lost.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(ord!(ClosedLoad, Acquire))
    }

    pub(crate) fn close(self: &Arc<Inner>) {
        if !self.closed.swap(true, ord!(Closed, AcqRel)) {
            self.hub.notify(self);
            self.wake_source();
        }
    }

    /// Progress, then head, then the position that they make.
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

    /// The error of a call that needs the listing while there is none.
    pub(crate) fn not_ready(&self, what: &str) -> Error {
        let info = lock(&self.info);
        match (&info.last_error, info.failed) {
            (Some(error), true) => error.clone(),
            (error, _) => say::not_ready(what, error.as_ref().map(Error::message)),
        }
    }

    /// Watches over a subscription with a maximum lag, four times a second.
    pub(crate) fn limit(self: &Arc<Inner>, shared: &Arc<Shared>) {
        lock(&self.limited).push(Arc::downgrade(shared));
        self.hub.notify(self);
    }

    /// Asks the source, if there is one, to look at what is wanted.
    pub(crate) fn wake_source(&self) -> bool {
        let source = lock(&self.info).source.clone();
        source.inspect(|source| source.wake()).is_some()
    }

    pub(crate) fn has_source(&self) -> bool {
        lock(&self.info).source.is_some()
    }

    /// The sequence number after which a reader of `asked` goes on; see design: h(R).
    pub(crate) fn find(&self, what: &str, asked: Position, strict: bool) -> Result<Found> {
        for _ in 0..10_000 {
            let pin = reclaim::pin();
            let (current, head) = self.now(&pin);
            let history = self.ring.history(&pin);
            let present = history.at(head);
            let oldest = self.ring.oldest_revision();
            let revision = asked.revision;
            // A reset in the middle of its commit: its `oldest` is of a history above our head.
            if self.ring.history(&pin).turns.iter().any(|turn| turn.resets() && turn.seq >= head) {
                std::thread::yield_now();
                continue;
            }
            let compacted = || Err(self.compacted(what, revision));
            if history.is_of_a_former_history(asked, head) || revision.saturating_add(1) < oldest {
                return compacted();
            }
            if revision > current.revision {
                if strict && asked.epoch == 0 && revision <= present.highest_before {
                    return compacted();
                }
                return Ok(Found { seq: head, epoch: current.epoch, future: true });
            }
            if history.gap_around(revision, head).is_some() {
                return compacted();
            }
            let seq = self.ring.seq_above(revision, &present, head, &pin);
            // What left while we searched raised `oldest` before.
            if revision.saturating_add(1) < self.ring.oldest_revision() || self.ring.oldest_seq() > seq {
                continue;
            }
            return Ok(Found { seq, epoch: history.at(seq).epoch, future: false });
        }
        Err(Error::new(crate::Code::Internal, format!("{what}: the log moved on 10,000 times during one look")))
    }

    /// (oldest, current) for an error: what left lies below what was published before.
    pub(crate) fn window(&self) -> (u64, Position) {
        let oldest = self.ring.oldest_revision();
        (oldest, self.position())
    }

    pub(crate) fn compacted(&self, what: &str, revision: u64) -> Error {
        let (oldest, current) = self.window();
        say::compacted(what, revision, oldest, current.revision)
    }

    /// Bytes of live keys and indexes, for status and stats.
    fn index_bytes(&self) -> u64 {
        let gauges = &self.gauges;
        gauges.slot_bytes.load(Relaxed) + gauges.table_bytes.load(Relaxed) + gauges.tree_bytes.load(Relaxed)
    }

    pub(crate) fn stats(&self) -> Stats {
        let gauges = &self.gauges;
        let held: &Held = &self.ring.held;
        Stats {
            objects: gauges.objects.load(Relaxed),
            version_bytes: gauges.version_bytes.load(Relaxed),
            index_bytes: self.index_bytes(),
            segments: held.segments.load(Relaxed),
            window_segments: gauges.window_segments.load(Relaxed),
            log_bytes: held.segment_bytes.load(Relaxed) + gauges.open_bytes.load(Relaxed),
            subscriptions: gauges.subscriptions.load(Relaxed),
            waiting: self.hub.waiting() as u64,
            notifier_lapped: self.hub.lapped(),
            events: gauges.events.load(Relaxed),
            revisions: gauges.revisions.load(Relaxed),
            oldest_snapshot: self.ring.oldest_snapshot(),
            tombstones: gauges.tombstones.load(Relaxed),
            buckets: gauges.buckets.load(Relaxed),
            extract_failures: gauges.extract_failures.load(Relaxed),
            lagged: gauges.lagged.load(Relaxed),
            caught_panics: crate::decode::caught(),
        }
    }
}

/// Where a revision lies in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) seq: u64,
    /// The epoch there.
    pub(crate) epoch: u64,
    /// It lies above the current revision.
    pub(crate) future: bool,
}

impl Watched for Inner {
    fn glance(&self) -> Glance {
        let closed = self.is_closed();
        let ready = self.is_ready();
        let consistent = self.served.load(Acquire);
        let failed_early = !ready && lock(&self.info).failed;
        let (position, head) = self.now(&reclaim::pin());
        // A source that failed before its listing wakes whoever waits for that.
        Glance { position, head, ready: ready || failed_early, closed, consistent }
    }

    fn first_match(&self, matcher: &Matcher, from: u64, head: u64) -> std::result::Result<Option<u64>, ()> {
        let mut at = from;
        while at < head {
            let pin = reclaim::pin();
            match self.ring.place(at, &pin) {
                Place::At(segment) => {
                    let events: &[Event] = segment.view(run_of(&segment, at, head));
                    if let Some(found) = events.iter().position(|event| matches_for_notifier(matcher, event)) {
                        return Ok(Some(at + found as u64));
                    }
                    at = if head < segment.limit() { head } else { segment.limit() };
                }
                Place::Skip(to) => at = to,
                Place::Lapped => return Err(()),
            }
        }
        Ok(None)
    }

    fn visit_buckets(
        &self,
        from: u64,
        head: u64,
        each: &mut dyn FnMut(&Event, &mut dyn Iterator<Item = u64>),
    ) -> std::result::Result<(), ()> {
        let mut at = from;
        while at < head {
            let pin = reclaim::pin();
            match self.ring.place(at, &pin) {
                Place::At(segment) => {
                    for event in segment.view(run_of(&segment, at, head)) {
                        each(event, &mut segment.buckets(event.sequence));
                    }
                    at = if head < segment.limit() { head } else { segment.limit() };
                }
                Place::Skip(to) => at = to,
                Place::Lapped => return Err(()),
            }
        }
        Ok(())
    }

    fn newest_mark(&self) -> u64 {
        self.ring.newest_mark()
    }

    fn keep_limits(&self) -> Option<Instant> {
        let limited: Vec<Arc<Shared>> = {
            let mut all = lock(&self.limited);
            all.retain(|one| one.strong_count() > 0);
            all.iter().filter_map(Weak::upgrade).collect()
        };
        let open = limited.iter().filter(|shared| shared.keep_limit()).count();
        (open > 0).then(|| Instant::now() + Duration::from_millis(250))
    }

    fn hub(&self) -> &Hub {
        &self.hub
    }
}

/// As [`Matcher::matches`]; a predicate that panics wakes its owner, on whose thread it panics again.
pub(crate) fn matches_for_notifier(matcher: &Matcher, event: &Event) -> bool {
    if !matcher.has_predicates() {
        return matcher.matches(event);
    }
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| matcher.matches(event))).unwrap_or(true)
}

/// Caches whose memory was not given back yet.
static LIVING: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// How many caches of this process still have memory: one that was dropped may be with the notifier
/// or the reclaimer for a moment.
pub(crate) fn living() -> usize {
    LIVING.load(Relaxed)
}

impl Drop for Inner {
    fn drop(&mut self) {
        let core = lock(&self.core).take();
        let root = std::mem::replace(&mut self.root, Published::new(Root::default()));
        let last = move || {
            drop(root);
            if let Some(core) = core {
                core.destroy();
            }
            LIVING.fetch_sub(1, Relaxed);
        };
        if reclaim::on_reclaimer() { last() } else { reclaim::free(Box::new(last)) }
    }
}

struct Handle(Arc<Inner>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A cache of one prefix: a bounded log of its changes and a keyed store of its state.
///
/// Clone, Send and Sync. The last handle dropped closes it: subscriptions get what is left, then
/// CLOSED. Batches, key-values and snapshots outlive it.
#[derive(Clone)]
pub struct Cache {
    pub(crate) inner: Arc<Inner>,
    _handle: Arc<Handle>,
}

impl Cache {
    /// Options of a new cache that holds the keys which start with `prefix` (empty: all keys).
    pub fn builder(prefix: impl AsRef<[u8]>) -> Builder {
        Builder {
            prefix: prefix.as_ref().to_vec(),
            capacity: 65_536,
            capacity_bytes: 256 << 20,
            limits: Limits { key: 64 << 10, value: 16 << 20 },
            expect_load: false,
            name: String::new(),
            segment_slots: None,
            fields: Vec::new(),
            labels: None,
            indexes: Vec::new(),
            max_buckets: 65_536,
            decoder: None,
        }
    }

    /// The writer. One lives at a time (I1): BUSY while another does; a dropped one can be taken
    /// again. Never blocks.
    pub fn writer(&self) -> Result<Writer> {
        Writer::take(&self.inner)
    }

    /// Where the cache stands.
    pub fn position(&self) -> Position {
        self.inner.position()
    }

    /// `After(R)` and `Exact(R)` work for R from one below this up to the current revision.
    pub fn oldest(&self) -> u64 {
        self.inner.ring.oldest_revision()
    }

    /// The prefix of every key.
    pub fn prefix(&self) -> &[u8] {
        &self.inner.prefix
    }

    /// The name given to the builder.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// State, position, window, lag and the source's last error. Takes a short lock that the
    /// writer does not take while it publishes.
    pub fn status(&self) -> Status {
        let inner = &self.inner;
        let stats = inner.stats();
        let info = lock(&inner.info);
        let state = if inner.is_closed() {
            State::Closed
        } else if info.failed {
            State::Failed
        } else if !inner.is_ready() {
            State::NotReady
        } else {
            info.stale_since.map_or(State::Ready, |since| State::Stale { since })
        };
        Status {
            state,
            position: inner.position(),
            oldest: self.oldest(),
            objects: stats.objects,
            bytes: stats.bytes(),
            last_error: info.last_error.clone(),
            subscriptions: stats.subscriptions,
            max_lag_events: inner.gauges.max_lag.load(Relaxed),
            source: info.report.clone(),
        }
    }

    /// What the cache holds and by what.
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Closes the cache: idempotent, from any thread. Waiters end at once; subscriptions hand out
    /// what is left, then answer CLOSED.
    pub fn close(&self) {
        self.inner.close();
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("name", &self.name()).field("position", &self.position()).finish()
    }
}

/// Options of a new cache.
#[derive(Clone, Debug)]
pub struct Builder {
    prefix: Vec<u8>,
    capacity: usize,
    capacity_bytes: u64,
    limits: Limits,
    expect_load: bool,
    name: String,
    segment_slots: Option<u64>,
    fields: Vec<Attribute>,
    labels: Option<Labels>,
    indexes: Vec<Index>,
    max_buckets: usize,
    decoder: Option<Decoder>,
}

impl std::fmt::Debug for Limits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "key {}, value {}", self.key, self.value)
    }
}

impl Builder {
    /// Events that the log holds at most (default 65,536; at least 128). The guaranteed window is
    /// 7/8 of it less one segment.
    pub fn capacity(mut self, events: usize) -> Builder {
        self.capacity = events;
        self
    }

    /// Bytes that the log holds at most beside the live keys (default 256 MiB).
    pub fn capacity_bytes(mut self, bytes: u64) -> Builder {
        self.capacity_bytes = bytes;
        self
    }

    /// Longest key (default 64 KiB).
    pub fn max_key_bytes(mut self, bytes: usize) -> Builder {
        self.limits.key = bytes;
        self
    }

    /// Longest value (default 16 MiB).
    pub fn max_value_bytes(mut self, bytes: usize) -> Builder {
        self.limits.value = bytes;
        self
    }

    /// Born NOT_READY: reads wait for [`Writer::load`]. A feeder's cache always is.
    pub fn expect_load(mut self, expect: bool) -> Builder {
        self.expect_load = expect;
        self
    }

    /// A name for logs and status.
    pub fn name(mut self, name: &str) -> Builder {
        self.name = name.into();
        self
    }

    /// Declares an attribute for field selectors and indexes: extracted once from each value that is
    /// written. An extractor that fails leaves it absent and is counted ([`Stats::extract_failures`]).
    pub fn field(mut self, attribute: Attribute) -> Builder {
        self.fields.push(attribute);
        self
    }

    /// Says where the labels of a value are, for label selectors and indexes.
    pub fn labels(mut self, labels: Labels) -> Builder {
        self.labels = Some(labels);
        self
    }

    /// Declares an index (at most 8): subscriptions whose filter fits it read only the events of their
    /// own bucket. See [`Index`] for what it costs.
    pub fn index(mut self, index: Index) -> Builder {
        self.indexes.push(index);
        self
    }

    /// Most buckets of all indexes together (default 65,536); subscriptions beyond them scan. Those
    /// that nobody uses are evicted.
    pub fn max_buckets(mut self, buckets: usize) -> Builder {
        self.max_buckets = buckets;
        self
    }

    /// Declares what values mean: [`crate::Event::decoded`] calls it at most once a value, on the
    /// thread of whoever asks first. Its result is shared, and dropped on the thread that frees.
    pub fn decoder<T, E>(mut self, decode: impl Fn(&[u8], &[u8]) -> Result<T, E> + Send + Sync + 'static) -> Builder
    where
        T: Send + Sync + 'static,
        E: std::fmt::Display,
    {
        self.decoder = Some(Decoder::new(decode));
        self
    }

    /// Slots a segment: tests make laps common with it.
    #[doc(hidden)]
    pub fn segment_slots(mut self, slots: u64) -> Builder {
        self.segment_slots = Some(slots);
        self
    }

    /// Makes the cache. INVALID_ARGUMENT where an option is out of its range.
    pub fn build(self) -> Result<Cache> {
        let check = |holds: bool, what: &str| if holds { Ok(()) } else { Err(say::invalid(what.to_string())) };
        check(
            self.prefix.len() <= self.limits.key,
            "the prefix is longer than the longest key: choose a shorter prefix, or raise max_key_bytes",
        )?;
        check(
            (if cfg!(loom) { 2 } else { 128 }..=1 << 32).contains(&self.capacity),
            &format!("capacity {}: it must be 128 to 4294967296 events", self.capacity),
        )?;
        check(
            self.capacity_bytes >= 1 << 16,
            &format!("capacity_bytes {}: it must be at least 65536", self.capacity_bytes),
        )?;
        check((1..=u32::MAX as usize / 2).contains(&self.limits.key), "max_key_bytes: it must be 1 to 2147483647")?;
        check(self.limits.value <= u32::MAX as usize / 2, "max_value_bytes: it must be at most 2147483647")?;
        let capacity = self.capacity as u64;
        let eighth = (capacity / 8).max(16);
        let slots = self.segment_slots.unwrap_or_else(|| (1u64 << eighth.ilog2()).min(1024));
        check(slots.is_power_of_two(), "segment_slots: a power of two")?;
        let segments = (capacity / slots).max(if self.segment_slots.is_some() { 2 } else { 8 });
        let birth = u64::from(crate::read::birth_mark());
        let history = History { first_epoch: birth << 32 | 1, listing: 0, turns: Vec::new() };
        let schema = Arc::new(Schema::new(self.fields, self.labels)?);
        let indexes = Arc::new(Indexes::new(&self.indexes, &schema)?);
        let bytes = self.capacity_bytes / segments;
        let (ring, ring_writer) = Ring::new(slots, segments, bytes, history.clone(), indexes.width(), schema.clone());
        let router = Router::new(indexes.clone(), self.max_buckets);
        let inner = Arc::new(Inner {
            prefix: self.prefix.into(),
            name: self.name,
            limits: self.limits,
            schema,
            indexes,
            decoder: self.decoder,
            requests: Requests::default(),
            limited: Mutex::default(),
            ring,
            root: Published::new(Root::default()),
            hub: Hub::default(),
            ready: AtomicU32::new(if self.expect_load { NOT_READY } else { READY }),
            closed: AtomicBool::new(false),
            info: Mutex::default(),
            core: Mutex::new(Some(Box::new(Core::new(ring_writer, history, router)))),
            gauges: Gauges { window_segments: AtomicU64::new(1), ..Gauges::default() },
            asked: AtomicU64::new(0),
            served: AtomicU64::new(0),
        });
        LIVING.fetch_add(1, Relaxed);
        Ok(Cache { _handle: Arc::new(Handle(inner.clone())), inner })
    }
}
