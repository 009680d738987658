//! The pass that a publisher does itself: few new events, against few filters and the buckets of these events, where
//! few waiters are to be woken.
//!
//! It is bounded by the constants below, whatever the tables hold, calls nothing of the user's but the wakers of tasks that
//! the cache was told to trust, and has no system call but one for each thread or set that it wakes. Where anything else is
//! to be done, it changes nothing, and the notifier does the pass: only the notifier handles messages, waits for revisions
//! and listings, due times, and filters and waiters beyond the bounds.

#![forbid(unsafe_code)]

use super::Tables;
use super::groups::ScannedGroup;
use super::lists::{ChainReaders, each_match};
use super::view::Searched;
use crate::data::event::Kind;
use crate::sys::clock;
use crate::wake::sleep::group::FilterGroup;
use crate::wake::sleep::interest::CacheFrontier;
use crate::wake::sleep::parked_waiter::{ParkedWaiter, WaiterRef};
use crate::wake::sleep::waiters::Waiters;
use crate::wake::sleep::waker::WakeUp;

/// The most waiters that are woken.
const WAITERS: usize = 4;
/// The most events that are looked at.
const EVENTS: u64 = 16;
/// The most filters that are evaluated.
const FILTERS: usize = 8;
/// The most members of a group or bucket that is looked at; the most waiters that are asked for their cursor.
const MEMBERS: usize = 8;

/// The wake-ups that a publisher calls after it has released the pass lock.
pub(crate) type ShortPassWakeUps = [Option<WakeUp>; WAITERS];

/// A waiter, the event for which it is to be woken, and the group in which it was found; `None`: at a bucket.
type FoundWaiter<'t> = (&'t WaiterRef, u64, Option<&'t FilterGroup>);

/// The waiters that were found so far.
#[derive(Default)]
struct FoundWaiters<'t> {
    waiters: [Option<FoundWaiter<'t>>; WAITERS],
    taken: usize,
}

impl<'t> FoundWaiters<'t> {
    /// Adds a parked waiter that has not handed out the event of `seq`, for its first such event. `None`: no room is left.
    fn add(&mut self, waiter: &'t WaiterRef, seq: u64, group: Option<&'t FilterGroup>) -> Option<()> {
        let known = |(other, ..): &FoundWaiter<'_>| std::ptr::eq(&***other, &**waiter);
        if waiter.parked_at().is_none_or(|cursor| cursor > seq) || self.waiters.iter().flatten().any(known) {
            return Some(());
        }
        *self.waiters.get_mut(self.taken)? = Some((waiter, seq, group));
        self.taken += 1;
        Some(())
    }
}

impl Tables {
    /// Looks at the events up to `now.head` for every waiter, as a pass does. `None`: that exceeds the bounds, and
    /// nothing was changed. Wakers of tasks are left to the notifier, unless the cache trusts them.
    pub(crate) fn short_pass(
        &mut self,
        waiters: &Waiters,
        cache: &dyn Searched,
        now: &CacheFrontier,
        trusts_wakers: bool,
    ) -> Option<ShortPassWakeUps> {
        if !self.is_short(now) {
            return None;
        }
        let found = self.find_waiters(cache, self.first_event(now.head)?, now.head)?;
        let (mut woken, at) = (ShortPassWakeUps::default(), clock::now());
        let mut left = Vec::new();
        for ((waiter, seq, group), place) in found.waiters.into_iter().flatten().zip(&mut woken) {
            let mut uncounted = 0;
            let wake = ParkedWaiter::wake_behind(waiter, seq, at, group.map(|_| &mut uncounted));
            if uncounted > 0 {
                waiters.remove(uncounted, group);
            }
            match wake.ok().flatten() {
                Some(WakeUp::Task(task)) if !trusts_wakers => left.push(WakeUp::Task(task)),
                own => *place = own,
            }
        }
        self.groups.scanned_to = now.head;
        self.chains.followed_to = now.head;
        (self.followed_to, self.filtered_to) = (now.head, now.head);
        self.after.woken.extend(left);
        Some(woken)
    }

    /// Whether only events are to be looked at, for few groups.
    fn is_short(&self, now: &CacheFrontier) -> bool {
        // A pass has run before, in this epoch, and has left no work.
        self.groups.scanned_to() != 0
            && !self.is_behind
            && self.epoch == now.position.epoch
            && self.groups.len() <= FILTERS
            && self.asking.is_empty()
            && self.revisions.is_empty()
            && self.tickets.is_empty()
            && self.listing.is_empty()
            && !self.timers.awaits_a_move()
            && !now.closed
    }

    /// The start of the look: the end of the last one, or, where that lies far below the head because nobody slept
    /// meanwhile, the lowest cursor of the waiters, if these are few. `None`: there are more events than the bound.
    fn first_event(&self, head: u64) -> Option<u64> {
        let is_near = |from: &u64| head.saturating_sub(*from) <= EVENTS;
        let lowest = || {
            (self.known <= MEMBERS)
                .then(|| self.of_events().filter_map(|waiter| waiter.parked_at()).min().unwrap_or(head).min(head))
        };
        Some(self.groups.scanned_to()).filter(is_near).or_else(|| lowest().filter(is_near))
    }

    /// The waiters that have an event in [from, head). `None`: they, their filters or lists exceed the bounds.
    fn find_waiters(&self, cache: &dyn Searched, from: u64, head: u64) -> Option<FoundWaiters<'_>> {
        let mut found = FoundWaiters::default();
        for ScannedGroup { group, members, .. } in self.groups.iter() {
            let mut at = from;
            while at < head && group.has_parked() {
                let first = cache.first_match(&group.matcher, at, head, usize::MAX).ok()?;
                let Some(seq) = first.found else { break };
                if members.len() > MEMBERS {
                    return None;
                }
                for waiter in members.waiters() {
                    found.add(waiter, seq, Some(group))?;
                }
                at = seq + 1;
            }
        }
        if self.chains.is_empty() {
            return Some(found);
        }
        let mut all = Some(());
        let visited = cache.visit_buckets(from, head, &mut |event, buckets| {
            if event.kind() == Kind::Resync {
                all = None;
                return false;
            }
            let chains = &self.chains;
            let lists = buckets.flat_map(|bucket| [chains.whole.get(bucket), chains.filtered.get(bucket)]).flatten();
            for ChainReaders { members, .. } in lists {
                if members.len() > MEMBERS {
                    all = None;
                }
                if all.is_none() {
                    return false;
                }
                each_match(members.all(), event, |waiter| {
                    all = all.and_then(|()| found.add(waiter, event.sequence(), None));
                });
            }
            true
        });
        visited.ok().and(all).map(|()| found)
    }
}
