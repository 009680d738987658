//! What a handler is: functions that are called with each change.

#![forbid(unsafe_code)]

use crate::event::{Origin, Status};
use std::time::Duration;
use watchcore::OnLag;

/// What is called with the changes of an informer's objects: one call at a time, in their order.
///
/// A call may take as long as it likes: no other handler, no reader and no writer waits for it, and nothing is kept for it
/// meanwhile. One that panics is caught and counted, and the next event follows.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use watchcore::{Cache, Change, KeyValue};
/// use watchcore_toolkit::{Handler, Informer, Origin};
///
/// struct Print(mpsc::Sender<String>);
///
/// impl Handler<KeyValue> for Print {
///     fn added(&mut self, new: &KeyValue, _: Origin) {
///         self.0.send(format!("+ {}", new.key_str().unwrap())).ok();
///     }
///     fn deleted(&mut self, last: &KeyValue, _: Origin) {
///         self.0.send(format!("- {}", last.key_str().unwrap())).ok();
///     }
/// }
///
/// let cache = Cache::builder("/").build()?;
/// let informer = Informer::<KeyValue>::new(&cache)?;
/// let (lines, printed) = mpsc::channel();
/// let registration = informer.add_handler(Print(lines))?;
/// let mut writer = cache.writer()?;
/// writer.apply(1, [Change::put("/a", "1")])?;
/// writer.apply(2, [Change::delete("/a")])?;
/// assert_eq!(printed.recv().unwrap(), "+ /a");
/// assert_eq!(printed.recv().unwrap(), "- /a");
/// registration.remove_and_wait(Duration::from_secs(10))?;
/// # Ok::<(), watchcore::Error>(())
/// ```
pub trait Handler<O>: Send + 'static {
    /// An object appeared, or came into the filter.
    fn added(&mut self, new: &O, origin: Origin) {
        let _ = (new, origin);
    }

    /// An object changed. `old` is what this handler was given before; with [`Origin::Resync`] both are the same.
    fn updated(&mut self, old: &O, new: &O, origin: Origin) {
        let _ = (old, new, origin);
    }

    /// An object went, or left the filter: the last value that this handler was given.
    fn deleted(&mut self, last: &O, origin: Origin) {
        let _ = (last, origin);
    }

    /// An object went whose last value could not be decoded, and no value of it is kept: its key. The handler may have been given
    /// the object before. Only under [`OnLag::Stop`] and [`OnLag::SkipToOldest`], where nothing is kept of what was given: behind a
    /// skip.
    fn deleted_unknown(&mut self, key: &[u8], origin: Origin) {
        let _ = (key, origin);
    }

    /// Every object of the initial state has been handled. Called once.
    fn synced(&mut self) {}

    /// So many revisions were not seen one by one before the next call: the difference follows.
    fn lost(&mut self, revisions: u64) {
        let _ = revisions;
    }

    /// Nothing is called any more: the error that ended it, or `None` where the cache was closed. Not called for a handler
    /// that was removed.
    fn ended(&mut self, error: Option<&Status>) {
        let _ = error;
    }
}

/// Called with an object.
type OneCall<O> = Box<dyn FnMut(&O, Origin) + Send>;
/// Called with an object as it was and as it is.
type TwoCall<O> = Box<dyn FnMut(&O, &O, Origin) + Send>;

/// Called with a key.
type KeyCall = Box<dyn FnMut(&[u8], Origin) + Send>;

/// A handler made of functions.
///
/// ```
/// use watchcore::KeyValue;
/// use watchcore_toolkit::HandlerFns;
///
/// let handler = HandlerFns::<KeyValue>::new()
///     .on_added(|new, _| println!("+ {:?}", new.key_str()))
///     .on_deleted(|last, _| println!("- {:?}", last.key_str()));
/// # drop(handler);
/// ```
#[must_use = "it is called by an informer"]
pub struct HandlerFns<O> {
    added: OneCall<O>,
    updated: TwoCall<O>,
    deleted: OneCall<O>,
    deleted_unknown: KeyCall,
    synced: Box<dyn FnMut() + Send>,
}

