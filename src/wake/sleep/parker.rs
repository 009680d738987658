//! A consumer's own side of its waiter.
//!
//! A consumer makes its waiter when it first sleeps, announces its [`Interest`] to the notifier, parks and unparks any number
//! of times, and takes the waiter back when it is dropped. It does so as a [`Parker`]: only the consumer has one. No function
//! here waits, and none takes a lock that another thread could wait for, but the lock of a wake set.

use super::due::{Due, DueTimes};
use super::group::{FilterCode, GroupRef};
use super::interest::{CacheFrontier, Interest};
use super::parked_waiter::{CountedAt, EndedSleep, ParkedWaiter, WaiterRef};
use super::ready_list::{Membership, SetMember};
use super::waiters::{Message, Waiters};
use super::wake_set::WakeSet;
use super::waker::{Waker, WakerSlot};
use crate::log::buckets::{Bucket, Request};
use crate::log::ring::LogEnd;
#[cfg(loom)]
use crate::sync::weak;
use crate::sync::{OnceArc, SeqCst, fence, ord, step};
use std::sync::Arc;

/// How a sleep ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unparked {
    /// Whether another thread has woken it; the tag of a member is listed by then.
    pub(crate) woken: bool,
    /// The sequence number at which the consumer may continue: no event below concerns it. 0: at its cursor.
    pub(crate) resume: u64,
    /// The time at which it was woken, as a time of [`crate::sys::clock`].
    pub(crate) at: u64,
}

/// What a sleeping consumer asks of its cache.
pub(crate) trait Watched: Send + Sync {
    /// The present position, head and state of the cache; progress is loaded before head.
    fn frontier(&self) -> CacheFrontier;
    /// The head, and whether the log was closed there: a consumer that waits for events looks at these.
    fn end(&self) -> LogEnd;
    /// The newest resync mark; to be asked after `frontier` or `end`.
    fn newest_mark(&self) -> u64;
    /// Whether a bucket has an event, or the log a mark, at or above `cursor`. Asked after the load of head, so the answer
    /// covers every event of the bucket below head.
    fn has_events(&self, bucket: &Bucket, cursor: u64) -> bool {
        bucket.newest() >= cursor || self.newest_mark() >= cursor
    }
    /// The waiters whose filters run this kind of code.
    fn waiters(&self, code: FilterCode) -> &Waiters;
    /// Calls the notifier of these waiters, once until it has looked at everything.
    fn notify(self: &Arc<Self>, code: FilterCode)
    where
        Self: Sized;
}

/// The waiter of one consumer, made when it first sleeps. The tables and handles that may close it have counts on it too.
pub(crate) struct WaiterCell(OnceArc<ParkedWaiter>);

impl WaiterCell {
    pub(crate) fn new() -> WaiterCell {
        WaiterCell(OnceArc::new())
    }

    /// The waiter, if its consumer has ever slept. Any thread may call this.
    #[inline]
    pub(crate) fn waiter(&self) -> Option<&ParkedWaiter> {
        self.0.get()
    }

    /// A counted reference to the waiter.
    pub(crate) fn count(&self) -> Option<WaiterRef> {
        self.0.count()
    }

    /// The consumer's view of its waiter. Takes `&mut self`, so there is at most one.
    pub(crate) fn parker(&mut self, code: FilterCode) -> Parker<'_> {
        // SAFETY: `self` is borrowed mutably as long as the parker lives, and only `self` makes parkers of its waiter.
        unsafe { self.shared_parker(|| code) }
    }

    /// Like [`WaiterCell::parker`], where other threads reach this value too.
    ///
    /// # Safety
    ///
    /// Only the consumer may call this, and it has no other parker as long as this one lives.
    #[inline]
    pub(crate) unsafe fn shared_parker(&self, code: impl FnOnce() -> FilterCode) -> Parker<'_> {
        let waiter = self.0.get_or_make(|| ParkedWaiter::new(code()));
        // SAFETY: the only consumer calls this and has no other parker, so no other reference to the interest lives.
        let interest = unsafe { waiter.interest.take() };
        Parker { home: &self.0, waiter, interest }
    }
}

impl std::fmt::Debug for WaiterCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0.get())
    }
}

/// A consumer at its waiter, for the length of one of its calls.
pub(crate) struct Parker<'s> {
    home: &'s OnceArc<ParkedWaiter>,
    waiter: &'s ParkedWaiter,
    interest: &'s mut Option<Interest>,
}

