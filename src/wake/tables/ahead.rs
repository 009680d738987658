//! Wakes seats with a delay of some seats, each prefetched before.
//!
//! The consumers stored in their seats last, on other processors: the first load of a seat waits for its cache line,
//! and takes longer than the rest of the wake-up. So a seat is prefetched, and woken when some more have come.

#![forbid(unsafe_code)]

use crate::sys::clock;
use crate::wake::group::FilterGroup;
use crate::wake::hub::Hub;
use crate::wake::seat::{Seat, SeatRef};
use crate::wake::waker::WakeUp;

/// The number of seats that are prefetched at a time.
const FETCHED: usize = 8;

/// Wakes seats in the order in which they come, each some seats later; [`WakeAhead::finish`] wakes the last ones.
#[must_use]
pub(super) struct WakeAhead<'t, 'w> {
    waiting: [Option<(&'t SeatRef, u64)>; FETCHED],
    next: usize,
    /// The time of the wake-ups, a time of [`clock`], read once for all.
    now: u64,
    /// The lowest cursor of those that sleep on.
    lowest: Option<u64>,
    /// The woken seats that [`WakeAhead::finish_group`] subtracts from the counts. `None`: their consumers do.
    uncounted: Option<usize>,
    woken: &'w mut Vec<WakeUp>,
}

impl<'t, 'w> WakeAhead<'t, 'w> {
    pub(super) fn new(woken: &'w mut Vec<WakeUp>) -> WakeAhead<'t, 'w> {
        WakeAhead { waiting: [None; FETCHED], next: 0, now: clock::now(), lowest: None, uncounted: None, woken }
    }

    /// Makes one for members of one group, whose counts [`WakeAhead::finish_group`] subtracts.
    pub(super) fn of_group(woken: &'w mut Vec<WakeUp>) -> WakeAhead<'t, 'w> {
        WakeAhead { uncounted: Some(0), ..WakeAhead::new(woken) }
    }

    /// See [`Seat::wake_behind`].
    pub(super) fn wake_behind(&mut self, seat: &'t SeatRef, seq: u64) {
        seat.prefetch();
        self.put(Some((seat, seq)));
    }

    /// Wakes the last ones.
    pub(super) fn finish(mut self) {
        (0..FETCHED).for_each(|_| self.put(None));
    }

    /// Wakes the last members of this group, and subtracts the counts of all at once. Returns the lowest cursor of those
    /// that sleep on, which is above their event.
    pub(super) fn finish_group(mut self, hub: &Hub, group: &FilterGroup) -> Option<u64> {
        (0..FETCHED).for_each(|_| self.put(None));
        if let Some(count @ 1..) = self.uncounted {
            hub.remove_waiters(count, Some(group));
        }
        self.lowest
    }

    /// Wakes the seat that came [`FETCHED`] calls before, and keeps this one in its place.
    fn put(&mut self, place: Option<(&'t SeatRef, u64)>) {
        if let Some((seat, seq)) = std::mem::replace(&mut self.waiting[self.next], place) {
            match Seat::wake_behind(seat, seq, self.now, self.uncounted.as_mut()) {
                Ok(woken) => self.woken.extend(woken),
                Err(cursor) => self.lowest = Some(self.lowest.map_or(cursor, |lowest| lowest.min(cursor))),
            }
        }
        self.next = (self.next + 1) % FETCHED;
    }
}
