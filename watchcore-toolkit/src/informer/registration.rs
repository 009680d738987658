//! The program's handle on a handler: whether it is synced, its status, its removal.

#![forbid(unsafe_code)]

use super::calls::{Calls, CallsView};
use crate::foreign::guard;
use crate::objects::{WatchHandle, WatchStats};
use crate::sync::Lock;
use crate::watch::Stopper;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use watchcore::{Cache, Code, Error, Result};

/// A handler of an informer. Dropping it removes the handler, without waiting; after
/// [`Registration::detach`] the handler stays.
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, KeyValue};
/// use watchcore_toolkit::{HandlerFns, HandlerState, Informer};
///
/// let cache = Cache::builder("/").build()?;
/// let informer = Informer::<KeyValue>::new(&cache)?;
/// let registration = informer.add_handler(HandlerFns::new())?;
/// registration.wait_synced(Duration::from_secs(10))?;
/// assert!(registration.has_synced());
/// registration.remove_and_wait(Duration::from_secs(10))?;
/// // No callback runs from here on.
/// assert!(matches!(registration.status().state, HandlerState::Removed | HandlerState::Ended(_)));
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "dropping a registration removes its handler"]
pub struct Registration {
    shared: Arc<RegistrationShared>,
    attached: bool,
}

pub(super) struct RegistrationShared {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) calls: Calls,
    pub(super) stopper: Stopper,
    pub(super) watch: Arc<WatchHandle>,
    pub(super) cache: Cache,
    pub(super) handled: AtomicU64,
    pub(super) panics: AtomicU64,
    pub(super) owners: Lock<Owners>,
}

/// The owners of a handler. It is removed when both are gone.
pub(super) struct Owners {
    /// The [`Registration`] exists, and was not detached.
    pub(super) registration: bool,
    /// A clone of the informer, or a lister, exists.
    pub(super) informer: bool,
}

/// The name of a handler's calls, for messages.
pub(super) struct CallsOf<'a>(pub(super) &'a RegistrationShared);

impl fmt::Display for CallsOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a call of {}", self.0.label())
    }
}

/// The activity of a handler.
///
/// ```
/// use watchcore_toolkit::HandlerState;
///
/// assert_eq!(HandlerState::Waiting.to_string(), "waiting");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HandlerState {
    /// The handler waits for an event, or its next call is about to start.
    Waiting,
    /// A call is running.
    Handling {
        /// The key of the call's object; empty for calls without an object.
        key: Vec<u8>,
        /// How long the call has been running.
        since: Duration,
    },
    /// The handler was removed; a call that was running then may still run.
    Removed,
    /// The handler has ended, with the error, if there was one.
    Ended(Option<String>),
}

impl fmt::Display for HandlerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandlerState::Waiting => f.write_str("waiting"),
            HandlerState::Handling { key, since } => {
                write!(f, "handling {} since {} ms", String::from_utf8_lossy(key), since.as_millis())
            }
            HandlerState::Removed => f.write_str("removed"),
            HandlerState::Ended(None) => f.write_str("ended"),
            HandlerState::Ended(Some(error)) => write!(f, "ended: {error}"),
        }
    }
}

/// The status of a handler, for lists and metrics.
///
/// ```
/// use watchcore::{Cache, KeyValue};
/// use watchcore_toolkit::{HandlerFns, HandlerOptions, Informer};
///
/// let cache = Cache::builder("/").build()?;
/// let informer = Informer::<KeyValue>::new(&cache)?;
/// let _kept = informer.add_handler_with(HandlerFns::new(), HandlerOptions::new().name("endpoints"))?;
/// for status in informer.handlers() {
///     println!("{} is {}, {} behind", status.name, status.state, status.stats.lag.events);
/// }
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HandlerStatus {
    /// The handler's number in the informer, from 1.
    pub id: u64,
    /// The name from its options.
    pub name: String,
    /// The activity of the handler.
    pub state: HandlerState,
    /// Whether every object of its initial state was handled.
    pub synced: bool,
    /// Events that were handled.
    pub handled: u64,
    /// Calls that panicked.
    pub panics: u64,
    /// Statistics of its watch: events, losses, lag.
    pub stats: WatchStats,
}

impl RegistrationShared {
    pub(super) fn count_handled(&self, is_event: bool) {
        // Only the handler's runner writes this counter.
        self.handled.store(self.handled.load(Ordering::Relaxed) + u64::from(is_event), Ordering::Relaxed);
    }

