//! A value that one thread at a time has, as a protocol of the words beside it says.
//!
//! Neither a lock nor a count: that it is nobody else's is what the caller promises. Under loom each access is seen, and two
//! that are not ordered fail.

#[cfg(loom)]
use loom::cell::UnsafeCell;
#[cfg(not(loom))]
use std::cell::UnsafeCell;

/// See the module.
pub(super) struct Owned<T>(UnsafeCell<T>);

// SAFETY: the value goes from one thread to the next, which is what `Send` allows; that two never have it at once is
// promised by whoever takes it.
unsafe impl<T: Send> Sync for Owned<T> {}

impl<T> Owned<T> {
    pub(super) fn new(value: T) -> Owned<T> {
        Owned(UnsafeCell::new(value))
    }

    /// # Safety
    ///
    /// Nobody else takes it as long as the reference lives, and what was done with it before happens before this.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the caller promises that it is the only one")]
    pub(super) unsafe fn take(&self) -> &mut T {
        #[cfg(loom)]
        let place = self.0.with_mut(|place| place);
        #[cfg(not(loom))]
        let place = self.0.get();
        // SAFETY: of this cell, and by the caller's promise nobody else's.
        unsafe { &mut *place }
    }
}
