//! The tables of a hub: which waiter waits for what, and one pass over them.
//!
//! Owned by whichever thread holds the pass lock: the notifier, or a publisher doing the pass itself. A waiter is in one place at
//! a time: in the group of its filter, at its bucket, or in the maps of those that wait for the cache. It stays there while
//! its consumer sleeps and wakes any number of times; it is moved when its consumer announces another interest, or when the
//! bucket that it asked for is there. The waiter itself stores its place.
//!
//! A pass loads the frontier, takes the messages, and looks at all events up to that head for parked waiters: it claims and
//! wakes those that have one. Filters run here, and no lock is held that another thread could wait for. Other foreign code
//! (wakers, the source, the drop of filters) is collected and called after its release.
//!
//! A pass is bounded by [`steps`]. Each part keeps the work that it did not reach, and reports that; the
//! notifier returns after it has served the other caches that have called.
//!
//! | file | what |
//! | --- | --- |
//! | `groups` | filters that no bucket answers: the only work that may be more than the notifier can do |
//! | `chains` | waiters at buckets |
//! | `timers` | bookmarks and deadlines |
//! | `short_pass` | the pass that a publisher does itself |
//! | `steps`, `view` | the bound of a pass, and what its parts share |
//! | `lists`, `prefetch` | lists of waiters, and how they are woken |

#![forbid(unsafe_code)]

mod chains;
mod groups;
mod lists;
mod prefetch;
pub(super) mod short_pass;
pub(super) mod steps;
mod timers;
pub(super) mod view;

use self::chains::Chains;
use self::groups::Groups;
use self::lists::{ChainReader, IdMap};
use self::steps::{CHEAP, Steps, VISIT};
use self::timers::Timers;
use self::view::{NEAR, Searched, View, first_to_examine, settle_all};
use crate::log::buckets::Request;
#[cfg(loom)]
use crate::sync::weak;
use crate::sync::{SeqCst, fence, ord};
use crate::sys::clock;
use crate::wake::sleep::group::GroupRef;
use crate::wake::sleep::interest::{CacheFrontier, Interest};
use crate::wake::sleep::parked_waiter::{CountedAt, Filed, ParkedWaiter, WaiterRef};
use crate::wake::sleep::waiters::{ExaminedTo, Message, Waiters};
use crate::wake::sleep::waker::WakeUp;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// A member of a group that has asked for a bucket.
struct Asking {
    waiter: WaiterRef,
    group: GroupRef,
    request: Arc<Request>,
    /// The number of its announcement.
    number: u32,
}

/// What is called or dropped after the pass lock was released: system calls and foreign code.
#[derive(Default)]
pub(super) struct AfterRelease {
    pub(super) woken: Vec<WakeUp>,
    /// Whether the source is to look at the wanted revision.
    pub(super) wakes_source: bool,
    /// Groups with their predicates.
    pub(super) garbage: Vec<GroupRef>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Tables {
    /// Messages that no pass has read yet.
    unread: VecDeque<Message>,
    /// The number of waiters in the tables.
    known: usize,
    groups: Groups,
    chains: Chains,
    /// All events below were looked at for the waiters at buckets that ask no filter, and for those that ask one.
    followed_to: u64,
    filtered_to: u64,
    /// Members of groups whose request for a bucket was not answered yet, in the order in which they are looked at.
    asking: BTreeMap<u64, Asking>,
    /// How many of them may have been answered since they were looked at: all that were there at the head `asked_at`.
    to_move: usize,
    asked_at: u64,
    /// The interests of waiters that wait for no event, each with the number of its announcement.
    of_the_cache: IdMap<(Interest, u32)>,
    /// The last number that was given for `asking` or `of_the_cache`.
    numbered: u64,
    /// Waiters that wait for a revision, for a ticket, for the listing; the last part of each key is the waiter's number.
    revisions: BTreeMap<(u64, u64), WaiterRef>,
    tickets: BTreeMap<(u64, u64), WaiterRef>,
    listing: BTreeMap<u64, WaiterRef>,
    /// Waiters whose wait may be over, as a pass has found.
    reached: Vec<WaiterRef>,
    timers: Timers,
    /// The epoch of the last pass.
    epoch: u64,
    /// Whether the pass has made a change after which the cache has to be looked at once more.
    pub(super) look_again: bool,
    /// Whether the last pass has left work, with which the next one continues.
    pub(super) is_behind: bool,
    pub(super) after: AfterRelease,
}

impl Tables {
    /// Does one look (see the module) and returns the time of the next one, if nobody calls. Filters take their steps
    /// from `filters`; each other part has its own.
    pub(super) fn pass(
        &mut self,
        waiters: &Waiters,
        cache: &dyn Searched,
        now: &CacheFrontier,
        messages: Vec<Message>,
        filters: &mut Steps,
    ) -> Option<Instant> {
        self.look_again = false;
        // Set until the pass has ended, so that a pass that panics counts as one that has left work.
        let view = View { waiters, cache, now, is_behind: std::mem::replace(&mut self.is_behind, true) };
        self.read_all(waiters, messages);
        let mut whole = self.unread.is_empty();
        if now.closed {
            whole &= self.wake_everybody();
        } else if whole {
            // Every waiter whose message was posted is in the tables now, so the look misses none.
            whole &= self.look_at_events(&view, filters);
        }
        whole &= self.look_at_the_cache(waiters, now);
        let examined_to = self.examined_to();
        let timers = self.timers.pass(waiters, now, examined_to, &mut self.after.woken);
        self.look_again |= timers.look_again;
        self.is_behind = !(whole && timers.whole);
        self.timers.next().map(clock::instant)
    }

