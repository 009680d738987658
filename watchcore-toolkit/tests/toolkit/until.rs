//! Waiting until something holds: on a watch, and over a cache.

use crate::script::{Answer, Server, Woken, drain};
use crate::support::polled;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;
use watchcore::{Cache, Change, Code, KeyValue, Record};
use watchcore_toolkit::{ManualClock, RetryWatch, Status, UntilEnd, WatchEvent, until, until_with_sync};

const BOUND: Duration = Duration::from_secs(30);

fn server() -> Server<&'static str> {
    Server::new([])
}

fn is(name: &'static str) -> impl FnMut(&WatchEvent<&'static str>) -> bool + Send {
    move |event| event.name() == name
}

#[test]
fn un_01_conditions_hold_in_sequence() {
    let watch = server().watch_of(vec![WatchEvent::added("a").at(1), WatchEvent::modified(None, "b").at(2)], true);
    let held = until(watch).then(is("ADDED")).then(is("MODIFIED")).timeout(BOUND).wait().unwrap();
    assert_eq!((held.event.unwrap().object(), held.position.revision), (Some(&"b"), 2));
}

#[test]
fn un_02_last_event_is_tried_on_the_next() {
    let watch = server().watch_of(vec![WatchEvent::added("a").at(1)], true);
    let held = until(watch).then(is("ADDED")).then(is("ADDED")).timeout(BOUND).wait().unwrap();
    assert_eq!(held.event, Some(WatchEvent::added("a").at(1)));
}

/// A condition that holds already does not have to hold again: each is asked until it has held once.
#[test]
fn un_02_condition_that_held_is_not_asked_again() {
    let watch = server().watch_of(vec![WatchEvent::added("a"), WatchEvent::deleted("a")], true);
    let mut asked = 0;
    let once = move |_: &WatchEvent<&str>| {
        asked += 1;
        assert_eq!(asked, 1);
        true
    };
    assert!(until(watch).then(once).then(is("DELETED")).timeout(BOUND).wait().is_ok());
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

#[test]
fn un_04_zero_is_without_end() {
    let clock = Arc::new(ManualClock::new());
    let wait = until(server().watch_of(vec![], true)).then(is("ADDED")).timeout(Duration::ZERO).clock(clock.clone());
    let mut wait = Box::pin(wait);
    let mut context = Context::from_waker(Waker::noop());
    assert!(wait.as_mut().poll(&mut context).is_pending());
    clock.advance(Duration::from_secs(1_000_000));
    assert!(wait.as_mut().poll(&mut context).is_pending());
    assert_eq!(clock.sleepers(), 0);
}

#[test]
fn un_05_condition_error_comes_with_its_event() {
    let watch = server().watch_of(vec![WatchEvent::added("a").at(3)], true);
    let error = until(watch).then_try(|_| Err("no such thing")).wait().unwrap_err();
    assert!(matches!(&error.end, UntilEnd::Condition(error) if error.to_string() == "no such thing"));
    assert_eq!(error.last.unwrap().position.revision, 3);
}

#[test]
fn un_10_closed_watch_ends_with_its_last_event() {
    let watch = server().watch_of(vec![WatchEvent::added("a").at(3)], false);
    let error = until(watch).then(is("DELETED")).wait().unwrap_err();
    assert!(matches!(error.end, UntilEnd::Ended));
    assert_eq!(*error.last.unwrap(), WatchEvent::added("a").at(3));
    let failing = server().watch_of(vec![WatchEvent::error(Status::new(410, "gone"))], true);
    let error = until(failing).then(is("DELETED")).wait().unwrap_err();
    assert!(matches!(error.end, UntilEnd::Failed(status) if status.is_gone()));
}

#[test]
fn un_11_without_conditions_it_holds() {
    let server = server();
    let held = until(server.watch_of(vec![], true)).wait().unwrap();
    assert_eq!((held.event, server.living.load(Ordering::SeqCst)), (None, 0));
}

/// A wait over a retrying watch survives its server, and sees every event.
#[test]
fn un_12_survives_with_a_retrying_watch() {
    let answers =
        [Answer::Closes(vec![WatchEvent::added("a").at(2)]), Answer::Stays(vec![WatchEvent::deleted("a").at(3)])];
    let server = Server::new(answers);
    let watch = RetryWatch::builder(server.source(), 1).min_restart_delay(Duration::ZERO).open().unwrap();
    let held = until(watch).then(is("ADDED")).then(is("DELETED")).timeout(BOUND).wait().unwrap();
    assert_eq!((held.position.revision, server.opens()), (3, vec![1, 2]));
}

fn not_ready() -> Cache {
    Cache::builder("/").expect_load(true).build().unwrap()
}

fn record(key: &'static str) -> Record<'static> {
    Record { key: key.as_bytes(), value: b"x", create_revision: 1, mod_revision: 1, version: 1, lease: 0 }
}

/// Without a precondition no state is waited for as such: what comes, comes.
#[test]
fn un_06_without_precondition_only_the_time_counts() {
    let (cache, clock) = (not_ready(), Arc::new(ManualClock::new()));
    let wait = until_with_sync::<KeyValue>(&cache).then(|_| true).timeout(Duration::from_secs(1)).clock(clock.clone());
    let waiting = thread::spawn(move || wait.wait());
    assert!(clock.wait_for_sleepers(1, BOUND));
    clock.advance(Duration::from_secs(1));
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(error.end, UntilEnd::Timeout), "{error}");
}

#[test]
fn un_07_precondition_without_state_says_so() {
    let (cache, clock) = (not_ready(), Arc::new(ManualClock::new()));
    let wait = until_with_sync::<KeyValue>(&cache).precondition(|_| panic!("there is no state")).then(|_| true);
    let wait = wait.timeout(Duration::from_secs(1)).clock(clock.clone());
    let waiting = thread::spawn(move || wait.wait());
    assert!(clock.wait_for_sleepers(1, BOUND));
    clock.advance(Duration::from_secs(1));
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(&error.end, UntilEnd::NotSynced(error) if error.code() == Code::NotReady), "{error}");
    assert_eq!(error.condition, 0);
}

