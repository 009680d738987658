//! The scan: groups of waiters at no bucket, whose filter is evaluated once an event.
//!
//! A notifier may be too slow for this work: ten thousand filters and ten thousand events a second are a hundred million
//! evaluations. So the work is done in portions. A [`Round`] visits each group once, evaluates its filter up to the
//! newest event, as far as the steps reach, and the next portion continues where this one ended. Where the portions
//! cannot keep up and a group is half a window behind, its members are woken to look for themselves: they pay for their
//! filters then, each on its own thread, and nothing is lost.
//!
//! A group whose filter passes everything has nothing to evaluate, and is looked at in each pass before the round.

#![forbid(unsafe_code)]

use super::lists::Members;
use super::prefetch::PrefetchedWakeUps;
use super::steps::{Steps, VISIT};
use super::view::{NEAR, View, first_to_examine, settle_all};
use crate::sync::Relaxed;
#[cfg(loom)]
use crate::sync::weak;
use crate::wake::sleep::group::GroupRef;
use crate::wake::sleep::parked_waiter::WaiterRef;
use crate::wake::sleep::waker::WakeUp;
use std::collections::{BTreeMap, BTreeSet};

/// The members of one filter group, and how far the filter was evaluated.
pub(super) struct ScannedGroup {
    pub(super) group: GroupRef,
    pub(super) members: Members<WaiterRef>,
    /// All events below were looked at for every waiter of the group.
    examined_to: u64,
    /// The wake-up of the members that is under way, if the steps were over before all were woken.
    waking: Option<Box<Waking>>,
}

/// The reason why members are woken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The event of this sequence number passes.
    Event(u64),
    /// The group is half a window behind: they look for themselves.
    Behind,
    /// Events that were not looked at for them have left the window: they look for themselves, and may have lost events.
    Overrun,
}

/// A wake-up of members that is under way: those from the index `below` on have been looked at.
#[derive(Clone, Copy)]
struct Waking {
    cause: Cause,
    below: usize,
    /// The head of the pass that began it: a member that was not seen parked since does not sleep below.
    head: u64,
    /// The lowest cursor of those that sleep on.
    lowest: Option<u64>,
    any: bool,
}

/// A round over all groups.
struct Round {
    /// The head when it began: the groups that it has visited were looked at up to there, at least.
    head: u64,
    /// The next group has this id, or the smallest one above.
    next: u64,
}

/// See the module.
#[derive(Default)]
pub(super) struct Groups {
    all: BTreeMap<u64, ScannedGroup>,
    /// The groups whose filter passes everything.
    open: BTreeSet<u64>,
    round: Option<Round>,
    /// All events below were looked at for every waiter of every group; 0: no pass has run yet.
    pub(super) scanned_to: u64,
}

impl Groups {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ScannedGroup> {
        self.all.values()
    }

    pub(super) fn scanned_to(&self) -> u64 {
        #[cfg(loom)]
        if let Some(Round { head, .. }) = self.round {
            return weak::instead(weak::Site::ScannedEarly, head, self.scanned_to);
        }
        self.scanned_to
    }

    /// The sequence number up to which events were looked at for one group.
    pub(super) fn examined_to(&self, id: u64) -> u64 {
        self.all.get(&id).map_or(0, |scanned| scanned.examined_to.max(self.scanned_to))
    }

    pub(super) fn add(&mut self, group: &GroupRef, waiter: WaiterRef) {
        let id = group.id();
        let scanned = self.all.entry(id).or_insert_with(|| {
            if group.matcher.passes_all() {
                self.open.insert(id);
            }
            ScannedGroup { group: group.clone(), members: Members::default(), examined_to: 0, waking: None }
        });
        scanned.members.add(waiter);
    }

    /// Removes a member. Returns the group, where it was the last.
    pub(super) fn remove(&mut self, id: u64, waiter: &WaiterRef) -> Option<GroupRef> {
        let ScannedGroup { members, .. } = self.all.get_mut(&id)?;
        members.remove(waiter);
        members.all().is_empty().then(|| self.remove_group(id)).flatten()
    }

    fn remove_group(&mut self, id: u64) -> Option<GroupRef> {
        self.open.remove(&id);
        self.all.remove(&id).map(|scanned| scanned.group)
    }

    /// Removes any member, of a cache that was closed, with its group, where it was the last.
    pub(super) fn pop(&mut self) -> Option<(WaiterRef, Option<GroupRef>)> {
        loop {
            let mut entry = self.all.first_entry()?;
            let (id, members) = (*entry.key(), &mut entry.get_mut().members);
            let waiter = members.pop();
            let group = members.all().is_empty().then(|| self.remove_group(id)).flatten();
            if let Some(waiter) = waiter {
                return Some((waiter, group));
            }
        }
    }

