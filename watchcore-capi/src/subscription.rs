//! Subscriptions: a cursor with a filter, polled by one consumer.
//!
//! # In the header: Subscriptions
//!
//! A subscription is a cursor in the log, with a filter. It begins with the state, or after a revision; then it
//! delivers every change that passes its filter, in order, exactly once. A slow subscription delays no other: if events
//! that it has not read leave the window, it gets a report of the lost range (LAGGED), or the difference, as `on_lag`
//! says.
//!
//!     #include <watchcore.h>
//!
//!     // Gives all batches of a subscription to `serve`, until it ends: CLOSED, or why else.
//!     static int32_t follow(watchcore_subscription *subscription, void (*serve)(const watchcore_batch *),
//!                           watchcore_error *error)
//!     {
//!         watchcore_batch batch = WATCHCORE_BATCH_INIT;
//!         for (;;) {
//!             int32_t rc = watchcore_subscription_wait(subscription, -1, error);
//!             if (rc == WATCHCORE_OK) {
//!                 rc = watchcore_subscription_poll(subscription, 256, &batch, error);
//!             }
//!             if (rc == WATCHCORE_LAGGED) {
//!                 continue; // Once a loss, with the lost range in `error`; the next polls give what `on_lag` says.
//!             }
//!             if (rc != WATCHCORE_OK) {
//!                 return rc;
//!             }
//!             serve(&batch);
//!             watchcore_batch_release(&batch);
//!         }
//!     }

use super::batch::{self, watchcore_batch};
use super::bytes::{Sized32, switch, watchcore_bytes};
use super::cache::watchcore_cache;
use super::contract::{
    frame, free, out_or_null, struct_or_default, try_exclusive, try_handle, try_out, try_out_struct,
};
use super::error::{invalid, watchcore_error};
use super::filter::{selected, types_of};
use super::handle::{self, Object, timeout};
use super::range::{WATCHCORE_RANGE_ALL, range_from};
use super::read::bytes_of;
use std::time::Duration;
use watchcore::{Cache, Closer, Code, Error, OnLag, Result, Start, Subscription, raw};

/// The whole matching state as ADDED in key order, a bookmark that ends it, then what follows.
pub const WATCHCORE_START_STATE: u32 = 0;
/// The changes after the present revision.
pub const WATCHCORE_START_NOW: u32 = 1;
/// The changes after `revision`; waits for a future one.
pub const WATCHCORE_START_AFTER: u32 = 2;
/// Like STATE, once the cache has `revision`.
pub const WATCHCORE_START_STATE_AT_LEAST: u32 = 3;

/// After a loss: LAGGED, then CLOSED.
pub const WATCHCORE_ON_LAG_STOP: u32 = 0;
/// After a loss: LAGGED, then from the oldest revision of the window. In the initial state like STOP.
pub const WATCHCORE_ON_LAG_SKIP_TO_OLDEST: u32 = 1;
/// After a loss: LAGGED, then the exact difference between the delivered state and the state now, between two RESYNC
/// marks with the reason LAGGED, then the following changes. The subscription remembers the keys that it has delivered:
/// at most 32 bytes per matching key (plus the key itself if the cache has purged it). If its starting state (AFTER;
/// NOW before the listing) has left the window before it was read, no difference can be computed: like STOP.
pub const WATCHCORE_ON_LAG_RESNAPSHOT: u32 = 2;
/// After a loss: the latest change of each key, without an error; types are relative to the delivered state. The
/// subscription remembers keys as RESNAPSHOT does, and ends with LAGGED in the same case.
pub const WATCHCORE_ON_LAG_CONFLATE: u32 = 3;

const _: () = {
    assert!(WATCHCORE_ON_LAG_STOP == OnLag::Stop as u32);
    assert!(WATCHCORE_ON_LAG_SKIP_TO_OLDEST == OnLag::SkipToOldest as u32);
    assert!(WATCHCORE_ON_LAG_RESNAPSHOT == OnLag::Resnapshot as u32);
    assert!(WATCHCORE_ON_LAG_CONFLATE == OnLag::Conflate as u32);
};

