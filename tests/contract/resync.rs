//! Section 6: the resync bracket.

use crate::tools::*;
use watchcore::*;

fn three() -> (Cache, Writer) {
    let (cache, mut writer) = embedded();
    writer.apply(5, [Change::put("/a", "1"), Change::put("/b", "1"), Change::put("/c", "1")]).unwrap();
    writer.apply(6, [Change::put("/b", "2")]).unwrap();
    (cache, writer)
}

#[test]
fn the_difference_is_one_atomic_revision_deletes_first_then_puts_by_key() {
    let (cache, mut writer) = three();
    let mut all = cache.subscribe(Start::Now).open().unwrap();
    let mut one = cache.subscribe(Start::Now).key("/b").open().unwrap();
    let listing = [
        record("/z", "new", 18, 18, 1),
        record("/b", "3", 5, 17, 9),
        record("/a", "1", 5, 5, 1),
        record("/d", "new", 12, 15, 4),
    ];
    let position = writer.resync(20, listing, ResyncReason::Compacted).unwrap();
    let batch = all.poll(100).unwrap();
    let (begin, end) = ("20 RESYNC Begin Compacted 6..20", "20 RESYNC End Compacted 6..20");
    assert_eq!(
        lines(&batch),
        [begin, "20 DELETED /c was 1", "20 MODIFIED /b=3", "20 ADDED /d=new", "20 ADDED /z=new", end]
    );
    assert_eq!((batch.continues(), batch.position(), all.position()), (false, position, position));
    // Each flagged, with its own numbers.
    let changes = &batch.events()[1..5];
    assert!(changes.iter().all(|event| event.is_synthetic() && event.flags() == flags::SYNTHETIC));
    let numbers: Vec<_> = changes.iter().map(|e| (e.create_revision(), e.mod_revision(), e.version())).collect();
    assert_eq!(numbers, [(5, 5, 1), (5, 17, 9), (12, 15, 4), (18, 18, 1)]);
    assert_eq!(changes[1].prev_value(), Some(&b"2"[..]));
    for (at, phase, flag) in [(0, Phase::Begin, flags::BEGIN), (5, Phase::End, flags::END)] {
        let event = &batch.events()[at];
        let must = Resync { phase, reason: ResyncReason::Compacted, epoch: position.epoch, from: 6, to: 20 };
        assert_eq!((event.resync(), event.flags()), (Some(must), flag));
        assert!(event.key().is_empty() && event.kv().is_none() && event.sequence() > 0);
    }
    assert_eq!(drain(&mut one), [begin, "20 MODIFIED /b=3", end], "the marks come with every filter");
    // Live continues.
    writer.apply(21, [Change::put("/b", "4")]).unwrap();
    let batch = all.poll(10).unwrap();
    assert_eq!((lines(&batch), batch.events()[0].version()), (vec!["21 MODIFIED /b=4".to_string()], 10));
}

#[test]
fn a_changed_create_revision_is_a_delete_and_a_put() {
    let (cache, mut writer) = three();
    let mut all = cache.subscribe(Start::Now).open().unwrap();
    let listing = [record("/a", "1", 5, 5, 1), record("/b", "2", 15, 15, 1), record("/c", "1", 5, 5, 1)];
    writer.resync(20, listing, ResyncReason::TooFarBehind).unwrap();
    let batch = all.poll(100).unwrap();
    assert_eq!(lines(&batch)[1..3], ["20 DELETED /b was 2", "20 ADDED /b=2"]);
    assert!(batch.events()[2].prev().is_none());
    assert_eq!((batch.len(), batch.events()[2].create_revision()), (4, 15));
    assert_eq!(value_at(&cache, "/b", Read::Exact(6)).unwrap().unwrap(), "2");
    assert_eq!(cache.get("/b", Read::Any).unwrap().kv.unwrap().create_revision(), 15);
    // And once more, to see that the chain continues.
    writer.apply(21, [Change::delete("/b")]).unwrap();
    assert_eq!(value_at(&cache, "/b", Read::Exact(20)).unwrap().unwrap(), "2");
}

#[test]
fn an_empty_difference_publishes_the_bracket_alone() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [5]);
    let mut all = cache.subscribe(Start::Now).open().unwrap();
    let same = || [record("/k", "5", 5, 5, 1)];
    let before = cache.position();
    // Not even that, at the same revision of the same history.
    assert_eq!(writer.resync(5, same(), ResyncReason::ChainBroken).unwrap(), before);
    assert!(all.poll(10).unwrap().is_empty());
    let after = writer.resync(8, same(), ResyncReason::ChainBroken).unwrap();
    assert_eq!((after.epoch, after.revision), (before.epoch + 1, 8));
    assert_eq!(drain(&mut all), ["8 RESYNC Begin ChainBroken 5..8", "8 RESYNC End ChainBroken 5..8"]);
    // Another history at the same revision is reported.
    let reset = writer.resync(8, same(), ResyncReason::HistoryReset).unwrap();
    assert_eq!(reset.epoch, after.epoch + 1);
    assert_eq!(drain(&mut all), ["8 RESYNC Begin HistoryReset 8..8", "8 RESYNC End HistoryReset 8..8"]);
}

