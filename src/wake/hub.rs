//! The hubs of a cache: the words by which its writer, its consumers and the notifiers reach each other.
//!
//! A [`Hub`] belongs to one notifier. The writer looks at its count of waiters and calls; a consumer counts itself
//! there and leaves messages in its inbox; the notifier takes them, passes over its tables and says how far it has
//! come. Where little is to be done the writer takes the turn and does it itself. Nothing here waits, and no lock is
//! taken but that of the filter groups, when a subscription is opened or dropped, and that of the tables, by who has
//! the turn.

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

/// Messages after which the notifier is woken to read them, though nobody publishes.
const UNREAD: u64 = 256;

/// Looks after which a pass ends, though another one is wanted: those whom it has woken are called, and others served.
const LOOKS: usize = 4;

/// What a consumer says to the notifier.
pub(super) enum Message {
    /// The seat waits for this from now on, whenever it is parked: announced under this number.
    Join(SeatRef, Interest, u32),
    /// The seat is no more.
    Leave(SeatRef),
    /// The seat is listed for an earlier time than before.
    Time(SeatRef),
}

/// The hubs of one cache: which one a sleeper is in follows from its filter, once and for all.
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

    /// After the writer's stores: a fence and two loads while nobody waits.
    #[inline]
    pub(crate) fn published<W: Watched + 'static>(&self, cache: &Arc<W>) {
        fence(ord!(PublishFence, SeqCst));
        self.own.look_if(self.own.has_waiters(), cache);
        self.foreign.notify_if(self.foreign.has_waiters(), cache);
    }

    /// As [`Hubs::published`], after events: a reader that waits for one bucket is counted there. With a
    /// predicate it waits for no bucket.
    #[inline(always)]
    pub(crate) fn published_events<W: Watched + 'static>(&self, cache: &Arc<W>, router: &Router) {
        fence(ord!(PublishFence, SeqCst));
        // Partner: for buckets, `Bucket::add_waiter`.
        self.own.look_if(self.own.has_waiters() || router.has_waiters(), cache);
        self.foreign.notify_if(self.foreign.has_waiters(), cache);
    }

    /// Something changed that concerns all sleepers, those at buckets, too.
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

    /// Events below `head` that a notifier has still to look at for somebody who sleeps, where it cannot keep up.
    pub(crate) fn behind(&self, head: u64) -> u64 {
        self.own.behind(head).max(self.foreign.behind(head))
    }

    /// How often a notifier was itself lapped while a consumer slept.
    pub(crate) fn lapped(&self) -> u64 {
        self.own.lapped.load(Relaxed) + self.foreign.lapped.load(Relaxed)
    }
}

/// The sleepers of one cache that one notifier wakes, as everybody reaches them.
pub(crate) struct Hub {
    code: FilterCode,
    /// Parked seats for which every revision is looked at. Each adds itself; it, or who wakes it, takes it off. A line of its
    /// own: the writer looks at it with each revision, and others store at what stands beside it.
    waiting: CachePadded<AtomicUsize>,
    turn: Turn,
    burst: Burst,
    inbox: Inbox<Message>,
    /// Messages posted so far.
    posted: Statistic,
    /// Everything below was looked at for all who sleep among the scanners; at buckets; at buckets, and ask a filter about
    /// each event.
    scanned_to: AtomicU64,
    followed_to: AtomicU64,
    filtered_to: AtomicU64,
    /// The highest revision that somebody waits for.
    wanted: AtomicU64,
    /// Of who has the turn: nobody ever waits for it.
    tables: Mutex<Tables>,
    pub(crate) groups: FilterGroups,
    /// Seats that are parked at buckets, whether the notifier counts itself in `waiting`, and passes that were lapped:
    /// statistics.
    at_buckets: Statistic,
    awaits_a_move: Statistic,
    lapped: Statistic,
    /// The last pass has left something behind: a statistic.
    is_behind: AtomicBool,
    /// The notifier comes again for that. Of its thread alone.
    is_queued: AtomicBool,
}

