//! Waits for the next event: of a thread, and of a task.

#![forbid(unsafe_code)]

use super::awake::Awake;
use super::frontier::Frontier;
use super::loss::Halt;
use super::state::SubscriptionPhase;
use crate::batch::Batch;
use crate::error::{Code, Result, say};
use crate::sync::current_thread;
use crate::wake::Waker;
use std::mem::take;
use std::task::{Context, Poll};
use std::time::Instant;

/// Most events of a batch of the stream.
const STREAM_BATCH: usize = 1024;

impl Awake<'_> {
    /// The next batch of the stream, or its end. `None`: it sleeps with this waker.
    pub(super) fn poll_or_park(&mut self, waker: impl Fn() -> Waker) -> Option<Option<Result<Batch>>> {
        self.unpark();
        let mut may_yield = true;
        loop {
            match self.poll(STREAM_BATCH) {
                Ok(batch) if batch.is_empty() && !batch.continues() => {}
                Ok(batch) => return Some(Some(Ok(batch))),
                Err(error) if error.code() == Code::Closed => return Some(None),
                Err(error) => return Some(Some(Err(error))),
            }
            if take(&mut may_yield) && self.hub().yields() {
                continue;
            }
            // The poll has found nothing.
            if (self.awaits_events() || !self.peek()) && self.park(waker()) {
                return None;
            }
        }
    }

    pub(super) fn wait(&mut self, until: Option<Instant>) -> Result<bool> {
        self.unpark();
        let mut may_yield = true;
        loop {
            if self.peek() || take(&mut may_yield) && self.hub().yields() && self.peek() {
                return self.report();
            }
            if !self.park(Waker::Thread(current_thread())) {
                continue;
            }
            let woken = self.shared.waiter().is_none_or(|waiter| waiter.sleep(until));
            self.unpark();
            if !woken {
                return if self.peek() { self.report() } else { Ok(false) };
            }
        }
    }

    /// [`Awake::wait`] for a task, which the notifier wakes at the deadline, too.
    pub(super) fn poll_wait(&mut self, context: &Context<'_>, until: Option<Instant>) -> Poll<Result<bool>> {
        self.unpark();
        let mut may_yield = true;
        loop {
            if self.peek() || take(&mut may_yield) && self.hub().yields() && self.peek() {
                return Poll::Ready(self.report());
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return Poll::Ready(Ok(false));
            }
            if self.park_until(Waker::Task(context.waker().clone()), until) {
                return Poll::Pending;
            }
        }
    }

    /// The answer of `wait` when `peek` was true: CLOSED where only the end is left.
    fn report(&mut self) -> Result<bool> {
        let frontier = Frontier::load(self.shared);
        let over = match self.state.phase() {
            SubscriptionPhase::Ended => !self.state.has_failed(),
            SubscriptionPhase::Future(_) => {
                let failure = self.state.rare.as_ref().and_then(|rare| rare.failure.as_deref());
                matches!(failure, Some(Halt::Over(error)) if error.code() == Code::Closed)
            }
            SubscriptionPhase::Live => {
                let too_slow = frontier.closed && frontier.head == 0;
                frontier.closed
                    && !too_slow
                    && self.cursor.seq() >= frontier.head
                    && !self.state.has_failed()
                    && !self.state.has_links()
            }
            _ => false,
        };
        if over { Err(self.named(say::closed("subscription"))) } else { Ok(true) }
    }
}
