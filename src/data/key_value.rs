//! Versions: key-values as the store keeps them.
//!
//! A **version** is one immutable key-value or tombstone in one allocation: the head that C and Go read, the sequence number
//! of its event, the version before, then key and value bytes ([`Version`] says how they lie); its count stands in the header
//! of the block. A value whose bytes the caller shares lies elsewhere, and the version has a count on them in its place.
//! `data::slot` says where its counts are, and which readers may follow `older`, which never changes.
//!
//! A [`VersionPtr`] is an address and nothing more: it can be copied and compared. Following one is
//! `unsafe`, and gives a reference bound to what keeps its target: [`KeyValueRef`].
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | `KeyValue::drop` fetch_sub | the last one's Acquire load, there and in `drop_last` | Release / Acquire |

mod version;

pub(crate) use version::{Head, KeyMeta, MOST_ATTRIBUTES, Version, VersionExtras};

use crate::data::decoded::DecodedCell;
use crate::error::{Code, DebugBytes, Error, Length, Result};
use crate::foreign;
use crate::heap::{self, FreeBatch, Memory, System, check_count};
use crate::reclaim;
use crate::sync::{Acquire, AtomicU32, Relaxed, Release, ord};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use version::{AttributesLength, Between, SharedValue, size};

/// An immutable key-value with a reference count: a clone is one increment, and the key-value lives as long as its last
/// clone, also after the cache is gone.
///
/// Send, Sync and 'static. Reading costs a load; nothing blocks.
///
/// Key-values of one cache share blocks of up to 64 KiB, and one that is kept keeps its whole block, which `Stats` does
/// not count once the cache is gone. If you keep a few key-values for long, copy their bytes.
///
/// ```
/// use watchcore::{Cache, Change, Read};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// writer.apply(1, [Change::put("/a", "1")])?;
/// writer.apply(2, [Change::put("/a", "2")])?;
/// let kv = cache.get("/a", Read::Any)?.kv.unwrap();
/// drop((writer, cache)); // it is its own owner
/// assert_eq!((kv.key(), kv.value()), (&b"/a"[..], Some(&b"2"[..])));
/// assert_eq!((kv.create_revision(), kv.mod_revision(), kv.version()), (1, 2, 2));
/// # Ok::<(), watchcore::Error>(())
/// ```
#[repr(transparent)]
pub struct KeyValue(NonNull<Version>);

// SAFETY: I3: immutable after `KeyValue::new`, but for the count, which is atomic, and the place of the decoded value, a
// `DecodedCell`, which is Send and Sync by itself, as a constant in `version` holds.
unsafe impl Send for KeyValue {}
// SAFETY: I3: threads that share it read what never changes, an atomic count and a `DecodedCell`, which is Sync.
unsafe impl Sync for KeyValue {}

impl KeyValue {
    /// A version with a count of one, outside of any heap. `value` None makes a tombstone.
    pub(crate) fn new(key: &[u8], value: Option<&[u8]>, meta: KeyMeta, seq: u64, older: VersionPtr) -> KeyValue {
        KeyValue::with_extras(&mut System, key, value, meta, seq, older, VersionExtras::default())
    }

    /// Like [`KeyValue::new`], with attributes and room for the decoded value.
    #[inline(always)]
    pub(crate) fn with_extras(
        memory: &mut impl Memory,
        key: &[u8],
        value: Option<&[u8]>,
        meta: KeyMeta,
        seq: u64,
        older: VersionPtr,
        extras: VersionExtras<'_>,
    ) -> KeyValue {
        KeyValue(Version::make(memory, key, value, meta, seq, older.0, extras))
    }

    #[inline]
    fn body(&self) -> &Version {
        // SAFETY: I3: a counted version is alive and immutable.
        let body = unsafe { self.0.as_ref() };
        #[cfg(loom)]
        body.track.read();
        body
    }

