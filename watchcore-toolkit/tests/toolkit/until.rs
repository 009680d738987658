//! Waiting until something holds, beside the rows that run: how an error reads, and a watch that is always ready.

use crate::script::{Server, Woken};
use crate::support::polled;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use watchcore_toolkit::{ManualClock, UntilEnd, WatchEvent, until};

fn server() -> Server<&'static str> {
    Server::new([])
}

fn is(name: &'static str) -> impl FnMut(&WatchEvent<&'static str>) -> bool + Send {
    move |event| event.name() == name
}

#[test]
fn un_03_time_up_says_which_condition() {
    let (server, clock) = (server(), Arc::new(ManualClock::new()));
    let watch = server.watch_of(vec![WatchEvent::added("a").at(7)], true);
    let wait = until(watch).then(is("ADDED")).then(is("ADDED")).then(is("DELETED"));
    let mut wait = Box::pin(wait.timeout(Duration::from_secs(5)).clock(clock.clone()));
    let mut context = Context::from_waker(Waker::noop());
    assert!(wait.as_mut().poll(&mut context).is_pending());
    clock.advance(Duration::from_secs(5));
    let Poll::Ready(Err(error)) = wait.as_mut().poll(&mut context) else { panic!("the time is up") };
    assert!(matches!(error.end, UntilEnd::Timeout));
    assert_eq!(error.to_string(), "wait for condition 3 of 3: the time was up. Its last event: ADDED at revision 7");
    assert_eq!(server.living.load(Ordering::SeqCst), 0, "the watch is over with the wait");
}

/// A watch that is ready without a pause lets the time be up, and others run.
#[test]
fn un_03_time_is_up_over_a_hot_watch() {
    let (clock, woken) = (Arc::new(ManualClock::new()), Arc::new(Woken::default()));
    let endless = polled(|_| Poll::Ready(Some(WatchEvent::added("a"))));
    let wait = until(endless).then(is("DELETED")).timeout(Duration::from_secs(5)).clock(clock.clone());
    let mut wait = Box::pin(wait);
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    assert!(wait.as_mut().poll(&mut context).is_pending() && woken.count() == 1, "it has more to do");
    clock.advance(Duration::from_secs(5));
    let Poll::Ready(Err(error)) = wait.as_mut().poll(&mut context) else { panic!("the time is up") };
    assert!(matches!(error.end, UntilEnd::Timeout));
}
