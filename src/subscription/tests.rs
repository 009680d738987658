//! Things that a consumer's thread must not do.

use crate::reclaim::is_pinned;
use crate::sync::{Relaxed, hooked, often};
use crate::sys::clock::TestTime;
use crate::{
    Cache, Change, Code, Filter, Index, Kind, OnLag, Range, Read, ReadOptions, ReadPath, Start, Subscription,
    SubscriptionState, WakeSet,
};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A pin stops the freeing of the whole process: users' code never runs under one.
#[test]
fn predicates_run_under_no_pin() {
    let cache = Cache::builder("/").segment_slots(16).capacity(128).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut revision = 0;
    let mut write = |count: u64| {
        for _ in 0..count {
            revision += 1;
            writer.apply(revision, [Change::put(&format!("/{}", revision % 40), &revision.to_string())]).unwrap();
        }
        revision
    };
    let written = write(100);
    let filter = Filter::any().predicate(|kv| {
        assert!(!is_pinned(), "a predicate under a pin");
        kv.mod_revision() % 3 != 0
    });
    let options = || ReadOptions::new(Read::Any).filter(filter.clone());
    let listed = cache.list_with(&Range::all(), &options()).unwrap();
    assert!(listed.len() > 20);
    assert_eq!(cache.list_with(&Range::all(), &options().limit(5)).unwrap().len(), 5);
    assert_eq!(cache.count_with(&Range::all(), &options()).unwrap().count, listed.len() as u64);
    cache.get_with("/7", &options()).unwrap();
    assert!(!cache.diff(written - 50, written, &filter).unwrap().is_empty());
    let snapshot = cache.snapshot().unwrap();
    assert_eq!(snapshot.filtered(&filter).unwrap().count(), listed.len());
    for policy in [OnLag::Resnapshot, OnLag::Conflate, OnLag::SkipToOldest] {
        let starts = [|newest| Start::After(newest - 10), |_| Start::Now, |_| Start::State];
        for start in starts.into_iter().take(often(3)) {
            let start = start(write(20));
            let mut follower = cache.subscribe(start).filter(filter.clone()).on_lag(policy).open().unwrap();
            while follower.poll(7).is_ok_and(|batch| !batch.is_empty()) {}
            write(30);
            while follower.poll(7).is_ok_and(|batch| !batch.is_empty()) {}
            write(300);
            for _ in 0..200 {
                // Its policy reports LAGGED, then brings it back, in batches of what was asked at most.
                assert!(follower.poll(7).map_or(0, |batch| batch.len()) <= 7);
            }
            assert!(follower.stats().lagged > 0 && follower.poll(7).unwrap().is_empty());
            if policy != OnLag::SkipToOldest {
                assert!(follower.stats().delivered_keys > 0);
            }
        }
    }
}

/// Events of a poll that a predicate's panic stops were not delivered: they come again.
#[test]
fn panicking_poll_leaves_the_cursor() {
    let cache = Cache::builder("/").segment_slots(16).capacity(128).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let panics = Arc::new(AtomicBool::new(false));
    let armed = panics.clone();
    let filter = Filter::any().predicate(move |kv| {
        assert!(kv.mod_revision() != 25 || !armed.load(Relaxed), "as asked");
        true
    });
    for policy in [OnLag::Stop, OnLag::Resnapshot] {
        let mut one = cache.subscribe(Start::After(0)).filter(filter.clone()).on_lag(policy).open().unwrap();
        for revision in cache.position().revision + 1..=40 {
            writer.apply(revision, [Change::put(&format!("/{revision}"), "1")]).unwrap();
        }
        assert_eq!(one.poll(10).unwrap().len(), 10);
        panics.store(true, Relaxed);
        for _ in 0..2 {
            catch_unwind(AssertUnwindSafe(|| one.poll(100))).unwrap_err();
            assert_eq!((one.position().revision, one.lag().events), (10, 30));
        }
        panics.store(false, Relaxed);
        assert_eq!(one.poll(100).unwrap().events().first().unwrap().revision(), 11);
        assert_eq!(one.poll(100).unwrap().len(), 0);
        assert_eq!(one.stats().delivered_keys, if policy == OnLag::Stop { 0 } else { 40 });
    }
}