    #[cfg(not(loom))]
    #[inline]
    fn count(&self) -> &AtomicU32 {
        // SAFETY: alive while it is counted.
        unsafe { heap::BlockCount::of(self.0) }.number()
    }

    #[cfg(loom)]
    fn count(&self) -> &AtomicU32 {
        &self.body().count
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        let head = &self.body().head;
        // SAFETY: written by `Version::make`, lives as long as the version.
        unsafe { std::slice::from_raw_parts(head.key, head.key_length as usize) }
    }

    /// The key as text; `None` where it is no UTF-8. O(its length).
    ///
    /// ```
    /// use watchcore::{Cache, Change, Read};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// cache.writer()?.apply(1, [Change::put("/a", b"\xff")])?;
    /// let kv = cache.get("/a", Read::Any)?.kv.unwrap();
    /// assert_eq!((kv.key_str(), kv.value_str()), (Some("/a"), None));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn key_str(&self) -> Option<&str> {
        std::str::from_utf8(self.key()).ok()
    }

    /// The value as text; `None` where it is no UTF-8, and in a tombstone. O(its length).
    pub fn value_str(&self) -> Option<&str> {
        self.value().and_then(|value| std::str::from_utf8(value).ok())
    }

    /// The value; `None` only in a tombstone.
    #[inline]
    pub fn value(&self) -> Option<&[u8]> {
        let head = &self.body().head;
        if head.value.is_null() {
            return None;
        }
        // SAFETY: written by `Version::make`, lives as long as the version.
        Some(unsafe { std::slice::from_raw_parts(head.value, head.value_length as usize) })
    }

    /// The attributes that were extracted when it was written: see `attribute::encode`.
    #[inline]
    pub(crate) fn attributes(&self) -> &[u8] {
        let body = self.body();
        let from = body.head.key.wrapping_add(body.head.key_length as usize + body.copied_length());
        // SAFETY: written by `Version::make` after the key and its own value, lives as long as the version.
        unsafe { std::slice::from_raw_parts(from, self.attributes_length()) }
    }

    /// Bytes of the attributes.
    #[inline]
    fn attributes_length(&self) -> usize {
        let body = self.body();
        if body.word.between().lengths == 0 {
            return 0;
        }
        // SAFETY: `Version::make` wrote it right before the key and says so; it lives as long as the version.
        unsafe { body.head.key.cast::<AttributesLength>().sub(1).read() as usize }
    }

    fn cell(&self) -> Option<&DecodedCell> {
        if self.body().word.between().cells == 0 {
            return None;
        }
        // SAFETY: `Version::make` wrote a cell there and says so; it lives as long as the version.
        Some(unsafe { &*self.0.as_ptr().add(1).cast::<DecodedCell>() })
    }

    /// The value as the cache's decoder ([`crate::Builder::decoder`]) understands it: decoded by the
    /// first who asks, shared by all, freed with the key-value. `None` in a tombstone.
    ///
    /// The decoder's error belongs to the value and is the same for all. INVALID_ARGUMENT where the
    /// decoder makes another type than `T`, UNSUPPORTED where the cache has none. Blocks only while
    /// another thread decodes the same value. Not to be called by a decoder: see there.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Code, Read};
    ///
    /// let number = |_key: &[u8], value: &[u8]| String::from_utf8_lossy(value).parse::<u32>();
    /// let cache = Cache::builder("/").decoder(number).build()?;
    /// cache.writer()?.apply(1, [Change::put("/a", "17"), Change::put("/b", "seventeen")])?;
    /// let kv = |key| cache.get(key, Read::Any).map(|answer| answer.kv.unwrap());
    /// assert_eq!(kv("/a")?.decoded::<u32>()?, Some(&17));
    /// assert_eq!(kv("/b")?.decoded::<u32>().unwrap_err().code(), Code::InvalidArgument); // the value itself is there
    /// assert_eq!(kv("/a")?.decoded::<u64>().unwrap_err().code(), Code::InvalidArgument); // the decoder makes no u64
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn decoded<T: 'static>(&self) -> Result<Option<&T>> {
        let Some(value) = self.value() else { return Ok(None) };
        match self.cell() {
            Some(cell) => cell.get(self.key(), value).map(Some),
            None => Err(Error::new(
                Code::Unsupported,
                "decoded: the cache has no decoder. Declare one with the builder's decoder.",
            )),
        }
    }

    /// Revision at which the key was created.
    pub fn create_revision(&self) -> u64 {
        self.body().head.create_revision
    }

    /// Revision of the last change.
    pub fn mod_revision(&self) -> u64 {
        self.body().head.mod_revision
    }

    /// Number of changes since the key was created; 1 for a fresh key.
    pub fn version(&self) -> u64 {
        self.body().head.version
    }

    /// The lease, 0 for none.
    pub fn lease(&self) -> i64 {
        self.body().head.lease
    }

    pub(crate) fn meta(&self) -> KeyMeta {
        KeyMeta {
            create_revision: self.create_revision(),
            mod_revision: self.mod_revision(),
            version: self.version(),
            lease: self.lease(),
        }
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.body().head.value.is_null()
    }

    pub(crate) fn seq(&self) -> u64 {
        self.body().word.seq()
    }

    /// Bytes of the tombstone of a key.
    pub(crate) fn tombstone_bytes(key: &[u8]) -> usize {
        heap::footprint(size(Between::default(), key.len()))
    }

    /// Bytes of the allocation, and of a shared value, which others may have, too.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> usize {
        let body = self.body();
        let bytes = body.head.key_length as usize + body.copied_length() + self.attributes_length();
        heap::footprint(size(body.word.between(), bytes)) + body.shared_length()
    }

    /// Bytes of its decoded value, 0 before it was decoded.
    #[inline]
    pub(crate) fn decoded_bytes(&self) -> u64 {
        self.cell().map_or(0, DecodedCell::bytes)
    }

    /// The address of the version before; `data::slot` says which readers may follow it.
    pub(crate) fn older(&self) -> VersionPtr {
        VersionPtr(self.body().older)
    }

    /// Gives the count away; [`VersionPtr::take`] takes it back.
    pub(crate) fn into_pointer(self) -> VersionPtr {
        VersionPtr(std::mem::ManuallyDrop::new(self).0.as_ptr())
    }

    /// Two counts, of one that nobody else has: without an exchange that only others would need.
    pub(super) fn into_two(self) -> (KeyValue, KeyValue) {
        let count = self.count();
        if count.load(Relaxed) != 1 {
            return (self.clone(), self);
        }
        // Relaxed: this is the only owner, and who gets the second comes by it later.
        count.store(2, Relaxed);
        (KeyValue(self.0), self)
    }

    /// Borrows the key-value without an increment of its reference count.
    pub(crate) fn borrowed(&self) -> KeyValueRef<'_> {
        KeyValueRef(self.0, PhantomData)
    }

    /// Drops it on the reclaimer, where that is likely to be the last count, which then is not counted down: nobody is there
    /// to count up.
    pub(super) fn drop_last(self, batch: &mut FreeBatch) {
        // Acquire: partner of the Release in `drop`.
        if self.count().load(ord!(CountReleaseLast, Acquire)) == 1 {
            // SAFETY: I9: who has the only count has the version alone.
            unsafe { self.into_pointer().destroy(batch) };
        }
    }

    /// The address of the head that C reads; the count goes with it.
    pub(crate) fn into_raw(self) -> *const std::ffi::c_void {
        self.into_pointer().0.cast()
    }

    /// The address of the head that C reads.
    pub(crate) fn as_raw(&self) -> *const std::ffi::c_void {
        self.0.as_ptr().cast()
    }

    /// Takes back what [`KeyValue::into_raw`] gave away.
    ///
    /// # Safety
    /// Once per `into_raw`, with what it returned.
    pub(crate) unsafe fn from_raw(pointer: *const std::ffi::c_void) -> Option<KeyValue> {
        // SAFETY: I9: `into_raw` gave this count away, and nobody else takes it back (`# Safety`).
        unsafe { VersionPtr(pointer.cast()).take() }
    }

    pub(crate) fn pointer(&self) -> VersionPtr {
        VersionPtr(self.0.as_ptr())
    }
}

