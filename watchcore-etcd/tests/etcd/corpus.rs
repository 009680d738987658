//! Seeded runs against the fake etcd: messages with a flipped bit, and watches with several faults in a row. Each test
//! runs the seeds 0 to 49; `WATCHCORE_SEED=N` runs only N, and a failure names its seed.
//!
//! **A flipped bit** may yield a valid message: docs/internals/feeder.md has the table. These tests audit all the time
//! and check that no other wrong state is shown, and that the cache ends equal to the store.
//!
//! The oracle is the fake's own store. A [`History`] replays the events of a subscription and compares them with the
//! store's: between two resyncs every event of the range comes once, in order, unchanged.

use crate::fake::{Entropy, Fake, Fault};
use crate::faults::{follow, quick};
use crate::support::history::{Recorder, Seen};
use crate::support::wait_for;
use etcd_client::proto::{PbEvent, PbKeyValue, PbWatchResponse};
use prost::Message;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use watchcore::{Cache, Kind, Phase, Start, State};
use watchcore_etcd::FeederBuilder;

/// Value, (created, modified, version), lease.
type Content = (Vec<u8>, [u64; 3], i64);
type Contents = BTreeMap<Vec<u8>, Content>;

/// Runs each seed, five at a time, because they mostly wait; names the seed that fails.
fn each_seed(run: impl Fn(u64) + Sync) {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the seed is {0}: WATCHCORE_SEED={0} runs it alone", self.0);
            }
        }
    }
    let one = std::env::var("WATCHCORE_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let named = |seed| {
        let _named = Named(seed);
        run(seed);
    };
    if let Some(seed) = one {
        return named(seed);
    }
    let named = &named;
    std::thread::scope(|scope| {
        (0..5).for_each(|first| _ = scope.spawn(move || (first..50).step_by(5).for_each(named)));
    });
}

/// A feeder that notices every fault within milliseconds.
fn hasty(etcd: &Fake) -> FeederBuilder {
    quick([&etcd.url()])
        .progress_interval(Duration::from_millis(10))
        .request_timeout(Duration::from_millis(500))
        .audit_interval(Duration::from_millis(10))
}

fn content(kv: &PbKeyValue) -> Content {
    let numbers = [kv.create_revision, kv.mod_revision, kv.version].map(|number| number as u64);
    (kv.value.clone(), numbers, kv.lease)
}

/// The content of the store after these events.
fn replayed(events: &[PbEvent]) -> Contents {
    let mut contents = Contents::new();
    for event in events {
        let kv = event.kv.as_ref().unwrap();
        if event.r#type == 0 {
            contents.insert(kv.key.clone(), content(kv));
        } else {
            contents.remove(&kv.key);
        }
    }
    contents
}

fn held(cache: &Cache) -> Contents {
    let Ok(snapshot) = cache.snapshot() else { return Contents::new() };
    snapshot
        .iter()
        .map(|kv| {
            let numbers = [kv.create_revision(), kv.mod_revision(), kv.version()];
            (kv.key().to_vec(), (kv.value().unwrap_or_default().to_vec(), numbers, kv.lease()))
        })
        .collect()
}

/// Writes one to three changes of ten keys in one revision, or one change outside the range.
fn write(etcd: &Fake, random: &mut Entropy, value: usize) -> u64 {
    if random.below(5) == 0 {
        return etcd.put("/y/elsewhere", "");
    }
    let first = random.below(10);
    let keys: Vec<String> = (0..1 + random.below(3)).map(|i| format!("/x/{}", (first + i) % 10)).collect();
    let value = format!("value {value}");
    let changes: Vec<_> =
        keys.iter().map(|key| (key.as_bytes(), (random.below(4) > 0).then_some(value.as_bytes()))).collect();
    etcd.txn(&changes)
}

/// A subscription's events, replayed.
#[derive(Clone, Default)]
struct History {
    contents: Contents,
    /// Every event up to this revision was seen.
    complete: u64,
    /// How many of the store's later events were seen, all of one revision.
    count: usize,
    is_inside: bool,
    /// The events that differ from the store's.
    wrong: Vec<String>,
}

impl History {
    /// A history that begins with the cache's state at a revision.
    fn from(contents: Contents, revision: u64) -> History {
        History { contents, complete: revision, ..History::default() }
    }

    fn replay(&mut self, seen: &[Seen], truth: &[PbEvent]) {
        let mut last = self.complete;
        for seen in seen.iter().filter(|seen| seen.kind != Kind::Bookmark) {
            if let Some(resync) = seen.resync {
                self.is_inside = resync.phase == Phase::Begin;
                (last, self.complete, self.count) = (resync.to, resync.to, 0);
                continue;
            }
            if !self.is_inside {
                self.live(seen, last, truth);
                last = seen.revision;
            }
            self.apply(seen);
        }
        self.whole(last, truth);
    }

