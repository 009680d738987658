//! What other threads may see of a subscription, and do to it.

#![forbid(unsafe_code)]

use super::observed::Standing;
use super::options::Options;
use crate::cache::{Inner, Lag};
use crate::log::buckets::Bucket;
use crate::log::ring::{EPOCH_MASK, REVISION_BITS, progress_word};
use crate::position::{MAX_REVISION, Position};
use crate::reclaim;
use crate::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, Mutex, Relaxed, Release, SeqCst, fence, lock, ord};
use crate::sys::clock;
use crate::wake::SeatRef;
use crate::writer::Writer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32 as HalfStatistic, AtomicU64 as Statistic};
use std::time::Duration;

/// `Shared::end` while the subscription is open.
pub(super) const OPEN: u64 = u64::MAX;

/// `Shared::free_slots` where they are not known. A number that happens to end so is not known either.
const UNKNOWN: u32 = u32::MAX;

/// What other threads may see and do.
pub(crate) struct Shared {
    pub(super) inner: Arc<Inner>,
    /// One past the last sequence number to hand out; OPEN: no end.
    pub(super) end: AtomicU64,
    /// Its number in its cache.
    pub(super) id: u64,
    /// How the consumer says that it stands, below its losses: see `observed`.
    pub(super) standing: AtomicU64,
    /// When it was polled: a time of [`clock`], 0 for never. Statistics.
    pub(super) polled: Statistic,
    /// Events and marks that it handed out. Statistics.
    pub(super) handed_out: Statistic,
    /// The consumer's cursor as of its last poll (statistics, pace).
    pub(super) cursor: AtomicU64,
    /// Slots below the cursor that no event has, the lower half of their number; [`UNKNOWN`] where its segment had
    /// left. Stored before the cursor.
    free_slots: HalfStatistic,
    /// The position as of its last poll, packed as the progress word is: 12 bits of its epoch.
    position: AtomicU64,
    /// The lower half of its epoch, the upper one is the cache's; stored after a position of it, so never ahead of
    /// that. 0: no position yet.
    epoch: AtomicU32,
    /// When the consumer last had everything: a time of [`clock`]. Statistics.
    pub(super) caught_up: Statistic,
    /// For those who close it and look at it.
    pub(super) reach: Mutex<Reach>,
    extras: Option<Box<Extras>>,
}

/// The greatest number up to `most` that has this lower half.
pub(super) fn whole(lower_half: u32, most: u64) -> u64 {
    most.saturating_sub(u64::from((most as u32).wrapping_sub(lower_half)))
}

/// What few subscriptions have: those without take no memory for it.
struct Extras {
    name: Box<str>,
    limits: Option<LagLimits>,
}

/// Where it is found.
#[derive(Default)]
pub(super) struct Reach {
    /// Where the consumer sleeps, once it has slept.
    seat: Option<SeatRef>,
    /// The bucket whose chain it reads.
    pub(super) bucket: Option<Arc<Bucket>>,
}

/// How far behind it may be, and the lag for which it was closed.
struct LagLimits {
    events: u64,
    age: Duration,
    exceeded: Mutex<Option<Box<Lag>>>,
}

impl Shared {
    pub(super) fn new(inner: Arc<Inner>, options: &Options, name: &str) -> Shared {
        let limits = options.is_limited().then(|| {
            let Options { max_lag_events: events, max_lag_age: age, .. } = *options;
            LagLimits { events, age, exceeded: Mutex::new(None) }
        });
        let is_plain = name.is_empty() && limits.is_none();
        Shared {
            id: inner.registry.new_id(),
            inner,
            standing: AtomicU64::new(Standing::AwaitsListingThenLog as u64),
            polled: Statistic::new(0),
            handed_out: Statistic::new(0),
            end: AtomicU64::new(OPEN),
            cursor: AtomicU64::new(0),
            free_slots: HalfStatistic::new(0),
            position: AtomicU64::new(0),
            epoch: AtomicU32::new(0),
            caught_up: Statistic::new(clock::now()),
            reach: Mutex::default(),
            extras: (!is_plain).then(|| Box::new(Extras { name: name.into(), limits })),
        }
    }

    /// Shows where the consumer stands.
    #[inline]
    pub(super) fn show(&self, cursor: u64, position: Position) {
        self.show_cursor(cursor);
        // Release: partner of the loads in `position`.
        self.position.store(progress_word(position), Release);
        let epoch = position.epoch as u32;
        if self.epoch.load(Relaxed) != epoch {
            self.epoch.store(epoch, Release);
        }
    }

    #[inline]
    pub(super) fn show_cursor(&self, cursor: u64) {
        // Only the consumer stores here. Free slots are at the ends of segments: in another one it has others.
        if self.cursor.load(Relaxed) ^ cursor >= self.inner.ring.segment_slots() {
            self.count_free_slots(cursor);
        }
        // Release: a loss before it is counted: see `observed`.
        self.cursor.store(cursor, Release);
    }

    #[cold]
    fn count_free_slots(&self, cursor: u64) {
        let free = self.inner.ring.free_slots_below(cursor).map_or(UNKNOWN, |free| free as u32);
        self.free_slots.store(free, Relaxed);
    }

    /// The same for the consumer, of the cursor that it has shown.
    pub(super) fn events_below_shown(&self) -> u64 {
        self.events_below(self.cursor.load(Relaxed))
    }

    /// Events below the cursor that was loaded before: at least so many, and no more unless it moves just now.
    pub(super) fn events_below(&self, cursor: u64) -> u64 {
        let ring = &self.inner.ring;
        // Behind the load of the cursor: as of that or of a later one, which has more of them below it.
        let lower_half = self.free_slots.load(Relaxed);
        let Some(all) = ring.free_slots_below(ring.head()).filter(|_| lower_half != UNKNOWN) else { return 0 };
        cursor.saturating_sub(ring.first_seq()).saturating_sub(whole(lower_half, all))
    }

