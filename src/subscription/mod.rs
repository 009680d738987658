//! Subscriptions: a cursor with a filter, owned by one consumer.
//!
//! Step list of a poll: closed, progress, head (all Acquire, in this order), then the segment of the
//! cursor or its bucket, then plain reads below the head. The cursor moves to what was read under the
//! head loaded *first*. Nothing is pinned between polls; the subscription keeps a count on the segment
//! that it stands in while it reads, and gives it back when it waits.
//!
//! | file | what |
//! | --- | --- |
//! | `options` | how one is opened |
//! | `cursor` | where it stands: the only thing that moves |
//! | `shared` | what other threads may see and do: close, lag |
//! | `observed` | how it stands: lists, figures |
//! | `start`, `future` | from its start to the first event; a start above the current revision |
//! | `initial` | the initial state |
//! | `scan` | events of the log, by view or by scan |
//! | `chain` | events of a bucket |
//! | `loss`, `delivered`, `catch_up` | what was lost, what was delivered until then, the difference |
//! | `wait` | parking, wake sets, streams |

#![forbid(unsafe_code)]

mod catch_up;
mod chain;
mod cursor;
mod delivered;
mod future;
mod initial;
mod loss;
mod observed;
mod options;
mod scan;
mod shared;
mod start;
mod wait;

pub use observed::SubscriptionStats;
pub use options::{OnLag, SubscribeBuilder};
pub(crate) use shared::Shared;
pub use shared::{Closer, Pace};
#[cfg(feature = "async")]
pub use wait::Stream;

use crate::batch::{Batch, BatchBuilder};
use crate::cache::{Inner, KeepOpen, Lag, Observed, RegistryEntry};
use crate::data::event::Mark;
use crate::error::{Code, Error, Result, say};
use crate::filter::matcher::Matcher;
use crate::log::ring::{LogEnd, progress_of};
use crate::position::Position;
use crate::sync::{Acquire, Relaxed, Release, ord};
use crate::sys::clock;
use crate::wake::{FilterCode, GroupRef, Membership, Registration};
use catch_up::CatchUp;
use chain::Reader;
use cursor::Cursor;
use delivered::DeliveredKeys;
use future::FutureStart;
use initial::Initial;
use loss::Loss;
use options::Options;
use shared::OPEN;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where a subscription begins.
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
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// Nothing of the past: events above the current revision.
    Now,
    /// History above this revision, then live. COMPACTED where it is below the window less one.
    After(u64),
    /// The whole matching state as Added in key order, a mark, then live.
    State,
    /// Waits until the cache reached this revision, then as `State`.
    StateAtLeast(u64),
}

#[derive(Debug)]
enum SubscriptionPhase {
    /// No listing yet.
    Unready,
    /// `StateAtLeast`: not reached yet.
    Revision {
        until: Option<Instant>,
    },
    /// `After` a revision of the future: not reached yet.
    Future(Box<FutureStart>),
    /// The initial state at head `cursor`.
    Initial(Box<Initial>),
    /// LAGGED was reported: the difference begins with the next poll.
    Behind(Box<CatchUp>),
    /// The difference after a loss.
    CatchUp(Box<CatchUp>),
    Live,
    /// Polls answer CLOSED.
    Ended,
}

/// Bookmarks that were asked for.
#[derive(Debug)]
struct Bookmarks {
    interval: Duration,
    /// The last position that was delivered, and when.
    delivered: Position,
    at: Instant,
}

impl Bookmarks {
    fn is_due(&self, position: Position) -> bool {
        position != self.delivered && self.at.elapsed() >= self.interval
    }
}

