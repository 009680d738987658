//! What a branch knows of the first keys of its children without a look at them.
//!
//! These keys lie in slots, anywhere in memory, and most of them begin alike. So a branch keeps, beside each child, how many
//! bytes all of its first keys have in common, and the eight bytes that follow these in this one, as a number. A search
//! compares the common bytes once, with those of the first child, then numbers that lie side by side, and keys only
//! where their numbers are equal.
//!
//! An example: the children begin with `/pods/a-001`, `/pods/a-0017` and `/pods/b-001`. `/pods/` is common, 6 bytes, and the
//! numbers are those of `a-001`, `a-0017` and `b-001`, each filled up with zeros. `/pods/a-002` lies above the first
//! two and below the third; `/nodes/x` differs in the common bytes, and lies below all.
//!
//! Fewer bytes than are common would do as well, so what is kept is right until a first key comes that has fewer of them.
//! It is counted anew then, and where a branch is made or divided.

#![forbid(unsafe_code)]

use super::{TreeChild, TreeEntry, search};
use crate::heap::shared_list::SharedList;
use std::cmp::Ordering;
use std::ops::Range;

/// Of one child: see the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Guide {
    /// The bytes that follow the common ones.
    number: u64,
    /// How many are common: the same beside each child of a branch.
    common: u32,
}

impl Guide {
    pub(super) fn of(key: &[u8], common: usize) -> Guide {
        Guide { number: number(&key[common..]), common: common as u32 }
    }
}

/// The first eight bytes in the order in which keys are compared, filled up with zeros.
#[inline]
fn number(bytes: &[u8]) -> u64 {
    if let Some(eight) = bytes.first_chunk() {
        return u64::from_be_bytes(*eight);
    }
    bytes.iter().rev().fold(0, |number, byte| number >> 8 | u64::from(*byte) << 56)
}

/// How many bytes two keys have in common.
pub(super) fn common_bytes(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The child that holds `key`, if any does.
pub(super) fn child_of<E: TreeEntry>(children: &[TreeChild<E>], key: &[u8]) -> usize {
    let Some(first) = children.first() else { return 0 };
    // No key lies below that of no bytes, with which a walk through everything begins. A compare of no bytes may be
    // slow, so there is none here, and none where nothing is common.
    if key.is_empty() {
        return 0;
    }
    let common = first.guide.common as usize;
    if common > 0 {
        match key[..common.min(key.len())].cmp(&first.first.key()[..common]) {
            Ordering::Less => return 0,
            Ordering::Greater => return children.len() - 1,
            Ordering::Equal => {}
        }
    }
    let number = number(&key[common..]);
    let low = children.partition_point(|child| child.guide.number < number);
    let alike = children[low..].iter().take_while(|child| child.guide.number == number).count();
    let below = match alike {
        0 => low,
        alike => low + search(&children[low..low + alike], |child| &child.first, |first| first <= key),
    };
    below.saturating_sub(1)
}

/// The first entries of some children have changed, or these children are new. The first child has its guide already.
pub(super) fn renew_some<E: TreeEntry>(children: &mut SharedList<TreeChild<E>>, some: Range<usize>) {
    let [first, .., last] = &children[..] else { return renew_all(children) };
    let common = first.guide.common as usize;
    if common > common_bytes(first.first.key(), last.first.key()) {
        return renew_all(children);
    }
    renew(children, some, common);
}

/// Counts what all have in common.
pub(super) fn renew_all<E: TreeEntry>(children: &mut SharedList<TreeChild<E>>) {
    let common = match &children[..] {
        [first, .., last] => common_bytes(first.first.key(), last.first.key()),
        _ => 0,
    };
    renew(children, 0..children.len(), common);
}

fn renew<E: TreeEntry>(children: &mut SharedList<TreeChild<E>>, some: Range<usize>, common: usize) {
    children[some.clone()].iter().for_each(|child| child.first.prefetch_key());
    for at in some {
        let child = children.get_mut(at);
        child.guide = Guide::of(child.first.key(), common);
    }
}
