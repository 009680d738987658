//! A watch without its transport: events become frames, in pieces that a socket can take.
//!
//! The transport polls a [`WatchStream`] for frames when it has room. The stream ends by itself; the only explanation
//! is in the last frames that its framing wrote. docs/internals/http.md describes the life of a watch.

mod open;
mod recheck;
mod timer;

pub(crate) use open::{OpenWatch, OpenWatches, Recheck};

use crate::frame::Frame;
use futures_core::Stream;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use timer::{Due, WatchTimer};
use tokio::time::Instant;
use watchcore::{Batch, Cache, Code, Error, Event, Position, Subscription};

/// At most this many bytes are framed per poll: the memory of a client that does not read, besides its batch. The
/// subscription is opened with the same bound
/// ([`SubscribeBuilder::initial_batch_bytes`](watchcore::SubscribeBuilder::initial_batch_bytes)).
pub(crate) const PIECE_BYTES: usize = 64 << 10;
const PIECE_FRAMES: usize = 64;
/// After this many events without a frame, the task yields.
const PIECE_EVENTS: usize = 1024;

/// The conversion of a subscription's events into frames.
pub(crate) trait Framing: Send + 'static {
    /// Appends the frames of one event, possibly none. `false` ends the stream after them.
    fn event(&mut self, event: &Event, out: &mut Vec<Frame>) -> bool;

    /// Like [`event`](Self::event), for framings that need to know whether the event is the last one of its revision
    /// that the subscription delivers. `is_last` is reliable for a subscription with whole revisions.
    fn event_of_revision(&mut self, event: &Event, is_last: bool, out: &mut Vec<Frame>) -> bool {
        let _ = is_last;
        self.event(event, out)
    }

    /// Appends the frames that report an error; then the stream ends.
    fn failed(&mut self, error: &Error, out: &mut Vec<Frame>);

    /// Appends the last frames at the deadline, when the stream has delivered everything up to `position`; then it
    /// ends.
    fn deadline(&mut self, position: Position, out: &mut Vec<Frame>);

    /// Appends the periodic bookmark, if the client asked for bookmarks, when the stream has delivered everything up to
    /// `position`. A bookmark that repeats a revision is sent too, because it shows that the watch is alive.
    fn bookmark(&mut self, position: Position, out: &mut Vec<Frame>) {
        let _ = (position, out);
    }

    /// Bytes that every client ignores: white space before a JSON text. Readers of JSON skip it, and line-based readers
    /// find it at the start of their next line; an empty line would not be JSON.
    fn keep_alive(&self) -> &'static [u8] {
        b" "
    }
}

/// The events of one subscription as frames.
pub(crate) struct WatchStream {
    source: Source,
    framing: Box<dyn Framing>,
    /// Events that were taken and not framed yet, from `next` on.
    batch: Batch,
    next: usize,
    timer: WatchTimer,
    /// The cache of the subscription, if the stream sends bookmarks and keep-alives.
    cache: Option<Cache>,
    /// An action of the timer that waits until the subscription was polled once more: events that precede it are sent
    /// first, and a bookmark then names the position of that poll.
    due: Option<Due>,
    /// Keep-alive frames of the last poll, which do not count as events.
    keep_alives: usize,
    /// Whether the cache was without its source when the watch began, and still is: see
    /// [`is_left_behind`](Self::is_left_behind).
    began_stale: bool,
    open: OpenWatch,
}

/// The source of events.
enum Source {
    Open(Subscription),
    /// The subscription failed to open; only the error is sent.
    Refused(Error),
    Ended,
}

/// Polls for the next batch. During the initial state, a batch is limited to one piece and to the keys that can be
/// visited in a moment, after which the task yields.
fn poll_batch(subscription: &mut Subscription, context: &mut Context<'_>) -> Poll<Option<Result<Batch, Error>>> {
    if subscription.position().revision == 0 {
        match subscription.poll(PIECE_FRAMES) {
            Ok(batch) if batch.is_empty() && batch.continues() => {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            // Nothing yet: falls through to the stream, which registers the waker.
            Ok(batch) if batch.is_empty() => {}
            Err(error) if error.code() == Code::Closed => return Poll::Ready(None),
            polled => return Poll::Ready(Some(polled)),
        }
    }
    Pin::new(subscription).poll_next(context)
}

/// The result of polling a [`WatchStream`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// Frames were appended; poll again when they are written.
    More,
    /// The stream ends after the appended frames, if any.
    Ended,
}

