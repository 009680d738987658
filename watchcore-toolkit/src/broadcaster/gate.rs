//! The gate: publishers one after the other, and none further ahead than the slowest seat allows.
//!
//! A [`Gate`] numbers what is published: 1, 2, 3. A [`Seat`] is a watcher that is waited for; it says up to which number it has
//! taken, and number n may be published while `taken + allowance >= n` for every seat. Everything is below one lock but the two
//! words of a seat, because a watcher takes without locking.
//!
//! The life of one number: a publisher comes, finds the line empty and the number at or below `free_until`, and publishes.
//! Above it the seats are walked, once in so many numbers as the slowest is away from its limit. Where a seat is full the
//! publisher stands in line (a ticket, its waker) and the seat is marked as wanted. The watcher that takes finds the mark, and
//! below the lock continues the walk where it stopped: it marks the next full seat, or wakes the first in line. So a publisher
//! is woken when it can go, and not by each of a thousand seats.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | a watcher swaps its word for the new number, unmarked | a publisher marks the word (`fetch_or`) | AcqRel: both are read-modify-writes of one word, so one comes first. If it is the swap, the publisher reads the new number; if it is the mark, the watcher gets it and continues the walk |
//! | the same swap | the load or the marking of a publisher that goes on | Release / Acquire: what a consumer did before it took n is seen by who publishes n + allowance + 1 |
//! | tickets, seats, the number, the end | the same | below the lock |
//!
//! Only the first in line makes the gate walk: who is behind is woken by who leaves the line before it, having published
//! or given up. Nothing foreign runs below the lock: wakers are called behind it.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_types)] // A mutex that loom looks at, taken by `sync::lock`, which counts.

use crate::foreign::wake;
#[cfg(toolkit_loom)]
use crate::sync::Release;
use crate::sync::{AcqRel, Acquire, AtomicU64, HeldLock, Mutex, MutexGuard, lock, step};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A watcher that publishers wait for.
pub(super) struct Seat {
    /// Twice the number up to which it has taken everything, and one more if the first in line waits for it.
    word: AtomicU64,
    /// How many numbers it may be behind.
    allowance: u64,
    /// Where it stands in the table.
    index: usize,
}

impl Seat {
    /// Says that everything up to `number` was taken. True: a publisher waits for that; call [`Gate::seat_moved`].
    #[must_use]
    pub(super) fn take(&self, number: u64) -> bool {
        let before = step!(TakeInOneStep, self.word.swap(number << 1, AcqRel), {
            let before = self.word.load(Acquire);
            self.word.store(number << 1, Release);
            before
        });
        before & 1 == 1
    }

    /// The highest number that it allows.
    fn limit(&self) -> u64 {
        self.limit_of(self.word.load(Acquire))
    }

    /// The same, with a mark that a publisher waits for more.
    fn mark(&self) -> u64 {
        let before = step!(MarkInOneStep, self.word.fetch_or(1, AcqRel), {
            let before = self.word.load(Acquire);
            self.word.fetch_or(1, AcqRel);
            before
        });
        self.limit_of(before)
    }

    fn limit_of(&self, word: u64) -> u64 {
        (word >> 1).saturating_add(self.allowance)
    }
}

/// See the module. `S` is what publishing changes.
pub(super) struct Gate<S> {
    line: Mutex<Line<S>>,
}

/// The state below the lock.
pub(super) struct Line<S> {
    /// The state that publishing changes.
    pub(super) state: S,
    /// The last number that was published.
    pub(super) last: u64,
    /// Nothing is published any more.
    closed: bool,
    /// All seats were seen to allow this much.
    free_until: u64,
    seats: Vec<Option<Arc<Seat>>>,
    vacant: Vec<usize>,
    /// The seat at which the last walk ended, or 0.
    walk_from: usize,
    /// Publishers that wait, in their order.
    waiting: BTreeMap<u64, Waker>,
    next_ticket: u64,
}

impl<S> Line<S> {
    /// A seat of a watcher that has taken everything up to `taken`.
    pub(super) fn add_seat(&mut self, taken: u64, allowance: u64) -> Arc<Seat> {
        let index = self.vacant.pop().unwrap_or(self.seats.len());
        let seat = Arc::new(Seat { word: AtomicU64::new(taken << 1), allowance, index });
        if index == self.seats.len() {
            self.seats.push(None);
        }
        self.free_until = self.free_until.min(seat.limit());
        self.seats[index] = Some(Arc::clone(&seat));
        seat
    }

    /// Nothing is published any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether the next number has a place. `arm`: where it has none, the seat that has to move is marked.
    fn has_place(&mut self, arm: bool) -> bool {
        let next = self.last + 1;
        if next <= self.free_until {
            return true;
        }
        let (count, from) = (self.seats.len(), self.walk_from);
        let mut free_until = u64::MAX;
        for step in 0..count {
            let index = if from + step < count { from + step } else { from + step - count };
            let Some(seat) = &self.seats[index] else { continue };
            let mut limit = seat.limit();
            if limit < next && arm {
                limit = seat.mark();
            }
            if limit < next {
                self.walk_from = index;
                return false;
            }
            free_until = free_until.min(limit);
        }
        self.walk_from = 0;
        self.free_until = free_until;
        true
    }