/// A caller that has seen the cache at a revision, and then polls without an event, finds its position there.
#[test]
fn empty_poll_stands_where_the_cache_was_seen() {
    let cache = Cache::builder("/").index(Index::key()).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let open = |filter| cache.subscribe(Start::State).filter(filter).open().unwrap();
    let mut readers = [open(Filter::any().prefix("/idle/")), open(Filter::any().key("/idle"))];
    for revision in 1..=8 {
        writer.apply(revision, [Change::put("/busy", "x")]).unwrap();
        for reader in &mut readers {
            while !reader.poll(64).unwrap().is_empty() {}
        }
    }
    assert!(matches!(readers[1].stats().read_path, ReadPath::Chain { .. }));
    let seen = Arc::new(AtomicBool::new(false));
    let (watched, saw) = (cache.clone(), seen.clone());
    let look = move |step| {
        if step == "head published" {
            assert_eq!(watched.position().revision, 9);
            for reader in &mut readers {
                assert!(reader.poll(64).unwrap().is_empty());
                assert_eq!(reader.position(), watched.position());
            }
            saw.store(true, Relaxed);
        }
    };
    hooked(look, || writer.apply(9, [Change::put("/busy", "y")])).unwrap();
    assert!(seen.load(Relaxed));
}

/// The position of a sleeper that the notifier has moved over events of others reaches the cache's, too.
#[test]
fn sleeper_stands_where_the_cache_was_seen() {
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut idle = cache.subscribe(Start::State).filter(Filter::any().prefix("/idle/")).open().unwrap();
    let set = WakeSet::new().unwrap();
    set.add(&mut idle, 1).unwrap();
    writer.apply(1, [Change::put("/busy", "x")]).unwrap();
    while !idle.poll(64).unwrap().is_empty() {}
    let idle = Arc::new(Mutex::new(idle));
    let looked = Arc::new(AtomicU64::new(0));
    // Each time it looks at one event: the notifier has not come by yet, and the next revision tries again.
    for revision in 2..2_000 {
        assert!(!idle.lock().unwrap().arm().unwrap());
        let (watched, one, looks) = (cache.clone(), idle.clone(), looked.clone());
        let look = move |step| {
            if step == "head published" {
                watched.inner.hubs.notify(&watched.inner);
                (0..revision % 50).for_each(|_| std::thread::yield_now());
                let mut one = one.lock().unwrap();
                assert!(one.poll(64).unwrap().is_empty());
                assert_eq!(one.position(), watched.position());
                looks.store(one.stats().looked_at, Relaxed);
            }
        };
        hooked(look, || writer.apply(revision, [Change::put("/busy", "y")])).unwrap();
        if looked.load(Relaxed) + 20 < revision {
            return;
        }
    }
    panic!("the notifier never came by");
}

