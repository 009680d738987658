//! The work queue passes keys from an informer's handlers to the workers that reconcile.
//!
//! Handlers add keys, and workers take them. A key is in the queue once, however often it was added, and two workers
//! never have the same key. A failed key is added again, with a delay that grows with each failure.
//!
//! The life of a key: `add` appends it to the queue. `get` takes it from the front and returns a
//! [`WorkItem`]. If it is added meanwhile, this is remembered until the item is dropped, and the
//! key is appended again. `retry` counts a failure: the key waits for its delay, and is then added.
//!
//! # Threads
//!
//! One lock protects all keys. No thread holds it while it waits, or while it calls foreign code: a waker, the limiter,
//! the clock, a key. A queue has no thread: all waiting workers share one timer for delayed keys, and the worker that
//! it wakes moves due keys and sets the timer again before it leaves.

#![forbid(unsafe_code)]

mod interned;
mod limit;
mod state;

pub use limit::{ExponentialLimiter, LongestDelay, RateLimiter, TokenBucket};

use crate::clock::{Clock, Delay, SystemClock};
use crate::foreign::{Guarded, Notify, guard};
use crate::park;
use crate::sync::{Lock, LockGuard};
use interned::{Interner, KeyHandle};
use state::QueueState;
use std::fmt;
use std::hash::Hash;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};
use watchcore::{Code, Error, Result};

/// The delay of a key whose limiter panicked: the key is neither lost, nor tried again without a pause.
const UNLIMITED: Duration = Duration::from_secs(60);

/// A queue of keys for workers: each key once, never two workers at one key, failed keys again after a delay.
///
/// Clones refer to the same queue. Only `get` and the drains wait. All calls are O(1), except that
/// delaying a key is O(log delayed keys). Adding a key that is there already allocates nothing.
///
/// ```
/// use std::time::Duration;
/// use watchcore_toolkit::WorkQueue;
///
/// let queue = WorkQueue::new();
/// queue.add("a");
/// queue.add("b");
/// queue.add("a"); // is there already
/// let item = queue.get(Duration::from_secs(1))?.unwrap();
/// assert_eq!(*item, "a");
/// queue.add("a"); // while it is processed: it comes again afterwards
/// assert_eq!(queue.len(), 1);
/// drop(item); // done
/// assert_eq!(queue.len(), 2);
///
/// queue.shut_down();
/// while let Some(item) = queue.get(Duration::from_secs(1))? {
///     item.forget(); // succeeded
/// }
/// # Ok::<(), watchcore::Error>(())
/// ```
pub struct WorkQueue<K: Eq + Hash + Clone + Send + Sync + 'static> {
    shared: Arc<QueueShared<K>>,
}

struct QueueShared<K> {
    state: Lock<QueueState<K>>,
    keys: Interner<K>,
    limiter: Box<dyn RateLimiter<K>>,
    /// Notified once for each key that can be taken, and by everything that ends a wait for one.
    came: Notify,
    /// Notified when there may be no key left.
    drained: Notify,
    /// The timer for the earliest delayed key; `None` also while a thread has taken it out to poll it.
    timer: Lock<Option<(Instant, Delay)>>,
    clock: Arc<dyn Clock>,
}

impl<K> QueueShared<K> {
    fn lock(&self) -> LockGuard<'_, QueueState<K>> {
        self.state.lock()
    }

    /// Calls `change` under the lock, and afterwards drops the keys that have left the tables.
    fn with<T>(&self, change: impl FnOnce(&mut QueueState<K>) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        let removed = state.take_removed();
        drop(state);
        drop(removed);
        result
    }
}

/// The waker of a queue's timer, which wakes a waiting worker to move due keys.
struct QueueTimer<K>(Weak<QueueShared<K>>);

impl<K: Send + Sync> Wake for QueueTimer<K> {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            shared.came.notify(1);
        }
    }
}

