//! The tables of a hub: which seat waits for what, and one pass over them.
//!
//! Owned by whichever thread holds the turn: the notifier, or a publisher doing the look itself. A seat is in one place at
//! a time: in the group of its filter, at its bucket, or in the maps of those that wait for the cache. It stays there while
//! its consumer sleeps and wakes any number of times; it is moved when its consumer announces another interest, or when the
//! bucket that it asked for is there. The seat itself stores its place.
//!
//! A pass loads the frontier, takes the messages, and looks at all events up to that head for parked seats: it claims and
//! wakes those that have one. Filters run here, and no lock is held that another thread could wait for. Other foreign code
//! (wakers, the source, the drop of filters) is collected and called after the turn was given back.
//!
//! A pass is bounded by [`steps`](super::steps). Each part keeps the work that it did not reach, and reports that; the
//! notifier returns after it has served the other caches that have called.
//!
//! | file | what |
//! | --- | --- |
//! | `groups` | filters that no bucket answers: the only work that may be more than the notifier can do |
//! | `chains` | seats at buckets |
//! | `few` | the pass that a publisher does itself |
//! | `lists`, `ahead` | lists of seats, and how they are woken |

#![forbid(unsafe_code)]

mod ahead;
mod chains;
mod few;
mod groups;
mod lists;

pub(super) use few::FewWakeUps;

use self::chains::Chains;
use self::groups::Groups;
use self::lists::{ChainReader, IdMap};
use super::group::GroupRef;
use super::hub::{Hub, Message};
use super::interest::Interest;
use super::seat::{CountedAt, Seat, SeatPlace, SeatRef};
use super::steps::{CHEAP, Steps};
use super::timers::Timers;
use super::waker::WakeUp;
use super::{CacheFrontier, Watched};
use crate::log::buckets::Request;
#[cfg(loom)]
use crate::sync::weak;
use crate::sync::{SeqCst, fence, ord};
use crate::sys::clock;
use std::collections::{BTreeMap, VecDeque};
use std::mem::take;
use std::sync::Arc;
use std::time::Instant;

/// Requests for buckets that a pass looks at, plus two for each message that it has read.
const ASKING: usize = 64;

/// Up to this many events are scanned rather than asking every seat for its cursor.
const NEAR: u64 = 64;

/// A member of a group that has asked for a bucket.
struct Asking {
    seat: SeatRef,
    group: GroupRef,
    request: Arc<Request>,
    /// The number of its announcement.
    number: u32,
}

/// The parameters of one pass, for its parts.
struct View<'p> {
    hub: &'p Hub,
    cache: &'p dyn Watched,
    now: &'p CacheFrontier,
    /// Whether the pass before has left work.
    is_behind: bool,
}

impl View<'_> {
    /// Whether the events from `from` on, left by an earlier pass, have come to lie half a window behind: then their
    /// sleepers are woken to look for themselves while the window still has all of them.
    fn is_late(&self, from: u64) -> bool {
        self.is_behind && self.now.head.saturating_sub(from) > self.cache.window() / 2
    }
}

