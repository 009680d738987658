//! The key that is left of a slot whose key was purged while somebody has a count on the slot.

use crate::data::key_value::Version;
use std::alloc::Layout;
use std::ptr;

/// The bytes of a key with nothing around them: an address whose lowest bit tells it from that of a version.
#[derive(Clone, Copy)]
pub(super) struct LoneKey(pub(super) *mut u8);

impl LoneKey {
    /// An even address, also for a key of no bytes.
    fn layout(length: usize) -> Layout {
        Layout::from_size_align(length.max(1), 2).expect("lengths are limited")
    }

    pub(super) fn new(key: &[u8]) -> LoneKey {
        let layout = LoneKey::layout(key.len());
        // SAFETY: the layout is not empty, and has room for the key.
        unsafe {
            let place = std::alloc::alloc(layout);
            if place.is_null() {
                std::alloc::handle_alloc_error(layout);
            }
            ptr::copy_nonoverlapping(key.as_ptr(), place, key.len());
            LoneKey(place)
        }
    }

    /// Turns the key into the address that a slot has in place of a version.
    pub(super) fn into_newest(self) -> *mut Version {
        self.0.wrapping_add(1).cast()
    }

    /// The lone key behind an address of a slot, if it is one.
    #[inline]
    pub(super) fn from_newest(newest: *mut Version) -> Option<LoneKey> {
        (newest.addr() & 1 == 1).then(|| LoneKey(newest.cast::<u8>().wrapping_sub(1)))
    }

    /// Frees it.
    ///
    /// # Safety
    ///
    /// Made for a key of so many bytes; nobody reads it any more, and it is freed once.
    pub(super) unsafe fn free(self, length: usize) {
        // SAFETY: `new` allocated it for a key of this length, and nobody reads it any more (`# Safety`).
        unsafe { std::alloc::dealloc(self.0, LoneKey::layout(length)) }
    }
}
