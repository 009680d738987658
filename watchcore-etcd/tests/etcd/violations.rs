//! A server that breaks the rules of etcd's API: its data is not used or shown, and another endpoint is chosen if one
//! works.

use crate::fake::{Fake, Fault};
use crate::faults::{assert_unbroken, follow, quick, resyncs};
use crate::support::history::Recorder;
use crate::support::wait_for;
use std::collections::BTreeMap;
use std::time::Duration;
use watchcore::{Cache, Code, ResyncReason, Start, State};
use watchcore_etcd::{Feeder, FeederBuilder};

/// Faults that break a rule of the watch.
const SENT: [Fault; 9] = [
    Fault::SendsForeignKey,
    Fault::SendsEmptyKey,
    Fault::SendsKeyTwice,
    Fault::SendsLargeRevision,
    Fault::SendsNegativeRevision,
    Fault::SendsFutureEvent,
    Fault::SendsWrongVersion,
    Fault::OtherWatch,
    Fault::ProgressInFragments,
];

/// Faults that break a rule of the listing.
const LISTED: [Fault; 7] = [
    Fault::ListsForeignKey,
    Fault::ListsEmptyKey,
    Fault::ListsKeyTwice,
    Fault::ListsLargeRevision,
    Fault::ListsNegativeVersion,
    Fault::ListsFutureKey,
    Fault::LargeRevision,
];

/// An endpoint with the content that all endpoints of the cluster have.
fn filled() -> Fake {
    let etcd = Fake::start();
    for number in 0..150 {
        etcd.put(format!("/x/{number:03}"), "old");
    }
    etcd
}

/// Writes two keys in one revision.
fn write(etcd: &Fake, value: &str) -> u64 {
    etcd.txn(&[(b"/x/000", Some(value.as_bytes())), (b"/x/001", Some(value.as_bytes()))])
}

fn started(builder: FeederBuilder) -> (Cache, Feeder) {
    let cache = Cache::builder("/x/").build().unwrap();
    let feeder = builder.start(cache.writer().unwrap()).unwrap();
    (cache, feeder)
}

/// Waits for a condition; meanwhile the status never blames the user.
#[track_caller]
fn unaccused(cache: &Cache, what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || {
        let status = cache.status();
        assert!(!matches!(status.state, State::Failed), "{:?}", status.state);
        if let Some(error) = status.last_error {
            assert_eq!(error.code(), Code::Unavailable, "{error}");
            assert!(!error.message().contains("Correct it"), "{error}");
        }
        condition()
    });
}

/// Whether the cache equals an endpoint's content and is Ready.
fn is_equal(cache: &Cache, etcd: &Fake) -> bool {
    cache.status().state == State::Ready && cache.snapshot().is_ok_and(|shown| contents(&shown) == etcd.contents("/x/"))
}

fn contents(shown: &watchcore::Snapshot) -> BTreeMap<Vec<u8>, Vec<u8>> {
    shown.iter().map(|kv| (kv.key().to_vec(), kv.value().unwrap_or_default().to_vec())).collect()
}

/// A single violation, as by accident: the same server is listed again at once.
#[test]
fn violation_is_mended_by_a_listing() {
    for fault in SENT {
        let etcd = filled();
        let (cache, feeder) = follow(quick([&etcd.url()]), "/x/");
        let recorder = Recorder::start(&cache, Start::Now);
        etcd.fault_times(fault, 1);
        let last = write(&etcd, "new");
        unaccused(&cache, "the repair", || cache.position().revision == last && is_equal(&cache, &etcd));
        let counters = feeder.counters();
        assert_eq!((counters.integrity_violations, resyncs(&feeder)), (1, 1), "{fault:?}: {counters:?}");
        assert_eq!(feeder.counters().resyncs_for(ResyncReason::ChainBroken), 1);
        let seen = recorder.until("both keys", |seen| seen.revision == last && seen.key() == "/x/001");
        let of_last: Vec<String> = seen.iter().filter(|seen| seen.resync.is_none()).map(|seen| seen.key()).collect();
        assert_eq!(of_last, ["/x/000", "/x/001"], "{fault:?}: a revision is whole, and nothing else came");
    }
}

#[test]
fn endpoint_that_violates_again_is_left() {
    for fault in SENT {
        let (poisoned, healthy) = (filled(), filled());
        let (cache, feeder) = follow(quick([&poisoned.url(), &healthy.url()]), "/x/");
        poisoned.fault(fault);
        for value in ["first", "second", "third"] {
            let last = write(&poisoned, value);
            assert_eq!(write(&healthy, value), last, "they are members of one cluster");
            unaccused(&cache, "the change", || cache.position().revision == last && is_equal(&cache, &healthy));
        }
        assert_eq!(cache.status().source.endpoint, healthy.url(), "{fault:?}");
        assert_eq!(feeder.counters().integrity_violations, 2, "{fault:?}: the third change came of the healthy one");
        assert!(poisoned.calls("RangeStream") <= 2, "{fault:?}: {}", poisoned.calls("RangeStream"));
    }
}

