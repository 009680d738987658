//! The first things a user does, in one process.

use std::time::Duration;
use watchcore::*;

fn shown(batch: &Batch) -> Vec<String> {
    batch
        .into_iter()
        .map(|e| {
            format!(
                "{} {} {}={}",
                e.revision(),
                e.kind().name(),
                String::from_utf8_lossy(e.key()),
                e.value().map_or("-".into(), |v| String::from_utf8_lossy(v).into_owned())
            )
        })
        .collect()
}

#[test]
fn apply_poll_read_snapshot() {
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    assert_eq!(cache.writer().unwrap_err().code(), Code::Busy);
    writer.apply(5, [Change::put("/a", "1")]).unwrap();
    let mut state = cache.subscribe(Start::State).open().unwrap();
    let mut now = cache.subscribe(Start::Now).open().unwrap();
    let mut only_b = cache.subscribe(Start::After(0)).key("/b").open().unwrap();
    writer.apply(7, [Change::put("/a", "2"), Change::put("/b", "x")]).unwrap();
    writer.apply(9, [Change::delete("/b")]).unwrap();
    assert_eq!(shown(&state.poll(10).unwrap()), ["5 ADDED /a=1", "5 BOOKMARK =-"]);
    assert_eq!(shown(&state.poll(10).unwrap()), ["7 MODIFIED /a=2", "7 ADDED /b=x", "9 DELETED /b=-"]);
    assert_eq!(shown(&now.poll(10).unwrap()), ["7 MODIFIED /a=2", "7 ADDED /b=x", "9 DELETED /b=-"]);
    assert_eq!(shown(&only_b.poll(10).unwrap()), ["7 ADDED /b=x", "9 DELETED /b=-"]);
    assert_eq!(only_b.position().revision, 9);
    let at7 = cache.get("/b", Read::Exact(7)).unwrap();
    assert_eq!(at7.kv.unwrap().value(), Some(&b"x"[..]));
    assert!(cache.get("/b", Read::Any).unwrap().kv.is_none());
    let snapshot = cache.snapshot().unwrap();
    writer.apply(10, [Change::put("/a", "3")]).unwrap();
    assert_eq!(snapshot.get("/a").unwrap().value(), Some(&b"2"[..]));
    assert_eq!(snapshot.revision(), 9);
    assert_eq!(cache.list(&Range::all(), Read::Any, 0).unwrap().len(), 1);
    assert_eq!(writer.apply(10, [Change::put("/a", "4")]).unwrap_err().code(), Code::OutOfOrder);
    let closer = state.closer();
    let thread = std::thread::spawn(move || {
        let mut got = Vec::new();
        while let Some(batch) = state.next_batch().unwrap() {
            got.extend(shown(&batch));
        }
        got
    });
    writer.apply(11, [Change::put("/c", "c")]).unwrap();
    cache.wait_until(11, Duration::from_secs(5)).unwrap();
    drop(writer);
    cache.close();
    assert_eq!(thread.join().unwrap(), ["10 MODIFIED /a=3", "11 ADDED /c=c"]);
    closer.close();
}

#[test]
fn resync_is_one_bracket() {
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    writer.apply(5, [Change::put("/a", "1"), Change::put("/b", "1"), Change::put("/c", "1")]).unwrap();
    let mut all = cache.subscribe(Start::Now).open().unwrap();
    let record = |key, value, create, modified| Record {
        key,
        value,
        create_revision: create,
        mod_revision: modified,
        version: 1,
        lease: 0,
    };
    let listing: Vec<Record<'_>> =
        vec![record(b"/a", b"1", 5, 5), record(b"/b", b"2", 8, 8), record(b"/d", b"1", 9, 9)];
    let position = writer.resync(20, listing, ResyncReason::Compacted).unwrap();
    assert_eq!(position.epoch_number(), 2);
    let batch = all.poll(100).unwrap();
    assert_eq!(
        shown(&batch),
        ["20 RESYNC =-", "20 DELETED /b=-", "20 DELETED /c=-", "20 ADDED /b=2", "20 ADDED /d=1", "20 RESYNC =-"]
    );
    assert_eq!(batch.position(), position);
    assert_eq!(cache.list(&Range::all(), Read::Any, 0).unwrap().len(), 3);
}

struct Silent;

impl watchcore::Source for Silent {
    fn wake(&self) {}
}

#[test]
fn a_source_is_refused_where_its_listing_would_be_missed() {
    let cache = Cache::builder("/").build().unwrap();
    let early = cache.subscribe(Start::State).open().unwrap();
    let mut writer = cache.writer().unwrap();
    let error = writer.attach(std::sync::Arc::new(Silent)).expect_err("a subscription is open");
    assert_eq!(error.code(), watchcore::Code::Busy);
    assert!(error.message().contains("expects a listing"), "{error}");
    cache.snapshot().expect("it stays ready");
    drop(early);
    writer.attach(std::sync::Arc::new(Silent)).unwrap();
    assert_eq!(cache.snapshot().unwrap_err().code(), watchcore::Code::NotReady);
    // One that comes now waits for the listing.
    let mut late = cache.subscribe(Start::State).open().unwrap();
    assert!(late.poll(10).unwrap().is_empty());
    writer
        .load(
            5,
            [watchcore::Record { key: b"/a", value: b"1", create_revision: 3, mod_revision: 4, version: 2, lease: 0 }],
        )
        .unwrap();
    let batch = late.poll(10).unwrap();
    assert_eq!((batch.len(), batch.events()[0].key()), (2, &b"/a"[..]));
}