/// Why a poll cannot continue.
#[derive(Debug)]
enum Halt {
    /// Events were lost; what comes of it is the policy's.
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
/// [`Subscription::poll`] never blocks. A position that was lost is reported as LAGGED, once, with the
/// range; what follows is the policy's ([`OnLag`]). Until it has ended it keeps its cache open, also when
/// all handles are dropped; after [`crate::Cache::close`] what was published before is handed out, then CLOSED.
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
pub struct Subscription {
    matcher: Arc<Matcher>,
    shared: Arc<Shared>,
    /// Its place among the subscriptions of the cache: taken when it is opened.
    entry: RegistryEntry,
    /// Until it ends.
    keeps: Option<Arc<KeepOpen>>,
    /// Until the start is fixed.
    options: Option<Box<Options>>,
    phase: SubscriptionPhase,
    /// The head of the initial state while that is handed out.
    cursor: Cursor,
    /// Revisions up to this one were reported as lost.
    reported: u64,
    bookmarks: Option<Box<Bookmarks>>,
    /// Every event passes unchanged: batches are views.
    plain: bool,
    whole_revisions: bool,
    stop_on_resync: bool,
    on_lag: OnLag,
    /// The keys that were delivered to the consumer, for policies that need them.
    delivered: Option<Box<DeliveredKeys>>,
    /// Bytes of that (times 2^16) and of collected links, as the cache's statistics know them.
    counted: u64,
    reader: Reader,
    /// Polls to come whose time is not recorded.
    unrecorded: u8,
    /// Told by the next poll, once.
    failure: Option<Box<Halt>>,
    /// Where it sleeps: made with the first sleep.
    sleeper: Option<Box<Sleeper>>,
}

/// How it sleeps.
struct Sleeper {
    registration: Registration,
    /// Those who are woken by the same events: joined with the first sleep that is for events.
    group: Option<GroupRef>,
    /// The wake set that it is woken through.
    membership: Membership,
}

/// What one look at the cache showed: loaded in this order.
#[derive(Clone, Copy)]
struct Frontier {
    closed: bool,
    progress: u64,
    head: u64,
}

impl Subscription {
    #[inline]
    fn inner(&self) -> &Arc<Inner> {
        &self.shared.inner
    }

    fn frontier(&self) -> Frontier {
        let inner = self.inner();
        let end = self.shared.end.load(ord!(EndLoad, Acquire));
        let progress = inner.ring.progress();
        let LogEnd { head, closed } = inner.ring.end();
        if end < head {
            // Closed by its owner: nothing above, and no progress beyond.
            return Frontier { closed: true, progress: 0, head: end };
        }
        Frontier { closed: closed || end != OPEN, progress, head }
    }

    /// What is new, without blocking: at most `max` events; none is no error.
    ///
    /// LAGGED is reported once a loss; what follows is the policy's ([`OnLag`]). RESYNCED, COMPACTED and
    /// FUTURE_REVISION are reported once, then polls answer CLOSED. `max` 0 is INVALID_ARGUMENT. O(events
    /// looked at): its own, where it reads a chain; see [`Subscription::stats`].
    pub fn poll(&mut self, max: usize) -> Result<Batch> {
        if max == 0 {
            return Err(say::invalid("poll with a maximum of 0 events: ask for at least 1"));
        }
        self.unpark();
        let outcome = loop {
            match self.poll_once(max) {
                Ok(batch) => break Ok(batch),
                Err(Halt::Over(error)) => {
                    if error.code() != Code::NotReady {
                        self.end();
                    }
                    break Err(error);
                }
                Err(Halt::Lost(loss)) => {
                    if let Some(error) = self.lose(loss) {
                        break Err(error);
                    }
                }
            }
        };
        match &outcome {
            // Its time was noted with that of having everything.
            Ok(batch) if batch.is_empty() => {}
            Ok(batch) => {
                self.shared.hand_out(batch.len() as u64);
                self.record_poll();
            }
            Err(_) => _ = self.shared.polled_at(clock::now()),
        }
        self.share();
        outcome.map_err(|error| self.named(error))
    }

    fn end(&mut self) {
        self.phase = SubscriptionPhase::Ended;
        self.cursor.release();
        self.delivered = None;
        self.keeps = None;
        self.reader.leave(&self.shared);
    }

