//! The end of a feeder: by a stop, with its cache, and without a server.

use super::feeder::{cache, feeder, follow};
use crate::support::etcd::Etcd;
use crate::support::history::assert_same;
use crate::support::proxy::Proxy;
use crate::support::{BOUND, wait_for};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use watchcore::{Attribute, Cache, Code, Read, State};
use watchcore_etcd::Feeder;

#[test]
fn stop_is_quick_idempotent_and_wakes_who_waits() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.address());
    let cache = cache("/s/");
    let feeder = feeder(&proxy.url()).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    let waiting = cache.clone();
    let waiter = std::thread::spawn(move || waiting.wait_until(1 << 40, BOUND * 2));
    wait_for("the waiter", || cache.stats().waiting > 0);
    // The stop works even when etcd no longer answers.
    proxy.stall(true);
    feeder.stop();
    assert!(feeder.is_stopped(), "within the two seconds that a stop waits");
    assert_eq!(waiter.join().unwrap().unwrap_err().code(), Code::Closed);
    let accepted = proxy.accepted();
    feeder.stop();
    drop(feeder);
    proxy.stall(false);
    assert_eq!(proxy.accepted(), accepted, "no call after the stop");
}

/// A connection and a listing that are never answered: only the stop ends them.
#[test]
fn stop_drops_calls_under_way() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    ctl.put("/s/x", "0");
    let stops = |proxy: &Proxy, under_way: &dyn Fn() -> bool| {
        let cache = cache("/s/");
        let endless = Duration::MAX;
        let builder = feeder(&proxy.url()).dial_timeout(endless).request_timeout(endless);
        let feeder = builder.start(cache.writer().unwrap()).unwrap();
        wait_for("the call", under_way);
        feeder.stop();
        assert!(feeder.is_stopped());
        assert_eq!(cache.status().state, State::Closed);
    };
    let silent = Proxy::to(etcd.address());
    silent.stall(true);
    stops(&silent, &|| silent.accepted() > 0);
    let swallows = Proxy::swallowing(etcd.address(), "/s/x");
    swallows.swallow(true);
    stops(&swallows, &|| swallows.swallowed() > 0);
}

/// How long a stop waits for the feeder's end.
const STOP: Duration = Duration::from_secs(2);

/// The extractor blocks the feeder's thread inside the cache, as any other delay there would.
#[test]
fn stops_at_once_share_two_seconds() {
    let etcd = Etcd::start();
    etcd.ctl().put("/s/x", "0");
    let inside = Arc::new(AtomicBool::new(false));
    let (open, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let blocks = {
        let inside = inside.clone();
        Attribute::extractor("blocked", move |_, _| {
            inside.store(true, Ordering::SeqCst);
            // Blocks until the sender is dropped.
            let _ = gate.lock().unwrap().recv();
            Ok::<_, std::convert::Infallible>(None)
        })
    };
    let cache = Cache::builder("/s/").field(blocks).build().unwrap();
    let proxy = Proxy::to(etcd.address());
    let feeder = feeder(&proxy.url()).start(cache.writer().unwrap()).unwrap();
    wait_for("the thread is inside the cache", || inside.load(Ordering::SeqCst));
    let calls = proxy.accepted();
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| feeder.stop());
        }
    });
    assert!(!feeder.is_stopped(), "the test's own premise");
    // Like a free: it stops, and the drop stops again.
    feeder.stop();
    drop(feeder);
    let elapsed = started.elapsed();
    // All stops share one limit: the fourth and the fifth find it already over.
    assert!((STOP..2 * STOP).contains(&elapsed), "{elapsed:?}");
    drop(open);
    wait_for("the end", || cache.status().state == State::Closed);
    assert_eq!(proxy.accepted(), calls, "no connection for a watch after the stop");
}

#[test]
fn endless_timeouts_stop_nothing() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let cache = cache("/e/");
    let endless = Duration::MAX;
    let builder = feeder(&etcd.url()).dial_timeout(endless).request_timeout(endless).refused_retry(endless);
    let feeder = builder.progress_interval(endless).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    cache.wait_until(ctl.put("/e/x", "0"), BOUND).unwrap();
    assert_same(&cache, &ctl);
    assert_eq!(feeder.counters().failures, 0);
}

#[test]
fn closing_the_cache_ends_the_feeder() {
    let etcd = Etcd::start();
    let (cache, feeder) = follow(&etcd, "/s/");
    cache.close();
    wait_for("the end", || feeder.is_stopped());

    let (cache, feeder) = follow(&etcd, "/s/");
    drop(cache);
    wait_for("the end", || feeder.is_stopped());
}

#[test]
fn without_a_server_nothing_hangs() {
    let mut etcd = Etcd::absent();
    let cache = cache("/n/");
    let feeder = feeder(&etcd.url()).backoff(Duration::from_millis(10), Duration::from_millis(100));
    let feeder = feeder.start(cache.writer().unwrap()).unwrap();
    assert_eq!(cache.get("/n/x", Read::Any).unwrap_err().code(), Code::NotReady);
    wait_for("the status", || cache.status().last_error.is_some());
    let status = cache.status();
    assert_eq!(status.state, State::NotReady);
    let error = status.last_error.unwrap();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message().contains(&etcd.url()), "{error}");
    assert_eq!(cache.snapshot().map(drop).unwrap_err().code(), Code::NotReady);
    assert_eq!(cache.wait_ready(Duration::from_millis(20)).unwrap_err().code(), Code::Timeout);

    // The server starts later.
    etcd.launch();
    cache.wait_ready(BOUND).unwrap();
    assert_same(&cache, &etcd.ctl());
    feeder.stop();

    let nobody = Cache::builder("/n/").build().unwrap();
    let gone = Etcd::absent();
    let feeder = Feeder::new([gone.url()]).start(nobody.writer().unwrap()).unwrap();
    wait_for("a failure", || feeder.counters().failures > 0);
    feeder.stop();
    assert!(feeder.is_stopped(), "within the two seconds that a stop waits");
}
