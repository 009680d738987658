//! A persistent ordered set of slots: a B+ tree with counted nodes.
//!
//! A change copies the path to its leaf, but what only the writer holds it changes in place; a clone
//! is one increment. Entries are plain pointers, so that copying a node touches no slot.
//!
//! Why it is our own: a slot is freed once no root holds it, so no node may keep a copy of an entry
//! that was removed. `imbl::OrdSet` keeps such copies as separators in its branches, for as long as
//! the leaf lives; the model test found the use after free. Here a branch names the first entry of
//! each child, renewed on the way back from every change.

#![forbid(unsafe_code)]

use crate::data::slot::Key;
use std::sync::Arc;

/// What a tree holds: ordered by its key.
pub(crate) trait TreeEntry: Clone {
    fn key(&self) -> &[u8];
}

impl TreeEntry for Key {
    fn key(&self) -> &[u8] {
        self
    }
}

/// Most entries of a leaf, most children of a branch.
const LEAF: usize = 64;
const BRANCH: usize = 32;

enum TreeNode<E> {
    Leaf(Vec<E>),
    Branch(Vec<TreeChild<E>>),
}

#[derive(Clone)]
struct TreeChild<E> {
    /// The first entry below it: this very pointer.
    first: E,
    node: Arc<TreeNode<E>>,
}

/// Room for `len` and a little more.
fn room(len: usize) -> usize {
    (len + 8) & !7
}

fn copied<T: Clone>(all: &[T]) -> Vec<T> {
    let mut copy = Vec::with_capacity(room(all.len()));
    copy.extend_from_slice(all);
    copy
}

/// Inserts without doubling the memory.
fn put<T>(all: &mut Vec<T>, at: usize, one: T) {
    if all.len() == all.capacity() {
        all.reserve_exact(8);
    }
    all.insert(at, one);
}

/// Frees what many removals have left empty.
fn trim<T>(all: &mut Vec<T>) {
    if all.capacity() > room(all.len()) + 16 {
        all.shrink_to(room(all.len()));
    }
}

/// Splits a full vector so that `at` has room: in the middle, or (keys that only grow) at the end.
fn split<T>(all: &mut Vec<T>, at: usize) -> Vec<T> {
    let middle = if at == all.len() { all.len() - 1 } else { all.len() / 2 };
    let mut right = Vec::with_capacity(room(all.len() - middle));
    right.extend(all.drain(middle..));
    all.shrink_to(room(all.len()));
    right
}

impl<E: TreeEntry> TreeNode<E> {
    fn first(&self) -> Option<E> {
        match self {
            TreeNode::Leaf(slots) => slots.first().cloned(),
            TreeNode::Branch(children) => children.first().map(|child| child.first.clone()),
        }
    }

    /// How full, in 64ths.
    fn fill(&self) -> usize {
        match self {
            TreeNode::Leaf(slots) => slots.len() * (64 / LEAF),
            TreeNode::Branch(children) => children.len() * (64 / BRANCH),
        }
    }

    /// Bytes of this node alone, with the counts of its `Arc`.
    fn bytes(&self) -> usize {
        let content = match self {
            TreeNode::Leaf(slots) => slots.capacity() * size_of::<E>(),
            TreeNode::Branch(children) => children.capacity() * size_of::<TreeChild<E>>(),
        };
        size_of::<TreeNode<E>>() + 2 * size_of::<usize>() + content
    }
}

/// What a tree counts while it changes.
#[derive(Clone, Copy, Default)]
struct Sizes {
    /// Bytes of its nodes.
    bytes: usize,
    /// Bytes of the nodes that a copy took the place of: an older clone still holds them.
    copied: usize,
}

/// The node for changing: a copy, unless nobody else has it.
fn own<'a, E: TreeEntry>(node: &'a mut Arc<TreeNode<E>>, sizes: &mut Sizes) -> &'a mut TreeNode<E> {
    if Arc::get_mut(node).is_none() {
        sizes.copied += node.bytes();
        *node = Arc::new(match &**node {
            TreeNode::Leaf(slots) => TreeNode::Leaf(copied(slots)),
            TreeNode::Branch(children) => TreeNode::Branch(copied(children)),
        });
    }
    Arc::get_mut(node).expect("just copied")
}

/// The child that holds `key`, if any does.
fn child_of<E: TreeEntry>(children: &[TreeChild<E>], key: &[u8]) -> usize {
    children.partition_point(|child| child.first.key() <= key).saturating_sub(1)
}

