//! The lag and state of a subscription, as other threads see it at any time: its cache's lists and statistics, and the
//! notifier that enforces limits.
//!
//! The consumer publishes its phase when that changes: a statistic, on which no poll depends.
//!
//! | consumer | observer | order |
//! | --- | --- | --- |
//! | loss: `reported_phase` with one loss more and `LossReported`; then the new cursor; then `reported_phase` again | `reported_phase`, cursor, `reported_phase` | Release / Acquire: an observer of the new cursor, or of the phase stored after it, sees the loss counted; if both loads of `reported_phase` agree, the loss is counted once, there or as overrun |
//!
//! A subscription is overrun, and no poll has reported it, if its next poll would not find the events at its cursor.
//! `oldest_seq` alone does not decide that: a consumer may keep the segment of its cursor, and one that reads a chain
//! needs only the events of its bucket.

#![forbid(unsafe_code)]

use super::consumer::{ConsumerOf, MaxLag, OPEN};
use super::registry::{Member, StatsShare};
use super::reported_phase::{ReportedPhase, ReportedWord};
use super::shared::{Consumer, Inner};
use super::subscriptions::{Lag, ReadPath, SubscriptionInfo, SubscriptionState};
use crate::filter::matcher::Matcher;
use crate::foreign;
use crate::log::buckets::Bucket;
use crate::log::ring::Located;
use crate::reclaim;
use crate::sync::{Acquire, Relaxed, Release, lock, step};
use crate::sys::clock;
use crate::wake::{FilterCode, Rest};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

impl Consumer {
    /// A new subscription of a cache. Its registry has no count on it yet.
    pub(crate) fn of(inner: &Arc<Inner>, matcher: Arc<Matcher>, max_lag: MaxLag, name: &str) -> Consumer {
        let begins = (inner.registry.new_id(), inner.ring.first_seq());
        ConsumerOf::new(inner.clone(), begins, matcher, max_lag, name)
    }

    pub(crate) fn close(&self) {
        // Before the first listing no event was published, so the end is 0.
        let (at, head) = if self.inner.is_ready() { self.inner.stands_at() } else { Default::default() };
        self.close_at(at, head);
    }

    /// Publishes the consumer's phase, by a store if it has changed.
    #[inline]
    pub(crate) fn report_phase(&self, phase: ReportedPhase) {
        // Only the consumer stores here.
        let before = self.reported_word(Relaxed);
        let now = before.with(phase);
        if now != before {
            // Release: see the table. The cursor and position that `show` stored before are seen with it.
            self.reported_phase.store(now.0, Release);
        }
    }

    /// Counts a loss that a poll has met, before its new cursor is published.
    pub(crate) fn lost(&self) {
        // Release: see the table.
        self.reported_phase.store(self.reported_word(Relaxed).with_a_loss().0, Release);
    }

    fn reported_word(&self, order: Ordering) -> ReportedWord {
        ReportedWord(self.reported_phase.load(order))
    }

    /// Whether no event concerns it, as of its last poll: it waits for a revision, or has ended.
    pub(super) fn takes_nothing(&self) -> bool {
        // Acquire: partner of the store in `report_phase`.
        matches!(
            self.reported_word(Acquire).reported_phase(),
            ReportedPhase::AwaitsFuture | ReportedPhase::AwaitsRevision | ReportedPhase::Ended
        )
    }

    /// The number of losses that polls have met.
    pub(crate) fn losses(&self) -> u64 {
        self.reported_word(Relaxed).losses()
    }

    /// Its present lag. While it is parked it counts as having everything; once it was woken it is behind from that
    /// time on.
    pub(crate) fn lag(&self) -> Lag {
        self.lag_as(self.seen().phase)
    }

    fn lag_as(&self, phase: ReportedPhase) -> Lag {
        let inner = &self.inner;
        let Some((Range { start, end }, since)) = self.unread(phase) else { return Lag::default() };
        let (now, head) = inner.now(&reclaim::pin());
        let position = self.position();
        let events = inner.ring.events_between(start, end.min(head));
        let revisions =
            if position.epoch == now.epoch { now.revision.saturating_sub(position.revision) } else { events };
        Lag { events, revisions, age: if events == 0 { Duration::ZERO } else { clock::since(since) } }
    }

    /// The end of its events, if its owner has closed it. Acquire: partner of `end_at`.
    fn end_of_reading(&self) -> u64 {
        // 0: closed before it began, or for its lag, which is computed as if it were open.
        match self.end.load(Acquire) {
            0 => OPEN,
            end => end,
        }
    }

