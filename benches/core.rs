//! append, apply, poll, get, list, snapshot, wake: one writer, one consumer, one core each.
#![allow(missing_docs)]

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::collections::BTreeMap;
use std::hint::black_box;
use watchcore::{Cache, Change, Range, Read, Start};
use watchcore_benches::{VALUE, drain, filled};

/// One small event after another on one key: what the log itself costs.
fn append(c: &mut Criterion) {
    let cache = Cache::builder("/").build().expect("builds");
    let mut writer = cache.writer().expect("is free");
    let mut revision = 0;
    c.bench_function("append/one key, 1 byte", |b| {
        b.iter(|| {
            revision += 1;
            writer.apply(revision, [Change::put("/a", "1")]).expect("applies");
        });
    });
}

/// Overwrites spread over all keys; beside it the same in a BTreeMap of the same size.
fn apply(c: &mut Criterion) {
    let mut group = c.benchmark_group("apply");
    for count in [10_000usize, 100_000, 1_000_000] {
        let (_cache, mut writer, mut revision, keys) = filled(count);
        let mut at = 0;
        group.bench_function(BenchmarkId::new("overwrite", count), |b| {
            b.iter(|| {
                revision += 1;
                at = (at + 7919) % count;
                writer.apply(revision, [Change::put(&keys[at], &VALUE)]).expect("applies");
            });
        });
        // Of one revision, as a transaction of etcd's has them.
        const TOGETHER: usize = 64;
        group.throughput(Throughput::Elements(TOGETHER as u64));
        group.bench_function(BenchmarkId::new("overwrite 64 together", count), |b| {
            b.iter(|| {
                revision += 1;
                let changes = (0..TOGETHER).map(|number| (at + number * 7919) % count);
                writer.apply(revision, changes.map(|at| Change::put(&keys[at], &VALUE))).expect("applies");
                at = (at + TOGETHER * 7919) % count;
            });
        });
        group.throughput(Throughput::Elements(1));
        drop(writer);
        let mut map: BTreeMap<Vec<u8>, Vec<u8>> =
            keys.iter().map(|key| (key.clone().into_bytes(), VALUE.to_vec())).collect();
        group.bench_function(BenchmarkId::new("BTreeMap overwrite", count), |b| {
            b.iter(|| {
                at = (at + 7919) % count;
                *map.get_mut(keys[at].as_bytes()).expect("is there") = VALUE.to_vec();
            });
        });
    }
    group.finish();
}

/// Delivery: 1024 published events are read by one consumer; events and versions (0.2 MB) fit the
/// second-level cache.
fn poll(c: &mut Criterion) {
    const EVENTS: u64 = 1024;
    let (cache, mut writer, mut revision, keys) = filled(1000);
    for round in 0..EVENTS {
        revision += 1;
        writer.apply(revision, [Change::put(&keys[round as usize % 1000], "small")]).expect("applies");
    }
    let start = revision - EVENTS;
    let mut group = c.benchmark_group("poll");
    group.throughput(Throughput::Elements(EVENTS));
    for max in [1usize, 64, 1024] {
        group.bench_function(BenchmarkId::new("sum of revision, type, key pointer", max), |b| {
            b.iter_batched(
                || cache.subscribe(Start::After(start)).open().expect("opens"),
                |mut subscription| {
                    let (sum, events) = drain(&mut subscription, max);
                    assert_eq!(events, EVENTS);
                    black_box(sum);
                    subscription
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
    // Without a goal: the bytes themselves, too, of a window (30 MB) that no cache holds.
    const COLD: u64 = 49_152;
    let (cache, mut writer, mut revision, keys) = filled(1000);
    for round in 0..COLD {
        revision += 1;
        writer.apply(revision, [Change::put(&keys[round as usize % 1000], &VALUE)]).expect("applies");
    }
    let start = revision - COLD;
    let mut group = c.benchmark_group("poll, cold");
    group.throughput(Throughput::Elements(COLD)).sample_size(20);
    group.bench_function("key and value bytes/64", |b| {
        b.iter_batched(
            || cache.subscribe(Start::After(start)).open().expect("opens"),
            |mut subscription| {
                let mut sum = 0u64;
                loop {
                    let batch = subscription.poll(64).expect("polls");
                    if batch.is_empty() {
                        break;
                    }
                    for event in &batch {
                        for byte in event.key().iter().chain(event.value().unwrap_or_default()) {
                            sum = sum.wrapping_add(u64::from(*byte));
                        }
                    }
                }
                black_box(sum);
                subscription
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn reads(c: &mut Criterion) {
    for count in [10_000usize, 150_000] {
        let (cache, _writer, revision, keys) = filled(count);
        let mut at = 0;
        c.bench_function(&format!("get/{count}"), |b| {
            b.iter(|| {
                at = (at + 7919) % count;
                black_box(cache.get(&keys[at], Read::Any).expect("answers"))
            });
        });
        c.bench_function(&format!("get exact/{count}"), |b| {
            b.iter(|| {
                at = (at + 7919) % count;
                black_box(cache.get(&keys[at], Read::Exact(revision - 1)).expect("answers"))
            });
        });
        c.bench_function(&format!("list/{count}"), |b| {
            b.iter(|| black_box(cache.list(&Range::all(), Read::Any, 0).expect("answers")));
        });
        let namespace = Range::prefix("/registry/pods/namespace-0007/");
        c.bench_function(&format!("list of a namespace/{count}"), |b| {
            b.iter(|| black_box(cache.list(&namespace, Read::Any, 0).expect("answers")));
        });
        c.bench_function(&format!("snapshot/{count}"), |b| b.iter(|| black_box(cache.snapshot().expect("is ready"))));
        let snapshot = cache.snapshot().expect("is ready");
        c.bench_function(&format!("snapshot iterate/{count}"), |b| {
            b.iter(|| snapshot.iter().map(|kv| kv.mod_revision()).sum::<u64>());
        });
    }
}

/// Publish to a sleeping consumer and its answer back.
fn wake(c: &mut Criterion) {
    let cache = Cache::builder("/").build().expect("builds");
    let mut writer = cache.writer().expect("is free");
    let mut subscription = cache.subscribe(Start::Now).open().expect("opens");
    let (send, receive) = std::sync::mpsc::channel();
    let consumer = std::thread::spawn(move || {
        while let Ok(Some(batch)) = subscription.next_batch() {
            send.send(batch.len()).ok();
        }
    });
    let mut revision = 0;
    c.bench_function("wake/publish to a sleeping consumer and back", |b| {
        b.iter(|| {
            revision += 1;
            writer.apply(revision, [Change::put("/a", "1")]).expect("applies");
            receive.recv().expect("answers")
        });
    });
    drop(writer);
    cache.close();
    consumer.join().expect("ends");
}

/// What two threads pay to wake each other by channels, there and back: the yardstick of `wake`,
/// which has one thread more on the way.
fn channels(c: &mut Criterion) {
    let (ask, asked) = std::sync::mpsc::channel::<u64>();
    let (answer, answered) = std::sync::mpsc::channel();
    let other = std::thread::spawn(move || asked.iter().for_each(|one| answer.send(one).expect("waits for it")));
    c.bench_function("wake/two channels, there and back", |b| {
        b.iter(|| {
            ask.send(1).expect("is there");
            answered.recv().expect("answers")
        });
    });
    drop(ask);
    other.join().expect("ends");
}

criterion_group!(benches, append, apply, poll, reads, wake, channels);
criterion_main!(benches);
