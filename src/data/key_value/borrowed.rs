//! A version that somebody else keeps.

use super::{KeyValue, Version};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{self, NonNull};

/// A key-value borrowed from a snapshot, a page or the writer.
///
/// ```
/// use watchcore::{Cache, Change, KeyValue};
///
/// let cache = Cache::builder("/").build()?;
/// cache.writer()?.apply(1, [Change::put("/a", "1")])?;
/// let snapshot = cache.snapshot()?;
/// let kept: KeyValue = snapshot.get("/a").unwrap().to_owned();
/// drop(snapshot);
/// assert_eq!(kept.value(), Some(&b"1"[..]));
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct KeyValueRef<'a>(pub(super) NonNull<Version>, pub(super) PhantomData<&'a KeyValue>);

// SAFETY: as `&KeyValue`.
unsafe impl Send for KeyValueRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for KeyValueRef<'_> {}

impl<'a> KeyValueRef<'a> {
    /// An owned one: one increment.
    pub fn to_owned(&self) -> KeyValue {
        self.deref().clone()
    }

    /// The key, for as long as the version is kept.
    #[inline]
    pub(crate) fn key_within(self) -> &'a [u8] {
        let key = self.key();
        // SAFETY: I3: it lies in the version, which is kept for 'a and immutable.
        unsafe { std::slice::from_raw_parts(key.as_ptr(), key.len()) }
    }
}

impl Deref for KeyValueRef<'_> {
    type Target = KeyValue;
    #[inline]
    fn deref(&self) -> &KeyValue {
        // SAFETY: made by `VersionPtr::get`, whose caller keeps the version for 'a, or from a reference. Both are one
        // pointer, and a shared reference cannot give a count back.
        unsafe { &*ptr::from_ref(&self.0).cast::<KeyValue>() }
    }
}

impl fmt::Debug for KeyValueRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}
