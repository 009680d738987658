//! The gate admits publishers one after the other, and none further ahead than the slowest member allows.
//!
//! A [`Gate`] numbers the publications: 1, 2, 3. A [`Member`] is a watcher for which publishers wait; it stores up to
//! which number it has taken, and number n may be published while `taken + allowance >= n` for every member. A lock
//! protects everything except the word of a member, because a watcher takes without locking.
//!
//! A publisher that finds the line empty and its number at or below `free_until` publishes at once. Above `free_until`
//! it walks over the members, which happens once per as many numbers as the slowest member is away from its limit. If a
//! member is full, the publisher joins the line (a ticket and its waker) and marks the member as wanted. The watcher
//! that takes next finds the mark, and under the lock continues the walk where it stopped: it marks the next full
//! member, or wakes the first in line. So a publisher is woken when it can continue, and not by each of a thousand
//! members.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | a watcher swaps its word for the new number, unmarked | a publisher marks the word (`fetch_or`) | AcqRel: both are read-modify-writes of one word, so one comes first. If it is the swap, the publisher reads the new number; if it is the mark, the watcher gets it and continues the walk |
//! | the same swap | a publisher's load or `fetch_or` of the word | Release / Acquire: the publisher of n + allowance + 1 sees everything that a consumer did before it took n |
//! | tickets, members, the number, the end | the same fields | the lock |
//!
//! Only the first in line makes the gate walk: a later publisher is woken by the one before it, when that has published
//! or given up. No foreign code runs under the lock: wakers are called after it.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_types)] // Loom instruments this mutex, and `sync::lock` counts its guards.

use crate::foreign::wake;
#[cfg(toolkit_loom)]
use crate::sync::Release;
use crate::sync::{AcqRel, Acquire, AtomicU64, HeldLock, Mutex, MutexGuard, lock, step};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A watcher for which publishers wait.
pub(super) struct Member {
    /// Twice the number up to which it has taken everything, the events of its prefix counted, plus one if the first in line
    /// waits for it.
    word: AtomicU64,
    /// The number of publications that it may be behind.
    allowance: u64,
    /// Its index in the table.
    index: usize,
}

impl Member {
    /// Records that everything up to `number` was taken. Returns whether a publisher waits for
    /// that: then call [`Gate::member_moved`].
    #[must_use]
    pub(super) fn take(&self, number: u64) -> bool {
        let before = step!(TakeInOneStep, self.word.swap(number << 1, AcqRel), {
            let before = self.word.load(Acquire);
            self.word.store(number << 1, Release);
            before
        });
        before & 1 == 1
    }

    /// How far the allowance can be raised in a log that keeps `window` numbers.
    pub(super) fn headroom(&self, window: u64) -> u64 {
        window - 1 - self.allowance
    }

    /// The highest number that this member allows.
    fn limit(&self) -> u64 {
        self.limit_of(self.word.load(Acquire))
    }

    /// Like `limit`, and marks that a publisher waits for more.
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

/// The gate, described in the module's documentation. `S` is the state that publishing changes.
pub(super) struct Gate<S> {
    line: Mutex<Line<S>>,
}

/// The state under the lock.
pub(super) struct Line<S> {
    /// The state that publishing changes.
    pub(super) state: S,
    /// The last published number.
    pub(super) last: u64,
    /// True after [`Gate::close`].
    closed: bool,
    /// All members are known to allow numbers up to this one.
    free_until: u64,
    members: Vec<Option<Arc<Member>>>,
    vacant: Vec<usize>,
    /// The member at which the last walk stopped, or 0.
    walk_from: usize,
    /// The waiting publishers, in order.
    waiting: BTreeMap<u64, Waker>,
    next_ticket: u64,
}

impl<S> Line<S> {
    /// Adds a member for a watcher that has taken everything up to `taken`.
    pub(super) fn add_member(&mut self, taken: u64, allowance: u64) -> Arc<Member> {
        let index = self.vacant.pop().unwrap_or(self.members.len());
        let member = Arc::new(Member { word: AtomicU64::new(taken << 1), allowance, index });
        if index == self.members.len() {
            self.members.push(None);
        }
        self.free_until = self.free_until.min(member.limit());
        self.members[index] = Some(Arc::clone(&member));
        member
    }