    pub(super) fn examined_to(&self) -> ExaminedTo {
        let (followed, filtered) = (self.followed_to, self.filtered_to);
        ExaminedTo { scanned: self.groups.scanned_to(), followed, filtered }
    }

    // ---- Messages ---------------------------------------------------------------------------------------

    /// Reads messages, as far as the steps reach.
    fn read_all(&mut self, waiters: &Waiters, messages: Vec<Message>) {
        if self.unread.is_empty() {
            self.unread = messages.into()
        } else {
            self.unread.extend(messages)
        }
        let mut steps = Steps::new(CHEAP);
        while steps.take_one()
            && let Some(message) = self.unread.pop_front()
        {
            self.read(waiters, message);
        }
        if self.unread.is_empty() {
            // Ten thousand that come at once leave half a megabyte, which no later pass would use.
            self.unread = VecDeque::new();
        }
    }

    fn read(&mut self, waiters: &Waiters, message: Message) {
        match message {
            Message::Join(waiter, interest, number) => {
                let wanted_another = self.remove(&waiter);
                if let Some(revision) = interest.revision_wanted() {
                    // True: `wanted` was lowered while this message was on its way.
                    self.after.wakes_source |= waiters.want(revision);
                }
                self.insert(waiter, interest, number);
                if wanted_another {
                    self.lower_what_is_wanted(waiters);
                }
            }
            Message::Leave(waiter) => {
                self.timers.remove(&waiter);
                if self.remove(&waiter) {
                    self.lower_what_is_wanted(waiters);
                }
            }
            Message::Time(waiter) => self.timers.add(waiter),
        }
    }

    fn insert(&mut self, waiter: WaiterRef, interest: Interest, announced: u32) {
        self.known += 1;
        match interest {
            Interest::Events(group, request) => {
                waiter.file(Filed::InGroup, group.id());
                self.groups.add(&group, waiter.clone());
                if let Some(request) = request {
                    self.ask(Asking { waiter, group, request, number: announced });
                }
                return;
            }
            Interest::Chain(group, bucket) => {
                let asks = !group.passes_its_bucket;
                waiter.file(if asks { Filed::AtFiltered } else { Filed::AtBucket }, bucket.id());
                return self.chains.of(asks).add(bucket, ChainReader { waiter, asks: asks.then_some(group) });
            }
            _ => {}
        }
        let number = self.next_number();
        waiter.file(Filed::OfTheCache, number);
        match &interest {
            Interest::Revision(wanted) => {
                self.tickets.extend(wanted.ticket.map(|ticket| ((ticket, number), waiter.clone())));
                self.revisions.insert((wanted.position.revision, number), waiter);
            }
            Interest::Consistent(ticket) => _ = self.tickets.insert((*ticket, number), waiter),
            _ => _ = self.listing.insert(number, waiter),
        }
        self.of_the_cache.insert(number, (interest, announced));
    }

    fn next_number(&mut self) -> u64 {
        self.numbered += 1;
        self.numbered
    }

    /// Adds a member of a group that asks for a bucket, after all others.
    fn ask(&mut self, asking: Asking) {
        let number = self.next_number();
        asking.waiter.file(Filed::Asking, number);
        self.asking.insert(number, asking);
    }

