//! The ordered index: key -> slot, persistent, published by pointer.
//!
//! The index changes only when a key appears or is purged. A new key is mostly added to a leaf that readers share:
//! they skip entries newer than their head. The tree has the addresses of slots, which their owners
//! keep (`data::slot::OwnedSlot`). A caller that searches an index promises that they are alive; readers do so in
//! one place, `cache::view`.
//!
//! Rejected: a tree of counted slots (each copied leaf would touch the counts of up to 64 slots),
//! crossbeam-skiplist and scc (slow scans, fixes unreleased), `imbl::OrdSet` (see `store::tree`).

use crate::data::slot::{SlotPtr, SlotRef};
use crate::heap::Heap;
use crate::reclaim;
use crate::store::tree::{Iter, Tree, TreeEntry};

/// A slot in the tree, with the number of its key. Twelve bytes: half as many more would be left unused.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
struct Leaf {
    slot: SlotPtr,
    number: u32,
}

impl Leaf {
    fn of(slot: SlotPtr) -> Leaf {
        Leaf { slot, number: 0 }
    }

    /// The slot.
    ///
    /// # Safety
    ///
    /// As [`SlotPtr::get`].
    #[inline]
    unsafe fn get<'a>(self) -> SlotRef<'a> {
        let slot = self.slot;
        // SAFETY: the slot is alive for 'a (`# Safety`).
        unsafe { slot.get() }
    }
}

impl TreeEntry for Leaf {
    const IS_NUMBERED: bool = true;

    fn key(&self) -> &[u8] {
        // SAFETY: the tree is private to `Root`, and compares keys only in functions whose callers
        // promise that its slots are alive.
        unsafe { self.get() }.key()
    }

    #[inline]
    fn number(&self) -> u32 {
        self.number
    }

    fn set_number(&mut self, number: u32) {
        self.number = number;
    }

    #[inline]
    fn prefetch(&self) {
        let slot = self.slot;
        slot.prefetch();
    }

    #[inline]
    fn prefetch_key(&self) {
        // SAFETY: the tree, which is private to `Root`, prefetches only keys that it compares next: see `key`.
        unsafe { self.get() }.prefetch_key();
    }
}

/// The persistent ordered set of slots. Cloning is O(1), and so is dropping a clone whose nodes another one
/// has, too: neither reads a slot.
#[derive(Clone, Default)]
pub(crate) struct Root {
    tree: Tree<Leaf>,
}

impl Root {
    /// Builds the index from slots in key order.
    pub(crate) fn from_sorted(sorted: impl Iterator<Item = SlotPtr>, memory: &mut Heap) -> Root {
        Root { tree: Tree::from_sorted(sorted.map(Leaf::of), memory) }
    }

    /// Adds a slot whose key is not there. False: a clone that was equal before it is equal now.
    ///
    /// # Safety
    ///
    /// As [`Root::read`]; the new slot is alive too, also as long as any clone is read.
    pub(crate) unsafe fn insert(&mut self, slot: SlotPtr, memory: &mut Heap) -> bool {
        self.tree.insert(Leaf::of(slot), memory)
    }

    /// Takes a key out.
    ///
    /// # Safety
    ///
    /// As [`Root::read`].
    pub(crate) unsafe fn remove(&mut self, key: &[u8], memory: &mut Heap) {
        self.tree.remove(key, memory);
    }

    /// The index, bound to what keeps its slots.
    ///
    /// # Safety
    ///
    /// For 'a each slot of the index is alive, and what it shows: see [`SlotPtr::get`].
    pub(crate) unsafe fn read<'a>(&'a self) -> RootRef<'a> {
        RootRef { tree: &self.tree }
    }

    /// Bytes of the tree.
    pub(crate) fn bytes(&self) -> usize {
        self.tree.bytes()
    }

    /// Bytes that are freed with the clone before.
    pub(crate) fn take_copied(&mut self) -> usize {
        self.tree.take_copied()
    }

    /// Drops it on the reclaimer where that frees anything (I6).
    pub(crate) fn release(self) {
        if let Some(last) = self.tree.into_last() {
            reclaim::free(0, Box::new(move || drop(last)));
        }
    }
}