/// Foreign code that is called after the turn was given back.
pub(super) struct LeftOutside {
    pub(super) woken: Vec<WakeUp>,
    pub(super) wakes_source: bool,
    pub(super) garbage: Vec<GroupRef>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Tables {
    /// Messages that no pass has read yet.
    unread: VecDeque<Message>,
    /// The number of seats in the tables.
    known: usize,
    groups: Groups,
    chains: Chains,
    /// All events below were looked at for the sleepers at buckets that ask no filter, and for those that ask one.
    followed_to: u64,
    filtered_to: u64,
    /// Members of groups whose request for a bucket was not answered yet, in the order in which they are looked at.
    asking: BTreeMap<u64, Asking>,
    /// The interests of seats that wait for no event, each with the number of its announcement.
    of_the_cache: IdMap<(Interest, u32)>,
    /// The last number that was given for `asking` or `of_the_cache`.
    numbered: u64,
    /// Seats that wait for a revision, for a ticket, for the listing; the last part of each key is the seat's number.
    revisions: BTreeMap<(u64, u64), SeatRef>,
    tickets: BTreeMap<(u64, u64), SeatRef>,
    listing: BTreeMap<u64, SeatRef>,
    /// Seats whose wait may be over, as a pass has found.
    reached: Vec<SeatRef>,
    timers: Timers,
    /// The epoch of the last pass.
    epoch: u64,
    look_again: bool,
    /// Whether the last pass has left work, with which the next one continues.
    is_behind: bool,
    /// Whether the source is to look at the wanted revision: woken outside the turn, like the wakers.
    wakes_source: bool,
    woken: Vec<WakeUp>,
    /// Groups to drop outside the turn: predicates are foreign code.
    garbage: Vec<GroupRef>,
}

/// The sequence numbers up to which events were looked at, for each kind of place.
#[derive(Clone, Copy)]
pub(super) struct LookedTo {
    pub(super) scanned: u64,
    pub(super) followed: u64,
    pub(super) filtered: u64,
}

impl LookedTo {
    /// All events below were looked at for a sleeper at this place; 0 where it waits for no event.
    pub(super) fn of(&self, place: SeatPlace) -> u64 {
        match place {
            SeatPlace::InGroup(..) | SeatPlace::Asking(..) => self.scanned,
            SeatPlace::AtBucket(..) => self.followed,
            SeatPlace::AtFiltered(..) => self.filtered,
            SeatPlace::OfTheCache(_) | SeatPlace::Nowhere => 0,
        }
    }
}

impl Tables {
    /// Does one look (see the module) and returns the time of the next one, if nobody calls. Filters take their steps
    /// from `filters`; each other part has its own.
    pub(super) fn pass(
        &mut self,
        hub: &Hub,
        cache: &dyn Watched,
        now: &CacheFrontier,
        messages: Vec<Message>,
        filters: &mut Steps,
    ) -> Option<Instant> {
        self.look_again = false;
        // Set until the pass has ended, so that a pass that panics counts as one that has left work.
        let view = View { hub, cache, now, is_behind: std::mem::replace(&mut self.is_behind, true) };
        let read = self.read_all(hub, messages);
        let mut whole = self.unread.is_empty();
        if now.closed {
            whole &= self.wake_everybody();
        } else if whole {
            // Every seat whose message was posted is in the tables now, so the look misses none.
            whole &= self.look_at_events(&view, read, filters);
        }
        whole &= self.look_at_the_cache(hub, now);
        let looked_to = self.looked_to();
        let timers = self.timers.pass(hub, now, looked_to, &mut self.woken);
        self.look_again |= timers.look_again;
        self.is_behind = !(whole && timers.whole);
        self.timers.next().map(clock::instant)
    }

    /// Whether the last pass has left work.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    pub(super) fn looked_to(&self) -> LookedTo {
        let (followed, filtered) = (self.followed_to, self.filtered_to);
        LookedTo { scanned: self.groups.scanned_to(), followed, filtered }
    }

    /// Whether the pass has made a change after which the cache has to be looked at once more.
    pub(super) fn takes_another_look(&self) -> bool {
        self.look_again
    }

    /// Takes the work that is to be done outside the turn.
    pub(super) fn finish(&mut self) -> LeftOutside {
        LeftOutside {
            woken: take(&mut self.woken),
            wakes_source: take(&mut self.wakes_source),
            garbage: take(&mut self.garbage),
        }
    }

    // ---- Messages ---------------------------------------------------------------------------------------

    /// Reads messages, as far as the steps reach, and returns how many.
    fn read_all(&mut self, hub: &Hub, messages: Vec<Message>) -> usize {
        if self.unread.is_empty() {
            self.unread = messages.into()
        } else {
            self.unread.extend(messages)
        }
        let (before, mut steps) = (self.unread.len(), Steps::new(CHEAP));
        while steps.take_one()
            && let Some(message) = self.unread.pop_front()
        {
            self.read(hub, message);
        }
        before - self.unread.len()
    }

    fn read(&mut self, hub: &Hub, message: Message) {
        match message {
            Message::Join(seat, interest, number) => {
                let wanted_another = self.remove(&seat);
                if let Interest::Revision(wanted) = &interest {
                    // True: `wanted` was lowered while this message was on its way.
                    self.wakes_source |= hub.want(wanted.position.revision);
                }
                self.insert(seat, interest, number);
                if wanted_another {
                    self.lower_what_is_wanted(hub);
                }
            }
            Message::Leave(seat) => {
                self.timers.remove(&seat);
                if self.remove(&seat) {
                    self.lower_what_is_wanted(hub);
                }
            }
            Message::Time(seat) => self.timers.add(seat),
        }
    }

