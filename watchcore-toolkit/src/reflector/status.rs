//! The status of a reflector.

#![forbid(unsafe_code)]

use crate::event::Status;
use crate::sync::{Lock, LockGuard};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The activity of a reflector.
///
/// ```
/// use watchcore_toolkit::ReflectorState;
///
/// assert_eq!(ReflectorState::Listing.to_string(), "lists");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum ReflectorState {
    /// The reflector has not started: it is not polled yet, or its thread has not started.
    #[default]
    New,
    /// The reflector is listing.
    Listing,
    /// The reflector is reading the initial state from a watch, and waits for the end mark.
    ReadingState,
    /// The reflector is opening a watch.
    Opening,
    /// The reflector is following a watch.
    Watching,
    /// The reflector waits before the next attempt, after an error.
    Waiting,
    /// The reflector has ended: it was stopped, or the cache was closed.
    Ended,
}

impl fmt::Display for ReflectorState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReflectorState::New => "has not begun",
            ReflectorState::Listing => "lists",
            ReflectorState::ReadingState => "waits for the mark that ends the initial state",
            ReflectorState::Opening => "opens a watch",
            ReflectorState::Watching => "watches",
            ReflectorState::Waiting => "waits before the next try",
            ReflectorState::Ended => "has ended",
        })
    }
}

/// The status of a reflector. Its text says what keeps the reflector from being ready.
///
/// ```
/// use watchcore_toolkit::ReflectorStatus;
///
/// let status = ReflectorStatus::default();
/// assert_eq!(status.to_string(), "not ready: has not begun (0 lists, 0 watches)");
/// ```
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct ReflectorStatus {
    /// The activity of the reflector.
    pub state: ReflectorState,
    /// How long it has been doing that.
    pub since: Duration,
    /// Whether the cache has its first state, after which reads succeed.
    pub ready: bool,
    /// The newest revision that has arrived. A watch resumes there, or inside it if the revision is
    /// not known to be whole.
    pub revision: u64,
    /// Entries of the state that is being read, which are not in the cache yet.
    pub pending: usize,
    /// Lists that were started.
    pub lists: u64,
    /// Watches that were requested.
    pub watches: u64,
    /// States that replaced an earlier one.
    pub resyncs: u64,
    /// Events and entries that were skipped because their keys are outside of the cache's prefix.
    pub outside: u64,
    /// The last error of the source, or of the cache that refused the source's data.
    pub last_error: Option<Status>,
}

impl fmt::Display for ReflectorStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.ready { "ready: " } else { "not ready: " })?;
        write!(f, "{}", self.state)?;
        if !self.since.is_zero() {
            write!(f, " for {} s", self.since.as_secs())?;
        }
        write!(f, " ({} lists, {} watches", self.lists, self.watches)?;
        if self.pending > 0 {
            write!(f, ", {} entries came", self.pending)?;
        }
        f.write_str(")")?;
        match &self.last_error {
            Some(error) => write!(f, "; its last error was {error}"),
            None => Ok(()),
        }
    }
}

/// The status that the reflector writes and others read.
#[derive(Clone)]
pub(super) struct StatusCell(Arc<Lock<(ReflectorStatus, Option<Instant>)>>);

impl StatusCell {
    pub(super) fn new() -> StatusCell {
        StatusCell(Arc::new(Lock::new((ReflectorStatus::default(), None))))
    }

    fn lock(&self) -> LockGuard<'_, (ReflectorStatus, Option<Instant>)> {
        self.0.lock()
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut ReflectorStatus)) {
        change(&mut self.lock().0);
    }

    pub(super) fn enter(&self, state: ReflectorState, now: Instant) {
        let mut cell = self.lock();
        if cell.0.state != state {
            cell.0.state = state;
            cell.1 = Some(now);
        }
    }

    pub(super) fn read(&self, now: Instant) -> ReflectorStatus {
        let cell = self.lock();
        let since = cell.1.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        ReflectorStatus { since, ..cell.0.clone() }
    }
}
