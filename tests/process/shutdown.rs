//! The end of the process's threads, and what may come after it.

use crate::alone;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use watchcore::{Cache, Change, Code, Filter, Read, Start, Subscription, WakeSet, shutdown};

const BOUND: Duration = Duration::from_secs(30);

/// The library's threads, by name.
#[cfg(target_os = "linux")]
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("comm"));
    let names = tasks.filter_map(|comm| std::fs::read_to_string(comm).ok()).map(|name| name.trim().to_owned());
    names.filter(|name| name.starts_with("watchcore-")).collect()
}

#[cfg(not(target_os = "linux"))]
fn threads() -> Vec<String> {
    Vec::new()
}

/// How many events come next.
fn next(subscription: &mut Subscription) -> usize {
    assert!(subscription.wait(BOUND).unwrap());
    subscription.poll(8).unwrap().len()
}

/// A cache that has used all of the process's threads.
fn used() -> Cache {
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut own = cache.subscribe(Start::Now).key("/a").open().unwrap();
    let mut foreign = cache.subscribe(Start::Now).filter(Filter::any().predicate(|_| true)).open().unwrap();
    writer.apply(1, [Change::put("/a", "1")]).unwrap();
    for subscription in [&mut own, &mut foreign] {
        assert_eq!(next(subscription), 1);
    }
    cache
}

#[test]
fn it_ends_all_threads_and_they_start_again() {
    let _alone = alone();
    for _ in 0..3 {
        let cache = used();
        let snapshot = cache.snapshot().unwrap();
        let error = shutdown(Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.code(), Code::Timeout, "{error}");
        assert!(error.to_string().contains("caches in use: 1"), "{error}");
        // Nothing has ended.
        cache.writer().unwrap().apply(2, [Change::put("/b", "2")]).unwrap();
        let mut sleeper = cache.subscribe(Start::After(1)).open().unwrap();
        assert_eq!(next(&mut sleeper), 1);
        drop((sleeper, cache));
        assert_eq!(shutdown(Duration::ZERO).unwrap_err().code(), Code::Timeout, "the snapshot keeps the cache");
        drop(snapshot);
        shutdown(BOUND).unwrap();
        assert_eq!(threads(), [""; 0]);
        assert_eq!(watchcore::raw::living_caches(), 0);
        shutdown(Duration::ZERO).unwrap();
    }
}

/// The notifier has far more to look at than one pass does when the last handle goes, or when the cache is closed before.
#[test]
fn it_ends_beside_a_notifier_that_is_behind() {
    let _alone = alone();
    for closes in [false, true] {
        let cache = Cache::builder("/").build().unwrap();
        let mut writer = cache.writer().unwrap();
        let set = WakeSet::new().unwrap();
        let mut sleepers: Vec<_> =
            (0..3000).map(|number| cache.subscribe(Start::Now).key(format!("/{number}")).open().unwrap()).collect();
        for (tag, one) in (0..).zip(&mut sleepers) {
            set.add(one, tag).unwrap();
            assert!(!one.arm().unwrap());
        }
        for revision in 1..2000 {
            writer.apply(revision, [Change::put("/x", "")]).unwrap();
        }
        if closes {
            cache.close();
            let (mut tags, mut woken) = ([0; 64], 0);
            while woken < sleepers.len() {
                assert!(set.wait(BOUND), "{woken} are woken");
                woken += set.take(&mut tags);
            }
        }
        drop((sleepers, writer, cache));
        shutdown(BOUND).unwrap();
        assert_eq!(threads(), [""; 0]);
        assert_eq!(watchcore::raw::living_caches(), 0);
    }
}

/// Its bookmark would come in an hour.
#[test]
fn a_timer_does_not_delay_it() {
    let _alone = alone();
    let cache = used();
    let mut sleeper =
        cache.subscribe(Start::Now).bookmarks(true).bookmark_interval(Duration::from_secs(3600)).open().unwrap();
    cache.writer().unwrap().apply(2, [Change::put("/b", "2")]).unwrap();
    assert_eq!(next(&mut sleeper), 1);
    assert!(!sleeper.wait(Duration::from_millis(5)).unwrap());
    drop((sleeper, cache));
    shutdown(BOUND).unwrap();
}