impl Parker<'_> {
    /// A further counted reference to the waiter, for the tables.
    fn count(&self) -> WaiterRef {
        self.home.count().expect("it was made before this")
    }

    /// Whether it is in a wake set.
    pub(crate) fn is_member(&self) -> bool {
        self.waiter.member().is_member()
    }

    /// Its waker and its membership, while it is awake.
    fn slot(&mut self) -> &mut WakerSlot<ParkedWaiter> {
        assert!(self.waiter.is_idle(), "the waker of a waiter that is parked");
        // SAFETY: a parker is the only consumer, borrowed mutably; only the consumer uses an IDLE waiter's waker.
        unsafe { self.waiter.waker.take() }
    }

    /// Joins a wake set, and leaves the one that it was in. It is awake.
    pub(crate) fn join_set(&mut self, set: &WakeSet, tag: u64) {
        self.leave_sets();
        let membership = Membership::new(&set.shared, tag, self.waiter);
        *self.slot() = WakerSlot::Member { membership, armed: false };
    }

    /// Leaves this set; false where it was no member of it. It is awake.
    pub(crate) fn leave_set(&mut self, set: &WakeSet) -> bool {
        let is_of = self.slot().membership().is_some_and(|membership| membership.is_of(&set.shared));
        if is_of {
            self.leave_sets();
        }
        is_of
    }

    fn leave_sets(&mut self) {
        match std::mem::take(self.slot()) {
            WakerSlot::Member { membership, .. } => membership.leave(self.waiter),
            WakerSlot::Both(both) => both.0.leave(self.waiter),
            // It is in no set, and the waiter of a consumer that is awake has no waker.
            _ => {}
        }
    }

    /// Whether its set has given its tag out since the last call.
    pub(crate) fn take_given(&self) -> bool {
        self.waiter.member().take_given()
    }

    /// Whether it is in a wake set that still exists. It is awake.
    pub(crate) fn is_in_a_set(&mut self) -> bool {
        self.slot().membership().is_some_and(Membership::has_a_set)
    }

    /// Lists itself in its set, as a thread that wakes it would. It is awake.
    pub(crate) fn list(&mut self) {
        let waiter = self.count();
        if let Some(signal) = self.slot().membership().and_then(|membership| membership.list(&waiter)) {
            signal.raise();
        }
    }

    /// The filter group that it has joined, once it has slept for events: it never sleeps for anything else after that.
    pub(crate) fn group(&self) -> Option<&GroupRef> {
        self.interest.as_ref().and_then(Interest::group_of_events)
    }

    /// Whether it waits for events already, at this bucket, or with this request for one.
    pub(crate) fn waits_for_events(&self, bucket: Option<*const Bucket>, request: Option<*const Request>) -> bool {
        self.interest.as_ref().is_some_and(|interest| interest.is_of_events_at(bucket, request))
    }

    /// Sets the interest that it parks for from now on. It is awake.
    pub(crate) fn wait_for(&mut self, interest: Interest) {
        if !self.interest.as_ref().is_some_and(|before| before.is(&interest)) {
            self.waiter.announce_anew();
            *self.interest = Some(interest);
        }
    }

    /// Parks, then looks at the cache. `Err`: the wait may be over already, so it is not parked any more.
    pub(crate) fn park<W: Watched>(
        &mut self,
        cache: &Arc<W>,
        cursor: u64,
        waker: Waker,
        due: &Due,
    ) -> Result<(), Unparked> {
        step("parks");
        let (waiter, waiters) = (self.waiter, cache.waiters(self.waiter.code()));
        if !waiter.is_idle() {
            self.unpark(cache);
        }
        let Some(interest) = &*self.interest else { return Ok(()) };
        // The consumer counts itself, before the fence. Partner: the loads in `published`, `published_events` and `FilterGroup::has_parked`.
        let counted = match interest {
            Interest::Chain(_, bucket) => {
                waiters.add_at(bucket);
                CountedAt::Bucket
            }
            interest => {
                waiters.add(interest.group());
                CountedAt::Hub
            }
        };
        // SAFETY: a parker is the only consumer, and the waiter is IDLE: where it was not, `unpark` above has made it so.
        unsafe { waiter.park(cursor, waker, due, counted) };
        // Partner: the fence in `Tables::end_wait`, after which that looks whether the waiter is parked.
        fence(ord!(RegisterFence, SeqCst));
        if let Some(number) = waiter.announce() {
            self.post(cache, Message::Join(self.count(), interest.clone(), number));
            if let Some(revision) = interest.revision_wanted() {
                // After the message: see `Waiters::want_at_most`.
                waiters.want(revision);
            }
            // The look at the cache comes after the message, too.
            fence(ord!(RegisterFence, SeqCst));
        }
        // Partner: the fences after `unlist`.
        let is_earlier = due.is_some() && waiter.times().is_some_and(DueTimes::list_first);
        if is_earlier {
            self.post(cache, Message::Time(self.count()));
        }
        let has_come = has_come(interest, cursor, &**cache);
        if is_earlier {
            // Nobody else calls the notifier for the new time, which may count in this sleep or the next.
            cache.notify(waiter.code());
        }
        if has_come {
            // A pass that began before this waiter was parked has not looked for it at the events between its cursor and
            // the event that the pass has woken it for, or the head that the pass has reached.
            let unparked = self.unpark(cache);
            #[cfg(loom)]
            if weak::is(weak::Site::TakeOver) {
                return Err(unparked);
            }
            return Err(Unparked { resume: 0, ..unparked });
        }
        Ok(())
    }

    /// Ends a sleep and drops its waker. A consumer that is awake has nothing to take over.
    pub(crate) fn unpark<W: Watched>(&mut self, cache: &Arc<W>) -> Unparked {
        let unparked = self.end_sleep(cache.waiters(self.waiter.code()));
        if !unparked.woken {
            // SAFETY: a parker is the only consumer, and it has left the waiter, which is IDLE.
            unsafe { self.waiter.waker.take() }.clear();
        }
        unparked
    }

    /// Ends a sleep, and returns the waker if nobody has called it.
    pub(crate) fn unpark_with_waker<W: Watched>(&mut self, cache: &Arc<W>) -> (Unparked, Option<Waker>) {
        let unparked = self.end_sleep(cache.waiters(self.waiter.code()));
        (unparked, self.slot().take())
    }

    fn post<W: Watched>(&self, cache: &Arc<W>, message: Message) {
        let code = self.waiter.code();
        if cache.waiters(code).post(message) {
            cache.notify(code);
        }
    }

    #[inline]
    fn end_sleep(&self, waiters: &Waiters) -> Unparked {
        let waiter = self.waiter;
        if waiter.is_idle() {
            return Unparked { woken: false, resume: 0, at: 0 };
        }
        // Loaded before PARKED is left: a pass after that no longer looks at this waiter.
        let (scanned_to, followed_to) = (waiters.scanned_to(), waiters.followed_to(self.asks_at_its_bucket()));
        let EndedSleep { resume, counted } = waiter.unpark();
        #[cfg(loom)]
        let counted = if weak::is(weak::Site::UncountedTwice) { CountedAt::Hub } else { counted };
        match (counted, &*self.interest) {
            (CountedAt::Bucket, Some(Interest::Chain(_, bucket))) => waiters.remove_at(bucket),
            (CountedAt::Bucket, Some(Interest::Events(_, Some(request)))) => {
                // The notifier has moved the waiter to the bucket.
                if let Some(Some(bucket)) = request.answer() {
                    waiters.remove_at(bucket);
                }
            }
            (CountedAt::Nowhere, _) => {}
            (_, interest) => waiters.remove(1, interest.as_ref().and_then(Interest::group)),
        }
        match resume {
            Some(resume) => Unparked { woken: true, resume, at: waiter.woken_at() },
            // A waiter that was moved to a bucket meanwhile had no event there below the head of that pass, and `followed_to`
            // was stored by that pass, by one before it or by one that has looked at the waiter there.
            None if counted == CountedAt::Bucket => Unparked { woken: false, resume: followed_to, at: 0 },
            None => Unparked { woken: false, resume: scanned_to, at: 0 },
        }
    }

    /// Whether it asks its filter about each event of its bucket.
    fn asks_at_its_bucket(&self) -> bool {
        self.group().is_some_and(|group| !group.passes_its_bucket)
    }

    /// Leaves the waiter for good, before the consumer is dropped.
    pub(crate) fn leave<W: Watched>(&mut self, cache: &Arc<W>) {
        self.unpark(cache);
        // The wait may have ended, and the tables have dropped its interest, while it listed its time.
        let is_listed = self.waiter.times().is_some_and(|times| times.listed().is_some());
        if is_listed || self.waiter.is_announced() {
            let code = self.waiter.code();
            self.post(cache, Message::Leave(self.count()));
            let revision = self.interest.as_ref().and_then(Interest::revision_wanted);
            // The notifier then lowers the wanted revision, so that the source is not asked for it any more, and drops
            // a predicate though nobody publishes: the predicate may hold the cache itself.
            if revision.is_some_and(|revision| revision >= cache.waiters(code).highest_revision_wanted())
                || code == FilterCode::Foreign
            {
                cache.notify(code);
            }
        }
        // Drops its counts on the bucket and on the request for it.
        *self.interest = None;
        self.leave_sets();
    }
}

/// Whether a consumer that has parked at `cursor` is to be woken at once.
fn has_come(interest: &Interest, cursor: u64, cache: &impl Watched) -> bool {
    let bucket = match interest {
        Interest::Events(..) => None,
        Interest::Chain(_, bucket) => Some(bucket),
        _ => {
            let now = cache.frontier();
            return interest.is_reached(&now) || now.closed;
        }
    };
    let LogEnd { head, closed } = cache.end();
    // If head has not passed the cursor there is nothing to hand out yet, and the publisher of the next event sees that this
    // consumer waits.
    let has = |bucket: &Arc<Bucket>| head > cursor && cache.has_events(bucket, cursor);
    closed || bucket.map_or(head != cursor, has)
}
