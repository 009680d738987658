//! How a sleeping consumer is woken: a thread, a task, or a member of a wake set.

#![forbid(unsafe_code)]

use super::wake_set::Member;
use crate::foreign;
use crate::heap;
use crate::sync::Thread;
use std::sync::Arc;

/// What a seat holds while its consumer sleeps.
pub(crate) enum Waker {
    /// Blocked in `wait`.
    Thread(Thread),
    /// Pending in a stream or a future.
    Task(std::task::Waker),
    /// Armed in a wake set.
    Member(Arc<Member>),
}

/// The half of a wake-up that is taken outside, when the seat is settled: system calls and foreign
/// code.
pub(crate) enum WakeUp {
    Thread(Thread),
    Task(std::task::Waker),
    /// The member stands on its set's ready list; the descriptor is still to be raised.
    Raise(Arc<Member>),
}

impl Waker {
    /// The half that is taken inside, before the consumer can see that it was woken: a member is on its
    /// set's list by then. No system call and no foreign code.
    pub(super) fn settle(self) -> WakeUp {
        match self {
            Waker::Thread(thread) => WakeUp::Thread(thread),
            Waker::Task(waker) => WakeUp::Task(waker),
            Waker::Member(member) => {
                member.list();
                WakeUp::Raise(member)
            }
        }
    }
}

/// Wakers of tasks that are asked for before they are called: each call stores in its task, which ran elsewhere last.
const FETCHED: usize = 8;

impl WakeUp {
    /// Calls all, in their order.
    pub(super) fn call_all(woken: Vec<WakeUp>) {
        let mut woken = woken.into_iter();
        while let Some(next) = woken.next() {
            if let Some(WakeUp::Task(later)) = woken.as_slice().get(FETCHED) {
                // Where a runtime has its task; any address will do.
                heap::prefetch(later.data().cast());
            }
            next.call();
        }
    }

    /// A panic of a task's waker is caught and counted.
    pub(crate) fn call(self) {
        match self {
            WakeUp::Thread(thread) => thread.unpark(),
            WakeUp::Task(waker) => {
                if foreign::guard(|| waker.wake()).is_none() {
                    tracing::error!("a waker panicked; all others are woken");
                }
            }
            WakeUp::Raise(member) => member.raise(),
        }
    }
}
