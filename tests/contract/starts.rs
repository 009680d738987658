//! Section 2: where a subscription begins.

use crate::tools::*;
use std::sync::Arc;
use watchcore::raw::TestBuilder as _;
use watchcore::*;

#[test]
fn a_future_start_ends_where_its_revision_does_not_exist() {
    let (cache, mut writer) = unloaded();
    let source = Arc::new(Counting::default());
    writer.attach(source.clone()).unwrap();
    writer.load(5, []).unwrap();
    let mut future = cache.subscribe(Start::After(100)).open().unwrap();
    assert!(future.poll(1).unwrap().is_empty());
    // The source is asked, and says that it stands at 50.
    let demand = writer.demand();
    assert!(demand.consistent > 0 && source.0.load(std::sync::atomic::Ordering::SeqCst) > 0);
    writer.serve_consistent(demand.consistent, 50);
    let error = refused(future.poll(1), Code::FutureRevision);
    assert_eq!((error.asked(), error.current()), (100, 50));
    refused(future.poll(1), Code::Closed);
    // One that the source has: it waits on.
    let mut good = cache.subscribe(Start::After(100)).open().unwrap();
    writer.serve_consistent(writer.demand().consistent, 100);
    assert!(good.poll(1).unwrap().is_empty());
    write(&mut writer, [101]);
    assert_eq!(revisions(&mut good), [101]);
}

#[test]
fn a_future_start_whose_place_has_left_is_told_what_became_of_it() {
    let (cache, mut writer) = tiny();
    write(&mut writer, [10]);
    let after = |revision| cache.subscribe(Start::After(revision)).open().unwrap();
    let (mut reached, mut ahead, mut behind, mut closed) = (after(1000), after(1001), after(999), after(300));
    write(&mut writer, 11..=310);
    // What was published before this is delivered, or reported as lost.
    closed.close();
    write(&mut writer, 311..=1000);
    assert!(cache.oldest() > 310, "the place of all four has left");
    writer.resync(5, [record("/k", "5", 5, 5, 1)], ResyncReason::HistoryReset).unwrap();
    assert_eq!(drain(&mut reached)[0], "5 RESYNC Begin HistoryReset 1000..5", "nothing above it was lost");
    assert_eq!(drain(&mut behind)[0], "1000 MODIFIED /k=1000");
    assert_eq!(drain(&mut ahead), ["FUTURE_REVISION"]);
    let error = refused(closed.poll(1), Code::Lagged);
    assert_eq!(error.lost_from(), 301);
}

#[test]
fn a_future_start_on_the_edge_of_what_has_left() {
    let overrun = |asked: u64| {
        let (cache, mut writer) = tiny();
        write(&mut writer, [10]);
        let subscription = cache.subscribe(Start::After(asked)).open().unwrap();
        write(&mut writer, 11..=1000);
        (cache, writer, subscription)
    };
    let oldest = overrun(999).0.oldest();
    assert_eq!(revisions(&mut overrun(oldest - 1).2), Vec::from_iter(oldest..=1000));
    let error = refused(overrun(oldest - 2).2.poll(1), Code::Lagged);
    assert_eq!((error.lost_from(), error.lost_to()), (oldest - 1, oldest - 1));

    // The revisions that nothing happened in were not lost.
    let every_tenth = |asked: Option<u64>| {
        let (cache, mut writer) = tiny();
        write(&mut writer, [10]);
        let subscription = asked.map(|asked| cache.subscribe(Start::After(asked)).open().unwrap());
        write(&mut writer, (2..=400).map(|step| step * 10));
        (cache, writer, subscription)
    };
    let oldest = every_tenth(None).0.oldest();
    let (_cache, _writer, subscription) = every_tenth(Some(oldest - 1));
    assert_eq!(revisions(&mut subscription.unwrap())[0], oldest + 9);

    // It was reached, and the reset behind that has left.
    let (_cache, mut writer, mut subscription) = overrun(1000);
    writer.resync(5, [record("/k", "5", 5, 5, 1)], ResyncReason::HistoryReset).unwrap();
    write(&mut writer, 6..=900);
    refused(subscription.poll(1), Code::Lagged);
}

#[test]
fn a_late_start_whose_state_has_left_is_a_loss_for_who_remembers() {
    let builder = Cache::builder("/").capacity(128).segment_slots(16).expect_load(true);
    let cache = builder.index(Index::key()).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let subscribe = |on_lag| cache.subscribe(Start::Now).key("/mine").on_lag(on_lag).open().unwrap();
    let (mut stops, mut resnapshots) = (subscribe(OnLag::Stop), subscribe(OnLag::Resnapshot));
    writer.load(1, [record("/mine", "1", 1, 1, 1)]).unwrap();
    write(&mut writer, 2..=500);
    assert_eq!(drain(&mut stops), [""; 0], "it reads its bucket, and that has lost nothing");
    let error = refused(resnapshots.poll(10), Code::Lagged);
    assert_eq!((error.lost_from(), error.lost_to()), (2, cache.oldest() - 1));
    assert_eq!(drain(&mut resnapshots), ["CLOSED"]);
}

