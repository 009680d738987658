//! How a sleeping consumer is woken: a thread, a task, or a member of a wake set.

#![forbid(unsafe_code)]

use super::ready_list::{Membership, SetSignal};
use crate::foreign;
use crate::heap;
use crate::sync::Thread;
#[cfg(loom)]
use crate::sync::weak;
use std::sync::Arc;

/// The means by which a sleeping consumer is woken.
pub(crate) enum Waker {
    /// A thread that is blocked in `wait`.
    Thread(Thread),
    /// A task that polled a stream or a future, which is pending.
    Task(std::task::Waker),
    /// The consumer is armed in the wake set that it is a member of.
    Member,
}

/// The part of a wake-up that is called after the waiter is settled, outside the pass lock and all other locks: system calls
/// and foreign code.
pub(crate) enum WakeUp {
    Thread(Thread),
    Task(std::task::Waker),
    /// A member is on the ready list of its set; the descriptor is still to be raised.
    Raise(Arc<SetSignal>),
}

impl Waker {
    /// Wakes a task though nothing has come: it polls again. A thread is awake, and a member is armed by its consumer.
    pub(crate) fn call(self) {
        if let Waker::Task(task) = self {
            WakeUp::Task(task).call();
        }
    }
}

/// The consumer's membership of a wake set, and its waker while it sleeps. Mostly a waiter has only one of the two, so they
/// share the space.
#[derive(Default)]
pub(crate) enum WakerSlot<M> {
    #[default]
    Empty,
    Thread(Thread),
    Task(std::task::Waker),
    Member {
        membership: Membership<M>,
        armed: bool,
    },
    /// A member whose consumer slept by itself, on a thread or in a task.
    Both(Box<(Membership<M>, Option<Waker>)>),
}

impl<M> WakerSlot<M> {
    /// Stores the waker for this sleep and returns the previous one.
    #[inline]
    pub(crate) fn put(&mut self, waker: Waker) -> Option<Waker> {
        if let (WakerSlot::Member { armed, .. }, Waker::Member) = (&mut *self, &waker) {
            *armed = true;
            return None;
        }
        self.put_by_itself(waker)
    }

    #[inline(never)]
    fn put_by_itself(&mut self, waker: Waker) -> Option<Waker> {
        let before = self.take();
        *self = match (std::mem::take(self), waker) {
            (WakerSlot::Member { membership, .. }, waker) => WakerSlot::Both(Box::new((membership, Some(waker)))),
            (WakerSlot::Both(mut both), waker) => {
                both.1 = Some(waker);
                WakerSlot::Both(both)
            }
            (_, Waker::Thread(thread)) => WakerSlot::Thread(thread),
            (_, Waker::Task(task)) => WakerSlot::Task(task),
            // A consumer that is no member is never armed as one.
            (empty, Waker::Member) => empty,
        };
        before
    }

    /// Takes the waker out; a member stays one.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Waker> {
        match self {
            WakerSlot::Empty => None,
            WakerSlot::Member { armed, .. } => std::mem::take(armed).then_some(Waker::Member),
            WakerSlot::Both(both) => both.1.take(),
            WakerSlot::Thread(_) | WakerSlot::Task(_) => match std::mem::take(self) {
                WakerSlot::Thread(thread) => Some(Waker::Thread(thread)),
                WakerSlot::Task(task) => Some(Waker::Task(task)),
                _ => None,
            },
        }
    }

    /// Drops the waker, so that an abandoned waiter does not keep a task alive.
    #[inline]
    pub(crate) fn clear(&mut self) {
        match self {
            WakerSlot::Empty => {}
            WakerSlot::Member { armed, .. } => *armed = false,
            _ => drop(self.take()),
        }
    }

    #[inline]
    pub(crate) fn membership(&self) -> Option<&Membership<M>> {
        match self {
            WakerSlot::Member { membership, .. } => Some(membership),
            WakerSlot::Both(both) => Some(&both.0),
            _ => None,
        }
    }
}

/// Task wakers that are prefetched before their call: a call stores in its task, which ran on another processor last.
const FETCHED: usize = 8;

impl WakeUp {
    /// Calls all, in their order. A set is raised once for all its members in a row, which are listed already: a thread that
    /// takes them after the first raise arms the set again, and each further raise would wake it for nothing.
    pub(crate) fn call_all(woken: Vec<WakeUp>) {
        let mut woken = woken.into_iter();
        while let Some(next) = woken.next() {
            if let Some(WakeUp::Task(later)) = woken.as_slice().get(FETCHED) {
                // The waker's data is where a runtime has its task; a prefetch may name any address.
                heap::prefetch(later.data().cast());
            }
            if !woken.as_slice().first().is_some_and(|later| next.raises_set_of(later)) {
                next.call();
            }
        }
    }

    /// Whether both raise the same set.
    fn raises_set_of(&self, other: &WakeUp) -> bool {
        #[cfg(loom)]
        if weak::is(weak::Site::RaisedEach) {
            return false;
        }
        matches!((self, other), (WakeUp::Raise(one), WakeUp::Raise(other)) if Arc::ptr_eq(one, other))
    }

    /// A panic of a task's waker is caught and counted.
    pub(crate) fn call(self) {
        match self {
            WakeUp::Thread(thread) => thread.unpark(),
            WakeUp::Task(waker) => {
                if foreign::guard(|| waker.wake()).is_none() {
                    foreign::report(|| tracing::error!("a waker panicked; all others are woken"));
                }
            }
            WakeUp::Raise(signal) => signal.raise(),
        }
    }
}
