//! Nobody waits for anybody: slow filters, foreign panics, wake sets of several threads, starts in the
//! future that never come.

use crate::tools::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;
use watchcore::*;

/// A predicate that is inside of itself until it is let go.
struct Gate {
    entered: Arc<AtomicBool>,
    release: mpsc::Sender<()>,
    filter: Filter,
}

fn gate() -> Gate {
    let entered = Arc::new(AtomicBool::new(false));
    let (release, released) = mpsc::channel();
    let released = std::sync::Mutex::new(released);
    let inside = entered.clone();
    let filter = Filter::any().predicate(move |_| {
        inside.store(true, SeqCst);
        let _ = released.lock().unwrap().recv_timeout(BOUND);
        true
    });
    Gate { entered, release, filter }
}

/// The notifier evaluates a filter that does not come back, and nobody but that filter's owner notices:
/// not the feeder, not the writer, not another subscription.
#[test]
fn slow_predicate_delays_nobody_else() {
    let (cache, mut writer) = embedded();
    let Gate { entered, release, filter } = gate();
    let set = WakeSet::new().unwrap();
    let mut slow = cache.subscribe(Start::Now).filter(filter).open().unwrap();
    let mut other = cache.subscribe(Start::Now).key("/other").open().unwrap();
    set.add(&mut slow, 1).unwrap();
    set.add(&mut other, 2).unwrap();
    assert!(!slow.arm().unwrap());
    write(&mut writer, [1]);
    until("the notifier is inside the predicate", || entered.load(SeqCst));
    in_time(|| {
        assert!(!other.arm().unwrap());
        assert_eq!(writer.demand(), Demand::default());
        writer.apply(2, [Change::put("/other", "x")]).unwrap();
        assert_eq!(drain(&mut other), ["2 ADDED /other=x"]);
        assert!(cache.stats().waiting > 0 && cache.status().position.revision == 2);
        assert_eq!(cache.wait_until(2, BOUND).unwrap().revision, 2);
        drop(cache.subscribe(Start::State).key("/third").open().unwrap());
    });
    release.send(()).unwrap();
    drop(release);
    until("the slow one is listed", || set.take(&mut [0; 1]) == 1);
}

/// While a predicate does not return, others are woken: of its cache and of another one, by events, by a revision
/// and by a bookmark.
#[test]
fn blocked_predicate_delays_no_wake_up() {
    let (cache, mut writer) = embedded();
    let Gate { entered, release, filter } = gate();
    let set = WakeSet::new().unwrap();
    let mut blocked = cache.subscribe(Start::Now).filter(filter).open().unwrap();
    set.add(&mut blocked, 1).unwrap();
    assert!(!blocked.arm().unwrap());
    write(&mut writer, [1]);
    until("the predicate runs", || entered.load(SeqCst));
    let (elsewhere, mut writes) = embedded();
    let bookmarks = |cache: &Cache| cache.subscribe(Start::Now).bookmarks(true).bookmark_interval(Duration::ZERO);
    let sleepers = [
        cache.subscribe(Start::Now).key("/other").open().unwrap(),
        bookmarks(&cache).key("/none").open().unwrap(),
        elsewhere.subscribe(Start::Now).open().unwrap(),
    ];
    let waits = sleepers.map(|mut sleeper| spawn(move || assert!(sleeper.wait(BOUND).unwrap())));
    let waiting = cache.clone();
    let revision = spawn(move || waiting.wait_until(2, BOUND).unwrap());
    until("all sleep", || cache.stats().waiting + elsewhere.stats().waiting == 5);
    in_time(|| {
        writer.apply(2, [Change::put("/other", "x")]).unwrap();
        write(&mut writes, [1]);
        waits.into_iter().for_each(Task::end);
        assert_eq!(revision.end().revision, 2);
    });
    release.send(()).unwrap();
    drop(release);
    until("the blocked one is listed", || set.take(&mut [0; 1]) == 1);
}

#[test]
fn predicate_may_ask_its_cache() {
    let (cache, mut writer) = embedded();
    let asked = cache.clone();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let filter = Filter::any().predicate(move |_| {
        counted.fetch_add(1, SeqCst);
        asked.stats().waiting < 100 && asked.status().position.revision > 0
    });
    let mut one = cache.subscribe(Start::Now).filter(filter).open().unwrap();
    let waits = spawn(move || {
        assert!(one.wait(BOUND).unwrap());
        drain(&mut one)
    });
    until_asleep(&cache);
    write(&mut writer, [1]);
    assert_eq!(waits.end(), ["1 ADDED /k=1"]);
    assert!(calls.load(SeqCst) > 0);
    cache.close();
}

