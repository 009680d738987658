//! How many have a block: a count that stands in its header, as of an `Arc` without weak ones.
//!
//! A block comes with a count of one. Who takes another one has one already, so taking it needs no order.
//!
//! | a count is released | the last one | order |
//! | --- | --- | --- |
//! | `sub` | its load, or that of `is_one` | Release / Acquire: what was done with the block comes before its end |

use super::Header;
use crate::sync::{Acquire, Relaxed, Release};
use std::ptr::NonNull;
// As in std's Arc, which this is, it is no part of the models.
use std::sync::atomic::AtomicU32;

/// See the module.
pub(crate) struct BlockCount(AtomicU32);

/// More counts on one block than a program can have in use.
pub(crate) const MOST_COUNTS: u32 = u32::MAX / 2;

/// To be called with a count as it was before one was added.
///
/// Clones that are leaked add up to so many within seconds, others have 16 GiB by then. The count would begin again at 0,
/// and the block be freed while somebody has it: as with `Arc`, that ends the process. Half of the range is left to the
/// threads that are here at the same time.
#[inline]
pub(crate) fn check_count(before: u32) {
    if before > MOST_COUNTS {
        std::process::abort();
    }
}

impl BlockCount {
    /// One.
    pub(super) const fn new() -> BlockCount {
        BlockCount(AtomicU32::new(1))
    }

    /// That of a block.
    ///
    /// # Safety
    ///
    /// The block is from [`super::Memory::allocate`], and not freed during 'a.
    #[inline]
    pub(crate) unsafe fn of<'a, T>(block: NonNull<T>) -> &'a BlockCount {
        // SAFETY: the header stands before it, by the caller's promise.
        unsafe { &(*block.cast::<Header>().sub(1).as_ptr()).count }
    }

    /// The number itself, for who has orders of its own.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn number(&self) -> &AtomicU32 {
        &self.0
    }

    #[inline]
    pub(crate) fn add(&self) {
        // Relaxed: see the module.
        check_count(self.0.fetch_add(1, Relaxed));
    }

    /// Releases one. True: that was the last.
    #[inline]
    pub(crate) fn sub(&self) -> bool {
        // Release: partner of the load, in the thread that has the last one.
        let last = self.0.fetch_sub(1, Release) == 1;
        if last {
            self.0.load(Acquire);
        }
        last
    }

    /// Whether there is but the caller's. Acquire: partner of the release of those that others had.
    #[inline]
    pub(crate) fn is_one(&self) -> bool {
        self.0.load(Acquire) == 1
    }

    /// After the last was released: who found that it was has one again.
    pub(crate) fn renew(&self) {
        self.0.store(1, Relaxed);
    }
}
