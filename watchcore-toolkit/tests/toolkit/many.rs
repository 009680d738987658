//! A broadcaster's events, many at once.

use crate::support::BOUND;
use watchcore_toolkit::{Action, Broadcaster, WatchOptions, WhenFull};

fn broadcaster(queue: usize, when_full: WhenFull) -> Broadcaster<u64> {
    Broadcaster::new(queue, when_full).unwrap()
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
