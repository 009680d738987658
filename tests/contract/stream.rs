//! A subscription as a stream, under an executor of a few lines.

use crate::bell::{BOUND, bell, next, once};
use std::sync::atomic::Ordering::SeqCst;
use std::task::Poll;
use watchcore::{Batch, Cache, Change, Kind, Start};

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
    let (bell, rings) = crate::bell::bell();
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
