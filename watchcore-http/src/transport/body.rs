//! A watch as the body of a response, and as what the direct path takes out of that.

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
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

/// In the extensions of a response whose body is a watch: the same watch, for a connection that writes it itself. Whoever
/// takes it out first has it; the body of the response is empty then.
#[derive(Clone)]
pub(crate) struct DirectStream(Arc<Mutex<Option<WatchStream>>>);

impl DirectStream {
    /// The watch, if nobody has it yet.
    pub(crate) fn take(&self) -> Option<WatchStream> {
        // Locked for this one move: a panic inside leaves it as it was.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The response that a watch is: its head goes out at once.
pub(crate) fn respond(stream: WatchStream, content_type: &'static str) -> Response {
    let direct = DirectStream(Arc::new(Mutex::new(Some(stream))));
    let mut response = Response::new(Body::new(WatchBody::Waiting(direct.clone())));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.extensions_mut().insert(direct);
    response
}

/// Frames as pieces of a body.
enum WatchBody {
    Waiting(DirectStream),
    Streaming { stream: Box<WatchStream>, frames: VecDeque<Frame> },
    Ended,
}

impl http_body::Body for WatchBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, Infallible>>> {
        loop {
            match &mut *self {
                WatchBody::Waiting(direct) => {
                    *self = match direct.take() {
                        Some(stream) => WatchBody::Streaming { stream: Box::new(stream), frames: VecDeque::new() },
                        None => WatchBody::Ended,
                    }
                }
                WatchBody::Streaming { stream, frames } => {
                    if let Some(frame) = frames.pop_front() {
                        return Poll::Ready(Some(Ok(BodyFrame::data(frame.payload()))));
                    }
                    let mut piece = Vec::new();
                    let progress = ready!(stream.poll_frames(context, &mut piece));
                    if piece.is_empty() && progress == Progress::Ended {
                        *self = WatchBody::Ended;
                    } else {
                        *frames = piece.into();
                    }
                }
                WatchBody::Ended => return Poll::Ready(None),
            }
        }
    }
}