impl Clone for KeyValue {
    #[inline]
    fn clone(&self) -> KeyValue {
        // Relaxed: a count >= 1 is held while this runs.
        check_count(self.count().fetch_add(1, Relaxed));
        KeyValue(self.0)
    }
}

impl Drop for KeyValue {
    #[inline]
    fn drop(&mut self) {
        // Release: partner of the Acquire below, in the thread that releases the last count.
        if self.count().fetch_sub(1, ord!(CountRelease, Release)) == 1 {
            self.count().load(ord!(CountReleaseLast, Acquire));
            // SAFETY: I9: that was the last count, so nobody else has the version.
            unsafe { self.pointer().leave() };
        }
    }
}

impl fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValue")
            .field("key", &DebugBytes(self.key()))
            .field("value", &Length(self.value()))
            .field("mod_revision", &self.mod_revision())
            .finish()
    }
}

/// The address of a version whose count is held elsewhere (by a segment, a slot, a pin or a token).
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct VersionPtr(pub(super) *const Version);

// SAFETY: safe code cannot follow the address; `get` and `take` ask their caller for a version that is alive.
unsafe impl Send for VersionPtr {}
// SAFETY: sharing it gives copies of the address, which safe code cannot follow.
unsafe impl Sync for VersionPtr {}

