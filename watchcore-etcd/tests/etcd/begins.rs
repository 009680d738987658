//! The start of a feeder: at an older revision, at a future one, and with a listing only.

use super::feeder::{cache, feeder, follow};
use crate::fake::{Fake, Fault};
use crate::support::etcd::Etcd;
use crate::support::history::{Recorder, assert_same, value};
use crate::support::proxy::Proxy;
use crate::support::{BOUND, wait_for};
use etcd_client::TxnOp;
use std::time::Duration;
use watchcore::{Cache, Code, Kind, Read, Start, State};
use watchcore_etcd::Feeder;

#[test]
fn a_start_revision_replays_the_history() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let first = ctl.put("/h/x", "0");
    ctl.put("/h/gone", "0");
    ctl.delete("/h/gone");
    // 5 MB in one message; etcd would split it only if fragments were requested.
    for i in 1..=100 {
        ctl.put("/h/x", format!("{i:050000}"));
    }
    let cache = cache("/h/");
    let feeder = feeder(&etcd.url()).start_revision(first).too_far_behind(10);
    let feeder = feeder.start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    let newest = ctl.revision();
    cache.wait_until(newest, BOUND).unwrap();
    let recorder = Recorder::start(&cache, Start::After(first));
    let seen = recorder.until("the newest", |seen| seen.revision == newest);
    assert_eq!(seen.len(), 102);
    assert_eq!((seen[0].kind, seen[0].key()), (Kind::Added, "/h/gone".to_owned()));
    assert_eq!((seen[1].kind, seen[1].prev.as_deref()), (Kind::Deleted, Some(&b"0"[..])));
    assert_eq!(cache.get("/h/x", Read::Exact(first)).unwrap().kv.unwrap().value(), Some(&b"0"[..]));
    let counters = feeder.counters();
    assert_eq!((counters.fragments, counters.fragment_switches), (0, 0), "not needed, not asked for");
    assert_eq!(counters.resyncs(), 0);
    assert_same(&cache, &ctl);
}

#[test]
fn a_replay_longer_than_the_window_keeps_the_pace_of_a_subscription() {
    let etcd = Etcd::with(&["--max-txn-ops", "2000"]);
    let ctl = etcd.ctl();
    let first = ctl.put("/p/x", "0");
    for round in 0..20u8 {
        ctl.txn((0..1000).map(|i| TxnOp::put(format!("/p/{i}"), [round; 1000], None)).collect());
    }
    let newest = ctl.revision();
    let cache = Cache::builder("/p/").capacity(4096).expect_load(true).build().unwrap();
    let mut subscription = cache.subscribe(Start::After(first)).open().unwrap();
    // 20 MB in fragments; a connection cut meanwhile does not cause a listing.
    let proxy = Proxy::to(etcd.address());
    let other = Cache::builder("/p/").build().unwrap();
    let refused = feeder(&proxy.url()).pace(&subscription).start(other.writer().unwrap());
    let Err(error) = refused else { panic!("a subscription of another cache was taken") };
    assert!(error.code() == Code::InvalidArgument && error.to_string().contains("of another cache"), "{error}");
    let quick = feeder(&proxy.url()).backoff(Duration::from_millis(5), Duration::from_millis(50));
    let feeder = quick.start_revision(first).pace(&subscription).message_limit(4 << 20).too_far_behind(1);
    let feeder = feeder.start(cache.writer().unwrap()).unwrap();
    let mut revisions = Vec::new();
    while revisions.len() < 20_000 {
        if revisions.len() == 5000 {
            proxy.cut();
        }
        assert!(subscription.wait(BOUND).unwrap(), "events come");
        let batch = subscription.poll(100).expect("nothing is lost");
        revisions.extend(batch.events().iter().map(|event| event.revision()));
        // A slow reader, so that the feeder has to wait for it; the test does not depend on the duration.
        std::thread::sleep(Duration::from_micros(500));
    }
    let expected: Vec<u64> = (first + 1..=newest).flat_map(|revision| [revision; 1000]).collect();
    assert!(revisions == expected, "each revision whole and in order");
    let counters = feeder.counters();
    assert_eq!((counters.fragment_switches, counters.resyncs()), (1, 0));
}

