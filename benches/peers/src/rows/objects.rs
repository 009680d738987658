//! Rows about objects: writing them, reading one, reading many, and what one takes of the memory.

use super::Contestant;
use crate::keyed::btree::{self, Store as BTree};
use crate::keyed::imbl::{self, Store as Imbl};
use crate::keyed::papaya::Store as Papaya;
use crate::keyed::watchcore::{Pages, Store as Watchcore, Walks};
use crate::keyed::{Keyed, Many, Ordered, Reader};
use crate::load::{self, NAMESPACE, PREFIX, Scattered, VALUE, key, keys, new_key};
use crate::measure::{Measured, Section, allocated, at_least, process_time, repeat};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use watchcore::Start;

const BTREE: &str = "RwLock<BTreeMap>";
const PUBLISHED: &str = "the new version of the map is published under an RwLock";
const PAGED: &str = "a page of addresses, kept by one token";
const LOCKED: &str = "walked in place under the lock: writers wait meanwhile";
const WALKED: &str = "a snapshot, walked in place";
const NO_LOCK: &str = "no lock for readers";

pub const CONTESTANTS: &[Contestant] = &[
    Contestant::new("overwrite", "watchcore", "", overwrite::<Watchcore>),
    Contestant::new("overwrite", BTREE, "", overwrite::<BTree>),
    Contestant::new("overwrite", "papaya", "", overwrite::<Papaya>),
    Contestant::new("overwrite", "imbl", PUBLISHED, overwrite::<Imbl>),
    Contestant::new("insert", "watchcore", "", insert::<Watchcore>),
    Contestant::new("insert", BTREE, "", insert::<BTree>),
    Contestant::new("insert", "papaya", "", insert::<Papaya>),
    Contestant::new("insert", "imbl", PUBLISHED, insert::<Imbl>),
    Contestant::new("get", "watchcore", "", get::<Watchcore>),
    Contestant::new("get", BTREE, "", get::<BTree>),
    Contestant::new("get", "papaya", NO_LOCK, get::<Papaya>),
    Contestant::new("get", "imbl", "under the RwLock", get::<Imbl>),
    Contestant::new("get-many", "watchcore", "Cache::get_many", get_many::<Watchcore, Pages>),
    Contestant::new("get-many", "watchcore, snapshot", "Snapshot::get_many", get_many::<Watchcore, Walks>),
    Contestant::new("get-many", "watchcore, gets", "", get::<Watchcore>),
    Contestant::new("get-many", BTREE, "", get::<BTree>),
    Contestant::new("get-many", "papaya", NO_LOCK, get::<Papaya>),
    Contestant::new("get-many", "imbl", "under the RwLock", get::<Imbl>),
    Contestant::new("get-together", "watchcore", "", get_together::<Watchcore>),
    Contestant::new("get-together", BTREE, "", get_together::<BTree>),
    Contestant::new("get-together", "papaya", NO_LOCK, get_together::<Papaya>),
    Contestant::new("get-together", "imbl", "under the RwLock", get_together::<Imbl>),
    Contestant::new("list", "watchcore, page", PAGED, list::<Watchcore, Pages>),
    Contestant::new("list", "watchcore, snapshot", WALKED, list::<Watchcore, Walks>),
    Contestant::new("list", BTREE, LOCKED, list::<BTree, btree::Shared>),
    Contestant::new("list", "imbl", WALKED, list::<Imbl, imbl::Shared>),
    Contestant::new("list-touched", "watchcore, page", PAGED, list_touched::<Watchcore, Pages>),
    Contestant::new("list-touched", "watchcore, snapshot", WALKED, list_touched::<Watchcore, Walks>),
    Contestant::new("list-touched", BTREE, LOCKED, list_touched::<BTree, btree::Shared>),
    Contestant::new("list-touched", "imbl", WALKED, list_touched::<Imbl, imbl::Shared>),
    Contestant::new("prefix", "watchcore, page", PAGED, prefix::<Watchcore, Pages>),
    Contestant::new("prefix", "watchcore, snapshot", WALKED, prefix::<Watchcore, Walks>),
    Contestant::new("prefix", BTREE, LOCKED, prefix::<BTree, btree::Shared>),
    Contestant::new("prefix", "imbl", WALKED, prefix::<Imbl, imbl::Shared>),
    Contestant::new("prefix-touched", "watchcore, page", PAGED, prefix_touched::<Watchcore, Pages>),
    Contestant::new("prefix-touched", "watchcore, snapshot", WALKED, prefix_touched::<Watchcore, Walks>),
    Contestant::new("prefix-touched", BTREE, LOCKED, prefix_touched::<BTree, btree::Shared>),
    Contestant::new("prefix-touched", "imbl", WALKED, prefix_touched::<Imbl, imbl::Shared>),
    Contestant::new("state", "watchcore", "ten subscriptions from Start::State to the end mark", state_watchcore),
    Contestant::new("state", BTREE, LOCKED, state::<BTree>),
    Contestant::new("state", "imbl", WALKED, state::<Imbl>),
    Contestant::new("bytes-object", "watchcore", "", bytes::<Watchcore>),
    Contestant::new("bytes-object", BTREE, "", bytes::<BTree>),
    Contestant::new("bytes-object", "papaya", "", bytes::<Papaya>),
    Contestant::new("bytes-object", "imbl", "", bytes::<Imbl>),
];

