//! One request and its answer, as the access log and the counters see them.
//!
//! The record is made from the request's head. Everything that still works on the answer holds a reference: the body of
//! the response, the permit of an open watch. Dropping the last reference counts and logs the request, exactly once,
//! over any transport, whether the answer was sent whole or the client went away.

use crate::counters::{Counters, RequestLabels, ResourceLabels};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method};
use percent_encoding::{CONTROLS, utf8_percent_encode};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Code in the log of a request whose client went away before there was an answer, as nginx has it.
const CLIENT_GONE: u16 = 499;

pub(crate) struct RequestRecord {
    began: Instant,
    method: Method,
    path: String,
    query: String,
    /// `get`, `list` or `watch`; for other methods the method in lower case; for unknown methods `other`.
    verb: &'static str,
    resource: ResourceLabels,
    peer: Option<SocketAddr>,
    id: HeaderValue,
    user: OnceLock<String>,
    reason: OnceLock<&'static str>,
    code: AtomicU16,
    /// Relaxed, like the other counters here: read in `drop`, after the last reference is gone.
    bytes: AtomicU64,
    /// Set for a watch: its bytes are counted where they are framed, so the body must not count them again.
    is_watch: AtomicBool,
    counters: Arc<Counters>,
}

/// The subject of a request, as far as its head says.
pub(crate) struct Subject {
    pub(crate) verb: &'static str,
    pub(crate) resource: ResourceLabels,
    /// The query without secrets such as tokens.
    pub(crate) query: String,
    pub(crate) peer: Option<SocketAddr>,
}

impl RequestRecord {
    /// Begins the record of a request.
    pub(crate) fn begin(head: &Parts, subject: Subject, counters: Arc<Counters>) -> Arc<RequestRecord> {
        let Subject { verb, resource, query, peer } = subject;
        Arc::new(RequestRecord {
            began: Instant::now(),
            method: head.method.clone(),
            path: log_safe(head.uri.path()),
            query: log_safe(&query),
            verb,
            resource,
            peer,
            id: request_id(&head.headers),
            user: OnceLock::new(),
            reason: OnceLock::new(),
            code: AtomicU16::new(CLIENT_GONE),
            bytes: AtomicU64::new(0),
            is_watch: AtomicBool::new(false),
            counters,
        })
    }

    /// Returns the record in a request's extensions.
    pub(crate) fn of(head: &Parts) -> Option<&Arc<RequestRecord>> {
        head.extensions.get()
    }

    /// Returns the ID by which the client and the log name the request.
    pub(crate) fn id(&self) -> &HeaderValue {
        &self.id
    }

    /// Records the authenticated user.
    pub(crate) fn set_user(&self, user: &str) {
        // Authentication runs once per request, so this is empty before.
        let _ = self.user.set(user.to_owned());
    }

    /// Records that the head of the answer exists.
    pub(crate) fn set_answer(&self, code: u16, reason: Option<&'static str>) {
        self.code.store(code, Relaxed);
        if let Some(reason) = reason {
            let _ = self.reason.set(reason);
        }
    }

    /// Marks the request as a watch; from now on only [`add_watch_bytes`](Self::add_watch_bytes) counts bytes.
    pub(crate) fn mark_watch(&self) {
        self.is_watch.store(true, Relaxed);
    }

    /// Counts bytes of a watch.
    pub(crate) fn add_watch_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts bytes of a body, unless the request is a watch.
    pub(crate) fn add_body_bytes(&self, bytes: usize) {
        if !self.is_watch.load(Relaxed) {
            self.bytes.fetch_add(bytes as u64, Relaxed);
        }
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        let (code, bytes) = (*self.code.get_mut(), *self.bytes.get_mut());
        let took = self.began.elapsed();
        let is_watch = *self.is_watch.get_mut();
        let verb = if is_watch { "watch" } else { self.verb };
        let labels = RequestLabels { verb, resource: std::mem::take(&mut self.resource), code };
        if !is_watch {
            self.counters.answer_sent(bytes);
        }
        let resource = self.counters.request(labels, took);
        tracing::info!(
            target: "watchcore_http::access",
            method = %self.method,
            path = %self.path,
            query = %self.query,
            verb,
            resource = %resource,
            code,
            reason = self.reason.get().copied(),
            bytes,
            duration_ms = took.as_secs_f64() * 1e3,
            user = self.user.get().map(String::as_str),
            peer = self.peer.map(tracing::field::display),
            id = self.id.to_str().unwrap_or_default(),
        );
    }
}

/// Percent-encodes control characters for the log. A request line may contain any UTF-8, including characters that
/// break a log line or reverse its text in a terminal.
fn log_safe(text: &str) -> String {
    utf8_percent_encode(text, CONTROLS).to_string()
}

/// Returns the client's request ID if it is safe in a log and a header; otherwise a random one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    const MAX: usize = 64;
    let is_sane = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(byte);
        (1..=MAX).contains(&bytes.len()) && bytes.iter().all(is_plain)
    };
    let given = ["audit-id", "x-request-id"].iter().filter_map(|name| headers.get(*name)).find(is_sane);
    given.cloned().unwrap_or_else(|| {
        let made = format!("{:032x}", fastrand::u128(..));
        // Hexadecimal digits are always a valid header value.
        HeaderValue::from_str(&made).unwrap_or(HeaderValue::from_static("none"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_sane_id_is_taken_over() {
        let id = |pairs: &[(&'static str, &str)]| request_id(&headers(pairs)).to_str().unwrap().to_owned();
        assert_eq!(id(&[("x-request-id", "a-1.b_2:c/3")]), "a-1.b_2:c/3");
        assert_eq!(id(&[("audit-id", "audit"), ("x-request-id", "other")]), "audit");
        for wild in ["", "a b", "a\"b", &"x".repeat(65)] {
            let made = id(&[("x-request-id", wild)]);
            assert!(made.len() == 32 && made != wild, "{wild:?}: {made}");
        }
        assert_ne!(id(&[]), id(&[]));
    }
}
