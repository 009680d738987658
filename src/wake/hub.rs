//! The hubs of a cache: the words by which its writer, its consumers and the notifiers reach each other.
//!
//! A [`Hub`] belongs to one notifier. The writer looks at its count of waiters and calls; a consumer counts itself
//! there and leaves messages in its inbox; the notifier takes them, passes over its tables and stores how far it has
//! come. The writer takes the turn and does the pass itself where little is to be done. No function here waits. The
//! locks are that of the filter groups, taken when a subscription is opened or dropped, and that of the tables, taken
//! by the thread that holds the turn.

#![forbid(unsafe_code)]

use super::burst::Burst;
use super::group::{FilterGroup, FilterGroups};
use super::interest::Interest;
use super::seat::{Seat, SeatPlace, SeatRef};
use super::steps::{FILTERS, Steps};
use super::tables::{FewWakeUps, LeftOutside, LookedTo, Tables};
use super::turn::Turn;
use super::waker::WakeUp;
use super::{FilterCode, Watched, notifier};
use crate::foreign;
use crate::log::buckets::{Bucket, Router};
use crate::sync::{
    AcqRel, Acquire, AtomicBool, AtomicU64, AtomicUsize, Inbox, Mutex, Relaxed, Release, SeqCst, fence, lock, ord,
};
use crossbeam_utils::CachePadded;
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Statistic;
use std::time::Instant;

/// The notifier is called after this many messages, though nobody publishes, so that they do not pile up.
const UNREAD: u64 = 256;

/// A pass ends after this many looks though another is wanted, to call the wakers it has collected and serve other caches.
const LOOKS: usize = 4;

/// A message from a consumer to the notifier.
pub(super) enum Message {
    /// The seat waits for this interest from now on, whenever it is parked. The number is that of the announcement.
    Join(SeatRef, Interest, u32),
    /// The consumer is dropped: the seat leaves the tables.
    Leave(SeatRef),
    /// The seat is listed for an earlier time than before.
    Time(SeatRef),
}

/// The two hubs of one cache. A sleeper's filter decides which of them it is in; it never changes.
pub(crate) struct Hubs {
    own: Hub,
    foreign: Hub,
}

impl Default for Hubs {
    fn default() -> Hubs {
        Hubs { own: Hub::new(FilterCode::Own), foreign: Hub::new(FilterCode::Foreign) }
    }
}

impl Hubs {
    pub(crate) fn of(&self, code: FilterCode) -> &Hub {
        match code {
            FilterCode::Own => &self.own,
            FilterCode::Foreign => &self.foreign,
        }
    }

    /// Called after the writer's stores. While nobody waits it costs a fence and two loads.
    #[inline]
    pub(crate) fn published<W: Watched + 'static>(&self, cache: &Arc<W>) {
        fence(ord!(PublishFence, SeqCst));
        self.own.look_if(self.own.has_waiters(), cache);
        self.foreign.notify_if(self.foreign.has_waiters(), cache);
    }

    /// Like [`Hubs::published`], after events: a reader that sleeps at a bucket is counted at the bucket. A reader with
    /// a predicate never sleeps at one.
    #[inline(always)]
    pub(crate) fn published_events<W: Watched + 'static>(&self, cache: &Arc<W>, router: &Router) {
        fence(ord!(PublishFence, SeqCst));
        // Partner: for buckets, `Bucket::add_waiter`.
        self.own.look_if(self.own.has_waiters() || router.has_waiters(), cache);
        self.foreign.notify_if(self.foreign.has_waiters(), cache);
    }

    /// Calls the notifiers for a change that concerns all sleepers, also those at buckets.
    pub(crate) fn notify<W: Watched + 'static>(&self, cache: &Arc<W>) {
        self.own.notify(cache);
        fence(SeqCst);
        self.foreign.notify_if(self.foreign.has_waiters(), cache);
    }

    /// The highest revision that a sleeper waits for, 0 for none.
    pub(crate) fn highest_revision_wanted(&self) -> u64 {
        self.own.highest_revision_wanted().max(self.foreign.highest_revision_wanted())
    }

    /// Seats that are parked now.
    pub(crate) fn waiting(&self) -> u64 {
        self.own.asleep() + self.foreign.asleep()
    }

    /// Events below `head` that a notifier has still to look at for a sleeper, where it cannot keep up.
    pub(crate) fn behind(&self, head: u64) -> u64 {
        self.own.behind(head).max(self.foreign.behind(head))
    }

    /// How often events left the window before a notifier had looked at them for a sleeping consumer.
    pub(crate) fn lapped(&self) -> u64 {
        self.own.lapped.load(Relaxed) + self.foreign.lapped.load(Relaxed)
    }
}

