//! Order, wholeness and ends, through every part that stands between a writer and its readers.

use crate::support::{BOUND, Text, delete, next, put, wide_cache};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use watchcore::{Change, Filter};
use watchcore_toolkit::{
    CacheSource, HandlerFns, Informer, ObjectWatch, Payload, PredicateExt, RetryWatch, WatchExt, predicates,
};

/// A thousand events through a retrying watch, a filter of types and a predicate: all of them, in order.
#[test]
fn iw_02_thousand_in_order_through_a_chain() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    let first = put(&mut writer, "/first", "0");
    let retrying = RetryWatch::open(CacheSource::<Text>::new(&cache), first).unwrap();
    let mut watch = retrying.touched().predicate_filter(predicates::revision());
    let writing = thread::spawn(move || {
        for round in 0..1000 {
            put(&mut writer, &format!("/{}", round % 7), &round.to_string());
        }
    });
    for round in 0..1000u64 {
        let event = next(&mut watch);
        assert_eq!((event.position.revision, event.lost), (first + 1 + round, 0));
        assert_eq!(**event.object().unwrap(), round.to_string());
    }
    writing.join().unwrap();
}

/// Revisions of one to seven changes, some of them deletions: each change once, in the order of its revision.
#[test]
fn rq_01_every_change_comes_in_order() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    let mut watch = ObjectWatch::<Text>::open(&cache).unwrap();
    assert_eq!(next(&mut watch).name(), "SYNCED");
    for revision in 1..=500u64 {
        let keys: Vec<String> = (0..1 + revision % 7).map(|key| format!("/{key}")).collect();
        let value = revision.to_string();
        writer.apply(revision, keys.iter().map(|key| Change::put(key, &value))).unwrap();
    }
    for revision in 1..=500u64 {
        for key in 0..1 + revision % 7 {
            let event = next(&mut watch);
            let object = event.object().unwrap();
            assert_eq!((object.key_str().unwrap(), object.revision()), (&*format!("/{key}"), revision));
        }
    }
    assert!(watch.try_recv().is_pending());
}

#[test]
fn rq_03_close_gives_the_rest_then_ends() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    let mut behind = ObjectWatch::<Text>::open(&cache).unwrap();
    let mut waiting = ObjectWatch::<Text>::open(&cache).unwrap();
    let ended = thread::spawn(move || {
        let mut events = 0;
        while waiting.recv(BOUND).unwrap().is_some() {
            events += 1;
        }
        events
    });
    for round in 0..10 {
        put(&mut writer, "/a", &round.to_string());
    }
    cache.close();
    assert_eq!(next(&mut behind).name(), "SYNCED");
    for round in 0..10 {
        assert_eq!(**next(&mut behind).object().unwrap(), round.to_string());
    }
    assert!(behind.recv(BOUND).unwrap().is_none());
    assert_eq!(ended.join().unwrap(), 11);
}

/// A value that cannot be decoded, between two that can, in one revision: those come.
#[test]
fn rq_04_broken_value_costs_nothing_but_itself() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    let mut watch = ObjectWatch::<Text>::open(&cache).unwrap();
    assert_eq!(next(&mut watch).name(), "SYNCED");
    writer.apply(1, [Change::put("/a", "1"), Change::put("/b", b"\xff"), Change::put("/c", "1")]).unwrap();
    writer.apply(2, [Change::put("/b", "2")]).unwrap();
    let seen: Vec<String> = (0..3).map(|_| next(&mut watch).object().unwrap().key_str().unwrap().to_owned()).collect();
    assert_eq!(seen, ["/a", "/c", "/b"]);
}

/// Two keys that always change together: no list, no snapshot and no handler shows one of them without the other for
/// longer than its own revision lasts.
#[test]
fn si_10_reader_sees_whole_revisions() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")]).unwrap();
    let informer = Informer::<Text>::new(&cache).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (lister, done) = (informer.lister(), Arc::clone(&done));
            thread::spawn(move || {
                let mut last = 0;
                while !done.load(Ordering::SeqCst) {
                    let pair = lister.list().unwrap();
                    let values: Vec<u64> = pair.iter().map(|object| object.parse().unwrap()).collect();
                    assert_eq!(values[0], values[1]);
                    assert!(values[0] >= last, "a later list is not older");
                    last = values[0];
                }
            })
        })
        .collect();
    for revision in 2..5000u64 {
        let value = revision.to_string();
        writer.apply(revision, [Change::put("/a", &value), Change::put("/b", &value)]).unwrap();
    }
    done.store(true, Ordering::SeqCst);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

/// One change at a time, each waited for: a handler that is about to sleep when the change comes is woken.
#[test]
fn fault_no_wake_up_of_a_handler_is_lost() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    let informer = Informer::<Text>::new(&cache).unwrap();
    let (say, said) = mpsc::channel();
    let (added, updated) = (say.clone(), say);
    let handler = HandlerFns::new()
        .on_added(move |new: &Text, _| added.send((**new).clone()).unwrap())
        .on_updated(move |_: &Text, new: &Text, _| updated.send((**new).clone()).unwrap());
    let _registration = informer.add_handler(handler).unwrap();
    for round in 0..2000 {
        put(&mut writer, "/a", &round.to_string());
        // A lost wake-up would be found by the next change: here there is none.
        assert_eq!(said.recv_timeout(Duration::from_secs(20)).unwrap(), round.to_string());
    }
}

/// One's own write is read after its revision was waited for, also where it lies outside of what the informer shows.
#[test]
fn fault_own_writes_are_read() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    let mine = Filter::any().prefix("/mine/");
    let informer =
        Informer::<Text>::builder(&cache).filter(mine).index("value", |text: &Text| vec![(**text).clone()]).build();
    let lister = informer.unwrap().lister();
    for round in 0..200 {
        let value = round.to_string();
        let revision = put(&mut writer, "/mine/a", &value);
        lister.wait_until(revision, BOUND).unwrap();
        assert_eq!(*lister.get("/mine/a").unwrap().unwrap(), value);
        assert_eq!(lister.by_index("value", &value).unwrap().len(), 1);
        let outside = put(&mut writer, "/other", &value);
        assert!(lister.wait_until(outside, BOUND).unwrap().revision >= outside);
    }
    let gone = delete(&mut writer, "/mine/a");
    lister.wait_until(gone, BOUND).unwrap();
    assert!(lister.get("/mine/a").unwrap().is_none());
    let mut watch = ObjectWatch::<Text>::open(&cache).unwrap();
    assert!(matches!(next(&mut watch).payload, Payload::Added(_)));
}
