//! A watch that survives its server, beside the rows that run: wake-ups, sources that hang, and a cache as the source.

use crate::script::{Answer, ScriptWatch, Server, Woken};
use crate::support::{Text, delete, lap, line, next, put, small_cache};
use futures_core::Stream;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use watchcore::{Cache, Change, KeyValue, Position};
use watchcore_toolkit::{
    CacheSource, Keyed, ListPage, ListRequest, ListWatch, ManualClock, Origin, Payload, RetryWatch, Status, WatchEvent,
    WatchExt,
};

const BOUND: Duration = Duration::from_secs(30);

/// An object of its key and its revision.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Thing(&'static str, u64);

impl Keyed for Thing {
    fn object_key(&self) -> std::borrow::Cow<'_, [u8]> {
        self.0.as_bytes().into()
    }

    fn object_revision(&self) -> u64 {
        self.1
    }
}

fn added(revision: u64) -> WatchEvent<Thing> {
    WatchEvent::added(Thing("a", revision)).at(revision)
}

/// A stop ends a wait for a delay, for an answer, and for an event: it wakes who waits.
#[test]
fn rw_23_stop_ends_every_wait() {
    let clock = Arc::new(ManualClock::new());
    let delayed = Server::new([Answer::Refuse(Status::new(503, "as the test says"))]);
    let silent = Server::<Thing>::new([]);
    let never = |_: Position| pending::<Result<Option<ScriptWatch<Thing>>, Status>>();
    let watches = [
        RetryWatch::builder(delayed.source(), 1).clock(clock.clone()).open().unwrap().boxed(),
        RetryWatch::open(silent.source(), 1).unwrap().boxed(),
        RetryWatch::open(never, 1).unwrap().boxed(),
    ];
    for mut watch in watches {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut watch).poll_next(&mut context).is_pending());
        watch.stop();
        assert!(woken.count() > 0, "who waits is woken");
        assert_eq!(Pin::new(&mut watch).poll_next(&mut context), Poll::Ready(None));
    }
}

/// An event that was not given yet does not move the resume point.
#[test]
fn rw_24_resume_point_moves_when_given() {
    let server = Server::new([Answer::Stays(vec![added(6), added(7)])]);
    let mut watch = RetryWatch::open(server.source(), 5).unwrap();
    assert_eq!(watch.position().revision, 5);
    watch.recv(BOUND).unwrap();
    assert_eq!(watch.position().revision, 6);
}

/// An opening or a list that is never answered is tried again.
#[test]
fn fault_answer_that_never_comes_is_asked_for_again() {
    for from in [5, 0] {
        let clock = Arc::new(ManualClock::new());
        let list = |_: ListRequest| pending::<Result<ListPage<Thing>, Status>>();
        let watch = |_: Position| pending::<Result<Option<ScriptWatch<Thing>>, Status>>();
        let source = ListWatch::new(list, watch);
        let mut watch = RetryWatch::builder(source, from).relist().clock(clock.clone()).open().unwrap();
        for asked in 1..4 {
            assert!(watch.try_recv().is_pending());
            assert_eq!(watch.opens() + watch.lists(), asked);
            assert_eq!(clock.next_due(), Some(Duration::from_secs(630)));
            clock.advance(Duration::from_secs(630));
        }
        assert!(watch.try_recv().is_pending());
        assert_eq!(watch.last_status().unwrap().code(), 503);
    }
}

/// A source that is always ready, and a delay of nothing: others run, and a stop is seen.
#[test]
fn fault_hot_source_lets_others_run() {
    let server = Server::new((0..100_000).map(|_| Answer::<Thing>::Nothing));
    let watch = RetryWatch::builder(server.source(), 5).min_restart_delay(Duration::ZERO);
    let mut watch = watch.open().unwrap();
    assert!(watch.try_recv().is_pending());
    assert!(server.opens().len() < 1000, "{} opens in one poll", server.opens().len());
    watch.stop();
    assert_eq!(watch.try_recv(), Poll::Ready(None));
}

