//! Time as the toolkit sees it: the system's, or one that a test moves by hand.

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

/// Where delays come from.
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

    /// A future that is ready at a point of time; at once where that has passed. A clock that is moved by hand gives its
    /// own: in this one it may be moved between the look and the delay, which is then too late by as much.
    fn delay_until(&self, at: Instant) -> Delay {
        self.delay(at.saturating_duration_since(self.now()))
    }
}

/// Ready so long after `from`, a look at the clock: it may have been moved since. A moment that the clock cannot hold never
/// comes.
pub(crate) fn delay_from(clock: &dyn Clock, from: Instant, wait: Duration) -> Delay {
    match from.checked_add(wait) {
        Some(at) => clock.delay_until(at),
        None => Delay::new(std::future::pending()),
    }
}

/// A future that is ready when its time has come. Dropping it is no error.
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
    /// A delay made of any future, for clocks of one's own.
    pub fn new(future: impl Future<Output = ()> + Send + 'static) -> Delay {
        Delay(Box::pin(future))
    }

    /// Blocks the thread until its time has come.
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

/// The system's clock. Its delays are kept by one thread of the process, which the first of them starts; where the system
/// starts none, a delay panics when it is polled.
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

/// A clock that stands still until it is moved: for tests.
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
    /// Notified when a sleeper came.
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
    /// A clock that begins at the system's time.
    pub fn new() -> ManualClock {
        let sleepers = Sleepers { now: Instant::now(), next_number: 0, waiting: BTreeMap::new() };
        ManualClock { shared: Arc::new(ManualTime { sleepers: Lock::new(sleepers), came: Notify::new() }) }
    }

    /// Moves time on, and wakes whose time has come. Beyond what a clock can hold: until the last that is waited for.
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

    /// How many delays are waited for now.
    pub fn sleepers(&self) -> usize {
        self.shared.lock().waiting.len()
    }

    /// How long it is until the first of them is due.
    pub fn next_due(&self) -> Option<Duration> {
        let sleepers = self.shared.lock();
        sleepers.waiting.keys().next().map(|(due, _)| *due - sleepers.now)
    }

    /// Blocks until so many delays are waited for; whether that was so within the (real) timeout.
    pub fn wait_for_sleepers(&self, count: usize, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let came = self.shared.came.listen();
            if self.sleepers() >= count {
                return true;
            }
            if !came.wait(deadline) {
                return self.sleepers() >= count;
            }
        }
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

/// One delay of a [`ManualClock`]: known to it from its first poll to its end.
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
        // Behind the lock: it is the program's.
        drop(waker);
    }
}
