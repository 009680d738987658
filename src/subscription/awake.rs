//! A subscription during a call of its consumer, with the cursor taken up.
//!
//! Between two calls the cursor is stored in the words that other threads see. A call takes it up, moves it, and stores
//! it once, at the end: other threads see it move from call to call, and a call that panics has not moved it.

#![forbid(unsafe_code)]

use super::cursor::Cursor;
use super::own::{Flag, Own, SubscriptionPhase};
use super::{Halt, Step};
use crate::batch::{Batch, BatchBuilder};
use crate::cache::{ConsumerRef, Inner, OPEN};
use crate::data::event::Mark;
use crate::error::{Code, Error, Result, say};
use crate::log::ring::{LogEnd, Run, progress_of, progress_word};
use crate::position::Position;
use crate::reclaim;
use crate::sync::{Acquire, Relaxed, ord};
use crate::sys::clock;
use std::sync::Arc;
use std::time::Instant;

/// See the module.
pub(super) struct Awake<'s> {
    pub(super) shared: &'s ConsumerRef,
    pub(super) own: &'s mut Own,
    /// While the initial state is handed out, the cursor stands at the head of that state.
    pub(super) cursor: Cursor,
}

/// The bound of what a call reads; the fields are loaded in this order.
#[derive(Clone, Copy)]
pub(super) struct Frontier {
    pub(super) closed: bool,
    pub(super) progress: u64,
    pub(super) head: u64,
    /// The cache's position when the owner of the subscription closed it, if more was published since.
    pub(super) closed_at: Option<Position>,
}

