//! A watch as the body of a response, and as what the direct path takes out of that.

use super::stall::{BodyShared, BodyWatch, Stall};
use crate::watch::WatchStream;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, header};
use http_body::Frame as BodyFrame;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// In the extensions of a response whose body is a watch: the same watch, for a connection that writes it itself. Whoever
/// takes it out first has it; the body of the response is empty then.
#[derive(Clone)]
pub(crate) struct DirectStream(Arc<BodyShared>);

impl DirectStream {
    /// The watch, if nobody has it yet.
    pub(crate) fn take(&self) -> Option<WatchStream> {
        self.0.take()
    }
}

/// The response that a watch is: its head goes out at once.
pub(crate) fn respond(stream: WatchStream, content_type: &'static str, stall: Stall) -> Response {
    // The connection of our own server takes it out, as a rule, and looks at its deadline itself.
    let is_taken = stall.peer.is_some();
    let mut watch = BodyWatch::new(stream, stall);
    if !is_taken {
        watch.begin();
    }
    let direct = DirectStream(watch.shared().clone());
    let mut response = Response::new(Body::new(WatchBody(watch)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.extensions_mut().insert(direct);
    response
}

/// Frames as pieces of a body.
struct WatchBody(BodyWatch);

impl http_body::Body for WatchBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<BodyFrame<Bytes>>>> {
        self.0.poll_bytes(context).map(|bytes| bytes.map(|bytes| bytes.map(BodyFrame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_over()
    }
}