    fn insert(&mut self, seat: SeatRef, interest: Interest, number: u32) {
        self.known += 1;
        match interest {
            Interest::Events(group, request) => {
                let index = self.groups.add(&group, seat.clone());
                seat.put_at(SeatPlace::InGroup(group.id(), index));
                if let Some(request) = request {
                    self.ask(Asking { seat, group, request, number });
                }
            }
            Interest::Chain(group, bucket) => {
                let (id, asks) = (bucket.id(), !group.passes_its_bucket);
                let reader = ChainReader { seat: seat.clone(), asks: asks.then_some(group) };
                let index = self.chains.of(asks).add(bucket, reader);
                seat.put_at(if asks { SeatPlace::AtFiltered(id, index) } else { SeatPlace::AtBucket(id, index) });
            }
            Interest::Revision(_) | Interest::Ready | Interest::Consistent(_) => {
                self.insert_of_the_cache(seat, interest, number)
            }
        }
    }

    fn next_number(&mut self) -> u64 {
        self.numbered += 1;
        self.numbered
    }

    /// Adds a member of a group that asks for a bucket, after all others.
    fn ask(&mut self, asking: Asking) {
        let number = self.next_number();
        asking.seat.put_at(SeatPlace::Asking(number, asking.seat.index()));
        self.asking.insert(number, asking);
    }

    /// Adds a seat that waits for no event.
    fn insert_of_the_cache(&mut self, seat: SeatRef, interest: Interest, announced: u32) {
        let number = self.next_number();
        seat.put_at(SeatPlace::OfTheCache(number));
        match &interest {
            Interest::Revision(wanted) => {
                self.tickets.extend(wanted.ticket.map(|ticket| ((ticket, number), seat.clone())));
                self.revisions.insert((wanted.position.revision, number), seat);
            }
            Interest::Consistent(ticket) => _ = self.tickets.insert((*ticket, number), seat),
            _ => _ = self.listing.insert(number, seat),
        }
        self.of_the_cache.insert(number, (interest, announced));
    }

    /// Takes a seat out. True: it waited for a revision.
    fn remove(&mut self, seat: &SeatRef) -> bool {
        let place = seat.place();
        if place == SeatPlace::Nowhere {
            return false;
        }
        seat.put_at(SeatPlace::Nowhere);
        self.known -= 1;
        match place {
            SeatPlace::InGroup(group, index) => self.leave_group(group, index),
            SeatPlace::Asking(number, index) => {
                if let Some(Asking { group, .. }) = self.asking.remove(&number) {
                    self.leave_group(group.id(), index);
                }
            }
            SeatPlace::AtBucket(bucket, index) => self.chains.whole.remove(bucket, index),
            SeatPlace::AtFiltered(bucket, index) => self.chains.filtered.remove(bucket, index),
            SeatPlace::OfTheCache(number) => return self.remove_of_the_cache(number),
            SeatPlace::Nowhere => {}
        }
        false
    }

    /// Removes a member of a group, and the group where it was the last.
    fn leave_group(&mut self, id: u64, index: u32) {
        self.garbage.extend(self.groups.remove(id, index));
    }

    /// Removes a seat that waits for no event. True: it waited for a revision.
    fn remove_of_the_cache(&mut self, number: u64) -> bool {
        match self.of_the_cache.remove(&number) {
            Some((Interest::Revision(wanted), _)) => {
                self.revisions.remove(&(wanted.position.revision, number));
                if let Some(ticket) = wanted.ticket {
                    self.tickets.remove(&(ticket, number));
                }
                return true;
            }
            Some((Interest::Consistent(ticket), _)) => _ = self.tickets.remove(&(ticket, number)),
            _ => _ = self.listing.remove(&number),
        }
        false
    }

    fn lower_what_is_wanted(&mut self, hub: &Hub) {
        let highest = self.revisions.last_key_value().map_or(0, |((revision, _), _)| *revision);
        // The message of a consumer that came meanwhile is in the inbox: another look reads it.
        self.look_again |= hub.want_at_most(highest);
    }

