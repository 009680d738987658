//! `/livez`, `/readyz`, `/healthz`, in the form in which Kubernetes answers them.
//!
//! Alive is a server that a restart would not make better: it answers, and none of its caches is closed. Ready is one
//! that answers lists and watches: each cache has its listing, has not been without its source for too long, and the
//! server does not end.

use crate::api::ApiState;
use crate::request::{Health, decoded};
use axum::body::Body;
use axum::response::Response;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};
use watchcore::{Cache, State};

/// One check: its name, and why it fails.
struct Check {
    name: String,
    failure: Option<String>,
}

/// 200 and `ok`, or 500 and each check by its name.
pub(crate) fn health(state: &ApiState, which: Health, head: &Parts) -> Response {
    let checks = checks(state, which);
    let query = head.uri.query().unwrap_or_default();
    let parameter = |name: &'static str| {
        query.split('&').filter_map(move |pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key == name).then(|| decoded(value)).flatten()
        })
    };
    let excluded: Vec<String> = parameter("exclude").collect();
    let is_verbose = parameter("verbose").next().is_some();
    let (name, fails) = (word(which), |check: &&Check| check.failure.is_some() && !excluded.contains(&check.name));
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
    let mut checks = vec![Check { name: "ping".into(), failure: None }];
    for cache in state.catalog.caches() {
        let failure = match which {
            Health::Live => closed(cache),
            Health::Ready | Health::Healthz => not_ready(cache, state.stale_limit),
        };
        checks.push(Check { name: name_of(cache), failure });
    }
    if which == Health::Ready {
        let failure = state.is_ending.load(Relaxed).then(|| "the server is shutting down".to_owned());
        checks.push(Check { name: "shutdown".into(), failure });
    }
    checks
}

/// By its name where it was given one, else by its prefix, which no two caches share.
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
        State::Stale { since } => {
            let age = SystemTime::now().duration_since(since).unwrap_or_default();
            (age > limit).then(|| format!("{} for {} s", State::Stale { since }.name(), age.as_secs()))
        }
        other => Some(other.name().to_owned()),
    }
}

/// A line for each check, and one for what is excluded and not there.
fn listed(checks: &[Check], excluded: &[String]) -> String {
    let mut text = String::new();
    for Check { name, failure } in checks {
        let is_excluded = excluded.contains(name);
        let _ = match failure {
            _ if is_excluded => writeln!(text, "[+]{name} excluded: ok"),
            None => writeln!(text, "[+]{name} ok"),
            Some(why) => writeln!(text, "[-]{name} failed: {why}"),
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
