//! Rate limiters decide when a key that failed may be tried again.

#![forbid(unsafe_code)]

use super::interned::{Interner, KeyHandle};
use crate::sync::Lock;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Decides how long a key waits before it is tried again. Several threads may call it at once, without holding a lock
/// of the queue, so a limiter may read the queue. A limiter with state needs its own lock.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::Mutex;
/// use std::time::{Duration, Instant};
/// use watchcore_toolkit::{RateLimiter, WorkQueue};
///
/// /// The third try is the last one that is soon.
/// #[derive(Default)]
/// struct Thrice(Mutex<HashMap<u32, u32>>);
/// impl RateLimiter<u32> for Thrice {
///     fn delay(&self, key: &u32, _now: Instant) -> Duration {
///         let mut all = self.0.lock().unwrap();
///         let tries = all.entry(*key).or_default();
///         *tries += 1;
///         if *tries < 3 { Duration::ZERO } else { Duration::from_secs(3600) }
///     }
///     fn forget(&self, key: &u32) {
///         self.0.lock().unwrap().remove(key);
///     }
///     fn requeues(&self, key: &u32) -> u32 {
///         self.0.lock().unwrap().get(key).copied().unwrap_or(0)
///     }
/// }
/// let queue = WorkQueue::builder().limiter(Thrice::default()).build();
/// queue.add_rate_limited(7);
/// assert_eq!((queue.len(), queue.requeues(&7)), (1, 1));
/// ```
pub trait RateLimiter<K>: Send + Sync {
    /// Counts a failure of the key, and returns how long the key waits from `now` on.
    fn delay(&self, key: &K, now: Instant) -> Duration;

    /// Resets a key that has succeeded, or is given up, to one that never failed.
    fn forget(&self, key: &K);

    /// The number of failures of the key since `forget`.
    fn requeues(&self, key: &K) -> u32;
}

impl<K, L: RateLimiter<K> + ?Sized> RateLimiter<K> for Box<L> {
    fn delay(&self, key: &K, now: Instant) -> Duration {
        (**self).delay(key, now)
    }

    fn forget(&self, key: &K) {
        (**self).forget(key);
    }

    fn requeues(&self, key: &K) -> u32 {
        (**self).requeues(key)
    }
}

/// Doubles the delay with each failure of a key. It stores each key that has failed and was not
/// forgotten, with a number.
///
/// ```
/// use std::time::{Duration, Instant};
/// use watchcore_toolkit::{ExponentialLimiter, RateLimiter};
///
/// let limiter = ExponentialLimiter::new(Duration::from_millis(1), Duration::from_secs(1));
/// let now = Instant::now();
/// let delays = [0; 4].map(|_| limiter.delay(&"a", now).as_millis());
/// assert_eq!((delays, limiter.requeues(&"a")), ([1, 2, 4, 8], 4));
/// limiter.forget(&"a");
/// assert_eq!(limiter.delay(&"a", now).as_millis(), 1);
/// ```
pub struct ExponentialLimiter<K> {
    first: Duration,
    most: Duration,
    keys: Interner<K>,
    failures: Lock<HashMap<KeyHandle<K>, u32>>,
}

impl<K: Eq + Hash + Clone + Send + Sync> ExponentialLimiter<K> {
    /// A limiter with the delay `first` after the first failure, and at most `most`.
    pub fn new(first: Duration, most: Duration) -> ExponentialLimiter<K> {
        ExponentialLimiter { first, most, keys: Interner::new(), failures: Lock::default() }
    }

    /// Counts a failure, and returns the number of earlier ones.
    fn count(&self, key: &K) -> u32 {
        // A key that has failed before is not cloned.
        let key = self.keys.find(key).unwrap_or_else(|| self.keys.intern(key.clone()));
        let mut all = self.failures.lock();
        let failures = all.entry(key.clone()).or_default();
        let before = *failures;
        *failures = before.saturating_add(1);
        drop(all);
        before
    }
}

impl<K: Eq + Hash + Clone + Send + Sync> RateLimiter<K> for ExponentialLimiter<K> {
    fn delay(&self, key: &K, _: Instant) -> Duration {
        let failures = self.count(key).min(1000) as i32;
        let delay = Duration::try_from_secs_f64(self.first.as_secs_f64() * 2f64.powi(failures));
        delay.map_or(self.most, |delay| delay.min(self.most))
    }

    fn forget(&self, key: &K) {
        let Some(key) = self.keys.find(key) else { return };
        let mut failures = self.failures.lock();
        // The caller's handle keeps the key alive, so the key is dropped after the lock is released.
        failures.remove(&key);
        // A burst of failed keys leaves no capacity behind after all have succeeded.
        if failures.capacity() > 4 * failures.len().max(64) {
            let room = 2 * failures.len().max(32);
            failures.shrink_to(room);
        }
        drop(failures);
        drop(key);
    }

