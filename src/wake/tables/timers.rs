//! Bookmarks and deadlines: a heap of due times, which the notifier visits when the first entry is due.
//!
//! An entry counts as long as its waiter is listed for that time: see `due`. A waiter that lists an earlier time gets another
//! entry. When an entry comes up, the waiter's own times say what is to be done. A bookmark whose time has come while the
//! position stands still waits for any move: such waiters are listed apart, and while there are some the notifier counts
//! itself as waiting, so that the writer wakes it.

#![forbid(unsafe_code)]

use super::steps::{CHEAP, Steps};
use crate::position::Position;
use crate::sync::{SeqCst, fence, ord};
use crate::sys::clock;
use crate::wake::sleep::due::DueTimes;
use crate::wake::sleep::interest::CacheFrontier;
use crate::wake::sleep::parked_waiter::{ParkedWaiter, WaiterRef};
use crate::wake::sleep::waiters::{ExaminedTo, Waiters};
use crate::wake::sleep::waker::WakeUp;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// The due times of one hub: see the module.
#[derive(Default)]
pub(super) struct Timers {
    /// The waiters with a due time, by a number that [`Timers::add`] gives.
    waiters: BTreeMap<u64, WaiterRef>,
    given: u64,
    due: BinaryHeap<Reverse<(u64, u64)>>,
    /// Waiters whose bookmark is due once the position differs from that of their last bookmark.
    awaiting_a_move: BTreeSet<u64>,
    /// Waiters that waited for a move of the position, which has moved: to be looked at.
    moved: BTreeSet<u64>,
    /// Whether the notifier counts itself as waiting for them.
    is_counted: bool,
    /// The position of the last pass.
    stood_at: Position,
}

/// How a pass over the due times ended.
pub(super) struct TimersPass {
    /// The position has to be loaded once more.
    pub(super) look_again: bool,
    /// Every waiter that was due was looked at.
    pub(super) whole: bool,
}

impl Timers {
    /// Adds an entry for the time that a waiter is listed for, if it still is.
    pub(super) fn add(&mut self, waiter: WaiterRef) {
        let Some(times) = waiter.times() else { return };
        let Some(at) = times.listed() else { return };
        if self.due.len() > 2 * self.waiters.len() + 64 {
            let Timers { due, waiters, .. } = self;
            due.retain(|Reverse((at, number))| counts(waiters, *at, *number));
        }
        if !self.waiters.contains_key(&times.number()) {
            self.given += 1;
            times.set_number(self.given);
            self.waiters.insert(self.given, waiter.clone());
        }
        self.due.push(Reverse((at, times.number())));
    }

    /// Removes a waiter: nobody parks in it any more, or it is unlisted and the caller looks at it after a fence.
    pub(super) fn remove(&mut self, waiter: &ParkedWaiter) {
        if let Some(times) = waiter.times() {
            self.forget(times.number());
        }
    }

    fn forget(&mut self, number: u64) {
        self.waiters.remove(&number);
        self.awaiting_a_move.remove(&number);
        self.moved.remove(&number);
    }

    /// Whether a bookmark is due with the next move of the position.
    pub(super) fn awaits_a_move(&self) -> bool {
        self.is_counted
    }

    /// Wakes the waiters that are due, as far as the steps of a pass reach.
    pub(super) fn pass(
        &mut self,
        waiters: &Waiters,
        now: &CacheFrontier,
        examined_to: ExaminedTo,
        woken: &mut Vec<WakeUp>,
    ) -> TimersPass {
        let (clock, mut steps) = (clock::now(), Steps::new(CHEAP));
        let moved = std::mem::replace(&mut self.stood_at, now.position) != now.position;
        if moved && !now.closed {
            self.moved.append(&mut self.awaiting_a_move);
        }
        let whole = loop {
            if !steps.take_one() {
                break false;
            }
            let Some(number) = self.next_to_look_at(now, clock) else { break true };
            self.look_at(number, now, examined_to, woken);
        };
        TimersPass { look_again: self.count(waiters), whole }
    }

    /// The next waiter to be looked at, whose entry is removed.
    fn next_to_look_at(&mut self, now: &CacheFrontier, clock: u64) -> Option<u64> {
        if now.closed {
            // All are woken, and a consumer that parks again looks at the cache first and sees the close.
            self.due.clear();
            return self.waiters.first_key_value().map(|(number, _)| *number);
        }
        if let Some(number) = self.moved.pop_first() {
            return Some(number);
        }
        while let Some(Reverse((at, number))) = self.due.peek().copied()
            && at <= clock
        {
            self.due.pop();
            if counts(&self.waiters, at, number) {
                return Some(number);
            }
        }
        None
    }

    /// Counts the notifier as waiting as long as a bookmark is due with the next move. True: the position has to be
    /// loaded once more.
    fn count(&mut self, waiters: &Waiters) -> bool {
        let awaits = !self.awaiting_a_move.is_empty();
        if std::mem::replace(&mut self.is_counted, awaits) == awaits {
            return false;
        }
        waiters.await_a_move(awaits);
        if awaits {
            // Partner: the writer's fence: it sees the count, or this looks again and sees the move.
            fence(SeqCst);
        }
        awaits
    }

    /// Looks at a waiter whose time, or awaited move, has come: wakes it, lists its next time, or removes it.
    fn look_at(&mut self, number: u64, now: &CacheFrontier, examined_to: ExaminedTo, woken: &mut Vec<WakeUp>) {
        let Some(waiter) = self.waiters.get(&number).cloned() else { return };
        let Some(times) = waiter.times() else { return };
        times.unlist();
        // Partner: PARKED, fence, `list_first` in `Parker::park`: either that finds it unlisted and posts, or this sees it
        // parked.
        fence(ord!(UnlistFence, SeqCst));
        let clock = clock::now();
        let is_due = |times: &DueTimes| {
            now.closed
                || times.is_past_deadline(clock)
                || times.awaits_a_move(clock) && times.has_moved_to(now.position)
        };
        if waiter.parked_at().is_none() {
            return self.forget(number);
        }
        if is_due(times) {
            self.forget(number);
            if let Some(claim) = ParkedWaiter::claim(&waiter) {
                // The consumer continues at the number that this pass has reached for its place, and finds later events
                // itself.
                woken.extend(claim.settle(examined_to.of(waiter.filed().0), clock));
            }
            return;
        }
        let next = times.next_after(clock);
        if times.awaits_a_move(clock) {
            self.awaiting_a_move.insert(number);
        } else if next.is_none() {
            return self.forget(number);
        }
        if let Some(at) = next.filter(|at| times.list(*at)) {
            self.due.push(Reverse((at, number)));
        }
    }

    /// The time of the first entry, as a time of [`clock`].
    pub(super) fn next(&mut self) -> Option<u64> {
        while self.due.peek().is_some_and(|Reverse((at, number))| !counts(&self.waiters, *at, *number)) {
            self.due.pop();
        }
        self.due.peek().map(|Reverse((at, _))| *at)
    }
}

/// Whether an entry still has the time that its waiter is listed for.
fn counts(waiters: &BTreeMap<u64, WaiterRef>, at: u64, number: u64) -> bool {
    waiters.get(&number).and_then(|waiter| waiter.times()).is_some_and(|times| times.listed() == Some(at))
}
