//! The feeder under faults of etcd: no event is lost, or a resync shows the difference.

use crate::support::etcd::{Ctl, Etcd};
use crate::support::history::{Recorder, assert_same, value};
use crate::support::proxy::Proxy;
use crate::support::{BOUND, wait_for};
use std::time::Duration;
use watchcore::{Attribute, Cache, Code, Kind, Read, ResyncReason, Start, State};
use watchcore_etcd::{Feeder, FeederBuilder};

/// A feeder with short retry delays.
pub fn feeder(url: &str) -> FeederBuilder {
    quick([url])
}

pub fn quick<const N: usize>(urls: [&str; N]) -> FeederBuilder {
    Feeder::new(urls)
        .backoff(Duration::from_millis(5), Duration::from_millis(100))
        .progress_interval(Duration::from_millis(200))
}

pub fn follow(builder: FeederBuilder, prefix: &str) -> (Cache, Feeder) {
    let cache = Cache::builder(prefix).build().expect("a cache");
    let feeder = builder.start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).expect("ready");
    wait_for("the watch", || feeder.counters().connects > 0);
    (cache, feeder)
}

pub fn resyncs(feeder: &Feeder) -> u64 {
    feeder.counters().resyncs()
}

/// Checks that every put of `/x/n` with a rising number was seen once and in order, and nothing else.
#[track_caller]
pub fn assert_unbroken(recorder: &Recorder, revisions: &[u64]) {
    let last = *revisions.last().expect("something was written");
    let seen = recorder.until("the last event", |seen| seen.revision == last);
    assert_eq!(seen.iter().map(|seen| seen.revision).collect::<Vec<_>>(), revisions);
}

#[test]
fn kill_9_and_a_restart_lose_nothing() {
    let mut etcd = Etcd::start();
    etcd.ctl().put("/x/first", "0");
    let (cache, feeder) = follow(feeder(&etcd.url()), "/x/");
    let recorder = Recorder::start(&cache, Start::Now);
    let mut revisions = Vec::new();
    for round in 0..3 {
        let ctl = etcd.ctl();
        for i in 0..20 {
            revisions.push(ctl.put("/x/n", format!("{round}.{i}")));
        }
        revisions.push(ctl.delete("/x/n"));
        etcd.kill();
        wait_for("the loss is noticed", || matches!(cache.status().state, State::Stale { .. }));
        assert!(cache.get("/x/first", Read::Any).unwrap().kv.is_some(), "reads continue");
        assert_eq!(cache.status().last_error.unwrap().code(), Code::Unavailable);
        etcd.launch();
    }
    let ctl = etcd.ctl();
    revisions.push(ctl.put("/x/n", "end"));
    assert_unbroken(&recorder, &revisions);
    assert_same(&cache, &ctl);
    assert_eq!(resyncs(&feeder), 0, "{:?}", feeder.counters());
    assert!(feeder.counters().reconnects >= 1);
    wait_for("ready again", || cache.status().state == State::Ready);
}

#[test]
fn cut_connections_lose_nothing() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.address());
    let ctl = etcd.ctl();
    let (cache, feeder) = follow(feeder(&proxy.url()), "/x/");
    let recorder = Recorder::start(&cache, Start::Now);
    let mut revisions = Vec::new();
    for i in 0..300 {
        revisions.push(ctl.put("/x/n", i.to_string()));
        ctl.put("/y/n", "elsewhere");
        if i % 30 == 29 {
            proxy.cut();
        }
        if i % 100 == 50 {
            // The connection is gone for a while.
            proxy.refuse();
            wait_for("the loss is noticed", || matches!(cache.status().state, State::Stale { .. }));
        }
        if i % 100 == 70 {
            proxy.allow();
        }
    }
    assert_unbroken(&recorder, &revisions);
    assert_same(&cache, &ctl);
    assert_eq!(resyncs(&feeder), 0, "{:?}", feeder.counters());
    assert!(feeder.counters().reconnects >= 1 && feeder.counters().probes >= 1);
}

