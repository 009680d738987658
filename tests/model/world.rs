//! One cache beside its twin, and what happens to both.

use crate::filter::{By, FieldNeed, Filter, Keys, LABELS, Need};
use crate::ops::{Dice, Op, Setup};
use crate::reads::Pages;
use crate::sub::{Options, Sub};
use crate::twin::{Kv, State, Twin};
use std::collections::BTreeMap;
use watchcore::State as Freshness;
use watchcore::{
    Attribute, Batch, Cache, Change, Code, Event, Kind, Labels, OnLag, Position, Record, ResyncReason, Snapshot, Start,
    Subscription, Waiter, WakeSet, Want, Writer,
};

/// A put of a value (with numbers of its own, or without), or a delete.
type Changes = Vec<(Vec<u8>, Option<(Vec<u8>, Option<Kv>)>)>;

pub const KEYS: [&[u8]; 12] = [
    b"/a",
    b"/a/foo",
    b"/a/foo/1",
    b"/a/foo/2",
    b"/a/foobar",
    b"/a/x",
    b"/b",
    b"/b\0",
    b"/b/\xff",
    b"/c/1",
    b"/c/2",
    b"/\xff",
];

const REASONS: [ResyncReason; 5] = [
    ResyncReason::Compacted,
    ResyncReason::HistoryReset,
    ResyncReason::ChainBroken,
    ResyncReason::TooFarBehind,
    ResyncReason::Requested,
];

pub fn key_of(dice: u32) -> Vec<u8> {
    // Low keys more often: they are overwritten and come back.
    let at = (dice % 12).min(dice / 12 % 12);
    KEYS[at as usize].to_vec()
}

const APPS: [&str; 3] = ["x", "y", "z"];
const NUMBERS: [&str; 3] = ["1", "5", "many"];

fn need_of(dice: u32) -> Need {
    let name = LABELS[(dice / 8 % 3 / 2) as usize];
    let values = if name == "app" { APPS } else { NUMBERS };
    let (one, other) = (values[(dice / 32 % 3) as usize], values[(dice / 128 % 3) as usize]);
    match dice % 8 {
        0..=2 => Need::In(name, vec![one]),
        3 => Need::In(name, vec![one, other, ""]),
        4 => Need::NotIn(name, if (dice / 512).is_multiple_of(2) { vec![one] } else { vec![one, other] }),
        5 => Need::Has(name),
        6 => Need::Lacks(name),
        _ if (dice / 512).is_multiple_of(2) => Need::Above("n", i64::from(dice / 1024 % 6)),
        _ => Need::Below("n", i64::from(dice / 1024 % 6)),
    }
}

fn field_of(dice: u32) -> FieldNeed {
    let equal = !(dice / 2).is_multiple_of(4);
    match dice % 2 {
        0 => FieldNeed("f", equal, ["a", "b", ""][(dice / 8 % 3) as usize]),
        _ => FieldNeed("seg", equal, ["foo", "x", "1", ""][(dice / 8 % 4) as usize]),
    }
}

pub fn filter_of((keys, kinds, raw, selectors): Dice) -> Filter {
    let key = match keys / 8 % 16 {
        0 => b"/a/".to_vec(),
        1 => b"/a/foo/".to_vec(),
        2 => b"/c/".to_vec(),
        _ => key_of(keys / 128),
    };
    let keys = match keys % 8 {
        0..=2 => Keys::All,
        3 => Keys::Key(key),
        4 => Keys::Prefix(key),
        5 => Keys::Path(key),
        6 => {
            // A range that ends before it begins is refused.
            let other = key_of(kinds / 8);
            Keys::Between(key.clone().min(other.clone()), key.max(other))
        }
        _ => Keys::Between(key, Vec::new()),
    };
    let raw = raw % 4 == 0;
    let kinds = match kinds % 8 {
        1 => vec![Kind::Deleted],
        2 => vec![Kind::Added],
        3 => vec![Kind::Modified, Kind::Deleted],
        4 if raw => vec![Kind::Put],
        5 if raw => vec![Kind::Delete],
        6 => vec![Kind::Added, Kind::Modified, Kind::Deleted],
        _ => Vec::new(),
    };
    let mut filter = Filter { kinds, raw, ..Filter::of_keys(keys) };
    let (which, rest) = (selectors % 16, selectors / 16);
    if matches!(which, 1..=4 | 8 | 9) {
        filter.labels.push(need_of(rest));
    }
    if matches!(which, 5..=8) {
        filter.fields.push(field_of(rest / 7));
    }
    if which == 9 {
        filter.labels.push(need_of(rest / 11));
        filter.fields.push(field_of(rest / 13));
        filter.fields.push(field_of(rest / 17));
    }
    filter.even = which == 10;
    filter.nothing = which == 11 && rest % 4 == 0;
    filter
}

