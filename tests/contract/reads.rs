//! Section 5: reads at any, at least and exactly; snapshots; status.

use crate::tools::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use watchcore::*;

#[test]
fn what_a_read_hands_out_stays_when_the_cache_is_gone() {
    let (cache, mut writer) = embedded();
    writer.apply(1, [Change::put("/a", "1")]).unwrap();
    let page = cache.list(&Range::all(), Read::Any, 0).unwrap();
    let batch = cache.subscribe(Start::State).open().unwrap().poll(16).unwrap();
    writer.apply(2, [Change::put("/a", "2")]).unwrap();
    drop((writer, cache));
    assert_eq!((page.items()[0].value(), batch.events()[0].value()), (Some(&b"1"[..]), Some(&b"1"[..])));
}

/// Keys that the index got later, where a snapshot may meet them, and that were forgotten since.
#[test]
fn a_snapshot_passes_over_keys_that_came_and_went() {
    let (cache, mut writer) = tiny();
    writer.apply(1, [Change::put("/a", "1"), Change::put("/m", "1")]).unwrap();
    let snapshot = cache.snapshot().unwrap();
    let mut revision = 1;
    for round in 0..300 {
        let key = format!("/a{:02}", round % 50);
        writer.apply(revision + 1, [Change::put(&key, "late")]).unwrap();
        writer.apply(revision + 2, [Change::delete(&key)]).unwrap();
        revision += 2;
        let seen: Vec<String> = snapshot.iter().map(|kv| text(kv.key())).collect();
        assert_eq!(seen, ["/a", "/m"], "at revision {revision}");
    }
    for _ in 0..300 {
        revision += 1;
        writer.apply(revision, [Change::put("/m", "later")]).unwrap();
    }
    assert_eq!(cache.stats().tombstones, 0, "the test's own premise");
    // Once the reclaimer has freed what it may.
    let until = std::time::Instant::now() + BOUND;
    while cache.stats().unfreed_bytes > 0 {
        assert!(std::time::Instant::now() < until, "{:?}", cache.stats());
        std::thread::yield_now();
    }
    assert_eq!((snapshot.len(), snapshot.prefix("/a").count()), (2, 1));
    assert!((0..50).all(|key| snapshot.get(format!("/a{key:02}")).is_none()));
    assert_eq!(snapshot.get("/m").unwrap().value(), Some(&b"1"[..]));
    assert_eq!(cache.snapshot().unwrap().len(), 2);
}

#[test]
fn a_failed_source_is_what_reads_answer_before_the_listing() {
    let (cache, mut writer) = unloaded();
    let mut early = cache.subscribe(Start::State).open().unwrap();
    let denied = || Error::new(Code::PermissionDenied, "no right to read /");
    writer.set_state(SourceState::Failed(denied()));
    assert_eq!(cache.status().state, State::Failed);
    assert_eq!(cache.status().last_error.unwrap().code(), Code::PermissionDenied);
    refused(cache.get("/a", Read::Any), Code::PermissionDenied);
    refused(cache.snapshot(), Code::PermissionDenied);
    refused(in_time(|| cache.wait_ready(BOUND)), Code::PermissionDenied);
    refused(early.poll(1), Code::PermissionDenied);
    // Stale: a reader that asks continues to wait, and gets the reason.
    writer.set_state(SourceState::Stale(Error::new(Code::Unavailable, "out of reach")));
    let error = refused(cache.get("/a", Read::Any), Code::NotReady);
    assert!(error.message().contains("out of reach"), "{error}");
    refused(cache.wait_ready(Duration::ZERO), Code::Timeout);
    assert!(cache.wait_ready(Duration::ZERO).unwrap_err().message().contains("out of reach"));
    // The source is back, and the listing still to come: the failure is the reason of nothing any more.
    writer.set_state(SourceState::Fresh);
    assert_eq!(cache.status().last_error.unwrap().message(), "out of reach", "the status has the last one");
    for error in [refused(cache.get("/a", Read::Any), Code::NotReady), cache.wait_ready(Duration::ZERO).unwrap_err()] {
        assert!(!error.message().contains("out of reach"), "{error}");
    }
}