/// The most events of a batch if the caller sets no maximum.
const MOST: usize = 1024;

/// A cursor with a filter over a cache. Made by watchcore_subscription_new.
pub struct watchcore_subscription {
    _private: [u8; 0],
}

/// The start of a subscription, and the selection of events that it delivers.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_subscription_options {
    /// sizeof(watchcore_subscription_options).
    pub size: u32,
    /// WATCHCORE_START_...
    pub start: u32,
    /// AFTER, STATE_AT_LEAST: the revision.
    pub revision: u64,
    /// The epoch of `revision`; 0: unchecked. Save both for a restart.
    pub epoch: u64,
    /// The kind of range: WATCHCORE_RANGE_...
    pub range: u32,
    /// The types of events: the sum of WATCHCORE_MASK(type), 0 for all. Bookmarks and resync marks are not masked.
    pub types: u32,
    /// The key, the prefix, the path, or the first key.
    pub from: watchcore_bytes,
    /// BETWEEN: the exclusive end of the range.
    pub to: watchcore_bytes,
    /// 1: types PUT and DELETE instead of ADDED, MODIFIED and DELETED.
    pub raw_types: u32,
    /// 1: sends bookmarks (the one that ends the initial state is always sent).
    pub bookmarks: u32,
    /// 1: a batch never ends inside a revision.
    pub whole_revisions: u32,
    /// 1: ends with RESYNCED when the history is replaced.
    pub stop_on_resync: u32,
    /// The shortest time between two bookmarks. 0: 1000.
    pub bookmark_interval_ms: i64,
    /// STATE_AT_LEAST: how long to wait for the revision. 0: 3000.
    pub start_timeout_ms: i64,
    /// A label selector: see watchcore_filter. Absent or empty: everything.
    pub labels: watchcore_bytes,
    /// A field selector: see watchcore_filter. Absent or empty: everything.
    pub fields: watchcore_bytes,
    /// The reaction to lost events: WATCHCORE_ON_LAG_...
    pub on_lag: u32,
    /// 1: delivers no changes, but still marks.
    pub nothing: u32,
    /// Ends the subscription with LAGGED, whatever `on_lag` says, once it is more than this many events behind. Checked
    /// by each poll and four times a second. 0: no limit.
    pub max_lag_events: u64,
    /// Ends the subscription with LAGGED, whatever `on_lag` says, once it has been behind for this long. Checked four
    /// times a second. 0: no limit.
    pub max_lag_age_ms: i64,
    /// A name for people (UTF-8): shown by watchcore_subscription_list_new, in messages of its errors and in log lines.
    /// Need not be unique. Absent or empty: none.
    pub name: watchcore_bytes,
}

// SAFETY: repr(C), starts with the size; numbers and pointers.
unsafe impl Sized32 for watchcore_subscription_options {
    const NAME: &'static str = "watchcore_subscription_options";
    const DEFAULT: Self = watchcore_subscription_options {
        size: size_of::<Self>() as u32,
        start: WATCHCORE_START_STATE,
        revision: 0,
        epoch: 0,
        range: WATCHCORE_RANGE_ALL,
        types: 0,
        from: watchcore_bytes::ABSENT,
        to: watchcore_bytes::ABSENT,
        raw_types: 0,
        bookmarks: 0,
        whole_revisions: 0,
        stop_on_resync: 0,
        bookmark_interval_ms: 0,
        start_timeout_ms: 0,
        labels: watchcore_bytes::ABSENT,
        fields: watchcore_bytes::ABSENT,
        on_lag: WATCHCORE_ON_LAG_STOP,
        nothing: 0,
        max_lag_events: 0,
        max_lag_age_ms: 0,
        name: watchcore_bytes::ABSENT,
    };
}

/// The lag of a subscription.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_lag {
    /// sizeof(watchcore_lag).
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Events of the log that the subscription has not read. Once its position has left the window, the number may be
    /// too large, but never larger than the number of published events.
    pub events: u64,
    /// Revisions that the subscription has not read.
    pub revisions: u64,
    /// The time since the subscription was last seen to have everything, at most some milliseconds too short; 0 if it
    /// has.
    pub age_ms: u64,
}

