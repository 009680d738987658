//! The cache: making, closing and waiting.

use super::bytes::{Sized32, read_array, switch, watchcore_bytes};
use super::contract::{frame, free, out_or_null, struct_or_default, try_bytes, try_handle, try_out, try_text};
use super::declare::{attribute, index, watchcore_attribute, watchcore_index};
use super::error::{invalid, watchcore_error};
use super::handle::{self, Object, timeout};
use std::time::Duration;
use watchcore::raw::{MAX_FIELDS, MAX_INDEXES};
use watchcore::{Cache, Labels, Result};

/// A cache: the log and the store of one key range. Made by watchcore_cache_new.
pub struct watchcore_cache {
    _private: [u8; 0],
}

impl Object for watchcore_cache {
    type Shared = Cache;
    type Exclusive = ();
    const KIND: u32 = 0x5743_0001;
    const NAME: &'static str = "watchcore_cache";
    fn close(shared: &Cache) {
        shared.close();
    }
}

/// The options of a cache.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_cache_options {
    /// sizeof(watchcore_cache_options).
    pub size: u32,
    /// 1: the cache is not ready before watchcore_writer_load or watchcore_loading_finish. For a program that lists
    /// first.
    pub expect_load: u32,
    /// The key range: keys that start with these bytes. Absent or empty: every key.
    pub prefix: watchcore_bytes,
    /// A name for messages and statistics (UTF-8). Absent: the prefix.
    pub name: watchcore_bytes,
    /// The log's maximum length in events. 0: 65536.
    pub capacity: u64,
    /// The log's maximum length in bytes. 0: 256 MiB.
    pub capacity_bytes: u64,
    /// The longest key that is accepted. 0: 64 KiB.
    pub max_key_bytes: u64,
    /// The longest value that is accepted. 0: 16 MiB.
    pub max_value_bytes: u64,
    /// The attributes that field selectors and indexes name, at most 64. NULL: none. All elements have the same
    /// `size`; the array steps by it.
    pub fields: *const watchcore_attribute,
    /// The number of elements of `fields`.
    pub field_count: usize,
    /// The source of a value's labels, for label selectors and indexes: the members of the JSON object at this RFC 6901
    /// pointer (UTF-8), for Kubernetes' objects "/metadata/labels" (in their protobuf storage form always
    /// metadata.labels). Absent: values have no labels, and a label selector is INVALID_ARGUMENT.
    pub labels_from: watchcore_bytes,
    /// The indexes, at most 8. NULL: none. All elements have the same `size`; the array steps by it.
    pub indexes: *const watchcore_index,
    /// The number of elements of `indexes`.
    pub index_count: usize,
    /// The most buckets of all indexes together; subscriptions beyond them scan. 0: 65536.
    pub max_buckets: u64,
    /// With `keep_ms`: the minimum number of events in the log, however old they are. At most `capacity`.
    pub keep_events: u64,
    /// The log is sized by age: older events leave as long as `keep_events` stay; younger events stay as long as
    /// `capacity` and `capacity_bytes` allow. 0: only those two limits apply.
    pub keep_ms: i64,
}

// SAFETY: repr(C), starts with the size; numbers and pointers.
unsafe impl Sized32 for watchcore_cache_options {
    const NAME: &'static str = "watchcore_cache_options";
    const DEFAULT: Self = watchcore_cache_options {
        size: size_of::<Self>() as u32,
        expect_load: 0,
        prefix: watchcore_bytes::ABSENT,
        name: watchcore_bytes::ABSENT,
        capacity: 0,
        capacity_bytes: 0,
        max_key_bytes: 0,
        max_value_bytes: 0,
        fields: std::ptr::null(),
        field_count: 0,
        labels_from: watchcore_bytes::ABSENT,
        indexes: std::ptr::null(),
        index_count: 0,
        max_buckets: 0,
        keep_events: 0,
        keep_ms: 0,
    };
}

