//! Key-values as C sees them: the stored version itself.
//!
//! `KeyValue` is one counted pointer: handing one to C gives its count away, and releasing it takes the count back.
//!
//! # In the header: Key-values
//!
//! The key-values that the cache stores: events, pages and snapshots point to the same memory.

use super::contract::OutArray;
use super::frame::{Fun, answer};
use super::handle;
use watchcore::{KeyValue, raw};

/// A stored key-value, which is immutable. Events, pages and snapshots use the same struct.
#[repr(C)]
pub struct watchcore_key_value {
    /// The key.
    pub key: *const u8,
    /// The value; NULL if there is none (a deletion), not NULL with length 0 if it is empty.
    pub value: *const u8,
    /// The key's length in bytes.
    pub key_length: u32,
    /// The value's length in bytes.
    pub value_length: u32,
    /// The revision at which the key was created. In a deletion, this and the next three members are the last value's.
    pub create_revision: u64,
    /// The revision of the last change.
    pub mod_revision: u64,
    /// 1 + the number of changes since it was created.
    pub version: u64,
    /// The lease, 0 for none.
    pub lease: i64,
}

/// Releases a key-value that came from watchcore_cache_get, or from a get of many; NULL does nothing. Not for the key-values of an
/// event, a page or a snapshot. Never blocks. Any thread, even after the cache was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_key_value_release(kv: *const watchcore_key_value) {
    answer(Fun::watchcore_key_value_release, (), || {
        if !kv.is_null() && handle::same_process() {
            // SAFETY: the contract: `into_c` gave it away, and it was not released.
            drop(unsafe { raw::key_value_from_raw(kv.cast()) });
        }
    });
}

/// Releases many key-values at once: those of watchcore_cache_get_many or watchcore_snapshot_get_many. NULLs among them
/// are skipped. `kvs`, `count`: the array; NULL with 0 does nothing. Never blocks. Any thread, even after the cache was
/// freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_key_values_release(kvs: *const *const watchcore_key_value, count: usize) {
    answer(Fun::watchcore_key_values_release, (), || {
        if !kvs.is_null() && handle::same_process() {
            // SAFETY: the contract: the array has so many elements, which `all_into_c` wrote; none was released.
            unsafe { std::slice::from_raw_parts(kvs, count) }.iter().for_each(|kv| {
                // SAFETY: as above.
                drop(unsafe { raw::key_value_from_raw(kv.cast()) });
            });
        }
    });
}

// C gets the pointer inside a `KeyValue`.
const _: () = assert!(size_of::<KeyValue>() == size_of::<*const watchcore_key_value>());
const _: () = assert!(size_of::<watchcore_key_value>() == 48 + 2 * size_of::<usize>() - 8);

/// Gives the count of a key-value to C.
pub(super) fn into_c(kv: KeyValue) -> *const watchcore_key_value {
    raw::key_value_into_raw(kv).cast()
}

/// Gives the counts of key-values to C, in an array with room for all; NULL is none.
pub(super) fn all_into_c(
    kvs: impl IntoIterator<Item = Option<KeyValue>>,
    mut to: OutArray<'_, *const watchcore_key_value>,
) {
    kvs.into_iter().for_each(|kv| to.extend(&[kv.map_or(std::ptr::null(), into_c)]));
}

/// Lends a key-value to C.
pub(super) fn as_c(kv: &KeyValue) -> *const watchcore_key_value {
    raw::key_value_as_raw(kv).cast()
}
