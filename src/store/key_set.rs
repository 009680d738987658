//! A set of keys whose bytes nobody copies: each entry is a count on the key's slot, which leads to them.
//!
//! The slot of a key that the cache has is the cache's own, and costs the set nothing. If the key was purged since, slot
//! and key stay for as long as a set has it, once for all sets ([`SlotCount`]); the cache's statistics count them. Each
//! call takes a pin to read keys, because a slot's newest version may be replaced meanwhile.

use crate::data::slot::SlotCount;
use crate::heap::System;
use crate::reclaim::{self, Guard};
use crate::store::tree::{Tree, TreeEntry};

/// See the module.
#[derive(Default)]
pub(crate) struct KeySet {
    keys: Tree<KeySetEntry>,
    len: u64,
    /// Bytes of the keys that only this has, and no slot of the cache.
    own: u64,
}

#[derive(Clone)]
struct KeySetEntry(SlotCount);

impl TreeEntry for KeySetEntry {
    fn key(&self) -> &[u8] {
        // SAFETY: the tree is private to `KeySet`, which is pinned where it compares keys.
        unsafe { self.0.key() }
    }

    #[inline]
    fn prefetch(&self) {
        self.0.pointer().prefetch();
    }

    #[inline]
    fn prefetch_key(&self) {
        self.0.prefetch_key();
    }
}

impl KeySet {
    /// Keys.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of the set itself, and of what only it has.
    pub(crate) fn bytes(&self) -> u64 {
        self.keys.bytes() as u64 + self.own
    }

    /// Whether it has a key. O(log n).
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.has_pinned(key, &reclaim::pin())
    }

    fn has_pinned(&self, key: &[u8], _pin: &Guard) -> bool {
        self.keys.get(key).is_some()
    }

    /// Adds the key of a slot. O(log n).
    pub(crate) fn add(&mut self, slot: SlotCount) {
        let pin = reclaim::pin();
        let entry = KeySetEntry(slot);
        if !self.has_pinned(entry.key(), &pin) {
            self.own += entry.0.uncounted_bytes() as u64;
            self.keys.insert(entry, &mut System);
            self.len += 1;
        }
    }

    /// Takes a key out. O(log n).
    pub(crate) fn remove(&mut self, key: &[u8]) {
        let _pin = reclaim::pin();
        let Some(entry) = self.keys.get(key) else { return };
        self.own -= entry.0.uncounted_bytes() as u64;
        self.len -= u64::from(self.keys.remove(key, &mut System));
    }

    /// Its keys from this one on, inclusive, in key order.
    pub(crate) fn from<'a>(&'a self, key: &[u8], _pin: &'a Guard) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.keys.from(key).map(TreeEntry::key)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::often;
    use std::collections::BTreeSet;

    #[test]
    fn it_has_what_was_added_and_not_removed() {
        let (mut set, mut oracle) = (KeySet::default(), BTreeSet::new());
        for number in 0..often(2000) as u32 {
            let key = format!("/{}", number.wrapping_mul(2_654_435_761) % 1000).into_bytes();
            if number % 3 == 2 {
                set.remove(&key);
                oracle.remove(&key);
            } else {
                set.add(key[..].into());
                oracle.insert(key);
            }
        }
        let pin = reclaim::pin();
        assert!(set.from(b"/5", &pin).eq(oracle.range(b"/5".to_vec()..)));
        assert_eq!(set.len(), oracle.len() as u64);
        assert!((0..often(1000)).all(|number| {
            let key = format!("/{number}").into_bytes();
            set.has(&key) == oracle.contains(&key)
        }));
    }
}