/// # Safety
///
/// The contract, for the pointers in `options`.
unsafe fn build(options: &watchcore_cache_options) -> Result<Cache> {
    let length = |value: u64, what: &str| {
        usize::try_from(value).map_err(|_| invalid(format!("{what} {value} is too large for this machine.")))
    };
    let prefix = try_bytes!(options.prefix).unwrap_or_default();
    let mut builder = Cache::builder(prefix).expect_load(switch(options.expect_load, "options.expect_load")?);
    if let Some(name) = try_text!(options.name) {
        builder = builder.name(name);
    }
    if options.capacity != 0 {
        builder = builder.capacity(length(options.capacity, "options.capacity")?);
    }
    if options.capacity_bytes != 0 {
        builder = builder.capacity_bytes(options.capacity_bytes);
    }
    if options.max_key_bytes != 0 {
        builder = builder.max_key_bytes(length(options.max_key_bytes, "options.max_key_bytes")?);
    }
    if options.max_value_bytes != 0 {
        builder = builder.max_value_bytes(length(options.max_value_bytes, "options.max_value_bytes")?);
    }
    // SAFETY: the contract: the arrays in `options` have as many elements as their counts say.
    let (fields, indexes) = unsafe {
        (
            read_array(options.fields, options.field_count, MAX_FIELDS, "options.fields")?,
            read_array(options.indexes, options.index_count, MAX_INDEXES, "options.indexes")?,
        )
    };
    for (at, field) in fields.iter().enumerate() {
        // SAFETY: the contract covers the texts that an attribute points to.
        builder = builder.field(unsafe { attribute(field, &format!("options.fields[{at}]"))? });
    }
    if let Some(pointer) = try_text!(options.labels_from) {
        builder = builder.labels(Labels::json(pointer)?);
    }
    for (at, one) in indexes.iter().enumerate() {
        // SAFETY: the contract covers the text that an index points to.
        builder = builder.index(unsafe { index(one, &format!("options.indexes[{at}]"))? });
    }
    if options.max_buckets != 0 {
        builder = builder.max_buckets(length(options.max_buckets, "options.max_buckets")?);
    }
    match (options.keep_ms, options.keep_events) {
        (0, 0) => {}
        (0, events) => {
            return Err(invalid(format!("options.keep_events is {events} without options.keep_ms. Give the age too.")));
        }
        (1.., events) => {
            let age = Duration::from_millis(options.keep_ms.unsigned_abs());
            builder = builder.keep(length(events, "options.keep_events")?, age);
        }
        (age, _) => return Err(invalid(format!("options.keep_ms is {age}. Give milliseconds, or 0 for no age."))),
    }
    builder.build()
}

/// Makes an empty cache. Without `expect_load` it is ready at once, at revision 0 (a feeder makes it wait for
/// its first listing).
/// `options`: NULL for the defaults. `*cache`: the caller's, ended by watchcore_cache_free. Never blocks. Any
/// thread. Codes: INVALID_ARGUMENT, UNSUPPORTED (this build reads no JSON), RESOURCE_EXHAUSTED (the system
/// starts no thread: the first cache of a process needs two. The cache is not made; try again).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_cache_new(
    options: *const watchcore_cache_options,
    cache: *mut *mut watchcore_cache,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_cache_new, error, {
        let cache = try_out!(cache);
        let options = struct_or_default!(options);
        handle::check_process()?;
        // SAFETY: the contract covers everything that `options` points to.
        let made = unsafe { build(&options)? };
        cache.write(handle::new(made, ()));
        Ok(())
    })
}

/// Closes the cache and frees the handle; NULL does nothing. Subscriptions hand out what is left, then answer
/// CLOSED; snapshots, pages, key-values and batches stay valid until they are freed themselves; calls that
/// wait end with CLOSED. No other call on this handle may begin after this one begins, but calls that already
/// wait are allowed. Never blocks. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_cache_free(cache: *mut watchcore_cache) {
    free!(watchcore_cache_free, cache);
}

/// Closes the cache without freeing the handle: its content no longer changes, and calls that wait end with
/// CLOSED. Idempotent. Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_cache_close(cache: *const watchcore_cache, error: *mut watchcore_error) -> i32 {
    frame!(watchcore_cache_close, error, {
        try_handle!(cache).close();
        Ok(())
    })
}

