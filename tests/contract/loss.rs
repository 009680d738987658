//! Section 6: lag, the policy Stop, compaction, revisions longer than the log.

use crate::tools::*;
use watchcore::raw::TestBuilder as _;
use watchcore::*;

/// LAGGED with its numbers, once; then CLOSED.
#[track_caller]
fn lagged(subscription: &mut Subscription, from: u64, to: u64, oldest: u64, current: u64) {
    let position = subscription.position();
    let error = refused(subscription.poll(100), Code::Lagged);
    let numbers = (error.lost_from(), error.lost_to(), error.oldest(), error.current());
    assert_eq!(numbers, (from, to, oldest, current), "{error}");
    assert_eq!(error.position(), position);
    for _ in 0..2 {
        refused(subscription.poll(100), Code::Closed);
        refused(subscription.wait(BOUND), Code::Closed);
    }
    assert!(in_time(|| subscription.next_batch()).unwrap().is_none());
    // Position and lag stay readable.
    assert_eq!(subscription.position(), position);
    assert!(subscription.lag().revisions > 0);
}

/// Of the last revision that a chain has looked at, more may lie in a segment that has left: the position stays before
/// it, also where nothing of it was delivered.
#[test]
fn position_stays_before_a_half_lost_revision_of_masked_events() {
    let builder = Cache::builder("/").capacity(128).segment_slots(16).index(Index::prefix(1));
    let cache = builder.build().unwrap();
    let mut writer = cache.writer().unwrap();
    let options = cache.subscribe(Start::Now).prefix("/own/").types(&[Kind::Modified]);
    let mut one = options.on_lag(OnLag::Stop).open().unwrap();
    write(&mut writer, [1]);
    assert!(one.poll(1).unwrap().is_empty());
    writer.apply(10, [Change::put("/own/a", "10")]).unwrap();
    writer.apply(11, [Change::put("/own/a", "11")]).unwrap();
    writer.apply(12, [Change::put("/own/a", "12")]).unwrap();
    // 12 events in the first segment, the rest in the second and the third.
    let keys: Vec<String> = (0..30).map(|key| format!("/own/{key:02}")).collect();
    writer.apply(13, keys.iter().map(|key| Change::put(key, "13"))).unwrap();
    // It collects all links, and keeps the first segment.
    assert_eq!(lines(&one.poll(1).unwrap()), ["11 MODIFIED /own/a=11"]);
    write(&mut writer, 14..=125);
    assert!(cache.oldest() > 13);
    let batch = one.poll(100).unwrap();
    assert_eq!((lines(&batch).as_slice(), batch.position().revision), (&["12 MODIFIED /own/a=12".to_string()][..], 12));
}

/// A revision that was delivered whole is not lost, by whichever path it was read: its last event may be masked, of another
/// bucket, or not match. The position says so, and a consumer that resumes there gets nothing twice.
#[test]
fn revision_that_came_whole_is_not_lost() {
    let rows: [(&str, Vec<Change>); 3] = [
        ("masked", vec![Change::delete("/own/1"), Change::put("/own/2", "y")]),
        ("of another bucket", vec![Change::delete("/own/1"), Change::put("/other", "y")]),
        ("absent", vec![Change::put("/other", "y"), Change::delete("/own/1")]),
    ];
    for (row, last) in &rows {
        for (indexed, before) in [(false, false), (false, true), (true, false), (true, true)] {
            let builder = Cache::builder("/").capacity(128).segment_slots(16);
            let cache = if indexed { builder.index(Index::prefix(1)) } else { builder }.build().unwrap();
            let mut writer = cache.writer().unwrap();
            writer
                .apply(1, ["/own/0", "/own/1", "/own/2", "/own/3", "/own/4"].map(|key| Change::put(key, "x")))
                .unwrap();
            let own = cache.subscribe(Start::Now).prefix("/own/").types(&[Kind::Deleted]);
            let mut one = own.open().unwrap();
            // The writer's answer to its request for a bucket.
            write(&mut writer, [2]);
            assert!(one.poll(10).unwrap().is_empty());
            writer.apply(3, [Change::delete("/own/0")]).unwrap();
            if before {
                writer.apply(4, [Change::delete("/own/4")]).unwrap();
            }
            writer.apply(5, last.iter().cloned()).unwrap();
            write(&mut writer, 6..=40);
            writer.apply(41, [Change::delete("/own/3")]).unwrap();
            // It keeps the segment of revisions 3 to 5.
            assert_eq!(revision_of(&one.poll(1).unwrap()), [3]);
            write(&mut writer, 42..=1000);
            let mut got = Vec::new();
            let error = loop {
                match one.poll(10) {
                    Ok(batch) => {
                        assert!(!batch.continues(), "{row}: {batch:?}");
                        got.extend(revision_of(&batch));
                    }
                    Err(error) => break error,
                }
            };
            assert_eq!(got, if before { vec![4, 5] } else { vec![5] }, "{row}, {indexed}");
            assert_eq!((error.code(), error.lost_to()), (Code::Lagged, cache.oldest() - 1), "{row}, {indexed}");
            assert!(error.lost_from() >= 6, "{row}, {indexed}: {error}");
        }
    }
}

