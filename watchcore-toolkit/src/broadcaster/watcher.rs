//! A watch of a broadcaster: a cursor in its log, with a rule for when it is behind.

#![forbid(unsafe_code)]

use super::gate::Member;
use super::log::{ends, payload_of};
use super::options::WatchOptions;
use super::queue::DropQueue;
use super::shared::Shared;
use crate::event::{Origin, Payload, WatchEvent};
use crate::object::Object;
use crate::watch::{Stopper, Watch};
use futures_core::Stream;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use watchcore::{Batch, Closer, Code, Error, Position, Subscription};

/// A watch of a [`crate::Broadcaster`].
///
/// All watches share the objects, each with a count. A stopped watch ends at once, without
/// delivering the events that it has not taken; publishers that wait for it continue.
///
/// ```
/// use std::time::Duration;
/// use watchcore_toolkit::{Action, Broadcaster, WatchExt, WhenFull};
///
/// let broadcaster = Broadcaster::new(0, WhenFull::Wait)?;
/// let mut watch = broadcaster.watch()?;
/// broadcaster.action(Action::Added, 1)?;
/// let event = watch.recv(Duration::from_secs(10))?.unwrap();
/// assert_eq!((**event.object().unwrap(), event.position.revision, event.lost), (1, 1, 0));
/// watch.stop();
/// assert!(watch.recv(Duration::from_secs(10))?.is_none());
/// # Ok::<(), watchcore::Error>(())
/// ```
pub struct BroadcastWatch<T> {
    pub(super) shared: Arc<Shared<T>>,
    pub(super) subscription: Subscription,
    /// The events of the last poll, from `next` on. Emptied as soon as all were taken, because a
    /// batch keeps a segment of the log.
    pub(super) batch: Batch,
    pub(super) next: usize,
    pub(super) prefix: std::vec::IntoIter<WatchEvent<Object<T>>>,
    pub(super) rule: Rule,
    /// The number of the last event that was taken.
    pub(super) taken: u64,
    ended: bool,
    /// The error that ended the watch, and is not delivered yet.
    failed: Option<Error>,
    ends: Arc<Ends<T>>,
    stopper: Stopper,
}

/// The rule for new events where the watcher is behind.
pub(super) enum Rule {
    Wait(WaitQueue),
    Drop(DropQueue),
}

/// The queue of a watcher for which publishers wait: its member, and the part of the prefix that it has taken.
pub(super) struct WaitQueue {
    member: Arc<Member>,
    /// The number of events of the prefix that the member counts as taken, at most `most`: the log keeps no more than its
    /// window.
    prefix: u64,
    most: u64,
}

/// Stopping ends the wait of the consumer, and the waits of publishers for this watch.
struct Ends<T> {
    shared: Arc<Shared<T>>,
    closer: Closer,
    member: Option<Arc<Member>>,
}

impl<T> Ends<T> {
    fn leave(&self) {
        self.closer.close();
        if let Some(member) = &self.member {
            self.shared.gate.remove_member(member);
        }
    }
}

