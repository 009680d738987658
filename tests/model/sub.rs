//! A subscription beside what the twin expects of it.
//!
//! What may be lost is exact: LAGGED is right only where an event that was not handed out has left the
//! window. Whether a subscription still holds the segment of such an event is its own affair: where it
//! hands the event out, that is compared.

use crate::filter::{By, Filter};
use crate::plan::{Plan, Shown};
use crate::twin::{Found, Kv, Twin, raw_kind};
use std::time::Duration;
use watchcore::{
    Batch, Cache, Closer, Code, Error, Kind, OnLag, Position, Route, Start, Subscription, SubscriptionStats, WakeSet,
};

/// Bytes that a key costs which was shown.
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
    pub fn remembers(&self) -> bool {
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
    /// LAGGED was told; true: in place of the initial state.
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
    /// Events that are shown, and as what.
    found: Vec<(usize, Kind)>,
    /// Where the look ends, and why.
    at: usize,
    stop: Option<Stop>,
    /// The first event that has left the window and may be missed.
    lapped: Option<usize>,
    /// The first event above a start of the future, if it came.
    above: Option<usize>,
}

/// A loss that a wait may have met: it is told by the next poll, as of then.
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
    /// A wait met a refused start, which the next poll tells.
    refused: bool,
    /// LAGGED was told, RESYNCED comes next: the bracket was lost with the rest.
    bracket_lost: bool,
    met: Vec<Met>,
    /// Revisions up to this one were told as lost.
    told: u64,
    /// What its consumer has been shown; `None` behind a loss that nobody made good.
    shown: Option<Shown>,
    /// With masked kinds `next` may be behind what was passed over unseen.
    exact: bool,
    /// Number of events when it was opened.
    opened_at: usize,
    handed: u64,
    looked: u64,
    most_shown: u64,
}

