//! A counted value in a block of a [`Memory`]: an `Arc` that the writer's heap can make.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | `drop` of a count | the last one's load | Release / Acquire |

use super::{ALIGN, Memory, System, free};
use crate::sync::{Acquire, Relaxed, Release};
use std::mem::{ManuallyDrop, offset_of};
use std::ops::Deref;
use std::ptr::NonNull;
// As std's Arc, which this is, it is no part of the models.
use std::sync::atomic::AtomicUsize;

#[repr(C)]
struct Whole<T> {
    count: AtomicUsize,
    value: T,
}

/// See the module.
pub(crate) struct One<T>(NonNull<Whole<T>>);

// SAFETY: as `Arc<T>`.
unsafe impl<T: Send + Sync> Send for One<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for One<T> {}

impl<T> One<T> {
    pub(crate) fn new(value: T, memory: &mut impl Memory) -> One<T> {
        const { assert!(align_of::<Whole<T>>() <= ALIGN) };
        let place = memory.allocate(size_of::<Whole<T>>()).cast::<Whole<T>>();
        // SAFETY: a block of our own, with room for it.
        unsafe { place.write(Whole { count: AtomicUsize::new(1), value }) };
        One(place)
    }

    /// Gives the count to the address of the value.
    pub(crate) fn into_raw(self) -> *mut T {
        // SAFETY: the field of a block that is alive.
        unsafe { &raw mut (*ManuallyDrop::new(self).0.as_ptr()).value }
    }

    /// Takes it back.
    ///
    /// # Safety
    ///
    /// The address is from [`One::into_raw`], and is taken back once.
    pub(crate) unsafe fn from_raw(value: *mut T) -> One<T> {
        // SAFETY: the field lies so far behind the begin of its block, by the caller's promise.
        One(unsafe { NonNull::new_unchecked(value.byte_sub(offset_of!(Whole<T>, value)).cast()) })
    }

    /// Where the value is.
    #[cfg(loom)]
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref::<T>(self) as usize
    }
}

impl<T: Default> Default for One<T> {
    fn default() -> One<T> {
        One::new(T::default(), &mut System)
    }
}

impl<T> Deref for One<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: alive while it is counted.
        unsafe { &self.0.as_ref().value }
    }
}

impl<T> Clone for One<T> {
    fn clone(&self) -> One<T> {
        // SAFETY: alive while it is counted. Relaxed: a count is held while this runs. Only the log's own parts are
        // cloned, by the writer: they are far from too many.
        unsafe { self.0.as_ref() }.count.fetch_add(1, Relaxed);
        One(self.0)
    }
}

impl<T> Drop for One<T> {
    fn drop(&mut self) {
        // SAFETY: the count that this has. Release: partner of the load, in the thread that has the last one.
        unsafe {
            if self.0.as_ref().count.fetch_sub(1, Release) == 1 {
                self.0.as_ref().count.load(Acquire);
                self.0.drop_in_place();
                free(self.0.cast());
            }
        }
    }
}
