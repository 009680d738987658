//! Who answers a call, and what is done once the turn is given back.

use super::*;
use crate::cache::Cache;

/// A cache, so that the notifier's thread is there.
fn notifier() -> Cache {
    Cache::builder("/").build().unwrap()
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + BOUND;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

/// A subscription with a limit is opened while the publisher stands between its call and its answer.
#[test]
fn limits_are_looked_at_beside_a_publisher() {
    let (_notifier, log) = (notifier(), Log::alone());
    let sleepers = log.sleepers([Waker::Thread(current_thread())]);
    let before = log.limits.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let (called, go_on) = stops(&log.frontier_stops);
        let publisher = scope.spawn(|| log.publish(60));
        called.recv_timeout(BOUND).unwrap();
        log.hubs.of(FilterCode::Own).notify(&log);
        go_on.send(()).unwrap();
        publisher.join().unwrap();
    });
    assert_eq!(are_woken(&sleepers), 1, "the publisher has looked itself");
    until("nobody looks at the limits", || log.limits.load(Ordering::SeqCst) > before);
}
