//! The feeder against a real etcd: what is listed, what is followed, and how it ends.

use crate::support::etcd::Etcd;
use crate::support::history::{Recorder, Seen, assert_same, value};
use crate::support::proxy::Proxy;
use crate::support::{BOUND, STOP, wait_for};
use etcd_client::TxnOp;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use watchcore::{Attribute, Cache, Code, Kind, Read, ResyncReason, Start, State};
use watchcore_etcd::{Feeder, FeederBuilder};

fn cache(prefix: impl AsRef<[u8]>) -> Cache {
    Cache::builder(prefix).build().expect("a cache")
}

fn feeder(url: &str) -> FeederBuilder {
    Feeder::new([url])
}

fn follow(etcd: &Etcd, prefix: impl AsRef<[u8]>) -> (Cache, Feeder) {
    let cache = cache(prefix);
    let feeder = feeder(&etcd.url()).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).expect("ready");
    (cache, feeder)
}

#[test]
fn lists_and_follows_every_event() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    for i in 0..50 {
        ctl.put(format!("/a/{i:02}"), "old");
    }
    let cache = cache("/a/");
    assert!(cache.get("/a/00", Read::Any).is_ok(), "an embedded cache is ready");
    let feeder = feeder(&etcd.url()).page_size(7).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    assert_same(&cache, &ctl);
    assert!(feeder.counters().pages >= 8, "{:?}", feeder.counters());

    let recorder = Recorder::start(&cache, Start::Now);
    let mut expected = Vec::new();
    let mut random = fastrand::Rng::with_seed(7);
    let mut state: std::collections::BTreeMap<String, String> =
        (0..50).map(|i| (format!("/a/{i:02}"), "old".to_owned())).collect();
    for i in 0..300 {
        let key = format!("/a/{:02}", random.u32(0..60));
        if random.u32(0..3) == 0 && state.contains_key(&key) {
            let revision = ctl.delete(&key);
            expected.push((Kind::Deleted, revision, key.clone(), None, state.remove(&key)));
        } else {
            let revision = ctl.put(&key, i.to_string());
            let before = state.insert(key.clone(), i.to_string());
            let kind = if before.is_some() { Kind::Modified } else { Kind::Added };
            expected.push((kind, revision, key, Some(i.to_string()), before));
        }
    }
    let last = expected.last().unwrap().1;
    let seen = recorder.until("the last event", |seen| seen.revision >= last);
    let text = |bytes: Option<Vec<u8>>| bytes.map(|bytes| String::from_utf8(bytes).unwrap());
    let seen: Vec<_> = seen
        .into_iter()
        .map(|seen| (seen.kind, seen.revision, seen.key(), text(seen.value), text(seen.prev)))
        .collect();
    assert_eq!(seen, expected);
    assert_same(&cache, &ctl);

    let status = cache.status();
    assert_eq!(status.state, State::Ready);
    assert_eq!(status.source.endpoint, etcd.url());
    assert_eq!(status.source.server_version, crate::support::etcd::version());
    let counters = feeder.counters();
    assert_eq!(counters.integrity_violations, 0);
    assert_eq!(counters.resyncs, [0; 7]);
    assert!(counters.events >= 300);
}