impl VersionPtr {
    pub(crate) const NULL: VersionPtr = VersionPtr(ptr::null());

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Asks the processor for its head and its key, as far as keys usually go.
    #[inline]
    pub(crate) fn prefetch_key(self) {
        let place = self.0.cast::<u8>();
        heap::prefetch(place);
        heap::prefetch(place.wrapping_add(size_of::<Version>()));
    }

    /// Asks the processor for what a reader of one key looks at: the header and the head, the key, and the begin of the
    /// value, which lies behind so many bytes of the key where no decoded one lies before that.
    #[inline]
    pub(crate) fn prefetch_value(self, key_length: usize) {
        self.prefetch_key();
        heap::prefetch(self.0.cast::<u8>().wrapping_add(size_of::<Version>() + key_length));
    }

    /// Asks the processor for its head as far as the revision of the last change, which may lie in a second line, for who
    /// comes to it after many others.
    #[inline]
    pub(crate) fn prefetch_early(self) {
        let place = self.0.cast::<u8>();
        heap::prefetch_early(place);
        heap::prefetch_early(place.wrapping_add(std::mem::offset_of!(Head, mod_revision)));
    }

    /// Asks the processor for the header of its block, with the count, for who releases that, and may free it.
    #[inline]
    pub(super) fn prefetch_header(self) {
        heap::prefetch(self.0.cast::<u8>().wrapping_sub(heap::HEADER));
    }

    /// The version, or `None` where there is none.
    ///
    /// # Safety
    ///
    /// A count on the version is held somewhere, and is not released during 'a.
    #[inline]
    pub(crate) unsafe fn get<'a>(self) -> Option<KeyValueRef<'a>> {
        Some(KeyValueRef(NonNull::new(self.0.cast_mut())?, PhantomData))
    }

    /// The version.
    ///
    /// # Safety
    ///
    /// There is one, and as [`VersionPtr::get`].
    #[inline]
    pub(crate) unsafe fn get_some<'a>(self) -> KeyValueRef<'a> {
        // SAFETY: there is a version (`# Safety`), so its address is not null.
        KeyValueRef(unsafe { NonNull::new_unchecked(self.0.cast_mut()) }, PhantomData)
    }

