//! What the writer's thread does not do, and a writer that panics at each step of a commit in turn.

use crate::reclaim::WORK;
use crate::store::table::HINTED;
use crate::sync::hooked;
use crate::{Cache, Change, Code, Read, Record, ResyncReason, Start, State, Writer};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(30);

type Listing = BTreeMap<String, String>;

fn listing(cache: &Cache) -> Listing {
    let page = cache.list(&crate::Range::all(), Read::Any, 0).unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    page.iter().map(|kv| (text(kv.key()), text(kv.value().unwrap()))).collect()
}

fn record<'a>(key: &'a str, value: &'a str, created: u64, revision: u64) -> Record<'a> {
    let (key, value) = (key.as_bytes(), value.as_bytes());
    Record { key, value, create_revision: created, mod_revision: revision, version: 1, lease: 0 }
}

/// A cache of small segments whose window has overrun, and what is alive as long as one of its versions
/// with a value is.
fn overrun() -> (Cache, Writer, Weak<()>) {
    let alive = Arc::new(());
    let versions = Arc::downgrade(&alive);
    let decode = move |_: &[u8], value: &[u8]| {
        let _ = &alive;
        Ok::<_, String>(value.len())
    };
    let builder = Cache::builder("/").segment_slots(4).capacity(128).decoder(decode);
    let cache = builder.build().unwrap();
    let mut writer = cache.writer().unwrap();
    for revision in 1..=150 {
        let key = format!("/{}", revision % 7);
        writer.apply(revision, [Change::put(&key, &revision.to_string())]).unwrap();
    }
    // A key that the next revision purges, and one whose tombstone is still in the window.
    writer.apply(151, [Change::delete("/1"), Change::delete("/2")]).unwrap();
    for revision in 152..290 {
        writer.apply(revision, [Change::put("/0", &revision.to_string())]).unwrap();
    }
    writer.apply(290, [Change::delete("/3")]).unwrap();
    (cache, writer, versions)
}

/// Through changes, deletes, a listing, a resync and a table that grows and shrinks: where there are many keys, beside
/// each stands where its newest version lies.
#[test]
fn hints_lead_to_the_newest_versions() {
    let hold = |writer: &Writer, keys: &[String]| {
        let core = writer.core();
        for key in keys.iter().map(String::as_bytes) {
            let slot = core.slot_of(core.hash_of(key), key).unwrap();
            let distance = slot.pointer().distance_to(slot.newest().pointer());
            assert_eq!(core.slots.hint(key), Some(distance), "{:?}", slot.newest());
            assert!(cfg!(watchcore_plain_heap) || distance != 0, "blocks of one heap lie near each other");
        }
    };
    let cache = Cache::builder("/").capacity(128).segment_slots(32).expect_load(true).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let keys: Vec<String> = (0..2 * HINTED as u64).map(|number| format!("/{number:05}")).collect();
    let (many, end) = (HINTED + 100, 2 * HINTED as u64 + 2);
    writer.load(1, keys[..many].iter().map(|key| record(key, "loaded", 1, 1))).unwrap();
    hold(&writer, &keys[..many]);
    for (key, revision) in keys.iter().zip(2..) {
        writer.apply(revision, [Change::put(key, "changed")]).unwrap();
    }
    hold(&writer, &keys);
    writer.apply(end, keys.iter().map(|key| Change::put(key, "together"))).unwrap();
    writer.apply(end + 1, keys[many..].iter().map(Change::delete)).unwrap();
    hold(&writer, &keys);
    let listed = keys[..many - 50].iter().map(|key| record(key, "listed", end + 2, end + 2));
    writer.resync(end + 2, listed, ResyncReason::Requested).unwrap();
    for revision in end + 3..end + 3000 {
        writer.apply(revision, [Change::put("/00000", "again")]).unwrap();
    }
    hold(&writer, &keys[..many - 50]);
}

/// Waits until nothing of a cache is left, which may be with the notifier for a moment.
fn are_freed(versions: &Weak<()>) -> bool {
    let until = Instant::now() + SOON;
    while versions.strong_count() > 0 && Instant::now() < until {
        crate::reclaim::quiesce(SOON);
        std::thread::yield_now();
    }
    versions.strong_count() == 0
}

