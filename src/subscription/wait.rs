//! Waiting for the next event: blocking, in a wake set, as a future, or as a stream.

#![forbid(unsafe_code)]

use super::awake::{Awake, Frontier};
use super::own::{Flag, SubscriptionPhase};
use super::{Halt, Step, Subscription};
use crate::batch::Batch;
use crate::error::{Code, Result, say};
use crate::log::ring::progress_of;
use crate::position::Position;
use crate::sync::current_thread;
use crate::wake::Waker;
use std::mem::take;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

impl Subscription {
    /// Blocks until a poll has something, at most `timeout` (`Duration::MAX`: for ever). True: a poll has an event, a
    /// mark, or an error to report. False: the time is up. CLOSED once everything was handed out.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool> {
        let until = Instant::now().checked_add(timeout);
        self.awake(|awake| awake.wait(until))
    }

    /// [`Subscription::wait`] as a future, on any runtime, without a timer of the runtime. Cancel safe: it takes no
    /// event, and dropping it ends the wait.
    ///
    /// ```
    /// use std::time::Duration;
    /// use watchcore::{Result, Subscription};
    ///
    /// /// Collects changes until none comes for 100 ms, in batches of at most 64: a `Stream` has a fixed maximum.
    /// async fn collect(subscription: &mut Subscription) -> Result<usize> {
    ///     let mut events = 0;
    ///     while subscription.wait_async(Duration::from_millis(100)).await? {
    ///         events += subscription.poll(64)?.len();
    ///     }
    ///     Ok(events)
    /// }
    /// ```
    pub async fn wait_async(&mut self, timeout: Duration) -> Result<bool> {
        let until = Instant::now().checked_add(timeout);
        let waiting = Waiting(self);
        std::future::poll_fn(|context| waiting.0.awake(|awake| awake.poll_wait(context, until))).await
    }

    /// The next batch of at most 1024 events; blocks for it. `None` after CLOSED.
    ///
    /// With the feature `async` a subscription is a stream of the same batches. Not an iterator: a batch can be an
    /// error, and the loop continues after some.
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        self.awake(|awake| {
            loop {
                if let Some(batch) = awake.poll_or_park(|| Waker::Thread(current_thread())) {
                    return batch.transpose();
                }
                if let Some(waiter) = awake.shared.waiter() {
                    waiter.sleep(None);
                }
            }
        })
    }

    /// Arms a member of a wake set. True: it is ready now, and its tag is listed. False: its tag will be listed when it
    /// is ready, unless it is polled before. Arm it again after each empty poll; an event that came between the two is
    /// found here. Never blocks.
    ///
    /// Where the notifier cannot keep up with a filter that no index answers ([`Stats::notifier_behind`](crate::Stats::notifier_behind)), the tag is
    /// listed for the subscription to look for itself: a poll may then give nothing.
    pub fn arm(&mut self) -> Result<bool> {
        self.awake(|awake| awake.arm())
    }
}

/// Most events of a batch of [`Subscription::next_batch`] and of the stream.
const STREAM_BATCH: usize = 1024;

/// A wait that may be dropped: the drop removes the task's waker from the waiter.
struct Waiting<'a>(&'a mut Subscription);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.awake(|awake| awake.unpark());
    }
}

impl Awake<'_> {
    /// Moves over events that do not match. True: poll has something (an event, a mark, an error).
    #[inline]
    pub(super) fn peek(&mut self) -> bool {
        let frontier = self.frontier();
        let is_at_the_end = self.cursor.seq() >= frontier.head && !frontier.closed;
        // Without the box only an event can make `peek` true.
        if is_at_the_end && self.own.cold.is_none() { false } else { self.peek_from(&frontier) }
    }

    #[inline(never)]
    fn peek_from(&mut self, frontier: &Frontier) -> bool {
        // Closed for its lag: only a poll reports that, before any other end.
        if self.own.has_failed() || frontier.closed && self.shared.is_too_slow() {
            return true;
        }
        match self.peek_once(frontier) {
            Ok(something) => something,
            Err(halt) => {
                self.own.cold().failure = Some(Box::new(halt));
                true
            }
        }
    }

    fn peek_once(&mut self, frontier: &Frontier) -> Step<bool> {
        if !self.own.is_live() {
            if !self.own.phase().is_before_its_start() {
                return Ok(true);
            }
            if !self.started(frontier)? {
                return Ok(false);
            }
            if matches!(self.own.phase(), SubscriptionPhase::Initial(_)) {
                return Ok(true);
            }
        }
        if self.has(Flag::Plain) && self.cursor.seq() < frontier.head {
            return Ok(true);
        }
        if self.peek_events(frontier)? {
            return Ok(true);
        }
        if let Some(bookmarks) = self.bookmarks() {
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
        self.own.is_live() && !self.own.has_failed() && !self.has_links()
    }

    /// The next batch of the stream, or its end. `None`: it sleeps with this waker.
    fn poll_or_park(&mut self, waker: impl Fn() -> Waker) -> Option<Option<Result<Batch>>> {
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

    fn wait(&mut self, until: Option<Instant>) -> Result<bool> {
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
    fn poll_wait(&mut self, context: &Context<'_>, until: Option<Instant>) -> Poll<Result<bool>> {
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
        let frontier = self.frontier();
        let over = match self.own.phase() {
            SubscriptionPhase::Ended => !self.own.has_failed(),
            SubscriptionPhase::Future(_) => {
                let failure = self.own.cold.as_ref().and_then(|cold| cold.failure.as_deref());
                matches!(failure, Some(Halt::Over(error)) if error.code() == Code::Closed)
            }
            SubscriptionPhase::Live => {
                let too_slow = frontier.closed && frontier.head == 0;
                frontier.closed
                    && !too_slow
                    && self.cursor.seq() >= frontier.head
                    && !self.own.has_failed()
                    && !self.has_links()
            }
            _ => false,
        };
        if over { Err(self.named(say::closed("subscription"))) } else { Ok(true) }
    }
}

/// A stream of batches of at most 1024 events, which ends after CLOSED. Cancel safe: a batch is taken in the poll that
/// returns it, so dropping a pending `next` loses no event.
///
/// ```
/// use std::pin::{Pin, pin};
/// use std::task::{Context, Poll, Waker};
/// use futures_core::Stream; // what tokio_stream, axum and tonic build upon
/// use watchcore::{Cache, Change, Start};
///
/// let cache = Cache::builder("/").build()?;
/// let mut changes = pin!(cache.subscribe(Start::Now).open()?);
/// let mut context = Context::from_waker(Waker::noop()); // a runtime's
/// assert!(changes.as_mut().poll_next(&mut context).is_pending());
/// cache.writer()?.apply(1, [Change::put("/a", "1")])?;
/// let Poll::Ready(Some(batch)) = changes.as_mut().poll_next(&mut context) else { panic!("there is one") };
/// assert_eq!(batch?.len(), 1);
/// cache.close();
/// assert!(matches!(changes.poll_next(&mut context), Poll::Ready(None)));
/// # Ok::<(), watchcore::Error>(())
/// ```
#[cfg(feature = "async")]
impl futures_core::Stream for Subscription {
    type Item = Result<Batch>;

    fn poll_next(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Batch>>> {
        let step = self.get_mut().awake(|awake| awake.poll_or_park(|| Waker::Task(context.waker().clone())));
        step.map_or(Poll::Pending, Poll::Ready)
    }
}