/// An index whose slots are alive for 'a: see [`Root::read`].
#[derive(Clone, Copy)]
pub(crate) struct RootRef<'a> {
    tree: &'a Tree<Leaf>,
}

impl<'a> RootRef<'a> {
    pub(crate) fn get(self, key: &[u8]) -> Option<SlotRef<'a>> {
        // SAFETY: alive for 'a, see the type.
        self.tree.get(key).map(|leaf| unsafe { leaf.get() })
    }

    /// The slots from a key on, inclusive, in key order.
    pub(crate) fn from(self, key: &[u8]) -> SlotsInOrder<'a> {
        SlotsInOrder(self.tree.from(key))
    }

    /// The slots of a span of keys, in key order.
    pub(crate) fn range(self, span: &Span) -> SlotsInOrder<'a> {
        SlotsInOrder(self.tree.range(&span.from, span.to.as_deref()))
    }
}

/// Slots in key order, alive for 'a.
pub(crate) struct SlotsInOrder<'a>(Iter<'a, Leaf>);

impl<'a> SlotsInOrder<'a> {
    /// Calls `each` for the next slots, as many as stand side by side and `most` at most. How many they were: 0 at
    /// the end.
    #[inline]
    pub(crate) fn next_run(&mut self, most: usize, mut each: impl FnMut(SlotRef<'a>)) -> usize {
        // SAFETY: alive for 'a, as the index that it came from: see `RootRef`.
        self.0.next_run(most, |leaf| each(unsafe { leaf.get() }))
    }
}

impl<'a> Iterator for SlotsInOrder<'a> {
    type Item = SlotRef<'a>;

    #[inline]
    fn next(&mut self) -> Option<SlotRef<'a>> {
        // SAFETY: alive for 'a, as the index that it came from: see `RootRef`.
        self.0.next().map(|leaf| unsafe { leaf.get() })
    }
}

/// Keys from `from`, inclusive, to `to`, exclusive (`None`: to the end).
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Span {
    pub(crate) from: Vec<u8>,
    pub(crate) to: Option<Vec<u8>>,
}

impl Span {
    pub(crate) fn is_unbounded(&self) -> bool {
        self.from.is_empty() && self.to.is_none()
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        // Without a compare where there is no bound: one of no bytes is slow on processors that treat a masked load
        // of an invalid address by microcode.
        (self.from.is_empty() || key >= &self.from[..]) && self.to.as_ref().is_none_or(|to| key < &to[..])
    }
}

/// Whether a key starts with these bytes. An empty prefix costs no comparison, as in [`Span::contains`].
#[inline]
pub(crate) fn starts_with(key: &[u8], prefix: &[u8]) -> bool {
    prefix.is_empty() || key.starts_with(prefix)
}

/// Whether a key lies below another one; the same of a compare.
#[inline]
pub(crate) fn is_below(key: &[u8], other: &[u8]) -> bool {
    match (key.is_empty(), other.is_empty()) {
        (false, false) => key < other,
        (empty, other_empty) => empty && !other_empty,
    }
}

/// The first key after every key that starts with `prefix`; `None`: there is no such key.
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_no_bytes_are_compared_as_others() {
        let keys: [&[u8]; 4] = [b"", b"\0", b"a", b"ab"];
        for (key, other) in keys.iter().flat_map(|key| keys.map(|other| (*key, other))) {
            assert_eq!(starts_with(key, other), key.starts_with(other), "{key:?} {other:?}");
            assert_eq!(is_below(key, other), key < other, "{key:?} {other:?}");
        }
    }

    #[test]
    fn ends_of_prefixes() {
        assert_eq!(prefix_end(b"/a/"), Some(b"/a0".to_vec()));
        assert_eq!(prefix_end(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(prefix_end(b"\xff\xff"), None);
        assert_eq!(prefix_end(b""), None);
    }
}
