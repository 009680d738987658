//! The nodes of a tree, and the search of one.

use crate::heap::shared_list::{Either, Tail};

/// An entry of a tree: ordered by its key.
pub(crate) trait TreeEntry: Clone {
    /// Whether it has room for a number, which a search of a leaf looks at in place of its key.
    const IS_NUMBERED: bool = false;

    fn key(&self) -> &[u8];

    /// The number that it was given last.
    #[inline]
    fn number(&self) -> u32 {
        0
    }

    fn set_number(&mut self, _number: u32) {}

    /// Asks the processor for what is behind it, for who looks at it soon.
    #[inline]
    fn prefetch(&self) {}

    /// Prefetches the key, for callers that compare it. Reads the memory that [`TreeEntry::prefetch`] asks for.
    #[inline]
    fn prefetch_key(&self) {}
}

/// Asks the processor for the keys of some entries: for all that leads to them first, so that it is waited for once.
pub(super) fn prefetch_keys<'a, E: TreeEntry + 'a>(entries: impl Iterator<Item = &'a E> + Clone) {
    entries.clone().for_each(E::prefetch);
    entries.for_each(E::prefetch_key);
}

/// Parts that a search divides a node into at once.
const TOGETHER: usize = 8;
/// A node: of entries, or of children.
pub(super) type TreeNode<E> = Either<E, TreeChild<E>>;

#[derive(Clone)]
pub(super) struct TreeChild<E> {
    /// The first entry below it: this very pointer.
    pub(super) first: E,
    pub(super) node: TreeNode<E>,
    /// The number that a search compares in place of the key.
    pub(super) number: u64,
}

/// The index of the first entry whose key is not `below`, as [`slice::partition_point`] has it. Keys lie anywhere in
/// memory, so the keys that a part of the search may compare are fetched together: the search waits for memory once a
/// part, and not once a comparison.
pub(super) fn search<T, E: TreeEntry>(all: &[T], entry: impl Fn(&T) -> &E, below: impl Fn(&[u8]) -> bool) -> usize {
    let (mut from, mut to) = (0, all.len());
    while from < to {
        let step = (to - from).div_ceil(TOGETHER);
        let pivots = (to - from) / step;
        let pivot = |number: usize| entry(&all[from + (number + 1) * step - 1]);
        prefetch_keys((0..pivots).map(pivot));
        let (mut low, mut high) = (0, pivots);
        while low < high {
            let middle = (low + high) / 2;
            if below(pivot(middle).key()) { low = middle + 1 } else { high = middle }
        }
        (from, to) = (from + low * step, if low < pivots { from + (low + 1) * step - 1 } else { to });
    }
    from
}

/// The rank of the first of the tail that is not below `key`, which in the list belongs at `at`.
pub(super) fn rank_of<E: TreeEntry>(tail: Tail<'_, E>, at: usize, key: &[u8]) -> usize {
    tail.rank(|place, entry| place < at || place == at && entry.key() < key)
}
