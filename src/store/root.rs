//! The ordered index: key -> slot, persistent, published by pointer.
//!
//! It changes only when a key appears or is finally forgotten, so an overwrite copies no path of
//! it. The tree holds plain pointers to slots. Who owns the slots: see `data::slot::SlotPtr`.
//! Rejected: a tree of counted slots (each copied leaf would touch the counts of up to 64 slots),
//! crossbeam-skiplist and scc (slow scans, fixes unreleased), `imbl::OrdSet` (see `store::tree`).

#![forbid(unsafe_code)]

use crate::data::slot::SlotPtr;
use crate::reclaim;
use crate::store::tree::Tree;

/// The persistent ordered set of slots. Cloning is O(1).
#[derive(Clone, Default)]
pub(crate) struct Index {
    tree: Tree,
}

impl Index {
    /// Of slots in key order.
    pub(crate) fn from_sorted(sorted: impl Iterator<Item = SlotPtr>) -> Index {
        Index { tree: Tree::from_sorted(sorted) }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<SlotPtr> {
        self.tree.get(key)
    }

    pub(crate) fn insert(&mut self, slot: SlotPtr) {
        self.tree.insert(slot);
    }

    pub(crate) fn remove(&mut self, key: &[u8]) {
        self.tree.remove(key);
    }

    /// Bytes of the tree.
    pub(crate) fn bytes(&self) -> usize {
        self.tree.bytes()
    }

    /// Bytes that are freed with the clone before.
    pub(crate) fn take_copied(&mut self) -> usize {
        self.tree.take_copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = SlotPtr> + '_ {
        self.tree.from(b"").copied()
    }

    /// The slots of a span of keys, in key order.
    pub(crate) fn range<'a>(&'a self, span: &Span) -> impl Iterator<Item = SlotPtr> + use<'a> {
        let to = span.to.clone();
        self.tree.from(&span.from).copied().take_while(move |slot| to.as_ref().is_none_or(|to| slot.key() < &to[..]))
    }

    /// Drops it on the reclaimer where that frees anything (I6).
    pub(crate) fn release(self) {
        if let Some(last) = self.tree.into_last() {
            reclaim::free(0, Box::new(move || drop(last)));
        }
    }
}

/// Keys from `from`, inclusive, to `to`, exclusive (`None`: to the end).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Span {
    pub(crate) from: Vec<u8>,
    pub(crate) to: Option<Vec<u8>>,
}

impl Span {
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        key >= &self.from[..] && self.to.as_ref().is_none_or(|to| key < &to[..])
    }
}

/// The first key behind every key that starts with `prefix`; `None`: there is no such key.
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
    fn ends_of_prefixes() {
        assert_eq!(prefix_end(b"/a/"), Some(b"/a0".to_vec()));
        assert_eq!(prefix_end(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(prefix_end(b"\xff\xff"), None);
        assert_eq!(prefix_end(b""), None);
    }
}