fn indexes_of(dice: u32) -> Vec<By> {
    use By::{Field, Key, Label, Prefix};
    match dice {
        0..=2 => vec![],
        3 => vec![Key],
        4 => vec![Prefix(1), Prefix(2)],
        5 => vec![Field("f")],
        6 => vec![Label("app")],
        7 => vec![Key, Prefix(1), Label("app"), Field("seg")],
        _ => vec![Label("n"), Field("f"), Prefix(2), Key, Prefix(1), Field("seg"), Label("app")],
    }
}

pub struct World {
    pub cache: Cache,
    pub writer: Option<Writer>,
    pub twin: Twin,
    auditor: Subscription,
    pub subs: Vec<Sub>,
    snapshots: Vec<(Snapshot, State, Position)>,
    /// Batches kept, and what they showed.
    kept: Vec<(Batch, Vec<String>)>,
    /// Lists that are read page by page.
    pages: Vec<Pages>,
    /// With the revision and the epoch that each waits for.
    waiters: Vec<(Waiter, u64, u64)>,
    set: WakeSet,
    names: u64,
    counter: u32,
}

fn shown(batch: &Batch) -> Vec<String> {
    let show = |event: &Event| {
        format!("{event:?} {:?} {:?} {}", event.value().map(<[u8]>::len), event.prev_value(), event.version())
    };
    batch.events().iter().map(show).collect()
}

impl World {
    pub fn new(setup: &Setup) -> World {
        let (slots, capacity) = [(16, 128), (16, 256), (32, 128), (64, 128), (16, 160)][setup.shape as usize];
        let bytes = if setup.tight { 1 << 16 } else { 1 << 30 };
        let indexes = indexes_of(setup.indexes);
        let builder = indexes.iter().fold(Cache::builder("/"), |builder, by| builder.index(by.index()));
        let cache = builder
            .name("model")
            .labels(Labels::json("/l").unwrap())
            .field(Attribute::json("f", "/f").unwrap())
            .field(Attribute::key_segment("seg", 1))
            .max_buckets(if setup.few_buckets { 2 } else { 65_536 })
            .segment_slots(slots)
            .capacity(capacity)
            .capacity_bytes(bytes)
            .max_key_bytes(64)
            .max_value_bytes(8192)
            .expect_load(setup.expect_load)
            .build()
            .unwrap();
        let birth = cache.position().epoch >> 32 << 32;
        assert_eq!(cache.position(), Position { epoch: birth + 1, revision: 0 });
        let segments = capacity as u64 / slots;
        let mut twin = Twin::new(slots, segments, setup.tight, birth, !setup.expect_load);
        (twin.indexes, twin.few_buckets) = (indexes, setup.few_buckets);
        World {
            writer: Some(cache.writer().unwrap()),
            auditor: cache.subscribe(Start::Now).open().unwrap(),
            twin,
            cache,
            subs: Vec::new(),
            snapshots: Vec::new(),
            kept: Vec::new(),
            pages: Vec::new(),
            waiters: Vec::new(),
            set: WakeSet::new().unwrap(),
            names: 0,
            counter: 0,
        }
    }

    fn writer(&mut self) -> &mut Writer {
        self.writer.as_mut().expect("taken back at once")
    }

