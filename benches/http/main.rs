//! `watchcore serve` beside Kubernetes' own server over the same etcd, and beside a loop that does nothing but write: what
//! a delivery, a list and an idle watch cost the process that serves them. `make bench-http`.
//!
//! The servers are processes of their own, and only their processor time counts; the watchers are raw sockets in this one.
//!
//! | variable | |
//! | --- | --- |
//! | `WATCHCORE_SERVER` | the binary `watchcore`; default `target/release/watchcore` |
//! | `HTTP_APISERVER` | a program that serves custom objects of `bench.test/v1` `widgets` as Kubernetes does: as the program of `http-tests/go/comparison/apiserver` does; without it that column is empty |
//! | `ROWS` | which rows: `fanout idle list latency deaf hostile`; default all |
//! | `WATCHERS` | how many, for the fan-out; default `1000 10000` |
//! | `RATES` | events a second, for the latency; default `100 1000` |
//! | `WATCHERS` | in the row `revoke`, which is run by its name alone: how many; default 10000 |
//! | `MINUTES`, `SOAKED` | how long, and how many watches, for the row `soak`, which is run by its name alone; default 60, 5000; it needs haproxy |
#![allow(missing_docs)]

#[path = "../../tests/support/mod.rs"]
mod support;

mod bare;
mod hostile;
mod process;
mod revoke;
mod servers;
mod soak;
mod transports;
mod watchers;

use servers::{Server, Widgets};
use std::time::{Duration, Instant};
use support::etcd::Etcd;
use transports::Transport;
use watchers::Watchers;

/// In the value of the last object of a window: for this the watchers wait.
const MARKER: &str = "last-of-window";
/// Events between two waits.
const WINDOW: usize = 8;
const ROUNDS: usize = 5;
const BOUND: Duration = Duration::from_secs(120);

fn main() {
    if std::env::args().nth(1).as_deref() == Some("bare") {
        bare::serve(MARKER);
    }
    if let [_, mode, name, address] = &*std::env::args().collect::<Vec<_>>()
        && mode == "attack"
    {
        hostile::attack(name, address);
    }
    let rows = std::env::var("ROWS").unwrap_or_else(|_| "fanout idle list latency deaf hostile".into());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let etcd = Etcd::start();
        let mut widgets = Widgets::new(&etcd.url()).await;
        widgets.fill(1000).await;
        for row in rows.split_whitespace() {
            match row {
                "fanout" => fanout(&etcd, &mut widgets).await,
                "idle" => idle(&etcd).await,
                "latency" => latency(&etcd, &mut widgets).await,
                "deaf" => deaf(&etcd, &mut widgets).await,
                "hostile" => hostile::run(&etcd, &mut widgets).await,
                "revoke" => revoke::run(&etcd, &mut widgets).await,
                "soak" => soak::run(&etcd, &mut widgets).await,
                "fill" => widgets.fill(150_000).await,
                "list" => {
                    widgets.fill(150_000).await;
                    list(&etcd).await;
                }
                other => panic!("ROWS: no row is called {other:?}"),
            }
        }
    });
}

/// The numbers in an environment variable.
fn numbers(variable: &str, default: &str) -> Vec<usize> {
    let text = std::env::var(variable).unwrap_or_else(|_| default.into());
    let number = |word: &str| word.parse().unwrap_or_else(|_| panic!("{variable}: {word:?} is no number"));
    text.split_whitespace().map(number).collect()
}

/// Median, least and greatest.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// Processor time of the server for an event to one of many watchers: windows of a few events, each waited for.
async fn fanout(etcd: &Etcd, widgets: &mut Widgets) {
    println!(
        "| watchers | server | bytes a delivery | ns of CPU a delivery, median (range of {ROUNDS}) |\n| --- | --- | --- | --- |"
    );
    for count in numbers("WATCHERS", "1000 10000") {
        let mut length = 0;
        for start in Server::ALL {
            let Some(server) = start(&etcd.url()).await else { continue };
            // A server that has just begun knows nothing of before.
            widgets.window(1, "").await;
            let path = format!("{}?watch=1&resourceVersion={}", servers::PATH, widgets.revision());
            let watchers = Watchers::open(server.address, &path, count, MARKER, 0, false).await;
            let mut taken = Vec::new();
            for round in 0..=ROUNDS {
                let (seen, bytes) = (watchers.seen(), watchers.bytes.load(std::sync::atomic::Ordering::Relaxed));
                let before = server.cpu();
                widgets.window(WINDOW, MARKER).await;
                assert!(
                    watchers.wait_seen(seen + count, BOUND).await,
                    "{}: {} of {count}",
                    server.name,
                    watchers.seen() - seen
                );
                let per = (server.cpu() - before).as_nanos() as f64 / (count * WINDOW) as f64;
                length =
                    (watchers.bytes.load(std::sync::atomic::Ordering::Relaxed) - bytes) as usize / (count * WINDOW);
                // The first warms up.
                if round > 0 {
                    taken.push(per);
                }
            }
            watchers.close();
            let (median, least, most) = spread(taken);
            println!("| {count} | {} | {length} | {median:.0} ({least:.0} to {most:.0}) |", server.name);
        }
        let (median, least, most) = spread(bare_loop(count, length).await);
        println!("| {count} | a bare loop | {length} | {median:.0} ({least:.0} to {most:.0}) |");
    }
}

