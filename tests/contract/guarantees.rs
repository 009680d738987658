//! Section 1: order, atomic revisions, `oldest`, position, epoch.

use crate::tools::*;
use watchcore::*;

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
fn a_position_of_another_birth_is_unchecked() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [100]);
    let before = cache.position().epoch;
    assert_ne!(before >> 32, 0, "the birth");
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
