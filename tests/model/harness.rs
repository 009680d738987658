//! One cache beside its oracle, and what happens to both.

use crate::draw::{APPS, NUMBERS, filter_of, indexes_of, key_of};
use crate::ops::{Entropy, Op, Setup};
use crate::oracle::{Kv, Oracle, State};
use crate::reads::Pages;
use crate::sub::{Options, Sub};
use std::collections::BTreeMap;
use std::sync::Arc;
use watchcore::State as Freshness;
use watchcore::raw::TestBuilder as _;
use watchcore::{
    Attribute, Batch, Cache, Change, Code, Event, Labels, OnLag, Position, Record, ResyncReason, Snapshot, Start,
    Subscription, Waiter, WakeSet, Want, Writer,
};

/// A put of a value (with numbers of its own, or without), or a delete.
type Changes = Vec<(Vec<u8>, Option<(Vec<u8>, Option<Kv>)>)>;

const REASONS: [ResyncReason; 5] = [
    ResyncReason::Compacted,
    ResyncReason::HistoryReset,
    ResyncReason::ChainBroken,
    ResyncReason::TooFarBehind,
    ResyncReason::Requested,
];

pub struct Harness {
    pub cache: Cache,
    pub writer: Option<Writer>,
    pub oracle: Oracle,
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

impl Harness {
    pub fn new(setup: &Setup) -> Harness {
        let (slots, capacity) = [(16, 128), (16, 256), (32, 128), (64, 128), (16, 160)][setup.shape as usize];
        let bytes = if setup.tight { 1 << 16 } else { 1 << 30 };
        let indexes = indexes_of(setup.indexes);
        let builder = indexes.iter().fold(Cache::builder("/"), |builder, by| builder.index(by.index()));
        // Where they are those that the capacity has anyway, the directory has room for segments that end early.
        let own = slots == 1u64 << (capacity / 8usize).ilog2();
        let cache = if own { builder } else { builder.segment_slots(slots) };
        let cache = cache
            .name("model")
            .labels(Labels::json("/l").unwrap())
            .field(Attribute::json("f", "/f").unwrap())
            .field(Attribute::key_segment("seg", 1))
            .max_buckets(if setup.few_buckets { 2 } else { 65_536 })
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
        let places = if own { u64::MAX } else { segments };
        let mut oracle = Oracle::new(slots, (segments, places), setup.tight, birth, !setup.expect_load);
        (oracle.indexes, oracle.few_buckets) = (indexes, setup.few_buckets);
        Harness {
            writer: Some(cache.writer().unwrap()),
            auditor: cache.subscribe(Start::Now).open().unwrap(),
            oracle,
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

    fn value(&mut self, entropy: u32) -> Vec<u8> {
        self.counter += 1;
        let member = |name: &str, value: Option<&&str>| value.map(|value| format!("\"{name}\":\"{value}\""));
        let app = member("app", APPS.get((entropy / 16 % 4) as usize));
        let number = member("n", NUMBERS.get((entropy / 64 % 6) as usize));
        let labels: Vec<String> = app.into_iter().chain(number).collect();
        let field = member("f", ["a", "b", ""].get((entropy / 512 % 4) as usize));
        let mut value = format!("{{\"c\":{},\"l\":{{{}}}", self.counter, labels.join(","));
        if let Some(field) = field {
            value += &format!(",{field}");
        }
        if matches!(entropy % 16, 1 | 2) && self.oracle.closes_by_bytes {
            value += &format!(",\"pad\":\"{}\"", "x".repeat(3000));
        }
        value.push('}');
        match entropy % 16 {
            0 => value.clear(),
            3 => value.insert(0, '?'),
            _ => {}
        }
        value.into_bytes()
    }

    fn next_revision(&self, gap: u32) -> u64 {
        self.oracle.now.revision + u64::from(if gap.is_multiple_of(3) { 1 + gap / 3 % 6 } else { 1 })
    }

    /// Applies changes of distinct keys: `None` deletes.
    fn apply(&mut self, revision: u64, changes: Changes) {
        if !self.oracle.loaded {
            let error = self.writer().apply(revision, [Change::put("/a", "x")]).unwrap_err();
            assert_eq!(error.code(), Code::NotReady);
            return;
        }
        let state = self.oracle.state();
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
        // One put in two is of shared bytes: which ones follows from the key and the value.
        let is_shared =
            |key: &[u8], value: &[u8]| (key.iter().chain(value).map(|byte| usize::from(*byte))).sum::<usize>() % 2 == 0;
        let shared: Vec<Option<Arc<[u8]>>> = changes
            .iter()
            .map(|(key, to)| match to {
                Some((value, None)) if is_shared(key, value) => Some(Arc::from(&value[..])),
                _ => None,
            })
            .collect();
        let of_cache = changes.iter().zip(&shared).map(|((key, to), shared)| match (to, shared) {
            (_, Some(value)) => Change::put_shared(key, value),
            (None, _) => Change::delete(key),
            (Some((value, None)), _) => Change::put(key, value),
            (Some((value, Some(kv))), _) => Change::put_exact(Record {
                key,
                value,
                create_revision: kv.create,
                mod_revision: kv.modified,
                version: kv.version,
                lease: kv.lease,
            }),
        });
        self.writer.as_mut().unwrap().apply(revision, of_cache).unwrap();
        self.oracle.apply(revision, &of_twin);
        self.audit();
    }

    /// The auditor reads everything, and so lends the oracle the places of the events.
    fn audit(&mut self) {
        let from = self.oracle.events.iter().rposition(|event| event.seq != 0).map_or(0, |at| at + 1);
        let mut at = from;
        loop {
            let batch =
                self.auditor.poll(self.oracle.events.len() % 100 + 1).expect("who read everything loses nothing");
            if batch.is_empty() {
                break;
            }
            for event in &batch {
                let expected = &mut self.oracle.events[at];
                expected.assert_shown_as(event, expected.kind, false);
                expected.seq = event.sequence();
                at += 1;
            }
        }
        assert_eq!(at, self.oracle.events.len(), "events are missing");
        assert_eq!(self.auditor.position(), self.oracle.now);
        let stats = self.cache.stats();
        self.oracle.settle(from, &stats);
        let state = self.oracle.state();
        assert_eq!(stats.objects, state.len() as u64);
        assert_eq!(stats.events, self.oracle.events.len() as u64);
        assert_eq!(stats.revisions, self.oracle.revs.len() as u64);
        assert_eq!(stats.extract_failures, self.oracle.broken, "broken values");
        self.stands();
    }

    pub fn stands(&mut self) {
        assert_eq!(self.cache.position(), self.oracle.now);
        assert_eq!(self.writer().position(), self.oracle.now);
        assert_eq!(self.cache.oldest(), self.oracle.oldest());
        let status = self.cache.status();
        assert_eq!((status.position, status.oldest), (self.oracle.now, self.oracle.oldest()));
        assert_eq!(status.subscriptions, self.subs.len() as u64 + 1);
        assert_eq!(status.state == Freshness::NotReady, !self.oracle.loaded);
    }

    /// Distinct keys out of entropy, and what becomes of them.
    fn draw(&mut self, entropy: &[(u32, u32, u32)], revision: u64) -> Changes {
        let state = self.oracle.state();
        let mut changes: Changes = Vec::new();
        for (key, verb, value) in entropy {
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
    fn listing(&mut self, entropy: &[(u32, u32, u32)], to: u64) -> BTreeMap<Vec<u8>, Kv> {
        let mut state: BTreeMap<Vec<u8>, Kv> = (*self.oracle.state()).clone();
        if to < self.oracle.now.revision {
            // Of a history that has gone back, nothing may be newer than its revision.
            state.retain(|_, kv| kv.modified <= to);
        }
        for (key, to_do) in self.draw(entropy, to.max(1)) {
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
        self.oracle.resync(to, state, reason);
        assert_eq!(position, self.oracle.now);
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
                let count = self.oracle.slots * self.oracle.segments * u64::from(*eighths) / 8;
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
            Op::Resync { reason, way, changes, gap } if self.oracle.loaded => {
                let from = self.oracle.now.revision;
                let to = match way % 6 {
                    0 => from,
                    1 => u64::from(*gap) % (from + 1),
                    _ => from + 1 + u64::from(gap % 5),
                };
                let state = if way % 5 == 0 {
                    let mut state = (*self.oracle.state()).clone();
                    state.retain(|_, kv| kv.modified <= to);
                    state
                } else {
                    self.listing(changes, to)
                };
                let state = if to == 0 { BTreeMap::new() } else { state };
                self.resync(REASONS[*reason as usize % 5], to, state);
            }
            Op::Load { changes, gap } if !self.oracle.loaded => {
                let revision = u64::from(gap % 50) + 1;
                let state = self.listing(changes, revision);
                let writer = self.writer.as_mut().unwrap();
                let mut loading = writer.begin_load(revision).unwrap();
                let (mut all, piece) = (records(&state).into_iter(), 1 + *gap as usize % 7);
                while loading.len() < state.len() {
                    writer.load_more(&mut loading, all.by_ref().take(piece)).unwrap();
                }
                writer.finish_load(loading).unwrap();
                self.oracle.load(revision, state);
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
            Op::Progress { gap } if self.oracle.loaded => {
                let revision = self.next_revision(*gap);
                self.writer().progress(revision).unwrap();
                self.oracle.progress(revision);
                self.audit();
            }
            Op::Compact { place } if self.oracle.loaded => {
                let (oldest, current) = (self.oracle.oldest(), self.oracle.now.revision);
                let revision = (oldest - 1 + u64::from(*place) % (current + 3 - oldest)).min(current);
                self.writer().compact(revision).unwrap();
                self.oracle.compact(revision);
                self.audit();
            }
            Op::Progress { .. } | Op::Compact { .. } => {
                assert_eq!(self.writer().progress(9).unwrap_err().code(), Code::NotReady);
                assert_eq!(self.writer().compact(0).unwrap_err().code(), Code::NotReady);
            }
            Op::Subscribe { start, revision, epoch, filter, options } => {
                let options = self.options(*start, *revision, *epoch, *filter, *options);
                self.names += 1;
                self.subs.extend(Sub::open(self.names, &self.cache, &self.set, options, &self.oracle));
            }
            Op::Poll { which, max, times } => {
                let Some(at) = self.pick(*which) else { return };
                for time in 0..*times {
                    let max = 1 + (max >> time) as usize % 64;
                    self.subs[at].poll(&self.oracle, max);
                }
                if self.subs[at].is_ended() {
                    self.subs[at].poll(&self.oracle, 1);
                }
            }
            Op::Wait { which } => {
                if let Some(at) = self.pick(*which) {
                    self.subs[at].wait(&self.oracle, false);
                }
            }
            Op::Arm { which } => {
                if let Some(at) = self.pick(*which) {
                    self.subs[at].wait(&self.oracle, true);
                }
            }
            Op::Close { which } => {
                if let Some(at) = self.pick(*which) {
                    self.subs[at].close(&self.oracle);
                }
            }
            Op::Drop { which } => {
                if let Some(at) = self.pick(*which) {
                    self.subs.swap_remove(at);
                }
            }
            Op::Keep { which, max } => {
                let Some(at) = self.pick(*which) else { return };
                if let Some(batch) = self.subs[at].poll(&self.oracle, 1 + *max as usize % 64) {
                    let shown = shown(&batch);
                    self.kept.push((batch, shown));
                }
            }
            Op::Snapshot if self.oracle.loaded => {
                let snapshot = self.cache.snapshot().unwrap();
                assert_eq!(snapshot.position(), self.oracle.now);
                self.snapshots.push((snapshot, self.oracle.state(), self.oracle.now));
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
                crate::reads::at(&self.cache, &self.oracle, *revision, *key, &filter_of(*filter), *limit);
            }
            Op::Pages { revision, filter, limit } if self.oracle.loaded => {
                let mut pages = Pages::new(&self.oracle, *revision, filter_of(*filter), *limit);
                if pages.next(&self.cache, &self.oracle) {
                    self.pages.push(pages);
                }
            }
            Op::Page { which } => {
                if !self.pages.is_empty() {
                    let at = *which as usize % self.pages.len();
                    if !self.pages[at].next(&self.cache, &self.oracle) {
                        self.pages.swap_remove(at);
                    }
                }
            }
            Op::Diff { from, to, epoch, filter } if self.oracle.loaded => {
                crate::reads::diff(&self.cache, &self.oracle, [*from, *to, *epoch], &filter_of(*filter));
            }
            Op::Pages { .. } | Op::Diff { .. } => {}
            Op::Waiter { revision, epoch } => self.waiter(*revision, *epoch),
            Op::Refuse { what, key } => {
                let writer = self.writer.as_mut().unwrap();
                if self.oracle.loaded {
                    crate::reads::refuse(writer, &self.oracle, *what, *key);
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
        let now = self.oracle.now;
        let revision = (now.revision + u64::from(revision % 40)).saturating_sub(10);
        let epoch = if epoch.is_multiple_of(2) { now.epoch } else { self.oracle.birth + 1 };
        let asked = Position { epoch, revision };
        self.waiters.push((self.cache.waiter(Want::RevisionIn(asked)).unwrap(), revision, epoch));
        let oracle = &self.oracle;
        self.waiters.retain_mut(|(waiter, revision, epoch)| {
            let answer = waiter.poll();
            if !oracle.loaded {
                assert_eq!(answer.unwrap(), None);
                return true;
            }
            if oracle.is_former(*epoch) {
                assert_eq!(answer.expect_err("the history was reset").code(), Code::Resynced);
                return false;
            }
            let reached = *revision <= oracle.now.revision;
            assert_eq!(answer.unwrap(), reached.then_some(oracle.now));
            !reached
        });
    }

    fn options(&self, start: u32, revision: u32, epoch: u32, filter: Entropy, options: u32) -> Options {
        let (oldest, current) = (self.oracle.oldest(), self.oracle.now.revision);
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
        let now = self.oracle.now.epoch;
        let epoch = match epoch % 8 {
            0 => now,
            1 => (now - 1).max(self.oracle.birth + 1),
            2 => (self.oracle.birth ^ (1 << 40)) + 1,
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
        crate::reads::all(&self.cache, &self.oracle);
        for (snapshot, state, position) in &self.snapshots {
            crate::reads::snapshot(snapshot, state, *position, 0);
        }
        self.writer = None;
        self.cache.close();
        for sub in &mut self.subs {
            sub.cache_closed(&self.oracle);
        }
        assert_eq!(self.cache.writer().unwrap_err().code(), Code::Closed);
        for sub in &mut self.subs {
            for polls in 0.. {
                if sub.is_ended() {
                    break;
                }
                assert!(polls < 10_000, "subscription {} does not end", sub.name);
                sub.poll(&self.oracle, 64);
            }
            sub.poll(&self.oracle, 1);
        }
        for (batch, before) in &self.kept {
            assert_eq!(&shown(batch), before, "a kept batch changed");
        }
        let Harness { snapshots, kept, .. } = self;
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
