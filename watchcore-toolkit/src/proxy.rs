//! Watches made of what a program has: a stream, or two functions.

#![forbid(unsafe_code)]

use crate::event::WatchEvent;
use crate::foreign::{Guarded, Notify};
use crate::watch::{Signal, Stopper, Watch};
use futures_core::Stream;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A watch of any stream of events: what the stream's owner lacks is the stop.
///
/// The stream stays its owner's: stopped, the watch ends, and the owner learns of it by the [`StopSignal`]. An Error event
/// ends the watch, too.
///
/// ```
/// use std::time::Duration;
/// use watchcore_toolkit::{FakeWatch, ProxyWatch, WatchExt};
///
/// let (_fake, stream) = FakeWatch::<u8>::pair(); // any stream of events
/// let mut watch = ProxyWatch::new(stream);
/// let signal = watch.stop_signal();
/// assert!(!signal.is_stopped());
/// watch.stop();
/// assert!(signal.wait(Duration::from_secs(10)));
/// assert!(watch.recv(Duration::from_secs(10))?.is_none());
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "dropping a watch stops it"]
pub struct ProxyWatch<S> {
    /// `None` behind the end.
    stream: Option<S>,
    /// Ends the consumer's wait.
    stopped: Arc<Signal>,
    stopper: Stopper,
    event: Arc<Notify>,
}

impl<S> ProxyWatch<S> {
    /// A watch of this stream.
    pub fn new(stream: S) -> ProxyWatch<S> {
        let (stopped, event) = (Arc::new(Signal::default()), Arc::new(Notify::new()));
        let stopper = Stopper::new({
            let (stopped, event) = (Arc::clone(&stopped), Arc::clone(&event));
            move || {
                stopped.raise();
                event.notify(usize::MAX);
            }
        });
        ProxyWatch { stream: Some(stream), stopped, stopper, event }
    }

    /// What says that it was stopped: for who makes the events.
    pub fn stop_signal(&self) -> StopSignal {
        StopSignal { stopper: self.stopper.clone(), event: Arc::clone(&self.event) }
    }

    /// Whether it was stopped.
    pub fn is_stopping(&self) -> bool {
        self.stopper.is_stopped()
    }
}

impl<O, S: Stream<Item = WatchEvent<O>> + Unpin> Stream for ProxyWatch<S> {
    type Item = WatchEvent<O>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<O>>> {
        if self.stopped.poll_raised(context) {
            self.stream = None;
        }
        let Some(stream) = &mut self.stream else { return Poll::Ready(None) };
        let polled = Pin::new(stream).poll_next(context);
        match &polled {
            Poll::Ready(None) => self.stream = None,
            Poll::Ready(Some(event)) if event.status().is_some() => self.stream = None,
            Poll::Ready(Some(_)) | Poll::Pending => {}
        }
        polled
    }
}

impl<O, S: Stream<Item = WatchEvent<O>> + Unpin + Send> Watch for ProxyWatch<S> {
    type Object = O;

    fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }
}

impl<S> Drop for ProxyWatch<S> {
    fn drop(&mut self) {
        self.stopper.stop();
    }
}

impl<S> fmt::Debug for ProxyWatch<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyWatch").field("stopping", &self.is_stopping()).finish_non_exhaustive()
    }
}

/// Says that a [`ProxyWatch`] was stopped or dropped.
///
/// ```
/// use watchcore_toolkit::{FakeWatch, ProxyWatch};
///
/// let (_fake, stream) = FakeWatch::<u8>::pair();
/// let watch = ProxyWatch::new(stream);
/// let signal = watch.stop_signal();
/// drop(watch);
/// assert!(signal.is_stopped());
/// ```
#[derive(Clone)]
pub struct StopSignal {
    stopper: Stopper,
    event: Arc<Notify>,
}

impl StopSignal {
    /// Whether it was.
    pub fn is_stopped(&self) -> bool {
        self.stopper.is_stopped()
    }

    /// Blocks until it was, at most `timeout` (`Duration::MAX`: without end). Whether it was.
    pub fn wait(&self, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let listener = self.event.listen();
            if self.is_stopped() {
                return true;
            }
            if !listener.wait(deadline) {
                return self.is_stopped();
            }
        }
    }

    /// Waits until it was.
    pub async fn stopped(&self) {
        loop {
            let listener = self.event.listen();
            if self.is_stopped() {
                return;
            }
            Guarded::new(listener).await;
        }
    }
}

impl fmt::Debug for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StopSignal").field("stopped", &self.is_stopped()).finish()
    }
}

/// A watch of two functions: what a poll says, and what a stop does.
///
/// ```
/// use std::task::Poll;
/// use watchcore_toolkit::{MockWatch, WatchEvent, WatchExt};
///
/// let mut left = vec![WatchEvent::added("b"), WatchEvent::added("a")];
/// let mut watch = MockWatch::new(move |_| Poll::Ready(left.pop()), || println!("stopped"));
/// assert_eq!(watch.try_recv(), Poll::Ready(Some(WatchEvent::added("a"))));
/// watch.stop();
/// ```
#[must_use = "dropping a watch stops it"]
pub struct MockWatch<P> {
    poll: P,
    stopper: Stopper,
}

impl<P> MockWatch<P> {
    /// A watch that asks `poll` for its events and calls `stop` with its first stop, or where it is dropped without one. All
    /// other rules of a watch are theirs to keep.
    pub fn new<O>(poll: P, stop: impl Fn() + Send + Sync + 'static) -> MockWatch<P>
    where
        P: FnMut(&mut Context<'_>) -> Poll<Option<WatchEvent<O>>>,
    {
        MockWatch { poll, stopper: Stopper::new(stop) }
    }
}

impl<O, P: FnMut(&mut Context<'_>) -> Poll<Option<WatchEvent<O>>> + Unpin> Stream for MockWatch<P> {
    type Item = WatchEvent<O>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<O>>> {
        (self.poll)(context)
    }
}

impl<O, P: FnMut(&mut Context<'_>) -> Poll<Option<WatchEvent<O>>> + Unpin + Send> Watch for MockWatch<P> {
    type Object = O;

    fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }
}

impl<P> Drop for MockWatch<P> {
    fn drop(&mut self) {
        self.stopper.stop();
    }
}

impl<P> fmt::Debug for MockWatch<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MockWatch").field("stopper", &self.stopper).finish_non_exhaustive()
    }
}