    /// The sequence numbers that it has not taken, and the time since when; the end is above every head if the
    /// subscription has none. `None`: it has everything.
    fn unread(&self, phase: ReportedPhase) -> Option<(Range<u64>, u64)> {
        let (resume, since) = match self.waiter().map_or(Rest::Awake, |waiter| waiter.rest()) {
            Rest::Parked => return None,
            Rest::Woken { at, resume } => (resume, at),
            Rest::Awake => (0, self.caught_up.load(Relaxed)),
        };
        let cursor = self.cursor.load(Acquire);
        let start = match phase {
            ReportedPhase::AwaitsFuture => self.first_above_the_start(cursor)?,
            _ => cursor.max(resume),
        };
        Some((start..self.end_of_reading(), since))
    }

    /// The first event above the revision that it waits for, once the cache has reached that: `None` before, and where
    /// another history has replaced it. If that event has left, `seen`, the head at which the revision was last seen
    /// not to be reached.
    fn first_above_the_start(&self, seen: u64) -> Option<u64> {
        let inner = &self.inner;
        let asked = self.position();
        let pin = reclaim::pin();
        let (current, head) = inner.now(&pin);
        let epochs = inner.ring.epochs(&pin);
        if asked.revision >= current.revision || epochs.is_of_a_former_history(asked, head) {
            return None;
        }
        if self.start_has_left(seen) {
            return Some(seen);
        }
        Some(inner.ring.seq_above(asked.revision, &epochs.at(head), head, &pin))
    }

    /// Whether an event above the revision that it waits for has left, as its next poll will find. Decided by events,
    /// as a compaction evicts none. `seen`: see `first_above_the_start`.
    fn start_has_left(&self, seen: u64) -> bool {
        let ring = &self.inner.ring;
        let asked = self.position().revision;
        loop {
            let pin = reclaim::pin();
            let (_, head) = self.inner.now(&pin);
            let above = ring.seq_above(asked, &ring.epochs(&pin).at(head), head, &pin);
            let oldest = ring.oldest_seq();
            if oldest <= seen {
                return false;
            }
            if above < oldest && oldest <= ring.head() {
                // The window has moved on meanwhile.
                continue;
            }
            // A revision longer than the log is being written, and all events below the head have left.
            return above < oldest || above == oldest && ring.newest_left(oldest, &pin) > asked;
        }
    }

    /// The phase, losses and whether it is overrun, consistent with each other.
    fn seen(&self) -> Seen {
        loop {
            // Acquire: partner of the stores in `report_phase` and `lost`.
            let word = self.reported_word(Acquire);
            let phase = word.reported_phase();
            let overrun = self.is_overrun(phase);
            // Loaded after the cursor, whose load was Acquire: see the table.
            if self.losses() == word.losses() {
                return Seen { phase, overrun, losses: word.losses() };
            }
        }
    }

    /// Whether its next poll will meet a loss.
    fn is_overrun(&self, phase: ReportedPhase) -> bool {
        let Some((Range { start: cursor, .. }, _)) = self.unread(phase) else { return false };
        let inner = &self.inner;
        let ring = &inner.ring;
        if phase == ReportedPhase::AwaitsFuture {
            return self.start_has_left(self.cursor.load(Acquire));
        }
        if cursor >= ring.oldest_seq() || cursor >= ring.head().min(self.end.load(Acquire)) {
            return false;
        }
        match phase {
            ReportedPhase::InitialState => !ring.has_all_from(cursor, ring.oldest_seq(), &reclaim::pin()),
            ReportedPhase::AwaitsListingThenState | ReportedPhase::AwaitsListingThenLog => inner.is_ready(),
            ReportedPhase::Live | ReportedPhase::LiveInSegment => {
                let keeps = phase == ReportedPhase::LiveInSegment;
                match self.bucket().filter(|bucket| cursor >= bucket.linked_from()) {
                    Some(bucket) => has_lost_of(inner, &bucket, cursor, keeps),
                    None => is_gone(inner, cursor, keeps),
                }
            }
            _ => false,
        }
    }