#[test]
fn between_from_and_to_nothing_is_true() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [4, 5]);
    writer.resync(10, [record("/k", "9", 4, 9, 4)], ResyncReason::Compacted).unwrap();
    write(&mut writer, [11]);
    let page = || ReadOptions::new(Read::Any).limit(1);
    let of_another_process = |revision| {
        let (cache, mut writer) = embedded();
        writer.apply(revision, [Change::put("/j", "1"), Change::put("/k", "1")]).unwrap();
        cache.list_with(&Range::all(), &page()).unwrap().continue_token().unwrap().to_string()
    };
    for inside in 6..=9 {
        let open = cache.subscribe(Start::After(inside)).open();
        compacted(open, inside, 1, 11);
        compacted(cache.get("/k", Read::Exact(inside)), inside, 1, 11);
        compacted(cache.list(&Range::all(), Read::Exact(inside), 0), inside, 1, 11);
        for (from, to) in [(inside, 11), (4, inside)] {
            refused(cache.diff(from, to, &Filter::any()), Code::Compacted);
        }
        refused(cache.list_with(&Range::all(), &page().continue_from(of_another_process(inside))), Code::Compacted);
    }
    // Around it all hold.
    assert_eq!(lines(&cache.diff(5, 10, &Filter::any()).unwrap()), ["10 MODIFIED /k=9"]);
    for outside in [5, 10] {
        cache.list_with(&Range::all(), &page().continue_from(of_another_process(outside))).unwrap();
    }
    // States are cut by the event's revision, not by the object's.
    for (revision, value) in [(4, "4"), (5, "5"), (10, "9"), (11, "11")] {
        assert_eq!(value_at(&cache, "/k", Read::Exact(revision)).unwrap().unwrap(), value, "at {revision}");
    }
    let bracket = ["10 RESYNC Begin Compacted 5..10", "10 MODIFIED /k=9", "10 RESYNC End Compacted 5..10"];
    let from = |after| drain(&mut cache.subscribe(Start::After(after)).open().unwrap());
    assert_eq!(from(5)[..3], bracket, "After(from) yields the bracket");
    assert_eq!(from(10), ["11 MODIFIED /k=11"]);
    assert_eq!(from(4).len(), 5);
}

#[test]
fn a_revision_that_goes_back_is_a_history_reset() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [4, 50]);
    let mut live = cache.subscribe(Start::Now).open().unwrap();
    // Whatever reason is given.
    writer.resync(30, [record("/k", "old", 4, 20, 3)], ResyncReason::Compacted).unwrap();
    assert_eq!(
        drain(&mut live),
        ["30 RESYNC Begin HistoryReset 50..30", "30 MODIFIED /k=old", "30 RESYNC End HistoryReset 50..30"]
    );
    assert_eq!((live.position(), live.position().revision), (cache.position(), 30));
    assert_eq!(cache.oldest(), 31);
    compacted(cache.subscribe(Start::After(4)).open(), 4, 31, 30);
    compacted(cache.get("/k", Read::Exact(29)), 29, 31, 30);
    // Revisions rise again from there.
    refused(writer.apply(30, [Change::put("/k", "x")]), Code::OutOfOrder);
    write(&mut writer, [31]);
    assert_eq!(value_at(&cache, "/k", Read::Exact(30)).unwrap().unwrap(), "old");
    assert_eq!(drain(&mut live), ["31 MODIFIED /k=31"]);
}

#[test]
fn at_the_same_revision_with_a_difference_it_counts_as_a_reset() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [4, 50]);
    let before = cache.position();
    writer.resync(50, [record("/k", "other", 4, 50, 2)], ResyncReason::ChainBroken).unwrap();
    assert_eq!(cache.oldest(), 51);
    compacted(cache.subscribe(Start::After(49)).open(), 49, 51, 50);
    compacted(cache.subscribe(Start::AfterIn(Position { epoch: before.epoch, revision: 50 })).open(), 50, 51, 50);
    assert_eq!(value_at(&cache, "/k", Read::Exact(50)).unwrap().unwrap(), "other");
}

