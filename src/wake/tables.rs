//! The tables of the notifier: who waits for what, and one pass over it.
//!
//! Who has the turn has them: the notifier, or a publisher that looks itself. A seat is in one place at a time: in the group of its filter, at
//! its bucket, or among those who wait for the cache. It stays there while its consumer sleeps and wakes
//! any number of times; it is moved when its consumer announces another interest, or when the bucket that
//! it asked for is there. Its place stands in its seat.
//!
//! A pass loads the frontier, takes the messages, and brings every parked seat up to that head: what it
//! finds for one it gives to it by claiming the seat. Filters run here, and no lock is held that anybody
//! else could want. What else is foreign code is noted, and called when the turn was given back: wakers, the source, the
//! drop of filters.

#![forbid(unsafe_code)]

mod ahead;
mod few;

pub(super) use few::FewWakeUps;

use self::ahead::WakeAhead;
use super::group::GroupRef;
use super::hub::{Hub, Message};
use super::interest::Interest;
use super::seat::{CountedAt, Seat, SeatPlace, SeatRef};
use super::timers::Timers;
use super::waker::WakeUp;
use super::{CacheFrontier, Watched};
use crate::data::event::{Event, Kind};
use crate::log::buckets::{Bucket, Request};
use crate::sync::{SeqCst, fence, ord};
use crate::sys::clock;
use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;
use std::time::Instant;

/// Requests for buckets that a pass looks at, beside twice as many as have joined.
const ASKING: usize = 64;

/// Events below this are scanned rather than asking every seat where it stands.
const NEAR: u64 = 64;

/// By an id of ours. loom replays executions: the same order each time.
#[cfg(not(loom))]
type IdMap<V> = std::collections::HashMap<u64, V, crate::store::hash::KeyHash>;
#[cfg(loom)]
type IdMap<V> = std::collections::BTreeMap<u64, V>;

/// A seat in the list of its bucket.
struct ChainReader {
    seat: SeatRef,
    /// Whose filter an event of the bucket has to pass. `None`: all pass.
    asks: Option<GroupRef>,
}

/// What stands in a list of seats.
trait Seated {
    fn seat(&self) -> &SeatRef;
}

impl Seated for SeatRef {
    fn seat(&self) -> &SeatRef {
        self
    }
}

impl Seated for ChainReader {
    fn seat(&self) -> &SeatRef {
        &self.seat
    }
}

/// Seats that are looked at together; the order means nothing. One alone, as most buckets and many filters have, takes no
/// memory of its own.
enum Members<M> {
    Alone(Option<M>),
    Many(Vec<M>),
}

impl<M> Default for Members<M> {
    fn default() -> Members<M> {
        Members::Alone(None)
    }
}

impl<M: Seated> Members<M> {
    fn all(&self) -> &[M] {
        match self {
            Members::Alone(one) => one.as_slice(),
            Members::Many(all) => all,
        }
    }

    fn add(&mut self, member: M) -> u32 {
        match self {
            Members::Alone(one @ None) => *one = Some(member),
            Members::Alone(one) => *self = Members::Many(one.take().into_iter().chain([member]).collect()),
            Members::Many(all) => {
                if all.len() == all.capacity() {
                    // By an eighth: there may be a hundred thousand.
                    all.reserve_exact(all.len() / 8 + 1);
                }
                all.push(member);
            }
        }
        (self.all().len() - 1) as u32
    }

    fn seats(&self) -> impl Iterator<Item = &SeatRef> {
        self.all().iter().map(Seated::seat)
    }

    /// Takes the seat at `index` out; another one takes its place.
    fn remove(&mut self, index: u32) {
        match self {
            Members::Alone(one) => *one = None,
            Members::Many(all) => {
                all.swap_remove(index as usize);
                if let Some(moved) = all.get(index as usize) {
                    moved.seat().set_index(index);
                }
            }
        }
    }
}

struct Scanners {
    group: GroupRef,
    members: Members<SeatRef>,
}

struct ChainReaders {
    bucket: Arc<Bucket>,
    members: Members<ChainReader>,
}

/// A member of a group that has asked for a bucket.
struct Asking {
    seat: SeatRef,
    group: GroupRef,
    request: Arc<Request>,
    /// Of what it announced.
    number: u32,
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
    /// Seats that are known: each has its place itself.
    known: usize,
    groups: IdMap<Scanners>,
    chains: IdMap<ChainReaders>,
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
    timers: Timers,
    /// Every parked seat has been looked at for all events below; 0: there was no pass yet.
    scanned_to: u64,
    /// The epoch of the last pass.
    epoch: u64,
    look_again: bool,
    /// The source is to look at what is wanted: called outside, as those who are woken.
    wakes_source: bool,
    woken: Vec<WakeUp>,
    /// Dropped outside: predicates are foreign code.
    garbage: Vec<GroupRef>,
}

