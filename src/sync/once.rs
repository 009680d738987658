//! A value that is made when it is first asked for, behind one word: what few have costs the others eight bytes.
//!
//! | made | found | order |
//! | --- | --- | --- |
//! | compare-exchange of the address, from null | load of the address | Release / Acquire |
//!
//! The address never changes again, and the value goes with the word: a reference to it lives as long as one to that.
//! [`OnceBox`] owns its value; [`OnceArc`] is one count on a value on which others have counts, too.

use super::{Acquire, AtomicPtr, LeanArc, Release};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

/// An owner of a value that is one address: a box, or a count.
pub(crate) trait OneAddress {
    type Kept: Send + Sync;
    fn new(value: Self::Kept) -> Self;
    /// Gives what keeps the value to the address.
    fn into_address(self) -> *mut Self::Kept;
    /// Takes it back.
    ///
    /// # Safety
    ///
    /// The address is from [`OneAddress::into_address`], and is taken back once.
    unsafe fn from_address(address: *mut Self::Kept) -> Self;
}

impl<T: Send + Sync> OneAddress for Box<T> {
    type Kept = T;
    fn new(value: T) -> Box<T> {
        Box::new(value)
    }
    fn into_address(self) -> *mut T {
        Box::into_raw(self)
    }
    // SAFETY: what the trait asks of the caller, and nothing else.
    unsafe fn from_address(address: *mut T) -> Box<T> {
        // SAFETY: by the caller's promise.
        unsafe { Box::from_raw(address) }
    }
}

impl<T: Send + Sync> OneAddress for LeanArc<T> {
    type Kept = T;
    fn new(value: T) -> LeanArc<T> {
        LeanArc::new(value)
    }
    fn into_address(self) -> *mut T {
        LeanArc::into_address(self)
    }
    // SAFETY: what the trait asks of the caller, and nothing else.
    unsafe fn from_address(address: *mut T) -> LeanArc<T> {
        // SAFETY: by the caller's promise.
        unsafe { LeanArc::from_address(address) }
    }
}

/// See the module.
pub(crate) struct OnceKept<K: OneAddress> {
    /// Null, or the address of a value that this word keeps.
    address: AtomicPtr<K::Kept>,
    keeper: PhantomData<K>,
}

pub(crate) type OnceBox<T> = OnceKept<Box<T>>;
pub(crate) type OnceArc<T> = OnceKept<LeanArc<T>>;

impl<K: OneAddress> OnceKept<K> {
    pub(crate) fn new() -> OnceKept<K> {
        OnceKept { address: AtomicPtr::new(ptr::null_mut()), keeper: PhantomData }
    }

    /// The value, once it was made.
    #[inline]
    pub(crate) fn get(&self) -> Option<&K::Kept> {
        // Acquire: partner of the exchange in `make`.
        let address = self.address.load(Acquire);
        // SAFETY: null, or the address of a value that is kept until this word is dropped.
        unsafe { address.as_ref() }
    }

    /// The value; made here, if nobody has made it. If two threads make it at once, one of the two values is dropped.
    #[inline]
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> K::Kept) -> &K::Kept {
        if let Some(value) = self.get() { value } else { self.make(make) }
    }

    #[cold]
    fn make(&self, make: impl FnOnce() -> K::Kept) -> &K::Kept {
        let fresh = K::new(make()).into_address();
        // Release: partner of the load in `get`.
        match self.address.compare_exchange(ptr::null_mut(), fresh, Release, Acquire) {
            // SAFETY: this word keeps it from now on, as in `get`.
            Ok(_) => unsafe { &*fresh },
            Err(first) => {
                // SAFETY: from above, and nobody else has seen it.
                drop(unsafe { K::from_address(fresh) });
                // SAFETY: as in `get`.
                unsafe { &*first }
            }
        }
    }
}

impl<T: Send + Sync> OnceArc<T> {
    /// Another count on the value, once it was made.
    pub(crate) fn count(&self) -> Option<LeanArc<T>> {
        // Acquire: as in `get`.
        let address = NonNull::new(self.address.load(Acquire))?;
        // SAFETY: an address that `into_address` gave. The count is this word's: it is copied, and not dropped.
        let own = ManuallyDrop::new(unsafe { LeanArc::from_address(address.as_ptr()) });
        Some(LeanArc::clone(&own))
    }
}

impl<K: OneAddress> Drop for OnceKept<K> {
    fn drop(&mut self) {
        #[cfg(not(loom))]
        let address = *self.address.get_mut();
        // A count that loom does not see may order this drop after the making: an exchange reads the newest value.
        #[cfg(loom)]
        let address = self.address.swap(ptr::null_mut(), Acquire);
        if !address.is_null() {
            // SAFETY: what this word keeps, and nobody has the word any more.
            drop(unsafe { K::from_address(address) });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::often;
    use std::sync::Arc;

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
        assert!(Arc::ptr_eq(&other, &counted) && Arc::strong_count(&counted) == 2);
        drop(other);
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn all_threads_find_the_same() {
        for round in 0..often(200) {
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