#[test]
fn a_listing_in_pages_is_the_state_at_one_revision() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    for i in 0..200 {
        ctl.put(format!("/a/{i:03}"), "old");
    }
    let both = [("/a/000", "first"), ("/a/199", "first")];
    ctl.txn(both.map(|(key, value)| TxnOp::put(key, value, None)).to_vec());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The first and the last key always change together; what lies between comes and goes.
        scope.spawn(|| {
            let ctl = etcd.ctl();
            // Also ends where an assertion below has failed.
            let begin = Instant::now();
            for i in 0.. {
                if over.load(Ordering::Relaxed) || begin.elapsed() > BOUND {
                    return;
                }
                let both = [("/a/000", i.to_string()), ("/a/199", i.to_string())];
                ctl.txn(both.map(|(key, value)| TxnOp::put(key, value, None)).to_vec());
                let between = format!("/a/{:03}", 1 + i % 198);
                ctl.delete(&between);
                ctl.put(&between, "new");
            }
        });
        for _ in 0..5 {
            let cache = Cache::builder("/a/").expect_load(true).build().unwrap();
            let mut subscription = cache.subscribe(Start::State).open().unwrap();
            let feeder = feeder(&etcd.url()).page_size(9).start(cache.writer().unwrap()).unwrap();
            let mut state = Vec::new();
            let mut revision = 0;
            while revision == 0 {
                assert!(subscription.wait(BOUND).unwrap(), "the listing comes");
                for event in subscription.poll(1000).unwrap().events() {
                    if event.ends_initial_state() {
                        revision = event.revision();
                    } else if revision == 0 {
                        let value = event.value().unwrap().to_vec();
                        state.push((event.key().to_vec(), value, event.mod_revision()));
                    }
                }
            }
            assert!(feeder.counters().pages >= 22, "{:?}", feeder.counters());
            let theirs = ctl.list(b"/a/", revision);
            let theirs: Vec<_> =
                theirs.iter().map(|kv| (kv.key().to_vec(), kv.value().to_vec(), kv.mod_revision() as u64)).collect();
            assert!(state == theirs, "the state at {revision}");
            assert_eq!(state.first().unwrap().2, state.last().unwrap().2, "changed together");
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_compaction_during_the_listing_begins_it_again() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    for i in 0..200 {
        ctl.put(format!("/a/{i:03}"), vec![b'x'; 10_000]);
    }
    let proxy = Proxy::to(etcd.address());
    proxy.stall_after(500_000);
    let cache = cache("/a/");
    let feeder = feeder(&proxy.url()).page_size(10).start(cache.writer().unwrap()).unwrap();
    wait_for("the middle of the listing", || proxy.is_stalled());
    let newest = ctl.put("/a/100", "new");
    ctl.compact(newest);
    proxy.stall(false);
    cache.wait_ready(BOUND).unwrap();
    assert_eq!((feeder.counters().listings, feeder.counters().failures), (2, 0));
    assert_eq!(cache.oldest(), newest + 1);
    assert_same(&cache, &ctl);
    assert_eq!(feeder.counters().resyncs, [0; 7]);
}

#[test]
fn keys_outside_the_prefix_move_the_position_only() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    ctl.put("/a/1", "x");
    ctl.put("/b/1", "x");
    // No tick would come in time: only a request on demand makes this wait end.
    let cache = cache("/a/");
    let long = Duration::from_secs(3600);
    let feeder = feeder(&etcd.url()).progress_interval(long).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    let recorder = Recorder::start(&cache, Start::State);
    for _ in 0..5 {
        let revision = ctl.put("/b/1", "y");
        ctl.put("/a0", "behind the prefix");
        assert!(cache.wait_until(revision, BOUND).unwrap().revision >= revision);
    }
    let revision = ctl.put("/a/2", "z");
    let seen = recorder.until("the key inside", |seen| seen.key == b"/a/2");
    let keys: Vec<_> = seen.iter().map(|seen| (seen.key(), seen.revision)).collect();
    assert_eq!(keys, [("/a/1".to_owned(), 2), ("/a/2".to_owned(), revision)]);
    assert!(feeder.counters().progress_requests >= 1);
}

#[test]
fn an_empty_prefix_is_the_whole_keyspace_and_keys_are_bytes() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let keys: [&[u8]; 6] = [b"\0", b"\0\xff", b"a", b"\xff", b"\xff\xff\0", b"/x"];
    for key in &keys[..3] {
        ctl.put(key, b"\0\xff\0");
    }
    let (cache, _feeder) = follow(&etcd, "");
    assert_same(&cache, &ctl);
    for key in &keys[3..] {
        ctl.put(key, b"");
    }
    ctl.delete(keys[1]);
    assert_same(&cache, &ctl);
    assert_eq!(value(&cache, keys[0]).as_deref(), Some(&b"\0\xff\0"[..]));
    assert_eq!(value(&cache, keys[3]).as_deref(), Some(&b""[..]), "an empty value is a value");
    assert_eq!(value(&cache, keys[1]), None);

    let (high, _feeder) = follow(&etcd, b"\xff");
    assert_same(&high, &ctl);
    assert_eq!(high.status().objects, 2);
}

