//! Section 2: where a subscription begins.

use crate::tools::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use watchcore::*;

/// A consumer that has the first of three events of revision 2 gets all three again, whether the cache has that revision
/// already or not; one that has the only event of a revision gets what follows.
#[test]
fn within_repeats_a_revision_of_several() {
    let three = || ["/a", "/b", "/c"].map(|key| Change::put(key, "2"));
    let (cache, mut writer) = embedded();
    let mut early = cache.subscribe(Start::Within(2)).open().unwrap();
    let mut alone = cache.subscribe(Start::Within(3)).open().unwrap();
    write(&mut writer, [1]);
    writer.apply(2, three()).unwrap();
    write(&mut writer, [3, 4]);
    assert_eq!(revisions(&mut early), [2, 2, 2, 3, 4]);
    assert_eq!(revisions(&mut alone), [4]);
    let within = |revision| cache.subscribe(Start::Within(revision)).open().unwrap();
    for (revision, expected) in [(0, &[1, 2, 2, 2, 3, 4][..]), (1, &[2, 2, 2, 3, 4]), (2, &[2, 2, 2, 3, 4]), (3, &[4])]
    {
        assert_eq!(revisions(&mut within(revision)), expected, "within {revision}");
    }
    assert_eq!(within(2).position().revision, 1);
    let mut one = cache.subscribe(Start::Within(2)).key("/b").open().unwrap();
    assert_eq!(drain(&mut one), ["2 ADDED /b=2"]);
    // Compacted to it: its events are in the log for who stands below them.
    writer.compact(2).unwrap();
    assert_eq!(revisions(&mut within(2)), [2, 2, 2, 3, 4]);
    compacted(cache.subscribe(Start::Within(1)).open(), 1, 3, 4);
}

/// A start within a revision of several events is refused once one of them has left the window. A consumer that has a
/// revision of one event has all of it, so that start is accepted.
#[test]
fn within_is_compacted_where_events_left() {
    let (cache, mut writer) = tiny();
    let (mut seen, mut before) = (BTreeSet::new(), cache.oldest());
    let events = |revision: u64| if revision.is_multiple_of(3) { 4 } else { 1 };
    for revision in 1..400 {
        let keys: Vec<String> = (0..events(revision)).map(|at| format!("/{at}")).collect();
        writer.apply(revision, keys.iter().map(|key| Change::put(key, "1"))).unwrap();
        if std::mem::replace(&mut before, cache.oldest()) == cache.oldest() {
            continue;
        }
        let left = cache.oldest() - 1;
        let open = cache.subscribe(Start::Within(left)).open();
        match events(left) {
            1 => assert!(revisions(&mut open.unwrap()).into_iter().is_sorted()),
            _ => compacted(open, left, left + 1, revision),
        }
        assert_eq!(cache.subscribe(Start::After(left)).open().unwrap().position().revision, left);
        seen.insert(events(left));
    }
    assert_eq!(seen, [1, 4].into(), "revisions of one and of several events have left last");
    // A revision that is longer than the log stays in it until another one follows.
    let keys: Vec<String> = (0..300).map(|at| format!("/{at}")).collect();
    writer.apply(400, keys.iter().map(|key| Change::put(key, "1"))).unwrap();
    assert_eq!(revisions(&mut cache.subscribe(Start::Within(400)).open().unwrap()), [400; 300]);
}

