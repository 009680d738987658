//! A consumer's own side of its seat.
//!
//! A [`Registration`] is the life of one sleeper in one seat, of which it is a part: made when it first sleeps, announced to
//! the notifier with its [`Interest`], parked and unparked any number of times, taken back when its consumer is dropped.
//! A consumer reaches it as a [`Sleeper`]: whoever has one is the consumer. Nothing here waits but [`Seat::sleep`], and
//! nothing takes a lock that anybody else could want.

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
    /// Somebody has woken it; the tag of a member is listed by then.
    pub(crate) woken: bool,
    /// Where the cursor may continue: nothing of its own lies below. 0: where it was.
    pub(crate) resume: u64,
    /// When it was woken, as a time of [`crate::sys::clock`].
    pub(crate) at: u64,
}

/// See the module.
#[derive(Default)]
pub(super) struct Registration {
    interest: Option<Interest>,
}

/// The seat of one consumer, made when it first sleeps. The tables, and who looks at it, have it beside.
pub(crate) struct OwnSeat(OnceArc<Seat>);

impl OwnSeat {
    pub(crate) fn new() -> OwnSeat {
        OwnSeat(OnceArc::new())
    }

    /// The seat, for everybody, if its consumer has ever slept.
    #[inline]
    pub(crate) fn seat(&self) -> Option<&Seat> {
        self.0.get()
    }

    /// A count on it.
    pub(crate) fn count(&self) -> Option<SeatRef> {
        self.0.count()
    }

    /// The consumer there: who has this alone.
    pub(crate) fn sleeper(&mut self, code: FilterCode) -> Sleeper<'_> {
        // SAFETY: borrowed mutably as long as it lives, and nobody else makes one of this seat.
        unsafe { self.shared_sleeper(|| code) }
    }

    /// The same where others reach this, too.
    ///
    /// # Safety
    ///
    /// Only the consumer, and it has no other sleeper as long as this one lives.
    #[inline]
    pub(crate) unsafe fn shared_sleeper(&self, code: impl FnOnce() -> FilterCode) -> Sleeper<'_> {
        let seat = self.0.get_or_make(|| Seat::new(code()));
        // SAFETY: by the caller's promise.
        let own = unsafe { seat.registration() };
        Sleeper { home: &self.0, seat, own }
    }
}

impl std::fmt::Debug for OwnSeat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0.get())
    }
}

/// A consumer at its seat, in one call of its own.
pub(crate) struct Sleeper<'s> {
    home: &'s OnceArc<Seat>,
    seat: &'s Seat,
    own: &'s mut Registration,
}

