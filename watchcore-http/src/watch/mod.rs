//! A watch that has no transport yet: events become frames, in pieces that a socket can take.
//!
//! A [`WatchStream`] is polled for frames by its transport, when that has room. It ends by itself, and says nothing about
//! why but what its framing put into the last frames. The life of one: docs/internals/http.md.

mod open;
mod recheck;
mod timer;

pub(crate) use open::{OpenWatch, OpenWatches};
pub(crate) use recheck::Recheck;

use crate::frame::Frame;
use futures_core::Stream;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use timer::{Due, WatchTimer};
use tokio::time::Instant;
use watchcore::{Batch, Cache, Code, Error, Event, Position, Subscription};

/// At most so much is framed at a time: what a client that does not read costs beside its batch. To be said of the
/// subscription, too ([`SubscribeBuilder::initial_batch_bytes`](watchcore::SubscribeBuilder::initial_batch_bytes)).
pub(crate) const PIECE_BYTES: usize = 64 << 10;
const PIECE_FRAMES: usize = 64;
/// After so many events of which none made a frame others have their turn.
const PIECE_EVENTS: usize = 1024;

/// How the events of a subscription become frames. It has the say over what goes out.
pub(crate) trait Framing: Send + 'static {
    /// Appends the frames of one event of the subscription: none, one, or more. `false` ends the stream behind them.
    fn event(&mut self, event: &Event, out: &mut Vec<Frame>) -> bool;

    /// The same, where it matters which event is the last of its revision that the subscription hands out: behind it the
    /// revision is whole. It is known where the subscription has whole revisions.
    fn event_of_revision(&mut self, event: &Event, is_last: bool, out: &mut Vec<Frame>) -> bool {
        let _ = is_last;
        self.event(event, out)
    }

    /// Appends what is said at an error; then the stream ends.
    fn failed(&mut self, error: &Error, out: &mut Vec<Frame>);

    /// Appends what is said at the deadline, where the stream stands at `position`; then it ends.
    fn deadline(&mut self, position: Position, out: &mut Vec<Frame>);

    /// Appends the bookmark of each interval where the client asked for bookmarks, the stream standing at `position`: also
    /// one that says nothing new, for it says that the watch is alive.
    fn bookmark(&mut self, position: Position, out: &mut Vec<Frame>) {
        let _ = (position, out);
    }

    /// Bytes that every client passes over. White space before a JSON text: readers of JSON skip it, and readers of lines
    /// have it at the begin of their next line, for an empty line would be one that is no JSON.
    fn blank(&self) -> &'static [u8] {
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
    /// The cache of the subscription, where the stream has a pulse.
    cache: Option<Cache>,
    /// An action of the timer that waits for the next poll of the subscription: events that were there before it go out
    /// first, also where nobody polled in between, and a bookmark says the position of that poll.
    due: Option<Due>,
    /// Frames of the last poll that are no events.
    blanks: usize,
    /// The cache had lost its source when the watch began, and has not found it yet: see [`is_left_behind`](Self::is_left_behind).
    stays: bool,
    open: OpenWatch,
}

/// Where events come from.
enum Source {
    Open(Subscription),
    /// There was no subscription to be had; why is the only thing that goes out.
    Refused(Error),
    Ended,
}

/// The next batch, as the stream of the subscription gives it. Of the initial state it is only what goes out in one piece,
/// from as many keys as are looked at in a moment: then others have their turn.
fn poll_batch(subscription: &mut Subscription, context: &mut Context<'_>) -> Poll<Option<Result<Batch, Error>>> {
    if subscription.position().revision == 0 {
        match subscription.poll(PIECE_FRAMES) {
            Ok(batch) if batch.is_empty() && batch.continues() => {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            // Nothing yet: the stream waits for it.
            Ok(batch) if batch.is_empty() => {}
            Err(error) if error.code() == Code::Closed => return Poll::Ready(None),
            polled => return Poll::Ready(Some(polled)),
        }
    }
    Pin::new(subscription).poll_next(context)
}

/// What a poll of a [`WatchStream`] gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// Frames were appended; poll again when they are written.
    More,
    /// The stream ends behind the frames that were appended, if any.
    Ended,
}

