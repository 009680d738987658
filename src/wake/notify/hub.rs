//! The hubs of a cache: where its writer publishes, and the passes over the waiters of one notifier.
//!
//! The writer loads the count of waiters and calls. The notifier locks the pass lock, passes over the tables, and stores how
//! far it has come. The writer does the pass itself where little is to be done. No function here waits. The locks are that
//! of the filter groups, taken when a subscription is opened or dropped, and that of the tables, taken by the thread that
//! holds the pass lock.

#![forbid(unsafe_code)]

use super::burst::Burst;
use super::notifier::{self, PassEnd, Visit, Visited};
use super::pass_lock::PassLock;
use crate::foreign;
use crate::log::buckets::Router;
use crate::sync::{AtomicBool, Mutex, Relaxed, SeqCst, fence, lock, ord};
use crate::wake::sleep::group::{FilterCode, FilterGroups};
use crate::wake::sleep::waiters::Waiters;
use crate::wake::sleep::waker::WakeUp;
use crate::wake::tables::short_pass::ShortPassWakeUps;
use crate::wake::tables::steps::{FILTERS, Steps};
use crate::wake::tables::view::Searched;
use crate::wake::tables::{AfterRelease, Tables};
use std::mem::take;
use std::sync::Arc;
use std::time::Instant;

/// A pass ends after this many looks though another is wanted, to call the wakers it has collected and serve other caches.
const LOOKS: usize = 4;

/// The cache that owns two hubs.
pub(crate) trait HubOwner: Searched {
    fn hubs(&self) -> &Hubs;
    /// Closes the subscriptions that are too far behind, and returns the time of the next check.
    fn enforce_lag_limits(&self) -> Option<Instant>;
    /// Wakes the source, if there is one, so that it looks at the wanted revision. Does not panic.
    fn wake_source(&self);
    /// Whether a publisher may call the wakers of tasks itself.
    fn trusts_wakers(&self) -> bool;
}

impl<W: HubOwner> Visited for W {
    fn pass(&self, code: FilterCode, visit: Visit, hand_on: &dyn Fn()) -> PassEnd {
        self.hubs().of(code).pass(self, visit, hand_on)
    }

    fn queue(&self, code: FilterCode, is_queued: bool) -> bool {
        self.hubs().of(code).is_queued.swap(is_queued, Relaxed)
    }
}

/// The two hubs of one cache. A waiter's filter decides which of them it is in; it never changes.
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
    pub(crate) fn published<W: HubOwner + 'static>(&self, cache: &Arc<W>) {
        fence(ord!(PublishFence, SeqCst));
        self.own.look_if(self.own.waiters.are_parked(), cache);
        self.foreign.notify_if_waited_for(cache);
    }

    /// Like [`Hubs::published`], after events: a reader that sleeps at a bucket is counted at the bucket. A reader with
    /// a predicate never sleeps at one.
    #[inline(always)]
    pub(crate) fn published_events<W: HubOwner + 'static>(&self, cache: &Arc<W>, router: &Router) {
        fence(ord!(PublishFence, SeqCst));
        // Partner: for buckets, `Bucket::add_waiter`.
        self.own.look_if(self.own.waiters.are_parked() || router.has_waiters(), cache);
        self.foreign.notify_if_waited_for(cache);
    }

    /// Calls the notifiers for a change that concerns all waiters, also those at buckets.
    pub(crate) fn notify<W: HubOwner + 'static>(&self, cache: &Arc<W>) {
        self.own.notify(cache);
        fence(SeqCst);
        self.foreign.notify_if_waited_for(cache);
    }

    /// The highest revision that a consumer waits for, 0 for none.
    pub(crate) fn highest_revision_wanted(&self) -> u64 {
        self.own.waiters.highest_revision_wanted().max(self.foreign.waiters.highest_revision_wanted())
    }

    /// Consumers that are parked now.
    pub(crate) fn waiting(&self) -> u64 {
        self.own.waiters.parked() + self.foreign.waiters.parked()
    }

    /// Events below `head` that a notifier has still to look at for a waiter, where it cannot keep up.
    pub(crate) fn behind(&self, head: u64) -> u64 {
        self.own.behind(head).max(self.foreign.behind(head))
    }

    /// How often events left the window before a notifier had looked at them for a sleeping consumer.
    pub(crate) fn overruns(&self) -> u64 {
        self.own.waiters.overrun.load(Relaxed) + self.foreign.waiters.overrun.load(Relaxed)
    }
}

/// The waiters of one cache that one notifier wakes, with their tables.
pub(crate) struct Hub {
    code: FilterCode,
    pub(crate) waiters: Waiters,
    pass_lock: PassLock,
    burst: Burst,
    /// Locked only by the thread that holds the pass lock, so no thread ever waits for the lock.
    tables: Mutex<Tables>,
    pub(crate) groups: FilterGroups,
    /// Whether the last pass has left work for the next one: a statistic.
    is_behind: AtomicBool,
    /// Whether the notifier has the cache in its queue for that work. Only its thread uses this.
    is_queued: AtomicBool,
}

impl Hub {
    fn new(code: FilterCode) -> Hub {
        Hub {
            code,
            waiters: Waiters::new(),
            pass_lock: PassLock::new(),
            burst: Burst::default(),
            tables: Mutex::new(Tables::default()),
            groups: FilterGroups::default(),
            is_behind: AtomicBool::new(false),
            is_queued: AtomicBool::new(false),
        }
    }

