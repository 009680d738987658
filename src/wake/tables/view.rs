//! What the parts of a pass share: the cache, as they search it, and the wake-up of waiters that look for themselves.

#![forbid(unsafe_code)]

use super::steps::Steps;
use crate::data::event::Event;
use crate::filter::matcher::Matcher;
use crate::log::buckets::Bucket;
use crate::sys::clock;
use crate::wake::sleep::group::FilterGroup;
use crate::wake::sleep::interest::CacheFrontier;
use crate::wake::sleep::parked_waiter::{ParkedWaiter, WaiterRef};
use crate::wake::sleep::parker::Watched;
use crate::wake::sleep::waiters::Waiters;
use crate::wake::sleep::waker::WakeUp;

/// Up to this many events are scanned rather than asking every waiter for its cursor.
pub(super) const NEAR: u64 = 64;

/// The result of [`Searched::first_match`].
pub(crate) struct FirstMatch {
    /// The sequence number of the event that passes.
    pub(crate) found: Option<u64>,
    /// The sequence number at which the look has ended: that event, or the one after the last that was looked at. Never
    /// among the free slots of a segment that was closed early: a cursor there is overrun once the segment leaves the
    /// window.
    pub(crate) examined_to: u64,
    /// How many events were looked at.
    pub(crate) looked: usize,
}

/// Called with an event of the log and its buckets. False ends the visit.
pub(crate) type VisitEvent<'a> = dyn FnMut(&Event, &mut dyn Iterator<Item = u64>) -> bool + 'a;

/// The events to be read have left the window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overtaken;

/// What a pass asks of a cache: its log.
pub(crate) trait Searched: Watched {
    /// The first event in [from, head) that passes, among the first `most`; `Err` where `from` has left the window.
    fn first_match(&self, matcher: &Matcher, from: u64, head: u64, most: usize) -> Result<FirstMatch, Overtaken>;
    /// Calls `each` with each event of [from, head) and its buckets until it returns false; `Err` where `from` has left.
    fn visit_buckets(&self, from: u64, head: u64, each: &mut VisitEvent<'_>) -> Result<(), Overtaken>;
    /// Events that the window holds.
    fn window(&self) -> u64;
}

/// The parameters of one pass, for its parts.
pub(super) struct View<'p> {
    pub(super) waiters: &'p Waiters,
    pub(super) cache: &'p dyn Searched,
    pub(super) now: &'p CacheFrontier,
    /// Whether the pass before has left work.
    pub(super) is_behind: bool,
}

impl View<'_> {
    /// Whether the events from `from` on, left by an earlier pass, have come to lie half a window behind: then their
    /// waiters are woken to look for themselves while the window still has all of them.
    pub(super) fn is_late(&self, from: u64) -> bool {
        self.is_behind && self.now.head.saturating_sub(from) > self.cache.window() / 2
    }

    /// Whether a group may have an event from `from` on that lies before the chain of its bucket begins.
    pub(super) fn has_unlinked(&self, group: &FilterGroup, bucket: &Bucket, from: u64, steps: &mut Steps) -> bool {
        let linked_from = bucket.linked_from();
        if from >= linked_from {
            return false;
        }
        let Ok(first) = self.cache.first_match(&group.matcher, from, linked_from, steps.left()) else { return true };
        steps.take(first.looked);
        first.found.is_some() || first.examined_to < linked_from
    }
}

/// Wakes all waiters that are parked: each looks for itself, from its own cursor. True: at least one was.
pub(super) fn settle_all<'t>(waiters: impl IntoIterator<Item = &'t WaiterRef>, woken: &mut Vec<WakeUp>) -> bool {
    let (now, mut any) = (clock::now(), false);
    for claim in waiters.into_iter().filter_map(ParkedWaiter::claim) {
        any = true;
        woken.extend(claim.settle(0, now));
    }
    any
}

/// The start of a look at the events below `head`: `done`, up to which they were examined, or, where more than `near` events
/// follow because nobody slept meanwhile, the lowest cursor of the waiters. Asking them costs no more than the events would.
pub(super) fn first_to_examine<'t>(
    done: u64,
    head: u64,
    near: u64,
    waiters: impl Iterator<Item = &'t WaiterRef>,
) -> u64 {
    if done != 0 && head.saturating_sub(done) <= near {
        return done.min(head);
    }
    waiters.filter_map(|waiter| waiter.parked_at()).min().unwrap_or(head).max(done).min(head)
}
