//! The tree against a map, and what it counts.

use super::*;
use crate::heap::{Heap, System};
use crate::sync::often;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

/// An entry that has its key.
#[derive(Clone)]
struct Key(Arc<[u8]>, u32);

impl TreeEntry for Key {
    const IS_NUMBERED: bool = true;
    fn key(&self) -> &[u8] {
        self
    }
    fn number(&self) -> u32 {
        self.1
    }
    fn set_number(&mut self, number: u32) {
        self.1 = number;
    }
}

impl From<&[u8]> for Key {
    fn from(key: &[u8]) -> Key {
        Key(key.into(), 0)
    }
}

impl Deref for Key {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Key {
    fn is_same(&self, other: &Key) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

fn slot(number: u16) -> Key {
    format!("/{number:05}").as_bytes().into()
}

/// Height and bytes; every branch names the first entry of each child by its own pointer.
fn check(node: &TreeNode<Key>, is_root: bool) -> (usize, usize) {
    let begin = first(node).expect("no node is empty");
    match node.side() {
        Side::Left(slots) => {
            assert!(!slots.is_empty() && slots.len_with_tail() <= LEAF && slots.room() <= LEAF + 8);
            let settled = slots.settled(slots.len_with_tail(), &mut System);
            assert!(settled.windows(2).all(|pair| pair[0].key() < pair[1].key()));
            let common = usize::from(slots.note());
            for slot in settled.iter() {
                assert!(slot.starts_with(&begin[..common]), "a key without the common bytes");
                assert_eq!(slot.number(), number_in_leaf(slots.note(), slot), "a stale number");
            }
            (1, bytes(node))
        }
        Side::Right(children) => {
            assert!(children.len() <= BRANCH && children.room() <= BRANCH + 8);
            assert!(!is_root || children.len() > 1);
            assert!(Key::is_same(&children[0].first, &begin));
            let (common, note) = (usize::from(children.note()), children.note());
            for child in children.iter() {
                assert!(child.first.starts_with(&begin[..common]), "a key without the common bytes");
                assert_eq!(child.number, guide::number_in_branch(note, &child.first), "a stale number");
            }
            let below: Vec<_> = children
                .iter()
                .map(|child| {
                    assert!(Key::is_same(&child.first, &first(&child.node).unwrap()), "a stale first entry");
                    check(&child.node, false)
                })
                .collect();
            assert!(below.windows(2).all(|pair| pair[0].0 == pair[1].0), "leaves of different depth");
            (below[0].0 + 1, bytes(node) + below.iter().map(|one| one.1).sum::<usize>())
        }
    }
}

fn same(tree: &Tree<Key>, oracle: &BTreeMap<Vec<u8>, Key>) {
    let bytes = tree.root.as_ref().map_or(0, |root| check(root, true).1);
    assert_eq!(tree.bytes(), bytes);
    let all: Vec<_> = tree.from(b"").cloned().collect();
    assert_eq!(all.len(), oracle.len());
    assert!(all.iter().zip(oracle.values()).all(|(slot, oracle)| Key::is_same(slot, oracle)));
}

/// An older clone has what it had, and may have some of what came since.
fn older(tree: &Tree<Key>, had: &BTreeMap<Vec<u8>, Key>, now: &BTreeMap<Vec<u8>, Key>) {
    let all: Vec<_> = tree.from(b"").cloned().collect();
    assert!(all.windows(2).all(|pair| pair[0].key() < pair[1].key()));
    let known = |map: &BTreeMap<Vec<u8>, Key>, key: &Key| map.get(&key[..]).is_some_and(|one| one.is_same(key));
    assert_eq!(all.iter().filter(|key| known(had, key)).count(), had.len());
    assert!(all.iter().all(|key| known(had, key) || known(now, key)));
}

/// What a leaf of three takes without a copy: each rank, and each place.
#[test]
fn the_tail_of_a_leaf() {
    let memory = &mut Heap::new(drop);
    let numbers = [10, 20, 30, 15, 5, 35, 17, 25, 16, 4, 40];
    for end in (3..=numbers.len()).step_by(if cfg!(miri) { 4 } else { 1 }) {
        let made: Vec<Key> = numbers[..end].iter().copied().map(slot).collect();
        let mut tree = Tree::from_sorted(made[..3].iter().cloned(), memory);
        let clone = tree.clone();
        for key in &made[3..] {
            assert!(!tree.insert(key.clone(), memory), "there is room for eight");
        }
        let oracle: BTreeMap<Vec<u8>, Key> = made.iter().map(|s| (s.to_vec(), s.clone())).collect();
        same(&tree, &oracle);
        same(&clone, &oracle);
        let bounds: Vec<Vec<u8>> =
            (0..45).step_by(if cfg!(miri) { 9 } else { 1 }).map(|number| slot(number).to_vec()).collect();
        for from in &bounds {
            assert_eq!(tree.get(from).is_some(), oracle.contains_key(from));
            for to in &bounds {
                let here: Vec<_> = tree.range(from, Some(to)).map(|s| s.to_vec()).collect();
                let there: Vec<_> = oracle.keys().filter(|key| *key >= from && *key < to).cloned().collect();
                assert_eq!(here, there);
            }
        }
        for gone in &made {
            let mut fewer = tree.clone();
            assert!(fewer.remove(gone, memory));
            same(&tree, &oracle);
            let mut left = oracle.clone();
            left.remove(&gone[..]);
            same(&fewer, &left);
        }
        if end == numbers.len() {
            assert!(tree.insert(slot(50), memory), "a ninth settles the leaf");
            older(&clone, &oracle, &oracle);
            assert_eq!(tree.from(b"").count(), clone.from(b"").count() + 1);
        }
    }
}

/// A root with two children that would fit into one: nothing is removed, and nothing is joined.
#[test]
#[cfg_attr(miri, ignore = "it is of what a tree does, as `equals_a_map_and_its_clones_stay`")]
fn removal_of_absent_key() {
    let memory = &mut Heap::new(drop);
    let made: Vec<Key> = (0..1569).map(slot).collect();
    let mut oracle: BTreeMap<Vec<u8>, Key> = made.iter().map(|s| (s.to_vec(), s.clone())).collect();
    let mut tree = Tree::from_sorted(made.iter().cloned(), memory);
    for gone in &made[..59] {
        assert!(tree.remove(gone, memory));
        oracle.remove(&gone[..]);
    }
    same(&tree, &oracle);
    assert!(!tree.remove(&slot(1569), memory));
    same(&tree, &oracle);
}

/// Keys that begin alike for long, are begins of each other, or end in zeros.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let part = || prop::collection::vec(prop::sample::select(&[0u8, 1, b'a', 0xff][..]), 0..7);
    (prop::sample::select(&["", "/", "/registry/pods/", "/registry/pods/a", "/registry/secrets/"][..]), part(), part())
        .prop_map(|(begin, middle, end)| [begin.as_bytes(), &middle, &end].concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: often(200) as u32, failure_persistence: None, ..ProptestConfig::default() })]
    /// A search by guides finds what a map finds, whatever the keys have in common.
    #[test]
    fn guides_find_every_key(
        keys in prop::collection::vec(key(), 0..often(700)),
        gone in 0usize..500,
        asked in prop::collection::vec(key(), 50),
    ) {
        let memory = &mut Heap::new(drop);
        let (mut tree, mut oracle) = (Tree::default(), BTreeMap::new());
        for key in &keys {
            if !oracle.contains_key(key) {
                let made = Key::from(&key[..]);
                oracle.insert(key.clone(), made.clone());
                tree.insert(made, memory);
            }
        }
        same(&tree, &oracle);
        for key in keys.iter().take(gone) {
            prop_assert_eq!(tree.remove(key, memory), oracle.remove(key).is_some());
        }
        same(&tree, &oracle);
        for key in keys.iter().chain(&asked) {
            prop_assert_eq!(tree.get(key).is_some(), oracle.contains_key(key));
            let here = tree.from(key).next().map(|found| found.to_vec());
            let there = oracle.range(key.clone()..).next().map(|(found, _)| found.clone());
            prop_assert_eq!(here, there);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: often(48) as u32, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn equals_a_map_and_its_clones_stay(
        initial in 0..often(6000) as u16,
        ops in prop::collection::vec((any::<bool>(), 0u16..6000, 1..often(400) as u16), 0..often(60)),
    ) {
        let memory = &mut Heap::new(drop);
        let made: Vec<Key> = (0..initial).map(slot).collect();
        let mut oracle: BTreeMap<Vec<u8>, Key> = made.iter().map(|s| (s.to_vec(), s.clone())).collect();
        let mut tree = Tree::from_sorted(made.iter().cloned(), memory);
        same(&tree, &oracle);
        for (adds, start, count) in ops {
            let before = (tree.clone(), oracle.clone());
            for number in start..start.saturating_add(count).min(6000) {
                // Scattered, or in order.
                let number = if count % 2 == 0 { (u32::from(number) * 2654 % 6000) as u16 } else { number };
                let fresh = slot(number);
                match (adds, oracle.contains_key(&fresh[..])) {
                    (true, false) => {
                        tree.insert(fresh.clone(), memory);
                        oracle.insert(fresh.to_vec(), fresh);
                    }
                    (false, _) => {
                        tree.remove(&fresh, memory);
                        oracle.remove(&fresh[..]);
                    }
                    _ => {}
                }
            }
            same(&tree, &oracle);
            if adds { older(&before.0, &before.1, &oracle) } else { same(&before.0, &before.1) }
            for probe in [start, start / 2, 5999] {
                let key = format!("/{probe:05}x");
                let here: Vec<_> = tree.from(key.as_bytes()).take(3).map(|s| s.to_vec()).collect();
                let there: Vec<_> =
                    oracle.range(key.clone().into_bytes()..).take(3).map(|(key, _)| key.clone()).collect();
                prop_assert_eq!(here, there);
                let to = format!("/{:05}", u32::from(probe) + u32::from(count)).into_bytes();
                let here: Vec<_> = tree.range(key.as_bytes(), Some(&to)).map(|s| s.to_vec()).collect();
                let span = key.into_bytes()..to;
                let there: Vec<_> = if span.is_empty() { Vec::new() } else { oracle.range(span).map(|(key, _)| key.clone()).collect() };
                prop_assert_eq!(here, there);
                let key = format!("/{probe:05}").into_bytes();
                prop_assert_eq!(tree.get(&key).is_some(), oracle.contains_key(&key));
            }
        }
    }
}
