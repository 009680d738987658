//! A proxy that drops progress requests and forwards everything else: the feeder reports it, and reads stay consistent.

use crate::fake::{Fake, Fault};
use crate::faults::{follow, quick, resyncs};
use crate::support::etcd::{Etcd, GrpcProxy};
use crate::support::history::{Recorder, value};
use crate::support::{BOUND, wait_for};
use std::time::Duration;
use watchcore::{Cache, Code, Kind, Read, Start, State, Want};
use watchcore_etcd::Feeder;

/// Raises etcd's revision outside the range until the feeder knows that requests are not answered.
fn until_known(feeder: &Feeder, mut elsewhere: impl FnMut()) {
    wait_for("it is known", || {
        elsewhere();
        feeder.counters().progress_unanswered == 1
    });
}

/// Reads see each earlier write, though the range is quiet and the position does not move.
fn reads_are_consistent(cache: &Cache, feeder: &Feeder, put: impl Fn(&str, &str) -> u64, delete: impl Fn(&str) -> u64) {
    until_known(feeder, || {
        let _ = put("/y/n", "elsewhere");
    });
    wait_for("the status", || !cache.status().source.warning.is_empty());
    let status = cache.status();
    assert!(status.source.warning.contains("answers no requests for progress"), "{status:?}");
    let recorder = Recorder::start(cache, Start::Now);
    let mut revisions = Vec::new();
    for round in 0..20 {
        // The range is quiet, and no progress notification comes.
        put("/y/n", "elsewhere");
        let at = cache.consistent_revision(BOUND).unwrap();
        assert!(at <= cache.position().revision, "nothing is to be waited for");
        cache.get("/x/a", Read::AtLeast(at)).unwrap();
        // One key comes and goes between two reads, another one changes.
        revisions.push(put("/x/passing", "x"));
        revisions.push(delete("/x/passing"));
        revisions.push(put("/x/a", &round.to_string()));
        put("/y/n", "elsewhere");
        let at = cache.consistent_revision(BOUND).unwrap();
        let answer = cache.get("/x/a", Read::AtLeast(at)).unwrap();
        assert_eq!(answer.kv.unwrap().value(), Some(round.to_string().as_bytes()), "what was written before is read");
    }
    revisions.push(delete("/x/a"));
    let at = cache.consistent_revision(BOUND).unwrap();
    assert!(cache.get("/x/a", Read::AtLeast(at)).unwrap().kv.is_none());
    let last = *revisions.last().unwrap();
    let seen = recorder.until("the deletion", |seen| seen.revision == last && seen.kind == Kind::Deleted);
    assert_eq!(seen.iter().map(|seen| seen.revision).collect::<Vec<_>>(), revisions, "no event is lost");
    assert_eq!(resyncs(feeder), 0);
    assert!(feeder.counters().compared_reads >= 20, "{:?}", feeder.counters());
}

#[test]
fn reads_without_progress_are_consistent() {
    let etcd = Fake::start();
    etcd.put("/x/a", "0");
    etcd.fault(Fault::NoProgress);
    let (cache, feeder) = follow(quick([&etcd.url()]), "/x/");
    reads_are_consistent(&cache, &feeder, |key, value| etcd.put(key, value), |key| etcd.delete(key));
    // A silent watch is not reopened because of that.
    let silences = feeder.counters().silences;
    for _ in 0..3 {
        let requests = feeder.counters().progress_requests;
        wait_for("a silence", || feeder.counters().progress_requests >= requests + 6);
    }
    assert_eq!((feeder.counters().silences, cache.status().state), (silences, State::Ready));
    etcd.heal();
    wait_for("an answer", || feeder.counters().progress_unanswered == 0);
    wait_for("the status", || cache.status().source.warning.is_empty());
    let revision = etcd.put("/y/n", "elsewhere");
    assert!(cache.consistent_revision(BOUND).unwrap() >= revision);
    cache.wait_until(revision, BOUND).unwrap();
}

/// After a new watch is opened, it is unknown whether requests are answered. A read does not wait to find out.
#[test]
fn first_read_needs_no_progress() {
    let etcd = Fake::start();
    etcd.put("/x/a", "0");
    etcd.fault(Fault::NoProgress);
    // The second round goes through another network path, after a server that answers.
    for opened in 1..=2 {
        let (cache, feeder) = follow(quick([&etcd.url()]), "/x/");
        if opened == 2 {
            etcd.heal();
            wait_for("an answer", || feeder.counters().progress_notifications > 0);
            etcd.fault(Fault::NoProgress);
            etcd.cut();
            wait_for("the next watch", || feeder.counters().connects == 2);
        }
        etcd.put("/y/n", "elsewhere");
        let at = cache.consistent_revision(BOUND).unwrap();
        assert!(at <= cache.position().revision, "nothing is to be waited for, watch {opened}");
        assert_eq!((feeder.counters().compared_reads, feeder.counters().silences), (1, 0));
        // A key changes, and etcd moves on elsewhere: the watch brings the change, but no notification of the later
        // revision.
        etcd.put("/x/a", opened.to_string());
        etcd.put("/y/n", "elsewhere");
        let at = cache.consistent_revision(BOUND).unwrap();
        let answer = cache.get("/x/a", Read::AtLeast(at)).unwrap();
        assert_eq!(answer.kv.unwrap().value(), Some(opened.to_string().as_bytes()));
    }
}

