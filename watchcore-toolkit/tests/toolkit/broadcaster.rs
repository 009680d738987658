//! Rows AW-07 to AW-09, where scripts cannot keep them: threads, and what other languages do not show.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};
use watchcore_toolkit::{Action, BroadcastWatch, Broadcaster, Origin, WatchEvent, WatchExt, WatchOptions, WhenFull};

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

/// The count of watches is that of those that were not dropped. Dropping the broadcaster shuts it down.
#[test]
fn watches_are_counted() {
    let broadcaster = Broadcaster::<u8>::new(0, WhenFull::Wait).unwrap();
    let mut watches = [broadcaster.watch().unwrap(), broadcaster.watch().unwrap()];
    watches[0].stop();
    assert_eq!(broadcaster.watchers(), 2, "open until they are dropped");
    let [_, left] = &mut watches;
    assert!(left.try_recv().is_pending());
    drop(watches);
    assert_eq!(broadcaster.watchers(), 0);
    let mut watch = broadcaster.watch().unwrap();
    drop(broadcaster);
    assert_eq!(watch.recv(LONG).unwrap(), None);
}

#[test]
fn aw_08_prefix_is_of_the_initial_state() {
    let broadcaster = Broadcaster::new(1, WhenFull::Drop).unwrap();
    let mut watch = broadcaster.with_prefix([WatchEvent::added(1), WatchEvent::synced()]).unwrap();
    broadcaster.action(Action::Added, 2).unwrap();
    broadcaster.shutdown();
    let origins: Vec<_> = std::iter::from_fn(|| watch.recv(LONG).unwrap()).map(|event| event.origin).collect();
    assert_eq!(origins, [Origin::InitialState, Origin::InitialState, Origin::Change]);
}

/// A watch that is opened while others publish begins between two events.
#[test]
fn aw_09_new_watcher_sees_what_follows() {
    let broadcaster = Broadcaster::builder(64, WhenFull::Drop).history(200_000).build().unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=20_000 {
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
