//! A broadcaster distributes objects that the program publishes to many watchers.
//!
//! It is the log of an embedded cache with one key. Publishing an object writes one revision, however many watchers
//! there are; a watcher is a cursor in that log, and objects are shared by count. The watcher that takes computes the
//! effect of its `queue` (`queue.rs`), and the two sides interact only if a publisher has to wait (`gate.rs`). The
//! crate's documentation compares the names with apimachinery's.

#![forbid(unsafe_code)]

mod gate;
mod log;
#[cfg(all(test, toolkit_loom))]
mod loom;
mod many;
mod options;
mod queue;
mod shared;
mod watcher;

pub use log::Action;
pub use many::BroadcastEvent;
pub use options::{BroadcasterBuilder, WatchOptions, WhenFull};
pub use watcher::BroadcastWatch;

use crate::event::{Status, WatchEvent};
use crate::object::Object;
use crate::park;
use gate::{Entered, Gate, Ticket};
use log::{Keys, ObjectLog, Publication, objects_of};
use shared::Shared;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use watchcore::{Code, Error, OnLag, Position, Result, Start, Stats};

/// Publishes objects of one type to any number of watchers.
///
/// Share it between threads in an `Arc`. Publishers are served one after the other, in order.
/// Dropping it shuts it down.
///
/// An object is shared, not cloned, and lives until it has left the log (whose window is at least four times the queue,
/// and at least 96 events) and nobody uses it; then a thread of the library drops it, so its `Drop` should not wait.
///
/// ```
/// use std::time::Duration;
/// use watchcore_toolkit::{Action, Broadcaster, Payload, WatchExt, WhenFull};
///
/// let broadcaster = Broadcaster::new(10, WhenFull::Wait)?;
/// let mut first = broadcaster.watch()?;
/// let mut second = broadcaster.watch()?;
/// broadcaster.action(Action::Added, "a pod".to_owned())?;
/// broadcaster.shutdown();
///
/// for watch in [&mut first, &mut second] {
///     let event = watch.recv(Duration::from_secs(10))?.expect("published before the shutdown");
///     assert_eq!(event.name(), "ADDED");
///     assert_eq!(event.object().unwrap().as_str(), "a pod");
///     assert!(watch.recv(Duration::from_secs(10))?.is_none(), "the end");
/// }
/// # Ok::<(), watchcore::Error>(())
/// ```
pub struct Broadcaster<T> {
    shared: Arc<Shared<T>>,
    keys: Option<Keys<T>>,
}

/// A publisher that may wait. Dropping it leaves the line.
struct InLine<'a, S> {
    gate: &'a Gate<S>,
    ticket: Ticket,
}

impl<S> Drop for InLine<'_, S> {
    fn drop(&mut self) {
        self.gate.leave(&mut self.ticket);
    }
}

fn stopped(what: &str) -> Error {
    Error::new(Code::Closed, format!("{what}: broadcaster already stopped. Make a new one."))
}

impl<T: Send + Sync + 'static> BroadcasterBuilder<T> {
    /// Makes the broadcaster. The errors are those of [`Broadcaster::new`].
    pub fn build(self) -> Result<Broadcaster<T>> {
        Broadcaster::with(&self.name, self.defaults, self.history, self.keys)
    }
}