/// The counters of a queue.
///
/// ```
/// use std::time::Duration;
/// use watchcore_toolkit::WorkQueue;
///
/// let queue = WorkQueue::new();
/// queue.add(1);
/// queue.add_after(2, Duration::from_secs(60));
/// let stats = queue.stats();
/// assert_eq!((stats.ready, stats.delayed, stats.processing, stats.added), (1, 1, 0, 1));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct QueueStats {
    /// Keys that a worker could take now.
    pub ready: usize,
    /// Keys that workers have taken.
    pub processing: usize,
    /// Keys whose delay is not over.
    pub delayed: usize,
    /// Keys that were added, without those that were there already; delayed keys count when they are due.
    pub added: u64,
    /// Counted failures: calls of [`WorkQueue::add_rate_limited`] for keys that did not wait already.
    pub retries: u64,
}

/// Options of a queue.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use watchcore_toolkit::{ExponentialLimiter, ManualClock, WorkQueue};
///
/// let clock = Arc::new(ManualClock::new());
/// let limiter = ExponentialLimiter::new(Duration::from_secs(1), Duration::from_secs(60));
/// let queue = WorkQueue::builder().clock(clock.clone()).limiter(limiter).build();
/// queue.add_rate_limited("a");
/// assert_eq!(queue.len(), 0);
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(queue.len(), 1);
/// ```
#[must_use = "there is no queue before `build`"]
pub struct WorkQueueBuilder<K> {
    limiter: Box<dyn RateLimiter<K>>,
    clock: Arc<dyn Clock>,
}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> WorkQueueBuilder<K> {
    /// The limiter for failed keys. Default: 5 ms for a key's first failure, doubled up to 1000 s;
    /// and over all keys 10 a second after a burst of 100.
    pub fn limiter(self, limiter: impl RateLimiter<K> + 'static) -> WorkQueueBuilder<K> {
        WorkQueueBuilder { limiter: Box::new(limiter), ..self }
    }

    /// The clock of the delays.
    pub fn clock(self, clock: Arc<dyn Clock>) -> WorkQueueBuilder<K> {
        WorkQueueBuilder { clock, ..self }
    }

    /// Makes the queue.
    pub fn build(self) -> WorkQueue<K> {
        let shared = QueueShared {
            state: Lock::new(QueueState::new()),
            keys: Interner::new(),
            came: Notify::new(),
            drained: Notify::new(),
            timer: Lock::new(None),
            limiter: self.limiter,
            clock: self.clock,
        };
        WorkQueue { shared: Arc::new(shared) }
    }
}

