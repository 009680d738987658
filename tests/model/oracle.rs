//! The naive oracle: it keeps every event and the state after every revision, and answers each
//! question by looking at all of them.

use crate::filter::{By, Filter, Thing};
use std::collections::BTreeMap;
use std::rc::Rc;
use watchcore::{Event, Kind, Position, ResyncReason, Stats};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kv {
    pub value: Rc<[u8]>,
    /// What the value says; `None`: it is broken.
    pub thing: Option<Rc<Thing>>,
    pub create: u64,
    pub(crate) modified: u64,
    pub version: u64,
    pub lease: i64,
}

impl Kv {
    pub fn new(value: &[u8], create: u64, modified: u64, version: u64, lease: i64) -> Kv {
        Kv { value: value.into(), thing: Thing::of(value).map(Rc::new), create, modified, version, lease }
    }
}

pub type State = Rc<BTreeMap<Vec<u8>, Kv>>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    pub reason: ResyncReason,
    pub epoch: u64,
    pub from: u64,
    pub to: u64,
}

impl Turn {
    pub fn resets(&self) -> bool {
        self.reason == ResyncReason::HistoryReset || self.to <= self.from
    }
}

#[derive(Clone, Debug)]
pub struct Ev {
    pub seq: u64,
    pub revision: u64,
    /// Index of its revision.
    pub rev: usize,
    pub kind: Kind,
    pub key: Vec<u8>,
    /// In a deletion: the numbers are those of the last value.
    pub kv: Option<Kv>,
    pub prev: Option<Kv>,
    pub synthetic: bool,
    pub turn: Option<Turn>,
    pub first: bool,
    pub last: bool,
}

impl Ev {
    pub fn is_mark(&self) -> bool {
        self.kind == Kind::Resync
    }

    /// Compares all but the sequence number. `kind`: what it is to a filter.
    pub fn assert_shown_as(&self, event: &Event, kind: Kind, raw: bool) {
        let deleted = kind == Kind::Deleted;
        let kind = raw_kind(kind, raw);
        let shown = (event.kind(), event.revision(), event.key());
        assert_eq!(shown, (kind, self.revision, &self.key[..]), "kind, revision, key of {self:?}");
        let kv = if deleted { &self.prev } else { &self.kv };
        let value = self.kv.as_ref().filter(|_| !deleted).map(|kv| &kv.value[..]);
        assert_eq!(event.value(), value, "value of {self:?}");
        assert_eq!(event.prev_value(), self.prev.as_ref().map(|kv| &kv.value[..]), "previous value of {self:?}");
        let numbers = (event.create_revision(), event.mod_revision(), event.version(), event.lease());
        let expected = kv.as_ref().map_or((0, 0, 0, 0), |kv| (kv.create, kv.modified, kv.version, kv.lease));
        assert_eq!(numbers, expected, "numbers of {self:?}");
        let before = event.prev().map(|kv| (kv.create_revision(), kv.mod_revision(), kv.version(), kv.lease()));
        let expected = self.prev.as_ref().map(|kv| (kv.create, kv.modified, kv.version, kv.lease));
        assert_eq!(before, expected, "numbers of the value before, of {self:?}");
        assert_eq!(event.is_synthetic(), self.synthetic, "synthetic: {self:?}");
        assert!(!event.is_initial_state() && !event.ends_initial_state());
        match (event.resync(), self.turn) {
            (None, None) => {}
            (Some(mark), Some(turn)) => {
                let shown = (mark.reason, mark.epoch, mark.from, mark.to);
                assert_eq!(shown, (turn.reason, turn.epoch, turn.from, turn.to), "body of {self:?}");
                assert_eq!(mark.phase == watchcore::Phase::Begin, self.first, "phase of {self:?}");
            }
            (mark, _) => panic!("{mark:?} where {self:?} was expected"),
        }
    }
}

/// The kind as which a change is delivered.
pub fn raw_kind(kind: Kind, raw: bool) -> Kind {
    match kind {
        Kind::Added | Kind::Modified if raw => Kind::Put,
        Kind::Deleted if raw => Kind::Delete,
        kind => kind,
    }
}

#[derive(Debug)]
pub struct Rev {
    pub revision: u64,
    pub epoch: u64,
    /// The state behind it.
    pub state: State,
    pub events: std::ops::Range<usize>,
    pub turn: Option<Turn>,
}

