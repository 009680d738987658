//! A subscription beside what the oracle expects of it.
//!
//! What may be lost is exact: LAGGED is right only where an event that was not handed out has left the
//! window. Whether a subscription still holds the segment of such an event is its own affair: where it
//! hands the event out, that is compared.

use crate::filter::{By, Filter};
use crate::oracle::{Found, Kv, Oracle, raw_kind};
use crate::plan::{Delivered, Plan};
use std::time::Duration;
use watchcore::{
    Batch, Cache, Closer, Code, Error, Kind, OnLag, Position, ReadPath, Start, Subscription, SubscriptionStats, WakeSet,
};

/// Bytes that a key costs which was delivered.
const BYTES_A_KEY: u64 = 32;

#[derive(Clone, Debug)]
pub struct Options {
    pub start: Start,
    pub filter: Filter,
    pub epoch: u64,
    pub bookmarks: bool,
    pub whole: bool,
    pub stop_on_resync: bool,
    pub on_lag: OnLag,
}

impl Options {
    pub fn keeps_delivered(&self) -> bool {
        matches!(self.on_lag, OnLag::Resnapshot | OnLag::Conflate)
    }
}

#[derive(Debug)]
enum Phase {
    Unready,
    /// StateAtLeast waits.
    Waits(u64),
    /// What is left of the state at the first `.1` events.
    Initial(Vec<(Vec<u8>, Kv)>, usize, Position),
    /// LAGGED was reported; true: in place of the initial state.
    Behind(bool),
    CatchUp(Plan),
    Live,
    Ended,
}

/// Why a look at the log ends before its end.
#[derive(Clone, Copy, Debug)]
enum Stop {
    /// The start that waited lies inside the gap of this bracket.
    Gap(usize),
    Future,
    Resynced(usize),
}

/// What can be read now.
struct Pending {
    /// Events that are delivered, and as what.
    found: Vec<(usize, Kind)>,
    /// Where the look ends, and why.
    at: usize,
    stop: Option<Stop>,
    /// The first event that has left the window and may be missed.
    lapped: Option<usize>,
    /// The first event above a start of the future, if it came.
    above: Option<usize>,
}

/// A loss that a wait may have met: it is reported by the next poll, as of then.
#[derive(Clone, Copy)]
struct Met {
    oldest: u64,
    current: u64,
    skip: usize,
}

pub struct Sub {
    pub name: u64,
    real: Subscription,
    closer: Closer,
    options: Options,
    phase: Phase,
    /// Index of the next event to look at.
    next: usize,
    /// `next` may be too low: what left in between may have been looked at.
    vague: bool,
    /// It was certainly looked at everything before this one.
    sure: usize,
    floor: Option<u64>,
    /// It may not know yet that such a start was passed, or has not looked at the log since a loss.
    ahead: bool,
    bookmarked: Position,
    /// Closed by its owner or with the cache: nothing behind this index.
    end: Option<usize>,
    seen: Position,
    whole_seen: usize,
    /// Closed before the listing: it hands out nothing.
    never: bool,
    by_owner: bool,
    /// A wait met a refused start, which the next poll reports.
    refused: bool,
    /// LAGGED was reported, RESYNCED comes next: the bracket was lost with the rest.
    bracket_lost: bool,
    met: Vec<Met>,
    /// Revisions up to this one were reported as lost.
    reported: u64,
    /// What its consumer has been delivered; `None` behind a loss that nobody made good.
    delivered: Option<Delivered>,
    /// With masked kinds `next` may be behind what was passed over unseen.
    exact: bool,
    /// Number of events when it was opened.
    opened_at: usize,
    /// From this event on it looks at those of its bucket alone, once it reads a chain.
    linked_from: Option<usize>,
    handed: u64,
    looked: u64,
    most_shown: u64,
}

impl Sub {
    /// Opens it, or checks the refusal.
    pub fn open(name: u64, cache: &Cache, set: &WakeSet, options: Options, oracle: &Oracle) -> Option<Sub> {
        let builder = options
            .filter
            .set(cache.subscribe(options.start))
            .epoch(options.epoch)
            .bookmarks(options.bookmarks)
            .bookmark_interval(Duration::ZERO)
            .whole_revisions(options.whole)
            .stop_on_resync(options.stop_on_resync)
            .on_lag(options.on_lag)
            .start_timeout(Duration::MAX);
        let opened = builder.open();
        if oracle.loaded
            && let Start::After(revision) = options.start
            && oracle.find(revision, options.epoch, true) == Found::Compacted
        {
            let error = opened.expect_err("COMPACTED was expected");
            assert_eq!(error.code(), Code::Compacted, "{error} {options:?}");
            let numbers = (error.asked(), error.oldest(), error.current());
            assert_eq!(numbers, (revision, oracle.oldest(), oracle.now.revision), "{error}");
            return None;
        }
        crate::trace(|| format!("  {name}: {options:?}"));
        let mut real = opened.unwrap_or_else(|error| panic!("{error} {options:?}"));
        set.add(&mut real, name).unwrap();
        let mut sub = Sub {
            name,
            closer: real.closer(),
            real,
            exact: !options.filter.masks() || oracle.indexes.is_empty(),
            options,
            phase: Phase::Unready,
            next: 0,
            sure: 0,
            vague: false,
            floor: None,
            ahead: false,
            bookmarked: Position::default(),
            end: None,
            seen: Position::default(),
            whole_seen: 0,
            never: false,
            by_owner: false,
            refused: false,
            bracket_lost: false,
            met: Vec::new(),
            reported: 0,
            delivered: None,
            opened_at: oracle.events.len(),
            linked_from: None,
            handed: 0,
            looked: 0,
            most_shown: 0,
        };
        if oracle.loaded {
            assert!(sub.begin(oracle, false).is_ok(), "looked at above");
        }
        Some(sub)
    }

