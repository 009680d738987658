//! The hubs of a cache: the words by which its writer, its consumers and the notifiers reach each other.
//!
//! A [`Hub`] belongs to one notifier. The writer looks at its count of waiters and wakes the notifier, once until
//! that has passed; a consumer counts itself there and leaves messages in its inbox; the notifier takes them,
//! passes over its tables and says how far it has come. Nothing here waits, and no lock is taken but that of the
//! filter groups, when a subscription is opened or dropped.

#![forbid(unsafe_code)]

use super::group::{FilterGroup, FilterGroups};
use super::interest::Interest;
use super::seat::SeatRef;
use super::tables::Tables;
use super::{FilterCode, Watched, notifier};
use crate::log::buckets::{Bucket, Router};
use crate::sync::{
    AcqRel, Acquire, AtomicBool, AtomicU64, AtomicUsize, Inbox, Mutex, Relaxed, Release, SeqCst, fence, lock, ord,
};
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Statistic;
use std::time::Instant;

/// Messages after which the notifier is woken to read them, though nobody publishes.
const UNREAD: u64 = 256;

/// What a consumer says to the notifier.
pub(super) enum Message {
    /// The seat waits for this from now on, whenever it is parked.
    Join(SeatRef, Interest),
    /// The seat is no more.
    Leave(u64),
    /// The seat has a time at which it is due.
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
        self.own.notify_if(self.own.has_waiters(), cache);
        self.foreign.notify_if(self.foreign.has_waiters(), cache);
    }

    /// As [`Hubs::published`], after events: a reader that waits for one bucket is counted there. With a
    /// predicate it waits for no bucket.
    #[inline]
    pub(crate) fn published_events<W: Watched + 'static>(&self, cache: &Arc<W>, router: &Router) {
        fence(ord!(PublishFence, SeqCst));
        // Partner: for buckets, `Bucket::add_waiter`.
        self.own.notify_if(self.own.has_waiters() || router.has_waiters(), cache);
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
        self.own.asleep.load(Relaxed) + self.foreign.asleep.load(Relaxed)
    }

    /// How often a notifier was itself lapped while a consumer slept.
    pub(crate) fn lapped(&self) -> u64 {
        self.own.lapped.load(Relaxed) + self.foreign.lapped.load(Relaxed)
    }
}

/// The sleepers of one cache that one notifier wakes, as everybody reaches them.
pub(crate) struct Hub {
    code: FilterCode,
    /// Parked seats for which every revision is looked at. Each adds and removes itself.
    waiting: AtomicUsize,
    /// Whether the notifier is on its way.
    pending: AtomicBool,
    inbox: Inbox<Message>,
    /// Messages posted so far.
    posted: Statistic,
    /// Everything below was looked at for all who sleep.
    scanned_to: AtomicU64,
    /// The highest revision that somebody waits for.
    wanted: AtomicU64,
    /// The notifier's alone: nobody else ever takes it.
    tables: Mutex<Tables>,
    pub(crate) groups: FilterGroups,
    /// Seats that are parked, and passes that were lapped: statistics.
    asleep: Statistic,
    lapped: Statistic,
}

impl Hub {
    fn new(code: FilterCode) -> Hub {
        Hub {
            code,
            waiting: AtomicUsize::new(0),
            pending: AtomicBool::new(false),
            inbox: Inbox::new(),
            posted: Statistic::new(0),
            scanned_to: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            tables: Mutex::new(Tables::default()),
            groups: FilterGroups::default(),
            asleep: Statistic::new(0),
            lapped: Statistic::new(0),
        }
    }
}

impl Hub {
    // ---- The writer's half ----------------------------------------------------------------------------

    /// Behind the fence. Partner: [`Hub::add_waiter`], PARKED, fence, look in `Registration::park`.
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

    /// Wakes the notifier for this cache, once until it has looked.
    #[cold]
    pub(crate) fn notify<W: Watched + 'static>(&self, cache: &Arc<W>) {
        if !self.pending.swap(true, AcqRel) {
            notifier::push(self.code, cache.clone());
        }
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
    /// before it parks; the notifier itself, for those who wait for any move.
    pub(super) fn add_waiter(&self, group: Option<&FilterGroup>) {
        if let Some(group) = group {
            group.add_parked();
        }
        self.waiting.fetch_add(1, Relaxed);
    }

    pub(super) fn remove_waiter(&self, group: Option<&FilterGroup>) {
        if let Some(group) = group {
            group.remove_parked();
        }
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// Moves the count of a seat that is claimed from the scanners to a bucket: added there before it is removed
    /// here.
    pub(super) fn move_to_bucket(&self, group: &FilterGroup, bucket: &Bucket) {
        bucket.add_waiter();
        self.remove_waiter(Some(group));
    }

    /// Counts a sleeper of any kind: statistics.
    pub(super) fn fell_asleep(&self) {
        self.asleep.fetch_add(1, Relaxed);
    }

    pub(super) fn awoke(&self) {
        self.asleep.fetch_sub(1, Relaxed);
    }

    /// Everything below was looked at for all who sleep. Acquire: partner of the store in [`Hub::pass`].
    pub(super) fn scanned_to(&self) -> u64 {
        self.scanned_to.load(Acquire)
    }

    // ---- The notifier's half --------------------------------------------------------------------------

    /// One pass of the notifier; returns when it wants to pass again.
    pub(super) fn pass(&self, cache: &dyn Watched) -> Option<Instant> {
        let mut tables = lock(&self.tables);
        let mut again;
        loop {
            // The swap comes before the look. Partner: the swap in `notify`.
            self.pending.swap(false, ord!(NotifierPending, AcqRel));
            let now = cache.frontier();
            // Partner: PARKED, fence, look in `Registration::park`: who is not seen parked now looks
            // later than this, and does not sleep below `now.head`.
            fence(ord!(NotifierFence, SeqCst));
            let messages = self.inbox.take_all();
            again = tables.pass(self, cache, &now, messages);
            if !now.closed {
                // Release: partner of the load in `scanned_to`.
                self.scanned_to.store(now.head, Release);
            }
            if !tables.takes_another_look() {
                break;
            }
        }
        let (woken, garbage) = tables.finish();
        drop(tables);
        woken.into_iter().for_each(super::waker::WakeUp::call);
        crate::foreign::drop_guarded(garbage, "a filter that nobody has any more");
        let limits = if self.code == FilterCode::Own { cache.enforce_lag_limits() } else { None };
        again.into_iter().chain(limits).min()
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
