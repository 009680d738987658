//! A watch as server-sent events.
//!
//! The framing of the watch has made whole events already; this adds what belongs to the connection: how soon a client
//! that lost it tries again, and comments that keep whatever lies in between from taking it for dead. The comments come
//! by a timer of their own, so that a watch with nothing to say costs its subscription nothing.

use crate::frame::Frame;
use crate::watch::{Progress, WatchStream};
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, header};
use http_body::Frame as BodyFrame;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// The first bytes: a client that loses the stream comes again after this many milliseconds.
const PRELUDE: &[u8] = b"retry: 1000\n\n";
/// Silence is broken after so long.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const COMMENT: &[u8] = b": keep-alive\n\n";

/// What server-sent events are, for the heads of responses.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";

/// Events as pieces of a body.
struct EventBody {
    stream: WatchStream,
    frames: VecDeque<Frame>,
    has_begun: bool,
    has_ended: bool,
    keep_alive: Pin<Box<Sleep>>,
}

/// The response that a watch is whose framing makes server-sent events.
pub(crate) fn respond(stream: WatchStream) -> Response {
    with_head(Body::new(EventBody {
        stream,
        frames: VecDeque::new(),
        has_begun: false,
        has_ended: false,
        keep_alive: Box::pin(tokio::time::sleep(KEEP_ALIVE)),
    }))
}

/// A response of server-sent events, which nothing on its way may keep or gather.
pub(crate) fn with_head(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl EventBody {
    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return Poll::Ready(Some(Bytes::from_static(PRELUDE)));
        }
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Poll::Ready(Some(frame.payload()));
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            let mut piece = Vec::new();
            match self.stream.poll_frames(context, &mut piece) {
                Poll::Ready(progress) => self.has_ended = progress == Progress::Ended,
                Poll::Pending if self.keep_alive.as_mut().poll(context).is_ready() => {
                    self.rest();
                    return Poll::Ready(Some(Bytes::from_static(COMMENT)));
                }
                Poll::Pending => return Poll::Pending,
            }
            self.frames = piece.into();
            self.rest();
        }
    }

    /// Something goes out: silence begins anew.
    fn rest(&mut self) {
        self.keep_alive.as_mut().reset(Instant::now() + KEEP_ALIVE);
    }
}

impl http_body::Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, Infallible>>> {
        self.poll_bytes(context).map(|bytes| bytes.map(|bytes| Ok(BodyFrame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::watch::{Framing, OpenWatches};
    use watchcore::{Cache, Change, Error as CacheError, Event, Position, Start};

    /// The key of an event, as a line.
    struct EventKeyFraming;

    impl Framing for EventKeyFraming {
        fn event(&mut self, event: &Event, out: &mut Vec<Frame>) -> bool {
            out.push(Frame::new(64, |out| out.extend_from_slice(event.key())));
            true
        }

        fn failed(&mut self, _: &CacheError, _: &mut Vec<Frame>) {}

        fn deadline(&mut self, _: Position, _: &mut Vec<Frame>) {}
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_broken_by_comments() {
        let cache = Cache::builder("/").build().unwrap();
        let mut writer = cache.writer().unwrap();
        let place = OpenWatches::new(1, 1).admit(None).unwrap();
        let stream = WatchStream::new(cache.subscribe(Start::Now).open().unwrap(), EventKeyFraming, None, place);
        let mut body = respond(stream).into_body();
        let from = Instant::now();
        let mut next = async || http_body_util::BodyExt::frame(&mut body).await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(next().await, PRELUDE);
        assert_eq!((next().await, from.elapsed().as_secs()), (Bytes::from_static(COMMENT), 15));
        tokio::time::advance(Duration::from_secs(10)).await;
        writer.apply(1, [Change::put("/a", "1")]).unwrap();
        assert_eq!((next().await, from.elapsed().as_secs()), (Bytes::from_static(b"/a"), 25));
        assert_eq!((next().await, from.elapsed().as_secs()), (Bytes::from_static(COMMENT), 40), "15 s of silence");
    }
}
