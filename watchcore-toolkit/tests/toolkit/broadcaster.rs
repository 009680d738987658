//! Rows AW-01 to AW-10.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};
use watchcore::Code;
use watchcore_toolkit::{
    Action, BroadcastWatch, Broadcaster, Origin, Payload, Watch, WatchEvent, WatchExt, WatchOptions, WhenFull,
};

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// What a watch gives until its end.
pub(crate) fn drain<T: Copy + Send + Sync + 'static>(watch: &mut BroadcastWatch<T>) -> Vec<(&'static str, T)> {
    let mut seen = Vec::new();
    while let Some(event) = watch.recv(LONG).unwrap() {
        seen.push((event.name(), **event.object().unwrap()));
    }
    seen
}

/// The next object, which is there.
pub(crate) fn now<T: Copy + std::fmt::Debug + Send + Sync + 'static>(watch: &mut BroadcastWatch<T>) -> (T, u64) {
    match watch.try_recv() {
        Poll::Ready(Some(event)) => (**event.object().unwrap(), event.lost),
        other => panic!("there is no event: {other:?}"),
    }
}

/// Waits for something that another thread brings about.
pub(crate) fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn aw_01_two_watchers_see_all_in_order() {
    let broadcaster = Broadcaster::new(0, WhenFull::Wait).unwrap();
    let watches = [broadcaster.watch().unwrap(), broadcaster.watch().unwrap()];
    let readers = watches.map(|mut watch| thread::spawn(move || drain(&mut watch)));
    let all = [(Action::Added, 1), (Action::Added, 2), (Action::Modified, 1), (Action::Deleted, 2)];
    for (action, object) in all {
        broadcaster.action(action, object).unwrap();
    }
    broadcaster.shutdown();
    for reader in readers {
        assert_eq!(reader.join().unwrap(), all.map(|(action, object)| (action.name(), object)));
    }
}

/// Stops are harmless before and after the end, in any number.
#[test]
fn aw_02_stopped_watchers_end() {
    let broadcaster = Broadcaster::<u8>::new(0, WhenFull::Wait).unwrap();
    let mut watches = [broadcaster.watch().unwrap(), broadcaster.watch().unwrap()];
    watches[0].stop();
    broadcaster.shutdown();
    for watch in &mut watches {
        assert_eq!(watch.recv(LONG).unwrap(), None);
        watch.stop();
        watch.stop();
        assert_eq!(watch.recv(LONG).unwrap(), None);
    }
    broadcaster.shutdown();
    assert_eq!(broadcaster.watchers(), 2, "open until they are dropped");
    drop(watches);
    assert_eq!(broadcaster.watchers(), 0);
}

/// The publisher waits for the first watcher, which nobody reads; the second one's reader stops it.
#[test]
fn aw_03_stop_releases_a_publisher() {
    let broadcaster = Broadcaster::new(0, WhenFull::Wait).unwrap();
    let stalled = broadcaster.watch().unwrap();
    let mut reading = broadcaster.watch().unwrap();
    let stopper = stalled.stopper();
    let publisher = thread::spawn(move || {
        for number in 1..=100 {
            broadcaster.action(Action::Added, number).unwrap();
        }
    });
    for number in 1..=26 {
        assert_eq!(reading.recv(LONG).unwrap().unwrap().object().map(|object| **object), Some(number));
    }
    // All that fits is published.
    assert!(!publisher.is_finished());
    thread::spawn(move || stopper.stop()).join().unwrap();
    assert_eq!(drain(&mut reading).len(), 74);
    publisher.join().unwrap();
}

#[test]
fn aw_04_full_queue_gives_first_only() {
    let broadcaster = Broadcaster::new(1, WhenFull::Drop).unwrap();
    let mut watches = [broadcaster.watch().unwrap(), broadcaster.watch().unwrap()];
    broadcaster.action(Action::Added, 1).unwrap();
    broadcaster.action(Action::Added, 2).unwrap();
    broadcaster.shutdown();
    for watch in &mut watches {
        assert_eq!(drain(watch), [("ADDED", 1)]);
        assert_eq!(watch.dropped(), 1);
    }
}

#[test]
fn aw_05_watch_after_shutdown_is_refused() {
    let broadcaster = Broadcaster::new(0, WhenFull::Wait).unwrap();
    broadcaster.action(Action::Added, 1).unwrap();
    broadcaster.shutdown();
    let refused = [
        broadcaster.watch().unwrap_err(),
        broadcaster.with_prefix([WatchEvent::added(1)]).unwrap_err(),
        broadcaster.after(0).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.code(), Code::Closed);
        assert!(error.message().contains("broadcaster already stopped"), "{error}");
    }
}

