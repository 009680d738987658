//! A consumer's own side of its seat.
//!
//! A [`Registration`] is the life of one sleeper in one seat: made when it first sleeps, announced to the notifier with its
//! [`Interest`], parked and unparked any number of times, taken back when it is dropped. Nothing here waits but
//! [`Seat::sleep`], and nothing takes a lock that anybody else could want.

#![forbid(unsafe_code)]

use super::group::GroupRef;
use super::hub::{Hubs, Message};
use super::interest::Interest;
use super::seat::{CountedAt, Due, SeatRef};
use super::{FilterCode, Waker, Watched};
use crate::log::buckets::{Bucket, Request};
#[cfg(loom)]
use crate::sync::weak;
use crate::sync::{AcqRel, Acquire, Relaxed, SeqCst, fence, ord};
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
pub(crate) struct Registration {
    code: FilterCode,
    interest: Option<Interest>,
    parked: bool,
}

impl Registration {
    pub(crate) fn new(code: FilterCode) -> Registration {
        Registration { code, interest: None, parked: false }
    }

    /// The filter group that it has joined, once it has slept for events: it never sleeps for anything else after that.
    pub(crate) fn group(&self) -> Option<&GroupRef> {
        self.interest.as_ref().and_then(Interest::group_of_events)
    }

    /// Whether it waits for events already, at this bucket, or with this request for one.
    pub(crate) fn waits_for_events(&self, bucket: Option<&Arc<Bucket>>, request: Option<&Arc<Request>>) -> bool {
        self.interest.as_ref().is_some_and(|interest| interest.is_of_events_at(bucket, request))
    }

    /// What it parks for from now on. It is awake.
    pub(crate) fn wait_for(&mut self, seat: &SeatRef, interest: Interest) {
        if !self.interest.as_ref().is_some_and(|before| before.is(&interest)) {
            seat.announced().store(false, Relaxed);
            self.interest = Some(interest);
        }
    }

    /// Parks, then looks. `Err`: what it waits for may hold already, it is not parked (any more).
    pub(crate) fn park<W: Watched + 'static>(
        &mut self,
        seat: &SeatRef,
        cache: &Arc<W>,
        cursor: u64,
        waker: Waker,
        due: &Due,
    ) -> Result<(), Unparked> {
        let hub = cache.hubs().of(self.code);
        let Some(interest) = &self.interest else { return Ok(()) };
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
        self.parked = true;
        seat.park(cursor, waker, due, counted);
        // Partner: the swap in `Tables::drop_seat`, which looks whether the seat is parked behind it.
        fence(ord!(RegisterFence, SeqCst));
        if !seat.announced().load(Relaxed) {
            seat.announced().swap(true, AcqRel);
            let wants = match interest {
                Interest::Revision(wanted) => Some(wanted.position.revision),
                _ => None,
            };
            hub.post(cache, Message::Join(seat.clone(), interest.clone()));
            if let Some(revision) = wants {
                // After the message: see `Hub::want_at_most`.
                hub.want(revision);
            }
            // The look comes behind the message, too.
            fence(ord!(RegisterFence, SeqCst));
        }
        // Partner: as with `announced`.
        let timed = due.is_some() && !seat.timed().load(Relaxed) && !seat.timed().swap(true, AcqRel);
        if timed {
            hub.post(cache, Message::Time(seat.clone()));
        }
        if interest.holds(cursor, &**cache) {
            // A pass that began before this seat was parked says nothing of what lies between its cursor and the
            // event that the pass has woken it for, or the head that the pass has reached.
            let unparked = self.unpark(seat, cache.hubs());
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

    /// Ends a sleep. Without one: nothing to take over.
    pub(crate) fn unpark(&mut self, seat: &SeatRef, hubs: &Hubs) -> Unparked {
        let hub = hubs.of(self.code);
        if !std::mem::take(&mut self.parked) {
            return Unparked { woken: false, resume: 0, at: 0 };
        }
        // Before PARKED is left: a later pass does not look at this seat.
        let scanned_to = hub.scanned_to();
        let woken = seat.unpark();
        match (seat.counted(), &self.interest) {
            (CountedAt::Bucket, Some(Interest::Chain(_, bucket))) => hub.remove_waiter_at(bucket),
            (CountedAt::Bucket, Some(Interest::Events(_, Some(request)))) => {
                // The notifier has moved it there.
                if let Some(Some(bucket)) = request.answer() {
                    hub.remove_waiter_at(bucket);
                }
            }
            (_, interest) => hub.remove_waiter(interest.as_ref().and_then(Interest::group)),
        }
        if woken {
            return Unparked { woken, resume: seat.resume(), at: seat.woken_at() };
        }
        seat.clear();
        Unparked { woken, resume: scanned_to, at: 0 }
    }

    /// Takes it back for good: before it is dropped.
    pub(crate) fn leave<W: Watched + 'static>(&mut self, seat: &SeatRef, cache: &Arc<W>) {
        let hub = cache.hubs().of(self.code);
        self.unpark(seat, cache.hubs());
        if seat.announced().load(Acquire) {
            hub.post(cache, Message::Leave(seat.clone()));
            let is_wanted = match &self.interest {
                Some(Interest::Revision(wanted)) => wanted.position.revision >= hub.highest_revision_wanted(),
                _ => false,
            };
            // So that the source is not asked for it any more; and so that a predicate goes, though nobody publishes:
            // what it holds may be the cache itself.
            if is_wanted || self.code == FilterCode::Foreign {
                hub.notify(cache);
            }
        }
        // The bucket, and the request for it.
        self.interest = None;
    }
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration").field("parked", &self.parked).finish()
    }
}