// SAFETY: repr(C), starts with the size; numbers only.
unsafe impl Sized32 for watchcore_lag {
    const NAME: &'static str = "watchcore_lag";
    const DEFAULT: Self =
        watchcore_lag { size: size_of::<Self>() as u32, reserved: 0, events: 0, revisions: 0, age_ms: 0 };
}

/// The subscription reads every event of the log, or of the segments that could hold a matching one.
pub const WATCHCORE_READ_PATH_SCAN: u32 = 0;
/// The subscription reads only the events of one bucket of an index.
pub const WATCHCORE_READ_PATH_CHAIN: u32 = 1;

/// The statistics of a subscription, and its read path.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_subscription_statistics {
    /// sizeof(watchcore_subscription_statistics).
    pub size: u32,
    /// The present read path: WATCHCORE_READ_PATH_...
    pub read_path: u32,
    /// CHAIN: the index (UTF-8), such as "key", "prefix of depth 3", "field phase" or "label app"; it belongs to the
    /// subscription and is valid until that is freed. SCAN: absent.
    pub index: watchcore_bytes,
    /// Events that were read.
    pub looked_at: u64,
    /// Events of the log that were skipped without reading.
    pub skipped: u64,
    /// Events and marks that were handed out.
    pub handed_out: u64,
    /// How often events were lost, reported or not.
    pub lagged: u64,
    /// Keys that are remembered as delivered (RESNAPSHOT, CONFLATE).
    pub delivered_keys: u64,
    /// The bytes of those keys.
    pub delivered_bytes: u64,
}

// SAFETY: repr(C), starts with the size; numbers and pointers.
unsafe impl Sized32 for watchcore_subscription_statistics {
    const NAME: &'static str = "watchcore_subscription_statistics";
    const DEFAULT: Self = watchcore_subscription_statistics {
        size: size_of::<Self>() as u32,
        read_path: WATCHCORE_READ_PATH_SCAN,
        index: watchcore_bytes::ABSENT,
        looked_at: 0,
        skipped: 0,
        handed_out: 0,
        lagged: 0,
        delivered_keys: 0,
        delivered_bytes: 0,
    };
}

/// Opens a subscription; its start is fixed when this returns. Before the first listing it is accepted too,
/// and begins there. `options`: NULL for the whole state and the changes after it. `*subscription`: the
/// caller's, ended by watchcore_subscription_free; it may outlive the cache. Never blocks. Any thread, many
/// at once.
/// Codes: INVALID_ARGUMENT (also for a selector that does not parse or names what the cache does not declare,
/// and for a name that is not UTF-8), COMPACTED, CLOSED, FUTURE_REVISION (above WATCHCORE_REVISION_MAX).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_subscription_new(
    cache: *const watchcore_cache,
    options: *const watchcore_subscription_options,
    subscription: *mut *mut watchcore_subscription,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_subscription_new, error, {
        let subscription = try_out!(subscription);
        let options = struct_or_default!(options);
        let cache = try_handle!(cache);
        // SAFETY: the contract covers everything that `options` points to.
        let opened = unsafe { open(&cache, &options)? };
        subscription.write(handle::new(opened.closer(), opened));
        Ok(())
    })
}

/// Hands out the next events, at most `max` (0: 1024), from the log, the initial state or the difference
/// after a loss. Only with `whole_revisions` there may be more, because the last revision is whole. The next
/// poll continues after the last event. No event is no error: `batch->count` is 0.
/// `batch`: the caller's struct, overwritten on success; release the previous batch first, with
/// watchcore_batch_release, on any thread.
/// Never blocks. One thread at a time.
/// A poll that returns nothing arms a member of a wake set; one that leaves events makes a member ready again
/// if watchcore_wakeset_next has returned it.
/// Codes: INVALID_ARGUMENT, BUSY, NOT_READY, LAGGED (once per loss, with the lost range; the next polls
/// continue as `on_lag` says: CLOSED unless it was set), COMPACTED and FUTURE_REVISION (of a start that had
/// to wait), RESYNCED, CLOSED (after the last event).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_subscription_poll(
    subscription: *mut watchcore_subscription,
    max: usize,
    batch: *mut watchcore_batch,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_subscription_poll, error, {
        let batch = try_out!(batch);
        let mut subscription = try_exclusive!(subscription);
        let leaving = subscription.leaving();
        let polled = raw::poll(&mut subscription, if max == 0 { MOST } else { max }, leaving)?;
        batch.write(batch::into_c(polled));
        Ok(())
    })
}

