//! What a program may ask of a new subscription: where it starts, and what follows a loss of events.

#![forbid(unsafe_code)]

use crate::data::numbered::numbered;
use crate::position::Position;
use std::time::Duration;

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

numbered! {
    /// The policy of a subscription that has lost events: see [`SubscribeBuilder::on_lag`](crate::SubscribeBuilder::on_lag).
    ///
    /// ```
    /// use watchcore::{Cache, Change, Code, OnLag, Start};
    ///
    /// let cache = Cache::builder("/").capacity(128).build()?;
    /// let mut writer = cache.writer()?;
    /// let mut slow = cache.subscribe(Start::Now).on_lag(OnLag::SkipToOldest).open()?;
    /// for revision in 1..=1000 {
    ///     writer.apply(revision, [Change::put("/a", "1")])?;
    /// }
    /// let lost = slow.poll(10).unwrap_err();
    /// assert_eq!((lost.code(), lost.lost_from()), (Code::Lagged, 1));
    /// let next = slow.poll(10)?;
    /// assert_eq!(next.events()[0].revision(), lost.lost_to() + 1, "it continues behind the range that it lost");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[repr(u8)]
    #[non_exhaustive]
    pub enum OnLag {
        /// LAGGED is reported, then polls answer CLOSED.
        #[default]
        Stop = 0,
        /// LAGGED is reported, then it continues at the oldest revision of the window. In the initial state: Stop.
        SkipToOldest = 1,
        /// LAGGED is reported, then the exact difference between what was delivered and the state now, in one RESYNC
        /// with the reason Lagged, then live. A difference that is itself overtaken continues after the same BEGIN;
        /// its END has the revision that was reached. The subscription records the delivered keys: at most 32 bytes a
        /// matching key, and the key's bytes where the cache has dropped it.
        ///
        /// A start whose state the consumer has from another source (`Start::After`; `Start::Now` before the listing)
        /// needs that state. If it has left the window before the subscription saw it, no difference can be made: `Stop`.
        Resnapshot = 2,
        /// The loss is not reported: the consumer gets the latest change of each key, its kind relative to the
        /// delivered keys, as one synthetic revision. Records keys as `Resnapshot` does, and stops where that stops.
        Conflate = 3,
    }
}

impl OnLag {
    /// Its name, as the command line has it: `stop`, `skip`, `resnapshot`, `conflate`.
    pub fn name(self) -> &'static str {
        match self {
            OnLag::Stop => "stop",
            OnLag::SkipToOldest => "skip",
            OnLag::Resnapshot => "resnapshot",
            OnLag::Conflate => "conflate",
        }
    }

    /// The policy with this number, if there is one.
    pub fn from_u32(number: u32) -> Option<OnLag> {
        OnLag::with_number(number)
    }

    /// Whether it has to know which keys were delivered.
    pub(crate) fn needs_delivered_keys(self) -> bool {
        matches!(self, OnLag::Resnapshot | OnLag::Conflate)
    }
}

/// The asked start, until it is fixed.
#[derive(Clone, Debug)]
pub(super) struct StartOptions {
    pub(super) start: Start,
    /// How long `StateAtLeast` waits.
    pub(super) timeout: Duration,
    /// The most bytes of a batch of the initial state; `usize::MAX`: as many as there are.
    pub(super) batch_bytes: usize,
}

/// How events are delivered, for as long as a subscription lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    pub(super) whole_revisions: bool,
    pub(super) stop_on_resync: bool,
    pub(super) on_lag: OnLag,
}