#[test]
fn a_reconnect_after_progress_goes_on_without_a_resync() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.address());
    let ctl = etcd.ctl();
    let (cache, feeder) = follow(feeder(&proxy.url()), "/x/");
    let recorder = Recorder::start(&cache, Start::Now);
    let mut revisions = vec![ctl.put("/x/n", "0")];
    for i in 0..3 {
        // The position is far ahead by progress alone.
        for _ in 0..50 {
            ctl.put("/y/n", "elsewhere");
        }
        cache.wait_until(ctl.revision(), BOUND).unwrap();
        let before = feeder.counters().connects;
        proxy.cut();
        wait_for("the reconnect", || feeder.counters().connects > before);
        // The newest event is a put, or a deletion.
        revisions.push(if i == 1 { ctl.delete("/x/n") } else { ctl.put("/x/n", "again") });
    }
    assert_unbroken(&recorder, &revisions);
    assert_same(&cache, &ctl);
    assert_eq!(resyncs(&feeder), 0, "{:?}", feeder.counters());
}

#[test]
fn an_empty_range_survives_a_reconnect_without_a_resync() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.address());
    let ctl = etcd.ctl();
    ctl.put("/y/n", "elsewhere");
    let (cache, feeder) = follow(feeder(&proxy.url()), "/x/");
    let recorder = Recorder::start(&cache, Start::Now);
    proxy.cut();
    wait_for("the reconnect", || feeder.counters().reconnects > 0);
    let revision = ctl.put("/x/n", "0");
    assert_unbroken(&recorder, &[revision]);
    assert_eq!(resyncs(&feeder), 0);
    assert_same(&cache, &ctl);
}

#[test]
fn a_compaction_of_all_that_was_applied_resyncs() {
    // The watch's revisions still exist, but the evidence that the history is the same is compacted.
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.address());
    let ctl = etcd.ctl();
    let from = ctl.put("/x/n", "0");
    let (cache, _feeder) = follow(feeder(&proxy.url()), "/x/");
    let recorder = Recorder::start(&cache, Start::Now);
    proxy.refuse();
    let next = ctl.put("/x/n", "1");
    ctl.compact(next);
    proxy.allow();
    let (mark, inside) = recorder.resync();
    assert_eq!((mark.reason, mark.from, mark.to), (ResyncReason::Compacted, from, next));
    assert_eq!(inside.len(), 1);
    assert_same(&cache, &ctl);
}

#[test]
fn a_resync_that_was_asked_for_outlives_the_connection() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.address());
    let ctl = etcd.ctl();
    ctl.put("/x/n", "0");
    let (cache, feeder) = follow(feeder(&proxy.url()), "/x/");
    cache.wait_until(ctl.put("/x/n", "1"), BOUND).unwrap();
    proxy.stall(true);
    // A change that only the listing brings.
    ctl.put("/x/n", "2");
    feeder.request_resync();
    wait_for("the listing", || feeder.counters().listings == 2);
    // The listing is in progress and never completes.
    proxy.refuse();
    proxy.stall(false);
    proxy.allow();
    wait_for("the resync", || feeder.counters().resyncs_for(ResyncReason::Requested) == 1);
    assert_same(&cache, &ctl);
    assert_eq!(resyncs(&feeder), 1);
}

#[test]
fn one_revision_less_than_too_far_is_replayed() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.address());
    let ctl = etcd.ctl();
    let (cache, feeder) = follow(feeder(&proxy.url()).too_far_behind(50), "/x/");
    let recorder = Recorder::start(&cache, Start::Now);
    let before = ctl.put("/x/n", "seen");
    cache.wait_until(before, BOUND).unwrap();
    proxy.refuse();
    let mut revisions = vec![before];
    revisions.extend((0..50).map(|i| ctl.put("/x/n", i.to_string())));
    proxy.allow();
    assert_unbroken(&recorder, &revisions);
    assert_eq!(resyncs(&feeder), 0);
}

#[test]
fn a_silent_server_is_left_for_another_endpoint() {
    let etcd = Etcd::start();
    let silent = Proxy::to(etcd.address());
    let other = Proxy::to(etcd.address());
    let ctl = etcd.ctl();
    let (cache, feeder) = follow(quick([&silent.url(), &other.url()]), "/x/");
    let recorder = Recorder::start(&cache, Start::Now);
    let mut revisions = vec![ctl.put("/x/n", "0")];
    cache.wait_until(revisions[0], BOUND).unwrap();
    silent.stall(true);
    revisions.push(ctl.put("/x/n", "1"));
    assert_unbroken(&recorder, &revisions);
    assert_eq!(cache.status().source.endpoint, other.url());
    assert!(feeder.counters().silences >= 1);
    assert_eq!(resyncs(&feeder), 0);
}

