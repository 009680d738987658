//! How a version lies in its block: the head that C and Go read, what the library adds, then what follows it.
//!
//! Behind a [`Version`], each where there is one: a [`DecodedCell`], a [`SharedValue`], the key, the value where that is
//! copied, the attributes.

#![forbid(unsafe_code)]

use crate::data::decoded::{DecodedCell, Decoder};
use crate::heap;
#[cfg(loom)]
use crate::reclaim;
#[cfg(loom)]
use crate::sync::AtomicU32;
use std::sync::Arc;

/// The head of a stored version, as C sees it (`watchcore_key_value`).
#[repr(C)]
pub(crate) struct Head {
    pub(super) key: *const u8,
    /// NULL: no value (a tombstone).
    pub(super) value: *const u8,
    pub(super) key_length: u32,
    pub(super) value_length: u32,
    pub(super) create_revision: u64,
    pub(super) mod_revision: u64,
    pub(super) version: u64,
    pub(super) lease: i64,
}

#[repr(C)]
pub(crate) struct Version {
    pub(super) head: Head,
    /// Sequence number of its event; 0: from the listing, or outside the log.
    pub(super) seq: u64,
    pub(super) older: *const Version,
    /// Loom's counts are larger than a header has room for: elsewhere it is the block's.
    #[cfg(loom)]
    pub(super) count: AtomicU32,
    /// Bytes of the attributes after the value, [`HAS_CELL`] and [`IS_SHARED`].
    pub(super) attributes: u32,
    /// Lets loom see reads that are not ordered after the making, or before the freeing.
    #[cfg(loom)]
    pub(super) track: reclaim::Track,
}

/// In `attributes`: a [`DecodedCell`] lies between the version and its key.
const HAS_CELL: u32 = 1 << 31;
/// In `attributes`: the bytes of the value are a [`SharedValue`], which lies before the key.
const IS_SHARED: u32 = 1 << 30;
/// Bytes of the attributes, at most: their length leaves room for both bits. `attribute::encode` keeps to it.
pub(crate) const MOST_ATTRIBUTES: usize = IS_SHARED as usize - 1;

/// A count on the bytes of a value that others have, too.
pub(super) type SharedValue = Arc<[u8]>;

/// The numbers of a new version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyMeta {
    pub(crate) create_revision: u64,
    pub(crate) mod_revision: u64,
    pub(crate) version: u64,
    pub(crate) lease: i64,
}

/// What a cache adds to the versions of its live keys.
#[derive(Clone, Copy, Default)]
pub(crate) struct VersionExtras<'a> {
    /// Encoded attributes: see `attribute::encode`.
    pub(crate) attributes: &'a [u8],
    pub(crate) decoder: Option<&'a Decoder>,
    /// Who has the bytes of the value, where they are not copied.
    pub(crate) shared: Option<&'a SharedValue>,
}

const _: () = assert!(align_of::<DecodedCell>() <= align_of::<Version>() && align_of::<Version>() <= heap::ALIGN);
const _: () = assert!(align_of::<SharedValue>() <= align_of::<DecodedCell>());

/// The bits in `attributes` of a version with so many cells and shared values.
pub(super) const fn flags_of(cells: usize, shared: usize) -> u32 {
    let has_cell = if cells > 0 { HAS_CELL } else { 0 };
    has_cell | if shared > 0 { IS_SHARED } else { 0 }
}

/// Bytes of a version with so many cells and shared values: its lengths are limited, so this never overflows.
pub(super) const fn size(cells: usize, shared: usize, bytes: usize) -> usize {
    let align = align_of::<Version>();
    let head = size_of::<Version>() + cells * size_of::<DecodedCell>() + shared * size_of::<SharedValue>();
    (head + bytes + align - 1) & !(align - 1)
}

impl Version {
    /// How many [`DecodedCell`]s there are.
    #[inline]
    pub(super) fn cells(&self) -> usize {
        usize::from(self.attributes & HAS_CELL != 0)
    }

    /// How many shared values there are.
    #[inline]
    pub(super) fn shared(&self) -> usize {
        usize::from(self.attributes & IS_SHARED != 0)
    }

    /// Bytes of the value that lie elsewhere.
    #[inline]
    pub(super) fn shared_length(&self) -> usize {
        if self.attributes & IS_SHARED == 0 { 0 } else { self.head.value_length as usize }
    }

    /// Bytes of the value in the block of the version.
    #[inline]
    pub(super) fn copied_length(&self) -> usize {
        self.head.value_length as usize - self.shared_length()
    }

    /// Bytes of the attributes.
    #[inline]
    pub(super) fn attributes_length(&self) -> usize {
        (self.attributes & !(HAS_CELL | IS_SHARED)) as usize
    }

    /// Bytes of the block.
    #[inline(always)]
    pub(super) fn size(&self) -> usize {
        let bytes = self.head.key_length as usize + self.copied_length() + self.attributes_length();
        size(self.cells(), self.shared(), bytes)
    }
}
