//! Chains: subscriptions that read by the links of a bucket.
//!
//! | row | test `loom_...` | weakened in the twins |
//! | --- | --- | --- |
//! | bucket.newest, links | `bucket_against_poll` | newest store; newest load |
//! | linked_from | `bucket_asked_for` | answer store; answer load; step: a `linked_from` too low |
//! | fence; waiting, of a bucket | `bucket_wait_against_publish` | the writer's fence; the waiter's fence |
//! | fence; waiting, where the notifier moves a waiter to its bucket | `bucket_taken` | the notifier's fence |
//! | fence; waiting, where it moves one and scans in portions | `bucket_taken_between_portions` | the notifier's fence; step: the bucket's newest event is not looked at |
//! | mark.newest | `mark_against_chain` | head store |
//! | eviction of buckets | `bucket_evicted` | step: a bucket in use is evicted |

use super::*;

/// A cache with an index by key.
fn indexed(buckets: usize) -> (Local<Cache>, Local<Writer>) {
    let builder = Cache::builder("/").segment_slots(8).capacity(16).index(Index::key()).max_buckets(buckets);
    let cache = builder.build().unwrap();
    let writer = cache.writer().unwrap();
    (Local::new(cache), Local::new(writer))
}

/// A subscription to one key that has its bucket.
fn chained(cache: &Cache, writer: &mut Writer, key: &str) -> Local<Subscription> {
    let mut subscription = Local::new(cache.subscribe(Start::Now).key(key).open().unwrap());
    put(writer, 1, &["/a"]);
    assert!(subscription.poll(8).unwrap().is_empty());
    assert_eq!(subscription.stats().read_path, ReadPath::Chain { index: "key".into() });
    subscription
}

/// Row "bucket.newest": an event that is reached by its bucket before head has its links.
fn bucket_against_poll(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = indexed(4);
        let mut subscription = chained(&cache, &mut writer, "/b");
        let write = |writer: &mut Writer| {
            put(writer, 2, &["/b"]);
            put(writer, 3, &["/b"]);
        };
        let (_writer, (mut subscription, mut seen)) = race(writer, write, move || {
            let seen = read(&subscription.poll(8).unwrap());
            (subscription, seen)
        });
        seen.extend(read(&subscription.poll(8).unwrap()));
        assert_eq!(seen, [2, 3]);
    });
}

proof!(
    bucket_against_poll, loom_bucket_against_poll,
    loom_bucket_against_poll_weak_newest: BucketNewest => "",
    loom_bucket_against_poll_weak_load: BucketNewestLoad => "",
);

/// Row "linked_from": events that were published before the bucket was there are scanned.
fn bucket_asked_for(weakened: Weak) {
    LONG.run(weakened, || {
        let (cache, writer) = indexed(4);
        let write = |writer: &mut Writer| {
            put(writer, 1, &["/b"]);
            put(writer, 2, &["/a"]);
        };
        let (_writer, (mut subscription, mut seen)) = race(writer, write, move || {
            let start = cache.subscribe(Start::After(0)).key("/b").open();
            let mut subscription = Local::new(start.unwrap());
            let seen = read(&subscription.poll(8).unwrap());
            let set = WakeSet::new().unwrap();
            set.add(&mut subscription, 7).unwrap();
            subscription.arm().unwrap();
            ((subscription, cache), seen)
        });
        seen.extend(read(&subscription.0.poll(8).unwrap()));
        assert_eq!(seen, [1], "an event below linked_from");
    });
}

proof!(
    bucket_asked_for, loom_bucket_asked_for,
    loom_bucket_asked_for_weak_answer: Answer => "Causality violation",
    loom_bucket_asked_for_weak_load: AnswerLoad => "Causality violation",
    loom_bucket_asked_for_early_boundary: EarlyLinkedFrom => "an event below linked_from",
);