    pub fn is_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    fn live(&mut self, next: usize, position: Position) {
        (self.next, self.whole_seen, self.bookmarked, self.phase) = (next, next, position, Phase::Live);
        self.sure = next;
    }

    /// Live from here: the matching state counts as delivered.
    fn live_from(&mut self, oracle: &Oracle, next: usize, position: Position) {
        self.live(next, position);
        self.delivered = Some(Delivered::new(oracle.matching_at(&self.options.filter, next)));
    }

    fn initial(&mut self, oracle: &Oracle, count: usize, at: Position) {
        let all = oracle.matching_at(&self.options.filter, count);
        let masked = !self.options.filter.shows(Kind::Added);
        let state = if masked { Vec::new() } else { all.clone().into_iter().collect() };
        self.delivered =
            Some(Delivered::new(if masked && !self.options.keeps_delivered() { all } else { Default::default() }));
        self.phase = Phase::Initial(state, count, at);
    }

    fn begin(&mut self, oracle: &Oracle, late: bool) -> Result<(), ()> {
        let listing = Position { epoch: oracle.birth + 1, revision: oracle.listing };
        let (count, at) = if late { (0, listing) } else { (oracle.events.len(), oracle.now) };
        match self.options.start {
            Start::Now => {
                self.live_from(oracle, count, at);
                if late && oracle.first_live > 1 && self.options.keeps_delivered() {
                    // The state of then has left: nothing counts as delivered, and that is a loss.
                    self.delivered = Some(Delivered::default());
                }
            }
            Start::State => self.initial(oracle, count, at),
            Start::StateAtLeast(revision) => self.phase = Phase::Waits(revision),
            Start::After(revision) => match oracle.find(revision, self.options.epoch, true) {
                Found::Compacted => return Err(()),
                Found::At(count) => self.live_from(oracle, count, Position { epoch: oracle.epoch_at(count), revision }),
                Found::Future => {
                    self.live_from(oracle, oracle.events.len(), Position { epoch: oracle.now.epoch, revision });
                    (self.floor, self.ahead) = (Some(revision), true);
                }
            },
        }
        Ok(())
    }

    /// From now on there is an end.
    pub fn close(&mut self, oracle: &Oracle) {
        self.by_owner = true;
        self.never |= !oracle.loaded;
        self.closer.close();
        self.cache_closed(oracle);
    }

    pub fn cache_closed(&mut self, oracle: &Oracle) {
        self.end.get_or_insert(oracle.events.len());
    }

    fn limit(&self, oracle: &Oracle) -> usize {
        self.end.unwrap_or(oracle.events.len()).max(self.next)
    }

    fn pending(&self, oracle: &Oracle) -> Pending {
        let (mut found, mut floor, mut above) = (Vec::new(), self.floor, None);
        // Behind what was handed out last it may not have looked yet.
        let mut lapped = (self.sure..self.next).find(|at| !oracle.is_live(*at));
        let filter = &self.options.filter;
        for at in self.next..self.limit(oracle) {
            let event = &oracle.events[at];
            // Who has reached it waits no more.
            if event.first && event.turn.is_some_and(|turn| floor.is_some_and(|asked| turn.from >= asked)) {
                (floor, above) = (None, Some(at));
            }
            // What leaves below a start of the future is no loss.
            let resets = event.first && event.turn.is_some_and(|turn| turn.resets());
            let dropped = floor.is_some_and(|asked| resets || event.revision.max(oracle.oldest() - 1) <= asked);
            if !oracle.is_live(at) && !dropped {
                lapped.get_or_insert(at);
            }
            if let Some(asked) = floor {
                if let Some(turn) = event.turn.filter(|_| event.first) {
                    if turn.resets() {
                        return Pending { found, at, stop: Some(Stop::Future), lapped, above };
                    }
                    if asked < turn.to {
                        return Pending { found, at, stop: Some(Stop::Gap(at)), lapped, above };
                    }
                }
                if event.revision <= asked {
                    continue;
                }
                (floor, above) = (None, Some(at));
            }
            if event.is_mark() && self.options.stop_on_resync {
                return Pending { found, at, stop: Some(Stop::Resynced(at)), lapped, above };
            }
            if let Some(kind) = filter.transition(event)
                && filter.shows(kind)
            {
                found.push((at, kind));
            }
        }
        Pending { found, at: self.limit(oracle), stop: None, lapped, above }
    }

