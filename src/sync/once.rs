//! A value that is made when it is first asked for, behind one word: what few have costs the others eight bytes.
//!
//! | made | found | order |
//! | --- | --- | --- |
//! | compare-exchange of the address, from null | load of the address | Release / Acquire |
//!
//! The address never changes again, and the value goes with the word: a reference to it lives as long as one to that.
//! [`OnceArc`] is the same for a value that others have counts on: the word is one of them.

use super::{Acquire, Arc, AtomicPtr, Release};
use std::marker::PhantomData;
use std::ptr;

/// See the module.
pub(crate) struct OnceBox<T: Send + Sync> {
    address: AtomicPtr<T>,
    owned: PhantomData<Box<T>>,
}

impl<T: Send + Sync> OnceBox<T> {
    pub(crate) fn new() -> OnceBox<T> {
        OnceBox { address: AtomicPtr::new(ptr::null_mut()), owned: PhantomData }
    }

    /// The value, once it was made.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        // Acquire: partner of the exchange in `get_or_make`.
        let address = self.address.load(Acquire);
        // SAFETY: null, or the address of a box that only the drop of this word frees.
        unsafe { address.as_ref() }
    }

    /// The value; made here, if nobody has made it. Where two make it at once, one of the two is dropped.
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let fresh = Box::into_raw(Box::new(make()));
        // Release: partner of the load in `get`.
        match self.address.compare_exchange(ptr::null_mut(), fresh, Release, Acquire) {
            // SAFETY: this word owns it from now on, as in `get`.
            Ok(_) => unsafe { &*fresh },
            Err(first) => {
                // SAFETY: the box from above, which nobody else has seen.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: as in `get`.
                unsafe { &*first }
            }
        }
    }
}

impl<T: Send + Sync> Drop for OnceBox<T> {
    fn drop(&mut self) {
        #[cfg(not(loom))]
        let address = *self.address.get_mut();
        // What orders this drop behind the making may be a count that loom does not see: an exchange has the newest.
        #[cfg(loom)]
        let address = self.address.swap(ptr::null_mut(), Acquire);
        if !address.is_null() {
            // SAFETY: a box whose only owner is this word, and nobody else has that any more.
            drop(unsafe { Box::from_raw(address) });
        }
    }
}

/// See the module.
pub(crate) struct OnceArc<T: Send + Sync> {
    /// Null, or the address of a value on which this word is a count.
    address: AtomicPtr<T>,
    counted: PhantomData<Arc<T>>,
}

impl<T: Send + Sync> OnceArc<T> {
    pub(crate) fn new() -> OnceArc<T> {
        OnceArc { address: AtomicPtr::new(ptr::null_mut()), counted: PhantomData }
    }

    /// The value, once it was made.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        // Acquire: partner of the exchange in `get_or_make`.
        let address = self.address.load(Acquire);
        // SAFETY: null, or the address of a value on which this word is a count until it is dropped.
        unsafe { address.as_ref() }
    }

    /// The value; made here, if nobody has made it. Where two make it at once, one of the two is dropped.
    #[inline]
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() { value } else { self.make(make) }
    }

    #[cold]
    fn make(&self, make: impl FnOnce() -> T) -> &T {
        let fresh = Arc::into_raw(Arc::new(make())).cast_mut();
        // Release: partner of the load in `get`.
        match self.address.compare_exchange(ptr::null_mut(), fresh, Release, Acquire) {
            // SAFETY: the count is this word's from now on, as in `get`.
            Ok(_) => unsafe { &*fresh },
            Err(first) => {
                // SAFETY: the count from above, which nobody else has.
                drop(unsafe { Arc::from_raw(fresh) });
                // SAFETY: as in `get`.
                unsafe { &*first }
            }
        }
    }

    /// One more count on the value, once it was made.
    pub(crate) fn count(&self) -> Option<Arc<T>> {
        let address = self.address.load(Acquire);
        // SAFETY: null, or an address that `Arc::into_raw` gave, whose count this word is; the new one is the caller's.
        (!address.is_null()).then(|| unsafe {
            Arc::increment_strong_count(address.cast_const());
            Arc::from_raw(address)
        })
    }
}

impl<T: Send + Sync> Drop for OnceArc<T> {
    fn drop(&mut self) {
        #[cfg(not(loom))]
        let address = *self.address.get_mut();
        // As for a box.
        #[cfg(loom)]
        let address = self.address.swap(ptr::null_mut(), Acquire);
        if !address.is_null() {
            // SAFETY: the count that this word is, and nobody has the word any more.
            drop(unsafe { Arc::from_raw(address) });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn made_once_and_dropped_once() {
        let counted = Arc::new(());
        let word = OnceBox::new();
        assert!(word.get().is_none());
        assert!(std::ptr::eq(word.get_or_make(|| counted.clone()), word.get_or_make(|| unreachable!())));
        assert_eq!(Arc::strong_count(&counted), 2);
        drop(word);
        assert_eq!(Arc::strong_count(&counted), 1);
        drop(OnceBox::<Arc<()>>::new());
    }

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
    }

    #[test]
    fn all_threads_find_the_same() {
        for round in 0..200 {
            let word = OnceBox::new();
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
