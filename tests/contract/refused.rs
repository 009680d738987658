//! Sections 2 and 5: what can never be answered is refused, not silent.

use crate::tools::embedded;
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

/// A revision that none can be is too large for waiters and positions, too; the rest is row 2.21.
#[test]
fn positions_above_the_largest_are_refused() {
    assert_eq!(MAX_REVISION, 4_503_599_627_370_495);
    let (cache, mut writer) = embedded();
    writer.apply(7, [Change::put("/k", "1")]).unwrap();
    for revision in [MAX_REVISION + 1, 1 << 63, u64::MAX] {
        let too_large = |outcome: Result<()>| {
            let error = outcome.expect_err("it was accepted");
            assert_eq!((error.code(), error.asked(), error.current()), (Code::FutureRevision, revision, 7), "{error}");
        };
        for epoch in [0, cache.position().epoch] {
            let position = Position { epoch, revision };
            too_large(cache.subscribe(Start::AfterIn(position)).open().map(drop));
            too_large(cache.get("/k", Read::ExactIn(position)).map(drop));
            too_large(cache.list(&Range::all(), Read::AtLeastIn(position), 0).map(drop));
            too_large(cache.diff(7, position, &Filter::any()).map(drop));
            too_large(cache.diff(position, 7, &Filter::any()).map(drop));
            too_large(cache.waiter(Want::RevisionIn(position)).map(drop));
            assert_eq!(position.to_string().parse::<Position>().unwrap(), position);
        }
        too_large(cache.waiter(Want::Revision(revision)).map(drop));
        let error = writer.apply(revision, [Change::put("/k", "")]).unwrap_err();
        assert!(error.message().contains("the largest revision is 4503599627370495"), "{error}");
    }
}

#[test]
fn status_has_name_and_all_bytes() {
    let cache = Cache::builder("/").name("pods").build().unwrap();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/a", &"x".repeat(10_000))]).unwrap();
    // What was replaced comes back to the cache's heap when the reclaimer has freed it: not between the two looks.
    assert!(watchcore::raw::quiesce(Duration::from_secs(60)));
    let (status, stats) = (cache.status(), cache.stats());
    assert_eq!(status.name, "pods");
    assert_eq!(status.bytes, stats.bytes());
    assert!(status.bytes > stats.version_bytes && stats.version_bytes > 10_000);
}