#[test]
fn listing_of_nonsense_is_tried_again() {
    for fault in LISTED {
        let etcd = filled();
        etcd.fault(fault);
        let (cache, feeder) = started(quick([&etcd.url()]));
        unaccused(&cache, "some tries", || feeder.counters().failures >= 3);
        assert!(feeder.counters().integrity_violations >= 3, "{fault:?}: {:?}", feeder.counters());
        assert!(cache.snapshot().is_err(), "{fault:?}: nothing of it is shown");
        etcd.heal();
        unaccused(&cache, "the listing", || is_equal(&cache, &etcd));
    }
}

#[test]
fn listing_of_nonsense_is_left_for_another_endpoint() {
    for fault in LISTED {
        let (poisoned, healthy) = (filled(), filled());
        poisoned.fault(fault);
        let (cache, feeder) = started(quick([&poisoned.url(), &healthy.url()]));
        unaccused(&cache, "the listing", || is_equal(&cache, &healthy));
        assert_eq!((feeder.counters().failures, cache.status().source.endpoint), (2, healthy.url()), "{fault:?}");
    }
}

/// The cache's limit is only reported as the user's problem if every member has the value.
#[test]
fn refused_value_is_asked_of_another_endpoint() {
    let (corrupt, healthy) = (filled(), filled());
    corrupt.put("/x/000", vec![b'v'; 2000]);
    healthy.put("/x/000", "new");
    let cache = Cache::builder("/x/").max_value_bytes(1000).build().unwrap();
    let _feeder = quick([&corrupt.url(), &healthy.url()]).start(cache.writer().unwrap()).unwrap();
    wait_for("the listing", || is_equal(&cache, &healthy));
    assert_eq!(cache.status().source.endpoint, healthy.url());
}

/// A server or proxy that delivers everything twice, message by message or event by event.
#[test]
fn events_that_come_twice_are_dropped() {
    for fault in [Fault::SendsTwice, Fault::EventsTwice] {
        let etcd = filled();
        let (cache, feeder) = follow(quick([&etcd.url()]), "/x/");
        let recorder = Recorder::start(&cache, Start::Now);
        etcd.fault(fault);
        let mut revisions: Vec<u64> = (0..300).map(|value| etcd.put("/x/000", value.to_string())).collect();
        revisions.extend([etcd.delete("/x/000"), etcd.put("/x/000", "again"), etcd.put("/x/001", "last")]);
        assert_unbroken(&recorder, &revisions);
        assert!(is_equal(&cache, &etcd));
        let counters = feeder.counters();
        wait_for("the last repetition", || feeder.counters().repeated_events == revisions.len() as u64);
        assert_eq!((counters.integrity_violations, counters.listings, counters.failures), (0, 1, 0), "{fault:?}");
    }
}

/// The first setback is handled at once; from the second on the cache is Stale, says why, and waits longer each time.
#[test]
fn setbacks_in_a_row_are_no_readiness() {
    for (fault, reason) in [(Fault::CompactedWatches, "reason Compacted"), (Fault::SendsWrongVersion, "not the next")] {
        let etcd = filled();
        let (cache, feeder) = follow(
            // The connection is stable only after a watch of a minute, or many revisions.
            quick([&etcd.url()]).backoff(Duration::from_millis(5), Duration::from_secs(60)),
            "/x/",
        );
        etcd.fault(fault);
        etcd.cut();
        for connects in 2..7 {
            wait_for("the next watch", || feeder.counters().connects >= connects);
            let last = etcd.put("/x/000", connects.to_string());
            unaccused(&cache, "the change", || cache.position().revision >= last);
        }
        assert!(matches!(cache.status().state, State::Stale { .. }), "{fault:?}: {:?}", cache.status().state);
        let error = feeder.last_error().expect("a reason");
        assert!(error.message().contains(reason), "{error}");
        let listings = feeder.counters().listings;
        assert!(listings <= feeder.counters().connects + 1, "{fault:?}: {:?}", feeder.counters());
        etcd.heal();
        let before = feeder.counters().connects;
        let is_watched = || etcd.watches() > 0 && feeder.counters().connects > before;
        if fault == Fault::CompactedWatches {
            wait_for("a watch that lasts", is_watched);
        }
        let last = etcd.put("/x/000", "healed");
        wait_for("the change", || cache.position().revision == last);
        assert!(matches!(cache.status().state, State::Stale { .. }), "{fault:?}: one event is no calm");
        for value in 0..1000 {
            etcd.put("/x/000", value.to_string());
        }
        wait_for("calm", || cache.status().state == State::Ready);
        assert!(feeder.last_error().is_none());
    }
}

