//! The listing: as a stream or in pages, the number of pages, and interruptions.

use super::feeder::{cache, feeder, patient};
use crate::support::etcd::{Ctl, Etcd, GrpcProxy, has_streams};
use crate::support::history::assert_same;
use crate::support::proxy::Proxy;
use crate::support::{BOUND, wait_for};
use etcd_client::TxnOp;
use std::time::Duration;
use watchcore::{Cache, Code, ResyncReason, State};
use watchcore_etcd::{Feeder, FeederBuilder};

const VALUE: [u8; 350] = [b'v'; 350];

/// An etcd with this many keys below `/p/`.
fn filled(keys: usize) -> (Etcd, Ctl) {
    let etcd = Etcd::with(&["--max-txn-ops", "1000"]);
    let ctl = etcd.ctl();
    for first in (0..keys).step_by(1000) {
        let puts = (first..keys.min(first + 1000)).map(|i| TxnOp::put(format!("/p/{i:08}"), VALUE, None));
        ctl.txn(puts.collect());
    }
    (etcd, ctl)
}

/// The number of calls of a read method that the server received.
fn calls(etcd: &Etcd, method: &str) -> u64 {
    etcd.counted(&format!("grpc_server_started_total{{grpc_method=\"{method}\""))
}

/// A feeder with short retry delays.
fn quick(url: &str) -> FeederBuilder {
    feeder(url).backoff(Duration::from_millis(5), Duration::from_millis(50))
}

fn started(builder: FeederBuilder) -> (Cache, Feeder) {
    let cache = cache("/p/");
    let feeder = builder.start(cache.writer().unwrap()).unwrap();
    (cache, feeder)
}

fn requested(feeder: &Feeder) -> u64 {
    feeder.counters().resyncs_for(ResyncReason::Requested)
}

/// A listing that a proxy has stalled in its middle: after some messages of a stream, or some pages.
fn stalled(proxy: &Proxy, builder: FeederBuilder) -> (Cache, Feeder) {
    // The server sends less than half of the listing before it is read.
    proxy.stall_after(4_000_000);
    let (cache, feeder) = started(builder);
    wait_for("the middle of the listing", || proxy.is_stalled());
    assert!(feeder.counters().pages >= 1 && cache.snapshot().is_err());
    (cache, feeder)
}

#[test]
fn listings_are_one_stream() {
    let (etcd, ctl) = filled(40_000);
    if !has_streams() {
        return;
    }
    let before = calls(&etcd, "Range");
    let (cache, feeder) = started(patient(&etcd.url()));
    cache.wait_ready(BOUND).unwrap();
    // One read that pins the revision, and the stream.
    assert_eq!((calls(&etcd, "Range") - before, calls(&etcd, "RangeStream")), (1, 1));
    assert_same(&cache, &ctl);
    assert!(feeder.counters().pages >= 10, "messages of some 1.5 MB, the first ones shorter: {:?}", feeder.counters());
    ctl.delete("/p/00000007");
    feeder.request_resync();
    wait_for("the resync", || requested(&feeder) == 1);
    assert_same(&cache, &ctl);
    assert_eq!((calls(&etcd, "RangeStream"), feeder.counters().listings), (2, 2));
}

#[test]
fn compaction_under_a_stream_begins_again() {
    let (etcd, ctl) = filled(100_000);
    let proxy = Proxy::to(etcd.address());
    let (cache, feeder) = stalled(&proxy, feeder(&proxy.url()));
    let newest = ctl.put("/p/00000100", "new");
    ctl.compact(newest);
    proxy.stall(false);
    cache.wait_ready(BOUND).unwrap();
    assert_eq!((feeder.counters().listings, feeder.counters().failures), (2, 0));
    assert_eq!(cache.oldest(), newest + 1);
    assert_same(&cache, &ctl);
    if has_streams() {
        assert_eq!(calls(&etcd, "RangeStream"), 2, "the next one is a stream again");
    }
}