/// Operations of which the keys are made at once.
const CHUNK: usize = 1000;

/// Keys that are just made, as those of a request are that just came: whoever takes one waits for no line of memory.
struct Made {
    order: Scattered,
    key: fn(usize) -> String,
    keys: Vec<String>,
}

impl Made {
    fn new(objects: usize, key: fn(usize) -> String) -> Made {
        Made { order: Scattered::below(objects), key, keys: Vec::with_capacity(CHUNK) }
    }

    /// The next ones: while nothing is measured.
    fn next(&mut self, section: &mut Section) -> &[String] {
        section.waiting(|| {
            self.keys.clear();
            self.keys.extend((0..CHUNK).map(|_| (self.key)(self.order.next())));
        });
        &self.keys
    }
}

fn overwrite<S: Keyed>(objects: usize) -> Measured {
    let (mut store, mut made) = (S::filled(objects), Made::new(objects, key));
    let mut write = |section: &mut Section| {
        made.next(section).iter().for_each(|key| store.put(key.as_bytes(), &VALUE));
        CHUNK as u64
    };
    // The window of the log fills, and what was loaded in one piece is replaced in many.
    let mut before = Section::begin();
    (0..load::FILLS_A_LOG).step_by(CHUNK).for_each(|_| _ = write(&mut before));
    repeat(write)
}

/// As many new keys as there are objects, at most.
fn insert<S: Keyed>(objects: usize) -> Measured {
    let (mut store, mut made, mut left) = (S::filled(objects), Made::new(objects, new_key), objects);
    let mut section = Section::begin();
    let (until, mut count) = (Instant::now() + at_least(), 0);
    while left >= CHUNK && Instant::now() < until {
        made.next(&mut section).iter().for_each(|key| store.put(key.as_bytes(), &VALUE));
        (left, count) = (left - CHUNK, count + CHUNK as u64);
    }
    section.end(count)
}

/// So many reads, scattered over all objects.
fn reads<R: Reader>(reader: &R, keys: &[String], order: &mut Scattered, count: u64) {
    (0..count).for_each(|_| _ = black_box(reader.get(keys[order.next()].as_bytes())));
}

fn get<S: Keyed>(objects: usize) -> Measured {
    let (store, mut made) = (S::filled(objects), Made::new(objects, key));
    let reader = store.reader();
    repeat(|section| {
        made.next(section).iter().for_each(|key| _ = black_box(reader.get(key.as_bytes())));
        CHUNK as u64
    })
}

/// Keys that are read at once.
const MANY: usize = 100;

fn get_many<S: Keyed, R: Many + From<S::Reader>>(objects: usize) -> Measured {
    let (store, mut made) = (S::filled(objects), Made::new(objects, key));
    let reader = R::from(store.reader());
    repeat(|section| {
        made.next(section).chunks(MANY).for_each(|keys| _ = black_box(reader.get_many(keys)));
        CHUNK as u64
    })
}

