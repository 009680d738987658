//! Seats that are fetched before they are looked at.
//!
//! Their consumers stored in them last, on another processor: the first look at one waits for its line of memory, and
//! takes longer than all else that is done to wake it. So each is asked for, and looked at when some more have come.

#![forbid(unsafe_code)]

use crate::sys::clock;
use crate::wake::group::FilterGroup;
use crate::wake::hub::Hub;
use crate::wake::seat::{Seat, SeatRef};
use crate::wake::waker::WakeUp;

/// Seats that are on their way at a time.
const FETCHED: usize = 8;

/// Wakes seats in the order in which they come, each some seats later: the last ones with [`WakeAhead::finish`].
#[must_use]
pub(super) struct WakeAhead<'t, 'w> {
    waiting: [Option<(&'t SeatRef, u64)>; FETCHED],
    next: usize,
    /// When they are woken: a time of [`clock`], read once for all.
    now: u64,
    /// The lowest cursor of those that sleep on.
    lowest: Option<u64>,
    /// Those that were woken whose count [`WakeAhead::finish_group`] takes off. `None`: they do it themselves.
    uncounted: Option<usize>,
    woken: &'w mut Vec<WakeUp>,
}

impl<'t, 'w> WakeAhead<'t, 'w> {
    pub(super) fn new(woken: &'w mut Vec<WakeUp>) -> WakeAhead<'t, 'w> {
        WakeAhead { waiting: [None; FETCHED], next: 0, now: clock::now(), lowest: None, uncounted: None, woken }
    }

    /// The same for members of one group.
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

    /// The same for members of this group, and takes the counts of all off at once. The lowest cursor of those that were
    /// found asleep, and sleep on, for they have all that was asked about: above the event, where it was one and the same
    /// for all.
    pub(super) fn finish_group(mut self, hub: &Hub, group: &FilterGroup) -> Option<u64> {
        (0..FETCHED).for_each(|_| self.put(None));
        if let Some(count @ 1..) = self.uncounted {
            hub.remove_waiters(count, Some(group));
        }
        self.lowest
    }

    /// Wakes who came so many before.
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
