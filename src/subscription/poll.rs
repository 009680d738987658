//! Polls: the next batch of a subscription in whatever phase it is, and whether there is one.

#![forbid(unsafe_code)]

use super::awake::Awake;
use super::frontier::Frontier;
use super::live;
use super::loss::{Halt, Step, check_limit};
use super::state::{Flag, SubscriptionPhase};
use super::view;
use crate::batch::{Batch, BatchBuilder};
use crate::data::event::Mark;
use crate::error::{Code, Error, Result, say};
use crate::log::ring::{Run, progress_of};
use crate::position::Position;
use crate::sync::Relaxed;
use crate::sys::clock;

/// The polls that follow a recorded one at once and are not recorded themselves: reading a clock costs more than
/// the rest of a small poll.
const UNRECORDED: u8 = 15;

impl Awake<'_> {
    /// See `Subscription::poll`. To be called when it is not parked.
    #[inline(always)]
    pub(super) fn poll(&mut self, max: usize) -> Result<Batch> {
        let frontier = Frontier::load(self.shared);
        match self.poll_log(&frontier, max) {
            Some(batch) => Ok(batch),
            None => self.poll_any(frontier, max),
        }
    }

    /// Fast path: unfiltered, live, events available. `None` means use `poll_any`. Inlined, so that the batch is built
    /// where it is returned: a copy would load words just stored in other widths, and stall on them.
    #[inline(always)]
    fn poll_log(&mut self, frontier: &Frontier, max: usize) -> Option<Batch> {
        let behind = frontier.head.saturating_sub(self.cursor.seq());
        if behind == 0 || frontier.closed || self.state.rare.is_some() || !self.has(Flag::Plain) {
            return None;
        }
        if behind > self.inner().consumers.max_lag.load(Relaxed) || self.shared.is_limited() {
            return None;
        }
        let Run::Events(run) = self.cursor.next_run(&self.inner().ring, frontier.head) else { return None };
        let batch = view::of_run(self, run, max);
        self.handed_out(&batch, frontier);
        Some(batch)
    }

    #[inline(never)]
    fn poll_any(&mut self, mut frontier: Frontier, max: usize) -> Result<Batch> {
        loop {
            // After the frontier is loaded, and before a predicate may take long.
            let at = self.shared.is_limited().then(clock::soon);
            match self.poll_once(&frontier, max) {
                Ok(batch) => {
                    self.answered(&batch, &frontier, at);
                    return Ok(batch);
                }
                Err(halt) => {
                    if let Some(error) = self.halt(halt) {
                        return Err(error);
                    }
                    frontier = Frontier::load(self.shared);
                }
            }
        }
    }

    fn poll_once(&mut self, frontier: &Frontier, max: usize) -> Step<Batch> {
        if let Some(rare) = &mut self.state.rare
            && let Some(halt) = rare.failure.take()
        {
            return Err(*halt);
        }
        if matches!(self.state.phase(), SubscriptionPhase::Ended) {
            return Err(say::closed("subscription").into());
        }
        if frontier.closed {
            check_limit(self.shared, self.position())?;
        }
        if self.cursor.seq() >= frontier.head && self.state.rare.is_none() {
            return self.nothing(frontier);
        }
        self.check_lag(frontier)?;
        if !self.started(frontier)? {
            return Ok(Batch::empty(self.position()));
        }
        if let Some(batch) = self.page(max)? {
            return Ok(batch);
        }
        let batch = live::poll(self, frontier, max)?;
        if !batch.is_empty() {
            return Ok(batch);
        }
        self.nothing(frontier)
    }

    /// Counts its lag for the statistics, and ends it where it exceeds its limits.
    fn check_lag(&mut self, frontier: &Frontier) -> Step<()> {
        let ahead = self.state.phase().awaits_a_revision();
        let behind = if ahead { 0 } else { frontier.head.saturating_sub(self.cursor.seq()) };
        let consumer = self.shared;
        if behind > consumer.inner.consumers.max_lag.load(Relaxed) {
            self.count_max_lag(frontier);
        }
        if behind > 0 && consumer.is_limited() {
            consumer.show_cursor(self.cursor.seq());
            consumer.enforce_lag_limit();
            check_limit(consumer, self.position())?;
        }
        Ok(())
    }

    /// Counts a lag that in sequence numbers is the largest so far; in events it may be smaller, because a segment may
    /// be closed before it is full.
    #[cold]
    fn count_max_lag(&self, frontier: &Frontier) {
        let events = self.shared.inner.ring.events_between(self.cursor.seq(), frontier.head);
        self.shared.inner.consumers.max_lag.fetch_max(events, Relaxed);
    }

    /// Answers a poll that has no event: moves the position, hands out a bookmark that is due, or reports the end.
    fn nothing(&mut self, frontier: &Frontier) -> Step<Batch> {
        if self.cursor.seq() >= frontier.head {
            self.reach_head(frontier);
            if frontier.closed {
                return Err(say::closed("subscription").into());
            }
        }
        let position = self.position();
        if let Some(rare) = &mut self.state.rare
            && let Some(bookmarks) = &mut rare.bookmarks
            && bookmarks.is_due(position)
        {
            bookmarks.deliver(position);
            let mut batch = BatchBuilder::new(1, false);
            batch.push_mark(Mark::bookmark(position.revision, 0));
            return Ok(batch.finish(position));
        }
        Ok(Batch::empty(position))
    }

    /// Moves the position to that of the cache, because the cursor is at the head. A caller that has seen the cache at
    /// a revision, and then polls, finds a position that is not below it.
    #[inline]
    fn reach_head(&mut self, frontier: &Frontier) {
        let epoch = self.position().epoch;
        self.cursor.reach(progress_of(frontier.progress, epoch));
        // The progress word may still be that of the revision before. A scan has seen the newest event itself; one that
        // reads a chain, or was moved by the notifier, has to ask the log.
        let moved_unseen = self.state.take(Flag::MovedUnseen) || self.state.rare.is_some();
        if moved_unseen
            && let Some(now) = frontier.position(self.inner())
            && now.epoch == epoch
        {
            self.cursor.reach(now.revision);
        }
    }

    /// Returns the error of a poll that was halted; `None`: the poll continues.
    #[cold]
    fn halt(&mut self, halt: Halt) -> Option<Error> {
        let error = match halt {
            Halt::Over(error) => {
                if error.code() != Code::NotReady {
                    self.end();
                }
                error
            }
            Halt::Lost(loss) => self.lose(loss)?,
        };
        self.shared.polled_at(clock::now());
        Some(self.named(error))
    }
}