#[test]
fn un_08_precondition_that_holds_ends_the_wait() {
    let cache = not_ready();
    let waiting = thread::spawn({
        let cache = cache.clone();
        move || until_with_sync::<KeyValue>(&cache).precondition(|state| state.len() == 1).then(|_| false).wait()
    });
    cache.writer().unwrap().load(7, [record("/a")]).unwrap();
    let held = waiting.join().unwrap().unwrap();
    assert_eq!((held.event.is_none(), held.position.revision), (true, 7));
}

#[test]
fn un_09_precondition_that_does_not_hold_goes_on() {
    let cache = not_ready();
    let wait = until_with_sync::<KeyValue>(&cache).precondition(|state| state.is_empty());
    let wait = wait.then(|event| event.name() == "ADDED").then(|event| event.name() == "DELETED");
    let mut run = Box::pin(wait.run());
    let mut context = Context::from_waker(Waker::noop());
    assert!(run.as_mut().poll(&mut context).is_pending(), "there is no state");
    let mut writer = cache.writer().unwrap();
    writer.load(7, [record("/a")]).unwrap();
    assert!(run.as_mut().poll(&mut context).is_pending(), "it is not empty");
    writer.apply(8, [Change::delete("/a")]).unwrap();
    let Poll::Ready(Ok(held)) = run.as_mut().poll(&mut context) else { panic!("both conditions hold") };
    assert_eq!(held.position.revision, 8);
}

/// Deleted while the source was away: the resync says so, with the last known value.
#[test]
fn iw_05_deleted_while_away_satisfies_a_condition() {
    let cache = not_ready();
    let mut writer = cache.writer().unwrap();
    writer.load(7, [record("/a"), record("/b")]).unwrap();
    let mut run = Box::pin(until_with_sync::<KeyValue>(&cache).then(|event| event.name() == "DELETED").run());
    let mut context = Context::from_waker(Waker::noop());
    assert!(run.as_mut().poll(&mut context).is_pending());
    writer.resync(9, [record("/b")], watchcore::ResyncReason::Compacted).unwrap();
    let Poll::Ready(Ok(held)) = run.as_mut().poll(&mut context) else { panic!("it was deleted") };
    let event = held.event.unwrap();
    assert_eq!((event.object().unwrap().key_str(), event.object().unwrap().value_str()), (Some("/a"), Some("x")));
}

/// Stopping a wait by dropping it leaves nothing behind.
#[test]
fn iw_01_dropped_wait_stops_its_watch() {
    let server = server();
    let mut wait = Box::pin(until(server.watch_of(vec![], true)).then(is("ADDED")));
    assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(wait);
    assert_eq!(server.living.load(Ordering::SeqCst), 0);
    assert!(drain(&mut server.watch_of(vec![], false), &ManualClock::new()).is_empty());
}
