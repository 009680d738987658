//! The small things of which there are many: idle subscriptions, buckets, keys kept as delivered.

use crate::heap::{alone, held, held_at_most};
use futures_core::Stream;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use watchcore::{Cache, Change, Index, Kind, OnLag, ReadPath, Start, Subscription, WakeSet};

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

const BOUND: Duration = Duration::from_secs(60);

/// A waker that keeps the notifier, which all caches share, until its other end is dropped.
struct Brake(Sender<()>, Mutex<Receiver<()>>);

impl Wake for Brake {
    fn wake(self: Arc<Self>) {
        self.0.send(()).ok();
        self.1.lock().unwrap().recv_timeout(BOUND).ok();
    }
}

/// Runs this while the notifier is kept, so that it reads everything at once that it is told meanwhile.
fn while_the_notifier_is_kept(run: impl FnOnce()) {
    let elsewhere = Cache::builder("/").build().unwrap();
    let mut one = elsewhere.subscribe(Start::Now).open().unwrap();
    let ((here, arrived), (go, going)) = (channel(), channel());
    let brake = Waker::from(Arc::new(Brake(here, Mutex::new(going))));
    assert!(Pin::new(&mut one).poll_next(&mut Context::from_waker(&brake)).is_pending());
    elsewhere.writer().unwrap().apply(1, [Change::put("/x", "1")]).unwrap();
    arrived.recv_timeout(BOUND).expect("the notifier is in the waker");
    run();
    drop(go);
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
    assert!(bytes <= 168, "{bytes} bytes an idle subscription");
    // Asleep as members of a wake set, with what the notifier knows of them.
    let (before, set) = (held(), WakeSet::new().unwrap());
    while_the_notifier_is_kept(|| {
        for (tag, one) in plain.iter_mut().enumerate() {
            set.add(one, tag as u64).unwrap();
            assert!(!one.arm().unwrap());
        }
    });
    let most = before + (290 - bytes) * COUNT as i64;
    let asleep = bytes + (held_at_most(most) - before) / COUNT as i64;
    println!("a sleeping subscription: {asleep} bytes");
    assert!(asleep <= 290, "{asleep} bytes a sleeping subscription");
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
    // Pages of the table of buckets are the heap's, which keeps some for what is written next: 570 to 630, and 76 to 125, in
    // forty runs.
    assert!(bytes <= 690, "{bytes} bytes an idle subscription of one namespace");
    assert!(bucket <= 176, "{bucket} bytes a bucket");

    // The same asleep at their buckets, as members of a wake set. The notifier has these for a while when they are gone.
    all = (0..COUNT).map(|at| cache.subscribe(Start::Now).prefix(namespace(at)).open().unwrap()).collect();
    write_until(&cache, COUNT);
    all.iter_mut().for_each(|subscription| assert!(subscription.poll(16).unwrap().is_empty()));
    let (before, set) = (held(), WakeSet::new().unwrap());
    while_the_notifier_is_kept(|| {
        for (tag, one) in all.iter_mut().enumerate() {
            set.add(one, tag as u64).unwrap();
            assert!(!one.arm().unwrap());
        }
    });
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

/// A key that was delivered stays where it is deleted and purged, and nothing else of it: once for all that had it.
#[test]
fn deleted_delivered_keys_are_small() {
    let _alone = alone();
    const KEYS: usize = 50_000;
    let base = held();
    let cache = Cache::builder("/").capacity(1024).capacity_bytes(1 << 20).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let keys: Vec<String> = (0..KEYS).map(|at| format!("/registry/events/{at:08}")).collect();
    let mut revision = 1;
    writer.apply(revision, keys.iter().map(|key| Change::put(key, "v"))).unwrap();
    let mut stalled: Vec<Subscription> = [OnLag::Resnapshot, OnLag::Conflate]
        .into_iter()
        .map(|policy| cache.subscribe(Start::State).on_lag(policy).open().unwrap())
        .collect();
    for one in &mut stalled {
        while !one.poll(1024).unwrap().is_empty() {}
    }
    for some in keys.chunks(100) {
        revision += 1;
        writer.apply(revision, some.iter().map(Change::delete)).unwrap();
    }
    // Until they are purged, and the segments that had their slots are gone.
    for _ in 0..3000 {
        revision += 1;
        writer.apply(revision, [Change::put("/x", "1")]).unwrap();
    }
    let (with, stats) = (held() - (keys.capacity() * (size_of::<String>() + keys[0].capacity())) as i64, cache.stats());
    assert_eq!((stats.objects, stats.tombstones), (1, 0));
    let sets: u64 = stalled.iter().map(|one| one.stats().delivered_bytes).sum();
    let said = stats.delivered_bytes;
    // The one has the keys still, the other is given their deletes.
    assert_eq!(stalled.iter_mut().map(|one| one.stats().delivered_keys).sum::<u64>(), 2 * KEYS as u64);
    let mut deleted = 0;
    while stalled[1].stats().delivered_keys > 1 {
        for event in stalled[1].poll(1024).unwrap().events().iter().filter(|event| event.kind() == Kind::Deleted) {
            assert_eq!(event.key(), keys[deleted].as_bytes());
            deleted += 1;
        }
    }
    assert_eq!(deleted, KEYS);
    assert!(cache.stats().delivered_bytes > said / 2, "the other has them still");
    stalled.clear();
    let without = held() - (keys.capacity() * (size_of::<String>() + keys[0].capacity())) as i64;
    let (freed, length) = (with - without, keys[0].len() as f64);
    let a_key = (said - sets) as f64 / KEYS as f64;
    let real = with - base;
    println!("a deleted key: {a_key:.1} bytes beside the sets' {sets}; {said} said, {freed} freed; in all {real} held");
    assert!(a_key <= 32.0 + length, "{a_key} bytes a deleted key of {length}");
    // The slots come back to the cache's heap, which keeps them.
    assert!(
        (said as i64 - 24 * KEYS as i64 - freed).abs() as f64 / (freed as f64) <= 0.05,
        "{said} said, {freed} freed"
    );
    let off = (stats.bytes() as i64 - real).abs() as f64 / real as f64;
    assert!(off <= 0.05, "{} said, {real} held", stats.bytes());
    assert_eq!(cache.stats().delivered_bytes, 0);
}