    /// Calls the handler's code. A panic is logged and counted; the handler is called again with the next event.
    pub(super) fn guard(&self, call: impl FnOnce()) {
        if guard(CallsOf(self), call).is_err() {
            self.panics.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Handles the end of the informer, after which nothing could end a detached handler.
    pub(super) fn informer_dropped(&self) {
        let is_detached = {
            let mut owners = self.owners.lock();
            owners.informer = false;
            !owners.registration
        };
        if is_detached {
            self.remove();
        }
    }

    pub(super) fn remove(&self) {
        self.calls.remove();
        self.stopper.stop();
    }

    fn label(&self) -> String {
        if self.name.is_empty() {
            format!("handler {}", self.id)
        } else {
            format!("handler {} ({})", self.id, self.name)
        }
    }

    pub(super) fn status(&self) -> HandlerStatus {
        let CallsView { removed, synced, ended, call } = self.calls.view();
        let state = match (ended, call) {
            (Some(reason), _) => HandlerState::Ended(reason),
            (None, Some(call)) => HandlerState::Handling {
                key: call.object.map_or_else(Vec::new, |object| object.key().to_vec()),
                since: call.since.elapsed(),
            },
            (None, None) if removed => HandlerState::Removed,
            (None, None) => HandlerState::Waiting,
        };
        HandlerStatus {
            id: self.id,
            name: self.name.clone(),
            state,
            synced,
            handled: self.handled.load(Ordering::Relaxed),
            panics: self.panics.load(Ordering::Relaxed),
            stats: self.watch.stats(),
        }
    }

    pub(super) fn wait_synced(&self, timeout: Duration) -> Result<()> {
        self.calls.wait_synced(timeout);
        self.synced_or_why(timeout)
    }

    /// Returns Ok if the handler is synced, otherwise the reason.
    fn synced_or_why(&self, timeout: Duration) -> Result<()> {
        let view = self.calls.view();
        if view.synced {
            return Ok(());
        }
        let status = self.status();
        let asked = format!("wait until {} is synced", self.label());
        match status.state {
            // A removed handler may still be in its last call.
            _ if view.removed => Err(Error::new(Code::Closed, format!("{asked}: it was removed."))),
            HandlerState::Ended(reason) => {
                let reason = reason.unwrap_or_else(|| "its cache or its informer was closed".into());
                Err(Error::new(Code::Closed, format!("{asked}: it has ended: {reason}.")))
            }
            state if self.cache.is_ready() => Err(Error::new(
                Code::Timeout,
                format!(
                    "{asked}: not within {} ms. It has handled {} objects and is {state}. Ask again, or look at its callback.",
                    timeout.as_millis(),
                    status.handled
                ),
            )),
            _ => {
                let why = self.cache.status().last_error;
                let why = why.map_or_else(String::new, |error| format!(" Last error of its source: {error}"));
                Err(Error::new(
                    Code::Timeout,
                    format!(
                        "{asked}: the cache has no listing yet, after {} ms.{why} Ask again, or look at its status.",
                        timeout.as_millis()
                    ),
                ))
            }
        }
    }
}

impl Registration {
    pub(super) fn new(shared: Arc<RegistrationShared>) -> Registration {
        Registration { shared, attached: true }
    }

    /// The handler's number in the informer, from 1.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// Whether every object of its initial state was handled, and `synced` has returned.
    pub fn has_synced(&self) -> bool {
        self.shared.calls.is_synced()
    }

    /// Waits until the handler is synced. TIMEOUT with the reason; CLOSED if it was removed, or has
    /// ended. Do not call it inside the handler's own callback, for which it would wait.
    pub fn wait_synced(&self, timeout: Duration) -> Result<()> {
        self.shared.wait_synced(timeout)
    }

    /// [`Registration::wait_synced`] as a future, without a timeout. Cancel safe.
    pub async fn synced(&self) -> Result<()> {
        self.shared.calls.synced_async().await;
        self.shared.synced_or_why(Duration::MAX)
    }

    /// The status of the handler.
    pub fn status(&self) -> HandlerStatus {
        self.shared.status()
    }

    /// Removes the handler: no callback starts after this. A running callback may continue.
    /// Idempotent, never waits; it may be called inside any callback.
    pub fn remove(&self) {
        self.shared.remove();
    }

    /// Removes the handler and waits: after Ok no callback runs. TIMEOUT if a callback did not return in time; the
    /// handler is removed nevertheless. BUSY inside the handler's own callback, which cannot return before this does:
    /// nothing is removed; call [`Registration::remove`] there.
    pub fn remove_and_wait(&self, timeout: Duration) -> Result<()> {
        self.remove_from_outside()?;
        if self.shared.calls.wait_quiet(timeout) {
            return Ok(());
        }
        Err(Error::new(
            Code::Timeout,
            format!(
                "remove {} and wait: its callback did not return within {} ms; it is {}. It is removed; wait again.",
                self.shared.label(),
                timeout.as_millis(),
                self.status().state
            ),
        ))
    }

    /// [`Registration::remove_and_wait`] as a future, without a timeout. Cancel safe: the handler
    /// is removed at the first poll.
    pub async fn removed_and_quiet(&self) -> Result<()> {
        self.remove_from_outside()?;
        self.shared.calls.quiet_async().await;
        Ok(())
    }

    fn remove_from_outside(&self) -> Result<()> {
        if self.shared.calls.is_own_call() {
            return Err(Error::new(
                Code::Busy,
                format!(
                    "remove {} and wait: this is its own callback, which cannot end before the wait does. Nothing is removed; \
                     remove it without waiting, or on another thread.",
                    self.shared.label()
                ),
            ));
        }
        self.shared.remove();
        Ok(())
    }

    /// Keeps the handler running until the informer is stopped, its last clone and its last lister are dropped, or the
    /// cache is closed; [`Informer::remove_handler`](crate::Informer::remove_handler) ends it alone.
    pub fn detach(mut self) {
        let has_informer = {
            let mut owners = self.shared.owners.lock();
            owners.registration = false;
            owners.informer
        };
        self.attached = !has_informer;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.attached {
            self.shared.remove();
        }
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("status", &self.status()).finish()
    }
}
