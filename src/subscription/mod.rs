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
//! | `shared` | what other threads may see and do: close, lag |
//! | `observed` | how it stands: lists, figures |
//! | `live` | events of the log, by view or by scan |
//! | `chain` | events of a bucket |
//! | `future` | a start above the current revision |
//! | `state` | the initial state, and the way back after a loss |
//! | `wait` | parking, wake sets, streams |

#![forbid(unsafe_code)]

mod chain;
mod future;
mod live;
mod observed;
mod options;
mod shared;
mod state;
mod wait;

pub use live::SubscriptionStats;
pub use options::{OnLag, SubscribeBuilder};
pub(crate) use shared::Shared;
pub use shared::{Closer, Pace};
#[cfg(feature = "async")]
pub use wait::Stream;

use crate::batch::{Batch, BatchBuilder};
use crate::cache::{Entry, Inner, KeepOpen, Lag, Observed};
use crate::data::event::Mark;
use crate::error::{Code, Error, Result, say};
use crate::filter::matcher::Matcher;
use crate::log::ring::{LogEnd, progress_of};
use crate::log::segment::SegmentRef;
use crate::position::Position;
use crate::read::snapshot::Snapshot;
use crate::reclaim;
use crate::sync::{Acquire, Relaxed, Release, ord};
use crate::sys::clock;
use crate::wake::{GroupRef, Membership, Registration};
use chain::Reader;
use future::FutureStart;
use options::Options;
use shared::OPEN;
use state::{CatchUp, DeliveredKeys, Initial};
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
    /// LAGGED was told: the difference begins with the next poll.
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
    /// The last position that was shown, and when.
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

/// A loss: revisions, inclusive, and where the log continues.
#[derive(Debug, Clone, Copy)]
struct Loss {
    from: u64,
    to: u64,
    oldest: u64,
    current: u64,
    /// The first event that is not lost, and the position before it.
    seq: u64,
    before: Position,
    /// It happened in the initial state.
    initial: bool,
}

type Step<T> = std::result::Result<T, Halt>;