/// The sleepers of one cache that one notifier wakes: the part that all threads reach.
pub(crate) struct Hub {
    code: FilterCode,
    /// Parked seats for which every revision is looked at. Each adds itself; its consumer, or the thread that wakes it,
    /// subtracts it. On its own cache line: the writer loads it with each revision, and others store to the fields
    /// beside it.
    waiting: CachePadded<AtomicUsize>,
    turn: Turn,
    burst: Burst,
    inbox: Inbox<Message>,
    /// Messages posted so far.
    posted: Statistic,
    /// All events below were looked at: for sleepers in filter groups; for those at buckets without a filter; for those at
    /// buckets that ask a filter about each event.
    scanned_to: AtomicU64,
    followed_to: AtomicU64,
    filtered_to: AtomicU64,
    /// The highest revision that a consumer waits for.
    wanted: AtomicU64,
    /// Locked only by the thread that holds the turn, so no thread ever waits for the lock.
    tables: Mutex<Tables>,
    pub(crate) groups: FilterGroups,
    /// Seats that are parked at buckets, whether the notifier counts itself in `waiting`, and passes that were lapped:
    /// statistics.
    at_buckets: Statistic,
    awaits_a_move: Statistic,
    lapped: Statistic,
    /// Whether the last pass has left work for the next one: a statistic.
    is_behind: AtomicBool,
    /// Whether the notifier has the cache in its queue for that work. Only its thread uses this.
    is_queued: AtomicBool,
}

/// Why the notifier passes over a hub.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Visit {
    /// The hub was called, or a due time has come.
    Called,
    /// The last pass has left work, and the hub has come to the front of the queue.
    Queued,
    /// The last pass panicked and is tried once more.
    #[cfg_attr(loom, allow(dead_code, reason = "no pass of a model panics"))]
    Retried,
}

/// How a pass has ended.
pub(super) struct PassEnd {
    /// The time of the next pass, if nobody calls before.
    #[cfg_attr(loom, allow(dead_code, reason = "models have no clock"))]
    pub(super) again: Option<Instant>,
    /// Whether the pass has left work: the notifier comes again after it has served other caches.
    pub(super) is_behind: bool,
}

impl Hub {
    fn new(code: FilterCode) -> Hub {
        Hub {
            code,
            waiting: CachePadded::new(AtomicUsize::new(0)),
            turn: Turn::new(),
            burst: Burst::default(),
            inbox: Inbox::new(),
            posted: Statistic::new(0),
            scanned_to: AtomicU64::new(0),
            followed_to: AtomicU64::new(0),
            filtered_to: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            tables: Mutex::new(Tables::default()),
            groups: FilterGroups::default(),
            at_buckets: Statistic::new(0),
            awaits_a_move: Statistic::new(0),
            lapped: Statistic::new(0),
            is_behind: AtomicBool::new(false),
            is_queued: AtomicBool::new(false),
        }
    }
}

impl Hub {
    // ---- The writer's half ----------------------------------------------------------------------------

    /// Called after the writer's fence. Partner: [`Hub::add_waiter`], PARKED, fence, look in `Sleeper::park`.
    #[inline]
    fn has_waiters(&self) -> bool {
        self.waiting.load(Relaxed) != 0
    }

