//! Events and batches: the core's own memory, as C sees it.
//!
//! # In the header: Events and batches
//!
//! A poll gives a batch: a view of the log itself, not a copy. Its events stay valid until the batch is released, even
//! if the subscription and the cache are freed. Until then the batch keeps its segments of the log in memory.
//!
//!     #include <stdio.h>
//!     #include <watchcore.h>
//!
//!     // Prints a line for each change of a batch.
//!     static void show(const watchcore_batch *batch)
//!     {
//!         size_t i;
//!         for (i = 0; i < batch->count; i++) {
//!             const watchcore_event *event = watchcore_batch_event(batch, i);
//!             watchcore_bytes key = watchcore_event_key(event), value = watchcore_event_value(event);
//!             if (key.data != NULL) { // bookmarks and resync marks have none, and a deletion has no value
//!                 printf("%s %.*s %.*s\n", watchcore_name(WATCHCORE_NAME_EVENT_TYPE, event->type), (int)key.length,
//!                        (const char *)key.data, (int)value.length, (const char *)value.data);
//!             }
//!         }
//!     }

use super::bytes::watchcore_bytes;
use super::contract::accessor;
use super::frame::{Fun, answer};
use super::handle;
use super::key_value::watchcore_key_value;
use std::ffi::{c_char, c_void};
use watchcore::{Batch, Event, Kind, flags, raw};

/// A key appeared, or entered the filter.
pub const WATCHCORE_EVENT_ADDED: u32 = 1;
/// The value of a present key changed.
pub const WATCHCORE_EVENT_MODIFIED: u32 = 2;
/// A key was deleted, or left the filter. `kv` has no value; `prev_kv` is the last one.
pub const WATCHCORE_EVENT_DELETED: u32 = 3;
/// Every matching event up to this revision was handed out.
pub const WATCHCORE_EVENT_BOOKMARK: u32 = 4;
/// The beginning or the end of the difference between two histories.
pub const WATCHCORE_EVENT_RESYNC: u32 = 5;
/// Raw: etcd's PUT.
pub const WATCHCORE_EVENT_PUT: u32 = 6;
/// Raw: etcd's DELETE.
pub const WATCHCORE_EVENT_DELETE: u32 = 7;

/// Event flag: made by a resync, not by a change at its revision.
pub const WATCHCORE_FLAG_SYNTHETIC: u32 = 1;
/// Event flag: part of the initial state.
pub const WATCHCORE_FLAG_INITIAL_STATE: u32 = 2;
/// Event flag: the bookmark that ends the initial state.
pub const WATCHCORE_FLAG_INITIAL_STATE_END: u32 = 4;
/// Event flag: the resync mark before the difference.
pub const WATCHCORE_FLAG_BEGIN: u32 = 8;
/// Event flag: the resync mark after the difference.
pub const WATCHCORE_FLAG_END: u32 = 16;

/// Batch flag: the batch ends inside a revision.
pub const WATCHCORE_BATCH_CONTINUES: u32 = 1;
/// Batch flag: the batch keeps key-values of an initial state in memory, even those that are replaced meanwhile:
/// release it soon.
pub const WATCHCORE_BATCH_KEEPS_STATE: u32 = 2;

/// One event: 64 bytes of the library's memory, valid until its batch is released.
#[repr(C)]
pub struct watchcore_event {
    /// The revision of the change; for an initial object its own; for a resync mark the new state's.
    pub revision: u64,
    /// The event's sequence number in the log; 0: not from the log.
    pub sequence: u64,
    /// WATCHCORE_EVENT_ADDED to WATCHCORE_EVENT_DELETE.
    pub r#type: u32,
    /// The sum of event flags (WATCHCORE_FLAG_...); no other bit is set. A later version may define more, so test
    /// single bits.
    pub flags: u32,
    /// The new key-value; in a deletion the key without a value; NULL in bookmarks and resync marks.
    pub kv: *const watchcore_key_value,
    /// The previous key-value; NULL if there was none (or it left the window).
    pub prev_kv: *const watchcore_key_value,
    /// RESYNC: the last revision before the resync. Else 0, like the next two members.
    pub resync_from: u64,
    /// RESYNC: the new epoch.
    pub resync_epoch: u64,
    /// RESYNC: WATCHCORE_RESYNC_...
    pub resync_reason: u32,
    /// Internal.
    pub reserved: u32,
}

