//! Snapshots and walks over them.
//!
//! # In the header: Snapshots
//!
//! A snapshot serves many reads of one state.

use super::bytes::{keys_of, watchcore_bytes};
use super::cache::watchcore_cache;
use super::contract::{frame, free, out_or_null, try_exclusive, try_handle, try_out, try_out_array, try_slice};
use super::error::{invalid, watchcore_error};
use super::filter::{filter_of, watchcore_filter};
use super::handle::{self, Object};
use super::key_value::{all_into_c, as_c, watchcore_key_value};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use watchcore::{Filter, KeyValueRef, Result, Snapshot};

/// The state at one revision; it never changes. Made by watchcore_snapshot_new.
pub struct watchcore_snapshot {
    _private: [u8; 0],
}

/// A walk over a snapshot in key order. Made by watchcore_iterator_new.
pub struct watchcore_iterator {
    _private: [u8; 0],
}

/// Takes a snapshot of the whole cache: O(1), without copying. It keeps the memory of its state until it is
/// freed. `*snapshot`: the caller's, ended by watchcore_snapshot_free. Never blocks. Any thread, many at
/// once. Codes: INVALID_ARGUMENT, NOT_READY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_snapshot_new(
    cache: *const watchcore_cache,
    snapshot: *mut *mut watchcore_snapshot,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_snapshot_new, error, {
        let snapshot = try_out!(snapshot);
        let made = try_handle!(cache).snapshot()?;
        snapshot.write(handle::new(made, ()));
        Ok(())
    })
}

/// The position of the snapshot's state: `*revision`, and `*epoch` (may be NULL), which belongs to it. Never
/// blocks, O(1). Any thread, many at once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_snapshot_position(
    snapshot: *const watchcore_snapshot,
    revision: *mut u64,
    epoch: *mut u64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_snapshot_position, error, {
        let revision = try_out!(revision);
        let position = try_handle!(snapshot).position();
        revision.write(position.revision);
        out_or_null!(epoch).write(position.epoch);
        Ok(())
    })
}

/// Reads one key of a snapshot. `*found` (may be NULL): 1 or 0. `*kv`: the key-value, or NULL if the key is
/// absent; it belongs to the snapshot and is valid until that is freed. Never blocks. Any thread, many at
/// once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_snapshot_get(
    snapshot: *const watchcore_snapshot,
    key: *const c_void,
    key_length: usize,
    found: *mut u32,
    kv: *mut *const watchcore_key_value,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_snapshot_get, error, {
        let kv = try_out!(kv);
        let Some(key) = try_slice!(key, key_length) else {
            return Err(invalid("key is NULL. Give the key to read."));
        };
        let snapshot = try_handle!(snapshot);
        let value = snapshot.get(key).map_or(std::ptr::null(), |k| as_c(&k));
        kv.write(value);
        out_or_null!(found).write(!value.is_null() as u32);
        Ok(())
    })
}

/// Reads many keys of a snapshot, in less time than as many calls of watchcore_snapshot_get. `keys`, `count`: the keys; 0
/// are no error. `kvs`: the caller's array of `count` pointers; kvs[i] is the key-value of keys[i], or NULL if that key is
/// absent. Other than that of watchcore_snapshot_get each is the caller's, and may outlive the snapshot: release all of
/// them at once with watchcore_key_values_release. Nothing is written on failure. Never blocks. Any thread, many at once.
/// Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_snapshot_get_many(
    snapshot: *const watchcore_snapshot,
    keys: *const watchcore_bytes,
    count: usize,
    kvs: *mut *const watchcore_key_value,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_snapshot_get_many, error, {
        // SAFETY: the contract covers the array of keys and what it points to.
        let keys = unsafe { keys_of(keys, count)? };
        let kvs = try_out_array!(kvs, count);
        let snapshot = try_handle!(snapshot);
        all_into_c(snapshot.get_many(&keys).into_iter().map(|kv| kv.map(|kv| kv.to_owned())), kvs);
        Ok(())
    })
}

/// Counts the key-values of a snapshot that a filter lets pass, in time proportional to the keys of its
/// range. `filter`: NULL for all. Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_snapshot_count(
    snapshot: *const watchcore_snapshot,
    filter: *const watchcore_filter,
    count: *mut u64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_snapshot_count, error, {
        let count = try_out!(count);
        // SAFETY: the contract covers `filter` and everything that it points to.
        let filter = unsafe { filter_of(filter)? };
        let snapshot = try_handle!(snapshot);
        let found = snapshot.filtered(&filter)?.count() as u64;
        count.write(found);
        Ok(())
    })
}

