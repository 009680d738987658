//! The entries of a tree in key order: those of each leaf, and those of its tail where they belong.

#![forbid(unsafe_code)]

use super::{TreeChild, TreeEntry, TreeNode, child_of, place_of, places_of};
use crate::heap::shared_list::{SharedList, Side, Tail};

/// How many entries before its turn one is fetched: a leaf is there, and what its entries lead to lies anywhere.
const AHEAD: usize = 8;

/// Entries in key order.
pub(crate) struct Iter<'a, E> {
    path: Vec<std::slice::Iter<'a, TreeChild<E>>>,
    leaf: std::slice::Iter<'a, E>,
    /// How many of these follow the next entry of the tail.
    after: usize,
    late: Option<Late<'a, E>>,
    to: Option<Vec<u8>>,
}

/// Entries of the tail of a leaf: from a rank to another one.
struct Late<'a, E> {
    tail: Tail<'a, E>,
    next: usize,
    end: usize,
    /// Where the entries of the leaf end.
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
        let to = to.map(<[u8]>::to_vec);
        let mut iter = Iter { path: Vec::with_capacity(8), leaf: [].iter(), after: 0, late: None, to };
        let mut node = root;
        while let Some(at) = node {
            node = match at.side() {
                Side::Right(children) => {
                    let mut rest = children[child_of(children, from)..].iter();
                    let child = rest.next().map(|child| &child.node);
                    iter.path.push(rest);
                    child
                }
                Side::Left(entries) => {
                    iter.enter(entries, from);
                    None
                }
            };
        }
        iter
    }

    /// Continues with the entries of a leaf that are not below `from`: to their end, or to that of the range, which is
    /// looked for here and not at each entry.
    fn enter(&mut self, entries: &'a SharedList<E>, from: &[u8]) {
        let tail = entries.tail();
        if !tail.is_empty() {
            return self.enter_both(entries, tail, from);
        }
        let at = if from.is_empty() { 0 } else { place_of(entries, from) };
        let ends = |to: &Vec<u8>| entries.last().is_some_and(|last| last.key() >= &to[..]);
        self.leaf = match &self.to {
            Some(to) if ends(to) => {
                self.path.clear();
                entries[..place_of(entries, to)].get(at..).unwrap_or_default().iter()
            }
            _ => entries[at..].iter(),
        };
    }

    /// The same with a tail.
    #[inline(never)]
    fn enter_both(&mut self, entries: &'a SharedList<E>, tail: Tail<'a, E>, from: &[u8]) {
        (0..tail.len()).for_each(|rank| tail.get(rank).1.prefetch());
        let (at, next) = if from.is_empty() { (0, 0) } else { places_of(entries, tail, from) };
        let (mut to, mut end) = (entries.len(), tail.len());
        if let Some(bound) = &self.to {
            let (place, last) = tail.get(end - 1);
            let last = if place < to { &entries[to - 1] } else { last };
            if last.key() >= &bound[..] {
                self.path.clear();
                (to, end) = places_of(entries, tail, bound);
            }
        }
        self.leaf = entries.get(at..to).unwrap_or_default().iter();
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
        let mut child = loop {
            match self.path.last_mut()?.next() {
                Some(child) => break child,
                None => {
                    self.path.pop();
                }
            }
        };
        loop {
            match child.node.side() {
                Side::Left(entries) => {
                    self.enter(entries, b"");
                    return Some(());
                }
                Side::Right(children) => {
                    let mut rest = children.iter();
                    child = rest.next().expect("no node is empty");
                    self.path.push(rest);
                }
            }
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
