//! The hot paths one by one, for callgrind: scripts/counts.sh runs it, and counts what `counted` does.
//!
//! Usage: counts PATH TIMES. A path prepares what it needs, then does the same thing TIMES times inside of
//! `counted`. Keys have 37 bytes and values 512.
use std::hint::black_box;
use watchcore::{Cache, Change, Index, Range, Read, Record, Start, Subscription, WakeSet, Writer};

const VALUE: [u8; 512] = [b'v'; 512];

fn key(number: usize) -> String {
    format!("/registry/pods/namespace-{:04}/p-{number:06}", number % 1000)
}

struct Filled {
    cache: Cache,
    writer: Writer,
    revision: u64,
    keys: Vec<String>,
}

impl Filled {
    fn new(count: usize, indexes: &[Index]) -> Filled {
        let builder = indexes.iter().fold(Cache::builder("/"), |builder, index| builder.index(index.clone()));
        let cache = builder.expect_load(true).build().expect("builds");
        let mut writer = cache.writer().expect("is free");
        let keys: Vec<String> = (0..count).map(key).collect();
        let records = keys.iter().zip(1..).map(|(key, revision)| Record {
            key: key.as_bytes(),
            value: &VALUE,
            create_revision: revision,
            mod_revision: revision,
            version: 1,
            lease: 0,
        });
        let revision = count as u64;
        writer.load(revision, records).expect("loads");
        Filled { cache, writer, revision, keys }
    }

    /// An overwrite of the `at`th key, in an order that no cache line likes.
    fn put(&mut self, at: usize) {
        self.revision += 1;
        let key = &self.keys[at.wrapping_mul(7919) % self.keys.len()];
        self.writer.apply(self.revision, [Change::put(key, &VALUE)]).expect("applies");
    }
}

/// The part that is counted.
#[inline(never)]
fn counted(times: usize, mut once: impl FnMut(usize)) {
    for at in 0..times {
        once(at);
    }
}

fn overwrite(times: usize) {
    let mut filled = Filled::new(10_000, &[]);
    (0..64).for_each(|at| filled.put(at));
    counted(times, |at| filled.put(64 + at));
}

fn insert(times: usize) {
    let mut filled = Filled::new(10_000, &[]);
    let keys: Vec<String> = (0..times).map(|at| format!("{}x", key(at * 7919 % 10_000))).collect();
    counted(times, |at| {
        filled.revision += 1;
        filled.writer.apply(filled.revision, [Change::put(&keys[at], &VALUE)]).expect("applies");
    });
}

fn get(times: usize) {
    let filled = Filled::new(10_000, &[]);
    counted(times, |at| {
        let found = filled.cache.get(&filled.keys[at * 7919 % 10_000], Read::Any);
        black_box(found.expect("reads"));
    });
}

/// One item of a list.
fn list(times: usize) {
    let filled = Filled::new(times, &[]);
    counted(1, |_| {
        let page = filled.cache.list(&Range::prefix("/registry/"), Read::Any, 0).expect("lists");
        assert_eq!(page.len(), times);
    });
}

/// One object of the initial state.
fn initial(times: usize) {
    let filled = Filled::new(times, &[]);
    let mut subscription = filled.cache.subscribe(Start::State).open().expect("opens");
    counted(1, |_| while drain(&mut subscription, 64) > 0 {});
}

fn drain(subscription: &mut Subscription, max: usize) -> usize {
    let batch = subscription.poll(max).expect("polls");
    batch.events().iter().for_each(|event| _ = black_box(event.revision().wrapping_add(event.key().as_ptr() as u64)));
    batch.len()
}

/// One event polled, in batches of 64.
fn poll(times: usize) {
    let mut filled = Filled::new(1000, &[]);
    let mut subscription = filled.cache.subscribe(Start::Now).open().expect("opens");
    (0..times).for_each(|at| filled.put(at));
    counted(times / 64, |_| assert_eq!(drain(&mut subscription, 64), 64));
}

/// One event that a subscription of another prefix looks at.
fn scan(times: usize) {
    let mut filled = Filled::new(1000, &[]);
    let open = filled.cache.subscribe(Start::Now).prefix("/registry/pods/namespace-0007/");
    let mut subscription = open.open().expect("opens");
    (0..times).for_each(|at| filled.put(at));
    counted(1, |_| while drain(&mut subscription, 64) > 0 {});
}

/// One sleep of a member of a wake set: polled in vain, and armed.
fn park(times: usize) {
    let mut filled = Filled::new(1000, &[]);
    let set = WakeSet::new().expect("makes");
    let mut subscription = filled.cache.subscribe(Start::Now).key("/registry/none").open().expect("opens");
    set.add(&mut subscription, 1).expect("adds");
    assert!(!subscription.arm().expect("arms"));
    filled.put(0);
    counted(times, |_| {
        assert_eq!(drain(&mut subscription, 64), 0);
        assert!(!subscription.arm().expect("arms"));
    });
}

/// One publish, beside 10,000 sleepers at buckets that it does not touch.
fn publish(times: usize) {
    let mut filled = Filled::new(10_000, &[Index::key()]);
    let set = WakeSet::new().expect("makes");
    let mut all = Vec::new();
    for tag in 0..10_000 {
        let mut one = filled.cache.subscribe(Start::Now).key(format!("/registry/never/{tag}")).open().expect("opens");
        set.add(&mut one, tag).expect("adds");
        all.push(one);
    }
    // The writer answers a few requests for buckets a revision.
    (0..4000).for_each(|at| filled.put(at));
    for one in &mut all {
        assert!(one.poll(64).expect("polls").is_empty() && !one.arm().expect("arms"));
    }
    counted(times, |at| filled.put(at));
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_default();
    let times = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1024);
    match path.as_str() {
        "overwrite" => overwrite(times),
        "insert" => insert(times),
        "get" => get(times),
        "list" => list(times),
        "initial" => initial(times),
        "poll" => poll(times),
        "scan" => scan(times),
        "park" => park(times),
        "publish" => publish(times),
        _ => {
            eprintln!("counts: one of overwrite, insert, get, list, initial, poll, scan, park, publish");
            std::process::exit(2);
        }
    }
}
