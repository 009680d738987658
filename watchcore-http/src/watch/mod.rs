//! A watch that has no transport yet: events become frames, in pieces that a socket can take.
//!
//! A [`WatchStream`] is polled for frames by its transport, when that has room. It ends by itself, and says nothing about
//! why but what its framing put into the last frames. The life of one: docs/internals/http.md.

mod open;

pub(crate) use open::{OpenWatch, OpenWatches};

use crate::frame::Frame;
use futures_core::Stream;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use watchcore::{Batch, Error, Event, Position, Subscription};

/// At most so much is framed at a time: what a client that does not read costs beside its batch.
const PIECE_BYTES: usize = 64 << 10;
const PIECE_FRAMES: usize = 64;

/// How the events of a subscription become frames. It has the say over what goes out.
pub(crate) trait Framing: Send + 'static {
    /// Appends the frames of one event of the subscription: none, one, or more. `false` ends the stream behind them.
    fn event(&mut self, event: &Event, out: &mut Vec<Frame>) -> bool;

    /// Appends what is said at an error; then the stream ends.
    fn failed(&mut self, error: &Error, out: &mut Vec<Frame>);

    /// Appends what is said at the deadline, where the stream stands at `position`; then it ends.
    fn deadline(&mut self, position: Position, out: &mut Vec<Frame>);
}

/// The events of one subscription as frames.
pub(crate) struct WatchStream {
    subscription: Subscription,
    framing: Box<dyn Framing>,
    /// Events that were taken and not framed yet, from `next` on.
    batch: Batch,
    next: usize,
    deadline: Option<Pin<Box<Sleep>>>,
    ended: bool,
    open: OpenWatch,
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
        WatchStream {
            subscription,
            framing: Box::new(framing),
            batch: Batch::default(),
            next: 0,
            // A moment that the clock cannot hold is no deadline.
            deadline: deadline
                .and_then(|after| Instant::now().checked_add(after))
                .map(|at| Box::pin(tokio::time::sleep_until(at))),
            ended: false,
            open,
        }
    }

    /// Appends frames, at most 64 KiB of them or one. Nothing is lost where the caller stops polling, or drops them: then
    /// the client has not got them, and asks again from what it got.
    pub(crate) fn poll_frames(&mut self, context: &mut Context<'_>, out: &mut Vec<Frame>) -> Poll<Progress> {
        let had = out.len();
        let progress = self.fill(context, out);
        let bytes = out[had..].iter().map(|frame| frame.chunk().len()).sum::<usize>();
        self.open.sent(out.len() - had, bytes);
        if progress.is_ready() && self.ended {
            // What it holds of the log goes now, whenever the transport is done with its last bytes.
            self.batch = Batch::default();
            self.subscription.close();
        }
        progress
    }

    fn fill(&mut self, context: &mut Context<'_>, out: &mut Vec<Frame>) -> Poll<Progress> {
        if self.ended {
            return Poll::Ready(Progress::Ended);
        }
        let had = out.len();
        loop {
            if self.frame_batch(out, had) {
                return Poll::Ready(if self.ended { Progress::Ended } else { Progress::More });
            }
            if let Some(deadline) = &mut self.deadline
                && deadline.as_mut().poll(context).is_ready()
            {
                self.framing.deadline(self.subscription.position(), out);
                self.ended = true;
                return Poll::Ready(Progress::Ended);
            }
            match Pin::new(&mut self.subscription).poll_next(context) {
                Poll::Ready(Some(Ok(batch))) => (self.batch, self.next) = (batch, 0),
                Poll::Ready(Some(Err(error))) => {
                    self.framing.failed(&error, out);
                    self.ended = true;
                }
                Poll::Ready(None) => self.ended = true,
                Poll::Pending if out.len() > had => return Poll::Ready(Progress::More),
                Poll::Pending => return Poll::Pending,
            }
            if self.ended {
                return Poll::Ready(Progress::Ended);
            }
        }
    }

    /// Frames what is left of the batch; `true`: the piece is full, or the stream has ended.
    fn frame_batch(&mut self, out: &mut Vec<Frame>, had: usize) -> bool {
        let mut bytes = 0;
        let mut counted = had;
        while let Some(event) = self.batch.events().get(self.next) {
            self.next += 1;
            if !self.framing.event(event, out) {
                self.ended = true;
                return true;
            }
            bytes += out[counted..].iter().map(|frame| frame.chunk().len()).sum::<usize>();
            counted = out.len();
            if bytes >= PIECE_BYTES || out.len() - had >= PIECE_FRAMES {
                return true;
            }
        }
        // Nothing of the log is kept by a batch that was handed out.
        if !self.batch.is_empty() {
            (self.batch, self.next) = (Batch::default(), 0);
        }
        false
    }
}
