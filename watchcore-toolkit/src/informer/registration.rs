//! A handler as others have it: whether it is synced, how it stands, its removal.

#![forbid(unsafe_code)]

use super::turn::{Turn, TurnView};
use crate::foreign::guard;
use crate::objects::{WatchFigures, WatchHandle};
use crate::sync::Lock;
use crate::watch::Stopper;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use watchcore::{Cache, Code, Error, Result};

/// A handler of an informer. Dropping it removes the handler, without waiting; [`Registration::detach`] leaves it at work.
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
    pub(super) turn: Turn,
    pub(super) stopper: Stopper,
    pub(super) watch: Arc<WatchHandle>,
    pub(super) cache: Cache,
    pub(super) handled: AtomicU64,
    pub(super) panics: AtomicU64,
    pub(super) owners: Lock<Owners>,
}

/// Who keeps a handler at work. It is removed when neither does.
pub(super) struct Owners {
    /// The [`Registration`] exists, and was not detached.
    pub(super) registration: bool,
    /// A clone of the informer, or a lister, exists.
    pub(super) informer: bool,
}

/// A handler's calls, for messages.
pub(super) struct CallsOf<'a>(pub(super) &'a RegistrationShared);

impl fmt::Display for CallsOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a call of {}", self.0.label())
    }
}

/// What a handler does now.
///
/// ```
/// use watchcore_toolkit::HandlerState;
///
/// assert_eq!(HandlerState::Waiting.to_string(), "waiting");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HandlerState {
    /// It waits for an event, or its next call is about to begin.
    Waiting,
    /// A call is under way.
    Handling {
        /// The key that it is about; empty for calls that are about none.
        key: Vec<u8>,
        /// For how long.
        since: Duration,
    },
    /// It was removed; a call that was under way may still be.
    Removed,
    /// It is over: the error, if there was one.
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

/// How a handler stands: for lists and figures.
///
/// ```
/// use watchcore::{Cache, KeyValue};
/// use watchcore_toolkit::{HandlerFns, HandlerOptions, Informer};
///
/// let cache = Cache::builder("/").build()?;
/// let informer = Informer::<KeyValue>::new(&cache)?;
/// let _kept = informer.add_handler_with(HandlerFns::new(), HandlerOptions::new().name("endpoints"))?;
/// for status in informer.handlers() {
///     println!("{} is {}, {} behind", status.name, status.state, status.figures.lag.events);
/// }
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HandlerStatus {
    /// Its number in the informer, from 1.
    pub id: u64,
    /// What it was called when it was added.
    pub name: String,
    /// What it does now.
    pub state: HandlerState,
    /// Whether every object of its initial state was handled.
    pub synced: bool,
    /// Events that it has handled.
    pub handled: u64,
    /// Calls that panicked.
    pub panics: u64,
    /// Its watch: events, losses, lag.
    pub figures: WatchFigures,
}

impl RegistrationShared {
    pub(super) fn count_handled(&self, is_event: bool) {
        // Of one runner: nobody else adds.
        self.handled.store(self.handled.load(Ordering::Relaxed) + u64::from(is_event), Ordering::Relaxed);
    }

    /// Calls code of the handler. A panic is logged and counted; the handler is called again with the next event.
    pub(super) fn guard(&self, call: impl FnOnce()) {
        if guard(CallsOf(self), call).is_err() {
            self.panics.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The informer is gone: nobody could end a detached handler any more.
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
        self.turn.remove();
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
        let TurnView { removed, synced, ended, call } = self.turn.view();
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
            figures: self.watch.figures(),
        }
    }

    pub(super) fn wait_synced(&self, timeout: Duration) -> Result<()> {
        self.turn.wait_synced(timeout);
        self.synced_or_why(timeout)
    }

    /// Why it is not synced.
    fn synced_or_why(&self, timeout: Duration) -> Result<()> {
        let view = self.turn.view();
        if view.synced {
            return Ok(());
        }
        let status = self.status();
        let asked = format!("wait until {} is synced", self.label());
        match status.state {
            // Also while its last call is still under way.
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

    /// Its number in the informer, from 1.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// Whether every object of its initial state was handled, and `synced` has returned.
    pub fn has_synced(&self) -> bool {
        self.shared.turn.is_synced()
    }

    /// Waits until it is synced. TIMEOUT says what keeps it; CLOSED: it was removed, or has ended. Not from inside the
    /// handler's own callback, which it would wait for.
    pub fn wait_synced(&self, timeout: Duration) -> Result<()> {
        self.shared.wait_synced(timeout)
    }

    /// The same as a future, without a limit of its own. Cancel safe.
    pub async fn synced(&self) -> Result<()> {
        self.shared.turn.synced_async().await;
        self.shared.synced_or_why(Duration::MAX)
    }

    /// How it stands.
    pub fn status(&self) -> HandlerStatus {
        self.shared.status()
    }

    /// Removes the handler: no callback begins after this. One that runs may still run. Idempotent, never waits, may be
    /// called from inside any callback.
    pub fn remove(&self) {
        self.shared.remove();
    }

    /// Removes the handler and waits: once it has returned Ok, no callback runs. TIMEOUT where one did not return in time; it
    /// is removed all the same. BUSY from inside the handler's own callback, which cannot end before this returns: nothing is
    /// removed, and [`Registration::remove`] is what to call there.
    pub fn remove_and_wait(&self, timeout: Duration) -> Result<()> {
        self.remove_from_outside()?;
        if self.shared.turn.wait_quiet(timeout) {
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

    /// The same as a future, without a limit of its own. Cancel safe: it is removed at the first poll.
    pub async fn removed_and_quiet(&self) -> Result<()> {
        self.remove_from_outside()?;
        self.shared.turn.quiet_async().await;
        Ok(())
    }

    fn remove_from_outside(&self) -> Result<()> {
        if self.shared.turn.is_own_call() {
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

    /// Leaves the handler at work until the informer is stopped, or its last clone and its last lister are dropped, or the cache
    /// is closed; [`Informer::remove_handler`](crate::Informer::remove_handler) ends it alone.
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
