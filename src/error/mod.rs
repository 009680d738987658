//! Errors: one struct, numbered codes, the numbers as fields.
//!
//! Every message says what was asked, what holds, and what to do next.

mod quote;

pub(crate) use quote::{DebugBytes, Length, boundary, printable, show};

use crate::position::Position;
use quote::Around;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The result of every fallible call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! codes {
    ($($name:ident = $number:literal, $upper:literal, $http:literal $reason:literal, exit $exit:literal, $retry:literal, $text:literal;)*) => {
        /// The class of an error, as a number that never changes (it is part of the C ABI).
        ///
        /// ```
        /// use watchcore::{Cache, Code, Read};
        ///
        /// let cache = Cache::builder("/").expect_load(true).build()?;
        /// let error = cache.get("/a", Read::Any).unwrap_err();
        /// let retry = match error.code() {
        ///     Code::Compacted | Code::Lagged => false, // list again
        ///     code => code.is_retryable(),
        /// };
        /// assert!(retry, "the listing may come yet");
        /// assert_eq!((error.code().to_string(), error.code().http_status()), ("NOT_READY".into(), 503));
        /// # Ok::<(), watchcore::Error>(())
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(i32)]
        #[non_exhaustive]
        pub enum Code {
            $(#[doc = $text] $name = $number,)*
        }

        impl Code {
            /// Every code, in the order of the numbers.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// The name in capitals, as C and the command line print it: `COMPACTED`.
            pub const fn name(self) -> &'static str {
                match self { $(Code::$name => $upper,)* }
            }

            /// A sentence about the code.
            pub const fn text(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }

            /// The HTTP status that an API server would answer.
            pub const fn http_status(self) -> u16 {
                match self { $(Code::$name => $http,)* }
            }

            /// The reason that Kubernetes gives with that status (`metav1.StatusReason`): `Expired`. Empty where it has
            /// none, which means there that the reason is not known.
            pub const fn reason(self) -> &'static str {
                match self { $(Code::$name => $reason,)* }
            }

            /// The exit code of the command line.
            pub const fn exit_code(self) -> u8 {
                match self { $(Code::$name => $exit,)* }
            }

            /// Whether the same call may succeed later without any other step; see [`Code::retry_after`].
            pub const fn is_retryable(self) -> bool {
                match self { $(Code::$name => $retry,)* }
            }

            /// The code with this number, if there is one.
            pub fn from_i32(number: i32) -> Option<Code> {
                match number { $($number => Some(Code::$name),)* _ => None }
            }
        }
    };
}

codes! {
    Ok = 0, "OK", 200 "", exit 0, false, "success";
    InvalidArgument = 1, "INVALID_ARGUMENT", 400 "BadRequest", exit 2, false, "an argument is not acceptable";
    NotFound = 2, "NOT_FOUND", 404 "NotFound", exit 3, false, "reserved: an absent key is no error";
    NotReady = 3, "NOT_READY", 503 "ServiceUnavailable", exit 1, true, "there is no listing yet";
    Timeout = 4, "TIMEOUT", 504 "Timeout", exit 4, true, "the deadline passed";
    Closed = 5, "CLOSED", 503 "ServiceUnavailable", exit 1, false, "the cache, the subscription or the feeder was closed";
    Busy = 6, "BUSY", 409 "Conflict", exit 1, true, "a handle for one consumer is in use, or a writer lives already";
    Unsupported = 7, "UNSUPPORTED", 501 "", exit 2, false, "this build or version does not support it";
    OutOfOrder = 8, "OUT_OF_ORDER", 409 "Conflict", exit 1, false, "a revision does not rise";
    Compacted = 10, "COMPACTED", 410 "Expired", exit 5, false, "the revision is older than the window";
    Lagged = 11, "LAGGED", 410 "Expired", exit 5, false, "events were lost to this reader";
    FutureRevision = 12, "FUTURE_REVISION", 504 "Timeout", exit 4, true, "the revision did not come in time";
    Resynced = 13, "RESYNCED", 410 "Expired", exit 5, false, "the history was replaced: the reader, or the wait in the former one, has ended";
    Unauthenticated = 20, "UNAUTHENTICATED", 401 "Unauthorized", exit 1, false, "etcd refused the credentials";
    PermissionDenied = 21, "PERMISSION_DENIED", 403 "Forbidden", exit 1, true, "etcd denied access to the range";
    Unavailable = 22, "UNAVAILABLE", 503 "ServiceUnavailable", exit 1, true, "etcd is out of reach";
    ResourceExhausted = 23, "RESOURCE_EXHAUSTED", 429 "TooManyRequests", exit 1, true, "etcd or a limit refused more";
    Panic = 90, "PANIC", 500 "InternalError", exit 1, false, "a bug: a panic was caught and the handle is poisoned";
    Internal = 91, "INTERNAL", 500 "InternalError", exit 1, false, "a bug: an invariant does not hold";
}