    /// Takes a waiter out. True: it waited for a revision.
    fn remove(&mut self, waiter: &WaiterRef) -> bool {
        let (filed, id) = waiter.filed();
        if filed == Filed::Nowhere {
            return false;
        }
        waiter.file(Filed::Nowhere, 0);
        self.known -= 1;
        match filed {
            Filed::InGroup => self.after.garbage.extend(self.groups.remove(id, waiter)),
            Filed::Asking => {
                let asking = self.asking.remove(&id);
                self.after.garbage.extend(asking.and_then(|asking| self.groups.remove(asking.group.id(), waiter)));
            }
            Filed::AtBucket => self.chains.whole.remove(id, waiter),
            Filed::AtFiltered => self.chains.filtered.remove(id, waiter),
            Filed::Nowhere => {}
            Filed::OfTheCache => match self.of_the_cache.remove(&id) {
                Some((Interest::Revision(wanted), _)) => {
                    self.revisions.remove(&(wanted.position.revision, id));
                    if let Some(ticket) = wanted.ticket {
                        self.tickets.remove(&(ticket, id));
                    }
                    return true;
                }
                Some((Interest::Consistent(ticket), _)) => _ = self.tickets.remove(&(ticket, id)),
                _ => _ = self.listing.remove(&id),
            },
        }
        false
    }

    fn lower_what_is_wanted(&mut self, waiters: &Waiters) {
        let highest = self.revisions.last_key_value().map_or(0, |((revision, _), _)| *revision);
        // The message of a consumer that came meanwhile is in the inbox: another look reads it.
        self.look_again |= waiters.want_at_most(highest);
    }

    // ---- Events -----------------------------------------------------------------------------------------

    /// Looks at the events up to the head for parked waiters, first for those that ask no filter. True: for all of them.
    fn look_at_events(&mut self, view: &View<'_>, filters: &mut Steps) -> bool {
        let (head, near) = (view.now.head, NEAR.max(self.known as u64));
        let from = first_to_examine(self.chains.followed_to, head, near, self.chains.waiters());
        let Tables { groups, chains, after: AfterRelease { woken, .. }, .. } = self;
        let (mut cheap, mut waiters) = (Steps::new(CHEAP), Steps::new(CHEAP));
        let mut whole = chains.follow(from, view, &mut cheap, woken);
        whole &= chains.whole.catch_up(view, &mut waiters, woken);
        whole &= groups.look_at_open(view, &mut cheap, woken);
        whole &= self.move_to_buckets(view);
        let Tables { groups, chains, after: AfterRelease { woken, .. }, .. } = self;
        // Split, so that neither kind takes all the steps from the other.
        let mut half = filters.half();
        whole &= chains.filtered.catch_up(view, &mut half, woken);
        filters.put_back(half);
        whole &= groups.scan(view, filters, woken);
        if chains.whole.are_up_to_date() {
            self.followed_to = chains.followed_to;
        }
        if chains.filtered.are_up_to_date() {
            self.filtered_to = chains.followed_to;
        }
        whole
    }

    /// The waiters that wait for events.
    fn of_events(&self) -> impl Iterator<Item = &WaiterRef> {
        self.groups.iter().flat_map(|scanned| scanned.members.waiters()).chain(self.chains.waiters())
    }

    /// Moves parked members of groups to the buckets that they asked for, before their groups are scanned. The members are
    /// looked at in turn, each once for each head. True: all that may have an answer by now were looked at.
    fn move_to_buckets(&mut self, view: &View<'_>) -> bool {
        if self.to_move == 0 && self.asked_at < view.now.head {
            (self.asked_at, self.to_move) = (view.now.head, self.asking.len());
        }
        let mut steps = Steps::new(CHEAP);
        while self.to_move > 0 && !steps.are_over() {
            steps.take(VISIT);
            self.to_move -= 1;
            match self.asking.pop_first() {
                Some((_, asking)) => self.move_to_bucket(asking, view, &mut steps),
                None => self.to_move = 0,
            }
        }
        if self.look_again {
            // The waiters are counted at their buckets now. Partner: the fence in `published_events`: the next look sees
            // what was published before it, and a later publisher sees the counts.
            fence(ord!(MoveToBucket, SeqCst));
        }
        self.to_move == 0
    }