#[test]
fn status_says_how_fresh_the_cache_is() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [3]);
    let status = cache.status();
    assert_eq!((status.state, status.position, status.oldest, status.objects), (State::Ready, cache.position(), 1, 1));
    assert!(status.bytes > 0 && status.last_error.is_none());
    let before = std::time::SystemTime::now() - Duration::from_secs(3600);
    writer.set_state(SourceState::Stale(Error::new(Code::Unavailable, "gone")));
    let State::Stale { since } = cache.status().state else { panic!("{:?}", cache.status()) };
    assert!(since > before);
    writer.set_state(SourceState::Stale(Error::new(Code::Unavailable, "gone again")));
    assert_eq!(cache.status().state, State::Stale { since }, "since the first time");
    // Reads continue.
    assert_eq!(value_at(&cache, "/k", Read::Any).unwrap().unwrap(), "3");
    writer.set_state(SourceState::Failed(Error::new(Code::Unauthenticated, "who?")));
    assert_eq!(cache.status().state, State::Failed);
    assert_eq!(value_at(&cache, "/k", Read::Any).unwrap().unwrap(), "3");
    writer.set_state(SourceState::Fresh);
    assert_eq!(cache.status().state, State::Ready);
    cache.close();
    assert_eq!(cache.status().state, State::Closed);
}

#[test]
fn a_closed_cache_still_answers_what_it_knows() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [3]);
    let (mut idle, mut behind) =
        (cache.subscribe(Start::Now).open().unwrap(), cache.subscribe(Start::After(0)).open().unwrap());
    cache.close();
    cache.close();
    refused(idle.poll(1), Code::Closed);
    // What was published before is handed out, then CLOSED, and again.
    assert_eq!(drain(&mut behind), ["3 ADDED /k=3", "CLOSED"]);
    refused(behind.poll(1), Code::Closed);
    refused(behind.wait(BOUND), Code::Closed);
    assert!(in_time(|| behind.next_batch()).unwrap().is_none());
    assert_eq!(behind.position().revision, 3);
    assert_eq!(value_at(&cache, "/k", Read::Any).unwrap().unwrap(), "3");
    assert_eq!(cache.snapshot().unwrap().len(), 1);
    refused(in_time(|| cache.get_with("/k", &ReadOptions::new(Read::AtLeast(4)).timeout(Duration::MAX))), Code::Closed);
    refused(in_time(|| cache.wait_until(4, Duration::MAX)), Code::Closed);
    refused(writer.apply(4, [Change::put("/k", "4")]), Code::Closed);
    refused(writer.progress(4), Code::Closed);
    refused(writer.compact(3), Code::Closed);
    refused(writer.resync(9, [], ResyncReason::Compacted), Code::Closed);
    drop(writer);
    refused(cache.writer().map(|_| ()), Code::Closed);
}

#[test]
fn the_last_handle_closes_the_cache() {
    let (cache, mut writer) = embedded();
    let other = cache.clone();
    let (snapshot, _waiter) = (cache.snapshot().unwrap(), cache.waiter(Want::Revision(9)).unwrap());
    drop(cache);
    write(&mut writer, [1]);
    drop(other);
    assert!(writer.is_closed());
    assert!(snapshot.is_empty());
}

#[test]
fn subscription_keeps_its_cache_open() {
    let (cache, mut writer) = embedded();
    let mut live = cache.subscribe(Start::Now).open().unwrap();
    let mut other = cache.subscribe(Start::Now).open().unwrap();
    let closer = live.closer();
    drop(cache);
    write(&mut writer, [1]);
    assert_eq!(drain(&mut live), ["1 ADDED /k=1"]);
    // One that was closed keeps nothing open once it has said so; the last one that goes closes the cache.
    closer.close();
    assert_eq!(drain(&mut live), ["CLOSED"]);
    write(&mut writer, [2]);
    assert_eq!(drain(&mut other), ["1 ADDED /k=1", "2 MODIFIED /k=2"]);
    assert!(!writer.is_closed());
    drop(other);
    assert!(writer.is_closed());
    drop((live, closer));
}

#[test]
fn close_ends_subscriptions_of_dropped_handles() {
    let (cache, mut writer) = embedded();
    let mut live = cache.subscribe(Start::Now).open().unwrap();
    write(&mut writer, [1]);
    cache.close();
    drop(cache);
    assert_eq!(drain(&mut live), ["1 ADDED /k=1", "CLOSED"]);
}

