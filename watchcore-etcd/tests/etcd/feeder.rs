//! The feeder with a real etcd: listings and watches.

use crate::support::etcd::Etcd;
use crate::support::history::{Recorder, Seen, assert_same, value};
use crate::support::proxy::Proxy;
use crate::support::{BOUND, wait_for};
use etcd_client::TxnOp;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use watchcore::{Cache, Code, Kind, Read, Start, State};
use watchcore_etcd::{Feeder, FeederBuilder};

pub fn cache(prefix: impl AsRef<[u8]>) -> Cache {
    Cache::builder(prefix).build().expect("a cache")
}

pub fn feeder(url: &str) -> FeederBuilder {
    Feeder::new([url])
}

/// A feeder that mistakes no starved server for a silent one, for tests that count connections.
pub fn patient(url: &str) -> FeederBuilder {
    feeder(url).progress_requests(false)
}

pub fn follow(etcd: &Etcd, prefix: impl AsRef<[u8]>) -> (Cache, Feeder) {
    let cache = cache(prefix);
    let feeder = feeder(&etcd.url()).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).expect("ready");
    (cache, feeder)
}

/// A Unix socket is an endpoint like any other one: the feeder lists over it, follows, and connects again.
#[test]
fn unix_socket_is_an_endpoint() {
    let mut etcd = Etcd::with_socket();
    etcd.ctl().put("/a/1", "old");
    let cache = cache("/a/");
    let _feeder = feeder(&etcd.socket_url()).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    etcd.ctl().put("/a/2", "new");
    wait_for("the change", || cache.get("/a/2", Read::Any).unwrap().kv.is_some());
    etcd.kill();
    etcd.launch();
    etcd.ctl().put("/a/3", "newer");
    wait_for("the change after the restart", || cache.get("/a/3", Read::Any).unwrap().kv.is_some());
    assert_same(&cache, &etcd.ctl());
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
    assert_eq!(counters.resyncs(), 0);
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
        // The first and the last key always change together; the keys between them come and go.
        scope.spawn(|| {
            let ctl = etcd.ctl();
            // Ends also when an assertion below has failed.
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
    assert_eq!(feeder.counters().resyncs(), 0);
}

#[test]
fn keys_outside_the_prefix_move_the_position_only() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    ctl.put("/a/1", "x");
    ctl.put("/b/1", "x");
    // The interval is too long to help: only a request on demand ends this wait.
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
    // Each revision is seen whole: the state before it has none of its changes.
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
    // Pages of the listing stay below this limit by themselves.
    let feeder = patient(&proxy.url()).message_limit(4 << 20).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    assert_same(&cache, &ctl);
    let recorder = Recorder::start(&cache, Start::Now);
    wait_for("the watch", || feeder.counters().connects == 1);

    // The connection is away while 14 MB are written, which then come in one message.
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
    assert_eq!(counters.resyncs(), 0);
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
    assert_eq!(feeder.counters().resyncs(), 0);
}

#[test]
fn the_watch_has_a_connection_of_its_own_and_brings_no_previous_value() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    ctl.put("/w/a", "the value before");
    let proxy = Proxy::swallowing(etcd.address(), "the value before");
    let cache = cache("/w/");
    let feeder = patient(&proxy.url()).start(cache.writer().unwrap()).unwrap();
    cache.wait_ready(BOUND).unwrap();
    wait_for("the connection of the watch", || proxy.accepted() == 2);
    // The listing is done; a watch that requested previous values would lose its event now.
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

/// A listing without differences publishes no resync, and none is counted.
#[test]
fn listing_of_nothing_new_is_no_resync() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    ctl.put("/r/x", "0");
    let (cache, feeder) = follow(&etcd, "/r/");
    cache.wait_until(ctl.revision(), BOUND).unwrap();
    let (epoch, connects) = (cache.position().epoch, feeder.counters().connects);
    feeder.request_resync();
    wait_for("the watch behind the listing", || feeder.counters().connects > connects);
    assert_eq!((feeder.counters().listings, feeder.counters().resyncs()), (2, 0), "{:?}", feeder.counters());
    assert_eq!(cache.position().epoch, epoch);
}

#[test]
fn a_consistent_revision_is_etcd_s_own() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let (cache, feeder) = follow(&etcd, "/k/");
    // Until one request for progress is answered, a read may end below etcd's revision with the same state.
    cache.wait_until(ctl.put("/elsewhere", "x"), BOUND).unwrap();
    for _ in 0..5 {
        let newest = ctl.put("/elsewhere", "x");
        assert!(cache.consistent_revision(BOUND).unwrap() >= newest);
    }
    assert!(feeder.counters().consistent_reads >= 5);
}

#[test]
fn a_bad_endpoint_is_refused_at_the_start() {
    let cache = cache("/");
    let none: [&str; 0] = [];
    let error = Feeder::new(none).start(cache.writer().unwrap()).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    let error = Feeder::new(["http://a:1", "ftp://b"]).start(cache.writer().unwrap()).unwrap_err();
    assert!(error.message().contains("endpoint 2"), "{error}");
    // The writer can be taken again, and the cache still works for the embedding program.
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

/// A cache's metrics include those of its feeder.
#[test]
fn metrics_show_the_feeder() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    ctl.put("/a/x", "0");
    let cache = Cache::builder("/a/").name("fed").build().unwrap();
    let feeder = feeder(&etcd.url()).progress_requests(false).start(cache.writer().unwrap()).unwrap();
    wait_for("the watch", || feeder.counters().connects == 1);
    ctl.put("/elsewhere", "0");
    feeder.request_resync();
    wait_for("the resync", || feeder.counters().connects > 1);
    let newest = ctl.put("/a/y", "1");
    assert_same(&cache, &ctl);
    let has = |line: &str| watchcore::metrics::text([&cache]).lines().any(|other| other == line);
    let server = format!("watchcore_feeder_info{{cache=\"fed\",endpoint=\"{}\",", etcd.url());
    let of_etcd = || watchcore::metrics::text([&cache]).lines().any(|line| line.starts_with(&server));
    wait_for("the report of the feeder", || of_etcd() && has("watchcore_feeder_reconnects_total{cache=\"fed\"} 1"));
    assert!(has("watchcore_state{cache=\"fed\",state=\"Ready\"} 1"));
    assert!(has(&format!("watchcore_revision{{cache=\"fed\"}} {newest}")));
    assert!(has("watchcore_feeder_listings_total{cache=\"fed\"} 2"));
    assert!(has("watchcore_feeder_events_total{cache=\"fed\"} 1"));
    assert!(has("watchcore_feeder_resyncs_by_reason_total{cache=\"fed\",reason=\"Requested\"} 1"));
    assert!(has("watchcore_feeder_warning{cache=\"fed\"} 0"));
}
