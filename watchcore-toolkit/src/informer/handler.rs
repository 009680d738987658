//! Handlers: functions that are called for each change.

#![forbid(unsafe_code)]

use crate::event::{Origin, Status};
use std::time::Duration;
use watchcore::OnLag;

/// Receives the changes of an informer's objects: one call at a time, in order.
///
/// A call may take as long as it likes: no other handler, reader or writer waits for it, and no
/// queue grows meanwhile. A panic is caught and counted, and the next event follows.
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
    /// An object was created, or entered the filter.
    fn added(&mut self, new: &O, origin: Origin) {
        let _ = (new, origin);
    }

    /// An object has changed. `old` is the value that this handler received before; with
    /// [`Origin::Resync`] both are the same.
    fn updated(&mut self, old: &O, new: &O, origin: Origin) {
        let _ = (old, new, origin);
    }

    /// An object was deleted, or left the filter: the last value that this handler received.
    fn deleted(&mut self, last: &O, origin: Origin) {
        let _ = (last, origin);
    }

    /// An object was deleted whose last value could not be decoded and of which no earlier value is
    /// kept: its key. The handler may have received the object before. Only with [`OnLag::Stop`]
    /// and [`OnLag::SkipToOldest`], which do not remember delivered objects: after a skip.
    fn deleted_unknown(&mut self, key: &[u8], origin: Origin) {
        let _ = (key, origin);
    }

    /// Every object of the initial state has been handled. Called once.
    fn synced(&mut self) {}

    /// This number of revisions before the next call was not seen one by one: the difference follows.
    fn lost(&mut self, revisions: u64) {
        let _ = revisions;
    }

    /// No further call is made: the error that ended the handler, or `None` if the cache was
    /// closed. Not called for a handler that was removed.
    fn ended(&mut self, error: Option<&Status>) {
        let _ = error;
    }
}

/// A callback with one object.
type OneCall<O> = Box<dyn FnMut(&O, Origin) + Send>;
/// A callback with the old and the new object.
type TwoCall<O> = Box<dyn FnMut(&O, &O, Origin) + Send>;

/// A callback with a key.
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
    /// A handler that does nothing.
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

/// Options of a handler.
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
    /// The defaults: Resnapshot, no resync, no name.
    pub fn new() -> HandlerOptions {
        HandlerOptions { name: String::new(), on_lag: OnLag::Resnapshot, resync: None }
    }

    /// The name in [`crate::HandlerStatus`], in errors, and as a subscription in the cache's lists
    /// and metrics, which therefore include the handler's lag.
    pub fn name(self, name: impl Into<String>) -> HandlerOptions {
        HandlerOptions { name: name.into(), ..self }
    }

    /// The policy for when the window overtakes the handler: see [`crate::ObjectWatchBuilder::on_lag`].
    pub fn on_lag(self, on_lag: OnLag) -> HandlerOptions {
        HandlerOptions { on_lag, ..self }
    }

    /// The interval at which the handler receives each of its objects again, as updates: see
    /// [`crate::ObjectWatchBuilder::resync_period`].
    pub fn resync_period(self, period: Duration) -> HandlerOptions {
        HandlerOptions { resync: Some(period), ..self }
    }
}

impl Default for HandlerOptions {
    fn default() -> HandlerOptions {
        HandlerOptions::new()
    }
}