#[test]
fn a_subscription_can_ask_to_stop_at_a_resync() {
    let (cache, mut writer) = embedded();
    let mut stops = cache.subscribe(Start::Now).stop_on_resync(true).open().unwrap();
    let mut key = cache.subscribe(Start::Now).key("/other").stop_on_resync(true).open().unwrap();
    write(&mut writer, [5]);
    writer.resync(9, [], ResyncReason::Compacted).unwrap();
    write(&mut writer, [10]);
    assert_eq!(lines(&stops.poll(100).unwrap()), ["5 ADDED /k=5"], "what was before it comes first");
    for stopped in [&mut stops, &mut key] {
        let error = refused(stopped.poll(100), Code::Resynced);
        assert_eq!((error.current(), error.position().revision), (9, 5));
        refused(stopped.poll(100), Code::Closed);
    }
}

#[test]
fn resync_rules() {
    let (cache, mut writer) = unloaded();
    refused(writer.resync(5, [], ResyncReason::Requested), Code::NotReady);
    writer.load(5, [record("/a", "1", 2, 3, 2)]).unwrap();
    let before = (state(&cache), cache.position());
    refused(writer.resync(9, [], ResyncReason::Lagged), Code::InvalidArgument);
    let twice = [record("/b", "1", 2, 3, 2), record("/a", "1", 2, 3, 2), record("/b", "2", 2, 3, 2)];
    refused(writer.resync(9, twice, ResyncReason::Requested), Code::InvalidArgument);
    for bad in [
        record("/a", "1", 2, 10, 2),
        record("/a", "1", 4, 3, 2),
        record("/a", "1", 0, 3, 2),
        record("/a", "1", 2, 3, 0),
        record("", "1", 2, 3, 1),
        record("outside", "1", 2, 3, 1),
    ] {
        refused(writer.resync(9, [bad], ResyncReason::Requested), Code::InvalidArgument);
    }
    refused(writer.resync(1 << 52, [], ResyncReason::Requested), Code::InvalidArgument);
    assert_eq!((state(&cache), cache.position()), before, "nothing changed");
    writer.resync(9, [], ResyncReason::Requested).unwrap();
    assert!(state(&cache).is_empty());
}

#[test]
fn a_resync_longer_than_the_log_is_one_revision_too() {
    let (cache, mut writer) = tiny();
    write(&mut writer, [1]);
    let mut live = cache.subscribe(Start::Now).open().unwrap();
    let mut whole = cache.subscribe(Start::Now).whole_revisions(true).open().unwrap();
    let keys: Vec<String> = (0..300).map(|key| format!("/{key:03}")).collect();
    let listing = keys.iter().map(|key| record(key, "x", 2, 2, 1));
    let position = writer.resync(5, listing, ResyncReason::Compacted).unwrap();
    let mut events = 0;
    while live.position() != position {
        assert_eq!(live.position().revision, 1, "before it until its end");
        let batch = live.poll(1000).unwrap();
        assert_eq!(batch.continues(), batch.position() != position);
        events += batch.len();
    }
    assert_eq!(events, 2 + 1 + 300);
    let batch = whole.poll(1).unwrap();
    assert_eq!((batch.len(), batch.continues(), batch.position()), (303, false, position));
}

/// Who sleeps at a bucket that a resync touches is woken for the bracket, not for what stands inside of it.
#[test]
fn a_sleeper_at_a_bucket_is_woken_for_the_bracket() {
    let cache = Cache::builder("/").index(Index::key()).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let filters = [Filter::any().key("/k"), Filter::any().key("/k").types(&[Kind::Added, Kind::Modified])];
    let mut sleepers = filters.map(|filter| cache.subscribe(Start::Now).filter(filter).open().unwrap());
    let set = WakeSet::new().unwrap();
    write(&mut writer, [1, 2]);
    for (tag, one) in (0..).zip(&mut sleepers) {
        assert!(drain(one).len() <= 2);
        assert_eq!(one.stats().read_path, ReadPath::Chain { index: "key".into() });
        set.add(one, tag).unwrap();
        assert!(!one.arm().unwrap());
    }
    writer.resync(9, [record("/k", "9", 9, 9, 1)], ResyncReason::Requested).unwrap();
    let (mut tags, mut woken) = ([0; 1], 0);
    while woken < sleepers.len() {
        // Each polls when it was woken, not before.
        assert!(set.wait(BOUND));
        if set.take(&mut tags) == 0 {
            continue;
        }
        woken += 1;
        let kinds: Vec<Kind> = sleepers[tags[0] as usize].poll(8).unwrap().events().iter().map(Event::kind).collect();
        assert_eq!((kinds.first(), kinds.last()), (Some(&Kind::Resync), Some(&Kind::Resync)), "{kinds:?}");
    }
}