impl Code {
    /// How long to wait before the same call is made again, as an answer over HTTP says it (`Retry-After`): a second, where
    /// the call may succeed then and the status is one that clients look for this with (429, 503, 504). `None` elsewhere:
    /// whoever is told to come again to what is closed, comes for ever.
    ///
    /// ```
    /// use std::time::Duration;
    /// use watchcore::Code;
    ///
    /// assert_eq!(Code::NotReady.retry_after(), Some(Duration::from_secs(1)));
    /// assert!(Code::Busy.is_retryable() && Code::Busy.retry_after().is_none(), "the other handle has to go first");
    /// assert_eq!(Code::Compacted.retry_after(), None, "the same call never succeeds again: list again");
    /// ```
    pub const fn retry_after(self) -> Option<Duration> {
        match self.http_status() {
            429 | 503 | 504 if self.is_retryable() => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    /// Whether the handle that answered it is of no further use, whatever handle that was. A subscription may have
    /// ended with another code, too: see [`Subscription::poll`](crate::Subscription::poll).
    ///
    /// ```
    /// use watchcore::{Cache, Code, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut subscription = cache.subscribe(Start::Now).open()?;
    /// cache.close();
    /// assert!(subscription.poll(10).unwrap_err().is_fatal());
    /// assert!(!Code::Lagged.is_fatal(), "the policy of the subscription decides whether it continues");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub const fn is_fatal(self) -> bool {
        matches!(self, Code::Closed | Code::Panic | Code::Internal)
    }
}

#[derive(Clone, Debug)]
struct ErrorBody {
    code: Code,
    message: String,
    asked: u64,
    oldest: u64,
    current: u64,
    lost_from: u64,
    lost_to: u64,
    position: Position,
    token: Option<Box<str>>,
}

/// An error: a [`Code`], a message for people, and the numbers of the message as fields.
///
/// An error is one pointer wide and cheap to clone. A number that does not apply is 0.
///
/// ```
/// use watchcore::{Cache, Change, Code, Start};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// writer.apply(8, [Change::put("/a", "1")])?;
/// writer.compact(8)?;
/// let error = cache.subscribe(Start::After(3)).open().unwrap_err();
/// assert_eq!((error.code(), error.asked(), error.oldest()), (Code::Compacted, 3, 9));
/// assert!(error.to_string().starts_with("subscribe after revision 3: compacted"));
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone)]
pub struct Error(Arc<ErrorBody>);

