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

use super::observed::Standing;
use super::{Inner, Lag};
use crate::filter::matcher::Matcher;
use crate::foreign;
use crate::log::buckets::Bucket;
use crate::log::ring::{EPOCH_MASK, REVISION_BITS, progress_word};
use crate::position::{MAX_REVISION, Position};
use crate::sync::{
    AcqRel, Acquire, AtomicU32, AtomicU64, LeanArc, Mutex, OnceBox, Relaxed, Release, SeqCst, fence, lock, ord, step,
};
use crate::sys::clock;
use crate::wake::{FilterCode, ParkedWaiter, Parker, Rest, WaiterCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32 as HalfStatistic, AtomicU64 as Statistic};
use std::time::Duration;

/// `Consumer::end` while the subscription is open.
pub(crate) const OPEN: u64 = u64::MAX;

/// The value of `Consumer::free_slots` where they are unknown. A number with this lower half counts as unknown, too.
const UNKNOWN: u32 = u32::MAX;

/// Bits of nanoseconds that `Consumer::polled` leaves out: it counts steps of 17 ms, which suffices for ages of up to a
/// year.
const POLLED_STEP: u32 = 24;

/// The first step that begins after a time: rounded up, so that no poll seems longer ago than it is.
fn step_from(time: u64) -> u64 {
    (time >> POLLED_STEP) + 1
}

/// Bits of an id that `low_id` has; the bits above are in the top of `standing`.
const LOW_ID_BITS: u32 = 32;

/// A counted reference to a subscription: its handle, its registry and each handle that may close it have one.
pub(crate) type ConsumerRef = LeanArc<Consumer>;

/// See the module.
pub(crate) struct Consumer {
    pub(crate) inner: Arc<Inner>,
    pub(crate) matcher: Arc<Matcher>,
    /// The sequence number after the last one to hand out; OPEN: no end.
    pub(crate) end: AtomicU64,
    /// Its cursor: the next sequence number to look at. While it waits for a start in the future: the head that it has
    /// looked up to.
    pub(super) cursor: AtomicU64,
    /// The position, packed as the progress word is: 12 bits of its epoch.
    position: AtomicU64,
    /// The lower half of its epoch (the cache has the upper one), stored after a position of that epoch, so never ahead
    /// of the position. 0: no position yet.
    epoch: AtomicU32,
    /// The lower half of the number of slots below the cursor that no event has; [`UNKNOWN`] where the cursor's segment
    /// had left. Stored before the cursor.
    free_slots: HalfStatistic,
    /// From the low bits up: its [`Standing`], the number of its losses, the upper bits of its id: see `observed`.
    pub(super) standing: AtomicU64,
    /// The time at which the consumer, or the notifier that enforces limits, last saw that it had everything: a time of
    /// [`clock`]. Statistics.
    pub(super) caught_up: Statistic,
    /// Events and marks that it handed out. Statistics.
    handed_out: Statistic,
    /// The time of its last recorded poll, in steps of [`POLLED_STEP`]; 0: never. Statistics.
    polled: HalfStatistic,
    /// The lower bits of its number in its cache.
    low_id: u32,
    /// Its waiter, once it has slept.
    sleep: WaiterCell,
    extras: OnceBox<Extras>,
}

