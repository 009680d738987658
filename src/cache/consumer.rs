//! The part of a subscription that all threads see: words that its consumer publishes, calls that close or inspect it.
//!
//! The registry of its cache, the subscription and each handle that may close it have a count on it. The cursor and
//! position between two calls are stored only here: the consumer alone stores them, takes them up when it is called,
//! and puts them back when it returns. `docs/internals/subscription.md` has the layout and its cost.
//!
//! | stored | loaded | order |
//! | --- | --- | --- |
//! | `cursor`, after a loss is counted: see `observed` | by threads that list it | Release / Acquire |
//! | `position`, then `epoch` | `epoch`, then `position` | Release / Acquire: the word is at least as new as the epoch |
//! | `end`, once; fence; the state of the waiter | `end`, first of all in a poll; PARKED, fence, `end` | AcqRel / Acquire; SeqCst fences |
//! | the waiter, before the first sleep in it | `waiter` | by `WaiterCell` |

use super::Lag;
use super::reported_phase::{ReportedPhase, ReportedWord};
use crate::filter::matcher::Matcher;
use crate::log::buckets::Bucket;
use crate::log::ring::{EPOCH_MASK, REVISION_BITS, progress_word};
use crate::position::{MAX_REVISION, Position};
use crate::sync::{AcqRel, Acquire, AtomicU64, Mutex, OnceArc, Relaxed, Release, SeqCst, fence, lock, ord};
use crate::sys::clock;
use crate::wake::{FilterCode, HubOwner, ParkedWaiter, Parker, WaiterCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32 as HalfStatistic, AtomicU64 as Statistic};
use std::time::Duration;

/// `Consumer::end` while the subscription is open.
pub(crate) const OPEN: u64 = u64::MAX;

/// Polls that follow each other within this many nanoseconds are frequent: [`ConsumerOf::polled_at`].
const FREQUENT: u64 = 20_000_000;

/// See the module. `C` is the state that all parts of its cache share.
pub(crate) struct ConsumerOf<C> {
    pub(crate) inner: Arc<C>,
    pub(crate) matcher: Arc<Matcher>,
    /// The sequence number after the last one to hand out; OPEN: no end.
    pub(crate) end: AtomicU64,
    /// Its cursor: the next sequence number to look at. While it waits for a start in the future: the head that it has
    /// looked up to.
    pub(super) cursor: AtomicU64,
    /// The position, packed as the progress word is: 12 bits of its epoch.
    position: AtomicU64,
    /// Its whole epoch, stored after a position of that epoch, so never ahead of the position. 0: no position yet.
    epoch: AtomicU64,
    /// A [`ReportedWord`]: see `observed`.
    pub(super) reported_phase: AtomicU64,
    /// The time at which the consumer, or the notifier that enforces limits, last saw that it had everything: a time of
    /// [`clock`]. Statistics.
    pub(super) caught_up: Statistic,
    /// Events and marks that it handed out. Statistics.
    handed_out: Statistic,
    /// The time of its last recorded poll, of [`clock`]; 0: never. Statistics.
    polled: Statistic,
    /// Its number in its cache.
    id: u64,
    /// Its waiter, once it has slept.
    sleep: WaiterCell,
    extras: OnceArc<Extras>,
}

/// State that few subscriptions need, allocated when first used.
struct Extras {
    name: Box<str>,
    limits: Option<Box<LagLimits>>,
    /// The bucket whose chain it reads.
    bucket: Mutex<Option<Arc<Bucket>>>,
    /// The cache's position when its owner closed it.
    closed_at: Mutex<Position>,
}

impl Extras {
    fn new(name: &str, limits: Option<Box<LagLimits>>) -> Extras {
        Extras { name: name.into(), limits, bucket: Mutex::default(), closed_at: Mutex::default() }
    }
}

/// The limits of its lag, and the lag for which it was closed.
pub(super) struct LagLimits {
    pub(super) events: u64,
    pub(super) age: Duration,
    pub(super) exceeded: Mutex<Option<Box<Lag>>>,
    /// Its slot in the registry's list of subscriptions with limits.
    slot: HalfStatistic,
}

/// The limits of lag of a new subscription; the greatest number means no limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaxLag {
    pub(crate) events: u64,
    pub(crate) age: Duration,
}

impl MaxLag {
    pub(crate) fn is_some(&self) -> bool {
        self.events != u64::MAX || self.age != Duration::MAX
    }
}