/// The epoch may have changed since the last poll, before the resync that jumps over the asked revision: the position
/// after the loss is of the epoch in which the log continues.
#[test]
fn skipped_future_start_stands_in_the_epoch_of_the_log() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [5]);
    let mut future = cache.subscribe(Start::After(30)).on_lag(OnLag::SkipToOldest).open().unwrap();
    writer.resync(20, [record("/k", "20", 5, 15, 2)], ResyncReason::TooFarBehind).unwrap();
    let before = cache.position();
    writer.resync(40, [record("/k", "40", 5, 35, 3)], ResyncReason::TooFarBehind).unwrap();
    let error = refused(future.poll(1), Code::Lagged);
    assert_eq!((error.lost_from(), error.lost_to()), (31, 40));
    assert_eq!(future.position(), Position { epoch: before.epoch, revision: 30 });
    assert!(future.poll(100).unwrap().events()[0].resync().is_some(), "the BEGIN of the second one");
}

/// It asked to stop at resyncs, too: the one before the one that jumps over the asked revision does not concern it,
/// and the one that does is not lost.
#[test]
fn skipped_start_stops_at_its_resync() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [5]);
    let future = cache.subscribe(Start::After(30)).on_lag(OnLag::SkipToOldest);
    let mut future = future.stop_on_resync(true).open().unwrap();
    writer.resync(20, [record("/k", "20", 5, 15, 2)], ResyncReason::TooFarBehind).unwrap();
    writer.resync(40, [record("/k", "40", 5, 35, 3)], ResyncReason::TooFarBehind).unwrap();
    write(&mut writer, [41]);
    refused(future.poll(1), Code::Lagged);
    assert_eq!(refused(future.poll(1), Code::Resynced).current(), 40, "not what is newest now");
}

#[test]
fn state_in_small_batches_is_the_state() {
    const KEYS: usize = 3000;
    let keys: Vec<String> = (0..KEYS).map(|at| format!("/{at:05}")).collect();
    let values: Vec<String> = (0..KEYS).map(|at| "x".repeat(at * at % 97)).collect();
    let whole: Vec<String> = keys.iter().zip(&values).map(|(key, value)| format!("5 ADDED {key}={value}")).collect();
    let last = |filter: &Filter| filter.clone().predicate(|kv| kv.key() == b"/02999" || kv.key() == b"/new");
    for (policy, loads_late) in
        [(OnLag::Stop, false), (OnLag::Stop, true), (OnLag::Resnapshot, false), (OnLag::Conflate, true)]
    {
        let (cache, mut writer) = unloaded();
        let open = |bytes, filter| {
            cache.subscribe(Start::State).filter(filter).on_lag(policy).initial_batch_bytes(bytes).open().unwrap()
        };
        let load = |writer: &mut Writer| {
            writer.load(5, keys.iter().zip(&values).map(|(key, value)| record(key, value, 5, 5, 1))).unwrap();
        };
        if !loads_late {
            load(&mut writer);
        }
        let mut all = [1, 100, 2000, 1 << 20, 0].map(|bytes| (bytes, open(bytes, Filter::any())));
        let mut one = open(1 << 20, last(&Filter::any()));
        if loads_late {
            load(&mut writer);
        }
        writer.apply(6, [Change::put("/new", "6"), Change::put("/00000", "6")]).unwrap();
        for (bytes, state) in &mut all {
            let bytes = if *bytes == 0 { usize::MAX } else { *bytes };
            let mut seen = Vec::new();
            while state.position().revision == 0 {
                let batch = state.poll(700).unwrap();
                let objects = batch.events().iter().filter(|event| event.is_initial_state());
                let sizes: Vec<usize> =
                    objects.map(|event| event.key().len() + event.value().unwrap_or_default().len()).collect();
                assert!(!sizes.is_empty() || state.position().revision > 0, "every key is shown");
                assert!(sizes.len() <= 1 || sizes.iter().sum::<usize>() <= bytes, "{sizes:?} of {bytes}");
                seen.extend(lines(&batch));
            }
            assert_eq!(seen.pop().as_deref(), Some("5 BOOKMARK"));
            assert!(seen == whole, "batches of {bytes} bytes, {policy:?}: {} objects", seen.len());
            assert_eq!(drain(state), ["6 ADDED /new=6", "6 MODIFIED /00000=6"]);
        }
        let mut turns = 0;
        let batch = loop {
            let batch = one.poll(700).unwrap();
            if !batch.is_empty() {
                break batch;
            }
            assert!(batch.continues() && one.position().revision == 0);
            turns += 1;
        };
        assert!(turns >= KEYS / 1024, "{turns}");
        assert_eq!((lines(&batch).len(), batch.continues()), (2, false), "the object and the mark");
        assert_eq!(drain(&mut one), ["6 ADDED /new=6"]);
        let mut late = cache.subscribe(Start::StateAtLeast(6)).initial_batch_bytes(100).open().unwrap();
        assert!((1..=16).contains(&late.poll(700).unwrap().len()), "keys of six bytes");
    }
}

/// The rest is row 2.23: here is what a script has no words for.
#[test]
fn history_behind_the_listing_is_loaded_and_not_ready() {
    let (cache, mut writer) = unloaded();
    let mut waiter = cache.waiter(Want::Revision(101)).unwrap();
    let mut loading = writer.begin_load(100).unwrap();
    writer.load_more(&mut loading, [record("/a", "1", 50, 60, 2)]).unwrap();
    writer.finish_load_behind(loading).unwrap();
    write(&mut writer, [101, 102]);
    writer.progress(103).unwrap();
    assert_eq!((writer.is_loaded(), cache.is_ready(), writer.position().revision), (true, false, 103));
    assert!(waiter.poll().unwrap().is_none());
    writer.caught_up();
    write(&mut writer, [104]);
    assert_eq!(waiter.poll().unwrap().unwrap().revision, 104);
}
