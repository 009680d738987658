//! Section 6: resyncs and their marks.

use crate::tools::*;
use watchcore::*;

#[test]
fn marks_of_a_resync_have_its_epoch() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [6]);
    let mut all = cache.subscribe(Start::Now).open().unwrap();
    let position = writer.resync(20, [record("/k", "7", 6, 17, 9)], ResyncReason::Compacted).unwrap();
    let batch = all.poll(100).unwrap();
    assert_eq!((batch.len(), batch.continues(), batch.position(), all.position()), (3, false, position, position));
    assert_eq!(batch.events()[1].flags(), flags::SYNTHETIC);
    for (at, phase, flag) in [(0, Phase::Begin, flags::BEGIN), (2, Phase::End, flags::END)] {
        let event = &batch.events()[at];
        let must = Resync { phase, reason: ResyncReason::Compacted, epoch: position.epoch, from: 6, to: 20 };
        assert_eq!((event.resync(), event.flags()), (Some(must), flag));
        assert!(event.key().is_empty() && event.kv().is_none() && event.sequence() > 0);
    }
}

#[test]
fn token_between_from_and_to_is_compacted() {
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
        refused(cache.list_with(&Range::all(), &page().continue_from(of_another_process(inside))), Code::Compacted);
    }
    for outside in [5, 10] {
        cache.list_with(&Range::all(), &page().continue_from(of_another_process(outside))).unwrap();
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

/// A subscription parked at a bucket that a resync touches is woken for the BEGIN mark, not for the events after it.
#[test]
fn sleeper_at_a_bucket_meets_the_mark() {
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
