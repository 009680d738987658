//! The status and statistics of a cache.

#![forbid(unsafe_code)]

use super::SourceReport;
use crate::error::Error;
use crate::position::Position;
use std::time::{Duration, SystemTime};

/// How fresh a cache is.
///
/// ```
/// use watchcore::{Cache, State};
///
/// let cache = Cache::builder("/").expect_load(true).build()?;
/// assert_eq!(cache.status().state, State::NotReady);
/// cache.writer()?.load(5, [])?;
/// assert_eq!(cache.status().state, State::Ready);
/// cache.close();
/// assert_eq!(cache.status().state, State::Closed);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum State {
    /// The cache has no listing yet: reads answer NOT_READY or wait.
    NotReady,
    /// Follows its source.
    Ready,
    /// The source is out of reach; reads answer with the last known state.
    Stale {
        /// Since when.
        since: SystemTime,
    },
    /// The source refused for good, or a bug stopped the writer.
    Failed,
    /// Closed.
    Closed,
}

impl State {
    /// Its name: `NotReady`, `Ready`, `Stale`, ...
    pub fn name(self) -> &'static str {
        match self {
            State::NotReady => "NotReady",
            State::Ready => "Ready",
            State::Stale { .. } => "Stale",
            State::Failed => "Failed",
            State::Closed => "Closed",
        }
    }
}

/// The status of a cache.
///
/// ```
/// use watchcore::{Cache, Change, State};
///
/// let cache = Cache::builder("/").build()?;
/// cache.writer()?.apply(3, [Change::put("/a", "1"), Change::put("/b", "2")])?;
/// let status = cache.status();
/// assert_eq!((status.state, status.position.revision, status.objects), (State::Ready, 3, 2));
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// The cache's name, as given to the builder.
    pub name: String,
    /// How fresh.
    pub state: State,
    /// The position of the cache.
    pub position: Position,
    /// The oldest revision of the window: `After` and `Exact` work from one below it.
    pub oldest: u64,
    /// The age of the window: every event of this time is in it. See [`Stats::window_age`].
    pub window_age: Duration,
    /// Live keys.
    pub objects: u64,
    /// The memory of the cache, in bytes: the sum [`Stats::bytes`].
    pub bytes: u64,
    /// The source's last error.
    pub last_error: Option<Error>,
    /// Subscriptions that are open.
    pub subscriptions: u64,
    /// The largest present lag of an open subscription, in events as [`crate::Lag::events`] counts them, also of one that
    /// never polls; 0 where all of them have everything. [`crate::Cache::subscriptions`] shows whose it is.
    pub max_lag_events: u64,
    /// The largest lag of any subscription that a poll or a check has found so far, in events as
    /// [`crate::Lag::events`] counts them: a high-water mark that outlives the subscription.
    pub max_lag_seen: u64,
    /// Open subscriptions that have lost events now, which no poll has reported yet
    /// ([`crate::SubscriptionState::Overrun`]).
    pub overrun: u64,
    /// The report of the feeder.
    pub source: SourceReport,
}

