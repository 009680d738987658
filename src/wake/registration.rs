//! A consumer's own side of its seat.
//!
//! A [`Registration`] is the life of one sleeper in one seat, of which it is a part: made when it first sleeps, announced to
//! the notifier with its [`Interest`], parked and unparked any number of times, taken back when its consumer is dropped. A
//! consumer reaches it as a [`Sleeper`]: whoever has one is the consumer. No function here waits but [`Seat::sleep`], and
//! none takes a lock that another thread could wait for.

use super::due::{Due, DueTimes};
use super::group::GroupRef;
use super::hub::{Hubs, Message};
use super::interest::Interest;
use super::seat::{CountedAt, LeftSeat, Seat, SeatRef};
use super::waker::{Membership, WakerSlot};
use super::{FilterCode, WakeSet, Waker, Watched};
use crate::log::buckets::{Bucket, Request};
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

/// See the module.
#[derive(Default)]
pub(super) struct Registration {
    interest: Option<Interest>,
}

/// The seat of one consumer, made when it first sleeps. The tables and handles that may close it have counts on it too.
pub(crate) struct OwnSeat(OnceArc<Seat>);

impl OwnSeat {
    pub(crate) fn new() -> OwnSeat {
        OwnSeat(OnceArc::new())
    }

    /// The seat, if its consumer has ever slept. Any thread may call this.
    #[inline]
    pub(crate) fn seat(&self) -> Option<&Seat> {
        self.0.get()
    }

    /// A counted reference to the seat.
    pub(crate) fn count(&self) -> Option<SeatRef> {
        self.0.count()
    }

    /// The consumer's view of its seat. Takes `&mut self`, so there is at most one.
    pub(crate) fn sleeper(&mut self, code: FilterCode) -> Sleeper<'_> {
        // SAFETY: `self` is borrowed mutably as long as the sleeper lives, and only `self` makes sleepers of its seat.
        unsafe { self.shared_sleeper(|| code) }
    }

    /// Like [`OwnSeat::sleeper`], where other threads reach this value too.
    ///
    /// # Safety
    ///
    /// Only the consumer may call this, and it has no other sleeper as long as this one lives.
    #[inline]
    pub(crate) unsafe fn shared_sleeper(&self, code: impl FnOnce() -> FilterCode) -> Sleeper<'_> {
        let seat = self.0.get_or_make(|| Seat::new(code()));
        // SAFETY: the only consumer calls this and has no other sleeper, so no other reference to the registration lives.
        let own = unsafe { seat.registration() };
        Sleeper { home: &self.0, seat, own }
    }
}

impl std::fmt::Debug for OwnSeat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0.get())
    }
}

/// A consumer at its seat, for the length of one of its calls.
pub(crate) struct Sleeper<'s> {
    home: &'s OnceArc<Seat>,
    seat: &'s Seat,
    own: &'s mut Registration,
}

