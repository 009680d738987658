//! The parts of a watch that its log reader, its options and other threads use too.

#![forbid(unsafe_code)]

use crate::event::WatchEvent;
use crate::foreign::guard;
use crate::sync::Lock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use watchcore::{Closer, Error, KeyValue, Lag, Position};

pub(super) type Refused = Box<dyn FnMut(&KeyValue, &Error) + Send>;

/// The result of a watch's poll.
pub(crate) enum WatchStep<O> {
    Event(WatchEvent<O>),
    /// The events so far make a whole state, including everything up to this position: no revision, difference or
    /// initial state is delivered in part. Only for a watch that requested marks. The watch derives this from the log;
    /// the positions of its events do not suffice, because the rest of a revision may have no event for the consumer.
    Whole(Position),
}

/// The part of a watch that other threads use.
pub(crate) struct WatchHandle {
    /// Closes the subscription that the watch reads now.
    pub(super) closer: Lock<Closer>,
    pub(super) given: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) compared: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) known: AtomicU64,
}

/// The statistics of a watch, available to any thread.
///
/// ```
/// use watchcore::{Cache, KeyValue};
/// use watchcore_toolkit::ObjectWatch;
///
/// let cache = Cache::builder("/").build()?;
/// let watch = ObjectWatch::<KeyValue>::open(&cache)?;
/// assert_eq!((watch.stats().given, watch.stats().lag.events), (0, 0));
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct WatchStats {
    /// Events delivered, including marks.
    pub given: u64,
    /// Revisions that the watch did not see one by one.
    pub lost: u64,
    /// How often the window overtook the watch, and a difference was made.
    pub compared: u64,
    /// Values that could not be decoded.
    pub refused: u64,
    /// Objects that the watch knows.
    pub known: u64,
    /// The present lag of the watch.
    pub lag: Lag,
}

/// Counts and reports values that the decoder refused.
pub(super) struct Refusals {
    pub(super) call: Option<Refused>,
    pub(super) handle: Arc<WatchHandle>,
}

impl Refusals {
    pub(super) fn report(&mut self, kv: &KeyValue, error: &Error) {
        self.handle.refused.fetch_add(1, Ordering::Relaxed);
        match &mut self.call {
            // Without the guard, a panic here would lose the rest of the batch. The guard has logged it.
            Some(call) => drop(guard("the function for values that cannot be decoded", || call(kv, error))),
            None => tracing::warn!(key = %String::from_utf8_lossy(kv.key()), %error, "a value cannot be decoded"),
        }
    }
}

impl WatchHandle {
    pub(super) fn closer(&self) -> Closer {
        self.closer.lock().clone()
    }

    /// Ends the subscription that the watch reads now. The stopper stores its flag before it calls this, and the watch
    /// loads the flag after `read_from`. So either this call finds the newer subscription, or the watch finds itself
    /// stopped. The lock orders the two, and is released before the close, which wakes the consumer.
    pub(super) fn stop(&self) {
        self.closer().close();
    }

    pub(super) fn read_from(&self, subscription: Closer) {
        // The watch closes the former subscription when it drops it.
        drop(self.closer.replace(subscription));
    }

    pub(crate) fn stats(&self) -> WatchStats {
        let lag = self.closer().lag();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WatchStats {
            given: load(&self.given),
            lost: load(&self.lost),
            compared: load(&self.compared),
            refused: load(&self.refused),
            known: load(&self.known),
            lag,
        }
    }
}