/// A few revisions may be many megabytes: a server that is sending them answers no progress request meanwhile.
#[test]
fn a_server_that_is_slow_to_catch_up_is_not_left() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let first = ctl.put("/x/n", "0");
    let newest = (0..8).map(|_| ctl.put("/x/n", vec![b'x'; 1 << 20])).max().unwrap();
    let proxy = Proxy::to(etcd.address());
    proxy.stall_after(2 << 20);
    let cache = Cache::builder("/x/").build().unwrap();
    let feeder = feeder(&proxy.url()).progress_interval(Duration::from_millis(10)).start_revision(first);
    let feeder = feeder.start(cache.writer().unwrap()).unwrap();
    wait_for("the middle of the history", || proxy.is_stalled());
    // A watch without a backlog would be given up after a second at this interval, which has a hundred requests a
    // second.
    wait_for("many requests", || feeder.counters().progress_requests >= 250);
    proxy.stall(false);
    cache.wait_until(newest, BOUND).unwrap();
    let counters = feeder.counters();
    assert_eq!((counters.silences, counters.connects), (0, 1), "{counters:?}");
}

#[test]
fn an_idle_server_is_not_taken_for_a_silent_one() {
    // Until the store reaches the watch's first revision, etcd answers no progress request.
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let (cache, feeder) = follow(feeder(&etcd.url()), "/x/");
    wait_for("many requests", || feeder.counters().progress_requests >= 30);
    let idle = feeder.counters();
    // A single silence may come from a loaded machine; a server mistaken for silent would be given up every fifth
    // interval.
    assert!(idle.connects <= 2 && idle.silences <= 1, "{idle:?}");
    assert_eq!(idle.progress_notifications, 0, "the test's own premise");
    // Afterwards etcd answers them.
    cache.wait_until(ctl.put("/y/n", "elsewhere"), BOUND).unwrap();
    wait_for("progress", || feeder.counters().progress_notifications > 0);
    assert_same(&cache, &ctl);
}

/// A watch at the store's next revision is mute, so a liveness read shows that it lives. The answer must not be
/// compared with revisions that were applied during the read.
#[test]
fn event_during_a_liveness_read() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    ctl.put("/x/n", "0");
    let proxy = Proxy::swallowing(etcd.address(), "nothing");
    let (cache, feeder) = follow(Feeder::new([&proxy.url()]), "/x/");
    proxy.hold_first(true);
    wait_for("the answer of a liveness read", || proxy.held() >= 1);
    // The watch has its own connection, which is not held.
    cache.wait_until(ctl.put("/x/n", "1"), BOUND).unwrap();
    proxy.hold_first(false);
    // This read uses the same connection, after the held answer.
    cache.consistent_revision(BOUND).unwrap();
    cache.wait_until(ctl.put("/x/n", "2"), BOUND).unwrap();
    assert_same(&cache, &ctl);
    assert_eq!(resyncs(&feeder), 0, "{:?}", feeder.counters());
}

/// Puts until the cluster, which may have no leader for a while, accepts; a refused put may have been done
/// nevertheless.
fn put_in_the_end(ctl: &Ctl, key: &str, value: &str) -> u64 {
    let mut revision = 0;
    wait_for("a write", || match ctl.attempt(async |mut client| client.put(key, value, None).await) {
        Ok(done) => {
            revision = done.header().unwrap().revision() as u64;
            true
        }
        Err(_) => false,
    });
    revision
}

/// The feeders of a killed member read through it again while it catches up.
#[test]
fn member_killed_and_restarted() {
    let mut members = Etcd::cluster();
    let ctl = members[1].ctl();
    put_in_the_end(&ctl, "/x/n", "0");
    let often = || quick([&members[0].url()]).progress_interval(Duration::from_millis(5));
    let all: Vec<_> = (0..12).map(|_| follow(often(), "/x/")).collect();
    for round in 0..5 {
        let connects: Vec<u64> = all.iter().map(|(_, feeder)| feeder.counters().connects).collect();
        members[0].kill();
        members[0].launch();
        for ((_, feeder), connects) in all.iter().zip(connects) {
            wait_for("the watch", || feeder.counters().connects > connects);
        }
        // The watches are mute, and each read through the member shows that they live.
        let written = put_in_the_end(&ctl, "/x/n", &round.to_string());
        for (cache, _) in &all {
            cache.wait_until(written, BOUND).unwrap();
        }
    }
    for (cache, feeder) in &all {
        assert_same(cache, &ctl);
        assert_eq!(resyncs(feeder), 0, "{:?}", feeder.counters());
    }
}