    fn state(&self, seen: &Seen, lag: &Lag) -> SubscriptionState {
        let is_parked = || matches!(self.waiter().map(|waiter| waiter.rest()), Some(Rest::Parked));
        let listed = self.inner.is_ready();
        match seen.phase {
            ReportedPhase::Ended => SubscriptionState::Ended,
            _ if self.is_too_slow() => SubscriptionState::TooSlow,
            _ if seen.overrun => SubscriptionState::Overrun,
            _ if self.end.load(Acquire) != OPEN || self.inner.is_closed() => SubscriptionState::Closing,
            ReportedPhase::AwaitsListingThenState if listed => SubscriptionState::InitialState,
            ReportedPhase::AwaitsListingThenLog if listed => SubscriptionState::Live,
            ReportedPhase::AwaitsListingThenRevision if listed => SubscriptionState::AwaitsRevision,
            ReportedPhase::AwaitsListingThenState
            | ReportedPhase::AwaitsListingThenLog
            | ReportedPhase::AwaitsListingThenRevision => SubscriptionState::AwaitsListing,
            ReportedPhase::AwaitsFuture if lag.events > 0 => SubscriptionState::Live,
            ReportedPhase::AwaitsRevision | ReportedPhase::AwaitsFuture => SubscriptionState::AwaitsRevision,
            ReportedPhase::InitialState => SubscriptionState::InitialState,
            ReportedPhase::CatchingUp | ReportedPhase::LossReported => SubscriptionState::CatchingUp,
            ReportedPhase::Live | ReportedPhase::LiveInSegment if is_parked() => SubscriptionState::Parked,
            ReportedPhase::Live | ReportedPhase::LiveInSegment => SubscriptionState::Live,
        }
    }
}

/// The result of [`Consumer::seen`].
struct Seen {
    phase: ReportedPhase,
    overrun: bool,
    losses: u64,
}

/// Whether a scan does not find the events at `cursor`, which is below the head.
fn is_gone(inner: &Inner, cursor: u64, keeps_segment: bool) -> bool {
    let ring = &inner.ring;
    // A segment that it keeps is read to its end.
    let at = if keeps_segment { ring.limit_of(cursor) } else { cursor };
    at < ring.head() && matches!(ring.locate(at, &reclaim::pin()), Located::Evicted)
}

/// Whether an event of a bucket from `cursor` on has left the window, or a mark. O(the bucket's events in the
/// window).
fn has_lost_of(inner: &Inner, bucket: &Bucket, cursor: u64, keeps_segment: bool) -> bool {
    let ring = &inner.ring;
    let oldest = ring.oldest_seq();
    if ring.newest_mark() >= cursor {
        let pin = reclaim::pin();
        let epochs = ring.epochs(&pin);
        // The same search as in `ChainEnd::go_to_mark`: the resync of the newest change below may end above the cursor.
        let below = epochs.last_below(cursor).filter(|change| change.end >= cursor);
        let next = below.or_else(|| epochs.changes_from(cursor).next());
        if next.is_some_and(|change| change.seq < oldest) {
            return true;
        }
    }
    let mut at = bucket.newest();
    while at >= cursor {
        if keeps_segment && ring.base_of(at) == ring.base_of(cursor) {
            return false;
        }
        let Located::Segment(segment) = ring.locate(at, &reclaim::pin()) else { return true };
        let Some(before) = segment.before(at, bucket.id()) else { return false };
        at = before;
    }
    false
}

impl Consumer {
    /// Its entry in the list of its cache.
    pub(super) fn info(&self) -> SubscriptionInfo {
        let seen = self.seen();
        let is_over = seen.phase == ReportedPhase::Ended || self.is_too_slow();
        let lag = if is_over { Lag::default() } else { self.lag_as(seen.phase) };
        SubscriptionInfo {
            id: self.id(),
            name: self.name().to_string(),
            state: self.state(&seen, &lag),
            position: self.position(),
            lag,
            read_path: self.bucket().map_or(ReadPath::Scan, |bucket| ReadPath::Chain {
                index: self.inner.indexes.name(bucket.name()).to_string(),
            }),
            last_poll: self.last_poll(),
            handed_out: self.handed_out(),
            lagged: seen.losses + u64::from(seen.overrun),
        }
    }

    /// Its share of the statistics of its cache.
    pub(crate) fn stats_share(&self) -> StatsShare {
        let seen = self.seen();
        let is_over = seen.phase == ReportedPhase::Ended || self.is_too_slow();
        let unread = if is_over { None } else { self.unread(seen.phase) };
        let ring = &self.inner.ring;
        StatsShare {
            lag_events: unread.map_or(0, |(seqs, _)| ring.events_between(seqs.start, seqs.end.min(ring.head()))),
            overrun: seen.overrun,
            lagged: seen.losses + u64::from(seen.overrun),
        }
    }
}

// ---- Limits ---------------------------------------------------------------------------------------------

impl Consumer {
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
                "a subscription was closed, because it is further behind than it may be"
            );
        });
        self.wake_up();
        false
    }
}

impl Member for Consumer {
    fn limits_slot(&self) -> Option<&AtomicU32> {
        self.slot_of_limits()
    }

    fn stats_share(&self) -> StatsShare {
        Consumer::stats_share(self)
    }

    fn enforce_lag_limit(&self) -> bool {
        Consumer::enforce_lag_limit(self)
    }
}
