//! The status of a cache: its state, its statistics, its texts.
//!
//! # In the header: Status and statistics

use super::bytes::Sized32;
use super::cache::watchcore_cache;
use super::contract::{frame, out_or_null, try_handle, try_out_struct, try_out_text};
use super::error::{invalid, watchcore_error};
use std::ffi::c_char;
use std::time::{Duration, UNIX_EPOCH};
use watchcore::{Cache, Result, State};

/// There is no listing yet.
pub const WATCHCORE_STATE_NOT_READY: u32 = 0;
/// The cache is up to date, as far as it knows.
pub const WATCHCORE_STATE_READY: u32 = 1;
/// The source is out of reach; the cache answers with what it has.
pub const WATCHCORE_STATE_STALE: u32 = 2;
/// The source refuses the cache; see the last error.
pub const WATCHCORE_STATE_FAILED: u32 = 3;
/// The cache is closed.
pub const WATCHCORE_STATE_CLOSED: u32 = 4;

/// The last error of the source; empty if there is none.
pub const WATCHCORE_TEXT_LAST_ERROR: u32 = 1;
/// The endpoint that the feeder uses.
pub const WATCHCORE_TEXT_ENDPOINT: u32 = 2;
/// The server's version.
pub const WATCHCORE_TEXT_SERVER_VERSION: u32 = 3;
/// The cache's name.
pub const WATCHCORE_TEXT_NAME: u32 = 4;
/// The cache's prefix: bytes, not text.
pub const WATCHCORE_TEXT_PREFIX: u32 = 5;
/// Problems that a person has to correct although the source is followed, such as an unusable certificate file; empty
/// if there are none.
pub const WATCHCORE_TEXT_WARNING: u32 = 6;

/// The status of a cache.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_status {
    /// sizeof(watchcore_status).
    pub size: u32,
    /// WATCHCORE_STATE_...
    pub state: u32,
    /// The cache's position: its revision.
    pub revision: u64,
    /// The cache's position: its epoch.
    pub epoch: u64,
    /// The oldest revision of the window: a start after `oldest - 1` is possible.
    pub oldest: u64,
    /// Live keys.
    pub objects: u64,
    /// Everything that the cache holds, in bytes: the sum of the bytes in `watchcore_stats`.
    pub bytes: u64,
    /// Open subscriptions.
    pub subscriptions: u64,
    /// The largest present lag of all subscriptions, in events as in watchcore_lag, including one that is never
    /// polled. Which one it is: watchcore_subscription_list_new.
    pub max_lag_events: u64,
    /// STALE: since when; else 0.
    pub stale_since_unix_ms: i64,
    /// The newest revision that the feeder knew when it last reported (at intervals); 0 without a feeder.
    pub source_revision: u64,
    /// The cluster's id, as reported by the feeder.
    pub cluster_id: u64,
    /// The id of the member that the feeder uses.
    pub member_id: u64,
    /// The feeder's connections.
    pub connects: u64,
    /// The feeder's connections after the first.
    pub reconnects: u64,
    /// The feeder's resyncs.
    pub resyncs: u64,
    /// The code of the source's last error, 0 without one; WATCHCORE_TEXT_LAST_ERROR is its message.
    pub last_error: i32,
    /// Why the source is not followed now: the code of its last error; 0 if it is followed, even if it failed before.
    pub source_error: i32,
    /// How far back the log goes: it has every event since then.
    pub window_age_ms: u64,
    /// The largest lag that any subscription was ever found with, in events as in watchcore_lag, including freed
    /// ones.
    pub max_lag_seen: u64,
    /// Open subscriptions that have lost events which no poll has reported yet (WATCHCORE_SUBSCRIPTION_STATE_OVERRUN).
    pub overrun: u64,
}

// SAFETY: repr(C), starts with the size; numbers only.
unsafe impl Sized32 for watchcore_status {
    const NAME: &'static str = "watchcore_status";
    const DEFAULT: Self = watchcore_status {
        size: size_of::<Self>() as u32,
        state: 0,
        revision: 0,
        epoch: 0,
        oldest: 0,
        objects: 0,
        bytes: 0,
        subscriptions: 0,
        max_lag_events: 0,
        stale_since_unix_ms: 0,
        source_revision: 0,
        cluster_id: 0,
        member_id: 0,
        connects: 0,
        reconnects: 0,
        resyncs: 0,
        last_error: 0,
        source_error: 0,
        window_age_ms: 0,
        max_lag_seen: 0,
        overrun: 0,
    };
}

