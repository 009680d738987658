//! The writer: the one handle that changes a cache.
//!
//! # In the header: Writing
//!
//! A writer changes an embedded cache; there is one at a time. Each call of watchcore_writer_apply is one revision:
//! readers see all of it or nothing.

use super::bytes::{Sized32, in_array, map_array, read_struct, watchcore_bytes};
use super::cache::watchcore_cache;
use super::contract::{frame, free, out_or_null, try_exclusive, try_handle, try_out};
use super::error::{invalid, watchcore_error};
use super::handle::{self, Object};
use watchcore::{Change, Error, Record, Result, ResyncReason, Writer};

/// The one handle that may change a cache. Made by watchcore_writer_new.
pub struct watchcore_writer {
    _private: [u8; 0],
}

impl Object for watchcore_writer {
    type Shared = ();
    type Exclusive = Writer;
    const KIND: u32 = 0x5743_0002;
    const NAME: &'static str = "watchcore_writer";
    fn close(_: &()) {}
}

/// A put: create_revision and version are derived, the lease is 0.
pub const WATCHCORE_CHANGE_PUT: u32 = 1;
/// A deletion of a present key.
pub const WATCHCORE_CHANGE_DELETE: u32 = 2;
/// A put with given create_revision, mod_revision, version and lease, which are checked.
pub const WATCHCORE_CHANGE_PUT_EXACT: u32 = 3;

/// The source compacted revisions that were not read yet.
pub const WATCHCORE_RESYNC_COMPACTED: u32 = 1;
/// The source's history went back, or was replaced by another.
pub const WATCHCORE_RESYNC_HISTORY_RESET: u32 = 2;
/// An event did not fit the versions before it.
pub const WATCHCORE_RESYNC_CHAIN_BROKEN: u32 = 3;
/// Replaying would have taken longer than listing.
pub const WATCHCORE_RESYNC_TOO_FAR_BEHIND: u32 = 4;
/// A resync was requested.
pub const WATCHCORE_RESYNC_REQUESTED: u32 = 5;
/// A single subscription caught up after it had lost events.
pub const WATCHCORE_RESYNC_LAGGED: u32 = 6;

const _: () = {
    assert!(WATCHCORE_RESYNC_COMPACTED == ResyncReason::Compacted as u32);
    assert!(WATCHCORE_RESYNC_HISTORY_RESET == ResyncReason::HistoryReset as u32);
    assert!(WATCHCORE_RESYNC_CHAIN_BROKEN == ResyncReason::ChainBroken as u32);
    assert!(WATCHCORE_RESYNC_TOO_FAR_BEHIND == ResyncReason::TooFarBehind as u32);
    assert!(WATCHCORE_RESYNC_REQUESTED == ResyncReason::Requested as u32);
    assert!(WATCHCORE_RESYNC_LAGGED == ResyncReason::Lagged as u32);
};

/// One change of one key, or one key-value of a listing (then `op` is PUT_EXACT). All elements of an array
/// have the same `size`; the array steps by it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_change {
    /// sizeof(watchcore_change).
    pub size: u32,
    /// WATCHCORE_CHANGE_...
    pub op: u32,
    /// The key; not empty.
    pub key: watchcore_bytes,
    /// The value; must be absent in a deletion.
    pub value: watchcore_bytes,
    /// PUT_EXACT: the revision at which the key was created.
    pub create_revision: u64,
    /// PUT_EXACT: the revision of this change.
    pub mod_revision: u64,
    /// PUT_EXACT: 1 + the number of changes since it was created.
    pub version: u64,
    /// PUT_EXACT: the lease, 0 for none.
    pub lease: i64,
}

// SAFETY: repr(C), starts with the size; numbers and pointers.
unsafe impl Sized32 for watchcore_change {
    const NAME: &'static str = "watchcore_change";
    const DEFAULT: Self = watchcore_change {
        size: size_of::<Self>() as u32,
        op: 0,
        key: watchcore_bytes::ABSENT,
        value: watchcore_bytes::ABSENT,
        create_revision: 0,
        mod_revision: 0,
        version: 0,
        lease: 0,
    };
}

/// An element of an array of changes, with the bytes that it points to.
struct Element<'a> {
    index: usize,
    change: watchcore_change,
    key: &'a [u8],
    value: Option<&'a [u8]>,
}

