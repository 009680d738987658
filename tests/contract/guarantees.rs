//! Section 1: order, atomic revisions, `oldest`, position, epoch.

use crate::tools::*;
use watchcore::*;

/// Three revisions: 1 with two events, 2 with five, 3 with one.
fn two_five_one() -> (Cache, Writer) {
    let (cache, mut writer) = embedded();
    writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")]).unwrap();
    let keys = ["/a", "/b", "/c", "/d", "/e"];
    writer.apply(2, keys.iter().map(|key| Change::put(*key, "2"))).unwrap();
    writer.apply(3, [Change::put("/a", "3")]).unwrap();
    (cache, writer)
}

/// (events, CONTINUES, position) of each poll.
fn cuts(subscription: &mut Subscription, max: usize) -> Vec<(usize, bool, u64)> {
    let mut cuts = Vec::new();
    loop {
        let batch = subscription.poll(max).unwrap();
        if batch.is_empty() {
            return cuts;
        }
        assert_eq!(batch.position(), subscription.position());
        cuts.push((batch.len(), batch.continues(), batch.position().revision));
    }
}

#[test]
fn an_option_gathers_whole_revisions() {
    let (cache, _writer) = two_five_one();
    let mut whole = cache.subscribe(Start::After(0)).whole_revisions(true).open().unwrap();
    assert_eq!(cuts(&mut whole, 1), [(2, false, 1), (5, false, 2), (1, false, 3)]);
    // One that is longer than a segment, and one longer than the log.
    let (cache, mut small) = tiny();
    for (revision, count) in [(1, 40), (2, 1), (3, 500), (4, 1)] {
        let keys: Vec<String> = (0..count).map(|key| format!("/{key:03}")).collect();
        small.apply(revision, keys.iter().map(|key| Change::put(key, ""))).unwrap();
    }
    let mut whole = cache.subscribe(Start::After(0)).whole_revisions(true).open().unwrap();
    assert_eq!(cuts(&mut whole, 3), [(40, false, 1), (1, false, 2), (500, false, 3), (1, false, 4)]);
    // A filter inside does not matter.
    let mut whole = cache.subscribe(Start::After(0)).whole_revisions(true).prefix("/02").open().unwrap();
    assert_eq!(cuts(&mut whole, 3), [(10, false, 2), (10, false, 4)]);
}

#[test]
fn a_revision_longer_than_an_eighth_of_a_segment_comes_in_pieces() {
    let (cache, mut writer) = tiny();
    write(&mut writer, 1..=10);
    let keys: Vec<String> = (0..40).map(|key| format!("/{key:02}")).collect();
    writer.apply(11, keys.iter().map(|key| Change::put(key, "x"))).unwrap();
    write(&mut writer, [12]);
    let mut plain = cache.subscribe(Start::After(10)).open().unwrap();
    let cuts = cuts(&mut plain, 1000);
    assert_eq!(cuts.iter().map(|(len, ..)| len).sum::<usize>(), 41);
    let (last, pieces) = cuts.split_last().unwrap();
    assert!(pieces.len() >= 2 && pieces.iter().all(|(_, continues, at)| *continues && *at == 10), "{cuts:?}");
    assert!(!last.1 && last.2 == 12, "{cuts:?}");
}

#[test]
fn a_short_revision_never_straddles_two_segments() {
    let (cache, mut writer) = tiny();
    let mut live = cache.subscribe(Start::Now).open().unwrap();
    // One event, two, one, two: some second of a pair would be the first of a segment.
    for revision in 1..=300 {
        let pair = [Change::put("/a", "1"), Change::put("/b", "1")];
        let count = 1 + revision as usize % 2;
        writer.apply(revision, pair[..count].iter().copied()).unwrap();
        let batch = live.poll(1000).unwrap();
        assert_eq!((batch.len(), batch.continues()), (count, false), "at {revision}");
    }
}

#[test]
fn a_revision_is_seen_whole_or_not_at_all() {
    let (cache, mut writer) = embedded();
    writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")]).unwrap();
    let before = cache.snapshot().unwrap();
    writer.apply(2, [Change::put("/a", "2"), Change::delete("/b"), Change::put("/c", "2")]).unwrap();
    let seen = |snapshot: &Snapshot| snapshot.iter().map(|kv| text(kv.key())).collect::<Vec<_>>();
    assert_eq!(seen(&before), ["/a", "/b"]);
    assert_eq!(seen(&cache.snapshot().unwrap()), ["/a", "/c"]);
}

