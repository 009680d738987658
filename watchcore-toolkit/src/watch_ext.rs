//! Ways to read, change, record and box any watch.

#![forbid(unsafe_code)]

use crate::event::WatchEvent;
use crate::filter::{FilterWatch, ObjectFilter};
use crate::keyed::Keyed;
use crate::park;
use crate::recorder::Recorder;
use crate::watch::{BoxWatch, Watch};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use watchcore::{Code, Error, Result};

/// Ways to read a watch, by blocking calls or futures over the same `poll`.
///
/// ```
/// use std::time::Duration;
/// use watchcore_toolkit::{EmptyWatch, WatchExt};
///
/// let mut watch = EmptyWatch::<u8>::new();
/// assert!(watch.recv(Duration::from_secs(1))?.is_none(), "ended");
/// # Ok::<(), watchcore::Error>(())
/// ```
pub trait WatchExt: Watch {
    /// Waits for the next event, at most for the timeout (`Duration::MAX`: for ever). `None` is the
    /// end of the watch. TIMEOUT if no event came; no event is lost by that.
    fn recv(&mut self, timeout: Duration) -> Result<Option<WatchEvent<Self::Object>>> {
        park::block_on(timeout, |context| Pin::new(&mut *self).poll_next(context)).ok_or_else(|| {
            Error::new(Code::Timeout, format!("receive an event: none within {} ms. Ask again.", timeout.as_millis()))
        })
    }

    /// Returns the next event, if it is available. `Pending` means not yet, `Ready(None)` the end.
    fn try_recv(&mut self) -> Poll<Option<WatchEvent<Self::Object>>> {
        Pin::new(self).poll_next(&mut Context::from_waker(Waker::noop()))
    }

    /// Waits for the next event. `None` is the end of the watch. Cancel safe.
    fn next_event(&mut self) -> impl Future<Output = Option<WatchEvent<Self::Object>>> + Send {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context))
    }

    /// Stops the watch.
    fn stop(&self) {
        self.stopper().stop();
    }

    /// Converts each event by a function; events for which it returns `None` are dropped, and the
    /// next event reports their losses. The new watch ends with its source, and stopping it stops
    /// the source; so does an Error that the function returns. A function cannot set the right
    /// types when an object enters or leaves a filter: see [`WatchExt::filter_objects`].
    fn filter_events<P, F>(self, filter: F) -> FilterWatch<Self, F>
    where
        Self: Sized,
        F: FnMut(WatchEvent<Self::Object>) -> Option<WatchEvent<P>> + Unpin,
    {
        FilterWatch::new(self, filter)
    }

    /// Only objects that a predicate selects, with types relative to the selection: an object that
    /// enters is Added, one that leaves is Deleted with its last selected value. It stores the
    /// delivered objects: a clone and about 8 bytes for each selected object, also for one whose
    /// deletion was lost, so it is for watches that lose no events. It uses keys: at an object
    /// without one ([`Keyed::has_own_key`]) it ends with an Error event (400).
    fn filter_objects<P>(self, predicate: P) -> ObjectFilter<Self, P>
    where
        Self: Sized,
        Self::Object: Keyed + Clone,
        P: FnMut(&Self::Object) -> bool + Unpin,
    {
        ObjectFilter::new(self, predicate)
    }

    /// Returns a watch of these events that keeps a copy of each: for tests.
    fn record(self) -> Recorder<Self>
    where
        Self: Sized,
        Self::Object: Clone,
    {
        Recorder::new(self)
    }

    /// The watch as a boxed one.
    fn boxed(self) -> BoxWatch<Self::Object>
    where
        Self: Sized + 'static,
    {
        Box::new(self)
    }
}

impl<W: Watch + ?Sized> WatchExt for W {}
