//! The hubs of a cache: the words by which its writer, its consumers and the notifiers reach each other.
//!
//! A consumer's [`Registration`] is the life of one sleeper: made when it first sleeps, announced to the
//! notifier with its [`Interest`], parked and unparked any number of times, taken back when it is
//! dropped. Nothing here waits, and no lock is taken but that of the filter groups, when a subscription
//! is opened or dropped.

#![forbid(unsafe_code)]

use super::seat::{CountedAt, Due, Seat, SeatRef};
use super::tables::Tables;
use super::{CacheFrontier, FilterCode, Waker, Watched, notifier};
use crate::filter::matcher::Matcher;
use crate::log::buckets::{Bucket, Request, Router};
use crate::position::Position;
#[cfg(loom)]
use crate::sync::weak;
use crate::sync::{
    AcqRel, Acquire, AtomicBool, AtomicU64, AtomicUsize, Inbox, Mutex, Relaxed, Release, SeqCst, fence, lock, ord,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Statistic;
use std::time::Instant;

/// Messages after which the notifier is woken to read them, though nobody publishes.
const UNREAD: u64 = 256;

/// A count on a group.
pub(crate) type GroupRef = crate::sync::Arc<FilterGroup>;

/// The subscriptions of one filter; equal filters share it, and are evaluated once an event.
pub(crate) struct FilterGroup {
    id: u64,
    pub(crate) matcher: Arc<Matcher>,
    /// Members that sleep and are scanned for; each raises and lowers it itself.
    parked: AtomicUsize,
}

impl FilterGroup {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Behind the notifier's fence. Partner: the raise in [`Registration::park`].
    pub(super) fn has_parked(&self) -> bool {
        self.parked.load(Relaxed) != 0
    }
}

/// What a sleeper waits for.
#[derive(Clone)]
pub(crate) enum Interest {
    /// An event behind the cursor that passes. With a request, the seat moves to the bucket once the
    /// writer has answered.
    Events(GroupRef, Option<Arc<Request>>),
    /// The same, of one bucket whose events are all linked from the cursor on.
    Chain(GroupRef, Arc<Bucket>),
    /// The cache to reach a revision. With an epoch, also to leave that; with a ticket, also that
    /// consistent read.
    Revision { position: Position, ticket: Option<u64> },
    /// The first listing.
    Ready,
    /// A consistent read.
    Consistent(u64),
}

impl Interest {
    /// Whether both are the same to the notifier.
    fn is(&self, other: &Interest) -> bool {
        match (self, other) {
            (Interest::Events(group, request), Interest::Events(old, before)) => {
                let same = |a: &Arc<Request>, b: &Arc<Request>| Arc::ptr_eq(a, b);
                group.id == old.id
                    && match (request, before) {
                        (Some(request), Some(before)) => same(request, before),
                        (request, before) => request.is_none() && before.is_none(),
                    }
            }
            (Interest::Chain(group, bucket), Interest::Chain(old, before)) => {
                group.id == old.id && Arc::ptr_eq(bucket, before)
            }
            (Interest::Revision { position, ticket }, Interest::Revision { position: old, ticket: before }) => {
                position == old && ticket == before
            }
            (Interest::Ready, Interest::Ready) => true,
            (Interest::Consistent(ticket), Interest::Consistent(before)) => ticket == before,
            _ => false,
        }
    }

    pub(crate) fn is_of_events(&self) -> bool {
        matches!(self, Interest::Events(..) | Interest::Chain(..))
    }

    /// Whether it holds now, for a seat that parked at `cursor`.
    fn holds(&self, cursor: u64, now: &CacheFrontier, cache: &dyn Watched) -> bool {
        match self {
            Interest::Events(..) => now.head != cursor,
            // After head: what lies below it in this bucket is not above its newest. At the same head
            // there is nothing to hand out yet: a publisher sees that a consumer waits.
            Interest::Chain(_, bucket) => {
                now.head > cursor && (bucket.newest() >= cursor || cache.newest_mark() >= cursor)
            }
            _ => self.is_reached(now),
        }
    }

    /// Whether a wait that is for no event is over.
    pub(super) fn is_reached(&self, now: &CacheFrontier) -> bool {
        match self {
            _ if now.failed => true,
            Interest::Revision { position: Position { epoch, revision }, ticket } => {
                let arrived = now.position.revision >= *revision || (*epoch != 0 && now.position.epoch != *epoch);
                (now.ready && arrived) || ticket.is_some_and(|ticket| now.consistent >= ticket)
            }
            Interest::Ready => now.ready,
            Interest::Consistent(ticket) => now.consistent >= *ticket,
            Interest::Events(..) | Interest::Chain(..) => false,
        }
    }
}

/// What a consumer says to the notifier.
pub(super) enum Message {
    /// The seat waits for this from now on, whenever it is parked.
    Join(SeatRef, Interest),
    /// The seat is no more.
    Leave(u64),
    /// The seat has a time at which it is due.
    Time(SeatRef),
}

/// A filter and how many registrations share it.
struct SharedGroup {
    group: GroupRef,
    users: usize,
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
    /// Parked seats for which every revision is looked at. Each raises and lowers it itself.
    waiting: AtomicUsize,
    /// Whether the notifier is on its way.
    pending: AtomicBool,
    pub(super) inbox: Inbox<Message>,
    /// Messages posted so far.
    posted: Statistic,
    /// Everything below was looked at for all who sleep.
    pub(super) scanned_to: AtomicU64,
    /// The highest revision that somebody waits for.
    wanted: AtomicU64,
    /// The notifier's alone: nobody else ever takes it.
    tables: Mutex<Tables>,
    /// For subscriptions that sleep for the first time, and that are dropped.
    groups: Mutex<HashMap<Arc<Matcher>, SharedGroup>>,
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
            groups: Mutex::new(HashMap::new()),
            asleep: Statistic::new(0),
            lapped: Statistic::new(0),
        }
    }
}

