//! A watch as server-sent events.
//!
//! The framing of the watch has made whole events already; this adds what belongs to the connection: how soon a client
//! that lost it tries again, and comments that keep whatever lies in between from taking it for dead. The comments come
//! by a timer of their own, so that a watch with nothing to say costs its subscription nothing.

use super::body::WatchBody;
use crate::watch::WatchStream;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, header};
use http_body::Frame as BodyFrame;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
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
    watch: WatchBody,
    has_begun: bool,
    keep_alive: Pin<Box<Sleep>>,
}

/// The response that a watch is whose framing makes server-sent events.
pub(crate) fn respond(stream: WatchStream) -> Response {
    let watch = WatchBody::new(stream);
    let keep_alive = Box::pin(tokio::time::sleep(KEEP_ALIVE));
    with_head(Body::new(EventBody { watch, has_begun: false, keep_alive }))
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
        let bytes = match Pin::new(&mut self.watch).poll_frame(context) {
            Poll::Pending => {
                ready!(self.keep_alive.as_mut().poll(context));
                Some(Ok(BodyFrame::data(Bytes::from_static(COMMENT))))
            }
            Poll::Ready(bytes) => bytes,
        };
        // Something goes out: silence begins anew.
        self.keep_alive.as_mut().reset(Instant::now() + KEEP_ALIVE);
        Poll::Ready(bytes)
    }

    fn is_end_stream(&self) -> bool {
        self.watch.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::clients::Who;
    use crate::frame::Frame;
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
        let place = OpenWatches::new(1, 1, Duration::MAX).admit(&Who::Somebody, None).unwrap();
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