/// Inserts; returns the right half where the node was split.
fn insert<E: TreeEntry>(node: &mut Arc<TreeNode<E>>, slot: E, sizes: &mut Sizes) -> Option<TreeChild<E>> {
    sizes.bytes -= node.bytes();
    let right = match own(node, sizes) {
        TreeNode::Leaf(slots) => {
            let at = slots.partition_point(|other| other.key() < slot.key());
            debug_assert!(slots.get(at).is_none_or(|other| other.key() != slot.key()), "one slot a key");
            let mut right = (slots.len() == LEAF).then(|| split(slots, at));
            match &mut right {
                Some(right) if at > slots.len() => put(right, at - slots.len(), slot),
                _ => put(slots, at, slot),
            }
            right.map(TreeNode::Leaf)
        }
        TreeNode::Branch(children) => {
            let at = child_of(children, slot.key());
            let right = insert(&mut children[at].node, slot, sizes);
            children[at].first = children[at].node.first().expect("an entry came");
            right.and_then(|child| {
                let at = at + 1;
                let mut right = (children.len() == BRANCH).then(|| split(children, at));
                match &mut right {
                    Some(right) if at > children.len() => put(right, at - children.len(), child),
                    _ => put(children, at, child),
                }
                right.map(TreeNode::Branch)
            })
        }
    };
    sizes.bytes += node.bytes();
    right.map(|right| {
        sizes.bytes += right.bytes();
        TreeChild { first: right.first().expect("half of a full node"), node: Arc::new(right) }
    })
}

/// Removes a key. True: it was there.
fn remove<E: TreeEntry>(node: &mut Arc<TreeNode<E>>, key: &[u8], sizes: &mut Sizes) -> bool {
    sizes.bytes -= node.bytes();
    let removed = match own(node, sizes) {
        TreeNode::Leaf(slots) => match slots.binary_search_by(|slot| slot.key().cmp(key)) {
            Ok(at) => {
                slots.remove(at);
                trim(slots);
                true
            }
            Err(_) => false,
        },
        TreeNode::Branch(children) => {
            let at = child_of(children, key);
            let removed = remove(&mut children[at].node, key, sizes);
            match children[at].node.first() {
                // A tree that has lost nothing keeps its form: nobody looks whether its root has one child left.
                Some(_) if !removed => {}
                Some(first) => {
                    children[at].first = first;
                    if children[at].node.fill() < 16 {
                        merge(children, at, sizes);
                    }
                }
                None => {
                    sizes.bytes -= children[at].node.bytes();
                    children.remove(at);
                }
            }
            trim(children);
            removed
        }
    };
    sizes.bytes += node.bytes();
    removed
}

/// Joins a child that has become small with a neighbour, where both fit into one.
fn merge<E: TreeEntry>(children: &mut Vec<TreeChild<E>>, at: usize, sizes: &mut Sizes) {
    let fits =
        |left: usize| children.get(left + 1).is_some_and(|right| children[left].node.fill() + right.node.fill() <= 56);
    let left = if fits(at) {
        at
    } else if at > 0 && fits(at - 1) {
        at - 1
    } else {
        return;
    };
    let right = children.remove(left + 1).node;
    let node = &mut children[left].node;
    sizes.bytes -= node.bytes() + right.bytes();
    match (own(node, sizes), &*right) {
        (TreeNode::Leaf(all), TreeNode::Leaf(more)) => {
            all.reserve_exact(room(all.len() + more.len()) - all.len());
            all.extend_from_slice(more);
        }
        (TreeNode::Branch(all), TreeNode::Branch(more)) => {
            all.reserve_exact(room(all.len() + more.len()) - all.len());
            all.extend_from_slice(more);
        }
        _ => unreachable!("neighbours are of one height"),
    }
    sizes.bytes += node.bytes();
}

/// The set.
#[derive(Clone)]
pub(crate) struct Tree<E> {
    root: Option<Arc<TreeNode<E>>>,
    sizes: Sizes,
}

impl<E> Default for Tree<E> {
    fn default() -> Tree<E> {
        Tree { root: None, sizes: Sizes::default() }
    }
}