/// A batch that goes back to the begin of a revision that lies in two segments goes back into the first of them.
#[test]
fn batch_ends_before_a_revision_of_two_segments() {
    for (indexed, whole) in [(false, false), (false, true), (true, false), (true, true)] {
        let builder = Cache::builder("/").capacity(128).segment_slots(16);
        let cache = if indexed { builder.index(Index::prefix(1)) } else { builder }.build().unwrap();
        let mut writer = cache.writer().unwrap();
        let mut one = cache.subscribe(Start::Now).prefix("/own/").whole_revisions(whole).open().unwrap();
        write(&mut writer, [1]);
        assert!(one.poll(1).unwrap().is_empty());
        writer.apply(2, [Change::put("/own/a", "2")]).unwrap();
        let keys: Vec<String> = (0..30).map(|key| format!("/own/{key:02}")).collect();
        writer.apply(3, keys.iter().map(|key| Change::put(key, "3"))).unwrap();
        let batch = one.poll(20).unwrap();
        assert_eq!((batch.len(), batch.continues(), batch.position().revision), (1, false, 2), "{indexed}, {whole}");
        let mut got = Vec::new();
        while got.len() < 30 {
            let batch = one.poll(20).unwrap();
            assert!(!batch.is_empty() && batch.continues() == (got.len() + batch.len() < 30), "{indexed}, {whole}");
            got.extend(batch.into_iter().map(|event| text(event.key())));
        }
        assert_eq!(got, keys, "{indexed}, {whole}");
        assert!(one.poll(20).unwrap().is_empty() && one.position().revision == 3);
    }
}

fn revision_of(batch: &Batch) -> Vec<u64> {
    batch.into_iter().map(Event::revision).collect()
}

/// A subscription that reads a chain holds the segment that it stands in. Where the next one has left the log, a
/// revision that lies in both is lost in part, though its first events are still within reach and its last ones in
/// the log.
#[test]
fn half_lost_revision_of_a_chain_is_lost_whole() {
    let builder = Cache::builder("/").capacity(128).segment_slots(16).index(Index::prefix(1));
    let cache = builder.build().unwrap();
    let mut writer = cache.writer().unwrap();
    let open = |whole, on_lag| {
        let options = cache.subscribe(Start::Now).prefix("/own/");
        options.whole_revisions(whole).on_lag(on_lag).open().unwrap()
    };
    let mut at_its_begin = open(true, OnLag::Stop);
    let mut before = open(true, OnLag::SkipToOldest);
    let mut in_pieces = open(false, OnLag::Stop);
    // The writer's answers come with the first revision: it has one slot of the first segment.
    write(&mut writer, [1]);
    for one in [&mut at_its_begin, &mut before, &mut in_pieces] {
        assert!(one.poll(1).unwrap().is_empty());
        assert_eq!(one.stats().read_path, ReadPath::Chain { index: "prefix of depth 1".into() });
    }
    writer.apply(10, [Change::put("/own/a", "10")]).unwrap();
    writer.apply(11, [Change::put("/own/a", "11")]).unwrap();
    // 13 events in the first segment, 16 in the second, one in the third.
    let keys: Vec<String> = (0..30).map(|key| format!("/own/{key:02}")).collect();
    writer.apply(12, keys.iter().map(|key| Change::put(key, "12"))).unwrap();
    // They collect the links of all three revisions.
    assert_eq!(lines(&before.poll(1).unwrap()), ["10 ADDED /own/a=10"]);
    for one in [&mut at_its_begin, &mut in_pieces] {
        assert_eq!(one.poll(1).unwrap().len() + one.poll(1).unwrap().len(), 2);
        assert_eq!(one.position().revision, 11);
    }
    // Slots 33 to 144: the tenth segment displaces the second.
    write(&mut writer, 13..=124);
    assert_eq!(cache.oldest(), 13);

    lagged(&mut at_its_begin, 12, 12, 13, 124);
    let piece = in_pieces.poll(100).unwrap();
    assert_eq!((piece.len(), piece.continues(), piece.position().revision), (13, true, 11));
    lagged(&mut in_pieces, 12, 12, 13, 124);

    assert_eq!(lines(&before.poll(100).unwrap()), ["11 MODIFIED /own/a=11"]);
    assert_eq!(before.position().revision, 11);
    let error = refused(before.poll(100), Code::Lagged);
    assert_eq!((error.lost_from(), error.lost_to()), (12, 12), "{error}");
    writer.apply(125, [Change::put("/own/a", "125")]).unwrap();
    assert_eq!(drain(&mut before), ["125 MODIFIED /own/a=125"], "the loss is reported once");
}

