//! Options of a broadcaster, and of a watch of it.

#![forbid(unsafe_code)]

use super::log::Keys;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use watchcore::{Code, Error, Result};

/// How far a publisher may run ahead of a [`WhenFull::Wait`] watcher beyond its queue: the length
/// of the incoming queue of apimachinery's broadcaster, plus the event that its goroutine is
/// distributing. So a program that publishes and reads on one thread works as it does there.
const INCOMING: u64 = 26;

/// The rule for a watcher that has not taken `queue` events.
///
/// ```
/// use std::task::Poll;
/// use watchcore_toolkit::{Action, Broadcaster, WatchExt, WhenFull};
///
/// let broadcaster = Broadcaster::new(1, WhenFull::Drop)?;
/// let mut watch = broadcaster.watch()?;
/// for number in 1..=3 {
///     broadcaster.action(Action::Added, number)?;
/// }
/// let Poll::Ready(Some(first)) = watch.try_recv() else { panic!("it is there") };
/// assert_eq!(**first.object().unwrap(), 1);
/// assert_eq!(watch.dropped(), 2);
///
/// broadcaster.action(Action::Added, 4)?;
/// let Poll::Ready(Some(next)) = watch.try_recv() else { panic!("there is a place again") };
/// assert_eq!((**next.object().unwrap(), next.lost), (4, 2), "what it lost is said");
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum WhenFull {
    /// Publishers wait until the watcher has taken an event. They may run 26 events further ahead than the queue.
    #[default]
    Wait,
    /// The watcher loses new events, which are counted and reported with the next event that it
    /// takes. A queue of 0 counts as 1.
    Drop,
}

/// Queue and rule of one watch.
///
/// ```
/// use watchcore_toolkit::{Action, Broadcaster, WatchExt, WatchOptions, WhenFull};
///
/// // Publishers wait for nobody, but for one watch that must have everything.
/// let broadcaster = Broadcaster::builder(100, WhenFull::Drop).history(1000).build()?;
/// let audit = broadcaster.watch_with(WatchOptions::new(500, WhenFull::Wait))?;
/// broadcaster.action(Action::Added, "a")?;
/// assert!(broadcaster.watch_with(WatchOptions::new(1_000_000, WhenFull::Drop)).is_err(), "longer than the log");
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatchOptions {
    queue: usize,
    when_full: WhenFull,
}

impl WatchOptions {
    /// A queue of `queue` events, with a rule for when it is full.
    pub fn new(queue: usize, when_full: WhenFull) -> WatchOptions {
        WatchOptions { queue, when_full }
    }

    pub(super) fn queue(&self) -> u64 {
        self.queue as u64
    }

    /// How far a publisher may run ahead of a watcher for which it waits.
    fn allowance(&self) -> u64 {
        self.queue().saturating_add(INCOMING)
    }

    /// The allowance of a watch that begins with events, of a prefix or of the log: these have places, and there is one
    /// more. A log that keeps `window` events bounds it. The places of a prefix are free when it was taken.
    pub(super) fn allowance_beside(&self, prefix: u64, backlog: u64, window: u64) -> u64 {
        let asked = prefix + backlog;
        let places = if asked > 0 { self.queue().max(asked + 1) } else { self.queue() };
        (places - prefix + INCOMING).min(window - 1)
    }

    pub(super) fn waits(&self) -> bool {
        self.when_full == WhenFull::Wait
    }

    /// Whether a log that keeps `window` events is long enough for the queue.
    pub(super) fn check(&self, window: u64) -> Result<()> {
        if self.allowance() < window {
            return Ok(());
        }
        Err(Error::new(
            Code::InvalidArgument,
            format!(
                "watch with a queue of {}: the broadcaster keeps {window} events. Ask for less than {}, or build it with a longer history.",
                self.queue,
                window - INCOMING
            ),
        ))
    }
}