/// The history begins as far back as requested, as far as there are revisions, and as far as etcd still has them.
#[test]
fn history_begins_below_the_newest_revision() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    ctl.put("/g/gone", "0");
    for i in 0..30 {
        ctl.put("/g/x", i.to_string());
    }
    let newest = ctl.delete("/g/gone");
    for (asked, compacted, expected) in
        [(0, 0, newest), (10, 0, newest - 10), (1_000_000, 0, 1), (10, newest - 4, newest - 4), (3, 0, newest - 3)]
    {
        if compacted > 0 {
            ctl.compact(compacted);
        }
        let cache = cache("/g/");
        let feeder = feeder(&etcd.url()).history(asked).too_far_behind(1).start(cache.writer().unwrap()).unwrap();
        cache.wait_ready(BOUND).unwrap();
        assert!(cache.position().revision >= newest, "nobody is taken back: {:?}", cache.position());
        assert_eq!(cache.oldest(), expected + 1, "{asked} revisions, compacted at {compacted}");
        let recorder = Recorder::start(&cache, Start::After(expected));
        if expected < newest {
            let seen = recorder.until("the newest", |seen| seen.revision == newest);
            let revisions: Vec<u64> = seen.iter().map(|seen| seen.revision).collect();
            assert_eq!(revisions, (expected + 1..=newest).collect::<Vec<u64>>());
            assert_eq!(seen.last().unwrap().kind, Kind::Deleted);
        }
        assert_eq!(feeder.counters().resyncs(), 0);
        assert_same(&cache, &ctl);
    }
    // A feeder that stops after its listing shows the present state.
    let cache = cache("/g/");
    let feeder = feeder(&etcd.url()).history(10).stop_after_listing(true).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    assert_eq!(cache.position().revision, newest);
    drop(feeder);
}

/// If the connection stalls in the middle of the history, no reader sees an old state.
#[test]
fn history_is_replayed_before_ready() {
    let etcd = Fake::start();
    for i in 0..30 {
        etcd.put("/g/x", i.to_string());
    }
    let newest = etcd.delete("/g/x");
    // The range is quiet after the newest event: progress has to be requested.
    let elsewhere = etcd.put("/y/n", "elsewhere");
    etcd.fault(Fault::OldProgress);
    etcd.fault(Fault::NoProgress);
    let cache = cache("/g/");
    let feeder = feeder(&etcd.url()).progress_requests(false).history(10).start(cache.writer().unwrap()).unwrap();
    wait_for("the watch", || feeder.counters().connects > 0);
    let status = cache.status();
    assert_eq!((status.state, status.position.revision), (State::NotReady, elsewhere - 10));
    let refused = cache.get("/g/x", Read::Any).unwrap_err();
    assert_eq!(refused.code(), Code::NotReady);
    etcd.heal();
    cache.wait_ready(BOUND).unwrap();
    assert!(cache.position().revision >= elsewhere, "{:?}", cache.position());
    let answer = cache.get("/g/x", Read::Any).unwrap();
    assert!(answer.revision >= elsewhere && answer.kv.is_none(), "{answer:?}");
    let recorder = Recorder::start(&cache, Start::After(elsewhere - 10));
    let seen = recorder.until("the deletion", |seen| seen.revision == newest);
    assert_eq!(seen.len() as u64, newest - (elsewhere - 10));
}

/// If etcd does not answer in time how far it is compacted, it is asked again: the newest revision is not listed
/// instead of the requested history.
#[test]
fn history_outlives_an_unanswered_question() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    for i in 0..30 {
        ctl.put("/g/x", i.to_string());
    }
    let newest = ctl.revision();
    ctl.compact(newest - 4);
    // The refusal of the watch that queries the compaction: canceled, and the compacted revision.
    let refusal = format!("\u{20}\u{1}\u{28}{}", char::from((newest - 4) as u8));
    let proxy = Proxy::swallowing(etcd.address(), &refusal);
    proxy.swallow(true);
    let cache = cache("/g/");
    let builder = feeder(&proxy.url()).history(10).request_timeout(Duration::from_millis(500));
    let feeder = builder.start(cache.writer().unwrap()).unwrap();
    wait_for("the answer does not come", || proxy.swallowed() > 0);
    wait_for("the session ends", || feeder.counters().failures > 0 || cache.is_ready());
    proxy.swallow(false);
    cache.wait_until(newest, BOUND).unwrap();
    assert_eq!(cache.oldest(), newest - 3);
}