#[test]
fn oldest_of_an_empty_log() {
    let (cache, mut writer) = embedded();
    assert_eq!((cache.oldest(), cache.position().revision), (1, 0));
    assert_eq!(drain(&mut cache.subscribe(Start::After(0)).open().unwrap()), [""; 0]);
    assert_eq!(cache.get("/k", Read::Exact(0)).unwrap().revision, 0);
    // A first event far above: nothing has left.
    write(&mut writer, [1000]);
    assert_eq!(cache.oldest(), 1);
    assert_eq!(revisions(&mut cache.subscribe(Start::After(0)).open().unwrap()), [1000]);
}

#[test]
fn oldest_begins_above_the_first_listing() {
    let (cache, mut writer) = unloaded();
    writer.load(100, [record("/a", "1", 40, 90, 3)]).unwrap();
    assert_eq!(cache.oldest(), 101);
    compacted(cache.subscribe(Start::After(99)).open(), 99, 101, 100);
    compacted(cache.get("/a", Read::Exact(99)), 99, 101, 100);
    assert_eq!(value_at(&cache, "/a", Read::Exact(100)).unwrap().unwrap(), "1");
    let mut after = cache.subscribe(Start::After(100)).open().unwrap();
    assert!(after.poll(1).unwrap().is_empty());
    write(&mut writer, [105]);
    assert_eq!(revisions(&mut after), [105]);
    assert_eq!(cache.oldest(), 101);
}

#[test]
fn oldest_is_one_above_what_left_the_log() {
    let (cache, mut writer) = tiny();
    let mut last = 1;
    for revision in (10..=4000).step_by(10) {
        write(&mut writer, [revision]);
        let oldest = cache.oldest();
        assert!(oldest >= last, "it never goes back");
        last = oldest;
        // The borders: oldest-2, oldest-1, oldest, current, current+1.
        if oldest > 1 {
            assert_eq!(oldest % 10, 1, "one above an event's revision; no event need have it");
            let events = (revision - (oldest - 1)) / 10;
            assert!((98..=128).contains(&events), "the window holds {events}");
            compacted(cache.subscribe(Start::After(oldest - 2)).open(), oldest - 2, oldest, revision);
            compacted(cache.get("/k", Read::Exact(oldest - 2)), oldest - 2, oldest, revision);
            compacted(cache.count(&Range::all(), Read::Exact(0)), 0, oldest, revision);
            assert_eq!(value_at(&cache, "/k", Read::Exact(oldest - 1)).unwrap(), Some((oldest - 1).to_string()));
        }
        for after in [oldest - 1, oldest, oldest + 8, oldest + 9, revision] {
            let mut from = cache.subscribe(Start::After(after)).open().unwrap();
            let first = (after + 1).div_ceil(10) * 10;
            assert_eq!(revisions(&mut from), (first..=revision).step_by(10).collect::<Vec<_>>(), "after {after}");
        }
        assert_eq!(value_at(&cache, "/k", Read::Exact(revision)).unwrap(), Some(revision.to_string()));
    }
    assert!(last > 1);
    let above = cache.get_with("/k", &ReadOptions::new(Read::Exact(4001)).timeout(std::time::Duration::ZERO));
    let error = refused(above, Code::FutureRevision);
    assert_eq!((error.asked(), error.current()), (4001, 4000));
}

#[test]
fn a_revision_that_left_in_part_has_left() {
    let (cache, mut writer) = tiny();
    write(&mut writer, [1]);
    let keys: Vec<String> = (0..40).map(|key| format!("/{key:02}")).collect();
    writer.apply(2, keys.iter().map(|key| Change::put(key, "x"))).unwrap();
    let mut revision = 2;
    while cache.oldest() <= 2 {
        revision += 1;
        write(&mut writer, [revision]);
    }
    // Segments of 16: of its 40 events at most 16 have left yet.
    assert!(cache.stats().events < 128 + 16 + 2);
    assert_eq!(cache.oldest(), 3);
    compacted(cache.subscribe(Start::After(1)).open(), 1, 3, revision);
    let mut after = cache.subscribe(Start::After(2)).open().unwrap();
    assert_eq!(revisions(&mut after), (3..=revision).collect::<Vec<_>>());
    assert_eq!(cache.count(&Range::all(), Read::Exact(2)).unwrap().count, 41);
}

