//! The entries of a tree in key order: those of each leaf, and those of its tail where they belong.

#![forbid(unsafe_code)]

use super::guide::{Beside, child_of, place_of};
use super::node::{TreeChild, TreeEntry, TreeNode, rank_of};
use crate::heap::shared_list::{SharedList, Side, Tail};

/// How many entries before its turn one is fetched: a leaf is there, and what its entries lead to lies anywhere.
const AHEAD: usize = 8;

/// Entries in key order.
pub(crate) struct Iter<'a, E> {
    path: Vec<PathPart<'a, E>>,
    leaf: std::slice::Iter<'a, E>,
    /// How many of these follow the next entry of the tail.
    after: usize,
    late: Option<Late<'a, E>>,
    to: Option<Vec<u8>>,
}

/// Children of a branch that are still to come, none behind the end of the range.
struct PathPart<'a, E> {
    rest: std::slice::Iter<'a, TreeChild<E>>,
    /// The end of the range in the last branch: how it compares with the first key there.
    end: Option<Beside>,
}

/// Entries of the tail of a leaf: from a rank to another one.
struct Late<'a, E> {
    tail: Tail<'a, E>,
    next: usize,
    end: usize,
    /// The index after the leaf's last entry of the range.
    to: usize,
}

/// What comes next.
enum Next<'a, E> {
    /// An entry of the tail.
    Late(&'a E),
    /// One of the leaf.
    Leaf,
    End,
}

impl<'a, E: TreeEntry> Late<'a, E> {
    /// How many entries of the leaf follow the next one of these.
    fn after(&self) -> usize {
        if self.next < self.end { self.to - self.tail.get(self.next).0 } else { 0 }
    }
}

impl<'a, E: TreeEntry> Iter<'a, E> {
    /// The entries of a tree from `from` on, inclusive, to `to`, exclusive (`None`: to the end).
    pub(super) fn of(root: Option<&'a TreeNode<E>>, from: &[u8], to: Option<&[u8]>) -> Iter<'a, E> {
        let mut iter =
            Iter { path: Vec::with_capacity(8), leaf: [].iter(), after: 0, late: None, to: to.map(<[u8]>::to_vec) };
        if let Some(root) = root {
            let whole = |bound: &&[u8]| !bound.is_empty();
            iter.descend(
                root,
                Some(from).filter(whole).map(|from| (from, Beside::UNKNOWN)),
                to.map(|_| Beside::UNKNOWN),
            );
        }
        iter
    }

    /// Goes to the first leaf below a node that may have entries from `from` on, where that is given, to `end`, where
    /// the range ends below that node.
    fn descend(&mut self, mut node: &'a TreeNode<E>, mut from: Option<(&[u8], Beside)>, mut end: Option<Beside>) {
        loop {
            match node.side() {
                Side::Right(children) => {
                    let (mut at, mut last) = (0, children.len() - 1);
                    if let Some((key, seen)) = &mut from {
                        (at, *seen) = child_of(children, key, *seen);
                    }
                    if let (Some(to), Some(seen)) = (&self.to, &mut end) {
                        (last, *seen) = child_of(children, to, *seen);
                    }
                    // A range that ends before it begins has nothing.
                    let mut rest = children.get(at..=last).unwrap_or_default().iter();
                    let Some(child) = rest.next() else { return };
                    node = &child.node;
                    let is_last = rest.len() == 0;
                    self.path.push(PathPart { rest, end });
                    end = end.filter(|_| is_last);
                }
                Side::Left(entries) => return self.enter(entries, from, end),
            }
        }
    }

    /// Continues with the entries of a leaf from `from` on, where that is given, to the end of the range, where that lies
    /// here.
    #[inline]
    fn enter(&mut self, entries: &'a SharedList<E>, from: Option<(&[u8], Beside)>, end: Option<Beside>) {
        let tail = entries.tail();
        let at = from.map_or(0, |(key, seen)| place_of(entries, key, seen).0);
        let to = match (&self.to, end) {
            (Some(to), Some(seen)) => place_of(entries, to, seen).0,
            _ => entries.len(),
        };
        self.leaf = entries.get(at..to).unwrap_or_default().iter();
        if !tail.is_empty() {
            self.enter_tail(tail, from.map_or((0, None), |(key, _)| (at, Some(key))), (to, end.is_some()));
        }
    }

    /// The same with a tail: from the key on that in the list belongs at `at`, to the end of the range where that lies here.
    #[inline(never)]
    fn enter_tail(&mut self, tail: Tail<'a, E>, (at, from): (usize, Option<&[u8]>), (to, ends): (usize, bool)) {
        (0..tail.len()).for_each(|rank| tail.get(rank).1.prefetch());
        let next = from.map_or(0, |key| rank_of(tail, at, key));
        let end = match &self.to {
            Some(key) if ends => rank_of(tail, to, key),
            _ => tail.len(),
        };
        let late = Late { tail, next, end, to };
        self.after = late.after();
        self.late = Some(late);
    }

    /// Calls `each` for the next entries, as many as stand side by side and `most` at most. How many they were: 0
    /// where there are no more. A loop over runs does for each entry what has to be done for each, and nothing else.
    #[inline]
    pub(crate) fn next_run(&mut self, most: usize, mut each: impl FnMut(&'a E)) -> usize {
        if self.leaf.len() <= self.after {
            match self.go_on() {
                Next::Late(entry) => {
                    each(entry);
                    return 1;
                }
                Next::Leaf => {}
                Next::End => return 0,
            }
        }
        let here = self.leaf.as_slice();
        let (run, rest) = here.split_at(most.min(here.len() - self.after));
        for (at, entry) in run.iter().enumerate() {
            if let Some(later) = here.get(at + AHEAD) {
                later.prefetch();
            }
            each(entry);
        }
        self.leaf = rest.iter();
        run.len()
    }

    /// Where no entry of the leaf is next: the one of the tail that is, or a leaf that has one. Apart, so that what is
    /// done for each entry stands inline.
    #[inline(never)]
    fn go_on(&mut self) -> Next<'a, E> {
        loop {
            match &mut self.late {
                Some(late) if late.next < late.end => {
                    let (_, entry) = late.tail.get(late.next);
                    late.next += 1;
                    self.after = late.after();
                    return Next::Late(entry);
                }
                _ => self.late = None,
            }
            if self.next_leaf().is_none() {
                return Next::End;
            }
            if self.leaf.len() > self.after {
                return Next::Leaf;
            }
        }
    }

    fn next_leaf(&mut self) -> Option<()> {
        loop {
            let part = self.path.last_mut()?;
            if let Some(child) = part.rest.next() {
                let end = part.end.filter(|_| part.rest.len() == 0);
                self.descend(&child.node, None, end);
                return Some(());
            }
            self.path.pop();
        }
    }
}

impl<'a, E: TreeEntry> Iterator for Iter<'a, E> {
    type Item = &'a E;

    #[inline]
    fn next(&mut self) -> Option<&'a E> {
        if self.leaf.len() > self.after {
            if let Some(later) = self.leaf.as_slice().get(AHEAD) {
                later.prefetch();
            }
            return self.leaf.next();
        }
        match self.go_on() {
            Next::Late(entry) => Some(entry),
            Next::Leaf => self.leaf.next(),
            Next::End => None,
        }
    }
}