/// A resync is one revision, and comes again as a whole; a reset begins a history, of which nobody has a part.
#[test]
fn within_repeats_the_bracket_of_a_resync() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [4, 5]);
    writer.resync(10, [record("/j", "9", 9, 9, 1), record("/k", "9", 4, 9, 4)], ResyncReason::Compacted).unwrap();
    let expected = drain(&mut cache.subscribe(Start::After(5)).open().unwrap());
    let mut within = cache.subscribe(Start::Within(10)).open().unwrap();
    assert_eq!(within.position().revision, 5);
    assert_eq!(drain(&mut within), expected);
    compacted(cache.subscribe(Start::Within(9)).open(), 9, 1, 10);
    writer.resync(7, [record("/j", "1", 6, 6, 1), record("/k", "1", 6, 6, 1)], ResyncReason::HistoryReset).unwrap();
    assert_eq!(drain(&mut cache.subscribe(Start::Within(7)).open().unwrap()), [""; 0]);
    compacted(cache.subscribe(Start::Within(10)).open(), 10, 8, 7);
}

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
    let lapped = |asked: u64| {
        let (cache, mut writer) = tiny();
        write(&mut writer, [10]);
        let subscription = cache.subscribe(Start::After(asked)).open().unwrap();
        write(&mut writer, 11..=1000);
        (cache, writer, subscription)
    };
    let oldest = lapped(999).0.oldest();
    assert_eq!(revisions(&mut lapped(oldest - 1).2), Vec::from_iter(oldest..=1000));
    let error = refused(lapped(oldest - 2).2.poll(1), Code::Lagged);
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
    let (_cache, mut writer, mut subscription) = lapped(1000);
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
    assert!(future.poll(100).unwrap().events()[0].resync().is_some(), "the bracket of the second one");
}