/// A single event of a bucket since the last poll is a view of the log, several are gathered: both deliver the same.
#[test]
fn one_event_of_a_chain_is_handed_out_as_several_are() {
    let cache = Cache::builder("/").index(Index::key()).segment_slots(16).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut readers = [false, true].map(|raw| cache.subscribe(Start::Now).key("/a").raw_types(raw).open().unwrap());
    // The answer to their requests, and the first poll, which finds it.
    writer.apply(1, [Change::put("/other", "x")]).unwrap();
    readers.iter_mut().for_each(|one| assert!(one.poll(10).unwrap().is_empty()));
    let changes: [&[(&str, &str)]; 4] = [
        &[("/a", "1")],
        &[("/b", "1"), ("/a", "2"), ("/c", "1")],
        &[("/b", "2"), ("/c", "2")],
        &[("/a", "3"), ("/b", "3")],
    ];
    let before = readers.each_ref().map(|one| one.stats());
    for (revision, changes) in (2..).zip(changes) {
        writer.apply(revision, changes.iter().map(|(key, value)| Change::put(*key, *value))).unwrap();
        let own = changes.iter().filter(|(key, _)| *key == "/a").count();
        for (one, is_raw) in readers.iter_mut().zip([false, true]) {
            let batch = one.poll(10).unwrap();
            assert_eq!((batch.len(), batch.continues(), batch.position()), (own, false, cache.position()));
            for event in &batch {
                let first = event.kv().unwrap().version() == 1;
                let kind = if is_raw {
                    Kind::Put
                } else if first {
                    Kind::Added
                } else {
                    Kind::Modified
                };
                assert_eq!((event.key(), event.kind(), event.revision()), (&b"/a"[..], kind, revision));
            }
            assert!(one.poll(10).unwrap().is_empty());
        }
    }
    for (one, before) in readers.iter().zip(before) {
        let now = one.stats();
        assert!(matches!(now.read_path, ReadPath::Chain { .. }));
        let counted =
            [now.looked_at - before.looked_at, now.skipped - before.skipped, now.handed_out - before.handed_out];
        assert_eq!(counted, [3, 5, 3], "of eight events");
    }
}

/// An event of a foreign key comes between a poll and the sleep behind it, and nothing after it: the notifier, which was
/// called for the bookmark's time in that moment, looks all the same.
#[test]
fn bookmark_beside_an_event_is_delivered() {
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    let interval = Duration::from_millis(10);
    let mut one = cache.subscribe(Start::Now).key("/a").bookmarks(true).bookmark_interval(interval).open().unwrap();
    let (done, is_done) = channel();
    std::thread::spawn(move || {
        let mut is_published = false;
        let publish = move |name: &str| {
            if name == "parks" && !std::mem::replace(&mut is_published, true) {
                writer.apply(1, [Change::put("/b", "1")]).unwrap();
            }
        };
        let batch = hooked(publish, || one.next_batch()).unwrap().unwrap();
        done.send((&batch).into_iter().map(|event| (event.kind(), event.revision())).collect::<Vec<_>>()).unwrap();
    });
    assert_eq!(is_done.recv_timeout(Duration::from_secs(60)), Ok(vec![(Kind::Bookmark, 1)]));
}

const HOUR: Duration = Duration::from_secs(3600);
/// A wait that takes this long has failed.
const BOUND: Duration = Duration::from_secs(60);
const MINUTES: Duration = Duration::from_secs(600);

/// Each poll takes all that there is: none of them ends behind, also where none finds nothing.
#[test]
fn who_takes_everything_is_not_behind() {
    let time = TestTime;
    let cache = Cache::builder("/").index(Index::key()).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let filters =
        [Filter::any(), Filter::any().prefix("/a"), Filter::any().key("/a"), Filter::any().predicate(|_| true)];
    let open = |filter: &Filter, limit| cache.subscribe(Start::Now).filter(filter.clone()).max_lag_age(limit).open();
    for limit in [HOUR, Duration::ZERO] {
        let mut all = filters.each_ref().map(|filter| open(filter, limit).unwrap());
        let newest = cache.position().revision;
        for turn in 1..=60 {
            writer.apply(newest + turn, [Change::put("/a", "1")]).unwrap();
            // First so many that the times of few are recorded.
            if turn > 40 {
                time.pass(MINUTES);
            }
            for one in &mut all {
                assert!(one.lag().age < 2 * MINUTES || limit.is_zero() && turn < 60, "{turn}: {:?}", one.lag());
                assert_eq!(one.poll(10).unwrap().len(), 1, "of turn {turn}");
            }
        }
    }
}

/// A page is all that there is, as long as nothing is published: the state may take hours.
#[test]
fn initial_state_is_not_behind() {
    let time = TestTime;
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, ["/a", "/b", "/c"].map(|key| Change::put(key, "1"))).unwrap();
    let mut one = cache.subscribe(Start::State).max_lag_age(HOUR).open().unwrap();
    for _ in 0..3 {
        time.pass(HOUR);
        assert_eq!(one.poll(1).unwrap().len(), 1);
    }
    writer.apply(2, [Change::put("/a", "2")]).unwrap();
    time.pass(MINUTES);
    assert_eq!(one.poll(10).unwrap().len(), 1, "the mark");
    assert_eq!(one.poll(10).unwrap().len(), 1);
}