/// As with a silent watch: reads meanwhile see the state before the listing.
#[test]
fn long_listing_makes_the_cache_stale() {
    let (etcd, ctl) = filled(40_000);
    let proxy = Proxy::to(etcd.address());
    let (cache, feeder) = started(quick(&proxy.url()).progress_interval(Duration::from_millis(100)));
    wait_for("the watch", || feeder.counters().connects == 1);
    assert_eq!(cache.status().state, State::Ready);
    proxy.stall_after(4_000_000);
    feeder.request_resync();
    wait_for("the middle of the listing", || proxy.is_stalled());
    wait_for("the state Stale", || matches!(cache.status().state, State::Stale { .. }));
    assert!(feeder.last_error().is_some_and(|error| error.code() == Code::Unavailable), "{:?}", feeder.last_error());
    assert_eq!(feeder.counters().failures, 0);
    proxy.stall(false);
    wait_for("the state Ready", || cache.status().state == State::Ready);
    assert!(feeder.last_error().is_none());
    assert_same(&cache, &ctl);
}

/// The keys before the cut may be of another cluster.
#[test]
fn cut_stream_counts_for_nothing() {
    let (etcd, ctl) = filled(100_000);
    let proxy = Proxy::to(etcd.address());
    let (cache, feeder) = stalled(&proxy, quick(&proxy.url()));
    proxy.refuse();
    proxy.stall(false);
    wait_for("the loss is noticed", || feeder.counters().failures > 0);
    proxy.allow();
    cache.wait_ready(BOUND).unwrap();
    assert_same(&cache, &ctl);
    assert!(feeder.counters().listings >= 2, "{:?}", feeder.counters());
    assert_eq!(feeder.counters().resyncs(), 0);
}

/// If a message does not come in time, pages are requested, which are shorter on a slow connection; if these do not
/// come either, another endpoint is tried.
#[test]
fn silent_stream_is_left() {
    let (etcd, ctl) = filled(100_000);
    let silent = Proxy::to(etcd.address());
    // The next session, which would fail differently, begins late.
    let late = feeder(&silent.url()).backoff(Duration::from_secs(5), Duration::from_secs(5));
    let (cache, feeder) = stalled(&silent, late.request_timeout(Duration::from_millis(200)));
    wait_for("the silence is noticed", || feeder.last_error().is_some());
    assert!(feeder.last_error().unwrap().message().contains("did not answer"), "{:?}", feeder.last_error());
    silent.stall(false);
    cache.wait_ready(BOUND).unwrap();
    assert_same(&cache, &ctl);
}

/// Each connection learns once that streams fail, not with every listing.
#[test]
fn too_long_messages_make_pages() {
    let (etcd, ctl) = filled(20_000);
    let before = calls(&etcd, "RangeStream");
    let (cache, feeder) = started(feeder(&etcd.url()).message_limit(500_000));
    cache.wait_ready(BOUND).unwrap();
    assert_same(&cache, &ctl);
    feeder.request_resync();
    wait_for("the watch behind the listing", || feeder.counters().connects == 2);
    assert_eq!(feeder.counters().failures, 0, "{:?}", feeder.counters());
    if has_streams() {
        assert_eq!((calls(&etcd, "RangeStream") - before, feeder.counters().listings), (1, 3));
    }
}

/// A stream that lacks a message looks complete, except for its count.
#[test]
fn missing_message_is_noticed() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    for i in 0..100 {
        ctl.put(format!("/p/{i:02}"), "x");
    }
    // The first messages have 10, 20 and 40 keys. The one with 20 is swallowed.
    let proxy = Proxy::swallowing(etcd.address(), "/p/15");
    proxy.swallow(true);
    let (cache, feeder) = started(quick(&proxy.url()));
    wait_for("a message is missing", || proxy.swallowed() > 0);
    proxy.swallow(false);
    cache.wait_ready(BOUND).unwrap();
    assert_same(&cache, &ctl);
    assert_eq!(feeder.counters().resyncs(), 0);
}