/// A state at the end of a segment that closed early is exact as long as the next segment is there: no event lies in
/// the slots between. So an initial state goes on, and no difference begins again at a newer state.
#[test]
fn state_at_the_end_of_what_left_is_whole() {
    let (cache, mut writer) = tiny();
    let mut differences =
        [OnLag::Conflate, OnLag::Resnapshot].map(|policy| cache.subscribe(Start::Now).on_lag(policy).open().unwrap());
    // Segments of 16 slots hold seven revisions of two events and one of one: the next two do not fit.
    let mut write_to = |last: u64| {
        for revision in cache.position().revision + 1..=last {
            let (one, two) = (format!("/{:02}", revision % 12), format!("/{:02}", revision % 12 + 12));
            let value = revision.to_string();
            match revision {
                318 => writer.apply(revision, [Change::put("/gone", &value), Change::put(&one, &value)]),
                319 => writer.apply(revision, [Change::delete("/gone"), Change::put(&one, &value)]),
                321 => writer.apply(revision, [Change::delete(&one), Change::put("/new", &value)]),
                _ if revision % 8 == 0 => writer.apply(revision, [Change::put(&one, &value)]),
                _ => writer.apply(revision, [Change::put(&one, &value), Change::put(&two, &value)]),
            }
            .unwrap();
        }
    };
    write_to(320);
    let now = state(&cache).into_iter().map(|(key, value, ..)| (key, value)).collect::<Vec<_>>();
    let mut initial = cache.subscribe(Start::State).open().unwrap();
    let mut live = cache.subscribe(Start::Now).open().unwrap();
    for one in &mut differences {
        // The first page fixes the state that it leads to. LAGGED comes before it, but for Conflate.
        let page = one.poll(3).or_else(|_| one.poll(3)).unwrap();
        assert!(page.continues(), "{page:?}");
    }
    // The segment leaves, and what was deleted in it is purged.
    let mut last = 320;
    while cache.oldest() <= 320 {
        last += 1;
        write_to(last);
    }
    write_to(last + 4);
    assert_eq!((cache.oldest(), cache.stats().tombstones), (321, 1), "{:?}", cache.stats());
    assert_eq!((cache.status().overrun, cache.stats().lagged), (0, 2), "only the first losses of both differences");

    let got = |batch: &Batch| -> Vec<(String, String)> {
        let objects = batch.events().iter().filter(|event| event.kind() == Kind::Added && event.is_initial_state());
        objects.map(|event| (text(event.key()), text(event.value().unwrap()))).collect()
    };
    assert_eq!(got(&initial.poll(100).unwrap()), now);
    for one in [&mut initial, &mut live] {
        assert_eq!(revisions(one)[..3], [321, 321, 322]);
    }
    for one in &mut differences {
        let rest = one.poll(100).unwrap();
        assert_eq!((rest.position().revision, rest.continues()), (320, false), "{rest:?}");
        assert_eq!(revisions(one)[..3], [321, 321, 322]);
    }
}

#[test]
fn batches_outlive_everything() {
    let (cache, mut writer) = tiny();
    let mut live = cache.subscribe(Start::Now).open().unwrap();
    write(&mut writer, 1..=10);
    let batch = live.poll(100).unwrap();
    let kv = batch.events()[4].kv().unwrap().clone();
    write(&mut writer, 11..=1000);
    drop((live, writer, cache));
    assert_eq!(lines(&batch)[9], "10 MODIFIED /k=10");
    assert_eq!(batch.events()[9].prev_value(), Some(&b"9"[..]));
    let other = spawn(move || drop(batch));
    other.end();
    assert_eq!((kv.value(), kv.mod_revision()), (Some(&b"5"[..]), 5));
}