    /// Moves on; what was passed over counts as delivered where only its kind is masked.
    fn pass(&mut self, oracle: &Oracle, to: usize) {
        if let Some(delivered) = &mut self.delivered {
            for event in &oracle.events[self.next..to.max(self.next)] {
                if let Some(kind) = self.options.filter.transition(event) {
                    delivered.change(kind, &event.key, event.kv.as_ref());
                }
            }
        }
        (self.next, self.sure, self.vague) = (to, to, false);
    }

    /// Blocks for no time, or arms it, and checks what it says.
    pub fn wait(&mut self, oracle: &Oracle, arms: bool) {
        self.check_wait(oracle, arms);
        self.looked = self.real.stats().looked_at;
    }

    fn check_wait(&mut self, oracle: &Oracle, arms: bool) {
        let answer = if arms {
            let answer = self.real.arm();
            if self.is_ended() || self.end.is_some() {
                // A late start is fixed by the arming, also of one that its owner has closed.
                if matches!(self.phase, Phase::Unready)
                    && oracle.loaded
                    && !self.never
                    && !self.is_ended()
                    && self.begin(oracle, true).is_err()
                {
                    self.refused = true;
                }
                // The poll reports.
                assert!(answer.unwrap());
                self.met.push(self.met(oracle));
                return;
            }
            answer
        } else {
            self.real.wait(Duration::ZERO)
        };
        crate::trace(|| format!("  {} waits: {answer:?}, {:?} at {}", self.name, self.phase, self.next));
        match self.phase {
            Phase::Ended => return assert_eq!(answer.expect_err("ended").code(), Code::Closed),
            Phase::Initial(..) | Phase::Behind(_) | Phase::CatchUp(_) => {
                return assert!(answer.expect("something of the state"));
            }
            _ => {}
        }
        if self.refused || self.bracket_lost {
            return assert!(answer.expect("an error is to be reported"));
        }
        if let Phase::Unready = self.phase
            && oracle.loaded
            && !self.never
            && self.begin(oracle, true).is_err()
        {
            self.refused = true;
        }
        if let Phase::Waits(revision) = self.phase
            && oracle.now.revision >= revision
            && !self.by_owner
        {
            self.initial(oracle, oracle.events.len(), oracle.now);
        }
        if !matches!(self.phase, Phase::Live) {
            let something = matches!(self.phase, Phase::Initial(..)) || self.refused || self.end.is_some();
            return assert_eq!(answer.expect("not over yet"), something);
        }
        let Pending { found, at, stop, lapped, .. } = self.pending(oracle);
        if lapped.is_some() || (self.floor.is_some() && !self.all_live(oracle)) {
            self.exact &= !self.options.filter.masks();
            match answer {
                Ok(true) => self.met.push(self.met(oracle)),
                Ok(false) => assert!(found.is_empty() && stop.is_none(), "{found:?} {stop:?}"),
                Err(error) => {
                    assert_eq!(error.code(), Code::Closed);
                    assert!(found.is_empty() && self.end.is_some(), "{error}");
                }
            }
            return;
        }
        // A look that moves over events, which an unfiltered one need not do.
        let moves = !self.options.filter.is_plain() || self.floor.is_some();
        let (next, wake) = match found.first() {
            Some((found, _)) => (*found, true),
            None => (at, stop.is_some()),
        };
        let passed = |floor: &u64| oracle.events[self.next..next].iter().any(|event| event.revision > *floor);
        if self.floor.as_ref().is_some_and(passed) {
            self.floor = None;
        }
        if wake {
            assert!(answer.unwrap_or_else(|error| panic!("{error}: {found:?} {stop:?}")), "{found:?} {stop:?}");
            if moves {
                self.pass(oracle, next);
            }
            if !found.is_empty() {
                self.floor = None;
            }
        } else if self.end.is_some() {
            assert_eq!(answer.expect_err("closed and read").code(), Code::Closed);
            self.pass(oracle, at);
        } else {
            let due = self.options.bookmarks && self.floor.is_none() && self.bookmarked != oracle.now;
            let passed = self.floor.is_some();
            if self.options.bookmarks && self.floor.is_some_and(|floor| floor <= oracle.now.revision) {
                self.floor = None;
            }
            let answer = answer.expect("open");
            assert!(answer == due || passed, "said {answer}: floor {:?}, {:?}", self.floor, self.bookmarked);
            if moves {
                self.pass(oracle, at);
            }
        }
        self.position_rule(oracle);
    }

    fn all_live(&self, oracle: &Oracle) -> bool {
        (self.next..self.limit(oracle)).all(|at| oracle.is_live(at))
    }

    fn met(&self, oracle: &Oracle) -> Met {
        let skip = oracle.above(oracle.oldest() - 1);
        Met { oldest: oracle.oldest(), current: oracle.now.revision, skip: skip.max(self.sure) }
    }