    /// The position as of the last poll. Whole: the epoch that is loaded first is that of the word or
    /// one before it, and 12 bits of the word say how many before.
    pub(super) fn position(&self) -> Position {
        // Acquire: partner of the stores in `show`: the word is at least as new as the epoch.
        let lower_half = u64::from(self.epoch.load(Acquire));
        let word = self.position.load(Acquire);
        if lower_half == 0 {
            return Position::default();
        }
        let birth = self.inner.ring.epochs(&reclaim::pin()).first_epoch >> 32 << 32;
        let ahead = (word >> REVISION_BITS).wrapping_sub(lower_half) & EPOCH_MASK;
        Position { epoch: (birth | lower_half) + ahead, revision: word & (MAX_REVISION - 1) }
    }

    pub(super) fn is_limited(&self) -> bool {
        self.limits_of_lag().is_some()
    }

    fn limits_of_lag(&self) -> Option<&LagLimits> {
        self.extras.as_ref().and_then(|extras| extras.limits.as_ref())
    }

    /// The limits, for a message.
    pub(super) fn limits(&self) -> String {
        let Some(limits) = self.limits_of_lag() else { return "none".into() };
        let events = (limits.events != u64::MAX).then(|| format!("{} events", limits.events));
        let age = (limits.age != Duration::MAX).then(|| format!("{} ms", limits.age.as_millis()));
        events.into_iter().chain(age).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn close(&self) {
        // Before the first listing nothing was published: nothing is handed out.
        let head = if self.inner.is_ready() { self.inner.ring.head() } else { 0 };
        self.close_at(head);
    }

    fn close_at(&self, head: u64) {
        let _ = self.end.compare_exchange(OPEN, head, ord!(End, AcqRel), Acquire);
        fence(SeqCst);
        // Partner: the consumer stores PARKED, fence, looks at `end`.
        if let Some(seat) = self.seat() {
            seat.wake();
        }
    }

    /// Where the consumer sleeps: before it sleeps there, once.
    pub(super) fn sleeps_in(&self, seat: &SeatRef) {
        lock(&self.reach).seat = Some(seat.clone());
    }

    pub(super) fn seat(&self) -> Option<SeatRef> {
        lock(&self.reach).seat.clone()
    }

    pub(super) fn bucket(&self) -> Option<Arc<Bucket>> {
        lock(&self.reach).bucket.clone()
    }

    pub(super) fn name(&self) -> &str {
        self.extras.as_ref().map_or("", |extras| &extras.name)
    }

    /// Everything up to the head was handed out, just now or at that time.
    pub(super) fn caught_up(&self, at: u64) {
        self.caught_up.store(at, Relaxed);
    }

    /// The lag for which it was closed, reported once.
    pub(super) fn take_too_slow(&self) -> Option<Box<Lag>> {
        self.limits_of_lag().and_then(|limits| lock(&limits.exceeded).take())
    }
}

impl Shared {
    /// Closed for its lag, and not reported yet.
    pub(super) fn is_too_slow(&self) -> bool {
        self.limits_of_lag().is_some_and(|limits| lock(&limits.exceeded).is_some())
    }

    /// Ends it where it is further behind than it may. False: there is nothing to look at any more.
    pub(super) fn enforce_lag_limit(&self) -> bool {
        if self.end.load(Acquire) != OPEN || self.inner.is_closed() {
            return false;
        }
        let lag = self.lag();
        let Some(limits) = self.limits_of_lag() else { return true };
        if lag.events <= limits.events && lag.age <= limits.age {
            return true;
        }
        tracing::warn!(
            cache = self.inner.name,
            subscription = self.name(),
            id = self.id,
            events = lag.events,
            age_ms = lag.age.as_millis() as u64,
            "closed: further behind than it may be"
        );
        *lock(&limits.exceeded) = Some(Box::new(lag));
        // Nothing more is handed out.
        self.close_at(0);
        false
    }
}

/// Ends a subscription from any thread, and shows its lag. Clone, Send and Sync.
///
/// ```
/// use watchcore::{Cache, Code, Start};
///
/// let cache = Cache::builder("/").build()?;
/// let mut subscription = cache.subscribe(Start::Now).open()?;
/// let closer = subscription.closer();
/// let waiting = std::thread::spawn(move || subscription.next().map(|batch| batch.is_none()));
/// closer.close(); // from any thread; the wait ends at once
/// assert!(waiting.join().unwrap()?);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone)]
pub struct Closer(pub(super) Arc<Shared>);

impl Closer {
    /// Ends the subscription: idempotent. A wait in progress ends at once; what was published before
    /// the call is still handed out, then CLOSED.
    pub fn close(&self) {
        self.0.close();
    }

    /// The position as of the consumer's last poll.
    pub fn position(&self) -> Position {
        self.0.position()
    }

    /// The lag now.
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

    /// Whether the subscription is less than half a window behind, or over.
    #[doc(hidden)]
    pub fn may_go_on(&self) -> bool {
        let shared = &self.0.0;
        if shared.end.load(Acquire) != OPEN || shared.inner.is_closed() {
            return true;
        }
        if shared.awaits_revision() {
            // It is behind nothing, and sleeps until there is more.
            return true;
        }
        let cursor = shared.cursor.load(Relaxed);
        let ring = &shared.inner.ring;
        let (oldest, head) = (ring.oldest_seq(), ring.head());
        // Half of what the window holds now, once it is full; before that nothing can be lost.
        let window = ring.window_slots();
        head - cursor.min(head) < window / 2 && (cursor == 0 || cursor >= oldest)
    }
}
