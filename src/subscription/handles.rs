//! Handles on a subscription for other threads: a closer, and the pace that holds back a feeder.

#![forbid(unsafe_code)]

use crate::cache::{ConsumerRef, Lag};
use crate::position::Position;
use crate::writer::Writer;

/// Ends a subscription from any thread, and shows its lag. Clone, Send and Sync.
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
}

impl std::fmt::Debug for Closer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Closer").field("position", &self.position()).finish()
    }
}

/// Lets a feeder stay at most half a window ahead of one consumer.
///
/// ```
/// use watchcore::{Cache, Start};
///
/// let cache = Cache::builder("/").build()?;
/// let writer = cache.writer()?;
/// let pace = cache.subscribe(Start::State).open()?.pace();
/// assert!(pace.is_of(&writer));
/// assert!(pace.may_go_on(), "its subscription is over: it holds up nobody");
/// # Ok::<(), watchcore::Error>(())
/// ```
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Pace(pub(super) Closer);

impl Pace {
    /// Whether it is a subscription of this writer's cache.
    #[doc(hidden)]
    pub fn is_of(&self, writer: &Writer) -> bool {
        writer.is_of(&self.0.0.inner)
    }

    /// Whether the subscription is less than half a window behind, asleep with everything that was looked at for it, or
    /// over.
    #[doc(hidden)]
    pub fn may_go_on(&self) -> bool {
        self.0.0.is_near()
    }
}
