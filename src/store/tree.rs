//! A persistent ordered set of slots: a B+ tree with counted nodes.
//!
//! A change copies the path to its leaf, but what only the writer holds it changes in place; a clone
//! is one increment. In the index entries are plain pointers, so that copying a node touches no slot; those of a `KeySet`
//! are counts.
//!
//! A new entry is appended to the tail of its leaf, where that has room ([`crate::heap::shared_list`]): no path is copied,
//! and the clones that have the leaf have the entry from then on. A reader of a clone must be able to skip
//! entries that came after it; taking an entry out leaves each clone as it is. A leaf is settled, its tail
//! sorted into it, when it is copied.
//!
//! Why it is our own: a purged slot goes with the segment that was the newest when the root without it was
//! published, whatever nodes there are by then, so none may keep a copy of an entry that was removed.
//! `imbl::OrdSet` keeps such copies as separators in its branches, for as long as the leaf lives; the model
//! test found the use after free. Here a branch names the first entry of each child, renewed on the way back
//! from every change.

#![forbid(unsafe_code)]

mod guide;
mod iter;
mod node;

pub(crate) use iter::Iter;
pub(crate) use node::TreeEntry;

use guide::{Beside, child_of, number_in_leaf, place_of};
use node::{TreeChild, TreeNode, rank_of};

use crate::heap::Memory;
use crate::heap::shared_list::{Either, SharedList, Side, TAIL};

/// Most entries of a leaf, most children of a branch.
const LEAF: usize = 64;
const BRANCH: usize = 32;

impl<E: TreeEntry> TreeChild<E> {
    /// A node with an entry, in no branch yet.
    fn new(node: TreeNode<E>) -> TreeChild<E> {
        TreeChild { first: first(&node).expect("no node is empty"), node, number: 0 }
    }
}

/// Room for `len` and a little more.
fn room(len: usize) -> usize {
    (len + 8) & !7
}

/// Inserts without doubling the memory.
fn put<T>(all: &mut SharedList<T>, at: usize, one: T, memory: &mut impl Memory) {
    if all.len() == all.room() {
        all.resize(all.room() + 8, memory);
    }
    all.insert(at, one);
}

/// Frees what many removals have left empty.
fn trim<T>(all: &mut SharedList<T>, memory: &mut impl Memory) {
    if all.room() > room(all.len()) + 16 {
        all.resize(room(all.len()), memory);
    }
}

/// Splits a full node so that `at` has room: in the middle, or (keys that only grow) at the end.
fn split<T>(all: &mut SharedList<T>, at: usize, memory: &mut impl Memory) -> SharedList<T> {
    let middle = if at == all.len() { all.len() - 1 } else { all.len() / 2 };
    let right = all.split_off(middle, room(all.len() - middle), memory);
    all.resize(room(all.len()), memory);
    right
}

fn leaf<E>(entries: SharedList<E>) -> TreeNode<E> {
    Either::left(entries)
}

/// A leaf whose entries were in none yet.
fn new_leaf<E: TreeEntry>(mut entries: SharedList<E>) -> TreeNode<E> {
    guide::renew_leaf(&mut entries);
    leaf(entries)
}

fn branch<E>(children: SharedList<TreeChild<E>>) -> TreeNode<E> {
    Either::right(children)
}

/// A branch whose children are in none yet.
fn new_branch<E: TreeEntry>(mut children: SharedList<TreeChild<E>>) -> TreeNode<E> {
    guide::renew_all(&mut children);
    branch(children)
}

/// The first entry of a node, but for the tail of its first leaf. No key of another leaf's tail lies below the first
/// entry of that leaf, so it divides what lies before it from what follows all the same.
fn first<E: TreeEntry>(node: &TreeNode<E>) -> Option<E> {
    match node.side() {
        Side::Left(entries) => entries.first().cloned(),
        Side::Right(children) => children.first().map(|child| child.first.clone()),
    }
}

/// How full, in 64ths.
fn fill<E>(node: &TreeNode<E>) -> usize {
    match node.side() {
        Side::Left(entries) => entries.len_with_tail() * (64 / LEAF),
        Side::Right(children) => children.len() * (64 / BRANCH),
    }
}

