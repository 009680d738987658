//! What the feeder applies per second, beside what a bare loop of its client reads of the same history:
//! one etcd, one run, the two in turns; and its first listing, in a stream and in pages, beside bare clients that read
//! the same range. `make bench BENCH=feeder`; `LISTING=n` lists n objects and does nothing else.
#![allow(missing_docs)]

#[path = "../tests/support/mod.rs"]
mod support;

use etcd_client::{Client, EventType, GetOptions, TxnOp, WatchOptions};
use std::time::{Duration, Instant};
use support::BOUND;
use support::etcd::Etcd;
use watchcore::Cache;
use watchcore_etcd::Feeder;

const PREFIX: &str = "/registry/pods/";
/// Above all keys with the prefix.
const END: &str = "/registry/pods0";
const VALUE: [u8; 512] = [b'v'; 512];
const KEYS: usize = 1000;
const ROUNDS: usize = 7;
/// Above any message of these histories, for both.
const MESSAGE_LIMIT: usize = 256 << 20;
/// Requests under way at once while the history is written.
const LANES: usize = 32;

/// A range of revisions that etcd holds.
struct History {
    name: &'static str,
    etcd: Etcd,
    /// The revision before the first event.
    start: u64,
    last: u64,
    events: u64,
}

/// What reading a history took.
#[derive(Clone, Copy)]
struct Taken {
    time: Duration,
    /// CPU time of this process, all threads.
    cpu: Duration,
}

fn key(number: usize) -> String {
    format!("{PREFIX}namespace-{:04}/p-{number:06}", number % KEYS)
}

/// `revisions` transactions of `size` puts each.
fn written(name: &'static str, revisions: usize, size: usize) -> History {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let start = ctl.revision();
    ctl.run(async |client: Client| {
        let mut lanes = tokio::task::JoinSet::new();
        for lane in 0..LANES {
            let mut client = client.clone();
            lanes.spawn(async move {
                for revision in (lane..revisions).step_by(LANES) {
                    let puts = (0..size).map(|put| TxnOp::put(key((revision * size + put) % KEYS), VALUE, None));
                    let txn = etcd_client::Txn::new().and_then(puts.collect::<Vec<_>>());
                    client.txn(txn).await?;
                }
                Ok::<(), etcd_client::Error>(())
            });
        }
        while let Some(lane) = lanes.join_next().await {
            lane.expect("no panic")?;
        }
        Ok(())
    });
    let last = ctl.revision();
    assert_eq!(last - start, revisions as u64, "one revision each");
    History { name, etcd, start, last, events: (revisions * size) as u64 }
}

fn cpu() -> Duration {
    // SAFETY: all zeros are a valid rusage, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &mut usage), 0);
        usage
    };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// A loop that only counts: nothing is checked, nothing is kept.
fn bare(history: &History) -> Taken {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect([history.etcd.url()], None).await.expect("connects");
        let mut watcher = client.watch_client().max_decoding_message_size(MESSAGE_LIMIT);
        let (begin, cpu_before) = (Instant::now(), cpu());
        let options = WatchOptions::new().with_prefix().with_start_revision(history.start as i64 + 1);
        let mut stream = watcher.watch(PREFIX, Some(options)).await.expect("watches");
        let (mut events, mut reached) = (0, 0);
        while reached < history.last {
            let message = stream.message().await.expect("reads").expect("continues");
            for event in message.events() {
                assert_eq!(event.event_type(), EventType::Put);
                reached = event.kv().expect("a put").mod_revision() as u64;
                events += 1;
            }
        }
        assert_eq!(events, history.events);
        Taken { time: begin.elapsed(), cpu: cpu() - cpu_before }
    })
}

