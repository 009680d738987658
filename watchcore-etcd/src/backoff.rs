//! Pauses between tries: full jitter, doubling, reset once the connection is stable.
//!
//! A single event or answer does not make a connection stable: a server that fails after each event would be tried,
//! and listed, as often as events come. The connection is stable once a watch has followed for as long as the longest
//! pause, or has brought many revisions ([`Retries`]).

use std::time::{Duration, Instant};
use watchcore::Backoff;

/// Random delays from 0 to a ceiling that doubles with each try, until something succeeds.
pub(super) fn full_jitter(first: Duration, most: Duration) -> Backoff {
    Backoff::new(first, most).with_jitter(1.0).with_reset_after(Duration::MAX)
}

/// This many revisions on one watch make the connection stable early.
const MANY_REVISIONS: u32 = 1000;

/// The failures and setbacks of a feeder since its connection was last stable.
///
/// A setback is a listing that etcd made necessary, or a watch that was abandoned as stale. The first one is handled
/// at once; from the second on there is a pause, and the cache is Stale until the connection is stable.
pub(super) struct Retries {
    backoff: Backoff,
    is_fresh: bool,
    setbacks: u32,
    /// How long a watch has to follow to be stable.
    stable_after: Duration,
    /// Since when the present watch follows, and how many revisions it brought.
    watch: Option<(Instant, u32)>,
}

impl Retries {
    pub(super) fn new(first: Duration, most: Duration) -> Retries {
        Retries {
            backoff: full_jitter(first, most),
            is_fresh: true,
            setbacks: 0,
            stable_after: most.max(first),
            watch: None,
        }
    }

    /// Records that a session failed, and its watch with it.
    pub(super) fn failed(&mut self, now: Instant) {
        self.check_stability(now);
        self.watch = None;
    }

    /// Returns the pause before the next session.
    pub(super) fn pause(&mut self, now: Instant) -> Duration {
        self.is_fresh = false;
        self.backoff.next_delay(now, Duration::ZERO)
    }

    /// Whether nothing has failed since the connection was last stable.
    pub(super) fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    pub(super) fn setback(&mut self) {
        self.setbacks = self.setbacks.saturating_add(1);
    }

    /// Whether there was a setback, so that the next one has to wait.
    pub(super) fn had_setback(&self) -> bool {
        self.setbacks > 0
    }

    /// Whether setbacks follow each other: then a confirmed watch alone does not make the cache Ready.
    pub(super) fn is_unstable(&self) -> bool {
        self.setbacks > 1
    }

    /// Records that a watch follows from now on.
    pub(super) fn opened(&mut self, now: Instant) {
        self.watch = Some((now, 0));
    }

    /// Records that the watch brought a revision.
    pub(super) fn applied(&mut self) {
        if let Some((_, revisions)) = &mut self.watch {
            *revisions = revisions.saturating_add(1);
        }
    }

    /// Clears failures and setbacks if the watch has followed long enough or brought enough revisions.
    pub(super) fn check_stability(&mut self, now: Instant) {
        let is_over = |(since, revisions): (Instant, u32)| {
            revisions >= MANY_REVISIONS || now.saturating_duration_since(since) >= self.stable_after
        };
        if self.watch.is_some_and(is_over) {
            self.backoff.reset();
            (self.is_fresh, self.setbacks) = (true, 0);
        }
    }

    /// When the connection that keeps the cache Stale may become stable.
    pub(super) fn stable_due(&self) -> Option<Instant> {
        self.watch.filter(|_| self.is_unstable()).map(|(since, _)| since + self.stable_after)
    }
}

/// `about` plus or minus a tenth at random, so that many processes do not come back together.
pub(super) fn spread(about: Duration) -> Duration {
    about.mul_f64(0.9 + 0.2 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(50);
    const MOST: Duration = Duration::from_secs(10);

    #[test]
    fn jitter_is_full() {
        let now = Instant::now();
        let mut longest = Duration::ZERO;
        for _ in 0..1000 {
            let delay = full_jitter(FIRST, MOST).next_delay(now, Duration::ZERO);
            longest = longest.max(delay);
            assert!(delay <= FIRST);
        }
        assert!(longest > FIRST / 2, "drawn from the whole");
        let mut many = full_jitter(FIRST, MOST);
        (0..1000).for_each(|_| assert!(many.next_delay(now, Duration::ZERO) <= MOST));
    }

    #[test]
    fn stability_comes_by_time_or_many_revisions() {
        let start = Instant::now();
        let unstable = || {
            let mut retries = Retries::new(FIRST, MOST);
            assert!(retries.is_fresh() && !retries.had_setback());
            for _ in 0..2 {
                retries.failed(start);
                retries.pause(start);
                retries.setback();
            }
            retries.opened(start);
            assert!(retries.is_unstable() && retries.stable_due() == Some(start + MOST));
            retries
        };
        let mut retries = unstable();
        for _ in 1..MANY_REVISIONS {
            retries.applied();
        }
        retries.check_stability(start + MOST - FIRST);
        assert!(retries.is_unstable() && !retries.is_fresh(), "not one revision, and not a moment");
        retries.applied();
        retries.check_stability(start);
        assert!(!retries.is_unstable() && retries.is_fresh() && retries.stable_due().is_none());
        let mut retries = unstable();
        retries.failed(start + MOST);
        assert!(!retries.had_setback() && retries.is_fresh(), "it followed long enough before it failed");
        let mut retries = unstable();
        retries.failed(start);
        retries.check_stability(start + 2 * MOST);
        assert!(retries.is_unstable(), "without a watch nothing ends it");
    }
}