/// A cursor over a cache, owned by one consumer. Send.
///
/// [`Subscription::poll`] never blocks. A position that was lost is reported as LAGGED, once, with the
/// range; what follows is the policy's ([`OnLag`]). Until it has ended it keeps its cache open, whoever
/// drops the handles; after [`crate::Cache::close`] what was published before is handed out, then CLOSED.
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
    entry: Entry,
    /// Until it ends.
    keeps: Option<Arc<KeepOpen>>,
    /// Until the start is fixed.
    options: Option<Box<Options>>,
    phase: SubscriptionPhase,
    /// The next sequence number to look at; the head of the initial state while that is handed out.
    cursor: u64,
    segment: Option<SegmentRef>,
    position: Position,
    /// Revisions up to this one were reported as lost.
    reported: u64,
    bookmarks: Option<Box<Bookmarks>>,
    /// Every event passes unchanged: batches are views.
    plain: bool,
    whole_revisions: bool,
    stop_on_resync: bool,
    on_lag: OnLag,
    /// The keys that the consumer has been shown, for policies that need them.
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

    /// Fixes the start once there is a listing. `late`: the listing came after the subscription.
    fn begin(&mut self, late: bool) -> Step<()> {
        let inner = self.inner().clone();
        let Some(options) = self.options.as_deref().cloned() else { return Ok(()) };
        match options.start {
            Start::Now if late => {
                let listing = inner.ring.first_seq();
                self.live(listing, self.listing());
                if !self.seed(listing) {
                    // What counts as shown has left.
                    self.delivered = Some(Box::default());
                    return Err(Halt::Lost(self.loss()));
                }
            }
            Start::Now => {
                let (position, head) = inner.now(&reclaim::pin());
                self.live(head, position);
                if !self.seed(head) {
                    // Overtaken: it holds what it reads.
                    let snapshot = Snapshot::take(&inner);
                    self.live(snapshot.head(), snapshot.position());
                    self.seed_held(&snapshot);
                }
            }
            Start::State if late => self.initial(inner.ring.first_seq(), self.listing()),
            Start::State => {
                let (position, head) = inner.now(&reclaim::pin());
                self.initial(head, position);
            }
            Start::StateAtLeast(_) => {
                // It begins above all that is there: it is behind nothing.
                self.cursor = u64::MAX;
                self.phase = SubscriptionPhase::Revision { until: Instant::now().checked_add(options.start_timeout) };
            }
            Start::After(revision) => {
                let asked = Position { epoch: options.epoch, revision };
                let found = inner.resolve("subscribe after", asked, true)?;
                let position = Position { epoch: found.epoch, revision };
                if found.future {
                    self.await_future(found.seq, position);
                } else {
                    self.live(found.seq, position);
                }
                if !self.seed(found.seq) {
                    return Err(inner.compacted("subscribe after", revision).into());
                }
            }
        }
        Ok(())
    }

    /// The position of the first listing.
    fn listing(&self) -> Position {
        let pin = reclaim::pin();
        let epochs = self.shared.inner.ring.epochs(&pin);
        Position { epoch: epochs.first_epoch, revision: epochs.listing }
    }

    fn start(&self) -> Option<Start> {
        self.options.as_ref().map(|options| options.start)
    }

    fn live(&mut self, cursor: u64, position: Position) {
        self.cursor = cursor;
        self.position = position;
        if let Some(bookmarks) = &mut self.bookmarks {
            (bookmarks.delivered, bookmarks.at) = (position, Instant::now());
        }
        self.segment = None;
        self.options = None;
        self.phase = SubscriptionPhase::Live;
    }

    /// Moves through the phases before the first event. True: there may be something to hand out.
    fn started(&mut self, frontier: &Frontier) -> Step<bool> {
        if matches!(self.phase, SubscriptionPhase::Unready) {
            if frontier.head == 0 {
                return Err(say::closed("subscription").into());
            } else if self.shared.inner.is_ready() {
                self.begin(true)?;
            } else if frontier.closed {
                return Err(say::closed("subscription").into());
            } else if self.shared.inner.has_failed() {
                return Err(self.shared.inner.not_ready("subscription").into());
            } else {
                return Ok(false);
            }
        }
        if matches!(self.phase, SubscriptionPhase::Future(_)) {
            return self.future_began(frontier);
        }
        if let (SubscriptionPhase::Revision { until }, Some(Start::StateAtLeast(revision))) =
            (&self.phase, self.start())
        {
            // Closed by its owner while it waited: it ends.
            let ended = self.shared.end.load(Acquire) != OPEN;
            let (position, head) = self.shared.inner.now(&reclaim::pin());
            if position.revision >= revision && !ended {
                self.initial(head, position);
            } else if frontier.closed {
                return Err(say::closed("subscription").into());
            } else if let Some(error) = self.shared.inner.broken() {
                return Err(error.into());
            } else if until.is_some_and(|until| Instant::now() >= until) {
                return Err(say::future("subscribe to the state at least at", revision, position.revision).into());
            } else {
                return Ok(false);
            }
        }
        Ok(true)
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
        self.segment = None;
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
        let behind = if self.is_ahead() { 0 } else { frontier.head.saturating_sub(self.cursor) };
        if behind > self.shared.inner.gauges.max_lag.load(Relaxed) {
            self.shared.inner.gauges.max_lag.fetch_max(behind, Relaxed);
        }
        if behind > 0 && self.shared.is_limited() {
            self.shared.cursor.store(self.cursor, Relaxed);
            self.shared.enforce_lag_limit();
            self.check_limit()?;
        }
        if matches!(
            self.phase,
            SubscriptionPhase::Unready | SubscriptionPhase::Revision { .. } | SubscriptionPhase::Future(_)
        ) && !self.started(&frontier)?
        {
            return Ok(Batch::empty(self.position));
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
        if self.cursor >= frontier.head {
            let revision = progress_of(frontier.progress, self.position.epoch);
            self.position.revision = self.position.revision.max(revision);
        }
        if frontier.closed && self.cursor >= frontier.head {
            return Err(say::closed("subscription").into());
        }
        if let Some(bookmarks) = &mut self.bookmarks
            && bookmarks.is_due(self.position)
        {
            (bookmarks.delivered, bookmarks.at) = (self.position, Instant::now());
            let mut batch = BatchBuilder::new(1, false, ());
            batch.push_mark(Mark::bookmark(self.position.revision, 0));
            return Ok(batch.finish(self.position));
        }
        Ok(Batch::empty(self.position))
    }

    /// Whether it was ended because it was too far behind.
    #[cold]
    fn check_limit(&self) -> Step<()> {
        let Some(lag) = self.shared.take_too_slow() else { return Ok(()) };
        let (oldest, current) = self.shared.inner.window();
        let from = self.position.revision + 1;
        Err(Error::new(
            Code::Lagged,
            format!(
                "subscription: closed, it was {} events and {} ms behind, and may be at most {}. Read faster, raise the limit, or subscribe again.",
                lag.events,
                lag.age.as_millis(),
                self.shared.limits()
            ),
        )
        .with_lost(from, current.revision.max(from))
        .with_oldest(oldest)
        .with_current(current.revision)
        .with_position(self.position)
        .into())
    }

    /// The cursor's place has left: what was lost, and where the log continues.
    fn loss(&self) -> Loss {
        let inner = &self.shared.inner;
        loop {
            let pin = reclaim::pin();
            let (current, head) = inner.now(&pin);
            let epochs = inner.ring.epochs(&pin);
            let present = epochs.at(head);
            let oldest = inner.ring.oldest_at(head, &pin).revision;
            let seq = inner.ring.seq_above(oldest - 1, &present, head, &pin).max(self.cursor);
            let before = Position { epoch: epochs.at(seq).epoch, revision: oldest - 1 };
            let again = inner.ring.oldest_at(head, &pin);
            if inner.ring.oldest_seq() > seq || again.revision != oldest || !again.holds(&inner.ring) {
                continue;
            }
            let from = self.position.revision.max(self.reported) + 1;
            let from = if before.epoch == self.position.epoch { from } else { self.position.revision + 1 };
            return Loss {
                from,
                to: before.revision.max(from),
                oldest,
                current: current.revision,
                seq,
                before,
                initial: false,
            };
        }
    }

    /// What comes of a loss: an error to tell, or nothing (then the poll continues).
    fn lose(&mut self, loss: Loss) -> Option<Error> {
        self.shared.lost();
        tracing::debug!(
            cache = self.shared.inner.name,
            subscription = self.shared.name(),
            id = self.shared.id,
            from = loss.from,
            to = loss.to,
            "events were lost"
        );
        self.segment = None;
        self.reader.forget_links();
        let error = loss.error(self.position);
        match self.on_lag {
            OnLag::Stop => self.end(),
            OnLag::SkipToOldest if loss.initial => self.end(),
            OnLag::SkipToOldest => {
                let frontier = self.frontier();
                let over = frontier.closed && loss.seq >= frontier.head;
                if self.stop_on_resync && loss.before.epoch != self.position.epoch && !over {
                    // The bracket was lost, too.
                    let resynced = live::resynced(loss.current, "while events were lost", self.position);
                    self.failure = Some(Box::new(Halt::Over(resynced)));
                }
                self.cursor = loss.seq;
                self.position = loss.before;
                self.options = None;
                self.phase = SubscriptionPhase::Live;
            }
            OnLag::Resnapshot | OnLag::Conflate => {
                let reported = self.on_lag == OnLag::Conflate || self.is_in_bracket();
                self.reported = if loss.initial { self.reported } else { loss.to };
                self.fall_behind();
                if reported {
                    return None;
                }
            }
        }
        Some(error)
    }

    /// Publishes what other threads may see of this cursor: statistics only.
    #[inline]
    fn share(&mut self) {
        if self.delivered.is_some() || self.counted != 0 || self.reader.link_bytes() != 0 {
            self.count();
        }
        // Who waits for a revision is behind nothing.
        let cursor = if self.is_ahead() { u64::MAX } else { self.cursor };
        self.shared.show(cursor, self.position);
        self.shared.stands(self.standing());
    }

    /// What it remembers, for the cache's statistics.
    #[cold]
    fn count(&mut self) {
        let delivered = self.delivered.as_ref().map_or(0, |delivered| delivered.bytes());
        let now = delivered << 16 | u64::from(self.reader.link_bytes());
        let before = std::mem::replace(&mut self.counted, now);
        let gauges = &self.shared.inner.gauges;
        gauges.delivered_bytes.fetch_add((now >> 16).wrapping_sub(before >> 16), Relaxed);
        gauges.link_bytes.fetch_add((now & 0xffff).wrapping_sub(before & 0xffff), Relaxed);
    }

    /// An error that names it, where it has a name.
    fn named(&self, error: Error) -> Error {
        error.of_subscription(self.shared.name())
    }

    /// The position: every match up to and with it was handed out. 0 during the initial state.
    pub fn position(&self) -> Position {
        self.position
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

impl Loss {
    fn error(&self, position: Position) -> Error {
        let Loss { from, to, oldest, current, .. } = *self;
        Error::new(
            Code::Lagged,
            format!("subscription: revisions {from} to {to} were lost; the log holds {oldest} to {current}. Subscribe again from State, or make the capacity larger."),
        )
        .with_lost(from, to)
        .with_oldest(oldest)
        .with_current(current)
        .with_position(position)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(sleeper) = &mut self.sleeper {
            sleeper.registration.leave(&self.shared.inner);
            if let Some(group) = sleeper.group.take() {
                self.shared.inner.hub.leave_group(&group);
            }
        }
        if self.entry != Entry::NONE {
            // While it stands: a loss that no poll has met is its last.
            self.shared.inner.registry.leave(self.entry, self.shared.figures().lagged);
        }
        self.shared.end.store(0, Release);
        self.shared.inner.gauges.subscriptions.fetch_sub(1, Relaxed);
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
            .field("position", &self.position)
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