/// Why the notifier passes over a hub.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Visit {
    /// It was called, or a time has come.
    Called,
    /// The last pass has left something behind, and it is the hub's turn.
    Queued,
    /// The same, because it panicked.
    #[cfg_attr(loom, allow(dead_code, reason = "no pass of a model panics"))]
    Retried,
}

/// How a pass has ended.
pub(super) struct PassEnd {
    /// When to pass again, if nobody calls.
    #[cfg_attr(loom, allow(dead_code, reason = "models have no clock"))]
    pub(super) again: Option<Instant>,
    /// It has left something behind: the notifier comes again, when it has served others.
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

    /// Behind the fence. Partner: [`Hub::add_waiter`], PARKED, fence, look in `Sleeper::park`.
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

    /// Calls the notifier for this cache, once until it has looked: no publisher's look answers it.
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

    /// After a call that nobody else sees to: the writer looks itself where little is to be done, else the notifier.
    fn look_or_push<W: Watched + 'static>(&self, cache: &Arc<W>) {
        if self.burst.called(cache.frontier().head) {
            return notifier::push(self.code, cache.clone());
        }
        let Some(turn) = self.turn.take(|| notifier::push(self.code, cache.clone())) else {
            // Who holds it has taken it behind the call.
            return;
        };
        // A panic here is a fault of ours. It is the writer's thread: what it publishes stands already.
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

    /// Who was woken, and whether that was everything. `None`: nothing was done.
    fn look_at_few(&self, cache: &dyn Watched) -> Option<(FewWakeUps, bool)> {
        // Behind the fence of `published`, as `has_waiters`. Partner: `Sleeper::park`, which has left its message
        // before its own fence: who comes now sees the new head, and sees to itself.
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

    /// The highest revision that somebody waits for, 0 for none. One load.
    pub(crate) fn highest_revision_wanted(&self) -> u64 {
        self.wanted.load(Acquire)
    }

    pub(super) fn post<W: Watched + 'static>(&self, cache: &Arc<W>, message: Message) {
        self.inbox.push(message);
        // Who comes and goes while nobody publishes leaves messages behind: they are read in time.
        if self.posted.fetch_add(1, Relaxed) % UNREAD == UNREAD - 1 {
            self.notify(cache);
        }
    }

    /// Counts a sleeper for whom every revision is looked at, and in the group that is scanned for it: a consumer
    /// before it parks.
    pub(super) fn add_waiter(&self, group: Option<&FilterGroup>) {
        if let Some(group) = group {
            group.add_parked();
        }
        self.waiting.fetch_add(1, Relaxed);
    }

    /// Takes so many off that sleep no more, of one group.
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

    /// The notifier counts itself, for those who wait for any move, or does not any more.
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

    /// A consumer that has taken everything, and would be the first to sleep, yields its processor in a burst: see
    /// [`Burst`]. True: it has, and looks again.
    #[inline]
    pub(crate) fn yields(&self) -> bool {
        let yields = cfg!(not(loom)) && self.burst.is_on() && self.asleep() == 0;
        if yields {
            std::thread::yield_now();
        }
        yields
    }

    /// Sleepers of any kind: statistics.
    fn asleep(&self) -> u64 {
        let waiting = self.waiting.load(Relaxed) as u64 + self.at_buckets.load(Relaxed);
        waiting.saturating_sub(self.awaits_a_move.load(Relaxed))
    }

    /// Everything below was looked at for all who sleep among the scanners. Acquire: partner of the store in
    /// [`Hub::store_looked_to`].
    pub(super) fn scanned_to(&self) -> u64 {
        self.scanned_to.load(Acquire)
    }

    /// The same for those at buckets, which ask a filter about each event or none.
    pub(super) fn followed_to(&self, asks: bool) -> u64 {
        if asks { self.filtered_to.load(Acquire) } else { self.followed_to.load(Acquire) }
    }

