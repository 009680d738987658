//! A watch that keeps a copy of its events.

#![forbid(unsafe_code)]

use crate::event::WatchEvent;
use crate::sync::Lock;
use crate::watch::{Stopper, Watch};
use futures_core::Stream;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A watch whose events are recorded: see [`crate::WatchExt::record`].
///
/// It keeps all events, so it is for tests.
///
/// ```
/// use std::task::Poll;
/// use watchcore_toolkit::{FakeWatch, WatchEvent, WatchExt};
///
/// let (fake, watch) = FakeWatch::race_free();
/// let mut watch = watch.record();
/// let recording = watch.recording(); // stays with the test
/// fake.add("a")?;
/// assert!(recording.events().is_empty(), "nobody took it");
/// assert!(watch.try_recv().is_ready());
/// assert_eq!(recording.events(), [WatchEvent::added("a")]);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "dropping a watch stops it"]
pub struct Recorder<W: Watch> {
    watch: W,
    recording: Recording<W::Object>,
}

impl<W: Watch> Recorder<W> {
    pub(crate) fn new(watch: W) -> Recorder<W> {
        Recorder { watch, recording: Recording { events: Arc::default() } }
    }

    /// The events that were delivered, and will be.
    pub fn recording(&self) -> Recording<W::Object> {
        self.recording.clone()
    }
}

impl<W: Watch> Stream for Recorder<W>
where
    W::Object: Clone,
{
    type Item = WatchEvent<W::Object>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<W::Object>>> {
        let event = ready!(Pin::new(&mut self.watch).poll_next(context));
        if let Some(event) = &event {
            let copy = Arc::new(event.clone());
            self.recording.events.lock().push(copy);
        }
        Poll::Ready(event)
    }
}

impl<W: Watch> Watch for Recorder<W>
where
    W::Object: Clone + Send + Sync,
{
    type Object = W::Object;

    fn stopper(&self) -> Stopper {
        self.watch.stopper()
    }
}

impl<W: Watch + fmt::Debug> fmt::Debug for Recorder<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("watch", &self.watch).field("recording", &self.recording).finish()
    }
}

/// The events that a [`Recorder`] has delivered. Outlives it.
///
/// ```
/// use watchcore_toolkit::{EmptyWatch, WatchExt};
///
/// let recorder = EmptyWatch::<u8>::new().record();
/// let recording = recorder.recording();
/// drop(recorder);
/// assert!(recording.events().is_empty());
/// ```
pub struct Recording<O> {
    /// Held by counts: cloning an object is foreign code, which does not run under the lock.
    events: Arc<Lock<Vec<Arc<WatchEvent<O>>>>>,
}

impl<O> Recording<O> {
    /// A copy of all events.
    pub fn events(&self) -> Vec<WatchEvent<O>>
    where
        O: Clone,
    {
        let events = self.events.lock().clone();
        events.iter().map(|event| WatchEvent::clone(event)).collect()
    }
}

impl<O> Clone for Recording<O> {
    fn clone(&self) -> Recording<O> {
        Recording { events: Arc::clone(&self.events) }
    }
}

impl<O> fmt::Debug for Recording<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").field("events", &self.events.lock().len()).finish()
    }
}
