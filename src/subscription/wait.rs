//! Waiting for the next event: blocking, in a wake set, or as a stream.

#![forbid(unsafe_code)]

use super::shared::{OPEN, Shared};
use super::{Frontier, Halt, Sleeper, Start, Step, Subscription, SubscriptionPhase};
use crate::batch::Batch;
use crate::data::event::Kind;
use crate::error::{Code, Result, say};
use crate::log::ring::progress_of;
use crate::position::Position;
use crate::sync::{Acquire, SeqCst, current_thread, fence};
use crate::sys::clock;
use crate::wake::{Due, FilterCode, GroupRef, Interest, Membership, Registration, Unparked, WakeSet, Waker};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Subscription {
    /// Moves over events that do not match. True: poll has something (an event, a mark, an error).
    fn peek(&mut self) -> bool {
        if self.failure.is_some() {
            return true;
        }
        match self.peek_once() {
            Ok(something) => something,
            Err(halt) => {
                self.failure = Some(Box::new(halt));
                true
            }
        }
    }

    fn peek_once(&mut self) -> Step<bool> {
        let frontier = self.frontier();
        match self.phase {
            SubscriptionPhase::Ended
            | SubscriptionPhase::Initial(_)
            | SubscriptionPhase::Behind(_)
            | SubscriptionPhase::CatchUp(_) => return Ok(true),
            SubscriptionPhase::Unready | SubscriptionPhase::Revision { .. } | SubscriptionPhase::Future(_) => {
                if !self.started(&frontier)? {
                    return Ok(false);
                }
                if matches!(self.phase, SubscriptionPhase::Initial(_)) {
                    return Ok(true);
                }
            }
            SubscriptionPhase::Live => {}
        }
        if self.plain && self.cursor.seq() < frontier.head {
            return Ok(true);
        }
        if self.peek_events(&frontier)? {
            return Ok(true);
        }
        if let Some(bookmarks) = &self.bookmarks {
            let progress = progress_of(frontier.progress, self.position().epoch);
            let position = Position { revision: self.position().revision.max(progress), ..self.position() };
            if bookmarks.is_due(position) {
                return Ok(true);
            }
        }
        Ok(frontier.closed)
    }

    /// Whether there is an event to hand out; the cursor stands at it, or at the head.
    fn peek_events(&mut self, frontier: &Frontier) -> Step<bool> {
        while self.cursor.seq() < frontier.head || self.has_links() {
            if let Some(bucket) = self.chain() {
                if self.has_links() {
                    if self.links_match(frontier)? {
                        return Ok(true);
                    }
                    continue;
                }
                if self.shared.inner.ring.newest_mark() < self.cursor.seq() {
                    self.collect_ahead(&bucket, frontier)?;
                    continue;
                }
                self.go_to_mark(&bucket, frontier)?;
                if self.cursor.seq() >= frontier.head {
                    continue;
                }
            }
            let Some((segment, run)) = self.next_run(frontier)? else { return Ok(false) };
            for event in segment.view(run) {
                let Ok(kind) = self.passes(event) else { return Ok(true) };
                if let Some(kind) = kind {
                    if kind == Kind::Resync || self.matcher.delivers(kind) {
                        return Ok(true);
                    }
                    self.record(kind, event);
                }
                self.cursor.pass(event);
            }
        }
        Ok(false)
    }

    /// Those who are woken by the same events: by more than what is delivered, where kinds are masked and yet
    /// recorded.
    fn group(&mut self) -> GroupRef {
        let matcher = &self.matcher;
        let code = FilterCode::of(matcher);
        let hub = self.shared.inner.hubs.of(code);
        let join = || {
            let unmasked = if self.on_lag.needs_delivered_keys() { matcher.unmasked() } else { None };
            let matcher = unmasked.map_or_else(|| matcher.clone(), Arc::new);
            hub.groups.join(&matcher, self.shared.inner.indexes.bucket_passes(&matcher))
        };
        sleeper(&mut self.sleeper, &self.shared, code).group.get_or_insert_with(join).clone()
    }

    /// What would make `peek` true, and when it does in any case.
    fn interest(&mut self) -> (Interest, Due) {
        let mut due = Due::default();
        let interest = match (&self.phase, self.start()) {
            (SubscriptionPhase::Unready, _) => Interest::Ready,
            (SubscriptionPhase::Revision { until }, Some(Start::StateAtLeast(revision))) => {
                due.deadline = *until;
                Interest::Revision { position: revision.into(), ticket: None }
            }
            _ => {
                if let Some(interest) = self.future_interest() {
                    return (interest, due);
                }
                if let Some(bookmarks) = &self.bookmarks {
                    due.bookmark = bookmarks.at.checked_add(bookmarks.interval).map(|at| (at, bookmarks.delivered));
                }
                let group = self.group();
                if FilterCode::of(&self.matcher) == FilterCode::Foreign {
                    // Buckets are looked at by the thread that runs no predicates.
                    return (Interest::Events(group, None), due);
                }
                match self.chain() {
                    Some(bucket) => Interest::Chain(group, bucket),
                    None => Interest::Events(group, self.reader.request()),
                }
            }
        };
        (interest, due)
    }

    /// Sleeps for what would make `peek` true, if nothing does now. True: it is parked.
    fn park(&mut self, waker: Waker) -> bool {
        self.cursor.release();
        // As it stands when it sleeps: it may be looked at for long.
        self.share();
        let (interest, due) = self.interest();
        let inner = self.inner().clone();
        let of_the_cache = !interest.is_of_events();
        let cursor = self.cursor.seq();
        let sleeper = sleeper(&mut self.sleeper, &self.shared, FilterCode::of(&self.matcher));
        if let Err(unparked) = sleeper.registration.park(&inner, interest, cursor, waker, due) {
            self.slept(unparked);
            return false;
        }
        fence(SeqCst);
        // Partner: `Shared::close` stores the end, fence, looks at the seat.
        if self.shared.end.load(Acquire) != OPEN {
            self.unpark();
            return false;
        }
        if of_the_cache {
            inner.wake_source();
        }
        true
    }

    /// Ends a sleep and takes over how far the notifier looked.
    pub(super) fn unpark(&mut self) {
        if let Some(sleeper) = &mut self.sleeper
            && sleeper.registration.is_parked()
        {
            let unparked = sleeper.registration.unpark(&self.shared.inner.hubs);
            self.slept(unparked);
        }
    }

    fn slept(&mut self, unparked: Unparked) {
        if matches!(self.phase, SubscriptionPhase::Live) {
            self.cursor.jump(unparked.resume);
        }
        // Until it was woken it had everything.
        self.shared.caught_up(if unparked.woken { unparked.at } else { clock::now() });
    }

    /// Blocks until a poll has something, at most `timeout` (`Duration::MAX`: for ever). True: poll
    /// (an event, a mark, or an error that it reports). False: the time is up. CLOSED once everything
    /// was handed out.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool> {
        let until = Instant::now().checked_add(timeout);
        self.unpark();
        loop {
            if self.peek() {
                return self.report();
            }
            if !self.park(Waker::Thread(current_thread())) {
                continue;
            }
            let woken = self.sleeper.as_ref().is_none_or(|sleeper| sleeper.registration.sleep(until));
            self.unpark();
            if !woken {
                return if self.peek() { self.report() } else { Ok(false) };
            }
        }
    }

    /// What `wait` says when there is something.
    fn report(&mut self) -> Result<bool> {
        let frontier = self.frontier();
        let over = match self.phase {
            SubscriptionPhase::Ended => self.failure.is_none(),
            SubscriptionPhase::Future(_) => {
                matches!(self.failure.as_deref(), Some(Halt::Over(error)) if error.code() == Code::Closed)
            }
            SubscriptionPhase::Live => {
                let too_slow = frontier.closed && frontier.head == 0;
                frontier.closed
                    && !too_slow
                    && self.cursor.seq() >= frontier.head
                    && self.failure.is_none()
                    && !self.has_links()
            }
            _ => false,
        };
        if over { Err(self.named(say::closed("subscription"))) } else { Ok(true) }
    }

    /// The next batch of at most 1024 events; blocks for it. `None` after CLOSED.
    ///
    /// Not an iterator: a batch can be an error, and the loop continues after some.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Batch>> {
        loop {
            let step = self.wait(Duration::MAX).and_then(|_| self.poll(1024));
            match step {
                Ok(batch) if batch.is_empty() => {}
                Ok(batch) => return Ok(Some(batch)),
                Err(error) if error.code() == Code::Closed => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// As a member of a wake set: true if it is ready now (its tag is listed too); false: its tag
    /// will be listed when it is, unless it is polled before. Whenever a poll gave nothing, arm it again;
    /// what came between the two is found here. Never blocks.
    pub fn arm(&mut self) -> Result<bool> {
        let sleeper = sleeper(&mut self.sleeper, &self.shared, FilterCode::of(&self.matcher));
        let member = sleeper.membership.member("subscription").map_err(|error| self.named(error))?;
        self.unpark();
        loop {
            if self.peek() {
                // Once: the notifier may have listed it before.
                member.list();
                member.raise();
                return Ok(true);
            }
            if self.park(Waker::Member(member.clone())) {
                return Ok(false);
            }
        }
    }

    /// The batches as a stream of the feature `async`.
    #[cfg(feature = "async")]
    pub fn stream(&mut self) -> Stream<'_> {
        Stream(self)
    }
}

