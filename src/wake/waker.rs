//! How a waiter is woken: a thread, a task, or a member of a wake set.

#![forbid(unsafe_code)]

use super::set::SetShared;
use crate::sync::{Condvar, Mutex, lock};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// A thread that sleeps until somebody has something for it.
#[derive(Default)]
pub(crate) struct Parker {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Parker {
    pub(crate) fn wake(&self) {
        *lock(&self.woken) = true;
        self.changed.notify_one();
    }

    pub(crate) fn reset(&self) {
        *lock(&self.woken) = false;
    }

    /// True: woken. False: the time is up.
    pub(crate) fn wait_until(&self, until: Option<Instant>) -> bool {
        let mut woken = lock(&self.woken);
        loop {
            if *woken {
                return true;
            }
            woken = match until {
                None => self.changed.wait(woken).unwrap_or_else(std::sync::PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    self.changed.wait_timeout(woken, left).unwrap_or_else(std::sync::PoisonError::into_inner).0
                }
            };
        }
    }
}

/// How a waiter is woken.
#[derive(Clone)]
pub(crate) enum Waker {
    Thread(Arc<Parker>),
    #[cfg_attr(not(feature = "async"), expect(dead_code, reason = "streams come with the feature async"))]
    Task(std::task::Waker),
    Member(Arc<SetShared>, u64),
}

impl Waker {
    pub(crate) fn wake(self) {
        let called = catch_unwind(AssertUnwindSafe(|| match self {
            Waker::Thread(parker) => parker.wake(),
            Waker::Task(waker) => waker.wake(),
            Waker::Member(set, tag) => set.list(tag),
        }));
        if called.is_err() {
            crate::data::decoded::count_panic();
            tracing::error!("a waker panicked; the notifier goes on");
        }
    }
}