/// Statistics of a cache: its activity, and its memory by purpose.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_stats {
    /// sizeof(watchcore_stats).
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Events published since the cache was made.
    pub events: u64,
    /// Revisions published since the cache was made.
    pub revisions: u64,
    /// Live keys.
    pub objects: u64,
    /// Bytes of live keys with their values, and of tombstones not purged yet.
    pub version_bytes: u64,
    /// Bytes of the indexes, and of memory that the cache keeps for later writes.
    pub index_bytes: u64,
    /// Bytes of the log's segments and of the replaced versions that they keep.
    pub log_bytes: u64,
    /// Segments in memory: the log's, and those that batches, subscriptions and snapshots keep.
    pub segments: u64,
    /// Segments of the log.
    pub window_segments: u64,
    /// Deleted keys whose tombstones are not purged yet.
    pub tombstones: u64,
    /// Open subscriptions.
    pub subscriptions: u64,
    /// Waiters that sleep now.
    pub waiting: u64,
    /// How often the notifier itself fell out of the window.
    pub notifier_overruns: u64,
    /// The age of the oldest snapshot; 0 without one.
    pub oldest_snapshot_ms: u64,
    /// Buckets of the declared indexes.
    pub buckets: u64,
    /// Values whose attributes could not be extracted, so they count as absent.
    pub extract_failures: u64,
    /// How often a subscription lost events, reported or not yet; including freed subscriptions.
    pub lagged: u64,
    /// Panics of foreign code that were caught in this process.
    pub caught_panics: u64,
    /// Bytes of the keys that subscriptions remember as delivered (to compute the difference after a loss), including
    /// keys that were deleted since.
    pub delivered_bytes: u64,
    /// Bytes of the event references that subscriptions have looked up in an index and not read yet.
    pub link_bytes: u64,
    /// Bytes that this process has replaced and not freed yet; not part of the other counts. Writers wait beyond a
    /// bound: 64 MiB and an eighth of each cache's capacity_bytes.
    pub unfreed_bytes: u64,
    /// The bytes that count against capacity_bytes, all of which are freed as segments leave: the window's segments,
    /// the versions that their events have replaced, and the remains of keys that they delete. The same bytes are
    /// counted by their location in log_bytes, version_bytes and index_bytes.
    pub window_bytes: u64,
    /// How far back the window goes: it has every event since then.
    pub window_age_ms: u64,
    /// Events that the notifier has yet to evaluate for sleeping subscriptions whose filters are slower than the events
    /// come; 0 if it keeps up. Only these subscriptions are notified late, and beyond half a window they are woken to
    /// check for themselves: a poll may then return nothing.
    pub notifier_behind: u64,
    /// The part of log_bytes outside the window: segments kept by snapshots, batches and subscriptions in the middle of
    /// a segment, and memory that is about to be freed.
    pub kept_bytes: u64,
    /// Snapshots that were not freed. Each keeps the log from its creation on.
    pub snapshots: u64,
    /// Unreleased pages of more than 8 items, and unreleased batches of an initial state with more than 8 events. They
    /// keep their key-values, but no part of the log outside the window.
    pub pages: u64,
    /// Bytes of the key-values of those pages and batches that are older than the window, whether the cache still has
    /// them or not; not part of the other counts.
    pub page_bytes: u64,
    /// The remains of deleted keys until their tombstones are purged; part of version_bytes and index_bytes.
    pub tombstone_bytes: u64,
}

// SAFETY: repr(C), starts with the size; numbers only.
unsafe impl Sized32 for watchcore_stats {
    const NAME: &'static str = "watchcore_stats";
    const DEFAULT: Self = watchcore_stats {
        size: size_of::<Self>() as u32,
        reserved: 0,
        events: 0,
        revisions: 0,
        objects: 0,
        version_bytes: 0,
        index_bytes: 0,
        log_bytes: 0,
        segments: 0,
        window_segments: 0,
        tombstones: 0,
        subscriptions: 0,
        waiting: 0,
        notifier_overruns: 0,
        oldest_snapshot_ms: 0,
        buckets: 0,
        extract_failures: 0,
        lagged: 0,
        caught_panics: 0,
        delivered_bytes: 0,
        link_bytes: 0,
        unfreed_bytes: 0,
        window_bytes: 0,
        window_age_ms: 0,
        notifier_behind: 0,
        kept_bytes: 0,
        snapshots: 0,
        pages: 0,
        page_bytes: 0,
        tombstone_bytes: 0,
    };
}

/// The status of the cache. `status`: the caller's struct. Never blocks. Any thread, many at once.
/// Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_cache_status(
    cache: *const watchcore_cache,
    status: *mut watchcore_status,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_cache_status, error, {
        let status = try_out_struct!(status);
        let value = status_of(&*try_handle!(cache));
        status.write(value);
        Ok(())
    })
}

/// The statistics of the cache. `stats`: the caller's struct. Never blocks. Any thread, many at once.
/// Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_cache_stats(
    cache: *const watchcore_cache,
    stats: *mut watchcore_stats,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_cache_stats, error, {
        let stats = try_out_struct!(stats);
        let value = stats_of(&*try_handle!(cache));
        stats.write(value);
        Ok(())
    })
}