impl<K> fmt::Debug for WorkQueueBuilder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueueBuilder").field("clock", &self.clock).finish_non_exhaustive()
    }
}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> WorkQueue<K> {
    /// A queue with the defaults of [`WorkQueueBuilder`].
    pub fn new() -> WorkQueue<K> {
        WorkQueue::builder().build()
    }

    /// Options of a queue.
    pub fn builder() -> WorkQueueBuilder<K> {
        let each = ExponentialLimiter::new(Duration::from_millis(5), Duration::from_secs(1000));
        let both: [Box<dyn RateLimiter<K>>; 2] = [Box::new(each), Box::new(TokenBucket::new(10.0, 100))];
        WorkQueueBuilder { limiter: Box::new(LongestDelay::new(both)), clock: Arc::new(SystemClock) }
    }

    /// Appends a key to the queue, unless it is there. After a shut-down it does nothing.
    pub fn add(&self, key: K) {
        self.add_counted(&self.shared.keys.intern(key));
    }

    fn add_counted(&self, key: &KeyHandle<K>) {
        if self.shared.with(|state| state.add(key)) {
            self.shared.came.notify_additional(1);
        }
    }

    /// Adds a key after a delay. A key that is delayed already keeps the earlier time.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.add_counted_after(&self.shared.keys.intern(key), delay);
    }

    fn add_counted_after(&self, key: &KeyHandle<K>, delay: Duration) {
        if delay.is_zero() {
            return self.add_counted(key);
        }
        let now = self.shared.clock.now();
        // A time beyond the clock's range is as good as never.
        let at = now.checked_add(delay).unwrap_or_else(|| now + Duration::from_secs(86400 * 365));
        let is_first = self.shared.with(|state| state.add_at(key, at));
        if is_first {
            self.arm();
        }
    }

    /// Counts a failure of the key, and adds the key after the limiter's delay. Only
    /// [`WorkQueue::forget`] resets the count.
    ///
    /// For a key that waits already, in the queue or for its rate limit, the limiter is not called: neither a failure
    /// is counted nor a token taken, however often the key is added until a worker takes it.
    pub fn add_rate_limited(&self, key: K) {
        self.fail(&self.shared.keys.intern(key));
    }

    fn fail(&self, key: &KeyHandle<K>) {
        let Some(claim) = Claim::of(self, key) else { return };
        let delay = self.shared.limiter.delay(key, self.shared.clock.now());
        self.shared.lock().retries += 1;
        claim.keep();
        self.add_counted_after(key, delay);
    }

    /// Resets the failures of a key that has succeeded, or is given up. The key stays in the queue if it is there.
    pub fn forget(&self, key: &K) {
        self.shared.limiter.forget(key);
    }

    /// The number of failures of the key since `forget`.
    pub fn requeues(&self, key: &K) -> u32 {
        self.shared.limiter.requeues(key)
    }

    /// Takes the next key, and waits for one at most for the timeout (`Duration::MAX`: for ever).
    /// `None`: the queue was shut down, and all keys were taken. TIMEOUT if no key came.
    pub fn get(&self, timeout: Duration) -> Result<Option<WorkItem<K>>> {
        park::block_on_future(timeout, self.next()).ok_or_else(|| {
            Error::new(
                Code::Timeout,
                format!("take a key of the work queue: none within {} ms. Ask again.", timeout.as_millis()),
            )
        })
    }

    /// Takes the next key, if there is one now. `Pending` means not yet; `Ready(None)` that the
    /// queue was shut down and all keys were taken.
    pub fn try_get(&self) -> Poll<Option<WorkItem<K>>> {
        let now = self.shared.clock.now();
        let (key, shut_down) = self.shared.with(|state| {
            state.move_due(now);
            (state.take(), state.shut_down)
        });
        match key {
            Some(key) => Poll::Ready(Some(WorkItem { queue: self.clone(), key: Some(key) })),
            None if shut_down => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    /// Takes the next key, and waits for one. `None`: the queue was shut down, and all keys were taken. Cancel safe.
    pub async fn next(&self) -> Option<WorkItem<K>> {
        loop {
            if let Poll::Ready(item) = self.try_get() {
                self.pass_on();
                return item;
            }
            // Listening starts before the last check, so that no key that comes in between is missed.
            let came = self.shared.came.listen();
            if let Poll::Ready(item) = self.try_get() {
                self.pass_on();
                return item;
            }
            self.arm();
            Guarded::new(came).await;
        }
    }

    /// Called by a worker that leaves with a key, or for good. It may have been woken for several
    /// keys that came at once, and the next delayed key needs the timer.
    fn pass_on(&self) {
        let state = self.shared.lock();
        let (more, delayed) = (state.ready(), state.delayed() > 0);
        drop(state);
        if more > 0 {
            self.shared.came.notify(more);
        }
        if delayed {
            self.arm();
        }
    }

    /// Sets the timer for the earliest delayed key.
    fn arm(&self) {
        let waker = Waker::from(Arc::new(QueueTimer(Arc::downgrade(&self.shared))));
        let mut armed = None;
        loop {
            let next = self.shared.lock().next_due();
            let Some(due) = next.filter(|due| armed.is_none_or(|armed| *due < armed)) else { return };
            // The timer belongs to the program's clock, so it is polled outside of the lock.
            let timer = self.shared.timer.replace(None);
            let (timer, stale) = match timer {
                Some(timer) if timer.0 == due => (Some(timer), None),
                stale => (None, stale),
            };
            drop(stale);
            let (_, mut delay) = timer.unwrap_or_else(|| (due, self.shared.clock.delay_until(due)));
            if Pin::new(&mut delay).poll(&mut Context::from_waker(&waker)).is_ready() {
                // The delay is over meanwhile: wake a listener, of which the caller is one at least.
                self.shared.came.notify(1);
                return;
            }
            drop(self.set_timer((due, delay)));
            // A key that was delayed meanwhile may be due sooner, and its own call may have found the timer taken out.
            armed = Some(due);
        }
    }

    /// Puts a timer back, unless another thread has set one that is due sooner. Returns the other one.
    fn set_timer(&self, timer: (Instant, Delay)) -> Option<(Instant, Delay)> {
        let mut set = self.shared.timer.lock();
        match &*set {
            Some((sooner, _)) if *sooner <= timer.0 => Some(timer),
            _ => set.replace(timer),
        }
    }

    /// The number of keys that a worker could take now.
    pub fn len(&self) -> usize {
        let now = self.shared.clock.now();
        self.shared.with(|state| {
            state.move_due(now);
            state.ready()
        })
    }

    /// Whether a worker would have to wait now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The counters of the queue.
    pub fn stats(&self) -> QueueStats {
        let now = self.shared.clock.now();
        self.shared.with(|state| {
            state.move_due(now);
            QueueStats {
                ready: state.ready(),
                processing: state.processing(),
                delayed: state.delayed(),
                added: state.added,
                retries: state.retries,
            }
        })
    }

    /// Refuses new keys. The remaining keys can still be taken, then [`WorkQueue::get`] returns `None`. Delayed keys
    /// are dropped, and their number is returned. Never waits; repeated calls have no effect.
    pub fn shut_down(&self) -> usize {
        let now = self.shared.clock.now();
        let dropped = self.shared.with(|state| {
            state.move_due(now);
            state.shut_down()
        });
        drop(self.shared.timer.replace(None));
        self.shared.came.notify(usize::MAX);
        self.shared.drained.notify(usize::MAX);
        dropped
    }

    /// Shuts down, and waits until all keys were taken and are done, at most for the timeout. A key
    /// that was added while a worker had it is processed once more. TIMEOUT says how many are left.
    /// A worker must not call it while it has an item, because it would wait for itself.
    pub fn shut_down_with_drain(&self, timeout: Duration) -> Result<()> {
        park::block_on_future(timeout, self.drain()).ok_or_else(|| {
            let stats = self.stats();
            let (ready, processing) = (stats.ready, stats.processing);
            Error::new(
                Code::Timeout,
                format!(
                    "shut down the work queue: after {} ms {processing} keys are being processed and {ready} wait for a worker. \
                     Wait for longer, or let the workers end.",
                    timeout.as_millis()
                ),
            )
        })
    }

    /// Shuts down, and waits until all keys were taken and are done. Cancel safe; the queue stays shut down.
    pub async fn drain(&self) {
        self.shut_down();
        self.shared.drained.wait_for_async(|| self.shared.lock().is_drained().then_some(())).await;
    }

    fn done(&self, key: &KeyHandle<K>) {
        let (again, drained) = self.shared.with(|state| {
            let again = state.done(key);
            (again, state.shut_down && state.is_drained())
        });
        if again {
            self.shared.came.notify_additional(1);
        }
        if drained {
            self.shared.drained.notify(usize::MAX);
        }
    }
}

/// Records that a key is passed to the limiter. If it is dropped without [`Claim::keep`], because
/// the limiter panicked, the key may be passed again.
struct Claim<'a, K: Eq + Hash + Clone + Send + Sync + 'static> {
    queue: &'a WorkQueue<K>,
    key: Option<&'a KeyHandle<K>>,
}

impl<'a, K: Eq + Hash + Clone + Send + Sync + 'static> Claim<'a, K> {
    fn of(queue: &'a WorkQueue<K>, key: &'a KeyHandle<K>) -> Option<Claim<'a, K>> {
        let is_granted = queue.shared.lock().claim(key);
        // The claim is made only if it was granted, because its drop gives it back.
        is_granted.then(|| Claim { queue, key: Some(key) })
    }

    fn keep(mut self) {
        self.key = None;
    }
}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> Drop for Claim<'_, K> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.queue.shared.with(|state| state.unclaim(key));
        }
    }
}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> Clone for WorkQueue<K> {
    fn clone(&self) -> WorkQueue<K> {
        WorkQueue { shared: Arc::clone(&self.shared) }
    }
}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> Default for WorkQueue<K> {
    fn default() -> WorkQueue<K> {
        WorkQueue::new()
    }
}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> fmt::Debug for WorkQueue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.stats();
        f.debug_struct("WorkQueue")
            .field("ready", &stats.ready)
            .field("processing", &stats.processing)
            .field("delayed", &stats.delayed)
            .finish()
    }
}