#[test]
fn a_transaction_of_10_000_keys_is_one_revision() {
    let etcd = Etcd::with(&["--max-txn-ops", "20000"]);
    let ctl = etcd.ctl();
    let (cache, feeder) = follow(&etcd, "/t/");
    let recorder = Recorder::start(&cache, Start::Now);
    let put = |value: &str| (0..10_000).map(|i| TxnOp::put(format!("/t/{i:05}"), value, None)).collect();
    let first = ctl.txn(put("a"));
    let second = ctl.txn(put("b"));
    cache.wait_until(second, BOUND).unwrap();
    let seen = recorder.until("the last key", |seen| seen.revision == second && seen.key == b"/t/09999");
    assert_eq!(seen.len(), 20_000);
    assert!(seen[..10_000].iter().all(|seen| seen.revision == first && seen.kind == Kind::Added));
    assert!(seen[10_000..].iter().all(|seen| seen.revision == second && seen.kind == Kind::Modified));
    assert_same(&cache, &ctl);
    let counters = feeder.counters();
    assert_eq!(counters.max_revision_events, 10_000);
    assert!((10_000..=20_000).contains(&counters.max_events_queued), "{counters:?}");
    // Each revision is seen whole: the state before it has none of it.
    let page = cache.list(&watchcore::Range::all(), Read::Exact(first), 0).unwrap();
    assert!(page.iter().all(|kv| kv.value() == Some(b"a")) && page.len() == 10_000);
}

#[test]
fn large_values_pass_and_a_long_message_comes_in_fragments() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let large = |byte: u8| vec![byte; 1_400_000];
    for i in 0..12u8 {
        ctl.put(format!("/l/{i:02}"), large(i));
    }
    let proxy = Proxy::to(etcd.address());
    let cache = cache("/l/");
    // Pages of the listing shrink below this limit by themselves.
    let feeder = feeder(&proxy.url()).message_limit(4 << 20).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    assert_same(&cache, &ctl);
    let recorder = Recorder::start(&cache, Start::Now);
    wait_for("the watch", || feeder.counters().connects == 1);

    // Away while 14 MB are written: they come in one message.
    proxy.refuse();
    for i in 0..10u8 {
        ctl.put(format!("/l/{i:02}"), large(100 + i));
    }
    let last = ctl.delete("/l/11");
    proxy.allow();
    let seen = recorder.until("the last event", |seen| seen.revision == last);
    assert_eq!(seen.len(), 11);
    assert_same(&cache, &ctl);
    let counters = feeder.counters();
    assert_eq!(counters.fragment_switches, 1, "{counters:?}");
    assert!(counters.fragments >= 1, "{counters:?}");
    assert_eq!(counters.resyncs, [0; 7]);
}

#[test]
fn one_value_above_the_limit_raises_it() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    ctl.put("/l/x", vec![1; 600_000]);
    ctl.put("/l/y", "small");
    let cache = cache("/l/");
    let limited =
        feeder(&etcd.url()).message_limit(100_000).backoff(Duration::from_millis(5), Duration::from_millis(50));
    let feeder = limited.start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    assert_same(&cache, &ctl);
    let newest = ctl.put("/l/x", vec![2; 1_400_000]);
    cache.wait_until(newest, BOUND).unwrap();
    assert_same(&cache, &ctl);
    assert_eq!(feeder.counters().resyncs, [0; 7]);
}

#[test]
fn the_watch_has_a_connection_of_its_own_and_brings_no_previous_value() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    ctl.put("/w/a", "the value before");
    let proxy = Proxy::swallowing(etcd.address(), "the value before");
    let cache = cache("/w/");
    let feeder = feeder(&proxy.url()).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    wait_for("the connection of the watch", || proxy.accepted() == 2);
    // The listing has passed; a watch that asked for previous values would lose its event now.
    proxy.swallow(true);
    let mut live = cache.subscribe(Start::Now).open().unwrap();
    cache.wait_until(ctl.put("/w/a", "the value after"), BOUND).unwrap();
    let batch = live.poll(10).unwrap();
    let event = batch.events().first().expect("the event came");
    assert_eq!(event.value(), Some(&b"the value after"[..]));
    assert_eq!(event.prev_value(), Some(&b"the value before"[..]), "the cache has it");
    assert_eq!((proxy.swallowed(), proxy.accepted(), feeder.counters().connects), (0, 2, 1));
}

