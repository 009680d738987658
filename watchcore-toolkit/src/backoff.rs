//! How long to wait before the next try.

#![forbid(unsafe_code)]

use crate::clock::{Clock, SystemClock};
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
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
/// use std::sync::Arc;
/// use std::time::Duration;
/// use watchcore_toolkit::{Backoff, ManualClock};
///
/// let clock = Arc::new(ManualClock::new());
/// let mut backoff = Backoff::default().with_clock(clock.clone()).with_jitter(0.0);
/// let delays: Vec<u128> = (0..7).map(|_| backoff.next_delay().as_millis()).collect();
/// assert_eq!(delays, [800, 1600, 3200, 6400, 12800, 25600, 30000]);
/// clock.advance(Duration::from_secs(30 + 121));
/// assert_eq!(backoff.next_delay().as_millis(), 800, "it was calm for two minutes");
/// ```
#[derive(Clone)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    factor: f64,
    jitter: f64,
    calm: Duration,
    clock: Arc<dyn Clock>,
    /// What the next delay is at most.
    ceiling: Duration,
    last: Option<Instant>,
    random: u64,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff::new(FIRST, MOST)
    }
}

impl Backoff {
    /// From `first` on, twice as long each time, at most `most` (or `first`, where that is longer).
    pub fn new(first: Duration, most: Duration) -> Backoff {
        // The standard library's own source of randomness.
        let random = RandomState::new().build_hasher().finish() | 1;
        let most = most.max(first);
        let clock = Arc::new(SystemClock);
        Backoff { first, most, factor: 2.0, jitter: 0.5, calm: CALM, clock, ceiling: first, last: None, random }
    }

    /// Grows by this factor instead of 2. What is no number, or below 1, is 1.
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

    /// Takes the time from this clock.
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Backoff {
        Backoff { clock, ..self }
    }

    /// How long to wait after this failure.
    pub fn next_delay(&mut self) -> Duration {
        self.next_delay_of(Duration::ZERO)
    }

    /// How long to wait after this failure, where the server has asked for `least`. The calm is counted from the end of that
    /// wait: a server that asks for ten minutes each time does not begin anew each time.
    pub fn next_delay_of(&mut self, least: Duration) -> Duration {
        let now = self.clock.now();
        // The calm counts from when the delay before this one was over.
        if self.last.is_some_and(|last| now.saturating_duration_since(last) > self.calm) {
            self.ceiling = self.first;
        }
        let ceiling = self.ceiling;
        let grown = ceiling.as_secs_f64() * self.factor;
        self.ceiling = if grown < self.most.as_secs_f64() { Duration::from_secs_f64(grown) } else { self.most };
        // The longest durations are no seconds of a float: rounded up, they fit no more.
        let drawn = ceiling.as_secs_f64() * (1.0 - self.jitter * self.draw());
        let delay = Duration::try_from_secs_f64(drawn).unwrap_or(ceiling).max(least);
        self.last = now.checked_add(delay);
        delay
    }

    /// Begins anew: for what has succeeded for good.
    pub fn reset(&mut self) {
        self.ceiling = self.first;
        self.last = None;
    }

    /// A number from 0 to 1: xorshift.
    fn draw(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl fmt::Debug for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backoff")
            .field("first", &self.first)
            .field("most", &self.most)
            .field("ceiling", &self.ceiling)
            .finish_non_exhaustive()
    }
}
