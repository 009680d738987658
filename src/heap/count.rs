//! The reference count of a block, in its header: an `Arc`'s without weak references.
//!
//! A new block has a count of one. A thread that adds a count has one already, so adding needs no order.
//!
//! | a count is released | the last one | order |
//! | --- | --- | --- |
//! | `sub` | its load, or that of `is_one` | Release / Acquire: every use of the block happens before its end |

use crate::sync::{Acquire, Relaxed, Release};
// The steps are those of std's `Arc`, so the models use the plain atomic.
use std::sync::atomic::AtomicU32;

/// See the module.
pub(crate) struct BlockCount(AtomicU32);

/// The most counts on one block; no program has so many references in use.
pub(crate) const MOST_COUNTS: u32 = u32::MAX / 2;

/// Aborts on overflow. To be called with the count as it was before one was added.
///
/// Leaked clones reach this number within seconds; clones that are kept take 16 GiB by then. Beyond it the count would
/// wrap to 0, and the block be freed while it is used: as with `Arc`, the process is aborted. Half of the range is left
/// for threads that add at the same time.
#[inline]
pub(crate) fn check_count(before: u32) {
    if before > MOST_COUNTS {
        std::process::abort();
    }
}

impl BlockCount {
    /// A count of one.
    pub(super) const fn new() -> BlockCount {
        BlockCount(AtomicU32::new(1))
    }

    /// The raw counter, for callers that choose their own memory orderings.
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

    /// Releases one count. True: it was the last.
    #[inline]
    pub(crate) fn sub(&self) -> bool {
        // Release: partner of the load, in the thread that releases the last count.
        let last = self.0.fetch_sub(1, Release) == 1;
        if last {
            self.0.load(Acquire);
        }
        last
    }

    /// Whether the caller's count is the only one. Acquire: partner of `sub` in threads that had others.
    #[inline]
    pub(crate) fn is_one(&self) -> bool {
        self.0.load(Acquire) == 1
    }

    /// Gives a count of one to the thread that has released the last one.
    pub(crate) fn renew(&self) {
        self.0.store(1, Relaxed);
    }
}
