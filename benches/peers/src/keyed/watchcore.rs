//! watchcore: pages that a token keeps, and snapshots that are walked in place.

use super::{Keyed, Many, Ordered, Reader, walk};
use crate::load::{self, touched};
use std::hint::black_box;
use watchcore::{Cache, Change, Range, Read, Record, Subscription, Writer};

pub struct Store {
    cache: Cache,
    writer: Writer,
    revision: u64,
}

/// A cache with the objects below `objects`, loaded as from a first listing.
pub fn filled(objects: usize) -> (Cache, Writer, u64) {
    let cache = Cache::builder("/").expect_load(true).build().expect("a cache");
    let mut writer = cache.writer().expect("is free");
    let keys = load::keys(objects);
    let record = |(at, key)| Record {
        key: String::as_bytes(key),
        value: &load::VALUE,
        create_revision: at as u64 + 1,
        mod_revision: at as u64 + 1,
        version: 1,
        lease: 0,
    };
    let revision = objects.max(1) as u64;
    writer.load(revision, keys.iter().enumerate().map(record)).expect("loads");
    (cache, writer, revision)
}

impl Keyed for Store {
    type Reader = Pages;

    fn filled(objects: usize) -> Store {
        let (cache, writer, revision) = filled(objects);
        Store { cache, writer, revision }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.revision += 1;
        self.writer.apply(self.revision, [Change::put(key, value)]).expect("applies");
    }

    fn reader(&self) -> Pages {
        Pages(self.cache.clone())
    }
}

/// Lists are pages: `Cache::list`.
#[derive(Clone)]
pub struct Pages(pub Cache);

impl Reader for Pages {
    fn get(&self, key: &[u8]) -> u64 {
        let answer = self.0.get(key, Read::Any).expect("answers");
        touched(answer.kv.expect("is there").value().expect("is no tombstone"))
    }
}

impl Many for Pages {
    fn get_many(&self, keys: &[String]) -> u64 {
        let answers = self.0.get_many(keys, Read::Any).expect("answers");
        answers.kvs.iter().map(|kv| touched(kv.as_ref().expect("is there").value().expect("is no tombstone"))).sum()
    }
}

impl Many for Walks {
    fn get_many(&self, keys: &[String]) -> u64 {
        let snapshot = self.0.0.snapshot().expect("is ready");
        let kvs = snapshot.get_many(keys);
        kvs.iter().map(|kv| touched(kv.expect("is there").value().expect("is no tombstone"))).sum()
    }
}

impl Ordered for Pages {
    fn list(&self, prefix: &str, touch: bool) -> usize {
        let page = self.0.list(&Range::prefix(prefix), Read::Any, 0).expect("answers");
        walk(page.items().iter(), touch, |item| touched(item.value().unwrap_or_default()))
    }
}

/// The same cache; lists are walks over a snapshot.
#[derive(Clone)]
pub struct Walks(Pages);

impl From<Pages> for Walks {
    fn from(pages: Pages) -> Walks {
        Walks(pages)
    }
}

impl Reader for Walks {
    fn get(&self, key: &[u8]) -> u64 {
        self.0.get(key)
    }
}

impl Ordered for Walks {
    fn list(&self, prefix: &str, touch: bool) -> usize {
        let snapshot = self.0.0.snapshot().expect("is ready");
        walk(snapshot.prefix(prefix), touch, |item| touched(item.value().unwrap_or_default()))
    }
}

/// Reads to the mark that ends the initial state, one byte of each value, and says how many objects it has.
pub fn take_state(subscription: &mut Subscription) -> usize {
    let mut objects = 0;
    loop {
        let batch = subscription.next_batch().expect("goes on").expect("is open");
        for event in &batch {
            if event.ends_initial_state() {
                return objects;
            }
            black_box(touched(event.value().unwrap_or_default()));
            objects += 1;
        }
    }
}