    // ---- Calls ----------------------------------------------------------------------------------------

    #[inline]
    fn notify_if_waited_for<W: HubOwner + 'static>(&self, cache: &Arc<W>) {
        if self.waiters.are_parked() {
            self.notify(cache);
        }
    }

    /// Calls the notifier for this cache, once until it has looked. A publisher's own pass does not answer this call.
    #[cold]
    pub(crate) fn notify<W: HubOwner + 'static>(&self, cache: &Arc<W>) {
        if self.pass_lock.call_for_all() {
            notifier::push(self.code, cache.clone());
        }
    }

    #[inline]
    fn look_if<W: HubOwner + 'static>(&self, needed: bool, cache: &Arc<W>) {
        if needed && self.pass_lock.call() {
            self.look_or_push(cache);
        }
    }

    /// Answers a call that no other thread will: the writer does the pass if little is to be done, else the notifier.
    fn look_or_push<W: HubOwner + 'static>(&self, cache: &Arc<W>) {
        let is_burst = self.burst.called(cache.frontier().head);
        if is_burst && !(cache.trusts_wakers() && self.burst.is_parked_here()) {
            return notifier::push(self.code, cache.clone());
        }
        let Some(pass) = self.pass_lock.try_lock(|| notifier::push(self.code, cache.clone())) else {
            // The holder took the lock after the call, or will hand the call on when it releases the lock.
            return;
        };
        // A panic here is a bug of the library. It must not reach the writer's thread, whose revision is published already.
        let woken = foreign::guard(|| {
            pass.answer_events();
            self.short_pass(&**cache)
        });
        let (woken, all) = woken.flatten().unwrap_or_default();
        if !all {
            pass.call_again();
        }
        drop(pass);
        woken.into_iter().flatten().for_each(WakeUp::call);
    }

    // ---- Passes ---------------------------------------------------------------------------------------

    /// Returns the wake-ups to call, and whether these were all. `None`: nothing was done.
    fn short_pass(&self, cache: &impl HubOwner) -> Option<(ShortPassWakeUps, bool)> {
        // After the fence of `published`, like `are_parked`. Partner: `Parker::park`, which posts its message before
        // its own fence: a consumer whose message is not seen here sees the new head and does not sleep.
        if !self.waiters.inbox.is_empty() {
            return None;
        }
        let now = cache.frontier();
        let mut tables = lock(&self.tables);
        let woken = tables.short_pass(&self.waiters, cache, &now, cache.trusts_wakers())?;
        self.waiters.store_examined_to(tables.examined_to());
        Some((woken, tables.after.woken.is_empty()))
    }

    /// Does one pass of the notifier, bounded by [`steps`](crate::wake::tables::steps).
    pub(crate) fn pass(&self, cache: &impl HubOwner, visit: Visit, hand_on: impl Fn() + Copy) -> PassEnd {
        if cfg!(not(loom)) && visit == Visit::Called && self.burst.is_on() {
            std::thread::yield_now();
        }
        // `None`: a publisher looks at its events, and hands this pass's call on when it releases the lock.
        let Some(pass) = self.pass_lock.try_lock_or_call(hand_on) else {
            return PassEnd { again: None, is_behind: false };
        };
        let mut tables = lock(&self.tables);
        let mut again = None;
        // A queued hub evaluates filters only at the front of the queue, so that a call does not overtake other hubs.
        let waits = visit == Visit::Called && self.is_queued.load(Relaxed);
        let mut filters = if waits { Steps::none() } else { Steps::new(FILTERS) };
        for looks in 1..=LOOKS {
            pass.answer();
            let now = cache.frontier();
            // Partner: PARKED, fence, look in `Parker::park`: a consumer that is not seen parked now loads the head
            // after this, and does not sleep below `now.head`.
            fence(ord!(NotifierFence, SeqCst));
            let messages = self.waiters.inbox.take_all();
            again = tables.pass(&self.waiters, cache, &now, messages, &mut filters);
            if !now.closed {
                self.waiters.store_examined_to(tables.examined_to());
            }
            if !tables.look_again {
                break;
            }
            if looks == LOOKS {
                pass.call_again();
            }
        }
        let is_behind = tables.is_behind;
        self.is_behind.store(is_behind, Relaxed);
        let AfterRelease { woken, wakes_source, garbage } = take(&mut tables.after);
        drop(tables);
        drop(pass);
        // Called outside the pass lock: a waker that does not return holds up only the wake-ups of this thread.
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
    pub(crate) fn is_done(&self) -> bool {
        self.waiters.inbox.is_empty() && !lock(&self.tables).is_behind
    }

    // ---- Everybody ------------------------------------------------------------------------------------

    /// Yields the processor of a consumer that has taken everything and would be the first to sleep in a burst: see
    /// [`Burst`]. True: it has yielded, and looks for events again.
    #[inline]
    pub(crate) fn yields(&self) -> bool {
        let yields = cfg!(not(loom)) && self.burst.is_on() && self.waiters.parked() == 0;
        if yields {
            std::thread::yield_now();
        }
        yields
    }

    /// Records that a task parks on this thread: see [`Burst::is_parked_here`].
    #[inline]
    pub(crate) fn parks_here(&self) {
        self.burst.parks_here();
    }

    /// Events that the notifier has still to look at for a waiter, where its last pass has left work.
    fn behind(&self, head: u64) -> u64 {
        if self.is_behind.load(Relaxed) { head.saturating_sub(self.waiters.all_examined_to()) } else { 0 }
    }
}