#[test]
fn a_lease_that_expires_deletes_with_the_last_value() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let (cache, _feeder) = follow(&etcd, "/l/");
    let recorder = Recorder::start(&cache, Start::Now);
    let lease = ctl.grant(1);
    let put = ctl.put_leased("/l/x", "leased", lease);
    let seen = recorder.until("the expiry", |seen| seen.kind == Kind::Deleted);
    let kinds: Vec<_> = seen.iter().map(|seen| seen.kind).collect();
    assert_eq!(kinds, [Kind::Added, Kind::Deleted]);
    assert_eq!((seen[0].revision, seen[0].lease), (put, lease));
    assert_eq!(seen[1].prev.as_deref(), Some(&b"leased"[..]));
    assert_eq!((seen[1].value.as_deref(), seen[1].lease), (None, lease));
    assert_same(&cache, &ctl);
}

#[test]
fn a_start_revision_replays_the_history() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let first = ctl.put("/h/x", "0");
    ctl.put("/h/gone", "0");
    ctl.delete("/h/gone");
    // 5 MB, which come in one message: etcd would cut it if it were asked to.
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
    assert_eq!(counters.resyncs, [0; 7]);
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
    // 20 MB that come in fragments; a connection cut on the way does not make it a listing.
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
        // A slow reader, so that the feeder has to wait for it; nothing is expected of the time.
        std::thread::sleep(Duration::from_micros(500));
    }
    let expected: Vec<u64> = (first + 1..=newest).flat_map(|revision| [revision; 1000]).collect();
    assert!(revisions == expected, "each revision whole and in order");
    let counters = feeder.counters();
    assert_eq!((counters.fragment_switches, counters.resyncs), (1, [0; 7]));
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
    // What it said is so: one before the oldest is the first that works, and loses nothing.
    let (cache, _feeder) = begin_at(15);
    cache.wait_ready(BOUND).unwrap();
    assert_eq!(cache.oldest(), 16);
    let recorder = Recorder::start(&cache, Start::After(15));
    let seen = recorder.until("the newest", |seen| seen.revision == 21);
    assert_eq!(seen.iter().map(|seen| seen.revision).collect::<Vec<_>>(), [16, 17, 18, 19, 20, 21]);
    assert_same(&cache, &ctl);
}

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

/// A watch at a revision that is not compacted makes etcd read history, so none is opened to find that out.
#[test]
fn following_a_compaction_reads_no_history() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let first = ctl.put("/c/x", "0");
    let proxy = Proxy::to(etcd.address());
    let cache = cache("/c/");
    let builder = feeder(&proxy.url()).follow_compaction(Duration::from_millis(20));
    let feeder = builder.start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    wait_for("the watch", || feeder.counters().connects > 0);
    let reads = || etcd.counted("grpc_server_started_total{grpc_method=\"Range\"");
    let watches = || etcd.counted("grpc_server_started_total{grpc_method=\"Watch\"");
    assert_eq!((watches(), proxy.accepted()), (1, 2), "the test's own premise");
    // Nothing happens in the range, and each question is answered all the same.
    let before = reads();
    wait_for("many questions", || reads() >= before + 50);
    assert_eq!((watches(), proxy.accepted()), (1, 2), "one read each, on the connection that is there");
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

/// A stream that always has more, here because its events wait for a slow subscription, holds up no question.
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
    assert_eq!(feeder.counters().resyncs, [0; 7]);
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
    // Another watcher sees what it does not.
    let (other, _other_feeder) = follow(&etcd, "/s/");
    for _ in 0..3 {
        other.wait_until(ctl.put("/s/x", "2"), BOUND).unwrap();
    }
    assert_eq!(cache.position().revision, old);
    assert_eq!(feeder.counters().connects, 0);
    feeder.stop();
    assert_eq!(value(&cache, "/s/x").as_deref(), Some(&b"0"[..]), "what was listed stays");
}

#[test]
fn a_resync_can_be_requested() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let listed = ctl.put("/r/x", "0");
    let cache = cache("/r/");
    // Progress must not come first: the same revision again is not worth a bracket.
    let feeder = feeder(&etcd.url()).progress_requests(false).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    let recorder = Recorder::start(&cache, Start::Now);
    let newest = ctl.put("/other", "0");
    feeder.request_resync();
    let (mark, inside) = recorder.resync();
    assert_eq!((mark.reason, mark.from >= listed, mark.to), (ResyncReason::Requested, true, newest));
    assert!(inside.is_empty(), "nothing changed: {inside:?}");
    assert_eq!(feeder.counters().resyncs[ResyncReason::Requested as usize], 1);
    ctl.put("/r/x", "1");
    assert_same(&cache, &ctl);
}