impl<T: Send + Sync + 'static> Broadcaster<T> {
    /// Makes a broadcaster whose watchers have queues of `queue` events, with the given rule for
    /// full queues. RESOURCE_EXHAUSTED if the system cannot start a thread for the first cache of
    /// the process; INVALID_ARGUMENT for a queue above 2^28.
    pub fn new(queue: usize, when_full: WhenFull) -> Result<Broadcaster<T>> {
        Broadcaster::builder(queue, when_full).build()
    }

    /// Makes a broadcaster with more options: history, name, keys of the objects.
    pub fn builder(queue: usize, when_full: WhenFull) -> BroadcasterBuilder<T> {
        BroadcasterBuilder::new(WatchOptions::new(queue, when_full))
    }

    fn with(name: &str, defaults: WatchOptions, history: usize, keys: Option<Keys<T>>) -> Result<Broadcaster<T>> {
        let window = options::window(&defaults, history)?;
        // Segments are evicted as a whole, and the newest may be empty: at least 3/4 of the capacity stay.
        let log = ObjectLog::new(name, (window / 3 * 4 + 4).max(128))?;
        let epoch = log.position().epoch;
        let shared = Shared {
            gate: Gate::new(Some(log)),
            head: AtomicU64::new(0),
            failed: OnceLock::new(),
            defaults,
            window: window as u64,
            epoch,
            watchers: AtomicUsize::new(0),
        };
        Ok(Broadcaster { shared: Arc::new(shared), keys })
    }

    /// Opens a watch of everything that is published from now on. CLOSED after the shutdown. It
    /// never waits for watchers or publishers.
    pub fn watch(&self) -> Result<BroadcastWatch<T>> {
        self.watch_with(self.shared.defaults)
    }

    /// Opens a watch with its own queue and rule. INVALID_ARGUMENT if the queue is longer than the
    /// log: see [`BroadcasterBuilder::history`].
    pub fn watch_with(&self, options: WatchOptions) -> Result<BroadcastWatch<T>> {
        self.open("watch", options, None, Vec::new())
    }

    /// Opens a watch that delivers these events first, then everything that is published from now
    /// on. Its queue has room for one event more than these.
    pub fn with_prefix(&self, events: impl IntoIterator<Item = WatchEvent<T>>) -> Result<BroadcastWatch<T>> {
        self.with_prefix_and(self.shared.defaults, events)
    }

    /// [`Broadcaster::with_prefix`] with its own queue and rule.
    pub fn with_prefix_and(
        &self,
        options: WatchOptions,
        events: impl IntoIterator<Item = WatchEvent<T>>,
    ) -> Result<BroadcastWatch<T>> {
        self.open("watch with a prefix", options, None, objects_of(events, self.keys.as_ref())?)
    }

    /// Opens a watch of everything after a position, which is that of an event. COMPACTED (410) if that has left the log;
    /// FUTURE_REVISION if it was not published yet. Its queue has room for one event more than it begins with, as far as
    /// the log's history goes.
    pub fn after(&self, position: impl Into<Position>) -> Result<BroadcastWatch<T>> {
        self.after_with(self.shared.defaults, position)
    }

    /// [`Broadcaster::after`] with its own queue and rule.
    pub fn after_with(&self, options: WatchOptions, position: impl Into<Position>) -> Result<BroadcastWatch<T>> {
        self.open("watch after a revision", options, Some(position.into()), Vec::new())
    }

    fn open(
        &self,
        what: &str,
        options: WatchOptions,
        after: Option<Position>,
        prefix: Vec<WatchEvent<Object<T>>>,
    ) -> Result<BroadcastWatch<T>> {
        options.check(self.shared.window)?;
        // Nothing is published while the lock is held, so the start is exact.
        let mut line = self.shared.gate.lock();
        let last = line.last;
        if line.is_closed() {
            return Err(stopped(what));
        }
        let Some(log) = &line.state else { return Err(stopped(what)) };
        let taken = after.map_or(last, |position| position.revision);
        if taken > last {
            return Err(Error::new(
                Code::FutureRevision,
                format!("{what}: {taken} is above {last}, the last that was published. Begin there, or below."),
            )
            .with_asked(taken)
            .with_current(last));
        }
        let start = after.map_or(Start::Now, Start::AfterIn);
        let subscription = log.cache().subscribe(start).on_lag(OnLag::SkipToOldest).open()?;
        let allowance = options.allowance_beside(prefix.len() as u64, last - taken, self.shared.window);
        let member = options.waits().then(|| line.add_member(taken, allowance));
        drop(line);
        Ok(BroadcastWatch::new(&self.shared, subscription, member, options, taken..last, prefix))
    }

    /// Publishes an object, and returns its revision. Waits while a [`WhenFull::Wait`] watcher is
    /// behind by its queue and 26 more.
    ///
    /// CLOSED after the shutdown, also during the wait. Blocks the thread; on threads that run tasks, use
    /// [`Broadcaster::action_async`]. A watcher's consumer may call it, too, because the event that it handles counts
    /// as taken. O(1), and once per `queue` events O([`WhenFull::Wait`] watchers).
    pub fn action(&self, action: Action, object: T) -> Result<u64> {
        let mut publication = self.publication(action, object)?;
        match self.try_publish(&mut publication) {
            Entered::Done(result) => result,
            Entered::Closed => Err(stopped("publish")),
            Entered::Full => {
                let published = park::block_on_future(Duration::MAX, self.publish(publication));
                published.unwrap_or_else(|| unreachable!("there is no timeout"))
            }
        }
    }

    /// [`Broadcaster::action`] as a future. While it waits, it is in line before later publishers,
    /// so poll it or drop it. If it is dropped, nothing is published.
    pub fn action_async(&self, action: Action, object: T) -> impl Future<Output = Result<u64>> + Send {
        let publication = self.publication(action, object);
        async move { self.publish(publication?).await }
    }

    /// Publishes an object unless it would have to wait for a watcher, or another publisher waits.
    /// Returns whether it was published; CLOSED after the shutdown.
    pub fn action_or_drop(&self, action: Action, object: T) -> Result<bool> {
        match self.try_publish(&mut self.publication(action, object)?) {
            Entered::Done(result) => result.map(|_| true),
            Entered::Full => Ok(false),
            Entered::Closed => Err(stopped("publish")),
        }
    }

    fn publication(&self, action: Action, object: T) -> Result<Publication<T>> {
        Publication::new(action, object, self.keys.as_ref())
    }

    fn try_publish(&self, publication: &mut Publication<T>) -> Entered<u64, Error> {
        self.shared.gate.try_enter(|log, number| self.push(log, number, publication))
    }

    async fn publish(&self, mut publication: Publication<T>) -> Result<u64> {
        let mut publisher = InLine { gate: &self.shared.gate, ticket: Ticket::default() };
        let entered = poll_fn(|context| {
            let InLine { gate, ticket } = &mut publisher;
            gate.poll_enter(ticket, context, |log, number| self.push(log, number, &mut publication))
        });
        entered.await.unwrap_or_else(|| Err(stopped("publish")))
    }

    /// Runs under the gate's lock.
    fn push(&self, log: &mut Option<ObjectLog<T>>, number: u64, publication: &mut Publication<T>) -> Result<u64> {
        let Some(log) = log else { return Err(stopped("publish")) };
        self.shared.head.store(number, Ordering::Release);
        log.push(number, publication).map(|()| number)
    }

    /// The number of open watches.
    pub fn watchers(&self) -> usize {
        self.shared.watchers.load(Ordering::Relaxed)
    }

    /// The position of the last event: a watch opened by [`Broadcaster::after`] with it receives the following events.
    pub fn position(&self) -> Position {
        Position { epoch: self.shared.epoch, revision: self.shared.gate.lock().last }
    }

    /// The statistics of the log; `None` after the shutdown.
    pub fn stats(&self) -> Option<Stats> {
        self.shared.gate.lock().state.as_ref().map(ObjectLog::stats)
    }
}

impl<T> Broadcaster<T> {
    /// Ends the broadcaster. Watchers receive all earlier events, then the end; waiting publishers
    /// get CLOSED. Never waits, and may be called repeatedly.
    pub fn shutdown(&self) {
        self.end(None);
    }

    /// [`Broadcaster::shutdown`] with an error as the last event of every watch.
    pub fn shutdown_with(&self, status: impl Into<Status>) {
        self.end(Some(status.into()));
    }

    fn end(&self, status: Option<Status>) {
        let shared = &self.shared;
        let ended = shared.gate.close(|log, number| {
            if let Some(status) = status {
                // This is set before the last revision, at which watchers look for it.
                let _ = shared.failed.set(status);
            }
            let mut log = log.take()?;
            let ended = log.end(number);
            Some((log, ended))
        });
        // The writer and the last handle of the cache are dropped after the lock is released.
        if let Some(Some((_log, Err(error)))) = ended {
            tracing::error!(%error, "a broadcaster could not publish its end; its watchers end with an error");
        }
    }
}

impl<T> Drop for Broadcaster<T> {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl<T> fmt::Debug for Broadcaster<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broadcaster")
            .field("published", &self.shared.gate.lock().last)
            .field("watchers", &self.shared.watchers.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}
