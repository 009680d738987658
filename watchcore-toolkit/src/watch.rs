//! The interface of everything that delivers events: a stream that can be stopped.

#![forbid(unsafe_code)]

use crate::event::WatchEvent;
use crate::foreign::wake;
use crate::sync::Lock;
use futures_core::Stream;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

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