#[test]
fn a_consistent_revision_is_etcd_s_own() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let (cache, feeder) = follow(&etcd, "/k/");
    for _ in 0..5 {
        let newest = ctl.put("/elsewhere", "x");
        assert!(cache.consistent_revision(BOUND).unwrap() >= newest);
    }
    assert!(feeder.counters().consistent_reads >= 5);
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

    // Written before the cache saw it: not a future revision.
    let newest = ctl.put("/f/x", "0");
    let recorder = Recorder::start(&cache, Start::After(newest));
    let next = ctl.put("/f/x", "1");
    let seen = recorder.until("the next", |seen| seen.revision == next);
    assert_eq!(seen.iter().map(|seen| seen.revision).collect::<Vec<_>>(), [next]);
}

#[test]
fn stop_is_quick_idempotent_and_wakes_who_waits() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.address());
    let cache = cache("/s/");
    let feeder = feeder(&proxy.url()).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    let waiting = cache.clone();
    let waiter = std::thread::spawn(move || waiting.wait_until(1 << 40, BOUND * 2));
    wait_for("the waiter", || cache.stats().waiting > 0);
    // Even when etcd says nothing any more.
    proxy.stall(true);
    let started = Instant::now();
    feeder.stop();
    let elapsed = started.elapsed();
    assert!(elapsed < STOP, "{elapsed:?}");
    assert!(feeder.is_stopped());
    assert_eq!(waiter.join().unwrap().unwrap_err().code(), Code::Closed);
    let accepted = proxy.accepted();
    feeder.stop();
    drop(feeder);
    proxy.stall(false);
    assert_eq!(proxy.accepted(), accepted, "no call after the stop");
}

/// A connection and a listing that are never answered: nothing but the stop ends them.
#[test]
fn stop_drops_calls_under_way() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    ctl.put("/s/x", "0");
    let stops = |proxy: &Proxy, under_way: &dyn Fn() -> bool| {
        let cache = cache("/s/");
        let endless = Duration::MAX;
        let builder = feeder(&proxy.url()).dial_timeout(endless).request_timeout(endless);
        let feeder = builder.start(cache.writer().unwrap()).unwrap();
        wait_for("the call", under_way);
        let started = Instant::now();
        feeder.stop();
        let elapsed = started.elapsed();
        assert!(feeder.is_stopped() && elapsed < STOP, "{elapsed:?}");
        assert_eq!(cache.status().state, State::Closed);
    };
    let silent = Proxy::to(etcd.address());
    silent.stall(true);
    stops(&silent, &|| silent.accepted() > 0);
    let swallows = Proxy::swallowing(etcd.address(), "/s/x");
    swallows.swallow(true);
    stops(&swallows, &|| swallows.swallowed() > 0);
}

/// An extractor that blocks the feeder's thread inside the cache stands for whatever holds it up there.
#[test]
fn stops_at_once_share_two_seconds() {
    let etcd = Etcd::start();
    etcd.ctl().put("/s/x", "0");
    let inside = Arc::new(AtomicBool::new(false));
    let (open, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let blocks = {
        let inside = inside.clone();
        Attribute::extractor("blocked", move |_, _| {
            inside.store(true, Ordering::SeqCst);
            // Until the sender is dropped.
            let _ = gate.lock().unwrap().recv();
            Ok::<_, std::convert::Infallible>(None)
        })
    };
    let cache = Cache::builder("/s/").field(blocks).build().unwrap();
    let proxy = Proxy::to(etcd.address());
    let feeder = feeder(&proxy.url()).start(cache.writer().unwrap()).unwrap();
    wait_for("the thread is inside the cache", || inside.load(Ordering::SeqCst));
    let calls = proxy.accepted();
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| feeder.stop());
        }
    });
    assert!(!feeder.is_stopped(), "the test's own premise");
    // As a free does: it stops, and drops, which stops again.
    feeder.stop();
    drop(feeder);
    let elapsed = started.elapsed();
    // One limit, not five of them: the fourth and the fifth find it over.
    assert!((STOP..2 * STOP).contains(&elapsed), "{elapsed:?}");
    drop(open);
    wait_for("the end", || cache.status().state == State::Closed);
    assert_eq!(proxy.accepted(), calls, "no connection for a watch after the stop");
}

