//! The events of a watch, with positions, and errors as values.

#![forbid(unsafe_code)]

use crate::foreign::Panicked;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;
use watchcore::{Code, Error, Position};

/// One event of a watch.
///
/// ```
/// use watchcore_toolkit::{Payload, WatchEvent};
///
/// let event = WatchEvent::modified(Some("old"), "new").at(7);
/// assert_eq!(event.name(), "MODIFIED");
/// assert_eq!(event.object(), Some(&"new"));
/// assert_eq!(event.position.revision, 7);
/// match event.payload {
///     Payload::Modified { old, new } => assert_eq!((old, new), (Some("old"), "new")),
///     _ => unreachable!(),
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WatchEvent<O> {
    /// The position after this event, at which a watch resumes without repeating or missing one.
    /// Revision 0 means unknown.
    pub position: Position,
    /// The number of revisions directly before this event that this consumer did not see one by one; normally 0.
    pub lost: u64,
    /// Why the event is delivered.
    pub origin: Origin,
    /// The kind of the event, and its objects.
    pub payload: Payload<O>,
}

/// The kind of an event, and its objects.
///
/// ```
/// use watchcore_toolkit::{Payload, WatchEvent};
///
/// let names = ["added", "deleted"].map(|what| match WatchEvent::added(what).payload {
///     Payload::Added(new) => new,
///     _ => unreachable!(),
/// });
/// assert_eq!(names, ["added", "deleted"]);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Payload<O> {
    /// An object was created, or entered the filter.
    Added(O),
    /// An object changed.
    Modified {
        /// The value that this consumer received before; `None` if that is unknown.
        old: Option<O>,
        /// The present value.
        new: O,
    },
    /// An object was deleted, or left the filter: its last known value.
    Deleted(O),
    /// An object was deleted, and its last value could not be decoded: its key. This consumer may
    /// have received the object before. It corresponds to client-go's `DeletedFinalStateUnknown`.
    DeletedUnknown(Vec<u8>),
    /// The initial state is complete. Comes once, in a watch that starts with a state.
    Synced,
    /// Everything up to the event's position was delivered.
    Bookmark,
    /// The reason why the watch ended. No event follows.
    Error(Status),
}

/// Why an event is delivered.
///
/// ```
/// use watchcore_toolkit::{Origin, WatchEvent};
///
/// assert_eq!(WatchEvent::added("a").origin, Origin::Change, "if nothing else is said");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Origin {
    /// The change happened at the event's position.
    #[default]
    Change,
    /// The object is part of the initial state.
    InitialState,
    /// The event is part of the difference between the consumer's state and the present one, after
    /// the window had overtaken the consumer, or the source had lost its history.
    Difference,
    /// No object changed: the consumer requested its objects again, periodically.
    Resync,
}

impl<O> WatchEvent<O> {
    fn new(payload: Payload<O>) -> WatchEvent<O> {
        WatchEvent { position: Position::default(), lost: 0, origin: Origin::Change, payload }
    }

    /// An Added event.
    pub fn added(object: O) -> WatchEvent<O> {
        WatchEvent::new(Payload::Added(object))
    }

    /// A Modified event.
    pub fn modified(old: Option<O>, new: O) -> WatchEvent<O> {
        WatchEvent::new(Payload::Modified { old, new })
    }

    /// A Deleted event with the last known value.
    pub fn deleted(last: O) -> WatchEvent<O> {
        WatchEvent::new(Payload::Deleted(last))
    }

    /// A Deleted event without a known value.
    pub fn deleted_unknown(key: impl Into<Vec<u8>>) -> WatchEvent<O> {
        WatchEvent::new(Payload::DeletedUnknown(key.into()))
    }

    /// A Synced event.
    pub fn synced() -> WatchEvent<O> {
        WatchEvent::new(Payload::Synced)
    }

    /// A Bookmark: everything up to the position was delivered.
    pub fn bookmark(position: impl Into<Position>) -> WatchEvent<O> {
        WatchEvent::new(Payload::Bookmark).at(position)
    }

    /// An Error event, which ends a watch.
    pub fn error(status: impl Into<Status>) -> WatchEvent<O> {
        WatchEvent::new(Payload::Error(status.into()))
    }

    /// The event at a position.
    pub fn at(self, position: impl Into<Position>) -> WatchEvent<O> {
        WatchEvent { position: position.into(), ..self }
    }

    /// The event with a number of lost revisions before it.
    pub fn with_lost(self, lost: u64) -> WatchEvent<O> {
        WatchEvent { lost, ..self }
    }

    /// The event with an origin.
    pub fn with_origin(self, origin: Origin) -> WatchEvent<O> {
        WatchEvent { origin, ..self }
    }

