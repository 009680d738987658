//! Fake watches, whose events a test sends.

#![forbid(unsafe_code)]

use crate::event::{Status, WatchEvent};
use crate::park;
use crate::pipe::{NotSent, Pipe};
use crate::sync::Lock;
use crate::watch::{Stopper, Watch};
use futures_core::Stream;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use watchcore::{Code, Error, Result};

/// The number of events that wait for the consumer of a [`FakeWatch::race_free`].
const BUFFER: usize = 100;

/// Sends the events of a [`FakeWatch`]. Clones belong to the same watch.
///
/// Each method of a source of [`FakeWatch::pair`] waits until the consumer has taken its event, so a test knows the
/// consumer's progress. After a stop they return CLOSED (apimachinery's panic), and an event that was waiting is not
/// delivered. A source of [`FakeWatch::race_free`] never waits.
///
/// ```
/// use std::thread;
/// use std::time::Duration;
/// use watchcore_toolkit::{FakeWatch, WatchExt};
///
/// let (fake, mut watch) = FakeWatch::pair();
/// let test = thread::spawn(move || {
///     fake.add("a pod")?;
///     fake.delete("a pod")?;
///     fake.stop();
///     fake.add("nobody gets this")
/// });
/// let mut names = Vec::new();
/// while let Some(event) = watch.recv(Duration::from_secs(10))? {
///     names.push(event.name());
/// }
/// assert_eq!(names, ["ADDED", "DELETED"]);
/// assert!(test.join().unwrap().is_err());
/// # Ok::<(), watchcore::Error>(())
/// ```
pub struct FakeSource<O> {
    pipe: Arc<Lock<Arc<Pipe<O>>>>,
    /// Whether an event that is sent waits until it was taken.
    waits: bool,
}

impl<O> Clone for FakeSource<O> {
    fn clone(&self) -> FakeSource<O> {
        FakeSource { pipe: Arc::clone(&self.pipe), waits: self.waits }
    }
}

/// An event that is being sent. If this is dropped before the event was taken, the event is not delivered.
struct Sending<'a, O> {
    pipe: &'a Pipe<O>,
    number: Option<u64>,
}

impl<O> Drop for Sending<'_, O> {
    fn drop(&mut self) {
        self.pipe.withdraw(self.number);
    }
}

/// Sends an event and waits until it was taken.
pub(crate) async fn send<O>(pipe: &Pipe<O>, event: WatchEvent<O>) -> std::result::Result<(), NotSent> {
    let mut sending = Sending { pipe, number: None };
    let mut event = Some(event);
    poll_fn(|context| sending.pipe.poll_send(&mut event, &mut sending.number, context)).await
}

impl<O> FakeSource<O> {
    fn now(&self) -> Arc<Pipe<O>> {
        Arc::clone(&self.pipe.lock())
    }

    /// Sends any event; blocks until it was taken. CLOSED after a stop. With [`FakeWatch::race_free`] it never blocks:
    /// RESOURCE_EXHAUSTED if 100 events were not taken (apimachinery's panics), and after a stop it does nothing.
    pub fn send(&self, event: WatchEvent<O>) -> Result<()> {
        let sent = park::block_on_future(Duration::MAX, self.send_async(event));
        sent.unwrap_or_else(|| unreachable!("there is no timeout"))
    }

    /// [`FakeSource::send`] as a future. If it is dropped before its event was taken, the event is not sent.
    pub async fn send_async(&self, event: WatchEvent<O>) -> Result<()> {
        let pipe = self.now();
        let sent = if self.waits { send(&pipe, event).await } else { pipe.try_send(event, BUFFER) };
        match sent {
            Err(NotSent::Stopped) if self.waits => {
                Err(Error::new(Code::Closed, "send an event to a fake watch: it was stopped. Reset it."))
            }
            Ok(()) | Err(NotSent::Stopped) => Ok(()),
            Err(NotSent::Full) => Err(Error::new(
                Code::ResourceExhausted,
                format!(
                    "send an event to a fake watch: channel full, {BUFFER} events were not taken. Take some first, or use a source that waits."
                ),
            )),
        }
    }

    /// Sends Added; see [`FakeSource::send`].
    pub fn add(&self, object: O) -> Result<()> {
        self.send(WatchEvent::added(object))
    }

    /// Sends Modified without an old value; see [`FakeSource::send`].
    pub fn modify(&self, object: O) -> Result<()> {
        self.send(WatchEvent::modified(None, object))
    }

