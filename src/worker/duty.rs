//! Whose the work of a worker is: its thread's, somebody's who stands in for it, or nobody's.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | work is handed over, then the swap of `call` | the swap of `rest` and of `leave`, then a look for work | AcqRel: one of the two sees the other |
//! | the swap of `call` | the exchange of `end`, which fails after it | AcqRel: one word, one order |
//! | `begin`: its swap, after a thread was started | the swap of `rest`, by that thread | AcqRel: who called before either of the two is heard by the look after the later one |
//!
//! `docs/internals/shutdown.md` has the states and the interleavings; `src/loom/worker.rs` the models.

#![forbid(unsafe_code)]

use crate::sync::{AcqRel, AtomicU32, Relaxed, RwLock, Thread, ord};
use std::sync::PoisonError;

/// The thread is awake, or another one stands in: whichever does the work looks once more before it stops.
const AWAKE: u32 = 0;
/// The thread's, which sleeps or is about to.
const ASLEEP: u32 = 1;
/// There is no thread: who calls next does the work.
const NOBODY: u32 = 2;

/// See the module. `begin`, `end` and `leave`, which change whether there is a thread, run under the lock of its life.
pub(crate) struct Duty {
    word: AtomicU32,
    /// For who wakes it: written when it starts and when it ends. A cache has counted its [`Need`] and has had `start` return
    /// before anybody publishes to it, and no thread ends while one is counted. So a publisher that takes this for
    /// reading never meets who writes: readers do not wait for each other.
    ///
    /// [`Need`]: super::Need
    thread: RwLock<Option<Thread>>,
}

impl Duty {
    #[cfg(not(loom))]
    pub(super) const fn new() -> Duty {
        Duty { word: AtomicU32::new(NOBODY), thread: RwLock::new(None) }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Duty {
        Duty { word: AtomicU32::new(NOBODY), thread: RwLock::new(None) }
    }

    fn set_thread(&self, thread: Option<Thread>) {
        *self.thread.write().unwrap_or_else(PoisonError::into_inner) = thread;
    }

    #[cfg(not(loom))]
    pub(super) fn has_thread(&self) -> bool {
        self.thread.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// After something was handed over. False: there is no thread, and the work is the caller's from here on, until he
    /// may [`leave`](Duty::leave).
    pub(crate) fn call(&self) -> bool {
        // Partners: `rest`, `end`, `leave`.
        match self.word.swap(AWAKE, ord!(DutyCall, AcqRel)) {
            AWAKE => true,
            ASLEEP => {
                // None: it is just being started, and `begin` unparks it.
                let thread = self.thread.read().unwrap_or_else(PoisonError::into_inner);
                thread.iter().for_each(Thread::unpark);
                true
            }
            _ => false,
        }
    }

    /// A thread was started: the work is its own.
    pub(crate) fn begin(&self, thread: Thread) {
        self.set_thread(Some(thread.clone()));
        // Partner: `rest`. A thread that stands in leaves when it has seen the worker's thread.
        self.word.swap(AWAKE, AcqRel);
        // The thread may have gone to sleep before it could be found.
        thread.unpark();
    }

    /// The thread. True: there was nothing to do, and who calls from here on unparks it.
    pub(crate) fn rest(&self, has_nothing: impl FnOnce() -> bool) -> bool {
        // Partner: `call`.
        self.word.swap(ASLEEP, ord!(DutyRest, AcqRel));
        let rests = has_nothing();
        if !rests {
            self.wake_up();
        }
        rests
    }

    /// The thread, after it has rested.
    pub(crate) fn wake_up(&self) {
        self.word.swap(AWAKE, AcqRel);
    }

    /// The thread. True: there was nothing to do, and it has left.
    pub(crate) fn end(&self, has_nothing: impl FnOnce() -> bool) -> bool {
        if !self.rest(has_nothing) {
            return false;
        }
        crate::sync::step("worker rests");
        #[cfg(loom)]
        if crate::sync::weak::is(crate::sync::weak::Site::BlindEnd) {
            self.word.store(NOBODY, Relaxed);
            return true;
        }
        // Partner: `call`. Fails where somebody has called: he counts on the thread.
        if self.word.compare_exchange(ASLEEP, NOBODY, AcqRel, Relaxed).is_err() {
            return false;
        }
        self.set_thread(None);
        true
    }

    /// For a thread that stands in while the worker has none. True: there was nothing to do, or another thread does it.
    pub(crate) fn leave(&self, has_nothing: impl FnOnce() -> bool) -> bool {
        // Partner: `call`.
        self.word.swap(NOBODY, ord!(DutyLeave, AcqRel));
        // A thread that has called in between has the work.
        has_nothing() || self.word.swap(AWAKE, AcqRel) == AWAKE
    }
}
