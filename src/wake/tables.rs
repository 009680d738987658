//! The tables of the notifier: who waits for what, and one pass over it.
//!
//! Owned by whichever thread holds the turn: the notifier, or a publisher doing the look itself. A seat is in one place at a
//! time: in the group of its filter, at its bucket, or among those who wait for the cache. It stays there while its consumer
//! sleeps and wakes any number of times; it is moved when its consumer announces another interest, or when the bucket that
//! it asked for is there. Its place stands in its seat.
//!
//! A pass loads the frontier, takes the messages, and brings parked seats up to that head: what it finds for one it gives to
//! it by claiming the seat. Filters run here, and no lock is held that anybody else could want. What else is foreign code
//! is noted, and called when the turn was given back: wakers, the source, the drop of filters.
//!
//! A pass is bounded by [`steps`](super::steps). Each part of it keeps what it did not come to, and says so; the notifier
//! comes again when it has served the other caches that have called.
//!
//! | file | what |
//! | --- | --- |
//! | `groups` | filters that no bucket answers: the only work that may be more than the notifier can do |
//! | `chains` | seats at buckets |
//! | `few` | the look that a publisher takes itself |
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

/// Requests for buckets that a pass looks at, beside twice as many as have joined.
const ASKING: usize = 64;

/// Events below this are scanned rather than asking every seat where it stands.
const NEAR: u64 = 64;

/// A member of a group that has asked for a bucket.
struct Asking {
    seat: SeatRef,
    group: GroupRef,
    request: Arc<Request>,
    /// Of what it announced.
    number: u32,
}

/// One pass, as its parts see it.
struct View<'p> {
    hub: &'p Hub,
    cache: &'p dyn Watched,
    now: &'p CacheFrontier,
    /// The pass before it left something behind.
    is_behind: bool,
}

impl View<'_> {
    /// Whether what begins at `from` waited for its turn until half of the window had gone by: then its sleepers are woken to
    /// look for themselves, as long as all of it is there.
    fn is_late(&self, from: u64) -> bool {
        self.is_behind && self.now.head.saturating_sub(from) > self.cache.window() / 2
    }
}

/// Foreign code that a pass has left to be called when the turn was given back.
pub(super) struct LeftOutside {
    pub(super) woken: Vec<WakeUp>,
    pub(super) wakes_source: bool,
    pub(super) garbage: Vec<GroupRef>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Tables {
    /// Messages that no pass has come to yet.
    unread: VecDeque<Message>,
    /// Seats that are known: each has its place itself.
    known: usize,
    groups: Groups,
    chains: Chains,
    /// Readers at buckets that ask no filter, and those that ask one, have been looked at for all events below.
    followed_to: u64,
    filtered_to: u64,
    /// Members of groups whose request for a bucket was not answered yet, in turn.
    asking: BTreeMap<u64, Asking>,
    /// What those wait for who wait for no event, and the number that it was announced under.
    of_the_cache: IdMap<(Interest, u32)>,
    /// The last number under which a seat asks, or waits for no event.
    numbered: u64,
    /// Who waits for a revision, lowest first; for a ticket; for the listing: and the number of the seat.
    revisions: BTreeMap<(u64, u64), SeatRef>,
    tickets: BTreeMap<(u64, u64), SeatRef>,
    listing: BTreeMap<u64, SeatRef>,
    /// Those of whom a pass has found that their wait may be over.
    reached: Vec<SeatRef>,
    timers: Timers,
    /// The epoch of the last pass.
    epoch: u64,
    look_again: bool,
    /// The last pass has left something behind: the next one goes on there.
    is_behind: bool,
    /// The source is to look at what is wanted: called outside, as those who are woken.
    wakes_source: bool,
    woken: Vec<WakeUp>,
    /// Dropped outside: predicates are foreign code.
    garbage: Vec<GroupRef>,
}

/// How far sleepers have been looked at, by where they sleep.
#[derive(Clone, Copy)]
pub(super) struct LookedTo {
    pub(super) scanned: u64,
    pub(super) followed: u64,
    pub(super) filtered: u64,
}

impl LookedTo {
    /// Everything below was looked at for whoever sleeps there; 0 where it waits for no event.
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
    /// One look: see the module. When to look again, if nobody calls. Filters take steps of the caller's, all else has
    /// its own.
    pub(super) fn pass(
        &mut self,
        hub: &Hub,
        cache: &dyn Watched,
        now: &CacheFrontier,
        messages: Vec<Message>,
        filters: &mut Steps,
    ) -> Option<Instant> {
        self.look_again = false;
        // Until it has ended: a pass that panics has left something behind.
        let view = View { hub, cache, now, is_behind: std::mem::replace(&mut self.is_behind, true) };
        let read = self.read_all(hub, messages);
        let mut whole = self.unread.is_empty();
        if now.closed {
            whole &= self.wake_everybody();
        } else if whole {
            // Whoever left a message is in the tables: nobody is passed over.
            whole &= self.look_at_events(&view, read, filters);
        }
        whole &= self.look_at_the_cache(hub, now);
        let looked_to = self.looked_to();
        let timers = self.timers.pass(hub, now, looked_to, &mut self.woken);
        self.look_again |= timers.look_again;
        self.is_behind = !(whole && timers.whole);
        self.timers.next().map(clock::instant)
    }