#[test]
fn position_is_zero_during_the_initial_state() {
    let (cache, mut writer) = embedded();
    writer.apply(7, [Change::put("/a", "1"), Change::put("/b", "1")]).unwrap();
    let mut state = cache.subscribe(Start::State).open().unwrap();
    assert_eq!(state.position().revision, 0);
    for (shown, position) in [("7 ADDED /a=1", 0), ("7 ADDED /b=1", 0), ("7 BOOKMARK", 7)] {
        let batch = state.poll(1).unwrap();
        assert_eq!((lines(&batch), batch.position().revision), (vec![shown.into()], position));
        assert_eq!(state.position().revision, position);
    }
    assert_eq!(state.position(), cache.position());
}

#[test]
fn position_moves_also_when_nothing_matches() {
    let (cache, mut writer) = embedded();
    let mut one = cache.subscribe(Start::Now).key("/other").open().unwrap();
    write(&mut writer, [4, 6]);
    assert!(one.poll(10).unwrap().is_empty());
    assert_eq!(one.position().revision, 6);
    writer.progress(9).unwrap();
    let batch = one.poll(10).unwrap();
    assert_eq!((batch.len(), batch.position(), one.position()), (0, cache.position(), cache.position()));
    assert_eq!(cache.position().revision, 9);
    // It is of use: a restart there loses nothing.
    writer.apply(10, [Change::put("/other", "x")]).unwrap();
    let mut resumed =
        cache.subscribe(Start::AfterIn(Position { revision: 9, ..one.position() })).key("/other").open().unwrap();
    assert_eq!(drain(&mut resumed), ["10 ADDED /other=x"]);
}

/// The notifier moves the cursor of a sleeper along with the head, here to the end of 15 events in a segment of 16. The
/// two that come next do not fit into its last slot, so the next event is not at the cursor.
#[test]
fn position_after_a_slept_short_segment() {
    let (cache, mut writer) = tiny();
    let mut sleeper = cache.subscribe(Start::Now).prefix("/own/").open().unwrap();
    let mut clock = cache.subscribe(Start::Now).key("/clock").open().unwrap();
    let (sleepers, clocks) = (WakeSet::new().unwrap(), WakeSet::new().unwrap());
    sleepers.add(&mut sleeper, 1).unwrap();
    clocks.add(&mut clock, 1).unwrap();
    assert!(!sleeper.arm().unwrap() && !clock.arm().unwrap());
    write(&mut writer, 1..=14);
    writer.apply(15, [Change::put("/clock", "15")]).unwrap();
    // The notifier has looked at all 15, and the sleeper leaves before there are more.
    assert!(clocks.wait(BOUND));
    assert!(sleepers.remove(&mut sleeper));
    writer.apply(16, [Change::put("/own/a", "16"), Change::put("/own/b", "16")]).unwrap();
    let batch = sleeper.poll(1).unwrap();
    assert_eq!((lines(&batch), batch.continues()), (vec!["16 ADDED /own/a=16".to_string()], true));
    assert_eq!(batch.position().revision, 15);
}

#[test]
fn a_bookmark_says_that_all_before_it_was_delivered() {
    let (cache, mut writer) = embedded();
    let marks = cache.subscribe(Start::Now).key("/k").bookmarks(true).bookmark_interval(std::time::Duration::ZERO);
    let mut marks = marks.open().unwrap();
    assert!(marks.poll(10).unwrap().is_empty(), "the position did not move");
    writer.apply(3, [Change::put("/other", "1")]).unwrap();
    assert_eq!(lines(&marks.poll(10).unwrap()), ["3 BOOKMARK"]);
    assert!(marks.poll(10).unwrap().is_empty(), "not twice");
    write(&mut writer, [5]);
    writer.apply(6, [Change::put("/other", "2")]).unwrap();
    // Events first.
    assert_eq!(drain(&mut marks), ["5 ADDED /k=5", "6 BOOKMARK"]);
    writer.progress(8).unwrap();
    let batch = marks.poll(10).unwrap();
    let mark = &batch.events()[0];
    assert_eq!((mark.kind(), mark.revision(), batch.position().revision), (Kind::Bookmark, 8, 8));
    assert!(mark.key().is_empty() && mark.kv().is_none() && mark.prev().is_none() && mark.value().is_none());
    assert_eq!((mark.sequence(), mark.mod_revision(), mark.flags()), (0, 0, 0));
}