/// etcd's own gRPC proxy drops progress requests.
#[test]
fn reads_through_grpc_proxy_are_consistent() {
    let etcd = Etcd::start();
    let proxy = GrpcProxy::to(&etcd, 1 << 20);
    let ctl = etcd.ctl();
    ctl.put("/x/a", "0");
    let (cache, feeder) = follow(quick([&proxy.url()]), "/x/");
    reads_are_consistent(&cache, &feeder, |key, value| ctl.put(key, value), |key| ctl.delete(key));
}

/// A read waits for changes that the watch has not delivered, for as long as the comparison finds a difference.
#[test]
fn read_waits_for_what_differs() {
    let etcd = Fake::start();
    for key in ["/x/a", "/x/gone"] {
        etcd.put(key, "old");
    }
    etcd.fault(Fault::NoProgress);
    let (cache, feeder) = follow(quick([&etcd.url()]), "/x/");
    until_known(&feeder, || {
        let _ = etcd.put("/y/n", "elsewhere");
    });
    for change in ["put", "delete", "new"] {
        // The watch delivers no events.
        etcd.fault(Fault::OldProgress);
        let revision = match change {
            "put" => etcd.put("/x/a", "new"),
            "delete" => etcd.delete("/x/gone"),
            _ => etcd.put("/x/b", "new"),
        };
        let mut waiter = cache.waiter(Want::Consistent).unwrap();
        let reads = feeder.counters().consistent_reads;
        wait_for("three comparisons", || {
            assert_eq!(waiter.poll().unwrap(), None, "{change}: the cache does not have it");
            feeder.counters().consistent_reads >= reads + 3
        });
        etcd.heal();
        etcd.fault(Fault::NoProgress);
        assert!(waiter.wait(BOUND).unwrap().revision >= revision, "{change}");
        until_known(&feeder, || {
            let _ = etcd.put("/y/n", "elsewhere");
        });
    }
    assert_eq!(value(&cache, "/x/a").as_deref(), Some(&b"new"[..]));
}

/// No event marks the end of the history: the cache is Ready when its state equals etcd's.
#[test]
fn history_ends_without_progress() {
    let etcd = Fake::start();
    for i in 0..30 {
        etcd.put("/x/a", i.to_string());
    }
    for _ in 0..5 {
        etcd.put("/y/n", "elsewhere");
    }
    etcd.fault(Fault::NoProgress);
    let cache = Cache::builder("/x/").expect_load(true).build().unwrap();
    let feeder = quick([&etcd.url()]).history(20).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    assert_eq!(value(&cache, "/x/a").as_deref(), Some(&b"29"[..]));
    assert_eq!(resyncs(&feeder), 0);
}

/// Without a waiting reader, and with a server that answers, no states are compared.
#[test]
fn answered_requests_compare_nothing() {
    let etcd = Fake::start();
    etcd.put("/x/a", "0");
    let (cache, feeder) = follow(quick([&etcd.url()]), "/x/");
    for _ in 0..5 {
        let revision = etcd.put("/y/n", "elsewhere");
        cache.wait_until(cache.consistent_revision(BOUND).unwrap(), BOUND).unwrap();
        assert!(cache.position().revision >= revision);
    }
    let counters = feeder.counters();
    assert_eq!((counters.compared_reads, counters.progress_unanswered), (0, 0), "{counters:?}");
    let late = cache.wait_until(etcd.revision() + 5, Duration::from_millis(1)).unwrap_err();
    assert_eq!(late.code(), Code::FutureRevision);
}

/// A dead watch behind such a proxy is as silent as one without changes: the comparison distinguishes them, and is
/// repeated after one that found no difference.
#[test]
fn dead_watch_is_found_by_comparison() {
    let etcd = Fake::start();
    etcd.put("/x/a", "0");
    etcd.fault(Fault::NoProgress);
    let (cache, feeder) = follow(quick([&etcd.url()]).progress_interval(Duration::from_millis(10)), "/x/");
    until_known(&feeder, || {
        let _ = etcd.put("/y/n", "elsewhere");
    });
    let (silences, ranges) = (feeder.counters().silences, etcd.calls("Range"));
    wait_for("two comparisons of a quiet watch", || etcd.calls("Range") >= ranges + 2);
    assert_eq!(feeder.counters().silences, silences, "it lives");
    // No more events come.
    etcd.fault(Fault::OldProgress);
    let last = etcd.put("/x/a", "new");
    wait_for("the silence", || feeder.counters().silences > silences);
    assert_eq!(value(&cache, "/x/a").as_deref(), Some(&b"0"[..]));
    etcd.heal();
    wait_for("the event", || cache.position().revision >= last);
    assert_eq!((value(&cache, "/x/a").as_deref(), resyncs(&feeder)), (Some(&b"new"[..]), 0));
}

/// Such a proxy forwards the notifications that etcd sends by itself, each ten minutes or as often as its option says:
/// they move the position, and end a wait for a revision.
#[test]
fn etcd_s_own_notifications_pass_grpc_proxy() {
    let etcd = Etcd::with(&["--watch-progress-notify-interval", "200ms"]);
    let proxy = GrpcProxy::to(&etcd, 1 << 20);
    let ctl = etcd.ctl();
    ctl.put("/x/a", "0");
    let (cache, _feeder) = follow(quick([&proxy.url()]), "/x/");
    for _ in 0..3 {
        let revision = ctl.put("/y/n", "elsewhere");
        cache.wait_until(revision, BOUND).unwrap();
    }
    assert_eq!(value(&cache, "/x/a").as_deref(), Some(&b"0"[..]));
}