    /// Whether the last pass has left something behind.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    pub(super) fn looked_to(&self) -> LookedTo {
        let (followed, filtered) = (self.followed_to, self.filtered_to);
        LookedTo { scanned: self.groups.scanned_to(), followed, filtered }
    }

    /// Whether something changed during the pass that only another look can judge.
    pub(super) fn takes_another_look(&self) -> bool {
        self.look_again
    }

    /// What is left to be done outside.
    pub(super) fn finish(&mut self) -> LeftOutside {
        LeftOutside {
            woken: take(&mut self.woken),
            wakes_source: take(&mut self.wakes_source),
            garbage: take(&mut self.garbage),
        }
    }

    // ---- Who is there -----------------------------------------------------------------------------------

    /// Takes the messages in, as many as there are steps; how many that were.
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
                    // True: it was lowered while this message was on its way.
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

    /// A member of a group asks, behind all others.
    fn ask(&mut self, asking: Asking) {
        let number = self.next_number();
        asking.seat.put_at(SeatPlace::Asking(number, asking.seat.index()));
        self.asking.insert(number, asking);
    }

    /// A seat that waits for no event.
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

    /// Takes a member out of a group, and the group where it was the last.
    fn leave_group(&mut self, id: u64, index: u32) {
        self.garbage.extend(self.groups.remove(id, index));
    }

