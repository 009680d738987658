//! What hyper calls for each request of a connection.

use super::socket::{Activity, Answering};
use crate::access::Peer;
use crate::api::{Api, Limits};
use crate::figures::Reason;
use crate::status::Refusal;
use crate::transport::{AnswerStream, DirectStream, StreamBody, direct};
use crate::watch::WatchStream;
use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version, header};
use http_body::{Body as _, Frame as BodyFrame};
use hyper::body::{Incoming, SizeHint};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tower::Service as _;

/// A watch that leaves hyper: what is written to the socket instead of what hyper would.
pub(super) struct Taken {
    pub(super) head: Bytes,
    pub(super) stream: WatchStream,
    /// Whether the client wants the connection for more.
    pub(super) keeps_alive: bool,
    /// The body of the response, which is empty: who wrapped it learns of the end of the watch by its end.
    pub(super) body: Body,
}

/// Where a watch waits for the task of its connection; one at a time, for hyper answers one request at a time.
pub(super) type Takeover = Arc<Mutex<Option<Taken>>>;

/// The service of one connection.
#[derive(Clone)]
pub(super) struct Handler {
    /// Where the connection can be taken apart: on HTTP/1.1.
    pub(super) takeover: Option<Takeover>,
    pub(super) router: Router,
    pub(super) peer: Arc<Peer>,
    pub(super) activity: Arc<Activity>,
    pub(super) api: Api,
}

/// The body of an answer; while it is there, the connection is answering.
pub(super) struct Answer {
    body: Body,
    _answering: Answering,
}

impl hyper::service::Service<Request<Incoming>> for Handler {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let answering = self.activity.answer();
        let refused = self.refusal(&request);
        request.extensions_mut().insert(self.peer.clone());
        let mut router = self.router.clone();
        let activity = self.activity.clone();
        let takeover = self.takeover.clone().filter(|_| can_be_taken(&request));
        let keeps_alive = keeps_alive(request.headers());
        let (api, queued) = (self.api.clone(), self.limits().queued_bytes);
        Box::pin(async move {
            let mut response = match refused {
                Some(refusal) => api.refuse(&request.into_parts().0, refusal),
                // A router never fails.
                None => match router.call(request.map(Body::new)).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                },
            };
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                activity.upgrade();
            }
            if let Some(takeover) = takeover
                && let Some(stream) =
                    response.extensions_mut().remove::<DirectStream>().and_then(|direct| direct.take())
            {
                let (parts, body) = response.into_parts();
                let taken = Taken { head: direct::head_bytes(&parts), stream, keeps_alive, body };
                // A panic elsewhere cannot have left it half done: it is set and taken, nothing more.
                *takeover.lock().unwrap_or_else(PoisonError::into_inner) = Some(taken);
                // The task of the connection looks there behind this poll, and drops this with what hyper has.
                return std::future::pending().await;
            }
            Ok(response.map(|body| {
                let body = match AnswerStream::current() {
                    Some(stream) => Body::new(StreamBody::new(body, stream, queued)),
                    None => body,
                };
                Answer { body, _answering: answering }
            }))
        })
    }
}

/// Whether the answer can be written past hyper: as chunks, which HTTP/1.0 does not know, and with a body.
fn can_be_taken(request: &Request<Incoming>) -> bool {
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
        self.api.0.figures.refused(reason);
    }

    /// What is refused before anybody looks at what is asked.
    fn refusal(&self, request: &Request<Incoming>) -> Option<Refusal> {
        let limits = self.limits();
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

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