/// A page that claims to be the last one, but has fewer keys than it counts.
#[test]
fn page_without_its_keys_is_noticed() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    for i in 0..100 {
        ctl.put(format!("/p/{i:02}"), "x");
    }
    // Changes `more: true, count: 100` to `more: false`.
    let proxy = Proxy::forging_once(etcd.address(), b"\x18\x01\x20\x64", b"\x18\x00\x20\x64");
    let (cache, feeder) = started(quick(&proxy.url()).page_size(10));
    cache.wait_ready(BOUND).unwrap();
    assert_same(&cache, &ctl);
    assert_eq!((feeder.counters().failures, feeder.counters().resyncs()), (1, 0), "{:?}", feeder.counters());
}

/// The header as in the last message of a stream: cluster, member, revision, term; the first key follows.
fn header_bytes(ctl: &Ctl, cluster: u64) -> Vec<u8> {
    let header = ctl.run(async |mut client| Ok(client.get("any", None).await?.header().unwrap().clone()));
    let mut bytes = Vec::new();
    for (tag, mut number) in
        [(0x08, cluster), (0x10, header.member_id()), (0x18, header.revision() as u64), (0x20, header.raft_term())]
    {
        bytes.push(tag);
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
    }
    bytes.extend(b"\x12\x0f\x0a\x04/p/0");
    bytes
}

#[test]
fn stream_of_another_cluster_is_refused() {
    if !has_streams() {
        return;
    }
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    ctl.put("/p/0", "x");
    let cluster = ctl.run(async |mut client| Ok(client.get("any", None).await?.header().unwrap().cluster_id()));
    let (ours, theirs) = (header_bytes(&ctl, cluster), header_bytes(&ctl, cluster ^ 1));
    let proxy = Proxy::forging_once(etcd.address(), &ours, &theirs);
    let (cache, feeder) = started(quick(&proxy.url()));
    cache.wait_ready(BOUND).unwrap();
    assert_same(&cache, &ctl);
    assert_eq!((feeder.counters().failures, feeder.counters().listings), (1, 2));
}

#[test]
fn stop_drops_a_stream() {
    let (etcd, _ctl) = filled(40_000);
    let proxy = Proxy::to(etcd.address());
    let (_cache, feeder) = stalled(&proxy, feeder(&proxy.url()));
    feeder.stop();
    assert!(feeder.is_stopped());
}

/// Each page makes etcd count the rest of the range, so the number of pages must not grow in proportion to the keys.
#[test]
fn pages_are_as_long_as_bytes_allow() {
    let (etcd, ctl) = filled(40_000);
    let (cache, feeder) = started(feeder(&etcd.url()).page_size(100_000));
    cache.wait_ready(BOUND).unwrap();
    assert_same(&cache, &ctl);
    // 32 keys, 2048, and the rest in eighths of the 15 MB.
    assert_eq!((feeder.counters().pages, feeder.counters().listings), (10, 1));
}

/// The gRPC proxy has no streams.
#[test]
fn refused_pages_come_shorter() {
    let (etcd, ctl) = filled(40_000);
    let proxy = GrpcProxy::to(&etcd, 1 << 20);
    let cache = cache("/p/");
    let before = calls(&etcd, "Range");
    let feeder = feeder(&proxy.url()).stop_after_listing(true).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    let asked = calls(&etcd, "Range") - before;
    assert_eq!(calls(&etcd, "RangeStream"), 0);
    assert_same(&cache, &ctl);
    let counters = feeder.counters();
    assert_eq!((counters.listings, counters.failures), (1, 0), "{counters:?}");
    assert!(counters.pages >= 15, "15 MB in messages of at most 1 MiB: {counters:?}");
    // The limit is found once, not with every page.
    assert!(asked <= counters.pages + 8, "{asked} reads for {counters:?}");
}

#[test]
fn stop_drops_a_long_page() {
    let (etcd, _ctl) = filled(40_000);
    let proxy = Proxy::to(etcd.address());
    // In the middle of the fifth page: 12 KB, 0.7 MB and two of 1.8 MB come before.
    proxy.stall_after(5_000_000);
    let cache = cache("/p/");
    let feeder = feeder(&proxy.url()).page_size(100_000).start(cache.writer().unwrap()).unwrap();
    wait_for("the middle of the page", || proxy.is_stalled());
    assert_eq!(feeder.counters().pages, 4);
    feeder.stop();
    assert!(feeder.is_stopped());
}
