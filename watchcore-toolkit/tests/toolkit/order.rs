//! Order, wholeness and ends, through every part that stands between a writer and its readers.

use crate::support::{Text, next, put, wide_cache};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use watchcore::Change;
use watchcore_toolkit::{CacheSource, HandlerFns, Informer, PredicateExt, RetryWatch, predicates};

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