#[test]
fn an_epoch_is_a_history() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [10]);
    let first = cache.position();
    assert_eq!((first.epoch_number(), first.epoch >> 32 == 0), (1, false));
    let second = writer.resync(20, [record("/k", "10", 10, 10, 1)], ResyncReason::Compacted).unwrap();
    assert_eq!((second.epoch, second.revision), (first.epoch + 1, 20));
    assert_eq!(cache.position(), second);
    assert_eq!(cache.get("/k", Read::Any).unwrap().epoch, second.epoch);
    // A revision of a history that continues is still good, with its epoch and without.
    for epoch in [0, first.epoch] {
        let mut after = cache.subscribe(Start::AfterIn(Position { epoch, revision: 10 })).open().unwrap();
        assert_eq!(drain(&mut after), ["20 RESYNC Begin Compacted 10..20", "20 RESYNC End Compacted 10..20"]);
        assert_eq!(after.position(), second);
    }
    let exact = cache.get("/k", Read::Exact(10)).unwrap();
    assert_eq!((exact.revision, exact.epoch), (10, first.epoch));
}

#[test]
fn a_position_of_a_history_before_a_reset_is_compacted() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [100]);
    let before = cache.position();
    writer.resync(50, [record("/k", "old", 40, 45, 2)], ResyncReason::HistoryReset).unwrap();
    write(&mut writer, [51]);
    assert_eq!(cache.oldest(), 51);
    let open = |after, epoch| cache.subscribe(Start::AfterIn(Position { epoch, revision: after })).open();
    for revision in [50, 51, 60, 100, 101] {
        compacted(open(revision, before.epoch), revision, 51, 51);
    }
    // Unchecked: a revision above the current one that the earlier history had.
    compacted(open(49, 0), 49, 51, 51);
    compacted(open(52, 0), 52, 51, 51);
    compacted(open(100, 0), 100, 51, 51);
    drop(open(101, 0).unwrap());
    drop(open(60, cache.position().epoch).unwrap());
    assert_eq!(revisions(&mut open(50, cache.position().epoch).unwrap()), [51]);
    compacted(cache.get("/k", Read::Exact(49)), 49, 51, 51);
    assert_eq!(value_at(&cache, "/k", Read::Exact(50)).unwrap().unwrap(), "old");
}

#[test]
fn a_position_of_another_birth_is_unchecked() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [100]);
    let before = cache.position().epoch;
    writer.resync(50, [], ResyncReason::HistoryReset).unwrap();
    write(&mut writer, [51]);
    // Births below and above this one's; 0 is nobody's, so 1 is of another.
    for foreign in [1, before ^ (1 << 40), before ^ (1 << 63), u64::MAX] {
        let mut saved = cache.subscribe(Start::AfterIn(Position { epoch: foreign, revision: 50 })).open().unwrap();
        assert_eq!(revisions(&mut saved), [51], "epoch {foreign:x}");
    }
    compacted(cache.subscribe(Start::AfterIn(Position { epoch: before, revision: 50 })).open(), 50, 51, 51);
}

#[test]
fn above_a_reset_after_is_compacted_and_reads_wait() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [100]);
    writer.resync(50, [], ResyncReason::HistoryReset).unwrap();
    for above in [51, 99, 100] {
        compacted(cache.subscribe(Start::After(above)).open(), above, 51, 50);
    }
    let mut later = cache.subscribe(Start::After(101)).open().unwrap();
    // Who waits asks for no history: what it waits for comes.
    let mut state = cache.subscribe(Start::StateAtLeast(60)).start_timeout(BOUND).open().unwrap();
    assert!(state.poll(10).unwrap().is_empty());
    let short = std::time::Duration::from_millis(2);
    for read in [Read::AtLeast(60), Read::Exact(60)] {
        let error = refused(cache.get_with("/k", &ReadOptions::new(read).timeout(short)), Code::FutureRevision);
        assert_eq!((error.asked(), error.current()), (60, 50));
    }
    assert_eq!(refused(cache.wait_until(60, short), Code::FutureRevision).asked(), 60);
    write(&mut writer, [60, 102]);
    assert_eq!(value_at(&cache, "/k", Read::Exact(60)).unwrap().unwrap(), "60");
    assert_eq!(cache.wait_until(60, BOUND).unwrap(), cache.position());
    assert_eq!(drain(&mut state), ["102 ADDED /k=102", "102 BOOKMARK"]);
    assert_eq!(revisions(&mut later), [102]);
}

