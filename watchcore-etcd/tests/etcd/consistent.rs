//! Consistent reads on a real etcd: they are consistent, and many of them cost few calls.

use crate::support::etcd::{Ctl, Etcd};
use crate::support::history::assert_same;
use crate::support::proxy::Proxy;
use crate::support::{BOUND, wait_for};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use watchcore::{Cache, Code, State, Waiter, WakeSet, Want};
use watchcore_etcd::Feeder;

/// The number of concurrent readers.
const MANY: usize = 1000;

/// A cache whose feeder requests progress only while a caller waits.
fn follow(url: &str) -> (Cache, Feeder) {
    let cache = Cache::builder("/k/").build().unwrap();
    let feeder = Feeder::new([url])
        .backoff(Duration::from_millis(5), Duration::from_millis(100))
        .progress_requests(false)
        .start(cache.writer().unwrap())
        .unwrap();
    cache.wait_ready(BOUND).unwrap();
    wait_for("the watch", || feeder.counters().connects > 0);
    (cache, feeder)
}

/// Afterwards the watch knows that its requests for progress are answered. Before, a slow answer lets a consistent read end with
/// the cache's own revision, where the state there is proven to be etcd's.
fn answers_progress(cache: &Cache, ctl: &Ctl) {
    cache.wait_until(elsewhere(ctl), BOUND).unwrap();
}

/// Raises etcd's revision outside the cache's range.
fn elsewhere(ctl: &Ctl) -> u64 {
    ctl.put("/elsewhere", "x")
}

/// Waiters in a wake set, each found by its tag.
struct Crowd {
    set: WakeSet,
    waiters: Vec<Waiter>,
}

impl Crowd {
    /// Begins `count` waits and arms them.
    fn asks(cache: &Cache, want: Want, count: usize) -> Crowd {
        let set = WakeSet::new().unwrap();
        let mut waiters: Vec<Waiter> = (0..count).map(|_| cache.waiter(want).unwrap()).collect();
        for (tag, waiter) in waiters.iter_mut().enumerate() {
            set.add_waiter(waiter, tag as u64).unwrap();
            // Arming lists the waits that were answered meanwhile.
            waiter.arm().unwrap();
        }
        Crowd { set, waiters }
    }

    /// Polls each ready waiter until all have ended; returns the results of `end`.
    fn ends<T>(&mut self, mut end: impl FnMut(watchcore::Result<u64>) -> T) -> Vec<T> {
        let mut ended = Vec::new();
        let mut tags = [0; 64];
        while ended.len() < self.waiters.len() {
            assert!(self.set.wait(BOUND), "{} of {} have ended", ended.len(), self.waiters.len());
            loop {
                let count = self.set.take(&mut tags);
                for tag in &tags[..count] {
                    let answer = self.waiters[*tag as usize].poll().map(|found| found.map(|found| found.revision));
                    match answer {
                        Ok(None) => panic!("listed, and nothing to tell"),
                        Ok(Some(revision)) => ended.push(end(Ok(revision))),
                        Err(error) => ended.push(end(Err(error))),
                    }
                }
                if count < tags.len() {
                    break;
                }
            }
        }
        ended
    }
}

#[test]
fn one_read_serves_all_that_asked_before_it_began() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    ctl.put("/k/x", "0");
    let proxy = Proxy::swallowing(etcd.address(), "nothing");
    let (cache, feeder) = follow(&proxy.url());
    answers_progress(&cache, &ctl);
    let before = feeder.counters();
    let early = elsewhere(&ctl);

    // The first read has reached etcd, and its answer is held back.
    proxy.hold(true);
    let mut first = cache.waiter(Want::Consistent).unwrap();
    wait_for("the answer of the first read", || proxy.held() == 1);

    // The held answer does not include this write, so it must not answer readers that begin now.
    let late = elsewhere(&ctl);
    let mut crowd = Crowd::asks(&cache, Want::Consistent, MANY - 1);
    assert!(!crowd.set.arm(), "nothing was answered yet");
    proxy.hold(false);
    assert!(first.wait(BOUND).unwrap().revision >= early);
    for revision in crowd.ends(|answer| answer.unwrap()) {
        assert!(revision >= late, "{revision} does not hold what was written before: {late}");
    }
    let calls = feeder.counters().consistent_reads - before.consistent_reads;
    println!("{MANY} concurrent consistent reads, in wake sets: {calls} linearizable reads of etcd");
    assert_eq!(calls, 2, "one under way, one for all others");

    // The cache has not seen the revision: progress is requested because readers wait.
    assert_eq!(feeder.counters().progress_requests, before.progress_requests);
    assert!(cache.position().revision < late);
    let mut crowd = Crowd::asks(&cache, Want::Revision(late), MANY);
    for revision in crowd.ends(|answer| answer.unwrap()) {
        assert!(revision >= late);
    }
    let asked = feeder.counters().progress_requests - before.progress_requests;
    println!("{MANY} waits for that revision: {asked} requests for progress");
    assert!((1..MANY as u64 / 10).contains(&asked), "{asked}");

    // No progress is requested when no reader waits.
    for _ in 0..20 {
        let seen = ctl.put("/k/x", "1");
        wait_for("an event", || cache.position().revision >= seen);
    }
    assert_eq!(feeder.counters().progress_requests - before.progress_requests, asked);
    assert_same(&cache, &ctl);
}

