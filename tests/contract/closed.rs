//! Section 10: calls of the writer that are refused, above all by a close inside of them, change nothing.

use crate::tools::*;
use watchcore::raw::TestBuilder as _;
use watchcore::*;

/// Everything of a cache that a call can be seen by, but for memory that is kept for the next one.
fn visible(cache: &Cache, writer: &Writer) -> String {
    let keys: Vec<String> = (0..40).map(|key| format!("/{key:02}")).chain(["/close".into()]).collect();
    let of_writer: Vec<_> = keys.iter().map(|key| format!("{:?}", writer.get(key.as_bytes()))).collect();
    let states: Vec<_> = (cache.oldest() - 1..=cache.position().revision)
        .map(|at| cache.list(&Range::all(), Read::Exact(at), 0).unwrap().len())
        .collect();
    let Stats {
        objects,
        version_bytes,
        window_segments,
        window_bytes,
        events,
        revisions,
        tombstones,
        extract_failures,
        ..
    } = cache.stats();
    let stats = [objects, version_bytes, window_segments, window_bytes, events, revisions, tombstones];
    let places = (cache.oldest(), cache.position(), writer.position(), cache.objects(), cache.writer().is_ok());
    format!("{of_writer:?} {states:?} {stats:?} {extract_failures} {places:?}")
}

thread_local! {
    /// The cache that the extractor of [`closing`] closes.
    static CLOSES: std::cell::RefCell<Option<Cache>> = const { std::cell::RefCell::new(None) };
}

/// A cache whose extractor fails, and closes the cache where a value says so.
fn closing(builder: Builder) -> (Cache, Writer) {
    let close = |_: &[u8], value: &[u8]| {
        if value == b"close" {
            CLOSES.with_borrow(|cache| cache.as_ref().unwrap().close());
        }
        Err::<Option<Vec<u8>>, _>("as asked")
    };
    let cache = builder.field(Attribute::extractor("x", close)).build().unwrap();
    CLOSES.replace(Some(cache.clone()));
    let writer = cache.writer().unwrap();
    (cache, writer)
}

/// The same with a full window, so that the next segment evicts one.
fn about_to_close() -> (Cache, Writer) {
    let (cache, mut writer) = closing(Cache::builder("/").capacity(128).segment_slots(16));
    for revision in 1..=144 {
        writer.apply(revision, [Change::put(&format!("/{:02}", revision % 30), "v")]).unwrap();
    }
    writer.apply(145, [Change::delete("/05")]).unwrap();
    (cache, writer)
}

#[test]
fn refused_calls_change_nothing() {
    type Call = fn(&mut Writer) -> Result<()>;
    let refusals: &[(&str, Code, Call)] = &[
        ("closed, one", Code::Closed, |w| w.apply(146, [Change::put("/close", "close")])),
        ("closed, an old key", Code::Closed, |w| w.apply(146, [Change::put("/01", "close")])),
        ("closed, two", Code::Closed, |w| w.apply(146, [Change::delete("/02"), Change::put("/close", "close")])),
        ("closed, many", Code::Closed, |w| {
            let keys: Vec<String> = (0..40).map(|key| format!("/{key:02}")).collect();
            w.apply(146, keys.iter().map(|key| Change::put(key, "close")))
        }),
        ("closed, a resync", Code::Closed, |w| {
            w.resync(150, [record("/close", "close", 1, 1, 1)], ResyncReason::Requested).map(|_| ())
        }),
        ("closed, a reset", Code::Closed, |w| {
            w.resync(9, [record("/close", "close", 1, 1, 1)], ResyncReason::HistoryReset).map(|_| ())
        }),
        ("does not rise", Code::OutOfOrder, |w| w.apply(145, [Change::put("/01", "new")])),
        ("absent", Code::InvalidArgument, |w| w.apply(146, [Change::put("/01", "new"), Change::delete("/05")])),
        ("twice", Code::InvalidArgument, |w| w.apply(146, [Change::put("/01", "a"), Change::put("/01", "b")])),
        ("outside", Code::InvalidArgument, |w| w.apply(146, [Change::put("/01", "new"), Change::put("x", "new")])),
        ("loaded late", Code::OutOfOrder, |w| w.load(146, [record("/01", "new", 1, 1, 1)])),
        ("listed twice", Code::InvalidArgument, |w| {
            let records = [record("/01", "a", 1, 1, 1), record("/01", "b", 1, 1, 1)];
            w.resync(146, records, ResyncReason::Requested).map(|_| ())
        }),
        ("back", Code::OutOfOrder, |w| w.progress(144)),
        ("ahead", Code::FutureRevision, |w| w.compact(146)),
    ];
    for (what, code, call) in refusals {
        let (cache, mut writer) = about_to_close();
        let mut live = cache.subscribe(Start::After(cache.oldest() - 1)).open().unwrap();
        let before = visible(&cache, &writer);
        assert_eq!(call(&mut writer).unwrap_err().code(), *code, "{what}");
        assert_eq!(visible(&cache, &writer), before, "{what}");
        let seen = drain(&mut live);
        let last = if *code == Code::Closed { "CLOSED" } else { "145 DELETED /05 was v" };
        assert_eq!(seen.last().unwrap(), last, "{what}");
        drop(writer);
        assert_eq!(cache.writer().is_err(), *code == Code::Closed, "{what}");
    }
}

/// Nothing leaves for its age in a call that is refused.
#[test]
fn refused_progress_evicts_nothing() {
    let now = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let builder = Cache::builder("/").capacity(128).segment_slots(16).log_clock(now.clone());
    let cache = builder.keep(16, std::time::Duration::from_secs(1)).build().unwrap();
    let mut writer = cache.writer().unwrap();
    write(&mut writer, 1..=100);
    now.store(60_000, std::sync::atomic::Ordering::Relaxed);
    let oldest = cache.oldest();
    refused(writer.progress(99), Code::OutOfOrder);
    assert_eq!(cache.oldest(), oldest);
    writer.progress(101).unwrap();
    assert!(cache.oldest() > oldest, "the age was not reached");
}

#[test]
fn load_refused_by_a_close_changes_nothing() {
    let (cache, mut writer) = closing(Cache::builder("/").expect_load(true));
    refused(writer.load(7, [record("/a", "v", 1, 1, 1), record("/close", "close", 1, 1, 1)]), Code::Closed);
    assert_eq!((writer.get(b"/a").is_none(), cache.objects(), writer.is_loaded()), (true, 0, false));
    assert_eq!((cache.stats().extract_failures, cache.position().revision), (0, 0));
    refused(cache.snapshot().map(|_| ()), Code::NotReady);
}
