//! Another history at the same address: it is noticed, however similar to the previous one.

use super::faults::{feeder, follow, resyncs};
use crate::support::etcd::{Ctl, Etcd};
use crate::support::history::{Recorder, assert_same, value};
use crate::support::proxy::Proxy;
use crate::support::{BOUND, wait_for};
use etcd_client::TxnOp;
use watchcore::{Cache, Code, Read, ResyncReason, Start};
use watchcore_etcd::Counters;

/// Starts a new, empty history at the same address.
fn replaced(etcd: &mut Etcd) -> Ctl {
    etcd.kill();
    etcd.wipe();
    etcd.launch();
    etcd.ctl()
}

/// The other history has more revisions than the old one before the feeder looks.
fn grown_past(write: impl Fn(&Ctl), rewrite: impl Fn(&Ctl), settle: bool) -> Counters {
    grown_past_with(20_000, write, rewrite, settle)
}

/// As `grown_past`, with the number of missed revisions that causes a listing.
fn grown_past_with(too_far_behind: u64, write: impl Fn(&Ctl), rewrite: impl Fn(&Ctl), settle: bool) -> Counters {
    let mut etcd = Etcd::start();
    let proxy = Proxy::to(etcd.address());
    let ctl = etcd.ctl();
    write(&ctl);
    let (cache, feeder) = follow(feeder(&proxy.url()).too_far_behind(too_far_behind), "/x/");
    let recorder = Recorder::start(&cache, Start::Now);
    if settle {
        // The newest event comes by the watch, progress after it.
        ctl.put("/x/n", "seen");
        ctl.put("/y/n", "elsewhere");
        cache.wait_until(ctl.put("/y/n", "elsewhere"), BOUND).unwrap();
    }
    proxy.refuse();
    let ctl = replaced(&mut etcd);
    rewrite(&ctl);
    ctl.put("/x/late", "of the other history");
    assert!(ctl.revision() > cache.position().revision, "the test's own premise");
    proxy.allow();
    let (mark, _) = recorder.resync();
    assert_eq!(mark.reason, ResyncReason::HistoryReset, "{mark:?}");
    // The check comes before the watch. An audit would notice, too, but it may come after this event.
    let before: Vec<_> = recorder.all().into_iter().take_while(|seen| seen.resync.is_none()).collect();
    assert!(before.iter().all(|seen| seen.key != b"/x/late"), "{before:?}");
    assert_same(&cache, &ctl);
    assert_eq!(resyncs(&feeder), 1);
    let _ = ctl.put("/x/n", "live again");
    assert_same(&cache, &ctl);
    feeder.counters()
}

fn fill(ctl: &Ctl, key: &str, times: usize) {
    for i in 0..times {
        ctl.put(key, i.to_string());
    }
}

#[test]
fn another_history_that_grew_past_ours_is_noticed_by_the_newest_put() {
    grown_past(|ctl| fill(ctl, "/x/n", 10), |ctl| fill(ctl, "/x/m", 40), true);
}

#[test]
fn another_history_that_grew_past_our_listing_is_noticed() {
    grown_past(|ctl| fill(ctl, "/x/n", 10), |ctl| fill(ctl, "/x/m", 40), false);
}

/// The same puts in both histories. There are so many keys that the sample, which is read too, has few of them.
fn same_beginning(ctl: &Ctl) {
    for first in (0..2_000).step_by(100) {
        ctl.txn((first..first + 100).map(|i| TxnOp::put(format!("/x/{i}"), "0", None)).collect());
    }
    ctl.put("/x/n", "0");
    ctl.put("/x/m", "0");
    ctl.put("/x/n", "1");
}

#[test]
fn another_history_with_the_same_newest_put_is_noticed_by_a_later_put() {
    // Our history has another value before the listed revision.
    let counters = grown_past(
        |ctl| {
            same_beginning(ctl);
            fill(ctl, "/y/n", 6);
        },
        |ctl| {
            same_beginning(ctl);
            fill(ctl, "/x/m", 2);
            fill(ctl, "/y/n", 20);
        },
        false,
    );
    assert_eq!(counters.differences, 0, "by the put, before any states are compared");
}

