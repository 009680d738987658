//! Snapshots and walks over them.

use super::bytes::{check_out, slice, write_optional};
use super::cache::{CacheObject, watchcore_cache};
use super::count::Fun;
use super::error::{answer, call, invalid, watchcore_error};
use super::filter::{filter_of, watchcore_filter};
use super::handle::{self, Object};
use super::read::{lend, range_of, watchcore_key_value, watchcore_range};
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

/// Takes a snapshot of the whole cache: O(1), nothing is copied. It holds the memory of its state until it is
/// freed.
/// `*snapshot`: the caller's, ended by watchcore_snapshot_free. Never blocks. Any thread, many at once.
/// Codes: INVALID_ARGUMENT, NOT_READY, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_snapshot_new(
    cache: *const watchcore_cache,
    snapshot: *mut *mut watchcore_snapshot,
    error: *mut watchcore_error,
) -> i32 {
    let body = || {
        check_out(snapshot, "snapshot")?;
        // SAFETY: the caller's promise.
        let made = unsafe { handle::shared::<CacheObject>(cache, "cache")? }.snapshot()?;
        // SAFETY: checked above.
        unsafe { snapshot.write(handle::new::<SnapshotObject>(made, ())) };
        Ok(())
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { call(Fun::watchcore_snapshot_new, error, body) }
}

/// The revision of a snapshot; 0 for NULL. Never blocks. Any thread, many at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_snapshot_revision(snapshot: *const watchcore_snapshot) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { of_snapshot(Fun::watchcore_snapshot_revision, snapshot, |s| s.position().revision) }
}

/// The epoch of a snapshot; 0 for NULL. Never blocks. Any thread, many at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_snapshot_epoch(snapshot: *const watchcore_snapshot) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { of_snapshot(Fun::watchcore_snapshot_epoch, snapshot, |s| s.position().epoch) }
}

/// Reads one key of a snapshot. `*found` (may be NULL): 1 or 0. `*kv`: the key-value, or NULL where there is
/// none; the snapshot's, valid until it is freed. Never blocks. Any thread, many at once.
/// Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_snapshot_get(
    snapshot: *const watchcore_snapshot,
    key: *const c_void,
    key_length: usize,
    found: *mut u32,
    kv: *mut *const watchcore_key_value,
    error: *mut watchcore_error,
) -> i32 {
    let body = || {
        check_out(kv, "kv")?;
        // SAFETY: the caller's promise.
        let key = unsafe { slice::<u8>(key, key_length, "key")? };
        let Some(key) = key else { return Err(invalid("key is NULL. Give the key to read.")) };
        // SAFETY: the caller's promise.
        let snapshot = unsafe { handle::shared::<SnapshotObject>(snapshot, "snapshot")? };
        let value = snapshot.get(key).map_or(std::ptr::null(), |k| lend(&k));
        // SAFETY: checked above; NULL or writable by the caller's promise.
        unsafe {
            kv.write(value);
            write_optional(found, !value.is_null() as u32);
        }
        Ok(())
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { call(Fun::watchcore_snapshot_get, error, body) }
}

/// Counts the keys of a range of a snapshot, in time proportional to them. `range`: NULL for all.
/// Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_snapshot_count(
    snapshot: *const watchcore_snapshot,
    range: *const watchcore_range,
    count: *mut u64,
    error: *mut watchcore_error,
) -> i32 {
    let body = || {
        check_out(count, "count")?;
        // SAFETY: the caller's promise.
        let (range, snapshot) = unsafe { (range_of(range)?, handle::shared::<SnapshotObject>(snapshot, "snapshot")?) };
        // SAFETY: checked above.
        unsafe { count.write(snapshot.count(&range)) };
        Ok(())
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { call(Fun::watchcore_snapshot_count, error, body) }
}

/// Counts the key-values of a snapshot that a filter lets pass, in time proportional to the keys of its range.
/// `filter`: NULL for all. Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_snapshot_count_filtered(
    snapshot: *const watchcore_snapshot,
    filter: *const watchcore_filter,
    count: *mut u64,
    error: *mut watchcore_error,
) -> i32 {
    let body = || {
        check_out(count, "count")?;
        // SAFETY: the caller's promise.
        let (filter, snapshot) =
            unsafe { (filter_of(filter)?, handle::shared::<SnapshotObject>(snapshot, "snapshot")?) };
        let found = snapshot.filtered(&filter)?.count() as u64;
        // SAFETY: checked above.
        unsafe { count.write(found) };
        Ok(())
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { call(Fun::watchcore_snapshot_count_filtered, error, body) }
}

/// Gives a snapshot back, and what was read from it; NULL does nothing. Never blocks. Any thread, also after
/// the cache was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_snapshot_free(snapshot: *mut watchcore_snapshot) {
    // SAFETY: the caller's promise.
    unsafe { handle::free::<SnapshotObject>(Fun::watchcore_snapshot_free, snapshot) }
}

