//! A counted value that is made when it is first needed: one word, so a value that few have costs the others eight bytes.
//!
//! | made | found | order |
//! | --- | --- | --- |
//! | compare-exchange of the address, from null | load of the address | Release / Acquire |
//!
//! The address never changes again, and the word keeps one count on the value: a reference to the value lives as long as
//! one to the word.

use super::{Acquire, Arc, AtomicPtr, Release};
use std::mem::ManuallyDrop;
use std::ptr;

/// See the module.
pub(crate) struct OnceArc<T> {
    /// Null, or from [`Arc::into_raw`]: the count is this word's.
    address: AtomicPtr<T>,
}

// SAFETY: the word shares its value as an `Arc` does, and the last count may drop it on any thread.
unsafe impl<T: Send + Sync> Send for OnceArc<T> {}
// SAFETY: `get_or_make` sends a value to the threads that share the word, and `get` shares it, as with an `Arc`.
unsafe impl<T: Send + Sync> Sync for OnceArc<T> {}

impl<T> OnceArc<T> {
    pub(crate) fn new() -> OnceArc<T> {
        OnceArc { address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The value, once it was made.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        // Acquire: partner of the exchange in `make`.
        let address = self.address.load(Acquire);
        // SAFETY: null, or the address of a value on which this word keeps a count until it is dropped.
        unsafe { address.as_ref() }
    }

    /// Another count on the value, once it was made.
    pub(crate) fn count(&self) -> Option<Arc<T>> {
        let value = ptr::from_ref(self.get()?);
        // SAFETY: the address is from `Arc::into_raw`. The count is the word's: it is copied, and not dropped.
        Some(Arc::clone(&ManuallyDrop::new(unsafe { Arc::from_raw(value) })))
    }

    /// The value; made here, if it was not made before. If two threads make it at once, one of the two values is dropped.
    #[inline]
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() { value } else { self.make(make) }
    }

    #[cold]
    fn make(&self, make: impl FnOnce() -> T) -> &T {
        let fresh = Arc::into_raw(Arc::new(make())).cast_mut();
        // Release: partner of the load in `get`.
        match self.address.compare_exchange(ptr::null_mut(), fresh, Release, Acquire) {
            // SAFETY: the word keeps the count of `fresh` from now on, until it is dropped.
            Ok(_) => unsafe { &*fresh },
            Err(first) => {
                // SAFETY: `fresh` is from `Arc::into_raw`, and no other thread has seen it.
                drop(unsafe { Arc::from_raw(fresh) });
                // SAFETY: not null, and the word keeps a count on it until it is dropped.
                unsafe { &*first }
            }
        }
    }
}

impl<T> Drop for OnceArc<T> {
    fn drop(&mut self) {
        #[cfg(not(loom))]
        let address = *self.address.get_mut();
        // A count that loom does not see may order this drop after the making: an exchange reads the newest value.
        #[cfg(loom)]
        let address = self.address.swap(ptr::null_mut(), Acquire);
        if !address.is_null() {
            // SAFETY: the count is the word's, which no other thread has any more.
            drop(unsafe { Arc::from_raw(address) });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::often;
    use std::sync::Arc;

    #[test]
    fn counted_value_goes_with_its_last_count() {
        let counted = Arc::new(());
        let word = OnceArc::new();
        assert!(word.get().is_none() && word.count().is_none());
        assert!(std::ptr::eq(word.get_or_make(|| counted.clone()), word.get_or_make(|| unreachable!())));
        let other = word.count().unwrap();
        drop(word);
        assert!(Arc::ptr_eq(&*other, &counted) && Arc::strong_count(&counted) == 2);
        drop(other);
        assert_eq!(Arc::strong_count(&counted), 1);
        drop(OnceArc::<Arc<()>>::new());
    }

    #[test]
    fn all_threads_find_the_same() {
        for round in 0..often(200) {
            let word = OnceArc::new();
            let made = std::thread::scope(|scope| {
                let make = || std::ptr::from_ref(word.get_or_make(|| Arc::new(round))).addr();
                let other = scope.spawn(make);
                [make(), other.join().unwrap()]
            });
            assert_eq!(made[0], made[1]);
            assert_eq!(**word.get().unwrap(), round);
        }
    }
}