/// Copies a text of the cache into the caller's buffer: `which` is WATCHCORE_TEXT_.... The text is cut if it
/// is too long, and always NUL-terminated unless `capacity` is 0; `*length` (may be NULL): its full length
/// without the NUL, so that a `buffer` NULL with `capacity` 0 asks for the length.
/// Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_cache_text(
    cache: *const watchcore_cache,
    which: u32,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_cache_text, error, {
        let buffer = try_out_text!(buffer, capacity);
        let text = text_of(&*try_handle!(cache), which)?;
        buffer.write(&text);
        out_or_null!(length).write(text.len());
        Ok(())
    })
}

pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn status_of(cache: &Cache) -> watchcore_status {
    let now = cache.status();
    let (state, since) = match now.state {
        State::NotReady => (WATCHCORE_STATE_NOT_READY, None),
        State::Ready => (WATCHCORE_STATE_READY, None),
        State::Stale { since } => (WATCHCORE_STATE_STALE, Some(since)),
        State::Failed => (WATCHCORE_STATE_FAILED, None),
        State::Closed => (WATCHCORE_STATE_CLOSED, None),
        // `State` is non-exhaustive, but both crates are of one version, so there are no other states.
        _ => (WATCHCORE_STATE_FAILED, None),
    };
    let since = since.and_then(|s| s.duration_since(UNIX_EPOCH).ok());
    watchcore_status {
        size: watchcore_status::DEFAULT.size,
        state,
        revision: now.position.revision,
        epoch: now.position.epoch,
        oldest: now.oldest,
        objects: now.objects,
        bytes: now.bytes,
        subscriptions: now.subscriptions,
        max_lag_events: now.max_lag_events,
        stale_since_unix_ms: since.map_or(0, |s| i64::try_from(s.as_millis()).unwrap_or(i64::MAX)),
        source_revision: now.source.etcd_revision,
        cluster_id: now.source.cluster_id,
        member_id: now.source.member_id,
        connects: now.source.connects,
        reconnects: now.source.reconnects,
        resyncs: now.source.resyncs,
        last_error: now.last_error.map_or(0, |e| e.code() as i32),
        source_error: cache.source_error().map_or(0, |e| e.code() as i32),
        window_age_ms: milliseconds(now.window_age),
        max_lag_seen: now.max_lag_seen,
        overrun: now.overrun,
    }
}

fn stats_of(cache: &Cache) -> watchcore_stats {
    let now = cache.stats();
    watchcore_stats {
        size: watchcore_stats::DEFAULT.size,
        reserved: 0,
        events: now.events,
        revisions: now.revisions,
        objects: now.objects,
        version_bytes: now.version_bytes,
        index_bytes: now.index_bytes,
        log_bytes: now.log_bytes,
        segments: now.segments,
        window_segments: now.window_segments,
        tombstones: now.tombstones,
        subscriptions: now.subscriptions,
        waiting: now.waiting,
        notifier_overruns: now.notifier_overruns,
        oldest_snapshot_ms: milliseconds(now.oldest_snapshot),
        buckets: now.buckets,
        extract_failures: now.extract_failures,
        lagged: now.lagged,
        caught_panics: now.caught_panics,
        delivered_bytes: now.delivered_bytes,
        link_bytes: now.link_bytes,
        unfreed_bytes: now.unfreed_bytes,
        window_bytes: now.window_bytes,
        window_age_ms: milliseconds(now.window_age),
        notifier_behind: now.notifier_behind,
        kept_bytes: now.kept_bytes,
        snapshots: now.snapshots,
        pages: now.pages,
        page_bytes: now.page_bytes,
        tombstone_bytes: now.tombstone_bytes,
    }
}

fn text_of(cache: &Cache, which: u32) -> Result<Vec<u8>> {
    match which {
        WATCHCORE_TEXT_LAST_ERROR => {
            Ok(cache.status().last_error.map_or(Vec::new(), |e| e.message().as_bytes().to_vec()))
        }
        WATCHCORE_TEXT_ENDPOINT => Ok(cache.status().source.endpoint.into_bytes()),
        WATCHCORE_TEXT_SERVER_VERSION => Ok(cache.status().source.server_version.into_bytes()),
        WATCHCORE_TEXT_NAME => Ok(cache.name().as_bytes().to_vec()),
        WATCHCORE_TEXT_PREFIX => Ok(cache.prefix().to_vec()),
        WATCHCORE_TEXT_WARNING => Ok(cache.status().source.warning.into_bytes()),
        _ => Err(invalid(format!("which is {which}. Give one of WATCHCORE_TEXT_LAST_ERROR to _WARNING."))),
    }
}
