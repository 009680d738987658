//! Clocks that are moved while a delay is set.

use crate::rig::{Rig, fails};
use crate::script::{Answer, PanicsWoken, Server, Woken};
use crate::support::until;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use watchcore::KeyValue;
use watchcore_toolkit::{Clock, Delay, ManualClock, RetryWatch, Status, SystemClock, WatchExt as _};

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

/// A waker that panics costs no other delay its end: the system's clock has one thread for all of them.
#[test]
fn fault_waker_that_panics_stops_no_clock() {
    let panics = Arc::new(PanicsWoken::default());
    let waker = Waker::from(Arc::clone(&panics));
    let mut broken = SystemClock.delay(Duration::from_millis(1));
    let first = Pin::new(&mut broken).poll(&mut Context::from_waker(&waker));
    until("its time has come", || first.is_ready() || panics.count() == 1);
    for _ in 0..10 {
        SystemClock.delay(Duration::from_millis(1)).wait();
    }
}

/// The same of a clock that is moved by hand.
#[test]
fn fault_waker_that_panics_stops_no_manual_clock() {
    let clock = ManualClock::new();
    let (panics, woken) = (Arc::new(PanicsWoken::default()), Arc::new(Woken::default()));
    let mut broken = clock.delay(Duration::from_secs(1));
    let mut other = clock.delay(Duration::from_secs(1));
    let wakers = [Waker::from(Arc::clone(&panics)), Waker::from(Arc::clone(&woken))];
    for (delay, waker) in [&mut broken, &mut other].into_iter().zip(&wakers) {
        assert!(Pin::new(delay).poll(&mut Context::from_waker(waker)).is_pending());
    }
    clock.advance(Duration::from_secs(1));
    assert_eq!((panics.count(), woken.count()), (1, 1));
}

/// What lies beyond the clock's end never comes, and is no panic.
#[test]
fn fault_delays_beyond_the_clock_never_come() {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(1));
    let mut never = clock.delay(Duration::MAX);
    assert!(Pin::new(&mut never).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let mut later = clock.delay(Duration::from_secs(1));
    assert!(Pin::new(&mut later).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(clock.wait_for_sleepers(1, Duration::MAX));
    clock.advance(Duration::MAX);
    assert!(Pin::new(&mut later).poll(&mut Context::from_waker(Waker::noop())).is_ready());
    assert!(Pin::new(&mut never).poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

/// A cache's error says how long to wait by the table of its codes, so that a watch over it waits as one over HTTP.
#[test]
fn status_waits_as_its_code_says() {
    for code in watchcore::Code::ALL {
        let error = watchcore::Error::new(*code, "what holds");
        assert_eq!(Status::from(error).retry_after(), code.retry_after(), "{code}");
        assert_eq!(Status::from(*code).retry_after(), code.retry_after(), "{code}");
    }
}