/// What `After(R)` and `Exact(R)` find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The index of the first event above.
    At(usize),
    Future,
    Compacted,
}

pub struct Oracle {
    pub slots: u64,
    /// Full ones that hold the capacity.
    pub segments: u64,
    /// Places in the directory.
    places: u64,
    pub closes_by_bytes: bool,
    pub birth: u64,
    pub loaded: bool,
    pub listing: u64,
    pub listing_state: State,
    pub revs: Vec<Rev>,
    pub events: Vec<Ev>,
    pub now: Position,
    pub highest: u64,
    /// Index of the revision that began the present history.
    since: usize,
    history_listing: u64,
    highest_before: u64,
    floor: u64,
    /// Number of the oldest segment of the window, and of the newest.
    pub first_live: u64,
    pub newest_segment: u64,
    longest_span: u64,
    oldest: u64,
    pub indexes: Vec<By>,
    pub few_buckets: bool,
    /// Values that were written and are broken.
    pub broken: u64,
}

impl Oracle {
    pub fn new(slots: u64, (segments, places): (u64, u64), closes_by_bytes: bool, birth: u64, loaded: bool) -> Oracle {
        Oracle {
            slots,
            segments,
            places,
            closes_by_bytes,
            birth,
            loaded,
            listing: 0,
            listing_state: Rc::default(),
            revs: Vec::new(),
            events: Vec::new(),
            now: Position { epoch: birth + 1, revision: 0 },
            highest: 0,
            since: 0,
            history_listing: 0,
            highest_before: 0,
            floor: 0,
            first_live: 1,
            newest_segment: 1,
            longest_span: 1,
            oldest: 1,
            indexes: Vec::new(),
            few_buckets: false,
            broken: 0,
        }
    }

    pub fn state(&self) -> State {
        self.revs.last().map_or_else(|| self.listing_state.clone(), |rev| rev.state.clone())
    }

    pub fn load(&mut self, revision: u64, state: BTreeMap<Vec<u8>, Kv>) {
        (self.loaded, self.listing, self.history_listing, self.highest) = (true, revision, revision, revision);
        self.broken += state.values().filter(|kv| kv.thing.is_none()).count() as u64;
        self.listing_state = Rc::new(state);
        self.now.revision = revision;
        self.look_for_oldest();
    }

    pub fn progress(&mut self, revision: u64) {
        self.now.revision = revision;
        self.highest = self.highest.max(revision);
    }

    /// Inside a resync there is no state: the one before it stays.
    pub fn compact(&mut self, revision: u64) {
        let inside = |turn: &Turn| !turn.resets() && turn.from < revision && revision < turn.to;
        let gap = self.present().filter_map(|rev| rev.turn).find(inside);
        let revision = gap.map_or(revision, |turn| turn.from);
        self.floor = self.floor.max(revision);
        self.look_for_oldest();
    }

    /// Appends a revision whose events are given without marks, sequence numbers and places.
    fn push(&mut self, revision: u64, state: BTreeMap<Vec<u8>, Kv>, mut events: Vec<Ev>, turn: Option<Turn>) {
        if let Some(turn) = turn {
            let mark = || Ev { turn: Some(turn), ..blank(revision, Kind::Resync, Vec::new()) };
            events.insert(0, mark());
            events.push(mark());
        }
        let (from, last) = (self.events.len(), events.len() - 1);
        for (at, event) in events.iter_mut().enumerate() {
            (event.rev, event.first, event.last) = (self.revs.len(), at == 0, at == last);
            let put = matches!(event.kind, Kind::Added | Kind::Modified);
            self.broken += u64::from(put && event.kv.as_ref().is_some_and(|kv| kv.thing.is_none()));
            event.synthetic = turn.is_some() && event.turn.is_none();
        }
        self.events.append(&mut events);
        if let Some(turn) = turn {
            if turn.resets() {
                (self.since, self.history_listing, self.floor) = (self.revs.len(), turn.to, 0);
                self.highest_before = self.highest;
            }
            self.now.epoch = turn.epoch;
        }
        self.progress(revision);
        let events = from..self.events.len();
        self.revs.push(Rev { revision, epoch: self.now.epoch, state: Rc::new(state), events, turn });
    }

