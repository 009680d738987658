//! The lock of a pass over the tables of a hub, in one word with the calls that are pending.
//!
//! A thread that has something for waiters calls. If no call is pending and nobody holds the lock, it must start a pass. The
//! thread that does the pass holds the lock: the notifier, or the publisher where little is to be done. Where the lock is
//! held, a call stays in the word, and the holder hands it on when it releases the lock. Nobody waits for the lock.
//!
//! There are two calls. A publisher calls for its events; all others call for everything: messages, due times, limits of
//! lag. The notifier's pass answers both; a publisher's answers the call for events alone.
//!
//! | word | thread that must see to a pass |
//! | --- | --- |
//! | 0 | none: everything was looked at |
//! | CALLED, WHOLE, both | the first caller, or the holder that has handed the call on |
//! | HELD | the holder: its look may be over already |
//! | HELD, and a call | the holder, when it releases the lock: the call stayed, or came meanwhile |
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | the store that the look has to see, then `call` | `answer`, `answer_events`, then the look | AcqRel: the look sees it, or the call stays |
//! | the store that the look has to see, then `call_for_all` | `answer`, then the look | the same |
//! | the look, then the drop of the guard | `try_lock`, then the look | AcqRel: the tables are as the last look left them |

#![forbid(unsafe_code)]

#[cfg(loom)]
use crate::sync::weak;
use crate::sync::{AcqRel, AtomicU32, ord};

/// New events are to be looked at.
const CALLED: u32 = 1;
/// Everything is to be looked at: events, messages, due times, limits of lag.
const WHOLE: u32 = 2;
/// A thread holds the pass lock.
const HELD: u32 = 4;

/// See the module.
pub(crate) struct PassLock(AtomicU32);

impl PassLock {
    pub(crate) fn new() -> PassLock {
        PassLock(AtomicU32::new(0))
    }

    /// Records that there are new events. True: no pass is pending or running, so the caller must start one.
    #[inline]
    pub(crate) fn call(&self) -> bool {
        // Partner: `answer`, `answer_events`.
        self.0.fetch_or(CALLED, AcqRel) == 0
    }

    /// Records that everything is to be looked at. True: no pass is pending or running, so the notifier must be called.
    pub(crate) fn call_for_all(&self) -> bool {
        // Partner: `answer`.
        self.0.fetch_or(WHOLE, AcqRel) == 0
    }

    /// `None`: another thread holds the lock. `hand_on` is called when the lock is released with a call that was not
    /// answered.
    pub(crate) fn try_lock<F: Fn()>(&self, hand_on: F) -> Option<PassGuard<'_, F>> {
        // Partner: the drop of the guard.
        (self.0.fetch_or(HELD, AcqRel) & HELD == 0).then(|| PassGuard { lock: self, hand_on })
    }

    /// Like [`PassLock::try_lock`], for a look at everything; `None`: the holder will hand on the call that this leaves.
    pub(crate) fn try_lock_or_call<F: Fn() + Copy>(&self, hand_on: F) -> Option<PassGuard<'_, F>> {
        loop {
            let held = self.try_lock(hand_on);
            // If the lock was released in between, nobody would hand the call on: lock it again.
            if held.is_some() || !self.call_for_all() {
                return held;
            }
        }
    }
}

/// Dropping it releases the lock, also when a panic unwinds.
#[must_use]
pub(crate) struct PassGuard<'a, F: Fn()> {
    lock: &'a PassLock,
    hand_on: F,
}

impl<F: Fn()> PassGuard<'_, F> {
    /// Clears every call until now, which the look that follows answers. Partner: `PassLock::call`, `PassLock::call_for_all`.
    pub(crate) fn answer(&self) {
        self.lock.0.fetch_and(!(CALLED | WHOLE), ord!(TurnAnswer, AcqRel));
    }

    /// Clears the calls for events alone, for a look at these: a call for everything stays. Partner: `PassLock::call`.
    pub(crate) fn answer_events(&self) {
        #[cfg(loom)]
        if weak::is(weak::Site::AnswerAll) {
            return self.answer();
        }
        self.lock.0.fetch_and(!CALLED, ord!(TurnAnswer, AcqRel));
    }

    /// Leaves a call for everything, which is handed on when the lock is released.
    pub(crate) fn call_again(&self) {
        self.lock.call_for_all();
    }
}

impl<F: Fn()> Drop for PassGuard<'_, F> {
    fn drop(&mut self) {
        // Partner: `try_lock`.
        let before = self.lock.0.fetch_and(!HELD, AcqRel);
        #[cfg(loom)]
        if weak::is(weak::Site::CallDropped) {
            return;
        }
        if before & (CALLED | WHOLE) != 0 {
            (self.hand_on)();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A thread that does not get the lock leaves it with its holder, and a call that came meanwhile is handed on once.
    #[test]
    fn lock_is_of_one_until_its_release() {
        let (lock, handed_on) = (PassLock::new(), Cell::new(0));
        let hand_on = || handed_on.set(handed_on.get() + 1);
        assert!(lock.call());
        let held = lock.try_lock(hand_on).expect("nobody has it");
        held.answer();
        assert!(lock.try_lock(hand_on).is_none() && lock.try_lock_or_call(hand_on).is_none() && !lock.call());
        assert!(lock.try_lock(hand_on).is_none(), "it was taken from its holder");
        assert_eq!(handed_on.get(), 0);
        drop(held);
        assert_eq!(handed_on.get(), 1);
        lock.try_lock(hand_on).expect("it was released").answer();
        assert_eq!(handed_on.get(), 1, "the call was answered");
    }

    /// A due time comes while the publisher holds the lock: the publisher looks at events alone, and the call is handed on.
    #[test]
    fn call_for_more_outlasts_a_look_at_events() {
        let (lock, handed_on) = (PassLock::new(), Cell::new(0));
        let hand_on = || handed_on.set(handed_on.get() + 1);
        assert!(lock.call());
        let publisher = lock.try_lock(hand_on).expect("nobody has it");
        assert!(lock.try_lock_or_call(hand_on).is_none());
        publisher.answer_events();
        drop(publisher);
        assert_eq!(handed_on.get(), 1, "nobody looks at the due time");
        assert!(!lock.call() && !lock.call_for_all(), "the notifier is on its way");
        lock.try_lock(hand_on).expect("it was released").answer();
        assert_eq!(handed_on.get(), 1, "the notifier has looked at everything");
    }
}
