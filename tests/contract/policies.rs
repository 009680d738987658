//! Section 6: what a subscription does when it has lost events.

use crate::tools::*;
use watchcore::*;

/// Nothing above a close by the owner was to be handed out, so nothing above it is reported as lost.
#[test]
fn loss_ends_at_the_close() {
    for (policy, start) in [OnLag::Stop, OnLag::SkipToOldest, OnLag::Resnapshot, OnLag::Conflate]
        .into_iter()
        .flat_map(|policy| [Start::Now, Start::State, Start::After(2)].map(|start| (policy, start)))
    {
        for after in [1, 100, 1000] {
            let (cache, mut writer) = tiny();
            writer.apply(1, [Change::put("/a", "1")]).unwrap();
            let mut one = cache.subscribe(start).on_lag(policy).open().unwrap();
            write(&mut writer, 2..=300);
            one.close();
            // A second close says nothing of where the first one was.
            write(&mut writer, 301..=300 + after);
            one.close();
            let first = if start == Start::Now {
                2
            } else if start == Start::State {
                1
            } else {
                3
            };
            let is_told = policy != OnLag::Conflate || after == 1000 || start == Start::After(2);
            if is_told {
                let error = refused(one.poll(10), Code::Lagged);
                let whole = start == Start::State || cache.oldest() > 300;
                let to = if whole { 300 } else { cache.oldest() - 1 };
                assert_eq!((error.lost_from(), error.lost_to()), (first, to), "{policy}, {start:?}, {after}");
            }
            let rest = drain(&mut one);
            assert_eq!(rest.last().map(String::as_str), Some("CLOSED"), "{rest:?}");
            assert!(one.position().revision <= 300, "{policy}, {start:?}, {after}: {:?}", one.position());
        }
    }
}

#[test]
fn collected_links_take_at_most_8_kib_a_subscription() {
    let cache = Cache::builder("/").index(Index::key()).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut one = cache.subscribe(Start::Now).key("/k").open().unwrap();
    let put = |writer: &mut Writer, revision| writer.apply(revision, [Change::put("/k", "v")]).unwrap();
    // The first revision makes the bucket.
    put(&mut writer, 1);
    assert_eq!(one.poll(10).unwrap().len(), 1);
    (2..=1001).for_each(|revision| put(&mut writer, revision));
    assert_eq!(one.poll(10).unwrap().len(), 10);
    assert_eq!(one.stats().read_path, ReadPath::Chain { index: "key".into() });
    let bytes = cache.stats().link_bytes;
    assert!((990 * 8..=8192).contains(&bytes), "{bytes}");
    while !one.poll(100).unwrap().is_empty() {}
    assert_eq!(cache.stats().link_bytes, 0);
    (1002..=1100).for_each(|revision| put(&mut writer, revision));
    assert_eq!(one.poll(10).unwrap().len(), 10);
    assert!(cache.stats().link_bytes > 0);
    drop(one);
    assert_eq!(cache.stats().link_bytes, 0);
}

#[test]
fn what_was_shown_takes_at_most_32_bytes_a_key() {
    const KEYS: u64 = 10_000;
    let (cache, mut writer) = embedded();
    let keys: Vec<String> = (0..KEYS).map(|key| format!("/some/longer/path/of/a/key/{key:06}")).collect();
    writer.apply(1, keys.iter().map(|key| Change::put(key, "v"))).unwrap();
    for policy in [OnLag::Resnapshot, OnLag::Conflate] {
        let mut whole = cache.subscribe(Start::State).on_lag(policy).open().unwrap();
        while whole.position() != cache.position() {
            whole.poll(1000).unwrap();
        }
        let now = cache.subscribe(Start::Now).on_lag(policy).open().unwrap();
        for subscription in [&whole, &now] {
            let stats = subscription.stats();
            assert_eq!(stats.delivered_keys, KEYS);
            assert!(stats.delivered_bytes <= 32 * KEYS, "{stats:?}");
        }
        // The cache's own statistics have the sum.
        let sum = whole.stats().delivered_bytes + now.stats().delivered_bytes;
        assert_eq!(cache.stats().delivered_bytes, sum);
        drop(whole);
        assert_eq!(cache.stats().delivered_bytes, now.stats().delivered_bytes);
    }
    assert_eq!(cache.stats().delivered_bytes, 0);
    let stops = cache.subscribe(Start::Now).open().unwrap().stats();
    assert_eq!((stops.delivered_keys, stops.delivered_bytes), (0, 0));
}