    /// Whether publishing has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether the next number may be published. If not, `arm` marks the member that blocks it.
    fn has_place(&mut self, arm: bool) -> bool {
        let next = self.last + 1;
        if next <= self.free_until {
            return true;
        }
        let (count, from) = (self.members.len(), self.walk_from);
        let mut free_until = u64::MAX;
        for step in 0..count {
            let index = if from + step < count { from + step } else { from + step - count };
            let Some(member) = &self.members[index] else { continue };
            let mut limit = member.limit();
            if limit < next && arm {
                limit = member.mark();
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

    /// Returns the waker of the first in line if the next number may be published; otherwise marks
    /// the member that blocks it.
    #[must_use]
    fn next_in_line(&mut self) -> Option<Waker> {
        if self.waiting.is_empty() || !self.has_place(true) {
            return None;
        }
        self.waiting.first_key_value().map(|(_, waker)| waker.clone())
    }

    /// Publishes the next number. A refused number is used again.
    fn publish<R, E>(&mut self, publish: impl FnOnce(&mut S, u64) -> Result<R, E>) -> Result<R, E> {
        let result = publish(&mut self.state, self.last + 1);
        self.last += u64::from(result.is_ok());
        result
    }
}

/// A publisher's ticket for the line, while it waits. [`Gate::leave`] returns it.
#[derive(Default)]
pub(super) struct Ticket(Option<u64>);

/// The result of an attempt to publish.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entered<R, E> {
    /// The number was published, or refused.
    Done(Result<R, E>),
    /// A member blocks the number now.
    Full,
    /// Publishing has ended.
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
                members: Vec::new(),
                vacant: Vec::new(),
                walk_from: 0,
                waiting: BTreeMap::new(),
                next_ticket: 0,
            }),
        }
    }

    /// Locks the gate, so that nothing is published. The lock is held for one publication at most, never during a wait.
    pub(super) fn lock(&self) -> HeldLock<MutexGuard<'_, Line<S>>> {
        lock(&self.line)
    }

    /// Publishes the next number if no member blocks it and no publisher is in line.
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

    /// Publishes the next number when no member blocks it and all earlier publishers in the line have
    /// published. `None`: publishing has ended.
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
        // No member is marked here: that happens below, after the waker is stored.
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
        // A member may have moved between the two checks: then this publisher itself is woken and polled again.
        wake(next);
        Poll::Pending
    }

    /// Removes a publisher that no longer waits, and wakes the next one if it may publish.
    pub(super) fn leave(&self, ticket: &mut Ticket) {
        let Some(own) = ticket.0.take() else { return };
        let mut line = self.lock();
        let left = line.waiting.remove(&own);
        let next = step!(LeaveLine, line.next_in_line(), { None });
        drop(line);
        drop(left);
        wake(next);
    }

    /// Handles a move of a member for which a publisher waited.
    #[cold]
    pub(super) fn member_moved(&self) {
        let mut line = self.lock();
        let next = line.next_in_line();
        drop(line);
        wake(next);
    }

    /// Removes a member, so that publishers no longer wait for it. Repeated calls have no effect.
    pub(super) fn remove_member(&self, member: &Arc<Member>) {
        let mut line = self.lock();
        let index = member.index;
        if !line.members[index].as_ref().is_some_and(|other| Arc::ptr_eq(other, member)) {
            return;
        }
        line.members[index] = None;
        line.vacant.push(index);
        let next = step!(MemberGone, line.next_in_line(), { None });
        drop(line);
        wake(next);
    }

    /// Ends publishing, after one last step, and wakes all waiting publishers. `None`: it had ended before.
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
