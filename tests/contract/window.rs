//! How large the window is: by events, by bytes, by age.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use watchcore::raw::TestBuilder as _;
use watchcore::{Cache, Change, ResyncReason, Writer};

/// What `Builder::capacity` guarantees: 7/8 of it, less one segment, which is an eighth of it at most.
const GUARANTEED: u64 = 2048 / 8 * 7 - 2048 / 8;

fn put(writer: &mut Writer, revision: u64) {
    writer.apply(revision, [Change::put("/k", "value")]).unwrap();
}

/// Between the lower and the upper figure the window holds what the age asks for, and shrinks again.
#[test]
fn window_keeps_what_the_age_asks_for() {
    let now = Arc::new(AtomicU64::new(0));
    let age = Duration::from_secs(75);
    let builder = Cache::builder("/").capacity(4096).segment_slots(64).keep(512, age).log_clock(now.clone());
    let cache = builder.build().unwrap();
    let mut writer = cache.writer().unwrap();
    let window = |cache: &Cache, revision: u64| revision + 1 - cache.oldest();
    let mut revision = 0;
    // One event a second: 75 of them are fewer than have to stay.
    for _ in 0..2000 {
        now.fetch_add(1000, Relaxed);
        revision += 1;
        put(&mut writer, revision);
        assert!((512.min(revision)..=512 + 64).contains(&window(&cache, revision)), "{}", window(&cache, revision));
    }
    // Twenty a second: 75 seconds are 1500 events, which takes more than the lower figure.
    for step in 0..5000u64 {
        now.fetch_add(50, Relaxed);
        revision += 1;
        put(&mut writer, revision);
        let held = window(&cache, revision);
        assert!(held <= 1500 + 128, "{held} at {step}");
        assert!(step < 1500 || held >= 1500, "{held} at {step}: all of the last 75 seconds");
        assert!(step < 1500 || cache.status().window_age >= age);
    }
    // A thousand a second: the upper figure holds.
    for _ in 0..20_000 {
        now.fetch_add(1, Relaxed);
        revision += 1;
        put(&mut writer, revision);
        assert!(window(&cache, revision) <= 4096);
    }
    assert!(window(&cache, revision) > 4096 - 128);
    assert!(cache.status().window_age < age);
    // It goes quiet: progress lets the window shrink to the lower figure.
    now.fetch_add(75_000, Relaxed);
    for _ in 0..100 {
        revision += 1;
        writer.progress(revision).unwrap();
    }
    let segments = cache.stats().window_segments;
    assert!((512 / 64..=512 / 64 + 2).contains(&segments), "{segments} segments");
}

/// What `keep` lets stay is counted in events, also where each segment closes early for its bytes.
#[test]
fn window_keeps_the_events_that_were_asked_for() {
    let now = Arc::new(AtomicU64::new(0));
    let builder = Cache::builder("/").capacity_bytes(8 << 20).keep(1000, Duration::from_secs(75));
    let cache = builder.log_clock(now.clone()).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let value = vec![7; 4000];
    for revision in 1..=1500u64 {
        now.fetch_add(1000, Relaxed);
        writer.apply(revision, [Change::put("/k", &value)]).unwrap();
        let (held, stats) = (revision + 1 - cache.oldest(), cache.stats());
        assert!(held >= revision.min(1000), "{held} events of {revision}: {stats:?}");
        // And no more than a segment on top: one closes with four times its empty arrays, so with 49 of these.
        assert!(held <= 1000 + 2 * 49, "{held} events of {revision}: {stats:?}");
    }
}

#[test]
fn without_an_age_the_window_fills_its_capacity() {
    let now = Arc::new(AtomicU64::new(0));
    let cache = Cache::builder("/").capacity(1024).segment_slots(64).log_clock(now.clone()).build().unwrap();
    let mut writer = cache.writer().unwrap();
    for revision in 1..=1024 {
        now.fetch_add(3_600_000, Relaxed);
        put(&mut writer, revision);
    }
    assert_eq!(cache.oldest(), 1);
}

/// Bytes of a segment are never so few that each event closes one.
#[test]
fn small_bytes_beside_many_events_close_no_segment_early() {
    let cache = Cache::builder("/").capacity(1 << 32).capacity_bytes(1 << 16).build().unwrap();
    let mut writer = cache.writer().unwrap();
    for revision in 1..=1000 {
        put(&mut writer, revision);
    }
    let stats = cache.stats();
    assert!(stats.window_segments * 8 <= 1001 - cache.oldest(), "{stats:?}, oldest {}", cache.oldest());
    assert!(stats.window_bytes <= 1 << 16, "{stats:?}");
}

/// A segment that its bytes close early takes no more of the window than its events: where neither the events nor the
/// bytes are used up, nothing leaves. Large values, small ones, and both in turns, under half of the bytes.
#[test]
fn early_closed_segments_cost_no_events() {
    let (large, small) = (vec![7; 3500], vec![7; 8]);
    let mixes: [fn(u64) -> bool; 3] = [|_| true, |revision| revision / 512 % 2 == 0, |revision| revision % 700 < 70];
    for (mix, is_large) in mixes.iter().enumerate() {
        let cache = Cache::builder("/").capacity(2048).capacity_bytes(16 << 20).build().unwrap();
        let mut writer = cache.writer().unwrap();
        for revision in 1..=6000 {
            let value = if is_large(revision) { &large } else { &small };
            writer.apply(revision, [Change::put("/k", value)]).unwrap();
            let (held, stats) = (revision + 1 - cache.oldest(), cache.stats());
            assert!(held >= GUARANTEED.min(revision), "mix {mix}: {held} events of {revision}, {stats:?}");
            assert!(held <= 2048 && stats.window_bytes <= 16 << 20, "mix {mix}: {held} events, {stats:?}");
        }
    }
}

/// The same where segments end early because the next revision would straddle: the capacity is none of a power of two.
#[test]
fn guarantee_holds_for_any_capacity() {
    for capacity in [128, 160, 1000, 2000, 2047] {
        let cache = Cache::builder("/").capacity(capacity).build().unwrap();
        let mut writer = cache.writer().unwrap();
        let segment = 1u64 << (capacity as u64 / 8).ilog2();
        let keys: Vec<String> = (0..segment / 8).map(|key| format!("/{key}")).collect();
        let mut sizes = vec![0u64];
        for revision in 1..=400 {
            // One event, then all but full eighths: each segment ends with most of an eighth free.
            let count = if revision % 8 == 1 { 1 } else { keys.len() };
            writer.apply(revision, keys[..count].iter().map(|key| Change::put(key, "v"))).unwrap();
            sizes.push(count as u64);
            let held: u64 = sizes[cache.oldest() as usize..].iter().sum();
            let least = (capacity as u64 * 7 / 8 - segment).min(sizes.iter().sum());
            assert!(held >= least, "capacity {capacity}, revision {revision}: {held} of {least} events");
            assert!(held <= capacity as u64, "capacity {capacity}, revision {revision}: {held} events");
        }
    }
}

/// A resync counts with its two events, and goes with them.
#[test]
fn resyncs_count_as_the_windows() {
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    let empty = cache.stats().window_bytes;
    for revision in 1..=200 {
        writer.resync(revision, [], ResyncReason::Requested).unwrap();
    }
    let stats = cache.stats();
    // An epoch takes some hundred bytes. The slots of the segment are counted from its begin on.
    assert!(stats.window_bytes >= empty + 200 * 100, "{empty} empty, {stats:?}");
    assert!(stats.bytes() >= stats.window_bytes);
}
