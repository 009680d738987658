//! The open subscriptions of a cache, and those among them that have a limit of lag.
//!
//! A subscription enters when it is opened and leaves when it is dropped; that is O(1), whatever the number of the
//! others. In between the registry has a count on it, so that none is freed under the lock. The cycle of
//! counts (cache, registry, subscription, cache) ends with the drop of the subscription, which keeps its cache anyway.
//!
//! The locks are taken to enter, to leave and to list, and by the notifier while there are limits: never by the writer,
//! a poll or a park. Statistics of subscriptions are computed outside of the locks.
//!
//! A loss is counted at the subscription until that leaves; then `lost_before` has it. The list and `lost_before` are
//! read under one lock, so no loss is counted twice, and none is missed.

#![forbid(unsafe_code)]

use crate::sync::{Arc, AtomicUsize, Mutex, Relaxed, lock};
use std::sync::atomic::{AtomicU32 as HalfStatistic, AtomicU64 as Statistic};
use std::time::{Duration, Instant};

/// Time between two checks of the limits, and the pieces of [`Slots`] that the notifier looks at in one pass of a check.
const LIMITS_EVERY: Duration = Duration::from_millis(250);
const PORTION: usize = 16;

/// The statistics of all subscriptions together.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct SubscriptionTotals {
    pub(crate) max_lag_events: u64,
    pub(crate) overrun: u64,
    pub(crate) lagged: u64,
}

/// The slot of a subscription that was never opened.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// The share of one subscription in the statistics of its cache.
pub(crate) struct StatsShare {
    /// The events that it has not taken: see [`Lag::events`](super::Lag::events).
    pub(crate) lag_events: u64,
    /// Whether events that it had not taken have left the window, which no poll has reported.
    pub(crate) overrun: bool,
    /// Losses that are counted, that one included.
    pub(crate) lagged: u64,
}

/// A subscription, as its registry sees it.
pub(crate) trait Member {
    /// Its slot in the list of subscriptions with limits, if it has any.
    fn limits_slot(&self) -> Option<&HalfStatistic>;
    fn stats_share(&self) -> StatsShare;
    /// Ends it if its lag exceeds a limit. False: it has ended, and needs no further check.
    fn enforce_lag_limit(&self) -> bool;
}

/// See the module.
pub(crate) struct Registry<M> {
    next_id: Statistic,
    open: Mutex<Open<M>>,
    /// The number of subscriptions with a limit, raised before the notifier is called for the first time.
    limits: AtomicUsize,
    limited: Mutex<Limited<M>>,
}

struct Open<M> {
    slots: Slots<M>,
    /// Losses of subscriptions that have left.
    lost_before: u64,
}

struct Limited<M> {
    slots: Slots<M>,
    /// The time of the next check, so that not every pass of the notifier begins one.
    next: Option<Instant>,
    /// The number of pieces that the present check has looked at; 0: no check is under way.
    looked_at: usize,
}

impl<M> Limited<M> {
    const fn new() -> Limited<M> {
        Limited { slots: Slots::new(), next: None, looked_at: 0 }
    }

    /// The subscriptions that the check looks at in this pass; none before the time of the next check.
    fn portion(&mut self, now: Instant) -> Vec<Arc<M>> {
        if self.looked_at == 0 {
            if self.next.is_some_and(|next| now < next) {
                return Vec::new();
            }
            self.next = now.checked_add(LIMITS_EVERY);
        }
        let rest = self.slots.pieces.get(self.looked_at..).unwrap_or_default();
        let portion = &rest[..rest.len().min(PORTION)];
        self.looked_at = if portion.len() < rest.len() { self.looked_at + PORTION } else { 0 };
        portion.iter().flat_map(|piece| piece.iter().flatten()).cloned().collect()
    }
}

impl<M> Default for Registry<M> {
    fn default() -> Registry<M> {
        Registry {
            next_id: Statistic::new(0),
            open: Mutex::new(Open { slots: Slots::new(), lost_before: 0 }),
            limits: AtomicUsize::new(0),
            limited: Mutex::new(Limited::new()),
        }
    }
}

