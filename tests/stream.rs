//! A subscription as a stream, under an executor of a few lines.
#![cfg(feature = "async")]
#![allow(missing_docs)]

use futures_core::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use watchcore::{Batch, Cache, Change, Kind, Result, Start, Subscription};

const BOUND: Duration = Duration::from_secs(60);

struct Bell(Sender<()>, AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, SeqCst);
        self.0.send(()).ok();
    }
}

fn bell() -> (Arc<Bell>, Receiver<()>) {
    let (ring, rings) = channel();
    (Arc::new(Bell(ring, AtomicUsize::new(0))), rings)
}

/// Polls once, as an executor does: the stream is made anew, nothing is lost with the old one.
fn once(subscription: &mut Subscription, bell: &Arc<Bell>) -> Poll<Option<Result<Batch>>> {
    let waker = Waker::from(bell.clone());
    let mut stream = subscription.stream();
    Pin::new(&mut stream).poll_next(&mut Context::from_waker(&waker))
}

/// The next item; waits for the waker where there is none yet.
fn next(subscription: &mut Subscription, bell: &Arc<Bell>, rings: &Receiver<()>) -> Option<Result<Batch>> {
    loop {
        match once(subscription, bell) {
            Poll::Ready(item) => return item,
            Poll::Pending => rings.recv_timeout(BOUND).expect("it is woken"),
        }
    }
}

fn keys(batch: &Batch) -> Vec<(u64, Kind, String)> {
    let shown =
        |event: &watchcore::Event| (event.revision(), event.kind(), String::from_utf8_lossy(event.key()).into_owned());
    batch.events().iter().map(shown).collect()
}

#[test]
fn every_event_then_the_end() {
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut subscription = cache.subscribe(Start::Now).prefix("/a/").open().unwrap();
    let consumer = std::thread::spawn(move || {
        let (bell, rings) = bell();
        let mut seen = Vec::new();
        while let Some(batch) = next(&mut subscription, &bell, &rings) {
            seen.extend(batch.unwrap().events().iter().map(watchcore::Event::revision));
        }
        assert!(matches!(once(&mut subscription, &bell), Poll::Ready(None)), "it stays ended");
        seen
    });
    for revision in 1..=5000u64 {
        let key = format!("/{}/{}", if revision % 3 == 0 { "b" } else { "a" }, revision % 10);
        writer.apply(revision, [Change::put(&key, "")]).unwrap();
        if revision % 100 == 0 {
            std::thread::yield_now();
        }
    }
    cache.close();
    let expected: Vec<u64> = (1..=5000).filter(|revision| revision % 3 != 0).collect();
    assert!(consumer.join().unwrap() == expected);
}

/// A consumer that looked at a key's coming and going still hears of the next event.
#[test]
fn pending_always_means_that_a_wake_up_comes() {
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut subscription = cache.subscribe(Start::Now).key("/a").types(&[Kind::Added]).open().unwrap();
    let (bell, rings) = bell();
    assert!(once(&mut subscription, &bell).is_pending());
    writer.apply(1, [Change::put("/a", "1")]).unwrap();
    writer.apply(2, [Change::delete("/a")]).unwrap();
    let batch = next(&mut subscription, &bell, &rings).unwrap().unwrap();
    assert_eq!(keys(&batch), [(1, Kind::Added, "/a".into())]);
    // A bell of its own: what rings is for the event to come.
    let (bell, rings) = crate::bell();
    assert!(once(&mut subscription, &bell).is_pending(), "the delete is masked");
    writer.apply(3, [Change::put("/b", "")]).unwrap();
    writer.apply(4, [Change::put("/a", "2")]).unwrap();
    rings.recv_timeout(BOUND).expect("it is woken");
    let batch = next(&mut subscription, &bell, &rings).unwrap().unwrap();
    assert_eq!(keys(&batch), [(4, Kind::Added, "/a".into())]);
}

#[test]
fn the_newest_waker_is_the_one_that_is_woken() {
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut subscription = cache.subscribe(Start::Now).open().unwrap();
    let (old, _old_rings) = bell();
    let (new, new_rings) = bell();
    assert!(once(&mut subscription, &old).is_pending());
    assert!(once(&mut subscription, &new).is_pending());
    writer.apply(1, [Change::put("/a", "")]).unwrap();
    new_rings.recv_timeout(BOUND).expect("it is woken");
    assert_eq!(old.1.load(SeqCst), 0, "nobody waits with the old one");
    assert!(matches!(once(&mut subscription, &old), Poll::Ready(Some(Ok(_)))));
}