impl Error {
    /// An error with this code and message and no numbers.
    ///
    /// ```
    /// use watchcore::{Code, Error};
    ///
    /// let error = Error::new(Code::Compacted, "list at 3: compacted. List again.").with_asked(3).with_oldest(9);
    /// assert_eq!((error.asked(), error.oldest(), error.current()), (3, 9, 0));
    /// assert_eq!(error.to_string(), "list at 3: compacted. List again.");
    /// assert_eq!(format!("{error:?}"), "COMPACTED: list at 3: compacted. List again.");
    /// ```
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error(Arc::new(ErrorBody {
            code,
            message: message.into(),
            asked: 0,
            oldest: 0,
            current: 0,
            lost_from: 0,
            lost_to: 0,
            position: Position::default(),
            token: None,
        }))
    }

    fn with(mut self, change: impl FnOnce(&mut ErrorBody)) -> Error {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.0.code
    }
    /// The sentences for people: what was asked, what holds and what to do next.
    pub fn message(&self) -> &str {
        &self.0.message
    }
    /// The revision that was asked for.
    pub fn asked(&self) -> u64 {
        self.0.asked
    }
    /// The oldest revision of the window.
    pub fn oldest(&self) -> u64 {
        self.0.oldest
    }
    /// The newest revision of the cache.
    pub fn current(&self) -> u64 {
        self.0.current
    }
    /// First revision that was lost, inclusive.
    pub fn lost_from(&self) -> u64 {
        self.0.lost_from
    }
    /// Last revision that was lost, inclusive.
    pub fn lost_to(&self) -> u64 {
        self.0.lost_to
    }
    /// The position of the consumer when it met the error. A new subscription can resume there
    /// ([`Start::AfterIn`](crate::Start::AfterIn)) while the revision after it is in the window: after a limit of lag
    /// ([`SubscribeBuilder::max_lag_events`](crate::SubscribeBuilder::max_lag_events)) it often is, and after a loss of
    /// events that have left the window it is not.
    pub fn position(&self) -> Position {
        self.0.position
    }
    /// With COMPACTED in the middle of a list: the token that continues at the same key in the newest
    /// state.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Code, Range, Read, ReadOptions};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// writer.apply(5, [Change::put("/a", "1"), Change::put("/b", "1")])?;
    /// let first = cache.list(&Range::all(), Read::Any, 1)?;
    /// writer.apply(6, [Change::put("/b", "2")])?;
    /// writer.compact(6)?; // the state of revision 5, of which the page is, can no longer be read
    /// let next = |token: &str| cache.list_with(&Range::all(), &ReadOptions::default().continue_from(token));
    /// let error = next(first.continue_token().unwrap()).unwrap_err();
    /// assert_eq!(error.code(), Code::Compacted);
    /// let rest = next(error.continue_token().unwrap())?;
    /// assert_eq!((rest.revision(), rest.items()[0].value_str()), (6, Some("2")), "of another state");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn continue_token(&self) -> Option<&str> {
        self.0.token.as_deref()
    }
    /// Sets [`Error::continue_token`].
    pub fn with_continue_token(self, token: String) -> Error {
        self.with(|b| b.token = Some(token.into()))
    }
    /// Sets [`Error::asked`].
    pub fn with_asked(self, revision: u64) -> Error {
        self.with(|b| b.asked = revision)
    }
    /// Sets [`Error::oldest`].
    pub fn with_oldest(self, revision: u64) -> Error {
        self.with(|b| b.oldest = revision)
    }
    /// Sets [`Error::current`].
    pub fn with_current(self, revision: u64) -> Error {
        self.with(|b| b.current = revision)
    }
    /// Sets [`Error::lost_from`] and [`Error::lost_to`].
    pub fn with_lost(self, from: u64, to: u64) -> Error {
        self.with(|b| (b.lost_from, b.lost_to) = (from, to))
    }
    /// Sets [`Error::position`].
    pub fn with_position(self, position: Position) -> Error {
        self.with(|b| b.position = position)
    }
    /// Names the subscription that it is an error of, where that has a name.
    pub(crate) fn of_subscription(self, name: &str) -> Error {
        if name.is_empty() {
            return self;
        }
        let name = quote::show(name.as_bytes());
        self.with(|b| {
            b.message = match b.message.strip_prefix("subscription: ") {
                Some(what) => format!("subscription {name}: {what}"),
                None => format!("subscription {name}: {}", b.message),
            }
        })
    }
    /// See [`Code::is_retryable`].
    pub fn is_retryable(&self) -> bool {
        self.0.code.is_retryable()
    }
    /// See [`Code::is_fatal`].
    pub fn is_fatal(&self) -> bool {
        self.0.code.is_fatal()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.code.name(), self.0.message)
    }
}

impl std::error::Error for Error {}

/// The errors that several modules word alike.
pub(crate) mod say {
    use super::{Code, Error, Result};
    use crate::position::MAX_REVISION;

