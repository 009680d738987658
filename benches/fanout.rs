//! One event to many subscriptions: publishing, and reading in turn by one thread.
#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use watchcore::{Change, Start, Subscription, WakeSet};
use watchcore_benches::{VALUE, drain, filled};

/// Windows of 96 events, read by every subscription.
fn deliver(c: &mut Criterion) {
    const WINDOW: u64 = 96;
    let mut group = c.benchmark_group("fanout/a delivery");
    group.sample_size(10);
    for readers in [1usize, 100, 1000, 10_000] {
        let (cache, mut writer, mut revision, keys) = filled(1000);
        let mut all: Vec<Subscription> =
            (0..readers).map(|_| cache.subscribe(Start::Now).open().expect("opens")).collect();
        group.throughput(Throughput::Elements(WINDOW * readers as u64));
        group.bench_function(BenchmarkId::from_parameter(readers), |b| {
            b.iter_custom(|rounds| {
                let mut spent = std::time::Duration::ZERO;
                for _ in 0..rounds {
                    for at in 0..WINDOW {
                        revision += 1;
                        writer.apply(revision, [Change::put(&keys[at as usize], &VALUE)]).expect("applies");
                    }
                    let begin = std::time::Instant::now();
                    for subscription in &mut all {
                        black_box(drain(subscription, 128));
                    }
                    spent += begin.elapsed();
                }
                spent
            });
        });
    }
    group.finish();
}

/// The writer's cost with armed subscriptions whose filter never matches.
fn publish(c: &mut Criterion) {
    let mut group = c.benchmark_group("fanout/publish, armed and never matching");
    for readers in [0usize, 1, 1000, 10_000] {
        let (cache, mut writer, mut revision, keys) = filled(1000);
        let set = WakeSet::new().expect("has a descriptor");
        let mut all: Vec<Subscription> =
            (0..readers).map(|_| cache.subscribe(Start::Now).key("/never/there").open().expect("opens")).collect();
        for (tag, subscription) in all.iter_mut().enumerate() {
            set.add(subscription, tag as u64).expect("joins");
            subscription.arm().expect("arms");
        }
        group.bench_function(BenchmarkId::from_parameter(readers), |b| {
            b.iter(|| {
                revision += 1;
                writer.apply(revision, [Change::put(&keys[(revision % 1000) as usize], &VALUE)]).expect("applies");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, deliver, publish);
criterion_main!(benches);