impl Hub {
    // ---- The writer's half ----------------------------------------------------------------------------

    /// Behind the fence. Partner: `waiting` raised, PARKED, fence, look in `Registration::park`.
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

    /// The group of a filter: that of an equal one, if somebody has it. Takes a short lock that neither
    /// the writer nor the notifier nor a poll takes.
    pub(crate) fn join_group(&self, matcher: &Arc<Matcher>) -> GroupRef {
        static NEXT: Statistic = Statistic::new(1);
        let mut groups = lock(&self.groups);
        if let Some(shared) = groups.get_mut(matcher) {
            shared.users += 1;
            return shared.group.clone();
        }
        let id = NEXT.fetch_add(1, Relaxed);
        let group = GroupRef::new(FilterGroup { id, matcher: matcher.clone(), parked: AtomicUsize::new(0) });
        groups.insert(matcher.clone(), SharedGroup { group: group.clone(), users: 1 });
        group
    }

    pub(crate) fn leave_group(&self, group: &GroupRef) {
        let mut groups = lock(&self.groups);
        let Some(shared) = groups.get_mut(&group.matcher) else { return };
        shared.users -= 1;
        if shared.users == 0 {
            let last = groups.remove_entry(&group.matcher);
            drop(groups);
            // Its predicates are foreign code: dropped outside the lock.
            drop(last);
        }
    }

    fn post<W: Watched + 'static>(&self, cache: &Arc<W>, message: Message) {
        self.inbox.push(message);
        // Who comes and goes while nobody publishes leaves messages behind: they are read in time.
        if self.posted.fetch_add(1, Relaxed) % UNREAD == UNREAD - 1 {
            self.notify(cache);
        }
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
                // Release: partner of the load in `Registration::unpark`.
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

    /// The notifier counts itself as waiting: for those who wait for any move.
    pub(super) fn raise(&self) {
        self.waiting.fetch_add(1, Relaxed);
    }