    pub(crate) fn compacted(what: &str, asked: u64, oldest: u64, current: u64) -> Error {
        let holds = if current + 1 == oldest {
            format!("the log holds no revision yet and stands at {current}")
        } else {
            format!("the log holds revisions {oldest} to {current}")
        };
        Error::new(
            Code::Compacted,
            format!(
                "{what} revision {asked}: compacted; {holds}. Start from State, or from a revision of at least {}.",
                oldest.saturating_sub(1)
            ),
        )
        .with_asked(asked)
        .with_oldest(oldest)
        .with_current(current)
    }

    pub(crate) fn future(what: &str, asked: u64, current: u64) -> Error {
        Error::new(
            Code::FutureRevision,
            format!("{what} revision {asked}: it did not come in time; the cache is at {current}. Ask again, or with a longer timeout."),
        )
        .with_asked(asked)
        .with_current(current)
    }

    pub(crate) fn no_thread(what: &str, name: &str, error: &std::io::Error) -> Error {
        Error::new(
            Code::ResourceExhausted,
            format!(
                "{what}: the thread {name} does not start: {error}. Raise the limit of processes (ulimit -u, or the container's), or end others; then try again."
            ),
        )
    }

    pub(crate) fn not_ready(what: &str, last_error: Option<&str>) -> Error {
        let why = last_error.map_or_else(String::new, |e| format!(" (last error: {e})"));
        Error::new(
            Code::NotReady,
            format!("{what}: the cache has no listing yet{why}. Wait until it is ready, or look at its status."),
        )
    }

    pub(crate) fn closed(what: &str) -> Error {
        Error::new(Code::Closed, format!("{what}: it was closed. Open a new one."))
    }

    pub(crate) fn timeout(what: &str, milliseconds: u128) -> Error {
        Error::new(
            Code::Timeout,
            format!("{what}: nothing came within {milliseconds} ms. Ask again, or with a longer timeout."),
        )
    }

    #[inline]
    pub(crate) fn is_revision(revision: u64) -> bool {
        revision <= MAX_REVISION
    }

    /// Refuses to write what no revision can be: INVALID_ARGUMENT.
    pub(crate) fn check_given(what: &str, revision: u64) -> Result<()> {
        if is_revision(revision) {
            return Ok(());
        }
        let message = format!("{what} at revision {revision}: the largest revision is {MAX_REVISION}.");
        Err(invalid(message).with_asked(revision))
    }

    /// Refuses at once to read at a revision, or to wait for it, that none can be: FUTURE_REVISION, in the words of
    /// Kubernetes.
    pub(crate) fn check_asked(what: &str, revision: u64, current: impl FnOnce() -> u64) -> Result<()> {
        if is_revision(revision) {
            return Ok(());
        }
        let current = current();
        let message = format!(
            "{what}: Too large resource version: {revision}, current: {current}. The largest revision is {MAX_REVISION}: ask for one that was given."
        );
        Err(Error::new(Code::FutureRevision, message).with_asked(revision).with_current(current))
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::new(Code::InvalidArgument, message)
    }
}

/// A text that cannot be read further than to byte `at`.
pub(crate) fn refuse(what: &str, text: &[u8], at: usize, why: &str) -> Error {
    say::invalid(format!("{what} \"{}\": byte {at}: {why}.", Around(text, at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_names_and_size_are_fixed() {
        let numbers: Vec<i32> = Code::ALL.iter().map(|c| *c as i32).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 20, 21, 22, 23, 90, 91]);
        for code in Code::ALL {
            assert_eq!(Code::from_i32(*code as i32), Some(*code));
        }
        assert_eq!(Code::from_i32(9), None);
        assert_eq!(size_of::<Error>(), size_of::<usize>());
        assert!(Code::Timeout.is_retryable() && !Code::Compacted.is_retryable());
        assert!(Code::Closed.is_fatal() && !Code::Lagged.is_fatal());
    }

    #[test]
    fn numbers_of_the_message_are_fields() {
        let error = say::compacted("subscribe after", 1200, 5433, 8211);
        assert_eq!(
            error.to_string(),
            "subscribe after revision 1200: compacted; the log holds revisions 5433 to 8211. Start from State, or from a revision of at least 5432."
        );
        assert_eq!((error.asked(), error.oldest(), error.current()), (1200, 5433, 8211));
    }
}