/// A key that a worker has taken. Dropping it marks the key as done: no other worker gets the key before.
///
/// If a panic drops it, the work was not done, and the key is tried again as by
/// [`WorkItem::retry`], or after a minute if the limiter panics, too.
///
/// ```
/// use std::time::Duration;
/// use watchcore_toolkit::{WorkItem, WorkQueue};
///
/// fn reconcile(_key: &str) -> Result<(), std::io::Error> { Ok(()) }
///
/// fn work(item: WorkItem<String>) {
///     match reconcile(&item) {
///         Ok(()) => item.forget(),
///         Err(_) => item.retry(), // later with each failure
///     }
/// }
/// let queue = WorkQueue::new();
/// queue.add("a".to_owned());
/// work(queue.get(Duration::from_secs(1))?.unwrap());
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "a key that is dropped at once is done"]
pub struct WorkItem<K: Eq + Hash + Clone + Send + Sync + 'static> {
    queue: WorkQueue<K>,
    /// `None` only during the drop.
    key: Option<KeyHandle<K>>,
}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> WorkItem<K> {
    /// Ends the work: the key has succeeded, or is given up, and its failures are reset.
    pub fn forget(self) {
        self.queue.forget(&self);
    }

    /// Ends the work as failed: counts the failure, and adds the key again after the limiter's delay.
    pub fn retry(self) {
        if let Some(key) = &self.key {
            self.queue.fail(key);
        }
    }

    /// Ends the work, and adds the key again after a delay, without counting a failure.
    pub fn retry_after(self, delay: Duration) {
        if let Some(key) = &self.key {
            self.queue.add_counted_after(key, delay);
        }
    }
}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> Deref for WorkItem<K> {
    type Target = K;

    fn deref(&self) -> &K {
        self.key.as_ref().expect("taken only by drop")
    }
}

impl<K: Eq + Hash + Clone + Send + Sync + 'static> Drop for WorkItem<K> {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else { return };
        if !thread::panicking() {
            return self.queue.done(&key);
        }
        // A second panic would abort the process here, and these calls are foreign code: the limiter, the clock, the
        // key's own traits. The panic in progress may come from the limiter.
        if guard("the limiter of a work queue", || self.queue.fail(&key)).is_err() {
            // The guards have logged any panic.
            let _ = guard("a key of a work queue", || self.queue.add_counted_after(&key, UNLIMITED));
        }
        let _ = guard("a key of a work queue", || {
            self.queue.done(&key);
            drop(key);
        });
    }
}

impl<K: Eq + Hash + Clone + Send + Sync + fmt::Debug + 'static> fmt::Debug for WorkItem<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkItem").field(&self.key.as_deref()).finish()
    }
}
