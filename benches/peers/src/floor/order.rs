//! The order of the keys for inserts: leaves of 64 keys, groups of leaves, and one list of the groups.
//!
//! What is in it: three binary searches over keys that lie side by side, then a key and an address are moved into the
//! middle of a leaf. A leaf that is full gives half of its keys to one that was made before. Why a library has to pay
//! at least that: the row's next key lies far from its last one, so its neighbours are in no cache. No reader of this
//! order is protected from the writer, which a library has to do on top of it.

use super::store::{Slot, Words};

const FULL: usize = 64;
/// How full leaves are at first, and a half of a leaf that was full.
const LOADED: usize = 48;
const HALF: usize = FULL / 2;
/// Leaves of a group.
const GROUP: usize = 256;

type Leaf = Vec<(Words, &'static Slot)>;
/// Leaves by their first key.
type Group = Vec<(Words, Leaf)>;

pub struct Order {
    groups: Vec<(Words, Group)>,
    spare: Vec<Leaf>,
}

impl Order {
    /// Of the keys of these slots, which are in order and at least one, with room for so many more.
    pub fn of(slots: &'static [Slot], more: usize) -> Order {
        let leaf = |slots: &'static [Slot]| {
            let mut leaf = empty();
            leaf.extend(slots.iter().map(|slot| (slot.key(), slot)));
            (leaf[0].0, leaf)
        };
        let mut leaves = slots.chunks(LOADED).map(leaf).peekable();
        let mut groups = Vec::with_capacity((slots.len() + more) / HALF);
        while leaves.peek().is_some() {
            let mut group = Vec::with_capacity(GROUP);
            group.extend(leaves.by_ref().take(GROUP / 2));
            groups.push((group[0].0, group));
        }
        Order { groups, spare: (0..more / HALF + 1).map(|_| empty()).collect() }
    }

    pub fn insert(&mut self, key: Words, slot: &'static Slot) {
        let at_group = place(&self.groups, &key);
        let group = &mut self.groups[at_group].1;
        let at_leaf = place(group, &key);
        let leaf = &mut group[at_leaf].1;
        let at = leaf.partition_point(|(other, _)| *other < key);
        if leaf.len() < FULL {
            leaf.insert(at, (key, slot));
            return;
        }
        let mut right = self.spare.pop().expect("there are as many as keys can fill");
        right.extend(leaf.drain(HALF..));
        if at <= HALF {
            leaf.insert(at, (key, slot))
        } else {
            right.insert(at - HALF, (key, slot))
        }
        group.insert(at_leaf + 1, (right[0].0, right));
        if group.len() == GROUP {
            let mut right = Vec::with_capacity(GROUP);
            right.extend(group.drain(GROUP / 2..));
            self.groups.insert(at_group + 1, (right[0].0, right));
        }
    }
}

/// An empty leaf whose memory was written once.
fn empty() -> Leaf {
    static NOTHING: Slot = Slot::empty();
    let mut leaf = vec![(Words::default(), &NOTHING); FULL];
    leaf.clear();
    leaf
}

/// The last whose first key is not above the key, or the first.
fn place<T>(parts: &[(Words, T)], key: &Words) -> usize {
    parts.partition_point(|(first, _)| first <= key).max(1) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::memory::made;
    use crate::floor::store::words;
    use crate::load::{Scattered, key, new_key};

    #[test]
    fn keys_stay_in_order() {
        const KEYS: usize = 30_000;
        let slots: &'static [Slot] = made(KEYS);
        slots.iter().enumerate().for_each(|(at, slot)| slot.name(&words(key(at).as_bytes())));
        let mut order = Order::of(slots, KEYS);
        let mut scattered = Scattered::below(KEYS);
        (0..KEYS).for_each(|_| order.insert(words(new_key(scattered.next()).as_bytes()), &slots[0]));
        let leaves = order.groups.iter().flat_map(|(_, group)| group);
        let keys: Vec<Words> = leaves.flat_map(|(_, leaf)| leaf).map(|(key, _)| *key).collect();
        assert_eq!(keys.len(), 2 * KEYS);
        assert!(keys.is_sorted());
        let firsts = order.groups.iter().all(|(first, group)| *first == group[0].0 && group.len() < GROUP);
        assert!(firsts, "a group is found by its first key");
    }
}
