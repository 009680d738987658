//! The sleep of a subscription: what wakes it, and the consumer's side of its parked waiter.

#![allow(unsafe_code, reason = "whoever has the handle is the consumer")]

use super::awake::Awake;
use super::state::Flag;
use crate::batch::Batch;
use crate::cache::OPEN;
use crate::error::{Code, Result};
use crate::log::buckets::{Bucket, Request};
use crate::sync::Acquire;
use crate::sys::clock;
use crate::wake::{Due, FilterCode, GroupRef, Hub, Interest, Parker, Unparked, WakeSet, Waker, not_in_a_set};
use std::sync::Arc;
use std::time::Instant;

impl Awake<'_> {
    /// The consumer's side of its waiter.
    #[inline]
    pub(super) fn parker(&mut self) -> Parker<'_> {
        // SAFETY: this is a call of the consumer's only handle, and `self` stays borrowed mutably as long as the parker
        // lives.
        unsafe { self.shared.parker() }
    }

    /// Leaves its waiter for good, because the subscription is dropped.
    pub(super) fn end_sleep(&mut self) {
        // SAFETY: this is a call of the consumer's only handle, and `&mut self` excludes a parker.
        unsafe { self.shared.sleeps_no_more() }
    }

    /// The hub in which it sleeps.
    pub(super) fn hub(&self) -> &Hub {
        self.shared.inner.hubs.of(FilterCode::of(&self.shared.matcher))
    }

    /// The group of waiters that the same events wake. Where keys of masked kinds are recorded, the group's filter has
    /// no mask, so it passes more events than are delivered.
    fn group(&mut self) -> GroupRef {
        if let Some(group) = self.parker().group() {
            return group.clone();
        }
        let matcher = &self.shared.matcher;
        let unmasked = if self.state.on_lag.needs_delivered_keys() { matcher.unmasked() } else { None };
        let matcher = unmasked.map_or_else(|| matcher.clone(), Arc::new);
        self.hub().groups.join(&matcher, self.shared.inner.indexes.bucket_passes(&matcher))
    }

    /// Waits for events. If its last sleep waited for the same, no reference is counted and nothing is announced.
    fn wait_for_events(&mut self) {
        let (bucket, request) = self.read_path();
        let (at, asked) = (bucket.map(Arc::as_ptr), request.map(Arc::as_ptr));
        if self.parker().waits_for_events(at, asked) {
            return;
        }
        let group = self.group();
        let interest = match self.read_path() {
            (Some(bucket), _) => Interest::Chain(group, bucket.clone()),
            (None, request) => Interest::Events(group, request.cloned()),
        };
        self.parker().wait_for(interest);
    }

    /// The bucket whose chain it reads; else it scans, and the request for a bucket that is not answered yet, if any.
    fn read_path(&mut self) -> (Option<&Arc<Bucket>>, Option<&Arc<Request>>) {
        match &mut self.state.rare {
            // Only the notifier that runs no predicates looks at buckets.
            Some(rare) if FilterCode::of(&self.shared.matcher) != FilterCode::Foreign => {
                let is_complete = rare.path.chain(&self.cursor, self.shared).is_some();
                (rare.path.answered().filter(|_| is_complete), rare.path.request())
            }
            _ => (None, None),
        }
    }

    pub(super) fn park(&mut self, waker: Waker) -> bool {
        self.park_until(waker, None)
    }

    /// Parks until `peek` may be true, a bookmark is due, or `until` has come. True: it is parked; false: look again.
    pub(super) fn park_until(&mut self, waker: Waker, until: Option<Instant>) -> bool {
        self.cursor.release();
        // Shared before it sleeps, because other threads may look at it for long.
        self.share();
        let (interest, limit) = self.state.phase().interest(self.position());
        let of_the_cache = interest.is_some();
        let mut due = Due { deadline: limit.into_iter().chain(until).min(), ..Due::default() };
        if let Some(interest) = interest {
            self.parker().wait_for(interest);
        } else {
            if let Some(bookmarks) = self.state.bookmarks() {
                due.bookmark = bookmarks.at.checked_add(bookmarks.interval).map(|at| (at, bookmarks.delivered));
            }
            self.wait_for_events();
        }
        let (inner, cursor) = (self.inner(), self.cursor.seq());
        if let Waker::Task(_) = waker {
            self.hub().parks_here();
        }
        if let Err(unparked) = self.parker().park(inner, cursor, waker, &due) {
            self.slept(unparked);
            return false;
        }
        self.state.set(Flag::Parked, true);
        // After PARKED and the fence in `Parker::park`. Partner: `Consumer::close` stores the end, fence, looks at the
        // waiter.
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

    /// A poll, after its sleep has ended.
    #[inline(always)]
    pub(super) fn poll_unparked(&mut self, max: usize) -> Result<Batch> {
        self.unpark();
        self.poll(max)
    }

    /// Ends a sleep, if it sleeps. True: another thread had woken it.
    #[inline(never)]
    fn unpark_parked(&mut self) -> bool {
        if !self.state.take(Flag::Parked) {
            return false;
        }
        let inner = self.inner();
        let unparked = self.parker().unpark(inner);
        self.slept(unparked);
        unparked.woken
    }

    /// Arms itself in its wake set. True: a poll has something, and its tag is listed.
    pub(super) fn arm(&mut self) -> Result<bool> {
        if self.has(Flag::Parked) || !self.parker().is_in_a_set() {
            self.arm_anew()?;
        }
        loop {
            if self.peek() {
                // Listed at most once, though the notifier may have listed it before.
                self.parker().list();
                return Ok(true);
            }
            if self.park(Waker::Member) {
                return Ok(false);
            }
        }
    }

    /// The poll of a member. An empty poll arms it; if an event comes in between, it polls again. After a poll with events
    /// it lists or arms the member only if no other call will do it: [`WakeSet::next`] has given its tag out, or this poll
    /// has ended its arming. After CLOSED it does neither, as no event comes.
    ///
    /// `rests` is called before the member can be found in its set, so that a thread that takes its tag then finds it free.
    #[inline(never)]
    pub(super) fn poll_member(&mut self, max: usize, rests: impl Fn()) -> Result<Batch> {
        let was_armed = self.has(Flag::Parked) && !self.unpark_parked();
        let is_given = self.parker().take_given();
        loop {
            let answer = self.poll(max);
            if !self.parker().is_in_a_set() {
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

    /// Lists or arms a member of a set that still exists; see [`Awake::poll_member`].
    pub(super) fn arm_member(&mut self, rests: impl Fn()) {
        self.unpark();
        if self.has(Flag::Member) && self.parker().is_in_a_set() {
            rests();
            // Arming fails only where it is in no set.
            _ = self.arm();
        }
    }

    /// Prepares arming where it sleeps already, or its set may be gone.
    #[cold]
    fn arm_anew(&mut self) -> Result<()> {
        let is_member = self.parker().is_member();
        let waker = if is_member { self.unpark_with_waker() } else { None };
        if is_member && self.parker().is_in_a_set() {
            return Ok(());
        }
        waker.into_iter().for_each(Waker::call);
        Err(self.named(not_in_a_set("subscription")))
    }

    /// Leaves this set; false where it was no member of it, and then a sleep in another set continues.
    pub(super) fn leave_set(&mut self, set: &WakeSet) -> bool {
        if !self.parker().is_member() {
            return false;
        }
        let waker = self.unpark_with_waker();
        let was_member = self.parker().leave_set(set);
        if was_member {
            self.state.set(Flag::Member, false);
        }
        match waker {
            Some(Waker::Member) if !was_member => _ = self.arm(),
            waker => waker.into_iter().for_each(Waker::call),
        }
        was_member
    }

    /// Ends a sleep like [`Awake::unpark`], and returns the waker that was not called.
    #[inline]
    pub(super) fn unpark_with_waker(&mut self) -> Option<Waker> {
        let inner = self.inner();
        let (unparked, waker) = self.parker().unpark_with_waker(inner);
        if self.state.take(Flag::Parked) {
            self.slept(unparked);
        }
        waker
    }

    fn slept(&mut self, unparked: Unparked) {
        if self.state.is_live() && self.cursor.seq() < unparked.resume {
            self.cursor.jump(unparked.resume);
            self.state.set(Flag::MovedUnseen, true);
        }
        // It had everything until it was woken.
        self.shared.caught_up(if unparked.woken { unparked.at } else { clock::soon() });
    }
}
