//! The small things of which there are many: idle subscriptions, buckets, keys kept as delivered.

use crate::heap::{alone, held, held_at_most};
use watchcore::{Cache, Change, Index, Kind, OnLag, ReadPath, Start, Subscription, WakeSet, Writer};

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

/// Runs this while the notifier is kept, so that it reads everything at once that it is told meanwhile.
fn while_the_notifier_is_kept(run: impl FnOnce()) {
    #[cfg(feature = "async")]
    let _kept = keep_the_notifier();
    run();
}

/// Keeps the notifier, which calls all wakers, in one of another cache until the result is dropped.
#[cfg(feature = "async")]
fn keep_the_notifier() -> std::sync::mpsc::Sender<()> {
    use crate::bell::{BOUND, brake};
    use futures_core::Stream;
    let cache = Cache::builder("/").build().unwrap();
    let mut one = cache.subscribe(Start::Now).open().unwrap();
    let (brake, arrived, go) = brake();
    assert!(std::pin::Pin::new(&mut one).poll_next(&mut std::task::Context::from_waker(&brake)).is_pending());
    cache.writer().unwrap().apply(1, [Change::put("/x", "1")]).unwrap();
    arrived.recv_timeout(BOUND).expect("the notifier is in the waker");
    go
}

/// A cache with an index whose log is full: what is written later takes no more room.
fn full() -> (Cache, Writer) {
    let cache = Cache::builder("/").capacity(1024).index(Index::prefix(3)).build().unwrap();
    let mut writer = cache.writer().unwrap();
    for revision in 1..=3000 {
        writer.apply(revision, [Change::put("/x", "1")]).unwrap();
    }
    (cache, writer)
}

/// Writes until there are so many buckets: the writer answers some of those who ask for one with each revision.
fn write_until(cache: &Cache, writer: &mut Writer, buckets: usize) {
    for _ in 0..COUNT {
        writer.apply(cache.position().revision + 1, [Change::put("/x", "1")]).unwrap();
        if cache.stats().buckets == buckets as u64 {
            break;
        }
    }
    assert_eq!(cache.stats().buckets, buckets as u64, "at {:?}", cache.position());
}

/// How many bytes an idle subscription of one namespace takes with its bucket, and how many the bucket gives back.
fn of_one_namespace() -> (i64, i64) {
    let (cache, mut writer) = full();
    let mut all = Vec::with_capacity(COUNT);
    let before = held() - (COUNT * size_of::<Subscription>()) as i64;
    all.extend((0..COUNT).map(|at| cache.subscribe(Start::Now).prefix(namespace(at)).open().unwrap()));
    write_until(&cache, &mut writer, COUNT);
    for subscription in &mut all {
        assert!(subscription.poll(16).unwrap().is_empty());
        assert_eq!(subscription.stats().read_path, ReadPath::Chain { index: "prefix of depth 3".into() });
    }
    let bytes = (held() - before) / COUNT as i64;
    all.clear();
    let without = held();
    write_until(&cache, &mut writer, 0);
    let bucket = (without - held()) / COUNT as i64;
    println!("an idle subscription of one namespace: {bytes} bytes with its bucket, which gave {bucket} back");
    (bytes, bucket)
}

#[test]
fn subscriptions_buckets_and_shown_keys_are_small() {
    let _alone = alone();
    let (cache, mut writer) = full();
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

    // Of one namespace each, with their buckets. Their table takes pages of the heap, which keeps a random number of them for what is
    // written next: what they need shows in the best of three caches.
    let mut measured = (0..3).map(|_| of_one_namespace());
    assert!(
        measured.any(|(bytes, bucket)| bytes <= 645 && bucket <= 128),
        "subscriptions of one namespace, or buckets, take more"
    );

    // The same asleep at their buckets, as members of a wake set. The notifier has these for a while when they are gone.
    let mut all: Vec<_> =
        (0..COUNT).map(|at| cache.subscribe(Start::Now).prefix(namespace(at)).open().unwrap()).collect();
    write_until(&cache, &mut writer, COUNT);
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
    let revision = cache.position().revision;
    for chunk in 0..COUNT / 100 {
        let keys: Vec<String> = (0..100).map(|at| format!("{}pod", namespace(chunk * 100 + at))).collect();
        writer.apply(revision + 1 + chunk as u64, keys.iter().map(|key| Change::put(key, "v"))).unwrap();
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