    /// Never back, never ahead of what is pending.
    fn position_rule(&mut self, oracle: &Oracle) {
        let position = self.real.position();
        assert!(
            position >= self.seen,
            "the position went back: {:?} to {position:?}, {:?} {:?}",
            self.seen,
            self.phase,
            self.options
        );
        assert!(self.closer.position() <= position, "what others see is ahead");
        self.seen = position;
        let whole = oracle.position_at(self.whole_seen);
        if matches!(self.phase, Phase::Live) && self.floor.is_none() {
            assert!(position >= whole, "{position:?} is behind what was handed out whole, {whole:?}");
        }
        if matches!(self.phase, Phase::Unready | Phase::Waits(_) | Phase::Initial(..)) {
            assert_eq!(position.revision, 0, "the position during the initial state");
        }
        if matches!(self.phase, Phase::Live) && self.floor.is_none() {
            let Pending { found, .. } = self.pending(oracle);
            if let Some((first, _)) = found.first() {
                // Inside a revision: the revision before.
                let first = &oracle.events[*first];
                let rev = &oracle.revs[first.rev];
                let (epoch, revision) =
                    rev.turn.map_or((rev.epoch, rev.revision.saturating_sub(1)), |turn| (turn.epoch - 1, turn.from));
                // Where it was compacted inside a gap, a skip stands there.
                let skipped = self.options.on_lag == OnLag::SkipToOldest && rev.turn.is_some();
                let revision = if skipped { revision.max(oracle.oldest() - 1) } else { revision };
                // So does a start of the future.
                let revision = match self.options.start {
                    Start::After(asked) if rev.turn.is_some_and(|turn| turn.from < asked && asked < turn.to) => {
                        revision.max(asked)
                    }
                    _ => revision,
                };
                let most = Position { epoch, revision };
                assert!(position <= most, "{position:?} is ahead: {first:?} was not handed out");
            }
        }
    }

    pub fn poll(&mut self, oracle: &Oracle, max: usize) -> Option<Batch> {
        let before = self.real.position();
        let (from, was_live) = (self.sure, matches!(self.phase, Phase::Live) && !self.ahead);
        let answer = self.real.poll(max);
        crate::trace(|| {
            format!("  {} polls {max}: {answer:?}, {:?} at {}, {before:?}", self.name, self.phase, self.next)
        });
        self.handed += answer.as_ref().map_or(0, Batch::len) as u64;
        let batch = self.check(oracle, max, before, answer);
        let stats = self.real.stats();
        assert_eq!(stats.handed_out, self.handed);
        if !self.is_ended() {
            self.position_rule(oracle);
            self.lag_rule(oracle);
            self.route_rule(oracle, &stats, if was_live { from } else { usize::MAX });
            self.memory_rule(oracle, &stats);
        }
        self.looked = stats.looked_at;
        batch
    }

    fn check(&mut self, oracle: &Oracle, max: usize, before: Position, answer: Result<Batch, Error>) -> Option<Batch> {
        if self.refused && !self.is_ended() {
            return self.end_with(answer, Code::Compacted);
        }
        if self.bracket_lost && !self.is_ended() {
            return self.end_with(answer, Code::Resynced);
        }
        if let Phase::Unready = self.phase {
            if !oracle.loaded || self.never {
                return self.nothing_or_closed(oracle, answer);
            }
            if self.begin(oracle, true).is_err() {
                return self.end_with(answer, Code::Compacted);
            }
        }
        if let Phase::Waits(revision) = self.phase {
            if oracle.now.revision < revision || self.by_owner {
                return self.nothing_or_closed(oracle, answer);
            }
            self.initial(oracle, oracle.events.len(), oracle.now);
        }
        match &self.phase {
            Phase::Ended => self.end_with(answer, Code::Closed),
            Phase::Initial(..) => self.check_initial(oracle, max, answer),
            Phase::Behind(initial) => {
                let initial = *initial;
                self.check_behind(oracle, max, before, (initial, false), answer)
            }
            Phase::CatchUp(_) => self.check_catch_up(oracle, max, before, answer),
            _ => self.check_live(oracle, max, before, answer),
        }
    }

    fn nothing_or_closed(&mut self, _: &Oracle, answer: Result<Batch, Error>) -> Option<Batch> {
        if self.end.is_some() {
            return self.end_with(answer, Code::Closed);
        }
        assert!(answer.expect("nothing").is_empty());
        None
    }

    fn end_with(&mut self, answer: Result<Batch, Error>, code: Code) -> Option<Batch> {
        match answer {
            Ok(batch) => panic!("{code:?} was expected, not {batch:?}"),
            Err(error) => assert_eq!(error.code(), code, "{error}"),
        }
        self.phase = Phase::Ended;
        None
    }

