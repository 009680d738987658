//! What the allocator counts against what `stats()` says, and against the bound of the contract.

use crate::heap::{alone, held};
use std::cell::Cell;
use std::time::{Duration, Instant};
use watchcore::{Cache, Change, Kind, Range, Read, Record, ResyncReason, Snapshot, Start, Subscription, Writer};

/// A dropped cache may be with the notifier for a moment.
fn all_gone() {
    let until = Instant::now() + Duration::from_secs(60);
    while watchcore::raw::living_caches() > 0 {
        assert!(Instant::now() < until, "a dropped cache is held");
        std::thread::yield_now();
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("/registry/pods/namespace-{:03}/pod-{number:08}", number % 97).into_bytes()
}

fn value(number: u64, revision: u64) -> Vec<u8> {
    vec![b'v'; 40 + (number * 31 + revision * 17) as usize % 400]
}

struct Harness {
    cache: Cache,
    writer: Writer,
    base: i64,
}

impl Harness {
    fn new(base: i64, capacity: usize, bytes: u64) -> Harness {
        let cache = Cache::builder("/").capacity(capacity).capacity_bytes(bytes).expect_load(true).build().unwrap();
        let writer = cache.writer().unwrap();
        Harness { cache, writer, base }
    }

    fn load(&mut self, keys: u64) {
        let all: Vec<(Vec<u8>, Vec<u8>)> = (0..keys).map(|number| (key(number), value(number, 0))).collect();
        let records = all.iter().map(|(key, value)| Record {
            key,
            value,
            create_revision: 1,
            mod_revision: 1,
            version: 1,
            lease: 0,
        });
        self.writer.load(1, records).unwrap();
    }

    fn put(&mut self, number: u64) {
        let revision = self.writer.position().revision + 1;
        self.writer.apply(revision, [Change::put(&key(number), &value(number, revision))]).unwrap();
    }

    fn delete(&mut self, number: u64) {
        let revision = self.writer.position().revision + 1;
        self.writer.apply(revision, [Change::delete(&key(number))]).unwrap();
    }

    /// `stats()` is within 5 % of what the allocator counts.
    fn agrees(&self, when: &str) -> i64 {
        let real = held() - self.base;
        let stats = self.cache.stats();
        let said = stats.bytes() as i64;
        let off = (said - real).abs() as f64 / real as f64;
        println!("{when}: allocated {real}, stats {said} ({:.1} %), {stats:?}", off * 100.0);
        assert!(off <= 0.05, "{when}: allocated {real}, stats() says {said}, off by {:.1} %", off * 100.0);
        real
    }

    fn drain(&self, subscription: &mut Subscription) -> usize {
        let mut events = 0;
        loop {
            let batch = subscription.poll(1024).unwrap();
            if batch.is_empty() {
                return events;
            }
            events += batch.len();
        }
    }
}

#[test]
fn stats_agree_with_the_allocator_and_the_bound_holds() {
    let _alone = alone();
    // The threads, the collector and the lazily made tables first.
    {
        let mut warm = Harness::new(0, 1024, 1 << 20);
        warm.load(100);
        let mut subscription = warm.cache.subscribe(Start::State).open().unwrap();
        (0..3000).for_each(|number| warm.put(number % 150));
        let _ = subscription.poll(10);
        let _ = warm.cache.snapshot().unwrap();
    }
    all_gone();
    let base = held();

    let keys = 30_000;
    let (capacity, capacity_bytes) = (16_384, 8 << 20);
    let mut harness = Harness::new(base, capacity, capacity_bytes);
    harness.load(keys);
    let live = harness.agrees("after the listing");

    // The window fills and turns over: slots, then bytes, are the limit.
    let mut in_flight = 0;
    for number in 0..60_000 {
        harness.put(number * 7919 % keys);
        in_flight = in_flight.max(harness.cache.stats().unfreed_bytes as i64);
    }
    let full = harness.agrees("after overwrites");
    let largest = 512 + 400;
    let log = capacity_bytes as i64 + capacity as i64 * 64;
    // The writer keeps for itself what was on its way to the reclaimer.
    let most = live * 11 / 10 + log + largest + in_flight;
    assert!(full <= most, "live {live}, log at most {log}, in flight {in_flight}, held {full}");
    assert!(harness.cache.stats().log_bytes as i64 <= log, "{:?}", harness.cache.stats());

    // New keys, deletes, tombstones that are purged, keys that come again.
    (keys..keys + 20_000).for_each(|number| harness.put(number));
    harness.agrees("after new keys");
    (0..25_000).for_each(|number| harness.delete(number));
    harness.agrees("after deletes");
    (keys..keys + 40_000).for_each(|number| harness.put(keys + number % 20_000));
    assert!(harness.cache.stats().tombstones < 100, "{:?}", harness.cache.stats());
    harness.agrees("after tombstones were purged");
    (0..25_000).for_each(|number| harness.put(number));
    harness.agrees("after they came again");

    // A held snapshot pins what was written since; it is seen, and it ends.
    let snapshot: Snapshot = harness.cache.snapshot().unwrap();
    let shown: Vec<(Vec<u8>, u64)> = snapshot.iter().map(|kv| (kv.key().to_vec(), kv.mod_revision())).collect();
    (0..60_000).for_each(|number| harness.put(number * 31 % keys));
    let delivered_bytes: i64 =
        shown.iter().map(|(key, _)| key.capacity() as i64).sum::<i64>() + shown.capacity() as i64 * 32;
    harness.base += delivered_bytes;
    harness.agrees("with a held snapshot");
    assert!(harness.cache.stats().segments > harness.cache.stats().window_segments);
    let until = Instant::now() + Duration::from_secs(60);
    while harness.cache.stats().oldest_snapshot.is_zero() {
        assert!(Instant::now() < until, "the snapshot has no age");
        std::thread::yield_now();
    }
    let again: Vec<(Vec<u8>, u64)> = snapshot.iter().map(|kv| (kv.key().to_vec(), kv.mod_revision())).collect();
    assert!(again == shown, "a snapshot changed");
    drop(again);
    drop(snapshot);
    held();
    let stats = harness.cache.stats();
    assert_eq!((stats.segments, stats.oldest_snapshot), (stats.window_segments, Duration::ZERO), "{stats:?}");
    harness.agrees("after the snapshot");

    // Batches: views keep their segment, filtered ones at most four.
    let mut plain = harness.cache.subscribe(Start::Now).open().unwrap();
    let mut one = harness.cache.subscribe(Start::Now).prefix("/registry/pods/namespace-003/").open().unwrap();
    let mut kept = Vec::new();
    for round in 0..40 {
        (0..1000).for_each(|number| harness.put((round * 1000 + number) * 13 % keys));
        kept.push((plain.poll(16).unwrap(), one.poll(16).unwrap()));
        harness.drain(&mut plain);
        harness.drain(&mut one);
    }
    harness.agrees("with kept batches");
    let stats = harness.cache.stats();
    assert!(stats.segments <= stats.window_segments + kept.len() as u64 * 5 + 2, "{stats:?}");
    // Subscriptions that stay behind keep nothing alive.
    drop(kept);
    let mut slow: Vec<Subscription> =
        (0..50).map(|_| harness.cache.subscribe(Start::State).types(&[Kind::Added]).open().unwrap()).collect();
    for subscription in &mut slow {
        subscription.poll(5).unwrap();
    }
    (0..40_000).for_each(|number| harness.put(number * 17 % keys));
    harness.agrees("with slow subscriptions");
    let stats = harness.cache.stats();
    assert!(stats.segments <= stats.window_segments + 2, "slow consumers keep segments: {stats:?}");
    assert_eq!(harness.cache.get(key(1), Read::Any).unwrap().kv.unwrap().key(), key(1));

    // Everything goes, in a mixed order, wherever it is dropped.
    drop(shown);
    let last = harness.cache.snapshot().unwrap();
    let Harness { cache, writer, .. } = harness;
    drop(cache);
    std::thread::spawn(move || drop((writer, slow))).join().unwrap();
    drop((plain, one));
    assert!(!last.is_empty());
    drop(last);
    all_gone();
    let rest = held() - base;
    assert!(rest.abs() < 64 << 10, "{rest} bytes are left behind");
}

/// A listing that was not finished goes whole, and its blocks are the writer's again.
#[test]
fn unfinished_listing_is_freed() {
    let _alone = alone();
    all_gone();
    let base = held();
    let mut harness = Harness::new(base, 1024, 1 << 20);
    let mut loading = harness.writer.begin_load(1).unwrap();
    let value = vec![7; 300];
    for number in 0..20_000 {
        let key = key(number);
        let record = Record { key: &key, value: &value, create_revision: 1, mod_revision: 1, version: 1, lease: 0 };
        harness.writer.load_more(&mut loading, [record]).unwrap();
    }
    assert!(held() - base > 20_000 * 300, "the test's own premise");
    drop(loading);
    harness.load(20_000);
    harness.agrees("after a listing that was given up, and another one");
    drop(harness);
    all_gone();
    let rest = held() - base;
    assert!(rest.abs() < 64 << 10, "{rest} bytes are left behind");
}

/// What stays because of the log counts, whatever it is: empty arrays, values that were replaced,
/// tombstones and slots of deleted keys.
#[test]
fn capacity_in_bytes_bounds_all_of_the_log() {
    let _alone = alone();
    for (capacity, size, deletes) in [(1u64 << 20, 8, false), (1 << 20, 1000, false), (4 << 20, 8, true)] {
        all_gone();
        let base = held();
        let cache = Cache::builder("/").capacity_bytes(capacity).build().unwrap();
        let mut writer = cache.writer().unwrap();
        let value = vec![7; size];
        let mut revision = 0;
        let (mut most, mut in_flight) = (0, 0);
        for round in 0..40_000u64 {
            let key = format!("/registry/pods/{:06}", if deletes { round } else { round % 10 });
            revision += 1;
            writer.apply(revision, [Change::put(&key, &value)]).unwrap();
            if deletes {
                revision += 1;
                writer.apply(revision, [Change::delete(&key)]).unwrap();
            }
            in_flight = in_flight.max(cache.stats().unfreed_bytes as i64);
            if round % 1000 == 999 {
                most = most.max(held() - base);
                let stats = cache.stats();
                assert!(stats.window_bytes <= capacity + capacity / 8, "{stats:?}");
                assert!(round < 20_000 || stats.window_bytes >= capacity / 2, "it is used: {stats:?}");
            }
        }
        // The purged tombstones of a segment, the directory, and the table's smallest pages come on top; and what
        // was on its way to the reclaimer, which the writer takes again.
        let bound = (capacity + capacity / 4 + (128 << 10)) as i64 + in_flight;
        println!("{capacity} asked, values of {size}, deletes {deletes}: {most} held at most, {in_flight} in flight");
        assert!(most <= bound, "{most} held, {capacity} asked; values of {size} bytes, deletes: {deletes}");
        // The heap returns that to the system: a writer that is never ahead of the reclaimer keeps none of it.
        for _ in 0..200 {
            revision += 1;
            writer.apply(revision, [Change::put("/registry/pods/000000", &value)]).unwrap();
            held();
        }
        let rest = held() - base;
        println!("{rest} held after 200 revisions without haste");
        assert!(
            rest <= bound - in_flight + (256 << 10),
            "{rest} held at rest, {capacity} asked; values of {size} bytes"
        );
        assert!(cache.stats().window_segments >= 8, "{:?}", cache.stats());
    }
}

/// Epochs and decoded values leave with the segments that they count with, whatever is written after them.
#[test]
fn epochs_and_decoded_values_are_within_the_bound() {
    let _alone = alone();
    all_gone();
    let base = held();
    const CAPACITY: u64 = 4 << 20;
    let decode = |_: &[u8], value: &[u8]| Ok::<_, String>(value.to_vec());
    let builder = Cache::builder("/").capacity(1 << 20).capacity_bytes(CAPACITY);
    let cache = builder.sized_decoder(decode, Vec::capacity).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let in_flight = Cell::new(0);
    let look = || in_flight.set(in_flight.get().max(cache.stats().unfreed_bytes as i64));
    let within = |what: &str| {
        let (real, stats) = (held() - base, cache.stats());
        println!("{what}: {real} held, {} within the capacity, {} said", stats.window_bytes, stats.bytes());
        assert!(stats.window_bytes <= CAPACITY, "{what}: {stats:?}");
        // The writer keeps for itself what was on its way to the reclaimer.
        let bound = (CAPACITY + CAPACITY / 8 + (128 << 10)) as i64 + in_flight.get();
        assert!(real <= bound, "{what}: {real} held, {} were in flight, {stats:?}", in_flight.get());
        let off = (stats.bytes() as i64 - real).abs() as f64 / real as f64;
        assert!(off <= 0.05, "{what}: {real} held, {} said", stats.bytes());
        real
    };
    // Twice as many as there is room for.
    for revision in 1..=40_000 {
        writer.resync(revision, [], ResyncReason::Requested).unwrap();
        look();
    }
    let full = within("resyncs");
    assert!(full > CAPACITY as i64 * 7 / 8, "the test's own premise");
    // No resync comes after them: their epochs go all the same.
    for revision in 40_001..=100_000 {
        writer.apply(revision, [Change::put("/k", "value")]).unwrap();
        look();
    }
    within("events after resyncs");
    for revision in 100_001..=120_000 {
        writer.apply(revision, [Change::put("/k", &[7; 300])]).unwrap();
        writer.get(b"/k").unwrap().decoded::<Vec<u8>>().unwrap();
        look();
    }
    assert!(cache.stats().decoded_bytes > CAPACITY / 4, "the test's own premise: {:?}", cache.stats());
    within("decoded values");
    drop((writer, cache));
    all_gone();
}

/// A page that outlives its cache keeps its key-values, and nothing else of it.
#[test]
fn pages_outlive_their_cache_alone() {
    let _alone = alone();
    all_gone();
    let base = held();
    for items in [1, 100] {
        let mut harness = Harness::new(base, 1024, 1 << 20);
        harness.load(20_000);
        let page = harness.cache.list(&Range::all(), Read::Any, items).unwrap();
        let batch = harness.cache.subscribe(Start::State).open().unwrap().poll(items).unwrap();
        drop(harness);
        all_gone();
        let rest = held() - base;
        // Each of them in a slab of up to 64 KiB, at worst; the cache was of some 10 MiB.
        println!("{items} items: {rest} bytes");
        assert!(rest < 2 << 20, "{rest} bytes are held by a page of {items}");
        assert_eq!((page.len(), batch.len()), (items, items));
        assert!(page.iter().all(|kv| kv.value().is_some_and(|value| value[0] == b'v')));
    }
    all_gone();
    assert!((held() - base).abs() < 64 << 10);
}