#[test]
fn a_difference_that_is_overtaken_again_and_again_tells_nothing_twice() {
    use std::collections::BTreeMap;
    for policy in [OnLag::Resnapshot, OnLag::Conflate] {
        let (cache, mut writer) = tiny();
        let keys: Vec<String> = (0..8).map(|key| format!("/{key}")).collect();
        writer.apply(1, keys.iter().map(|key| Change::put(key, "1"))).unwrap();
        let mut subscription = cache.subscribe(Start::State).on_lag(policy).open().unwrap();
        let mut held: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        let mut take = |batch: &Batch| {
            for event in batch.events().iter().filter(|event| event.kv().is_some()) {
                let before = held.insert(event.key().to_vec(), event.mod_revision());
                assert_eq!(before.is_some(), event.kind() == Kind::Modified, "{event:?}");
                assert!(before.is_none_or(|before| before < event.mod_revision()), "{policy:?} again: {event:?}");
            }
            held.len()
        };
        while !subscription.position().eq(&cache.position()) {
            take(&subscription.poll(100).unwrap());
        }
        let mut revision = 1;
        for round in 0..6usize {
            // All change once, then one of them until the window has turned over.
            for change in 0..500 {
                revision += 1;
                let key = if change < 8 && round == 0 { change } else { round };
                writer.apply(revision, [Change::put(&keys[key], "v")]).unwrap();
            }
            let mut left = 1 + round % 3;
            while left > 0 {
                match subscription.poll(1) {
                    Ok(batch) => {
                        left -= usize::from(batch.events().iter().any(|event| event.kv().is_some()));
                        take(&batch);
                    }
                    Err(error) => assert_eq!(error.code(), Code::Lagged),
                }
            }
        }
        while subscription.position() != cache.position() {
            take(&subscription.poll(3).unwrap());
        }
        let now: Vec<(Vec<u8>, u64)> =
            cache.snapshot().unwrap().iter().map(|kv| (kv.key().to_vec(), kv.mod_revision())).collect();
        assert_eq!(held.into_iter().collect::<Vec<_>>(), now, "{policy:?}");
    }
}

/// A difference that is overtaken continues after its BEGIN, at a newer state: one LAGGED, one BEGIN, one
/// END, and the replayed state is that of the END.
#[test]
fn overtaken_difference_begins_once() {
    let (cache, mut writer) = tiny();
    let keys: Vec<String> = (0..40).map(|number| format!("/{number:02}")).collect();
    let mut revision = 0;
    for key in &keys {
        revision += 1;
        writer.apply(revision, [Change::put(key, "old")]).unwrap();
    }
    let mut one = cache.subscribe(Start::State).on_lag(OnLag::Resnapshot).open().unwrap();
    assert_eq!(drain(&mut one).len(), 41);
    let lap = |writer: &mut Writer, revision: &mut u64, value: &str| {
        for at in 0..300 {
            *revision += 1;
            writer.apply(*revision, [Change::put(&keys[at % 20], value)]).unwrap();
        }
    };
    lap(&mut writer, &mut revision, "first");
    refused(one.poll(4), Code::Lagged);
    let first = one.poll(4).unwrap();
    assert!(first.events()[0].resync().is_some_and(|mark| mark.phase == Phase::Begin && mark.from == 40));
    let mut marks = vec![first.events()[0].resync().unwrap()];
    let mut seen = first.len();
    lap(&mut writer, &mut revision, "second");
    loop {
        let batch = one.poll(4).expect("LAGGED is reported once");
        seen += batch.len();
        marks.extend(batch.into_iter().filter_map(Event::resync));
        if batch.is_empty() {
            break;
        }
    }
    let phases: Vec<_> = marks.iter().map(|mark| (mark.phase, mark.from)).collect();
    assert_eq!(phases, [(Phase::Begin, 40), (Phase::End, 40)]);
    assert_eq!((marks[0].to, marks[1].to), (340, 640), "the END carries what was reached");
    assert!(seen <= 2 + 20 + 4, "only what changed, and what was delivered before it changed again: {seen}");
    assert_eq!(one.position().revision, 640);
}

