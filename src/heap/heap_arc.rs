//! A counted value in a block of a [`Memory`]: an `Arc` that the writer's heap can make.

use super::{ALIGN, BlockCount, Memory, System, free};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;

/// See the module.
pub(crate) struct HeapArc<T>(NonNull<T>);

// SAFETY: like `Arc<T>`, it shares a `T` and may drop it on another thread; its count is atomic.
unsafe impl<T: Send + Sync> Send for HeapArc<T> {}
// SAFETY: a shared handle gives `&T` and further counts, as `&Arc` does.
unsafe impl<T: Send + Sync> Sync for HeapArc<T> {}

impl<T> HeapArc<T> {
    pub(crate) fn new(value: T, memory: &mut impl Memory) -> HeapArc<T> {
        const { assert!(align_of::<T>() <= ALIGN) };
        let place = memory.allocate(size_of::<T>()).cast::<T>();
        // SAFETY: the block was just allocated, and has room for a `T` with its alignment.
        unsafe { place.write(value) };
        HeapArc(place)
    }

    fn count(&self) -> &BlockCount {
        // SAFETY: this handle has a count, so the block is alive.
        unsafe { BlockCount::of(self.0) }
    }

    /// Returns the address of the value, which keeps the count.
    pub(crate) fn into_raw(self) -> *mut T {
        ManuallyDrop::new(self).0.as_ptr()
    }

    /// Takes the count back from an address.
    ///
    /// # Safety
    ///
    /// The address is from [`HeapArc::into_raw`], and is taken back once.
    pub(crate) unsafe fn from_raw(value: *mut T) -> HeapArc<T> {
        // SAFETY: an address from `into_raw` is that of a block, so not null.
        HeapArc(unsafe { NonNull::new_unchecked(value) })
    }

    /// The address of the value.
    #[cfg(loom)]
    pub(crate) fn address(&self) -> usize {
        self.0.addr().get()
    }
}

impl<T: Default> Default for HeapArc<T> {
    fn default() -> HeapArc<T> {
        HeapArc::new(T::default(), &mut System)
    }
}

impl<T> Deref for HeapArc<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this handle has a count, so the block is alive.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Clone for HeapArc<T> {
    fn clone(&self) -> HeapArc<T> {
        self.count().add();
        HeapArc(self.0)
    }
}

impl<T> Drop for HeapArc<T> {
    fn drop(&mut self) {
        if self.count().sub() {
            // SAFETY: the last count is gone, so no other thread has the block.
            unsafe {
                self.0.drop_in_place();
                free(self.0.cast());
            }
        }
    }
}