/// Bytes of a node alone.
fn bytes<E>(node: &TreeNode<E>) -> usize {
    match node.side() {
        Side::Left(entries) => entries.bytes(),
        Side::Right(children) => children.bytes(),
    }
}

/// The sums that a tree keeps while it changes.
#[derive(Clone, Copy, Default)]
struct Sizes {
    /// Bytes of its nodes.
    bytes: usize,
    /// Bytes of the nodes that a copy took the place of: an older clone still holds them.
    copied: usize,
}

/// Room of a leaf of so many, and of the tail that it will have.
fn leaf_room(len: usize) -> usize {
    (len + TAIL + 1).min(LEAF).max(len)
}

/// The node for changing: a copy, unless nobody else has it. A leaf is settled.
fn own<E: TreeEntry>(node: &mut TreeNode<E>, sizes: &mut Sizes, memory: &mut impl Memory) {
    let is_unique = node.is_unique();
    let copy = match node.side() {
        Side::Left(entries) if is_unique && entries.tail().is_empty() => return,
        Side::Left(entries) => leaf(entries.settled(leaf_room(entries.len_with_tail()), memory)),
        Side::Right(_) if is_unique => return,
        Side::Right(children) => {
            let mut copy = SharedList::copied(children, room(children.len()), memory);
            copy.set_note(children.note());
            branch(copy)
        }
    };
    sizes.copied += if is_unique { 0 } else { bytes(node) };
    *node = copy;
}

/// Adds an entry to the tail of its leaf; it comes back where that has no room, or where it may have fewer bytes in
/// common with the others than they have.
fn append<E: TreeEntry>(mut node: &TreeNode<E>, mut entry: E) -> Result<(), E> {
    let mut seen = Beside::UNKNOWN;
    loop {
        match node.side() {
            Side::Right(children) => {
                let (at, beside) = child_of(children, entry.key(), seen);
                (node, seen) = (&children[at].node, beside);
            }
            Side::Left(entries) => {
                let (at, true) = place_of(entries, entry.key(), seen) else { return Err(entry) };
                let rank = rank_of(entries.tail(), at, entry.key());
                entry.set_number(number_in_leaf(entries.note(), entry.key()));
                return entries.append(at, rank, entry);
            }
        }
    }
}

/// Inserts; returns the right half where the node was split.
fn insert<E: TreeEntry>(
    node: &mut TreeNode<E>,
    (entry, seen): (E, Beside),
    sizes: &mut Sizes,
    memory: &mut impl Memory,
) -> Option<TreeChild<E>> {
    sizes.bytes -= bytes(node);
    own(node, sizes, memory);
    let right = node.renew(|side| match side {
        Side::Left(entries) => insert_into_leaf(entries, entry, seen, memory).map(leaf),
        Side::Right(children) => {
            let (at, beside) = child_of(children, entry.key(), seen);
            let child = children.get_mut(at);
            let right = insert(&mut child.node, (entry, beside), sizes, memory);
            child.first = first(&child.node).expect("an entry came");
            insert_into_branch(children, at, right, memory).map(branch)
        }
    });
    sizes.bytes += bytes(node);
    right.map(|right| {
        sizes.bytes += bytes(&right);
        TreeChild::new(right)
    })
}

/// The child at `at` has changed, and where it was divided, its right half comes behind it. The right half of the branch
/// where that was full.
fn insert_into_branch<E: TreeEntry>(
    children: &mut SharedList<TreeChild<E>>,
    at: usize,
    right: Option<TreeChild<E>>,
    memory: &mut impl Memory,
) -> Option<SharedList<TreeChild<E>>> {
    let changed = at..at + 1 + usize::from(right.is_some());
    let mut half = right.and_then(|right| put_or_split(children, at + 1, BRANCH, right, memory));
    match &mut half {
        Some(half) => {
            guide::renew_all(children);
            guide::renew_all(half);
        }
        None => guide::renew_some(children, changed),
    }
    half
}

