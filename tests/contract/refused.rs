//! Sections 2 and 5: what can never be answered is refused, not silent.

use crate::tools::{embedded, write};
use std::time::Duration;
use watchcore::*;

fn refused<T>(outcome: Result<T>) {
    assert_eq!(outcome.err().expect("it was accepted").code(), Code::InvalidArgument);
}

#[test]
fn ranges_outside_prefix_are_refused() {
    let cache = Cache::builder("/pods/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/pods/a", "1")]).unwrap();
    let outside = [
        Range::key("/nodes/a"),
        Range::prefix("/nodes/"),
        Range::path("/nodes"),
        Range::between("/a", "/b"),
        Range::between("/pods0", ""),
        Range::between("", "/pods/"),
        Range::between("/pods/b", "/pods/a"),
    ];
    for range in outside {
        let filter = Filter::any().range(range.clone());
        refused(cache.subscribe(Start::State).range(range.clone()).open());
        refused(cache.list(&range, Read::Any, 0));
        refused(cache.count(&range, Read::Any));
        refused(cache.list_with(&Range::all(), &ReadOptions::new(Read::Any).filter(filter.clone())));
        refused(cache.diff(0, 1, &filter));
    }
    // What overlaps the prefix is asked, and a conjunction that holds nothing says so by holding nothing.
    for range in [Range::all(), Range::prefix("/p"), Range::between("/a", "/pods/b"), Range::between("/pods/a", "")] {
        assert_eq!(cache.count(&range, Read::Any).unwrap().count, 1, "{range:?}");
        drop(cache.subscribe(Start::State).range(range).open().unwrap());
    }
    let nothing = Filter::any().range(Range::key("/pods/a")).and(Filter::any().range(Range::key("/pods/b")));
    assert!(cache.subscribe(Start::State).filter(nothing).open().is_ok());
}

#[test]
fn revisions_from_two_to_52_are_refused() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [7]);
    let epoch = cache.position().epoch;
    for revision in [1 << 52, 1 << 63, u64::MAX] {
        for epoch in [0, epoch] {
            let position = Position { epoch, revision };
            refused(cache.subscribe(Start::AfterIn(position)).open());
            refused(cache.get("/k", Read::ExactIn(position)));
            refused(cache.list(&Range::all(), Read::AtLeastIn(position), 0));
            refused(cache.diff(7, position, &Filter::any()));
            refused(cache.diff(position, 7, &Filter::any()));
            refused(cache.waiter(Want::RevisionIn(position)));
        }
        refused(cache.subscribe(Start::StateAtLeast(revision)).open());
        refused(cache.get("/k", Read::Exact(revision)));
        refused(cache.get("/k", Read::AtLeast(revision)));
        refused(cache.count(&Range::all(), Read::Exact(revision)));
        refused(cache.wait_until(revision, Duration::ZERO));
        refused(cache.waiter(Want::Revision(revision)));
        refused(writer.apply(revision, [Change::put("/k", "")]));
        refused(writer.progress(revision));
        refused(writer.compact(revision));
        refused(writer.resync(revision, [], ResyncReason::Requested));
    }
    let highest = (1 << 52) - 1;
    drop(cache.subscribe(Start::After(highest)).open().unwrap());
    assert_eq!(cache.get("/k", Read::Any).unwrap().revision, 7);
}

#[test]
fn status_has_name_and_all_bytes() {
    let cache = Cache::builder("/").name("pods").build().unwrap();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/a", &"x".repeat(10_000))]).unwrap();
    // What was replaced comes back to the cache's heap when the reclaimer has freed it: not between the two looks.
    assert!(watchcore::quiesce(Duration::from_secs(60)));
    let (status, stats) = (cache.status(), cache.stats());
    assert_eq!(status.name, "pods");
    assert_eq!(status.bytes, stats.bytes());
    assert!(status.bytes > stats.version_bytes && stats.version_bytes > 10_000);
}
