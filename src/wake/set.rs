//! Wake sets: many members behind one descriptor.

#![forbid(unsafe_code)]

use crate::error::{Code, Error, Result};
use crate::sync::{AcqRel, AtomicBool, Mutex, SeqCst, fence, lock};
use crate::sys::Signal;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The state of a wake set that members and the notifier share.
pub(crate) struct SetShared {
    pub(crate) signal: Signal,
    armed: AtomicBool,
    ready: Mutex<VecDeque<u64>>,
}

impl SetShared {
    /// Puts a tag on the ready list and raises the descriptor if the set is armed.
    pub(crate) fn list(&self, tag: u64) {
        lock(&self.ready).push_back(tag);
        // Partner: `armed.swap(true)`, fence, look in `WakeSet::arm`.
        if self.armed.swap(false, AcqRel) {
            self.signal.raise();
        }
    }
}

/// Many subscriptions and waiters behind one descriptor.
///
/// Members join under a tag of the user's. [`WakeSet::arm`] says whether something is ready;
/// otherwise the descriptor ([`WakeSet::fd`]) becomes readable once when something is.
/// [`WakeSet::take`] names what is ready. Send and Sync; no call blocks but [`WakeSet::wait`].
#[derive(Clone)]
pub struct WakeSet {
    pub(crate) shared: Arc<SetShared>,
}

impl WakeSet {
    /// An empty set with a descriptor of its own (an eventfd on Linux, a pipe elsewhere).
    pub fn new() -> Result<WakeSet> {
        let signal = Signal::new().map_err(|error| {
            Error::new(
                Code::ResourceExhausted,
                format!("a wake set needs a descriptor: {error}. Close others, or raise the limit of open files."),
            )
        })?;
        Ok(WakeSet { shared: Arc::new(SetShared { signal, armed: AtomicBool::new(false), ready: Mutex::default() }) })
    }

    /// Drains the descriptor and arms it. True: something is ready now, call [`WakeSet::take`].
    /// False: the descriptor becomes readable when something is.
    pub fn arm(&self) -> bool {
        self.shared.signal.drain();
        self.shared.armed.swap(true, AcqRel);
        fence(SeqCst);
        let ready = !lock(&self.shared.ready).is_empty();
        #[cfg(loom)]
        crate::sync::weak::late(crate::sync::weak::Site::DrainLate, || self.shared.signal.drain());
        if ready {
            self.shared.armed.swap(false, AcqRel);
        }
        ready
    }

    /// Writes the tags of what is ready into `tags` and returns how many; what has no room stays
    /// listed. A member's tag is listed once per arming of it.
    pub fn take(&self, tags: &mut [u64]) -> usize {
        let mut ready = lock(&self.shared.ready);
        let count = ready.len().min(tags.len());
        for (place, tag) in tags.iter_mut().zip(ready.drain(..count)) {
            *place = tag;
        }
        count
    }

    /// The descriptor: non-blocking, close-on-exec, owned by the set. Only poll it.
    pub fn fd(&self) -> i32 {
        self.shared.signal.fd()
    }

    /// Arms and blocks until something is ready. False: the time is up.
    pub fn wait(&self, timeout: Duration) -> bool {
        let until = Instant::now().checked_add(timeout);
        loop {
            if self.arm() {
                return true;
            }
            let left = match until {
                None => -1,
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    left.as_millis().clamp(1, i32::MAX as u128) as i32
                }
            };
            self.shared.signal.wait(left);
        }
    }
}

impl std::fmt::Debug for WakeSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WakeSet").field("fd", &self.fd()).finish()
    }
}

impl std::fmt::Debug for SetShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SetShared")
    }
}
