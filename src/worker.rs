//! A thread that a process has once: started at first need, asleep while it has nothing to do, ended by a shutdown.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | work is handed over, then `asleep.swap(false)` | `asleep.swap(true)`, then a look for work | AcqRel: one of the two sees the other |
//! | a [`Need`] is counted, then `start` takes the lock | the thread ends under the lock, if none is counted | the lock |
//! | what needed a cache is done, then its `Need` goes | a thread that ends loads the count | Release / Acquire |
//!
//! `docs/internals/shutdown.md` has the states of its life, and what must not go wrong.

#![forbid(unsafe_code)]

#[cfg(not(loom))]
pub(crate) use thread::Worker;

use crate::sync::{Acquire, Relaxed, Release};
use std::sync::atomic::AtomicUsize;

/// Who needs the process's threads.
static NEEDS: AtomicUsize = AtomicUsize::new(0);

/// A cache whose memory is not all freed: while there is one, no worker ends.
pub(crate) struct Need(());

impl Need {
    /// To be counted before the threads are asked for.
    pub(crate) fn new() -> Need {
        NEEDS.fetch_add(1, Relaxed);
        Need(())
    }
}

impl Drop for Need {
    fn drop(&mut self) {
        // Release: partner of the load in `needs`.
        NEEDS.fetch_sub(1, Release);
    }
}

/// How many there are.
pub(crate) fn needs() -> usize {
    NEEDS.load(Acquire)
}

#[cfg(not(loom))]
mod thread {
    use super::needs;
    use crate::sync::{AcqRel, AtomicBool, Mutex, Relaxed, Thread, lock, park, park_timeout};
    use std::io;
    use std::mem::take;
    use std::sync::{PoisonError, RwLock};
    use std::thread::JoinHandle;
    use std::time::Instant;

    /// Where a worker is in its life.
    #[derive(Default)]
    enum Life {
        #[default]
        Off,
        Runs(JoinHandle<()>),
        /// Asked to end.
        Ends(JoinHandle<()>),
        /// It has nothing left to do but to return.
        Over(JoinHandle<()>),
    }

    /// See the module.
    pub(crate) struct Worker {
        name: &'static str,
        asleep: AtomicBool,
        /// That life is Ends, for the thread to ask without the lock.
        ends: AtomicBool,
        /// What is planned for later is to be looked at now.
        hurries: AtomicBool,
        /// For who wakes it: written under `life` alone, when it starts and when it ends. A cache has counted its [`Need`]
        /// and has had `start` return before anybody publishes to it, and no thread ends while one is counted. So a
        /// publisher that takes this for reading never meets who writes: readers do not wait for each other.
        ///
        /// [`Need`]: super::Need
        thread: RwLock<Option<Thread>>,
        life: Mutex<Life>,
    }

    impl Worker {
        pub(crate) const fn new(name: &'static str) -> Worker {
            Worker {
                name,
                asleep: AtomicBool::new(false),
                ends: AtomicBool::new(false),
                hurries: AtomicBool::new(false),
                thread: RwLock::new(None),
                life: Mutex::new(Life::Off),
            }
        }

        pub(crate) fn name(&self) -> &'static str {
            self.name
        }

        /// Starts the thread, if it does not run; one that was asked to end stays. Where the system has none, nothing
        /// has changed, and the next call tries again.
        pub(crate) fn start(&self, body: fn()) -> io::Result<()> {
            let mut life = lock(&self.life);
            match take(&mut *life) {
                Life::Runs(handle) | Life::Ends(handle) => {
                    self.ends.store(false, Relaxed);
                    *life = Life::Runs(handle);
                    return Ok(());
                }
                Life::Over(handle) => join(handle),
                Life::Off => {}
            }
            let handle = crate::sys::spawn(self.name, body)?;
            let thread = handle.thread().clone();
            self.set_thread(Some(thread.clone()));
            // It may have gone to sleep, and be called, before it could be found there.
            thread.unpark();
            *life = Life::Runs(handle);
            Ok(())
        }

        fn set_thread(&self, thread: Option<Thread>) {
            *self.thread.write().unwrap_or_else(PoisonError::into_inner) = thread;
        }

        pub(crate) fn is_running(&self) -> bool {
            self.thread.read().unwrap_or_else(PoisonError::into_inner).is_some()
        }

        /// To be called after something was handed over. False: nobody is there to do it.
        pub(crate) fn wake(&self) -> bool {
            // Partner: `rest`.
            if !self.asleep.swap(false, AcqRel) {
                return true;
            }
            let thread = self.thread.read().unwrap_or_else(PoisonError::into_inner);
            thread.as_ref().map(Thread::unpark).is_some()
        }

        /// True: there was nothing to do, and who hands something over from here on finds nobody awake.
        pub(crate) fn rest(&self, has_nothing: impl FnOnce() -> bool) -> bool {
            // Partner: `wake`.
            self.asleep.swap(true, AcqRel);
            let rests = has_nothing();
            if !rests {
                self.asleep.swap(false, AcqRel);
            }
            rests
        }

        /// The thread: sleeps until it is woken or the time has come.
        pub(crate) fn sleep(&self, until: Option<Instant>, has_nothing: impl FnOnce() -> bool) {
            if !self.rest(has_nothing) {
                return;
            }
            match until {
                None => park(),
                Some(at) => park_timeout(at.saturating_duration_since(Instant::now())),
            }
            self.asleep.swap(false, AcqRel);
        }

        /// The thread: whether it is to return.
        pub(crate) fn is_over(&self, has_nothing: impl FnOnce() -> bool) -> bool {
            if !self.ends.load(Relaxed) {
                return false;
            }
            let mut life = lock(&self.life);
            match take(&mut *life) {
                Life::Ends(handle) if needs() == 0 && self.rest(has_nothing) => {
                    self.set_thread(None);
                    *life = Life::Over(handle);
                    true
                }
                other => {
                    *life = other;
                    false
                }
            }
        }

        /// The thread: whether what it has planned for later is to be looked at now.
        pub(crate) fn takes_all(&self) -> bool {
            self.ends.load(Relaxed) && self.hurries.swap(false, Relaxed)
        }

        /// Asks the thread to end, and to look at everything now. True: there is none any more. Else ask again.
        pub(crate) fn ask_to_end(&self) -> bool {
            let mut life = lock(&self.life);
            match take(&mut *life) {
                Life::Off => true,
                Life::Over(handle) => {
                    join(handle);
                    true
                }
                Life::Runs(handle) | Life::Ends(handle) => {
                    self.ends.store(true, Relaxed);
                    self.hurries.store(true, Relaxed);
                    handle.thread().unpark();
                    *life = Life::Ends(handle);
                    false
                }
            }
        }

        /// Takes back what was asked.
        pub(crate) fn stay(&self) {
            let mut life = lock(&self.life);
            *life = match take(&mut *life) {
                Life::Ends(handle) => Life::Runs(handle),
                other => other,
            };
            self.ends.store(false, Relaxed);
        }
    }

    /// What panicked on a worker was caught there.
    fn join(handle: JoinHandle<()>) {
        let _ = handle.join();
    }
}
