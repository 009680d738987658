//! `/livez`, `/readyz`, `/healthz`, in Kubernetes' format.
//!
//! A server is live unless a restart would help: it answers, and none of its caches is closed. A server is ready if it
//! can answer lists and watches: each cache is filled and has not been without its source for too long, and no shutdown
//! has begun.
//!
//! Without etcd, a cache serves its last state and stays ready for the stale limit, but consistent reads fail with 504.
//! So `/readyz?verbose` also tries a consistent read, and reports the result in a line that does not affect readiness.

use crate::catalog::stale_for;
use crate::request::{Health, decoded};
use crate::state::ApiState;
use axum::body::Body;
use axum::response::Response;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use watchcore::{Cache, State};

/// Timeout of a check's consistent read: shorter than usual probe timeouts.
const READ_TIMEOUT: Duration = Duration::from_millis(900);

/// The result of one check.
struct Check {
    name: String,
    failure: Option<String>,
    /// Whether a failure makes the server unhealthy.
    decides: bool,
}

impl Check {
    fn new(name: impl Into<String>, failure: Option<String>) -> Check {
        Check { name: name.into(), failure, decides: true }
    }
}

/// Answers 200 and `ok`, or 500 and the list of checks.
pub(crate) async fn health(state: &ApiState, which: Health, head: &Parts) -> Response {
    let mut checks = checks(state, which);
    let query = head.uri.query().unwrap_or_default();
    let parameter = |name: &'static str| {
        query.split('&').filter_map(move |pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key == name).then(|| decoded(value)).flatten()
        })
    };
    let excluded: Vec<String> = parameter("exclude").collect();
    let is_verbose = parameter("verbose").next().is_some();
    if is_verbose && which == Health::Ready {
        checks.extend(consistent_reads(state).await);
    }
    let name = word(which);
    let fails = |check: &&Check| check.decides && check.failure.is_some() && !excluded.contains(&check.name);
    let failed: Vec<&str> = checks.iter().filter(fails).map(|check| check.name.as_str()).collect();
    if !failed.is_empty() {
        tracing::debug!(target: "watchcore_http", "{name}: these checks fail: {}", failed.join(", "));
    }
    let body = match (failed.is_empty(), is_verbose) {
        (true, false) => "ok".to_owned(),
        (true, true) => format!("{}{name} check passed\n", listed(&checks, &excluded)),
        (false, _) => format!("{}{name} check failed\n", listed(&checks, &excluded)),
    };
    let mut response = Response::new(Body::from(body));
    if !failed.is_empty() {
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn word(which: Health) -> &'static str {
    match which {
        Health::Live => "livez",
        Health::Ready => "readyz",
        Health::Healthz => "healthz",
    }
}

fn checks(state: &ApiState, which: Health) -> Vec<Check> {
    let mut checks = vec![Check::new("ping", None)];
    for cache in state.catalog.caches() {
        let failure = match which {
            Health::Live => closed(cache),
            Health::Ready | Health::Healthz => not_ready(cache, state.stale_limit),
        };
        checks.push(Check::new(name_of(cache), failure));
    }
    if which == Health::Ready {
        let failure = state.is_ending.load(Relaxed).then(|| "the server is shutting down".to_owned());
        checks.push(Check::new("shutdown", failure));
    }
    checks
}

/// Tries a consistent read of every cache, concurrently.
async fn consistent_reads(state: &ApiState) -> Vec<Check> {
    let reads = state.catalog.caches().iter().map(async |cache| {
        let read = async {
            let revision = cache.consistent_revision_async(READ_TIMEOUT).await?;
            cache.wait_until_async(revision, READ_TIMEOUT).await
        };
        let failure = match tokio::time::timeout(READ_TIMEOUT, read).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.code().name().to_owned()),
            Err(_) => Some(format!("nothing within {} ms", READ_TIMEOUT.as_millis())),
        };
        let name = format!("consistent-reads of {}", name_of(cache));
        Check { decides: false, ..Check::new(name, failure) }
    });
    futures_util::future::join_all(reads).await
}

/// Returns the cache's name or, without one, its prefix, which no two caches share.
fn name_of(cache: &Cache) -> String {
    match cache.name() {
        "" => format!("cache {}", String::from_utf8_lossy(cache.prefix()).escape_debug()),
        name => format!("cache {}", name.escape_debug()),
    }
}

fn closed(cache: &Cache) -> Option<String> {
    (cache.state() == State::Closed).then(|| State::Closed.name().to_owned())
}

fn not_ready(cache: &Cache, limit: Duration) -> Option<String> {
    match cache.state() {
        State::Ready => None,
        state @ State::Stale { .. } => {
            stale_for(cache).filter(|age| *age > limit).map(|age| format!("{} for {} s", state.name(), age.as_secs()))
        }
        other => Some(other.name().to_owned()),
    }
}

/// Returns a line for each check, and a warning for excluded names that do not exist.
fn listed(checks: &[Check], excluded: &[String]) -> String {
    let mut text = String::new();
    for Check { name, failure, decides } in checks {
        let is_excluded = excluded.contains(name);
        let _ = match failure {
            _ if is_excluded => writeln!(text, "[+]{name} excluded: ok"),
            None => writeln!(text, "[+]{name} ok"),
            Some(why) if *decides => writeln!(text, "[-]{name} failed: {why}"),
            Some(why) => writeln!(text, "[-]{name} failed, which alone does not fail the server: {why}"),
        };
    }
    let unknown: Vec<String> = excluded
        .iter()
        .filter(|name| !checks.iter().any(|check| check.name == **name))
        .map(|name| format!("{name:?}"))
        .collect();
    if !unknown.is_empty() {
        let _ = writeln!(text, "warn: some health checks cannot be excluded: no matches for {}", unknown.join(","));
    }
    text
}