fn insert_into_leaf<E: TreeEntry>(
    entries: &mut SharedList<E>,
    mut entry: E,
    seen: Beside,
    memory: &mut impl Memory,
) -> Option<SharedList<E>> {
    let (at, is_alike) = place_of(entries, entry.key(), seen);
    debug_assert!(entries.get(at).is_none_or(|other| other.key() != entry.key()), "one slot a key");
    if is_alike {
        entry.set_number(number_in_leaf(entries.note(), entry.key()));
    }
    let mut half = put_or_split(entries, at, LEAF, entry, memory);
    let renew = if is_alike { guide::renew_leaf_if_due } else { guide::renew_leaf };
    renew(entries);
    half.as_mut().into_iter().for_each(renew);
    half
}

/// Inserts into a node of at most so many; the right half where it was full.
fn put_or_split<T>(
    all: &mut SharedList<T>,
    at: usize,
    most: usize,
    one: T,
    memory: &mut impl Memory,
) -> Option<SharedList<T>> {
    let mut right = (all.len() == most).then(|| split(all, at, memory));
    match &mut right {
        Some(right) if at > all.len() => put(right, at - all.len(), one, memory),
        _ => put(all, at, one, memory),
    }
    right
}

/// Removes a key. True: it was there.
fn remove<E: TreeEntry>(
    node: &mut TreeNode<E>,
    (key, seen): (&[u8], Beside),
    sizes: &mut Sizes,
    memory: &mut impl Memory,
) -> bool {
    sizes.bytes -= bytes(node);
    own(node, sizes, memory);
    let removed = node.renew(|side| match side {
        Side::Left(entries) => {
            let (at, _) = place_of(entries, key, seen);
            let is_there = entries.get(at).is_some_and(|entry| entry.key() == key);
            if is_there {
                entries.remove(at);
                trim(entries, memory);
            }
            is_there
        }
        Side::Right(children) => remove_below(children, (key, seen), sizes, memory),
    });
    sizes.bytes += bytes(node);
    removed
}

fn remove_below<E: TreeEntry>(
    children: &mut SharedList<TreeChild<E>>,
    (key, seen): (&[u8], Beside),
    sizes: &mut Sizes,
    memory: &mut impl Memory,
) -> bool {
    let (at, beside) = child_of(children, key, seen);
    let child = children.get_mut(at);
    let removed = remove(&mut child.node, (key, beside), sizes, memory);
    match first(&child.node) {
        Some(first) => {
            child.first = first;
            guide::renew_some(children, at..at + 1);
            // A tree that has lost nothing keeps its form: nobody looks whether its root has one child left.
            if removed && fill(&children[at].node) < 16 {
                merge(children, at, sizes, memory);
            }
        }
        None => {
            sizes.bytes -= bytes(&child.node);
            children.remove(at);
        }
    }
    trim(children, memory);
    removed
}

/// Joins a child that has become small with a neighbour, where both fit into one.
fn merge<E: TreeEntry>(
    children: &mut SharedList<TreeChild<E>>,
    at: usize,
    sizes: &mut Sizes,
    memory: &mut impl Memory,
) {
    let fits =
        |left: usize| children.get(left + 1).is_some_and(|right| fill(&children[left].node) + fill(&right.node) <= 56);
    let left = if fits(at) {
        at
    } else if at > 0 && fits(at - 1) {
        at - 1
    } else {
        return;
    };
    let right = children.remove(left + 1).node;
    let child = children.get_mut(left);
    let node = &mut child.node;
    sizes.bytes -= bytes(node) + bytes(&right);
    own(node, sizes, memory);
    node.renew(|side| match (side, right.side()) {
        (Side::Left(all), Side::Left(more)) => {
            all.resize(leaf_room(all.len() + more.len_with_tail()), memory);
            all.extend_settled(more);
            guide::renew_leaf(all);
        }
        (Side::Right(all), Side::Right(more)) => {
            all.resize(room(all.len() + more.len()), memory);
            all.extend_from(more);
            guide::renew_all(all);
        }
        _ => unreachable!("neighbours are of one height"),
    });
    sizes.bytes += bytes(node);
    // Its tail may have had an entry below the first one.
    child.first = first(&child.node).expect("both had entries");
    guide::renew_some(children, left..left + 1);
}