/// The number of events that the log has to keep.
pub(super) fn window(defaults: &WatchOptions, history: usize) -> Result<usize> {
    const MOST: usize = 1 << 30;
    let window =
        defaults.queue.saturating_mul(4).max(defaults.queue.saturating_add(2 * INCOMING as usize)).max(history);
    if window <= MOST {
        return Ok(window);
    }
    Err(Error::new(
        Code::InvalidArgument,
        format!(
            "make a broadcaster with a queue of {} and a history of {history}: the queue may be at most {}, the history {MOST}.",
            defaults.queue,
            MOST / 4
        ),
    ))
}

/// Options of a new [`Broadcaster`](crate::Broadcaster).
///
/// ```
/// use watchcore_toolkit::{Action, Broadcaster, WatchExt, WhenFull};
/// use std::task::Poll;
///
/// let broadcaster = Broadcaster::builder(10, WhenFull::Drop).history(1000).build()?;
/// let first = broadcaster.action(Action::Added, "first")?;
/// broadcaster.action(Action::Modified, "second")?;
/// let mut late = broadcaster.after(first)?;
/// let Poll::Ready(Some(event)) = late.try_recv() else { panic!("it is in the history") };
/// assert_eq!(**event.object().unwrap(), "second");
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "no broadcaster is made before `build`"]
pub struct BroadcasterBuilder<T> {
    pub(super) defaults: WatchOptions,
    pub(super) history: usize,
    pub(super) name: String,
    pub(super) keys: Option<Keys<T>>,
}

impl<T: Send + Sync + 'static> BroadcasterBuilder<T> {
    pub(super) fn new(defaults: WatchOptions) -> BroadcasterBuilder<T> {
        BroadcasterBuilder { defaults, history: 0, name: String::new(), keys: None }
    }

    /// The log keeps at least this number of events (default: four times the queue), for
    /// [`Broadcaster::after`](crate::Broadcaster::after) and for watches with longer queues. Their objects live as long.
    pub fn history(mut self, events: usize) -> BroadcasterBuilder<T> {
        self.history = events;
        self
    }

    /// The name in log lines and metrics.
    pub fn name(mut self, name: impl Into<String>) -> BroadcasterBuilder<T> {
        self.name = name.into();
        self
    }

    /// The keys of the objects, 1 to 1024 bytes each: [`Object::key`](crate::Object::key) returns
    /// them, and adapters that use keys ([`filter_objects`](crate::WatchExt::filter_objects),
    /// [`predicate_filter`](crate::PredicateExt::predicate_filter)) distinguish objects by them.
    /// The publisher calls the function once per object.
    ///
    /// ```
    /// use std::time::Duration;
    /// use watchcore_toolkit::{Action, Broadcaster, Object, WatchExt, WhenFull};
    ///
    /// struct Pod { name: &'static str, node: &'static str }
    ///
    /// let broadcaster = Broadcaster::builder(10, WhenFull::Wait).keys(|pod: &Pod| pod.name).build()?;
    /// let mut here = broadcaster.watch()?.filter_objects(|pod: &Object<Pod>| pod.node == "here");
    /// broadcaster.action(Action::Added, Pod { name: "a", node: "here" })?;
    /// broadcaster.action(Action::Added, Pod { name: "b", node: "there" })?;
    /// broadcaster.action(Action::Modified, Pod { name: "a", node: "there" })?;
    /// for expected in [("ADDED", "a"), ("DELETED", "a")] {
    ///     let event = here.recv(Duration::from_secs(10))?.unwrap();
    ///     assert_eq!((event.name(), event.object().unwrap().name), expected);
    /// }
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn keys<K: Into<Vec<u8>>>(mut self, key: impl Fn(&T) -> K + Send + Sync + 'static) -> BroadcasterBuilder<T> {
        self.keys = Some(AssertUnwindSafe(Arc::new(move |object: &T| key(object).into())));
        self
    }
}

impl<T> fmt::Debug for BroadcasterBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BroadcasterBuilder").field("defaults", &self.defaults).field("history", &self.history).finish()
    }
}
