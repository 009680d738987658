//! The handles of a reflector: its status, its end, its thread.

#![forbid(unsafe_code)]

use super::status::{ReflectorState, ReflectorStatus, StatusCell};
use crate::clock::Clock;
use crate::foreign::{Notify, wake};
use crate::sync::Lock;
use crate::watch::{Signal, Stopper};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use watchcore::{Code, Error, Result, Source};

/// The connections by which others stop a reflector, wake it, and read its status.
pub(super) struct Links {
    pub(super) stop: Arc<Signal>,
    pub(super) nudge: Arc<Nudge>,
    pub(super) status: StatusCell,
    pub(super) clock: Lock<Arc<dyn Clock>>,
    /// Notified when the reflector has ended.
    pub(super) ended: Notify,
}

impl Links {
    pub(super) fn now(&self) -> Instant {
        let clock = Arc::clone(&self.clock.lock());
        clock.now()
    }

    fn status(&self) -> ReflectorStatus {
        self.status.read(self.now())
    }
}

/// Wakes the reflector's task when the cache was closed, or when a reader needs a newer revision.
#[derive(Default)]
pub(super) struct Nudge(Lock<Option<Waker>>);

impl Nudge {
    /// Sets the task that is woken.
    pub(super) fn register(&self, context: &Context<'_>) {
        drop(self.0.replace(Some(context.waker().clone())));
    }
}

impl Source for Nudge {
    fn wake(&self) {
        wake(self.0.replace(None));
    }
}

/// A handle on a reflector for its status: cheap to clone, outlives it.
///
/// ```
/// use watchcore_toolkit::{ListerWatcher, Reflector, ReflectorHandle};
///
/// /// For a health check.
/// fn why_not_ready(handle: &ReflectorHandle) -> Option<String> {
///     let status = handle.status();
///     (!status.ready).then(|| status.to_string())
/// }
/// ```
#[derive(Clone)]
pub struct ReflectorHandle {
    pub(super) links: Arc<Links>,
    pub(super) stopper: Stopper,
}

impl ReflectorHandle {
    /// The reflector's state, and what keeps it from being ready.
    pub fn status(&self) -> ReflectorStatus {
        self.links.status()
    }

    /// Returns a handle that stops the reflector. The cache is closed when the reflector has ended.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }
}

impl fmt::Debug for ReflectorHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReflectorHandle").field(&self.status()).finish()
    }
}

/// A reflector on its own thread. Dropping it stops the reflector, without waiting.
///
/// ```
/// use std::time::Duration;
/// use watchcore_toolkit::ReflectorThread;
///
/// fn end(reflector: ReflectorThread) -> watchcore::Result<()> {
///     reflector.stop(Duration::from_secs(10)) // the thread has ended, and the cache is closed
/// }
/// ```
pub struct ReflectorThread {
    pub(super) handle: ReflectorHandle,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl ReflectorThread {
    /// See [`ReflectorHandle::status`].
    pub fn status(&self) -> ReflectorStatus {
        self.handle.status()
    }

    /// See [`ReflectorHandle::stopper`].
    pub fn stopper(&self) -> Stopper {
        self.handle.stopper()
    }

    /// Stops the reflector, and waits until its thread has ended. TIMEOUT if the source is still
    /// busy; the thread then ends by itself.
    pub fn stop(mut self, timeout: Duration) -> Result<()> {
        self.handle.stopper.stop();
        let links = &self.handle.links;
        let has_ended = || (links.status().state == ReflectorState::Ended).then_some(());
        if links.ended.wait_for(Instant::now().checked_add(timeout), has_ended).is_none() {
            return Err(Error::new(
                Code::Timeout,
                format!(
                    "stop a reflector: its source is still busy after {} ms. It ends when that answers.",
                    timeout.as_millis()
                ),
            ));
        }
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(_)) => Err(Error::new(Code::Panic, "stop a reflector: its thread has panicked; see the log")),
            _ => Ok(()),
        }
    }
}

impl Drop for ReflectorThread {
    fn drop(&mut self) {
        self.handle.stopper.stop();
    }
}

impl fmt::Debug for ReflectorThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReflectorThread").field(&self.status()).finish()
    }
}