    fn check_initial(&mut self, oracle: &Oracle, max: usize, answer: Result<Batch, Error>) -> Option<Batch> {
        let Phase::Initial(left, count, at) = &mut self.phase else { unreachable!() };
        let (count, at) = (*count, *at);
        let looks = self.options.filter.shows(Kind::Added) || self.options.keeps_delivered();
        // All objects were handed out, and the cache knew it: the mark that ends them needs no state any more.
        let ends =
            |batch: &Batch| matches!(batch.events(), [mark] if mark.ends_initial_state()) && batch.position() == at;
        let only_the_end = left.is_empty() && answer.as_ref().is_ok_and(ends);
        if oracle.first_live * oracle.slots > oracle.head_of(count) && looks && !only_the_end {
            let before = Position { epoch: at.epoch, revision: 0 };
            if let Some(delivered) = &mut self.delivered {
                delivered.all_at(count);
            }
            if self.options.on_lag == OnLag::Conflate {
                return self.check_behind(oracle, max, before, (true, false), answer);
            }
            let error = answer.expect_err("the initial state has left the window");
            assert_eq!(error.code(), Code::Lagged);
            assert_eq!((error.lost_from(), error.lost_to()), (1, oracle.now.revision));
            assert_eq!((error.oldest(), error.current()), (oracle.oldest(), oracle.now.revision));
            let again = self.options.on_lag == OnLag::Resnapshot;
            self.phase = if again { Phase::Behind(true) } else { Phase::Ended };
            return None;
        }
        let delivered = self.delivered.as_mut().expect("nothing was lost");
        if looks && !self.options.filter.shows(Kind::Added) {
            oracle.matching_at(&self.options.filter, count).iter().for_each(|(key, kv)| delivered.put(key, kv, count));
        }
        let batch = answer.expect("a page of the initial state");
        assert!(!batch.is_empty() && batch.len() <= max && !batch.continues());
        for event in &batch {
            assert_eq!(event.sequence(), 0);
            if left.is_empty() {
                assert!(event.ends_initial_state() && event.kind() == Kind::Bookmark, "{event:?}");
                assert_eq!((event.revision(), event.key(), event.value()), (at.revision, &b""[..], None));
                assert_eq!(batch.position(), at);
                self.live(count, at);
                assert!(std::ptr::eq(event, batch.events().last().unwrap()), "the mark is the last");
                break;
            }
            let (key, kv) = left.remove(0);
            let kind = raw_kind(Kind::Added, self.options.filter.raw);
            assert!(event.is_initial_state() && !event.ends_initial_state());
            assert_eq!((event.kind(), event.revision(), event.prev_value()), (kind, kv.modified, None));
            crate::plan::assert_is(event, &key, &kv);
            delivered.put(&key, &kv, count);
        }
        Some(batch)
    }

    /// The first page of the difference behind a loss.
    fn check_behind(
        &mut self,
        oracle: &Oracle,
        max: usize,
        before: Position,
        (initial, begun): (bool, bool),
        answer: Result<Batch, Error>,
    ) -> Option<Batch> {
        // It begins at the listing where that came after it.
        let epoch = if before.epoch == 0 { oracle.birth + 1 } else { before.epoch };
        if self.options.stop_on_resync && oracle.now.epoch != epoch {
            let error = answer.expect_err("RESYNCED was expected");
            assert_eq!((error.code(), error.current()), (Code::Resynced, oracle.now.revision), "{error}");
            self.phase = Phase::Ended;
            return None;
        }
        let delivered = self.delivered.as_ref().expect("it keeps them");
        let from = before.revision;
        self.phase = Phase::CatchUp(Plan::new(&self.options, oracle, delivered, from, (initial, begun), self.exact));
        self.check_page(oracle, max, before, answer)
    }

    fn check_catch_up(
        &mut self,
        oracle: &Oracle,
        max: usize,
        before: Position,
        answer: Result<Batch, Error>,
    ) -> Option<Batch> {
        let Phase::CatchUp(plan) = &self.phase else { unreachable!() };
        let left = oracle.first_live * oracle.slots > oracle.head_of(plan.count);
        if left && !plan.ends_without_its_state(&answer) {
            // Overtaken: it begins again with what was delivered meanwhile.
            let (initial, begun) = (plan.initial, plan.begun);
            if self.options.on_lag == OnLag::Conflate || begun {
                // Inside its bracket it continues, and reports nothing again.
                return self.check_behind(oracle, max, before, (initial, begun), answer);
            }
            let error = answer.expect_err("overtaken again");
            self.assert_lost(oracle, before, &error);
            self.phase = Phase::Behind(initial);
            return None;
        }
        self.check_page(oracle, max, before, answer)
    }

    fn check_page(
        &mut self,
        oracle: &Oracle,
        max: usize,
        before: Position,
        answer: Result<Batch, Error>,
    ) -> Option<Batch> {
        let Phase::CatchUp(plan) = &mut self.phase else { unreachable!() };
        let batch = answer.unwrap_or_else(|error| panic!("{error}: a page of {plan:?} was expected"));
        let most = if self.options.whole { usize::MAX } else { max };
        let delivered = self.delivered.as_mut().expect("it keeps them");
        let done = plan.check_page(&self.options.filter, &batch, most, delivered);
        assert_eq!(batch.continues(), !done, "CONTINUES until its end: {:?}", self.options);
        assert_eq!(batch.position(), self.real.position());
        if !done {
            // A conflated loss is found by this very poll, which may have moved on to it first.
            let position = self.real.position();
            let begun = before == Position::default() || before.epoch == position.epoch;
            let moved = self.options.on_lag == OnLag::Conflate && begun && before < position;
            assert!(position == before || moved, "the position before it is complete: {before:?}, {position:?}");
            return Some(batch);
        }
        let (count, at) = (plan.count, plan.at);
        assert_eq!(self.real.position(), at);
        delivered.assert_are(&oracle.matching_at(&self.options.filter, count), "after the difference");
        self.live(count, at);
        (self.reported, self.exact) = (0, !self.options.filter.masks() || oracle.indexes.is_empty());
        (!batch.is_empty()).then_some(batch)
    }

