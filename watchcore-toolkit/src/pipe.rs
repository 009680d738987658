//! A queue of events from one producer to one consumer: the basis of the fakes, and of the threads
//! of decoders and blocking sources.
//!
//! A sender puts its event into the queue and waits until it was taken, or only puts it there while there is room. One
//! lock protects everything; wakers are called after it, so a sender may be the consumer's own task.

#![forbid(unsafe_code)]

use crate::event::WatchEvent;
use crate::foreign::wake;
use crate::sync::{Lock, LockGuard};
use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

/// The queue, described in the module's documentation.
pub(crate) struct Pipe<O> {
    state: Lock<PipeState<O>>,
}

struct PipeState<O> {
    queue: VecDeque<Sent<O>>,
    /// The numbers of the last event that was put into the queue, and of the last that was taken.
    sent: u64,
    taken: u64,
    consumer: Option<Waker>,
    /// No event is accepted any more.
    stopped: bool,
}

struct Sent<O> {
    number: u64,
    event: WatchEvent<O>,
    /// The waker of the event's sender, if it waits.
    sender: Option<Waker>,
    waits: bool,
}

/// The reason why an event was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotSent {
    Stopped,
    Full,
}

impl<O> Pipe<O> {
    pub(crate) fn new() -> Pipe<O> {
        let state = PipeState { queue: VecDeque::new(), sent: 0, taken: 0, consumer: None, stopped: false };
        Pipe { state: Lock::new(state) }
    }

    fn lock(&self) -> LockGuard<'_, PipeState<O>> {
        self.state.lock()
    }

    fn push(mut state: LockGuard<'_, PipeState<O>>, event: WatchEvent<O>, sender: Option<Waker>) -> u64 {
        state.sent += 1;
        let number = state.sent;
        let waits = sender.is_some();
        state.queue.push_back(Sent { number, event, sender, waits });
        let consumer = state.consumer.take();
        drop(state);
        wake(consumer);
        number
    }

    /// Puts an event into the queue, if it has fewer than `places` events.
    pub(crate) fn try_send(&self, event: WatchEvent<O>, places: usize) -> Result<(), NotSent> {
        let state = self.lock();
        // An event that is not sent stays in the parameter, which is dropped after the lock is released.
        if state.stopped {
            return Err(NotSent::Stopped);
        }
        if state.queue.len() >= places {
            return Err(NotSent::Full);
        }
        Pipe::push(state, event, None);
        Ok(())
    }

    /// Whether the queue has fewer than `places` events.
    pub(crate) fn has_room(&self, places: usize) -> bool {
        self.lock().queue.len() < places
    }

    /// Sends an event and waits until it was taken; `number` belongs to the sender, and is `None` at its first poll.
    pub(crate) fn poll_send(
        &self,
        event: &mut Option<WatchEvent<O>>,
        number: &mut Option<u64>,
        context: &Context<'_>,
    ) -> Poll<Result<(), NotSent>> {
        // Variables that are declared before the guard are dropped after it.
        let waker = context.waker().clone();
        let unsent = if number.is_none() { event.take() } else { None };
        let mut state = self.lock();
        let Some(own) = *number else {
            if unsent.is_none() {
                return Poll::Ready(Ok(()));
            }
            if state.stopped {
                return Poll::Ready(Err(NotSent::Stopped));
            }
            *number = unsent.map(|event| Pipe::push(state, event, Some(waker)));
            return Poll::Pending;
        };
        if state.taken >= own {
            *number = None;
            return Poll::Ready(Ok(()));
        }
        if state.stopped {
            *number = None;
            return Poll::Ready(Err(NotSent::Stopped));
        }
        let before = state.queue.iter_mut().find(|sent| sent.number == own).and_then(|sent| sent.sender.replace(waker));
        drop(state);
        drop(before);
        Poll::Pending
    }

    /// Handles a sender that no longer waits: its event is removed, if it was not taken.
    pub(crate) fn withdraw(&self, number: Option<u64>) {
        let Some(number) = number else { return };
        let mut state = self.lock();
        let at = state.queue.iter().position(|sent| sent.number == number);
        let withdrawn = at.and_then(|at| state.queue.remove(at));
        drop(state);
        drop(withdrawn);
    }

    /// Polls for the next event. After the stop: the events that are left, then the end.
    pub(crate) fn poll_take(&self, context: &Context<'_>) -> Poll<Option<WatchEvent<O>>> {
        let waker = context.waker().clone();
        let mut state = self.lock();
        if let Some(sent) = state.queue.pop_front() {
            state.taken = sent.number;
            drop(state);
            wake(sent.sender);
            return Poll::Ready(Some(sent.event));
        }
        if state.stopped {
            return Poll::Ready(None);
        }
        let before = state.consumer.replace(waker);
        drop(state);
        drop(before);
        Poll::Pending
    }

    /// Stops the queue: waiting senders get an error and their events are dropped; other events stay for the consumer.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        let (gone, left): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut state.queue).into_iter().partition(|sent| sent.waits);
        state.queue = left;
        let consumer = state.consumer.take();
        drop(state);
        wake(gone.into_iter().filter_map(|sent| sent.sender).chain(consumer));
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.lock().stopped
    }
}