/// Closed by its owner while it lags: a difference leads to the state at the close, or says that this has left.
#[test]
fn difference_after_a_close_ends_there() {
    for policy in [OnLag::Resnapshot, OnLag::Conflate] {
        for after in [5, 1000] {
            let (cache, mut writer) = tiny();
            writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")]).unwrap();
            let mut one = cache.subscribe(Start::State).on_lag(policy).open().unwrap();
            assert_eq!(drain(&mut one).len(), 3);
            writer.apply(2, [Change::put("/a", "2"), Change::delete("/b")]).unwrap();
            write(&mut writer, 3..=300);
            one.close();
            (301..=300 + after).for_each(|revision| {
                writer.apply(revision, [Change::put("/after", "x"), Change::put("/a", "after")]).unwrap();
            });
            let mut told = drain(&mut one);
            if after == 1000 {
                assert_eq!(told, ["LAGGED"], "{policy:?}");
                refused(one.poll(10), Code::Closed);
                assert_eq!(one.position().revision, 1);
                continue;
            }
            if policy == OnLag::Resnapshot {
                assert_eq!(told, ["LAGGED"]);
                told = drain(&mut one).into_iter().filter(|line| !line.contains("RESYNC")).collect();
            }
            assert_eq!(told, ["300 DELETED", "300 MODIFIED /a=2", "300 ADDED /k=300", "CLOSED"], "{policy:?}");
            assert_eq!(one.position().revision, 300);
        }
        // The same in an initial state, and at the listing, below which there is no event.
        let (cache, mut writer) = tiny();
        let mut one = cache.subscribe(Start::State).on_lag(policy).open().unwrap();
        one.close();
        write(&mut writer, 1..=1000);
        assert_eq!(in_time(|| drain(&mut one)), ["LAGGED"]);
        refused(one.poll(10), Code::Closed);
    }
}

/// A difference is one revision, and whole where that was asked for, however often it is overtaken.
#[test]
fn whole_difference_is_one_batch() {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::sync::{Arc, Mutex};
    const KEYS: usize = 2100;
    for policy in [OnLag::Resnapshot, OnLag::Conflate] {
        let (cache, writer) = tiny();
        let writer = Arc::new(Mutex::new(writer));
        let keys: Vec<String> = (0..KEYS).map(|key| format!("/{key:04}")).collect();
        writer.lock().unwrap().apply(1, keys.iter().map(|key| Change::put(key, "1"))).unwrap();
        let lap = move |cache: &Cache, writer: &mut Writer| {
            let last = cache.position().revision;
            (last + 1..=last + 150).for_each(|revision| {
                writer.apply(revision, [Change::put("/0001", &revision.to_string())]).unwrap();
            });
        };
        // Every now and then a predicate's call takes as long as a window.
        let calls = Arc::new(AtomicU64::new(0));
        let (counted, slow, own) = (calls.clone(), writer.clone(), cache.clone());
        let filter = Filter::any().predicate(move |_| {
            let call = counted.fetch_add(1, Relaxed);
            if call >= 1 << 32 && call % 700 == 0 {
                lap(&own, &mut slow.lock().unwrap());
            }
            true
        });
        let options = cache.subscribe(Start::State).whole_revisions(true).on_lag(policy);
        let mut one = options.filter(filter).open().unwrap();
        assert_eq!(drain(&mut one).len(), KEYS + 1);
        writer.lock().unwrap().apply(2, [Change::delete("/0000"), Change::put("/2099", "2")]).unwrap();
        lap(&cache, &mut writer.lock().unwrap());
        if policy == OnLag::Resnapshot {
            refused(one.poll(1024), Code::Lagged);
        }
        calls.store(1 << 32, Relaxed);
        let batch = one.poll(1024).unwrap();
        let revision = batch.position().revision;
        assert!(!batch.continues() && revision > 302, "{policy:?}: {batch:?}");
        let lines = lines(&batch);
        let changes: Vec<_> = lines.iter().filter(|line| !line.contains("RESYNC")).collect();
        assert!(lines.iter().all(|line| line.starts_with(&format!("{revision} "))), "{policy:?}: {lines:?}");
        let changed = format!("{revision} MODIFIED /0001={revision}");
        let last = format!("{revision} MODIFIED /2099=2");
        assert_eq!(changes, [&format!("{revision} DELETED"), &changed, &last]);
        assert_eq!((lines.len(), one.stats().lagged), (3 + 2 * usize::from(policy == OnLag::Resnapshot), 1));
    }
}