impl Tables {
    /// One look: see the module. When to look again, if nobody calls.
    pub(super) fn pass(
        &mut self,
        hub: &Hub,
        cache: &dyn Watched,
        now: &CacheFrontier,
        messages: Vec<Message>,
    ) -> Option<Instant> {
        self.look_again = false;
        let joined = messages.len();
        for message in messages {
            self.read(hub, message);
        }
        if now.closed {
            self.wake_everybody();
        } else {
            self.look_at_events(hub, cache, now, joined);
        }
        self.look_at_the_cache(hub, now);
        self.look_again |= self.timers.pass(hub, now, &mut self.woken);
        self.timers.next().map(clock::instant)
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
                let id = group.id();
                let scanners = || Scanners { group: group.clone(), members: Members::default() };
                let index = self.groups.entry(id).or_insert_with(scanners).members.add(seat.clone());
                seat.put_at(SeatPlace::InGroup(id, index));
                if let Some(request) = request {
                    self.ask(Asking { seat, group, request, number });
                }
            }
            Interest::Chain(group, bucket) => {
                let id = bucket.id();
                let asks = (!group.passes_its_bucket).then_some(group);
                let readers = || ChainReaders { bucket, members: Members::default() };
                let reader = ChainReader { seat: seat.clone(), asks };
                let index = self.chains.entry(id).or_insert_with(readers).members.add(reader);
                seat.put_at(SeatPlace::AtBucket(id, index));
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
            SeatPlace::AtBucket(bucket, index) => {
                if let Some(ChainReaders { members, .. }) = self.chains.get_mut(&bucket) {
                    members.remove(index);
                    if members.all().is_empty() {
                        self.chains.remove(&bucket);
                    }
                }
            }
            SeatPlace::OfTheCache(number) => return self.remove_of_the_cache(number),
            SeatPlace::Nowhere => {}
        }
        false
    }

    /// Takes a member out of a group, and the group where it was the last.
    fn leave_group(&mut self, id: u64, index: u32) {
        let Some(Scanners { members, .. }) = self.groups.get_mut(&id) else { return };
        members.remove(index);
        if members.all().is_empty() {
            self.garbage.extend(self.groups.remove(&id).map(|scanners| scanners.group));
        }
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

    /// Brings every parked seat that waits for events up to the head.
    fn look_at_events(&mut self, hub: &Hub, cache: &dyn Watched, now: &CacheFrontier, joined: usize) {
        let from = self.first_to_look_at(now.head);
        if from < now.head {
            self.scan(hub, cache, from, now.head);
            self.follow_chains(hub, cache, from, now.head);
        }
        self.scanned_to = self.scanned_to.max(now.head);
        self.move_to_buckets(hub, now.head, joined);
    }

    /// Who waits for events.
    fn of_events(&self) -> impl Iterator<Item = &SeatRef> {
        let scanned = self.groups.values().flat_map(|scanners| scanners.members.seats());
        scanned.chain(self.chains.values().flat_map(|readers| readers.members.seats()))
    }

    /// Where the look begins: at the end of the last one, or, where that lies far behind because nobody
    /// slept meanwhile, at the lowest cursor of those who sleep.
    fn first_to_look_at(&self, head: u64) -> u64 {
        let gap = head.saturating_sub(self.scanned_to);
        if self.scanned_to != 0 && gap <= NEAR.max(self.known as u64) {
            return self.scanned_to.min(head);
        }
        let lowest = self.of_events().filter_map(|seat| seat.parked_at()).min();
        lowest.unwrap_or(head).max(self.scanned_to).min(head)
    }

    /// Each filter once an event, as long as somebody of its group sleeps that may not have it. Who is not found parked
    /// looks later than this, and does not sleep below `head`: so after an event that passes, the next one is looked for
    /// at the lowest cursor of those that sleep on.
    fn scan(&mut self, hub: &Hub, cache: &dyn Watched, from: u64, head: u64) {
        let Tables { groups, woken, .. } = self;
        for Scanners { group, members } in groups.values() {
            let mut at = from;
            while at < head && group.has_parked() {
                match cache.first_match(&group.matcher, at, head) {
                    Ok(None) => break,
                    Ok(Some(seq)) => {
                        // Behind the filter: what a predicate took is no lag of those whom it finds.
                        let mut ahead = WakeAhead::of_group(woken);
                        members.seats().for_each(|seat| ahead.wake_behind(seat, seq));
                        at = ahead.finish_group(hub, group).unwrap_or(head);
                    }
                    Err(_) => {
                        if settle_all(members.seats(), woken) {
                            hub.count_lap();
                        }
                        break;
                    }
                }
            }
        }
    }

    /// Looks at the buckets of each new event, not at each seat.
    fn follow_chains(&mut self, hub: &Hub, cache: &dyn Watched, from: u64, head: u64) {
        if self.chains.is_empty() {
            return;
        }
        let Tables { chains, woken, .. } = self;
        let mut ahead = WakeAhead::new(woken);
        let visited = cache.visit_buckets(from, head, &mut |event, buckets| {
            let seq = event.sequence();
            if event.kind() == Kind::Resync {
                let all = chains.values().flat_map(|readers| readers.members.seats());
                all.for_each(|seat| ahead.wake_behind(seat, seq));
                return;
            }
            for ChainReaders { members, .. } in buckets.filter_map(|bucket| chains.get(&bucket)) {
                each_match(members, event, |seat| ahead.wake_behind(seat, seq));
            }
        });
        ahead.finish();
        if visited.is_err() {
            // Lapped, perhaps by events of buckets that nobody waits for. After head: what lies below it
            // shows in a bucket's newest. Who has something looks for itself, from its own cursor.
            let mark = cache.newest_mark();
            let have_something = chains.values().flat_map(|ChainReaders { bucket, members }| {
                let has_something = move |seat: &&SeatRef| {
                    seat.parked_at().is_some_and(|cursor| bucket.newest() >= cursor || mark >= cursor)
                };
                members.seats().filter(has_something)
            });
            if settle_all(have_something, woken) {
                hub.count_lap();
            }
        }
    }

    /// Parked members of groups that have been looked at up to head, and whose bucket is there by now, wait
    /// at that. The writer answers a few requests a revision, so a few of those who ask are looked at, in
    /// turn: ten thousand that wait for their answers cost a pass no more than fifty.
    fn move_to_buckets(&mut self, hub: &Hub, head: u64, joined: usize) {
        for _ in 0..self.asking.len().min(ASKING + 2 * joined) {
            let Some((_, Asking { seat, group, request, number })) = self.asking.pop_first() else { break };
            seat.put_at(SeatPlace::InGroup(group.id(), seat.index()));
            let bucket = match request.answer() {
                // There is none for it: it continues scanning.
                Some(None) => continue,
                // Answered for a revision that is still to come: with another look.
                Some(Some(bucket)) if bucket.linked_from() <= head => bucket.clone(),
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
            let cursor = claim.cursor().max(head);
            if claim.counted() == CountedAt::Hub {
                hub.move_to_bucket(&group, &bucket);
            }
            self.remove(&seat);
            self.insert(seat.clone(), Interest::Chain(group, bucket), number);
            claim.put_back(cursor, CountedAt::Bucket);
            self.look_again = true;
        }
        if self.look_again {
            // They wait at their buckets now. Partner: the fence in `published_events`: what was published
            // before is seen by the next look, what comes after sees them.
            fence(ord!(MoveToBucket, SeqCst));
        }
    }

    // ---- The cache --------------------------------------------------------------------------------------

    /// Who waits for no event: for a revision, the listing, a consistent read.
    fn look_at_the_cache(&mut self, hub: &Hub, now: &CacheFrontier) {
        let new_epoch = std::mem::replace(&mut self.epoch, now.position.epoch) != now.position.epoch;
        let mut reached: Vec<SeatRef> = Vec::new();
        if now.failed || now.closed || new_epoch {
            reached.extend(self.revisions.iter().chain(&self.tickets).map(|(_, seat)| seat.clone()));
        } else {
            if now.ready {
                let all = self.revisions.range(..=(now.position.revision, u64::MAX));
                reached.extend(all.map(|(_, seat)| seat.clone()));
            }
            let served = self.tickets.range(..=(now.consistent, u64::MAX));
            reached.extend(served.map(|(_, seat)| seat.clone()));
        }
        if now.failed || now.closed || now.ready {
            reached.extend(self.listing.values().cloned());
        }
        if reached.is_empty() {
            return;
        }
        for seat in reached {
            // One that waited for a revision and a ticket may have been dropped with the first of the two.
            let SeatPlace::OfTheCache(number) = seat.place() else { continue };
            let Some((interest, announced)) = self.of_the_cache.get(&number) else { continue };
            if now.closed || interest.is_reached(now) {
                let announced = *announced;
                self.drop_seat(&seat, announced);
            }
        }
        self.lower_what_is_wanted(hub);
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

    /// The cache was closed: nobody sleeps on, and nobody is looked at any more.
    fn wake_everybody(&mut self) {
        let of_the_cache = self.revisions.values().chain(self.tickets.values()).chain(self.listing.values());
        let mut woken = Vec::new();
        settle_all(self.of_events().chain(of_the_cache), &mut woken);
        self.woken.extend(woken);
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

/// The members of a bucket whose filter this event passes. Each filter is evaluated once, and for members alone that
/// sleep and have not handed the event out; those without a filter are not looked at.
fn each_match<'t>(members: &'t Members<ChainReader>, event: &Event, mut found: impl FnMut(&'t SeatRef)) {
    let mut last: Option<(u64, bool)> = None;
    for ChainReader { seat, asks } in members.all() {
        let Some(group) = asks else {
            found(seat);
            continue;
        };
        if seat.parked_at().is_none_or(|cursor| cursor > event.sequence()) {
            continue;
        }
        let matches = match last {
            Some((known, matches)) if known == group.id() => matches,
            _ => {
                let matches = group.matcher.matches_guarded(event);
                last = Some((group.id(), matches));
                matches
            }
        };
        if matches {
            found(seat);
        }
    }
}
