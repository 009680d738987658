//! Delays that grow, and begin anew after a calm time.

use std::time::{Duration, Instant};
use watchcore::Backoff;

/// A failure after two calm minutes is a first one; the calm begins when the delay before it was over.
#[test]
fn kr_06_backoff_resets_after_calm() {
    let mut now = Instant::now();
    let mut backoff = Backoff::default().with_jitter(0.0);
    let mut next = |after: u64| {
        now += Duration::from_millis(after);
        backoff.next_delay(now, Duration::ZERO).as_millis()
    };
    assert_eq!([0; 3].map(&mut next), [800, 1600, 3200]);
    assert_eq!(next(3200 + 120_000), 6400, "two minutes are not over");
    assert_eq!(next(6400 + 120_001), 800);
    assert_eq!(next(0), 1600);
    backoff.reset();
    assert_eq!(backoff.next_delay(now, Duration::ZERO).as_millis(), 800);
}

#[test]
fn kr_07_jitter_stays_between_half_and_whole() {
    let (mut backoff, now) = (Backoff::default(), Instant::now());
    let mut ceiling = 800;
    let mut differ = false;
    for _ in 0..1000 {
        let delay = backoff.next_delay(now, Duration::ZERO).as_millis();
        assert!((ceiling / 2..=ceiling).contains(&delay), "{delay} of {ceiling}");
        differ |= delay != ceiling;
        ceiling = (2 * ceiling).min(30_000);
    }
    assert!(differ, "there is jitter");
}

/// What no duration can hold is the longest one.
#[test]
fn kr_06_largest_delays_are_delays() {
    let now = Instant::now();
    let delays = |backoff: Backoff, count: usize| {
        let mut backoff = backoff.with_jitter(0.0);
        (0..count).map(|_| backoff.next_delay(now, Duration::ZERO)).collect::<Vec<_>>()
    };
    let second = Duration::from_secs(1);
    assert_eq!(delays(Backoff::new(Duration::MAX, Duration::MAX), 2), [Duration::MAX; 2]);
    assert_eq!(delays(Backoff::new(second, Duration::MAX), 100).last(), Some(&Duration::MAX));
    let leaps = Backoff::new(second, Duration::MAX).with_factor(f64::INFINITY);
    assert_eq!(delays(leaps, 2), [second, Duration::MAX]);
}
