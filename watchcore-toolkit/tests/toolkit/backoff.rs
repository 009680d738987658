//! Delays that grow, and begin anew after a calm time.

use std::sync::Arc;
use std::time::Duration;
use watchcore_toolkit::{Backoff, ManualClock};

fn with_clock() -> (Backoff, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new());
    (Backoff::default().with_clock(clock.clone()), clock)
}

/// A failure after two calm minutes is a first one; the calm begins when the delay before it was over.
#[test]
fn kr_06_backoff_resets_after_calm() {
    let (backoff, clock) = with_clock();
    let mut backoff = backoff.with_jitter(0.0);
    assert_eq!([0; 3].map(|_| backoff.next_delay().as_millis()), [800, 1600, 3200]);
    clock.advance(Duration::from_millis(3200) + Duration::from_secs(120));
    assert_eq!(backoff.next_delay().as_millis(), 6400, "two minutes are not over");
    clock.advance(Duration::from_millis(6400) + Duration::from_millis(120_001));
    assert_eq!(backoff.next_delay().as_millis(), 800);
    backoff.next_delay();
    backoff.reset();
    assert_eq!(backoff.next_delay().as_millis(), 800);
}

#[test]
fn kr_07_jitter_stays_between_half_and_whole() {
    let (mut backoff, _) = with_clock();
    let mut ceiling = 800;
    let mut differ = false;
    for _ in 0..1000 {
        let delay = backoff.next_delay().as_millis();
        assert!((ceiling / 2..=ceiling).contains(&delay), "{delay} of {ceiling}");
        differ |= delay != ceiling;
        ceiling = (2 * ceiling).min(30_000);
    }
    assert!(differ, "there is jitter");
}

/// What no duration can hold is the longest one.
#[test]
fn kr_06_largest_delays_are_delays() {
    let mut longest = Backoff::new(Duration::MAX, Duration::MAX).with_jitter(0.0);
    assert_eq!([longest.next_delay(), longest.next_delay()], [Duration::MAX; 2]);
    let mut grows = Backoff::new(Duration::from_secs(1), Duration::MAX).with_jitter(0.0);
    assert_eq!((0..100).map(|_| grows.next_delay()).last(), Some(Duration::MAX));
    let mut leaps = Backoff::new(Duration::from_secs(1), Duration::MAX).with_factor(f64::INFINITY).with_jitter(0.0);
    assert_eq!([leaps.next_delay(), leaps.next_delay()], [Duration::from_secs(1), Duration::MAX]);
}