    /// The numbers of a loss.
    fn assert_lost(&mut self, oracle: &Oracle, before: Position, error: &Error) {
        assert_eq!(error.code(), Code::Lagged, "{error}");
        let reported = Position { epoch: error.epoch(), revision: error.position() };
        assert!(reported >= before, "{reported:?} {before:?}");
        let from = [error.position().max(self.reported) + 1, error.position() + 1];
        assert!(from.contains(&error.lost_from()), "{error}: {from:?}");
        let met = self.loss_of(oracle, error);
        assert_eq!(error.lost_to(), (met.oldest - 1).max(error.lost_from()), "{error}");
        assert_eq!((error.oldest(), error.current()), (met.oldest, met.current));
        self.reported = error.lost_to();
    }

    /// The loss that an error reports: that of now, or the one that a wait met.
    fn loss_of(&self, oracle: &Oracle, error: &Error) -> Met {
        let met = self.met.iter().find(|met| met.current == error.current() && met.oldest == error.oldest());
        met.copied().unwrap_or(self.met(oracle))
    }

    /// LAGGED was reported, or (Conflate) acted upon.
    fn lose(&mut self, skip: usize) {
        (self.floor, self.ahead) = (None, true);
        // What is masked may have been passed over in a segment that it still held.
        self.exact &= !self.options.filter.masks();
        match self.options.on_lag {
            OnLag::Stop => self.phase = Phase::Ended,
            OnLag::SkipToOldest => {
                (self.next, self.sure, self.whole_seen, self.delivered) = (skip, skip, skip, None);
            }
            OnLag::Resnapshot | OnLag::Conflate => {
                self.delivered.as_mut().expect("it keeps them").all_at(self.next);
                self.phase = Phase::Behind(false);
            }
        }
        self.met.clear();
    }