/// From the first listing, of nothing, to the last revision applied.
fn feeder(history: &History) -> Taken {
    let cache = Cache::builder(PREFIX).build().expect("a cache");
    let feeder = Feeder::new([history.etcd.url()]).start_revision(history.start).message_limit(MESSAGE_LIMIT);
    let feeder = feeder.start(cache.writer().expect("is free")).expect("starts");
    cache.wait_ready(BOUND).expect("lists");
    let (begin, cpu_before) = (Instant::now(), cpu());
    // Looked at now and then: a waiter would be woken, which is not the feeder's work.
    while cache.position().revision < history.last {
        assert!(begin.elapsed() < BOUND, "it follows");
        std::thread::sleep(Duration::from_millis(10));
    }
    let taken = Taken { time: begin.elapsed(), cpu: cpu() - cpu_before };
    let counters = feeder.counters();
    assert_eq!((counters.events, counters.resyncs(), counters.reconnects), (history.events, 0, 0));
    taken
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn compare(history: &History) {
    let (mut bares, mut feeders) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bares.push(bare(history));
        feeders.push(feeder(history));
    }
    let rate = |of: &Taken| history.events as f64 / of.time.as_secs_f64();
    let cost = |of: &Taken| of.cpu.as_nanos() as f64 / history.events as f64;
    let ratio = median(bares.iter().zip(&feeders).map(|(bare, feeder)| rate(feeder) / rate(bare)).collect());
    for (who, taken) in [("bare loop", &bares), ("feeder", &feeders)] {
        let (rates, costs) = (median(taken.iter().map(rate).collect()), median(taken.iter().map(cost).collect()));
        println!("{:<28} {who:<10} {rates:>12.0} events/s {costs:>9.0} ns CPU an event", history.name);
    }
    println!(
        "{:<28} {:<10} {:>12.0} % (median of {ROUNDS} pairs; the goal is 80 %)",
        history.name,
        "ratio",
        ratio * 100.0
    );
}

/// An etcd with so many objects of 380 bytes.
fn filled(objects: usize) -> Etcd {
    const TXN: usize = 1000;
    let etcd = Etcd::with(&["--max-txn-ops", "1000", "--quota-backend-bytes", "8589934592"]);
    etcd.ctl().run(async |mut client: Client| {
        for first in (0..objects).step_by(TXN) {
            let put = |i| TxnOp::put(format!("{PREFIX}namespace-{:04}/p-{i:08}", i / 100), [b'v'; 339], None);
            let puts: Vec<TxnOp> = (first..objects.min(first + TXN)).map(put).collect();
            client.txn(etcd_client::Txn::new().and_then(puts)).await?;
        }
        Ok(())
    });
    etcd
}

/// Reads all objects in pages of `limit` keys, 0 for one page, and keeps them until the end.
fn bare_listing(url: &str, objects: usize, limit: i64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect([url], None).await.expect("connects");
        let mut kv = client.kv_client().max_decoding_message_size(1 << 30);
        let (mut from, mut revision, mut pages) = (PREFIX.as_bytes().to_vec(), 0, Vec::new());
        loop {
            let options = GetOptions::new().with_range(END).with_limit(limit).with_revision(revision);
            let mut page = kv.get(from, Some(options)).await.expect("reads");
            revision = page.header().expect("a header").revision();
            let more = page.more();
            pages.push(page.take_kvs());
            let Some(last) = pages.last().and_then(|page| page.last()).filter(|_| more) else { break };
            from = [last.key(), b"\0"].concat();
        }
        assert_eq!(pages.iter().map(Vec::len).sum::<usize>(), objects);
        report();
    });
}

/// Reads all objects in one stream, at the revision of a read before it, and keeps them until the end.
fn bare_stream(url: &str, objects: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect([url], None).await.expect("connects");
        let mut kv = client.kv_client();
        let revision = kv.get(PREFIX, None).await.expect("reads").header().expect("a header").revision();
        let options = GetOptions::new().with_range(END).with_revision(revision);
        let mut stream = kv.get_stream(PREFIX, Some(options)).await.expect("etcd has RangeStream from 3.7 on");
        let mut messages = Vec::new();
        while let Some(mut message) = stream.message().await.expect("continues") {
            messages.push(message.take_kvs());
        }
        assert_eq!(messages.iter().map(Vec::len).sum::<usize>(), objects);
        report();
    });
}

