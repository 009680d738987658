//! Waiting for the next event: blocking, in a wake set, or as a stream.

#![forbid(unsafe_code)]

use super::shared::OPEN;
use super::{Look, Phase, Start, Step, Subscription};
use crate::batch::Batch;
use crate::data::event::Kind;
use crate::error::{Code, Result, say};
use crate::log::ring::{progress_of, run_of};
use crate::position::Position;
use crate::sync::{Acquire, SeqCst, fence};
use crate::wake::{Told, WakeSet, Waker, Want};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Subscription {
    /// Moves over events that do not match. True: poll has something (an event, a mark, an error).
    fn peek(&mut self) -> bool {
        if self.failure.is_some() {
            return true;
        }
        match self.peek_once() {
            Ok(something) => something,
            Err(halt) => {
                self.failure = Some(Box::new(halt));
                true
            }
        }
    }

    fn peek_once(&mut self) -> Step<bool> {
        let look = self.look();
        match self.phase {
            Phase::Ended | Phase::Initial(_) | Phase::Behind(_) | Phase::CatchUp(_) => return Ok(true),
            Phase::Unready | Phase::Revision { .. } => {
                if !self.started(&look)? {
                    return Ok(false);
                }
                if matches!(self.phase, Phase::Initial(_)) {
                    return Ok(true);
                }
            }
            Phase::Live => {}
        }
        if self.floor.as_ref().is_some_and(|floor| self.check_floor(floor).is_err()) {
            return Ok(true);
        }
        if self.plain && self.floor.is_none() && self.cursor < look.head {
            return Ok(true);
        }
        if self.peek_events(&look)? {
            return Ok(true);
        }
        if self.bookmarks.is_some() {
            let progress = progress_of(look.progress, self.position.epoch);
            self.pass_floor(progress);
            let position = Position { revision: self.position.revision.max(progress), ..self.position };
            if self.floor.is_none() && self.bookmarks.as_ref().is_some_and(|bookmarks| bookmarks.is_due(position)) {
                return Ok(true);
            }
        }
        Ok(look.closed)
    }

    /// Whether there is an event to hand out; the cursor stands at it, or at the head.
    fn peek_events(&mut self, look: &Look) -> Step<bool> {
        while self.cursor < look.head || self.has_links() {
            if let Some(bucket) = self.chain() {
                if self.has_links() {
                    if self.links_match(look)? {
                        return Ok(true);
                    }
                    continue;
                }
                if self.shared.inner.ring.newest_mark() < self.cursor {
                    self.collect_ahead(&bucket, look)?;
                    continue;
                }
                self.go_to_mark(&bucket, look)?;
                if self.cursor >= look.head {
                    continue;
                }
            }
            let Some(segment) = self.segment()? else { continue };
            for event in segment.view(run_of(&segment, self.cursor, look.head)) {
                let Ok(kind) = self.passes(event) else { return Ok(true) };
                if let Some(kind) = kind {
                    if kind == Kind::Resync || self.matcher.shows(kind) {
                        return Ok(true);
                    }
                    self.note(kind, event);
                }
                self.move_over(event);
            }
            if self.cursor < look.head {
                self.cursor = segment.limit();
            }
        }
        Ok(false)
    }

    /// Registers for what would make `peek` true. `Err`: it already may be.
    fn park(&mut self, waker: Waker) -> std::result::Result<(), Told> {
        self.segment = None;
        let mut deadline = None;
        let mut bookmark: Option<(Instant, Position)> = None;
        let want = match (&self.phase, self.start()) {
            (Phase::Unready, _) => Want::Ready,
            (Phase::Revision { until }, Some(Start::StateAtLeast(revision))) => {
                deadline = *until;
                Want::Revision(revision)
            }
            _ => {
                if let Some(ticket) = self.floor.as_ref().and_then(|floor| floor.ticket())
                    && self.shared.inner.served.load(Acquire) < ticket
                {
                    // Not an event yet: the answer of the source, or whatever comes first.
                    deadline = Instant::now().checked_add(Duration::from_millis(20));
                }
                if let Some(bookmarks) = &self.bookmarks {
                    bookmark = bookmarks.at.checked_add(bookmarks.interval).map(|at| (at, bookmarks.shown));
                }
                let (matcher, cursor) = (self.wakes.clone(), self.cursor);
                match self.chain() {
                    Some(bucket) => Want::Chain { matcher, cursor, bucket },
                    None => Want::Event { matcher, cursor, request: self.reader.request() },
                }
            }
        };
        if !matches!(want, Want::Event { .. } | Want::Chain { .. }) {
            self.shared.inner.wake_source();
        }
        let inner = self.inner();
        let ticket = inner.hub.register(&**inner, want, waker, deadline, bookmark)?;
        self.shared.rests(ticket.id());
        if deadline.is_some() || bookmark.is_some() {
            // The notifier keeps the time.
            inner.hub.notify(inner);
        }
        self.ticket = Some(ticket);
        fence(SeqCst);
        // Partner: `Shared::close` stores the end, fence, looks at the ticket.
        if self.shared.end.load(Acquire) != OPEN {
            let told = self.ticket.as_ref().map_or(Told::No, |ticket| self.shared.inner.hub.silence(ticket));
            self.unpark();
            return Err(told);
        }
        Ok(())
    }

    /// Ends a registration and takes over how far the notifier looked.
    pub(super) fn unpark(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        self.shared.rested();
        if let Some(to) = self.shared.inner.hub.unregister(&ticket) {
            self.cursor = self.cursor.max(to);
        }
    }

    /// Blocks until a poll has something, at most `timeout` (`Duration::MAX`: for ever). True: poll
    /// (an event, a mark, or an error that it tells). False: the time is up. CLOSED once everything
    /// was handed out.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool> {
        let until = Instant::now().checked_add(timeout);
        self.unpark();
        loop {
            if self.peek() {
                return self.tell();
            }
            let parker = self.parker.get_or_insert_with(Arc::default).clone();
            parker.reset();
            if self.park(Waker::Thread(parker.clone())).is_err() {
                continue;
            }
            let woken = parker.wait_until(until);
            self.unpark();
            if !woken {
                return if self.peek() { self.tell() } else { Ok(false) };
            }
        }
    }

    /// What `wait` says when there is something.
    fn tell(&mut self) -> Result<bool> {
        let look = self.look();
        let over = match self.phase {
            Phase::Ended => self.failure.is_none(),
            Phase::Live => {
                let too_slow = look.closed && look.head == 0;
                look.closed && !too_slow && self.cursor >= look.head && self.failure.is_none() && !self.has_links()
            }
            _ => false,
        };
        if over { Err(say::closed("subscription")) } else { Ok(true) }
    }

    /// The next batch of at most 1024 events; blocks for it. `None` after CLOSED.
    ///
    /// Not an iterator: a batch can be an error, and the loop goes on after some.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Batch>> {
        loop {
            let step = self.wait(Duration::MAX).and_then(|_| self.poll(1024));
            match step {
                Ok(batch) if batch.is_empty() => {}
                Ok(batch) => return Ok(Some(batch)),
                Err(error) if error.code() == Code::Closed => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// As a member of a wake set: true if it is ready now (its tag is listed too); false: its tag
    /// will be listed when it is. Never blocks.
    pub fn arm(&mut self) -> Result<bool> {
        let Some((set, tag)) = self.set.clone() else {
            return Err(say::invalid("arm a subscription: it is in no wake set. Add it to one first."));
        };
        self.unpark();
        loop {
            if self.peek() {
                set.list(tag);
                return Ok(true);
            }
            match self.park(Waker::Member(set.clone(), tag)) {
                Ok(()) => {
                    self.share();
                    return Ok(false);
                }
                // Once an arming.
                Err(Told::Yes) => return Ok(true),
                Err(Told::No) => {}
            }
        }
    }

    /// The batches as a stream of the feature `async`.
    #[cfg(feature = "async")]
    pub fn stream(&mut self) -> Stream<'_> {
        Stream(self)
    }
}

/// The batches of a subscription as a stream: ends after CLOSED.
#[cfg(feature = "async")]
#[derive(Debug)]
pub struct Stream<'a>(&'a mut Subscription);

#[cfg(feature = "async")]
impl futures_core::Stream for Stream<'_> {
    type Item = Result<Batch>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Batch>>> {
        use std::task::Poll;
        let subscription = &mut *self.0;
        loop {
            match subscription.poll(1024) {
                Ok(batch) if batch.is_empty() => {}
                Ok(batch) => return Poll::Ready(Some(Ok(batch))),
                Err(error) if error.code() == Code::Closed => return Poll::Ready(None),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
            if !subscription.peek() && subscription.park(Waker::Task(context.waker().clone())).is_ok() {
                return Poll::Pending;
            }
        }
    }
}

impl WakeSet {
    /// Adds a subscription under a tag. It joins when it is armed.
    pub fn add(&self, subscription: &mut Subscription, tag: u64) -> Result<()> {
        subscription.unpark();
        subscription.set = Some((self.shared.clone(), tag));
        Ok(())
    }

    /// Takes a subscription out; true if it was in a set.
    pub fn remove(&self, subscription: &mut Subscription) -> bool {
        subscription.unpark();
        subscription.set.take().is_some()
    }
}