    /// The waker of the first in line, if the next number has a place; otherwise a seat is marked for it.
    #[must_use]
    fn next_in_line(&mut self) -> Option<Waker> {
        if self.waiting.is_empty() || !self.has_place(true) {
            return None;
        }
        self.waiting.first_key_value().map(|(_, waker)| waker.clone())
    }

    /// A number that was refused is given to the next.
    fn publish<R, E>(&mut self, publish: impl FnOnce(&mut S, u64) -> Result<R, E>) -> Result<R, E> {
        let result = publish(&mut self.state, self.last + 1);
        self.last += u64::from(result.is_ok());
        result
    }
}

/// A publisher's place in the line, while it has one. It leaves by [`Gate::leave`].
#[derive(Default)]
pub(super) struct Ticket(Option<u64>);

/// The fate of a number.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entered<R, E> {
    /// It was published, or refused.
    Done(Result<R, E>),
    /// It has no place now.
    Full,
    /// Nothing is published any more.
    Closed,
}

impl<S> Gate<S> {
    pub(super) fn new(state: S) -> Gate<S> {
        Gate {
            line: Mutex::new(Line {
                state,
                last: 0,
                closed: false,
                free_until: u64::MAX,
                seats: Vec::new(),
                vacant: Vec::new(),
                walk_from: 0,
                waiting: BTreeMap::new(),
                next_ticket: 0,
            }),
        }
    }

    /// Nothing is published while it is held. HeldLock for as long as one number takes, never while somebody waits.
    pub(super) fn lock(&self) -> HeldLock<MutexGuard<'_, Line<S>>> {
        lock(&self.line)
    }

    /// Publishes the next number if it has a place now, and nobody stands in line for it.
    pub(super) fn try_enter<R, E>(&self, publish: impl FnOnce(&mut S, u64) -> Result<R, E>) -> Entered<R, E> {
        let mut line = self.lock();
        if line.closed {
            return Entered::Closed;
        }
        if !line.waiting.is_empty() || !line.has_place(false) {
            return Entered::Full;
        }
        Entered::Done(line.publish(publish))
    }

    /// Publishes the next number when it has a place and everybody who stood in line before has published. `None`: nothing
    /// is published any more.
    pub(super) fn poll_enter<R, E>(
        &self,
        ticket: &mut Ticket,
        context: &Context<'_>,
        publish: impl FnOnce(&mut S, u64) -> Result<R, E>,
    ) -> Poll<Option<Result<R, E>>> {
        let waker = context.waker().clone();
        let mut line = self.lock();
        if line.closed {
            ticket.0 = None;
            return Poll::Ready(None);
        }
        let is_first = match (line.waiting.first_key_value(), ticket.0) {
            (None, _) => true,
            (Some((first, _)), Some(own)) => *first == own,
            (Some(_), None) => false,
        };
        // No seat is marked yet: that is done below, when the waker is there.
        if is_first && line.has_place(false) {
            let left = ticket.0.take().and_then(|own| line.waiting.remove(&own));
            let result = line.publish(publish);
            let next = step!(NextInLine, line.next_in_line(), { None });
            drop(line);
            drop(left);
            wake(next);
            return Poll::Ready(Some(result));
        }
        let own = *ticket.0.get_or_insert_with(|| {
            line.next_ticket += 1;
            line.next_ticket
        });
        let before = line.waiting.insert(own, waker);
        let next = if is_first { line.next_in_line() } else { None };
        drop(line);
        drop(before);
        // A place may have come between the two looks: then this very publisher is polled once more.
        wake(next);
        Poll::Pending
    }

    /// A publisher that does not wait any more. Who stands behind it may go.
    pub(super) fn leave(&self, ticket: &mut Ticket) {
        let Some(own) = ticket.0.take() else { return };
        let mut line = self.lock();
        let left = line.waiting.remove(&own);
        let next = step!(LeaveLine, line.next_in_line(), { None });
        drop(line);
        drop(left);
        wake(next);
    }

    /// A seat has moved that a publisher waited for.
    #[cold]
    pub(super) fn seat_moved(&self) {
        let mut line = self.lock();
        let next = line.next_in_line();
        drop(line);
        wake(next);
    }

    /// A seat is not waited for any more. Any number of times.
    pub(super) fn remove_seat(&self, seat: &Arc<Seat>) {
        let mut line = self.lock();
        let index = seat.index;
        if !line.seats[index].as_ref().is_some_and(|other| Arc::ptr_eq(other, seat)) {
            return;
        }
        line.seats[index] = None;
        line.vacant.push(index);
        let next = step!(SeatGone, line.next_in_line(), { None });
        drop(line);
        wake(next);
    }

    /// Ends publishing, after one last step; everybody who waits is woken. `None`: it had ended before.
    pub(super) fn close<R>(&self, last: impl FnOnce(&mut S, u64) -> R) -> Option<R> {
        let mut line = self.lock();
        if line.closed {
            return None;
        }
        line.closed = true;
        let number = line.last + 1;
        let result = last(&mut line.state, number);
        let waiting = std::mem::take(&mut line.waiting);
        drop(line);
        wake(waiting.into_values());
        Some(result)
    }
}
