//! A watch as the body of a response, from which the direct path can take it out.

use crate::frame::Frame;
use crate::watch::{Progress, WatchStream};
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, header};
use http_body::Frame as BodyFrame;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

/// Extension of a response whose body is a watch: the same watch, for a connection that writes it itself. Whoever takes
/// it first owns it; the body is empty afterwards.
#[derive(Clone)]
pub(crate) struct DirectStream(Arc<Mutex<Option<Box<WatchStream>>>>);

impl DirectStream {
    /// Takes the watch, unless it was taken already.
    pub(crate) fn take(&self) -> Option<Box<WatchStream>> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<WatchStream>>> {
        // A panic while a piece is made drops the body, so the watch is not polled again.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the response of a watch; its head is sent at once.
pub(crate) fn respond(stream: WatchStream, content_type: &'static str) -> Response {
    let watch = WatchBody::new(stream);
    let direct = watch.stream.clone();
    let mut response = Response::new(Body::new(watch));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.extensions_mut().insert(direct);
    response
}

/// A body whose pieces are frames.
pub(super) struct WatchBody {
    /// Empty after the watch has ended or was taken out.
    stream: DirectStream,
    /// Framed bytes that the transport has not polled yet.
    pieces: VecDeque<Bytes>,
}

impl WatchBody {
    pub(super) fn new(stream: WatchStream) -> WatchBody {
        WatchBody { stream: DirectStream(Arc::new(Mutex::new(Some(Box::new(stream))))), pieces: VecDeque::new() }
    }
}

impl http_body::Body for WatchBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, Infallible>>> {
        let WatchBody { stream, pieces } = &mut *self;
        loop {
            if let Some(piece) = pieces.pop_front() {
                return Poll::Ready(Some(Ok(BodyFrame::data(piece))));
            }
            let mut watch = stream.lock();
            let Some(open) = watch.as_mut() else { return Poll::Ready(None) };
            let mut frames = Vec::new();
            let progress = ready!(open.poll_frames(context, &mut frames));
            pieces.extend(frames.iter().flat_map(Frame::payloads));
            if progress == Progress::Ended {
                *watch = None;
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty() && self.stream.lock().is_none()
    }
}
