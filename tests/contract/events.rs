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
fn put_of_an_absent_key_is_added_of_a_present_modified_and_delete_deleted() {
    let (cache, _writer) = life();
    let mut all = cache.subscribe(Start::After(0)).open().unwrap();
    let batch = all.poll(10).unwrap();
    assert_eq!(lines(&batch), ["2 ADDED /a=one", "4 MODIFIED /a=two", "6 DELETED /a was two", "8 ADDED /a=three"]);
    let before: Vec<Option<String>> = batch.into_iter().map(|event| event.prev_value().map(text)).collect();
    assert_eq!(before, [None, Some("one".into()), Some("two".into()), None], "a key that comes back has none");
    assert!(batch.events()[0].prev().is_none() && batch.events()[3].prev().is_none());
    let numbers: Vec<_> = batch.into_iter().map(|e| (e.create_revision(), e.mod_revision(), e.version())).collect();
    assert_eq!(numbers, [(2, 2, 1), (2, 4, 2), (2, 4, 2), (8, 8, 1)], "a deletion shows the last value's");
}

#[test]
fn a_deletion_has_no_value_anywhere_and_its_own_revision() {
    let (cache, mut writer) = embedded();
    let leased = Record { lease: 77, ..record("/a", "v", 3, 3, 1) };
    writer.apply(3, [Change::put_exact(leased)]).unwrap();
    writer.apply(9, [Change::delete("/a")]).unwrap();
    let mut all = cache.subscribe(Start::After(3)).open().unwrap();
    let batch = all.poll(10).unwrap();
    let gone = &batch.events()[0];
    assert_eq!((gone.kind(), gone.revision(), gone.key()), (Kind::Deleted, 9, &b"/a"[..]));
    assert!(gone.value().is_none() && gone.kv().unwrap().value().is_none());
    assert_eq!(gone.prev_value(), Some(&b"v"[..]));
    assert_eq!((gone.create_revision(), gone.mod_revision(), gone.version(), gone.lease()), (3, 3, 1, 77));
}

#[test]
fn no_previous_value_differs_from_an_empty_one() {
    let (cache, mut writer) = embedded();
    let mut all = cache.subscribe(Start::Now).open().unwrap();
    writer.apply(1, [Change::put("/a", "")]).unwrap();
    writer.apply(2, [Change::put("/a", "x")]).unwrap();
    writer.apply(3, [Change::put("/a", "")]).unwrap();
    writer.apply(4, [Change::delete("/a")]).unwrap();
    let batch = all.poll(10).unwrap();
    let pairs: Vec<_> = batch.into_iter().map(|event| (event.value(), event.prev_value())).collect();
    let (empty, x) = (Some(&b""[..]), Some(&b"x"[..]));
    assert_eq!(pairs, [(empty, None), (x, empty), (empty, x), (None, empty)]);
    assert!(batch.events()[3].prev().is_some() && batch.events()[0].prev().is_none());
}

#[test]
fn raw_types_show_put_and_delete() {
    let (cache, _writer) = life();
    let mut raw = cache.subscribe(Start::After(0)).raw_types(true).open().unwrap();
    assert_eq!(drain(&mut raw), ["2 PUT /a=one", "4 PUT /a=two", "6 DELETE /a was two", "8 PUT /a=three"]);
    let mut state = cache.subscribe(Start::State).raw_types(true).open().unwrap();
    assert_eq!(drain(&mut state), ["8 PUT /a=three", "8 BOOKMARK"]);
    let mut puts = cache.subscribe(Start::After(0)).raw_types(true).types(&[Kind::Put]).open().unwrap();
    assert_eq!(drain(&mut puts), ["2 PUT /a=one", "4 PUT /a=two", "8 PUT /a=three"]);
    let mut deletes = cache.subscribe(Start::After(0)).raw_types(true).types(&[Kind::Delete]).open().unwrap();
    assert_eq!(drain(&mut deletes), ["6 DELETE /a was two"]);
}

/// A value that leaves the filter is a deletion for it, with a tombstone that the log does not have.
#[test]
fn raw_deletion_by_a_filter_has_no_value() {
    let (cache, _writer) = life();
    let one = |kv: &KeyValue| kv.value() == Some(b"one");
    for (raw, lines) in
        [(false, ["2 ADDED /a=one", "4 DELETED /a was one"]), (true, ["2 PUT /a=one", "4 DELETE /a was one"])]
    {
        let filter = Filter::any().predicate(one);
        let mut leaves = cache.subscribe(Start::After(0)).raw_types(raw).filter(filter).open().unwrap();
        assert_eq!(drain(&mut leaves), lines);
    }
}

