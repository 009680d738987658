//! Tests of changes between the snapshot of a typed watch and the subscription that follows it.

#![forbid(unsafe_code)]

use super::ObjectWatchBuilder;
use crate::watch_ext::WatchExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use watchcore::raw::TestBuilder as _;
use watchcore::{Cache, Change, KeyValue, Record, ResyncReason, Start, Writer};

/// An upper bound for loaded machines; no wait of a test is meant to take this long.
const BOUND: Duration = Duration::from_secs(60);

/// A small cache with `/a` in it, whose writer acts this many times between a snapshot and its subscription.
struct Between {
    cache: Cache,
    writer: Arc<Mutex<Writer>>,
    left: Arc<AtomicU64>,
}

impl Between {
    fn new() -> Between {
        let cache = Cache::builder("/").capacity(128).segment_slots(16).build().unwrap();
        let mut writer = cache.writer().unwrap();
        put(&mut writer, "/a");
        Between { cache, writer: Arc::new(Mutex::new(writer)), left: Arc::default() }
    }

    fn builder(&self, act: fn(&mut Writer)) -> ObjectWatchBuilder<KeyValue> {
        let (writer, left) = (Arc::clone(&self.writer), Arc::clone(&self.left));
        let between = move || {
            if left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                act(&mut writer.lock().unwrap());
            }
        };
        let mut builder = ObjectWatchBuilder::new(&self.cache);
        builder.between = Some(Box::new(between));
        builder
    }

    fn write(&self, act: impl FnOnce(&mut Writer)) {
        act(&mut self.writer.lock().unwrap());
    }
}

fn apply(writer: &mut Writer, change: Change<'_>) {
    let revision = writer.position().revision + 1;
    writer.apply(revision, [change]).unwrap();
}

fn put(writer: &mut Writer, key: &str) {
    apply(writer, Change::put(key, "1"));
}

/// Moves the window past all earlier events.
fn lap(writer: &mut Writer) {
    for _ in 0..200 {
        put(writer, "/z");
    }
}

/// Replaces the history by one with `/b` alone.
fn reset(writer: &mut Writer) {
    let record = Record { key: b"/b", value: b"1", create_revision: 1, mod_revision: 1, version: 1, lease: 0 };
    writer.resync(2, [record], ResyncReason::HistoryReset).unwrap();
}

fn next(watch: &mut super::ObjectWatch<KeyValue>) -> (&'static str, Option<String>) {
    let event = watch.recv(BOUND).unwrap().unwrap();
    (event.name(), event.object().and_then(|kv| kv.key_str()).map(str::to_owned))
}

fn event(name: &'static str, key: &str) -> (&'static str, Option<String>) {
    (name, Some(key.to_owned()))
}

/// If the window moves on, or the history is replaced, between the snapshot of a comparison and its
/// subscription, the comparison starts again.
#[test]
fn comparison_outruns_a_moving_window() {
    for (act, last) in [(lap as fn(&mut Writer), "/z"), (reset, "/b")] {
        let between = Between::new();
        let mut watch = between.builder(act).open().unwrap();
        assert_eq!([next(&mut watch), next(&mut watch)], [event("ADDED", "/a"), ("SYNCED", None)]);
        between.write(|writer| apply(writer, Change::delete("/a")));
        between.write(lap);
        between.left.store(3, Relaxed);
        assert_eq!([next(&mut watch), next(&mut watch)], [event("DELETED", "/a"), event("ADDED", last)]);
        assert_eq!(between.left.load(Relaxed), 0);
        assert_eq!((watch.position(), watch.stats().compared), (between.cache.position(), 1));
        between.left.store(u64::MAX, Relaxed);
        between.write(lap);
        assert!(watch.try_recv().is_pending(), "it lets others run between two attempts");
        watch.stop();
        assert!(watch.recv(BOUND).unwrap().is_none());
    }
}

/// The same race, when a watch from now is opened.
#[test]
fn start_now_outruns_a_moving_window() {
    for (act, key) in [(lap as fn(&mut Writer), "/a"), (reset, "/b")] {
        let between = Between::new();
        between.left.store(3, Relaxed);
        let mut watch = between.builder(act).start(Start::Now).open().unwrap();
        assert_eq!(between.left.load(Relaxed), 0);
        between.write(|writer| put(writer, key));
        assert_eq!(next(&mut watch), event("MODIFIED", key));
    }
}