/// One message has both a revision that is applied, and one with a value that the cache refuses.
#[test]
fn refused_value_and_its_repair() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.address());
    let ctl = etcd.ctl();
    ctl.put("/x/old", "0");
    let cache = Cache::builder("/x/").max_value_bytes(100).build().unwrap();
    let slowly = feeder(&proxy.url()).refused_retry(Duration::from_millis(50));
    let feeder = slowly.start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    wait_for("the watch", || feeder.counters().connects > 0);
    let recorder = Recorder::start(&cache, Start::Now);
    proxy.refuse();
    let applied = ctl.put("/x/new", "1");
    ctl.put("/x/large", [b'x'; 101]);
    proxy.allow();
    wait_for("the refusal", || cache.status().state == State::Failed);
    let error = feeder.last_error().expect("why").to_string();
    assert!(error.contains("/x/large") && error.contains("101 bytes, the limit is 100"), "{error}");
    assert!(!error.contains(".."), "{error}");
    assert_eq!(cache.position().revision, applied, "what came before it is applied");
    // The watch could only bring the large value again, so the repaired state is listed.
    let repaired = ctl.put("/x/large", "2");
    let (mark, inside) = recorder.resync();
    assert_eq!((mark.reason, mark.from, mark.to), (ResyncReason::ChainBroken, applied, repaired));
    let inside: Vec<_> = inside.iter().map(|seen| (seen.kind, seen.key())).collect();
    assert_eq!(inside, [(Kind::Added, "/x/large".to_owned())]);
    assert_same(&cache, &ctl);
    wait_for("ready", || cache.status().state == State::Ready);
    assert_eq!(resyncs(&feeder), 1, "{:?}", feeder.counters());
    // The evidence comes from the new listing.
    let before = feeder.counters().connects;
    proxy.cut();
    wait_for("the reconnect", || feeder.counters().connects > before);
    cache.wait_until(ctl.put("/x/new", "3"), BOUND).unwrap();
    assert_eq!(resyncs(&feeder), 1, "{:?}", feeder.counters());
}

#[test]
fn a_silent_server_is_noticed_even_when_it_was_idle() {
    let etcd = Etcd::start();
    let silent = Proxy::to(etcd.address());
    let other = Proxy::to(etcd.address());
    let (cache, feeder) = follow(quick([&silent.url(), &other.url()]), "/x/");
    silent.stall(true);
    wait_for("the other endpoint", || cache.status().source.endpoint == other.url());
    wait_for("the watch", || feeder.counters().connects >= 2);
    assert!(feeder.counters().silences >= 1);
    assert_same(&cache, &etcd.ctl());
    assert_eq!(resyncs(&feeder), 0);
}

#[test]
fn a_frozen_server_makes_the_cache_stale_and_comes_back() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    ctl.put("/x/n", "0");
    let (cache, feeder) = follow(feeder(&etcd.url()).request_timeout(Duration::from_secs(1)), "/x/");
    etcd.freeze();
    wait_for("stale", || matches!(cache.status().state, State::Stale { .. }));
    assert!(value(&cache, "/x/n").is_some());
    etcd.thaw();
    wait_for("ready", || cache.status().state == State::Ready);
    ctl.put("/x/n", "1");
    assert_same(&cache, &ctl);
    assert_eq!(resyncs(&feeder), 0);
}