/// The events of one poll: a view into the library's memory, valid until watchcore_batch_release, even after the
/// subscription and the cache are freed. 64 bytes; the struct never grows. Copy it only as a whole, and release only
/// one copy. A batch of an initial state keeps its key-values (WATCHCORE_BATCH_KEEPS_STATE), but no part of the log
/// outside the window.
#[repr(C)]
pub struct watchcore_batch {
    /// The first event; NULL if there is none.
    pub events: *const c_void,
    /// The number of events.
    pub count: usize,
    /// The distance between two events in bytes. Step by it, not by sizeof(watchcore_event).
    pub stride: u32,
    /// The sum of batch flags.
    pub flags: u32,
    /// The subscription's position after this batch: its revision.
    pub position: u64,
    /// The subscription's position after this batch: its epoch.
    pub epoch: u64,
    /// Internal.
    pub owner: *mut c_void,
    /// Internal.
    pub reserved: [u64; 2],
}

/// Releases a batch and zeroes it; NULL and a zeroed batch do nothing. Only `owner` is read. Never blocks.
/// Any thread, even after the subscription and the cache were freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_batch_release(batch: *mut watchcore_batch) {
    answer(Fun::watchcore_batch_release, (), || {
        if batch.is_null() || !batch.is_aligned() {
            return;
        }
        // SAFETY: the contract: a batch that is not NULL is readable and writable.
        let old = unsafe { batch.replace(EMPTY) };
        if !old.owner.is_null() && handle::same_process() {
            // SAFETY: `owner` came from `into_c`, and a released batch is zeroed, so it is released once.
            unsafe { raw::release_batch(old.owner.expose_provenance()) };
        }
    });
}

const EMPTY: watchcore_batch = watchcore_batch {
    events: std::ptr::null(),
    count: 0,
    stride: 0,
    flags: 0,
    position: 0,
    epoch: 0,
    owner: std::ptr::null_mut(),
    reserved: [0; 2],
};

// C's numbers equal the core's.
const _: () = {
    assert!(WATCHCORE_EVENT_ADDED == Kind::Added as u32 && WATCHCORE_EVENT_MODIFIED == Kind::Modified as u32);
    assert!(WATCHCORE_EVENT_DELETED == Kind::Deleted as u32 && WATCHCORE_EVENT_BOOKMARK == Kind::Bookmark as u32);
    assert!(WATCHCORE_EVENT_RESYNC == Kind::Resync as u32 && WATCHCORE_EVENT_PUT == Kind::Put as u32);
    assert!(WATCHCORE_EVENT_DELETE == Kind::Delete as u32);
    assert!(WATCHCORE_FLAG_SYNTHETIC == flags::SYNTHETIC && WATCHCORE_FLAG_INITIAL_STATE == flags::INITIAL_STATE);
    assert!(WATCHCORE_FLAG_INITIAL_STATE_END == flags::INITIAL_STATE_END);
    assert!(WATCHCORE_FLAG_BEGIN == flags::BEGIN && WATCHCORE_FLAG_END == flags::END);
};