impl WatchStream {
    /// A stream that ends after `deadline`, if there is one.
    pub(crate) fn new(
        subscription: Subscription,
        framing: impl Framing,
        deadline: Option<Duration>,
        mut open: OpenWatch,
    ) -> WatchStream {
        open.follow(&subscription);
        // A moment that the clock cannot hold is no deadline.
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
            blanks: 0,
            stays: false,
            open,
        }
    }

    /// With a bookmark each `interval` where its client asked for that, and with bytes that say nothing where nothing else
    /// went out for a while: so nobody on the way takes it for dead.
    pub(crate) fn pulse(mut self, cache: &Cache, interval: Duration) -> WatchStream {
        self.timer.pulse(interval);
        self.stays = self.open.is_too_stale(cache);
        self.cache = Some(cache.clone());
        self
    }

    /// Whether the cache has lost its source since the watch began, and for longer than the limit. Then the watch ends, and its
    /// client may find another server. A watch that begins in such a cache stays, because its client has found none.
    fn is_left_behind(&mut self) -> bool {
        let is_stale = self.cache.as_ref().is_some_and(|cache| self.open.is_too_stale(cache));
        self.stays &= is_stale;
        is_stale && !self.stays
    }

    /// For a transport that says by itself that it is alive.
    pub(crate) fn without_blanks(mut self) -> WatchStream {
        self.timer.leave_silence();
        self
    }

    /// A stream that says why it has nothing, and ends: it has no place, and its time is over from the beginning on.
    pub(crate) fn refused(error: Error, framing: impl Framing, mut open: OpenWatch) -> WatchStream {
        open.leave();
        WatchStream {
            source: Source::Refused(error),
            framing: Box::new(framing),
            batch: Batch::default(),
            next: 0,
            timer: WatchTimer::new(Some(Duration::ZERO)),
            cache: None,
            due: None,
            blanks: 0,
            stays: false,
            open,
        }
    }

    /// Appends frames, at most 64 KiB of them or those of one event. Nothing is lost where the caller stops polling, or drops them: then
    /// the client has not got them, and asks again from what it got.
    pub(crate) fn poll_frames(&mut self, context: &mut Context<'_>, out: &mut Vec<Frame>) -> Poll<Progress> {
        let had = out.len();
        let progress = self.fill(context, out);
        if out.len() > had {
            self.timer.sent();
        }
        let bytes = out[had..].iter().map(|frame| frame.len()).sum::<usize>();
        self.open.sent(out.len() - had - std::mem::take(&mut self.blanks), bytes);
        if progress == Poll::Ready(Progress::Ended) {
            // What it holds of the log goes now, and its place, whenever the transport is done with its last bytes.
            self.batch = Batch::default();
            self.source = Source::Ended;
            self.open.leave();
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
            // Behind a whole batch, so that the position that it says has gone out.
            let position = subscription.position();
            match self.due.take() {
                Some(Due::End) => {
                    self.framing.deadline(position, out);
                    return Poll::Ready(Progress::Ended);
                }
                Some(Due::Bookmark) => {
                    // In the initial state there is no position yet, and a start in the future has one that is not there yet.
                    let current = self.cache.as_ref().map_or(0, |cache| cache.position().revision);
                    if (1..=current).contains(&position.revision) {
                        self.framing.bookmark(position, out);
                    }
                }
                None => {}
                Some(Due::Blank) => {
                    if out.len() == had {
                        let blank = self.framing.blank();
                        out.push(Frame::new(blank.len(), |out| out.extend_from_slice(blank)));
                        self.blanks += 1;
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

    /// The error with which the stream has to end, if its user is gone or may not watch any more.
    pub(crate) fn revoked(&self) -> Option<&Error> {
        self.open.revocation().error()
    }

    /// Frames what is left of the batch, or a piece of it; `None`: there is nothing left, and room for more.
    ///
    /// A batch of the initial state goes out whole, for it is no longer than a piece: one that is held keeps its objects,
    /// also those that are replaced meanwhile, and the next piece may be for a client that never reads.
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
        // Nothing of the log is kept by a batch that was handed out.
        if !self.batch.is_empty() {
            (self.batch, self.next) = (Batch::default(), 0);
        }
        let is_piece = of_the_state && out.len() > had || bytes >= PIECE_BYTES || out.len() - had >= PIECE_FRAMES;
        is_piece.then_some(Progress::More)
    }
}

#[cfg(test)]
mod tests;