/// The same with ready bytes and nothing else.
async fn bare_loop(count: usize, length: usize) -> Vec<f64> {
    let mut loop_server = servers::Bare::start();
    let watchers = Watchers::open(loop_server.address, "/", count, MARKER, 0, false).await;
    let mut taken = Vec::new();
    for round in 0..=ROUNDS {
        let seen = watchers.seen();
        let before = process::cpu(loop_server.pid());
        loop_server.write(length, WINDOW);
        assert!(watchers.wait_seen(seen + count * WINDOW, BOUND).await, "the loop");
        if round > 0 {
            taken.push((process::cpu(loop_server.pid()) - before).as_nanos() as f64 / (count * WINDOW) as f64);
        }
    }
    watchers.close();
    taken
}

/// Memory of the server for a watch that has nothing to do, over each transport.
async fn idle(etcd: &Etcd) {
    println!("| server | over | watches | bytes of memory a watch, median (range of 3) |\n| --- | --- | --- | --- |");
    for transport in Transport::ALL {
        let mut taken = Vec::new();
        for _ in 0..3 {
            let (server, certificate) = match transport {
                Transport::Tls => {
                    let (server, certificate) = Server::watchcore_tls(&etcd.url()).await;
                    (server, Some(certificate))
                }
                _ => (Server::ALL[0](&etcd.url()).await.expect("always there"), None),
            };
            taken.push(idle_of(&server, transport, certificate.as_ref()).await);
        }
        row_of_idle("watchcore serve", transport, taken);
    }
    let mut taken = Vec::new();
    for _ in 0..3 {
        let Some(server) = Server::ALL[1](&etcd.url()).await else { return };
        taken.push(idle_of(&server, Transport::Plain, None).await);
    }
    row_of_idle("Kubernetes' server", Transport::Plain, taken);
}

const IDLE: usize = 5000;

fn row_of_idle(server: &str, transport: Transport, taken: Vec<f64>) {
    let (median, least, most) = spread(taken);
    println!("| {server} | {} | {IDLE} | {median:.0} ({least:.0} to {most:.0}) |", transport.name());
}

async fn idle_of(server: &Server, transport: Transport, certificate: Option<&servers::Certificate>) -> f64 {
    let path = format!(
        "{}?watch=1&resourceVersion=0&sendInitialEvents=false&resourceVersionMatch=NotOlderThan",
        servers::PATH
    );
    let warm = transport.open(server.address, &path, 100, certificate).await;
    at_rest(server).await;
    let before = process::memory(server.pid(), "VmRSS");
    let watches = transport.open(server.address, &path, IDLE, certificate).await;
    at_rest(server).await;
    let each = process::memory(server.pid(), "VmRSS").saturating_sub(before) as f64 / IDLE as f64;
    drop((warm, watches));
    each
}

/// A list of everything: first byte, whole, processor time, memory above what there was.
async fn list(etcd: &Etcd) {
    println!(
        "| server | bytes | first byte, ms | whole, ms | CPU, ms | peak above, MiB |\n| --- | --- | --- | --- | --- | --- |"
    );
    for start in Server::ALL {
        let Some(server) = start(&etcd.url()).await else { continue };
        let path = format!("{}?resourceVersion=0", servers::PATH);
        // Kubernetes' server asks to come again until its cache is filled.
        while servers::status(server.address, &path).await != Some(200) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        for _ in 0..ROUNDS {
            let resident = process::memory(server.pid(), "VmRSS");
            process::forget_peak(server.pid());
            let before = server.cpu();
            let begin = Instant::now();
            let (first, bytes) = servers::get(server.address, &path).await;
            let whole = begin.elapsed();
            let peak = process::memory(server.pid(), "VmHWM").saturating_sub(resident);
            println!(
                "| {} | {bytes} | {:.1} | {:.0} | {:.0} | {:.1} |",
                server.name,
                (first - begin).as_secs_f64() * 1e3,
                whole.as_secs_f64() * 1e3,
                (server.cpu() - before).as_secs_f64() * 1e3,
                peak as f64 / 1048576.0
            );
        }
    }
}

