//! How long to wait before the next try: full jitter, doubling, reset after progress.

use std::time::Duration;

/// Delays drawn evenly from 0 to a ceiling that doubles with each try.
#[derive(Debug)]
pub(super) struct Backoff {
    first: Duration,
    most: Duration,
    tries: u32,
}

impl Backoff {
    pub(super) fn new(first: Duration, most: Duration) -> Backoff {
        Backoff { first, most: most.max(first), tries: 0 }
    }

    /// The ceiling of the next delay.
    fn ceiling(&self) -> Duration {
        self.first.saturating_mul(1u32.checked_shl(self.tries).unwrap_or(u32::MAX)).min(self.most)
    }

    /// The next delay, for a random number of [0, 1).
    fn delay(&mut self, random: f64) -> Duration {
        let delay = self.ceiling().mul_f64(random);
        self.tries = self.tries.saturating_add(1);
        delay
    }

    /// The next delay.
    pub(super) fn next(&mut self) -> Duration {
        self.delay(fastrand::f64())
    }

    /// After progress: the next delay is a short one again.
    pub(super) fn reset(&mut self) {
        self.tries = 0;
    }

    /// Whether nothing was waited for since the last progress.
    pub(super) fn is_fresh(&self) -> bool {
        self.tries == 0
    }
}

/// `about` plus or minus a tenth, so that many processes do not come back together.
pub(super) fn spread(about: Duration) -> Duration {
    about.mul_f64(0.9 + 0.2 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(50);
    const MOST: Duration = Duration::from_secs(10);

    #[test]
    fn the_ceiling_doubles_up_to_the_most() {
        let mut backoff = Backoff::new(FIRST, MOST);
        let ceilings: Vec<u128> = (0..10)
            .map(|_| {
                let ceiling = backoff.ceiling().as_millis();
                backoff.delay(0.5);
                ceiling
            })
            .collect();
        assert_eq!(ceilings, [50, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    }

    #[test]
    fn the_jitter_is_full() {
        let mut backoff = Backoff::new(FIRST, MOST);
        assert_eq!(backoff.delay(0.0), Duration::ZERO);
        assert_eq!(backoff.delay(0.5), FIRST);
        assert!(backoff.delay(0.999) > FIRST * 3);
    }

    #[test]
    fn many_tries_do_not_overflow() {
        let mut backoff = Backoff::new(FIRST, MOST);
        for _ in 0..1000 {
            assert!(backoff.delay(1.0) <= MOST);
        }
    }

    #[test]
    fn progress_resets() {
        let mut backoff = Backoff::new(FIRST, MOST);
        assert!(backoff.is_fresh());
        for _ in 0..5 {
            backoff.next();
        }
        assert!(!backoff.is_fresh());
        backoff.reset();
        assert_eq!(backoff.ceiling(), FIRST);
        assert!(backoff.is_fresh());
    }
}
