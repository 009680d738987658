//! A subscription while its consumer calls: with the cursor in hand.
//!
//! Between two calls the cursor stands in the words that other threads see. A call takes it up, moves it, and puts it
//! back once, at its end: others see it move from call to call, and a call that panics has not moved it.

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
    /// The head of the initial state while that is handed out.
    pub(super) cursor: Cursor,
}

/// How far a call of the consumer's reads: loaded in this order.
#[derive(Clone, Copy)]
pub(super) struct Frontier {
    pub(super) closed: bool,
    pub(super) progress: u64,
    pub(super) head: u64,
    /// Where the cache stood when the owner of the subscription closed it, if more was published since.
    pub(super) closed_at: Option<Position>,
}

impl<'s> Awake<'s> {
    #[inline]
    pub(super) fn new(shared: &'s ConsumerRef, own: &'s mut Own) -> Awake<'s> {
        let (seq, position) = shared.stands_at();
        // Others see how far a start in the future has looked.
        let seq = match own.cold.as_ref().map(|cold| &cold.phase) {
            Some(SubscriptionPhase::Future(start)) => start.began_at,
            _ => seq,
        };
        let cursor = Cursor::taken_up(seq, position, own.segment.take());
        Awake { shared, own, cursor }
    }

    /// Puts the cursor back. In line, so that it need not be memory before that.
    #[inline(always)]
    pub(super) fn rest(mut self) {
        // What sleeps has shown where it stands, and has not moved since.
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
            // Closed by its owner: nothing above, and no progress beyond.
            let at = self.shared.closed_at();
            return Frontier { closed: true, progress: progress_word(at), head: end, closed_at: Some(at) };
        }
        Frontier { closed: closed || end != OPEN, progress, head, closed_at: None }
    }

    /// The position of the cache at the frontier. `None`: the event below that head has left the window, and there is a newer
    /// head.
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

    /// The poll of who takes all events of the log, and finds some; `None`: there is more to look at. In line, so that the
    /// batch is made where it is returned: each copy of it waits for words that were just written in other widths.
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
            // Behind what this poll sees, and before a predicate takes its time.
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

    /// A poll ends with this batch, whatever it is of. The one place that notes when it had everything, and of one with
    /// limits each time: it is closed by that.
    #[inline]
    fn answered(&mut self, batch: &Batch, frontier: &Frontier, at: Option<u64>) {
        // An empty one that continues has looked at a part of the state.
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

    /// Whether it is behind nothing of what was seen. Before its start nothing concerns it.
    #[inline]
    pub(super) fn has_everything(&self, frontier: &Frontier) -> bool {
        self.cursor.seq() >= frontier.head || self.own.phase().is_before_its_start()
    }

    /// What a poll says that cannot continue; nothing where it does.
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

    /// It is further behind than any was, in sequence numbers: fewer are events, where a segment was closed before
    /// it was full.
    #[cold]
    fn count_max_lag(&self, frontier: &Frontier) {
        let below = self.shared.events_below_shown();
        let events = self.shared.inner.ring.events_between(self.cursor.seq(), frontier.head, below);
        self.shared.inner.consumers.max_lag.fetch_max(events, Relaxed);
    }

    /// Nothing to hand out: the position moves, a bookmark may be due, or it is over.
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

    /// At the head: it is where the cache is for everybody else. Who has seen the cache at a revision, and then polls,
    /// finds a position that is not below it.
    #[inline]
    fn reach_head(&mut self, frontier: &Frontier) {
        let epoch = self.position().epoch;
        self.cursor.reach(progress_of(frontier.progress, epoch));
        // The progress word alone may be that of the revision before. Who looks at each event has seen that one; who
        // reads a chain, or was moved by the notifier, asks.
        let moved_unseen = self.own.take(Flag::MovedUnseen) || self.own.cold.is_some();
        if moved_unseen
            && let Some(now) = self.position_at(frontier)
            && now.epoch == epoch
        {
            self.cursor.reach(now.revision);
        }
    }

    /// Publishes where it stands: for other threads, and for the next call.
    #[inline(always)]
    pub(super) fn share(&mut self) {
        let cursor = if self.own.cold.is_some() { self.share_cold() } else { self.cursor.seq() };
        self.shared.show(cursor, self.position());
        self.shared.stands(self.standing());
    }

    /// The same of what is in the box, which goes where that is nothing; the sequence number to show.
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

    /// An error that names it, where it has a name.
    pub(super) fn named(&self, error: Error) -> Error {
        error.of_subscription(self.shared.name())
    }

    #[inline]
    pub(super) fn has(&self, flag: Flag) -> bool {
        self.own.has(flag)
    }
}