    // ---- Events -----------------------------------------------------------------------------------------

    /// Looks at the events up to the head for parked seats, first for those that ask no filter. True: for all of them.
    fn look_at_events(&mut self, view: &View<'_>, joined: usize, filters: &mut Steps) -> bool {
        let from = self.first_to_follow(view.now.head);
        let Tables { groups, chains, woken, .. } = self;
        let (mut cheap, mut seats) = (Steps::new(CHEAP), Steps::new(CHEAP));
        let mut whole = chains.follow(from, view, &mut cheap, woken);
        whole &= chains.whole.catch_up(view, &mut seats, woken);
        whole &= groups.look_at_open(view, &mut cheap, woken);
        // Split, so that neither kind takes all the steps from the other.
        let mut half = filters.half();
        whole &= chains.filtered.catch_up(view, &mut half, woken);
        filters.give_back(half);
        whole &= groups.scan(view, filters, woken);
        if chains.whole.are_up_to_date() {
            self.followed_to = chains.followed_to();
        }
        if chains.filtered.are_up_to_date() {
            self.filtered_to = chains.followed_to();
        }
        self.move_to_buckets(view, joined);
        whole
    }

    /// The seats that wait for events.
    fn of_events(&self) -> impl Iterator<Item = &SeatRef> {
        self.groups.iter().flat_map(|scanners| scanners.members.seats()).chain(self.chains.seats())
    }

    /// The start of the look at the events of buckets: the end of the last look, or, where that lies far below the head
    /// because nobody slept meanwhile, the lowest cursor of the sleepers.
    fn first_to_follow(&self, head: u64) -> u64 {
        let followed_to = self.chains.followed_to();
        if followed_to != 0 && head.saturating_sub(followed_to) <= NEAR.max(self.known as u64) {
            return followed_to.min(head);
        }
        // Asking every seat costs no more than the new events would.
        let lowest = self.chains.seats().filter_map(|seat| seat.parked_at()).min();
        lowest.unwrap_or(head).max(followed_to).min(head)
    }

    /// Moves parked members of groups to the bucket that they asked for, once it is linked from where their group was
    /// looked up to. The writer answers few requests a revision, so a pass looks at few, in turn: ten thousand that
    /// wait cost it no more than fifty.
    ///
    /// The group may be behind the head, up to which the events of buckets were visited. So a seat moves only if its bucket
    /// has nothing for it below the head; otherwise it is woken and looks for itself.
    fn move_to_buckets(&mut self, view: &View<'_>, joined: usize) {
        for _ in 0..self.asking.len().min(ASKING + 2 * joined) {
            let Some((_, Asking { seat, group, request, number })) = self.asking.pop_first() else { break };
            seat.put_at(SeatPlace::InGroup(group.id(), seat.index()));
            let looked_to = self.groups.looked_to(group.id());
            let bucket = match request.answer() {
                // The writer's table is full: the seat stays in its group.
                Some(None) => continue,
                // Linked from a later revision on than the group was looked up to: ask again in another look.
                Some(Some(bucket)) if bucket.linked_from() <= looked_to => bucket.clone(),
                _ => {
                    self.ask(Asking { seat, group, request, number });
                    continue;
                }
            };
            // A consumer that is awake announces the bucket when it sleeps next.
            let Some(claim) = Seat::claim(&seat) else { continue };
            if !seat.waits_for(number) {
                // It sleeps for another interest by now and is counted for that; its message is on its way.
                let (cursor, counted) = (claim.cursor(), claim.counted());
                claim.put_back(cursor, counted);
                continue;
            }
            let (cursor, head) = (claim.cursor().max(looked_to), view.now.head);
            #[cfg(loom)]
            let cursor = weak::instead(weak::Site::MovedUnasked, head, cursor);
            // Loaded after head, so `newest` covers every event of the bucket below head.
            if cursor < head && (bucket.newest() >= cursor || view.cache.newest_mark() >= cursor) {
                self.woken.extend(claim.settle(0, clock::now()));
                continue;
            }
            if claim.counted() == CountedAt::Hub {
                view.hub.move_to_bucket(&group, &bucket);
            }
            self.remove(&seat);
            self.insert(seat.clone(), Interest::Chain(group, bucket), number);
            claim.put_back(cursor.max(head), CountedAt::Bucket);
            self.look_again = true;
        }
        if self.look_again {
            // The seats are counted at their buckets now. Partner: the fence in `published_events`: the next look sees
            // what was published before it, and a later publisher sees the counts.
            fence(ord!(MoveToBucket, SeqCst));
        }
    }