    pub fn apply(&mut self, revision: u64, changes: &[(Vec<u8>, Option<Kv>)]) {
        let mut state = (*self.state()).clone();
        let mut events = Vec::new();
        for (key, to) in changes {
            let before = match to {
                Some(kv) => state.insert(key.clone(), kv.clone()),
                None => state.remove(key),
            };
            events.push(change(revision, key, before, to.clone()));
        }
        self.push(revision, state, events, None);
    }

    /// The difference by brute force: deletes by key, then puts by key.
    pub fn resync(&mut self, to: u64, state: BTreeMap<Vec<u8>, Kv>, reason: ResyncReason) {
        let (from, old) = (self.now.revision, self.state());
        let reason = if to < from { ResyncReason::HistoryReset } else { reason };
        let mut events = Vec::new();
        for (key, kv) in old.iter() {
            if state.get(key).is_none_or(|new| new.create != kv.create) {
                events.push(change(to, key, Some(kv.clone()), None));
            }
        }
        for (key, kv) in &state {
            match old.get(key) {
                Some(same) if same == kv => {}
                Some(old) if old.create == kv.create => {
                    events.push(change(to, key, Some(old.clone()), Some(kv.clone())));
                }
                _ => events.push(change(to, key, None, Some(kv.clone()))),
            }
        }
        if events.is_empty() && to == from && reason != ResyncReason::HistoryReset {
            return;
        }
        let epoch = self.now.epoch + 1;
        self.push(to, state, events, Some(Turn { reason, epoch, from, to }));
    }

    /// Takes over the place of each new event and the number of segments, and checks the layout.
    pub fn settle(&mut self, from: usize, stats: &Stats) {
        let slots = self.slots;
        for at in from..self.events.len() {
            let (before, event) = (if at == 0 { slots - 1 } else { self.events[at - 1].seq }, &self.events[at]);
            let rev = &self.revs[event.rev];
            let count = rev.events.len() as u64;
            let short = count <= slots / 8;
            let next = before + 1;
            if event.seq != next {
                assert_eq!(event.seq, before / slots * slots + slots, "a jump goes to the next segment: {event:?}");
                let room = slots - next % slots;
                let crowded = short && event.first && next % slots != 0 && room < count;
                assert!(crowded || self.closes_by_bytes, "a jump without need: {event:?} behind {before}");
            }
            if short && !event.first {
                assert_eq!(event.seq / slots, before / slots, "a short revision straddles: {event:?}");
            }
            if event.last {
                // The segment that was the newest counts, also where the revision begins behind it.
                let newest = rev.events.start.checked_sub(1).map_or(1, |at| self.events[at].seq / slots);
                self.longest_span = self.longest_span.max(event.seq / slots - newest + 1);
            }
        }
        let newest = self.events.last().map_or(1, |event| event.seq / slots);
        let before = self.first_live;
        (self.newest_segment, self.first_live) = (newest, newest + 1 - stats.window_segments);
        assert!(self.first_live >= before, "the window goes back: {before} to {}", self.first_live);
        let early = stats.window_segments < newest.min(self.segments);
        assert!(!early || self.closes_by_bytes, "evicted early: {stats:?}, newest {newest}");
        if self.closes_by_bytes {
            assert!(stats.window_segments >= 1);
        } else if self.longest_span <= self.segments {
            // The events of the closed ones, and the newest one whole, are the capacity at most; with one segment more
            // they would be more.
            let closed =
                |from: u64| self.events.iter().rev().map(|event| event.seq / slots).take_while(move |at| *at >= from);
            let taken = |from: u64| closed(from).filter(|at| *at < newest).count() as u64 + slots;
            let fits = |from: u64| taken(from) <= self.segments * slots && newest + 1 - from <= self.places;
            assert!(fits(self.first_live), "kept too long: {stats:?}");
            assert!(self.first_live == 1 || !fits(self.first_live - 1), "evicted early: {stats:?}");
        } else {
            let bound = 3 * self.segments + 2 * self.longest_span;
            assert!(stats.window_segments <= bound, "kept too long: {stats:?}, longest {}", self.longest_span);
        }
        self.look_for_oldest();
    }

    pub fn segment_of(&self, event: usize) -> u64 {
        self.events[event].seq / self.slots
    }

    pub fn is_live(&self, event: usize) -> bool {
        self.segment_of(event) >= self.first_live
    }

    /// Whether the state behind the first `count` events cannot be read any more: an event behind it has left. Free slots
    /// behind it are none.
    pub fn has_left(&self, count: usize) -> bool {
        count < self.events.len() && !self.is_live(count)
    }

