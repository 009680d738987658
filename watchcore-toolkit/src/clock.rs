//! Clocks of the toolkit: the system's, and one that a test advances.

#![forbid(unsafe_code)]

use crate::foreign::{Guarded, Notify, wake};
use crate::sync::{Lock, LockGuard};
use futures_timer::Delay as SystemDelay;
use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// A source of the time and of delays.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use watchcore_toolkit::{Clock, ManualClock};
///
/// let clock = Arc::new(ManualClock::new());
/// let before = clock.now();
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!(clock.now() - before, Duration::from_secs(3600));
/// ```
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Instant;

    /// A future that is ready after a duration. Needs no runtime.
    fn delay(&self, duration: Duration) -> Delay;

    /// A future that is ready at a point of time, or at once if that has passed. A manual clock should implement this
    /// itself: the default reads the time first, and would be late if the clock advanced before it makes the delay.
    fn delay_until(&self, at: Instant) -> Delay {
        self.delay(at.saturating_duration_since(self.now()))
    }
}

/// A delay of `wait` from `from`, an earlier reading of the clock, which may have advanced since.
/// If the clock cannot represent the end, the delay never ends.
pub(crate) fn delay_from(clock: &dyn Clock, from: Instant, wait: Duration) -> Delay {
    match from.checked_add(wait) {
        Some(at) => clock.delay_until(at),
        None => Delay::new(std::future::pending()),
    }
}

/// A future that is ready after a delay. It may be dropped at any time.
///
/// ```
/// use std::time::Duration;
/// use watchcore_toolkit::{Clock, SystemClock};
///
/// async fn rest() {
///     SystemClock.delay(Duration::from_millis(5)).await;
/// }
/// ```
pub struct Delay(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Delay {
    /// Makes a delay of any future, for other implementations of [`Clock`].
    pub fn new(future: impl Future<Output = ()> + Send + 'static) -> Delay {
        Delay(Box::pin(future))
    }

    /// Blocks the thread until the delay is over.
    pub fn wait(self) {
        crate::park::block_on_future(Duration::MAX, self);
    }
}

impl Future for Delay {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

impl fmt::Debug for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Delay")
    }
}

/// The system's clock. One thread of the process serves its delays; the first delay starts it. If
/// the system cannot start a thread, a delay panics when it is polled.
///
/// ```
/// use std::time::Duration;
/// use watchcore_toolkit::{Clock, SystemClock};
///
/// let before = SystemClock.now();
/// SystemClock.delay(Duration::from_millis(2)).wait();
/// assert!(SystemClock.now() - before >= Duration::from_millis(2));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn delay(&self, duration: Duration) -> Delay {
        Delay::new(Guarded::new(SystemDelay::new(duration)))
    }
}

/// A clock that stands still until a test advances it.
///
/// ```
/// use std::sync::Arc;
/// use std::thread;
/// use std::time::Duration;
/// use watchcore_toolkit::{Clock, ManualClock};
///
/// let clock = Arc::new(ManualClock::new());
/// let sleeper = thread::spawn({
///     let clock = Arc::clone(&clock);
///     move || clock.delay(Duration::from_secs(30)).wait()
/// });
/// assert!(clock.wait_for_sleepers(1, Duration::from_secs(10)));
/// clock.advance(Duration::from_secs(30));
/// sleeper.join().unwrap();
/// ```
#[derive(Clone)]
pub struct ManualClock {
    shared: Arc<ManualTime>,
}

struct ManualTime {
    sleepers: Lock<Sleepers>,
    /// Notified when a delay is added.
    came: Notify,
}

struct Sleepers {
    now: Instant,
    next_number: u64,
    waiting: BTreeMap<(Instant, u64), Waker>,
}

impl ManualTime {
    fn lock(&self) -> LockGuard<'_, Sleepers> {
        self.sleepers.lock()
    }
}

impl ManualClock {
    /// Makes a clock that starts at the system's time.
    pub fn new() -> ManualClock {
        let sleepers = Sleepers { now: Instant::now(), next_number: 0, waiting: BTreeMap::new() };
        ManualClock { shared: Arc::new(ManualTime { sleepers: Lock::new(sleepers), came: Notify::new() }) }
    }

    /// Advances the time, and wakes the delays that are due. If the time cannot be represented, the
    /// clock stops at the last delay.
    pub fn advance(&self, by: Duration) {
        let due = {
            let mut sleepers = self.shared.lock();
            let last = sleepers.waiting.last_key_value().map_or(sleepers.now, |((due, _), _)| *due);
            let now = sleepers.now.checked_add(by).unwrap_or(last);
            sleepers.now = now;
            let later = sleepers.waiting.split_off(&(now, u64::MAX));
            std::mem::replace(&mut sleepers.waiting, later)
        };
        wake(due.into_values());
    }

    /// The number of delays that are waited for.
    pub fn sleepers(&self) -> usize {
        self.shared.lock().waiting.len()
    }

    /// The time until the first delay is due.
    pub fn next_due(&self) -> Option<Duration> {
        let sleepers = self.shared.lock();
        sleepers.waiting.keys().next().map(|(due, _)| *due - sleepers.now)
    }

    /// Blocks until `count` delays are waited for; returns whether that happened within the (real) timeout.
    pub fn wait_for_sleepers(&self, count: usize, timeout: Duration) -> bool {
        let enough = || (self.sleepers() >= count).then_some(());
        self.shared.came.wait_for(Instant::now().checked_add(timeout), enough).is_some()
    }
}

impl Default for ManualClock {
    fn default() -> ManualClock {
        ManualClock::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock").field("sleepers", &self.sleepers()).finish()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.shared.lock().now
    }

    fn delay(&self, duration: Duration) -> Delay {
        delay_from(self, self.now(), duration)
    }

    fn delay_until(&self, at: Instant) -> Delay {
        let mut sleepers = self.shared.lock();
        sleepers.next_number += 1;
        let number = sleepers.next_number;
        drop(sleepers);
        Delay::new(ManualDelay { shared: Arc::clone(&self.shared), key: (at, number) })
    }
}

/// A delay of a [`ManualClock`], in the clock's table from its first poll to its end.
struct ManualDelay {
    shared: Arc<ManualTime>,
    key: (Instant, u64),
}

impl Future for ManualDelay {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let waker = context.waker().clone();
        let mut sleepers = self.shared.lock();
        let is_over = sleepers.now >= self.key.0;
        let before =
            if is_over { sleepers.waiting.remove(&self.key) } else { sleepers.waiting.insert(self.key, waker) };
        drop(sleepers);
        drop(before);
        if is_over {
            return Poll::Ready(());
        }
        self.shared.came.notify(usize::MAX);
        Poll::Pending
    }
}

impl Drop for ManualDelay {
    fn drop(&mut self) {
        let waker = self.shared.lock().waiting.remove(&self.key);
        // The waker is dropped after the lock is released, because it is foreign code.
        drop(waker);
    }
}
