//! Another history at the same address: it is noticed, however much it looks like the one before.

use super::faults::{feeder, follow, resyncs};
use crate::support::BOUND;
use crate::support::etcd::{Ctl, Etcd};
use crate::support::history::{Recorder, assert_same, value};
use crate::support::proxy::Proxy;
use watchcore::{Code, Kind, Read, ResyncReason, Start};

/// A new, empty history at the same address.
fn replaced(etcd: &mut Etcd) -> Ctl {
    etcd.kill();
    etcd.wipe();
    etcd.launch();
    etcd.ctl()
}

#[test]
fn a_history_that_went_back_resyncs() {
    let mut etcd = Etcd::start();
    let ctl = etcd.ctl();
    for i in 0..30 {
        ctl.put("/x/n", i.to_string());
    }
    ctl.put("/x/gone", "old");
    let (cache, feeder) = follow(feeder(&etcd.url()), "/x/");
    let epoch = cache.position().epoch;
    let recorder = Recorder::start(&cache, Start::Now);
    let ctl = replaced(&mut etcd);
    ctl.put("/x/n", "new");
    let (mark, inside) = recorder.resync();
    assert_eq!((mark.reason, mark.from), (ResyncReason::HistoryReset, 32));
    assert!(mark.to < mark.from && mark.epoch > epoch, "{mark:?}");
    assert!(inside.iter().any(|seen| seen.kind == Kind::Deleted && seen.key == b"/x/gone"));
    assert_same(&cache, &ctl);
    assert_eq!(value(&cache, "/x/n").as_deref(), Some(&b"new"[..]));
    assert!(feeder.counters().resyncs_for(ResyncReason::HistoryReset) >= 1);
    let error = cache.get("/x/n", Read::Exact(20)).err().map(|error| error.code());
    assert!(matches!(error, None | Some(Code::Compacted | Code::Timeout | Code::FutureRevision)), "{error:?}");
}

/// The other history has more revisions than the old one before anybody looks.
fn grown_past(write: impl Fn(&Ctl), rewrite: impl Fn(&Ctl), settle: bool) {
    let mut etcd = Etcd::start();
    let proxy = Proxy::to(etcd.address());
    let ctl = etcd.ctl();
    write(&ctl);
    let (cache, feeder) = follow(feeder(&proxy.url()), "/x/");
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
    assert!(ctl.revision() > cache.position().revision, "the test's own premise");
    proxy.allow();
    let (mark, _) = recorder.resync();
    assert_eq!(mark.reason, ResyncReason::HistoryReset, "{mark:?}");
    assert_same(&cache, &ctl);
    assert_eq!(resyncs(&feeder), 1);
    let _ = ctl.put("/x/n", "live again");
    assert_same(&cache, &ctl);
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

/// The same puts in both, up to revision 4.
fn same_beginning(ctl: &Ctl) {
    ctl.put("/x/n", "0");
    ctl.put("/x/m", "0");
    ctl.put("/x/n", "1");
}

#[test]
fn another_history_with_the_same_newest_put_is_noticed_by_a_later_put() {
    // Another value of ours before the revision that was listed.
    grown_past(
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

#[test]
fn another_history_below_a_progress_notification_is_noticed() {
    // The newest put is the same in both; after it the old one had progress, the new one an event.
    grown_past(
        |ctl| fill(ctl, "/x/n", 3),
        |ctl| {
            fill(ctl, "/x/n", 3);
            ctl.put("/x/n", "seen");
            fill(ctl, "/x/m", 2);
            fill(ctl, "/y/n", 20);
        },
        true,
    );
}