    // ---- The cache --------------------------------------------------------------------------------------

    /// Wakes seats whose wait for a revision, the listing or a consistent read is over. True: all that may be over were
    /// looked at.
    fn look_at_the_cache(&mut self, hub: &Hub, now: &CacheFrontier) -> bool {
        let new_epoch = std::mem::replace(&mut self.epoch, now.position.epoch) != now.position.epoch;
        let mut steps = Steps::new(CHEAP);
        let Tables { revisions, tickets, listing, reached, .. } = self;
        let concerns_all = now.failed || now.closed;
        if new_epoch || (concerns_all && reached.is_empty()) {
            reached.clear();
            reached.extend(revisions.iter().chain(tickets.iter()).map(|(_, seat)| seat.clone()));
            let ends_the_listing = concerns_all || now.ready;
            reached.extend(listing.values().filter(|_| ends_the_listing).cloned());
        } else if reached.is_empty() {
            let revision = if now.ready { now.position.revision } else { 0 };
            let arrived = revisions.range(..=(revision, u64::MAX)).filter(|_| now.ready);
            let served = tickets.range(..=(now.consistent, u64::MAX));
            reached.extend(arrived.chain(served).map(|(_, seat)| seat).take(steps.left()).cloned());
            reached.extend(listing.values().filter(|_| now.ready).take(steps.left()).cloned());
        }
        if reached.is_empty() {
            return true;
        }
        while steps.take_one()
            && let Some(seat) = self.reached.pop()
        {
            // A seat that waited for a revision and a ticket is found twice, and may have been dropped with the first.
            let SeatPlace::OfTheCache(number) = seat.place() else { continue };
            let Some((interest, announced)) = self.of_the_cache.get(&number) else { continue };
            if now.closed || interest.is_reached(now) {
                let announced = *announced;
                self.drop_seat(&seat, announced);
            }
        }
        self.lower_what_is_wanted(hub);
        // Where the steps are over, more may have been reached than were collected.
        self.reached.is_empty() && !steps.are_over()
    }

    /// Ends a wait that was announced under this number: removes the seat from the tables. Its consumer announces anew if
    /// it sleeps again.
    fn drop_seat(&mut self, seat: &SeatRef, announced: u32) {
        self.remove(seat);
        if !seat.forget(announced) {
            // The consumer has another interest by now, and its message is on its way.
            return;
        }
        if let Some(times) = seat.times() {
            times.unlist();
        }
        self.timers.remove(seat);
        // Partner: PARKED, fence, `announce` and `list_first` in `Sleeper::park`: either that finds nothing announced and
        // nothing listed and posts both, or this sees it parked.
        fence(SeqCst);
        settle_all([seat], &mut self.woken);
    }

    /// Wakes all seats that wait for events, because the cache was closed, and removes them from the tables: a consumer
    /// that parks again sees the close. True: none is left.
    fn wake_everybody(&mut self) -> bool {
        let mut steps = Steps::new(CHEAP);
        while steps.take_one() {
            let member = self.groups.pop().map(|(seat, group)| {
                self.garbage.extend(group);
                seat
            });
            let Some(seat) = member.or_else(|| self.chains.whole.pop()).or_else(|| self.chains.filtered.pop()) else {
                return true;
            };
            if let SeatPlace::Asking(number, _) = seat.place() {
                self.asking.remove(&number);
            }
            seat.put_at(SeatPlace::Nowhere);
            self.known -= 1;
            settle_all([&seat], &mut self.woken);
        }
        false
    }
}

/// Wakes all seats that are parked: each looks for itself, from its own cursor. True: at least one was.
fn settle_all<'t>(seats: impl IntoIterator<Item = &'t SeatRef>, woken: &mut Vec<WakeUp>) -> bool {
    let (now, mut any) = (clock::now(), false);
    for claim in seats.into_iter().filter_map(Seat::claim) {
        any = true;
        woken.extend(claim.settle(0, now));
    }
    any
}