/// What is dropped with the last handle of a cache may be dropped by the notifier, and may panic there.
#[test]
fn panic_in_a_destructor_ends_no_wake_ups() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            // What a panic carries is dropped too.
            struct Twice;
            impl Drop for Twice {
                fn drop(&mut self) {
                    panic!("a payload's destructor");
                }
            }
            std::panic::panic_any(Twice);
        }
    }
    let (watched, mut writes) = embedded();
    let before = watched.stats().caught_panics;
    let panics = Panics;
    let cache = Cache::builder("/").decoder(move |_, _| Ok::<_, String>(size_of_val(&panics))).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let Gate { entered, release, filter } = gate();
    let set = WakeSet::new().unwrap();
    let mut one = cache.subscribe(Start::Now).filter(filter).open().unwrap();
    set.add(&mut one, 1).unwrap();
    assert!(!one.arm().unwrap());
    write(&mut writer, [1]);
    until("the notifier holds the cache", || entered.load(SeqCst));
    drop((writer, one, cache));
    release.send(()).unwrap();
    drop(release);
    until("the panic was caught", || watched.stats().caught_panics > before);
    let waits = {
        let watched = watched.clone();
        spawn(move || watched.wait_until(1, BOUND))
    };
    until_asleep(&watched);
    write(&mut writes, [1]);
    assert_eq!(waits.end().unwrap().revision, 1, "the notifier lives");
}

#[test]
fn ready_member_is_listed_once() {
    let (cache, mut writer) = embedded();
    let set = WakeSet::new().unwrap();
    let mut one = cache.subscribe(Start::Now).open().unwrap();
    let mut reached = cache.waiter(Want::Revision(1)).unwrap();
    set.add(&mut one, 1).unwrap();
    set.add_waiter(&mut reached, 2).unwrap();
    write(&mut writer, [1]);
    for _ in 0..1000 {
        assert!(one.arm().unwrap() && reached.arm().unwrap());
    }
    let mut tags = [0; 8];
    assert_eq!(set.take(&mut tags), 2);
    tags[..2].sort_unstable();
    assert_eq!(tags[..2], [1, 2]);
    assert_eq!(set.take(&mut tags), 0);
    assert!(!set.arm());
}

#[test]
fn tag_goes_with_its_member() {
    let (cache, mut writer) = embedded();
    let (set, other) = (WakeSet::new().unwrap(), WakeSet::new().unwrap());
    let open = || cache.subscribe(Start::Now).open().unwrap();
    let (mut removed, mut dropped, mut moved, mut stays) = (open(), open(), open(), open());
    let mut waiter = cache.waiter(Want::Revision(1)).unwrap();
    for (tag, member) in [(1, &mut removed), (2, &mut dropped), (3, &mut moved), (4, &mut stays)] {
        set.add(member, tag).unwrap();
        assert!(!member.arm().unwrap());
    }
    set.add_waiter(&mut waiter, 5).unwrap();
    assert!(!waiter.arm().unwrap());
    write(&mut writer, [1]);
    assert!(set.wait(BOUND));
    // Who wakes a subscription takes it off; the waiter is looked at below.
    until("all four are listed", || cache.stats().waiting == 1 && removed.lag().events == 1);
    until("the waiter was woken", || waiter.poll().unwrap().is_some());
    assert!(set.remove(&mut removed) && !set.remove(&mut removed), "it is a member once");
    assert!(!other.remove(&mut stays) && !other.remove_waiter(&mut waiter), "not of another set");
    drop(dropped);
    other.add(&mut moved, 3).unwrap();
    drop(waiter);
    let mut tags = [0; 8];
    assert_eq!(set.take(&mut tags), 1, "only the one that is a member still: {tags:?}");
    assert_eq!(tags[0], 4);
    assert!(set.remove(&mut stays) && other.remove(&mut moved));
}

