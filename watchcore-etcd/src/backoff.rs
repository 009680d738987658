//! How long to wait before the next try: full jitter, doubling, reset when the trouble is over.
//!
//! One event or one answer does not end a trouble: a server that fails behind each event would be tried, and listed, as
//! often as events come. It is over when a watch has followed for as long as the longest pause, or has brought many
//! revisions ([`Retries`]).

use std::time::{Duration, Instant};

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
}

/// So many revisions on one watch end a trouble before its time.
const MANY_REVISIONS: u32 = 1000;

/// The failures and setbacks of a feeder since its trouble was over last.
///
/// A setback is a listing that etcd made necessary, or a watch that was left although it spoke. The first one is mended at
/// once; from the second on there is a pause, and the cache is Stale until the trouble is over.
pub(super) struct Retries {
    backoff: Backoff,
    setbacks: u32,
    /// How long a watch has to follow.
    calm: Duration,
    /// Since when the present watch follows, and how many revisions it brought.
    watch: Option<(Instant, u32)>,
}

impl Retries {
    pub(super) fn new(first: Duration, most: Duration) -> Retries {
        let backoff = Backoff::new(first, most);
        Retries { calm: backoff.most, backoff, setbacks: 0, watch: None }
    }

    /// A session failed, and its watch with it.
    pub(super) fn failed(&mut self, now: Instant) {
        self.settle(now);
        self.watch = None;
    }

    /// The pause before the next session.
    pub(super) fn pause(&mut self) -> Duration {
        self.backoff.next()
    }

    /// Whether nothing has failed since the trouble was over.
    pub(super) fn is_fresh(&self) -> bool {
        self.backoff.tries == 0
    }

    pub(super) fn setback(&mut self) {
        self.setbacks = self.setbacks.saturating_add(1);
    }

    /// Whether one more setback has to wait.
    pub(super) fn had_setback(&self) -> bool {
        self.setbacks > 0
    }

    /// Whether setbacks follow each other: then a watch alone does not make the cache Ready.
    pub(super) fn is_troubled(&self) -> bool {
        self.setbacks > 1
    }

    /// A watch follows from now on.
    pub(super) fn opened(&mut self, now: Instant) {
        self.watch = Some((now, 0));
    }

    /// It brought a revision.
    pub(super) fn applied(&mut self) {
        if let Some((_, revisions)) = &mut self.watch {
            *revisions = revisions.saturating_add(1);
        }
    }

    /// Ends the trouble, where the watch has done enough for that.
    pub(super) fn settle(&mut self, now: Instant) {
        let is_over = |(since, revisions): (Instant, u32)| {
            revisions >= MANY_REVISIONS || now.saturating_duration_since(since) >= self.calm
        };
        if self.watch.is_some_and(is_over) {
            self.backoff.tries = 0;
            self.setbacks = 0;
        }
    }

    /// When the trouble that keeps the cache Stale may be over.
    pub(super) fn calm_due(&self) -> Option<Instant> {
        self.watch.filter(|_| self.is_troubled()).map(|(since, _)| since + self.calm)
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
        for _ in 0..5 {
            backoff.next();
        }
        backoff.reset();
        assert_eq!(backoff.ceiling(), FIRST);
    }

    #[test]
    fn trouble_ends_by_time_or_many_revisions() {
        let start = Instant::now();
        let troubled = || {
            let mut retries = Retries::new(FIRST, MOST);
            assert!(retries.is_fresh() && !retries.had_setback());
            for _ in 0..2 {
                retries.failed(start);
                retries.pause();
                retries.setback();
            }
            retries.opened(start);
            assert!(retries.is_troubled() && retries.calm_due() == Some(start + MOST));
            retries
        };
        let mut retries = troubled();
        for _ in 1..MANY_REVISIONS {
            retries.applied();
        }
        retries.settle(start + MOST - FIRST);
        assert!(retries.is_troubled() && !retries.is_fresh(), "not one revision, and not a moment");
        retries.applied();
        retries.settle(start);
        assert!(!retries.is_troubled() && retries.is_fresh() && retries.calm_due().is_none());
        let mut retries = troubled();
        retries.failed(start + MOST);
        assert!(!retries.had_setback() && retries.is_fresh(), "it followed long enough before it failed");
        let mut retries = troubled();
        retries.failed(start);
        retries.settle(start + 2 * MOST);
        assert!(retries.is_troubled(), "without a watch nothing ends it");
    }
}