/// The set.
#[derive(Clone)]
pub(crate) struct Tree<E> {
    root: Option<TreeNode<E>>,
    sizes: Sizes,
}

impl<E> Default for Tree<E> {
    fn default() -> Tree<E> {
        Tree { root: None, sizes: Sizes::default() }
    }
}

impl<E: TreeEntry> Tree<E> {
    /// The set of slots that come in key order, each key once. O(n).
    pub(crate) fn from_sorted(sorted: impl Iterator<Item = E>, memory: &mut impl Memory) -> Tree<E> {
        let mut tree = Tree::default();
        // Room for some to come.
        let mut level = Self::level_of(sorted, LEAF, new_leaf, memory);
        loop {
            tree.sizes.bytes += level.iter().map(bytes).sum::<usize>();
            if level.len() <= 1 {
                tree.root = level.pop();
                return tree;
            }
            level = Self::level_of(level.into_iter().map(TreeChild::new), BRANCH, new_branch, memory);
        }
    }

    /// Nodes of 7/8 of what they can hold.
    fn level_of<T>(
        sorted: impl Iterator<Item = T>,
        most: usize,
        node: impl Fn(SharedList<T>) -> TreeNode<E>,
        memory: &mut impl Memory,
    ) -> Vec<TreeNode<E>> {
        let mut level = Vec::new();
        let mut sorted = sorted.peekable();
        while sorted.peek().is_some() {
            let mut all = SharedList::with_room(most, memory);
            sorted.by_ref().take(most * 7 / 8).for_each(|one| all.insert(all.len(), one));
            level.push(node(all));
        }
        level
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
        let (mut node, mut seen) = (self.root.as_ref()?, Beside::UNKNOWN);
        loop {
            match node.side() {
                Side::Right(children) => {
                    let (at, beside) = child_of(children, key, seen);
                    (node, seen) = (&children[at].node, beside);
                }
                Side::Left(entries) => {
                    let tail = entries.tail();
                    let (at, _) = place_of(entries, key, seen);
                    let rank = rank_of(tail, at, key);
                    let late = (rank < tail.len()).then(|| tail.get(rank).1);
                    return late.into_iter().chain(entries.get(at)).find(|entry| entry.key() == key).cloned();
                }
            }
        }
    }

    /// Adds a slot whose key is not there yet. O(log n). False: no node was copied, so a clone that was equal before it
    /// is equal now.
    pub(crate) fn insert(&mut self, entry: E, memory: &mut impl Memory) -> bool {
        let Some(root) = &mut self.root else {
            let root = new_leaf(SharedList::copied(&[entry], room(1), memory));
            self.sizes.bytes = bytes(&root);
            self.root = Some(root);
            return true;
        };
        let Err(entry) = append(root, entry) else { return false };
        if let Some(right) = insert(root, (entry, Beside::UNKNOWN), &mut self.sizes, memory) {
            let above = new_branch(SharedList::copied(&[TreeChild::new(root.clone()), right], room(2), memory));
            self.sizes.bytes += bytes(&above);
            *root = above;
        }
        true
    }

    /// Takes a key out. O(log n).
    /// True: it was there.
    pub(crate) fn remove(&mut self, key: &[u8], memory: &mut impl Memory) -> bool {
        let Some(root) = &mut self.root else { return false };
        if !remove(root, (key, Beside::UNKNOWN), &mut self.sizes, memory) {
            return false;
        }
        while let Side::Right(children) = root.side()
            && let [only] = &children[..]
        {
            self.sizes.bytes -= bytes(root);
            *root = only.node.clone();
        }
        if first(root).is_none() {
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
        Iter::of(self.root.as_ref(), from, to)
    }

    /// Gives the tree away; `Some` if nobody else has any of it from the root on: then dropping
    /// what is returned frees nodes.
    pub(crate) fn into_last(self) -> Option<impl Send + use<E>>
    where
        E: Send + Sync,
    {
        self.root.and_then(Either::into_last)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