/// Row "fence; waiting", at a bucket.
fn bucket_wait_against_publish(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = indexed(4);
        let mut subscription = chained(&cache, &mut writer, "/b");
        let write = |writer: &mut Writer| {
            put(writer, 2, &["/b"]);
            notifier::step();
        };
        race(writer, write, move || {
            assert!(subscription.wait(EVER).unwrap());
            assert_eq!(read(&subscription.poll(8).unwrap()), [2]);
        });
    });
}

proof!(
    bucket_wait_against_publish, loom_bucket_wait_against_publish,
    loom_bucket_wait_against_publish_weak_writer: PublishFence => "deadlock",
    loom_bucket_wait_against_publish_weak_waiter: RegisterFence => "deadlock",
);

/// A waiter that scanned while it had no bucket is moved there by the notifier, and misses nothing.
fn bucket_taken(weakened: Weak) {
    bucket_taken_in(LONG, weakened);
}

fn bucket_taken_in(model: Model, weakened: Weak) {
    model.run(weakened, || {
        let (cache, mut writer) = indexed(4);
        let set = WakeSet::new().unwrap();
        let mut subscription = Local::new(cache.subscribe(Start::Now).key("/b").open().unwrap());
        set.add(&mut subscription, 7).unwrap();
        assert!(!subscription.arm().unwrap() && !set.arm());
        put(&mut writer, 1, &["/a"]);
        race(writer, |writer| put(writer, 2, &["/b"]), notifier::step);
        notifier::step();
        assert!(set.arm(), "lost wake-up");
    });
}

proof!(
    bucket_taken, loom_bucket_taken,
    loom_bucket_taken_weak_notifier: MoveToBucket => "lost wake-up",
);

/// The notifier moves a waiter whose group was not scanned up to the head when its bucket is there.
fn bucket_taken_between_portions(weakened: Weak) {
    bucket_taken_in(PORTIONS_LONG, weakened);
}

proof!(
    bucket_taken_between_portions, loom_bucket_taken_between_portions,
    loom_bucket_taken_between_portions_weak_notifier: MoveToBucket => "lost wake-up",
    loom_bucket_taken_between_portions_unasked: MovedUnasked => "lost wake-up",
);

/// Row "mark.newest": no event of a new epoch before its BEGIN mark.
fn mark_against_chain(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = indexed(4);
        let mut subscription = chained(&cache, &mut writer, "/b");
        let write = |writer: &mut Writer| {
            let (key, value) = (&b"/b"[..], &b"9"[..]);
            let record = Record { key, value, create_revision: 9, mod_revision: 9, version: 1, lease: 0 };
            writer.resync(9, [record], ResyncReason::Requested).unwrap();
        };
        race(writer, write, move || {
            let kinds: Vec<Kind> = subscription.poll(8).unwrap().events().iter().map(Event::kind).collect();
            assert!(kinds.is_empty() || kinds == [Kind::Resync, Kind::Added, Kind::Resync], "{kinds:?}");
        });
    });
}

proof!(
    mark_against_chain, loom_mark_against_chain,
    loom_mark_against_chain_weak_head: Head => "",
);

/// A bucket in use stays while another subscription asks for one.
fn bucket_evicted(weakened: Weak) {
    LONG.run(weakened, || {
        let (cache, mut writer) = indexed(1);
        let mut subscription = chained(&cache, &mut writer, "/b");
        let (writer, mut other) = race(
            writer,
            |writer| put(writer, 2, &["/c"]),
            move || {
                let start = cache.subscribe(Start::After(1)).key("/c").open();
                (Local::new(start.unwrap()), cache)
            },
        );
        let mut writer = writer;
        put(&mut writer, 3, &["/b", "/c"]);
        assert_eq!(read(&subscription.poll(8).unwrap()), [3], "its bucket is gone");
        assert_eq!(read(&other.0.poll(8).unwrap()), [2, 3]);
    });
}

proof!(
    bucket_evicted, loom_bucket_evicted,
    loom_bucket_evicted_in_use: EvictUsed => "its bucket is gone",
);
