//! Lists of waiters that are looked at together.

#![forbid(unsafe_code)]

use crate::data::event::Event;
use crate::log::buckets::Bucket;
use crate::wake::sleep::group::GroupRef;
use crate::wake::sleep::parked_waiter::WaiterRef;
use std::sync::Arc;

/// Keyed by an id that the library gives. loom replays executions, so its map has a fixed order.
#[cfg(not(loom))]
pub(super) type IdMap<V> = std::collections::HashMap<u64, V, crate::store::hash::KeyHash>;
#[cfg(loom)]
pub(super) type IdMap<V> = std::collections::BTreeMap<u64, V>;

/// A waiter in the list of its bucket.
pub(super) struct ChainReader {
    pub(super) waiter: WaiterRef,
    /// The group whose filter an event of the bucket has to pass. `None`: all pass.
    pub(super) asks: Option<GroupRef>,
}

/// The waiters at one bucket.
pub(super) struct ChainReaders {
    pub(super) bucket: Arc<Bucket>,
    pub(super) members: Members<ChainReader>,
}

/// An element of a list of waiters.
pub(super) trait Listed {
    fn waiter(&self) -> &WaiterRef;
}

impl Listed for WaiterRef {
    fn waiter(&self) -> &WaiterRef {
        self
    }
}

impl Listed for ChainReader {
    fn waiter(&self) -> &WaiterRef {
        &self.waiter
    }
}

/// Waiters that are looked at together, in no order. A single member, as most buckets and many filters have, is stored
/// without an allocation.
///
/// A pass that looks at a part goes from the last member to the first, and notes the index below which none was looked
/// at. A member that leaves meanwhile is replaced by the last one, which at worst is looked at twice.
pub(super) enum Members<M> {
    Alone(Option<M>),
    Many(Vec<M>),
}

impl<M> Default for Members<M> {
    fn default() -> Members<M> {
        Members::Alone(None)
    }
}

impl<M: Listed> Members<M> {
    pub(super) fn all(&self) -> &[M] {
        match self {
            Members::Alone(one) => one.as_slice(),
            Members::Many(all) => all,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all().len()
    }

    pub(super) fn add(&mut self, member: M) {
        member.waiter().set_index(self.len() as u32);
        match self {
            Members::Alone(one @ None) => *one = Some(member),
            Members::Alone(one) => *self = Members::Many(one.take().into_iter().chain([member]).collect()),
            Members::Many(all) => {
                if all.len() == all.capacity() {
                    // Grow by an eighth: a list may have a hundred thousand members.
                    all.reserve_exact(all.len() / 8 + 1);
                }
                all.push(member);
            }
        }
    }

    pub(super) fn waiters(&self) -> impl DoubleEndedIterator<Item = &WaiterRef> {
        self.all().iter().map(Listed::waiter)
    }

    /// The last `count` members below the index `below`, and the index of the first of them.
    pub(super) fn last_below(&self, below: usize, count: usize) -> (&[M], usize) {
        let below = below.min(self.len());
        let rest = below.saturating_sub(count);
        (&self.all()[rest..below], rest)
    }

    /// Removes a member; the last one takes its index.
    pub(super) fn remove(&mut self, waiter: &WaiterRef) {
        match self {
            Members::Alone(one) => *one = None,
            Members::Many(all) => {
                let index = waiter.index();
                all.swap_remove(index as usize);
                if let Some(moved) = all.get(index as usize) {
                    moved.waiter().set_index(index);
                }
            }
        }
    }

    /// Removes the last member, if there is one.
    pub(super) fn pop(&mut self) -> Option<M> {
        match self {
            Members::Alone(one) => one.take(),
            Members::Many(all) => all.pop(),
        }
    }
}

/// Calls `found` for the members whose filter this event passes, and for all without one. A filter is evaluated only for
/// members that sleep and have not handed the event out, once for neighbours with equal filters.
pub(super) fn each_match<'t>(members: &'t [ChainReader], event: &Event, mut found: impl FnMut(&'t WaiterRef)) {
    let mut last: Option<(u64, bool)> = None;
    for ChainReader { waiter, asks } in members.iter().rev() {
        let Some(group) = asks else {
            found(waiter);
            continue;
        };
        if waiter.parked_at().is_none_or(|cursor| cursor > event.sequence()) {
            continue;
        }
        let matches = match last {
            Some((known, matches)) if known == group.id() => matches,
            _ => {
                let matches = group.matcher.matches_guarded(event);
                last = Some((group.id(), matches));
                matches
            }
        };
        if matches {
            found(waiter);
        }
    }
}