    pub fn oldest(&self) -> u64 {
        self.oldest
    }

    fn look_for_oldest(&mut self) {
        let first = self.revs.get(self.since).map_or(0, |rev| rev.events.start);
        let left = (first..self.events.len()).filter(|at| !self.is_live(*at)).map(|at| self.events[at].revision);
        self.oldest = 1 + left.max().unwrap_or(0).max(self.floor).max(self.history_listing);
    }

    /// Revisions of the present history, with their index.
    fn present(&self) -> impl DoubleEndedIterator<Item = &Rev> {
        self.revs[self.since..].iter()
    }

    fn first_epoch_of_present(&self) -> u64 {
        self.present().next().filter(|rev| rev.turn.is_some_and(|t| t.resets())).map_or(self.birth + 1, |rev| rev.epoch)
    }

    /// Whether the history of this epoch was replaced.
    pub fn is_former(&self, epoch: u64) -> bool {
        epoch != 0 && epoch >> 32 == self.birth >> 32 && epoch < self.first_epoch_of_present()
    }

    pub fn find(&self, revision: u64, epoch: u64, strict: bool) -> Found {
        if self.is_former(epoch) || revision.saturating_add(1) < self.oldest() {
            return Found::Compacted;
        }
        if revision > self.now.revision {
            let of_before = strict && epoch == 0 && revision <= self.highest_before;
            return if of_before { Found::Compacted } else { Found::Future };
        }
        let inside = |rev: &Rev| rev.turn.is_some_and(|t| !t.resets() && t.from < revision && revision < t.to);
        if self.present().any(inside) {
            return Found::Compacted;
        }
        Found::At(self.above(revision))
    }

    /// The index of the first event of the present history above a revision.
    pub fn above(&self, revision: u64) -> usize {
        let above = self.present().find(|rev| rev.revision > revision);
        above.map_or(self.events.len(), |rev| rev.events.start)
    }

    /// The state behind the first `count` events.
    pub fn state_at(&self, count: usize) -> State {
        let rev = self.revs.iter().rev().find(|rev| rev.events.end <= count);
        rev.map_or_else(|| self.listing_state.clone(), |rev| rev.state.clone())
    }

    /// What a filter lets pass of the state behind the first `count` events, also inside a revision.
    pub fn matching_at(&self, filter: &Filter, count: usize) -> BTreeMap<Vec<u8>, Kv> {
        let whole = self.revs.iter().rev().find(|rev| rev.events.end <= count);
        let mut state = (*whole.map_or_else(|| self.listing_state.clone(), |rev| rev.state.clone())).clone();
        for event in &self.events[whole.map_or(0, |rev| rev.events.end)..count] {
            match (event.kind, &event.kv) {
                (Kind::Added | Kind::Modified, Some(kv)) => drop(state.insert(event.key.clone(), kv.clone())),
                (Kind::Deleted, _) => drop(state.remove(&event.key)),
                _ => {}
            }
        }
        state.retain(|key, kv| filter.holds(key, kv));
        state
    }

    /// The epoch behind the first `count` events.
    pub fn epoch_at(&self, count: usize) -> u64 {
        self.revs.iter().rev().find(|rev| rev.events.end <= count).map_or(self.birth + 1, |rev| rev.epoch)
    }

    /// (epoch, revision) of the last whole revision of the first `count` events.
    pub fn position_at(&self, count: usize) -> Position {
        let rev = self.revs.iter().rev().find(|rev| rev.events.end <= count);
        rev.map_or(Position { epoch: self.birth + 1, revision: self.listing }, |rev| Position {
            epoch: rev.epoch,
            revision: rev.revision,
        })
    }
}

fn blank(revision: u64, kind: Kind, key: Vec<u8>) -> Ev {
    Ev {
        seq: 0,
        revision,
        rev: 0,
        kind,
        key,
        kv: None,
        prev: None,
        synthetic: false,
        turn: None,
        first: false,
        last: false,
    }
}

fn change(revision: u64, key: &[u8], before: Option<Kv>, to: Option<Kv>) -> Ev {
    let kind = match (&before, &to) {
        (_, None) => Kind::Deleted,
        (None, _) => Kind::Added,
        (Some(_), _) => Kind::Modified,
    };
    let kv = to.or_else(|| before.clone());
    Ev { kv, prev: before, ..blank(revision, kind, key.to_vec()) }
}