#[test]
fn aw_06_publishing_after_shutdown_is_refused() {
    let broadcaster = Broadcaster::new(0, WhenFull::Wait).unwrap();
    broadcaster.shutdown();
    let refused =
        [broadcaster.action(Action::Added, 1).unwrap_err(), broadcaster.action_or_drop(Action::Added, 1).unwrap_err()];
    for error in refused {
        assert_eq!(error.code(), Code::Closed);
        assert!(error.message().contains("broadcaster already stopped"), "{error}");
    }
}

#[test]
fn aw_07_stops_beside_a_shutdown() {
    for _ in 0..50 {
        let broadcaster = Broadcaster::new(0, WhenFull::Wait).unwrap();
        let barrier = Barrier::new(6);
        thread::scope(|scope| {
            for _ in 0..4 {
                let mut watch = broadcaster.watch().unwrap();
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    watch.try_recv().is_ready();
                    watch.stop();
                    assert_eq!(watch.recv(LONG).unwrap(), None);
                });
            }
            scope.spawn(|| {
                barrier.wait();
                while broadcaster.action(Action::Added, 1).is_ok() {}
            });
            barrier.wait();
            broadcaster.shutdown();
        });
    }
}

#[test]
fn aw_08_prefix_comes_first() {
    let broadcaster = Broadcaster::new(1, WhenFull::Drop).unwrap();
    broadcaster.action(Action::Added, 1).unwrap();
    let prefix = [WatchEvent::added(10).at(1), WatchEvent::modified(Some(10), 11), WatchEvent::synced()];
    let mut watch = broadcaster.with_prefix(prefix).unwrap();
    broadcaster.action(Action::Added, 2).unwrap();
    broadcaster.action(Action::Added, 3).unwrap();
    broadcaster.shutdown();
    let seen: Vec<_> = std::iter::from_fn(|| watch.recv(LONG).unwrap()).collect();
    assert_eq!(seen.iter().map(|event| event.name()).collect::<Vec<_>>(), ["ADDED", "MODIFIED", "SYNCED", "ADDED"]);
    assert!(seen[..3].iter().all(|event| event.origin == Origin::InitialState && event.lost == 0));
    assert_eq!((seen[0].position.revision, **seen[0].object().unwrap()), (1, 10));
    let Payload::Modified { old: Some(old), new } = &seen[1].payload else { panic!("{:?}", seen[1]) };
    assert_eq!((**old, **new), (10, 11));
    assert_eq!(**seen[3].object().unwrap(), 2, "there is room for one more than the prefix");
    assert_eq!(watch.dropped(), 1);
}

/// A watch that is opened between two events begins exactly there, also while others publish.
#[test]
fn aw_09_new_watcher_sees_what_follows() {
    let broadcaster = Broadcaster::builder(64, WhenFull::Drop).history(200_000).build().unwrap();
    broadcaster.action(Action::Added, 1).unwrap();
    let mut watch = broadcaster.watch().unwrap();
    broadcaster.action(Action::Added, 2).unwrap();
    assert_eq!(now(&mut watch), (2, 0));

    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 3..=20_000 {
                broadcaster.action(Action::Added, number).unwrap();
            }
            over.store(true, Ordering::SeqCst);
        });
        while !over.load(Ordering::SeqCst) {
            let before = broadcaster.position().revision;
            let mut watch = broadcaster.watch_with(WatchOptions::new(1000, WhenFull::Drop)).unwrap();
            let after = broadcaster.position().revision;
            let began = watch.position().revision;
            assert!((before..=after).contains(&began));
            if let Poll::Ready(Some(event)) = watch.try_recv() {
                assert_eq!((event.position.revision, event.lost), (began + 1, 0));
                assert_eq!(**event.object().unwrap(), began + 1, "the object of the revision");
            }
        }
    });
}

/// One publisher, a thousand watchers that wait: each sees every event, in order.
#[test]
fn aw_10_thousand_watchers_see_everything() {
    const EVENTS: u64 = 200;
    let broadcaster = Broadcaster::new(10, WhenFull::Wait).unwrap();
    let mut watches: Vec<_> = (0..1000).map(|_| broadcaster.watch().unwrap()).collect();
    let publisher = thread::spawn(move || {
        for number in 1..=EVENTS {
            broadcaster.action(Action::Added, number).unwrap();
        }
    });
    for number in 1..=EVENTS {
        for watch in &mut watches {
            let event = watch.recv(LONG).unwrap().unwrap();
            assert_eq!((**event.object().unwrap(), event.lost), (number, 0));
        }
    }
    publisher.join().unwrap();
    for watch in &mut watches {
        assert_eq!(watch.recv(LONG).unwrap(), None, "dropping the broadcaster shuts it down");
    }
}