impl WatchStream {
    /// Creates a stream that ends after `deadline`, if given.
    pub(crate) fn new(
        subscription: Subscription,
        framing: impl Framing,
        deadline: Option<Duration>,
        mut open: OpenWatch,
    ) -> WatchStream {
        open.follow(&subscription);
        // A deadline beyond the range of the clock is none.
        if let Some(at) = deadline.and_then(|after| Instant::now().checked_add(after)) {
            open.ends_at(at);
        }
        WatchStream {
            source: Source::Open(subscription),
            framing: Box::new(framing),
            batch: Batch::default(),
            next: 0,
            timer: WatchTimer::new(deadline),
            cache: None,
            due: None,
            keep_alives: 0,
            began_stale: false,
            open,
        }
    }

    /// Enables a bookmark per `interval`, if the client asked for bookmarks, and keep-alive bytes after silence, so
    /// that no proxy considers the connection dead.
    pub(crate) fn heartbeat(mut self, cache: &Cache, interval: Duration) -> WatchStream {
        self.timer.heartbeat(interval);
        self.began_stale = self.open.is_too_stale(cache);
        self.cache = Some(cache.clone());
        self
    }

    /// Whether the cache has been without its source for longer than the limit, and lost it after the watch began. Then
    /// the watch ends, so that its client can find a better server. A watch that began in such a cache stays: its
    /// client found none.
    fn is_left_behind(&mut self) -> bool {
        let is_stale = self.cache.as_ref().is_some_and(|cache| self.open.is_too_stale(cache));
        self.began_stale &= is_stale;
        is_stale && !self.began_stale
    }

    /// Disables keep-alive bytes, for a transport that has its own.
    pub(crate) fn without_keep_alives(mut self) -> WatchStream {
        self.timer.disable_keep_alive();
        self
    }

    /// Creates a stream that only reports an error and ends. It returns its permit at once.
    pub(crate) fn refused(error: Error, framing: impl Framing, mut open: OpenWatch) -> WatchStream {
        open.release();
        WatchStream {
            source: Source::Refused(error),
            framing: Box::new(framing),
            batch: Batch::default(),
            next: 0,
            timer: WatchTimer::new(Some(Duration::ZERO)),
            cache: None,
            due: None,
            keep_alives: 0,
            began_stale: false,
            open,
        }
    }

    /// Appends frames: at most 64 KiB, or those of one event. Dropping the appended frames loses nothing: the client
    /// resumes from the last event that it got.
    pub(crate) fn poll_frames(&mut self, context: &mut Context<'_>, out: &mut Vec<Frame>) -> Poll<Progress> {
        let had = out.len();
        let progress = self.fill(context, out);
        if out.len() > had {
            self.timer.sent();
        }
        let bytes = out[had..].iter().map(|frame| frame.len()).sum::<usize>();
        self.open.sent(out.len() - had - std::mem::take(&mut self.keep_alives), bytes);
        if progress == Poll::Ready(Progress::Ended) {
            // Releases the log and the permit now, even if the transport is still writing the last bytes.
            self.batch = Batch::default();
            self.source = Source::Ended;
            self.open.release();
        }
        progress
    }

