//! The pages of a listing: how many there are, and what happens to one that is too long for somebody.

use super::feeder::{cache, feeder};
use crate::support::etcd::{Ctl, Etcd, GrpcProxy};
use crate::support::history::assert_same;
use crate::support::proxy::Proxy;
use crate::support::{BOUND, STOP, wait_for};
use etcd_client::TxnOp;
use std::time::Instant;

const VALUE: [u8; 350] = [b'v'; 350];

/// An etcd with so many keys of `/p/`.
fn filled(keys: usize) -> (Etcd, Ctl) {
    let etcd = Etcd::with(&["--max-txn-ops", "1000"]);
    let ctl = etcd.ctl();
    for first in (0..keys).step_by(1000) {
        let puts = (first..keys.min(first + 1000)).map(|i| TxnOp::put(format!("/p/{i:08}"), VALUE, None));
        ctl.txn(puts.collect());
    }
    (etcd, ctl)
}

/// Reads of a range that the server was asked for.
fn reads(etcd: &Etcd) -> u64 {
    etcd.counted("grpc_server_started_total{grpc_method=\"Range\"")
}

/// Each page makes etcd count the rest of the range, so their number must not grow with that of the keys alone.
#[test]
fn pages_are_as_long_as_bytes_allow() {
    let (etcd, ctl) = filled(40_000);
    let cache = cache("/p/");
    let feeder = feeder(&etcd.url()).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    assert_same(&cache, &ctl);
    // 32 keys, 2048, and the rest in eighths of the 15 MB.
    assert_eq!((feeder.counters().pages, feeder.counters().listings), (10, 1));
}

#[test]
fn refused_pages_come_shorter() {
    let (etcd, ctl) = filled(40_000);
    let proxy = GrpcProxy::to(&etcd, 1 << 20);
    let cache = cache("/p/");
    let before = reads(&etcd);
    let feeder = feeder(&proxy.url()).stop_after_listing(true).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    let asked = reads(&etcd) - before;
    assert_same(&cache, &ctl);
    let counters = feeder.counters();
    assert_eq!((counters.listings, counters.failures), (1, 0), "{counters:?}");
    assert!(counters.pages >= 15, "15 MB in messages of at most 1 MiB: {counters:?}");
    // The limit is found once, and not with every page again.
    assert!(asked <= counters.pages + 8, "{asked} reads for {counters:?}");
}

#[test]
fn stop_drops_a_long_page() {
    let (etcd, _ctl) = filled(40_000);
    let proxy = Proxy::to(etcd.address());
    // In the middle of the fifth page: 12 KB, 0.7 MB and two of 1.8 MB come before.
    proxy.stall_after(5_000_000);
    let cache = cache("/p/");
    let feeder = feeder(&proxy.url()).start(cache.writer().unwrap()).unwrap();
    wait_for("the middle of the page", || proxy.is_stalled());
    assert_eq!(feeder.counters().pages, 4);
    let begin = Instant::now();
    feeder.stop();
    assert!(feeder.is_stopped() && begin.elapsed() < STOP, "{:?}", begin.elapsed());
}
