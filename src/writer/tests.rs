//! What the writer's thread does not do.

use crate::reclaim::WORK;
use crate::{Cache, Change, Record, ResyncReason};

/// What crossbeam does for others it does in pins, and a deferral may walk all threads: the writer
/// has neither, whatever it unlinks.
#[test]
fn writer_neither_pins_nor_defers() {
    let cache = Cache::builder("/").capacity(128).segment_slots(16).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let before = WORK.get();
    let mut revision = 0;
    let mut next = || {
        revision += 1;
        revision
    };
    // New keys, their deletes, and tombstones that are purged when the window has gone round.
    for round in 0..50 {
        for key in 0..10 {
            let key = format!("/{round}/{key}");
            writer.apply(next(), [Change::put(&key, "value")]).unwrap();
            writer.apply(next(), [Change::delete(&key)]).unwrap();
        }
    }
    // Longer than the ring: another directory.
    let keys: Vec<String> = (0..1000).map(|key| format!("/giant/{key}")).collect();
    writer.apply(next(), keys.iter().map(|key| Change::put(key, ""))).unwrap();
    let revision = next();
    let record = Record { key: b"/a", value: b"", create_revision: 1, mod_revision: 1, version: 1, lease: 0 };
    writer.resync(revision, [record], ResyncReason::Requested).unwrap();
    writer.progress(revision + 1).unwrap();
    writer.compact(revision + 1).unwrap();
    assert_eq!(WORK.get(), before);
    drop(cache.get("/a", crate::Read::Any).unwrap());
    assert_ne!(WORK.get(), before, "a reader does pin");
}