impl<M: Member> Registry<M> {
    /// The number of a new subscription.
    pub(crate) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Relaxed) + 1
    }

    /// Adds a subscription that was opened, and returns its slot.
    pub(crate) fn enter(&self, one: Arc<M>) -> u32 {
        if let Some(slot) = one.limits_slot() {
            slot.store(lock(&self.limited).slots.insert(one.clone()), Relaxed);
            self.limits.fetch_add(1, Relaxed);
        }
        lock(&self.open).slots.insert(one)
    }

    /// Removes a subscription that is being dropped, and keeps the number of its losses.
    pub(crate) fn leave(&self, slot: u32, one: &M, lagged: u64) {
        let limited = one.limits_slot().map(|slot| {
            self.limits.fetch_sub(1, Relaxed);
            lock(&self.limited).slots.remove(slot.load(Relaxed))
        });
        let one = {
            let mut open = lock(&self.open);
            open.lost_before += lagged;
            open.slots.remove(slot)
        };
        drop((limited, one));
    }

    /// The subscriptions that are open now.
    pub(crate) fn all(&self) -> Vec<Arc<M>> {
        lock(&self.open).slots.iter().cloned().collect()
    }

    /// The present statistics of all subscriptions together. O(subscriptions).
    pub(crate) fn totals(&self) -> SubscriptionTotals {
        let (all, lost_before): (Vec<_>, u64) = {
            let open = lock(&self.open);
            (open.slots.iter().cloned().collect(), open.lost_before)
        };
        let mut sum = SubscriptionTotals { lagged: lost_before, ..SubscriptionTotals::default() };
        for one in all {
            let share = one.stats_share();
            sum.overrun += u64::from(share.overrun);
            sum.lagged += share.lagged;
            sum.max_lag_events = sum.max_lag_events.max(share.lag_events);
        }
        sum
    }

    /// Ends subscriptions that exceed their limit, [`PORTION`] pieces in a pass; the time of the next pass. For the
    /// notifier.
    pub(crate) fn enforce_limits(&self, closed: bool) -> Option<Instant> {
        // Partner: the increment in `enter`, before the notifier is called.
        if closed || self.limits.load(Relaxed) == 0 {
            return None;
        }
        let now = Instant::now();
        let (portion, next) = {
            let mut limited = lock(&self.limited);
            let portion = limited.portion(now);
            (portion, if limited.looked_at == 0 { limited.next } else { Some(now) })
        };
        // Outside of the lock: a subscription that is ended is woken, and a waker is foreign code.
        portion.iter().for_each(|one| _ = one.enforce_lag_limit());
        next
    }
}

/// Subscriptions in a piece of [`Slots`].
const PIECE: usize = 64;

type Piece<M> = [Option<Arc<M>>; PIECE];

/// A slot map whose slots are used again: entering or leaving moves no other entry.
struct Slots<M> {
    // Boxed: a growing vector copies one word a piece, whatever the number of subscriptions.
    #[allow(clippy::vec_box)]
    pieces: Vec<Box<Piece<M>>>,
    free: Vec<u32>,
    taken: usize,
}

impl<M> Slots<M> {
    const fn new() -> Slots<M> {
        Slots { pieces: Vec::new(), free: Vec::new(), taken: 0 }
    }

    fn insert(&mut self, one: Arc<M>) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            let first = (self.pieces.len() * PIECE) as u32;
            self.pieces.push(Box::new([const { None }; PIECE]));
            self.free.extend((first + 1..first + PIECE as u32).rev());
            first
        });
        self.pieces[slot as usize / PIECE][slot as usize % PIECE] = Some(one);
        self.taken += 1;
        slot
    }

    fn remove(&mut self, slot: u32) -> Option<Arc<M>> {
        let one = self.pieces.get_mut(slot as usize / PIECE)?[slot as usize % PIECE].take()?;
        self.free.push(slot);
        self.taken -= 1;
        if self.taken == 0 && self.pieces.len() > 1 {
            // The last subscription frees all pieces but the first, which is kept for single subscriptions that come
            // and go.
            self.pieces.truncate(1);
            self.pieces.shrink_to_fit();
            self.free = (0..PIECE as u32).rev().collect();
        }
        Some(one)
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<M>> {
        self.pieces.iter().flat_map(|piece| piece.iter().flatten())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Cache, Change, Start, State};
    use std::collections::HashSet;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Every page of a list asks for both, so they must not wait for subscriptions that are being listed or opened.
    #[test]
    fn size_and_state_ask_no_subscription() {
        let cache = Cache::builder("/").build().unwrap();
        cache.writer().unwrap().apply(1, [Change::put("/a", "1")]).unwrap();
        let subscriptions = lock(&cache.inner.registry.open);
        let (said, answer) = mpsc::channel();
        let asked = cache.clone();
        let thread = std::thread::spawn(move || said.send((asked.objects(), asked.state())).unwrap());
        let answer = answer.recv_timeout(Duration::from_secs(10));
        drop(subscriptions);
        thread.join().unwrap();
        assert_eq!(answer, Ok((1, State::Ready)));
    }

    /// A check of many comes in passes, and begins again when it is time.
    #[test]
    fn limits_are_looked_at_in_portions() {
        let cache = Cache::builder("/").build().unwrap();
        let _subscription = cache.subscribe(Start::Now).open().unwrap();
        let one = cache.inner.registry.all().remove(0);
        let mut limited = Limited::new();
        let (count, now) = (2 * PORTION * PIECE + 1, Instant::now());
        (0..count).for_each(|_| _ = limited.slots.insert(one.clone()));
        for now in [now, now + LIMITS_EVERY] {
            let portions: Vec<usize> = (0..4).map(|_| limited.portion(now).len()).collect();
            assert_eq!(portions, [PORTION * PIECE, PORTION * PIECE, 1, 0]);
        }
    }

    #[test]
    fn places_are_given_once_and_their_memory_goes() {
        let cache = Cache::builder("/").build().unwrap();
        let _subscription = cache.subscribe(Start::Now).open().unwrap();
        let one = cache.inner.registry.all().remove(0);
        let mut slots = Slots::new();
        for count in [1, 2, PIECE, PIECE + 1, 10 * PIECE, 1] {
            let places: HashSet<u32> = (0..count).map(|_| slots.insert(one.clone())).collect();
            assert_eq!((places.len(), slots.iter().count()), (count, count));
            assert!(places.into_iter().all(|place| slots.remove(place).is_some()));
            assert!(slots.remove(0).is_none() && slots.iter().next().is_none());
            assert_eq!((slots.pieces.len(), slots.free.len()), (1, PIECE), "after {count}");
        }
    }
}
