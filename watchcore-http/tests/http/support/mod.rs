//! Test support: caches with a server, and a client of raw bytes.

pub(crate) mod certificates;
pub(crate) mod client;
pub(crate) mod ground;

pub(crate) use client::{Answer, Client, Watching, get, request};
pub(crate) use ground::Ground;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Upper bound on every wait of a test. No test waits for this time to pass.
pub(crate) const BOUND: Duration = Duration::from_secs(10);

/// Awaits a future within the bound.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(BOUND, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: nothing within {BOUND:?}"),
    }
}

/// Repeats a question until it gives a value, within the bound.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut question: impl FnMut() -> F) -> T {
    let from = Instant::now();
    loop {
        if let Some(value) = question().await {
            return value;
        }
        assert!(from.elapsed() < BOUND, "{what}: not within {BOUND:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Returns a list's continue token, changed to begin at another key; the checksum is recomputed.
pub(crate) fn token_from(list: &Answer, next: &str) -> String {
    let list = list.json();
    let token = list["metadata"]["continue"].as_str().or(list["continue"].as_str()).expect("a token");
    let mut bytes = URL_SAFE_NO_PAD.decode(token).expect("base64");
    bytes.truncate(33);
    bytes.extend(next.as_bytes());
    let signed = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.extend(bytes.iter().fold(0xcbf2_9ce4_8422_2325, signed).to_le_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns the value of a series in `/metrics`, by its name and labels as printed there.
pub(crate) async fn metric(address: SocketAddr, series: &str) -> f64 {
    let text = get(address, "/metrics").await.text();
    metric_in(&text, series).unwrap_or_else(|| panic!("no series {series} in:\n{text}"))
}

/// Returns the value of a series in scraped text.
pub(crate) fn metric_in(text: &str, series: &str) -> Option<f64> {
    text.lines().filter_map(|line| line.rsplit_once(' ')).find(|(name, _)| *name == series)?.1.parse().ok()
}