#[test]
fn exact_reads_at_the_edge_of_the_window_are_exact_or_compacted() {
    let (cache, mut writer) = tiny();
    write(&mut writer, 1..=500);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let writes = spawn(move || {
        let mut revision = 500;
        while !stopped.load(SeqCst) {
            write(&mut writer, revision + 1..=revision + 100);
            revision += 100;
        }
    });
    for look in 0..20_000 {
        let at = cache.oldest() - 1 + look % 2;
        match value_at(&cache, "/k", Read::Exact(at)) {
            Ok(value) => assert_eq!(value, Some(at.to_string())),
            Err(error) => assert_eq!(error.code(), Code::Compacted, "{error}"),
        }
    }
    stop.store(true, SeqCst);
    writes.end();
}

#[test]
fn reads_of_everything_end_however_fast_the_writer_is() {
    let (cache, mut writer) = tiny();
    let keys: Vec<String> = (0..20_000).map(|key| format!("/many/{key:05}")).collect();
    writer.apply(1, keys.iter().map(|key| Change::put(key, "x"))).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let writes = spawn(move || {
        let mut revision = 1;
        while !stopped.load(SeqCst) {
            revision += 1;
            write(&mut writer, [revision]);
        }
    });
    for _ in 0..3 {
        let page = in_time(|| cache.list(&Range::prefix("/many/"), Read::Any, 0)).unwrap();
        assert_eq!(page.len(), 20_000);
        assert_eq!(in_time(|| cache.count(&Range::prefix("/many/"), Read::Any)).unwrap().count, 20_000);
        let now = cache.subscribe(Start::Now).prefix("/many/").on_lag(OnLag::Conflate);
        assert_eq!(in_time(|| now.open()).unwrap().stats().delivered_keys, 20_000);
    }
    stop.store(true, SeqCst);
    writes.end();
}

/// More keys than are read under one pin, of which each revision adds or deletes one: the window moves on between two pins,
/// and keys leave the table and come back.
#[test]
fn many_keys_are_of_one_revision_beside_a_writer() {
    const COUNT: u64 = 3000;
    let (cache, mut writer) = tiny();
    let keys: Vec<String> = (0..COUNT).map(|key| format!("/many/{key:04}")).collect();
    let (all, stop) = (keys.clone(), Arc::new(AtomicBool::new(false)));
    let stopped = stop.clone();
    let writes = spawn(move || {
        let mut revision = 0;
        while !stopped.load(SeqCst) {
            let (key, is_put) = (&all[(revision % COUNT) as usize], (revision / COUNT).is_multiple_of(2));
            revision += 1;
            let value = revision.to_string();
            writer.apply(revision, [if is_put { Change::put(key, &value) } else { Change::delete(key) }]).unwrap();
        }
    });
    // The revision of the value that a key has; none where it was deleted, or never there.
    let last = |key: u64, now: u64| {
        let rounds = now.checked_sub(key + 1)? / COUNT;
        rounds.is_multiple_of(2).then_some(key + 1 + rounds * COUNT)
    };
    let assert_at = |now: u64, kvs: &[Option<&KeyValue>]| {
        for (key, kv) in kvs.iter().enumerate() {
            let value = kv.map(|kv| text(kv.value().unwrap()));
            assert_eq!(value, last(key as u64, now).map(|last| last.to_string()), "key {key} at {now}");
        }
    };
    let mut early = cache.snapshot().unwrap();
    let until = std::time::Instant::now() + BOUND;
    while early.revision() < 10 * COUNT {
        assert!(std::time::Instant::now() < until, "at {}", early.revision());
        let answers = in_time(|| cache.get_many(&keys, Read::Any)).unwrap();
        assert_at(answers.revision, &answers.kvs.iter().map(Option::as_ref).collect::<Vec<_>>());
        let (now, before) = (cache.snapshot().unwrap(), early);
        for snapshot in [&now, &before] {
            let kvs = snapshot.get_many(&keys);
            assert_at(snapshot.revision(), &kvs.iter().map(Option::as_deref).collect::<Vec<_>>());
        }
        early = now;
    }
    stop.store(true, SeqCst);
    writes.end();
}

#[test]
fn a_message_shows_the_beginning_of_a_long_key() {
    let (cache, _writer) = embedded();
    let error = refused(cache.get(vec![0xff; 1 << 20], Read::Any), Code::InvalidArgument);
    assert!(error.message().len() < 1000, "{}", error.message().len());
    let filter = Filter::any().fields(format!("{}=1", "x".repeat(1 << 20))).unwrap();
    let error = refused(cache.subscribe(Start::Now).filter(filter).open(), Code::InvalidArgument);
    assert!(error.message().len() < 1000, "{}", error.message().len());
}