impl Sleeper<'_> {
    /// A further counted reference to the seat, for the tables.
    fn count(&self) -> SeatRef {
        self.home.count().expect("it was made before this")
    }

    /// Whether it is in a wake set.
    pub(crate) fn is_member(&self) -> bool {
        self.seat.member().is_member()
    }

    /// Its waker and its membership, while it is awake.
    fn slot(&mut self) -> &mut WakerSlot {
        assert!(self.seat.is_idle(), "the waker of a seat that is parked");
        // SAFETY: a sleeper is the only consumer, borrowed mutably; only the consumer uses an IDLE seat's waker.
        unsafe { self.seat.waker() }
    }

    /// Joins a wake set, and leaves the one that it was in. It is awake.
    pub(crate) fn join_set(&mut self, set: &WakeSet, tag: u64) {
        self.leave_sets();
        let membership = Membership::new(set, tag, &self.count());
        *self.slot() = WakerSlot::Member { membership, armed: false };
    }

    /// Leaves this set; false where it was no member of it. It is awake.
    pub(crate) fn leave_set(&mut self, set: &WakeSet) -> bool {
        let is_of = self.slot().membership().is_some_and(|membership| membership.is_of(set));
        if is_of {
            self.leave_sets();
        }
        is_of
    }

    fn leave_sets(&mut self) {
        let seat = self.count();
        match std::mem::take(self.slot()) {
            WakerSlot::Member { membership, .. } => membership.leave(&seat),
            WakerSlot::Both(both) => both.0.leave(&seat),
            // It is in no set, and the seat of a consumer that is awake has no waker.
            _ => {}
        }
    }

    /// Whether its set has given its tag out since the last call.
    pub(crate) fn take_given(&self) -> bool {
        self.seat.member().take_given()
    }

    /// Whether it is in a wake set that still exists. It is awake.
    pub(crate) fn is_in_a_set(&mut self) -> bool {
        self.slot().membership().is_some_and(|membership| membership.set.strong_count() > 0)
    }

    /// Lists itself in its set, as a thread that wakes it would. It is awake.
    pub(crate) fn list(&mut self) {
        let seat = self.count();
        let Some(Membership { set, tag }) = self.slot().membership() else { return };
        if let Some(set) = set.upgrade() {
            set.list(&seat, *tag);
            set.raise();
        }
    }

    /// The filter group that it has joined, once it has slept for events: it never sleeps for anything else after that.
    pub(crate) fn group(&self) -> Option<&GroupRef> {
        self.own.interest.as_ref().and_then(Interest::group_of_events)
    }

    /// Whether it waits for events already, at this bucket, or with this request for one.
    pub(crate) fn waits_for_events(&self, bucket: Option<*const Bucket>, request: Option<*const Request>) -> bool {
        self.own.interest.as_ref().is_some_and(|interest| interest.is_of_events_at(bucket, request))
    }

    /// Sets the interest that it parks for from now on. It is awake.
    pub(crate) fn wait_for(&mut self, interest: Interest) {
        if !self.own.interest.as_ref().is_some_and(|before| before.is(&interest)) {
            self.seat.announce_anew();
            self.own.interest = Some(interest);
        }
    }

    /// Parks, then looks at the cache. `Err`: the wait may be over already, so it is not parked any more.
    pub(crate) fn park<W: Watched + 'static>(
        &mut self,
        cache: &Arc<W>,
        cursor: u64,
        waker: Waker,
        due: &Due,
    ) -> Result<(), Unparked> {
        step("parks");
        let (seat, hub) = (self.seat, cache.hubs().of(self.seat.code()));
        if !seat.is_idle() {
            self.unpark(cache.hubs());
        }
        let Some(interest) = &self.own.interest else { return Ok(()) };
        // The sleeper counts itself, before the fence. Partner: the loads in `published`, `published_events`
        // and `FilterGroup::has_parked`.
        let counted = match interest {
            Interest::Chain(_, bucket) => {
                hub.add_waiter_at(bucket);
                CountedAt::Bucket
            }
            interest => {
                hub.add_waiter(interest.group());
                CountedAt::Hub
            }
        };
        // SAFETY: a sleeper is the only consumer, and the seat is IDLE: where it was not, `unpark` above has made it so.
        unsafe { seat.park(cursor, waker, due, counted) };
        // Partner: the fence in `Tables::drop_seat`, after which that looks whether the seat is parked.
        fence(ord!(RegisterFence, SeqCst));
        if let Some(number) = seat.announce() {
            let wants = match interest {
                Interest::Revision(wanted) => Some(wanted.position.revision),
                _ => None,
            };
            hub.post(cache, Message::Join(self.count(), interest.clone(), number));
            if let Some(revision) = wants {
                // After the message: see `Hub::want_at_most`.
                hub.want(revision);
            }
            // The look at the cache comes after the message, too.
            fence(ord!(RegisterFence, SeqCst));
        }
        // Partner: the fences after `unlist`.
        let is_earlier = due.is_some() && seat.times().is_some_and(DueTimes::list_first);
        if is_earlier {
            hub.post(cache, Message::Time(self.count()));
        }
        let holds = interest.holds(cursor, &**cache);
        if is_earlier {
            // Nobody else calls the notifier for the new time, which may count in this sleep or the next.
            hub.notify(cache);
        }
        if holds {
            // A pass that began before this seat was parked has not looked for it at the events between its cursor and
            // the event that the pass has woken it for, or the head that the pass has reached.
            let unparked = self.unpark(cache.hubs());
            #[cfg(loom)]
            if weak::is(weak::Site::TakeOver) {
                return Err(unparked);
            }
            return Err(Unparked { resume: 0, ..unparked });
        }
        Ok(())
    }

    /// Ends a sleep and drops its waker. A consumer that is awake has nothing to take over.
    pub(crate) fn unpark(&mut self, hubs: &Hubs) -> Unparked {
        let unparked = self.leave_seat(hubs);
        if !unparked.woken {
            // SAFETY: a sleeper is the only consumer, and it has left the seat, which is IDLE.
            unsafe { self.seat.waker() }.clear();
        }
        unparked
    }

    /// Ends a sleep, and returns the waker if nobody has called it.
    pub(crate) fn unpark_with_waker(&mut self, hubs: &Hubs) -> (Unparked, Option<Waker>) {
        let unparked = self.leave_seat(hubs);
        (unparked, self.slot().take())
    }

    #[inline]
    fn leave_seat(&mut self, hubs: &Hubs) -> Unparked {
        let (seat, hub) = (self.seat, hubs.of(self.seat.code()));
        if seat.is_idle() {
            return Unparked { woken: false, resume: 0, at: 0 };
        }
        // Loaded before PARKED is left: a pass after that no longer looks at this seat.
        let (scanned_to, followed_to) = (hub.scanned_to(), hub.followed_to(self.asks_at_its_bucket()));
        let LeftSeat { resume, counted } = seat.unpark();
        #[cfg(loom)]
        let counted = if weak::is(weak::Site::UncountedTwice) { CountedAt::Hub } else { counted };
        match (counted, &self.own.interest) {
            (CountedAt::Bucket, Some(Interest::Chain(_, bucket))) => hub.remove_waiter_at(bucket),
            (CountedAt::Bucket, Some(Interest::Events(_, Some(request)))) => {
                // The notifier has moved the seat to the bucket.
                if let Some(Some(bucket)) = request.answer() {
                    hub.remove_waiter_at(bucket);
                }
            }
            (CountedAt::Nowhere, _) => {}
            (_, interest) => hub.remove_waiters(1, interest.as_ref().and_then(Interest::group)),
        }
        match resume {
            Some(resume) => Unparked { woken: true, resume, at: seat.woken_at() },
            // A seat that was moved to a bucket meanwhile had no event there below the head of that pass, and `followed_to`
            // was stored by that pass, by one before it or by one that has looked at the seat there.
            None if counted == CountedAt::Bucket => Unparked { woken: false, resume: followed_to, at: 0 },
            None => Unparked { woken: false, resume: scanned_to, at: 0 },
        }
    }

    /// Whether it asks its filter about each event of its bucket.
    fn asks_at_its_bucket(&self) -> bool {
        self.group().is_some_and(|group| !group.passes_its_bucket)
    }

    /// Leaves the seat for good, before the consumer is dropped.
    pub(crate) fn leave<W: Watched + 'static>(&mut self, cache: &Arc<W>) {
        let hub = cache.hubs().of(self.seat.code());
        self.unpark(cache.hubs());
        // The wait may have ended, and the tables have dropped its interest, while it listed its time.
        let is_listed = self.seat.times().is_some_and(|times| times.listed().is_some());
        if is_listed || self.seat.is_announced() {
            hub.post(cache, Message::Leave(self.count()));
            let is_wanted = match &self.own.interest {
                Some(Interest::Revision(wanted)) => wanted.position.revision >= hub.highest_revision_wanted(),
                _ => false,
            };
            // The notifier then lowers the wanted revision, so that the source is not asked for it any more, and drops
            // a predicate though nobody publishes: the predicate may hold the cache itself.
            if is_wanted || self.seat.code() == FilterCode::Foreign {
                hub.notify(cache);
            }
        }
        // Drops its counts on the bucket and on the request for it.
        self.own.interest = None;
        self.leave_sets();
    }
}
