//! The small things of which there are many: idle subscriptions, buckets, keys kept as delivered.

use crate::heap::{alone, held, held_at_most};
use watchcore::{Cache, Change, Index, OnLag, ReadPath, Start, Subscription, WakeSet};

const COUNT: usize = 10_000;

fn namespace(number: usize) -> String {
    format!("/registry/pods/namespace-{number:05}/")
}

/// Opens so many, and says how many bytes each costs, its own struct included.
fn each(mut open: impl FnMut(usize) -> Subscription) -> (Vec<Subscription>, i64) {
    let mut all = Vec::with_capacity(COUNT);
    let before = held() - (COUNT * size_of::<Subscription>()) as i64;
    all.extend((0..COUNT).map(&mut open));
    for subscription in &mut all {
        assert!(subscription.poll(16).unwrap().is_empty());
    }
    (all, (held() - before) / COUNT as i64)
}

#[test]
fn subscriptions_buckets_and_shown_keys_are_small() {
    let _alone = alone();
    let cache = Cache::builder("/").capacity(1024).index(Index::prefix(3)).build().unwrap();
    let mut writer = cache.writer().unwrap();
    // The log is full: what is written later takes no more room.
    let mut revision = 3000;
    for revision in 1..=revision {
        writer.apply(revision, [Change::put("/x", "1")]).unwrap();
    }

    let (mut plain, bytes) = each(|_| cache.subscribe(Start::Now).open().unwrap());
    println!("an idle subscription: {bytes} bytes");
    // Its filter is everybody's.
    assert!(bytes <= 152, "{bytes} bytes an idle subscription");
    // Asleep as members of a wake set, with what the notifier knows of them.
    let (before, set) = (held(), WakeSet::new().unwrap());
    for (tag, one) in plain.iter_mut().enumerate() {
        set.add(one, tag as u64).unwrap();
        assert!(!one.arm().unwrap());
    }
    let most = before + (285 - bytes) * COUNT as i64;
    let asleep = bytes + (held_at_most(most) - before) / COUNT as i64;
    println!("a sleeping subscription: {asleep} bytes");
    assert!(asleep <= 285, "{asleep} bytes a sleeping subscription");
    drop(plain);

    // Of one namespace each, with their buckets.
    let mut all = Vec::with_capacity(COUNT);
    let before = held() - (COUNT * size_of::<Subscription>()) as i64;
    all.extend((0..COUNT).map(|at| cache.subscribe(Start::Now).prefix(namespace(at)).open().unwrap()));
    // The writer answers some of those who ask for a bucket with each revision.
    let mut write_until = |cache: &Cache, buckets: usize| {
        for _ in 0..COUNT {
            revision += 1;
            writer.apply(revision, [Change::put("/x", "1")]).unwrap();
            if cache.stats().buckets == buckets as u64 {
                break;
            }
        }
        assert_eq!(cache.stats().buckets, buckets as u64, "after {revision} revisions");
    };
    write_until(&cache, COUNT);
    for subscription in &mut all {
        assert!(subscription.poll(16).unwrap().is_empty());
        assert_eq!(subscription.stats().read_path, ReadPath::Chain { index: "prefix of depth 3".into() });
    }
    let both = held() - before;
    all.clear();
    let without = held();
    write_until(&cache, 0);
    let bucket = (without - held()) / COUNT as i64;
    let bytes = both / COUNT as i64;
    println!("an idle subscription of one namespace: {bytes} bytes with its bucket, which gave {bucket} back");
    // Together: pages of the table of buckets are the heap's, which keeps some for what is written next.
    assert!(bytes <= 620, "{bytes} bytes an idle subscription of one namespace");
    assert!(bucket <= 128, "{bucket} bytes a bucket");

    // The same asleep at their buckets, as members of a wake set. The notifier has these for a while when they are gone.
    all = (0..COUNT).map(|at| cache.subscribe(Start::Now).prefix(namespace(at)).open().unwrap()).collect();
    write_until(&cache, COUNT);
    all.iter_mut().for_each(|subscription| assert!(subscription.poll(16).unwrap().is_empty()));
    let (before, set) = (held(), WakeSet::new().unwrap());
    for (tag, one) in all.iter_mut().enumerate() {
        set.add(one, tag as u64).unwrap();
        assert!(!one.arm().unwrap());
    }
    let most = before + 270 * COUNT as i64;
    let sleep = (held_at_most(most) - before) / COUNT as i64;
    println!("the sleep of a subscription of one namespace: {sleep} bytes");
    assert!(sleep <= 270, "{sleep} bytes the sleep of a subscription of one namespace");
    drop(all);

    // What was delivered to a consumer, by policy.
    for chunk in 0..COUNT / 100 {
        let keys: Vec<String> = (0..100).map(|at| format!("{}pod", namespace(chunk * 100 + at))).collect();
        writer.apply(revision + 10 + chunk as u64, keys.iter().map(|key| Change::put(key, "v"))).unwrap();
    }
    let subscribed = |policy| {
        let before = held();
        let mut one = cache.subscribe(Start::State).on_lag(policy).open().unwrap();
        while !one.poll(1024).unwrap().is_empty() {}
        let bytes = held() - before;
        assert_eq!(one.stats().delivered_keys, if policy == OnLag::Stop { 0 } else { COUNT as u64 + 1 });
        (one, bytes)
    };
    let (_without, base) = subscribed(OnLag::Stop);
    let (kept, with) = subscribed(OnLag::Resnapshot);
    let a_key = (with - base) as f64 / COUNT as f64;
    println!("a delivered key: {a_key:.1} bytes, stats say {}", kept.stats().delivered_bytes);
    assert!(a_key <= 32.0, "{a_key} bytes a delivered key");
}
