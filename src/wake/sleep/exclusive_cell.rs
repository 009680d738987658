//! A cell whose value belongs to one thread at a time, which an atomic word beside it (the state of the waiter) decides.
//!
//! The cell itself checks nothing: the caller must know from that word that no other thread uses the value. Under loom each
//! access is tracked, and two that are not ordered fail the model.

#[cfg(loom)]
use loom::cell::UnsafeCell;
#[cfg(not(loom))]
use std::cell::UnsafeCell;

/// See the module.
pub(crate) struct ExclusiveCell<T>(UnsafeCell<T>);

// SAFETY: the value moves from one thread to the next, which `T: Send` allows; the only access is `take`, whose
// contract excludes two users at once.
unsafe impl<T: Send> Sync for ExclusiveCell<T> {}

impl<T> ExclusiveCell<T> {
    pub(crate) fn new(value: T) -> ExclusiveCell<T> {
        ExclusiveCell(UnsafeCell::new(value))
    }

    /// # Safety
    ///
    /// No other reference from `take` lives beside this one, and every earlier use of the value happens before this call.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the caller promises that it is the only one")]
    pub(crate) unsafe fn take(&self) -> &mut T {
        #[cfg(loom)]
        let place = self.0.with_mut(|place| place);
        #[cfg(not(loom))]
        let place = self.0.get();
        // SAFETY: it points to this cell's value, to which no other reference lives; earlier uses happen before.
        unsafe { &mut *place }
    }
}