#[test]
fn a_member_without_a_leader_makes_the_cache_stale_and_loses_nothing() {
    let members = Etcd::cluster();
    let ctl = members[0].ctl();
    ctl.put("/x/n", "0");
    let (cache, feeder) = follow(feeder(&members[0].url()), "/x/");
    let recorder = Recorder::start(&cache, Start::Now);
    let mut revisions = vec![ctl.put("/x/n", "1")];
    // The member runs again and answers, but cannot know the newest revision.
    members[1].freeze();
    members[2].freeze();
    wait_for("stale", || matches!(cache.status().state, State::Stale { .. }));
    assert_eq!(value(&cache, "/x/n").as_deref(), Some(&b"1"[..]));
    members[1].thaw();
    members[2].thaw();
    wait_for("ready", || cache.status().state == State::Ready);
    // Writes are refused until there is a leader again.
    wait_for("a write", || match ctl.attempt(async |mut client| client.put("/x/n", "2", None).await) {
        Ok(done) => {
            revisions.push(done.header().unwrap().revision() as u64);
            true
        }
        Err(_) => false,
    });
    let last = *revisions.last().unwrap();
    let seen = recorder.until("the last event", |seen| seen.revision == last);
    // A refused write may have been done nevertheless.
    let all: Vec<u64> = (revisions[0]..=last).collect();
    assert_eq!(seen.iter().map(|seen| seen.revision).collect::<Vec<_>>(), all);
    assert_same(&cache, &ctl);
    assert_eq!(resyncs(&feeder), 0, "{:?}", feeder.counters());
}

#[test]
fn a_dead_endpoint_among_good_ones_is_no_matter() {
    let etcd = Etcd::start();
    let dead = Etcd::absent();
    let proxy = Proxy::to(etcd.address());
    let ctl = etcd.ctl();
    let (cache, feeder) = follow(quick([&dead.url(), &proxy.url()]), "/x/");
    for i in 0..10 {
        let before = feeder.counters().connects;
        proxy.cut();
        wait_for("the reconnect", || feeder.counters().connects > before);
        cache.wait_until(ctl.put("/x/n", i.to_string()), BOUND).unwrap();
    }
    assert_same(&cache, &ctl);
    assert_eq!(resyncs(&feeder), 0);
}

#[test]
fn a_consistent_read_survives_a_reconnect() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.address());
    let ctl = etcd.ctl();
    let (cache, _feeder) = follow(feeder(&proxy.url()), "/x/");
    proxy.refuse();
    let newest = ctl.put("/y/n", "0");
    let asking = cache.clone();
    let thread = std::thread::spawn(move || asking.consistent_revision(BOUND));
    wait_for("the loss is noticed", || matches!(cache.status().state, State::Stale { .. }));
    proxy.allow();
    assert!(thread.join().unwrap().unwrap() >= newest);
}

/// etcd sends each small event in its own HTTP/2 frame. A feeder that is stalled for some seconds then finds tens of
/// thousands of frames, and its own HTTP/2 layer used to end the connection over that.
#[test]
fn stall_before_many_small_events() {
    const EVENTS: usize = 40_000;
    let etcd = Etcd::start();
    let (stands_still, release) = std::sync::mpsc::channel::<()>();
    let release = std::sync::Mutex::new(release);
    let blocks = move |key: &[u8], _: &[u8]| {
        if key == b"/x/block" {
            let _ = release.lock().unwrap().recv();
        }
        Ok::<_, std::fmt::Error>(None)
    };
    let blocking = Attribute::extractor("block", blocks);
    let cache = Cache::builder("/x/").capacity(1 << 17).field(blocking).build().unwrap();
    // The long interval keeps a second of silence from causing a reconnect: the thread itself is stalled.
    let feeder =
        Feeder::new([etcd.url()]).progress_interval(Duration::from_secs(10)).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    wait_for("the watch", || feeder.counters().connects > 0);
    let ctl = etcd.ctl();
    ctl.put("/x/block", "");
    ctl.run(async |client| {
        let mut puts = tokio::task::JoinSet::new();
        for _ in 0..64 {
            let mut client = client.clone();
            puts.spawn(async move {
                for _ in 0..EVENTS / 64 {
                    client.put("/x/n", "1", None).await.expect("a put");
                }
            });
        }
        while puts.join_next().await.is_some() {}
        Ok(())
    });
    drop(stands_still);
    let last = ctl.revision();
    wait_for("the last event", || cache.position().revision >= last);
    assert_eq!(feeder.counters().reconnects, 0, "{:?}", feeder.counters());
    assert!(cache.status().last_error.is_none(), "{:?}", cache.status());
}