/// Counts and bytes of the parts of a cache.
///
/// ```
/// use watchcore::{Cache, Change};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "2")])?;
/// writer.apply(2, [Change::delete("/a")])?;
/// let stats = cache.stats();
/// assert_eq!((stats.events, stats.revisions, stats.objects), (3, 2, 1));
/// assert!(stats.bytes() > 0);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Live keys.
    pub objects: u64,
    /// Versions of live keys, and tombstones not purged yet.
    pub version_bytes: u64,
    /// Slots and indexes, and memory that the cache keeps for what is written next.
    pub index_bytes: u64,
    /// Segments that exist: the window, and what batches, subscriptions and snapshots keep.
    pub segments: u64,
    /// Segments of the window.
    pub window_segments: u64,
    /// The bytes that count against `capacity_bytes`, all freed with the segments: the window's segments, the versions
    /// that their events have replaced (with their decoded values, if decoded by then), resyncs, and the tombstones and
    /// slots of keys that they delete. A revision longer than the window does not count. Not added in [`Stats::bytes`],
    /// whose other parts have these bytes.
    pub window_bytes: u64,
    /// The age of the window: every event of this time is in it. Known by segments, so it may be less than the age of
    /// the oldest event by the time that one segment took.
    pub window_age: Duration,
    /// Segments and the replaced versions that they keep.
    pub log_bytes: u64,
    /// The part of [`Stats::log_bytes`] outside the window: kept by snapshots, by batches and by subscriptions in the
    /// middle of a segment, or about to be freed.
    pub kept_bytes: u64,
    /// Living snapshots. Each keeps the log from its making on.
    pub snapshots: u64,
    /// Living pages, and batches of an initial state, of more than 8 key-values. They keep their key-values, but no
    /// part of the log outside the window.
    pub pages: u64,
    /// Bytes of the key-values of those pages that are older than the window, whether the cache has them too or not.
    /// Not part of [`Stats::bytes`].
    pub page_bytes: u64,
    /// Subscriptions that are open.
    pub subscriptions: u64,
    /// Subscriptions and waiters that sleep. A woken one whose thread or task does not run yet may still be counted.
    pub waiting: u64,
    /// How often events left the window before the notifier had looked at them for a filter or a bucket with sleepers.
    pub notifier_overruns: u64,
    /// The most events that the notifier has still to look at for a sleeping subscription, where it cannot evaluate filters
    /// as fast as events come; 0 where it keeps up. Only subscriptions with such filters are woken late, and from half a
    /// window on they are woken to look for themselves: a poll may then be empty.
    pub notifier_behind: u64,
    /// Events published since the cache was made: all that a reader can have seen, also while a commit is under way.
    pub events: u64,
    /// Revisions with events published since the cache was made, as of the last finished commit: a commit under way may
    /// be visible to readers before it is counted.
    pub revisions: u64,
    /// An upper bound of the age of the oldest living snapshot (of several that overlapped in one segment, the age of the
    /// first); zero if there is none.
    pub oldest_snapshot: Duration,
    /// Tombstones that wait to be purged.
    pub tombstones: u64,
    /// Bytes of deleted keys until they are purged: tombstones, slots, places in the indexes. Not added in
    /// [`Stats::bytes`], whose other parts have these bytes.
    pub tombstone_bytes: u64,
    /// Values that were decoded and live: at most one for each live key and each value that the log keeps.
    pub decoded_values: u64,
    /// Bytes of the decoded values: the size of their structs, plus the size that [`crate::Builder::sized_decoder`] gives.
    pub decoded_bytes: u64,
    /// Buckets of the declared indexes.
    pub buckets: u64,
    /// Values whose attributes could not be extracted; they are absent there.
    pub extract_failures: u64,
    /// Losses of events, of open and of dropped subscriptions: losses that a poll reported, losses that
    /// [`crate::OnLag::Conflate`] does not report, and losses that no poll has met yet ([`Status::overrun`]). A loss
    /// that a running poll still escapes may be counted.
    pub lagged: u64,
    /// Bytes of the delivered keys that subscriptions keep (policies Resnapshot and Conflate), as of their last polls;
    /// of keys that were deleted and purged since, the present bytes.
    pub delivered_bytes: u64,
    /// Bytes of the links that subscriptions have collected from chains and not followed yet, as of their
    /// last polls.
    pub link_bytes: u64,
    /// Bytes that this process has retired, and that the reclaimer's thread has not freed yet. Not part of
    /// [`Stats::bytes`]. Beyond a bound writers wait: 64 MiB and an eighth of each cache's `capacity_bytes`.
    pub unfreed_bytes: u64,
    /// Panics of foreign code that were caught in this process: extractors, decoders, drops of decoded values, wakers,
    /// sources, and predicates while their subscription sleeps.
    pub caught_panics: u64,
}

impl Stats {
    /// The memory of the cache: live keys and tombstones, slots and indexes, the log and the versions that it keeps,
    /// decoded values, delivered keys and collected links of subscriptions. Equals [`Status::bytes`].
    pub fn bytes(&self) -> u64 {
        let store = self.version_bytes + self.index_bytes + self.decoded_bytes;
        store + self.log_bytes + self.delivered_bytes + self.link_bytes
    }
}