#[test]
fn masked_types_never_change_what_the_others_are() {
    let (cache, mut writer) = life();
    let open = |kinds: &[Kind]| cache.subscribe(Start::After(0)).types(kinds).open().unwrap();
    assert_eq!(drain(&mut open(&[Kind::Added])), ["2 ADDED /a=one", "8 ADDED /a=three"]);
    assert_eq!(drain(&mut open(&[Kind::Modified])), ["4 MODIFIED /a=two"]);
    assert_eq!(drain(&mut open(&[Kind::Deleted])), ["6 DELETED /a was two"]);
    assert_eq!(drain(&mut open(&[Kind::Added, Kind::Deleted])).len(), 3);
    assert_eq!(drain(&mut open(&[])).len(), 4, "none named: all");
    // Without ADDED the state is not delivered, its end is.
    let mut masked = cache.subscribe(Start::State).types(&[Kind::Deleted]).open().unwrap();
    assert_eq!(drain(&mut masked), ["8 BOOKMARK"]);
    // The marks of a resync always come.
    writer.resync(20, [], ResyncReason::Compacted).unwrap();
    assert_eq!(
        drain(&mut masked),
        ["20 RESYNC Begin Compacted 8..20", "20 DELETED /a was three", "20 RESYNC End Compacted 8..20"]
    );
    for kind in [Kind::Bookmark, Kind::Resync] {
        refused(cache.subscribe(Start::Now).types(&[kind]).open(), Code::InvalidArgument);
        let mask = Filter::any().types(&[kind, Kind::Added]);
        refused(cache.subscribe(Start::Now).filter(mask.clone()).open(), Code::InvalidArgument);
        refused(cache.diff(20, 20, &Filter::any().and(mask)), Code::InvalidArgument);
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

#[test]
fn key_prefix_path_and_range_choose_keys() {
    let (cache, mut writer) = embedded();
    let keys = ["/a/foo", "/a/foo/x", "/a/foo0", "/a/foobar", "/b"];
    let open = |range: Range| {
        let live = cache.subscribe(Start::Now).range(range.clone()).open().unwrap();
        (live, range)
    };
    let rows: Vec<((Subscription, Range), Vec<&str>)> = vec![
        (open(Range::all()), keys.to_vec()),
        (open(Range::key("/a/foo")), vec!["/a/foo"]),
        (open(Range::prefix("/a/foo")), keys[..4].to_vec()),
        (open(Range::path("/a/foo")), vec!["/a/foo", "/a/foo/x"]),
        (open(Range::path("/a/foo/")), vec!["/a/foo/x"]),
        (open(Range::between("/a/foo/x", "/a/foobar")), vec!["/a/foo/x", "/a/foo0"]),
        (open(Range::between("/a/foobar", "")), vec!["/a/foobar", "/b"]),
        (open(Range::prefix("/c")), vec![]),
    ];
    writer.apply(1, keys.map(|key| Change::put(key, "1"))).unwrap();
    for ((mut live, range), must) in rows {
        let keys = |batch: &Batch| batch.into_iter().map(|event| text(event.key())).collect::<Vec<_>>();
        assert_eq!(keys(&live.poll(10).unwrap()), must, "live {range:?}");
        let mut state = cache.subscribe(Start::State).range(range.clone()).open().unwrap();
        let mut shown = keys(&state.poll(10).unwrap());
        assert_eq!(shown.pop().as_deref(), Some(""), "the mark");
        assert_eq!(shown, must, "state {range:?}");
        let page = cache.list(&range, Read::Any, 0).unwrap();
        assert_eq!(page.iter().map(|kv| text(kv.key())).collect::<Vec<_>>(), must, "list {range:?}");
        assert_eq!(cache.count(&range, Read::Any).unwrap().count, must.len() as u64);
        assert_eq!(cache.snapshot().unwrap().range(&range).count(), must.len());
    }
    let mut path = cache.subscribe(Start::After(0)).path("/a/foo").open().unwrap();
    assert_eq!(drain(&mut path), ["1 ADDED /a/foo=1", "1 ADDED /a/foo/x=1"]);
}

#[test]
fn keys_and_values_are_bytes() {
    let cache = Cache::builder("").build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut all = cache.subscribe(Start::Now).open().unwrap();
    let (key, value) = ([0u8, 255, 47, 0], [254u8, 0, 1]);
    writer.apply(1, [Change::put(&key, &value)]).unwrap();
    let batch = all.poll(10).unwrap();
    assert_eq!((batch.events()[0].key(), batch.events()[0].value()), (&key[..], Some(&value[..])));
    assert_eq!(cache.get(key, Read::Any).unwrap().kv.unwrap().value(), Some(&value[..]));
}
