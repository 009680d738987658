//! How long to wait before the next try.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(800);
const MOST: Duration = Duration::from_secs(30);
const CALM: Duration = Duration::from_secs(120);

/// Delays that grow from failure to failure, with jitter, and begin anew after a calm time.
///
/// The default is that of the Kubernetes clients: 800 ms, then twice as long each time, at most 30 s, and from the beginning
/// after two minutes without a failure, counted from the end of the delay before. A delay lies between the half of its ceiling
/// and the ceiling, so that many clients that failed at once do not come back at once.
///
/// ```
/// use std::time::{Duration, Instant};
/// use watchcore::Backoff;
///
/// let now = Instant::now();
/// let mut backoff = Backoff::default().with_jitter(0.0);
/// let delays: Vec<u128> = (0..7).map(|_| backoff.next_delay(now, Duration::ZERO).as_millis()).collect();
/// assert_eq!(delays, [800, 1600, 3200, 6400, 12800, 25600, 30000]);
/// let later = now + Duration::from_secs(30 + 121);
/// assert_eq!(backoff.next_delay(later, Duration::ZERO).as_millis(), 800, "it was calm for two minutes");
/// ```
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    factor: f64,
    jitter: f64,
    calm: Duration,
    /// The upper bound of the next delay.
    ceiling: Duration,
    last: Option<Instant>,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff::new(FIRST, MOST)
    }
}

impl Backoff {
    /// From `first` on, twice as long each time, at most `most` (or `first`, where that is longer).
    pub fn new(first: Duration, most: Duration) -> Backoff {
        let most = most.max(first);
        Backoff { first, most, factor: 2.0, jitter: 0.5, calm: CALM, ceiling: first, last: None }
    }

    /// Grows by this factor instead of 2. A factor that is no number, or below 1, counts as 1.
    pub fn with_factor(self, factor: f64) -> Backoff {
        Backoff { factor: if factor >= 1.0 { factor } else { 1.0 }, ..self }
    }

    /// The random part of a delay, from 0 (none) to 1 (all of it) instead of the half.
    pub fn with_jitter(self, jitter: f64) -> Backoff {
        Backoff { jitter: if jitter >= 0.0 { jitter.min(1.0) } else { 0.0 }, ..self }
    }

    /// Begins anew after so long without a failure, instead of two minutes.
    pub fn with_reset_after(self, calm: Duration) -> Backoff {
        Backoff { calm, ..self }
    }

    /// How long to wait after a failure at this time, where the server has asked for `least`, or for nothing. The calm is counted from the end of that
    /// wait: a server that asks for ten minutes each time does not begin anew each time.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use watchcore::Backoff;
    ///
    /// let (now, second) = (Instant::now(), Duration::from_secs(1));
    /// let mut backoff = Backoff::new(second, 60 * second).with_jitter(0.0).with_factor(3.0);
    /// assert_eq!(backoff.next_delay(now, Duration::ZERO), second);
    /// assert_eq!(backoff.next_delay(now, 20 * second), 20 * second, "the server asked for more than 3 s");
    /// assert_eq!(backoff.next_delay(now, Duration::ZERO), 9 * second, "it grew all the same");
    /// backoff.reset();
    /// assert_eq!(backoff.next_delay(now, Duration::ZERO), second);
    /// ```
    pub fn next_delay(&mut self, now: Instant, least: Duration) -> Duration {
        // The calm counts from when the delay before this one was over.
        if self.last.is_some_and(|last| now.saturating_duration_since(last) > self.calm) {
            self.ceiling = self.first;
        }
        let ceiling = self.ceiling;
        let grown = ceiling.as_secs_f64() * self.factor;
        self.ceiling = if grown < self.most.as_secs_f64() { Duration::from_secs_f64(grown) } else { self.most };
        // The longest durations are no seconds of a float: rounded up, they fit no more.
        let drawn = ceiling.as_secs_f64() * (1.0 - self.jitter * fastrand::f64());
        let delay = Duration::try_from_secs_f64(drawn).unwrap_or(ceiling).max(least);
        self.last = now.checked_add(delay);
        delay
    }

    /// Begins anew: for what has succeeded for good.
    pub fn reset(&mut self) {
        self.ceiling = self.first;
        self.last = None;
    }
}