/// How a subscription sleeps: made with its first sleep.
fn sleeper<'a>(sleeper: &'a mut Option<Box<Sleeper>>, shared: &Shared, code: FilterCode) -> &'a mut Sleeper {
    sleeper.get_or_insert_with(|| {
        let registration = Registration::new(code);
        shared.sleeps_in(registration.seat());
        Box::new(Sleeper { registration, group: None, membership: Membership::default() })
    })
}

/// The batches of a subscription as a stream: ends after CLOSED.
#[cfg(feature = "async")]
#[derive(Debug)]
pub struct Stream<'a>(&'a mut Subscription);

#[cfg(feature = "async")]
impl futures_core::Stream for Stream<'_> {
    type Item = Result<Batch>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Batch>>> {
        use std::task::Poll;
        let subscription = &mut *self.0;
        loop {
            match subscription.poll(1024) {
                Ok(batch) if batch.is_empty() => {}
                Ok(batch) => return Poll::Ready(Some(Ok(batch))),
                Err(error) if error.code() == Code::Closed => return Poll::Ready(None),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
            if !subscription.peek() && subscription.park(Waker::Task(context.waker().clone())) {
                return Poll::Pending;
            }
        }
    }
}

impl WakeSet {
    /// Adds a subscription under a tag; it leaves the set it was in. It joins when it is armed.
    pub fn add(&self, subscription: &mut Subscription, tag: u64) -> Result<()> {
        subscription.unpark();
        let code = FilterCode::of(&subscription.matcher);
        sleeper(&mut subscription.sleeper, &subscription.shared, code).membership.join(self, tag);
        Ok(())
    }

    /// Takes a subscription out; true if it was in this set. A tag of it that is listed is dropped.
    pub fn remove(&self, subscription: &mut Subscription) -> bool {
        let was_member = subscription.sleeper.as_mut().is_some_and(|sleeper| sleeper.membership.leave_set(self));
        if was_member {
            subscription.unpark();
        }
        was_member
    }
}