/// Waits until a poll has something to return: then OK, even if that is an error or a mark; CLOSED only after
/// the last event.
/// Blocks up to `timeout_ms` (-1: for ever, 0: not at all). One thread at a time;
/// watchcore_subscription_close ends it at once. The form that never blocks: a wake set. Codes:
/// INVALID_ARGUMENT, BUSY, TIMEOUT, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_subscription_wait(
    subscription: *mut watchcore_subscription,
    timeout_ms: i64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_subscription_wait, error, {
        let limit = timeout(timeout_ms)?;
        let mut subscription = try_exclusive!(subscription);
        let leaving = subscription.leaving();
        if raw::wait(&mut subscription, limit, leaving)? {
            return Ok(());
        }
        Err(Error::new(Code::Timeout, format!("no event within {timeout_ms} ms; nothing is lost. Wait again.")))
    })
}

/// Closes the subscription: a wait in progress ends at once; polls hand out what is left, then answer CLOSED.
/// Idempotent. Never blocks. Any thread, any time before watchcore_subscription_free, many at once.
/// Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_subscription_close(
    subscription: *const watchcore_subscription,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_subscription_close, error, {
        try_handle!(subscription).close();
        Ok(())
    })
}

/// The position: every matching event up to and including `*revision` was handed out; 0 during the initial
/// state. `*epoch` (may be NULL) belongs to it: save both for a restart with AFTER.
/// Never blocks. Any thread, many at once, even while another one polls or waits. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_subscription_position(
    subscription: *const watchcore_subscription,
    revision: *mut u64,
    epoch: *mut u64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_subscription_position, error, {
        let revision = try_out!(revision);
        let position = try_handle!(subscription).position();
        revision.write(position.revision);
        out_or_null!(epoch).write(position.epoch);
        Ok(())
    })
}

/// How far the subscription is behind. A sleeping subscription counts as having everything until it is woken,
/// so a producer that must wait for its consumers should compare the revisions that they have handled. `lag`:
/// the caller's struct. Never blocks. Any thread, many at once, even while another one polls or waits. Codes:
/// INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_subscription_lag(
    subscription: *const watchcore_subscription,
    lag: *mut watchcore_lag,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_subscription_lag, error, {
        let lag = try_out_struct!(lag);
        let now = try_handle!(subscription).lag();
        let value = watchcore_lag {
            events: now.events,
            revisions: now.revisions,
            age_ms: u64::try_from(now.age.as_millis()).unwrap_or(u64::MAX),
            ..watchcore_lag::DEFAULT
        };
        lag.write(value);
        Ok(())
    })
}

/// The statistics of the subscription, and its read path. `stats`: the caller's struct. Never blocks. One
/// thread at a time. Codes: INVALID_ARGUMENT, BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_subscription_stats(
    subscription: *mut watchcore_subscription,
    stats: *mut watchcore_subscription_statistics,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_subscription_stats, error, {
        let stats = try_out_struct!(stats);
        let subscription = try_exclusive!(subscription);
        let now = subscription.stats();
        let index = watchcore::raw::index_name(&subscription);
        let value = watchcore_subscription_statistics {
            read_path: if index.is_some() { WATCHCORE_READ_PATH_CHAIN } else { WATCHCORE_READ_PATH_SCAN },
            // The name belongs to a part of the cache that the subscription keeps alive; it never changes.
            index: index.map_or(watchcore_bytes::ABSENT, bytes_of),
            looked_at: now.looked_at,
            skipped: now.skipped,
            handed_out: now.handed_out,
            lagged: now.lagged,
            delivered_keys: now.delivered_keys,
            delivered_bytes: now.delivered_bytes,
            ..watchcore_subscription_statistics::DEFAULT
        };
        stats.write(value);
        Ok(())
    })
}