/// Panics at step `at` of `commit`, if it has so many; whether it did. Then everything that holds of a
/// stopped writer is looked at, and that the end of the cache frees each thing once.
fn stop_at(at: usize, commit: impl FnOnce(&mut Writer) -> crate::Result<()>) -> bool {
    let (cache, mut writer, versions) = overrun();
    let mut live = cache.subscribe(Start::Now).open().unwrap();
    let snapshot = cache.snapshot().unwrap();
    let (before, stood) = (listing(&cache), cache.position());
    let mut steps = 0;
    let hook = move |name: &'static str| {
        steps += 1;
        assert!(steps <= at, "stopped at {name}");
    };
    let stopped = catch_unwind(AssertUnwindSafe(|| hooked(hook, || commit(&mut writer)))).is_err();
    if stopped {
        // At once, and while the writer's handle lives.
        let status = cache.status();
        assert_eq!(status.state, State::Failed, "step {at}");
        assert_eq!(status.last_error.unwrap().code(), Code::Panic);
        assert_eq!(writer.apply(900, [Change::put("/x", "y")]).unwrap_err().code(), Code::Panic);
        // Nothing above the head will come: nobody waits for it.
        assert_eq!(cache.wait_until(901, SOON).unwrap_err().code(), Code::Panic);
    }
    if cache.position() == stood {
        assert!(stopped);
        assert_eq!(listing(&cache), before, "step {at}");
        let of_writer = |key: &String| writer.get(key.as_bytes()).map(|kv| kv.value_str().unwrap().to_owned());
        assert!(before.iter().all(|(key, value)| of_writer(key).as_ref() == Some(value)), "step {at}");
        assert!(["/1", "/3", "/8", "/9"].iter().all(|key| writer.get(key.as_bytes()).is_none()), "step {at}");
        assert_eq!(cache.objects(), before.len() as u64, "step {at}");
        assert!(live.poll(64).unwrap().is_empty());
        let exact = cache.get("/0", Read::Exact(stood.revision)).unwrap().kv.unwrap();
        assert_eq!(exact.value().unwrap(), before["/0"].as_bytes());
        assert!(cache.diff(280, stood, &crate::Filter::any()).unwrap().len() > 1);
        let mut epochs = cache.subscribe(Start::After(280)).open().unwrap();
        let events: usize = (0..9).map(|_| epochs.poll(64).unwrap().len()).sum();
        assert_eq!(events, 10, "step {at}");
    }
    assert_eq!(snapshot.len(), before.len());
    let _ = live.poll(64);
    drop((snapshot, writer, live, cache));
    assert!(are_freed(&versions), "step {at}: a version was not freed");
    stopped
}

fn stop_everywhere(commit: impl Fn(&mut Writer) -> crate::Result<()>) {
    let steps = (0..).take_while(|at| stop_at(*at, &commit)).count();
    assert!(steps >= 5, "only {steps} steps");
}

#[test]
fn panic_in_apply_frees_exactly() {
    stop_everywhere(|writer| {
        let changes = [Change::put("/0", "new"), Change::put("/9", "new"), Change::delete("/4"), Change::put("/3", "")];
        writer.apply(300, changes)
    });
}

#[test]
fn panic_in_oversized_revision_frees_exactly() {
    let keys: Vec<String> = (0..200).map(|number| format!("/giant/{number}")).collect();
    let commit = |writer: &mut Writer| writer.apply(300, keys.iter().map(|key| Change::put(key, "new")));
    for at in (0..200).step_by(23).chain(198..) {
        if !stop_at(at, commit) {
            break;
        }
    }
}

#[test]
fn panic_in_resync_frees_exactly() {
    for (revision, reason) in [(400, ResyncReason::Compacted), (60, ResyncReason::HistoryReset)] {
        stop_everywhere(|writer| {
            // One changed, one deleted and put again, one new, the rest deleted.
            let records =
                [record("/0", "new", 1, revision), record("/4", "again", 50, revision), record("/8", "new", 50, 50)];
            writer.resync(revision, records, reason).map(|_| ())
        });
    }
}

#[test]
fn panic_in_load_frees_exactly() {
    for at in 0.. {
        let alive = Arc::new(());
        let versions = Arc::downgrade(&alive);
        let decode = move |_: &[u8], value: &[u8]| {
            let _ = &alive;
            Ok::<_, String>(value.len())
        };
        let cache = Cache::builder("/").expect_load(true).decoder(decode).build().unwrap();
        let mut writer = cache.writer().unwrap();
        let mut steps = 0;
        let hook = move |name: &'static str| {
            steps += 1;
            assert!(steps <= at, "stopped at {name}");
        };
        let load = || writer.load(7, [record("/a", "1", 3, 4), record("/b", "2", 5, 7)]);
        let stopped = catch_unwind(AssertUnwindSafe(|| hooked(hook, load))).is_err();
        if stopped {
            assert_eq!(cache.status().state, State::Failed);
            assert_eq!(cache.wait_ready(SOON).unwrap_err().code(), Code::Panic);
            assert_eq!(writer.load(8, []).unwrap_err().code(), Code::Panic);
        }
        drop((writer, cache));
        assert!(are_freed(&versions), "step {at}: a version was not freed");
        if !stopped {
            return assert!(at > 1);
        }
    }
}

