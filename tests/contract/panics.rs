//! A predicate that panics: the poll is as if it had not been, whichever call of the predicate it was.
//!
//! Each story is run once without a panic, then once for each call that its predicate got, which panics. What was
//! delivered, and what was reported, is the same.

use crate::tools::*;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use watchcore::raw::TestBuilder as _;
use watchcore::*;

/// What a story's consumer has seen.
#[derive(Default)]
struct Told {
    lines: Vec<String>,
    panics: u64,
}

/// Calls of a predicate, of which one panics.
struct Trap {
    calls: Arc<AtomicU64>,
    at: u64,
}

impl Trap {
    /// Values that begin with "no" do not match.
    fn filter(&self) -> Filter {
        let (calls, at) = (self.calls.clone(), self.at);
        Filter::any().predicate(move |kv| {
            if calls.fetch_add(1, Relaxed) + 1 == at {
                // Past the hook, which would print it.
                resume_unwind(Box::new("as asked"));
            }
            !kv.value().is_some_and(|value| value.starts_with(b"no"))
        })
    }
}

impl Told {
    /// A call that may panic; then again.
    fn call<T>(&mut self, mut call: impl FnMut() -> T) -> T {
        loop {
            match catch_unwind(AssertUnwindSafe(&mut call)) {
                Ok(outcome) => return outcome,
                Err(_) => self.panics += 1,
            }
        }
    }

    /// Polls until there is nothing more, or it is over.
    fn follow(&mut self, subscription: &mut Subscription, max: usize) {
        loop {
            match self.call(|| subscription.poll(max)) {
                Ok(batch) if batch.is_empty() => break,
                Ok(batch) => self.lines.extend(lines(&batch)),
                Err(error) if error.code() == Code::Closed => {
                    self.lines.push("CLOSED".into());
                    break;
                }
                Err(error) => self.lines.push(format!("{} {}..{}", error.code(), error.lost_from(), error.lost_to())),
            }
        }
        let (stats, lag) = (subscription.stats(), subscription.lag());
        let epoch = subscription.position().epoch != 0;
        let at = subscription.position().revision;
        self.lines.push(format!(
            "at {epoch} {at}, {} keys, {} lost, {} behind",
            stats.delivered_keys, stats.lagged, lag.events
        ));
    }
}

/// Runs a story with a panic at each call of its predicate in turn.
#[track_caller]
fn same_at_each_panic(what: &str, story: impl Fn(&Trap, &mut Told)) {
    let run = |at| {
        let trap = Trap { calls: Arc::default(), at };
        let mut told = Told::default();
        story(&trap, &mut told);
        (told, trap.calls.load(Relaxed))
    };
    let (expected, calls) = run(0);
    assert!(calls > 0 && expected.panics == 0, "{what}");
    for at in 1..=calls {
        let (told, _) = run(at);
        assert_eq!(told.panics, 1, "{what}, call {at}");
        assert_eq!(told.lines, expected.lines, "{what}, a panic in call {at} of {calls}");
    }
}

#[test]
fn initial_state_comes_once_though_a_predicate_panics() {
    for policy in [OnLag::Stop, OnLag::Conflate] {
        for max in [1, 3, 100] {
            same_at_each_panic(&format!("{policy:?}, at most {max}"), |trap, told| {
                let (cache, mut writer) = embedded();
                for (revision, key) in (1..).zip(["/a", "/b", "/c", "/d", "/e"]) {
                    writer.apply(revision, [Change::put(key, if key == "/c" { "no" } else { "yes" })]).unwrap();
                }
                let mut one = cache.subscribe(Start::State).filter(trap.filter()).on_lag(policy).open().unwrap();
                told.follow(&mut one, max);
                drop(one);
                assert_eq!(cache.stats().delivered_bytes, 0);
            });
        }
    }
}

/// More revisions than the window of `tiny` has slots.
const LAP: u64 = 150;

/// The history of a consumer that was overrun: keys that are gone, that match no more, that changed, and that are new.
fn lap(writer: &mut Writer, first: u64) {
    let changes =
        [("/a", None), ("/b", Some("no")), ("/c", Some("2")), ("/e", None), ("/g", Some("new")), ("/h", Some("no"))];
    for (revision, (key, value)) in (first..).zip(changes) {
        let is_there = writer.get(key.as_bytes()).is_some();
        let change = match value {
            None if is_there => Change::delete(key),
            value => Change::put(key, value.unwrap_or("back")),
        };
        writer.apply(revision, [change]).unwrap();
    }
    for revision in first + 6..first + LAP {
        writer.apply(revision, [Change::put("/z", "no")]).unwrap();
    }
}