impl<E: TreeEntry> Tree<E> {
    /// The set of slots that come in key order, each key once. O(n).
    pub(crate) fn from_sorted(sorted: impl Iterator<Item = E>) -> Tree<E> {
        let mut tree = Tree::default();
        let mut level = Vec::new();
        let mut leaf = Vec::with_capacity(LEAF);
        for slot in sorted {
            leaf.push(slot);
            // Room for some to come.
            if leaf.len() == LEAF * 7 / 8 {
                level.push(TreeNode::Leaf(std::mem::replace(&mut leaf, Vec::with_capacity(LEAF))));
            }
        }
        if !leaf.is_empty() {
            level.push(TreeNode::Leaf(leaf));
        }
        loop {
            tree.sizes.bytes += level.iter().map(TreeNode::<E>::bytes).sum::<usize>();
            if level.len() <= 1 {
                tree.root = level.pop().map(Arc::new);
                return tree;
            }
            let mut above = Vec::new();
            let mut children = level
                .into_iter()
                .map(|node| TreeChild { first: node.first().expect("no node is empty"), node: Arc::new(node) });
            loop {
                let mut branch = Vec::with_capacity(BRANCH);
                branch.extend(children.by_ref().take(BRANCH * 7 / 8));
                if branch.is_empty() {
                    break;
                }
                above.push(TreeNode::Branch(branch));
            }
            level = above;
        }
    }

    /// Bytes of its nodes.
    pub(crate) fn bytes(&self) -> usize {
        self.sizes.bytes
    }

    /// Bytes of nodes that were replaced since this was asked last: what goes with the clone before.
    pub(crate) fn take_copied(&mut self) -> usize {
        std::mem::take(&mut self.sizes.copied)
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<E> {
        let mut node = self.root.as_deref()?;
        loop {
            match node {
                TreeNode::Branch(children) => node = &children[child_of(children, key)].node,
                TreeNode::Leaf(slots) => {
                    return slots.binary_search_by(|slot| slot.key().cmp(key)).ok().map(|at| slots[at].clone());
                }
            }
        }
    }

    /// Adds a slot whose key is not there yet. O(log n).
    pub(crate) fn insert(&mut self, slot: E) {
        let Some(root) = &mut self.root else {
            let leaf = TreeNode::Leaf(copied(&[slot]));
            self.sizes.bytes = leaf.bytes();
            self.root = Some(Arc::new(leaf));
            return;
        };
        if let Some(right) = insert(root, slot, &mut self.sizes) {
            let left = TreeChild { first: root.first().expect("half of a full node"), node: root.clone() };
            let above = TreeNode::Branch(copied(&[left, right]));
            self.sizes.bytes += above.bytes();
            *root = Arc::new(above);
        }
    }

    /// Takes a key out. O(log n).
    /// True: it was there.
    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        let Some(root) = &mut self.root else { return false };
        if !remove(root, key, &mut self.sizes) {
            return false;
        }
        while let TreeNode::Branch(children) = &**root
            && let [only] = &children[..]
        {
            self.sizes.bytes -= root.bytes();
            *root = only.node.clone();
        }
        if root.first().is_none() {
            *self = Tree::default();
        }
        true
    }

    /// The slots from `from` on, inclusive, in key order.
    pub(crate) fn from(&self, from: &[u8]) -> Iter<'_, E> {
        self.range(from, None)
    }

    /// The slots from `from` on, inclusive, to `to`, exclusive (`None`: to the end), in key order. O(log n), and
    /// one comparison a leaf.
    pub(crate) fn range(&self, from: &[u8], to: Option<&[u8]>) -> Iter<'_, E> {
        let mut iter = Iter { path: Vec::with_capacity(8), leaf: [].iter(), to: to.map(<[u8]>::to_vec) };
        let mut node = self.root.as_deref();
        while let Some(at) = node {
            node = match at {
                TreeNode::Branch(children) => {
                    let mut rest = children[child_of(children, from)..].iter();
                    let child = rest.next().map(|child| &*child.node);
                    iter.path.push(rest);
                    child
                }
                TreeNode::Leaf(slots) => {
                    iter.enter(&slots[slots.partition_point(|slot| slot.key() < from)..]);
                    None
                }
            };
        }
        iter
    }

    /// Gives the tree away; `Some` if nobody else has any of it from the root on: then dropping
    /// what is returned frees nodes.
    pub(crate) fn into_last(self) -> Option<impl Send + use<E>>
    where
        E: Send + Sync,
    {
        self.root.and_then(Arc::into_inner)
    }
}

/// Entries in key order.
pub(crate) struct Iter<'a, E> {
    path: Vec<std::slice::Iter<'a, TreeChild<E>>>,
    leaf: std::slice::Iter<'a, E>,
    to: Option<Vec<u8>>,
}

impl<'a, E: TreeEntry> Iter<'a, E> {
    /// Continues with the entries of a leaf: to their end, or to that of the range, which is looked for here and
    /// not at each entry.
    fn enter(&mut self, entries: &'a [E]) {
        let ends = |to: &Vec<u8>| entries.last().is_some_and(|last| last.key() >= &to[..]);
        self.leaf = match &self.to {
            Some(to) if ends(to) => {
                self.path.clear();
                entries[..entries.partition_point(|entry| entry.key() < &to[..])].iter()
            }
            _ => entries.iter(),
        };
    }
}

