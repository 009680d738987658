//! Rows about the largest single step of a writer.

use super::Contestant;
use crate::keyed::Keyed;
use crate::keyed::{
    btree::Store as BTree, imbl::Store as Imbl, papaya::Store as Papaya, watchcore::Store as Watchcore,
};
use crate::measure::{Largest, Measured};
use watchcore::{Cache, Change, Index, Start, Writer};

pub const CONTESTANTS: &[Contestant] = &[
    Contestant::new("largest-insert", "watchcore", "", largest_insert::<Watchcore>),
    Contestant::new("largest-insert", "RwLock<BTreeMap>", "", largest_insert::<BTree>),
    Contestant::new("largest-insert", "papaya", "it moves its entries by steps as it grows", largest_insert::<Papaya>),
    Contestant::new("largest-insert", "imbl", "", largest_insert::<Imbl>),
    Contestant::new("largest-opened", "watchcore", "", largest_opened),
    Contestant::new("largest-dropped", "watchcore", "", largest_dropped),
];

/// New keys in order, with an empty value, into a store that is empty at first.
fn largest_insert<S: Keyed>(objects: usize) -> Measured {
    let mut store = S::filled(0);
    let mut largest = Largest::default();
    for number in 0..objects {
        let key = format!("/registry/pods/{number:022}");
        largest.step(|| store.put(key.as_bytes(), &[]));
    }
    largest.measured()
}

/// Applies while the requests of so many subscriptions for a bucket each are answered.
fn largest_opened(subscriptions: usize) -> Measured {
    let (cache, mut writer) = cache_with_buckets();
    let all = open(&cache, subscriptions);
    let measured = applies(&mut writer, 0);
    drop(all);
    measured
}

/// Applies while the buckets of so many closed subscriptions are taken away.
fn largest_dropped(subscriptions: usize) -> Measured {
    let (cache, mut writer) = cache_with_buckets();
    let all = open(&cache, subscriptions);
    let opened = applies(&mut writer, 0);
    drop(all);
    applies(&mut writer, opened.count)
}

fn cache_with_buckets() -> (Cache, Writer) {
    let cache = Cache::builder("/").index(Index::key()).build().expect("a cache");
    let writer = cache.writer().expect("is free");
    (cache, writer)
}

fn open(cache: &Cache, count: usize) -> Vec<watchcore::Subscription> {
    let open = |number| cache.subscribe(Start::Now).key(crate::load::key(number)).open().expect("opens");
    (0..count).map(open).collect()
}

/// Enough applies to answer or take away everything, a few at a time.
fn applies(writer: &mut Writer, revision: u64) -> Measured {
    const APPLIES: u64 = 50_000;
    let mut largest = Largest::default();
    for revision in revision + 1..=revision + APPLIES {
        largest.step(|| writer.apply(revision, [Change::put("/outside", "value")]).expect("applies"));
    }
    largest.measured()
}