#[test]
fn difference_comes_once_though_a_predicate_panics() {
    type Asked = (OnLag, usize, bool, &'static [Kind]);
    const ASKED: [Asked; 4] = [
        (OnLag::Resnapshot, 1, false, &[]),
        (OnLag::Resnapshot, 100, false, &[Kind::Modified]),
        (OnLag::Conflate, 2, true, &[]),
        (OnLag::Conflate, 1, false, &[Kind::Deleted]),
    ];
    for (policy, max, whole, kinds) in ASKED {
        same_at_each_panic(&format!("{policy:?}, at most {max}, {whole}, {kinds:?}"), |trap, told| {
            let (cache, mut writer) = tiny();
            let keys = ["/a", "/b", "/c", "/d", "/e", "/f"];
            writer.apply(1, keys.map(|key| Change::put(key, "1"))).unwrap();
            let options = cache.subscribe(Start::State).filter(trap.filter()).on_lag(policy);
            let mut one = options.whole_revisions(whole).types(kinds).open().unwrap();
            told.follow(&mut one, 100);
            lap(&mut writer, 2);
            told.follow(&mut one, max);
            // Before the initial state has ended, and inside a difference.
            let mut late = cache.subscribe(Start::State).filter(trap.filter()).on_lag(policy).open().unwrap();
            let began = told.call(|| late.poll(1)).unwrap();
            told.lines.extend(lines(&began));
            for first in [2 + LAP, 2 + 2 * LAP] {
                lap(&mut writer, first);
                for _ in 0..2 {
                    match told.call(|| late.poll(1)) {
                        Ok(batch) => told.lines.extend(lines(&batch)),
                        Err(error) => told.lines.push(error.to_string()),
                    }
                }
            }
            told.follow(&mut late, max);
            one.close();
            told.follow(&mut one, max);
            drop((one, late));
            assert_eq!(cache.stats().delivered_bytes, 0);
        });
    }
}

/// A panic inside a difference is not its end: closed then, it comes whole.
#[test]
fn closed_after_a_panic_in_a_difference() {
    let (cache, mut writer) = tiny();
    writer.apply(1, ["/a", "/b", "/e"].map(|key| Change::put(key, "1"))).unwrap();
    let trap = Trap { calls: Arc::default(), at: 5 };
    let mut one = cache.subscribe(Start::State).filter(trap.filter()).on_lag(OnLag::Conflate).open().unwrap();
    assert_eq!(drain(&mut one).len(), 4);
    lap(&mut writer, 2);
    catch_unwind(AssertUnwindSafe(|| one.poll(100))).unwrap_err();
    assert_eq!(one.position().revision, 1);
    let listed = &cache.subscriptions()[0];
    assert_eq!((listed.state, listed.lagged), (SubscriptionState::CatchingUp, 1));
    one.close();
    assert_eq!(one.poll(100).unwrap().len(), 5);
    refused(one.poll(100), Code::Closed);
    drop(one);
    let stats = cache.stats();
    assert_eq!((cache.subscriptions().len(), stats.delivered_bytes, stats.lagged), (0, 0, 1));
}

#[test]
fn start_is_fixed_once_though_a_predicate_panics() {
    let starts = [Start::Now, Start::State, Start::StateAtLeast(5), Start::After(3), Start::After(8)];
    for policy in [OnLag::Stop, OnLag::Conflate] {
        for start in starts {
            same_at_each_panic(&format!("{policy:?}, {start:?} before the listing"), |trap, told| {
                let (cache, mut writer) = unloaded();
                let mut one = cache.subscribe(start).filter(trap.filter()).on_lag(policy).open().unwrap();
                told.follow(&mut one, 2);
                writer.load(3, [record("/a", "1", 1, 1, 1), record("/b", "no", 2, 2, 1)]).unwrap();
                for revision in 4..=10 {
                    writer.apply(revision, [Change::put("/c", &revision.to_string())]).unwrap();
                }
                told.follow(&mut one, 2);
            });
        }
        for asked in [8, 10] {
            same_at_each_panic(&format!("{policy:?}, after {asked}, at 5"), |trap, told| {
                let (cache, mut writer) = embedded();
                write(&mut writer, 1..=5);
                let open = || cache.subscribe(Start::After(asked)).filter(trap.filter()).on_lag(policy).open();
                let mut one = told.call(open).unwrap();
                told.follow(&mut one, 2);
                for last in [7, 9, 12] {
                    write(&mut writer, cache.position().revision + 1..=last);
                    told.follow(&mut one, 2);
                }
            });
        }
    }
}

/// The segment in which it stands is kept, though it has left the window.
#[test]
fn segment_is_kept_though_a_predicate_panics() {
    same_at_each_panic("in a segment that has left", |trap, told| {
        let (cache, mut writer) = tiny();
        write(&mut writer, 1..=10);
        let mut one = cache.subscribe(Start::After(0)).filter(trap.filter()).open().unwrap();
        let begun = told.call(|| one.poll(4)).unwrap();
        told.lines.extend(lines(&begun));
        lap(&mut writer, 11);
        assert!(told.call(|| one.wait(Duration::ZERO)).unwrap());
        told.follow(&mut one, 4);
    });
}

/// The same on a chain, whose links are collected ahead.
#[test]
fn chain_comes_once_though_a_predicate_panics() {
    same_at_each_panic("a chain", |trap, told| {
        let cache = Cache::builder("/").capacity(128).segment_slots(16).index(Index::key()).build().unwrap();
        let mut writer = cache.writer().unwrap();
        let options = cache.subscribe(Start::Now).key("/k").filter(trap.filter());
        let mut one = options.on_lag(OnLag::Conflate).open().unwrap();
        for revision in 1..=30 {
            let key = if revision % 3 == 0 { "/other" } else { "/k" };
            writer.apply(revision, [Change::put(key, if revision % 4 == 0 { "no" } else { "1" })]).unwrap();
            if revision % 10 == 1 {
                told.follow(&mut one, 2);
            }
        }
        assert!(matches!(one.stats().read_path, ReadPath::Chain { .. }));
        told.follow(&mut one, 2);
    });
}