/// A wait for a start is no lag, however long it takes.
#[test]
fn wait_for_a_start_is_not_behind() {
    let time = TestTime;
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    let starts = [Start::After(3), Start::StateAtLeast(3)];
    let open = |start| cache.subscribe(start).max_lag_age(HOUR).start_timeout(Duration::MAX).open().unwrap();
    let mut all = starts.map(open);
    for revision in 1..=8 {
        writer.apply(revision, [Change::put("/a", "1")]).unwrap();
        time.pass(MINUTES);
        for one in &mut all {
            one.poll(10).unwrap_or_else(|error| panic!("at {revision}: {error}"));
            assert!(one.shared.last_poll().is_some_and(|age| age < MINUTES), "a wait is polled, too");
        }
        time.pass(if revision < 3 { HOUR } else { Duration::ZERO });
    }
    // The state is a key and the mark.
    assert_eq!(all.map(|one| one.stats().handed_out), [5, 2 + 5]);
}

/// An event after hours without one does not count as hours of lag, because limits are checked four times a second.
#[test]
fn idle_poller_is_not_behind() {
    let time = TestTime;
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut one = cache.subscribe(Start::Now).max_lag_age(HOUR).open().unwrap();
    time.pass(2 * HOUR);
    // The notifier's check.
    assert!(one.shared.enforce_lag_limit());
    writer.apply(1, [Change::put("/a", "1")]).unwrap();
    time.pass(MINUTES);
    assert!(one.shared.enforce_lag_limit());
    assert_eq!(one.poll(10).unwrap().len(), 1);
    // And it is behind from then on.
    writer.apply(2, [Change::put("/a", "1")]).unwrap();
    time.pass(HOUR + MINUTES);
    let error = one.poll(10).unwrap_err();
    assert_eq!((error.code(), error.lost_from()), (Code::Lagged, 2), "{error}");
}

/// A subscription that was closed for its lag before it began: no wait ends it otherwise, or takes its error.
#[test]
fn wait_leaves_the_lag_to_the_poll() {
    type Look = fn(&mut Subscription) -> bool;
    let waits: [Look; 4] = [
        |one| one.wait(BOUND).unwrap(),
        |one| matches!(pin!(one.wait_async(BOUND)).poll(&mut noop()), Poll::Ready(Ok(true))),
        |one| {
            let set = WakeSet::new().unwrap();
            set.add(one, 1).unwrap();
            one.arm().unwrap()
        },
        |_| true,
    ];
    for start in [Start::Now, Start::State, Start::After(10), Start::After(0)] {
        for (listed, wait) in [true, false].into_iter().flat_map(|listed| waits.map(|wait| (listed, wait))) {
            let cache = Cache::builder("/").expect_load(true).build().unwrap();
            let mut writer = cache.writer().unwrap();
            let mut load = || writer.load(0, []).unwrap();
            if listed {
                load();
            }
            let mut one = cache.subscribe(start).max_lag_events(3).open().unwrap();
            if !listed {
                load();
            }
            (1..=20).for_each(|revision| writer.apply(revision, [Change::put("/a", "1")]).unwrap());
            // The notifier's check, if it has not run yet.
            one.shared.enforce_lag_limit();
            assert_eq!(cache.subscriptions()[0].state, SubscriptionState::TooSlow);
            for _ in 0..2 {
                assert!(wait(&mut one), "{start:?} {listed}");
            }
            assert_eq!(one.poll(10).unwrap_err().code(), Code::Lagged, "{start:?} {listed}");
            assert_eq!(one.poll(10).unwrap_err().code(), Code::Closed);
            assert_eq!(one.wait(BOUND).unwrap_err().code(), Code::Closed);
        }
    }
}