    fn value(&mut self, dice: u32) -> Vec<u8> {
        self.counter += 1;
        let member = |name: &str, value: Option<&&str>| value.map(|value| format!("\"{name}\":\"{value}\""));
        let app = member("app", APPS.get((dice / 16 % 4) as usize));
        let number = member("n", NUMBERS.get((dice / 64 % 6) as usize));
        let labels: Vec<String> = app.into_iter().chain(number).collect();
        let field = member("f", ["a", "b", ""].get((dice / 512 % 4) as usize));
        let mut value = format!("{{\"c\":{},\"l\":{{{}}}", self.counter, labels.join(","));
        if let Some(field) = field {
            value += &format!(",{field}");
        }
        if matches!(dice % 16, 1 | 2) && self.twin.closes_by_bytes {
            value += &format!(",\"pad\":\"{}\"", "x".repeat(3000));
        }
        value.push('}');
        match dice % 16 {
            0 => value.clear(),
            3 => value.insert(0, '?'),
            _ => {}
        }
        value.into_bytes()
    }

    fn next_revision(&self, gap: u32) -> u64 {
        self.twin.now.revision + u64::from(if gap.is_multiple_of(3) { 1 + gap / 3 % 6 } else { 1 })
    }

    /// Applies changes of distinct keys: `None` deletes.
    fn apply(&mut self, revision: u64, changes: Changes) {
        if !self.twin.loaded {
            let error = self.writer().apply(revision, [Change::put("/a", "x")]).unwrap_err();
            assert_eq!(error.code(), Code::NotReady);
            return;
        }
        let state = self.twin.state();
        let of_twin: Vec<(Vec<u8>, Option<Kv>)> = changes
            .iter()
            .map(|(key, to)| {
                let old = state.get(key);
                let kv = to.as_ref().map(|(value, exact)| {
                    exact.clone().unwrap_or_else(|| {
                        let (create, version) = old.map_or((revision, 1), |kv| (kv.create, kv.version + 1));
                        Kv::new(value, create, revision, version, 0)
                    })
                });
                (key.clone(), kv)
            })
            .collect();
        let of_cache = changes.iter().map(|(key, to)| match to {
            None => Change::delete(key),
            Some((value, None)) => Change::put(key, value),
            Some((value, Some(kv))) => Change::put_exact(Record {
                key,
                value,
                create_revision: kv.create,
                mod_revision: kv.modified,
                version: kv.version,
                lease: kv.lease,
            }),
        });
        self.writer.as_mut().unwrap().apply(revision, of_cache).unwrap();
        self.twin.apply(revision, &of_twin);
        self.audit();
    }

    /// The auditor reads everything, and so lends the twin the places of the events.
    fn audit(&mut self) {
        let from = self.twin.events.iter().rposition(|event| event.seq != 0).map_or(0, |at| at + 1);
        let mut at = from;
        loop {
            let batch = self.auditor.poll(self.twin.events.len() % 100 + 1).expect("who read everything loses nothing");
            if batch.is_empty() {
                break;
            }
            for event in &batch {
                let expected = &mut self.twin.events[at];
                expected.assert_shown_as(event, expected.kind, false);
                expected.seq = event.sequence();
                at += 1;
            }
        }
        assert_eq!(at, self.twin.events.len(), "events are missing");
        assert_eq!(self.auditor.position(), self.twin.now);
        let stats = self.cache.stats();
        self.twin.settle(from, &stats);
        let state = self.twin.state();
        assert_eq!(stats.objects, state.len() as u64);
        assert_eq!(stats.events, self.twin.events.len() as u64);
        assert_eq!(stats.revisions, self.twin.revs.len() as u64);
        assert_eq!(stats.extract_failures, self.twin.broken, "broken values");
        self.stands();
    }

    pub fn stands(&mut self) {
        assert_eq!(self.cache.position(), self.twin.now);
        assert_eq!(self.writer().position(), self.twin.now);
        assert_eq!(self.cache.oldest(), self.twin.oldest());
        let status = self.cache.status();
        assert_eq!((status.position, status.oldest), (self.twin.now, self.twin.oldest()));
        assert_eq!(status.subscriptions, self.subs.len() as u64 + 1);
        assert_eq!(status.state == Freshness::NotReady, !self.twin.loaded);
    }

