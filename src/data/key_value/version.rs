//! How a version lies in its block: the head that C and Go read, what the library adds, then what follows it.
//!
//! A [`Version`] is followed by these, each if there is one: a [`DecodedCell`], a [`SharedValue`], the length of the
//! attributes, the key, the value if it is copied, the attributes.

use crate::data::decoded::{DecodedCell, Decoder};
use crate::heap::{self, Memory};
#[cfg(loom)]
use crate::reclaim;
#[cfg(loom)]
use crate::sync::AtomicU32;
use std::ptr::{self, NonNull};
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
    /// A [`VersionWord`].
    pub(super) word: VersionWord,
    pub(super) older: *const Version,
    /// Loom's counts are larger than a header has room for: elsewhere it is the block's.
    #[cfg(loom)]
    pub(super) count: AtomicU32,
    /// Lets loom see reads that are not ordered after the making, or before the freeing.
    #[cfg(loom)]
    pub(super) track: reclaim::Track,
}

/// The sequence number of a version's event, and the bits that say what lies between the version and its key. There are
/// 2^61 sequence numbers: enough for a thousand years of 70 million events a second.
#[derive(Clone, Copy)]
pub(super) struct VersionWord(u64);

const HAS_CELL: u64 = 1 << 63;
/// The bytes of the value are a [`SharedValue`].
const IS_SHARED: u64 = 1 << 62;
const HAS_ATTRIBUTES: u64 = 1 << 61;

/// The optional parts between a version and its key.
#[derive(Clone, Copy, Default)]
pub(super) struct Between {
    pub(super) cells: usize,
    pub(super) shared: usize,
    pub(super) lengths: usize,
}

/// How many bytes of attributes there are.
pub(super) type AttributesLength = u64;

/// Bytes of the attributes, at most. `attribute::encode` keeps to it.
pub(crate) const MOST_ATTRIBUTES: usize = (1 << 30) - 1;

impl VersionWord {
    #[inline]
    pub(super) fn new(seq: u64, between: Between) -> VersionWord {
        debug_assert!(seq < HAS_ATTRIBUTES, "there are not so many events");
        let bit = |count: usize, bit: u64| if count > 0 { bit } else { 0 };
        let Between { cells, shared, lengths } = between;
        VersionWord(seq | bit(cells, HAS_CELL) | bit(shared, IS_SHARED) | bit(lengths, HAS_ATTRIBUTES))
    }

    /// 0: from the listing, or outside the log.
    #[inline]
    pub(super) fn seq(self) -> u64 {
        self.0 & (HAS_ATTRIBUTES - 1)
    }

    #[inline]
    pub(super) fn between(self) -> Between {
        let count = |bit: u64| usize::from(self.0 & bit != 0);
        Between { cells: count(HAS_CELL), shared: count(IS_SHARED), lengths: count(HAS_ATTRIBUTES) }
    }
}

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

/// The parts that a cache adds to the versions of its live keys.
#[derive(Clone, Copy, Default)]
pub(crate) struct VersionExtras<'a> {
    /// Encoded attributes: see `attribute::encode`.
    pub(crate) attributes: &'a [u8],
    pub(crate) decoder: Option<&'a Decoder>,
    /// The owner of the value's bytes, if they are not copied.
    pub(crate) shared: Option<&'a SharedValue>,
}

const _: () = assert!(align_of::<DecodedCell>() <= align_of::<Version>() && align_of::<Version>() <= heap::ALIGN);
/// Else `KeyValue` could be neither.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<DecodedCell>();
};
const _: () = assert!(align_of::<SharedValue>() <= align_of::<DecodedCell>());
const _: () = assert!(align_of::<AttributesLength>() <= align_of::<SharedValue>());

/// Bytes of a version with so many bytes of key, value and attributes: lengths are limited, so this never overflows.
pub(super) const fn size(between: Between, bytes: usize) -> usize {
    let align = align_of::<Version>();
    let Between { cells, shared, lengths } = between;
    let between =
        cells * size_of::<DecodedCell>() + shared * size_of::<SharedValue>() + lengths * size_of::<AttributesLength>();
    (size_of::<Version>() + between + bytes + align - 1) & !(align - 1)
}

impl Version {
    /// Makes a version with a count of one in a block of `memory`. `value` None makes a tombstone.
    #[inline(always)]
    pub(super) fn make(
        memory: &mut impl Memory,
        key: &[u8],
        value: Option<&[u8]>,
        meta: KeyMeta,
        seq: u64,
        older: *const Version,
        extras: VersionExtras<'_>,
    ) -> NonNull<Version> {
        let value_length = value.map_or(0, <[u8]>::len);
        let between = Between {
            cells: usize::from(extras.decoder.is_some()),
            shared: usize::from(extras.shared.is_some()),
            lengths: usize::from(!extras.attributes.is_empty()),
        };
        let copied = value.filter(|_| between.shared == 0).unwrap_or_default();
        let place = memory.allocate(size(between, key.len() + copied.len() + extras.attributes.len()));
        // SAFETY: the block has room for all that is written here; all fields and bytes are written before anybody
        // sees it.
        unsafe {
            let place = place.as_ptr().cast::<Version>();
            let cell = place.add(1).cast::<DecodedCell>();
            if let Some(decoder) = extras.decoder {
                cell.write(DecodedCell::new(decoder));
            }
            let shared_at = cell.add(between.cells).cast::<SharedValue>();
            let length_at = shared_at.add(between.shared).cast::<AttributesLength>();
            let bytes = length_at.add(between.lengths).cast::<u8>();
            ptr::copy_nonoverlapping(key.as_ptr(), bytes, key.len());
            let copied_at = bytes.add(key.len());
            let value_at = match extras.shared {
                Some(bytes) => {
                    shared_at.write(bytes.clone());
                    bytes.as_ptr()
                }
                None => {
                    ptr::copy_nonoverlapping(copied.as_ptr(), copied_at, copied.len());
                    copied_at.cast_const()
                }
            };
            // Most caches declare none.
            if between.lengths > 0 {
                length_at.write(extras.attributes.len() as AttributesLength);
                let attributes = copied_at.add(copied.len());
                ptr::copy_nonoverlapping(extras.attributes.as_ptr(), attributes, extras.attributes.len());
            }
            place.write(Version {
                head: Head {
                    key: bytes,
                    value: if value.is_some() { value_at } else { ptr::null() },
                    key_length: key.len() as u32,
                    value_length: value_length as u32,
                    create_revision: meta.create_revision,
                    mod_revision: meta.mod_revision,
                    version: meta.version,
                    lease: meta.lease,
                },
                word: VersionWord::new(seq, between),
                older,
                #[cfg(loom)]
                count: AtomicU32::new(1),
                #[cfg(loom)]
                track: reclaim::Track::new(),
            });
            NonNull::new_unchecked(place)
        }
    }

    /// Bytes of the value that lie elsewhere.
    #[inline]
    pub(super) fn shared_length(&self) -> usize {
        if self.word.between().shared == 0 { 0 } else { self.head.value_length as usize }
    }

    /// Bytes of the value in the block of the version.
    #[inline]
    pub(super) fn copied_length(&self) -> usize {
        self.head.value_length as usize - self.shared_length()
    }
}