/// The greatest number up to `most` that has this lower half.
pub(crate) fn whole(lower_half: u32, most: u64) -> u64 {
    most.saturating_sub(u64::from((most as u32).wrapping_sub(lower_half)))
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
struct LagLimits {
    events: u64,
    age: Duration,
    exceeded: Mutex<Option<Box<Lag>>>,
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

impl Consumer {
    pub(crate) fn new(inner: Arc<Inner>, matcher: Arc<Matcher>, max_lag: MaxLag, name: &str) -> Consumer {
        let extras = OnceBox::new();
        if !name.is_empty() || max_lag.is_some() {
            let MaxLag { events, age } = max_lag;
            let limits = || LagLimits { events, age, exceeded: Mutex::new(None), slot: HalfStatistic::new(0) };
            let limits = max_lag.is_some().then(|| Box::new(limits()));
            extras.get_or_make(|| Extras::new(name, limits));
        }
        let (id, first) = (inner.registry.new_id(), inner.ring.first_seq());
        Consumer {
            inner,
            matcher,
            end: AtomicU64::new(OPEN),
            cursor: AtomicU64::new(first),
            position: AtomicU64::new(0),
            epoch: AtomicU32::new(0),
            free_slots: HalfStatistic::new(0),
            standing: AtomicU64::new(Standing::AwaitsListingThenLog.of_new(id >> LOW_ID_BITS)),
            caught_up: Statistic::new(clock::now()),
            handed_out: Statistic::new(0),
            polled: HalfStatistic::new(0),
            low_id: id as u32,
            sleep: WaiterCell::new(),
            extras,
        }
    }

    /// Its number in its cache.
    pub(crate) fn id(&self) -> u64 {
        self.upper_id() << LOW_ID_BITS | u64::from(self.low_id)
    }

    pub(crate) fn name(&self) -> &str {
        self.extras.get().map_or("", |extras| &extras.name)
    }
}

// ---- Cursor and position --------------------------------------------------------------------------------

impl Consumer {
    /// The cursor and position that the consumer has stored last. Only the consumer calls this.
    #[inline]
    pub(crate) fn stands_at(&self) -> (u64, Position) {
        let word = self.position.load(Relaxed);
        let position = Position {
            epoch: match self.epoch.load(Relaxed) {
                0 => 0,
                lower_half => self.inner.birth | u64::from(lower_half),
            },
            revision: word & MAX_REVISION,
        };
        (self.cursor.load(Relaxed), position)
    }

    /// Publishes the consumer's cursor and position.
    #[inline]
    pub(crate) fn show(&self, cursor: u64, position: Position) {
        self.show_cursor(cursor);
        // Release: partner of the loads in `position`.
        self.position.store(progress_word(position), Release);
        let epoch = position.epoch as u32;
        if self.epoch.load(Relaxed) != epoch {
            self.epoch.store(epoch, Release);
        }
    }

    #[inline]
    pub(crate) fn show_cursor(&self, cursor: u64) {
        // Only the consumer stores here. Free slots end segments, so their number changes only with the cursor's segment.
        if self.cursor.load(Relaxed) ^ cursor >= self.inner.ring.segment_slots() {
            self.count_free_slots(cursor);
        }
        // Release: a loss that was counted before is seen with the new cursor: see `observed`.
        self.cursor.store(cursor, Release);
    }

    #[cold]
    fn count_free_slots(&self, cursor: u64) {
        let free = self.inner.ring.free_slots_below(cursor).map_or(UNKNOWN, |free| free as u32);
        self.free_slots.store(free, Relaxed);
    }

    /// Events below the cursor that the consumer has stored. Only the consumer calls this.
    pub(crate) fn events_below_shown(&self) -> u64 {
        self.events_below(self.cursor.load(Relaxed))
    }

    /// Events before `cursor`, which the caller has loaded. A lower bound; exact unless the consumer moves concurrently.
    pub(super) fn events_below(&self, cursor: u64) -> u64 {
        let ring = &self.inner.ring;
        // Loaded after the cursor: the number is of that cursor or of a later one, which has no fewer free slots below it.
        let lower_half = self.free_slots.load(Relaxed);
        let Some(all) = ring.free_slots_below(ring.head()).filter(|_| lower_half != UNKNOWN) else { return 0 };
        cursor.saturating_sub(ring.first_seq()).saturating_sub(whole(lower_half, all))
    }

    /// The position as of the last poll, consistent in itself: the epoch, which is loaded first, is that of the word or
    /// an earlier one, and 12 bits of the word tell how much earlier.
    pub(crate) fn position(&self) -> Position {
        // Acquire: partner of the stores in `show`: the word is at least as new as the epoch.
        let lower_half = u64::from(self.epoch.load(Acquire));
        let word = self.position.load(Acquire);
        if lower_half == 0 {
            return Position::default();
        }
        let ahead = (word >> REVISION_BITS).wrapping_sub(lower_half) & EPOCH_MASK;
        Position { epoch: (self.inner.birth | lower_half) + ahead, revision: word & MAX_REVISION }
    }

    /// Records that at this time everything up to the head was handed out.
    pub(crate) fn caught_up(&self, at: u64) {
        self.caught_up.store(at, Relaxed);
    }

    /// Records the time of a poll, from [`clock::now`] or [`clock::soon`]. True: the last recorded poll was at most one
    /// step earlier.
    pub(crate) fn polled_at(&self, now: u64) -> bool {
        let step = step_from(now) as u32;
        let before = self.polled.load(Relaxed);
        // 0 means never polled.
        self.polled.store(step.max(1), Relaxed);
        before != 0 && step.wrapping_sub(before) <= 1
    }

    /// Time since its last poll.
    pub(crate) fn last_poll(&self) -> Option<Duration> {
        let polled = self.polled.load(Relaxed);
        (polled != 0).then(|| {
            let now = step_from(clock::soon());
            // `soon` may lag by more than a step: a step ahead of it is a poll of just now, not of the round before.
            let is_ahead = polled.wrapping_sub(now as u32).cast_signed() > 0;
            if is_ahead { Duration::ZERO } else { clock::since(whole(polled, now) << POLLED_STEP) }
        })
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

impl Consumer {
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

    /// Leaves its waiter for good, when its subscription is dropped, though others may have a count on this for longer.
    ///
    /// # Safety
    ///
    /// The contract of [`Consumer::parker`].
    pub(crate) unsafe fn sleeps_no_more(&self) {
        if self.waiter().is_none() {
            return;
        }
        // SAFETY: only the consumer calls this, and it has no other parker (`# Safety`).
        let mut parker = unsafe { self.parker() };
        let group = parker.group().cloned();
        parker.leave(&self.inner);
        if let Some(group) = group {
            self.inner.hubs.of(FilterCode::of(&self.matcher)).groups.leave(&group);
        }
    }

    pub(crate) fn waiter(&self) -> Option<&ParkedWaiter> {
        self.sleep.waiter()
    }

    pub(crate) fn close(&self) {
        // Before the first listing no event was published, so the end is 0.
        let (at, head) = if self.inner.is_ready() { self.inner.stands_at() } else { Default::default() };
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
    fn end_at(&self, head: u64) -> bool {
        self.end.compare_exchange(OPEN, head, ord!(End, AcqRel), Acquire).is_ok()
    }

    /// Wakes the consumer, after the end was stored.
    fn wake_up(&self) {
        fence(ord!(CloserFence, SeqCst));
        // Partner: the consumer stores PARKED, fence, looks at `end`.
        if let Some(waiter) = self.sleep.count() {
            ParkedWaiter::wake(&waiter);
        }
    }
}

// ---- Limits ---------------------------------------------------------------------------------------------

impl Consumer {
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        self.limits_of_lag().is_some()
    }

    /// Whether it is less than half a window behind, or over: a feeder that waits for it asks this. Its words do not change
    /// while it sleeps, so this uses how far the notifier has looked for it, and calls the notifier if that is too far
    /// behind. So a feeder waits for no waiter that nobody looks at, nor runs ahead of one that may have to be woken.
    pub(crate) fn is_near(&self) -> bool {
        if self.end.load(Acquire) != OPEN || self.inner.is_closed() || self.takes_nothing() {
            return true;
        }
        let hub = self.inner.hubs.of(FilterCode::of(&self.matcher));
        let waiter = self.waiter();
        let rest = waiter.map_or(Rest::Awake, |waiter| waiter.rest());
        let examined_to = match rest {
            Rest::Parked => waiter.map_or(0, |waiter| hub.waiters.examined_to(waiter)),
            Rest::Woken { resume, .. } => resume,
            Rest::Awake => 0,
        };
        let cursor = self.cursor.load(Relaxed).max(examined_to);
        let ring = &self.inner.ring;
        let (oldest, head) = (ring.oldest_seq(), ring.head());
        // Half of the present window once it is full; before that no event can be lost.
        let window = ring.window_slots();
        let is_near = head - cursor.min(head) < window / 2 && (cursor == 0 || cursor >= oldest);
        if !is_near && rest == Rest::Parked {
            // The writer does not call the notifier for events of other buckets than the one at which this sleeps.
            hub.notify(&self.inner);
        }
        is_near
    }

    fn limits_of_lag(&self) -> Option<&LagLimits> {
        self.extras.get().and_then(|extras| extras.limits.as_deref())
    }

    /// Its slot in the registry's list of subscriptions with limits, if it has any.
    pub(super) fn limits_slot(&self) -> Option<&HalfStatistic> {
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

    /// Ends it if its lag exceeds a limit. False: it has ended, and needs no further check.
    pub(crate) fn enforce_lag_limit(&self) -> bool {
        if self.end.load(Acquire) != OPEN || self.inner.is_closed() {
            return false;
        }
        let Some(limits) = self.limits_of_lag() else { return true };
        let lag = self.lag();
        if lag.events == 0 {
            // A subscription that is not polled while there are no events is behind from now on, not since its last
            // poll. A later time that its consumer has stored stays.
            self.caught_up.fetch_max(clock::soon(), Relaxed);
            return true;
        }
        if lag.events <= limits.events && lag.age <= limits.age {
            return true;
        }
        step("found too slow");
        {
            // Both stored under the lock, so that a consumer that sees this end finds the lag with it. If its owner has
            // closed it meanwhile, the owner's end stays.
            let mut exceeded = lock(&limits.exceeded);
            if !self.end_at(0) {
                return false;
            }
            *exceeded = Some(Box::new(lag));
        }
        foreign::report(|| {
            tracing::warn!(
                cache = self.inner.name,
                subscription = self.name(),
                id = self.id(),
                events = lag.events,
                age_ms = lag.age.as_millis() as u64,
                "closed: further behind than it may be"
            );
        });
        self.wake_up();
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{clock, whole};
    use crate::{Cache, Start};
    use std::time::Duration;

    /// The coarse clock may be late by as much as the system's tick.
    #[test]
    fn poll_of_a_late_clock_is_just_now() {
        let cache = Cache::builder("/").build().unwrap();
        let _one = cache.subscribe(Start::Now).open().unwrap();
        let one = cache.inner.registry.all().remove(0);
        let time = clock::TestTime;
        time.pass(Duration::from_secs(3600));
        for late in [60, 3600] {
            one.polled_at(clock::now() + late * 1_000_000_000);
            assert_eq!(one.last_poll(), Some(Duration::ZERO), "{late} s");
        }
        one.polled_at(clock::now());
        time.pass(Duration::from_secs(3600));
        assert!(one.last_poll().is_some_and(|age| age >= Duration::from_secs(3599)));
    }

    #[test]
    fn half_a_number_is_completed() {
        for number in [0, 1, 7, 1 << 32, (1 << 32) + 7, (5 << 32) - 1] {
            for more in [0, 1, 1000, u64::from(u32::MAX)] {
                assert_eq!(whole(number as u32, number + more), number, "{number} and {more}");
            }
        }
    }
}
