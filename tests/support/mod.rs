//! What test binaries share: each takes this module and uses its own part.
#![allow(dead_code)]

pub(crate) mod etcd;
pub(crate) mod history;
pub(crate) mod ports;
pub(crate) mod proxy;
pub(crate) mod tls;

use std::time::{Duration, Instant};

/// Bound of every wait: far above what any step takes on a loaded machine.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// Waits until `condition` holds; fails with `what` if it does not come to hold.
#[track_caller]
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + BOUND;
    while !condition() {
        assert!(Instant::now() < deadline, "waited {BOUND:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