#[test]
fn endless_timeouts_stop_nothing() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let cache = cache("/e/");
    let endless = Duration::MAX;
    let builder = feeder(&etcd.url()).dial_timeout(endless).request_timeout(endless).refused_retry(endless);
    let feeder = builder.progress_interval(endless).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    cache.wait_until(ctl.put("/e/x", "0"), BOUND).unwrap();
    assert_same(&cache, &ctl);
    assert_eq!(feeder.counters().failures, 0);
}

#[test]
fn closing_the_cache_ends_the_feeder() {
    let etcd = Etcd::start();
    let (cache, feeder) = follow(&etcd, "/s/");
    cache.close();
    wait_for("the end", || feeder.is_stopped());

    let (cache, feeder) = follow(&etcd, "/s/");
    drop(cache);
    wait_for("the end", || feeder.is_stopped());
}

#[test]
fn without_a_server_nothing_hangs() {
    let mut etcd = Etcd::absent();
    let cache = cache("/n/");
    let feeder = feeder(&etcd.url()).backoff(Duration::from_millis(10), Duration::from_millis(100));
    let feeder = feeder.start(cache.writer().unwrap()).unwrap();
    assert_eq!(cache.get("/n/x", Read::Any).unwrap_err().code(), Code::NotReady);
    wait_for("the status", || cache.status().last_error.is_some());
    let status = cache.status();
    assert_eq!(status.state, State::NotReady);
    let error = status.last_error.unwrap();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message().contains(&etcd.url()), "{error}");
    assert_eq!(cache.snapshot().map(drop).unwrap_err().code(), Code::NotReady);
    assert_eq!(cache.wait_ready(Duration::from_millis(20)).unwrap_err().code(), Code::Timeout);

    // It comes up later.
    etcd.launch();
    cache.wait_ready(BOUND).unwrap();
    assert_same(&cache, &etcd.ctl());
    feeder.stop();

    let nobody = Cache::builder("/n/").build().unwrap();
    let gone = Etcd::absent();
    let feeder = Feeder::new([gone.url()]).start(nobody.writer().unwrap()).unwrap();
    wait_for("a failure", || feeder.counters().failures > 0);
    let started = Instant::now();
    feeder.stop();
    let elapsed = started.elapsed();
    assert!(elapsed < STOP, "{elapsed:?}");
    assert!(feeder.is_stopped());
}

#[test]
fn a_bad_endpoint_is_refused_at_the_start() {
    let cache = cache("/");
    let none: [&str; 0] = [];
    let error = Feeder::new(none).start(cache.writer().unwrap()).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    let error = Feeder::new(["http://a:1", "ftp://b"]).start(cache.writer().unwrap()).unwrap_err();
    assert!(error.message().contains("endpoint 2"), "{error}");
    // The writer came back, and the cache is still the embedding program's.
    assert_eq!(cache.status().state, State::Ready);
}

#[test]
fn a_second_cache_knows_nothing_of_the_first() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    ctl.put("/w/x", "0");
    let seen: Vec<Seen>;
    {
        let (cache, _feeder) = follow(&etcd, "/w/");
        let recorder = Recorder::start(&cache, Start::State);
        seen = recorder.until("the state", |seen| seen.key == b"/w/x");
        assert_same(&cache, &ctl);
    }
    assert_eq!(seen.len(), 1);
    let (cache, _feeder) = follow(&etcd, "/w/");
    assert_same(&cache, &ctl);
}

#[test]
#[cfg(target_os = "linux")]
fn the_thread_has_a_name_and_takes_no_signals() {
    let etcd = Etcd::start();
    let (_cache, _feeder) = follow(&etcd, "/s/");
    let mut masks = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        // Threads of other tests come and go.
        let Ok(status) = std::fs::read_to_string(path.join("status")) else { continue };
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim().to_owned();
        if field("Name:") == "watchcore-etcd" {
            masks.push(u64::from_str_radix(&field("SigBlk:"), 16).unwrap());
        }
    }
    assert!(!masks.is_empty());
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGCHLD, libc::SIGALRM] {
        assert!(masks.iter().all(|mask| mask & (1 << (signal - 1)) != 0), "signal {signal}: {masks:x?}");
    }
}
