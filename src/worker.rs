//! A thread that a process has once: started at first need, asleep while it has nothing to do, ended by a shutdown.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | work is handed over, then [`Worker::wake`] | the thread rests or ends, or who stands in leaves; then a look for work | see [`duty`] |
//! | a [`Need`] is counted, then `start` takes the lock | the thread ends under the lock, if none is counted | the lock |
//! | what needed a cache is done, then its `Need` goes | a thread that ends loads the count | Release / Acquire |
//!
//! `docs/internals/shutdown.md` has the states of its life, and what must not go wrong.

#![forbid(unsafe_code)]

#[cfg(any(not(loom), test))]
pub(crate) mod duty;

#[cfg(not(loom))]
pub(crate) use thread::Worker;

use crate::sync::{Acquire, Relaxed, Release};
use std::sync::atomic::AtomicUsize;

/// The number of objects that need the process's threads.
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
    use super::duty::Duty;
    use crate::sync::{AtomicBool, Mutex, Relaxed, lock, park, park_timeout};
    use std::io;
    use std::mem::take;
    use std::thread::JoinHandle;
    use std::time::Instant;

    /// The states of a worker.
    #[derive(Default)]
    enum Life {
        #[default]
        Off,
        Runs(JoinHandle<()>),
        /// Asked to end.
        Ends(JoinHandle<()>),
        /// The thread has nothing left to do but to return.
        Over(JoinHandle<()>),
    }

    /// See the module.
    pub(crate) struct Worker {
        name: &'static str,
        duty: Duty,
        /// Whether `life` is Ends, for the thread to read without the lock.
        ends: AtomicBool,
        /// Whether work that is planned for later is to be done now.
        hurries: AtomicBool,
        /// Not held while a thread is joined: what ends with a thread may run foreign code.
        life: Mutex<Life>,
    }

    impl Worker {
        pub(crate) const fn new(name: &'static str) -> Worker {
            Worker {
                name,
                duty: Duty::new(),
                ends: AtomicBool::new(false),
                hurries: AtomicBool::new(false),
                life: Mutex::new(Life::Off),
            }
        }

        pub(crate) fn name(&self) -> &'static str {
            self.name
        }

        /// Starts the thread, if it does not run; a thread that was asked to end stays. If the system has no thread,
        /// nothing has changed, and the next call tries again.
        pub(crate) fn start(&self, body: fn()) -> io::Result<()> {
            let mut life = lock(&self.life);
            loop {
                self.ends.store(false, Relaxed);
                match take(&mut *life) {
                    Life::Runs(handle) | Life::Ends(handle) => {
                        *life = Life::Runs(handle);
                        return Ok(());
                    }
                    Life::Over(handle) => {
                        drop(life);
                        join(handle);
                        life = lock(&self.life);
                    }
                    Life::Off => {
                        let handle = crate::sys::spawn(self.name, body)?;
                        self.duty.begin(handle.thread().clone());
                        *life = Life::Runs(handle);
                        return Ok(());
                    }
                }
            }
        }

        pub(crate) fn is_running(&self) -> bool {
            self.duty.has_thread()
        }

        /// To be called after something was handed over. False: there is no thread, and the work is the caller's, until
        /// he [`may leave`](Worker::may_leave).
        pub(crate) fn wake(&self) -> bool {
            self.duty.call()
        }

        /// Whether a thread that stands in is done. It is, if the worker has a thread again.
        pub(crate) fn may_leave(&self, has_nothing: impl FnOnce() -> bool) -> bool {
            let life = lock(&self.life);
            match *life {
                Life::Runs(_) | Life::Ends(_) => true,
                Life::Off | Life::Over(_) => self.duty.leave(has_nothing),
            }
        }

        /// The thread: sleeps until it is woken or the time has come.
        pub(crate) fn sleep(&self, until: Option<Instant>, has_nothing: impl FnOnce() -> bool) {
            if !self.duty.rest(has_nothing) {
                return;
            }
            match until {
                None => park(),
                Some(at) => park_timeout(at.saturating_duration_since(Instant::now())),
            }
            self.duty.wake_up();
        }

        /// The thread: whether it is to return.
        pub(crate) fn is_over(&self, has_nothing: impl FnOnce() -> bool) -> bool {
            if !self.ends.load(Relaxed) {
                return false;
            }
            let mut life = lock(&self.life);
            match take(&mut *life) {
                Life::Ends(handle) if self.duty.end(has_nothing) => {
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
                    drop(life);
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

    /// The thread has not panicked: all foreign code on a worker is called in `foreign`, the log's collector, too.
    fn join(handle: JoinHandle<()>) {
        let _ = handle.join();
    }
}