/// Frees a snapshot, and the key-values read from it; NULL does nothing. Never blocks. Any thread, even after
/// the cache was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_snapshot_free(snapshot: *mut watchcore_snapshot) {
    free!(watchcore_snapshot_free, snapshot);
}

/// Begins a walk over the key-values of a snapshot that a filter lets pass, in key order. `filter`: NULL for
/// all. `*iterator`: the caller's, ended by watchcore_iterator_free; it may outlive the snapshot. Never
/// blocks. Any thread, many at once. Codes: INVALID_ARGUMENT (also for a selector that does not parse or
/// names what the cache does not declare).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_iterator_new(
    snapshot: *const watchcore_snapshot,
    filter: *const watchcore_filter,
    iterator: *mut *mut watchcore_iterator,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_iterator_new, error, {
        let iterator = try_out!(iterator);
        // SAFETY: the contract covers `filter` and everything that it points to.
        let filter = unsafe { filter_of(filter)? };
        let snapshot = try_handle!(snapshot);
        let walk = Walk::new((*snapshot).clone(), &filter)?;
        iterator.write(handle::new((), walk));
        Ok(())
    })
}

/// The next items of a walk: up to `capacity` pointers go to `items`, their number to `*count`; fewer than
/// `capacity` means the end. They are valid until the iterator is freed. Never blocks. One thread at a time.
/// Codes: INVALID_ARGUMENT, BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_iterator_next(
    iterator: *mut watchcore_iterator,
    items: *mut *const watchcore_key_value,
    capacity: usize,
    count: *mut usize,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_iterator_next, error, {
        let mut items = try_out_array!(items, capacity);
        let count = try_out!(count);
        let mut walk = try_exclusive!(iterator);
        while items.room() > 0
            && let Some(kv) = walk.next()
        {
            items.extend(&[kv]);
        }
        count.write(items.filled());
        Ok(())
    })
}

/// Ends a walk; NULL does nothing. Never blocks. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_iterator_free(iterator: *mut watchcore_iterator) {
    free!(watchcore_iterator_free, iterator);
}

impl Object for watchcore_snapshot {
    type Shared = Snapshot;
    type Exclusive = ();
    const KIND: u32 = 0x5743_0005;
    const NAME: &'static str = "watchcore_snapshot";
}

impl Object for watchcore_iterator {
    type Shared = ();
    type Exclusive = Walk;
    const KIND: u32 = 0x5743_0007;
    const NAME: &'static str = "watchcore_iterator";
    fn close(_: &()) {}
}

/// A walk that owns its snapshot.
///
/// The snapshot is kept by a raw pointer: a `Box` asserts unique access to its content whenever it is moved, and
/// `items` reads that content.
pub(super) struct Walk {
    /// Borrows from `snapshot`; dropped before it.
    items: ManuallyDrop<Box<dyn Iterator<Item = KeyValueRef<'static>> + Send>>,
    snapshot: NonNull<Snapshot>,
}

// SAFETY: the walk owns the snapshot, which is Send and Sync, and is the only holder of the pointer.
unsafe impl Send for Walk {}

impl Walk {
    fn new(snapshot: Snapshot, filter: &Filter) -> Result<Walk> {
        let snapshot = NonNull::from(Box::leak(Box::new(snapshot)));
        // SAFETY: the snapshot is only read until it is freed: by `drop`, after `items`, or below.
        let borrowed: &'static Snapshot = unsafe { snapshot.as_ref() };
        match borrowed.filtered(filter) {
            Ok(items) => Ok(Walk { items: ManuallyDrop::new(Box::new(items)), snapshot }),
            Err(why) => {
                // SAFETY: the pointer was made from a box above, and nothing borrows from it.
                drop(unsafe { Box::from_raw(snapshot.as_ptr()) });
                Err(why)
            }
        }
    }

    fn next(&mut self) -> Option<*const watchcore_key_value> {
        self.items.next().map(|kv| as_c(&kv))
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        // SAFETY: `items` is dropped only here, and first; the snapshot came from a box, and nothing borrows from it
        // any more.
        unsafe {
            ManuallyDrop::drop(&mut self.items);
            drop(Box::from_raw(self.snapshot.as_ptr()));
        }
    }
}