    /// The store's events after the complete part, up to this revision.
    fn expected(&self, revision: u64, truth: &[PbEvent]) -> Vec<PbEvent> {
        let of = |event: &&PbEvent| {
            let at = event.kv.as_ref().unwrap().mod_revision as u64;
            at > self.complete && at <= revision
        };
        truth.iter().filter(of).cloned().collect()
    }

    /// Checks that the last seen revision was complete.
    fn whole(&mut self, last: u64, truth: &[PbEvent]) {
        if last <= self.complete {
            return;
        }
        let missing = self.expected(last, truth).len() - self.count.min(self.expected(last, truth).len());
        if missing > 0 {
            self.wrong.push(format!("missing: {missing} events up to {last}"));
        }
        (self.complete, self.count) = (last, 0);
    }

    fn live(&mut self, seen: &Seen, last: u64, truth: &[PbEvent]) {
        if seen.revision < last {
            self.wrong.push(format!("order: {} behind {last}", seen.revision));
        }
        if seen.revision != last {
            self.whole(last, truth);
        }
        let expected = self.expected(seen.revision, truth);
        self.count += 1;
        let Some(event) = expected.get(self.count - 1) else {
            return self.wrong.push(format!("more: {} at {}", seen.key(), seen.revision));
        };
        let kv = event.kv.as_ref().unwrap();
        let is_put = event.r#type == 0;
        if seen.revision != kv.mod_revision as u64 {
            self.wrong.push(format!("revision: {} is {}", seen.revision, kv.mod_revision));
        }
        if seen.key != kv.key {
            self.wrong.push(format!("key: {} is {}", seen.key(), String::from_utf8_lossy(&kv.key)));
        } else if is_put != (seen.kind != Kind::Deleted) {
            self.wrong.push(format!("kind: {:?} of {}", seen.kind, seen.key()));
        } else if is_put {
            let (value, numbers, lease) = content(kv);
            if seen.value.as_ref() != Some(&value) {
                self.wrong.push(format!("value: {}", seen.key()));
            }
            if seen.lease != lease {
                self.wrong.push(format!("lease: {}", seen.key()));
            }
            if seen.numbers != numbers {
                self.wrong.push(format!("numbers: {:?} are {numbers:?}", seen.numbers));
            }
        }
    }

    /// Applies an event to the reader's state and checks that it follows from that state.
    fn apply(&mut self, seen: &Seen) {
        let before = match seen.kind {
            Kind::Deleted => self.contents.remove(&seen.key),
            _ => {
                let content = (seen.value.clone().unwrap_or_default(), seen.numbers, seen.lease);
                self.contents.insert(seen.key.clone(), content)
            }
        };
        assert_eq!(before.is_none(), seen.kind == Kind::Added, "{seen:?}");
        assert_eq!(before.map(|(value, ..)| value), seen.prev, "{seen:?}");
    }
}

/// Waits until the cache equals the store, and a reader who began with `history` has received all of it; returns the
/// replayed history.
#[track_caller]
fn settled(cache: &Cache, etcd: &Fake, recorder: &Recorder, history: &History) -> History {
    let last = etcd.put("/x/end", "the end");
    let events = etcd.events("/x/");
    let truth = replayed(&events);
    wait_for("the store's truth", || {
        cache.status().state == State::Ready && cache.position().revision >= last && held(cache) == truth
    });
    let mut now = history.clone();
    wait_for("the reader", || {
        now = history.clone();
        now.replay(&recorder.all(), &events);
        now.contents == truth && !now.is_inside
    });
    now
}

/// Faults that a watch meets in a random order.
const FAULTS: [Fault; 23] = [
    Fault::SendsTwice,
    Fault::EventsTwice,
    Fault::SendsForeignKey,
    Fault::SendsEmptyKey,
    Fault::SendsKeyTwice,
    Fault::SendsLargeRevision,
    Fault::SendsNegativeRevision,
    Fault::SendsFutureEvent,
    Fault::SendsWrongVersion,
    Fault::OtherWatch,
    Fault::Fragments,
    Fault::ProgressInFragments,
    Fault::OldProgress,
    Fault::NoProgress,
    Fault::CompactedWatches,
    Fault::CompactedReads,
    Fault::CompactedStreams,
    Fault::ListsForeignKey,
    Fault::ListsKeyTwice,
    Fault::ListsFutureKey,
    Fault::NoStreams,
    Fault::RepeatingStream,
    Fault::NoCluster,
];

