//! What an object and an event take beyond their keys and values: the figures of docs/OPERATIONS.md.

use crate::heap::{alone, held, held_at_most};
use watchcore::{Cache, Change, Record};

const OBJECTS: u64 = 100_000;
const EVENTS: u64 = 60_000;

fn key(number: u64) -> String {
    format!("/registry/pods/namespace-{:04}/pod-{number:06}", number % 100)
}

fn grown(before: i64, count: u64, contents: usize) -> i64 {
    (held() - before) / count as i64 - contents as i64
}

/// Objects of a listing, and events of a full window that overwrites them.
#[test]
fn objects_and_events_are_small() {
    let _alone = alone();
    for size in [100, 512, 4096] {
        let value = "v".repeat(size);
        let contents = key(0).len() + size;
        let before = held();
        let builder = Cache::builder("/").capacity(2 * EVENTS as usize).capacity_bytes(1 << 30).expect_load(true);
        let cache = builder.build().expect("a cache");
        let mut writer = cache.writer().expect("is free");
        let keys: Vec<String> = (0..OBJECTS).map(key).collect();
        let listed = held();
        let record =
            |key| Record { key, value: value.as_bytes(), create_revision: 1, mod_revision: 1, version: 1, lease: 0 };
        writer.load(1, keys.iter().map(|key| record(key.as_bytes()))).expect("a listing");
        let object = grown(listed, OBJECTS, contents);
        let loaded = held();
        for event in 0..EVENTS {
            let change = Change::put(&keys[(event * 7919 % OBJECTS) as usize], &value);
            writer.apply(2 + event, [change]).expect("a revision");
        }
        let event = grown(loaded, EVENTS, contents);
        println!("values of {size} bytes: an object {object}, an event {event} bytes beyond key and value");
        // Blocks are of graded sizes: a long value wastes a little of its own.
        let slack = (contents / 32) as i64;
        assert!(object <= 178 + slack, "an object of {size} bytes takes {object} more");
        assert!(event <= 178 + slack, "an event of {size} bytes takes {event} more");
        drop((writer, cache, keys));
        let most = before + (1 << 20);
        assert!(held_at_most(most) <= most, "all of it is freed");
    }
}