impl<O> HandlerFns<O> {
    /// One that does nothing.
    pub fn new() -> HandlerFns<O> {
        HandlerFns {
            added: Box::new(|_, _| {}),
            updated: Box::new(|_, _, _| {}),
            deleted: Box::new(|_, _| {}),
            deleted_unknown: Box::new(|_, _| {}),
            synced: Box::new(|| {}),
        }
    }

    /// Called as [`Handler::added`].
    pub fn on_added(self, call: impl FnMut(&O, Origin) + Send + 'static) -> HandlerFns<O> {
        HandlerFns { added: Box::new(call), ..self }
    }

    /// Called as [`Handler::updated`], with old and new.
    pub fn on_updated(self, call: impl FnMut(&O, &O, Origin) + Send + 'static) -> HandlerFns<O> {
        HandlerFns { updated: Box::new(call), ..self }
    }

    /// Called as [`Handler::deleted`].
    pub fn on_deleted(self, call: impl FnMut(&O, Origin) + Send + 'static) -> HandlerFns<O> {
        HandlerFns { deleted: Box::new(call), ..self }
    }

    /// Called as [`Handler::deleted_unknown`], with the key.
    pub fn on_deleted_unknown(self, call: impl FnMut(&[u8], Origin) + Send + 'static) -> HandlerFns<O> {
        HandlerFns { deleted_unknown: Box::new(call), ..self }
    }

    /// Called as [`Handler::synced`].
    pub fn on_synced(self, call: impl FnMut() + Send + 'static) -> HandlerFns<O> {
        HandlerFns { synced: Box::new(call), ..self }
    }
}

impl<O> Default for HandlerFns<O> {
    fn default() -> HandlerFns<O> {
        HandlerFns::new()
    }
}

impl<O: 'static> Handler<O> for HandlerFns<O> {
    fn added(&mut self, new: &O, origin: Origin) {
        (self.added)(new, origin);
    }

    fn updated(&mut self, old: &O, new: &O, origin: Origin) {
        (self.updated)(old, new, origin);
    }

    fn deleted(&mut self, last: &O, origin: Origin) {
        (self.deleted)(last, origin);
    }

    fn deleted_unknown(&mut self, key: &[u8], origin: Origin) {
        (self.deleted_unknown)(key, origin);
    }

    fn synced(&mut self) {
        (self.synced)();
    }
}

/// What a handler is asked for.
///
/// ```
/// use std::time::Duration;
/// use watchcore_toolkit::HandlerOptions;
///
/// let options = HandlerOptions::new().name("endpoints").resync_period(Duration::from_secs(600));
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing before a handler is added with them"]
pub struct HandlerOptions {
    pub(super) name: String,
    pub(super) on_lag: OnLag,
    pub(super) resync: Option<Duration>,
}

impl HandlerOptions {
    /// Resnapshot, no resync, no name.
    pub fn new() -> HandlerOptions {
        HandlerOptions { name: String::new(), on_lag: OnLag::Resnapshot, resync: None }
    }

    /// What it is called in [`crate::HandlerStatus`], in errors, and as a subscription in the cache's lists and figures: so
    /// its lag is a metric of the cache.
    pub fn name(self, name: impl Into<String>) -> HandlerOptions {
        HandlerOptions { name: name.into(), ..self }
    }

    /// What happens where the window has left it behind: as [`crate::ObjectWatchBuilder::on_lag`].
    pub fn on_lag(self, on_lag: OnLag) -> HandlerOptions {
        HandlerOptions { on_lag, ..self }
    }

    /// Every so often it is given each of its objects again, as updates: as [`crate::ObjectWatchBuilder::resync_period`].
    pub fn resync_period(self, period: Duration) -> HandlerOptions {
        HandlerOptions { resync: Some(period), ..self }
    }
}

impl Default for HandlerOptions {
    fn default() -> HandlerOptions {
        HandlerOptions::new()
    }
}