/// Two threads of reads against one: how many times as many reads they do.
///
/// Twice the processor time of a read alone against that of a read beside another: other load on the
/// machine does not count. Beside it the ratio by the clock on the wall.
fn get_together<S: Keyed>(objects: usize) -> Measured {
    let store = S::filled(objects);
    let (reader, keys) = (store.reader(), keys(objects));
    let run = |threads: usize| {
        let (count, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let (begun, before) = (Instant::now(), process_time());
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (reader, keys, count, stop) = (reader.clone(), &keys, &count, &stop);
                let mut order = Scattered::below(objects);
                (0..thread * objects / 2).for_each(|_| _ = order.next());
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        reads(&reader, keys, &mut order, 1000);
                        count.fetch_add(1000, Ordering::Relaxed);
                    }
                });
            }
            std::thread::sleep(at_least());
            stop.store(true, Ordering::Relaxed);
        });
        let count = count.into_inner() as f64;
        ((process_time() - before).as_secs_f64() / count, begun.elapsed().as_secs_f64() / count, count)
    };
    let (alone, together) = (run(1), run(2));
    Measured::with_beside(2.0 * alone.0 / together.0, alone.1 / together.1, together.2 as u64)
}

fn lists<S: Keyed, R: Ordered + From<S::Reader>>(objects: usize, prefix: &str, items: usize, touch: bool) -> Measured {
    let store = S::filled(objects);
    let reader = R::from(store.reader());
    repeat(|_| {
        assert_eq!(reader.list(prefix, touch), items, "all objects of {prefix}");
        1
    })
}

fn list<S: Keyed, R: Ordered + From<S::Reader>>(objects: usize) -> Measured {
    lists::<S, R>(objects, PREFIX, objects, false)
}

fn list_touched<S: Keyed, R: Ordered + From<S::Reader>>(objects: usize) -> Measured {
    lists::<S, R>(objects, PREFIX, objects, true)
}

/// Objects of the store whose namespaces are listed.
const OBJECTS: usize = 150_000;

fn prefix<S: Keyed, R: Ordered + From<S::Reader>>(items: usize) -> Measured {
    lists::<S, R>(OBJECTS, &load::namespace(OBJECTS / NAMESPACE / 2), items, false)
}

fn prefix_touched<S: Keyed, R: Ordered + From<S::Reader>>(items: usize) -> Measured {
    lists::<S, R>(OBJECTS, &load::namespace(OBJECTS / NAMESPACE / 2), items, true)
}

/// Ten watchers take the whole state at once while 1000 objects a second are written.
fn ten_watchers<S: Keyed>(mut store: S, objects: usize, prepare: impl Fn() -> Take) -> Measured {
    const WATCHERS: usize = 10;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut order = Scattered::below(objects);
            while !stop.load(Ordering::Relaxed) {
                store.put(key(order.next()).as_bytes(), &VALUE);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let measured = repeat(|_| {
            std::thread::scope(|scope| {
                for _ in 0..WATCHERS {
                    let take = prepare();
                    scope.spawn(move || assert_eq!(take(), objects, "the whole state"));
                }
            });
            1
        });
        stop.store(true, Ordering::Relaxed);
        measured
    })
}

/// Takes the whole state once, touches each value, and says how many objects it has.
type Take = Box<dyn FnOnce() -> usize + Send>;

fn state<S: Keyed<Reader: Ordered>>(objects: usize) -> Measured {
    let store = S::filled(objects);
    let reader = store.reader();
    ten_watchers(store, objects, || {
        let reader = reader.clone();
        Box::new(move || reader.list(PREFIX, true))
    })
}

fn state_watchcore(objects: usize) -> Measured {
    let store = Watchcore::filled(objects);
    let Pages(cache) = store.reader();
    ten_watchers(store, objects, || {
        let mut subscription = cache.subscribe(Start::State).open().expect("opens");
        Box::new(move || crate::keyed::watchcore::take_state(&mut subscription))
    })
}

/// What an object takes of the allocator beyond the bytes of its key and its value.
fn bytes<S: Keyed>(objects: usize) -> Measured {
    let before = allocated();
    let store = S::filled(objects);
    let bytes = allocated().saturating_sub(before) as f64 / objects as f64;
    drop(store);
    Measured::plain(bytes - (key(0).len() + VALUE.len()) as f64, objects as u64)
}