    /// Distinct keys out of dice, and what becomes of them.
    fn draw(&mut self, dice: &[(u32, u32, u32)], revision: u64) -> Changes {
        let state = self.twin.state();
        let mut changes: Changes = Vec::new();
        for (key, verb, value) in dice {
            let key = key_of(*key);
            if changes.iter().any(|(other, _)| *other == key) {
                continue;
            }
            if verb % 3 == 0 && state.contains_key(&key) {
                changes.push((key, None));
                continue;
            }
            let value = self.value(*value);
            let create = 1 + u64::from(verb / 7) % revision;
            let version = 1 + u64::from(verb / 7 % 9);
            let exact = (verb % 7 == 1).then(|| Kv::new(&value, create, revision, version, i64::from(*verb)));
            changes.push((key, Some((value, exact))));
        }
        changes
    }

    /// A listing: the state with changes.
    fn listing(&mut self, dice: &[(u32, u32, u32)], to: u64) -> BTreeMap<Vec<u8>, Kv> {
        let mut state: BTreeMap<Vec<u8>, Kv> = (*self.twin.state()).clone();
        if to < self.twin.now.revision {
            // Of a history that has gone back, nothing may be newer than its revision.
            state.retain(|_, kv| kv.modified <= to);
        }
        for (key, to_do) in self.draw(dice, to.max(1)) {
            match to_do {
                None => drop(state.remove(&key)),
                Some((value, exact)) => {
                    let old = state.get(&key);
                    let (create, version) = old.map_or((to, 1), |kv| (kv.create, kv.version + 1));
                    let kv = exact.unwrap_or_else(|| Kv::new(&value, create, to, version, 0));
                    state.insert(key, kv);
                }
            }
        }
        state
    }

    fn resync(&mut self, reason: ResyncReason, to: u64, state: BTreeMap<Vec<u8>, Kv>) {
        let mut records = records(&state);
        if to.is_multiple_of(2) {
            records.reverse();
        }
        let position = self.writer.as_mut().unwrap().resync(to, records, reason).unwrap();
        self.twin.resync(to, state, reason);
        assert_eq!(position, self.twin.now);
        self.audit();
    }

    fn pick(&self, which: u32) -> Option<usize> {
        (!self.subs.is_empty()).then(|| which as usize % self.subs.len())
    }

