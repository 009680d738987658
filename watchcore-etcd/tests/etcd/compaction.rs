//! The option `follow_compaction`.

use super::feeder::{cache, feeder, patient};
use crate::support::etcd::Etcd;
use crate::support::history::assert_same;
use crate::support::proxy::Proxy;
use crate::support::{BOUND, wait_for};
use std::time::Duration;
use watchcore::raw::TestBuilder as _;
use watchcore::{Cache, Code, Read, Start};

#[test]
fn etcd_s_compaction_is_followed_where_that_is_asked_for() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let quick = |follows: bool| {
        let cache = cache("/c/");
        let builder = feeder(&etcd.url());
        let builder = if follows { builder.follow_compaction(Duration::from_millis(20)) } else { builder };
        let feeder = builder.start(cache.writer().unwrap()).unwrap();
        cache.wait_ready(BOUND).unwrap();
        (cache, feeder)
    };
    let ((follows, _one), (keeps, _two)) = (quick(true), quick(false));
    let last = (0..20).map(|i| ctl.put("/c/x", i.to_string())).last().unwrap();
    for cache in [&follows, &keeps] {
        cache.wait_until(last, BOUND).unwrap();
    }
    ctl.compact(last - 5);
    wait_for("the compaction to be followed", || follows.oldest() == last - 4);
    assert_eq!(follows.get("/c/x", Read::Exact(last - 5)).unwrap().revision, last - 5, "the state there stays");
    assert_eq!(follows.get("/c/x", Read::Exact(last - 6)).unwrap_err().code(), Code::Compacted);
    assert!(keeps.oldest() < last - 15, "the other one was not asked to: {}", keeps.oldest());
    assert_same(&follows, &ctl);
}

/// A program that learns of a compaction first requests it: present events go at once, later ones when they come.
#[test]
fn a_compaction_is_requested_of_the_feeder() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let cache = cache("/c/");
    let feeder = feeder(&etcd.url()).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    let last = (0..20).map(|i| ctl.put("/c/x", i.to_string())).last().unwrap();
    cache.wait_until(last, BOUND).unwrap();
    feeder.compact(last - 5).unwrap();
    wait_for("the compaction", || cache.oldest() == last - 4);
    feeder.compact(last - 7).unwrap();
    assert_eq!(cache.get("/c/x", Read::Exact(last - 5)).unwrap().revision, last - 5, "the state there stays");
    assert_eq!(cache.get("/c/x", Read::Exact(last - 6)).unwrap_err().code(), Code::Compacted);

    feeder.compact(last + 2).unwrap();
    wait_for("what is there is compacted", || cache.oldest() == last + 1);
    for i in 0..4 {
        ctl.put("/c/x", i.to_string());
    }
    cache.wait_until(last + 4, BOUND).unwrap();
    wait_for("what has come is, too", || cache.oldest() == last + 3);
    assert_same(&cache, &ctl);

    assert_eq!(feeder.compact(1 << 52).unwrap_err().code(), Code::InvalidArgument);
    feeder.stop();
    assert_eq!(feeder.compact(last).unwrap_err().code(), Code::Closed);
}

/// A watch at a revision that is not compacted makes etcd read history, so none is opened to query the compaction.
#[test]
fn following_a_compaction_reads_no_history() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let first = ctl.put("/c/x", "0");
    let proxy = Proxy::to(etcd.address());
    let cache = cache("/c/");
    let builder = patient(&proxy.url()).follow_compaction(Duration::from_millis(20));
    let feeder = builder.start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    wait_for("the watch", || feeder.counters().connects > 0);
    let reads = || etcd.counted("grpc_server_started_total{grpc_method=\"Range\"");
    let watches = || etcd.counted("grpc_server_started_total{grpc_method=\"Watch\"");
    assert_eq!((watches(), proxy.accepted()), (1, 2), "the test's own premise");
    // No event comes in the range, but each query is answered.
    let before = reads();
    wait_for("many questions", || reads() >= before + 50);
    assert_eq!(
        (watches(), proxy.accepted()),
        (1, 2),
        "one read each, on the connection that is there: {:?}",
        feeder.counters()
    );
    let last = (1..10).map(|i| ctl.put("/c/x", i.to_string())).last().unwrap();
    cache.wait_until(last, BOUND).unwrap();
    assert_eq!(cache.oldest(), first + 1);
    ctl.compact(last - 2);
    wait_for("the compaction to be followed", || cache.oldest() == last - 1);
    let before = reads();
    wait_for("more questions", || reads() >= before + 10);
    assert_eq!((watches(), proxy.accepted()), (2, 2), "one watch to learn the compacted revision");
    assert_same(&cache, &ctl);
}

/// A stream that always has more, here because its events wait for a slow subscription, delays no query.
#[test]
fn compaction_followed_beside_waiting_stream() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let first = ctl.put("/p/x", "0");
    let last = (1..400).map(|i| ctl.put("/p/x", i.to_string())).last().unwrap();
    let cache = Cache::builder("/p/").capacity(128).segment_slots(16).expect_load(true).build().unwrap();
    let subscription = cache.subscribe(Start::After(first)).open().unwrap();
    let builder = feeder(&etcd.url()).start_revision(first).pace(&subscription);
    let feeder = builder.follow_compaction(Duration::from_millis(20)).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    wait_for("some of the history", || cache.position().revision > first + 20);
    assert!(cache.position().revision < last, "nobody polls: the replay waits");
    ctl.compact(first + 10);
    wait_for("the compaction to be followed", || cache.oldest() == first + 11);
    assert!(cache.position().revision < last, "it waits still");
    drop(subscription);
    assert_same(&cache, &ctl);
    assert_eq!(feeder.counters().resyncs(), 0);
}