    /// Looks at the groups whose filter passes everything. True: at all of them, up to the head.
    pub(super) fn look_at_open(&mut self, view: &View<'_>, steps: &mut Steps, woken: &mut Vec<WakeUp>) -> bool {
        let (Groups { all, open, scanned_to, .. }, mut whole) = (self, true);
        for id in open.iter() {
            whole &= all.get_mut(id).is_none_or(|scanned| scanned.look(view, *scanned_to, steps, woken));
        }
        whole
    }

    /// Continues the round. True: every group was looked at up to the head.
    pub(super) fn scan(&mut self, view: &View<'_>, steps: &mut Steps, woken: &mut Vec<WakeUp>) -> bool {
        let Groups { all, round, scanned_to, .. } = self;
        loop {
            if round.is_none() && *scanned_to >= view.now.head {
                return true;
            }
            let Round { head, next } = round.get_or_insert(Round { head: view.now.head, next: 0 });
            for (id, scanned) in all.range_mut(*next..) {
                *next = *id;
                if steps.are_over() {
                    return false;
                }
                let whole = scanned.look(view, *scanned_to, steps, woken);
                // A group that has reached the head of the round may wait: the other groups go first.
                if !whole && scanned.examined_to < *head {
                    return false;
                }
            }
            *scanned_to = *head;
            *round = None;
        }
    }
}

impl ScannedGroup {
    /// Evaluates the filter for new events, as long as a member sleeps. True: up to the head.
    ///
    /// A member that is not found parked loads the head later than this pass, and does not sleep below it. So after an
    /// event that passes, the next one is looked for from the lowest cursor of the members that sleep on.
    fn look(&mut self, view: &View<'_>, scanned_to: u64, steps: &mut Steps, woken: &mut Vec<WakeUp>) -> bool {
        let head = view.now.head;
        steps.take(VISIT);
        self.examined_to = self.examined_to.max(scanned_to);
        let mut waking = self.waking.take().map(|waking| *waking);
        loop {
            if self.examined_to >= head || !self.group.has_parked() {
                self.examined_to = self.examined_to.max(head);
                return true;
            }
            if let Some(begun) = waking.or_else(|| self.next_to_wake(view, steps)) {
                waking = self.wake(begun, view, steps, woken);
            }
            if steps.are_over() && self.examined_to < head {
                self.waking = waking.map(Box::new);
                return false;
            }
        }
    }

    /// Evaluates the filter, up to the first event that passes. `None`: no event does, as far as the steps reach.
    fn next_to_wake(&mut self, view: &View<'_>, steps: &mut Steps) -> Option<Waking> {
        let head = view.now.head;
        let near = NEAR.max(self.members.len() as u64);
        if self.examined_to == 0 || head - self.examined_to > near {
            steps.take(self.members.len());
        }
        let from = first_to_examine(self.examined_to, head, near, self.members.waiters());
        let waking = |cause| Some(Waking { cause, below: usize::MAX, head, lowest: None, any: false });
        if view.is_late(from) {
            return waking(Cause::Behind);
        }
        match view.cache.first_match(&self.group.matcher, from, head, steps.left()) {
            Ok(first) => {
                self.examined_to = first.examined_to;
                steps.take(first.looked);
                waking(Cause::Event(first.found?))
            }
            Err(_) => {
                self.examined_to = from;
                steps.take(1);
                waking(Cause::Overrun)
            }
        }
    }

    /// Wakes members, as far as the steps reach; returns the rest of the wake-up, if any.
    fn wake(&mut self, begun: Waking, view: &View<'_>, steps: &mut Steps, woken: &mut Vec<WakeUp>) -> Option<Waking> {
        let ScannedGroup { group, members, .. } = self;
        let (some, below) = members.last_below(begun.below, steps.left());
        let mut waking = Waking { below, ..begun };
        steps.take(some.len());
        if let Cause::Event(seq) = begun.cause {
            // Reads the clock after the filter ran: a predicate's time is no lag of the members that it finds.
            let mut wake_ups = PrefetchedWakeUps::new(Some((view.waiters, group)), woken);
            some.iter().rev().for_each(|waiter| wake_ups.wake_behind(waiter, seq));
            let lowest = wake_ups.finish();
            waking.lowest = [lowest, begun.lowest].into_iter().flatten().min();
        } else {
            waking.any |= settle_all(some, woken);
        }
        if below > 0 {
            return Some(waking);
        }
        if waking.cause == Cause::Overrun && waking.any {
            view.waiters.overrun.fetch_add(1, Relaxed);
        }
        #[cfg(loom)]
        let waking = Waking { head: weak::instead(weak::Site::WokenToNow, view.now.head, waking.head), ..waking };
        self.examined_to = waking.lowest.unwrap_or(waking.head).min(waking.head);
        None
    }
}
