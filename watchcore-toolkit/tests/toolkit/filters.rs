//! Rows AW-15, AW-16 and AW-21: a part of a watch's events.

use crate::fakes::all;
use crate::support::polled;
use std::borrow::Cow;
use std::task::Poll;
use std::time::Duration;
use watchcore::{Cache, Change, Code, KeyValue};
use watchcore_toolkit::{
    Action, Broadcaster, FakeWatch, Keyed, Object, ObjectWatch, Payload, PredicateExt, RaceFreeFakeSource, Status,
    Watch, WatchEvent, WatchExt, WhenFull, predicates,
};

#[test]
fn aw_15_filter_drops_and_closes() {
    let (fake, watch) = RaceFreeFakeSource::pair();
    let mut filtered = watch.filter_events(|event| {
        let drops = event.object().is_some_and(|name: &&str| name.starts_with('b'));
        (!drops).then(|| event.map(str::to_owned))
    });
    for name in ["foo", "bar", "baz", "qux", "zoo"] {
        fake.add(name).unwrap();
    }
    fake.stop();
    let names: Vec<_> = all(&mut filtered).into_iter().map(|event| event.object().cloned().unwrap()).collect();
    assert_eq!(names, ["foo", "qux", "zoo"]);
}

#[test]
fn aw_16_filter_stop_stops_the_source() {
    let (fake, watch) = RaceFreeFakeSource::pair();
    let mut filtered = watch
        .filter_events(|event: WatchEvent<&str>| event.object().is_none_or(|name| *name != "bar").then_some(event));
    fake.add("foo").unwrap();
    fake.add("bar").unwrap();
    assert_eq!(filtered.try_recv(), Poll::Ready(Some(WatchEvent::added("foo"))));
    assert!(filtered.try_recv().is_pending());
    filtered.stop();
    assert!(fake.is_stopped());
    assert_eq!(all(&mut filtered), []);
}

/// The original's filter keeps a goroutine that nobody reads; ours has nothing that runs, and a stop reaches the bottom of
/// a chain of filters.
#[test]
fn fault_filters_in_a_chain_stop_the_source() {
    let (fake, watch) = FakeWatch::<u8>::pair();
    let chain = watch.filter_events(Some).filter_events(Some).record().filter_events(Some).boxed();
    let stopper = chain.stopper();
    stopper.stop();
    assert!(fake.is_stopped());
    let (fake, watch) = FakeWatch::<u8>::pair();
    drop(watch.filter_events(Some).boxed());
    assert!(fake.is_stopped(), "dropping the filter drops its source");
}

/// What a left-out event had lost is said with the next; an error that the function makes is the end.
#[test]
fn fault_filter_keeps_what_was_lost() {
    let (fake, watch) = RaceFreeFakeSource::pair();
    let mut filtered = watch.filter_events(|event| match event.object() {
        Some(0) => None,
        Some(9) => Some(WatchEvent::error(Status::new(500, "a nine"))),
        _ => Some(event),
    });
    fake.send(WatchEvent::added(0).with_lost(3)).unwrap();
    fake.send(WatchEvent::added(0).with_lost(1)).unwrap();
    fake.send(WatchEvent::added(1).with_lost(2)).unwrap();
    for number in [2, 9, 3] {
        fake.add(number).unwrap();
    }
    let seen: Vec<_> = all(&mut filtered).into_iter().map(|event| (event.name(), event.lost)).collect();
    assert_eq!(seen, [("ADDED", 6), ("ADDED", 0), ("ERROR", 0)]);
    assert!(fake.is_stopped());
}

/// A filter that leaves everything out lets others run.
#[test]
fn fault_hot_source_lets_others_run() {
    let endless = polled(|_| Poll::Ready(Some(WatchEvent::added(1))));
    let mut filtered = endless.filter_events(|_| None::<WatchEvent<u8>>);
    assert!(filtered.try_recv().is_pending());
}

/// An object with a key, a revision and what is looked at.
#[derive(Clone, PartialEq, Debug)]
struct Lamp(&'static str, u64, bool);

impl Keyed for Lamp {
    fn object_key(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.0.as_bytes())
    }
    fn object_revision(&self) -> u64 {
        self.1
    }
}

/// All transitions, where the source knows no old values.
#[test]
fn aw_21_types_are_right_at_the_boundary() {
    let (fake, watch) = RaceFreeFakeSource::pair();
    let mut lit = watch.filter_objects(|lamp: &Lamp| lamp.2);
    let (off, on) = (|revision| Lamp("a", revision, false), |revision| Lamp("a", revision, true));
    let history = [
        WatchEvent::added(off(1)),
        WatchEvent::synced().at(1),
        WatchEvent::modified(None, off(2)),
        WatchEvent::modified(None, on(3)),
        WatchEvent::modified(None, on(4)),
        WatchEvent::modified(None, off(5)),
        WatchEvent::modified(None, off(6)),
        WatchEvent::deleted(off(6)),
        WatchEvent::added(on(8)),
        WatchEvent::deleted(on(8)),
        WatchEvent::added(on(10)),
        // Whoever says twice that it is new: it was given.
        WatchEvent::added(on(11)),
        WatchEvent::deleted(off(12)),
    ];
    for (at, event) in (1..).zip(history) {
        let at = if event.name() == "SYNCED" { 1 } else { at };
        fake.send(event.at(at)).unwrap();
    }
    fake.stop();
    let seen: Vec<_> = all(&mut lit).into_iter().map(|event| (event.position.revision, event.payload)).collect();
    let expected = [
        (1, Payload::Synced),
        (4, Payload::Added(on(3))),
        (5, Payload::Modified { old: Some(on(3)), new: on(4) }),
        (6, Payload::Deleted(on(4))),
        (9, Payload::Added(on(8))),
        (10, Payload::Deleted(on(8))),
        (11, Payload::Added(on(10))),
        (12, Payload::Modified { old: Some(on(10)), new: on(11) }),
        (13, Payload::Deleted(on(11))),
    ];
    assert_eq!(seen, expected);
}