/// Who is taken out of a set that it is not in sleeps on in its own.
#[test]
fn removal_from_another_set_ends_no_sleep() {
    let (cache, mut writer) = embedded();
    let (set, other) = (WakeSet::new().unwrap(), WakeSet::new().unwrap());
    let mut subscription = cache.subscribe(Start::Now).open().unwrap();
    let mut waiter = cache.waiter(Want::Revision(1)).unwrap();
    set.add(&mut subscription, 1).unwrap();
    set.add_waiter(&mut waiter, 2).unwrap();
    assert!(!subscription.arm().unwrap() && !waiter.arm().unwrap());
    assert!(!other.remove(&mut subscription) && !other.remove_waiter(&mut waiter));
    write(&mut writer, [1]);
    let (mut tags, mut taken) = ([0; 4], 0);
    while taken < 2 {
        assert!(set.wait(BOUND), "{taken} of two are listed");
        taken += set.take(&mut tags[taken..]);
    }
    tags[..2].sort_unstable();
    assert_eq!((tags, set.take(&mut [0; 4])), ([1, 2, 0, 0], 0));
}

/// Members of a set that is gone are in none; they wait without it as before.
#[test]
fn members_of_dropped_set_are_in_none() {
    let (cache, mut writer) = embedded();
    let set = WakeSet::new().unwrap();
    let mut subscription = cache.subscribe(Start::Now).open().unwrap();
    let mut waiter = cache.waiter(Want::Revision(1)).unwrap();
    set.add(&mut subscription, 1).unwrap();
    set.add_waiter(&mut waiter, 2).unwrap();
    assert!(!subscription.arm().unwrap() && !waiter.arm().unwrap());
    drop(set);
    assert_eq!(subscription.arm().unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(waiter.arm().unwrap_err().code(), Code::InvalidArgument);
    write(&mut writer, [1]);
    assert!(subscription.wait(BOUND).unwrap());
}

/// Two threads sleep on one set; every tag reaches one of them, whichever arms meanwhile.
#[test]
fn wake_set_of_two_threads_loses_nothing() {
    const EACH: u64 = 500;
    let (cache, mut writer) = embedded();
    let set = WakeSet::new().unwrap();
    let mut members: Vec<_> = (0..4)
        .map(|tag| {
            let mut one = cache.subscribe(Start::Now).key(format!("/{tag}")).open().unwrap();
            set.add(&mut one, tag).unwrap();
            one
        })
        .collect();
    members.iter_mut().for_each(|one| assert!(!one.arm().unwrap()));
    let members: Arc<Vec<_>> = Arc::new(members.into_iter().map(std::sync::Mutex::new).collect());
    let (seen, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let start = Arc::new(Barrier::new(3));
    let serve = || {
        let (set, members, seen, done, start) =
            (set.clone(), members.clone(), seen.clone(), done.clone(), start.clone());
        spawn(move || {
            start.wait();
            while !done.load(SeqCst) {
                assert!(set.wait(BOUND), "a wake-up was lost after {} events", seen.load(SeqCst));
                let mut tag = [0; 1];
                if set.take(&mut tag) == 1 {
                    let mut one = members[tag[0] as usize].lock().unwrap();
                    seen.fetch_add(drain(&mut one).len(), SeqCst);
                    one.arm().unwrap();
                }
            }
        })
    };
    let servers = [serve(), serve()];
    start.wait();
    for revision in 1..=EACH {
        let key = format!("/{}", revision % 4);
        writer.apply(revision, [Change::put(&key, "x")]).unwrap();
        if revision % 50 == 0 {
            until("all of it was seen", || seen.load(SeqCst) as u64 == revision);
        }
    }
    done.store(true, SeqCst);
    // Both are let go: each takes a tag of a closed subscription.
    for server in servers {
        cache.close();
        server.end();
    }
}

/// A start in the future with bookmarks sleeps, also when a resync below it moves the position.
#[test]
fn future_start_with_bookmarks_sleeps_through_a_resync() {
    let (cache, mut writer) = unloaded();
    let source = Arc::new(Counting::default());
    writer.attach(source.clone()).unwrap();
    writer.load(5, []).unwrap();
    let start = || cache.subscribe(Start::After(100)).bookmarks(true).bookmark_interval(Duration::ZERO).open().unwrap();
    let (mut future, mut second) = (start(), start());
    writer.serve_consistent(writer.demand().consistent, 100);
    let waits = spawn(move || {
        assert!(future.wait(BOUND).unwrap());
        drain(&mut future)
    });
    until_asleep(&cache);
    writer.resync(20, [record("/k", "20", 5, 15, 2)], ResyncReason::Requested).unwrap();
    for revision in 21..=60 {
        write(&mut writer, [revision]);
    }
    until_asleep(&cache);
    // It asks the source each time that it has gone to sleep.
    assert!(source.0.load(SeqCst) < 60, "it woke {} times for nothing", source.0.load(SeqCst));
    // A wait that takes itself for over, and is not, would look again and again, and never sleep.
    assert!(!in_time(|| second.wait(Duration::ZERO)).unwrap());
    write(&mut writer, [101]);
    assert!(waits.end().contains(&"101 MODIFIED /k=101".to_string()));
}

/// While its source is away, a start in the future sleeps: nobody wakes it to look again.
#[test]
fn future_start_sleeps_while_its_source_is_away() {
    let (cache, mut writer) = unloaded();
    let source = Arc::new(Counting::default());
    writer.attach(source.clone()).unwrap();
    writer.load(5, []).unwrap();
    let mut future = cache.subscribe(Start::After(100)).open().unwrap();
    let asked = source.0.load(SeqCst);
    assert!(!future.wait(Duration::from_millis(200)).unwrap());
    let times = source.0.load(SeqCst) - asked;
    assert!(times <= 2, "it went to sleep {times} times");
    assert_eq!(writer.demand().progress_until, 100, "it waits still");
    drop(future);
    until("nobody waits for it", || writer.demand().progress_until == 0);
}

/// What is wanted is one number, right while somebody sleeps and gone when nobody does.
#[test]
fn demand_follows_those_who_sleep() {
    let (cache, mut writer) = unloaded();
    writer.attach(Arc::new(Counting::default())).unwrap();
    writer.load(5, []).unwrap();
    let set = WakeSet::new().unwrap();
    let mut waiters: Vec<_> = [30, 10, 20].map(|revision| cache.waiter(Want::Revision(revision)).unwrap()).into();
    for waiter in &mut waiters {
        set.add_waiter(waiter, 1).unwrap();
        assert!(!waiter.arm().unwrap());
    }
    assert_eq!(writer.demand().progress_until, 30);
    drop(waiters.remove(0));
    until("the highest has left", || writer.demand().progress_until == 20);
    writer.progress(20).unwrap();
    assert_eq!(writer.demand().progress_until, 0, "it is there");
    until("both are woken", || cache.stats().waiting == 2 && set.arm());
}

/// A reader that waits for a revision, gives up and comes again leaves nothing in the tables.
#[test]
fn waiters_that_come_and_go_are_forgotten() {
    let kept = Arc::new(());
    let (cache, _writer) = embedded();
    for _ in 0..5_000 {
        let held = kept.clone();
        let filter = Filter::any().predicate(move |_| Arc::strong_count(&held) > 0);
        let mut one = cache.subscribe(Start::Now).filter(filter).open().unwrap();
        let set = WakeSet::new().unwrap();
        set.add(&mut one, 1).unwrap();
        assert!(!one.arm().unwrap());
    }
    // Nobody publishes, and yet the notifier has read what they left.
    until("most filters are gone", || Arc::strong_count(&kept) < 1_000);
}

/// Positions that programs save: of one epoch of this birth, and never back.
#[test]
fn closer_position_is_whole_across_resyncs() {
    let (cache, mut writer) = embedded();
    let birth = cache.position().epoch >> 32;
    let mut one = cache.subscribe(Start::Now).open().unwrap();
    let closer = one.closer();
    let done = Arc::new(AtomicBool::new(false));
    let reads = {
        let done = done.clone();
        spawn(move || {
            let mut last = Position::default();
            while !done.load(SeqCst) {
                let now = closer.position();
                assert_eq!(now.epoch >> 32, birth, "an epoch of another birth: {now:?}");
                assert!(now >= last, "it went back from {last:?} to {now:?}");
                last = now;
            }
        })
    };
    for revision in 1..=5_000u64 {
        writer.resync(revision, [record("/k", "x", 1, 1, 1)], ResyncReason::Requested).unwrap();
        while !one.poll(64).unwrap().is_empty() {}
    }
    done.store(true, SeqCst);
    reads.end();
}

/// A task whose waker panics, with a payload that panics, is nobody else's business.
#[cfg(feature = "async")]
#[test]
fn waker_that_panics_ends_nobody_elses_wait() {
    use futures_core::Stream as _;
    use std::task::{Context, Wake};
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker");
        }
    }
    let (cache, mut writer) = embedded();
    let mut polled = cache.subscribe(Start::Now).open().unwrap();
    let mut other = cache.subscribe(Start::Now).open().unwrap();
    let waker = Arc::new(Panics).into();
    assert!(std::pin::Pin::new(&mut polled).poll_next(&mut Context::from_waker(&waker)).is_pending());
    let waits = spawn(move || other.wait(BOUND));
    until("both sleep", || cache.stats().waiting == 2);
    write(&mut writer, [1]);
    assert!(waits.end().unwrap());
}
