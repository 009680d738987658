//! The common prefix and the numbers by which a node compares a key without reading those of its entries.
//!
//! Keys lie in versions, anywhere in memory, and those of one node mostly begin alike. So a node notes how many bytes all
//! of them have in common, and has beside each entry the bytes that follow these, as a number: four in a leaf, eight in a
//! branch, of the first key of each child. A search compares numbers that lie side by side, and keys only where their
//! numbers are equal.
//!
//! An example: the children of a branch begin with `/pods/a-001`, `/pods/a-0017` and `/pods/b-001`. `/pods/` is common, 6
//! bytes, and the numbers are those of `a-001`, `a-0017` and `b-001`, each filled up with zeros. `/pods/a-002` lies above
//! the first two and below the third; `/nodes/x` differs in the common bytes, and lies below all.
//!
//! Nor are the common bytes compared in each node on the way down: a search of a branch finds out how the key compares
//! with the first key of the child ([`Beside`]). `/pods/a-002` and `/pods/a-0017` have 10 bytes in common, by their numbers,
//! and then the searched key lies above. If the keys of that child have at most 10 bytes in common, it shares these, too;
//! if they have more in common, it lies above all of them.
//!
//! Fewer bytes than are common would do as well, so what is noted is right until a key comes that has fewer of them. It is
//! counted anew then, where a branch is made or divided, and where the numbers of a leaf differ late.

#![forbid(unsafe_code)]

use super::node::{TreeChild, TreeEntry, prefetch_keys, search};
use crate::data::key_number::{common_bytes, key_number};
use crate::heap::prefetch;
use crate::heap::shared_list::SharedList;
use std::ops::Range;

/// How a key lies beside the first one of a node, its tail aside: as far as a descent has seen, and as far as that first
/// one goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Beside {
    /// Below it.
    Below,
    /// So many bytes are common, or more.
    Alike(usize),
    /// So many bytes are common, and then it lies above.
    Above(usize),
}

impl Beside {
    /// At the root nothing was seen.
    pub(super) const UNKNOWN: Beside = Beside::Alike(0);

    /// The comparison as far as the node's common bytes: reads its first key if the result is not known yet.
    #[inline]
    fn of_common<E: TreeEntry>(self, key: &[u8], first: &E, common: usize) -> Beside {
        match self {
            Beside::Alike(seen) if seen < common => {
                let first = &first.key()[..common];
                if key.starts_with(first) {
                    return Beside::Alike(common);
                }
                let alike = common_bytes(key, first);
                if key.get(alike) < first.get(alike) { Beside::Below } else { Beside::Above(alike) }
            }
            seen => seen,
        }
    }

    /// Compares a key that does not lie below the child's first key with that first key, by their numbers alone: `number`
    /// and `of_child`. Both keys have `common` bytes in common. Zeros that fill up count as bytes here: they lie behind the
    /// end of the first key, so beyond the bytes that the keys of the child can have in common.
    #[inline]
    fn of_child(common: usize, number: u64, of_child: u64) -> Beside {
        match (number ^ of_child).leading_zeros() as usize / 8 {
            8 => Beside::Alike(common + 8),
            alike => Beside::Above(common + alike),
        }
    }
}

/// The number that a leaf with this note has of a key that has the common bytes.
#[inline]
pub(super) fn number_in_leaf(note: u16, key: &[u8]) -> u32 {
    (key_number(&key[usize::from(note)..]) >> 32) as u32
}

/// The number of a first key in a branch with this note.
#[inline]
pub(super) fn number_in_branch(note: u16, key: &[u8]) -> u64 {
    key_number(&key[usize::from(note)..])
}

/// How many bytes all of these keys have in common, as far as a note can say it.
fn common_of<'a, E: TreeEntry + 'a>(first: Option<&'a E>, last: Option<&'a E>) -> u16 {
    let common = first.zip(last).map_or(0, |(first, last)| common_bytes(first.key(), last.key()));
    common.min(usize::from(u16::MAX)) as u16
}

/// Asks the processor for all of a node: a search looks at a few of its lines, each after the one before.
#[inline]
fn prefetch_node<T>(all: &[T]) {
    (0..size_of_val(all)).step_by(64).for_each(|at| prefetch(all.as_ptr().cast::<u8>().wrapping_add(at)));
}