/// A subscription that its owner closes first ends with CLOSED, though it is found too slow meanwhile.
#[test]
fn closed_by_its_owner_is_not_too_slow() {
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    // The test's clock moves for this thread alone, not for the notifier.
    let time = TestTime;
    let mut one = cache.subscribe(Start::Now).max_lag_age(HOUR).open().unwrap();
    (1..=4).for_each(|revision| writer.apply(revision, [Change::put("/a", "1")]).unwrap());
    let (watched, closer) = (one.shared.clone(), one.closer());
    time.pass(2 * HOUR);
    hooked(
        move |step| {
            if step == "found too slow" {
                closer.close();
            }
        },
        || assert!(!watched.enforce_lag_limit()),
    );
    assert_eq!(one.poll(10).unwrap().len(), 4);
    assert_eq!(one.poll(10).unwrap_err().code(), Code::Closed);
}

fn noop() -> Context<'static> {
    Context::from_waker(std::task::Waker::noop())
}

#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < BOUND, "{what}");
        std::thread::yield_now();
    }
}

/// A sleeper is woken only for events of its own, and an ended subscription is not polled any more. A feeder that
/// waited for either would wait for ever.
#[test]
fn pace_waits_for_nobody_who_sleeps_or_has_ended() {
    let filters =
        [Filter::any().prefix("/b"), Filter::any().key("/b"), Filter::any().predicate(|kv| kv.key() == b"/b")];
    for (filter, sleeps) in filters.into_iter().map(|filter| (filter, true)).chain([(Filter::any(), false)]) {
        let cache = Cache::builder("/").capacity(128).segment_slots(16).index(Index::key()).build().unwrap();
        let mut writer = cache.writer().unwrap();
        let mut one = cache.subscribe(Start::Now).filter(filter).open().unwrap();
        let (pace, set) = (one.closer(), WakeSet::new().unwrap());
        let mut revision = 0;
        let mut put = |key| {
            revision += 1;
            writer.apply(revision, [Change::put(key, "1")]).unwrap();
        };
        if sleeps {
            put("/b");
            while !one.poll(10).unwrap().is_empty() {}
            set.add(&mut one, 1).unwrap();
            assert!(!one.arm().unwrap());
        } else {
            (0..500).for_each(|_| put("/a"));
            assert!(!pace.is_near(), "until its consumer has seen that it was lost");
            assert_eq!(one.poll(10).unwrap_err().code(), Code::Lagged);
        }
        for _ in 0..300 {
            until("nobody ever lets it go on", || pace.is_near());
            put("/a");
        }
        if sleeps {
            put("/b");
            until("it is woken", || set.take(&mut [0]) == 1);
            assert_eq!(one.poll(10).unwrap().len(), 1);
        }
    }
}

/// A sleeper counts as having the events that the notifier has looked at, and no more: a feeder does not run ahead of that.
#[test]
fn pace_waits_for_the_notifier() {
    let cache = Cache::builder("/").capacity(128).segment_slots(16).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let gate = Arc::new(Mutex::new(()));
    let (closed, gate) = (gate.lock().unwrap(), gate.clone());
    let passes = move |kv: &crate::KeyValue| {
        drop(gate.lock());
        kv.key() == b"/b"
    };
    let mut one = cache.subscribe(Start::Now).filter(Filter::any().predicate(passes)).open().unwrap();
    let (pace, set) = (one.closer(), WakeSet::new().unwrap());
    set.add(&mut one, 1).unwrap();
    assert!(!one.arm().unwrap());
    for revision in 1..=64 {
        assert!(pace.is_near(), "at {revision}, half a window");
        writer.apply(revision, [Change::put(if revision == 1 { "/b" } else { "/a" }, "1")]).unwrap();
    }
    (0..100).for_each(|_| assert!(!pace.is_near(), "the notifier has not come by"));
    drop(closed);
    until("it is woken", || set.take(&mut [0]) == 1);
    assert!(!pace.is_near(), "it has not taken it");
    assert_eq!(one.poll(10).unwrap().len(), 1);
    until("it goes on", || pace.is_near());
}
