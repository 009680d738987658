//! One request and its answer, as the log and the counters see them.
//!
//! It is made when the head of the request is there, and is held by whatever is still busy with the answer: the body of
//! the response, the place of an open watch. When the last of them drops it, it is counted and logged, once, whatever
//! the transport was, and whether the answer was sent whole or the client went.

use crate::figures::{Figures, RequestLabels, ResourceLabels};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method};
use percent_encoding::{CONTROLS, utf8_percent_encode};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// What the log calls a request whose client went before there was an answer.
const CLIENT_GONE: u16 = 499;

/// One request and its answer.
pub(crate) struct Exchange {
    began: Instant,
    method: Method,
    path: String,
    query: String,
    /// `get`, `list`, `watch`; of other methods the method in small letters, of unknown ones `other`.
    verb: &'static str,
    resource: ResourceLabels,
    peer: Option<SocketAddr>,
    id: HeaderValue,
    user: OnceLock<String>,
    reason: OnceLock<&'static str>,
    code: AtomicU16,
    /// Relaxed, as all of it: read when nobody else has it.
    bytes: AtomicU64,
    /// The bytes of a watch are counted where they are framed.
    is_watch: AtomicBool,
    figures: Arc<Figures>,
}

/// What a request is about, as far as its head says.
pub(crate) struct Subject {
    pub(crate) verb: &'static str,
    pub(crate) resource: ResourceLabels,
    /// Without what must not stand in a log.
    pub(crate) query: String,
    pub(crate) peer: Option<SocketAddr>,
}

impl Exchange {
    /// A request begins.
    pub(crate) fn begin(head: &Parts, subject: Subject, figures: Arc<Figures>) -> Arc<Exchange> {
        let Subject { verb, resource, query, peer } = subject;
        Arc::new(Exchange {
            began: Instant::now(),
            method: head.method.clone(),
            path: plain(head.uri.path()),
            query: plain(&query),
            verb,
            resource,
            peer,
            id: request_id(&head.headers),
            user: OnceLock::new(),
            reason: OnceLock::new(),
            code: AtomicU16::new(CLIENT_GONE),
            bytes: AtomicU64::new(0),
            is_watch: AtomicBool::new(false),
            figures,
        })
    }

    /// That of a request.
    pub(crate) fn of(head: &Parts) -> Option<&Arc<Exchange>> {
        head.extensions.get()
    }

    /// By what the client and the log name it.
    pub(crate) fn id(&self) -> &HeaderValue {
        &self.id
    }

    /// Who sends it.
    pub(crate) fn sent_by(&self, user: &str) {
        // It is found out once.
        let _ = self.user.set(user.to_owned());
    }

    /// The head of the answer is there.
    pub(crate) fn answered(&self, code: u16, reason: Option<&'static str>) {
        self.code.store(code, Relaxed);
        if let Some(reason) = reason {
            let _ = self.reason.set(reason);
        }
    }

    /// From now on a watch counts what is sent.
    pub(crate) fn watches(&self) {
        self.is_watch.store(true, Relaxed);
    }

    /// Bytes of a watch.
    pub(crate) fn framed(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Bytes of a body.
    pub(crate) fn sent(&self, bytes: usize) {
        if !self.is_watch.load(Relaxed) {
            self.bytes.fetch_add(bytes as u64, Relaxed);
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let (code, bytes) = (*self.code.get_mut(), *self.bytes.get_mut());
        let took = self.began.elapsed();
        let is_watch = *self.is_watch.get_mut();
        let verb = if is_watch { "watch" } else { self.verb };
        let labels = RequestLabels { verb, resource: std::mem::take(&mut self.resource), code };
        if !is_watch {
            self.figures.answer_sent(bytes);
        }
        let resource = self.figures.request(labels, took);
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

/// Text of a request line for a line of the log. A request line may have any UTF-8 in it, which may end a line for who
/// reads the log, or turn its text round; it is written as clients should have written it, with percent signs.
fn plain(text: &str) -> String {
    utf8_percent_encode(text, CONTROLS).to_string()
}

/// What the client calls the request, if that can stand in a log and a header; else a name that nobody else has.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    const MOST: usize = 64;
    let is_sane = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(byte);
        (1..=MOST).contains(&bytes.len()) && bytes.iter().all(is_plain)
    };
    let given = ["audit-id", "x-request-id"].iter().filter_map(|name| headers.get(*name)).find(is_sane);
    given.cloned().unwrap_or_else(|| {
        let made = format!("{:032x}", fastrand::u128(..));
        // Digits are always a value.
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
