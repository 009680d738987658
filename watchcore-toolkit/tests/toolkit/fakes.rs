//! Row AW-11, where a script cannot keep it: verbs that block a thread, and futures that are dropped.

use crate::broadcaster::LONG;
use crate::script::{PanicsWoken, Woken};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use watchcore_toolkit::{FakeWatch, Status, Watch, WatchEvent, WatchExt};

/// All that a watch gives until its end.
pub(crate) fn all<W: Watch>(watch: &mut W) -> Vec<WatchEvent<W::Object>> {
    std::iter::from_fn(|| watch.recv(LONG).unwrap()).collect()
}

fn five() -> [WatchEvent<&'static str>; 5] {
    [
        WatchEvent::added("foo"),
        WatchEvent::modified(None, "foo").at(7),
        WatchEvent::modified(Some("foo"), "bar"),
        WatchEvent::deleted("bar"),
        WatchEvent::error(Status::new(500, "over")),
    ]
}

#[test]
fn aw_11_fake_gives_all_in_order() {
    let (fake, mut watch) = FakeWatch::pair();
    let test = thread::spawn({
        let fake = fake.clone();
        move || {
            fake.add("foo").unwrap();
            fake.send(five()[1].clone()).unwrap();
            fake.send(five()[2].clone()).unwrap();
            fake.delete("bar").unwrap();
            fake.error(Status::new(500, "over")).unwrap();
            fake.stop();
        }
    });
    assert_eq!(all(&mut watch), five());
    test.join().unwrap();
    assert!(fake.is_stopped());

    let mut again = fake.reset();
    assert!(!fake.is_stopped());
    let test = thread::spawn(move || fake.modify("again").unwrap());
    assert_eq!(again.recv(LONG).unwrap(), Some(WatchEvent::modified(None, "again")));
    test.join().unwrap();
    assert_eq!(watch.recv(LONG).unwrap(), None, "the one before stays ended");
}

/// An event whose sender has given up is not delivered.
#[test]
fn aw_11_dropped_send_delivers_nothing() {
    let (fake, mut watch) = FakeWatch::pair();
    let mut context = Context::from_waker(Waker::noop());
    let mut first = pin!(fake.send_async(WatchEvent::added(1)));
    let mut second = Box::pin(fake.send_async(WatchEvent::added(2)));
    let mut third = pin!(fake.send_async(WatchEvent::added(3)));
    for _ in 0..3 {
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert!(third.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(watch.try_recv(), Poll::Ready(Some(WatchEvent::added(1))));
    assert!(first.as_mut().poll(&mut context).is_ready());
    assert!(second.as_mut().poll(&mut context).is_pending());
    drop(second);
    assert_eq!(watch.try_recv(), Poll::Ready(Some(WatchEvent::added(3))), "what was given up is not delivered");
    assert!(third.as_mut().poll(&mut context).is_ready());
    assert!(watch.try_recv().is_pending());
}

/// A sender whose waker panics costs the others nothing, nor who stops the fake.
#[test]
fn fault_fake_stop_beside_a_panicking_waker() {
    let (fake, watch) = FakeWatch::<u8>::pair();
    let (panics, woken) = (Arc::new(PanicsWoken::default()), Arc::new(Woken::default()));
    let mut senders = [1, 2].map(|number| Box::pin(fake.send_async(WatchEvent::added(number))));
    let wakers = [Waker::from(Arc::clone(&panics)), Waker::from(Arc::clone(&woken))];
    for (sender, waker) in senders.iter_mut().zip(&wakers) {
        assert!(sender.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    watch.stop();
    assert_eq!((panics.count(), woken.count()), (1, 1));
}
