//! The handle of a subscription: what a program calls, and what a drop releases.

#![forbid(unsafe_code)]

use super::awake::Awake;
use super::closer::Closer;
use super::state::{ConsumerState, Flag};
use crate::batch::Batch;
use crate::cache::{ConsumerRef, Lag, NOWHERE};
use crate::error::{Result, say};
use crate::position::Position;
use crate::sync::{Relaxed, Release, current_thread};
use crate::wake::{WakeSet, Waker};
#[cfg(feature = "async")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A cursor over a cache, owned by one consumer. Send.
///
/// [`Subscription::poll`] never blocks. A loss of events is reported as LAGGED, once, with the range; the policy
/// ([`OnLag`](crate::OnLag)) decides what follows. A subscription that has not ended keeps its cache open, also when all handles are
/// dropped; after [`crate::Cache::close`] it hands out the events that were published before, then CLOSED.
///
/// ```
/// use watchcore::{Cache, Change, Code, Start};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// let mut subscription = cache.subscribe(Start::After(0)).open()?;
/// writer.apply(1, [Change::put("/a", "1")])?;
/// let batch = subscription.poll(100)?;
/// assert_eq!((batch.len(), batch.position().revision), (1, 1));
/// assert!(subscription.poll(100)?.is_empty());
///
/// writer.apply(2, [Change::put("/a", "2")])?;
/// cache.close();
/// assert_eq!(subscription.poll(100)?.len(), 1, "what was published before the close");
/// assert_eq!(subscription.poll(100).unwrap_err().code(), Code::Closed);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "dropping a subscription ends it"]
pub struct Subscription {
    pub(super) shared: ConsumerRef,
    pub(super) state: ConsumerState,
}

impl Subscription {
    /// Runs a call of the consumer with the cursor taken up, and stores the cursor when the call returns. If the call
    /// panics, the cursor stays where it was.
    #[inline]
    pub(super) fn awake<T>(&mut self, call: impl FnOnce(&mut Awake<'_>) -> T) -> T {
        let mut awake = Awake::new(&self.shared, &mut self.state);
        let result = call(&mut awake);
        awake.rest();
        result
    }

    /// Returns the next events, at most `max`, without blocking. An empty batch is no error.
    ///
    /// LAGGED is reported once for each loss; the policy ([`OnLag`](crate::OnLag)) decides what follows. RESYNCED, COMPACTED and
    /// FUTURE_REVISION are reported once, then polls answer CLOSED. `max` 0 is INVALID_ARGUMENT. O(events looked at),
    /// which are only the matching bucket's where it reads a chain; see [`Subscription::stats`].
    pub fn poll(&mut self, max: usize) -> Result<Batch> {
        if max == 0 {
            return Err(say::invalid("poll with a maximum of 0 events: ask for at least 1"));
        }
        self.awake(|awake| awake.poll_unparked(max))
    }

    /// Blocks until a poll has something, at most `timeout` (`Duration::MAX`: for ever). True: a poll has an event, a
    /// mark, or an error to report. False: the time is up. CLOSED once everything was handed out.
    ///
    /// ```
    /// use std::time::Duration;
    /// use watchcore::{Cache, Change, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut one = cache.subscribe(Start::Now).key("/a").open()?;
    /// let mut writer = cache.writer()?;
    /// let writing = std::thread::spawn(move || writer.apply(1, [Change::put("/a", "1")]));
    /// assert!(one.wait(Duration::from_secs(30))?); // events of other keys do not end it
    /// assert_eq!(one.poll(10)?.len(), 1);
    /// assert!(!one.wait(Duration::ZERO)?, "nothing is left");
    /// writing.join().unwrap()?;
    /// # Ok::<(), watchcore::Error>(())
    /// ```
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
    ///
    /// ```
    /// use watchcore::{Cache, Change, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut all = cache.subscribe(Start::Now).open()?;
    /// cache.writer()?.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")])?;
    /// cache.close();
    /// let mut events = 0;
    /// while let Some(batch) = all.next_batch()? {
    ///     events += batch.len();
    /// }
    /// assert_eq!(events, 2, "what was published before the close; then `None`");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
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

    /// [`Subscription::poll`] for C, with `max` above 0: a member of a wake set is armed after the poll, or listed where
    /// there is more. `rests`: see `Awake::poll_member`.
    #[inline]
    pub(crate) fn poll_for_loop(&mut self, max: usize, rests: impl Fn()) -> Result<Batch> {
        self.awake(
            |awake| {
                if awake.has(Flag::Member) { awake.poll_member(max, rests) } else { awake.poll_unparked(max) }
            },
        )
    }

    /// [`Subscription::wait`] for C: a member of a wake set is armed or listed again after the wait.
    pub(crate) fn wait_for_loop(&mut self, timeout: Duration, rests: impl Fn()) -> Result<bool> {
        let answer = self.wait(timeout)?;
        self.awake(|awake| awake.arm_member(rests));
        Ok(answer)
    }

    /// The position: every match up to and with it was handed out. 0 during the initial state. After an empty poll it
    /// is not below any position of the cache that was seen before that poll.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// let mut one = cache.subscribe(Start::Now).key("/a").open()?;
    /// writer.apply(5, [Change::put("/b", "1")])?;
    /// assert_eq!(one.position().revision, 0, "it moves by polls");
    /// assert!(one.poll(10)?.is_empty());
    /// assert_eq!(one.position().revision, 5, "everything up to 5 was looked at");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn position(&self) -> Position {
        self.shared.position()
    }

    /// Its present lag. A subscription that sleeps counts as having everything until it is woken, so a producer that waits
    /// for its consumers should count the events that they have taken instead.
    pub fn lag(&self) -> Lag {
        self.shared.lag()
    }

    /// A handle that ends it from any thread.
    pub fn closer(&self) -> Closer {
        Closer(self.shared.clone())
    }

    /// Ends it: see [`Closer::close`].
    pub fn close(&self) {
        self.shared.close();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Subscription { shared, state } = self;
        Awake::new(shared, state).end_sleep();
        let inner = &shared.inner;
        if state.slot != NOWHERE {
            // Before it ends, so that a loss that no poll has met is counted, too.
            inner.registry.leave(state.slot, shared, shared.stats_share().lagged);
        }
        shared.end.store(0, Release);
        inner.consumers.subscriptions.fetch_sub(1, Relaxed);
        state.release(shared);
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription")
            .field("name", &self.shared.name())
            .field("phase", self.state.phase())
            .field("position", &self.position())
            .finish()
    }
}

/// A wait that may be dropped: the drop removes the task's waker from the parked waiter.
struct Waiting<'a>(&'a mut Subscription);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.awake(|awake| awake.unpark());
    }
}

impl WakeSet {
    /// Adds a subscription under a tag; it leaves the set that it was in. Its tag is listed only after it was armed.
    pub fn add(&self, subscription: &mut Subscription, tag: u64) -> Result<()> {
        subscription.awake(|awake| {
            drop(awake.unpark_with_waker());
            awake.parker().join_set(self, tag);
            awake.state.set(Flag::Member, true);
        });
        Ok(())
    }

    /// Takes a subscription out; true if it was in this set. A tag of it that is listed is dropped.
    pub fn remove(&self, subscription: &mut Subscription) -> bool {
        subscription.shared.waiter().is_some() && subscription.awake(|awake| awake.leave_set(self))
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