#[test]
fn waiters_of_an_older_epoch_end_with_resynced() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [50]);
    let waiter = || cache.waiter(Want::Revision(100)).unwrap();
    let (mut waits, other) = (waiter(), cache.clone());
    let sleeps = spawn(move || other.wait_until(100, std::time::Duration::MAX));
    until_asleep(&cache);
    // Another history: what it waits for will never be that revision.
    writer.resync(30, [], ResyncReason::HistoryReset).unwrap();
    assert_eq!(refused(waits.poll(), Code::Resynced).current(), 30);
    refused(sleeps.end(), Code::Resynced);
    // One that continues takes its waiters along.
    let mut waits = waiter();
    writer.resync(60, [], ResyncReason::TooFarBehind).unwrap();
    assert_eq!(waits.poll().unwrap(), None);
    writer.progress(100).unwrap();
    assert_eq!(waits.poll().unwrap(), Some(cache.position()));
}

#[test]
fn inside_the_order_is_the_sequence_number() {
    let (cache, mut writer) = embedded();
    let mut live = cache.subscribe(Start::Now).open().unwrap();
    write(&mut writer, [100]);
    writer.resync(50, [record("/k", "old", 40, 45, 2)], ResyncReason::HistoryReset).unwrap();
    write(&mut writer, [60]);
    let mut events = Vec::new();
    while let Ok(batch) = live.poll(100)
        && !batch.is_empty()
    {
        events.extend(batch.into_iter().map(|event| (event.sequence(), event.revision())));
    }
    assert!(events.is_sorted_by(|a, b| a.0 < b.0), "{events:?}");
    assert_eq!(events.iter().map(|(_, revision)| *revision).collect::<Vec<_>>(), [100, 50, 50, 50, 50, 60]);
    assert!(events[0].0 > 0, "0 is not in the log");
    assert_eq!(live.position(), cache.position());
}

#[test]
fn the_position_of_a_chain_reaches_the_close() {
    let cache = Cache::builder("/").index(Index::key()).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let subscribe = || cache.subscribe(Start::Now).key("/mine");
    let (mut polls, mut waits) = (subscribe().open().unwrap(), subscribe().open().unwrap());
    // Its bucket has events that are not delivered to it.
    let mut masked = subscribe().types(&[Kind::Deleted]).open().unwrap();
    writer.apply(1, [Change::put("/mine", "1")]).unwrap();
    assert_eq!((revisions(&mut polls), revisions(&mut waits), revisions(&mut masked)), (vec![1], vec![1], vec![]));
    writer.apply(2, [Change::put("/mine", "2")]).unwrap();
    assert_eq!((revisions(&mut polls), revisions(&mut waits)), (vec![2], vec![2]));
    write(&mut writer, [3, 4]);
    [&polls, &waits, &masked].into_iter().for_each(Subscription::close);
    // Waited behind the close, polled behind a mark that is behind the close.
    refused(masked.wait(BOUND), Code::Closed);
    write(&mut writer, [5]);
    writer.resync(5, [], ResyncReason::Requested).unwrap();
    refused(waits.wait(BOUND), Code::Closed);
    for one in [&mut polls, &mut waits, &mut masked] {
        refused(one.poll(1), Code::Closed);
        assert_eq!(one.position().revision, 4);
    }
}

#[test]
fn the_position_before_a_mark_is_complete_wherever_the_notifier_stood() {
    let (cache, mut writer) = embedded();
    let set = WakeSet::new().unwrap();
    let mut sleeps = cache.subscribe(Start::Now).key("/mine").open().unwrap();
    let mut other = cache.subscribe(Start::Now).key("/k").open().unwrap();
    set.add(&mut sleeps, 1).unwrap();
    set.add(&mut other, 2).unwrap();
    assert!(!sleeps.arm().unwrap() && !other.arm().unwrap());
    // Who wakes the other has looked at this for both.
    write(&mut writer, [1]);
    let mut tags = [0];
    assert!(set.wait(BOUND) && set.take(&mut tags) == 1 && tags == [2]);
    writer.resync(1, [], ResyncReason::Requested).unwrap();
    let epoch = sleeps.position().epoch;
    assert_eq!(lines(&sleeps.poll(1).unwrap()), ["1 RESYNC Begin Requested 1..1"]);
    assert_eq!(sleeps.position(), Position { epoch, revision: 1 });
}