/// A close at each step of a commit in turn: the commit is whole before it, and nothing comes after it. Whoever waited
/// is woken though the call that closed the cache left that to the commit.
fn close_everywhere(commit: impl Fn(&mut Writer) -> crate::Result<()>) {
    for at in 0.. {
        let (cache, mut writer, versions) = overrun();
        let mut live = cache.subscribe(Start::Now).open().unwrap();
        let waiting = cache.clone();
        let waiter = std::thread::spawn(move || waiting.wait_until(100_000, SOON).unwrap_err().code());
        let until = Instant::now() + SOON;
        while cache.stats().waiting == 0 && Instant::now() < until {
            std::thread::yield_now();
        }
        let mut early = cache.subscribe(Start::Now).open().unwrap();
        let (closing, mut steps) = (cache.clone(), 0);
        let hook = move |name: &'static str| {
            if steps == at {
                let before = closing.position();
                closing.close();
                assert_eq!(closing.state(), State::Closed, "{name}");
                assert_eq!(closing.subscribe(Start::Now).open().unwrap_err().code(), Code::Closed, "{name}");
                assert_eq!(closing.position(), before, "{name}");
                assert!(early.poll(64).is_ok(), "{name}: it ends before the revision is there");
            }
            steps += 1;
        };
        let outcome = hooked(hook, || commit(&mut writer));
        if cache.state() != State::Closed {
            return assert!(at >= 5, "only {at} steps");
        }
        assert!(outcome.is_ok(), "step {at}: {outcome:?}");
        let mut events = 0;
        let end = loop {
            match live.poll(64) {
                Ok(batch) => events += batch.len(),
                Err(error) => break error.code(),
            }
        };
        assert_eq!((events > 0, end), (true, Code::Closed), "step {at}");
        let ended = waiter.join().unwrap();
        assert!(ended == Code::Closed || ended == Code::Resynced, "step {at}: {ended}");
        assert_eq!(writer.apply(901, [Change::put("/x", "y")]).unwrap_err().code(), Code::Closed);
        assert_eq!(cache.objects(), listing(&cache).len() as u64);
        drop((writer, live, cache));
        assert!(are_freed(&versions), "step {at}: a version was not freed");
    }
}

#[test]
fn close_during_a_commit_follows_it() {
    let changes = || [Change::put("/0", "new"), Change::put("/9", "new"), Change::delete("/4"), Change::put("/3", "")];
    close_everywhere(|writer| writer.apply(300, changes()));
    close_everywhere(|writer| {
        let records = [record("/0", "new", 1, 60), record("/8", "new", 50, 50)];
        writer.resync(60, records, ResyncReason::HistoryReset).map(|_| ())
    });
}

#[test]
fn close_during_a_load_follows_it() {
    for at in 0.. {
        let cache = Cache::builder("/").expect_load(true).build().unwrap();
        let mut writer = cache.writer().unwrap();
        let mut state = cache.subscribe(Start::State).open().unwrap();
        let (closing, mut steps) = (cache.clone(), 0);
        let hook = move |_: &'static str| {
            if steps == at {
                closing.close();
            }
            steps += 1;
        };
        hooked(hook, || writer.load(7, [record("/a", "1", 3, 4)])).unwrap();
        if cache.state() == State::Ready {
            return assert!(at > 1);
        }
        assert_eq!(cache.snapshot().unwrap().len(), 1);
        let batch = state.poll(64).unwrap();
        assert_eq!((batch.len(), batch.events()[0].key()), (2, &b"/a"[..]));
        assert_eq!(state.poll(64).unwrap_err().code(), Code::Closed);
        assert_eq!(writer.progress(9).unwrap_err().code(), Code::Closed);
    }
}

