//! Wakes waiters some calls later, each prefetched before.
//!
//! The consumers stored in their waiters last, on other processors: the first load of a waiter waits for its cache line,
//! and takes longer than the rest of the wake-up. So a waiter is prefetched, and woken when some more have come.

#![forbid(unsafe_code)]

use crate::sys::clock;
use crate::wake::sleep::group::FilterGroup;
use crate::wake::sleep::parked_waiter::{ParkedWaiter, WaiterRef};
use crate::wake::sleep::waiters::Waiters;
use crate::wake::sleep::waker::WakeUp;

/// The number of waiters that are prefetched at a time.
const FETCHED: usize = 8;

/// Wakes waiters in the order in which they come, each some calls later; [`PrefetchedWakeUps::finish`] wakes the last ones.
#[must_use]
pub(super) struct PrefetchedWakeUps<'t, 'w> {
    waiting: [Option<(&'t WaiterRef, u64)>; FETCHED],
    next: usize,
    /// The time of the wake-ups, a time of [`clock`], read once for all.
    now: u64,
    /// The lowest cursor of those that sleep on.
    lowest: Option<u64>,
    /// The group of all, whose woken members `finish` subtracts from the counts at once. `None`: their consumers do.
    group: Option<(&'t Waiters, &'t FilterGroup)>,
    uncounted: usize,
    woken: &'w mut Vec<WakeUp>,
}

impl<'t, 'w> PrefetchedWakeUps<'t, 'w> {
    pub(super) fn new(group: Option<(&'t Waiters, &'t FilterGroup)>, woken: &'w mut Vec<WakeUp>) -> Self {
        let (waiting, now) = ([None; FETCHED], clock::now());
        PrefetchedWakeUps { waiting, next: 0, now, lowest: None, group, uncounted: 0, woken }
    }

    /// See [`ParkedWaiter::wake_behind`].
    pub(super) fn wake_behind(&mut self, waiter: &'t WaiterRef, seq: u64) {
        waiter.prefetch();
        self.put(Some((waiter, seq)));
    }

    /// Wakes the last ones. Returns the lowest cursor of those that sleep on, which is above their event.
    pub(super) fn finish(mut self) -> Option<u64> {
        (0..FETCHED).for_each(|_| self.put(None));
        if let Some((waiters, group)) = self.group.filter(|_| self.uncounted > 0) {
            waiters.remove(self.uncounted, Some(group));
        }
        self.lowest
    }

    /// Wakes the waiter that came [`FETCHED`] calls before, and keeps this one in its place.
    fn put(&mut self, place: Option<(&'t WaiterRef, u64)>) {
        if let Some((waiter, seq)) = std::mem::replace(&mut self.waiting[self.next], place) {
            match ParkedWaiter::wake_behind(waiter, seq, self.now, self.group.map(|_| &mut self.uncounted)) {
                Ok(woken) => self.woken.extend(woken),
                Err(cursor) => self.lowest = Some(self.lowest.map_or(cursor, |lowest| lowest.min(cursor))),
            }
        }
        self.next = (self.next + 1) % FETCHED;
    }
}
