//! The body of an answer on our own connections: passed on in pieces, and counted until the client has taken them.

use crate::clients::{Account, Activity, Answering, Holder, ProducedBytes, UnreadBytes};
use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as _, Frame as BodyFrame, SizeHint};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::Notify;

/// Maximum size of a piece, so that the streams of one connection progress side by side.
const PIECE: usize = 64 << 10;

tokio::task_local! {
    /// Ends the HTTP/2 stream that the current task serves.
    static STREAM: Arc<Notify>;
}

/// Runs an HTTP/2 stream until it is complete or cut off. Cutting it off drops it, which resets the stream and frees
/// its queued bytes.
pub(super) fn until_cut(stream: impl Future<Output = ()> + Send + 'static) -> impl Future<Output = ()> + Send {
    let cut = Arc::new(Notify::new());
    // Boxed outside the async block, which would otherwise reserve space for it twice.
    let mut stream = Box::pin(STREAM.scope(cut.clone(), stream));
    async move {
        tokio::select! {
            biased;
            () = cut.notified() => {}
            () = &mut stream => {}
        }
    }
}

/// An HTTP/2 stream that holds the bytes of an answer.
struct StreamHolder {
    activity: Arc<Activity>,
    stream: Arc<Notify>,
}

impl Holder for StreamHolder {
    fn added(&self, bytes: usize) {
        self.activity.added(bytes);
    }

    fn removed(&self, bytes: usize) {
        self.activity.removed(bytes);
    }

    fn cut(&self) {
        self.stream.notify_one();
    }
}

/// Returns the holder of the bytes of the answer that the current task makes.
pub(super) fn holder(activity: &Arc<Activity>) -> Box<dyn Holder> {
    let activity = activity.clone();
    match STREAM.try_with(Arc::clone) {
        Ok(stream) => Box::new(StreamHolder { activity, stream }),
        Err(_) => Box::new(activity),
    }
}

/// The body of an answer; while it exists, the connection counts as answering.
pub(super) struct Answer {
    body: Body,
    /// Bytes that the body produced, and that were not passed on yet.
    rest: Bytes,
    /// Bytes of known length that the body has still to produce, and that are counted already.
    announced: usize,
    made: ProducedBytes,
    activity: Arc<Activity>,
    /// On HTTP/2, whether the body waits to be polled: it is not while its client grants no window. `None` on HTTP/1.1,
    /// where the socket reports a blocked client.
    unasked: Option<bool>,
    _answering: Answering,
}

impl Answer {
    /// Creates the body, counted to this account.
    pub(super) fn new(body: Body, account: &Arc<Account>, answering: Answering, is_http2: bool) -> Answer {
        let activity = answering.activity().clone();
        let answered = account.answer(holder(&activity));
        // A body of known length counts in full from now on, even if its bytes are shared with the cache: this client
        // keeps them alive.
        let announced = body.size_hint().exact().and_then(|exact| usize::try_from(exact).ok()).unwrap_or(0);
        let made = answered.produced(announced);
        let unasked = is_http2.then_some(false);
        let mut answer = Answer { body, rest: Bytes::new(), announced, made, activity, unasked, _answering: answering };
        answer.is_unasked(true);
        answer
    }

    fn is_unasked(&mut self, is: bool) {
        if let Some(was) = &mut self.unasked
            && *was != is
        {
            *was = is;
            self.activity.set_unpolled(is);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.is_unasked(false);
    }
}

impl http_body::Body for Answer {
    type Data = UnreadBytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<UnreadBytes>, axum::Error>>> {
        let this = self.get_mut();
        this.is_unasked(false);
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        let announced = this.announced.min(data.len());
                        this.announced -= announced;
                        this.made.add(data.len() - announced);
                        this.rest = data;
                    }
                    Err(frame) => {
                        return Poll::Ready(
                            frame.into_trailers().ok().map(|trailers| Ok(BodyFrame::trailers(trailers))),
                        );
                    }
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let piece = this.rest.split_to(this.rest.len().min(PIECE));
        let piece = this.made.hand_out(piece);
        this.is_unasked(true);
        Poll::Ready(Some(Ok(BodyFrame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        match hint.exact() {
            Some(exact) => hint.set_exact(exact + rest),
            None => hint.set_lower(hint.lower() + rest),
        }
        hint
    }
}