#[test]
fn another_history_with_the_same_newest_put_is_noticed_by_the_count() {
    grown_past(
        |ctl| {
            same_beginning(ctl);
            fill(ctl, "/y/n", 6);
        },
        |ctl| {
            same_beginning(ctl);
            ctl.delete("/x/m");
            fill(ctl, "/y/n", 20);
        },
        false,
    );
}

/// The newest put is the same in both; after it the old one had progress, the new one an event.
fn same_newest_put(ctl: &Ctl) {
    fill(ctl, "/x/n", 3);
}

fn event_in_place_of_progress(ctl: &Ctl) {
    same_newest_put(ctl);
    ctl.put("/x/n", "seen");
    fill(ctl, "/x/m", 2);
    fill(ctl, "/y/n", 20);
}

#[test]
fn another_history_below_a_progress_notification_is_noticed() {
    grown_past(same_newest_put, event_in_place_of_progress, true);
}

/// The cache is so far behind that it is listed anyway, counted from the newest put.
#[test]
fn another_history_far_ahead_is_noticed() {
    grown_past_with(5, same_newest_put, event_in_place_of_progress, true);
}

/// A backup is restored while a caller waits for a consistent read. The answer must be of the cache's history, so the
/// listing comes first: a revision of the new history would be below the cache's position in the old one, whose state
/// would be read at once.
#[test]
fn consistent_read_waits_for_the_history() {
    let mut etcd = Etcd::start();
    let proxy = Proxy::to(etcd.address());
    let ctl = etcd.ctl();
    // A listing that takes long: it is stalled in its middle.
    ctl.put("/x/large", vec![b'x'; 1_000_000]);
    let backup = etcd.back_up();
    fill(&ctl, "/x/a", 60);
    let last = ctl.put("/x/a", "old");
    let (cache, feeder) = follow(feeder(&proxy.url()), "/x/");
    cache.wait_until(last, BOUND).unwrap();
    proxy.refuse();
    let before = feeder.counters().failures;
    wait_for("the loss is noticed", || feeder.counters().failures > before);
    std::thread::scope(|scope| {
        let reads = || {
            let newest = cache.consistent_revision(BOUND)?;
            cache.get("/x/a", Read::AtLeast(newest)).map(|found| found.kv.unwrap().value().unwrap().to_vec())
        };
        let reader = scope.spawn(reads);
        wait_for("somebody waits", || cache.stats().waiting > 0);
        etcd.kill();
        etcd.restore(&backup, None);
        etcd.launch();
        etcd.ctl().put("/x/a", "new");
        proxy.stall_after(100_000);
        proxy.allow();
        wait_for("the middle of the listing", || proxy.is_stalled());
        proxy.stall(false);
        let read = reader.join().unwrap().map_err(|error| error.code());
        assert!(read == Ok(b"new".to_vec()) || read == Err(Code::Resynced), "{read:?}");
    });
    assert_same(&cache, &etcd.ctl());
    assert!(feeder.counters().resyncs_for(ResyncReason::HistoryReset) >= 1);
}

/// Connections to one address reach two clusters: the listing is of the first, the watch of the second. No key of the
/// second contradicts the listing.
#[test]
fn watch_of_another_cluster_is_not_followed() {
    let (first, second) = (Etcd::start(), Etcd::start());
    first.ctl().put("/x/a", "of the first");
    let ctl = second.ctl();
    fill(&ctl, "/x/b", 60);
    let proxy = Proxy::switching(first.address(), second.address());
    let cache = Cache::builder("/x/").build().unwrap();
    let feeder = feeder(&proxy.url()).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    wait_for("the second cluster", || value(&cache, "/x/b").is_some());
    let last = ctl.put("/x/c", "1");
    cache.wait_until(last, BOUND).unwrap();
    assert_same(&cache, &ctl);
    assert_eq!(feeder.counters().resyncs_for(ResyncReason::HistoryReset), 1, "{:?}", feeder.counters());
}
