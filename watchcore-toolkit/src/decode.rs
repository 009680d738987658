//! A watch of events that a decoder reads: from a connection, a file, a pipe.
//!
//! | the decoder returns | the watch |
//! | --- | --- |
//! | an event | delivers it; an Error event ends the watch |
//! | the end | ends |
//! | an error of the connection (unexpected end, reset, time-out) | ends; a line in the log |
//! | any other error | delivers one Error event, made by the reporter, then ends |
//! | (it or the reporter panics) | delivers one Error event 500, then ends |

#![forbid(unsafe_code)]

use crate::event::{Status, WatchEvent};
use crate::fake::{FakeWatch, send};
use crate::foreign::guard;
use crate::park;
use crate::pipe::Pipe;
use crate::watch::{Signal, Stopper, Watch};
use futures_core::Stream;
use std::error::Error as StdError;
use std::fmt;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::Duration;
use watchcore::{Code, Error, Result};

/// The reason why an event could not be decoded.
pub type DecodeError = Box<dyn StdError + Send + Sync>;

/// Reads events, one after the other.
///
/// ```
/// use std::io::{BufRead, BufReader, Cursor};
/// use watchcore_toolkit::{DecodeError, Decoder, WatchEvent};
///
/// /// One name a line. Reading from memory never blocks, so there is nothing to close.
/// struct Lines(BufReader<Cursor<&'static str>>);
///
/// impl Decoder for Lines {
///     type Object = String;
///     fn decode(&mut self) -> Result<Option<WatchEvent<String>>, DecodeError> {
///         let mut line = String::new();
///         Ok((self.0.read_line(&mut line)? > 0).then(|| WatchEvent::added(line.trim().to_owned())))
///     }
///     fn closer(&self) -> Box<dyn Fn() + Send + Sync> {
///         Box::new(|| {})
///     }
/// }
/// # let mut lines = Lines(BufReader::new(Cursor::new("a\n")));
/// # assert_eq!(lines.decode().unwrap(), Some(WatchEvent::added("a".to_owned())));
/// # assert_eq!(lines.decode().unwrap(), None);
/// ```
pub trait Decoder: Send + 'static {
    /// The type of the objects of its events.
    type Object: Send + 'static;

    /// Returns the next event; blocks until there is one. `None` is the end.
    fn decode(&mut self) -> std::result::Result<Option<WatchEvent<Self::Object>>, DecodeError>;

    /// Returns a function that makes a blocked `decode` return, and each later one return at once. It is requested
    /// before the first `decode`, and the stop calls it on any thread. The function must not wait.
    fn closer(&self) -> Box<dyn Fn() + Send + Sync>;
}

/// Makes the status of an Error event from a decoder's error.
///
/// ```
/// use watchcore_toolkit::{DecodeError, Reporter, Status};
///
/// let reporter = |error: &DecodeError| Status::new(502, error.to_string());
/// assert_eq!(reporter.status(&"no JSON".into()).code(), 502);
/// ```
pub trait Reporter: Send + 'static {
    /// The status of an error.
    fn status(&self, error: &DecodeError) -> Status;
}

impl<F: Fn(&DecodeError) -> Status + Send + 'static> Reporter for F {
    fn status(&self, error: &DecodeError) -> Status {
        self(error)
    }
}

/// Status 500 with the decoder's message.
///
/// ```
/// use watchcore_toolkit::{InternalError, Reporter};
///
/// let status = InternalError.status(&"no JSON".into());
/// assert_eq!(status.to_string(), "500: unable to decode an event from the watch stream: no JSON");
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct InternalError;

impl Reporter for InternalError {
    fn status(&self, error: &DecodeError) -> Status {
        Status::new(500, format!("unable to decode an event from the watch stream: {error}"))
    }
}

/// The status for an error; `None` ends the watch without an Error event.
fn reported(error: &DecodeError, reporter: &impl Reporter) -> Option<Status> {
    let broken = error.downcast_ref::<io::Error>().is_some_and(|error| {
        matches!(
            error.kind(),
            ErrorKind::UnexpectedEof
                | ErrorKind::ConnectionReset
                | ErrorKind::ConnectionAborted
                | ErrorKind::BrokenPipe
                | ErrorKind::NotConnected
                | ErrorKind::TimedOut
        )
    });
    if broken {
        tracing::debug!(%error, "a watch's connection broke; the watch ends");
        return None;
    }
    Some(reporter.status(error))
}

/// A watch of a decoder's events, without a buffer: the decoder may be one event ahead of the consumer.
///
/// ```
/// use std::time::Duration;
/// use watchcore_toolkit::{DecodeError, Decoder, InternalError, StreamWatch, WatchEvent, WatchExt};
///
/// struct Numbers(u64);
///
/// impl Decoder for Numbers {
///     type Object = u64;
///     fn decode(&mut self) -> Result<Option<WatchEvent<u64>>, DecodeError> {
///         self.0 += 1;
///         if self.0 < 3 { Ok(Some(WatchEvent::added(self.0))) } else { Err("no more of them".into()) }
///     }
///     fn closer(&self) -> Box<dyn Fn() + Send + Sync> {
///         Box::new(|| {})
///     }
/// }
///
/// let mut watch = StreamWatch::spawn(Numbers(0), InternalError)?;
/// let mut names = Vec::new();
/// while let Some(event) = watch.recv(Duration::from_secs(10))? {
///     names.push(event.name());
/// }
/// assert_eq!(names, ["ADDED", "ADDED", "ERROR"]);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "dropping a watch stops it"]
pub struct StreamWatch<O> {
    /// `None` after the end.
    stream: Option<Pin<Box<dyn Stream<Item = WatchEvent<O>> + Send>>>,
    /// Ends the consumer's wait if the stream itself cannot be stopped.
    stopped: Arc<Signal>,
    stopper: Stopper,
}

