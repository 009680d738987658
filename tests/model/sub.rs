//! A subscription beside what the twin expects of it.

use crate::filter::Filter;
use crate::twin::{Found, Kv, Twin};
use std::time::Duration;
use watchcore::{Batch, Cache, Closer, Code, Error, Kind, Position, Start, Subscription};

#[derive(Clone, Debug)]
pub struct Options {
    pub start: Start,
    pub filter: Filter,
    pub epoch: u64,
    pub bookmarks: bool,
    pub whole: bool,
    pub stop_on_resync: bool,
}

#[derive(Debug)]
enum Phase {
    Unready,
    /// StateAtLeast waits.
    Waits(u64),
    /// What is left of the state at the first `.1` events.
    Initial(Vec<(Vec<u8>, Kv)>, usize, Position),
    Live,
    Ended,
}

/// Why a look at the log ends before its end.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Lapped,
    /// The start that waited lies inside the gap of this bracket.
    Gap(usize),
    Future,
    Resynced(usize),
}

pub struct Sub {
    pub name: u64,
    real: Subscription,
    closer: Closer,
    options: Options,
    phase: Phase,
    /// Index of the next event to look at.
    next: usize,
    /// The segment whose count the subscription holds.
    held: Option<u64>,
    floor: Option<u64>,
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
    /// A wait met a loss, which the next poll tells, with `oldest` and the current revision of then.
    stopped: Option<(u64, u64)>,
}