    pub fn run(&mut self, op: &Op) {
        match op {
            Op::Apply { changes, gap } => {
                let revision = self.next_revision(*gap);
                let changes = self.draw(changes, revision);
                self.apply(revision, changes);
            }
            Op::Giant { eighths, gap } => {
                let revision = self.next_revision(*gap);
                let count = self.twin.slots * self.twin.segments * u64::from(*eighths) / 8;
                let value = self.value(3);
                let all = (0..count).map(|at| (format!("/g/{at:04}").into_bytes(), Some((value.clone(), None))));
                self.apply(revision, all.collect());
            }
            Op::Flood { slots, key } => {
                for at in 0..*slots {
                    let value = self.value(at);
                    let revision = self.next_revision(1);
                    self.apply(revision, vec![(key_of(*key), Some((value, None)))]);
                }
            }
            Op::Resync { reason, way, changes, gap } if self.twin.loaded => {
                let from = self.twin.now.revision;
                let to = match way % 6 {
                    0 => from,
                    1 => u64::from(*gap) % (from + 1),
                    _ => from + 1 + u64::from(gap % 5),
                };
                let state = if way % 5 == 0 {
                    let mut state = (*self.twin.state()).clone();
                    state.retain(|_, kv| kv.modified <= to);
                    state
                } else {
                    self.listing(changes, to)
                };
                let state = if to == 0 { BTreeMap::new() } else { state };
                self.resync(REASONS[*reason as usize % 5], to, state);
            }
            Op::Load { changes, gap } if !self.twin.loaded => {
                let revision = u64::from(gap % 50) + 1;
                let state = self.listing(changes, revision);
                self.writer.as_mut().unwrap().load(revision, records(&state)).unwrap();
                self.twin.load(revision, state);
                self.audit();
            }
            Op::Resync { .. } => {
                let error = self.writer().resync(5, [], ResyncReason::Requested).unwrap_err();
                assert_eq!(error.code(), Code::NotReady);
            }
            Op::Load { .. } => {
                let error = self.writer().load(u64::MAX >> 20, []).unwrap_err();
                assert_eq!(error.code(), Code::OutOfOrder);
                self.stands();
            }
            Op::Progress { gap } if self.twin.loaded => {
                let revision = self.next_revision(*gap);
                self.writer().progress(revision).unwrap();
                self.twin.progress(revision);
                self.audit();
            }
            Op::Compact { place } if self.twin.loaded => {
                let (oldest, current) = (self.twin.oldest(), self.twin.now.revision);
                let revision = (oldest - 1 + u64::from(*place) % (current + 3 - oldest)).min(current);
                self.writer().compact(revision).unwrap();
                self.twin.compact(revision);
                self.audit();
            }
            Op::Progress { .. } | Op::Compact { .. } => {
                assert_eq!(self.writer().progress(9).unwrap_err().code(), Code::NotReady);
                assert_eq!(self.writer().compact(0).unwrap_err().code(), Code::NotReady);
            }
            Op::Subscribe { start, revision, epoch, filter, options } => {
                let options = self.options(*start, *revision, *epoch, *filter, *options);
                self.names += 1;
                self.subs.extend(Sub::open(self.names, &self.cache, &self.set, options, &self.twin));
            }
            Op::Poll { which, max, times } => {
                let Some(at) = self.pick(*which) else { return };
                for time in 0..*times {
                    let max = 1 + (max >> time) as usize % 64;
                    self.subs[at].poll(&self.twin, max);
                }
                if self.subs[at].is_ended() {
                    self.subs[at].poll(&self.twin, 1);
                }
            }
            Op::Wait { which } => {
                if let Some(at) = self.pick(*which) {
                    self.subs[at].wait(&self.twin, false);
                }
            }
            Op::Arm { which } => {
                if let Some(at) = self.pick(*which) {
                    self.subs[at].wait(&self.twin, true);
                }
            }
            Op::Close { which } => {
                if let Some(at) = self.pick(*which) {
                    self.subs[at].close(&self.twin);
                }
            }
            Op::Drop { which } => {
                if let Some(at) = self.pick(*which) {
                    self.subs.swap_remove(at);
                }
            }
            Op::Keep { which, max } => {
                let Some(at) = self.pick(*which) else { return };
                if let Some(batch) = self.subs[at].poll(&self.twin, 1 + *max as usize % 64) {
                    let shown = shown(&batch);
                    self.kept.push((batch, shown));
                }
            }
            Op::Snapshot if self.twin.loaded => {
                let snapshot = self.cache.snapshot().unwrap();
                assert_eq!(snapshot.position(), self.twin.now);
                self.snapshots.push((snapshot, self.twin.state(), self.twin.now));
            }
            Op::Snapshot => assert_eq!(self.cache.snapshot().unwrap_err().code(), Code::NotReady),
            Op::Release { which } => {
                if !self.snapshots.is_empty() {
                    let at = *which as usize % self.snapshots.len();
                    let (snapshot, state, position) = self.snapshots.swap_remove(at);
                    crate::reads::snapshot(&snapshot, &state, position, *which);
                }
                if !self.kept.is_empty() {
                    let (batch, before) = self.kept.swap_remove(*which as usize % self.kept.len());
                    assert_eq!(shown(&batch), before, "a kept batch changed");
                }
            }
            Op::Read { revision, key, filter, limit } => {
                crate::reads::at(&self.cache, &self.twin, *revision, *key, &filter_of(*filter), *limit);
            }
            Op::Pages { revision, filter, limit } if self.twin.loaded => {
                let mut pages = Pages::new(&self.twin, *revision, filter_of(*filter), *limit);
                if pages.next(&self.cache, &self.twin) {
                    self.pages.push(pages);
                }
            }
            Op::Page { which } => {
                if !self.pages.is_empty() {
                    let at = *which as usize % self.pages.len();
                    if !self.pages[at].next(&self.cache, &self.twin) {
                        self.pages.swap_remove(at);
                    }
                }
            }
            Op::Diff { from, to, epoch, filter } if self.twin.loaded => {
                crate::reads::diff(&self.cache, &self.twin, [*from, *to, *epoch], &filter_of(*filter));
            }
            Op::Pages { .. } | Op::Diff { .. } => {}
            Op::Waiter { revision, epoch } => self.waiter(*revision, *epoch),
            Op::Refuse { what, key } => {
                let writer = self.writer.as_mut().unwrap();
                if self.twin.loaded {
                    crate::reads::refuse(writer, &self.twin, *what, *key);
                }
                self.stands();
            }
            Op::Retake => {
                let cache = self.cache.clone();
                assert_eq!(cache.writer().unwrap_err().code(), Code::Busy);
                self.writer = None;
                self.writer = Some(cache.writer().unwrap());
                self.stands();
            }
        }
    }

