//! The word of a list's tail: see [`Tail`](super::shared_list::Tail).

use crate::sync::{AtomicU64, Relaxed};
// Without order of its own: the word publishes it.
use std::sync::atomic::AtomicU64 as Plain;

/// The most values of a tail.
pub(crate) const TAIL: usize = 8;
/// The bits of each rank's cell, and of the number of values, which lies below them.
pub(super) const BITS: usize = 4;
pub(super) const MASK: u64 = (1 << BITS) - 1;
/// Set while a thread appends.
pub(super) const CLAIMED: u64 = 1 << 63;

const _: () = assert!((TAIL + 1) * BITS < 63 && TAIL as u64 <= MASK && TAIL <= size_of::<Plain>());

/// The part of a list's head that its tail needs.
pub(super) struct TailWord {
    /// The number of values, and the cell of each rank.
    pub(super) word: AtomicU64,
    /// A byte for each cell: the index of the list's value that it belongs before. Stored under the claim of the word.
    pub(super) places: Plain,
}

impl TailWord {
    pub(super) fn new() -> TailWord {
        TailWord { word: AtomicU64::new(0), places: Plain::new(0) }
    }

    /// The number of values. Only for the only owner.
    pub(super) fn len(&self) -> usize {
        // Relaxed: the only owner has acquired what others did with the list.
        (self.word.load(Relaxed) & MASK) as usize
    }
}
