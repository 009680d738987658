//! A subscription beside what the oracle expects of it.
//!
//! What may be lost is exact: LAGGED is right only where an event that was not handed out has left the
//! window. Whether a subscription still holds the segment of such an event is its own affair: where it
//! hands the event out, that is compared.

mod behind;
mod live;
mod rules;
mod wait;

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
    /// The state that it starts from has left: the next poll says so.
    Unknown,
    Ended,
}

/// Why a look at the log ends before its end.
#[derive(Clone, Copy, Debug)]
enum Stop {
    /// The start that waited lies in the gap of this resync.
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
    overrun: Option<usize>,
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
    /// Where the cache stood when its owner closed it first.
    closed_at: Position,
    /// A wait met a refused start, which the next poll reports.
    refused: bool,
    /// LAGGED was reported, RESYNCED comes next: the marks were lost with the rest.
    marks_lost: bool,
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
            .set(cache.subscribe(match options.start {
                Start::After(revision) if options.epoch != 0 => {
                    Start::AfterIn(Position { epoch: options.epoch, revision })
                }
                start => start,
            }))
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
            closed_at: Position::default(),
            refused: false,
            marks_lost: false,
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
                    self.phase = Phase::Unknown;
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
            other => unreachable!("{other} is none that it draws"),
        }
        Ok(())
    }

    /// From now on there is an end.
    pub fn close(&mut self, oracle: &Oracle) {
        if self.end.is_none() {
            self.closed_at = oracle.now;
        }
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
        let mut overrun = (self.sure..self.next).find(|at| !oracle.is_live(*at));
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
                overrun.get_or_insert(at);
            }
            if let Some(asked) = floor {
                if let Some(turn) = event.turn.filter(|_| event.first) {
                    if turn.resets() {
                        return Pending { found, at, stop: Some(Stop::Future), overrun, above };
                    }
                    if asked < turn.to {
                        return Pending { found, at, stop: Some(Stop::Gap(at)), overrun, above };
                    }
                }
                if event.revision <= asked {
                    continue;
                }
                (floor, above) = (None, Some(at));
            }
            if event.is_mark() && self.options.stop_on_resync {
                return Pending { found, at, stop: Some(Stop::Resynced(at)), overrun, above };
            }
            if let Some(kind) = filter.transition(event)
                && filter.shows(kind)
            {
                found.push((at, kind));
            }
        }
        Pending { found, at: self.limit(oracle), stop: None, overrun, above }
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
        if self.marks_lost && !self.is_ended() {
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
            // The state at the listing has left before it was seen, so no difference leads from there to the state now.
            Phase::Unknown => self.end_with(answer, Code::Lagged),
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
}
