//! What a watch delivers: events with a position, and errors as values.

#![forbid(unsafe_code)]

use crate::foreign::Panicked;
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
    /// Where a watch resumes behind this event, without repeating or missing one. Revision 0 is "not known".
    pub position: Position,
    /// How many revisions this consumer did not see one by one directly before this event. 0 is the rule.
    pub lost: u64,
    /// Why it is delivered.
    pub origin: Origin,
    /// What happened.
    pub payload: Payload<O>,
}

/// What an event says.
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
    /// An object appeared, or came into the filter.
    Added(O),
    /// An object changed.
    Modified {
        /// What this consumer was given before; `None` where that is not known.
        old: Option<O>,
        /// What it is now.
        new: O,
    },
    /// An object went, or left the filter: its last known value.
    Deleted(O),
    /// An object went, and no value of it is known, because its last one could not be decoded: its key. This consumer may have
    /// been given the object before. It is client-go's `DeletedFinalStateUnknown`.
    DeletedUnknown(Vec<u8>),
    /// The initial state is complete. Comes once, in a watch that begins with a state.
    Synced,
    /// Everything up to the event's position was delivered.
    Bookmark,
    /// What ended the watch. Nothing follows.
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
    /// It happened, at the event's position.
    #[default]
    Change,
    /// It is part of the initial state.
    InitialState,
    /// It is part of a difference between what the consumer had and what is there: after it had been overtaken, or
    /// after the source lost its history.
    Difference,
    /// It did not happen: the consumer asked for its state again, every so often.
    Resync,
}

impl<O> WatchEvent<O> {
    fn new(payload: Payload<O>) -> WatchEvent<O> {
        WatchEvent { position: Position::default(), lost: 0, origin: Origin::Change, payload }
    }

    /// An object appeared.
    pub fn added(object: O) -> WatchEvent<O> {
        WatchEvent::new(Payload::Added(object))
    }

    /// An object changed.
    pub fn modified(old: Option<O>, new: O) -> WatchEvent<O> {
        WatchEvent::new(Payload::Modified { old, new })
    }

    /// An object went; its last known value.
    pub fn deleted(last: O) -> WatchEvent<O> {
        WatchEvent::new(Payload::Deleted(last))
    }

    /// An object went of which no value is known.
    pub fn deleted_unknown(key: impl Into<Vec<u8>>) -> WatchEvent<O> {
        WatchEvent::new(Payload::DeletedUnknown(key.into()))
    }

    /// The initial state is complete.
    pub fn synced() -> WatchEvent<O> {
        WatchEvent::new(Payload::Synced)
    }

    /// Everything up to the position was delivered.
    pub fn bookmark(position: impl Into<Position>) -> WatchEvent<O> {
        WatchEvent::new(Payload::Bookmark).at(position)
    }

    /// What ends a watch.
    pub fn error(status: impl Into<Status>) -> WatchEvent<O> {
        WatchEvent::new(Payload::Error(status.into()))
    }

    /// The same at a position.
    pub fn at(self, position: impl Into<Position>) -> WatchEvent<O> {
        WatchEvent { position: position.into(), ..self }
    }

    /// The same with a number of lost revisions before it.
    pub fn with_lost(self, lost: u64) -> WatchEvent<O> {
        WatchEvent { lost, ..self }
    }

    /// The same with an origin.
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

    /// What ended the watch, if this is it.
    pub fn status(&self) -> Option<&Status> {
        match &self.payload {
            Payload::Error(status) => Some(status),
            _ => None,
        }
    }

    /// The name of its type that every language prints, such as `ADDED`.
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

    /// The same event of other objects.
    pub fn map<P>(self, mut change: impl FnMut(O) -> P) -> WatchEvent<P> {
        let payload = match self.payload {
            Payload::Added(object) => Payload::Added(change(object)),
            Payload::Modified { old, new } => Payload::Modified { old: old.map(&mut change), new: change(new) },
            Payload::Deleted(object) => Payload::Deleted(change(object)),
            Payload::DeletedUnknown(key) => Payload::DeletedUnknown(key),
            Payload::Synced => Payload::Synced,
            Payload::Bookmark => Payload::Bookmark,
            Payload::Error(status) => Payload::Error(status),
        };
        WatchEvent { position: self.position, lost: self.lost, origin: self.origin, payload }
    }
}

/// What went wrong with a watch, by the number that HTTP has for it.
///
/// Sources that are no cache (a server, a test) have such numbers only; of an error of the cache the whole is kept.
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
    /// A status with HTTP's number and a sentence.
    pub fn new(code: u16, message: impl Into<String>) -> Status {
        Status { code, message: message.into(), retry_after: None, error: None }
    }

    /// The same, not to be tried again before this has passed.
    pub fn with_retry_after(self, after: Duration) -> Status {
        Status { retry_after: Some(after), ..self }
    }

    /// HTTP's number.
    pub fn code(&self) -> u16 {
        self.code
    }

    /// The sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// How long not to try again, if the source said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The cache's error with its numbers, where a cache gave it.
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// 410: the revision that was asked for is not there any more. List, or begin anew.
    pub fn is_gone(&self) -> bool {
        self.code == 410
    }

    /// 401 or 403: the same request fails again until somebody grants it.
    pub fn is_refused(&self) -> bool {
        matches!(self.code, 401 | 403)
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
    /// By number, sentence and wait; the cache's error says the same again.
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
