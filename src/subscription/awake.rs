//! A subscription during a call of its consumer, with the cursor taken up.
//!
//! Between two calls the cursor is stored in the words that other threads see. A call takes it up, moves it, and stores
//! it once, at the end: other threads see it move from call to call, and a call that panics has not moved it.

#![forbid(unsafe_code)]

use super::cursor::Cursor;
use super::frontier::Frontier;
use super::loss::{Loss, Lost};
use super::state::{ConsumerState, Flag, SubscriptionPhase};
use crate::cache::{ConsumerRef, Inner, ReportedPhase};
use crate::error::Error;
use crate::position::Position;
use std::sync::Arc;

/// See the module.
pub(super) struct Awake<'s> {
    pub(super) shared: &'s ConsumerRef,
    pub(super) state: &'s mut ConsumerState,
    pub(super) cursor: Cursor,
}

impl<'s> Awake<'s> {
    #[inline]
    pub(super) fn new(shared: &'s ConsumerRef, state: &'s mut ConsumerState) -> Awake<'s> {
        let (seq, position) = shared.stands_at();
        // For a start in the future the shared cursor is the head that it has looked up to, not its own cursor.
        let seq = match state.rare.as_ref().map(|rare| &rare.phase) {
            Some(SubscriptionPhase::Future(start)) => start.began_at,
            _ => seq,
        };
        let cursor = Cursor::taken_up(seq, position, state.segment.take());
        Awake { shared, state, cursor }
    }

    /// Stores the cursor. Inlined, so that the compiler may keep it in registers until here.
    #[inline(always)]
    pub(super) fn rest(mut self) {
        // A parked subscription has shared its cursor in `park_until`, and has not moved since.
        if !self.has(Flag::Parked) {
            self.share();
        }
        self.state.segment = self.cursor.lend();
    }

    #[inline]
    pub(super) fn inner(&self) -> &'s Arc<Inner> {
        &self.shared.inner
    }

    #[inline]
    pub(super) fn has(&self, flag: Flag) -> bool {
        self.state.has(flag)
    }

    pub(super) fn position(&self) -> Position {
        self.cursor.position()
    }

    /// Whether it has taken everything below the frontier. Before its start no event concerns it.
    #[inline]
    pub(super) fn has_everything(&self, frontier: &Frontier) -> bool {
        self.cursor.seq() >= frontier.head || self.state.phase().is_before_its_start()
    }

    /// The loss of a live cursor whose segment has left.
    pub(super) fn loss(&self) -> Loss {
        Loss::at(&self.cursor, Lost::Events, 0, self.shared)
    }

    /// Adds the subscription's name, if it has one, to an error.
    pub(super) fn named(&self, error: Error) -> Error {
        error.of_subscription(self.shared.name())
    }

    /// Stores cursor, position and phase, for other threads and for the next call.
    #[inline(always)]
    pub(super) fn share(&mut self) {
        let cursor = if self.state.rare.is_some() { self.share_rare() } else { self.cursor.seq() };
        self.shared.show(cursor, self.position());
        self.shared.report_phase(self.reported_phase());
    }

    /// Shares the state of the box, and frees the box if it is empty; returns the sequence number to show.
    #[inline(never)]
    fn share_rare(&mut self) -> u64 {
        let cursor = self.cursor.seq();
        let Some(rare) = &mut self.state.rare else { return cursor };
        rare.count(self.shared);
        if let SubscriptionPhase::Future(start) = &mut rare.phase {
            start.began_at = cursor;
            return start.looked_to;
        }
        if rare.is_empty() {
            self.state.rare = None;
        }
        cursor
    }

    #[inline]
    fn reported_phase(&self) -> ReportedPhase {
        self.state.phase().reported_phase(self.cursor.is_in_segment())
    }
}