/// Over a cache: the same, with the last value in the selection and the position of the change.
#[test]
fn aw_21_boundary_over_a_cache() {
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/a", "on"), Change::put("/b", "off")]).unwrap();
    let watch = ObjectWatch::<KeyValue>::open(&cache).unwrap();
    let mut lit = watch.filter_objects(|kv: &KeyValue| kv.value() == Some(b"on"));
    let mut next = || loop {
        match lit.try_recv() {
            Poll::Ready(Some(event)) if event.object().is_some() => {
                let kv = event.object().unwrap();
                let (key, value) = (kv.key_str().unwrap().to_owned(), kv.value_str().unwrap_or("").to_owned());
                return Some((event.name(), event.position.revision, key, value));
            }
            Poll::Ready(Some(_)) => {}
            _ => return None,
        }
    };
    let event = |name, revision, key: &str| Some((name, revision, key.to_owned(), "on".to_owned()));
    assert_eq!(next(), event("ADDED", 0, "/a"), "the position is 0 inside the initial state");
    writer.apply(2, [Change::put("/a", "off")]).unwrap();
    writer.apply(3, [Change::put("/b", "on")]).unwrap();
    assert_eq!([next(), next()], [event("DELETED", 2, "/a"), event("ADDED", 3, "/b")]);
    writer.apply(4, [Change::delete("/a")]).unwrap();
    writer.apply(5, [Change::put("/b", "on")]).unwrap();
    assert_eq!([next(), next()], [event("MODIFIED", 5, "/b"), None]);
    writer.apply(6, [Change::delete("/b")]).unwrap();
    assert_eq!([next(), next()], [event("DELETED", 6, "/b"), None]);
}

/// Over a broadcaster with a function for keys: the same, in a prefix and behind it.
#[test]
fn aw_21_boundary_over_a_broadcaster() {
    let broadcaster = Broadcaster::builder(10, WhenFull::Wait).keys(|lamp: &Lamp| lamp.0).build().unwrap();
    let prefix = [WatchEvent::added(Lamp("a", 1, true)), WatchEvent::added(Lamp("c", 1, true))];
    let mut lit = broadcaster.with_prefix(prefix).unwrap().filter_objects(|lamp: &Object<Lamp>| lamp.2);
    let published = [
        (Action::Added, Lamp("b", 2, true)),
        (Action::Added, Lamp("d", 3, false)),
        (Action::Modified, Lamp("a", 4, false)),
        (Action::Modified, Lamp("c", 5, true)),
        (Action::Deleted, Lamp("b", 6, false)),
    ];
    for (action, lamp) in published {
        broadcaster.action(action, lamp).unwrap();
    }
    broadcaster.shutdown();
    let seen: Vec<_> = all(&mut lit)
        .into_iter()
        .map(|event| {
            let lamp = event.object().unwrap();
            assert_eq!(lamp.key_str(), Some(lamp.0));
            (event.name(), lamp.0, lamp.1)
        })
        .collect();
    let of_prefix = [("ADDED", "a", 1), ("ADDED", "c", 1)];
    let of_log = [("ADDED", "b", 2), ("DELETED", "a", 1), ("MODIFIED", "c", 5), ("DELETED", "b", 2)];
    assert_eq!(seen, [&of_prefix[..], &of_log[..]].concat());
}

/// Objects of a broadcaster without keys are one to all that goes by keys: it says so, ends, and makes up no types.
#[test]
fn fault_objects_without_keys_are_refused() {
    let broadcaster = Broadcaster::new(10, WhenFull::Wait).unwrap();
    let mut selected = broadcaster.watch().unwrap().filter_objects(|lamp: &Object<Lamp>| lamp.2);
    let mut changed = broadcaster.watch().unwrap().predicate_filter(predicates::by(|lamp: &Object<Lamp>| Some(lamp.2)));
    for lamp in [Lamp("a", 1, true), Lamp("b", 1, true), Lamp("c", 1, false)] {
        broadcaster.action(Action::Added, lamp).unwrap();
    }
    for watch in [&mut selected as &mut dyn Watch<Object = _, Item = _>, &mut changed] {
        let Poll::Ready(Some(refused)) = watch.try_recv() else { panic!("an event is there") };
        let status = refused.status().unwrap_or_else(|| panic!("{refused:?}"));
        assert_eq!(status.code(), 400);
        assert!(status.message().contains("no keys"), "{status}");
        assert!(matches!(watch.try_recv(), Poll::Ready(None)), "it has ended");
    }
    for revision in 0..100 {
        assert!(broadcaster.action_or_drop(Action::Added, Lamp("a", revision, true)).unwrap(), "nobody waits for them");
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
