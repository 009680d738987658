//! Differences that no event reveals: an etcd with other content than the cache at the same revisions. A sample finds
//! it after a reconnect, the audit finds what the sample misses, and neither finds anything if there is no difference.

use crate::fake::{Fake, Fault};
use crate::faults::{follow, quick, resyncs};
use crate::support::etcd::Etcd;
use crate::support::history::{Recorder, assert_same, value};
use crate::support::{BOUND, wait_for};
use std::time::Duration;
use watchcore::{Cache, Kind, ResyncReason, Start};
use watchcore_etcd::Feeder;

const OFTEN: Duration = Duration::from_millis(20);

/// Keys `/x/000` and so on, each with this value.
fn script(keys: usize, value: &str) -> Vec<(String, String)> {
    (0..keys).map(|number| (format!("/x/{number:03}"), format!("{value} {number}"))).collect()
}

/// The last key, as a heartbeat writes it: the same in every history.
fn beat() -> (String, String) {
    ("/x/beat".to_owned(), "alive".to_owned())
}

fn filled(puts: &[(String, String)]) -> Fake {
    let etcd = Fake::start();
    etcd.refill(puts);
    etcd
}

/// The keys changed by the only resync, which must be of another history.
#[track_caller]
fn changed(recorder: &Recorder) -> Vec<String> {
    let (mark, inside) = recorder.resync();
    assert_eq!(mark.reason, ResyncReason::HistoryReset, "{mark:?}");
    inside.iter().map(|seen| seen.key()).collect()
}

/// The same script refilled etcd with other values: revisions, versions and the newest key are the same.
#[test]
fn refilled_etcd_is_noticed_at_once() {
    let old = [script(5, "old"), vec![beat()]].concat();
    let new = [script(5, "new"), vec![beat()], vec![("/y/extra".to_owned(), "x".to_owned())]].concat();
    // The cache's newest knowledge comes from a listing, or from an event.
    for is_seen in [false, true] {
        let etcd = if is_seen { filled(&old[..5]) } else { filled(&old) };
        let (cache, feeder) = follow(quick([&etcd.url()]).audit_interval(Duration::ZERO), "/x/");
        if is_seen {
            etcd.put("/x/beat", "alive");
            wait_for("the beat", || value(&cache, "/x/beat").is_some());
        }
        let recorder = Recorder::start(&cache, Start::Now);
        etcd.refill(&new);
        etcd.cut();
        assert_eq!(changed(&recorder).len(), 5);
        assert_eq!(value(&cache, "/x/003").as_deref(), Some(&b"new 3"[..]));
        assert_eq!((resyncs(&feeder), feeder.counters().differences, feeder.counters().audits), (1, 1, 0));
    }
}

/// A key that the sample does not draw is noticed because it is missing.
#[test]
fn missing_key_is_noticed_at_once() {
    let long = "v".repeat(70_000);
    let old = [script(40, &long), vec![beat()]].concat();
    let etcd = filled(&old[..40]);
    let (cache, feeder) = follow(quick([&etcd.url()]).audit_interval(Duration::ZERO), "/x/");
    etcd.put("/x/beat", "alive");
    wait_for("the beat", || value(&cache, "/x/beat").is_some());
    let recorder = Recorder::start(&cache, Start::Now);
    // The key's value is too long to be drawn; a key outside the range has its revision.
    let mut new = old.clone();
    new[20].0 = "/y/elsewhere".to_owned();
    etcd.refill(&new);
    etcd.cut();
    assert_eq!(changed(&recorder), ["/x/020"]);
    assert_eq!((resyncs(&feeder), feeder.counters().differences), (1, 1));
}

/// A single value of thousands differs, which the sample does not draw: the audit after the reconnect finds it, and
/// only that key changes.
#[test]
fn audit_finds_what_sample_misses() {
    let long = "v".repeat(70_000);
    let mut old = script(2500, "same");
    old[1234].1 = long.clone();
    old.push(beat());
    let etcd = filled(&old);
    let (cache, feeder) = follow(quick([&etcd.url()]), "/x/");
    let recorder = Recorder::start(&cache, Start::Now);
    let mut new = old.clone();
    new[1234].1 = long.replace('v', "w");
    etcd.refill(&new);
    etcd.cut();
    assert_eq!(changed(&recorder), ["/x/1234"]);
    let counters = feeder.counters();
    assert_eq!((resyncs(&feeder), counters.differences), (1, 1), "{counters:?}");
    assert!(counters.sampled_keys >= 15, "{counters:?}");
    wait_for("its count", || feeder.counters().audits == 1);
    assert!(feeder.counters().audited_keys >= 1000, "{:?}", feeder.counters());
}