impl<'s> Awake<'s> {
    #[inline]
    pub(super) fn new(shared: &'s ConsumerRef, own: &'s mut Own) -> Awake<'s> {
        let (seq, position) = shared.stands_at();
        // For a start in the future the shared cursor is the head that it has looked up to, not its own cursor.
        let seq = match own.cold.as_ref().map(|cold| &cold.phase) {
            Some(SubscriptionPhase::Future(start)) => start.began_at,
            _ => seq,
        };
        let cursor = Cursor::taken_up(seq, position, own.segment.take());
        Awake { shared, own, cursor }
    }

    /// Stores the cursor. Inlined, so that the compiler may keep it in registers until here.
    #[inline(always)]
    pub(super) fn rest(mut self) {
        // A parked subscription has shared its cursor in `park_until`, and has not moved since.
        if !self.has(Flag::Parked) {
            self.share();
        }
        self.own.segment = self.cursor.lend();
    }

    #[inline]
    pub(super) fn inner(&self) -> &'s Arc<Inner> {
        &self.shared.inner
    }

    pub(super) fn position(&self) -> Position {
        self.cursor.position()
    }

    #[inline(always)]
    pub(super) fn frontier(&self) -> Frontier {
        let inner = self.inner();
        let end = self.shared.end.load(ord!(EndLoad, Acquire));
        let progress = inner.ring.progress();
        let LogEnd { head, closed } = inner.ring.end();
        if end < head {
            // Closed by its owner: no event and no progress above that end is read.
            let at = self.shared.closed_at();
            return Frontier { closed: true, progress: progress_word(at), head: end, closed_at: Some(at) };
        }
        Frontier { closed: closed || end != OPEN, progress, head, closed_at: None }
    }

    /// The position of the cache at the frontier. `None`: the event below that head has left the window, so there is a
    /// newer head.
    pub(super) fn position_at(&self, frontier: &Frontier) -> Option<Position> {
        let of_the_log = || self.inner().ring.position(frontier.progress, frontier.head, &reclaim::pin());
        frontier.closed_at.or_else(of_the_log)
    }

    /// See `Subscription::poll`.
    #[inline(always)]
    pub(super) fn poll(&mut self, max: usize) -> Result<Batch> {
        self.unpark();
        let frontier = self.frontier();
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
        if behind == 0 || frontier.closed || self.own.cold.is_some() || !self.has(Flag::Plain) {
            return None;
        }
        if behind > self.inner().consumers.max_lag.load(Relaxed) || self.shared.is_limited() {
            return None;
        }
        let Run::Events(run) = self.cursor.next_run(&self.inner().ring, frontier.head) else { return None };
        let batch = self.view(run, max);
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
                    frontier = self.frontier();
                }
            }
        }
    }

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

    /// Whether it has taken everything below the frontier. Before its start no event concerns it.
    #[inline]
    pub(super) fn has_everything(&self, frontier: &Frontier) -> bool {
        self.cursor.seq() >= frontier.head || self.own.phase().is_before_its_start()
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

    pub(super) fn end(&mut self) {
        self.cursor.release();
        self.own.release(self.shared);
        self.own.enter(SubscriptionPhase::Ended);
    }

    fn poll_once(&mut self, frontier: &Frontier, max: usize) -> Step<Batch> {
        if let Some(cold) = &mut self.own.cold
            && let Some(halt) = cold.failure.take()
        {
            return Err(*halt);
        }
        let is_live = self.own.is_live();
        if !is_live && matches!(self.own.phase(), SubscriptionPhase::Ended) {
            return Err(say::closed("subscription").into());
        }
        if frontier.closed {
            self.check_limit()?;
        }
        if self.cursor.seq() >= frontier.head && self.own.cold.is_none() {
            return self.nothing(frontier);
        }
        let behind = if !is_live && self.is_ahead() { 0 } else { frontier.head.saturating_sub(self.cursor.seq()) };
        if behind > self.shared.inner.consumers.max_lag.load(Relaxed) {
            self.count_max_lag(frontier);
        }
        if behind > 0 && self.shared.is_limited() {
            self.shared.show_cursor(self.cursor.seq());
            self.shared.enforce_lag_limit();
            self.check_limit()?;
        }
        if !is_live {
            if self.own.phase().is_before_its_start() && !self.started(frontier)? {
                return Ok(Batch::empty(self.position()));
            }
            match self.own.phase() {
                SubscriptionPhase::Initial(_) => return self.initial_page(max),
                SubscriptionPhase::Behind(_) | SubscriptionPhase::CatchUp(_) => return self.catch_up_page(max),
                _ => {}
            }
        }
        let batch = self.events(frontier, max)?;
        if !batch.is_empty() {
            return Ok(batch);
        }
        self.nothing(frontier)
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
        }
        if frontier.closed && self.cursor.seq() >= frontier.head {
            return Err(say::closed("subscription").into());
        }
        let position = self.position();
        if let Some(cold) = &mut self.own.cold
            && let Some(bookmarks) = &mut cold.bookmarks
            && bookmarks.is_due(position)
        {
            (bookmarks.delivered, bookmarks.at) = (position, Instant::now());
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
        let moved_unseen = self.own.take(Flag::MovedUnseen) || self.own.cold.is_some();
        if moved_unseen
            && let Some(now) = self.position_at(frontier)
            && now.epoch == epoch
        {
            self.cursor.reach(now.revision);
        }
    }

    /// Stores cursor, position and standing, for other threads and for the next call.
    #[inline(always)]
    pub(super) fn share(&mut self) {
        let cursor = if self.own.cold.is_some() { self.share_cold() } else { self.cursor.seq() };
        self.shared.show(cursor, self.position());
        self.shared.stands(self.standing());
    }

    /// Shares the state of the box, and frees the box if it is empty; returns the sequence number to show.
    #[inline(never)]
    fn share_cold(&mut self) -> u64 {
        let cursor = self.cursor.seq();
        let Some(cold) = &mut self.own.cold else { return cursor };
        cold.count(self.shared);
        if let SubscriptionPhase::Future(start) = &mut cold.phase {
            start.began_at = cursor;
            return start.looked_to;
        }
        if cold.is_empty() {
            self.own.cold = None;
        }
        cursor
    }

    /// Adds the subscription's name, if it has one, to an error.
    pub(super) fn named(&self, error: Error) -> Error {
        error.of_subscription(self.shared.name())
    }

    #[inline]
    pub(super) fn has(&self, flag: Flag) -> bool {
        self.own.has(flag)
    }
}
