//! Waiters at buckets, which are found through the buckets of each new event.
//!
//! Short lists are looked at while their event is visited. A long one is noted with the event instead, and looked at in
//! portions: at most [`EVENTS`] events are noted for a list, and where there are more, or where the portions do not keep up
//! for half a window, its members are woken to look for themselves, if their bucket has an event for them.
//!
//! Readers that take all events of their bucket ask no filter. Those that ask one are in separate lists, so that no reader
//! waits for filters of others.

#![forbid(unsafe_code)]

use super::lists::{ChainReader, ChainReaders, IdMap, Members, each_match};
use super::prefetch::PrefetchedWakeUps;
use super::steps::Steps;
use super::view::{View, settle_all};
use crate::data::event::{Event, Kind};
use crate::log::buckets::Bucket;
use crate::sync::Relaxed;
use crate::wake::sleep::parked_waiter::WaiterRef;
use crate::wake::sleep::waker::WakeUp;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The longest list that is looked at while its event is visited.
const SHORT: usize = 64;
/// The longest such list whose readers ask filters.
const SHORT_WITH_FILTERS: usize = 8;
/// The most events that are noted for a list.
const EVENTS: usize = 4096;

/// The events for which the members of a list are still to be looked at.
#[derive(Default)]
struct Backlog {
    /// Events that have come to the bucket, oldest first.
    events: VecDeque<u64>,
    /// Instead of looking at `events`, every member whose bucket has an event for it is woken.
    all: bool,
    /// Whether events have left the window before they were looked at.
    overrun: bool,
    /// The members from this index on have been looked at for the first event, or for `all`. `None`: no member was.
    below: Option<usize>,
}

impl Backlog {
    fn add(&mut self, seq: u64) {
        if self.all && self.below.is_none() {
            return;
        }
        if self.events.len() < EVENTS { self.events.push_back(seq) } else { self.wake_all(false) }
    }

    /// Drops the noted events: the members are woken to look for themselves.
    fn wake_all(&mut self, overrun: bool) {
        self.events.clear();
        self.overrun |= overrun;
        (self.all, self.below) = (true, None);
    }

    /// Looks at the members, as far as the steps reach. True: at all of them, for every event.
    fn look(&mut self, readers: &ChainReaders, view: &View<'_>, steps: &mut Steps, woken: &mut Vec<WakeUp>) -> bool {
        loop {
            if !self.all && self.events.front().is_some_and(|seq| view.is_late(*seq)) {
                self.wake_all(false);
            }
            if !self.all && self.events.is_empty() {
                return true;
            }
            if steps.are_over() {
                return false;
            }
            let (some, below) = readers.members.last_below(self.below.unwrap_or(usize::MAX), steps.left());
            steps.take(some.len());
            if self.all {
                let any = settle_all(with_something(&readers.bucket, some, view), woken);
                if any && std::mem::take(&mut self.overrun) {
                    view.waiters.overrun.fetch_add(1, Relaxed);
                }
            } else if look_at_one(some, self.events[0], view, woken).is_none() {
                self.wake_all(true);
                continue;
            }
            self.below = (below > 0).then_some(below);
            if self.below.is_none() && !std::mem::take(&mut self.all) {
                self.events.pop_front();
            }
        }
    }
}

/// The members that sleep, and whose bucket has an event for them or that have a resync mark to come. Called after the load
/// of head, so `newest` covers every event of the bucket below head.
fn with_something<'t>(
    bucket: &Arc<Bucket>,
    members: &'t [ChainReader],
    view: &View<'_>,
) -> impl Iterator<Item = &'t WaiterRef> {
    let (newest, mark) = (bucket.newest(), view.cache.newest_mark());
    let has_something =
        move |waiter: &&WaiterRef| waiter.parked_at().is_some_and(|cursor| newest >= cursor || mark >= cursor);
    members.iter().map(|reader| &reader.waiter).filter(has_something)
}

/// Wakes the members that wait for this event. `None`: it has left the window.
fn look_at_one(members: &[ChainReader], seq: u64, view: &View<'_>, woken: &mut Vec<WakeUp>) -> Option<()> {
    let mut wake_ups = PrefetchedWakeUps::new(None, woken);
    let visited = view.cache.visit_buckets(seq, seq + 1, &mut |event, _| {
        each_match(members, event, |waiter| wake_ups.wake_behind(waiter, seq));
        false
    });
    wake_ups.finish();
    visited.ok()
}

/// Lists of readers, by bucket: see the module.
#[derive(Default)]
pub(super) struct Lists {
    readers: IdMap<ChainReaders>,
    backlogs: BTreeMap<u64, Backlog>,
    /// The next portion begins with the list of this bucket, or of the smallest id above.
    next: u64,
    /// The lists whose members are woken next, once the cache is closed.
    closed: Vec<u64>,
}

impl Lists {
    pub(super) fn is_empty(&self) -> bool {
        self.readers.is_empty()
    }

    pub(super) fn get(&self, bucket: u64) -> Option<&ChainReaders> {
        self.readers.get(&bucket)
    }

    pub(super) fn waiters(&self) -> impl Iterator<Item = &WaiterRef> {
        self.readers.values().flat_map(|readers| readers.members.waiters())
    }

    pub(super) fn add(&mut self, bucket: Arc<Bucket>, reader: ChainReader) {
        let id = bucket.id();
        let readers = || ChainReaders { bucket, members: Members::default() };
        self.readers.entry(id).or_insert_with(readers).members.add(reader);
    }

