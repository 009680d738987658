//! Rows AW-11, AW-12, AW-14 and AW-17: watches for tests.

use crate::broadcaster::LONG;
use crate::script::{PanicsWoken, Woken};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use watchcore::Code;
use watchcore_toolkit::{FakeWatch, RaceFreeFakeSource, Status, Watch, WatchEvent, WatchExt};

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

/// A verb returns when its event was taken, and not before.
#[test]
fn aw_11_fake_verbs_wait_for_the_consumer() {
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

/// The original panics where an event is sent after the stop, and leaves a sender behind that nobody reads.
#[test]
fn fault_fake_stop_releases_senders() {
    for drops in [false, true] {
        let (fake, watch) = FakeWatch::pair();
        let senders: Vec<_> = (0..4)
            .map(|number| {
                let fake = fake.clone();
                thread::spawn(move || fake.add(number).unwrap_err())
            })
            .collect();
        if drops {
            drop(watch);
        } else {
            watch.stop();
        }
        for sender in senders {
            assert_eq!(sender.join().unwrap().code(), Code::Closed);
        }
        assert_eq!(fake.delete(1).unwrap_err().code(), Code::Closed);
        fake.stop();
    }
}

#[test]
fn aw_12_race_free_fake_buffers() {
    let (fake, mut watch) = RaceFreeFakeSource::pair();
    for event in five() {
        fake.send(event).unwrap();
    }
    fake.stop();
    fake.stop();
    fake.add("ignored").unwrap();
    assert_eq!(all(&mut watch), five());
    assert!(fake.is_stopped());
}

/// The original panics.
#[test]
fn fault_race_free_fake_full_is_an_error() {
    let (fake, mut watch) = RaceFreeFakeSource::pair();
    for number in 0..100 {
        fake.add(number).unwrap();
    }
    let full = fake.modify(100).unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    assert!(full.message().contains("channel full"), "{full}");
    assert_eq!(watch.try_recv(), Poll::Ready(Some(WatchEvent::added(0))));
    fake.delete(100).unwrap();
    watch.stop();
    assert!(fake.error(Status::new(500, "ignored")).is_ok());
    assert_eq!(all(&mut watch).len(), 100, "what was sent before the stop");
}

#[test]
fn aw_17_recorder_has_a_copy_of_all() {
    let (fake, watch) = RaceFreeFakeSource::pair();
    let mut watch = watch.record();
    let recording = watch.recording();
    for event in five() {
        fake.send(event).unwrap();
    }
    assert_eq!(recording.events(), []);
    let given = all(&mut watch);
    assert_eq!(recording.events(), given);
    assert_eq!(given, five());
    drop(watch);
    assert_eq!(recording.clone().events(), five());
    assert!(fake.is_stopped());
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