#[test]
fn fuzzed_watches_lose_nothing() {
    each_seed(|seed| {
        let mut random = Entropy(seed);
        let etcd = Fake::start();
        (0..10).for_each(|value| _ = write(&etcd, &mut random, value));
        let (cache, _feeder) = follow(hasty(&etcd), "/x/");
        let recorder = Recorder::start(&cache, Start::Now);
        let history = History::from(held(&cache), cache.position().revision);
        let mut steps = Vec::new();
        for value in 10..60 {
            match random.below(10) {
                0 => {
                    steps.push("cut".to_owned());
                    etcd.cut();
                }
                1 => {
                    steps.push("compact".to_owned());
                    etcd.compact(etcd.revision());
                }
                2 | 3 => {
                    let fault = FAULTS[random.below(FAULTS.len())];
                    let times = 1 + random.below(3);
                    steps.push(format!("{fault:?} {times}"));
                    etcd.fault_times(fault, times as u64);
                }
                // The write is seen before the next step.
                4 | 5 => {
                    let goal = etcd.revision();
                    let _ = cache.wait_until(goal, Duration::from_millis(20));
                }
                _ => _ = write(&etcd, &mut random, value),
            }
        }
        etcd.heal();
        let history = settled(&cache, &etcd, &recorder, &history);
        assert!(history.wrong.is_empty(), "{:?}\n{steps:?}", history.wrong);
    });
}

/// Whether no rule detects this change of a message: the table of docs/internals/feeder.md.
fn is_beyond_rules((method, right, wrong): &(String, Vec<u8>, Vec<u8>)) -> bool {
    if method != "Watch" {
        return true;
    }
    let right = PbWatchResponse::decode(&right[..]).expect("the store's message");
    let Ok(wrong) = PbWatchResponse::decode(&wrong[..]) else { return false };
    if wrong.events.len() < right.events.len() {
        return true;
    }
    let named = wrong.header.as_ref().map(|header| header.revision);
    let is_event = |(right, wrong): (&PbEvent, &PbEvent)| {
        let (Some(right_kv), Some(wrong_kv)) = (&right.kv, &wrong.kv) else { return false };
        let numbers = |kv: &PbKeyValue| (kv.create_revision, kv.version);
        let is_of_message = named.is_some_and(|revision| wrong_kv.mod_revision <= revision);
        right.r#type == wrong.r#type && numbers(right_kv) == numbers(wrong_kv) && is_of_message && right != wrong
    };
    right.events.iter().zip(&wrong.events).any(is_event)
}

/// Runs one fault that flips bits, `times` times in a row; returns whether the reader was shown a state that was never
/// written.
fn flips(seed: u64, fault: Fault, times: u64) -> bool {
    let mut random = Entropy(seed);
    let etcd = Fake::start();
    (0..10).for_each(|value| _ = write(&etcd, &mut random, value));
    etcd.seed(seed);
    if fault == Fault::FlipsListBit {
        etcd.fault_times(fault, times);
    }
    let (cache, _feeder) = follow(hasty(&etcd), "/x/");
    let recorder = Recorder::start(&cache, Start::Now);
    let history = History::from(held(&cache), cache.position().revision);
    let is_listed = history.contents == replayed(&etcd.events("/x/"));
    let at = 10 + random.below(10);
    for value in 10..20 {
        if value == at {
            etcd.fault_times(fault, times);
        }
        write(&etcd, &mut random, value);
        let _ = cache.wait_until(etcd.revision(), Duration::from_millis(20));
    }
    wait_for("the flip", || !etcd.has_fault(fault));
    let history = settled(&cache, &etcd, &recorder, &history);
    let is_wrong = !history.wrong.is_empty() || !is_listed;
    let flipped = etcd.flipped();
    assert!(!is_wrong || flipped.iter().any(is_beyond_rules), "{:?} {flipped:?}", history.wrong);
    is_wrong
}

#[test]
fn flipped_bits_of_watches_are_found() {
    let wrong = AtomicU64::new(0);
    each_seed(|seed| _ = wrong.fetch_add(u64::from(flips(seed, Fault::FlipsWatchBit, 1)), Relaxed));
    println!("{wrong:?} runs showed what no rule finds");
}

#[test]
fn flipped_bits_of_listings_are_found() {
    let wrong = AtomicU64::new(0);
    each_seed(|seed| _ = wrong.fetch_add(u64::from(flips(seed, Fault::FlipsListBit, 3)), Relaxed));
    println!("{wrong:?} runs showed what no rule finds");
}