impl<C> ConsumerOf<C> {
    /// A subscription with this number in its cache, whose cursor is `first`.
    pub(crate) fn new(
        inner: Arc<C>,
        (id, first): (u64, u64),
        matcher: Arc<Matcher>,
        max_lag: MaxLag,
        name: &str,
    ) -> ConsumerOf<C> {
        let extras = OnceArc::new();
        if !name.is_empty() || max_lag.is_some() {
            let MaxLag { events, age } = max_lag;
            let limits = || LagLimits { events, age, exceeded: Mutex::new(None), slot: HalfStatistic::new(0) };
            let limits = max_lag.is_some().then(|| Box::new(limits()));
            extras.get_or_make(|| Extras::new(name, limits));
        }
        ConsumerOf {
            inner,
            matcher,
            end: AtomicU64::new(OPEN),
            cursor: AtomicU64::new(first),
            position: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            reported_phase: AtomicU64::new(ReportedWord::of_new(ReportedPhase::AwaitsListingThenLog).0),
            caught_up: Statistic::new(clock::now()),
            handed_out: Statistic::new(0),
            polled: Statistic::new(0),
            id,
            sleep: WaiterCell::new(),
            extras,
        }
    }

    /// Its number in its cache.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn name(&self) -> &str {
        self.extras.get().map_or("", |extras| &extras.name)
    }
}

// ---- Cursor and position --------------------------------------------------------------------------------

impl<C> ConsumerOf<C> {
    /// The cursor and position that the consumer has stored last. Only the consumer calls this.
    #[inline]
    pub(crate) fn stands_at(&self) -> (u64, Position) {
        let word = self.position.load(Relaxed);
        let position = Position { epoch: self.epoch.load(Relaxed), revision: word & MAX_REVISION };
        (self.cursor.load(Relaxed), position)
    }

    /// Publishes the consumer's cursor and position.
    #[inline]
    pub(crate) fn show(&self, cursor: u64, position: Position) {
        self.show_cursor(cursor);
        // Release: partner of the loads in `position`.
        self.position.store(progress_word(position), Release);
        if self.epoch.load(Relaxed) != position.epoch {
            self.epoch.store(position.epoch, Release);
        }
    }

    #[inline]
    pub(crate) fn show_cursor(&self, cursor: u64) {
        // Release: a loss that was counted before is seen with the new cursor: see `observed`.
        self.cursor.store(cursor, Release);
    }

    /// The position as of the last poll, consistent in itself: the epoch, which is loaded first, is that of the word or
    /// an earlier one, and 12 bits of the word tell how much earlier.
    pub(crate) fn position(&self) -> Position {
        // Acquire: partner of the stores in `show`: the word is at least as new as the epoch.
        let epoch = self.epoch.load(Acquire);
        let word = self.position.load(Acquire);
        if epoch == 0 {
            return Position::default();
        }
        let ahead = (word >> REVISION_BITS).wrapping_sub(epoch) & EPOCH_MASK;
        Position { epoch: epoch + ahead, revision: word & MAX_REVISION }
    }

    /// Records that at this time everything up to the head was handed out.
    pub(crate) fn caught_up(&self, at: u64) {
        self.caught_up.store(at, Relaxed);
    }

    /// Records the time of a poll, from [`clock::now`] or [`clock::soon`]. True: the last recorded poll was at most
    /// [`FREQUENT`] earlier.
    pub(crate) fn polled_at(&self, now: u64) -> bool {
        let before = self.polled.load(Relaxed);
        // 0 means never polled.
        self.polled.store(now.max(1), Relaxed);
        before != 0 && now.saturating_sub(before) <= FREQUENT
    }

    /// Time since its last poll.
    pub(crate) fn last_poll(&self) -> Option<Duration> {
        let polled = self.polled.load(Relaxed);
        // `soon` may be ahead of now: then the poll was just now.
        (polled != 0).then(|| clock::since(polled))
    }

    pub(crate) fn hand_out(&self, count: u64) {
        // Only the consumer stores here.
        self.handed_out.store(self.handed_out.load(Relaxed) + count, Relaxed);
    }

    pub(crate) fn handed_out(&self) -> u64 {
        self.handed_out.load(Relaxed)
    }

    pub(super) fn bucket(&self) -> Option<Arc<Bucket>> {
        self.extras.get().and_then(|extras| lock(&extras.bucket).clone())
    }