impl<T: Send + Sync + 'static> BroadcastWatch<T> {
    /// `asked`: the watch starts after the first number, and requested the history up to the last.
    pub(super) fn new(
        shared: &Arc<Shared<T>>,
        subscription: Subscription,
        member: Option<Arc<Member>>,
        options: WatchOptions,
        asked: Range<u64>,
        prefix: Vec<WatchEvent<Object<T>>>,
    ) -> BroadcastWatch<T> {
        let length = prefix.len() as u64;
        let ends = Arc::new(Ends { shared: Arc::clone(shared), closer: subscription.closer(), member: member.clone() });
        let weak: Weak<Ends<T>> = Arc::downgrade(&ends);
        let stopper = Stopper::new(move || {
            if let Some(ends) = weak.upgrade() {
                ends.leave();
            }
        });
        let rule = match member {
            Some(member) => {
                let most = length.min(member.headroom(shared.window));
                Rule::Wait(WaitQueue { member, prefix: 0, most })
            }
            None => Rule::Drop(DropQueue::new(options.queue(), length, asked.start + 1, asked.end + 1)),
        };
        shared.watchers.fetch_add(1, Ordering::Relaxed);
        BroadcastWatch {
            shared: Arc::clone(shared),
            subscription,
            batch: Batch::default(),
            next: 0,
            prefix: prefix.into_iter(),
            rule,
            taken: asked.start,
            ended: false,
            failed: None,
            ends,
            stopper,
        }
    }

    /// Counts events of the prefix as taken.
    pub(super) fn free_prefix(&mut self, count: u64) {
        match &mut self.rule {
            Rule::Wait(wait) => {
                wait.prefix = (wait.prefix + count).min(wait.most);
                self.free_places();
            }
            Rule::Drop(queue) => {
                queue.look(self.shared.head());
                queue.take_prefix(count);
            }
        }
    }

    /// Lets waiting publishers go on, as far as events were taken.
    pub(super) fn free_places(&self) {
        if let Rule::Wait(wait) = &self.rule
            && wait.member.take(self.taken + wait.prefix)
        {
            self.shared.gate.member_moved();
        }
    }

    /// Returns the next event of the prefix, which was counted as taken before.
    pub(super) fn next_of_prefix(&mut self) -> Option<WatchEvent<Object<T>>> {
        Some(self.prefix.next()?.with_origin(Origin::InitialState))
    }

    /// Takes the next event of the prefix.
    fn take_prefix(&mut self) -> Option<WatchEvent<Object<T>>> {
        if self.prefix.as_slice().is_empty() {
            return None;
        }
        self.free_prefix(1);
        self.next_of_prefix()
    }

    /// The index of the next event in the batch. Events before it were lost.
    pub(super) fn next_index(&mut self) -> Option<usize> {
        let events = self.batch.events();
        let first = events.get(self.next)?.revision();
        let Rule::Drop(queue) = &mut self.rule else { return Some(self.next) };
        queue.look(self.shared.head());
        // Events that have left the log cannot be taken.
        queue.skip_to(first);
        // Each number is one event of the log, and none is missing inside a batch.
        let index = self.next + (queue.next()? - first) as usize;
        (index < events.len()).then_some(index)
    }

    /// Takes the event at an index of the batch. `None`: it was the end.
    fn take(&mut self, index: usize) -> Option<WatchEvent<Object<T>>> {
        let event = &self.batch.events()[index];
        let number = event.revision();
        let payload = payload_of(event.kv()?)?;
        let lost = number - self.taken - 1;
        self.taken = number;
        self.next = index + 1;
        if self.next == self.batch.len() {
            self.batch = Batch::default();
        }
        match &mut self.rule {
            Rule::Wait(_) => self.free_places(),
            Rule::Drop(queue) => queue.take(),
        }
        Some(WatchEvent { position: self.position(), lost, origin: Origin::Change, payload })
    }

    /// Handles an error of the subscription: lost events (`None`), or the error that ends the watch.
    pub(super) fn lose(&mut self, error: Error) -> Option<Error> {
        if error.code() != Code::Lagged {
            return Some(error);
        }
        if let Rule::Drop(queue) = &mut self.rule {
            queue.look(self.shared.head());
            queue.skip_to(error.lost_to() + 1);
        }
        None
    }

    /// Whether no more events are taken.
    pub(super) fn is_over(&self) -> bool {
        self.ended || self.failed.is_some() || self.stopper.is_stopped()
    }

    /// Ends the watch with an error, which the stream delivers.
    pub(super) fn fail(&mut self, error: Error) {
        self.failed = Some(error);
    }

    fn end(&mut self) {
        self.ended = true;
        self.batch = Batch::default();
        self.prefix = Vec::new().into_iter();
        self.ends.leave();
    }

    /// The event after the last object.
    fn last(&mut self) -> Option<WatchEvent<Object<T>>> {
        self.end();
        let status = self.shared.failed.get()?.clone();
        let lost = match &self.rule {
            Rule::Wait(_) => 0,
            Rule::Drop(_) => self.shared.head() - 1 - self.taken,
        };
        Some(WatchEvent::error(status).at(self.position()).with_lost(lost))
    }
}

impl<T> BroadcastWatch<T> {
    /// How many events this watch has lost since it was opened.
    pub fn dropped(&self) -> u64 {
        match &self.rule {
            Rule::Wait(_) => 0,
            Rule::Drop(queue) => queue.lost(self.shared.head()),
        }
    }

    /// The position of the last event that was taken: a watch that starts after it receives the following events.
    pub fn position(&self) -> Position {
        Position { epoch: self.shared.epoch, revision: self.taken }
    }
}

impl<T: Send + Sync + 'static> Stream for BroadcastWatch<T> {
    type Item = WatchEvent<Object<T>>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<Object<T>>>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        if this.stopper.is_stopped() {
            this.end();
            return Poll::Ready(None);
        }
        if let Some(error) = this.failed.take() {
            this.end();
            return Poll::Ready(Some(WatchEvent::error(error).at(this.position())));
        }
        if let Some(event) = this.take_prefix() {
            if matches!(event.payload, Payload::Error(_)) {
                this.end();
            }
            return Poll::Ready(Some(event));
        }
        loop {
            if let Some(index) = this.next_index() {
                return match this.take(index) {
                    Some(event) => Poll::Ready(Some(event)),
                    None => Poll::Ready(this.last()),
                };
            }
            if ends(&this.batch) {
                return Poll::Ready(this.last());
            }
            this.batch = Batch::default();
            match Pin::new(&mut this.subscription).poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(batch))) => (this.batch, this.next) = (batch, 0),
                Poll::Ready(Some(Err(error))) => {
                    if let Some(error) = this.lose(error) {
                        this.end();
                        return Poll::Ready(Some(WatchEvent::error(error).at(this.position())));
                    }
                }
                Poll::Ready(None) => return Poll::Ready(this.last()),
            }
        }
    }
}

impl<T: Send + Sync + 'static> Watch for BroadcastWatch<T> {
    type Object = Object<T>;

    fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }
}

impl<T> Drop for BroadcastWatch<T> {
    fn drop(&mut self) {
        self.ends.leave();
        self.shared.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T> fmt::Debug for BroadcastWatch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BroadcastWatch").field("taken", &self.taken).field("dropped", &self.dropped()).finish()
    }
}
