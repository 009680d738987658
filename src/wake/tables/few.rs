//! The pass that a publisher does itself: few new events, against few filters and the buckets of these events, where
//! few seats are to be woken.
//!
//! It is bounded by the constants below, whatever the tables hold, calls nothing of the user's but the wakers of tasks that
//! the cache was told to trust, and has no system call but one for each thread or set that it wakes. Where anything else is
//! to be done, it changes nothing, and the notifier does the pass: only the notifier handles messages, waits for revisions
//! and listings, due times, and filters and seats beyond the bounds.

#![forbid(unsafe_code)]

use super::Tables;
use super::groups::Scanners;
use super::lists::{ChainReaders, each_match};
use crate::data::event::Kind;
use crate::sys::clock;
use crate::wake::group::FilterGroup;
use crate::wake::hub::Hub;
use crate::wake::seat::{Seat, SeatRef};
use crate::wake::waker::WakeUp;
use crate::wake::{CacheFrontier, Watched};

/// The most seats that are woken.
pub(in crate::wake) const SEATS: usize = 4;
/// The most events that are looked at.
const EVENTS: u64 = 16;
/// The most filters that are evaluated.
const FILTERS: usize = 8;
/// The most members of a group or bucket that is looked at; the most seats that are asked for their cursor.
const MEMBERS: usize = 8;

/// The wake-ups that a publisher calls after it has given the turn back.
pub(in crate::wake) type FewWakeUps = [Option<WakeUp>; SEATS];

/// A seat, the event for which it is to be woken, and the group in which it was found; `None`: at a bucket.
type FewSeat<'t> = (&'t SeatRef, u64, Option<&'t FilterGroup>);

/// The seats that were found so far.
#[derive(Default)]
struct FewSeats<'t> {
    found: [Option<FewSeat<'t>>; SEATS],
    taken: usize,
}

impl<'t> FewSeats<'t> {
    /// Adds a parked seat that has not handed out the event of `seq`, for its first such event. `None`: no room is left.
    fn add(&mut self, seat: &'t SeatRef, seq: u64, group: Option<&'t FilterGroup>) -> Option<()> {
        let known = |(other, ..): &FewSeat<'_>| std::ptr::eq(&***other, &**seat);
        if seat.parked_at().is_none_or(|cursor| cursor > seq) || self.found.iter().flatten().any(known) {
            return Some(());
        }
        *self.found.get_mut(self.taken)? = Some((seat, seq, group));
        self.taken += 1;
        Some(())
    }
}

impl Tables {
    /// Looks at the events up to `now.head` for every seat, as a pass does. `None`: that exceeds the bounds, and
    /// nothing was changed. Wakers of tasks are left to the notifier, unless the cache trusts them.
    pub(in crate::wake) fn look_at_few(
        &mut self,
        hub: &Hub,
        cache: &dyn Watched,
        now: &CacheFrontier,
    ) -> Option<FewWakeUps> {
        if !self.is_short(now) {
            return None;
        }
        let few = self.few_behind(cache, self.few_events(now.head)?, now.head)?;
        let (mut woken, at) = (FewWakeUps::default(), clock::now());
        let mut left = Vec::new();
        for ((seat, seq, group), place) in few.found.into_iter().flatten().zip(&mut woken) {
            let mut uncounted = 0;
            let wake = Seat::wake_behind(seat, seq, at, group.map(|_| &mut uncounted));
            if uncounted > 0 {
                hub.remove_waiters(uncounted, group);
            }
            match wake.ok().flatten() {
                Some(WakeUp::Task(task)) if !cache.trusts_wakers() => left.push(WakeUp::Task(task)),
                own => *place = own,
            }
        }
        self.groups.set_scanned_to(now.head);
        self.chains.set_followed_to(now.head);
        (self.followed_to, self.filtered_to) = (now.head, now.head);
        self.woken.extend(left);
        Some(woken)
    }

    /// Whether wake-ups are left for the notifier to call.
    pub(in crate::wake) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
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
    /// meanwhile, the lowest cursor of the sleepers, if these are few. `None`: there are more events than the bound.
    fn few_events(&self, head: u64) -> Option<u64> {
        let is_near = |from: &u64| head.saturating_sub(*from) <= EVENTS;
        let lowest = || {
            (self.known <= MEMBERS)
                .then(|| self.of_events().filter_map(|seat| seat.parked_at()).min().unwrap_or(head).min(head))
        };
        Some(self.groups.scanned_to()).filter(is_near).or_else(|| lowest().filter(is_near))
    }

    /// The seats that have an event in [from, head). `None`: they, their filters or lists exceed the bounds.
    fn few_behind(&self, cache: &dyn Watched, from: u64, head: u64) -> Option<FewSeats<'_>> {
        let mut few = FewSeats::default();
        for Scanners { group, members, .. } in self.groups.iter() {
            let mut at = from;
            while at < head && group.has_parked() {
                let first = cache.first_match(&group.matcher, at, head, usize::MAX).ok()?;
                let Some(seq) = first.found else { break };
                if members.len() > MEMBERS {
                    return None;
                }
                for seat in members.seats() {
                    few.add(seat, seq, Some(group))?;
                }
                at = seq + 1;
            }
        }
        if self.chains.is_empty() {
            return Some(few);
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
                each_match(members.all(), event, |seat| {
                    all = all.and_then(|()| few.add(seat, event.sequence(), None));
                });
            }
            true
        });
        visited.ok().and(all).map(|()| few)
    }
}