/// From the write to the client, 1000 watchers, at steady rates; beside a watch of etcd itself.
async fn latency(etcd: &Etcd, widgets: &mut Widgets) {
    println!("| server | events/s | p50, ms | p99, ms | CPU, share of one |\n| --- | --- | --- | --- | --- |");
    for rate in numbers("RATES", "100 1000") {
        latency_at(rate, etcd, widgets).await;
    }
}

async fn latency_at(rate: usize, etcd: &Etcd, widgets: &mut Widgets) {
    for start in Server::ALL {
        let Some(server) = start(&etcd.url()).await else { continue };
        widgets.window(1, "").await;
        let path = format!("{}?watch=1&resourceVersion={}", servers::PATH, widgets.revision());
        let watchers = Watchers::open(server.address, &path, 1000, MARKER, 10, false).await;
        let bare = widgets.bare_watch().await;
        let before = (server.cpu(), Instant::now());
        let reached = widgets.steady(rate, Duration::from_secs(8), MARKER).await;
        // A server may drop watchers that do not keep up.
        let all = watchers.wait_seen(1000, Duration::from_secs(10)).await;
        let share = (server.cpu() - before.0).as_secs_f64() / before.1.elapsed().as_secs_f64();
        let (own, etcds) = (watchers.latencies(), bare.finish().await);
        watchers.close();
        let at = |sorted: &[u64], part: f64| {
            sorted.get((sorted.len() as f64 * part) as usize).map_or(f64::NAN, |ns| *ns as f64 / 1e6)
        };
        let short = if all { String::new() } else { format!(" (the last event reached {} of 1000)", watchers.seen()) };
        println!(
            "| {}{short} | {reached:.0} | {:.2} | {:.2} | {share:.2} |",
            server.name,
            at(&own, 0.5),
            at(&own, 0.99)
        );
        println!("| etcd's own watch beside it | {reached:.0} | {:.2} | {:.2} | |", at(&etcds, 0.5), at(&etcds, 0.99));
    }
}

/// Waits until the server has done what it was asked for: it uses a tenth of a processor at most.
async fn at_rest(server: &Server) {
    let begin = Instant::now();
    loop {
        let before = server.cpu();
        tokio::time::sleep(Duration::from_millis(200)).await;
        if server.cpu() - before < Duration::from_millis(20) {
            return;
        }
        assert!(begin.elapsed() < BOUND, "{} is busy with nobody", server.name);
    }
}

/// The same at a lower rate, alone and beside as many clients that never read, in turns. Those begin with the state, so
/// that their sockets are full before it is measured.
async fn deaf(etcd: &Etcd, widgets: &mut Widgets) {
    println!("| server | beside | p50, ms | p99, ms | memory, MiB |\n| --- | --- | --- | --- | --- |");
    for start in Server::ALL {
        let Some(server) = start(&etcd.url()).await else { continue };
        for round in 0..ROUNDS * 2 {
            let silent = if round % 2 == 0 { 0 } else { 1000 };
            // A server that has just begun knows nothing of before.
            widgets.window(1, "").await;
            let path = format!("{}?watch=1&resourceVersion={}", servers::PATH, widgets.revision());
            let state = format!("{}?watch=1&resourceVersion=0", servers::PATH);
            let deaf = Watchers::open(server.address, &state, silent, MARKER, 0, true).await;
            at_rest(&server).await;
            let watchers = Watchers::open(server.address, &path, 1000, MARKER, 10, false).await;
            widgets.steady(100, Duration::from_secs(4), MARKER).await;
            watchers.wait_seen(1000, BOUND).await;
            let own = watchers.latencies();
            let at = |part: f64| own.get((own.len() as f64 * part) as usize).map_or(f64::NAN, |ns| *ns as f64 / 1e6);
            let memory = process::memory(server.pid(), "VmRSS") as f64 / 1048576.0;
            println!("| {} | {silent} that never read | {:.2} | {:.2} | {memory:.0} |", server.name, at(0.5), at(0.99));
            watchers.close();
            deaf.close();
        }
    }
}