    pub(super) fn lower(&self) {
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// Moves a seat that is claimed from the scanners to a bucket: raised there before it is lowered here.
    pub(super) fn hand_over(&self, group: &FilterGroup, bucket: &Bucket) {
        bucket.add_waiter();
        group.parked.fetch_sub(1, Relaxed);
        self.lower();
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

/// How a sleep ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unparked {
    /// Somebody has woken it; the tag of a member is listed by then.
    pub(crate) woken: bool,
    /// Where the cursor may continue: nothing of its own lies below. 0: where it was.
    pub(crate) resume: u64,
    /// When it was woken, as a time of [`crate::sys::clock`].
    pub(crate) at: u64,
}

/// A consumer's own side of its seat: see the module.
pub(crate) struct Registration {
    code: FilterCode,
    seat: SeatRef,
    interest: Option<Interest>,
    parked: bool,
}

impl Registration {
    pub(crate) fn new(code: FilterCode) -> Registration {
        Registration { code, seat: SeatRef::new(Seat::new()), interest: None, parked: false }
    }

    /// For those who wake it from outside, and who look how it stands.
    pub(crate) fn seat(&self) -> &SeatRef {
        &self.seat
    }

    /// Parks, then looks. `Err`: what it waits for may hold already, it is not parked (any more).
    pub(crate) fn park<W: Watched + 'static>(
        &mut self,
        cache: &Arc<W>,
        interest: Interest,
        cursor: u64,
        waker: Waker,
        due: Due,
    ) -> Result<(), Unparked> {
        let hub = cache.hubs().of(self.code);
        if !self.interest.as_ref().is_some_and(|before| before.is(&interest)) {
            self.seat.announced().store(false, Relaxed);
            self.interest = Some(interest);
        }
        let Some(interest) = &self.interest else { return Ok(()) };
        // Raised by the sleeper itself, before the fence. Partner: the loads in `published`,
        // `published_events` and `FilterGroup::has_parked`.
        let counted = match interest {
            Interest::Chain(_, bucket) => {
                bucket.add_waiter();
                CountedAt::Bucket
            }
            Interest::Events(group, _) => {
                group.parked.fetch_add(1, Relaxed);
                hub.raise();
                CountedAt::Hub
            }
            _ => {
                hub.raise();
                CountedAt::Hub
            }
        };
        hub.asleep.fetch_add(1, Relaxed);
        self.parked = true;
        self.seat.park(cursor, waker, due, counted);
        // Partner: the swap in `Tables::drop_seat`, which looks whether the seat is parked behind it.
        fence(ord!(RegisterFence, SeqCst));
        if !self.seat.announced().load(Relaxed) {
            self.seat.announced().swap(true, AcqRel);
            let wants = match interest {
                Interest::Revision { position, .. } => Some(position.revision),
                _ => None,
            };
            hub.post(cache, Message::Join(self.seat.clone(), interest.clone()));
            if let Some(revision) = wants {
                // After the message: see `Hub::want_at_most`.
                hub.want(revision);
            }
            // The look comes behind the message, too.
            fence(ord!(RegisterFence, SeqCst));
        }
        // Partner: as with `announced`.
        let timed = due.is_some() && !self.seat.timed().load(Relaxed) && !self.seat.timed().swap(true, AcqRel);
        if timed {
            hub.post(cache, Message::Time(self.seat.clone()));
        }
        let now = cache.frontier();
        if interest.holds(cursor, &now, &**cache) || now.closed {
            // A pass that began before this seat was parked says nothing of what lies between its cursor and the
            // event that the pass has woken it for, or the head that the pass has reached.
            let unparked = self.unpark(cache.hubs());
            #[cfg(loom)]
            if weak::is(weak::Site::TakeOver) {
                return Err(unparked);
            }
            return Err(Unparked { resume: 0, ..unparked });
        }
        if timed {
            // The notifier keeps the time.
            hub.notify(cache);
        }
        Ok(())
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.parked
    }

    /// Ends a sleep. Without one: nothing to take over.
    pub(crate) fn unpark(&mut self, hubs: &Hubs) -> Unparked {
        let hub = hubs.of(self.code);
        if !std::mem::take(&mut self.parked) {
            return Unparked { woken: false, resume: 0, at: 0 };
        }
        // Before PARKED is left: a later pass does not look at this seat. Acquire: partner of the store
        // in `pass`.
        let scanned_to = hub.scanned_to.load(Acquire);
        let woken = self.seat.unpark();
        match (self.seat.counted(), &self.interest) {
            (CountedAt::Bucket, Some(Interest::Chain(_, bucket))) => bucket.remove_waiter(),
            (CountedAt::Bucket, Some(Interest::Events(_, Some(request)))) => {
                // The notifier has handed it over.
                if let Some(Some(bucket)) = request.answer() {
                    bucket.remove_waiter();
                }
            }
            (_, interest) => {
                if let Some(Interest::Events(group, _)) = interest {
                    group.parked.fetch_sub(1, Relaxed);
                }
                hub.lower();
            }
        }
        hub.asleep.fetch_sub(1, Relaxed);
        if woken {
            return Unparked { woken, resume: self.seat.resume(), at: self.seat.woken_at() };
        }
        self.seat.clear();
        Unparked { woken, resume: scanned_to, at: 0 }
    }

    /// Sleeps until somebody wakes it, at most until then. True: it was woken. For wakers of threads.
    pub(crate) fn sleep(&self, until: Option<Instant>) -> bool {
        loop {
            if self.seat.is_woken() {
                return true;
            }
            let Some(until) = until else {
                crate::sync::park();
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.seat.is_woken();
            }
            crate::sync::park_timeout(left);
        }
    }

    /// Takes it back for good: before it is dropped.
    pub(crate) fn leave<W: Watched + 'static>(&mut self, cache: &Arc<W>) {
        let hub = cache.hubs().of(self.code);
        self.unpark(cache.hubs());
        if self.seat.announced().load(Acquire) {
            hub.post(cache, Message::Leave(self.seat.id()));
            if let Some(Interest::Revision { position, .. }) = &self.interest
                && position.revision >= hub.highest_revision_wanted()
            {
                // So that the source is not asked for it any more.
                hub.notify(cache);
            }
        }
    }
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration").field("parked", &self.parked).finish()
    }
}
