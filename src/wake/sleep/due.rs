//! When a sleeping consumer is woken in any case, and when the notifier looks at it for that.
//!
//! | consumer | notifier | order |
//! | --- | --- | --- |
//! | times; PARKED; fence; `list` | `unlist`; fence; PARKED; times | SeqCst fences: one of the two sees the other |
//!
//! The notifier looks at a waiter no later than the time that it is listed for. A consumer that parks with an earlier time
//! lists that and posts a message; the notifier removes the listing before it looks at the waiter. So either the consumer
//! finds no listing and lists itself, or the notifier sees it parked, with the times that it parked with.

#![forbid(unsafe_code)]

use crate::log::ring::progress_word;
use crate::position::Position;
use crate::sync::{AcqRel, AtomicU64, Relaxed};
use crate::sys::clock;
use std::sync::atomic::AtomicU64 as Plain;
use std::time::Instant;

/// The times at which a sleeping consumer is woken, whatever happens.
#[derive(Clone, Copy, Default)]
pub(crate) struct Due {
    /// The consumer is woken at this time.
    pub(crate) deadline: Option<Instant>,
    /// The consumer is woken when the position has left this one, but not before the time.
    pub(crate) bookmark: Option<(Instant, Position)>,
}

impl Due {
    pub(crate) fn is_some(&self) -> bool {
        self.deadline.is_some() || self.bookmark.is_some()
    }
}

/// No time: it is never due.
const NEVER: u64 = u64::MAX;

/// The times of a waiter, as times of [`clock`].
pub(crate) struct DueTimes {
    // These lie still while the waiter is parked, which orders them.
    deadline: Plain,
    bookmark: Plain,
    /// The position that the last bookmark showed, as a progress word.
    delivered: Plain,
    /// The notifier looks no later than this: its heap has an entry of that time, or will once it reads a message that was
    /// posted; [`NEVER`]: the heap has none.
    listed: AtomicU64,
    /// The waiter's number in the timers of the tables; 0: none. Only the thread that holds the pass lock uses it.
    number: Plain,
}

impl DueTimes {
    pub(crate) fn never() -> DueTimes {
        DueTimes {
            deadline: Plain::new(NEVER),
            bookmark: Plain::new(NEVER),
            delivered: Plain::new(0),
            listed: AtomicU64::new(NEVER),
            number: Plain::new(0),
        }
    }

    pub(crate) fn store(&self, due: &Due) {
        self.deadline.store(due.deadline.map_or(NEVER, clock::of), Relaxed);
        self.bookmark.store(due.bookmark.map_or(NEVER, |(at, _)| clock::of(at)), Relaxed);
        self.delivered.store(due.bookmark.map_or(0, |(_, delivered)| progress_word(delivered)), Relaxed);
    }

    // ---- The consumer ------------------------------------------------------------------------------------

    /// Lists its first time, after PARKED and a fence. True: the notifier would look later, so the caller posts a message.
    pub(crate) fn list_first(&self) -> bool {
        self.list(self.deadline.load(Relaxed).min(self.bookmark.load(Relaxed)))
    }

    // ---- The holder of the pass lock --------------------------------------------------------------------------

    /// Lists a time. True: it was listed for a later time, or for none.
    pub(crate) fn list(&self, at: u64) -> bool {
        self.listed.load(Relaxed) > at && self.listed.fetch_min(at, AcqRel) > at
    }

    /// Removes the listing. The caller then issues a fence and looks at the waiter.
    pub(crate) fn unlist(&self) {
        self.listed.swap(NEVER, AcqRel);
    }

    /// The time that the waiter is listed for.
    pub(crate) fn listed(&self) -> Option<u64> {
        Some(self.listed.load(Relaxed)).filter(|at| *at != NEVER)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number.load(Relaxed)
    }

    pub(crate) fn set_number(&self, number: u64) {
        self.number.store(number, Relaxed);
    }

    pub(crate) fn is_past_deadline(&self, now: u64) -> bool {
        self.deadline.load(Relaxed) <= now
    }

    /// Whether the time of its bookmark has come.
    pub(crate) fn awaits_a_move(&self, now: u64) -> bool {
        self.bookmark.load(Relaxed) <= now
    }

    /// Whether the position differs from that of its last bookmark.
    pub(crate) fn has_moved_to(&self, position: Position) -> bool {
        self.delivered.load(Relaxed) != progress_word(position)
    }

    /// The next time that it is due, leaving out a bookmark whose time has come: that waits until the position moves.
    pub(crate) fn next_after(&self, now: u64) -> Option<u64> {
        let bookmark = self.bookmark.load(Relaxed);
        let next = self.deadline.load(Relaxed).min(if bookmark <= now { NEVER } else { bookmark });
        (next != NEVER).then_some(next)
    }
}
