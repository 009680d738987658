//! A stream of HTTP/2, and whether its client takes its answer.
//!
//! hyper takes a piece from a body before the stream has room for it, and then waits for room without a limit. So an answer
//! is handed out in pieces, and each stream has a clock: it runs from the moment in which hyper has a piece until it asks for
//! the next. A client that leaves it running for `limits.stall` is left: its stream is dropped, which resets it and frees
//! what was queued for it. This holds for each answer, whatever its body; a watch has a rule of its own (`stall`).

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame as BodyFrame, SizeHint};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};

/// A piece has no more: as much as goes into one frame of HTTP/2 by default. It is what a client has to take within the time.
const PIECE: usize = 16 << 10;

tokio::task_local! {
    /// That of the stream whose task this is: the one that makes its answer, and hands it out.
    static STREAM: Arc<AnswerStream>;
}

/// What is known of a stream and its answer.
#[derive(Default)]
pub(crate) struct AnswerStream {
    cut: Notify,
    /// Its client may take nothing for as long as the watch lasts. Relaxed: the task of the stream alone reads and writes it.
    is_watch: AtomicBool,
    /// When hyper took the piece that it has; `None`: it wants the next.
    handed: Mutex<Option<Instant>>,
}

impl AnswerStream {
    /// That of the task that runs.
    pub(crate) fn current() -> Option<Arc<AnswerStream>> {
        STREAM.try_with(Arc::clone).ok()
    }

    /// It is left.
    pub(super) fn cut(&self) {
        self.cut.notify_one();
    }

    /// Whether the answer is a watch that has not ended.
    pub(super) fn set_watch(&self, is_watch: bool) {
        self.is_watch.store(is_watch, Relaxed);
    }

    /// When hyper took the piece that it has.
    pub(super) fn handed(&self) -> Option<Instant> {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready when the client has taken nothing for so long. It is to be polled behind each poll of the stream.
    fn poll_stalled(
        &self,
        context: &mut Context<'_>,
        limit: Duration,
        timer: &mut Option<Pin<Box<Sleep>>>,
    ) -> Poll<()> {
        let handed = self.handed().filter(|_| !self.is_watch.load(Relaxed));
        // A moment that the clock cannot hold never comes.
        let Some(due) = handed.and_then(|handed| handed.checked_add(limit)) else {
            *timer = None;
            return Poll::Pending;
        };
        let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        timer.as_mut().poll(context)
    }
}

/// A stream of HTTP/2, until it is complete, or its answer is cut off: it is dropped then. `stalled` is called where its
/// client has taken nothing for `limit`.
pub(crate) fn until_cut(
    stream: impl Future<Output = ()> + Send + 'static,
    limit: Duration,
    stalled: impl FnOnce() + Send,
) -> impl Future<Output = ()> + Send {
    let state = Arc::new(AnswerStream::default());
    // Outside of the future, which would have room for it twice.
    let mut stream = Box::pin(STREAM.scope(state.clone(), stream));
    async move {
        let mut timer = None;
        tokio::select! {
            biased;
            () = state.cut.notified() => {}
            () = &mut stream => {}
            () = poll_fn(|context| state.poll_stalled(context, limit, &mut timer)) => stalled(),
        }
    }
}

/// The body of an answer, handed out in pieces.
pub(crate) struct StreamBody {
    body: Body,
    stream: Arc<AnswerStream>,
    /// Of what the body gave, what was not handed out yet.
    rest: Bytes,
    most: usize,
}

impl StreamBody {
    /// `queued`: so much waits for a client in one stream.
    pub(crate) fn new(body: Body, stream: Arc<AnswerStream>, queued: usize) -> StreamBody {
        StreamBody { body, stream, rest: Bytes::new(), most: queued.clamp(1, PIECE) }
    }
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        *this.stream.lock() = None;
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                end => return Poll::Ready(end),
            }
        }
        let left = this.rest.len();
        // Who has handed out everything is done, and the clock stops. So the last byte goes alone: hyper hands it on when the
        // client has given room for all before it.
        let is_last = left > 1 && left <= this.most && this.body.is_end_stream();
        let piece = this.rest.split_to(if is_last { left - 1 } else { left.min(this.most) });
        *this.stream.lock() = Some(Instant::now());
        Poll::Ready(Some(Ok(BodyFrame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
