//! The tree against a map, and what it counts.

use super::*;
use crate::heap::Heap;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn slot(number: u16) -> Key {
    format!("/{number:05}").as_bytes().into()
}

/// Height and bytes; every branch names the first entry of each child by its own pointer.
fn check(node: &TreeNode<Key>, is_root: bool) -> (usize, usize) {
    let begin = first(node).expect("no node is empty");
    match node.side() {
        Side::Left(slots) => {
            assert!(slots.len() <= LEAF && slots.room() <= LEAF + 8);
            assert!(slots.windows(2).all(|pair| pair[0].key() < pair[1].key()));
            (1, bytes(node))
        }
        Side::Right(children) => {
            assert!(children.len() <= BRANCH && children.room() <= BRANCH + 8);
            assert!(!is_root || children.len() > 1);
            assert!(Key::is_same(&children[0].first, &begin));
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

/// A root with two children that would fit into one: nothing is removed, and nothing is joined.
#[test]
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn equals_a_map_and_its_clones_stay(
        initial in 0u16..6000,
        ops in prop::collection::vec((any::<bool>(), 0u16..6000, 1u16..400), 0..60),
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
            same(&before.0, &before.1);
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
