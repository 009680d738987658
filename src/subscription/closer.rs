//! A handle on a subscription for other threads.

#![forbid(unsafe_code)]

use crate::cache::{ConsumerRef, Lag};
use crate::position::Position;
use crate::writer::Writer;

/// Ends a subscription from any thread, and shows its lag, to which a feeder can adapt. Clone, Send and Sync.
///
/// ```
/// use watchcore::{Cache, Code, Start};
///
/// let cache = Cache::builder("/").build()?;
/// let mut subscription = cache.subscribe(Start::Now).open()?;
/// let closer = subscription.closer();
/// let waiting = std::thread::spawn(move || subscription.next_batch().map(|batch| batch.is_none()));
/// closer.close(); // from any thread; the wait ends at once
/// assert!(waiting.join().unwrap()?);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone)]
pub struct Closer(pub(super) ConsumerRef);

impl Closer {
    /// Ends the subscription: idempotent. A wait in progress ends at once; events that were published before the call
    /// are still handed out, then CLOSED.
    pub fn close(&self) {
        self.0.close();
    }

    /// The position as of the consumer's last poll.
    pub fn position(&self) -> Position {
        self.0.position()
    }

    /// The lag now: see [`crate::Subscription::lag`].
    pub fn lag(&self) -> Lag {
        self.0.lag()
    }

    /// Whether this is a subscription of the cache that `writer` writes. Never blocks; O(1).
    ///
    /// A feeder that waits for [`is_near`](Closer::is_near) checks this once: a subscription of another cache says nothing
    /// about the window that the feeder fills.
    ///
    /// ```
    /// use watchcore::{Cache, Start};
    ///
    /// let (cache, other) = (Cache::builder("/").build()?, Cache::builder("/").build()?);
    /// let closer = cache.subscribe(Start::State).open()?.closer();
    /// assert!(closer.is_of(&cache.writer()?) && !closer.is_of(&other.writer()?));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn is_of(&self, writer: &Writer) -> bool {
        writer.is_of(&self.0.inner)
    }

    /// Whether the subscription is less than half a window behind. Never blocks, from any thread; O(1).
    ///
    /// A feeder that replays a history longer than the window publishes a revision when this is true, and asks again after
    /// a millisecond when it is false. Then the subscription loses no event, unless one revision has more than half a window
    /// of them. A subscription that sleeps counts as having read what was examined for it; one that is over is near, too.
    /// So neither stops the feeder for ever.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Start};
    ///
    /// let cache = Cache::builder("/").capacity(1024).build()?;
    /// let mut writer = cache.writer()?;
    /// let mut subscription = cache.subscribe(Start::State).open()?;
    /// let closer = subscription.closer();
    /// let mut received = 0;
    /// for revision in 1..=5000 {
    ///     while !closer.is_near() {
    ///         received += subscription.poll(64)?.len(); // on its own thread, as a rule
    ///     }
    ///     writer.apply(revision, [Change::put("/a", "1")])?;
    /// }
    /// assert!(received > 4000);
    /// drop(subscription);
    /// assert!(closer.is_near(), "it is over");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn is_near(&self) -> bool {
        self.0.is_near()
    }
}

impl std::fmt::Debug for Closer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Closer").field("position", &self.position()).finish()
    }
}
