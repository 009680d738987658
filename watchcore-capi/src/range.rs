//! Ranges of keys.
//!
//! # In the header: Ranges and filters
//!
//! A range selects keys; a filter selects key-values, by a range and selectors. The options of a subscription contain
//! the members of a filter; a list takes a range, and selectors in its options. NULL selects everything.

use super::bytes::{Sized32, watchcore_bytes};
use super::contract::{try_bytes, try_struct};
use super::error::invalid;
use watchcore::{Range, Result};

/// The whole cache.
pub const WATCHCORE_RANGE_ALL: u32 = 0;
/// A single key: `from`.
pub const WATCHCORE_RANGE_KEY: u32 = 1;
/// Keys that start with the bytes of `from`.
pub const WATCHCORE_RANGE_PREFIX: u32 = 2;
/// Keys below a path: "/a/foo" selects "/a/foo" and "/a/foo/x", not "/a/foobar".
pub const WATCHCORE_RANGE_PATH: u32 = 3;
/// Keys from `from` (inclusive) to `to` (exclusive; absent: the end).
pub const WATCHCORE_RANGE_BETWEEN: u32 = 4;

/// A range of keys.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_range {
    /// sizeof(watchcore_range).
    pub size: u32,
    /// WATCHCORE_RANGE_...
    pub kind: u32,
    /// The key, the prefix, the path, or the first key.
    pub from: watchcore_bytes,
    /// BETWEEN: the exclusive end of the range.
    pub to: watchcore_bytes,
}

// SAFETY: repr(C), starts with the size; numbers and pointers.
unsafe impl Sized32 for watchcore_range {
    const NAME: &'static str = "watchcore_range";
    const DEFAULT: Self = watchcore_range {
        size: size_of::<Self>() as u32,
        kind: WATCHCORE_RANGE_ALL,
        from: watchcore_bytes::ABSENT,
        to: watchcore_bytes::ABSENT,
    };
}

/// Converts a kind and its bytes to a range.
///
/// # Safety
///
/// The contract.
pub(super) unsafe fn range_from(kind: u32, from: watchcore_bytes, to: watchcore_bytes) -> Result<Range> {
    let (from, to) = (try_bytes!(from), try_bytes!(to));
    let extra = |what: &str| invalid(format!("{what} is set, but range {kind} has none. Leave it absent."));
    if to.is_some() && kind != WATCHCORE_RANGE_BETWEEN && kind <= WATCHCORE_RANGE_BETWEEN {
        return Err(extra("to"));
    }
    let need = || {
        from.ok_or_else(|| invalid(format!("from is absent, but range {kind} needs it. Give it; length 0 is allowed.")))
    };
    match kind {
        WATCHCORE_RANGE_ALL if from.is_some() => Err(extra("from")),
        WATCHCORE_RANGE_ALL => Ok(Range::all()),
        WATCHCORE_RANGE_KEY => Ok(Range::key(need()?)),
        WATCHCORE_RANGE_PREFIX => Ok(Range::prefix(need()?)),
        WATCHCORE_RANGE_PATH => Ok(Range::path(need()?)),
        WATCHCORE_RANGE_BETWEEN => Ok(Range::between(from.unwrap_or_default(), to.unwrap_or_default())),
        _ => Err(invalid(format!("range is {kind}. Give one of WATCHCORE_RANGE_ALL to _BETWEEN."))),
    }
}

/// Converts the caller's range; NULL selects all.
///
/// # Safety
///
/// The contract.
pub(super) unsafe fn range_of(range: *const watchcore_range) -> Result<Range> {
    if range.is_null() {
        return Ok(Range::all());
    }
    let range = try_struct!(range);
    // SAFETY: the contract covers the bytes that `range` points to.
    unsafe { range_from(range.kind, range.from, range.to) }
}
