//! What a cache says of itself.

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

/// A cache at a glance.
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
    /// Where the cache stands.
    pub position: Position,
    /// See the crate's contract: `After` and `Exact` work from one below it.
    pub oldest: u64,
    /// How far back the log goes: every event since then is in it. See [`Stats::window_age`].
    pub window_age: Duration,
    /// Live keys.
    pub objects: u64,
    /// Everything that the cache holds, in bytes: the sum that [`Stats::bytes`] makes of its parts.
    pub bytes: u64,
    /// The source's last error.
    pub last_error: Option<Error>,
    /// Subscriptions that are open.
    pub subscriptions: u64,
    /// Greatest lag of any open subscription now, in events, also of one that never polls; 0 where all of
    /// them have everything. See [`crate::Cache::subscriptions`] for whose it is.
    pub max_lag_events: u64,
    /// Greatest lag of any subscription that one of its polls or a check has found so far, in events: a
    /// high-water mark that outlives the subscription.
    pub max_lag_seen: u64,
    /// Open subscriptions that have lost events now, which no poll has reported yet
    /// ([`crate::SubscriptionState::Lapped`]).
    pub lapped: u64,
    /// What the feeder reports.
    pub source: SourceReport,
}

/// What a cache holds, in bytes, and by what.
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
    /// What counts against `capacity_bytes`, all of it gone when segments go: the window's segments, the versions that
    /// their events have replaced, with what was decoded of them by then, resyncs, and what stays of keys that they
    /// delete. A revision longer than the window does not count. Not part of [`Stats::bytes`], which has the same bytes
    /// by where they are.
    pub window_bytes: u64,
    /// How far back the window goes: every event since then is in it. Known by segments, so it is short of
    /// the age of the oldest event by what one segment took.
    pub window_age: Duration,
    /// Segments and the replaced versions that they keep.
    pub log_bytes: u64,
    /// Of [`Stats::log_bytes`] what the window has not: what snapshots keep, batches and subscriptions in the middle of
    /// a segment, and what is on its way to be freed.
    pub kept_bytes: u64,
    /// Snapshots that somebody holds. Each keeps the log from its making on.
    pub snapshots: u64,
    /// Pages of more than 8 key-values, and batches of an initial state of as many, that somebody holds. They keep
    /// their key-values, and nothing of the log that is not in the window.
    pub pages: u64,
    /// Bytes of the key-values of those that are older than the window, whether the cache has them, too, or not. Not
    /// part of [`Stats::bytes`].
    pub page_bytes: u64,
    /// Subscriptions that are open.
    pub subscriptions: u64,
    /// Subscriptions and waiters that sleep. One that was woken and has not come to run yet may still be counted.
    pub waiting: u64,
    /// Times that the notifier itself was lapped: for a filter of sleepers, or for the sleepers at a bucket.
    pub notifier_lapped: u64,
    /// Events that the notifier has still to look at for sleeping subscriptions whose filters it cannot evaluate as fast as
    /// events come, at most; 0 where it keeps up. Only their own notification is late, and from half a window on they are woken
    /// to look for themselves: a poll may then give nothing.
    pub notifier_behind: u64,
    /// Events published since birth: as many as a reader can have seen, also while a commit is under way.
    pub events: u64,
    /// Revisions with events published since birth, as of the last commit that is over: the one under way may
    /// be visible to readers, and is not counted yet.
    pub revisions: u64,
    /// Age of the oldest living snapshot, at most (of several that overlapped in one segment: of the first of them); zero
    /// if there is none.
    pub oldest_snapshot: Duration,
    /// Tombstones that wait to be purged.
    pub tombstones: u64,
    /// What stays of deleted keys until then: tombstones, slots, places in the indexes. Not part of [`Stats::bytes`],
    /// which has the same bytes by where they are.
    pub tombstone_bytes: u64,
    /// Values that were decoded and live: at most one for each live key and each value that the log keeps.
    pub decoded_values: u64,
    /// Their bytes: as much as their structs take, and as [`crate::Builder::sized_decoder`] was told.
    pub decoded_bytes: u64,
    /// Buckets of the declared indexes.
    pub buckets: u64,
    /// Values whose attributes could not be extracted; they are absent there.
    pub extract_failures: u64,
    /// Losses of events, of subscriptions that are open and of those that are gone: those that a poll reported,
    /// those that [`crate::OnLag::Conflate`] does not report, and those that no poll has met yet
    /// ([`Status::lapped`]). It may count one that a poll under way still escapes.
    pub lagged: u64,
    /// Bytes of the keys that subscriptions keep as delivered (policies Resnapshot and Conflate), as of
    /// their last polls, and of those among them that were deleted and purged since, as of now.
    pub delivered_bytes: u64,
    /// Bytes of the links that subscriptions have collected from chains and not followed yet, as of their
    /// last polls.
    pub link_bytes: u64,
    /// Bytes that this process has retired, and that the thread that frees has not freed yet. Not part of
    /// [`Stats::bytes`]. Beyond a bound writers wait: 64 MiB and an eighth of each cache's `capacity_bytes`.
    pub unfreed_bytes: u64,
    /// Panics of foreign code that were caught in this process (decoders, drops of decoded values, wakers).
    pub caught_panics: u64,
}

impl Stats {
    /// Everything that the cache holds: live keys and tombstones, slots and indexes, the log and what it
    /// keeps alive, decoded values, what subscriptions keep as delivered and have collected. The same as
    /// [`Status::bytes`].
    pub fn bytes(&self) -> u64 {
        let store = self.version_bytes + self.index_bytes + self.decoded_bytes;
        store + self.log_bytes + self.delivered_bytes + self.link_bytes
    }
}
