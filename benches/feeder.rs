//! What the feeder applies per second, beside what a bare loop of its client reads of the same history:
//! one etcd, one run, the two in turns. `make bench BENCH=feeder`.
#![allow(missing_docs)]

#[path = "../tests/support/mod.rs"]
mod support;

use etcd_client::{Client, EventType, TxnOp, WatchOptions};
use std::time::{Duration, Instant};
use support::BOUND;
use support::etcd::Etcd;
use watchcore::Cache;
use watchcore_etcd::Feeder;

const PREFIX: &str = "/registry/pods/";
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
    assert_eq!((counters.events, counters.resyncs, counters.reconnects), (history.events, [0; 7], 0));
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

fn main() {
    // `cargo test --benches` only wants to see it compile and run.
    if !std::env::args().any(|argument| argument == "--bench") {
        return compare_once();
    }
    compare(&written("20,000 single puts", 20_000, 1));
    compare(&written("2000 transactions of 50", 2000, 50));
}

fn compare_once() {
    let history = written("100 transactions of 5", 100, 5);
    bare(&history);
    feeder(&history);
}