    /// The same of a seat that waits for no event. True: for a revision.
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
        // Who came meanwhile is in the inbox: it is read again.
        self.look_again |= hub.want_at_most(highest);
    }

    // ---- Events -----------------------------------------------------------------------------------------

    /// Brings parked seats that wait for events up to the head: those that ask no filter first. True: all of them.
    fn look_at_events(&mut self, view: &View<'_>, joined: usize, filters: &mut Steps) -> bool {
        let from = self.first_to_follow(view.now.head);
        let Tables { groups, chains, woken, .. } = self;
        let (mut cheap, mut seats) = (Steps::new(CHEAP), Steps::new(CHEAP));
        let mut whole = chains.follow(from, view, &mut cheap, woken);
        whole &= chains.whole.catch_up(view, &mut seats, woken);
        whole &= groups.look_at_open(view, &mut cheap, woken);
        // Neither takes all the steps from the other.
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

    /// Who waits for events.
    fn of_events(&self) -> impl Iterator<Item = &SeatRef> {
        self.groups.iter().flat_map(|scanners| scanners.members.seats()).chain(self.chains.seats())
    }

    /// Where the look at the events of buckets begins: at the end of the last one, or, where that lies far behind because
    /// nobody slept meanwhile, at the lowest cursor of those who sleep.
    fn first_to_follow(&self, head: u64) -> u64 {
        let followed_to = self.chains.followed_to();
        if followed_to != 0 && head.saturating_sub(followed_to) <= NEAR.max(self.known as u64) {
            return followed_to.min(head);
        }
        // No more of them than there are new events.
        let lowest = self.chains.seats().filter_map(|seat| seat.parked_at()).min();
        lowest.unwrap_or(head).max(followed_to).min(head)
    }

    /// Parked members of groups that have been looked at up to head, and whose bucket is there by now, wait
    /// at that. The writer answers a few requests a revision, so a few of those who ask are looked at, in
    /// turn: ten thousand that wait for their answers cost a pass no more than fifty.
    ///
    /// A group may be behind the head, and the events of buckets have been visited up to there: whoever moves is brought up to
    /// the head by its bucket, which has nothing for it, or else is woken and looks for itself.
    fn move_to_buckets(&mut self, view: &View<'_>, joined: usize) {
        for _ in 0..self.asking.len().min(ASKING + 2 * joined) {
            let Some((_, Asking { seat, group, request, number })) = self.asking.pop_first() else { break };
            seat.put_at(SeatPlace::InGroup(group.id(), seat.index()));
            let looked_to = self.groups.looked_to(group.id());
            let bucket = match request.answer() {
                // There is none for it: it continues scanning.
                Some(None) => continue,
                // Answered for a revision that is still to come: with another look.
                Some(Some(bucket)) if bucket.linked_from() <= looked_to => bucket.clone(),
                _ => {
                    self.ask(Asking { seat, group, request, number });
                    continue;
                }
            };
            // A consumer that is awake announces the bucket with the next sleep.
            let Some(claim) = Seat::claim(&seat) else { continue };
            if !seat.waits_for(number) {
                // It sleeps for something else by now, and is counted for that: its message is on its way.
                let (cursor, counted) = (claim.cursor(), claim.counted());
                claim.put_back(cursor, counted);
                continue;
            }
            let (cursor, head) = (claim.cursor().max(looked_to), view.now.head);
            #[cfg(loom)]
            let cursor = weak::instead(weak::Site::MovedUnasked, head, cursor);
            // Behind head: what lies below it in the bucket is not above its newest.
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
            // They wait at their buckets now. Partner: the fence in `published_events`: what was published
            // before is seen by the next look, what comes after sees them.
            fence(ord!(MoveToBucket, SeqCst));
        }
    }

    // ---- The cache --------------------------------------------------------------------------------------

    /// Who waits for no event: for a revision, the listing, a consistent read. True: whoever may have reached it was
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
            // One that waited for a revision and a ticket may have been dropped with the first of the two.
            let SeatPlace::OfTheCache(number) = seat.place() else { continue };
            let Some((interest, announced)) = self.of_the_cache.get(&number) else { continue };
            if now.closed || interest.is_reached(now) {
                let announced = *announced;
                self.drop_seat(&seat, announced);
            }
        }
        self.lower_what_is_wanted(hub);
        // Where the steps were over there may be more than were found.
        self.reached.is_empty() && !steps.are_over()
    }

    /// A wait that is over, announced under this number: the seat goes from the tables, and its consumer, should it sleep
    /// again, announces it anew.
    fn drop_seat(&mut self, seat: &SeatRef, announced: u32) {
        self.remove(seat);
        if !seat.forget(announced) {
            // It waits for something else by now, and its message is on its way.
            return;
        }
        if let Some(times) = seat.times() {
            times.unlist();
        }
        self.timers.remove(seat);
        // Partner: PARKED, fence, `announce` and `list_first` in `Sleeper::park`: either that finds nothing announced and
        // nothing listed, and says both again, or this sees it parked.
        fence(SeqCst);
        settle_all([seat], &mut self.woken);
    }

    /// The cache was closed: nobody sleeps on, and nobody is looked at any more. Whoever waits for events goes from the
    /// tables: should it sleep again, it sees the close. True: nobody is left.
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

/// Wakes all of them that sleep: each looks for itself, from its own cursor. True: there was one.
fn settle_all<'t>(seats: impl IntoIterator<Item = &'t SeatRef>, woken: &mut Vec<WakeUp>) -> bool {
    let (now, mut any) = (clock::now(), false);
    for claim in seats.into_iter().filter_map(Seat::claim) {
        any = true;
        woken.extend(claim.settle(0, now));
    }
    any
}