/// The cache's position and window, without the rest of watchcore_cache_status: `*revision` and `*epoch` are
/// its position, `*oldest` the oldest revision of its window (a start after `oldest - 1` is possible). Each
/// may be NULL. Never blocks, O(1). Any thread, many at once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_cache_position(
    cache: *const watchcore_cache,
    revision: *mut u64,
    epoch: *mut u64,
    oldest: *mut u64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_cache_position, error, {
        let cache = try_handle!(cache);
        // Read in this order, so that `oldest` is not above the position even if the window moves in between.
        let first = cache.oldest();
        let position = cache.position();
        out_or_null!(revision).write(position.revision);
        out_or_null!(epoch).write(position.epoch);
        out_or_null!(oldest).write(first);
        Ok(())
    })
}

/// Whether the first listing is there and the cache open, so that reads are answered: `*ready` is 1 or 0. It
/// stays 1 while the source is out of reach, which only watchcore_cache_status shows.
/// Never blocks, O(1). Any thread, many at once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_cache_is_ready(
    cache: *const watchcore_cache,
    ready: *mut u32,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_cache_is_ready, error, {
        let ready = try_out!(ready);
        let is = try_handle!(cache).is_ready();
        ready.write(u32::from(is));
        Ok(())
    })
}

/// Waits until the first listing is published.
/// Blocks up to `timeout_ms` (-1: for ever, 0: not at all). Any thread, many at once; ended by
/// watchcore_cache_close and watchcore_cache_free. The form that never blocks: watchcore_waiter_new with
/// WATCHCORE_WANT_READY. Codes: INVALID_ARGUMENT, NOT_READY, TIMEOUT, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_cache_wait_ready(
    cache: *const watchcore_cache,
    timeout_ms: i64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_cache_wait_ready, error, {
        let cache = try_handle!(cache).clone();
        cache.wait_ready(timeout(timeout_ms)?)
    })
}

/// Waits until the cache has reached a revision, for example to read your own writes.
/// `*reached`, `*epoch`: the cache's position then; each may be NULL.
/// Blocks up to `timeout_ms` (-1: for ever, 0: not at all). Any thread, many at once; ended by
/// watchcore_cache_close and watchcore_cache_free. The form that never blocks: watchcore_waiter_new with
/// WATCHCORE_WANT_REVISION. Codes: INVALID_ARGUMENT, NOT_READY, FUTURE_REVISION (not in
/// this time), RESYNCED, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_cache_wait_until(
    cache: *const watchcore_cache,
    revision: u64,
    timeout_ms: i64,
    reached: *mut u64,
    epoch: *mut u64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_cache_wait_until, error, {
        let cache = try_handle!(cache).clone();
        let position = cache.wait_until(revision, timeout(timeout_ms)?)?;
        out_or_null!(reached).write(position.revision);
        out_or_null!(epoch).write(position.epoch);
        Ok(())
    })
}

/// The revision that the source has now, by one linearizable read (shared by all concurrent callers); in an
/// embedded cache, the cache's own. Wait for it with watchcore_cache_wait_until, or read with
/// WATCHCORE_READ_AT_LEAST. If a proxy drops etcd's progress notifications, it is the cache's position, once
/// the state there is proven to equal etcd's.
/// Blocks up to `timeout_ms` (-1: for ever, 0: not at all). Any thread, many at once; ended by
/// watchcore_cache_close and watchcore_cache_free. The form that never blocks: watchcore_waiter_new with
/// WATCHCORE_WANT_CONSISTENT. Codes: INVALID_ARGUMENT, NOT_READY, TIMEOUT, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_cache_consistent_revision(
    cache: *const watchcore_cache,
    timeout_ms: i64,
    revision: *mut u64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_cache_consistent_revision, error, {
        let revision = try_out!(revision);
        let cache = try_handle!(cache).clone();
        let found = cache.consistent_revision(timeout(timeout_ms)?)?;
        revision.write(found);
        Ok(())
    })
}
