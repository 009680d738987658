//! Bookmarks and deadlines: a heap that is looked at when its first entry is due.
//!
//! A seat has at most one entry, and its flag `timed` says that it has one. The entry may be out of
//! date: what counts is what the seat says when the entry comes up. A bookmark whose time has come while
//! the position stands still waits for any move: such seats are listed apart, and while there are some
//! the notifier counts itself as waiting, so that the writer wakes it.

#![forbid(unsafe_code)]

use super::CacheFrontier;
use super::hub::Hub;
use super::seat::{Seat, SeatRef};
use super::waker::WakeUp;
use crate::position::Position;
use crate::sync::{AcqRel, Relaxed, SeqCst, fence};
use crate::sys::clock;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// The notifier's: see the module.
#[derive(Default)]
pub(super) struct Timers {
    /// By the numbers that they were given here.
    seats: HashMap<u64, SeatRef>,
    given: u64,
    due: BinaryHeap<Reverse<(u64, u64)>>,
    /// Due when the position is not what their last bookmark showed.
    awaiting_a_move: Vec<u64>,
    /// Where the position stood when they were looked at last.
    stood_at: Position,
}

impl Timers {
    /// Takes a seat in that has a time, or had one when it said so.
    pub(super) fn add(&mut self, seat: SeatRef) {
        self.remove(&seat);
        let Some(entry) = seat.timer() else { return };
        if self.due.len() > 2 * self.seats.len() + 64 {
            // Entries of seats that are no more.
            self.due.retain(|Reverse((_, number))| self.seats.contains_key(number));
        }
        self.given += 1;
        entry.store(self.given, Relaxed);
        self.due.push(Reverse((seat.first_due().unwrap_or(0), self.given)));
        self.seats.insert(self.given, seat);
    }

    pub(super) fn remove(&mut self, seat: &Seat) {
        if let Some(entry) = seat.timer() {
            self.seats.remove(&entry.load(Relaxed));
        }
    }

    /// Whether somebody is due with the next move.
    pub(super) fn awaits_a_move(&self) -> bool {
        !self.awaiting_a_move.is_empty()
    }

    /// Wakes what is due. True: the position has to be looked at once more.
    pub(super) fn pass(&mut self, hub: &Hub, now: &CacheFrontier, woken: &mut Vec<WakeUp>) -> bool {
        let moved = std::mem::replace(&mut self.stood_at, now.position) != now.position;
        let waited = !self.awaiting_a_move.is_empty();
        if moved || now.closed {
            for number in std::mem::take(&mut self.awaiting_a_move) {
                self.look_at(number, now, woken);
            }
        }
        let clock = clock::now();
        while let Some(Reverse((at, number))) = self.due.peek().copied()
            && at <= clock
        {
            self.due.pop();
            self.look_at(number, now, woken);
        }
        match (waited, !self.awaiting_a_move.is_empty()) {
            (false, true) => {
                hub.await_a_move(true);
                // Partner: the writer's fence: it sees the count, or this looks again and sees the move.
                fence(SeqCst);
                true
            }
            (true, false) => {
                hub.await_a_move(false);
                false
            }
            _ => false,
        }
    }

    /// What a seat whose entry came up says now: it is woken, has another time, or goes.
    fn look_at(&mut self, number: u64, now: &CacheFrontier, woken: &mut Vec<WakeUp>) {
        let Some(seat) = self.seats.get(&number).cloned() else { return };
        loop {
            if seat.parked_at().is_some() {
                if self.stays(number, &seat, now, woken) {
                    return;
                }
            } else if seat.timed().swap(false, AcqRel) {
                // Partner: PARKED, fence, `timed.swap(true)` in `Sleeper::park`: either that sees
                // the flag down and says so again, or this sees it parked.
                fence(SeqCst);
                if seat.parked_at().is_some() && !seat.timed().swap(true, AcqRel) {
                    continue;
                }
            }
            self.seats.remove(&number);
            return;
        }
    }

    /// False: it was woken, or has no time any more, and its entry goes.
    fn stays(&mut self, number: u64, seat: &SeatRef, now: &CacheFrontier, woken: &mut Vec<WakeUp>) -> bool {
        let clock = clock::now();
        let due = seat.is_past_deadline(clock) || now.closed;
        let bookmark = seat.awaits_a_move(clock);
        if due || (bookmark && seat.has_moved_to(now.position)) {
            seat.timed().swap(false, AcqRel);
            if let Some(claim) = Seat::claim(seat) {
                // Everything below the head was looked at before.
                woken.extend(claim.settle(now.head, clock));
            }
            return false;
        }
        if bookmark {
            self.awaiting_a_move.push(number);
            return true;
        }
        match seat.first_due() {
            Some(at) => {
                self.due.push(Reverse((at, number)));
                true
            }
            None => {
                seat.timed().swap(false, AcqRel);
                false
            }
        }
    }

    /// When the first entry is due: a time of [`clock`].
    pub(super) fn next(&mut self) -> Option<u64> {
        while self.due.peek().is_some_and(|Reverse((_, number))| !self.seats.contains_key(number)) {
            self.due.pop();
        }
        self.due.peek().map(|Reverse((at, _))| *at)
    }
}