/// Checks a copied element of an array of changes, and reads the bytes that it points to.
///
/// # Safety
///
/// The bytes that `change` points to are readable during `'a`.
#[inline]
unsafe fn element<'a>(index: usize, change: watchcore_change) -> Result<Element<'a>> {
    let named = |e: Error| in_array("changes", index, &e);
    // SAFETY: the caller guarantees that the bytes are readable during `'a`.
    let (key, value) = unsafe { (change.key.get("key"), change.value.get("value")) };
    let (key, value) = (key.map_err(named)?, value.map_err(named)?);
    let Some(key) = key else { return Err(invalid(format!("changes[{index}] has no key. Give one."))) };
    Ok(Element { index, change, key, value })
}

/// Copies the only element of an array of changes.
///
/// # Safety
///
/// The struct is readable for as many bytes as its size says, and the bytes that it points to are readable during `'a`.
#[inline]
unsafe fn single_element<'a>(change: *const watchcore_change) -> Result<Element<'a>> {
    // SAFETY: the caller guarantees the struct, and the bytes that it points to.
    unsafe { element(0, read_struct(change).map_err(|e| in_array("changes", 0, &e))?) }
}

/// Copies the elements of an array that steps by its own `size`, and converts each for the core.
///
/// # Safety
///
/// `count` elements of the first one's size are readable during `'a`, and so are the bytes that they point to.
unsafe fn convert<'a, T>(
    changes: *const watchcore_change,
    count: usize,
    one: impl Fn(Element<'a>) -> Result<T>,
) -> Result<Vec<T>> {
    // SAFETY: the caller guarantees the array, and the bytes that its elements point to.
    unsafe { map_array(changes, count, "changes", |index, change| one(element(index, change)?)) }
}

impl<'a> Element<'a> {
    fn with_value(&self) -> Result<&'a [u8]> {
        let index = self.index;
        self.value.ok_or_else(|| {
            invalid(format!("changes[{index}] is a put without a value. Give one; length 0 is allowed."))
        })
    }

    fn exact(&self) -> Result<Record<'a>> {
        let change = &self.change;
        Ok(Record {
            key: self.key,
            value: self.with_value()?,
            create_revision: change.create_revision,
            mod_revision: change.mod_revision,
            version: change.version,
            lease: change.lease,
        })
    }

    #[inline]
    fn change(self) -> Result<Change<'a>> {
        let index = self.index;
        match self.change.op {
            WATCHCORE_CHANGE_PUT => Ok(Change::put(self.key, self.with_value()?)),
            WATCHCORE_CHANGE_DELETE if self.value.is_some() => {
                Err(invalid(format!("changes[{index}] is a deletion with a value. Leave it absent.")))
            }
            WATCHCORE_CHANGE_DELETE => Ok(Change::delete(self.key)),
            WATCHCORE_CHANGE_PUT_EXACT => Ok(Change::put_exact(self.exact()?)),
            other => Err(invalid(format!(
                "changes[{index}] has op {other}. Give one of WATCHCORE_CHANGE_PUT, _DELETE, _PUT_EXACT."
            ))),
        }
    }

    fn record(self) -> Result<Record<'a>> {
        if self.change.op != WATCHCORE_CHANGE_PUT_EXACT {
            return Err(invalid(format!(
                "changes[{}] of a listing has op {}. Give WATCHCORE_CHANGE_PUT_EXACT.",
                self.index, self.change.op
            )));
        }
        self.exact()
    }
}

/// # Safety
///
/// The contract of `convert`.
pub(super) unsafe fn records_of<'a>(changes: *const watchcore_change, count: usize) -> Result<Vec<Record<'a>>> {
    // SAFETY: `convert` has the same contract as this function.
    unsafe { convert(changes, count, Element::record) }
}

/// Takes the cache's writer. A second one is refused (BUSY) until the first is freed.
/// `*writer`: the caller's, ended by watchcore_writer_free. Never blocks. Any thread, many at once.
/// Codes: INVALID_ARGUMENT, BUSY, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_writer_new(
    cache: *const watchcore_cache,
    writer: *mut *mut watchcore_writer,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_writer_new, error, {
        let writer = try_out!(writer);
        let made = try_handle!(cache).writer()?;
        writer.write(handle::new((), made));
        Ok(())
    })
}