impl<'a, E: TreeEntry> Iterator for Iter<'a, E> {
    type Item = &'a E;

    #[inline]
    fn next(&mut self) -> Option<&'a E> {
        loop {
            if let Some(slot) = self.leaf.next() {
                return Some(slot);
            }
            let mut child = loop {
                match self.path.last_mut()?.next() {
                    Some(child) => break child,
                    None => {
                        self.path.pop();
                    }
                }
            };
            loop {
                match &*child.node {
                    TreeNode::Leaf(slots) => {
                        self.enter(slots);
                        break;
                    }
                    TreeNode::Branch(children) => {
                        let mut rest = children.iter();
                        child = rest.next().expect("no node is empty");
                        self.path.push(rest);
                    }
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn slot(number: u16) -> Key {
        format!("/{number:05}").into_bytes().into()
    }

    /// Height and bytes; every branch names the first entry of each child by its own pointer.
    fn check(node: &TreeNode<Key>, is_root: bool) -> (usize, usize) {
        let first = node.first().expect("no node is empty");
        match node {
            TreeNode::Leaf(slots) => {
                assert!(slots.len() <= LEAF && slots.capacity() <= LEAF + 8);
                assert!(slots.windows(2).all(|pair| pair[0].key() < pair[1].key()));
                (1, node.bytes())
            }
            TreeNode::Branch(children) => {
                assert!(children.len() <= BRANCH && children.capacity() <= BRANCH + 8);
                assert!(!is_root || children.len() > 1);
                assert!(Arc::ptr_eq(&children[0].first, &first));
                let below: Vec<_> = children
                    .iter()
                    .map(|child| {
                        assert!(Arc::ptr_eq(&child.first, &child.node.first().unwrap()), "a stale first entry");
                        check(&child.node, false)
                    })
                    .collect();
                assert!(below.windows(2).all(|pair| pair[0].0 == pair[1].0), "leaves of different depth");
                (below[0].0 + 1, node.bytes() + below.iter().map(|one| one.1).sum::<usize>())
            }
        }
    }

    fn same(tree: &Tree<Key>, oracle: &BTreeMap<Vec<u8>, Key>) {
        let bytes = tree.root.as_deref().map_or(0, |root| check(root, true).1);
        assert_eq!(tree.bytes(), bytes);
        let all: Vec<_> = tree.from(b"").cloned().collect();
        assert_eq!(all.len(), oracle.len());
        assert!(all.iter().zip(oracle.values()).all(|(slot, oracle)| Arc::ptr_eq(slot, oracle)));
    }

    /// A root with two children that would fit into one: nothing is removed, and nothing is joined.
    #[test]
    fn removal_of_absent_key() {
        let made: Vec<Key> = (0..1569).map(slot).collect();
        let mut oracle: BTreeMap<Vec<u8>, Key> = made.iter().map(|s| (s.to_vec(), s.clone())).collect();
        let mut tree = Tree::from_sorted(made.iter().cloned());
        for gone in &made[..59] {
            assert!(tree.remove(gone));
            oracle.remove(&gone[..]);
        }
        same(&tree, &oracle);
        assert!(!tree.remove(&slot(1569)));
        same(&tree, &oracle);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn equals_a_map_and_its_clones_stay(
            initial in 0u16..6000,
            ops in prop::collection::vec((any::<bool>(), 0u16..6000, 1u16..400), 0..60),
        ) {
            let made: Vec<Key> = (0..initial).map(slot).collect();
            let mut oracle: BTreeMap<Vec<u8>, Key> = made.iter().map(|s| (s.to_vec(), s.clone())).collect();
            let mut tree = Tree::from_sorted(made.iter().cloned());
            same(&tree, &oracle);
            for (adds, start, count) in ops {
                let before = (tree.clone(), oracle.clone());
                for number in start..start.saturating_add(count).min(6000) {
                    // Scattered, or in order.
                    let number = if count % 2 == 0 { (u32::from(number) * 2654 % 6000) as u16 } else { number };
                    let fresh = slot(number);
                    match (adds, oracle.contains_key(&fresh[..])) {
                        (true, false) => {
                            tree.insert(fresh.clone());
                            oracle.insert(fresh.to_vec(), fresh);
                        }
                        (false, _) => {
                            tree.remove(&fresh);
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
}