#[test]
fn a_predicate_that_does_not_return_is_a_timeout() {
    let _alone = alone();
    let (held, entered) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let (gate, inside) = (held.clone(), entered.clone());
    let predicate = move |_: &watchcore::KeyValue| {
        inside.store(true, SeqCst);
        while gate.load(SeqCst) {
            std::thread::yield_now();
        }
        false
    };
    let cache = Cache::builder("/").build().unwrap();
    let mut subscription = cache.subscribe(Start::Now).filter(Filter::any().predicate(predicate)).open().unwrap();
    let (set, mut writer) = (watchcore::WakeSet::new().unwrap(), cache.writer().unwrap());
    set.add(&mut subscription, 1).unwrap();
    assert!(!subscription.arm().unwrap());
    writer.apply(1, [Change::put("/a", "1")]).unwrap();
    let until = Instant::now() + BOUND;
    while !entered.load(SeqCst) {
        assert!(Instant::now() < until, "the predicate is called");
        std::thread::yield_now();
    }
    drop((subscription, writer, cache));
    let error = shutdown(Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.code(), Code::Timeout, "{error}");
    held.store(false, SeqCst);
    shutdown(BOUND).unwrap();
    assert_eq!(threads(), [""; 0]);
}

#[test]
fn on_a_thread_of_the_library_it_is_busy() {
    let _alone = alone();
    let cache = Cache::builder("/").build().unwrap();
    let (answer, answered) = std::sync::mpsc::channel();
    let answer = std::sync::Mutex::new(answer);
    let asks = move |_: &watchcore::KeyValue| {
        if std::thread::current().name() == Some("watchcore-pred") {
            answer.lock().unwrap().send(shutdown(Duration::ZERO).map_err(|error| error.code())).unwrap();
        }
        true
    };
    let mut subscription = cache.subscribe(Start::Now).filter(Filter::any().predicate(asks)).open().unwrap();
    let set = watchcore::WakeSet::new().unwrap();
    set.add(&mut subscription, 1).unwrap();
    assert!(!subscription.arm().unwrap());
    cache.writer().unwrap().apply(1, [Change::put("/a", "1")]).unwrap();
    assert_eq!(answered.recv_timeout(BOUND).unwrap(), Err(Code::Busy));
    drop((subscription, cache));
    shutdown(BOUND).unwrap();
}

struct Counted(Arc<AtomicUsize>);
impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// What is memory alone may stay, and is freed where it is released.
#[test]
fn what_is_kept_is_freed_later() {
    let _alone = alone();
    let drops = Arc::new(AtomicUsize::new(0));
    let made = drops.clone();
    let cache = Cache::builder("/").decoder(move |_, _| Ok::<_, String>(Counted(made.clone()))).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut subscription = cache.subscribe(Start::Now).open().unwrap();
    writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "2")]).unwrap();
    let batch = subscription.poll(8).unwrap();
    let kept = cache.get("/b", Read::Any).unwrap().kv.unwrap();
    for kv in [&kept, batch.events()[0].kv().unwrap()] {
        kv.decoded::<Counted>().unwrap().unwrap();
    }
    drop((subscription, writer, cache));
    shutdown(BOUND).unwrap();
    assert_eq!((kept.value(), drops.load(SeqCst)), (Some(&b"2"[..]), 0));
    drop(batch);
    assert_eq!(drops.load(SeqCst), 1, "/a goes with the batch, and no thread is there");
    drop(kept);
    assert_eq!((drops.load(SeqCst), threads()), (2, Vec::new()));
    // A thread of which nothing of the library is left.
    drop(used());
    shutdown(BOUND).unwrap();
}

/// Whoever builds a cache has its threads, whatever a shutdown does beside it.
#[test]
fn caches_come_and_go_beside_it() {
    let _alone = alone();
    let (done, ended) = (AtomicBool::new(false), AtomicUsize::new(0));
    let uses = || {
        for round in 0..200 {
            drop(used());
            let (before, until) = (ended.load(SeqCst), Instant::now() + BOUND);
            while round % 8 == 0 && ended.load(SeqCst) == before && !done.load(SeqCst) {
                assert!(Instant::now() < until, "without a cache it comes to its end");
                std::thread::yield_now();
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(SeqCst) {
                match shutdown(Duration::from_millis(2)) {
                    Ok(()) => _ = ended.fetch_add(1, SeqCst),
                    Err(error) => assert_eq!(error.code(), Code::Timeout, "{error}"),
                }
            }
        });
        let users: Vec<_> = (0..2).map(|_| scope.spawn(uses)).collect();
        let used: Vec<_> = users.into_iter().map(|user| user.join()).collect();
        done.store(true, SeqCst);
        used.into_iter().for_each(|user| user.unwrap());
    });
    assert!(ended.load(SeqCst) >= 25);
    shutdown(BOUND).unwrap();
    assert_eq!(threads(), [""; 0]);
}