    fn check_live(
        &mut self,
        oracle: &Oracle,
        max: usize,
        before: Position,
        answer: Result<Batch, Error>,
    ) -> Option<Batch> {
        let Pending { found, at, stop, lapped, above } = self.pending(oracle);
        let gap = matches!(stop, Some(Stop::Gap(_))) && found.is_empty();
        // What has left is not looked at: a start of the future may have been passed in it.
        let unsure = self.floor.is_some() && !self.all_live(oracle);
        let may_lose = lapped.is_some() || unsure;
        // A wait may have met the gap before what follows had left.
        let gap_told = |error: &Error| match (stop, self.floor) {
            (Some(Stop::Gap(at)), Some(asked)) if gap => {
                let to = oracle.events[at].turn.expect("a mark").to;
                (error.lost_from(), error.lost_to()) == (asked + 1, to)
            }
            _ => false,
        };
        match &answer {
            Err(error)
                if error.code() == Code::Lagged && may_lose && !(gap && lapped.is_none()) && !gap_told(error) =>
            {
                let skip = self.loss_of(oracle, error).skip;
                assert!(self.options.on_lag != OnLag::Conflate, "never reported: {error}");
                match (self.floor, above) {
                    _ if !unsure => self.assert_lost(oracle, before, error),
                    // The loss came behind the start.
                    (Some(asked), Some(above)) if error.position() > asked => self.pass(oracle, above),
                    // What the consumer has at a start that left is not to be known.
                    _ => self.exact = false,
                }
                self.lose(skip);
                let over = self.end.is_some_and(|end| skip >= end);
                self.bracket_lost = self.options.on_lag == OnLag::SkipToOldest
                    && self.options.stop_on_resync
                    && oracle.epoch_at(skip) != if before.epoch == 0 { oracle.epoch_at(0) } else { before.epoch }
                    && !over;
                return None;
            }
            Ok(batch) if self.options.on_lag == OnLag::Conflate && (may_lose || gap) => {
                let made = batch.events().first().is_some_and(|event| event.sequence() == 0 && event.is_synthetic());
                let due = self.end.is_some() || (self.options.bookmarks && self.bookmarked != oracle.now);
                let due = due && self.real.position() == oracle.now;
                if made || (batch.is_empty() && (!found.is_empty() || gap || due)) {
                    match gap && lapped.is_none() {
                        true => self.pass(oracle, at),
                        false => self.exact &= !unsure,
                    }
                    self.lose(0);
                    return self.check_behind(oracle, max, before, (false, false), answer);
                }
            }
            Err(error)
                if self.options.on_lag == OnLag::Conflate && error.code() == Code::Resynced && (may_lose || gap) =>
            {
                if matches!(stop, Some(Stop::Resynced(_))) && found.is_empty() && error.current() != oracle.now.revision
                {
                    self.check_stop(oracle, stop.expect("looked at"), error);
                    self.phase = Phase::Ended;
                    return None;
                }
                self.lose(0);
                return self.check_behind(oracle, max, before, (false, false), answer);
            }
            _ => {}
        }
        self.met.clear();
        if found.is_empty() {
            if let Some(stop) = stop {
                let error = answer.err().unwrap_or_else(|| panic!("{stop:?} was expected"));
                self.check_stop(oracle, stop, &error);
                match stop {
                    Stop::Gap(at) if error.code() == Code::Lagged => {
                        self.reported = error.lost_to();
                        // Where the state at the gap had left, what the consumer has is that of an earlier one.
                        self.exact &= !unsure;
                        self.pass(oracle, at);
                        self.lose(at);
                    }
                    _ => self.phase = Phase::Ended,
                }
                return None;
            }
            self.pass(oracle, at);
            // Behind a close it cannot say how far it came where the last event has left.
            if self.end.is_none() || lapped.is_none() {
                self.whole_seen = at;
            }
            return self.check_nothing(oracle, answer);
        }
        let batch = answer.unwrap_or_else(|error| {
            let (at, live) = (oracle.events[self.next].seq, oracle.first_live);
            panic!("{error}: {} were pending from {at}, live from {live}, {:?}", found.len(), self.options)
        });
        assert!(!batch.is_empty(), "{} were pending {:?}", found.len(), self.options);
        assert!(batch.len() <= found.len(), "{} events, {} were pending: {batch:?}", batch.len(), found.len());
        for (event, (at, kind)) in batch.events().iter().zip(&found) {
            let expected = &oracle.events[*at];
            expected.assert_shown_as(event, *kind, self.options.filter.raw);
            assert_eq!(event.sequence(), expected.seq);
        }
        (self.floor, self.ahead) = (None, false);
        self.check_border(oracle, max, &batch, &found, lapped);
        assert_eq!(batch.position(), self.real.position());
        let last = found[batch.len() - 1].0;
        let next = match found.get(batch.len()) {
            // The next match was seen, and the cursor is at its revision, or at it.
            Some((next, _)) if oracle.events[*next].rev == oracle.events[last].rev => *next,
            Some((next, _)) if !self.options.filter.is_plain() => {
                (last + 1).max(oracle.revs[oracle.events[*next].rev].events.start)
            }
            Some(_) => last + 1,
            None if self.views() => last + 1,
            None => at,
        };
        let vague = lapped.is_some_and(|lapped| next > lapped);
        self.exact &= !vague || !self.options.filter.masks();
        self.pass(oracle, if vague { last + 1 } else { next });
        self.vague = vague;
        self.sure = last + 1;
        self.whole_seen = if batch.continues() { oracle.revs[oracle.events[last].rev].events.start } else { last + 1 };
        Some(batch)
    }

    /// Batches are views of one segment.
    fn views(&self) -> bool {
        self.options.filter.is_plain() && !self.options.whole && !self.options.stop_on_resync
    }

    /// Where a batch may end.
    fn check_border(&self, oracle: &Oracle, max: usize, batch: &Batch, found: &[(usize, Kind)], lapped: Option<usize>) {
        let last = &oracle.events[found[batch.len() - 1].0];
        let rev = &oracle.revs[last.rev];
        // The rest of the revision may be lost.
        let cut = lapped.is_some_and(|at| rev.events.contains(&at) || rev.events.start > at);
        let inside = found.get(batch.len()).is_some_and(|(next, _)| oracle.events[*next].rev == last.rev)
            || (self.views() && !last.last);
        assert!(batch.continues() == inside || (cut && !last.last), "CONTINUES where the batch ends with {last:?}");
        let of_this = found.iter().filter(|(at, _)| oracle.events[*at].rev == last.rev).count();
        if inside && !cut {
            assert!(!self.options.whole, "a whole revision was asked for");
            assert!(
                rev.events.len() as u64 > oracle.slots / 8 || of_this > max,
                "ends inside a short revision: {last:?}"
            );
        }
        if batch.len() > max {
            let first = &oracle.events[found[0].0];
            assert!(self.options.whole && first.rev == last.rev, "{} events, {max} were asked for", batch.len());
        }
    }

    fn check_nothing(&mut self, oracle: &Oracle, answer: Result<Batch, Error>) -> Option<Batch> {
        if let Some(delivered) = &self.delivered
            && self.exact
        {
            delivered.assert_are(&oracle.matching_at(&self.options.filter, self.next), "with nothing pending");
        }
        if self.end.is_some() {
            // Closed: what was published before was handed out, a bookmark may still come.
            return match answer {
                Ok(batch) if self.options.bookmarks => {
                    assert!(batch.events().iter().all(|event| event.kind() == Kind::Bookmark), "{batch:?}");
                    self.bookmarked = self.real.position();
                    None
                }
                answer => self.end_with(answer, Code::Closed),
            };
        }
        if self.floor.is_some_and(|floor| floor <= oracle.now.revision) {
            self.floor = None;
        }
        if self.floor.is_none() {
            assert_eq!(self.real.position(), oracle.now, "everything was handed out, {answer:?} {:?}", self.options);
        }
        if self.options.bookmarks && self.floor.is_none() && self.bookmarked != oracle.now {
            let batch = answer.expect("a bookmark");
            assert_eq!(batch.len(), 1);
            let event = &batch.events()[0];
            assert_eq!((event.kind(), event.revision(), event.flags()), (Kind::Bookmark, oracle.now.revision, 0));
            self.bookmarked = oracle.now;
            return Some(batch);
        }
        assert!(answer.expect("nothing").is_empty());
        None
    }

