//! The sleep of a subscription: what it waits for, and its own side of its seat.

#![allow(unsafe_code, reason = "whoever has the handle is the consumer")]

use super::awake::Awake;
use super::own::{Bookmarks, Flag, SubscriptionPhase};
use super::{Start, Subscription};
use crate::batch::Batch;
use crate::cache::OPEN;
use crate::error::{Code, Result};
use crate::sync::Acquire;
use crate::sys::clock;
use crate::wake::{Due, FilterCode, GroupRef, Hub, Interest, Sleeper, Unparked, WakeSet, Waker, not_in_a_set};
use std::sync::Arc;
use std::time::Instant;

impl Subscription {
    /// It is dropped: its seat is left for good.
    pub(super) fn end_sleep(&mut self) {
        // SAFETY: the one handle of the consumer.
        unsafe { self.shared.sleeps_no_more() }
    }
}

impl Awake<'_> {
    /// The consumer at its seat.
    #[inline]
    pub(super) fn sleeper(&mut self) -> Sleeper<'_> {
        // SAFETY: a call of the one handle of the consumer, which `own` is borrowed from; borrowed as long as the sleeper
        // lives.
        unsafe { self.shared.sleeper() }
    }

    /// Where it sleeps.
    pub(super) fn hub(&self) -> &Hub {
        self.shared.inner.hubs.of(FilterCode::of(&self.shared.matcher))
    }

    /// Those who are woken by the same events: by more than what is delivered, where kinds are masked and yet
    /// recorded.
    fn group(&mut self) -> GroupRef {
        if let Some(group) = self.sleeper().group() {
            return group.clone();
        }
        let matcher = &self.shared.matcher;
        let unmasked = if self.own.on_lag.needs_delivered_keys() { matcher.unmasked() } else { None };
        let matcher = unmasked.map_or_else(|| matcher.clone(), Arc::new);
        self.hub().groups.join(&matcher, self.shared.inner.indexes.bucket_passes(&matcher))
    }

    pub(super) fn bookmarks(&self) -> Option<&Bookmarks> {
        self.own.cold.as_ref().and_then(|cold| cold.bookmarks.as_deref())
    }

    /// What of the cache would make `peek` true, and when it does in any case. `None`: an event.
    fn interest_in_the_cache(&self) -> (Option<Interest>, Option<Instant>) {
        match (self.own.phase(), self.start()) {
            (SubscriptionPhase::Unready, _) => (Some(Interest::Ready), None),
            (SubscriptionPhase::Revision { until }, Some(Start::StateAtLeast(revision))) => {
                (Some(Interest::revision(revision.into(), None)), *until)
            }
            _ => (self.future_interest(), None),
        }
    }

    /// Waits for events. Where it did so when it slept last, in the same way, nothing is counted or announced.
    fn wait_for_events(&mut self) {
        // Buckets are looked at by the thread that runs no predicates.
        let scans = FilterCode::of(&self.shared.matcher) == FilterCode::Foreign;
        let (bucket, request) = if scans { (None, None) } else { self.read_path() };
        let (at, asked) = (bucket.map(Arc::as_ptr), request.map(Arc::as_ptr));
        if self.sleeper().waits_for_events(at, asked) {
            return;
        }
        let group = self.group();
        let interest = match if scans { (None, None) } else { self.read_path() } {
            (Some(bucket), _) => Interest::Chain(group, bucket.clone()),
            (None, request) => Interest::Events(group, request.cloned()),
        };
        self.sleeper().wait_for(interest);
    }

    pub(super) fn park(&mut self, waker: Waker) -> bool {
        self.park_until(waker, None)
    }

    /// Sleeps for what would make `peek` true, if nothing does now, and for what is due until then. True: it is parked.
    pub(super) fn park_until(&mut self, waker: Waker, until: Option<Instant>) -> bool {
        self.cursor.release();
        // As it stands when it sleeps: it may be looked at for long.
        self.share();
        let (interest, limit) = if self.own.is_live() { (None, None) } else { self.interest_in_the_cache() };
        let of_the_cache = interest.is_some();
        let mut due = Due { deadline: limit.into_iter().chain(until).min(), ..Due::default() };
        if let Some(interest) = interest {
            self.sleeper().wait_for(interest);
        } else {
            if let Some(bookmarks) = self.bookmarks() {
                due.bookmark = bookmarks.at.checked_add(bookmarks.interval).map(|at| (at, bookmarks.delivered));
            }
            self.wait_for_events();
        }
        let (inner, cursor) = (self.inner(), self.cursor.seq());
        if let Err(unparked) = self.sleeper().park(inner, cursor, waker, &due) {
            self.slept(unparked);
            return false;
        }
        self.own.set(Flag::Parked, true);
        // Behind PARKED and the fence in `Sleeper::park`. Partner: `Consumer::close` stores the end, fence, looks at
        // the seat.
        if self.shared.end.load(Acquire) != OPEN {
            self.unpark_parked();
            return false;
        }
        if of_the_cache {
            inner.wake_source();
        }
        true
    }

    /// Ends a sleep and takes over how far the notifier looked.
    #[inline(always)]
    pub(super) fn unpark(&mut self) {
        if self.has(Flag::Parked) {
            self.unpark_parked();
        }
    }

    /// True: somebody had woken it.
    #[inline(never)]
    fn unpark_parked(&mut self) -> bool {
        if !self.own.take(Flag::Parked) {
            return false;
        }
        let hubs = &self.inner().hubs;
        let unparked = self.sleeper().unpark(hubs);
        self.slept(unparked);
        unparked.woken
    }

    /// Arms itself in its wake set. True: there is something, and its tag is listed.
    pub(super) fn arm(&mut self) -> Result<bool> {
        if self.has(Flag::Parked) || !self.sleeper().is_in_a_set() {
            self.arm_anew()?;
        }
        loop {
            if self.peek() {
                // Once: the notifier may have listed it before.
                self.sleeper().list();
                return Ok(true);
            }
            if self.park(Waker::Member) {
                return Ok(false);
            }
        }
    }

    /// The poll of a member, which leaves it armed where it gives nothing: what came in between is what it gives. Where it
    /// gives something, and nobody else would list the member for what is left, it lists or arms it, too: that is where
    /// [`WakeSet::next`] has given its tag out, or this poll has ended its arming. After CLOSED nothing more comes.
    ///
    /// `rests` is called before the member can be found in its set, so that who takes its tag meanwhile finds it free.
    #[inline(never)]
    pub(super) fn poll_member(&mut self, max: usize, rests: impl Fn()) -> Result<Batch> {
        let was_armed = self.has(Flag::Parked) && !self.unpark_parked();
        let is_given = self.sleeper().take_given();
        loop {
            let answer = self.poll(max);
            if !self.sleeper().is_in_a_set() {
                return answer;
            }
            match &answer {
                Ok(batch) if batch.is_empty() && !batch.continues() => {
                    rests();
                    if (self.awaits_events() || !self.peek()) && self.park(Waker::Member) {
                        return answer;
                    }
                }
                Err(error) if error.code() == Code::Closed => return answer,
                _ => {
                    if is_given || was_armed {
                        self.arm_member(rests);
                    }
                    return answer;
                }
            }
        }
    }

    /// Lists or arms a member of a set that is there; see [`Awake::poll_member`].
    pub(super) fn arm_member(&mut self, rests: impl Fn()) {
        self.unpark();
        if self.has(Flag::Member) && self.sleeper().is_in_a_set() {
            rests();
            // It fails only where it is in no set.
            _ = self.arm();
        }
    }

    /// Before it arms itself: where it sleeps already, or is in no set that is there.
    #[cold]
    fn arm_anew(&mut self) -> Result<()> {
        let is_member = self.sleeper().is_member();
        let waker = if is_member { self.unpark_with_waker() } else { None };
        if is_member && self.sleeper().is_in_a_set() {
            return Ok(());
        }
        waker.into_iter().for_each(Waker::call);
        Err(self.named(not_in_a_set("subscription")))
    }

    /// True: it was a member of this set, and is none any more. A sleep in another one goes on.
    fn leave_set(&mut self, set: &WakeSet) -> bool {
        if !self.sleeper().is_member() {
            return false;
        }
        let waker = self.unpark_with_waker();
        let was_member = self.sleeper().leave_set(set);
        if was_member {
            self.own.set(Flag::Member, false);
        }
        match waker {
            Some(Waker::Member) if !was_member => _ = self.arm(),
            waker => waker.into_iter().for_each(Waker::call),
        }
        was_member
    }

    /// As [`Awake::unpark`]; the waker that was not called.
    #[inline]
    fn unpark_with_waker(&mut self) -> Option<Waker> {
        let hubs = &self.inner().hubs;
        let (unparked, waker) = self.sleeper().unpark_with_waker(hubs);
        if self.own.take(Flag::Parked) {
            self.slept(unparked);
        }
        waker
    }

    fn slept(&mut self, unparked: Unparked) {
        if self.own.is_live() && self.cursor.seq() < unparked.resume {
            self.cursor.jump(unparked.resume);
            self.own.set(Flag::MovedUnseen, true);
        }
        // Until it was woken it had everything.
        self.shared.caught_up(if unparked.woken { unparked.at } else { clock::soon() });
    }
}

impl WakeSet {
    /// Adds a subscription under a tag; it leaves the set it was in. It joins when it is armed.
    pub fn add(&self, subscription: &mut Subscription, tag: u64) -> Result<()> {
        subscription.awake(|awake| {
            drop(awake.unpark_with_waker());
            awake.sleeper().join_set(self, tag);
            awake.own.set(Flag::Member, true);
        });
        Ok(())
    }

    /// Takes a subscription out; true if it was in this set. A tag of it that is listed is dropped.
    pub fn remove(&self, subscription: &mut Subscription) -> bool {
        subscription.shared.seat().is_some() && subscription.awake(|awake| awake.leave_set(self))
    }
}