/// It asked to stop at resyncs, too: the one before the one that jumps over the asked revision does not concern it,
/// and the one that does is not lost.
#[test]
fn skipped_start_stops_at_its_bracket() {
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

/// A listing of the past and the history behind it are there for whoever asks for them, once the cache has caught up; nobody
/// is taken back to the listing.
#[test]
fn history_behind_the_listing_shows_nothing() {
    let (cache, mut writer) = unloaded();
    let open = |start| cache.subscribe(start).open().unwrap();
    let (mut state, mut now, mut after) = (open(Start::State), open(Start::Now), open(Start::After(100)));
    let mut waiter = cache.waiter(Want::Revision(101)).unwrap();
    let mut loading = writer.begin_load(100).unwrap();
    writer.load_more(&mut loading, [record("/a", "1", 50, 60, 2)]).unwrap();
    writer.finish_load_behind(loading).unwrap();
    assert!(writer.is_loaded());
    write(&mut writer, [101, 102]);
    writer.progress(103).unwrap();
    assert_eq!((cache.state(), cache.is_ready(), writer.position().revision), (State::NotReady, false, 103));
    for early in [&mut state, &mut now, &mut after] {
        assert_eq!(early.poll(10).unwrap().len(), 0);
        assert!(!early.wait(Duration::from_millis(1)).unwrap());
    }
    assert!(waiter.poll().unwrap().is_none());
    refused(cache.get("/a", Read::Any), Code::NotReady);
    refused(cache.snapshot(), Code::NotReady);
    refused(cache.wait_ready(Duration::ZERO), Code::Timeout);
    let waits = {
        let cache = cache.clone();
        spawn(move || cache.wait_ready(BOUND).map(|()| cache.position().revision).unwrap())
    };
    writer.caught_up();
    assert!(waits.end() >= 103);
    write(&mut writer, [104]);
    // They begin where the cache became Ready, though they look only now.
    let then = "104 MODIFIED /k=104";
    assert_eq!(drain(&mut state), ["60 ADDED /a=1", "102 ADDED /k=102", "103 BOOKMARK", then]);
    assert_eq!(drain(&mut now), [then]);
    assert_eq!(revisions(&mut after), [101, 102, 104]);
    assert_eq!(waiter.poll().unwrap().unwrap().revision, 104);
    assert_eq!((cache.state(), cache.oldest()), (State::Ready, 101));
    writer.caught_up();
    assert_eq!(drain(&mut open(Start::Now)).len(), 0, "it does nothing to a Ready cache");
}

#[test]
fn errors_of_a_start_come_from_open() {
    let (cache, mut writer) = unloaded();
    writer.load(100, []).unwrap();
    compacted(cache.subscribe(Start::After(7)).open(), 7, 101, 100);
    let stats = cache.stats();
    assert_eq!(stats.subscriptions, 0, "one that did not open is not counted");
    cache.close();
    refused(cache.subscribe(Start::State).open(), Code::Closed);
}

/// The state is read at a fixed head, live events wait in the log: 10 events a page of 1000 objects.
#[test]
fn a_hundred_thousand_objects_arrive_while_events_come() {
    const OBJECTS: u64 = 100_000;
    let (cache, mut writer) = unloaded();
    let keys: Vec<String> = (0..OBJECTS).map(|key| format!("/{key:06}")).collect();
    writer.load(7, keys.iter().map(|key| record(key, "old", 5, 6, 2))).unwrap();
    let mut state = cache.subscribe(Start::State).open().unwrap();
    let (mut objects, mut revision) = (0, 7);
    let mark = loop {
        for _ in 0..10 {
            revision += 1;
            // Keys that were delivered, keys that were not, and new ones.
            let key = format!("/{:06}", revision * 7919 % (OBJECTS + 1000));
            writer.apply(revision, [Change::put(&key, "new")]).unwrap();
        }
        let batch = state.poll(1000).unwrap();
        let of_the_state = batch.events().iter().filter(|event| event.is_initial_state());
        assert!(of_the_state.clone().all(|event| event.value() == Some(b"old") && event.revision() == 6));
        objects += of_the_state.count() as u64;
        if let Some(mark) = batch.events().iter().find(|event| event.ends_initial_state()) {
            break mark.revision();
        }
    };
    assert_eq!((objects, mark), (OBJECTS, 7));
    assert!(revision >= 1000);
    assert_eq!(revisions(&mut state), (8..=revision).collect::<Vec<_>>());
}

/// The parameters of a Kubernetes watch as the contract translates them.
fn of_kubernetes(cache: &Cache, send_initial_events: Option<bool>, resource_version: &str) -> Start {
    let consistent = || cache.consistent_revision(BOUND).unwrap();
    let number = || resource_version.parse().unwrap();
    match (send_initial_events, resource_version) {
        (None, "" | "0") => Start::State,
        (None, _) => Start::After(number()),
        (Some(true), "") => Start::StateAtLeast(consistent()),
        (Some(true), "0") => Start::State,
        (Some(true), _) => Start::StateAtLeast(number()),
        (Some(false), "") => Start::After(consistent()),
        (Some(false), "0") => Start::Now,
        (Some(false), _) => Start::After(number()),
    }
}

#[test]
fn each_row_of_kubernetes_has_its_start() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [3, 5]);
    let whole = ["5 ADDED /k=5", "5 BOOKMARK", "8 MODIFIED /k=8"].as_slice();
    let rows: [(Option<bool>, &str, &[&str]); 8] = [
        (None, "", whole),
        (None, "0", whole),
        (None, "3", &["5 MODIFIED /k=5", "8 MODIFIED /k=8"]),
        (Some(true), "", whole),
        (Some(true), "0", whole),
        (Some(true), "4", whole),
        (Some(false), "", &["8 MODIFIED /k=8"]),
        (Some(false), "0", &["8 MODIFIED /k=8"]),
    ];
    let open = |initial, version| cache.subscribe(of_kubernetes(&cache, initial, version)).open().unwrap();
    // Those that begin at once hand out their state before the next event comes.
    let mut opened: Vec<_> = rows.iter().map(|(initial, version, must)| (open(*initial, version), *must)).collect();
    let mut later = open(Some(true), "8");
    let mut number = open(Some(false), "3");
    let mut seen: Vec<Vec<String>> = opened.iter_mut().map(|(subscription, _)| drain(subscription)).collect();
    assert_eq!(drain(&mut later), [""; 0], "it waits");
    write(&mut writer, [8]);
    for (((subscription, must), before), row) in opened.iter_mut().zip(&mut seen).zip(&rows) {
        before.extend(drain(subscription));
        assert_eq!(before, must, "{:?}", (row.0, row.1));
    }
    assert_eq!(drain(&mut later), ["8 ADDED /k=8", "8 BOOKMARK"]);
    assert_eq!(drain(&mut number), ["5 MODIFIED /k=5", "8 MODIFIED /k=8"]);
}