#[test]
fn an_error_is_an_item_and_then_it_ends() {
    let cache = Cache::builder("/").capacity(128).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut subscription = cache.subscribe(Start::Now).open().unwrap();
    for revision in 1..=1000 {
        writer.apply(revision, [Change::put("/a", "")]).unwrap();
    }
    let (bell, rings) = bell();
    let error = next(&mut subscription, &bell, &rings).unwrap().unwrap_err();
    assert_eq!((error.code(), error.lost_from()), (watchcore::Code::Lagged, 1));
    assert!(next(&mut subscription, &bell, &rings).is_none());
    // A closer ends one that sleeps.
    let mut other = cache.subscribe(Start::Now).open().unwrap();
    assert!(once(&mut other, &bell).is_pending());
    other.closer().close();
    rings.recv_timeout(BOUND).expect("it is woken");
    assert!(next(&mut other, &bell, &rings).is_none());
}

/// Holds the notifier until it is let go.
struct Brake(Sender<()>, std::sync::Mutex<Receiver<()>>);

impl Wake for Brake {
    fn wake(self: Arc<Self>) {
        self.0.send(()).ok();
        self.1.lock().unwrap().recv_timeout(BOUND).ok();
    }
}

#[test]
fn it_lags_where_the_notifier_was_lapped_and_that_is_counted() {
    let cache = Cache::builder("/").capacity(128).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut parked = cache.subscribe(Start::Now).key("/never").open().unwrap();
    let mut held = cache.subscribe(Start::Now).key("/a").open().unwrap();
    let (bell, rings) = bell();
    let ((here, arrived), (go, going)) = (channel(), channel());
    let brake = Waker::from(Arc::new(Brake(here, std::sync::Mutex::new(going))));
    assert!(Pin::new(&mut held.stream()).poll_next(&mut Context::from_waker(&brake)).is_pending());
    assert!(once(&mut parked, &bell).is_pending());
    assert_eq!(cache.stats().notifier_lapped, 0);
    writer.apply(1, [Change::put("/a", "")]).unwrap();
    arrived.recv_timeout(BOUND).expect("the notifier is in the waker");
    // It has looked at revision 1; what follows goes round under it.
    for revision in 2..=1000 {
        writer.apply(revision, [Change::put("/b", "")]).unwrap();
    }
    go.send(()).unwrap();
    // Not before: its own poll would find the loss first.
    rings.recv_timeout(BOUND).expect("the notifier wakes all");
    let error = next(&mut parked, &bell, &rings).unwrap().unwrap_err();
    assert_eq!((error.code(), error.lost_to()), (watchcore::Code::Lagged, cache.oldest() - 1));
    assert_eq!(cache.stats().notifier_lapped, 1);
}

/// Panics where it is woken.
struct Mine;

impl Wake for Mine {
    fn wake(self: Arc<Self>) {
        panic!("a waker of the user's");
    }
}

#[test]
fn a_panicking_waker_is_caught_and_others_are_woken() {
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    let (mut bad, mut good) =
        (cache.subscribe(Start::Now).open().unwrap(), cache.subscribe(Start::Now).open().unwrap());
    let mine = Waker::from(Arc::new(Mine));
    let (bell, rings) = bell();
    for revision in 1..=2 {
        assert!(Pin::new(&mut bad.stream()).poll_next(&mut Context::from_waker(&mine)).is_pending());
        assert!(once(&mut good, &bell).is_pending());
        writer.apply(revision, [Change::put("/a", "")]).unwrap();
        let until = Instant::now() + BOUND;
        while cache.stats().caught_panics < revision {
            assert!(Instant::now() < until, "the panic is counted");
            std::thread::yield_now();
        }
        for subscription in [&mut good, &mut bad] {
            let batch = next(subscription, &bell, &rings).unwrap().unwrap();
            assert_eq!((batch.len(), batch.events()[0].revision()), (1, revision));
        }
    }
}