/// The child that holds `key`, if any does, and how that lies beside its first key.
pub(super) fn child_of<E: TreeEntry>(children: &SharedList<TreeChild<E>>, key: &[u8], seen: Beside) -> (usize, Beside) {
    let Some(first) = children.first() else { return (0, seen) };
    // No key lies below that of no bytes. A compare with no bytes may be slow, so there is none here.
    if key.is_empty() {
        return (0, Beside::Below);
    }
    prefetch_node(children);
    let common = usize::from(children.note());
    match seen.of_common(key, &first.first, common) {
        Beside::Below => return (0, Beside::Below),
        above @ Beside::Above(alike) if alike < common => return (children.len() - 1, above),
        _ => {}
    }
    let number = key_number(&key[common..]);
    let low = children.partition_point(|child| child.number < number);
    let alike = children[low..].iter().take_while(|child| child.number == number).count();
    let not_above = match alike {
        0 => low,
        alike => low + search(&children[low..low + alike], |child| &child.first, |first| first <= key),
    };
    let Some(at) = not_above.checked_sub(1) else { return (0, Beside::Below) };
    (at, Beside::of_child(common, number, children[at].number))
}

/// The index of the first entry of a leaf, its tail aside, that is not below `key`, and whether `key` is known to have the
/// common bytes of the leaf.
pub(super) fn place_of<E: TreeEntry>(entries: &SharedList<E>, key: &[u8], seen: Beside) -> (usize, bool) {
    let Some(first) = entries.first() else { return (0, true) };
    if key.is_empty() {
        return (0, false);
    }
    if !E::IS_NUMBERED {
        return (search(entries, |entry| entry, |other| other < key), true);
    }
    prefetch_node(entries);
    let common = usize::from(entries.note());
    match seen.of_common(key, first, common) {
        Beside::Below => return (0, false),
        Beside::Above(alike) if alike < common => return (entries.len(), false),
        _ => {}
    }
    let number = number_in_leaf(entries.note(), key);
    let low = entries.partition_point(|entry| entry.number() < number);
    let alike = entries[low..].iter().take_while(|entry| entry.number() == number).count();
    let at = match alike {
        0 => low,
        alike => low + search(&entries[low..low + alike], |entry| entry, |other| other < key),
    };
    (at, true)
}

/// Counts what the keys of a settled leaf have in common.
pub(super) fn renew_leaf<E: TreeEntry>(entries: &mut SharedList<E>) {
    if !E::IS_NUMBERED {
        return;
    }
    prefetch_keys(entries.iter());
    let last = entries.last().filter(|_| entries.len() > 1);
    entries.set_note(common_of(entries.first(), last));
    for at in 0..entries.len() {
        let number = number_in_leaf(entries.note(), entries[at].key());
        entries.get_mut(at).set_number(number);
    }
}

/// Counts the common bytes of a leaf anew if its first and last number begin alike: some are not counted yet.
pub(super) fn renew_leaf_if_due<E: TreeEntry>(entries: &mut SharedList<E>) {
    if E::IS_NUMBERED
        && let [first, .., last] = &entries[..]
        && (first.number() ^ last.number()) >> 16 == 0
    {
        renew_leaf(entries);
    }
}

/// The first entries of some children have changed, or these children are new.
pub(super) fn renew_some<E: TreeEntry>(children: &mut SharedList<TreeChild<E>>, some: Range<usize>) {
    // Keys are in order, so what the outer ones have in common the others have, too.
    let is_outer = some.start == 0 || some.end == children.len();
    if is_outer && children.note() > common_of_children(children) {
        return renew_all(children);
    }
    renew(children, some);
}

/// Counts what all have in common.
pub(super) fn renew_all<E: TreeEntry>(children: &mut SharedList<TreeChild<E>>) {
    children.set_note(common_of_children(children));
    renew(children, 0..children.len());
}

fn common_of_children<E: TreeEntry>(children: &[TreeChild<E>]) -> u16 {
    let last = children.last().filter(|_| children.len() > 1);
    common_of(children.first().map(|child| &child.first), last.map(|child| &child.first))
}

fn renew<E: TreeEntry>(children: &mut SharedList<TreeChild<E>>, some: Range<usize>) {
    prefetch_keys(children[some.clone()].iter().map(|child| &child.first));
    for at in some {
        let number = number_in_branch(children.note(), children[at].first.key());
        children.get_mut(at).number = number;
    }
}
