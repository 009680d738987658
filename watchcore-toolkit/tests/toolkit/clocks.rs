//! Clocks that are moved while a delay is set.

use crate::rig::{Rig, fails};
use crate::script::{Answer, Server};
use std::sync::Arc;
use std::time::{Duration, Instant};
use watchcore::KeyValue;
use watchcore_toolkit::{Clock, Delay, ManualClock, RetryWatch, Status, WatchExt as _};

/// It is moved after each look at it.
#[derive(Debug)]
pub(crate) struct MovesAtEachLook(pub(crate) ManualClock);

impl Clock for MovesAtEachLook {
    fn now(&self) -> Instant {
        let now = self.0.now();
        self.0.advance(Duration::from_millis(1));
        now
    }

    fn delay(&self, duration: Duration) -> Delay {
        self.0.delay(duration)
    }

    fn delay_until(&self, at: Instant) -> Delay {
        self.0.delay_until(at)
    }
}

/// The delay counts from the beginning of the attempt, or from what the server said.
#[test]
fn rw_25_clock_moved_meanwhile_makes_no_attempt_late() {
    for retry_after in [None, Some(Duration::from_secs(3))] {
        let clock = ManualClock::new();
        let due = clock.now() + retry_after.unwrap_or(Duration::from_secs(1));
        let status = Status::new(503, "slowly");
        let status = retry_after.into_iter().fold(status, Status::with_retry_after);
        let server = Server::<KeyValue>::new([Answer::Refuse(status)]);
        let watch = RetryWatch::builder(server.source(), 5).clock(Arc::new(MovesAtEachLook(clock.clone())));
        let mut watch = watch.open().unwrap();
        assert!(watch.try_recv().is_pending());
        // Retry-After counts from the look behind the answer, which is the second one.
        let answered = if retry_after.is_some() { Duration::from_millis(1) } else { Duration::ZERO };
        assert_eq!(clock.next_due(), Some(due + answered - clock.now()));
    }
}

/// A server may ask for more than clocks can say.
#[test]
fn rw_25_delay_beyond_the_clock_is_waited_for() {
    let status = Status::new(503, "never").with_retry_after(Duration::MAX);
    let server = Server::<KeyValue>::new([Answer::Refuse(status)]);
    let mut watch = RetryWatch::builder(server.source(), 5).open().unwrap();
    assert!(watch.try_recv().is_pending());
    assert_eq!(server.opens().len(), 1);
}

/// Whoever hears of a failure and moves the clock has waited.
#[test]
fn rf_05_backoff_counts_from_the_failure() {
    let clock = ManualClock::new();
    let moved = Arc::new(MovesAtEachLook(clock.clone()));
    let mut rig = Rig::with([fails(503)], [], |reflector| reflector.clock(moved));
    rig.settle();
    let due = clock.next_due().expect("it waits");
    assert!(due < Duration::from_millis(800), "{due:?} behind a look at the clock");
}
