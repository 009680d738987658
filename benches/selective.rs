//! Many selective subscriptions: each pays for its own events only.
//!
//! One round publishes one event to each of the keys; each event matches one of the subscriptions.
//! Beside it the same events published and delivered to one unfiltered subscription, which is what
//! the matching deliveries alone cost.
#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use watchcore::{Cache, Change, Index, Start, Subscription, WakeSet, Writer};
use watchcore_benches::{VALUE, drain};

const COUNT: usize = 10_000;

struct Load {
    cache: Cache,
    writer: Writer,
    revision: u64,
    keys: Vec<String>,
}

impl Load {
    /// One object in each of `COUNT` namespaces.
    fn new(indexes: &[Index]) -> Load {
        let builder = indexes.iter().fold(Cache::builder("/"), |builder, index| builder.index(index.clone()));
        let cache = builder.build().expect("builds");
        let writer = cache.writer().expect("is free");
        let keys = (0..COUNT).map(|at| format!("/registry/pods/namespace-{at:06}/p-{at:06}")).collect();
        let mut load = Load { cache, writer, revision: 0, keys };
        load.round();
        load
    }

    /// Publishes one event for each key.
    fn round(&mut self) {
        for key in &self.keys {
            self.revision += 1;
            self.writer.apply(self.revision, [Change::put(key, &VALUE)]).expect("applies");
        }
    }

    fn subscribe(&self, prefix: impl Fn(&str) -> String, count: usize) -> Vec<Subscription> {
        let open = |key: &String| self.cache.subscribe(Start::Now).prefix(prefix(key)).open().expect("opens");
        self.keys[..count].iter().map(open).collect()
    }
}

fn namespace(key: &str) -> String {
    key[..key.rfind('/').expect("has one") + 1].to_string()
}

/// Publish and delivery together, an event.
fn publish_and_deliver(c: &mut Criterion) {
    let mut group = c.benchmark_group("selective/publish and delivery of an event");
    group.sample_size(10);
    group.throughput(Throughput::Elements(COUNT as u64));
    let mut measure = |name: &str, indexes: &[Index], all: fn(&Load) -> Vec<Subscription>| {
        let mut load = Load::new(indexes);
        let mut all = all(&load);
        // Asks for the buckets, and takes them.
        load.round();
        all.iter_mut().for_each(|one| _ = drain(one, 64));
        load.round();
        let deliveries: u64 = all.iter_mut().map(|one| drain(one, 64).1).sum();
        assert_eq!(deliveries, COUNT as u64, "each event is delivered once");
        group.bench_function(name, |b| {
            b.iter(|| {
                load.round();
                for subscription in &mut all {
                    black_box(drain(subscription, 64));
                }
            });
        });
    };
    measure("one unfiltered subscription", &[], |load| vec![load.cache.subscribe(Start::Now).open().expect("opens")]);
    measure("10,000 of one key each", &[Index::key()], |load| {
        let open = |key: &String| load.cache.subscribe(Start::Now).key(key).open().expect("opens");
        load.keys.iter().map(open).collect()
    });
    measure("10,000 of one namespace each", &[Index::prefix(3)], |load| load.subscribe(namespace, COUNT));
    group.finish();
}

/// Without an index every subscription scans every event: a hundredth of them, for comparison.
fn scan(c: &mut Criterion) {
    let mut group = c.benchmark_group("selective/scan of 10,000 events");
    group.sample_size(10);
    group.throughput(Throughput::Elements(COUNT as u64));
    let mut load = Load::new(&[]);
    let mut one = load.subscribe(namespace, 1);
    group.bench_function("by one subscription of one namespace", |b| {
        b.iter_custom(|rounds| {
            let mut spent = std::time::Duration::ZERO;
            for _ in 0..rounds {
                load.round();
                let begin = std::time::Instant::now();
                black_box(drain(&mut one[0], 64));
                spent += begin.elapsed();
            }
            spent
        });
    });
    group.finish();
}

/// The writer's cost of an event that matches nobody, with 10,000 sleeping subscriptions of a bucket
/// each, and in a cache without subscriptions.
fn matches_nobody(c: &mut Criterion) {
    let mut group = c.benchmark_group("selective/publish what matches nobody");
    for (name, subscriptions) in [("no subscription", 0), ("10,000 asleep at their buckets", COUNT)] {
        let mut load = Load::new(&[Index::prefix(3)]);
        let set = WakeSet::new().expect("has a descriptor");
        let mut all = load.subscribe(|key| namespace(key).replace("namespace", "nowhere"), subscriptions);
        load.round();
        for (tag, subscription) in all.iter_mut().enumerate() {
            drain(subscription, 64);
            set.add(subscription, tag as u64).expect("joins");
            subscription.arm().expect("arms");
        }
        let mut at = 0;
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| {
                load.revision += 1;
                at = (at + 7919) % COUNT;
                load.writer.apply(load.revision, [Change::put(&load.keys[at], &VALUE)]).expect("applies");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, publish_and_deliver, scan, matches_nobody);
criterion_main!(benches);