// ---- What a poll records ----------------------------------------------------------------------------

impl Awake<'_> {
    /// Ends a poll with this batch. Only here, and in `record_poll`, a poll records when the consumer had everything;
    /// with limits of lag each poll records it, because they are enforced by that time.
    #[inline]
    fn answered(&mut self, batch: &Batch, frontier: &Frontier, at: Option<u64>) {
        // An empty batch that continues has looked at a part of the state only.
        let is_all = batch.is_empty() && !batch.continues();
        if !is_all {
            self.handed_out(batch, frontier);
        }
        let now = match at {
            Some(at) => at,
            None if is_all => clock::soon(),
            None => return,
        };
        if is_all {
            self.shared.polled_at(now);
        }
        if self.has_everything(frontier) {
            self.shared.caught_up(now);
        }
    }

    #[inline(always)]
    fn handed_out(&mut self, batch: &Batch, frontier: &Frontier) {
        self.shared.hand_out(batch.len() as u64);
        self.record_poll(frontier);
    }

    /// Records the time of a poll that handed out events, and whether it has everything now; see [`UNRECORDED`].
    #[inline]
    fn record_poll(&mut self, frontier: &Frontier) {
        if let Some(left) = self.state.unrecorded.checked_sub(1) {
            self.state.unrecorded = left;
            return;
        }
        let now = clock::soon();
        self.state.unrecorded = if self.shared.polled_at(now) { UNRECORDED } else { 0 };
        if self.has_everything(frontier) {
            self.shared.caught_up(now);
        }
    }
}

// ---- Whether a poll has something -------------------------------------------------------------------

impl Awake<'_> {
    /// Moves over events that do not match. True: poll has something (an event, a mark, an error).
    #[inline]
    pub(super) fn peek(&mut self) -> bool {
        let frontier = Frontier::load(self.shared);
        let is_at_the_end = self.cursor.seq() >= frontier.head && !frontier.closed;
        // Without the box only an event can make `peek` true.
        if is_at_the_end && self.state.rare.is_none() { false } else { self.peek_from(&frontier) }
    }

    #[inline(never)]
    fn peek_from(&mut self, frontier: &Frontier) -> bool {
        // Closed for its lag: only a poll reports that, before any other end.
        if self.state.has_failed() || frontier.closed && self.shared.is_too_slow() {
            return true;
        }
        match self.peek_once(frontier) {
            Ok(something) => something,
            Err(halt) => {
                self.state.rare().failure = Some(Box::new(halt));
                true
            }
        }
    }

    fn peek_once(&mut self, frontier: &Frontier) -> Step<bool> {
        if !self.started(frontier)? {
            return Ok(false);
        }
        if !self.state.is_live() || self.has(Flag::Plain) && self.cursor.seq() < frontier.head {
            return Ok(true);
        }
        if live::peek(self, frontier)? {
            return Ok(true);
        }
        if let Some(bookmarks) = self.state.bookmarks() {
            let progress = progress_of(frontier.progress, self.position().epoch);
            let position = Position { revision: self.position().revision.max(progress), ..self.position() };
            if bookmarks.is_due(position) {
                return Ok(true);
            }
        }
        Ok(frontier.closed)
    }

    /// Whether only events, and the ends of cache and subscription, can make `peek` true. Then no `peek` is needed
    /// between an empty poll and `park`, which looks for these after PARKED.
    pub(super) fn awaits_events(&self) -> bool {
        self.state.is_live() && !self.state.has_failed() && !self.state.has_links()
    }
}