    #[inline]
    fn notify_if<W: Watched + 'static>(&self, needed: bool, cache: &Arc<W>) {
        if needed {
            self.notify(cache);
        }
    }

    /// Calls the notifier for this cache, once until it has looked. A publisher's own pass does not answer this call.
    #[cold]
    pub(crate) fn notify<W: Watched + 'static>(&self, cache: &Arc<W>) {
        if self.turn.call_for_all() {
            notifier::push(self.code, cache.clone());
        }
    }

    #[inline]
    fn look_if<W: Watched + 'static>(&self, needed: bool, cache: &Arc<W>) {
        if needed && self.turn.call() {
            self.look_or_push(cache);
        }
    }

    /// Answers a call that no other thread will: the writer does the pass if little is to be done, else the notifier.
    fn look_or_push<W: Watched + 'static>(&self, cache: &Arc<W>) {
        if self.burst.called(cache.frontier().head) {
            return notifier::push(self.code, cache.clone());
        }
        let Some(turn) = self.turn.take(|| notifier::push(self.code, cache.clone())) else {
            // The holder took the turn after the call, or will hand the call on when it gives the turn back.
            return;
        };
        // A panic here is a bug of the library. It must not reach the writer's thread, whose revision is published already.
        let woken = foreign::guard(|| {
            turn.answer_events();
            self.look_at_few(&**cache)
        });
        let (woken, all) = woken.flatten().unwrap_or_default();
        if !all {
            turn.call_again();
        }
        drop(turn);
        woken.into_iter().flatten().for_each(WakeUp::call);
    }

    /// Returns the wake-ups to call, and whether these were all. `None`: nothing was done.
    fn look_at_few(&self, cache: &dyn Watched) -> Option<(FewWakeUps, bool)> {
        // After the fence of `published`, like `has_waiters`. Partner: `Sleeper::park`, which posts its message before
        // its own fence: a consumer whose message is not seen here sees the new head and does not sleep.
        if !self.inbox.is_empty() {
            return None;
        }
        let now = cache.frontier();
        let mut tables = lock(&self.tables);
        let woken = tables.look_at_few(self, cache, &now)?;
        self.store_looked_to(tables.looked_to());
        Some((woken, !tables.has_woken()))
    }

    // ---- Everybody ------------------------------------------------------------------------------------

    /// The highest revision that a consumer waits for, 0 for none. One load.
    pub(crate) fn highest_revision_wanted(&self) -> u64 {
        self.wanted.load(Acquire)
    }

    pub(super) fn post<W: Watched + 'static>(&self, cache: &Arc<W>, message: Message) {
        self.inbox.push(message);
        // Consumers that come and go while nobody publishes post messages: this bounds how many stay unread.
        if self.posted.fetch_add(1, Relaxed) % UNREAD == UNREAD - 1 {
            self.notify(cache);
        }
    }

    /// Counts a sleeper for whom every revision is looked at, here and in its filter group. A consumer calls this
    /// before it parks.
    pub(super) fn add_waiter(&self, group: Option<&FilterGroup>) {
        if let Some(group) = group {
            group.add_parked();
        }
        self.waiting.fetch_add(1, Relaxed);
    }

    /// Subtracts `count` sleepers of one group.
    pub(super) fn remove_waiters(&self, count: usize, group: Option<&FilterGroup>) {
        if let Some(group) = group {
            group.remove_parked(count);
        }
        self.waiting.fetch_sub(count, Relaxed);
    }

    /// Counts a sleeper at a bucket, before it parks.
    pub(super) fn add_waiter_at(&self, bucket: &Bucket) {
        bucket.add_waiter();
        self.at_buckets.fetch_add(1, Relaxed);
    }

    pub(super) fn remove_waiter_at(&self, bucket: &Bucket) {
        bucket.remove_waiter();
        self.at_buckets.fetch_sub(1, Relaxed);
    }

    /// Adds or removes the notifier's own count, which stands for the bookmarks that wait until the position moves.
    pub(super) fn await_a_move(&self, awaits: bool) {
        self.awaits_a_move.store(awaits.into(), Relaxed);
        if awaits { self.add_waiter(None) } else { self.remove_waiters(1, None) }
    }

    /// Moves the count of a seat that is claimed from the scanners to a bucket: added there before it is removed
    /// here.
    pub(super) fn move_to_bucket(&self, group: &FilterGroup, bucket: &Bucket) {
        self.add_waiter_at(bucket);
        self.remove_waiters(1, Some(group));
    }

    /// Yields the processor of a consumer that has taken everything and would be the first to sleep in a burst: see
    /// [`Burst`]. True: it has yielded, and looks for events again.
    #[inline]
    pub(crate) fn yields(&self) -> bool {
        let yields = cfg!(not(loom)) && self.burst.is_on() && self.asleep() == 0;
        if yields {
            std::thread::yield_now();
        }
        yields
    }

    /// The number of sleepers of any kind: statistics.
    fn asleep(&self) -> u64 {
        let waiting = self.waiting.load(Relaxed) as u64 + self.at_buckets.load(Relaxed);
        waiting.saturating_sub(self.awaits_a_move.load(Relaxed))
    }

    /// All events below were looked at for every sleeper in a filter group. Acquire: partner of the store in
    /// [`Hub::store_looked_to`].
    pub(super) fn scanned_to(&self) -> u64 {
        self.scanned_to.load(Acquire)
    }

    /// All events below were looked at for every sleeper at a bucket; `asks`: for those that ask a filter about each event.
    pub(super) fn followed_to(&self, asks: bool) -> u64 {
        if asks { self.filtered_to.load(Acquire) } else { self.followed_to.load(Acquire) }
    }

    /// All events below were looked at for this parked seat: for statistics of a subscription.
    pub(crate) fn looked_to(&self, seat: &Seat) -> u64 {
        match seat.place() {
            SeatPlace::AtBucket(..) => self.followed_to(false),
            SeatPlace::AtFiltered(..) => self.followed_to(true),
            _ => self.scanned_to(),
        }
    }

    /// Events that the notifier has still to look at for a sleeper, where its last pass has left work.
    fn behind(&self, head: u64) -> u64 {
        let looked_to = self.scanned_to().min(self.followed_to(false)).min(self.followed_to(true));
        if self.is_behind.load(Relaxed) { head.saturating_sub(looked_to) } else { 0 }
    }

    // ---- The notifier's half --------------------------------------------------------------------------

    /// Does one pass of the notifier, bounded by [`steps`](super::steps).
    pub(super) fn pass(&self, cache: &Arc<dyn Watched>, visit: Visit) -> PassEnd {
        if cfg!(not(loom)) && visit == Visit::Called && self.burst.is_on() {
            std::thread::yield_now();
        }
        // A publisher holds the turn: it looks at its events, and hands this pass's call on when it gives the turn back.
        let Some(turn) = self.turn.take_or_call(|| notifier::push(self.code, cache.clone())) else {
            return PassEnd { again: None, is_behind: false };
        };
        let cache = &**cache;
        let mut tables = lock(&self.tables);
        let mut again = None;
        // A queued hub evaluates filters only at the front of the queue, so that a call does not overtake other hubs.
        let waits = visit == Visit::Called && self.is_queued.load(Relaxed);
        let mut filters = if waits { Steps::none() } else { Steps::new(FILTERS) };
        for looks in 1..=LOOKS {
            turn.answer();
            let now = cache.frontier();
            // Partner: PARKED, fence, look in `Sleeper::park`: a consumer that is not seen parked now loads the head
            // after this, and does not sleep below `now.head`.
            fence(ord!(NotifierFence, SeqCst));
            let messages = self.inbox.take_all();
            again = tables.pass(self, cache, &now, messages, &mut filters);
            if !now.closed {
                self.store_looked_to(tables.looked_to());
            }
            if !tables.takes_another_look() {
                break;
            }
            if looks == LOOKS {
                turn.call_again();
            }
        }
        let is_behind = tables.is_behind();
        self.is_behind.store(is_behind, Relaxed);
        let LeftOutside { woken, wakes_source, garbage } = tables.finish();
        drop(tables);
        drop(turn);
        // Called outside the turn: a waker that does not return holds up only the wake-ups of this thread.
        WakeUp::call_all(woken);
        if wakes_source {
            cache.wake_source();
        }
        foreign::drop_guarded(garbage, "a filter that nobody has any more");
        let limits = if self.code == FilterCode::Own { cache.enforce_lag_limits() } else { None };
        PassEnd { again: again.into_iter().chain(limits).min(), is_behind }
    }

    /// Whether every message is read and no pass has left work.
    #[cfg(all(test, not(loom)))]
    pub(super) fn is_done(&self) -> bool {
        self.inbox.is_empty() && !lock(&self.tables).is_behind()
    }

    /// Stores for sleepers how far events were looked at for them.
    fn store_looked_to(&self, looked_to: LookedTo) {
        // Release: partner of the loads in `scanned_to` and `followed_to`.
        self.scanned_to.store(looked_to.scanned, Release);
        self.followed_to.store(looked_to.followed, Release);
        self.filtered_to.store(looked_to.filtered, Release);
    }

    /// Records whether the notifier has the cache in its queue. True: it had it there before.
    #[cfg(not(loom))]
    pub(super) fn queue(&self, is_queued: bool) -> bool {
        self.is_queued.swap(is_queued, Relaxed)
    }

    pub(super) fn count_lap(&self) {
        self.lapped.fetch_add(1, Relaxed);
    }

    /// Records that a consumer waits for this revision. True: nobody waited for one as high.
    pub(super) fn want(&self, revision: u64) -> bool {
        self.wanted.fetch_max(revision, AcqRel) < revision
    }

    /// Lowers `wanted` to `highest`, the highest revision that a seat of the tables waits for. A consumer that comes
    /// meanwhile has posted its message before it raised `wanted`; the caller reads the inbox again after this.
    pub(super) fn want_at_most(&self, highest: u64) -> bool {
        let wanted = self.wanted.load(Acquire);
        wanted > highest && self.wanted.compare_exchange(wanted, highest, AcqRel, Relaxed).is_ok()
    }
}