    /// Sends Deleted with the last value; see [`FakeSource::send`].
    pub fn delete(&self, last: O) -> Result<()> {
        self.send(WatchEvent::deleted(last))
    }

    /// Sends an error, after which the watch ends; see [`FakeSource::send`].
    pub fn error(&self, status: impl Into<Status>) -> Result<()> {
        self.send(WatchEvent::error(status))
    }

    /// Ends the watch; after the events that were sent, if the source does not wait.
    pub fn stop(&self) {
        self.now().stop();
    }

    /// Whether the watch was stopped, or dropped.
    pub fn is_stopped(&self) -> bool {
        self.now().is_stopped()
    }

    /// Stops the watch and makes a new one.
    pub fn reset(&self) -> FakeWatch<O>
    where
        O: Send + 'static,
    {
        let pipe = Arc::new(Pipe::new());
        let before = self.pipe.replace(Arc::clone(&pipe));
        before.stop();
        FakeWatch::of(pipe)
    }
}

impl<O> fmt::Debug for FakeSource<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeSource").field("stopped", &self.is_stopped()).finish()
    }
}

/// A watch whose events a test sends: see [`FakeSource`].
///
/// ```
/// use std::task::Poll;
/// use watchcore_toolkit::{FakeWatch, WatchExt};
///
/// let (fake, mut watch) = FakeWatch::<u8>::pair();
/// watch.stop();
/// assert!(fake.is_stopped());
/// assert_eq!(watch.try_recv(), Poll::Ready(None));
/// let mut again = fake.reset();
/// assert!(again.try_recv().is_pending());
/// ```
#[must_use = "dropping a watch stops it"]
pub struct FakeWatch<O> {
    pipe: Arc<Pipe<O>>,
    stopper: Stopper,
    ended: bool,
}

impl<O: Send + 'static> FakeWatch<O> {
    /// Makes a watch, and the source of its events, whose methods wait until their event was taken.
    pub fn pair() -> (FakeSource<O>, FakeWatch<O>) {
        FakeWatch::sent_to(true)
    }

    /// Makes a watch, and a source of its events that never waits: up to 100 events wait for the consumer. After a stop
    /// its methods do nothing; earlier events are still delivered.
    ///
    /// ```
    /// use std::time::Duration;
    /// use watchcore_toolkit::{FakeWatch, WatchExt};
    ///
    /// let (fake, mut watch) = FakeWatch::race_free();
    /// fake.add(1)?;
    /// fake.modify(2)?;
    /// fake.stop();
    /// fake.delete(2)?; // nothing happens
    /// let mut seen = Vec::new();
    /// while let Some(event) = watch.recv(Duration::from_secs(10))? {
    ///     seen.push((event.name(), *event.object().unwrap()));
    /// }
    /// assert_eq!(seen, [("ADDED", 1), ("MODIFIED", 2)]);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn race_free() -> (FakeSource<O>, FakeWatch<O>) {
        FakeWatch::sent_to(false)
    }

    fn sent_to(waits: bool) -> (FakeSource<O>, FakeWatch<O>) {
        let pipe = Arc::new(Pipe::new());
        (FakeSource { pipe: Arc::new(Lock::new(Arc::clone(&pipe))), waits }, FakeWatch::of(pipe))
    }

    pub(crate) fn of(pipe: Arc<Pipe<O>>) -> FakeWatch<O> {
        let stopper = Stopper::new({
            let pipe = Arc::downgrade(&pipe);
            move || {
                if let Some(pipe) = pipe.upgrade() {
                    pipe.stop();
                }
            }
        });
        FakeWatch { pipe, stopper, ended: false }
    }
}

impl<O> Stream for FakeWatch<O> {
    type Item = WatchEvent<O>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<O>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let polled = self.pipe.poll_take(context);
        if let Poll::Ready(Some(event)) = &polled
            && event.status().is_some()
        {
            self.ended = true;
            self.pipe.stop();
        }
        polled
    }
}

impl<O: Send> Watch for FakeWatch<O> {
    type Object = O;

    fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }
}

impl<O> Drop for FakeWatch<O> {
    fn drop(&mut self) {
        self.pipe.stop();
    }
}

impl<O> fmt::Debug for FakeWatch<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeWatch").field("stopped", &self.pipe.is_stopped()).finish()
    }
}
