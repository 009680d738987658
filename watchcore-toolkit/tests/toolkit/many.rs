//! A broadcaster's events, many at once.

use crate::support::BOUND;
use std::time::Duration;
use watchcore::Code;
use watchcore_toolkit::{
    Action, BroadcastEvent, BroadcastWatch, Broadcaster, Status, WatchEvent, WatchExt, WatchOptions, WhenFull,
};

fn broadcaster(queue: usize, when_full: WhenFull) -> Broadcaster<u64> {
    Broadcaster::new(queue, when_full).unwrap()
}

/// What one call gives: objects, and what was lost before each.
fn many(watch: &mut BroadcastWatch<u64>, max: usize) -> Vec<(u64, u64)> {
    let mut seen = Vec::new();
    let count = watch.recv_many(BOUND, max, |event| seen.push((*event.object, event.lost))).unwrap();
    assert_eq!(count, seen.len());
    seen
}

/// All in order, at most as many as asked for, the prefix first, and beside single events.
#[test]
fn aw_23_many_events_at_once() {
    let broadcaster = broadcaster(100, WhenFull::Wait);
    let prefix = [7, 8].map(WatchEvent::added);
    let mut watch = broadcaster.with_prefix(prefix).unwrap();
    for number in 1..=5 {
        broadcaster.action(Action::Modified, number).unwrap();
    }
    assert_eq!(many(&mut watch, 1), [(7, 0)]);
    assert_eq!(many(&mut watch, 3), [(8, 0)], "the prefix");
    assert_eq!(many(&mut watch, 2), [(1, 0), (2, 0)]);
    let single = watch.recv(BOUND).unwrap().unwrap();
    assert_eq!((single.name(), **single.object().unwrap(), single.position.revision), ("MODIFIED", 3, 3));
    let mut rest: Vec<(Action, u64, u64)> = Vec::new();
    let visit = |event: BroadcastEvent<'_, u64>| rest.push((event.action, *event.object, event.position.revision));
    watch.recv_many(BOUND, 100, visit).unwrap();
    assert_eq!(rest, [(Action::Modified, 4, 4), (Action::Modified, 5, 5)]);
    assert_eq!(watch.recv_many(Duration::from_millis(1), 9, |_| ()).unwrap_err().code(), Code::Timeout);
    assert_eq!(watch.recv_many(BOUND, 0, |_| ()).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(watch.position().revision, 5);
}

/// The end is no event; one that says why comes by the stream.
#[test]
fn aw_23_many_events_and_the_end() {
    let broadcaster = broadcaster(100, WhenFull::Wait);
    let (mut first, mut second) = (broadcaster.watch().unwrap(), broadcaster.watch().unwrap());
    broadcaster.action(Action::Added, 1).unwrap();
    broadcaster.shutdown_with(Status::new(503, "over"));
    assert_eq!(many(&mut first, 100), [(1, 0)]);
    assert_eq!(many(&mut first, 100), []);
    assert_eq!(first.recv(BOUND).unwrap().unwrap().status().unwrap().code(), 503);
    assert_eq!(first.recv(BOUND).unwrap(), None);
    assert_eq!(many(&mut first, 100), []);
    second.stop();
    assert_eq!(many(&mut second, 100), []);
}

/// A watch that drops: what a channel would have given to somebody who empties it.
#[test]
fn aw_23_many_of_a_full_queue() {
    let broadcaster = broadcaster(2, WhenFull::Drop);
    let mut watch = broadcaster.watch().unwrap();
    for number in 1..=5 {
        broadcaster.action(Action::Added, number).unwrap();
    }
    assert_eq!(many(&mut watch, 100), [(1, 0), (2, 0)]);
    for number in 6..=9 {
        broadcaster.action(Action::Added, number).unwrap();
    }
    assert_eq!(many(&mut watch, 1), [(6, 3)]);
    broadcaster.action(Action::Added, 10).unwrap();
    assert_eq!(many(&mut watch, 100), [(7, 0)]);
    assert_eq!(many(&mut watch, 100), [(10, 2)]);
    assert_eq!(watch.dropped(), 5);
}

/// A publisher that waits goes on when the call begins: the visitor may be that publisher.
#[test]
fn aw_23_many_release_the_publisher() {
    let broadcaster = broadcaster(1, WhenFull::Wait);
    let options = WatchOptions::new(1, WhenFull::Wait);
    let mut watch = broadcaster.watch_with(options).unwrap();
    for number in 1..=27 {
        assert!(broadcaster.action_or_drop(Action::Added, number).unwrap());
    }
    assert!(!broadcaster.action_or_drop(Action::Added, 28).unwrap(), "full");
    let mut published = 0;
    while published < 27 {
        watch
            .recv_many(BOUND, 27 - published, |_| {
                assert!(broadcaster.action_or_drop(Action::Added, 100).unwrap(), "there is a place");
                published += 1;
            })
            .unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut seen = 0;
    runtime.block_on(async {
        while seen < 27 {
            seen += watch.next_many(10, |_| ()).await;
        }
    });
    assert_eq!(watch.position().revision, 54);
}
