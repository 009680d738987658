//! Reads many events at once, by reference, without incrementing a count for each.

#![forbid(unsafe_code)]

use super::log::{Action, action_of, ends};
use super::watcher::{BroadcastWatch, Rule};
use crate::event::Payload;
use crate::park;
use futures_core::Stream;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use watchcore::{Code, Error, Position, Result};

/// An event of a [`crate::Broadcaster`], borrowed from the log: see [`BroadcastWatch::recv_many`].
///
/// ```
/// use std::time::Duration;
/// use watchcore_toolkit::{Action, Broadcaster, WhenFull};
///
/// let broadcaster = Broadcaster::new(10, WhenFull::Wait)?;
/// let mut watch = broadcaster.watch()?;
/// broadcaster.action(Action::Modified, 7)?;
/// watch.recv_many(Duration::from_secs(10), 100, |event| {
///     assert_eq!((event.action, *event.object, event.position.revision, event.lost), (Action::Modified, 7, 1, 0));
/// })?;
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct BroadcastEvent<'a, T> {
    /// The kind of the event.
    pub action: Action,
    /// The object.
    pub object: &'a T,
    /// The position after which a watch resumes.
    pub position: Position,
    /// How many events this watch has lost directly before it.
    pub lost: u64,
}

impl<T: Send + Sync + 'static> BroadcastWatch<T> {
    /// Waits for events, at most for the timeout (`Duration::MAX`: for ever), and calls `visit` with some available
    /// events, at most `max`. Returns the number of events; 0 is the end of the watch, or an event that says how it ended:
    /// the next [`crate::WatchExt::recv`] returns that. TIMEOUT if no event came; INVALID_ARGUMENT for a `max` of 0.
    ///
    /// This is for watches with many events: no object's count is incremented, and a waiting
    /// publisher is checked once per call, not once per event. So all events of a call count as
    /// taken when it starts, including those that are not visited because `visit` panicked.
    pub fn recv_many(
        &mut self,
        timeout: Duration,
        max: usize,
        mut visit: impl FnMut(BroadcastEvent<'_, T>),
    ) -> Result<usize> {
        if max == 0 {
            return Err(Error::new(Code::InvalidArgument, "receive at most 0 events: ask for at least 1."));
        }
        park::block_on(timeout, |context| self.poll_many(context, max, &mut visit)).ok_or_else(|| {
            Error::new(Code::Timeout, format!("receive events: none within {} ms. Ask again.", timeout.as_millis()))
        })
    }

    /// [`BroadcastWatch::recv_many`] as a future, without a timeout. Cancel safe. `max` 0 returns 0.
    pub async fn next_many(&mut self, max: usize, mut visit: impl FnMut(BroadcastEvent<'_, T>) + Send) -> usize {
        poll_fn(|context| self.poll_many(context, max, &mut visit)).await
    }

    /// The implementation of `recv_many` and `next_many`.
    fn poll_many(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
        visit: &mut impl FnMut(BroadcastEvent<'_, T>),
    ) -> Poll<usize> {
        let of_prefix = self.visit_prefix(max, visit);
        loop {
            // A mark of the prefix, and the end, are left for the stream.
            if of_prefix == max || self.is_over() || !self.prefix.as_slice().is_empty() {
                return Poll::Ready(of_prefix);
            }
            let published = self.visit_batch(max - of_prefix, visit);
            if published > 0 || ends(&self.batch) {
                return Poll::Ready(of_prefix + published);
            }
            match self.poll_batch(context) {
                Poll::Pending if of_prefix == 0 => return Poll::Pending,
                Poll::Ready(true) => {}
                Poll::Pending | Poll::Ready(false) => return Poll::Ready(of_prefix),
            }
        }
    }

    fn visit_prefix(&mut self, max: usize, visit: &mut impl FnMut(BroadcastEvent<'_, T>)) -> usize {
        let objects = self.prefix.as_slice().iter().take(max).take_while(|event| event.object().is_some()).count();
        if objects > 0 {
            // Before the first call, as with those of the log.
            self.free_prefix(objects as u64);
        }
        for _ in 0..objects {
            let Some(event) = self.next_of_prefix() else { break };
            let (action, object) = match &event.payload {
                Payload::Added(object) => (Action::Added, object),
                Payload::Modified { new: object, .. } => (Action::Modified, object),
                Payload::Deleted(object) => (Action::Deleted, object),
                _ => break,
            };
            visit(BroadcastEvent { action, object, position: event.position, lost: event.lost });
        }
        objects
    }

    fn visit_batch(&mut self, max: usize, visit: &mut impl FnMut(BroadcastEvent<'_, T>)) -> usize {
        if matches!(self.rule, Rule::Wait(_)) {
            return self.visit_waiting(max, visit);
        }
        let mut visited = 0;
        while visited < max {
            let Some(index) = self.next_index() else { break };
            let event = &self.batch.events()[index];
            let Some((action, object)) = event.kv().and_then(action_of::<T>) else { break };
            let number = event.revision();
            let lost = number - self.taken - 1;
            self.taken = number;
            self.next = index + 1;
            if let Rule::Drop(queue) = &mut self.rule {
                queue.take();
            }
            let position = Position { epoch: self.shared.epoch, revision: number };
            visited += 1;
            visit(BroadcastEvent { action, object, position, lost });
        }
        self.release_if_taken();
        visited
    }

    /// For a watch that loses nothing: visits consecutive events.
    fn visit_waiting(&mut self, max: usize, visit: &mut impl FnMut(BroadcastEvent<'_, T>)) -> usize {
        let (events, begin) = (self.batch.events(), self.next);
        let until = (events.len() - usize::from(ends(&self.batch))).min(begin.saturating_add(max));
        if until <= begin {
            return 0;
        }
        // All events are taken before the first call, because a `visit` that publishes would otherwise wait for itself.
        (self.taken, self.next) = (events[until - 1].revision(), until);
        self.free_places();
        let epoch = self.shared.epoch;
        for event in &self.batch.events()[begin..until] {
            let Some((action, object)) = event.kv().and_then(action_of::<T>) else { continue };
            let position = Position { epoch, revision: event.revision() };
            visit(BroadcastEvent { action, object, position, lost: 0 });
        }
        self.release_if_taken();
        until - begin
    }

    /// Releases a batch of which everything was taken: a batch keeps a segment of the log in memory.
    fn release_if_taken(&mut self) {
        if self.next == self.batch.len() {
            (self.batch, self.next) = (watchcore::Batch::default(), 0);
        }
    }

    /// Polls for the next batch; false: the watch has ended, which the stream reports.
    fn poll_batch(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        // The rest of the former batch was lost, and would keep a segment of the log during the wait.
        (self.batch, self.next) = (watchcore::Batch::default(), 0);
        match Pin::new(&mut self.subscription).poll_next(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(batch))) => {
                (self.batch, self.next) = (batch, 0);
                Poll::Ready(true)
            }
            Poll::Ready(Some(Err(error))) => match self.lose(error) {
                None => Poll::Ready(true),
                Some(error) => {
                    self.fail(error);
                    Poll::Ready(false)
                }
            },
            Poll::Ready(None) => Poll::Ready(false),
        }
    }
}
