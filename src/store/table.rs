//! The ordered index: key -> slot, persistent, published by pointer.
//!
//! It changes only when a key appears or is finally forgotten, so an overwrite copies no path of
//! it. The tree holds plain pointers to slots. Who owns the slots: see `data::slot::SlotPtr`.
//!
//! The writer has a private hash beside it: a lookup costs one hash and one compare.
//! Rejected: a tree of counted slots (each copied leaf would touch the counts of up to 64 slots),
//! crossbeam-skiplist and scc (design, section 4), `imbl::OrdSet` (see `store::tree`).

#![forbid(unsafe_code)]

use crate::data::key_value::SlotPtr;
use crate::reclaim;
use crate::store::tree::Tree;
use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, Hasher};

impl PartialEq for SlotPtr {
    fn eq(&self, other: &SlotPtr) -> bool {
        self.key() == other.key()
    }
}
impl Eq for SlotPtr {}
impl Borrow<[u8]> for SlotPtr {
    fn borrow(&self) -> &[u8] {
        self.key()
    }
}
impl Hash for SlotPtr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

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
            reclaim::free(Box::new(move || drop(last)));
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

/// A keyed hash of key bytes: folded multiplication over 8-byte words, drawn seed.
#[derive(Clone)]
pub(crate) struct KeyHash(u64);

impl Default for KeyHash {
    fn default() -> KeyHash {
        // loom replays executions: the same order each time.
        KeyHash(if cfg!(loom) { 1 } else { std::collections::hash_map::RandomState::new().hash_one(1u8) | 1 })
    }
}

impl BuildHasher for KeyHash {
    type Hasher = KeyHasher;
    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(self.0)
    }
}

pub(crate) struct KeyHasher(u64);

fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ ((wide >> 64) as u64)
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        const K: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut words = bytes.chunks_exact(8);
        for word in words.by_ref() {
            let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            self.0 = fold(self.0 ^ word, K);
        }
        let mut rest = [0u8; 8];
        rest[..words.remainder().len()].copy_from_slice(words.remainder());
        self.0 = fold(self.0 ^ u64::from_le_bytes(rest), K ^ bytes.len() as u64);
    }

    fn write_usize(&mut self, number: usize) {
        self.0 ^= number as u64;
    }

    fn finish(&self) -> u64 {
        fold(self.0, 0xd6e8_feb8_6659_fd93)
    }
}

/// The writer's private hash: key -> slot.
#[derive(Default)]
pub(crate) struct Slots(HashSet<SlotPtr, KeyHash>);

impl Slots {
    pub(crate) fn get(&self, key: &[u8]) -> Option<SlotPtr> {
        self.0.get(key).copied()
    }
    pub(crate) fn insert(&mut self, slot: SlotPtr) {
        self.0.insert(slot);
    }
    pub(crate) fn remove(&mut self, key: &[u8]) {
        self.0.remove(key);
    }
    pub(crate) fn reserve(&mut self, more: usize) {
        self.0.reserve(more);
    }
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = SlotPtr> + '_ {
        self.0.drain()
    }
    /// Bytes of the table itself (a word and a control byte an entry).
    pub(crate) fn bytes(&self) -> usize {
        self.0.capacity() * 8 / 7 * (size_of::<SlotPtr>() + 1)
    }
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

    #[test]
    fn hashes_differ_by_content_and_length() {
        let build = KeyHash(1);
        let all: std::collections::HashSet<u64> = ["", "\0", "\0\0", "a", "b", "abcdefgh", "abcdefgh\0", "bbcdefgh"]
            .iter()
            .map(|text| build.hash_one(text.as_bytes()))
            .collect();
        assert_eq!(all.len(), 8);
    }
}
