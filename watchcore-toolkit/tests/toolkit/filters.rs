//! Row AW-21 over a cache, and faults of filters that scripts cannot show.

use crate::support::polled;
use std::task::Poll;
use std::time::Duration;
use watchcore::Code;
use watchcore_toolkit::{
    Action, Broadcaster, FakeWatch, Object, PredicateExt, WatchEvent, WatchExt, WhenFull, predicates,
};

/// The events of a filter may be about other objects.
#[test]
fn filter_may_change_the_object() {
    let (fake, watch) = FakeWatch::race_free();
    let mut lengths = watch.filter_events(|event: WatchEvent<&str>| Some(event.map(str::len)));
    fake.add("foo").unwrap();
    assert_eq!(lengths.try_recv(), Poll::Ready(Some(WatchEvent::added(3))));
}

/// A filter that leaves everything out lets others run.
#[test]
fn fault_hot_source_lets_others_run() {
    let endless = polled(|_| Poll::Ready(Some(WatchEvent::added(1))));
    let mut filtered = endless.filter_events(|_| None::<WatchEvent<u8>>);
    assert!(filtered.try_recv().is_pending());
}

/// Objects of a broadcaster without keys are one to all that goes by keys: a predicate filter says so, and ends.
#[test]
fn fault_objects_without_keys_are_refused() {
    let broadcaster = Broadcaster::new(10, WhenFull::Wait).unwrap();
    let mut changed = broadcaster.watch().unwrap().predicate_filter(predicates::by(|lamp: &Object<bool>| Some(**lamp)));
    broadcaster.action(Action::Added, true).unwrap();
    let Poll::Ready(Some(refused)) = changed.try_recv() else { panic!("an event is there") };
    let status = refused.status().unwrap_or_else(|| panic!("{refused:?}"));
    assert_eq!(status.code(), 400);
    assert!(status.message().contains("no keys"), "{status}");
    assert!(matches!(changed.try_recv(), Poll::Ready(None)), "it has ended");
    for _ in 0..100 {
        assert!(broadcaster.action_or_drop(Action::Added, true).unwrap(), "nobody waits for it");
    }
}

/// A wait over a filter that leaves everything out ends at its deadline.
#[test]
fn fault_hot_source_lets_a_deadline_pass() {
    let endless = polled(|_| Poll::Ready(Some(WatchEvent::added(1))));
    let mut filtered = endless.filter_events(|_| None::<WatchEvent<u8>>);
    assert_eq!(filtered.recv(Duration::from_millis(1)).unwrap_err().code(), Code::Timeout);
    assert_eq!(filtered.recv(Duration::ZERO).unwrap_err().code(), Code::Timeout);
}
