//! The entries of a cache's list of subscriptions.

#![forbid(unsafe_code)]

use crate::data::numbered::numbered;
use crate::position::Position;
use std::fmt;
use std::time::Duration;

/// The lag of a subscription.
///
/// ```
/// use watchcore::{Cache, Change, Start};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// let mut subscription = cache.subscribe(Start::Now).open()?;
/// writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")])?;
/// assert_eq!(subscription.lag().events, 2);
/// subscription.poll(10)?;
/// assert_eq!(subscription.lag().events, 0);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Lag {
    /// Events of the log above the cursor, matching or not; 0 while it is parked, and while its start lies in the
    /// future. Exact while the cursor is in the window. Once the cursor's segment has left, an upper bound, and never more
    /// than all events that were published.
    pub events: u64,
    /// Revisions between the position and the cache's.
    pub revisions: u64,
    /// Time since the subscription was last seen to have everything, short by some milliseconds at most; zero if it has.
    /// Each poll that takes the last event or finds none is such a look, and each sleep; with a limit of lag there is
    /// also one four times a second. Without a limit, of polls that find events and follow each other within hundredths
    /// of a second only every 16th is such a look.
    pub age: Duration,
}

/// The read path of a subscription.
///
/// ```
/// use watchcore::{Cache, Index, ReadPath, Start};
///
/// let cache = Cache::builder("/").index(Index::key()).build()?;
/// let all = cache.subscribe(Start::Now).open()?;
/// assert_eq!(all.stats().read_path, ReadPath::Scan);
/// assert_eq!(ReadPath::Chain { index: "key".into() }.to_string(), "chain by key");
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReadPath {
    /// Looks at every event of the log, but for segments whose summary excludes its filter.
    Scan,
    /// Looks at the events of one bucket of this index only.
    Chain {
        /// The index, as declared: `key`, `prefix of depth 3`, `field phase`, `label app`.
        index: String,
    },
}

impl fmt::Display for ReadPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadPath::Scan => f.write_str("scan"),
            ReadPath::Chain { index } => write!(f, "chain by {index}"),
        }
    }
}

numbered! {
    /// The state of an open subscription.
    ///
    /// ```
    /// use watchcore::{Cache, Start, SubscriptionState};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut subscription = cache.subscribe(Start::State).open()?;
    /// let state = || cache.subscriptions()[0].state;
    /// assert_eq!(state(), SubscriptionState::InitialState);
    /// subscription.poll(10)?;
    /// assert_eq!((state(), state().name()), (SubscriptionState::Live, "Live"));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[repr(u32)]
    #[non_exhaustive]
    pub enum SubscriptionState {
        /// The cache has no listing yet; the subscription begins with that.
        AwaitsListing = 1,
        /// Its start lies in the future: `StateAtLeast` or `After` a revision that the cache has not reached, or
        /// that the consumer of `StateAtLeast` has not polled since.
        AwaitsRevision = 2,
        /// The initial state is being delivered.
        InitialState = 3,
        /// The subscription reads the log, and its consumer is awake.
        Live = 4,
        /// Its consumer has everything and sleeps: it blocks, is armed, or is a stream that waits.
        Parked = 5,
        /// Events that it had not taken have left the window: its next poll reports LAGGED, or begins a difference.
        Overrun = 6,
        /// A loss was reported to it; the difference to the state now comes next, or is being delivered.
        CatchingUp = 7,
        /// Closed because its lag exceeded its limit: its next poll reports LAGGED.
        TooSlow = 8,
        /// The subscription or its cache is closed: earlier events are delivered, then CLOSED.
        Closing = 9,
        /// The subscription has ended: its polls answer CLOSED. Dropping it removes it from the list.
        Ended = 10,
    }
}

impl SubscriptionState {
    /// Its name: `AwaitsListing`, `Live`, ...
    pub fn name(self) -> &'static str {
        self.as_written()
    }
}

/// A subscription of a cache, as [`crate::Cache::subscriptions`] found it.
///
/// ```
/// use watchcore::{Cache, Change, Start};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// let idle = cache.subscribe(Start::Now).name("billing").open()?;
/// writer.apply(7, [Change::put("/a", "1")])?;
/// let all = cache.subscriptions();
/// assert_eq!((all.len(), &*all[0].name), (1, "billing"));
/// assert_eq!((all[0].lag.events, all[0].last_poll), (1, None), "it has never polled");
/// drop(idle);
/// assert!(cache.subscriptions().is_empty());
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SubscriptionInfo {
    /// Its number in this cache: from 1, in the order of opening, never used again.
    pub id: u64,
    /// The name given to [`crate::SubscribeBuilder::name`]; else empty.
    pub name: String,
    /// Its present state.
    pub state: SubscriptionState,
    /// Its position as of its last poll.
    pub position: Position,
    /// Its present lag; zero once it has ended.
    pub lag: Lag,
    /// Its read path, as of its last poll.
    pub read_path: ReadPath,
    /// Time since its last poll, to some hundredths of a second; `None` if it was never polled. For a consumer that
    /// polls hundreds of times a second and always finds events, every 16th poll is recorded.
    pub last_poll: Option<Duration>,
    /// Events and marks that it has delivered.
    pub handed_out: u64,
    /// The number of its losses, reported or not yet.
    pub lagged: u64,
}