/// The writer stands between the halves of a reset: readers answer from the history before, at once.
#[test]
fn half_published_reset_is_invisible() {
    for stop in ["history published", "before the head"] {
        for revision in [60, 400] {
            let (cache, mut writer, _) = overrun();
            let (before, stood) = (listing(&cache), cache.position());
            let start = Start::After(cache.oldest() - 1);
            let mut overrun = cache.subscribe(start).on_lag(crate::OnLag::SkipToOldest).open().unwrap();
            let (arrived, arrives) = std::sync::mpsc::channel();
            let (goes, go) = std::sync::mpsc::channel::<()>();
            let writing = std::thread::spawn(move || {
                let hook = move |name: &'static str| {
                    if name == stop {
                        arrived.send(()).unwrap();
                        go.recv().unwrap();
                    }
                };
                let records = [record("/0", "new", 1, 50), record("/8", "new", 50, 50)];
                hooked(hook, || writer.resync(revision, records, ResyncReason::HistoryReset)).unwrap();
                writer
            });
            arrives.recv_timeout(SOON).unwrap();
            assert_eq!((listing(&cache), cache.position()), (before.clone(), stood));
            // Its room was made: that window is one of the history before.
            let oldest = cache.oldest();
            assert!((150..200).contains(&oldest), "{oldest}");
            assert_eq!(cache.status().oldest, oldest);
            for asked in [oldest - 1, 280, stood.revision] {
                assert_eq!(cache.get("/0", Read::Exact(asked)).unwrap().epoch, stood.epoch, "{stop} {asked}");
                assert_eq!(cache.count(&crate::Range::all(), Read::Exact(asked)).unwrap().revision, asked);
                assert!(cache.diff(asked, stood, &crate::Filter::any()).is_ok());
                drop(cache.subscribe(Start::After(asked)).open().unwrap());
            }
            let gone = cache.get("/0", Read::Exact(oldest - 2)).unwrap_err();
            assert_eq!((gone.code(), gone.oldest(), gone.current()), (Code::Compacted, oldest, stood.revision));
            // What it had to read has left for the reset.
            let events: Vec<_> = (0..40).map(|_| overrun.poll(64)).collect();
            assert_eq!(events[0].as_ref().unwrap_err().lost_to(), oldest - 1);
            assert!(events.iter().flatten().any(|batch| !batch.is_empty()));
            assert!(events.iter().flatten().all(|batch| batch.events().iter().all(|event| event.resync().is_none())));
            goes.send(()).unwrap();
            let mut writer = writing.join().unwrap();
            assert_eq!(cache.oldest(), revision + 1);
            assert_eq!(cache.get("/0", Read::ExactIn(stood)).unwrap_err().code(), Code::Compacted);
            writer.apply(500, [Change::put("/0", "x")]).unwrap();
        }
    }
}

/// At each step of a commit the statistics have as many events as a reader finds, no more and no less.
#[test]
fn events_are_counted_by_the_head() {
    let cache = Cache::builder("/").capacity(128).segment_slots(16).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut reader = cache.subscribe(Start::Now).open().unwrap();
    let (mut seen, mut steps) = (0, 0);
    let looking = cache.clone();
    let look = move |name: &'static str| {
        while let batch = reader.poll(1_000).unwrap()
            && !batch.is_empty()
        {
            seen += batch.len() as u64;
        }
        assert_eq!(looking.stats().events, seen, "{name}, step {steps}");
        steps += 1;
    };
    hooked(look, || {
        // Pairs leave the last slots of some segments free.
        for revision in 1..=100 {
            let keys = ["/a", "/b"];
            let count = if revision % 8 == 1 { 1 } else { 2 };
            writer.apply(revision, keys[..count].iter().map(|key| Change::put(key, "1"))).unwrap();
        }
        // Longer than the log: nothing of it stays.
        let keys: Vec<String> = (0..1000).map(|key| format!("/giant/{key}")).collect();
        writer.apply(101, keys.iter().map(|key| Change::put(key, ""))).unwrap();
        writer.resync(101, [record("/a", "2", 1, 100)], ResyncReason::Requested).unwrap();
        writer.apply(102, [Change::put("/a", "3")]).unwrap();
    });
    assert_eq!((cache.stats().events, cache.stats().revisions), (187 + 1000 + 1004 + 1, 103));
}

/// What crossbeam does for others it does in pins, and a deferral may walk all threads: the writer
/// has neither, whatever it unlinks.
#[test]
fn writer_neither_pins_nor_defers() {
    let cache = Cache::builder("/").capacity(128).segment_slots(16).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let before = WORK.get();
    let mut revision = 0;
    let mut next = || {
        revision += 1;
        revision
    };
    // New keys, their deletes, and tombstones that are purged when the window has gone round.
    for round in 0..50 {
        for key in 0..10 {
            let key = format!("/{round}/{key}");
            writer.apply(next(), [Change::put(&key, "value")]).unwrap();
            writer.apply(next(), [Change::delete(&key)]).unwrap();
        }
    }
    // Longer than the ring: another directory.
    let keys: Vec<String> = (0..1000).map(|key| format!("/giant/{key}")).collect();
    writer.apply(next(), keys.iter().map(|key| Change::put(key, ""))).unwrap();
    let revision = next();
    let record = Record { key: b"/a", value: b"", create_revision: 1, mod_revision: 1, version: 1, lease: 0 };
    writer.resync(revision, [record], ResyncReason::Requested).unwrap();
    writer.progress(revision + 1).unwrap();
    writer.compact(revision + 1).unwrap();
    assert_eq!(WORK.get(), before);
    drop(cache.get("/a", crate::Read::Any).unwrap());
    assert_ne!(WORK.get(), before, "a reader does pin");
}