/// A value that cannot be decoded is no deletion in a list either: the last good one stays.
#[test]
fn rf_14_refused_value_of_a_list_is_no_deletion() {
    let cache = small_cache();
    let mut writer = cache.writer().unwrap();
    put(&mut writer, "/a", "1");
    let source = CacheSource::<Text>::new(&cache);
    let watch = RetryWatch::builder(source, 0).relist().min_restart_delay(Duration::ZERO);
    let mut watch = watch.open().unwrap();
    assert_eq!([(); 2].map(|()| line(&next(&mut watch))), ["+ /a=1", "synced"]);
    writer.apply(2, [Change::put("/a", b"\xff")]).unwrap();
    lap(&mut writer, "/z");
    let newest = writer.position();
    while watch.position() != newest {
        let event = next(&mut watch);
        assert_ne!(event.object().and_then(|text| text.key_str()), Some("/a"), "{}", line(&event));
    }
    assert!(watch.lists() > 1, "it was overtaken");
    put(&mut writer, "/a", "2");
    assert_eq!(line(&next(&mut watch)), "~ /a=1>2");
}

/// A deletion of what was refused before the watch began is given all the same: its consumer may have the object from before.
#[test]
fn rw_35_deleted_value_that_was_refused() {
    let cache = small_cache();
    let mut writer = cache.writer().unwrap();
    put(&mut writer, "/a", "1");
    writer.apply(2, [Change::put("/a", b"\xff")]).unwrap();
    let source = CacheSource::<Text>::new(&cache);
    let mut alone = RetryWatch::open(source.clone(), 2).unwrap();
    let mut listing = RetryWatch::builder(source, 1).relist().open().unwrap();
    writer.apply(3, [Change::put("/b", b"\xff")]).unwrap();
    delete(&mut writer, "/b");
    delete(&mut writer, "/a");
    put(&mut writer, "/end", "1");
    assert_eq!([(); 2].map(|()| line(&next(&mut alone))), ["? /a", "+ /end=1"]);
    assert_eq!([(); 2].map(|()| line(&next(&mut listing))), ["- /a=1", "+ /end=1"]);
}

/// Over a cache: its history, what it left behind as a difference, and the end of the cache.
#[test]
fn rw_30_cache_is_a_source() {
    let cache = Cache::builder("/").capacity(128).build().unwrap();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")]).unwrap();
    let source = CacheSource::<KeyValue>::new(&cache);
    let watch = RetryWatch::builder(source.clone(), 0).relist().min_restart_delay(Duration::ZERO);
    let mut watch = watch.open().unwrap();
    let next = |watch: &mut RetryWatch<CacheSource<KeyValue>>| watch.recv(BOUND).unwrap().unwrap();
    assert_eq!([(); 3].map(|()| next(&mut watch).name()), ["ADDED", "ADDED", "SYNCED"]);
    writer.apply(2, [Change::put("/a", "2")]).unwrap();
    let event = next(&mut watch);
    assert_eq!((event.name(), event.position.revision), ("MODIFIED", 2));

    // Overtaken: the subscription below ends with 410, and the difference follows.
    writer.apply(3, [Change::delete("/b")]).unwrap();
    for revision in 4..2000 {
        writer.apply(revision, [Change::put("/a", &revision.to_string())]).unwrap();
    }
    // The segment that it stood in is read to its end first.
    let mut value = "2".to_owned();
    let mut deletes = 0;
    let last = loop {
        let event = next(&mut watch);
        match &event.payload {
            Payload::Modified { old: Some(old), new } => {
                assert_eq!(old.value_str(), Some(&*value), "what was given before");
                value = new.value_str().unwrap().to_owned();
            }
            Payload::Deleted(last) => {
                assert_eq!(last.value_str(), Some("1"));
                deletes += 1;
            }
            other => panic!("{other:?}"),
        }
        if event.origin == Origin::Difference {
            break event;
        }
    };
    assert_eq!((&*value, deletes, last.lost > 1000, last.position.revision), ("1999", 1, true, 1999));
    assert_eq!(watch.lists(), 2);
    drop(writer);
    cache.close();
    let end = watch.recv(BOUND).unwrap();
    assert!(end.is_none_or(|event| event.status().is_some_and(|status| status.code() == 503)));
    assert!(watch.recv(BOUND).unwrap().is_none(), "a closed cache is not opened again for ever");
}