/// Each listing is refused as compacted: it used to be retried as fast as the server answers.
#[test]
fn compacted_listings_pause() {
    for (fault, is_loaded) in
        [(Fault::CompactedReads, false), (Fault::CompactedReads, true), (Fault::CompactedStreams, false)]
    {
        let etcd = filled();
        let loaded = is_loaded.then(|| follow(quick([&etcd.url()]), "/x/"));
        etcd.fault(fault);
        etcd.cut();
        let (cache, feeder) = loaded.unwrap_or_else(|| started(quick([&etcd.url()])));
        unaccused(&cache, "some tries", || feeder.counters().failures >= 5);
        let (reads, failures) = (etcd.calls("Range") + etcd.calls("RangeStream"), feeder.counters().failures);
        assert!(reads <= 8 * (failures + 2), "{reads} reads in {failures} sessions");
        unaccused(&cache, "the reason", || {
            feeder.last_error().is_some_and(|error| error.message().contains("twice in a row"))
        });
        assert_ne!(cache.status().state, State::Ready);
        etcd.heal();
        unaccused(&cache, "the listing", || is_equal(&cache, &etcd));
    }
}

/// A stream that brings nothing, repeats itself, or has more keys than counted: pages are requested.
#[test]
fn endless_streams_are_left() {
    for fault in [Fault::EndlessStream, Fault::RepeatingStream, Fault::RisingStream] {
        let etcd = filled();
        etcd.fault(fault);
        // The timeout ends the stream that brings nothing; the others break a rule, and must do so before any timeout.
        let silence = Duration::from_millis(if fault == Fault::EndlessStream { 300 } else { 10_000 });
        let (cache, feeder) = started(quick([&etcd.url()]).request_timeout(silence));
        unaccused(&cache, "the listing", || is_equal(&cache, &etcd));
        assert_eq!((feeder.counters().listings, feeder.counters().failures), (2, 0), "{fault:?}");
        assert_eq!(feeder.counters().integrity_violations, u64::from(fault != Fault::EndlessStream));
        etcd.fault(Fault::EndlessPages);
        feeder.request_resync();
        unaccused(&cache, "the failure", || feeder.counters().failures >= 2);
        etcd.heal();
        unaccused(&cache, "the listing", || is_equal(&cache, &etcd));
    }
}

/// A watch that answers each progress request but delivers nothing is compared with a read.
#[test]
fn watch_with_old_progress_is_left() {
    let each = |builder: FeederBuilder| builder.progress_interval(Duration::from_millis(10));
    let (stale, healthy) = (filled(), filled());
    let (cache, feeder) = follow(each(quick([&stale.url(), &healthy.url()])), "/x/");
    // A watch that has delivered something is Synced; before that it is Mute, and liveness reads go on all the time.
    let last = write(&stale, "live");
    write(&healthy, "live");
    wait_for("the change", || cache.position().revision == last);
    stale.fault(Fault::OldProgress);
    let last = write(&stale, "new");
    write(&healthy, "new");
    unaccused(&cache, "the change", || cache.position().revision == last && is_equal(&cache, &healthy));
    assert_eq!((feeder.counters().stale_watches, resyncs(&feeder)), (1, 0));
    assert!(feeder.counters().liveness_reads >= 1);
    drop(feeder);
    let (cache, feeder) = follow(each(quick([&stale.url()])), "/x/");
    let last = write(&stale, "newer");
    unaccused(&cache, "the failure", || feeder.counters().stale_watches >= 2);
    wait_for("the state Stale", || matches!(cache.status().state, State::Stale { .. }));
    stale.heal();
    unaccused(&cache, "the change", || cache.position().revision == last && is_equal(&cache, &stale));
}

/// A long message in transit is no silence.
#[test]
fn message_under_way_is_no_silence() {
    let etcd = filled();
    let (cache, feeder) = follow(quick([&etcd.url()]).progress_interval(Duration::from_millis(50)), "/x/");
    etcd.fault_times(Fault::Slow, 1);
    let last = etcd.put("/x/000", vec![b'v'; 25_000]);
    wait_for("the change", || cache.position().revision == last);
    assert_eq!((feeder.counters().silences, feeder.counters().connects), (0, 1));
}

/// Proxies of etcd send headers that name no cluster.
#[test]
fn answers_without_a_cluster_are_of_the_known_one() {
    let etcd = filled();
    let (cache, feeder) = follow(quick([&etcd.url()]), "/x/");
    let known = cache.status().source.cluster_id;
    for is_named in [false, true, false, true] {
        if is_named {
            etcd.heal();
        } else {
            etcd.fault(Fault::NoCluster);
        }
        let before = feeder.counters();
        etcd.cut();
        wait_for("the reconnect", || feeder.counters().reconnects > before.reconnects);
        feeder.request_resync();
        wait_for("the listing", || feeder.counters().listings > before.listings);
        let last = write(&etcd, "new");
        wait_for("the change", || cache.position().revision == last);
        assert_eq!(feeder.counters().resyncs_for(ResyncReason::HistoryReset), 0);
        assert_eq!(cache.status().source.cluster_id, known);
    }
}

/// A single header with a far too high revision counts only until the next one.
#[test]
fn one_far_header_is_forgotten() {
    let etcd = filled();
    let (cache, _feeder) = follow(quick([&etcd.url()]), "/x/");
    let last_said = || {
        write(&etcd, "new");
        cache.status().source.etcd_revision
    };
    etcd.fault(Fault::FarHeader);
    wait_for("the header", || last_said() == 1_000_000_000_000);
    etcd.heal();
    wait_for("the next one", || last_said() <= etcd.revision());
}
