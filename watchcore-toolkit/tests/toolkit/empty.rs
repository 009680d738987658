//! A watch of nothing.

use std::task::Poll;
use std::time::Duration;
use watchcore_toolkit::{EmptyWatch, WatchExt};

#[test]
fn aw_13_empty_has_ended_at_birth() {
    let mut watch = EmptyWatch::<u8>::new();
    assert_eq!(watch.try_recv(), Poll::Ready(None));
    watch.stop();
    watch.stop();
    assert_eq!(watch.recv(Duration::from_secs(10)).unwrap(), None);
}