    /// The object: the new one, or the last known one of a deletion.
    pub fn object(&self) -> Option<&O> {
        match &self.payload {
            Payload::Added(object) | Payload::Modified { new: object, .. } | Payload::Deleted(object) => Some(object),
            Payload::DeletedUnknown(_) | Payload::Synced | Payload::Bookmark | Payload::Error(_) => None,
        }
    }

    /// The status of an Error event.
    pub fn status(&self) -> Option<&Status> {
        match &self.payload {
            Payload::Error(status) => Some(status),
            _ => None,
        }
    }

    /// The type's name, which every language prints, such as `ADDED`.
    pub fn name(&self) -> &'static str {
        match &self.payload {
            Payload::Added(_) => "ADDED",
            Payload::Modified { .. } => "MODIFIED",
            Payload::Deleted(_) | Payload::DeletedUnknown(_) => "DELETED",
            Payload::Synced => "SYNCED",
            Payload::Bookmark => "BOOKMARK",
            Payload::Error(_) => "ERROR",
        }
    }

    /// The event with converted objects.
    pub fn map<P>(self, mut change: impl FnMut(O) -> P) -> WatchEvent<P> {
        let Ok(event) = self.try_map(|object| Ok::<P, Infallible>(change(object)));
        event
    }

    /// [`WatchEvent::map`] by a function that may fail.
    pub(crate) fn try_map<P, E>(self, mut change: impl FnMut(O) -> Result<P, E>) -> Result<WatchEvent<P>, E> {
        let payload = match self.payload {
            Payload::Added(object) => Payload::Added(change(object)?),
            Payload::Modified { old, new } => {
                Payload::Modified { old: old.map(&mut change).transpose()?, new: change(new)? }
            }
            Payload::Deleted(object) => Payload::Deleted(change(object)?),
            Payload::DeletedUnknown(key) => Payload::DeletedUnknown(key),
            Payload::Synced => Payload::Synced,
            Payload::Bookmark => Payload::Bookmark,
            Payload::Error(status) => Payload::Error(status),
        };
        Ok(WatchEvent { position: self.position, lost: self.lost, origin: self.origin, payload })
    }
}

/// An error of a watch, with an HTTP status code.
///
/// Sources other than caches (a server, a test) have only such codes; an error of a cache is kept whole.
///
/// ```
/// use std::time::Duration;
/// use watchcore_toolkit::Status;
///
/// let gone = Status::new(410, "revision 5 was compacted");
/// assert!(gone.is_gone() && !gone.is_retryable());
/// let busy = Status::new(429, "too many requests").with_retry_after(Duration::from_secs(3));
/// assert!(busy.is_retryable());
/// assert_eq!(busy.to_string(), "429: too many requests");
/// ```
#[derive(Clone, Debug)]
pub struct Status {
    code: u16,
    message: String,
    retry_after: Option<Duration>,
    error: Option<Error>,
}

impl Status {
    /// A status with an HTTP code and a message.
    pub fn new(code: u16, message: impl Into<String>) -> Status {
        Status { code, message: message.into(), retry_after: None, error: None }
    }

    /// The status with the minimum delay before the next attempt.
    pub fn with_retry_after(self, after: Duration) -> Status {
        Status { retry_after: Some(after), ..self }
    }

    /// The HTTP status code.
    pub fn code(&self) -> u16 {
        self.code
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The minimum delay before the next attempt, if the source gave one.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The cache's error with its numbers, if the status comes from a cache.
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// 410: the requested revision is no longer available. List, or start from the present state.
    pub fn is_gone(&self) -> bool {
        self.code == 410
    }

    /// Whether the same request may succeed later without any other step.
    pub fn is_retryable(&self) -> bool {
        match &self.error {
            Some(error) => error.is_retryable(),
            None => self.code == 429 || self.code >= 500,
        }
    }
}

impl PartialEq for Status {
    /// Compares code, message and delay; the cache's error adds nothing to these.
    fn eq(&self, other: &Status) -> bool {
        (self.code, &self.message, self.retry_after) == (other.code, &other.message, other.retry_after)
    }
}

impl Eq for Status {}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl StdError for Status {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.as_ref().map(|error| error as _)
    }
}

impl From<Panicked> for Status {
    fn from(panicked: Panicked) -> Status {
        Status::new(500, panicked.to_string())
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        Status {
            code: error.code().http_status(),
            message: error.message().to_owned(),
            retry_after: error.code().retry_after(),
            error: Some(error),
        }
    }
}

impl From<Code> for Status {
    fn from(code: Code) -> Status {
        Status { retry_after: code.retry_after(), ..Status::new(code.http_status(), code.text()) }
    }
}