/// Begins a walk over a range of a snapshot in key order. `range`: NULL for all. `*iterator`: the caller's,
/// ended by watchcore_iterator_free; it may outlive the snapshot. Never blocks. Any thread, many at once.
/// Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_iterator_new(
    snapshot: *const watchcore_snapshot,
    range: *const watchcore_range,
    iterator: *mut *mut watchcore_iterator,
    error: *mut watchcore_error,
) -> i32 {
    let body = || {
        check_out(iterator, "iterator")?;
        // SAFETY: the caller's promise.
        let (range, snapshot) = unsafe { (range_of(range)?, handle::shared::<SnapshotObject>(snapshot, "snapshot")?) };
        let walk = Walk::new((*snapshot).clone(), &Filter::any().range(&range))?;
        // SAFETY: checked above.
        unsafe { iterator.write(handle::new::<IteratorObject>((), walk)) };
        Ok(())
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { call(Fun::watchcore_iterator_new, error, body) }
}

/// As watchcore_iterator_new, over the key-values that a filter lets pass. `filter`: NULL for all.
/// Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_iterator_new_filtered(
    snapshot: *const watchcore_snapshot,
    filter: *const watchcore_filter,
    iterator: *mut *mut watchcore_iterator,
    error: *mut watchcore_error,
) -> i32 {
    let body = || {
        check_out(iterator, "iterator")?;
        // SAFETY: the caller's promise.
        let (filter, snapshot) =
            unsafe { (filter_of(filter)?, handle::shared::<SnapshotObject>(snapshot, "snapshot")?) };
        let walk = Walk::new((*snapshot).clone(), &filter)?;
        // SAFETY: checked above.
        unsafe { iterator.write(handle::new::<IteratorObject>((), walk)) };
        Ok(())
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { call(Fun::watchcore_iterator_new_filtered, error, body) }
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
    let body = || {
        check_out(items, "items")?;
        check_out(count, "count")?;
        // SAFETY: the caller's promise.
        let mut walk = unsafe { handle::exclusive::<IteratorObject>(iterator, "iterator")? };
        let mut filled = 0;
        while filled < capacity {
            let Some(kv) = walk.next() else { break };
            // SAFETY: `items` has room for `capacity` pointers by the caller's promise.
            unsafe { items.add(filled).write(kv) };
            filled += 1;
        }
        // SAFETY: checked above.
        unsafe { count.write(filled) };
        Ok(())
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { call(Fun::watchcore_iterator_next, error, body) }
}

/// Ends a walk; NULL does nothing. Never blocks. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_iterator_free(iterator: *mut watchcore_iterator) {
    // SAFETY: the caller's promise.
    unsafe { handle::free::<IteratorObject>(Fun::watchcore_iterator_free, iterator) }
}

pub(super) struct SnapshotObject;

impl Object for SnapshotObject {
    type C = watchcore_snapshot;
    type Shared = Snapshot;
    type Own = ();
    const KIND: u32 = 0x5743_0005;
    const NAME: &'static str = "watchcore_snapshot";
    fn close(_: &Snapshot) {}
}

pub(super) struct IteratorObject;

impl Object for IteratorObject {
    type C = watchcore_iterator;
    type Shared = ();
    type Own = Walk;
    const KIND: u32 = 0x5743_0007;
    const NAME: &'static str = "watchcore_iterator";
    fn close(_: &()) {}
}

/// A walk that owns the snapshot it walks over.
///
/// The snapshot lies behind a raw pointer: a `Box` says that nobody else looks at what it owns, also when it is
/// only moved, and `items` looks at it.
pub(super) struct Walk {
    /// Borrows from `snapshot`; dropped before it.
    items: ManuallyDrop<Box<dyn Iterator<Item = KeyValueRef<'static>> + Send>>,
    snapshot: NonNull<Snapshot>,
}

// SAFETY: the walk owns the snapshot, which is Send and Sync, and nobody else has the pointer.
unsafe impl Send for Walk {}

impl Walk {
    fn new(snapshot: Snapshot, filter: &Filter) -> Result<Walk> {
        let snapshot = NonNull::from(Box::leak(Box::new(snapshot)));
        // SAFETY: it is freed by `drop`, after `items`, or below, and only read until then.
        let borrowed: &'static Snapshot = unsafe { snapshot.as_ref() };
        match borrowed.filtered(filter) {
            Ok(items) => Ok(Walk { items: ManuallyDrop::new(Box::new(items)), snapshot }),
            Err(why) => {
                // SAFETY: made from a box above; nothing borrows from it.
                drop(unsafe { Box::from_raw(snapshot.as_ptr()) });
                Err(why)
            }
        }
    }

    fn next(&mut self) -> Option<*const watchcore_key_value> {
        self.items.next().map(|kv| lend(&kv))
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        // SAFETY: `items` is dropped here only, and first; the snapshot came from a box, and nothing borrows from it
        // any more.
        unsafe {
            ManuallyDrop::drop(&mut self.items);
            drop(Box::from_raw(self.snapshot.as_ptr()));
        }
    }
}

/// The frame of the snapshot's accessors.
///
/// Safety: `snapshot` is NULL or a snapshot that was not freed.
unsafe fn of_snapshot(fun: Fun, snapshot: *const watchcore_snapshot, body: impl FnOnce(&Snapshot) -> u64) -> u64 {
    // SAFETY: the caller's promise.
    answer(fun, 0, || unsafe { handle::shared::<SnapshotObject>(snapshot, "snapshot") }.map_or(0, |s| body(&s)))
}