    fn requeues(&self, key: &K) -> u32 {
        self.keys.find(key).and_then(|key| self.failures.lock().get(&key).copied()).unwrap_or(0)
    }
}

impl<K> fmt::Debug for ExponentialLimiter<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExponentialLimiter")
            .field("first", &self.first)
            .field("most", &self.most)
            .field("keys", &self.failures.lock().len())
            .finish()
    }
}

/// Limits the rate over all keys, after a burst. A key that finds the bucket empty waits for its token.
///
/// ```
/// use std::time::Instant;
/// use watchcore_toolkit::{RateLimiter, TokenBucket};
///
/// let (bucket, now) = (TokenBucket::new(10.0, 2), Instant::now());
/// let delays = [0; 4].map(|_| bucket.delay(&"a", now).as_millis());
/// assert_eq!(delays, [0, 0, 100, 200]);
/// ```
pub struct TokenBucket {
    per_second: f64,
    burst: f64,
    level: Lock<BucketLevel>,
}

struct BucketLevel {
    /// Negative: the number of keys that wait for tokens.
    tokens: f64,
    filled: Option<Instant>,
}

impl TokenBucket {
    /// `per_second` tokens a second, of which at most `burst` are saved up. A rate that is not
    /// above zero counts as one per hour.
    pub fn new(per_second: f64, burst: u32) -> TokenBucket {
        let per_second = if per_second > 0.0 { per_second } else { 1.0 / 3600.0 };
        let level = BucketLevel { tokens: f64::from(burst), filled: None };
        TokenBucket { per_second, burst: f64::from(burst), level: Lock::new(level) }
    }
}

/// The longest delay of a token bucket, if its rate is low or many keys wait.
const LONGEST: Duration = Duration::from_secs(86400);

impl<K> RateLimiter<K> for TokenBucket {
    fn delay(&self, _: &K, now: Instant) -> Duration {
        let tokens = {
            let mut level = self.level.lock();
            // Two threads may have read the clock in the other order.
            let passed = level.filled.map_or(Duration::ZERO, |filled| now.saturating_duration_since(filled));
            level.filled = level.filled.max(Some(now));
            level.tokens = (level.tokens + passed.as_secs_f64() * self.per_second).min(self.burst) - 1.0;
            level.tokens
        };
        if tokens >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-tokens / self.per_second).map_or(LONGEST, |delay| delay.min(LONGEST))
    }

    fn forget(&self, _: &K) {}

    fn requeues(&self, _: &K) -> u32 {
        0
    }
}

impl fmt::Debug for TokenBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenBucket")
            .field("per_second", &self.per_second)
            .field("burst", &self.burst)
            .finish_non_exhaustive()
    }
}

/// Waits for the longest delay of several limiters. Each of them counts each failure.
///
/// ```
/// use std::time::{Duration, Instant};
/// use watchcore_toolkit::{ExponentialLimiter, LongestDelay, RateLimiter, TokenBucket};
///
/// let each = ExponentialLimiter::new(Duration::from_millis(5), Duration::from_secs(1000));
/// let limiter = LongestDelay::new([Box::new(each) as Box<dyn RateLimiter<u8>>, Box::new(TokenBucket::new(10.0, 1))]);
/// let now = Instant::now();
/// assert_eq!([0; 2].map(|_| limiter.delay(&1, now).as_millis()), [5, 100]);
/// ```
pub struct LongestDelay<K>(Vec<Box<dyn RateLimiter<K>>>);

impl<K> LongestDelay<K> {
    /// Combines these limiters.
    pub fn new(limiters: impl IntoIterator<Item = Box<dyn RateLimiter<K>>>) -> LongestDelay<K> {
        LongestDelay(limiters.into_iter().collect())
    }
}

impl<K> RateLimiter<K> for LongestDelay<K> {
    fn delay(&self, key: &K, now: Instant) -> Duration {
        self.0.iter().map(|limiter| limiter.delay(key, now)).max().unwrap_or_default()
    }

    fn forget(&self, key: &K) {
        for limiter in &self.0 {
            limiter.forget(key);
        }
    }

    fn requeues(&self, key: &K) -> u32 {
        self.0.iter().map(|limiter| limiter.requeues(key)).max().unwrap_or(0)
    }
}

impl<K> fmt::Debug for LongestDelay<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LongestDelay").field("of", &self.0.len()).finish()
    }
}
