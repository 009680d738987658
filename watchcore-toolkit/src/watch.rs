//! The interface of everything that delivers events: a stream that can be stopped.

#![forbid(unsafe_code)]

use crate::event::WatchEvent;
use crate::filter::{FilterWatch, ObjectFilter};
use crate::foreign::wake;
use crate::keyed::Keyed;
use crate::park;
use crate::recorder::Recorder;
use crate::sync::Lock;
use futures_core::Stream;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use watchcore::{Code, Error, Result};

/// A stream of events that can be stopped from any thread.
///
/// After an `Error` event, after a stop and at the end of its source the stream ends, and stays
/// ended. Dropping a watch stops it. The rules are those of docs/internals/toolkit.md.
///
/// ```
/// use std::time::Duration;
/// use watchcore_toolkit::{EmptyWatch, Watch, WatchExt};
///
/// fn count(mut watch: impl Watch) -> watchcore::Result<usize> {
///     let mut seen = 0;
///     while watch.recv(Duration::from_secs(10))?.is_some() {
///         seen += 1;
///     }
///     Ok(seen)
/// }
/// assert_eq!(count(EmptyWatch::<u8>::new())?, 0);
/// # Ok::<(), watchcore::Error>(())
/// ```
pub trait Watch: Stream<Item = WatchEvent<<Self as Watch>::Object>> + Unpin + Send {
    /// The type of its objects.
    type Object;

    /// Returns a handle that stops the watch. It may be requested at any time, and outlives the watch.
    fn stopper(&self) -> Stopper;
}

impl<W: Watch + ?Sized> Watch for Box<W> {
    type Object = W::Object;

    fn stopper(&self) -> Stopper {
        (**self).stopper()
    }
}

/// A boxed watch of any type.
pub type BoxWatch<O> = Box<dyn Watch<Object = O, Item = WatchEvent<O>>>;

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

    /// The same events, with a copy of each: for tests.
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

/// Stops a watch: from any thread, at any time, any number of times, also inside a callback. Never waits.
///
/// ```
/// use watchcore_toolkit::Stopper;
///
/// let stopper = Stopper::new(|| println!("stopped"));
/// stopper.stop();
/// stopper.clone().stop(); // nothing more happens
/// assert!(stopper.is_stopped());
/// ```
#[derive(Clone)]
pub struct Stopper {
    cell: Arc<StopCell>,
}

struct StopCell {
    stopped: AtomicBool,
    action: Box<dyn Fn() + Send + Sync>,
}

impl Stopper {
    /// Makes a stopper that calls `action` at the first stop, on the stopping thread. `action` must not wait.
    pub fn new(action: impl Fn() + Send + Sync + 'static) -> Stopper {
        Stopper { cell: Arc::new(StopCell { stopped: AtomicBool::new(false), action: Box::new(action) }) }
    }

    /// Stops the watch.
    pub fn stop(&self) {
        // AcqRel pairs with other calls of this swap: a caller that finds the watch stopped also
        // sees what was stored before the first stop.
        if !self.cell.stopped.swap(true, Ordering::AcqRel) {
            (self.cell.action)();
        }
    }

    /// Whether `stop` was called. A watch that ended by itself has not been stopped.
    pub fn is_stopped(&self) -> bool {
        self.cell.stopped.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Stopper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stopper").field("stopped", &self.is_stopped()).finish()
    }
}

/// A flag that is raised once and wakes the one consumer that polls for it.
///
/// The consumer stores its waker before it loads the flag, and `raise` stores the flag before it
/// takes the waker, both under the lock: one of them sees the other.
#[derive(Default)]
pub(crate) struct Signal {
    state: Lock<SignalState>,
}

#[derive(Default)]
struct SignalState {
    raised: bool,
    waker: Option<Waker>,
}

impl Signal {
    /// Raises the flag and wakes the consumer. The waker runs outside of the lock, because it is foreign code.
    pub(crate) fn raise(&self) {
        let waker = {
            let mut state = self.state.lock();
            state.raised = true;
            state.waker.take()
        };
        wake(waker);
    }

    /// Whether the flag was raised; otherwise the task is woken when it is.
    pub(crate) fn poll_raised(&self, context: &mut Context<'_>) -> bool {
        // The clone, and the drop of the former waker, are foreign code: they run outside of the lock.
        let waker = context.waker().clone();
        let mut state = self.state.lock();
        let (raised, before) = (state.raised, state.waker.replace(waker));
        drop(state);
        drop(before);
        raised
    }

    /// Whether the flag was raised.
    pub(crate) fn is_raised(&self) -> bool {
        self.state.lock().raised
    }
}