    /// The version that this very pointer leads to, or `None` where there is none.
    ///
    /// # Safety
    ///
    /// As [`VersionPtr::get`], for as long as the pointer is borrowed.
    #[inline]
    pub(crate) unsafe fn in_place(&self) -> Option<&KeyValue> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: `VersionPtr` and `KeyValue` are both one pointer, here not null; the version is alive
        // by the caller's promise, and a shared reference cannot give a count back.
        Some(unsafe { &*ptr::from_ref(self).cast::<KeyValue>() })
    }

    /// The versions that these very pointers lead to.
    ///
    /// # Safety
    ///
    /// None is null, and as [`VersionPtr::get`] for each, for as long as the pointers are borrowed.
    #[inline]
    pub(crate) unsafe fn all_in_place(all: &[VersionPtr]) -> &[KeyValue] {
        // SAFETY: both types are one pointer; none is null, and each version is held (`# Safety`).
        unsafe { std::slice::from_raw_parts(all.as_ptr().cast(), all.len()) }
    }

    /// Takes back a count that was given away by [`KeyValue::into_pointer`].
    ///
    /// # Safety
    ///
    /// It was given away, and is taken back once.
    pub(crate) unsafe fn take(self) -> Option<KeyValue> {
        NonNull::new(self.0.cast_mut()).map(KeyValue)
    }

    /// Frees the version, or lets the reclaimer do it.
    ///
    /// # Safety
    ///
    /// As [`VersionPtr::destroy`].
    unsafe fn leave(self) {
        // SAFETY: its last count was released, and this call is the one that frees it (`# Safety`).
        let destroy = move || unsafe { self.destroy(&mut FreeBatch::default()) };
        if reclaim::on_reclaimer() {
            return destroy();
        }
        // SAFETY: alive until `destroy` has run.
        let bytes = unsafe { self.in_place() }.map_or(0, KeyValue::bytes);
        reclaim::free(bytes, Box::new(destroy));
    }

    /// Frees the version: its block goes into the batch. Only on the reclaimer.
    ///
    /// # Safety
    ///
    /// Its last count was released, with an Acquire that follows the Release of all others; once.
    unsafe fn destroy(self, batch: &mut FreeBatch) {
        debug_assert!(reclaim::on_reclaimer(), "I6: versions are freed by the reclaimer");
        reclaim::progressed();
        // SAFETY: it is freed below and not before, and nobody else has it.
        let Some(kv) = (unsafe { self.in_place() }) else { return };
        // If the key follows the version, nothing lies between, and the word that tells so need not be fetched.
        let is_plain = ptr::eq(kv.body().head.key, self.0.wrapping_add(1).cast());
        let Between { cells, shared, .. } = if is_plain { Between::default() } else { kv.body().word.between() };
        #[cfg(loom)]
        kv.body().track.end();
        let free = move |batch: &mut FreeBatch| {
            let VersionPtr(place) = self;
            // SAFETY: the last count is gone, so nobody has the pointer; a block that `Version::make` has taken.
            unsafe {
                let cell = place.add(1).cast::<DecodedCell>();
                if cells > 0 {
                    foreign::drop_guarded(cell.read(), "a decoded value");
                }
                if shared > 0 {
                    drop(cell.add(cells).cast::<SharedValue>().read());
                }
                ptr::drop_in_place(place.cast_mut());
                batch.free(NonNull::new_unchecked(place.cast_mut()).cast());
            }
        };
        #[cfg(loom)]
        {
            let _ = batch;
            reclaim::bury(Box::new(move || free(&mut FreeBatch::default())));
        }
        #[cfg(not(loom))]
        free(batch);
    }
}

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
pub struct KeyValueRef<'a>(NonNull<Version>, PhantomData<&'a KeyValue>);

// SAFETY: I3: it is a `&KeyValue`, and a `KeyValue` is Sync.
unsafe impl Send for KeyValueRef<'_> {}
// SAFETY: I3: sharing it gives copies of a `&KeyValue`, and a `KeyValue` is Sync.
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

#[cfg(all(test, not(loom)))]
pub(super) mod tests;
