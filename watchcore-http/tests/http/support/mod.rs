//! What the tests stand on: caches with a served router, and a client that sees bytes.

pub(crate) mod certificates;
pub(crate) mod client;
pub(crate) mod ground;

pub(crate) use client::{Answer, Client, Watching, get, request};
pub(crate) use ground::Ground;

use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long a test waits for anything before it fails. Nothing waits for this time to pass.
pub(crate) const BOUND: Duration = Duration::from_secs(10);

/// What a future comes to, within the bound.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(BOUND, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: nothing within {BOUND:?}"),
    }
}

/// The first value that a question gives, asked again and again within the bound.
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

/// A series of `/metrics`, by its name and labels as they are printed there.
pub(crate) async fn figure(address: SocketAddr, series: &str) -> f64 {
    let text = get(address, "/metrics").await.text();
    figure_in(&text, series).unwrap_or_else(|| panic!("no series {series} in:\n{text}"))
}

/// The same in a text that was scraped.
pub(crate) fn figure_in(text: &str, series: &str) -> Option<f64> {
    text.lines().filter_map(|line| line.rsplit_once(' ')).find(|(name, _)| *name == series)?.1.parse().ok()
}