impl Sleeper<'_> {
    /// One more count on the seat, for the tables.
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
        // SAFETY: a sleeper is the consumer, borrowed mutably, and it is awake.
        unsafe { self.seat.waker() }
    }

    /// Joins a wake set, and leaves the one that it was in. It is awake.
    pub(crate) fn join_set(&mut self, set: &WakeSet, tag: u64) {
        self.leave_sets();
        let membership = Membership::new(set, tag, &self.count());
        *self.slot() = WakerSlot::Member { membership, armed: false };
    }

    /// True: it was a member of this set, and is none any more. It is awake.
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
            // It is in none; and no waker is left in the seat of one that is awake.
            _ => {}
        }
    }

    /// Whether its set has given its tag out since this was asked last.
    pub(crate) fn take_given(&self) -> bool {
        self.seat.member().take_given()
    }

    /// Whether it is in a wake set that is there. It is awake.
    pub(crate) fn is_in_a_set(&mut self) -> bool {
        self.slot().membership().is_some_and(|membership| membership.set.strong_count() > 0)
    }

    /// Lists itself in its set, as who wakes it would. It is awake.
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

    /// What it parks for from now on. It is awake.
    pub(crate) fn wait_for(&mut self, interest: Interest) {
        if !self.own.interest.as_ref().is_some_and(|before| before.is(&interest)) {
            self.seat.announce_anew();
            self.own.interest = Some(interest);
        }
    }

    /// Parks, then looks. `Err`: what it waits for may hold already, it is not parked (any more).
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
        // SAFETY: a sleeper is the consumer, and it is not parked: see above.
        unsafe { seat.park(cursor, waker, due, counted) };
        // Partner: the fence in `Tables::drop_seat`, behind which it looks whether the seat is parked.
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
            // The look comes behind the message, too.
            fence(ord!(RegisterFence, SeqCst));
        }
        // Partner: the fences behind `unlist`.
        let is_earlier = due.is_some() && seat.times().is_some_and(DueTimes::list_first);
        if is_earlier {
            hub.post(cache, Message::Time(self.count()));
        }
        let holds = interest.holds(cursor, &**cache);
        if is_earlier {
            // Nobody else says so, whether it sleeps now or the next time.
            hub.notify(cache);
        }
        if holds {
            // A pass that began before this seat was parked says nothing of what lies between its cursor and the
            // event that the pass has woken it for, or the head that the pass has reached.
            let unparked = self.unpark(cache.hubs());
            #[cfg(loom)]
            if weak::is(weak::Site::TakeOver) {
                return Err(unparked);
            }
            return Err(Unparked { resume: 0, ..unparked });
        }
        Ok(())
    }

    /// Ends a sleep. Without one: nothing to take over.
    pub(crate) fn unpark(&mut self, hubs: &Hubs) -> Unparked {
        let unparked = self.leave_seat(hubs);
        if !unparked.woken {
            // SAFETY: as in `park`: it has left the seat.
            unsafe { self.seat.waker() }.clear();
        }
        unparked
    }

    /// The same, and the waker that was not called.
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
        // Before PARKED is left: a later pass does not look at this seat.
        let (scanned_to, followed_to) = (hub.scanned_to(), hub.followed_to(self.asks_at_its_bucket()));
        let LeftSeat { resume, counted } = seat.unpark();
        #[cfg(loom)]
        let counted = if weak::is(weak::Site::UncountedTwice) { CountedAt::Hub } else { counted };
        match (counted, &self.own.interest) {
            (CountedAt::Bucket, Some(Interest::Chain(_, bucket))) => hub.remove_waiter_at(bucket),
            (CountedAt::Bucket, Some(Interest::Events(_, Some(request)))) => {
                // The notifier has moved it there.
                if let Some(Some(bucket)) = request.answer() {
                    hub.remove_waiter_at(bucket);
                }
            }
            (CountedAt::Nowhere, _) => {}
            (_, interest) => hub.remove_waiters(1, interest.as_ref().and_then(Interest::group)),
        }
        match resume {
            Some(resume) => Unparked { woken: true, resume, at: seat.woken_at() },
            // One that was moved to a bucket meanwhile had nothing there below the head of that pass, and `followed_to` was
            // stored by that pass, by one before or by one that has looked at it there.
            None if counted == CountedAt::Bucket => Unparked { woken: false, resume: followed_to, at: 0 },
            None => Unparked { woken: false, resume: scanned_to, at: 0 },
        }
    }

    /// Whether it asks its filter about each event of its bucket.
    fn asks_at_its_bucket(&self) -> bool {
        self.group().is_some_and(|group| !group.passes_its_bucket)
    }

    /// Takes it back for good: before it is dropped.
    pub(crate) fn leave<W: Watched + 'static>(&mut self, cache: &Arc<W>) {
        let hub = cache.hubs().of(self.seat.code());
        self.unpark(cache.hubs());
        // The wait may have ended, and what it announced been forgotten, while it listed its time.
        let is_listed = self.seat.times().is_some_and(|times| times.listed().is_some());
        if is_listed || self.seat.is_announced() {
            hub.post(cache, Message::Leave(self.count()));
            let is_wanted = match &self.own.interest {
                Some(Interest::Revision(wanted)) => wanted.position.revision >= hub.highest_revision_wanted(),
                _ => false,
            };
            // So that the source is not asked for it any more; and so that a predicate goes, though nobody publishes:
            // what it holds may be the cache itself.
            if is_wanted || self.seat.code() == FilterCode::Foreign {
                hub.notify(cache);
            }
        }
        // The bucket, and the request for it.
        self.own.interest = None;
        self.leave_sets();
    }
}