/// Without a reconnect, the audit's interval alone finds the difference.
#[test]
fn corrupt_member_is_noticed_by_interval() {
    let etcd = filled(&script(2500, "same"));
    let (cache, feeder) = follow(quick([&etcd.url()]).audit_interval(OFTEN), "/x/");
    wait_for("a round without differences", || feeder.counters().audits > 0);
    assert_eq!((feeder.counters().differences, resyncs(&feeder)), (0, 0));
    let recorder = Recorder::start(&cache, Start::Now);
    etcd.corrupt("/x/2400", "bad").unwrap();
    assert_eq!(changed(&recorder), ["/x/2400"]);
    assert_eq!(value(&cache, "/x/2400").as_deref(), Some(&b"bad"[..]));
    let audits = feeder.counters().audits;
    wait_for("two more rounds", || feeder.counters().audits >= audits + 2);
    assert_eq!((resyncs(&feeder), feeder.counters().differences), (1, 1), "once");
    assert_eq!(feeder.counters().probes, 0, "nothing was connected again");
}

/// A single wrong answer is not another history.
#[test]
fn difference_is_read_twice() {
    let etcd = filled(&script(50, "same"));
    let (cache, feeder) = follow(quick([&etcd.url()]).audit_interval(OFTEN), "/x/");
    etcd.fault_times(Fault::ListsKeyTwice, 1);
    wait_for("the wrong answer", || !etcd.has_fault(Fault::ListsKeyTwice));
    let audits = feeder.counters().audits;
    wait_for("two more rounds", || feeder.counters().audits >= audits + 2);
    assert_eq!((resyncs(&feeder), feeder.counters().differences), (0, 0), "{:?}", cache.status());
}

/// Everything changes during the audit: keys come, change, go and come again, and the cache's revisions are compacted
/// in etcd.
#[test]
fn audit_beside_changes_finds_nothing() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let key = |number: u64| format!("/x/{:04}", number * 7919 % 3000);
    for number in 0..600 {
        ctl.put(key(number), "0");
    }
    let cache = Cache::builder("/x/").build().unwrap();
    // Without progress the position stays below etcd's compacted revision.
    let feeder = Feeder::new([etcd.url()])
        .progress_requests(false)
        .audit_interval(Duration::from_millis(1))
        .start(cache.writer().unwrap())
        .unwrap();
    cache.wait_ready(BOUND).unwrap();
    wait_for("the watch", || feeder.counters().connects > 0);
    let mut number = 0;
    while number < 600 || feeder.counters().audits < 20 {
        match number % 5 {
            0 => ctl.delete(key(number / 2)),
            4 => ctl.put("/y/elsewhere", "0"),
            _ => ctl.put(key(number), number.to_string()),
        };
        number += 1;
        if number % 50 == 0 {
            ctl.compact(ctl.revision());
            let audits = feeder.counters().audits;
            wait_for("two rounds at a compacted revision", || feeder.counters().audits >= audits + 2);
        }
    }
    assert_same(&cache, &ctl);
    let counters = feeder.counters();
    assert_eq!((resyncs(&feeder), counters.differences, counters.failures), (0, 0, 0), "{counters:?}");
    assert!(counters.audited_keys > 1000 && counters.audits >= 20, "{counters:?}");
    let recorder = Recorder::start(&cache, Start::Now);
    let last = ctl.put("/x/last", "1");
    recorder.until("the last event", |seen| seen.revision == last && seen.kind == Kind::Added);
}

/// `Duration::ZERO` switches audits off, also after reconnects.
#[test]
fn audit_is_switched_off() {
    let etcd = filled(&script(50, "same"));
    let (_cache, feeder) = follow(quick([&etcd.url()]).audit_interval(Duration::ZERO), "/x/");
    for reconnects in 1..=3 {
        etcd.cut();
        wait_for("the reconnect", || feeder.counters().reconnects == reconnects);
    }
    let ranges = etcd.calls("Range");
    assert_eq!((feeder.counters().audits, feeder.counters().audited_keys), (0, 0));
    assert!(feeder.counters().sampled_keys > 0 && ranges > 0);
}