/// Closes the subscription and frees the handle; NULL does nothing. It leaves its wake set. Its batches stay
/// valid. Never blocks. Any thread, even while another one polls or waits (the wait ends with CLOSED, and
/// that thread frees the handle on leaving).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_subscription_free(subscription: *mut watchcore_subscription) {
    free!(watchcore_subscription_free, subscription);
}

impl Object for watchcore_subscription {
    type Shared = Closer;
    type Exclusive = Subscription;
    const KIND: u32 = 0x5743_0004;
    const NAME: &'static str = "watchcore_subscription";
    fn close(closer: &Closer) {
        closer.close();
    }
}

fn milliseconds(value: i64, what: &str) -> Result<Option<Duration>> {
    match value {
        0 => Ok(None),
        1.. => Ok(Some(Duration::from_millis(value.unsigned_abs()))),
        _ => Err(invalid(format!("options.{what} is {value}. Give milliseconds, or 0 for the default."))),
    }
}

fn start_of(options: &watchcore_subscription_options) -> Result<Start> {
    match options.start {
        WATCHCORE_START_STATE | WATCHCORE_START_NOW if options.revision != 0 => Err(invalid(format!(
            "options.revision is {}, but start {} has none. Give 0.",
            options.revision, options.start
        ))),
        WATCHCORE_START_STATE => Ok(Start::State),
        WATCHCORE_START_NOW => Ok(Start::Now),
        WATCHCORE_START_AFTER => {
            Ok(Start::AfterIn(watchcore::Position { epoch: options.epoch, revision: options.revision }))
        }
        WATCHCORE_START_STATE_AT_LEAST => Ok(Start::StateAtLeast(options.revision)),
        other => {
            Err(invalid(format!("options.start is {other}. Give one of WATCHCORE_START_STATE to _STATE_AT_LEAST.")))
        }
    }
}

/// # Safety
///
/// The contract, for the pointers in `options`.
unsafe fn open(cache: &Cache, options: &watchcore_subscription_options) -> Result<Subscription> {
    // SAFETY: the contract: the byte strings in `options` are readable for their lengths.
    let (range, filter) = unsafe {
        (
            range_from(options.range, options.from, options.to)?,
            selected(options.labels, options.fields, options.nothing, "options")?,
        )
    };
    let filtered = options.nothing != 0 || !options.labels.data.is_null() || !options.fields.data.is_null();
    let Some(on_lag) = OnLag::from_u32(options.on_lag) else {
        return Err(invalid(format!(
            "options.on_lag is {}. Give one of WATCHCORE_ON_LAG_STOP to _CONFLATE.",
            options.on_lag
        )));
    };
    let mut builder = cache
        .subscribe(start_of(options)?)
        .on_lag(on_lag)
        .max_lag_events(options.max_lag_events)
        .raw_types(switch(options.raw_types, "options.raw_types")?)
        .bookmarks(switch(options.bookmarks, "options.bookmarks")?)
        .whole_revisions(switch(options.whole_revisions, "options.whole_revisions")?)
        .stop_on_resync(switch(options.stop_on_resync, "options.stop_on_resync")?);
    // Each of these calls copies the builder, so they are skipped for defaults.
    if options.range != WATCHCORE_RANGE_ALL {
        builder = builder.range(range);
    }
    if filtered {
        builder = builder.filter(filter);
    }
    // SAFETY: the contract: the name is readable for its length.
    if let Some(name) = unsafe { options.name.text("options.name")? } {
        builder = builder.name(name);
    }
    if options.types != 0 {
        builder = builder.types(&types_of(options.types, "options")?);
    }
    if let Some(interval) = milliseconds(options.bookmark_interval_ms, "bookmark_interval_ms")? {
        builder = builder.bookmark_interval(interval);
    }
    if let Some(time) = milliseconds(options.start_timeout_ms, "start_timeout_ms")? {
        builder = builder.start_timeout(time);
    }
    if let Some(age) = milliseconds(options.max_lag_age_ms, "max_lag_age_ms")? {
        builder = builder.max_lag_age(age);
    }
    builder.open()
}