/// Lists until the cache is ready.
fn feeder_listing(url: &str, objects: usize, page_size: Option<u64>) {
    let cache = Cache::builder(PREFIX).build().expect("a cache");
    let mut feeder = Feeder::new([url]).stop_after_listing(true);
    if let Some(keys) = page_size {
        feeder = feeder.page_size(keys);
    }
    let _feeder = feeder.start(cache.writer().expect("is free")).expect("starts");
    cache.wait_ready(Duration::from_secs(600)).expect("lists");
    let held = cache.count(&watchcore::Range::all(), watchcore::Read::Any).expect("counts").count;
    assert_eq!(held, objects as u64);
    report();
}

/// What this process took so far: CPU seconds, and the peak of its memory in MB.
fn report() {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let kilobytes: f64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    println!("{} {}", cpu().as_secs_f64(), kilobytes / 1024.0);
}

/// How a process of its own lists; pages of so many keys.
#[derive(Clone, Copy)]
enum Way {
    Feeder,
    FeederPages(u64),
    BarePages(i64),
    BareStream,
}

const WAYS: [(&str, Way); 7] = [
    ("feeder, pages of 5000", Way::FeederPages(5000)),
    // More keys than there are.
    ("feeder, pages by bytes", Way::FeederPages(1 << 40)),
    ("feeder", Way::Feeder),
    ("bare, pages of 20,000", Way::BarePages(20_000)),
    ("bare, pages of 100,000", Way::BarePages(100_000)),
    ("bare, one page", Way::BarePages(0)),
    ("bare, one stream", Way::BareStream),
];

/// In the process of one listing.
fn list_once(way: usize) {
    let of = |name| std::env::var(name).expect("the bench gave it");
    let (url, objects) = (of("LISTING_URL"), of("LISTING").parse().expect("a number"));
    match WAYS[way].1 {
        Way::Feeder => feeder_listing(&url, objects, None),
        Way::FeederPages(keys) => feeder_listing(&url, objects, Some(keys)),
        Way::BarePages(keys) => bare_listing(&url, objects, keys),
        Way::BareStream => bare_stream(&url, objects),
    }
}

/// Each listing in a process of its own: what an earlier one left to be freed costs a later one nothing.
fn listings(objects: usize, rounds: usize) {
    let etcd = filled(objects);
    let mut taken = WAYS.map(|_| Vec::new());
    for _ in 0..rounds {
        for (way, taken) in taken.iter_mut().enumerate() {
            let mut child = std::process::Command::new(std::env::current_exe().expect("it runs"));
            child.env("LISTING_WAY", way.to_string()).env("LISTING_URL", etcd.url());
            let begin = Instant::now();
            let output = child.env("LISTING", objects.to_string()).output().expect("it runs");
            let wall = begin.elapsed().as_secs_f64();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8(output.stdout).expect("text");
            let figures: Vec<f64> = text.split_whitespace().map(|part| part.parse().expect("a number")).collect();
            taken.push([wall, figures[0], figures[1]]);
        }
    }
    for ((name, ..), taken) in WAYS.iter().zip(&taken) {
        let [wall, cpu, peak] = [0, 1, 2].map(|which| median(taken.iter().map(|of| of[which]).collect()));
        let least = taken.iter().map(|of| of[0]).fold(f64::INFINITY, f64::min);
        println!(
            "list {objects:<9} {name:<24} {wall:>6.2} s (least {least:.2}), {cpu:>5.2} s CPU, peak {peak:>5.0} MB"
        );
    }
}

fn main() {
    if let Ok(way) = std::env::var("LISTING_WAY") {
        return list_once(way.parse().expect("a number"));
    }
    // `cargo test --benches` only wants to see it compile and run.
    if !std::env::args().any(|argument| argument == "--bench") {
        return compare_once();
    }
    if let Ok(objects) = std::env::var("LISTING") {
        return listings(objects.parse().expect("LISTING is a number"), 3);
    }
    compare(&written("20,000 single puts", 20_000, 1));
    compare(&written("2000 transactions of 50", 2000, 50));
    listings(300_000, 3);
}

fn compare_once() {
    let history = written("100 transactions of 5", 100, 5);
    bare(&history);
    feeder(&history);
    listings(10_000, 1);
}
