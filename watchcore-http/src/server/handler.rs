//! The service that hyper calls for each request of a connection.

use super::answer::{Answer, holder};
use crate::access::Peer;
use crate::api::Api;
use crate::clients::{Account, Activity, Answering, ClientId, UnreadAnswer};
use crate::counters::Reason;
use crate::limits::Limits;
use crate::request::Route;
use crate::status::Refusal;
use crate::transport::{DirectStream, direct};
use crate::watch::WatchStream;
use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body::Body as _;
use hyper::body::Incoming;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;
use tower::Service as _;

/// A watch that is written to the socket directly instead of by hyper.
pub(super) struct DirectWatch {
    pub(super) head: Bytes,
    pub(super) stream: Box<WatchStream>,
    pub(super) answered: Arc<UnreadAnswer>,
    pub(super) answering: Answering,
    /// Whether the client keeps the connection open for more requests.
    pub(super) keeps_alive: bool,
    /// The response's empty body: a layer that wrapped it is notified of the watch's end when it is dropped.
    pub(super) body: Body,
}

/// Hands a watch over to the task of its connection. One slot suffices, because hyper answers one request at a time.
pub(super) type WatchHandover = Arc<Mutex<Option<DirectWatch>>>;

/// The service of one connection.
#[derive(Clone)]
pub(super) struct Handler {
    /// The slot for a watch, on HTTP/1.1 without layers that need the body.
    pub(super) handover: Option<WatchHandover>,
    pub(super) router: Router,
    pub(super) peer: Arc<Peer>,
    pub(super) activity: Arc<Activity>,
    pub(super) api: Api,
    /// All permits are in use: only health probes are answered, and the connection closes.
    pub(super) only_health: bool,
    /// On HTTP/2: limits the answers that are made concurrently.
    pub(super) making: Option<Arc<Semaphore>>,
}

impl hyper::service::Service<Request<Incoming>> for Handler {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let answering = self.activity.answer();
        let refused = self.refusal(&request);
        request.extensions_mut().insert(self.peer.clone());
        let Handler { handover, mut router, peer, activity, api, only_health, making } = self.clone();
        let handover = handover.filter(|_| can_bypass_hyper(&request));
        let keeps_alive = keeps_alive(request.headers());
        Box::pin(async move {
            let is_http2 = making.is_some();
            let permit = match making {
                // The semaphore is never closed; if it were, the request would be answered without a permit.
                Some(making) => making.acquire_owned().await.ok(),
                None => None,
            };
            let mut response = match refused {
                Some(refusal) => api.refuse(&request.into_parts().0, refusal),
                // Never an error: the router's error type is `Infallible`.
                None => match router.call(request.map(Body::new)).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                },
            };
            drop(permit);
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                activity.upgrade();
            }
            if !is_http2 && (only_health || activity.is_last()) {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            let account = response.extensions_mut().remove::<Arc<Account>>();
            let account = account.unwrap_or_else(|| api.0.unread.account(&ClientId::at(peer.address.ip())));
            if let Some(handover) = handover
                && let Some(stream) =
                    response.extensions_mut().remove::<DirectStream>().and_then(|direct| direct.take())
            {
                let (parts, body) = response.into_parts();
                let (head, answered) = (direct::head_bytes(&parts), account.answer(holder(&activity)));
                let taken = DirectWatch { head, stream, answered, answering, keeps_alive, body };
                // The slot is only set and taken, so a panic cannot leave it half changed.
                *handover.lock().unwrap_or_else(PoisonError::into_inner) = Some(taken);
                // The connection's task finds the watch after this poll, and drops this future with the rest of hyper.
                return std::future::pending().await;
            }
            Ok(response.map(|body| Answer::new(body, &account, answering, is_http2)))
        })
    }
}

/// Whether the answer can bypass hyper: it is chunked, which HTTP/1.0 lacks, and has a body.
fn can_bypass_hyper(request: &Request<Incoming>) -> bool {
    request.version() == Version::HTTP_11 && request.method() == Method::GET && request.body().is_end_stream()
}

fn keeps_alive(headers: &HeaderMap) -> bool {
    let words = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    !words.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("close"))
}

impl Handler {
    fn limits(&self) -> &Limits {
        &self.api.0.limits
    }

    fn refused(&self, reason: Reason) {
        self.api.0.counters.refused(reason);
    }

    /// Returns the refusal of a request that breaks a limit, before its path and parameters are parsed.
    fn refusal(&self, request: &Request<Incoming>) -> Option<Refusal> {
        let limits = self.limits();
        if self.only_health && !matches!(Route::of(request.uri().path()), Ok(Route::Health(_))) {
            let message = format!("there are {} connections already, the most of this server", limits.connections);
            return Some(Refusal::too_many(message, 1));
        }
        let url = request.uri().path_and_query().map_or(0, |url| url.as_str().len());
        if url > limits.url_bytes {
            self.refused(Reason::url_bytes);
            let message = format!("the URL has {url} bytes; this server takes {} at most", limits.url_bytes);
            return Some(Refusal::new(414, "RequestURITooLong", message));
        }
        let headers: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
        if headers + url > limits.header_bytes {
            self.refused(Reason::header_bytes);
            let message = format!("the headers have more than {} bytes, the most of this server", limits.header_bytes);
            return Some(Refusal::new(431, "RequestHeaderFieldsTooLarge", message));
        }
        let named = request.headers().contains_key(header::HOST) || request.uri().authority().is_some();
        if request.version() == Version::HTTP_11 && !named {
            self.refused(Reason::malformed);
            return Some(Refusal::bad_request("a request of HTTP/1.1 needs the header Host"));
        }
        None
    }
}