    pub(super) fn remove(&mut self, bucket: u64, waiter: &WaiterRef) {
        if let Some(ChainReaders { members, .. }) = self.readers.get_mut(&bucket) {
            members.remove(waiter);
            if members.all().is_empty() {
                self.readers.remove(&bucket);
                self.backlogs.remove(&bucket);
            }
        }
    }

    /// Removes any reader, of a cache that was closed.
    pub(super) fn pop(&mut self) -> Option<WaiterRef> {
        while !self.readers.is_empty() {
            if self.closed.is_empty() {
                self.closed.extend(self.readers.keys());
            }
            let Some(id) = self.closed.last() else { break };
            let reader = self.readers.get_mut(id).and_then(|list| list.members.pop());
            if let Some(reader) = reader {
                return Some(reader.waiter);
            }
            self.readers.remove(id);
            self.backlogs.remove(id);
            self.closed.pop();
        }
        None
    }

    /// Whether every list was looked at for each visited event.
    pub(super) fn are_up_to_date(&self) -> bool {
        self.backlogs.is_empty()
    }

    fn followed(&mut self, short: usize) -> Followed<'_> {
        Followed { readers: &self.readers, backlogs: &mut self.backlogs, short }
    }

    /// Looks at the lists for the noted events. True: for all of them.
    pub(super) fn catch_up(&mut self, view: &View<'_>, steps: &mut Steps, woken: &mut Vec<WakeUp>) -> bool {
        let Lists { readers, backlogs, next, .. } = self;
        loop {
            let first = || backlogs.keys().next().copied();
            let Some(id) = backlogs.range(*next..).next().map(|(id, _)| *id).or_else(first) else { return true };
            if steps.are_over() {
                return false;
            }
            let looked =
                readers.get(&id).zip(backlogs.get_mut(&id)).map(|(list, noted)| noted.look(list, view, steps, woken));
            if looked != Some(false) {
                backlogs.remove(&id);
            }
            // The other lists go first.
            *next = id + 1;
        }
    }
}

/// Lists while events are followed, in which readers are found and backlogs noted.
struct Followed<'t> {
    readers: &'t IdMap<ChainReaders>,
    backlogs: &'t mut BTreeMap<u64, Backlog>,
    /// The longest list that is looked at at once.
    short: usize,
}

impl<'t> Followed<'t> {
    /// Looks at the readers of an event's bucket. Notes the event instead where the list is long, or has noted events already:
    /// a woken reader continues at the event that it is woken for, and must not skip those.
    fn touch(&mut self, bucket: u64, event: &Event, wake_ups: &mut PrefetchedWakeUps<'t, '_>, steps: &mut Steps) {
        let Some(ChainReaders { members, .. }) = self.readers.get(&bucket) else { return };
        if members.len() > self.short || self.backlogs.contains_key(&bucket) {
            self.backlogs.entry(bucket).or_default().add(event.sequence());
            return;
        }
        steps.take(members.len());
        each_match(members.all(), event, |waiter| wake_ups.wake_behind(waiter, event.sequence()));
    }

    /// Calls `note` for every list.
    fn note_for_all(&mut self, note: impl Fn(&mut Backlog)) {
        self.readers.keys().for_each(|id| note(self.backlogs.entry(*id).or_default()));
    }
}

/// The lists of readers that ask no filter, and of those that ask one.
#[derive(Default)]
pub(super) struct Chains {
    /// Readers that take all events of their bucket.
    pub(super) whole: Lists,
    /// Readers that ask a filter about each event.
    pub(super) filtered: Lists,
    /// All events below were visited.
    pub(super) followed_to: u64,
}

impl Chains {
    pub(super) fn of(&mut self, asks: bool) -> &mut Lists {
        if asks { &mut self.filtered } else { &mut self.whole }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.filtered.is_empty()
    }

    pub(super) fn waiters(&self) -> impl Iterator<Item = &WaiterRef> {
        self.whole.waiters().chain(self.filtered.waiters())
    }

    /// Visits each event from `from` on, and looks at the readers of its buckets. True: up to the head.
    pub(super) fn follow(&mut self, from: u64, view: &View<'_>, steps: &mut Steps, woken: &mut Vec<WakeUp>) -> bool {
        let head = view.now.head;
        self.followed_to = if self.is_empty() { head } else { from };
        if self.followed_to >= head {
            return true;
        }
        let mut both = [self.whole.followed(SHORT), self.filtered.followed(SHORT_WITH_FILTERS)];
        let mut wake_ups = PrefetchedWakeUps::new(None, woken);
        let mut stopped = None;
        let visited = view.cache.visit_buckets(from, head, &mut |event, buckets| {
            if !steps.take_one() {
                stopped = Some(event.sequence());
                return false;
            }
            if event.kind() == Kind::Resync {
                // Every filter lets a mark pass.
                both.iter_mut().for_each(|lists| lists.note_for_all(|list| list.add(event.sequence())));
                return true;
            }
            for bucket in buckets {
                both.iter_mut().for_each(|lists| lists.touch(bucket, event, &mut wake_ups, steps));
            }
            true
        });
        wake_ups.finish();
        if visited.is_err() {
            // The events have left the window; they may have been of buckets at which nobody waits.
            both.iter_mut().for_each(|lists| lists.note_for_all(|list| list.wake_all(true)));
        }
        self.followed_to = stopped.unwrap_or(head);
        stopped.is_none()
    }
}
