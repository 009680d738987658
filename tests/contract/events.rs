//! Section 3: types, numbers and values of events; section 4's keys, prefixes, paths and types.

use crate::tools::*;
use watchcore::*;

fn life() -> (Cache, Writer) {
    let (cache, mut writer) = embedded();
    writer.apply(2, [Change::put("/a", "one")]).unwrap();
    writer.apply(4, [Change::put("/a", "two")]).unwrap();
    writer.apply(6, [Change::delete("/a")]).unwrap();
    writer.apply(8, [Change::put("/a", "three")]).unwrap();
    (cache, writer)
}

#[test]
fn type_of_a_mark_is_refused() {
    let (cache, _writer) = life();
    let mut all = cache.subscribe(Start::After(0)).types(&[]).open().unwrap();
    assert_eq!(drain(&mut all).len(), 4, "none named: all");
    for kind in [Kind::Bookmark, Kind::Resync] {
        refused(cache.subscribe(Start::Now).types(&[kind]).open(), Code::InvalidArgument);
        let mask = Filter::any().types(&[kind, Kind::Added]);
        refused(cache.subscribe(Start::Now).filter(mask.clone()).open(), Code::InvalidArgument);
        refused(cache.diff(8, 8, &Filter::any().and(mask)), Code::InvalidArgument);
    }
}

/// An option that restricts and is given twice restricts twice, whether the builder is told or its filter.
#[test]
fn restrictions_given_twice_narrow() {
    let cache = Cache::builder("/").labels(plain_labels()).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let any = Filter::any;
    let (added, modified, deleted) = ([Kind::Added], [Kind::Modified, Kind::Added], [Kind::Deleted]);
    let rows: [(SubscribeBuilder, Filter, &[&str]); 5] = [
        (cache.subscribe(Start::Now).types(&deleted).types(&added), any().types(&deleted).types(&added), &[]),
        (
            cache.subscribe(Start::Now).types(&modified).types(&[]).types(&added),
            any().types(&modified).types(&added),
            &["/a/1", "/a/2", "/b"],
        ),
        (cache.subscribe(Start::Now).prefix("/a/").key("/a/1"), any().prefix("/a/").key("/a/1"), &["/a/1"]),
        (
            cache.subscribe(Start::Now).labels("a=1").unwrap().labels("b").unwrap(),
            any().labels("a=1").unwrap().labels("b").unwrap(),
            &["/a/2"],
        ),
        (
            cache.subscribe(Start::Now).filter(any().prefix("/a/")).filter(any().types(&deleted)),
            any().prefix("/a/").types(&deleted),
            &[],
        ),
    ];
    let open = |(builder, filter, keys): (SubscribeBuilder, Filter, _)| {
        (builder.open().unwrap(), cache.subscribe(Start::Now).filter(filter).open().unwrap(), keys)
    };
    let rows = rows.map(open);
    writer.apply(1, [Change::put("/a/1", "a=1"), Change::put("/a/2", "a=1,b=2"), Change::put("/b", "a=1")]).unwrap();
    for (mut told, mut filtered, keys) in rows {
        for live in [&mut told, &mut filtered] {
            let batch = live.poll(10).unwrap();
            assert_eq!(batch.into_iter().map(|event| text(event.key())).collect::<Vec<_>>(), keys);
        }
    }
}