    /// Moves a member of a group to its bucket, once the writer has answered.
    ///
    /// No chain has the events from its cursor up to `linked_from`, so its filter is evaluated for these; a pass visits the
    /// buckets of the later events for the members of their lists alone. If it has an event among any of them, it is woken
    /// and looks for itself.
    fn move_to_bucket(&mut self, asking: Asking, view: &View<'_>, steps: &mut Steps) {
        let head = view.now.head;
        let bucket = match asking.request.answer() {
            None => return self.ask(asking),
            // The writer's table is full: the waiter stays in its group.
            Some(None) => None,
            Some(Some(bucket)) if bucket.linked_from() > head => return self.ask(asking),
            Some(Some(bucket)) => Some(bucket.clone()),
        };
        let Asking { waiter, group, number, .. } = asking;
        waiter.file(Filed::InGroup, group.id());
        let examined_to = self.groups.examined_to(group.id());
        // A consumer that is awake announces the bucket when it sleeps next.
        let (Some(bucket), Some(cursor)) = (bucket, waiter.parked_at()) else { return };
        let from = cursor.max(examined_to);
        let has_events =
            view.has_unlinked(&group, &bucket, from, steps) || (from < head && view.cache.has_events(&bucket, from));
        #[cfg(loom)]
        let has_events = has_events && !weak::is(weak::Site::MovedUnasked);
        let Some(claim) = ParkedWaiter::claim(&waiter) else { return };
        let (cursor, counted) = (claim.cursor(), claim.counted());
        if !waiter.waits_for(number) {
            // It sleeps for another interest by now and is counted for that; its message is on its way.
            claim.put_back(cursor, counted);
        } else if has_events || cursor.max(examined_to) < from {
            self.after.woken.extend(claim.settle(0, clock::now()));
        } else {
            if counted == CountedAt::Hub {
                view.waiters.move_to_bucket(&group, &bucket);
            }
            self.remove(&waiter);
            self.insert(waiter.clone(), Interest::Chain(group, bucket), number);
            claim.put_back(cursor.max(head), CountedAt::Bucket);
            self.look_again = true;
        }
    }

    // ---- The cache --------------------------------------------------------------------------------------

    /// Wakes waiters whose wait for a revision, the listing or a consistent read is over. True: all that may be over were
    /// looked at.
    fn look_at_the_cache(&mut self, waiters: &Waiters, now: &CacheFrontier) -> bool {
        let new_epoch = std::mem::replace(&mut self.epoch, now.position.epoch) != now.position.epoch;
        let mut steps = Steps::new(CHEAP);
        let Tables { revisions, tickets, listing, reached, .. } = self;
        let concerns_all = now.failed || now.closed;
        if new_epoch || (concerns_all && reached.is_empty()) {
            reached.clear();
            reached.extend(revisions.iter().chain(tickets.iter()).map(|(_, waiter)| waiter.clone()));
            let ends_the_listing = concerns_all || now.ready;
            reached.extend(listing.values().filter(|_| ends_the_listing).cloned());
        } else if reached.is_empty() {
            let revision = if now.ready { now.position.revision } else { 0 };
            let arrived = revisions.range(..=(revision, u64::MAX)).filter(|_| now.ready);
            let served = tickets.range(..=(now.consistent, u64::MAX));
            reached.extend(arrived.chain(served).map(|(_, waiter)| waiter).take(steps.left()).cloned());
            reached.extend(listing.values().filter(|_| now.ready).take(steps.left()).cloned());
        }
        if reached.is_empty() {
            return true;
        }
        while steps.take_one()
            && let Some(waiter) = self.reached.pop()
        {
            // A waiter that waited for a revision and a ticket is found twice, and may have been dropped with the first.
            let (Filed::OfTheCache, number) = waiter.filed() else { continue };
            let Some((interest, announced)) = self.of_the_cache.get(&number) else { continue };
            if now.closed || interest.is_reached(now) {
                let announced = *announced;
                self.end_wait(&waiter, announced);
            }
        }
        self.lower_what_is_wanted(waiters);
        // Where the steps are over, more may have been reached than were collected.
        self.reached.is_empty() && !steps.are_over()
    }

    /// Ends a wait that was announced under this number: removes the waiter from the tables. Its consumer announces anew if
    /// it sleeps again.
    fn end_wait(&mut self, waiter: &WaiterRef, announced: u32) {
        self.remove(waiter);
        if !waiter.forget(announced) {
            // The consumer has another interest by now, and its message is on its way.
            return;
        }
        if let Some(times) = waiter.times() {
            times.unlist();
        }
        self.timers.remove(waiter);
        // Partner: PARKED, fence, `announce` and `list_first` in `Parker::park`: either that finds nothing announced and
        // nothing listed and posts both, or this sees it parked.
        fence(SeqCst);
        settle_all([waiter], &mut self.after.woken);
    }

    /// Wakes all waiters that wait for events, because the cache was closed, and removes them from the tables: a consumer
    /// that parks again sees the close. True: none is left.
    fn wake_everybody(&mut self) -> bool {
        let mut steps = Steps::new(CHEAP);
        while steps.take_one() {
            let member = self.groups.pop().map(|(waiter, group)| {
                self.after.garbage.extend(group);
                waiter
            });
            let Some(waiter) = member.or_else(|| self.chains.whole.pop()).or_else(|| self.chains.filtered.pop()) else {
                return true;
            };
            if let (Filed::Asking, number) = waiter.filed() {
                self.asking.remove(&number);
            }
            waiter.file(Filed::Nowhere, 0);
            self.known -= 1;
            settle_all([&waiter], &mut self.after.woken);
        }
        false
    }
}