#[test]
fn a_start_revision_that_is_compacted_says_so() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    for i in 0..20 {
        ctl.put("/c/x", i.to_string());
    }
    ctl.compact(15);
    let begin_at = |revision| {
        let cache = cache("/c/");
        let feeder = feeder(&etcd.url()).start_revision(revision).start(cache.writer().unwrap()).unwrap();
        (cache, feeder)
    };
    for asked in [5, 14] {
        let (cache, feeder) = begin_at(asked);
        let error = cache.wait_ready(BOUND).expect_err("it cannot begin there");
        assert_eq!((error.code(), error.asked(), error.oldest()), (Code::Compacted, asked, 16), "{error}");
        assert!(error.message().contains(&format!("revision {asked},")), "{error}");
        assert!(error.message().ends_with("Begin at 15 or later."), "{error}");
        assert_eq!(feeder.last_error().unwrap().code(), Code::Compacted);
        let status = cache.status();
        assert_eq!(status.state, State::Failed);
        assert_eq!(status.last_error.unwrap().message(), error.message());
    }
    // The error is right: the revision before the oldest is the first that works, and loses nothing.
    let (cache, _feeder) = begin_at(15);
    cache.wait_ready(BOUND).unwrap();
    assert_eq!(cache.oldest(), 16);
    let recorder = Recorder::start(&cache, Start::After(15));
    let seen = recorder.until("the newest", |seen| seen.revision == 21);
    assert_eq!(seen.iter().map(|seen| seen.revision).collect::<Vec<_>>(), [16, 17, 18, 19, 20, 21]);
    assert_same(&cache, &ctl);
}

#[test]
fn a_start_revision_to_come_is_waited_for() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let now = ctl.put("/c/x", "0");
    let cache = cache("/c/");
    let feeder = feeder(&etcd.url()).start_revision(now + 2).start(cache.writer().unwrap()).unwrap();
    wait_for("the refusal", || feeder.last_error().is_some_and(|error| error.code() == Code::FutureRevision));
    assert_eq!(cache.wait_ready(Duration::from_millis(10)).unwrap_err().code(), Code::Timeout);
    ctl.put("/c/x", "1");
    ctl.put("/c/x", "2");
    ctl.put("/c/x", "3");
    cache.wait_ready(BOUND).unwrap();
    assert_eq!(cache.oldest(), now + 3);
    assert_same(&cache, &ctl);
    wait_for("no error any more", || feeder.last_error().is_none());
}

#[test]
fn stop_after_listing_does_not_watch() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let old = ctl.put("/s/x", "0");
    ctl.put("/s/x", "1");
    let cache = cache("/s/");
    let feeder = feeder(&etcd.url()).start_revision(old).stop_after_listing(true);
    let feeder = feeder.start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    assert_eq!(cache.position().revision, old);
    assert_eq!(value(&cache, "/s/x").as_deref(), Some(&b"0"[..]));
    assert_eq!(cache.status().state, State::Ready);
    // Another feeder shows the events that this one does not watch.
    let (other, _other_feeder) = follow(&etcd, "/s/");
    for _ in 0..3 {
        other.wait_until(ctl.put("/s/x", "2"), BOUND).unwrap();
    }
    assert_eq!(cache.position().revision, old);
    assert_eq!(feeder.counters().connects, 0);
    feeder.stop();
    assert_eq!(value(&cache, "/s/x").as_deref(), Some(&b"0"[..]), "what was listed stays");
}

/// The error that delayed the listing is cleared with the listing, as it is where a watch follows.
#[test]
fn stop_after_listing_ends_ready() {
    let etcd = Etcd::start();
    etcd.ctl().put("/s/x", "0");
    let cache = cache("/s/");
    let builder = Feeder::new(["http://127.0.0.1:1".to_owned(), etcd.url()]).stop_after_listing(true);
    let feeder = builder.start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    assert!(feeder.counters().failures > 0, "the test's own premise");
    wait_for("the state Ready", || cache.status().state == State::Ready);
    assert!(feeder.last_error().is_none(), "{:?}", feeder.last_error());
    assert_eq!(feeder.counters().connects, 0, "no watch");
}

#[test]
fn a_start_above_etcd_s_revision_ends_and_one_below_begins() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let (cache, _feeder) = follow(&etcd, "/f/");
    let far = ctl.revision() + 1000;
    let mut subscription = cache.subscribe(Start::After(far)).open().unwrap();
    let error = loop {
        assert!(subscription.wait(BOUND).unwrap(), "the answer comes");
        match subscription.poll(10) {
            Ok(batch) => assert!(batch.is_empty()),
            Err(error) => break error,
        }
    };
    assert_eq!((error.code(), error.asked()), (Code::FutureRevision, far), "{error}");

    // Written before the cache saw it, so it is not a future revision for etcd.
    let newest = ctl.put("/f/x", "0");
    let recorder = Recorder::start(&cache, Start::After(newest));
    let next = ctl.put("/f/x", "1");
    let seen = recorder.until("the next", |seen| seen.revision == next);
    assert_eq!(seen.iter().map(|seen| seen.revision).collect::<Vec<_>>(), [next]);
}