    fn check_stop(&self, oracle: &Oracle, stop: Stop, error: &Error) {
        match stop {
            Stop::Gap(at) => {
                let turn = oracle.events[at].turn.expect("a mark");
                assert_eq!(error.code(), Code::Lagged, "{error}");
                assert_eq!((error.lost_from(), error.lost_to()), (self.floor.expect("it waits") + 1, turn.to));
            }
            // What has left is not looked at: the two cannot be reported apart.
            Stop::Future if !self.all_live(oracle) && error.code() == Code::Lagged => {}
            Stop::Future => assert_eq!(error.code(), Code::FutureRevision, "{error}"),
            Stop::Resynced(at) => {
                assert_eq!(error.code(), Code::Resynced, "{error}");
                let turn = oracle.events[at].turn.expect("a mark");
                assert_eq!(error.current(), turn.to);
                // A start of the future stands at its own revision.
                let revision = match self.options.start {
                    Start::After(asked) if turn.from < asked && asked < turn.to => asked,
                    _ => turn.from,
                };
                assert!(
                    Position { epoch: error.epoch(), revision: error.position() }
                        <= Position { epoch: turn.epoch - 1, revision }
                );
            }
        }
    }

    /// The lag is the number of events behind the cursor, gaps taken off.
    fn lag_rule(&self, oracle: &Oracle) {
        let sure = !self.vague && self.end.is_none() && oracle.indexes.is_empty();
        if matches!(self.phase, Phase::Live) && sure && self.all_live(oracle) {
            let lag = self.real.lag();
            assert_eq!(lag.events, (oracle.events.len() - self.next) as u64, "lag of {:?}", self.options);
            if lag.events == 0 {
                assert_eq!(lag.age, Duration::ZERO);
            }
        }
    }

    /// It reads the chain of a fitting index, and then only its own events.
    fn route_rule(&mut self, oracle: &Oracle, stats: &SubscriptionStats, from: usize) {
        let fits = |by: &By| (*by, by.fits(&self.options.filter));
        let fitting: Vec<(By, Vec<Vec<u8>>)> =
            oracle.indexes.iter().map(fits).filter(|(_, values)| !values.is_empty()).collect();
        let ReadPath::Chain { index } = &stats.read_path else {
            self.linked_from = None;
            let answered = matches!(self.phase, Phase::Live) && self.opened_at < oracle.events.len();
            let polled = from != usize::MAX && self.floor.is_none() && !self.ahead;
            let must = answered && polled && !oracle.few_buckets && !fitting.is_empty();
            return assert!(!must, "it scans, though {fitting:?} fits {:?}", self.options.filter);
        };
        let Some((by, buckets)) = fitting.iter().find(|(by, _)| by.name() == *index) else {
            panic!("it reads {index}, which does not fit {:?}", self.options.filter);
        };
        // Where buckets are few it may get its own only once another one is released, and scans what lies below:
        // all there was when it was first seen to read it.
        let first_seen = if oracle.few_buckets { oracle.events.len() } else { self.opened_at };
        let linked_from = *self.linked_from.get_or_insert(first_seen);
        if from == usize::MAX || from < linked_from || from >= oracle.events.len() {
            return;
        }
        let behind = &oracle.events[from..];
        if behind.iter().any(|event| event.is_mark()) {
            return;
        }
        let size = |bucket: &Vec<u8>| behind.iter().filter(|event| by.gathers(bucket, event)).count() as u64;
        let own = buckets.iter().map(size).max().unwrap_or(0);
        let looked = stats.looked_at - self.looked;
        assert!(looked <= own, "looked at {looked} events of {own} of its own, {:?}", self.options);
    }

    /// What it keeps them is what it has delivered.
    fn memory_rule(&mut self, oracle: &Oracle, stats: &SubscriptionStats) {
        if !self.options.keeps_delivered() {
            return assert_eq!((stats.delivered_keys, stats.delivered_bytes), (0, 0));
        }
        let Some(delivered) = &self.delivered else { return };
        // A start of the future keeps the state at which it began, until its revision is there.
        let begun = self.floor.is_none();
        if self.exact && begun && matches!(self.phase, Phase::Live) && self.all_live(oracle) {
            assert_eq!(stats.delivered_keys, delivered.len() as u64, "{:?}", self.options);
        }
        self.most_shown = self.most_shown.max(stats.delivered_keys);
        assert!(stats.delivered_bytes <= BYTES_A_KEY * self.most_shown + 1024, "{stats:?}");
    }
}