    /// Makes one, and asks all.
    fn waiter(&mut self, revision: u32, epoch: u32) {
        let now = self.twin.now;
        let revision = (now.revision + u64::from(revision % 40)).saturating_sub(10);
        let epoch = if epoch.is_multiple_of(2) { now.epoch } else { self.twin.birth + 1 };
        let asked = Position { epoch, revision };
        self.waiters.push((self.cache.waiter(Want::RevisionIn(asked)).unwrap(), revision, epoch));
        let twin = &self.twin;
        self.waiters.retain_mut(|(waiter, revision, epoch)| {
            let answer = waiter.poll();
            if !twin.loaded {
                assert_eq!(answer.unwrap(), None);
                return true;
            }
            if twin.is_former(*epoch) {
                assert_eq!(answer.expect_err("the history was reset").code(), Code::Resynced);
                return false;
            }
            let reached = *revision <= twin.now.revision;
            assert_eq!(answer.unwrap(), reached.then_some(twin.now));
            !reached
        });
    }

    fn options(&self, start: u32, revision: u32, epoch: u32, filter: Dice, options: u32) -> Options {
        let (oldest, current) = (self.twin.oldest(), self.twin.now.revision);
        let revision = match revision % 8 {
            0 => oldest.saturating_sub(2),
            1 => oldest - 1,
            2 => oldest,
            3 => current,
            4 => current + 1 + u64::from(revision / 8 % 20),
            _ => oldest - 1 + u64::from(revision / 8) % (current + 2 - oldest),
        };
        let start = match start % 8 {
            0 => Start::Now,
            1 | 2 => Start::State,
            3 => Start::StateAtLeast(revision),
            _ => Start::After(revision),
        };
        let now = self.twin.now.epoch;
        let epoch = match epoch % 8 {
            0 => now,
            1 => (now - 1).max(self.twin.birth + 1),
            2 => (self.twin.birth ^ (1 << 40)) + 1,
            _ => 0,
        };
        Options {
            start,
            filter: filter_of(filter),
            epoch,
            bookmarks: options.is_multiple_of(4),
            whole: (options / 4).is_multiple_of(4),
            stop_on_resync: (options / 16).is_multiple_of(8),
            on_lag: match options / 128 % 8 {
                0..=2 => OnLag::Stop,
                3 => OnLag::SkipToOldest,
                4 | 5 => OnLag::Resnapshot,
                _ => OnLag::Conflate,
            },
        }
    }

    /// Every question once more, then the close.
    pub fn finish(mut self) {
        crate::reads::all(&self.cache, &self.twin);
        for (snapshot, state, position) in &self.snapshots {
            crate::reads::snapshot(snapshot, state, *position, 0);
        }
        self.writer = None;
        self.cache.close();
        for sub in &mut self.subs {
            sub.cache_closed(&self.twin);
        }
        assert_eq!(self.cache.writer().unwrap_err().code(), Code::Closed);
        for sub in &mut self.subs {
            for polls in 0.. {
                if sub.is_ended() {
                    break;
                }
                assert!(polls < 10_000, "subscription {} does not end", sub.name);
                sub.poll(&self.twin, 64);
            }
            sub.poll(&self.twin, 1);
        }
        for (batch, before) in &self.kept {
            assert_eq!(&shown(batch), before, "a kept batch changed");
        }
        let World { snapshots, kept, .. } = self;
        for (snapshot, state, position) in &snapshots {
            crate::reads::snapshot(snapshot, state, *position, 1);
        }
        for (batch, before) in &kept {
            assert_eq!(&shown(batch), before, "a batch that outlived the cache changed");
        }
    }
}

pub fn records(state: &BTreeMap<Vec<u8>, Kv>) -> Vec<Record<'_>> {
    state
        .iter()
        .map(|(key, kv)| Record {
            key,
            value: &kv.value,
            create_revision: kv.create,
            mod_revision: kv.modified,
            version: kv.version,
            lease: kv.lease,
        })
        .collect()
}
