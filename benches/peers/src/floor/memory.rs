//! What the floors are made of: blocks and lines that are never freed, and addresses of them.
//!
//! A [`Block`] has the bytes of one version, a [`Line`] is an event of the log. Both are made before a row begins, so
//! that no page is touched for the first time while it is measured, and live as long as the process: an address of one
//! is valid wherever it was read.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The address of something that is never freed, or none.
pub struct Link<T: Sync + 'static>(AtomicPtr<T>);

impl<T: Sync> Default for Link<T> {
    fn default() -> Self {
        Link::none()
    }
}

impl<T: Sync> Link<T> {
    pub const fn none() -> Self {
        Link(AtomicPtr::new(null_mut()))
    }

    pub fn set(&self, target: Option<&'static T>, order: Ordering) {
        self.0.store(address(target), order);
    }

    pub fn get(&self, order: Ordering) -> Option<&'static T> {
        // SAFETY: whatever is stored here came as a reference that is valid until the process ends, to what threads may
        // share.
        unsafe { self.0.load(order).as_ref() }
    }

    pub fn swap(&self, target: Option<&'static T>, order: Ordering) -> Option<&'static T> {
        // SAFETY: as in `get`.
        unsafe { self.0.swap(address(target), order).as_ref() }
    }

    /// Replaces `old` by `new`, with Release; else says what is there.
    pub fn replace(&self, old: Option<&'static T>, new: &'static T) -> Result<(), Option<&'static T>> {
        let done = self.0.compare_exchange_weak(address(old), address(Some(new)), Ordering::Release, Ordering::Relaxed);
        // SAFETY: as in `get`.
        done.map(drop).map_err(|found| unsafe { found.as_ref() })
    }
}

fn address<T>(target: Option<&'static T>) -> *mut T {
    target.map_or(null_mut(), |target| NonNull::from(target).as_ptr())
}

/// So many, written once now and never freed.
pub fn made<T: Default>(count: usize) -> &'static [T] {
    Box::leak((0..count).map(|_| T::default()).collect())
}

/// Bytes of a version before those of its key: its numbers, its count, the address and length of both.
const HEAD: usize = 80;
/// Key and value of the rows, to the end of the last line.
const BYTES: usize = 560;

/// One version: ten lines of 64 bytes.
#[repr(C, align(64))]
pub struct Block {
    /// The address of the key's bytes.
    pub key: AtomicPtr<u8>,
    pub revision: AtomicU64,
    pub created: AtomicU64,
    pub version: AtomicU64,
    /// How many have it.
    pub count: AtomicU64,
    rest: [AtomicU64; HEAD / 8 - 5],
    bytes: UnsafeCell<[u8; BYTES]>,
}

const _: () = assert!(size_of::<Block>() == 640);

// SAFETY: all fields but the bytes are atomic; the callers of `fill` and `byte`, which alone touch those, promise
// that no other thread writes them meanwhile.
unsafe impl Sync for Block {}

impl Default for Block {
    fn default() -> Block {
        Block {
            key: AtomicPtr::default(),
            revision: AtomicU64::new(0),
            created: AtomicU64::new(0),
            version: AtomicU64::new(0),
            count: AtomicU64::new(0),
            rest: Default::default(),
            bytes: UnsafeCell::new([0; BYTES]),
        }
    }
}

impl Block {
    /// Copies key and value in, one after the other.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes the bytes of this block meanwhile.
    pub unsafe fn fill(&self, key: &[u8], value: &[u8]) {
        assert!(key.len() + value.len() <= BYTES, "the rows have no longer ones");
        let bytes = self.bytes.get().cast::<u8>();
        // SAFETY: both fit one after the other, which was just asserted, and no other thread is at the bytes.
        unsafe {
            bytes.copy_from_nonoverlapping(key.as_ptr(), key.len());
            bytes.add(key.len()).copy_from_nonoverlapping(value.as_ptr(), value.len());
        }
        // The compiler takes it that all of it is read.
        black_box(bytes);
    }

    /// Where the key lies.
    pub fn bytes(&self) -> *mut u8 {
        self.bytes.get().cast()
    }

    /// Asks for the line of that byte. A hint: nothing is read.
    pub fn prefetch(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing that the program sees, at any address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.bytes().wrapping_add(at).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    /// One byte, `at` behind the first of the key.
    ///
    /// # Safety
    ///
    /// No thread writes the bytes of this block meanwhile.
    pub unsafe fn byte(&self, at: usize) -> u64 {
        assert!(at < BYTES);
        // SAFETY: it lies in the block, and the caller says that no thread writes it.
        u64::from(unsafe { self.bytes().add(at).read() })
    }
}

/// One event of the log.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Line {
    pub revision: AtomicU64,
    /// Its version.
    pub block: Link<Block>,
    /// The version that it replaced: free when the log has forgotten this event.
    pub replaced: Link<Block>,
}

const _: () = assert!(size_of::<Line>() == 64);