impl Sub {
    /// Opens it, or checks the refusal.
    pub fn open(name: u64, cache: &Cache, set: &WakeSet, options: Options, twin: &Twin) -> Option<Sub> {
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
        if twin.loaded
            && let Start::After(revision) = options.start
            && twin.find(revision, options.epoch, true) == Found::Compacted
        {
            let error = opened.expect_err("COMPACTED was expected");
            assert_eq!(error.code(), Code::Compacted, "{error} {options:?}");
            let numbers = (error.asked(), error.oldest(), error.current());
            assert_eq!(numbers, (revision, twin.oldest(), twin.now.revision), "{error}");
            return None;
        }
        crate::trace(|| format!("  {name}: {options:?}"));
        let mut real = opened.unwrap_or_else(|error| panic!("{error} {options:?}"));
        set.add(&mut real, name).unwrap();
        let mut sub = Sub {
            name,
            closer: real.closer(),
            real,
            exact: !options.filter.masks() || twin.indexes.is_empty(),
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
            told: 0,
            shown: None,
            opened_at: twin.events.len(),
            handed: 0,
            looked: 0,
            most_shown: 0,
        };
        if twin.loaded {
            assert!(sub.begin(twin, false).is_ok(), "looked at above");
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

    /// Live from here: the matching state counts as shown.
    fn live_from(&mut self, twin: &Twin, next: usize, position: Position) {
        self.live(next, position);
        self.shown = Some(Shown::new(twin.shown_at(&self.options.filter, next)));
    }

    fn initial(&mut self, twin: &Twin, count: usize, at: Position) {
        let all = twin.shown_at(&self.options.filter, count);
        let masked = !self.options.filter.shows(Kind::Added);
        let state = if masked { Vec::new() } else { all.clone().into_iter().collect() };
        self.shown = Some(Shown::new(if masked && !self.options.remembers() { all } else { Default::default() }));
        self.phase = Phase::Initial(state, count, at);
    }

    fn begin(&mut self, twin: &Twin, late: bool) -> Result<(), ()> {
        let listing = Position { epoch: twin.birth + 1, revision: twin.listing };
        let (count, at) = if late { (0, listing) } else { (twin.events.len(), twin.now) };
        match self.options.start {
            Start::Now => {
                self.live_from(twin, count, at);
                if late && twin.first_live > 1 && self.options.remembers() {
                    // The state of then has left: nothing counts as shown, and that is a loss.
                    self.shown = Some(Shown::default());
                }
            }
            Start::State => self.initial(twin, count, at),
            Start::StateAtLeast(revision) => self.phase = Phase::Waits(revision),
            Start::After(revision) => match twin.find(revision, self.options.epoch, true) {
                Found::Compacted => return Err(()),
                Found::At(count) => self.live_from(twin, count, Position { epoch: twin.epoch_at(count), revision }),
                Found::Future => {
                    self.live_from(twin, twin.events.len(), Position { epoch: twin.now.epoch, revision });
                    (self.floor, self.ahead) = (Some(revision), true);
                }
            },
        }
        Ok(())
    }

    /// From now on there is an end.
    pub fn close(&mut self, twin: &Twin) {
        self.by_owner = true;
        self.never |= !twin.loaded;
        self.closer.close();
        self.cache_closed(twin);
    }

    pub fn cache_closed(&mut self, twin: &Twin) {
        self.end.get_or_insert(twin.events.len());
    }

    fn limit(&self, twin: &Twin) -> usize {
        self.end.unwrap_or(twin.events.len()).max(self.next)
    }

    fn pending(&self, twin: &Twin) -> Pending {
        let (mut found, mut floor, mut above) = (Vec::new(), self.floor, None);
        // Behind what was handed out last it may not have looked yet.
        let mut lapped = (self.sure..self.next).find(|at| !twin.is_live(*at));
        let filter = &self.options.filter;
        for at in self.next..self.limit(twin) {
            let event = &twin.events[at];
            // Who has reached it waits no more.
            if event.first && event.turn.is_some_and(|turn| floor.is_some_and(|asked| turn.from >= asked)) {
                (floor, above) = (None, Some(at));
            }
            // What leaves below a start of the future is no loss.
            let resets = event.first && event.turn.is_some_and(|turn| turn.resets());
            let dropped = floor.is_some_and(|asked| resets || event.revision.max(twin.oldest() - 1) <= asked);
            if !twin.is_live(at) && !dropped {
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
        Pending { found, at: self.limit(twin), stop: None, lapped, above }
    }

    /// Moves on; what was passed over counts as shown where only its kind is masked.
    fn pass(&mut self, twin: &Twin, to: usize) {
        if let Some(shown) = &mut self.shown {
            for event in &twin.events[self.next..to.max(self.next)] {
                if let Some(kind) = self.options.filter.transition(event) {
                    shown.change(kind, &event.key, event.kv.as_ref());
                }
            }
        }
        (self.next, self.sure, self.vague) = (to, to, false);
    }

    /// Blocks for no time, or arms it, and checks what it says.
    pub fn wait(&mut self, twin: &Twin, arms: bool) {
        self.check_wait(twin, arms);
        self.looked = self.real.stats().looked_at;
    }

    fn check_wait(&mut self, twin: &Twin, arms: bool) {
        let answer = if arms {
            let answer = self.real.arm();
            if self.is_ended() || self.end.is_some() {
                // The poll tells.
                assert!(answer.unwrap());
                self.met.push(self.met(twin));
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
            return assert!(answer.expect("an error is to be told"));
        }
        if let Phase::Unready = self.phase
            && twin.loaded
            && !self.never
            && self.begin(twin, true).is_err()
        {
            self.refused = true;
        }
        if let Phase::Waits(revision) = self.phase
            && twin.now.revision >= revision
            && !self.by_owner
        {
            self.initial(twin, twin.events.len(), twin.now);
        }
        if !matches!(self.phase, Phase::Live) {
            let something = matches!(self.phase, Phase::Initial(..)) || self.refused || self.end.is_some();
            return assert_eq!(answer.expect("not over yet"), something);
        }
        let Pending { found, at, stop, lapped, .. } = self.pending(twin);
        if lapped.is_some() || (self.floor.is_some() && !self.all_live(twin)) {
            self.exact &= !self.options.filter.masks();
            match answer {
                Ok(true) => self.met.push(self.met(twin)),
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
        let passed = |floor: &u64| twin.events[self.next..next].iter().any(|event| event.revision > *floor);
        if self.floor.as_ref().is_some_and(passed) {
            self.floor = None;
        }
        if wake {
            assert!(answer.unwrap_or_else(|error| panic!("{error}: {found:?} {stop:?}")), "{found:?} {stop:?}");
            if moves {
                self.pass(twin, next);
            }
            if !found.is_empty() {
                self.floor = None;
            }
        } else if self.end.is_some() {
            assert_eq!(answer.expect_err("closed and read").code(), Code::Closed);
            self.pass(twin, at);
        } else {
            let due = self.options.bookmarks && self.floor.is_none() && self.bookmarked != twin.now;
            let passed = self.floor.is_some();
            if self.options.bookmarks && self.floor.is_some_and(|floor| floor <= twin.now.revision) {
                self.floor = None;
            }
            let answer = answer.expect("open");
            assert!(answer == due || passed, "said {answer}: floor {:?}, {:?}", self.floor, self.bookmarked);
            if moves {
                self.pass(twin, at);
            }
        }
        self.position_rule(twin);
    }

    fn all_live(&self, twin: &Twin) -> bool {
        (self.next..self.limit(twin)).all(|at| twin.is_live(at))
    }

    fn met(&self, twin: &Twin) -> Met {
        let skip = twin.above(twin.oldest() - 1);
        Met { oldest: twin.oldest(), current: twin.now.revision, skip: skip.max(self.sure) }
    }

    /// Never back, never ahead of what is pending.
    fn position_rule(&mut self, twin: &Twin) {
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
        let whole = twin.position_at(self.whole_seen);
        if matches!(self.phase, Phase::Live) && self.floor.is_none() {
            assert!(position >= whole, "{position:?} is behind what was handed out whole, {whole:?}");
        }
        if matches!(self.phase, Phase::Unready | Phase::Waits(_) | Phase::Initial(..)) {
            assert_eq!(position.revision, 0, "the position during the initial state");
        }
        if matches!(self.phase, Phase::Live) && self.floor.is_none() {
            let Pending { found, .. } = self.pending(twin);
            if let Some((first, _)) = found.first() {
                // Inside a revision: the revision before.
                let first = &twin.events[*first];
                let rev = &twin.revs[first.rev];
                let (epoch, revision) =
                    rev.turn.map_or((rev.epoch, rev.revision.saturating_sub(1)), |turn| (turn.epoch - 1, turn.from));
                // Where it was compacted inside a gap, a skip stands there.
                let skipped = self.options.on_lag == OnLag::SkipToOldest && rev.turn.is_some();
                let revision = if skipped { revision.max(twin.oldest() - 1) } else { revision };
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

    pub fn poll(&mut self, twin: &Twin, max: usize) -> Option<Batch> {
        let before = self.real.position();
        let (from, was_live) = (self.sure, matches!(self.phase, Phase::Live) && !self.ahead);
        let answer = self.real.poll(max);
        crate::trace(|| {
            format!("  {} polls {max}: {answer:?}, {:?} at {}, {before:?}", self.name, self.phase, self.next)
        });
        self.handed += answer.as_ref().map_or(0, Batch::len) as u64;
        let batch = self.check(twin, max, before, answer);
        let stats = self.real.stats();
        assert_eq!(stats.handed_out, self.handed);
        if !self.is_ended() {
            self.position_rule(twin);
            self.lag_rule(twin);
            self.route_rule(twin, &stats, if was_live { from } else { usize::MAX });
            self.memory_rule(twin, &stats);
        }
        self.looked = stats.looked_at;
        batch
    }

    fn check(&mut self, twin: &Twin, max: usize, before: Position, answer: Result<Batch, Error>) -> Option<Batch> {
        if self.refused && !self.is_ended() {
            return self.end_with(answer, Code::Compacted);
        }
        if self.bracket_lost && !self.is_ended() {
            return self.end_with(answer, Code::Resynced);
        }
        if let Phase::Unready = self.phase {
            if !twin.loaded || self.never {
                return self.nothing_or_closed(twin, answer);
            }
            if self.begin(twin, true).is_err() {
                return self.end_with(answer, Code::Compacted);
            }
        }
        if let Phase::Waits(revision) = self.phase {
            if twin.now.revision < revision || self.by_owner {
                return self.nothing_or_closed(twin, answer);
            }
            self.initial(twin, twin.events.len(), twin.now);
        }
        match &self.phase {
            Phase::Ended => self.end_with(answer, Code::Closed),
            Phase::Initial(..) => self.check_initial(twin, max, answer),
            Phase::Behind(initial) => {
                let initial = *initial;
                self.check_behind(twin, max, before, (initial, false), answer)
            }
            Phase::CatchUp(_) => self.check_catch_up(twin, max, before, answer),
            _ => self.check_live(twin, max, before, answer),
        }
    }

    fn nothing_or_closed(&mut self, _: &Twin, answer: Result<Batch, Error>) -> Option<Batch> {
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

    fn check_initial(&mut self, twin: &Twin, max: usize, answer: Result<Batch, Error>) -> Option<Batch> {
        let Phase::Initial(left, count, at) = &mut self.phase else { unreachable!() };
        let (count, at) = (*count, *at);
        let looks = self.options.filter.shows(Kind::Added) || self.options.remembers();
        if twin.first_live * twin.slots > twin.head_of(count) && looks {
            let before = Position { epoch: at.epoch, revision: 0 };
            if let Some(shown) = &mut self.shown {
                shown.all_at(count);
            }
            if self.options.on_lag == OnLag::Conflate {
                return self.check_behind(twin, max, before, (true, false), answer);
            }
            let error = answer.expect_err("the initial state has left the window");
            assert_eq!(error.code(), Code::Lagged);
            assert_eq!((error.lost_from(), error.lost_to()), (1, twin.now.revision));
            assert_eq!((error.oldest(), error.current()), (twin.oldest(), twin.now.revision));
            let again = self.options.on_lag == OnLag::Resnapshot;
            self.phase = if again { Phase::Behind(true) } else { Phase::Ended };
            return None;
        }
        let shown = self.shown.as_mut().expect("nothing was lost");
        if looks && !self.options.filter.shows(Kind::Added) {
            twin.shown_at(&self.options.filter, count).iter().for_each(|(key, kv)| shown.put(key, kv, count));
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
            shown.put(&key, &kv, count);
        }
        Some(batch)
    }

    /// The first page of the difference behind a loss.
    fn check_behind(
        &mut self,
        twin: &Twin,
        max: usize,
        before: Position,
        (initial, begun): (bool, bool),
        answer: Result<Batch, Error>,
    ) -> Option<Batch> {
        // It begins at the listing where that came after it.
        let epoch = if before.epoch == 0 { twin.birth + 1 } else { before.epoch };
        if self.options.stop_on_resync && twin.now.epoch != epoch {
            let error = answer.expect_err("RESYNCED was expected");
            assert_eq!((error.code(), error.current()), (Code::Resynced, twin.now.revision), "{error}");
            self.phase = Phase::Ended;
            return None;
        }
        let shown = self.shown.as_ref().expect("it remembers");
        let from = before.revision;
        self.phase = Phase::CatchUp(Plan::new(&self.options, twin, shown, from, (initial, begun), self.exact));
        self.check_page(twin, max, before, answer)
    }

    fn check_catch_up(
        &mut self,
        twin: &Twin,
        max: usize,
        before: Position,
        answer: Result<Batch, Error>,
    ) -> Option<Batch> {
        let Phase::CatchUp(plan) = &self.phase else { unreachable!() };
        if plan.looks_at_the_state() && twin.first_live * twin.slots > twin.head_of(plan.count) {
            // Overtaken: it begins again with what was shown meanwhile.
            let (initial, begun) = (plan.initial, plan.begun);
            if self.options.on_lag == OnLag::Conflate || begun {
                // Inside its bracket it goes on, and tells nothing again.
                return self.check_behind(twin, max, before, (initial, begun), answer);
            }
            let error = answer.expect_err("overtaken again");
            self.assert_lost(twin, before, &error);
            self.phase = Phase::Behind(initial);
            return None;
        }
        self.check_page(twin, max, before, answer)
    }

    fn check_page(&mut self, twin: &Twin, max: usize, before: Position, answer: Result<Batch, Error>) -> Option<Batch> {
        let Phase::CatchUp(plan) = &mut self.phase else { unreachable!() };
        let batch = answer.unwrap_or_else(|error| panic!("{error}: a page of {plan:?} was expected"));
        let most = if self.options.whole { usize::MAX } else { max };
        let shown = self.shown.as_mut().expect("it remembers");
        let done = plan.check_page(&self.options.filter, &batch, most, shown);
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
        shown.assert_are(&twin.shown_at(&self.options.filter, count), "after the difference");
        self.live(count, at);
        (self.told, self.exact) = (0, !self.options.filter.masks() || twin.indexes.is_empty());
        (!batch.is_empty()).then_some(batch)
    }

    /// The numbers of a loss.
    fn assert_lost(&mut self, twin: &Twin, before: Position, error: &Error) {
        assert_eq!(error.code(), Code::Lagged, "{error}");
        let told = Position { epoch: error.epoch(), revision: error.position() };
        assert!(told >= before, "{told:?} {before:?}");
        let from = [error.position().max(self.told) + 1, error.position() + 1];
        assert!(from.contains(&error.lost_from()), "{error}: {from:?}");
        let met = self.loss_of(twin, error);
        assert_eq!(error.lost_to(), (met.oldest - 1).max(error.lost_from()), "{error}");
        assert_eq!((error.oldest(), error.current()), (met.oldest, met.current));
        self.told = error.lost_to();
    }

    /// The loss that an error tells: that of now, or the one that a wait met.
    fn loss_of(&self, twin: &Twin, error: &Error) -> Met {
        let met = self.met.iter().find(|met| met.current == error.current() && met.oldest == error.oldest());
        met.copied().unwrap_or(self.met(twin))
    }

    /// LAGGED was told, or (Conflate) acted upon.
    fn lose(&mut self, skip: usize) {
        (self.floor, self.ahead) = (None, true);
        // What is masked may have been passed over in a segment that it still held.
        self.exact &= !self.options.filter.masks();
        match self.options.on_lag {
            OnLag::Stop => self.phase = Phase::Ended,
            OnLag::SkipToOldest => {
                (self.next, self.sure, self.whole_seen, self.shown) = (skip, skip, skip, None);
            }
            OnLag::Resnapshot | OnLag::Conflate => {
                self.shown.as_mut().expect("it remembers").all_at(self.next);
                self.phase = Phase::Behind(false);
            }
        }
        self.met.clear();
    }

    fn check_live(&mut self, twin: &Twin, max: usize, before: Position, answer: Result<Batch, Error>) -> Option<Batch> {
        let Pending { found, at, stop, lapped, above } = self.pending(twin);
        let gap = matches!(stop, Some(Stop::Gap(_))) && found.is_empty();
        // What has left is not looked at: a start of the future may have been passed in it.
        let unsure = self.floor.is_some() && !self.all_live(twin);
        let may_lose = lapped.is_some() || unsure;
        // A wait may have met the gap before what follows had left.
        let gap_told = |error: &Error| match (stop, self.floor) {
            (Some(Stop::Gap(at)), Some(asked)) if gap => {
                let to = twin.events[at].turn.expect("a mark").to;
                (error.lost_from(), error.lost_to()) == (asked + 1, to)
            }
            _ => false,
        };
        match &answer {
            Err(error)
                if error.code() == Code::Lagged && may_lose && !(gap && lapped.is_none()) && !gap_told(error) =>
            {
                let skip = self.loss_of(twin, error).skip;
                assert!(self.options.on_lag != OnLag::Conflate, "never told: {error}");
                match (self.floor, above) {
                    _ if !unsure => self.assert_lost(twin, before, error),
                    // The loss came behind the start.
                    (Some(asked), Some(above)) if error.position() > asked => self.pass(twin, above),
                    // What the consumer has at a start that left is not to be known.
                    _ => self.exact = false,
                }
                self.lose(skip);
                let over = self.end.is_some_and(|end| skip >= end);
                self.bracket_lost = self.options.on_lag == OnLag::SkipToOldest
                    && self.options.stop_on_resync
                    && twin.epoch_at(skip) != before.epoch
                    && !over;
                return None;
            }
            Ok(batch) if self.options.on_lag == OnLag::Conflate && (may_lose || gap) => {
                let made = batch.events().first().is_some_and(|event| event.sequence() == 0 && event.is_synthetic());
                let due = self.end.is_some() || (self.options.bookmarks && self.bookmarked != twin.now);
                let due = due && self.real.position() == twin.now;
                if made || (batch.is_empty() && (!found.is_empty() || gap || due)) {
                    match gap && lapped.is_none() {
                        true => self.pass(twin, at),
                        false => self.exact &= !unsure,
                    }
                    self.lose(0);
                    return self.check_behind(twin, max, before, (false, false), answer);
                }
            }
            Err(error)
                if self.options.on_lag == OnLag::Conflate && error.code() == Code::Resynced && (may_lose || gap) =>
            {
                if matches!(stop, Some(Stop::Resynced(_))) && found.is_empty() && error.current() != twin.now.revision {
                    self.check_stop(twin, stop.expect("looked at"), error);
                    self.phase = Phase::Ended;
                    return None;
                }
                self.lose(0);
                return self.check_behind(twin, max, before, (false, false), answer);
            }
            _ => {}
        }
        self.met.clear();
        if found.is_empty() {
            if let Some(stop) = stop {
                let error = answer.err().unwrap_or_else(|| panic!("{stop:?} was expected"));
                self.check_stop(twin, stop, &error);
                match stop {
                    Stop::Gap(at) if error.code() == Code::Lagged => {
                        self.told = error.lost_to();
                        self.pass(twin, at);
                        self.lose(at);
                    }
                    _ => self.phase = Phase::Ended,
                }
                return None;
            }
            self.pass(twin, at);
            // Behind a close it cannot say how far it came where the last event has left.
            if self.end.is_none() || lapped.is_none() {
                self.whole_seen = at;
            }
            return self.check_nothing(twin, answer);
        }
        let batch = answer.unwrap_or_else(|error| {
            let (at, live) = (twin.events[self.next].seq, twin.first_live);
            panic!("{error}: {} were pending from {at}, live from {live}, {:?}", found.len(), self.options)
        });
        assert!(!batch.is_empty(), "{} were pending {:?}", found.len(), self.options);
        assert!(batch.len() <= found.len(), "{} events, {} were pending: {batch:?}", batch.len(), found.len());
        for (event, (at, kind)) in batch.events().iter().zip(&found) {
            let expected = &twin.events[*at];
            expected.assert_shown_as(event, *kind, self.options.filter.raw);
            assert_eq!(event.sequence(), expected.seq);
        }
        (self.floor, self.ahead) = (None, false);
        self.check_border(twin, max, &batch, &found, lapped);
        assert_eq!(batch.position(), self.real.position());
        let last = found[batch.len() - 1].0;
        let next = match found.get(batch.len()) {
            // The next match was seen, and the cursor is at its revision, or at it.
            Some((next, _)) if twin.events[*next].rev == twin.events[last].rev => *next,
            Some((next, _)) if !self.options.filter.is_plain() => {
                (last + 1).max(twin.revs[twin.events[*next].rev].events.start)
            }
            Some(_) => last + 1,
            None if self.views() => last + 1,
            None => at,
        };
        let vague = lapped.is_some_and(|lapped| next > lapped);
        self.exact &= !vague || !self.options.filter.masks();
        self.pass(twin, if vague { last + 1 } else { next });
        self.vague = vague;
        self.sure = last + 1;
        self.whole_seen = if batch.continues() { twin.revs[twin.events[last].rev].events.start } else { last + 1 };
        Some(batch)
    }

    /// Batches are views of one segment.
    fn views(&self) -> bool {
        self.options.filter.is_plain() && !self.options.whole && !self.options.stop_on_resync
    }

    /// Where a batch may end.
    fn check_border(&self, twin: &Twin, max: usize, batch: &Batch, found: &[(usize, Kind)], lapped: Option<usize>) {
        let last = &twin.events[found[batch.len() - 1].0];
        let rev = &twin.revs[last.rev];
        // The rest of the revision may be lost.
        let cut = lapped.is_some_and(|at| rev.events.contains(&at) || rev.events.start > at);
        let inside = found.get(batch.len()).is_some_and(|(next, _)| twin.events[*next].rev == last.rev)
            || (self.views() && !last.last);
        assert!(batch.continues() == inside || (cut && !last.last), "CONTINUES where the batch ends with {last:?}");
        let of_this = found.iter().filter(|(at, _)| twin.events[*at].rev == last.rev).count();
        if inside && !cut {
            assert!(!self.options.whole, "a whole revision was asked for");
            assert!(
                rev.events.len() as u64 > twin.slots / 8 || of_this > max,
                "ends inside a short revision: {last:?}"
            );
        }
        if batch.len() > max {
            let first = &twin.events[found[0].0];
            assert!(self.options.whole && first.rev == last.rev, "{} events, {max} were asked for", batch.len());
        }
    }

    fn check_nothing(&mut self, twin: &Twin, answer: Result<Batch, Error>) -> Option<Batch> {
        if let Some(shown) = &self.shown
            && self.exact
        {
            shown.assert_are(&twin.shown_at(&self.options.filter, self.next), "with nothing pending");
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
        if self.floor.is_some_and(|floor| floor <= twin.now.revision) {
            self.floor = None;
        }
        if self.floor.is_none() {
            assert_eq!(self.real.position(), twin.now, "everything was handed out, {answer:?} {:?}", self.options);
        }
        if self.options.bookmarks && self.floor.is_none() && self.bookmarked != twin.now {
            let batch = answer.expect("a bookmark");
            assert_eq!(batch.len(), 1);
            let event = &batch.events()[0];
            assert_eq!((event.kind(), event.revision(), event.flags()), (Kind::Bookmark, twin.now.revision, 0));
            self.bookmarked = twin.now;
            return Some(batch);
        }
        assert!(answer.expect("nothing").is_empty());
        None
    }

    fn check_stop(&self, twin: &Twin, stop: Stop, error: &Error) {
        match stop {
            Stop::Gap(at) => {
                let turn = twin.events[at].turn.expect("a mark");
                assert_eq!(error.code(), Code::Lagged, "{error}");
                assert_eq!((error.lost_from(), error.lost_to()), (self.floor.expect("it waits") + 1, turn.to));
            }
            // What has left is not looked at: the two cannot be told apart.
            Stop::Future if !self.all_live(twin) && error.code() == Code::Lagged => {}
            Stop::Future => assert_eq!(error.code(), Code::FutureRevision, "{error}"),
            Stop::Resynced(at) => {
                assert_eq!(error.code(), Code::Resynced, "{error}");
                let turn = twin.events[at].turn.expect("a mark");
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
    fn lag_rule(&self, twin: &Twin) {
        let sure = !self.vague && self.end.is_none() && twin.indexes.is_empty();
        if matches!(self.phase, Phase::Live) && sure && self.all_live(twin) {
            let lag = self.real.lag();
            assert_eq!(lag.events, (twin.events.len() - self.next) as u64, "lag of {:?}", self.options);
            if lag.events == 0 {
                assert_eq!(lag.age, Duration::ZERO);
            }
        }
    }

    /// It reads the chain of a fitting index, and then only its own events.
    fn route_rule(&self, twin: &Twin, stats: &SubscriptionStats, from: usize) {
        let fits = |by: &By| (*by, by.fits(&self.options.filter));
        let fitting: Vec<(By, Vec<Vec<u8>>)> =
            twin.indexes.iter().map(fits).filter(|(_, values)| !values.is_empty()).collect();
        let Route::Chain { index } = &stats.route else {
            let answered = matches!(self.phase, Phase::Live) && self.opened_at < twin.events.len();
            let polled = from != usize::MAX && self.floor.is_none() && !self.ahead;
            let must = answered && polled && !twin.few_buckets && !fitting.is_empty();
            return assert!(!must, "it scans, though {fitting:?} fits {:?}", self.options.filter);
        };
        let Some((by, buckets)) = fitting.iter().find(|(by, _)| by.name() == *index) else {
            panic!("it reads {index}, which does not fit {:?}", self.options.filter);
        };
        // Where buckets are few it may have got its own only when another one was given up.
        if twin.few_buckets || from == usize::MAX || from < self.opened_at || from >= twin.events.len() {
            return;
        }
        if twin.few_buckets {
            // The bucket comes when another is given back, and what lies below it was scanned.
            return;
        }
        let behind = &twin.events[from..];
        if behind.iter().any(|event| event.is_mark()) {
            return;
        }
        let size = |bucket: &Vec<u8>| behind.iter().filter(|event| by.gathers(bucket, event)).count() as u64;
        let own = buckets.iter().map(size).max().unwrap_or(0);
        let looked = stats.looked_at - self.looked;
        assert!(looked <= own, "looked at {looked} events of {own} of its own, {:?}", self.options);
    }

    /// What it remembers is what it has shown.
    fn memory_rule(&mut self, twin: &Twin, stats: &SubscriptionStats) {
        if !self.options.remembers() {
            return assert_eq!((stats.shown_keys, stats.shown_bytes), (0, 0));
        }
        let Some(shown) = &self.shown else { return };
        // A start of the future remembers the state at which it began, until its revision is there.
        let begun = self.floor.is_none();
        if self.exact && begun && matches!(self.phase, Phase::Live) && self.all_live(twin) {
            assert_eq!(stats.shown_keys, shown.len() as u64, "{:?}", self.options);
        }
        self.most_shown = self.most_shown.max(stats.shown_keys);
        assert!(stats.shown_bytes <= BYTES_A_KEY * self.most_shown + 1024, "{stats:?}");
    }
}
