//! A watch as server-sent events.
//!
//! The watch's framing already produces whole events; this adds how soon a client should reconnect.

use super::body::WatchBody;
use crate::watch::WatchStream;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, header};
use http_body::Frame as BodyFrame;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The first bytes of the stream: the reconnection delay in milliseconds.
const PRELUDE: &[u8] = b"retry: 1000\n\n";

/// The media type of server-sent events.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";

/// A body of server-sent events.
struct EventBody {
    watch: WatchBody,
    has_begun: bool,
}

/// Returns the response of a watch whose framing produces server-sent events.
pub(crate) fn respond(stream: WatchStream) -> Response {
    with_head(Body::new(EventBody { watch: WatchBody::new(stream), has_begun: false }))
}

/// Returns a response of server-sent events, which proxies must neither cache nor buffer.
pub(crate) fn with_head(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl http_body::Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, Infallible>>> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return Poll::Ready(Some(Ok(BodyFrame::data(Bytes::from_static(PRELUDE)))));
        }
        Pin::new(&mut self.watch).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.watch.is_end_stream()
    }
}