// C's struct has the layout of the core's event.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Event>() == 64 && size_of::<watchcore_event>() == 64 && size_of::<watchcore_batch>() == 64);
    assert!(align_of::<Event>() >= align_of::<watchcore_event>());
    assert!(raw::EVENT_OFFSETS[0] == offset_of!(watchcore_event, revision));
    assert!(raw::EVENT_OFFSETS[1] == offset_of!(watchcore_event, sequence));
    assert!(raw::EVENT_OFFSETS[2] == offset_of!(watchcore_event, r#type));
    assert!(raw::EVENT_OFFSETS[3] == offset_of!(watchcore_event, flags));
    assert!(raw::EVENT_OFFSETS[4] == offset_of!(watchcore_event, kv));
    assert!(raw::EVENT_OFFSETS[5] == offset_of!(watchcore_event, prev_kv));
    assert!(raw::EVENT_OFFSETS[6] == offset_of!(watchcore_event, resync_from));
    assert!(raw::EVENT_OFFSETS[7] == offset_of!(watchcore_event, resync_epoch));
    assert!(raw::EVENT_OFFSETS[8] == offset_of!(watchcore_event, resync_reason));
};

/// Converts a batch for C, which takes ownership of it.
#[inline]
pub(super) fn into_c(batch: Batch) -> watchcore_batch {
    let raw = raw::batch_into_parts(batch);
    watchcore_batch {
        events: raw.events.cast(),
        count: raw.len,
        stride: size_of::<Event>() as u32,
        flags: (raw.continues as u32 * WATCHCORE_BATCH_CONTINUES)
            | (raw.keeps_state as u32 * WATCHCORE_BATCH_KEEPS_STATE),
        position: raw.position.revision,
        epoch: raw.position.epoch,
        owner: std::ptr::with_exposed_provenance_mut(raw.owner),
        reserved: [0; 2],
    }
}

accessor! {
    /// The event at an index; NULL after the last. The out-of-line symbol of the inline function.
    fn watchcore_batch_event(batch: *const watchcore_batch, index: usize) -> *const watchcore_event {
        // SAFETY: the contract: NULL or the caller's batch.
        let Some(batch) = (unsafe { batch.as_ref() }) else { return std::ptr::null() };
        if index >= batch.count {
            return std::ptr::null();
        }
        // SAFETY: the index lies inside the batch.
        unsafe { batch.events.byte_add(index * batch.stride as usize) }.cast()
    }
}

accessor! {
    /// The key of an event. The out-of-line symbol of the inline function.
    fn watchcore_event_key(event: *const watchcore_event) -> watchcore_bytes {
        if event.is_null() {
            return watchcore_bytes::ABSENT;
        }
        // SAFETY: the event's batch was not released, and its key-values live as long as the batch.
        unsafe { key_of((*event).kv) }
    }
}

accessor! {
    /// The new value of an event. The out-of-line symbol of the inline function.
    fn watchcore_event_value(event: *const watchcore_event) -> watchcore_bytes {
        if event.is_null() {
            return watchcore_bytes::ABSENT;
        }
        // SAFETY: the event's batch was not released, and its key-values live as long as the batch.
        unsafe { value_of((*event).kv) }
    }
}

accessor! {
    /// The previous value of an event. The out-of-line symbol of the inline function.
    fn watchcore_event_prev_value(event: *const watchcore_event) -> watchcore_bytes {
        if event.is_null() {
            return watchcore_bytes::ABSENT;
        }
        // SAFETY: the event's batch was not released, and its key-values live as long as the batch.
        unsafe { value_of((*event).prev_kv) }
    }
}

accessor! {
    /// A pointer and a length as one value. The out-of-line symbol of the inline function.
    fn watchcore_bytes_from(data: *const c_void, length: usize) -> watchcore_bytes {
        watchcore_bytes { data, length }
    }
}

accessor! {
    /// The bytes of a NUL-terminated string. The out-of-line symbol of the inline function.
    fn watchcore_bytes_from_string(string: *const c_char) -> watchcore_bytes {
        if string.is_null() {
            return watchcore_bytes::ABSENT;
        }
        // SAFETY: the contract: the string ends with a NUL.
        let length = unsafe { std::ffi::CStr::from_ptr(string) }.count_bytes();
        watchcore_bytes { data: string.cast(), length }
    }
}

/// The key of a key-value, absent for NULL.
///
/// Reads single fields instead of making a reference to the whole, because the log writes other fields of an event, and
/// the store other fields of a version, while C reads it.
///
/// # Safety
///
/// `kv` is NULL or belongs to an event whose batch was not released.
const unsafe fn key_of(kv: *const watchcore_key_value) -> watchcore_bytes {
    if kv.is_null() {
        return watchcore_bytes::ABSENT;
    }
    // SAFETY: the batch keeps `kv` alive; its key and key length never change.
    unsafe { watchcore_bytes { data: (*kv).key.cast(), length: (*kv).key_length as usize } }
}

/// The value of a key-value, absent for NULL.
///
/// # Safety
///
/// The contract of `key_of`.
const unsafe fn value_of(kv: *const watchcore_key_value) -> watchcore_bytes {
    if kv.is_null() {
        return watchcore_bytes::ABSENT;
    }
    // SAFETY: the batch keeps `kv` alive; its value and value length never change.
    unsafe { watchcore_bytes { data: (*kv).value.cast(), length: (*kv).value_length as usize } }
}