/// Publishes the first listing and makes the cache ready; once, and only on a cache made with `expect_load`.
/// `changes`: `count` key-values (op PUT_EXACT) with different keys; copied. On an error nothing has changed.
/// Never blocks, but takes time in proportion to `count`. One thread at a time.
/// Codes: INVALID_ARGUMENT, OUT_OF_ORDER, BUSY, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_writer_load(
    writer: *mut watchcore_writer,
    revision: u64,
    changes: *const watchcore_change,
    count: usize,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_writer_load, error, {
        let mut writer = try_exclusive!(writer);
        // SAFETY: the contract: `changes` has `count` elements.
        writer.load(revision, unsafe { records_of(changes, count)? })
    })
}

/// Applies one revision: all its changes become visible together. `revision` must be above the last one; each
/// key may occur once; a deletion needs a present key. On an error nothing has changed.
/// `changes`: `count` elements; copied. Never blocks. One thread at a time.
/// Codes: INVALID_ARGUMENT, OUT_OF_ORDER, NOT_READY, BUSY, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_writer_apply(
    writer: *mut watchcore_writer,
    revision: u64,
    changes: *const watchcore_change,
    count: usize,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_writer_apply, error, {
        let mut writer = try_exclusive!(writer);
        if count == 1 {
            // The common case builds no list.
            // SAFETY: the contract: `changes` has one element.
            return writer.apply(revision, [unsafe { single_element(changes)? }.change()?]);
        }
        // SAFETY: the contract: `changes` has `count` elements.
        writer.apply(revision, unsafe { convert(changes, count, Element::change)? })
    })
}

/// Replaces the state by a new listing: the difference becomes one atomic revision between two resync marks,
/// in a new epoch. `revision` may be lower than the last one.
/// `changes`: `count` key-values (op PUT_EXACT), the whole new state; copied. `reason`: WATCHCORE_RESYNC_...
/// `*position`, `*epoch`: the cache's position after it; each may be NULL. On an error nothing has changed.
/// Never blocks, but takes time in proportion to the state. One thread at a time.
/// Codes: INVALID_ARGUMENT, NOT_READY, BUSY, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_writer_resync(
    writer: *mut watchcore_writer,
    revision: u64,
    changes: *const watchcore_change,
    count: usize,
    reason: u32,
    position: *mut u64,
    epoch: *mut u64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_writer_resync, error, {
        let why = ResyncReason::from_u32(reason).filter(|&r| r != ResyncReason::Lagged);
        let why = why.ok_or_else(|| {
            invalid(format!(
                "reason {reason} is none of a writer. Give one of WATCHCORE_RESYNC_COMPACTED to _REQUESTED."
            ))
        })?;
        let mut writer = try_exclusive!(writer);
        // SAFETY: the contract: `changes` has `count` elements.
        let now = writer.resync(revision, unsafe { records_of(changes, count)? }, why)?;
        out_or_null!(position).write(now.revision);
        out_or_null!(epoch).write(now.epoch);
        Ok(())
    })
}

/// Reports that the source has reached a revision without a change of this range: positions and bookmarks
/// advance. Never blocks. One thread at a time. Codes: INVALID_ARGUMENT, OUT_OF_ORDER, NOT_READY, BUSY,
/// CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_writer_progress(
    writer: *mut watchcore_writer,
    revision: u64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_writer_progress, error, { try_exclusive!(writer).progress(revision) })
}

/// Drops the log's events up to and including a revision; the state at that revision stays readable.
/// Never blocks. One thread at a time. Codes: INVALID_ARGUMENT, FUTURE_REVISION, NOT_READY, BUSY, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_writer_compact(
    writer: *mut watchcore_writer,
    revision: u64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_writer_compact, error, { try_exclusive!(writer).compact(revision) })
}

/// Frees the writer, so that another can be taken; NULL does nothing. The cache stays as it is.
/// Never blocks. Any thread, even while another one is inside a call (which then frees it on leaving).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_writer_free(writer: *mut watchcore_writer) {
    free!(watchcore_writer_free, writer);
}