    fn fill(&mut self, context: &mut Context<'_>, out: &mut Vec<Frame>) -> Poll<Progress> {
        let (had, mut events) = (out.len(), 0);
        // Events that were taken before the revocation are not framed any more.
        if let (Some(error), false) = (self.open.revocation().error(), matches!(self.source, Source::Ended)) {
            self.framing.failed(error, out);
            return Poll::Ready(Progress::Ended);
        }
        loop {
            events += self.batch.len();
            if let Some(progress) = self.frame_batch(out, had) {
                return Poll::Ready(progress);
            }
            if events >= PIECE_EVENTS && out.len() == had {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.due.is_some() && self.is_left_behind() {
                self.due = Some(Due::End);
            }
            let subscription = match &mut self.source {
                Source::Open(subscription) => subscription,
                Source::Refused(error) => {
                    self.framing.failed(error, out);
                    return Poll::Ready(Progress::Ended);
                }
                Source::Ended => return Poll::Ready(Progress::Ended),
            };
            // Reached only after a whole batch, so everything up to this position has been framed.
            let position = subscription.position();
            match self.due.take() {
                Some(Due::End) => {
                    self.framing.deadline(position, out);
                    return Poll::Ready(Progress::Ended);
                }
                Some(Due::Bookmark) => {
                    // During the initial state the revision is 0; with a start in the future the position lies beyond
                    // the cache's. Neither may be sent in a bookmark.
                    let current = self.cache.as_ref().map_or(0, |cache| cache.position().revision);
                    if (1..=current).contains(&position.revision) {
                        self.framing.bookmark(position, out);
                    }
                }
                None => {}
                Some(Due::KeepAlive) => {
                    if out.len() == had {
                        let keep_alive = self.framing.keep_alive();
                        out.push(Frame::new(keep_alive.len(), |out| out.extend_from_slice(keep_alive)));
                        self.keep_alives += 1;
                    }
                    self.timer.sent();
                }
            }
            if let Poll::Ready(due) = self.timer.poll(context) {
                self.due = Some(due);
            }
            match poll_batch(subscription, context) {
                Poll::Ready(Some(Ok(batch))) => (self.batch, self.next) = (batch, 0),
                Poll::Ready(Some(Err(error))) => {
                    self.framing.failed(&error, out);
                    return Poll::Ready(Progress::Ended);
                }
                Poll::Ready(None) => {
                    if let Some(error) = self.open.revocation().error() {
                        self.framing.failed(error, out);
                    }
                    return Poll::Ready(Progress::Ended);
                }
                Poll::Pending if self.due.is_some() => {}
                Poll::Pending if out.len() > had => return Poll::Ready(Progress::More),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Returns the error of the revocation, if the user no longer exists or may no longer watch.
    pub(crate) fn revoked(&self) -> Option<&Error> {
        self.open.revocation().error()
    }

    /// Frames the rest of the batch, or a piece of it. `None`: the batch is used up, and the piece has room.
    ///
    /// A batch of the initial state is framed completely, because it is no larger than a piece. Keeping it would keep
    /// its objects in memory, including replaced ones, and the client may never read again.
    fn frame_batch(&mut self, out: &mut Vec<Frame>, had: usize) -> Option<Progress> {
        let of_the_state = self.batch.events().first().is_some_and(Event::is_initial_state);
        let mut bytes = out[had..].iter().map(|frame| frame.len()).sum::<usize>();
        let mut counted = out.len();
        while let Some(event) = self.batch.events().get(self.next) {
            if !of_the_state && (bytes >= PIECE_BYTES || out.len() - had >= PIECE_FRAMES) {
                return Some(Progress::More);
            }
            self.next += 1;
            let is_last = match self.batch.events().get(self.next) {
                Some(next) => next.revision() != event.revision(),
                None => !self.batch.continues(),
            };
            if !self.framing.event_of_revision(event, is_last, out) {
                return Some(Progress::Ended);
            }
            bytes += out[counted..].iter().map(|frame| frame.len()).sum::<usize>();
            counted = out.len();
        }
        // An empty batch holds no memory of the log.
        if !self.batch.is_empty() {
            (self.batch, self.next) = (Batch::default(), 0);
        }
        let is_piece = of_the_state && out.len() > had || bytes >= PIECE_BYTES || out.len() - had >= PIECE_FRAMES;
        is_piece.then_some(Progress::More)
    }
}

#[cfg(test)]
mod tests;