impl Sub {
    /// Opens it, or checks the refusal.
    pub fn open(name: u64, cache: &Cache, options: Options, twin: &Twin) -> Option<Sub> {
        let builder = options
            .filter
            .set(cache.subscribe(options.start))
            .epoch(options.epoch)
            .bookmarks(options.bookmarks)
            .bookmark_interval(Duration::ZERO)
            .whole_revisions(options.whole)
            .stop_on_resync(options.stop_on_resync)
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
        let real = opened.unwrap_or_else(|error| panic!("{error} {options:?}"));
        let mut sub = Sub {
            name,
            closer: real.closer(),
            real,
            options,
            phase: Phase::Unready,
            next: 0,
            held: None,
            floor: None,
            bookmarked: Position::default(),
            end: None,
            seen: Position::default(),
            whole_seen: 0,
            never: false,
            by_owner: false,
            refused: false,
            stopped: None,
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
    }

    fn initial(&mut self, twin: &Twin, count: usize, at: Position) {
        let filter = &self.options.filter;
        let mut state: Vec<(Vec<u8>, Kv)> = Vec::new();
        if filter.shows(Kind::Added) {
            let all = twin.state_at(count);
            state.extend(all.iter().filter(|(key, _)| filter.keys.holds(key)).map(|(k, kv)| (k.clone(), kv.clone())));
        }
        self.phase = Phase::Initial(state, count, at);
    }

    fn begin(&mut self, twin: &Twin, late: bool) -> Result<(), ()> {
        let listing = Position { epoch: twin.birth + 1, revision: twin.listing };
        let (count, at) = if late { (0, listing) } else { (twin.events.len(), twin.now) };
        match self.options.start {
            Start::Now => self.live(count, at),
            Start::State => self.initial(twin, count, at),
            Start::StateAtLeast(revision) => self.phase = Phase::Waits(revision),
            Start::After(revision) => match twin.find(revision, self.options.epoch, true) {
                Found::Compacted => return Err(()),
                Found::At(count) => self.live(count, Position { epoch: twin.epoch_at(count), revision }),
                Found::Future => {
                    self.live(twin.events.len(), Position { epoch: twin.now.epoch, revision });
                    self.floor = Some(revision);
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
        self.end.unwrap_or(twin.events.len())
    }

    /// The matching events that can be read now, where the look ends, and why.
    fn pending(&self, twin: &Twin) -> (Vec<usize>, usize, Option<Stop>) {
        let (mut found, mut floor) = (Vec::new(), self.floor);
        for at in self.next..self.limit(twin) {
            let event = &twin.events[at];
            // What leaves below a start of the future is no loss.
            let resets = event.first && event.turn.is_some_and(|turn| turn.resets());
            let dropped = floor.is_some_and(|asked| resets || event.revision.max(twin.oldest() - 1) <= asked);
            if !twin.is_live(at) && self.held != Some(twin.segment_of(at)) && !dropped {
                return (found, at, Some(Stop::Lapped));
            }
            if let Some(asked) = floor {
                if let Some(turn) = event.turn.filter(|_| event.first) {
                    if turn.resets() {
                        return (found, at, Some(Stop::Future));
                    }
                    if turn.from < asked && asked < turn.to {
                        return (found, at, Some(Stop::Gap(at)));
                    }
                }
                if event.revision <= asked {
                    continue;
                }
                floor = None;
            }
            if event.is_mark() && self.options.stop_on_resync {
                return (found, at, Some(Stop::Resynced(at)));
            }
            if self.options.filter.matches(event) {
                found.push(at);
            }
        }
        (found, self.limit(twin), None)
    }

    /// Blocks for no time and checks what it says.
    pub fn wait(&mut self, twin: &Twin) {
        let answer = self.real.wait(Duration::ZERO);
        if let Phase::Initial(..) | Phase::Ended = self.phase {
            return if self.is_ended() {
                assert_eq!(answer.expect_err("ended").code(), Code::Closed);
            } else {
                assert!(answer.expect("something of the initial state"));
            };
        }
        if self.stopped.is_some() || self.refused {
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
        let (found, at, stop) = self.pending(twin);
        // A look that moves over events, which an unfiltered one need not do.
        let moves = !self.options.filter.is_plain() || self.floor.is_some();
        let (next, wake) = match found.first() {
            Some(found) => (*found, true),
            None => (at, stop.is_some()),
        };
        let passed = |floor: &u64| twin.events[self.next..next].iter().any(|event| event.revision > *floor);
        if self.floor.as_ref().is_some_and(passed) {
            self.floor = None;
        }
        if wake {
            assert!(answer.unwrap_or_else(|error| panic!("{error}: {found:?} {stop:?}")), "{found:?} {stop:?}");
            if moves {
                self.next = next;
                self.held =
                    (next < self.limit(twin) && !matches!(stop, Some(Stop::Lapped))).then(|| twin.segment_of(next));
            }
            if !found.is_empty() {
                self.floor = None;
            }
            if found.is_empty() && matches!(stop, Some(Stop::Lapped)) && moves {
                self.stopped = Some((twin.oldest(), twin.now.revision));
            }
        } else if self.end.is_some() {
            assert_eq!(answer.expect_err("closed and read").code(), Code::Closed);
            self.next = at;
        } else {
            let due = self.options.bookmarks && self.floor.is_none() && self.bookmarked != twin.now;
            let passed = self.floor.is_some();
            let answer = answer.expect("open");
            assert!(answer == due || passed, "said {answer}: floor {:?}, {:?}", self.floor, self.bookmarked);
            if moves {
                self.next = at;
            }
            self.held = None;
        }
        self.position_rule(twin);
    }

    /// Never back, never ahead of what is pending.
    fn position_rule(&mut self, twin: &Twin) {
        let position = self.real.position();
        assert!(position >= self.seen, "the position went back: {:?} to {position:?}", self.seen);
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
            let (found, ..) = self.pending(twin);
            if let Some(first) = found.first() {
                // Inside a revision: the revision before.
                let first = &twin.events[*first];
                let rev = &twin.revs[first.rev];
                let (epoch, revision) =
                    rev.turn.map_or((rev.epoch, rev.revision.saturating_sub(1)), |turn| (turn.epoch - 1, turn.from));
                let most = Position { epoch, revision };
                assert!(position <= most, "{position:?} is ahead: {first:?} was not handed out");
            }
        }
    }

    pub fn poll(&mut self, twin: &Twin, max: usize) -> Option<Batch> {
        let before = self.real.position();
        let answer = self.real.poll(max);
        let batch = self.check(twin, max, before, answer);
        if !self.is_ended() {
            self.position_rule(twin);
            self.lag_rule(twin);
        }
        batch
    }

    fn check(&mut self, twin: &Twin, max: usize, before: Position, answer: Result<Batch, Error>) -> Option<Batch> {
        if self.refused && !self.is_ended() {
            return self.end_with(answer, Code::Compacted);
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
        if twin.first_live * twin.slots > twin.head_of(count) && self.options.filter.shows(Kind::Added) {
            let error = answer.expect_err("the initial state has left the window");
            assert_eq!(error.code(), Code::Lagged);
            assert_eq!((error.lost_from(), error.lost_to()), (1, twin.now.revision));
            assert_eq!((error.oldest(), error.current()), (twin.oldest(), twin.now.revision));
            self.phase = Phase::Ended;
            return None;
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
            let kind = if self.options.filter.raw { Kind::Put } else { Kind::Added };
            assert!(event.is_initial_state() && !event.ends_initial_state());
            let shown = (event.kind(), event.key(), event.value(), event.revision());
            assert_eq!(shown, (kind, &key[..], Some(&kv.value[..]), kv.modified));
            let numbers = (event.create_revision(), event.mod_revision(), event.version(), event.lease());
            assert_eq!(numbers, (kv.create, kv.modified, kv.version, kv.lease));
            assert_eq!(event.prev_value(), None);
        }
        Some(batch)
    }

    fn check_live(&mut self, twin: &Twin, max: usize, before: Position, answer: Result<Batch, Error>) -> Option<Batch> {
        let (found, at, stop) = self.pending(twin);
        // The revision whose rest is lost: gathered whole it is not handed out at all.
        let cut = found
            .last()
            .map(|last| twin.events[*last].rev)
            .filter(|rev| matches!(stop, Some(Stop::Lapped)) && twin.events[at].rev == *rev);
        let mut found = found;
        if self.options.whole && cut.is_some() {
            found.retain(|at| Some(twin.events[*at].rev) != cut);
        }
        let (stop, found) = if self.stopped.is_some() { (Some(Stop::Lapped), Vec::new()) } else { (stop, found) };
        if found.is_empty() {
            let lagged = answer.as_ref().is_err_and(|error| error.code() == Code::Lagged);
            if matches!(stop, Some(Stop::Lapped)) && !lagged {
                // It holds a segment that it need not hold: nothing is lost, and all is compared.
                (self.next, self.held, self.stopped) = (at, Some(twin.segment_of(at)), None);
                return self.check_live(twin, max, before, answer);
            }
            if let Some(stop) = stop {
                let error = answer.err().unwrap_or_else(|| panic!("{stop:?} was expected"));
                self.check_stop(twin, before, stop, &error);
                self.phase = Phase::Ended;
                return None;
            }
            if at > self.next {
                self.held = Some(twin.segment_of(at - 1));
            }
            self.next = at;
            self.whole_seen = at;
            return self.check_nothing(twin, answer);
        }
        // What has left is not looked at: where the history was replaced since, a start of the future
        // may have been passed in what left.
        let replaced = twin.events[self.next..].iter().any(|event| event.turn.is_some_and(|turn| turn.resets()));
        if self.floor.is_some()
            && replaced
            && !twin.is_live(self.next)
            && answer.as_ref().is_err_and(|error| error.code() == Code::Lagged)
        {
            return self.end_with(answer, Code::Lagged);
        }
        let batch = answer.unwrap_or_else(|error| {
            let (at, held, live) = (twin.events[self.next].seq, self.held, twin.first_live);
            panic!(
                "{error}: {} were pending from {at}, held {held:?}, live from {live}, {:?}",
                found.len(),
                self.options
            )
        });
        assert!(!batch.is_empty(), "{} were pending", found.len());
        assert!(batch.len() <= found.len(), "{} events, {} were pending: {batch:?}", batch.len(), found.len());
        for (event, at) in batch.events().iter().zip(&found) {
            let expected = &twin.events[*at];
            expected.assert_shown_as(event, self.options.filter.raw);
            assert_eq!(event.sequence(), expected.seq);
        }
        self.floor = None;
        self.check_border(twin, max, &batch, &found, cut);
        assert_eq!(batch.position(), self.real.position());
        let last = found[batch.len() - 1];
        let looked = found.get(batch.len()).copied();
        self.next = match looked {
            // The next match was seen, and the cursor is at its revision, or at it.
            Some(next) if twin.events[next].rev == twin.events[last].rev => next,
            Some(next) if !self.options.filter.is_plain() => twin.revs[twin.events[next].rev].events.start,
            _ if self.views() => last + 1,
            Some(_) => last + 1,
            None => at,
        };
        let seen = match looked {
            Some(next) if !self.views() => next,
            _ if self.views() => last,
            _ => at - 1,
        };
        let held = twin.segment_of(seen);
        self.held = (self.next == at || twin.segment_of(self.next) == held).then_some(held);
        self.whole_seen = if batch.continues() { twin.revs[twin.events[last].rev].events.start } else { last + 1 };
        Some(batch)
    }

    /// Batches are views of one segment.
    fn views(&self) -> bool {
        self.options.filter.is_plain() && !self.options.whole && !self.options.stop_on_resync
    }

    /// Where a batch may end.
    fn check_border(&self, twin: &Twin, max: usize, batch: &Batch, found: &[usize], cut: Option<usize>) {
        let last = &twin.events[found[batch.len() - 1]];
        let rev = &twin.revs[last.rev];
        let inside = found.get(batch.len()).is_some_and(|next| twin.events[*next].rev == last.rev)
            || (self.views() && !last.last)
            || cut == Some(last.rev);
        assert_eq!(batch.continues(), inside, "CONTINUES where the batch ends with {last:?}");
        let of_this = found.iter().filter(|at| twin.events[**at].rev == last.rev).count();
        if inside {
            assert!(!self.options.whole, "a whole revision was asked for");
            assert!(
                rev.events.len() as u64 > twin.slots / 8 || of_this > max,
                "ends inside a short revision: {last:?}"
            );
        }
        if batch.len() > max {
            let first = &twin.events[found[0]];
            assert!(self.options.whole && first.rev == last.rev, "{} events, {max} were asked for", batch.len());
        }
    }

    fn check_nothing(&mut self, twin: &Twin, answer: Result<Batch, Error>) -> Option<Batch> {
        if self.end.is_some_and(|end| end < twin.events.len() || self.closed_itself()) {
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
            assert_eq!(self.real.position(), twin.now, "everything was handed out");
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

    fn closed_itself(&self) -> bool {
        self.end.is_some()
    }

    fn check_stop(&self, twin: &Twin, before: Position, stop: Stop, error: &Error) {
        match stop {
            Stop::Lapped => {
                assert_eq!(error.code(), Code::Lagged, "{error}");
                let told = Position { epoch: error.epoch(), revision: error.position() };
                assert!(told >= before, "{told:?} {before:?}");
                assert!(told < twin.position_at(self.next + 1).max(twin.now), "{told:?} is ahead");
                assert_eq!(error.lost_from(), error.position() + 1, "{error}");
                let (oldest, current) = self.stopped.unwrap_or((twin.oldest(), twin.now.revision));
                assert_eq!(error.lost_to(), (oldest - 1).max(error.lost_from()), "{error}");
                assert_eq!((error.oldest(), error.current()), (oldest, current));
            }
            Stop::Gap(at) => {
                let turn = twin.events[at].turn.expect("a mark");
                assert_eq!(error.code(), Code::Lagged, "{error}");
                assert_eq!((error.lost_from(), error.lost_to()), (self.floor.expect("it waits") + 1, turn.to));
            }
            // What has left is not looked at: the two cannot be told apart.
            Stop::Future if !twin.is_live(self.next) && error.code() == Code::Lagged => {}
            Stop::Future => assert_eq!(error.code(), Code::FutureRevision, "{error}"),
            Stop::Resynced(at) => {
                assert_eq!(error.code(), Code::Resynced, "{error}");
                let turn = twin.events[at].turn.expect("a mark");
                assert_eq!(error.current(), turn.to);
                assert!(
                    Position { epoch: error.epoch(), revision: error.position() }
                        <= Position { epoch: turn.epoch - 1, revision: turn.from }
                );
            }
        }
    }

    /// The lag is the number of events behind the cursor, gaps taken off.
    fn lag_rule(&self, twin: &Twin) {
        if matches!(self.phase, Phase::Live) && (self.next..twin.events.len()).all(|at| twin.is_live(at)) {
            let lag = self.real.lag();
            assert_eq!(lag.events, (twin.events.len() - self.next) as u64, "lag of {:?}", self.options);
            if lag.events == 0 {
                assert_eq!(lag.age, Duration::ZERO);
            }
        }
    }
}
