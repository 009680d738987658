//! A value that lives as long as somebody has a count on it: std's `Arc` without weak counts, which takes eight bytes less.
//! For what a cache may have a hundred thousand of.
//!
//! | a count is released | the last one | order |
//! | --- | --- | --- |
//! | `fetch_sub` | load, then the end of the value | Release / Acquire: what was done with it comes before its end |
//!
//! Who takes a count has one already, so taking it needs no order.

use super::{Acquire, AtomicUsize, Relaxed, Release, ord};
use std::ops::Deref;
use std::ptr::NonNull;

/// The block that the counts are on.
struct LeanBlock<T> {
    count: AtomicUsize,
    value: T,
}

/// A count: see the module.
pub(crate) struct LeanArc<T> {
    /// From a box, which is there as long as a count.
    block: NonNull<LeanBlock<T>>,
}

// SAFETY: as an `Arc`: the value is reached from all threads that have a count, and ended by any of them.
unsafe impl<T: Send + Sync> Send for LeanArc<T> {}
// SAFETY: as above: who has a reference to a count may take one of its own.
unsafe impl<T: Send + Sync> Sync for LeanArc<T> {}

impl<T> LeanArc<T> {
    pub(crate) fn new(value: T) -> LeanArc<T> {
        let block = Box::new(LeanBlock { count: AtomicUsize::new(1), value });
        LeanArc { block: NonNull::from(Box::leak(block)) }
    }

    #[inline]
    fn block(&self) -> &LeanBlock<T> {
        // SAFETY: it is there as long as this count.
        unsafe { self.block.as_ref() }
    }

    /// Gives the count to an address.
    pub(super) fn into_address(self) -> *mut T {
        let block = std::mem::ManuallyDrop::new(self).block.as_ptr();
        // SAFETY: the block is there; its field lies inside of it.
        unsafe { &raw mut (*block).value }
    }

    /// Takes it back.
    ///
    /// # Safety
    ///
    /// The address is from [`LeanArc::into_address`], and is taken back once.
    pub(super) unsafe fn from_address(address: *mut T) -> LeanArc<T> {
        // SAFETY: by the caller's promise the value of a block, which has a count for this.
        let block = unsafe { address.byte_sub(std::mem::offset_of!(LeanBlock<T>, value)) };
        // SAFETY: an address inside of a box is not null.
        LeanArc { block: unsafe { NonNull::new_unchecked(block.cast()) } }
    }
}

impl<T> Clone for LeanArc<T> {
    #[inline]
    fn clone(&self) -> LeanArc<T> {
        // Relaxed: this count keeps it meanwhile.
        if self.block().count.fetch_add(1, Relaxed) > isize::MAX as usize {
            // Like std's: counts that are leaked and leaked again would come round to 0.
            std::process::abort();
        }
        LeanArc { block: self.block }
    }
}

impl<T> Deref for LeanArc<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.block().value
    }
}

impl<T> Drop for LeanArc<T> {
    #[inline]
    fn drop(&mut self) {
        // Release: partner of the load in `end`.
        if self.block().count.fetch_sub(1, ord!(LeanRelease, Release)) == 1 {
            self.end();
        }
    }
}

impl<T> LeanArc<T> {
    #[cold]
    #[inline(never)]
    fn end(&mut self) {
        // Acquire: partner of the `fetch_sub` of all others.
        self.block().count.load(ord!(LeanLast, Acquire));
        // SAFETY: from a box, and this was the last count: nobody reaches it any more, and this is called once.
        drop(unsafe { Box::from_raw(self.block.as_ptr()) });
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for LeanArc<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::often;
    use std::sync::Arc;

    #[test]
    fn lean_arc_ends_with_its_last_count() {
        let inside = Arc::new(());
        let one = LeanArc::new((7_u8, inside.clone()));
        let other = one.clone();
        assert!(std::ptr::eq(&*one, &*other));
        drop(one);
        assert_eq!((other.0, Arc::strong_count(&inside)), (7, 2));
        // SAFETY: from the other one, once.
        let back = unsafe { LeanArc::from_address(other.into_address()) };
        assert_eq!((back.0, Arc::strong_count(&inside)), (7, 2));
        drop(back);
        assert_eq!(Arc::strong_count(&inside), 1);
    }

    #[test]
    fn lean_arc_is_released_by_all_threads() {
        let inside = Arc::new(());
        for _ in 0..often(200) {
            let one = LeanArc::new(inside.clone());
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    let other = one.clone();
                    scope.spawn(move || drop(other.clone()));
                }
                drop(one);
            });
            assert_eq!(Arc::strong_count(&inside), 1);
        }
    }

    #[test]
    fn count_is_one_word() {
        #[repr(align(64))]
        struct Aligned(u8);
        assert_eq!(size_of::<LeanBlock<u64>>(), 16);
        assert_eq!(size_of::<Option<LeanArc<u64>>>(), size_of::<usize>());
        let aligned = LeanArc::new(Aligned(3));
        // SAFETY: from a count, once.
        let back = unsafe { LeanArc::from_address(aligned.into_address()) };
        assert_eq!((back.0, (&raw const *back).addr() % 64), (3, 0));
    }
}