#[test]
fn a_thousand_threads_cost_few_reads_and_miss_nothing() {
    let etcd = Etcd::start();
    let (cache, feeder) = follow(&etcd.url());
    answers_progress(&cache, &etcd.ctl());
    let over = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    let gate = RwLock::new(());
    let before = feeder.counters().consistent_reads;
    std::thread::scope(|scope| {
        let writes = || {
            let ctl = etcd.ctl();
            while !over.load(Ordering::Relaxed) {
                written.store(elsewhere(&ctl), Ordering::SeqCst);
            }
        };
        let writer = scope.spawn(writes);
        let ask = || {
            drop(gate.read());
            let known = written.load(Ordering::SeqCst);
            let found = cache.consistent_revision(BOUND).expect("an answer");
            assert!(found >= known, "{found} does not hold what was written before: {known}");
            assert!(cache.wait_until(found, BOUND).expect("it comes").revision >= found);
        };
        let small = || std::thread::Builder::new().stack_size(128 << 10);
        // The threads sleep until all exist, even if a thread could not be started: a thousand running threads would
        // starve everything else on this machine.
        let closed = gate.write();
        let threads: Vec<_> = (0..MANY).map(|_| small().spawn_scoped(scope, ask).expect("a thread")).collect();
        drop(closed);
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        over.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        assert!(ended.into_iter().all(|end| end.is_ok()));
    });
    let counters = feeder.counters();
    let (calls, asked) = (counters.consistent_reads - before, counters.progress_requests);
    println!("{MANY} threads at once: {calls} linearizable reads of etcd, {asked} requests for progress");
    assert!((1..MANY as u64).contains(&calls), "{calls}");
}

/// A wait for a revision that never comes costs one request a second, and delays no other wait.
#[test]
fn revision_that_never_comes() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let (cache, feeder) = follow(&etcd.url());
    let started = Instant::now();
    let mut crowd = Crowd::asks(&cache, Want::Revision((1 << 51) + 1), 1);
    assert_eq!(cache.wait_until(1 << 51, Duration::from_secs(4)).unwrap_err().code(), Code::FutureRevision);
    // Five requests in the first second and a half, then one a second, for each of the two waits.
    let most = 2 * 5 + started.elapsed().as_secs();
    let asked = feeder.counters().progress_requests;
    assert!((2..=most).contains(&asked), "{asked} requests, at most {most} expected");
    for _ in 0..5 {
        cache.wait_until(elsewhere(&ctl), BOUND).unwrap();
    }
    feeder.stop();
    assert!(crowd.ends(|answer| answer.unwrap_err().code()).into_iter().all(|code| code == Code::Closed));
}

#[test]
fn a_wait_that_timed_out_has_lost_nothing() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let proxy = Proxy::swallowing(etcd.address(), "nothing");
    let (cache, _feeder) = follow(&proxy.url());
    answers_progress(&cache, &ctl);
    let written = elsewhere(&ctl);
    proxy.hold(true);
    let error = cache.consistent_revision(Duration::from_millis(5)).unwrap_err();
    assert_eq!(error.code(), Code::Timeout, "{error}");
    proxy.hold(false);
    let found = cache.consistent_revision(BOUND).unwrap();
    assert!(found >= written);
    cache.wait_until(found, BOUND).unwrap();
}

#[test]
fn a_lost_connection_does_not_lose_who_waits() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let proxy = Proxy::to(etcd.address());
    let (cache, feeder) = follow(&proxy.url());
    proxy.refuse();
    let crowd = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..20).map(|_| scope.spawn(|| cache.consistent_revision(BOUND))).collect();
        wait_for("they wait", || cache.stats().waiting >= 20);
        wait_for("the loss is noticed", || matches!(cache.status().state, State::Stale { .. }));
        proxy.allow();
        let found: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
        answers_progress(&cache, &ctl);
        let written = elsewhere(&ctl);
        assert!(cache.consistent_revision(BOUND).unwrap() >= written);
        found
    });
    assert_eq!(crowd.len(), 20);
    wait_for("the watch", || feeder.counters().reconnects >= 1);
}

#[test]
fn who_waits_ends_at_once_when_the_feeder_stops() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let proxy = Proxy::swallowing(etcd.address(), "nothing");
    let (cache, feeder) = follow(&proxy.url());
    let feeder = Arc::new(feeder);
    // No wait can be answered now.
    proxy.hold(true);
    elsewhere(&ctl);
    let mut crowd = Crowd::asks(&cache, Want::Consistent, 100);
    let mut waits = Crowd::asks(&cache, Want::Revision(1 << 40), 100);
    let closed = |answer: watchcore::Result<u64>| answer.unwrap_err().code();
    std::thread::scope(|scope| {
        let forever = Duration::MAX;
        let threads: Vec<_> = (0..50)
            .map(|i| {
                let cache = &cache;
                scope.spawn(move || match i % 2 {
                    0 => cache.consistent_revision(forever),
                    _ => cache.wait_until(1 << 40, forever).map(|position| position.revision),
                })
            })
            .collect();
        wait_for("all wait", || cache.stats().waiting >= 250);
        feeder.stop();
        assert!(feeder.is_stopped());
        for thread in threads {
            assert_eq!(closed(thread.join().unwrap()), Code::Closed);
        }
    });
    for crowd in [&mut crowd, &mut waits] {
        assert!(crowd.ends(closed).into_iter().all(|code| code == Code::Closed));
    }
    // A reader that begins later does not wait either.
    assert_eq!(cache.wait_until(1 << 40, BOUND).unwrap_err().code(), Code::Closed);
    assert_eq!(cache.consistent_revision(BOUND).unwrap_err().code(), Code::Closed);
}