    /// How far a seat that is parked was looked at: for who sees it from outside.
    pub(crate) fn looked_to(&self, seat: &Seat) -> u64 {
        match seat.place() {
            SeatPlace::AtBucket(..) => self.followed_to(false),
            SeatPlace::AtFiltered(..) => self.followed_to(true),
            _ => self.scanned_to(),
        }
    }

    /// Events that the notifier has still to look at for somebody who sleeps, while it goes on with what it has left
    /// behind.
    fn behind(&self, head: u64) -> u64 {
        let looked_to = self.scanned_to().min(self.followed_to(false)).min(self.followed_to(true));
        if self.is_behind.load(Relaxed) { head.saturating_sub(looked_to) } else { 0 }
    }

    // ---- The notifier's half --------------------------------------------------------------------------

    /// One pass of the notifier. It does so much and no more: see [`steps`](super::steps).
    pub(super) fn pass(&self, cache: &Arc<dyn Watched>, visit: Visit) -> PassEnd {
        if cfg!(not(loom)) && visit == Visit::Called && self.burst.is_on() {
            std::thread::yield_now();
        }
        // Held: the publisher looks at its events, and hands what this pass is for on.
        let Some(turn) = self.turn.take_or_call(|| notifier::push(self.code, cache.clone())) else {
            return PassEnd { again: None, is_behind: false };
        };
        let cache = &**cache;
        let mut tables = lock(&self.tables);
        let mut again = None;
        // Where the hub waits for its turn, nobody goes before it with filters: not the hub itself either.
        let waits = visit == Visit::Called && self.is_queued.load(Relaxed);
        let mut filters = if waits { Steps::none() } else { Steps::new(FILTERS) };
        for looks in 1..=LOOKS {
            turn.answer();
            let now = cache.frontier();
            // Partner: PARKED, fence, look in `Sleeper::park`: who is not seen parked now looks
            // later than this, and does not sleep below `now.head`.
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
        // A waker that does not return holds up those whom this thread wakes, and no others.
        WakeUp::call_all(woken);
        if wakes_source {
            cache.wake_source();
        }
        foreign::drop_guarded(garbage, "a filter that nobody has any more");
        let limits = if self.code == FilterCode::Own { cache.enforce_lag_limits() } else { None };
        PassEnd { again: again.into_iter().chain(limits).min(), is_behind }
    }

    /// Whether every message is read and no pass has left something behind.
    #[cfg(all(test, not(loom)))]
    pub(super) fn is_done(&self) -> bool {
        self.inbox.is_empty() && !lock(&self.tables).is_behind()
    }

    /// Says to sleepers how far they have been looked at.
    fn store_looked_to(&self, looked_to: LookedTo) {
        // Release: partner of the loads in `scanned_to` and `followed_to`.
        self.scanned_to.store(looked_to.scanned, Release);
        self.followed_to.store(looked_to.followed, Release);
        self.filtered_to.store(looked_to.filtered, Release);
    }

    /// The notifier has it in its queue from now on, or no more. True: it had.
    #[cfg(not(loom))]
    pub(super) fn queue(&self, is_queued: bool) -> bool {
        self.is_queued.swap(is_queued, Relaxed)
    }

    pub(super) fn count_lap(&self) {
        self.lapped.fetch_add(1, Relaxed);
    }

    /// Somebody waits for this revision. True: nobody waited for one as high.
    pub(super) fn want(&self, revision: u64) -> bool {
        self.wanted.fetch_max(revision, AcqRel) < revision
    }

    /// No seat of the tables waits for a revision above `highest`. A consumer that comes meanwhile has
    /// left a message before he wanted it: the inbox is read again after this.
    pub(super) fn want_at_most(&self, highest: u64) -> bool {
        let wanted = self.wanted.load(Acquire);
        wanted > highest && self.wanted.compare_exchange(wanted, highest, AcqRel, Relaxed).is_ok()
    }
}
