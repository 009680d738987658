//! Subscriptions: a cursor with a filter, owned by one consumer.
//!
//! A poll loads closed, progress and head (all Acquire, in this order), then the segment of the cursor or its bucket,
//! then reads events below the head without atomics. The cursor moves no further than the head loaded *first*. The
//! subscription holds no pin between polls; it keeps a count on the segment of its cursor while it reads, and drops
//! that when it waits.
//!
//! | file | what |
//! | --- | --- |
//! | `options` | how one is opened |
//! | `cursor` | its cursor, which alone moves |
//! | `own` | the state that only its consumer uses, kept between two calls |
//! | `awake` | the subscription during a call of its consumer |
//! | `handles` | handles that end it from other threads; the pace of a feeder |
//! | `stats` | statistics of what it did |
//! | `start`, `future` | from its start to the first event; a start above the current revision |
//! | `initial` | the initial state |
//! | `events` | the next events of the log: a view, or a traversal |
//! | `traverse` | the one traversal of a filtered subscription: position, rollback point, loss, delivered keys |
//! | `chain` | the links of a bucket, a source of a traversal |
//! | `loss`, `delivered`, `catch_up` | the lost range, the delivered keys, the difference |
//! | `sleep` | its interest, and the consumer's side of its waiter |
//! | `wait` | parking, wake sets, futures, streams |
//!
//! Other threads see it as a [`Consumer`](crate::cache::Consumer) of its cache. docs/internals/subscription.md says where
//! each part of its state is stored, and what an idle one costs.

#![deny(unsafe_code)]

mod awake;
mod catch_up;
mod chain;
mod cursor;
mod delivered;
mod events;
mod future;
mod handles;
mod initial;
mod loss;
mod options;
mod own;
mod sleep;
mod start;
mod stats;
mod traverse;
mod wait;

pub use handles::Closer;
pub use options::{OnLag, SubscribeBuilder};
pub use stats::SubscriptionStats;

use crate::batch::Batch;
use crate::cache::{ConsumerRef, Lag, NOWHERE};
use crate::error::{Error, Result, say};
use crate::position::Position;
use crate::sync::{Relaxed, Release};
use awake::Awake;
use loss::Loss;
use own::Own;

/// The start of a subscription.
///
/// ```
/// use watchcore::{Cache, Change, Start};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// writer.apply(1, [Change::put("/a", "1")])?;
/// writer.apply(2, [Change::put("/a", "2")])?;
/// let polled = |start| Ok::<_, watchcore::Error>(cache.subscribe(start).open()?.poll(10)?.len());
/// assert_eq!(polled(Start::Now)?, 0);
/// assert_eq!(polled(Start::After(0))?, 2);  // both changes
/// assert_eq!(polled(Start::After(1))?, 1);
/// assert_eq!(polled(Start::State)?, 2);     // the one key, and the mark that ends the state
///
/// let saved = cache.position().to_string(); // in a file, or a client's hands
/// writer.apply(3, [Change::put("/a", "3")])?;
/// assert_eq!(polled(Start::AfterIn(saved.parse()?))?, 1);
/// assert_eq!(polled(Start::Within(3))?, 0); // whoever has an event of revision 3 has all of it
/// writer.apply(4, [Change::put("/b", "4"), Change::put("/c", "4")])?;
/// assert_eq!(polled(Start::Within(4))?, 2); // and of revision 4 may have one of two
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Start {
    /// Only events above the current revision.
    Now,
    /// History above this revision, then live. COMPACTED where it is below the window less one.
    After(u64),
    /// Like `After`, for a consumer that may have received only some of the events of this revision: where the revision
    /// has more than one event, all of them come again. COMPACTED, too, where these have left the window.
    Within(u64),
    /// The whole matching state as Added in key order, a mark, then live.
    State,
    /// Waits until the cache reached this revision, then as `State`.
    StateAtLeast(u64),
    /// Like `After`, checked against the position's epoch (0: unchecked): for a consumer that resumes at a saved
    /// position. COMPACTED where the history was reset since.
    AfterIn(Position),
}

/// The reason why a poll cannot continue.
#[derive(Debug)]
enum Halt {
    /// Events were lost; the policy decides what follows.
    Lost(Loss),
    Over(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Halt {
        Halt::Over(error)
    }
}

type Step<T> = std::result::Result<T, Halt>;

/// A cursor over a cache, owned by one consumer. Send.
///
/// [`Subscription::poll`] never blocks. A loss of events is reported as LAGGED, once, with the range; the policy
/// ([`OnLag`]) decides what follows. A subscription that has not ended keeps its cache open, also when all handles are
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
    shared: ConsumerRef,
    own: Own,
}

impl Subscription {
    /// Runs a call of the consumer with the cursor taken up, and stores the cursor when the call returns. If the call
    /// panics, the cursor stays where it was.
    #[inline]
    fn awake<T>(&mut self, call: impl FnOnce(&mut Awake<'_>) -> T) -> T {
        let mut awake = Awake::new(&self.shared, &mut self.own);
        let result = call(&mut awake);
        awake.rest();
        result
    }

    /// Returns the next events, at most `max`, without blocking. An empty batch is no error.
    ///
    /// LAGGED is reported once for each loss; the policy ([`OnLag`]) decides what follows. RESYNCED, COMPACTED and
    /// FUTURE_REVISION are reported once, then polls answer CLOSED. `max` 0 is INVALID_ARGUMENT. O(events looked at),
    /// which are only the matching bucket's where it reads a chain; see [`Subscription::stats`].
    pub fn poll(&mut self, max: usize) -> Result<Batch> {
        if max == 0 {
            return Err(say::invalid("poll with a maximum of 0 events: ask for at least 1"));
        }
        self.awake(|awake| awake.poll(max))
    }

    /// [`Subscription::poll`] for C, with `max` above 0: a member of a wake set is armed after the poll, or listed where
    /// there is more. `rests`: see `Awake::poll_member`.
    #[inline]
    pub(crate) fn poll_for_loop(&mut self, max: usize, rests: impl Fn()) -> Result<Batch> {
        self.awake(|awake| if awake.has(own::Flag::Member) { awake.poll_member(max, rests) } else { awake.poll(max) })
    }

    /// [`Subscription::wait`] for C: a member of a wake set is armed or listed again after the wait.
    pub(crate) fn wait_for_loop(&mut self, timeout: std::time::Duration, rests: impl Fn()) -> Result<bool> {
        let answer = self.wait(timeout)?;
        self.awake(|awake| awake.arm_member(rests));
        Ok(answer)
    }

    /// The position: every match up to and with it was handed out. 0 during the initial state. After an empty poll it
    /// is not below any position of the cache that was seen before that poll.
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
        self.end_sleep();
        let Subscription { shared, own } = self;
        let inner = &shared.inner;
        if own.slot != NOWHERE {
            // Before it ends, so that a loss that no poll has met is counted, too.
            inner.registry.leave(own.slot, shared, shared.figures().lagged);
        }
        shared.end.store(0, Release);
        inner.consumers.subscriptions.fetch_sub(1, Relaxed);
        own.release(shared);
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription")
            .field("name", &self.shared.name())
            .field("phase", self.own.phase())
            .field("position", &self.position())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