impl<O: Send + 'static> StreamWatch<O> {
    /// Makes a watch of a decoder that blocks. The decoder runs on its own thread, which ends with
    /// the watch. RESOURCE_EXHAUSTED if the system cannot start a thread.
    pub fn spawn(decoder: impl Decoder<Object = O>, reporter: impl Reporter) -> Result<StreamWatch<O>> {
        let pipe = Arc::new(Pipe::new());
        let close = decoder.closer();
        let watch = FakeWatch::of(Arc::clone(&pipe));
        let stopper = Stopper::new({
            let stopper = watch.stopper();
            move || {
                // The consumer is stopped first, because the closer may run any code.
                stopper.stop();
                close();
            }
        });
        let thread = thread::Builder::new().name("watch-decoder".into());
        let started = thread.spawn(move || receive(&pipe, decoder, &reporter));
        started.map_err(|error| {
            Error::new(Code::ResourceExhausted, format!("start a thread for a decoder: {error}. End others first."))
        })?;
        Ok(StreamWatch { stream: Some(Box::pin(watch)), stopped: Arc::default(), stopper })
    }

    /// Makes a watch of a decoder that is a stream. It runs only in the consumer's polls, and is
    /// dropped at the stop or the end.
    pub fn of<S>(decoded: S, reporter: impl Reporter + Unpin) -> StreamWatch<O>
    where
        S: Stream<Item = std::result::Result<WatchEvent<O>, DecodeError>> + Send + Unpin + 'static,
    {
        let stopped = Arc::new(Signal::default());
        let stopper = Stopper::new({
            let stopped = Arc::clone(&stopped);
            move || stopped.raise()
        });
        let stream = Reported { decoded: Some(decoded), reporter };
        StreamWatch { stream: Some(Box::pin(stream)), stopped, stopper }
    }
}

/// The thread of a decoder that blocks.
fn receive<D: Decoder>(pipe: &Pipe<D::Object>, mut decoder: D, reporter: &impl Reporter) {
    loop {
        let decoded = guard("the decoder of a watch, or its reporter", || match decoder.decode() {
            Ok(event) => event,
            Err(error) => reported(&error, reporter).map(WatchEvent::error),
        });
        let event = decoded.unwrap_or_else(|panicked| Some(WatchEvent::error(panicked)));
        let Some(event) = event else { break };
        // An error ends the watch, also one that was decoded: the decoder is not asked again.
        let more = event.status().is_none();
        // A stopped consumer takes nothing, and an error event does not wait for the consumer.
        let sent = park::block_on_future(Duration::MAX, send(pipe, event));
        if !more || sent != Some(Ok(())) {
            break;
        }
    }
    pipe.stop();
}

/// A stream whose errors become events.
struct Reported<S, R> {
    decoded: Option<S>,
    reporter: R,
}

impl<O, S, R> Stream for Reported<S, R>
where
    S: Stream<Item = std::result::Result<WatchEvent<O>, DecodeError>> + Unpin,
    R: Reporter + Unpin,
{
    type Item = WatchEvent<O>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<O>>> {
        let this = &mut *self;
        let Some(decoded) = &mut this.decoded else { return Poll::Ready(None) };
        let reporter = &this.reporter;
        let polled = guard("the decoder of a watch, or its reporter", || {
            Pin::new(decoded).poll_next(context).map(|decoded| match decoded {
                Some(Ok(event)) => (Some(event), true),
                Some(Err(error)) => (reported(&error, reporter).map(WatchEvent::error), false),
                None => (None, false),
            })
        });
        let (event, more) =
            ready!(polled.unwrap_or_else(|panicked| Poll::Ready((Some(WatchEvent::error(panicked)), false))));
        if !more {
            this.decoded = None;
        }
        Poll::Ready(event)
    }
}

impl<O> Stream for StreamWatch<O> {
    type Item = WatchEvent<O>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<O>>> {
        if self.stopped.poll_raised(context) {
            self.stream = None;
        }
        let Some(stream) = &mut self.stream else { return Poll::Ready(None) };
        let polled = stream.as_mut().poll_next(context);
        let is_over = match &polled {
            Poll::Ready(event) => event.as_ref().is_none_or(|event| event.status().is_some()),
            Poll::Pending => false,
        };
        if is_over {
            self.stream = None;
        }
        polled
    }
}

impl<O> Watch for StreamWatch<O> {
    type Object = O;

    fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }
}

impl<O> Drop for StreamWatch<O> {
    fn drop(&mut self) {
        self.stopper.stop();
    }
}

impl<O> fmt::Debug for StreamWatch<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamWatch").field("stopper", &self.stopper).finish_non_exhaustive()
    }
}
