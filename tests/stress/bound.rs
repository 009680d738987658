//! Every wait has a bound that fails with a message.

use std::sync::mpsc;
use std::time::{Duration, Instant};

pub const BOUND: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + BOUND;
    while !holds() {
        assert!(Instant::now() < end, "not within {BOUND:?}: {what}");
        std::thread::yield_now();
    }
}

/// A thread whose end is waited for with a bound.
pub struct Task {
    name: String,
    thread: std::thread::JoinHandle<()>,
    ended: mpsc::Receiver<()>,
}

impl Task {
    pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Task {
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            // Dropped at the end, also by a panic.
            let _end = end;
            run();
        });
        Task { name: name.into(), thread: thread.unwrap(), ended }
    }

    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    pub fn join(self) {
        if self.ended.recv_timeout(2 * BOUND) == Err(mpsc::RecvTimeoutError::Timeout) {
            panic!("{} hangs", self.name);
        }
        if let Err(panic) = self.thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}