    /// Records the bucket whose chain it reads from now on.
    pub(crate) fn reads(&self, bucket: Option<Arc<Bucket>>) {
        if bucket.is_none() && self.extras.get().is_none() {
            return;
        }
        let before = std::mem::replace(&mut *lock(&self.extras().bucket), bucket);
        drop(before);
    }

    fn extras(&self) -> &Extras {
        self.extras.get_or_make(|| Extras::new("", None))
    }
}

// ---- Sleep and close ------------------------------------------------------------------------------------

impl<C> ConsumerOf<C> {
    /// The consumer's side of its waiter, which is made here if it has never slept.
    ///
    /// # Safety
    ///
    /// Only the consumer may call this, and not while it has another parker.
    #[inline]
    pub(crate) unsafe fn parker(&self) -> Parker<'_> {
        // SAFETY: only the consumer calls this, and it has no other parker (`# Safety`).
        unsafe { self.sleep.shared_parker(|| FilterCode::of(&self.matcher)) }
    }

    pub(crate) fn waiter(&self) -> Option<&ParkedWaiter> {
        self.sleep.waiter()
    }

    /// Closes it, when its cache is at this position and head.
    pub(super) fn close_at(&self, at: Position, head: u64) {
        {
            // Both stored under the lock, so that a consumer that sees this end then reads the position that belongs to it.
            let mut closed_at = lock(&self.extras().closed_at);
            if self.end_at(head) {
                *closed_at = at;
            }
        }
        self.wake_up();
    }

    /// The cache's position when its owner closed this. To be loaded after `end`.
    pub(crate) fn closed_at(&self) -> Position {
        self.extras.get().map(|extras| *lock(&extras.closed_at)).unwrap_or_default()
    }

    /// Sets the end: no event from this sequence number on is handed out. False: it had an end already.
    pub(super) fn end_at(&self, head: u64) -> bool {
        self.end.compare_exchange(OPEN, head, ord!(End, AcqRel), Acquire).is_ok()
    }

    /// Wakes the consumer, after the end was stored.
    pub(super) fn wake_up(&self) {
        fence(ord!(CloserFence, SeqCst));
        // Partner: the consumer stores PARKED, fence, looks at `end`.
        if let Some(waiter) = self.sleep.count() {
            ParkedWaiter::wake(&waiter);
        }
    }
}

impl<C: HubOwner> ConsumerOf<C> {
    /// Leaves its waiter for good, when its subscription is dropped, though others may have a count on this for longer.
    ///
    /// # Safety
    ///
    /// The contract of [`ConsumerOf::parker`].
    pub(crate) unsafe fn sleeps_no_more(&self) {
        if self.waiter().is_none() {
            return;
        }
        // SAFETY: only the consumer calls this, and it has no other parker (`# Safety`).
        let mut parker = unsafe { self.parker() };
        let group = parker.group().cloned();
        parker.leave(&self.inner);
        if let Some(group) = group {
            self.inner.hubs().of(FilterCode::of(&self.matcher)).groups.leave(&group);
        }
    }
}

// ---- Limits ---------------------------------------------------------------------------------------------

impl<C> ConsumerOf<C> {
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        self.limits_of_lag().is_some()
    }

    pub(super) fn limits_of_lag(&self) -> Option<&LagLimits> {
        self.extras.get().and_then(|extras| extras.limits.as_deref())
    }

    /// Its slot in the registry's list of subscriptions with limits, if it has any.
    pub(super) fn slot_of_limits(&self) -> Option<&HalfStatistic> {
        self.limits_of_lag().map(|limits| &limits.slot)
    }

    /// The limits, for a message.
    pub(crate) fn limits(&self) -> String {
        let Some(limits) = self.limits_of_lag() else { return "none".into() };
        let events = (limits.events != u64::MAX).then(|| format!("{} events", limits.events));
        let age = (limits.age != Duration::MAX).then(|| format!("{} ms", limits.age.as_millis()));
        events.into_iter().chain(age).collect::<Vec<_>>().join(", ")
    }

    /// The lag for which it was closed, reported once.
    pub(crate) fn take_too_slow(&self) -> Option<Box<Lag>> {
        self.limits_of_lag().and_then(|limits| lock(&limits.exceeded).take())
    }

    /// Whether it was closed for its lag, which no poll has reported yet.
    pub(crate) fn is_too_slow(&self) -> bool {
        self.limits_of_lag().is_some_and(|limits| lock(&limits.exceeded).is_some())
    }
}