    fn poll_once(&mut self, max: usize) -> Step<Batch> {
        if let Some(halt) = self.failure.take() {
            return Err(*halt);
        }
        if matches!(self.phase, SubscriptionPhase::Ended) {
            return Err(say::closed("subscription").into());
        }
        let frontier = self.frontier();
        if frontier.closed {
            self.check_limit()?;
        }
        let behind = if self.is_ahead() { 0 } else { frontier.head.saturating_sub(self.cursor.seq()) };
        if behind > self.shared.inner.consumers.max_lag.load(Relaxed) {
            // Sequence numbers: fewer are events, where a segment was closed before it was full.
            let below = self.shared.events_below_shown();
            let events = self.shared.inner.ring.events_between(self.cursor.seq(), frontier.head, below);
            self.shared.inner.consumers.max_lag.fetch_max(events, Relaxed);
        }
        if behind > 0 && self.shared.is_limited() {
            self.shared.show_cursor(self.cursor.seq());
            self.shared.enforce_lag_limit();
            self.check_limit()?;
        }
        if matches!(
            self.phase,
            SubscriptionPhase::Unready | SubscriptionPhase::Revision { .. } | SubscriptionPhase::Future(_)
        ) && !self.started(&frontier)?
        {
            return Ok(Batch::empty(self.position()));
        }
        match &self.phase {
            SubscriptionPhase::Initial(_) => return self.initial_page(max),
            SubscriptionPhase::Behind(_) | SubscriptionPhase::CatchUp(_) => return self.catch_up_page(max),
            _ => {}
        }
        let batch = self.events(&frontier, max)?;
        if !batch.is_empty() {
            return Ok(batch);
        }
        self.nothing(&frontier)
    }

    /// Nothing to hand out: the position moves, a bookmark may be due, or it is over.
    fn nothing(&mut self, frontier: &Frontier) -> Step<Batch> {
        let now = clock::now();
        self.shared.caught_up(now);
        self.shared.polled_at(now);
        if self.cursor.seq() >= frontier.head {
            self.cursor.reach(progress_of(frontier.progress, self.position().epoch));
        }
        if frontier.closed && self.cursor.seq() >= frontier.head {
            return Err(say::closed("subscription").into());
        }
        let position = self.position();
        if let Some(bookmarks) = &mut self.bookmarks
            && bookmarks.is_due(position)
        {
            (bookmarks.delivered, bookmarks.at) = (position, Instant::now());
            let mut batch = BatchBuilder::new(1, false, ());
            batch.push_mark(Mark::bookmark(position.revision, 0));
            return Ok(batch.finish(position));
        }
        Ok(Batch::empty(position))
    }

    /// Publishes what other threads may see of this cursor: statistics only.
    #[inline]
    fn share(&mut self) {
        if self.delivered.is_some() || self.counted != 0 || self.reader.link_bytes() != 0 {
            self.count();
        }
        let cursor = self.awaits_from().unwrap_or(self.cursor.seq());
        self.shared.show(cursor, self.position());
        self.shared.stands(self.standing());
    }

    /// What it records of deliveries, for the cache's statistics.
    #[cold]
    fn count(&mut self) {
        let delivered = self.delivered.as_ref().map_or(0, |delivered| delivered.bytes());
        let now = delivered << 16 | u64::from(self.reader.link_bytes());
        let before = std::mem::replace(&mut self.counted, now);
        let consumers = &self.shared.inner.consumers;
        consumers.delivered_bytes.fetch_add((now >> 16).wrapping_sub(before >> 16), Relaxed);
        consumers.link_bytes.fetch_add((now & 0xffff).wrapping_sub(before & 0xffff), Relaxed);
    }

    /// An error that names it, where it has a name.
    fn named(&self, error: Error) -> Error {
        error.of_subscription(self.shared.name())
    }

    /// The position: every match up to and with it was handed out. 0 during the initial state.
    pub fn position(&self) -> Position {
        self.cursor.position()
    }

    /// How far it is behind now.
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

    /// For feeders: see [`Pace`].
    #[doc(hidden)]
    pub fn pace(&self) -> Pace {
        Pace(self.closer())
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(sleeper) = &mut self.sleeper {
            sleeper.registration.leave(&self.shared.inner);
            if let Some(group) = sleeper.group.take() {
                self.shared.inner.hubs.of(FilterCode::of(&self.matcher)).groups.leave(&group);
            }
        }
        if self.entry != RegistryEntry::NONE {
            // While it stands: a loss that no poll has met is its last.
            self.shared.inner.registry.leave(self.entry, self.shared.figures().lagged);
        }
        self.shared.end.store(0, Release);
        self.shared.inner.consumers.subscriptions.fetch_sub(1, Relaxed);
        self.reader.leave(&self.shared);
        self.delivered = None;
        self.count();
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription")
            .field("name", &self.shared.name())
            .field("phase", &self.phase)
            .field("position", &self.position())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
