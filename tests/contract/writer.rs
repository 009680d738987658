//! Section 10: the writer's verbs and refusals, the builder's bounds, the threads.

use crate::tools::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use watchcore::raw::{TestBuilder as _, quiesce};
use watchcore::*;

/// Everything that a refused call must leave as it was.
fn all_of(cache: &Cache) -> impl PartialEq + std::fmt::Debug + use<> {
    let stats = cache.stats();
    let numbers = (stats.events, stats.revisions, stats.objects, stats.segments, stats.tombstones);
    (state(cache), cache.position(), cache.oldest(), numbers, stats.version_bytes)
}

#[test]
fn a_panicking_iterator_changes_nothing() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [1]);
    let before = format!("{:?}", all_of(&cache));
    for at in 0..3 {
        let changes = (0..4)
            .map(|n| if n == at { panic!("foreign code") } else { Change::put(["/a", "/b", "/c", "/d"][n], "x") });
        assert!(catch_unwind(AssertUnwindSafe(|| writer.apply(2, changes))).is_err());
        let records = (0..4).map(|n| if n == at { panic!("foreign code") } else { record("/a", "x", 1, 1, 1) });
        assert!(catch_unwind(AssertUnwindSafe(|| writer.resync(2, records, ResyncReason::Requested))).is_err());
        assert_eq!(format!("{:?}", all_of(&cache)), before);
    }
    // And the writer works on.
    write(&mut writer, [2]);
    let (_cache, mut writer) = unloaded();
    let records = (0..2).map(|n| if n == 1 { panic!("foreign code") } else { record("/a", "x", 1, 1, 1) });
    assert!(catch_unwind(AssertUnwindSafe(|| writer.load(2, records))).is_err());
    assert!(!writer.is_loaded());
    writer.load(2, [record("/a", "x", 1, 1, 1)]).unwrap();
}

#[test]
fn a_listing_comes_in_pieces_and_shows_at_its_end() {
    let (cache, mut writer) = unloaded();
    let given_up = {
        let mut loading = writer.begin_load(5).unwrap();
        writer.load_more(&mut loading, [record("/gone", "1", 1, 1, 1)]).unwrap();
        loading
    };
    drop(given_up);
    let mut loading = writer.begin_load(8).unwrap();
    assert!(loading.is_empty() && loading.revision() == 8);
    writer.load_more(&mut loading, [record("/b", "1", 1, 8, 5), record("/c", "1", 1, 1, 1)]).unwrap();
    refused(
        writer.load_more(&mut loading, [record("/a", "", 2, 2, 1), record("/z", "1", 1, 9, 1)]),
        Code::InvalidArgument,
    );
    assert_eq!((loading.len(), cache.status().objects, cache.status().state), (3, 0, State::NotReady));
    // Of another cache: neither takes it.
    let (_other, mut others) = unloaded();
    refused(others.load_more(&mut loading, []), Code::InvalidArgument);
    refused(others.finish_load(loading), Code::InvalidArgument);

    let mut twice = writer.begin_load(8).unwrap();
    writer.load_more(&mut twice, [record("/b", "1", 1, 1, 1)]).unwrap();
    writer.load_more(&mut twice, [record("/a", "1", 1, 1, 1), record("/b", "2", 1, 1, 1)]).unwrap();
    refused(writer.finish_load(twice), Code::InvalidArgument);
    assert!(!writer.is_loaded());

    let mut loading = writer.begin_load(8).unwrap();
    for at in (0..1000).rev() {
        let key = format!("/{at:03}");
        writer.load_more(&mut loading, [record(&key, "v", 1, 1 + at % 8, 1)]).unwrap();
    }
    let late = writer.begin_load(8).unwrap();
    // It outlives the writer that began it.
    drop(writer);
    let mut writer = cache.writer().unwrap();
    writer.finish_load(loading).unwrap();
    let all = cache.list(&Range::all(), Read::Any, 0).unwrap();
    assert!(all.len() == 1000 && all.items().is_sorted_by(|a, b| a.key() < b.key()));
    refused(writer.finish_load(late), Code::OutOfOrder);
    refused(writer.begin_load(9), Code::OutOfOrder);
    cache.close();
    refused(writer.begin_load(9), Code::Closed);
}

#[test]
fn a_listing_that_is_given_up_outlives_its_cache() {
    let (cache, mut writer) = unloaded();
    let mut loading = writer.begin_load(8).unwrap();
    writer.load_more(&mut loading, [record("/b", "1", 1, 8, 5)]).unwrap();
    drop((writer, cache));
    std::thread::spawn(move || drop(loading)).join().unwrap();
}

#[test]
fn what_users_keep_is_send_and_sync() {
    fn shared<T: Send + Sync + 'static>() {}
    fn sent<T: Send + 'static>() {}
    shared::<Batch>();
    shared::<Event>();
    shared::<KeyValue>();
    shared::<Snapshot>();
    shared::<Page>();
    shared::<Answer>();
    shared::<Cache>();
    shared::<Closer>();
    shared::<WakeSet>();
    shared::<Error>();
    shared::<Status>();
    sent::<Subscription>();
    sent::<SubscribeBuilder>();
    sent::<Writer>();
    sent::<Waiter>();
    assert_eq!((size_of::<Event>(), align_of::<Event>()), (64, 64), "one cache line");
    assert_eq!(size_of::<KeyValue>(), size_of::<usize>());
    assert_eq!(size_of::<Error>(), size_of::<usize>());
}

/// One notifier and one reclaimer a process, and one notifier for predicates: named, all signals blocked.
#[cfg(target_os = "linux")]
#[test]
fn the_threads_of_the_core_are_named_and_take_no_signals() {
    let (cache, mut writer) = tiny();
    let mut one = cache.subscribe(Start::Now).open().unwrap();
    let waits = spawn(move || one.wait(BOUND));
    until_asleep(&cache);
    write(&mut writer, 1..=300);
    assert!(waits.end().unwrap());
    drop(cache.subscribe(Start::Now).filter(Filter::any().predicate(|_| true)).open().unwrap());
    // A thread names itself when it begins.
    until("all are there and named", || {
        threads_of_the_core() == ["watchcore-free", "watchcore-pred", "watchcore-wake"]
    });
}

/// Their names; none of them takes a signal.
#[cfg(target_os = "linux")]
fn threads_of_the_core() -> Vec<String> {
    let mut found = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let status = task.unwrap().path().join("status");
        // Threads of other tests come and go.
        let Ok(status) = std::fs::read_to_string(status) else { continue };
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim().to_string();
        let name = field("Name:");
        if name.starts_with("watchcore") {
            let blocked = u64::from_str_radix(&field("SigBlk:"), 16).unwrap();
            // 9, 19 cannot be blocked; 32 and 33 are the C library's.
            let free = !blocked & !(1 << 8 | 1 << 18 | 1 << 31 | 1 << 32);
            assert_eq!(free, 0, "{name} takes signals {free:x}");
            found.push(name);
        }
    }
    found.sort();
    found
}

#[test]
fn the_highest_version_stays() {
    let (cache, mut writer) = embedded();
    let highest = Record { version: u64::MAX, ..record("/a", "1", 1, 1, 1) };
    writer.apply(1, [Change::put_exact(highest)]).unwrap();
    writer.apply(2, [Change::put("/a", "2")]).unwrap();
    assert_eq!(state(&cache), [("/a".into(), "2".into(), 1, 2, u64::MAX)]);
}

#[test]
fn refused_source_is_invisible() {
    let (cache, mut writer) = embedded();
    let live = cache.subscribe(Start::Now).open().unwrap();
    let reading = {
        let cache = cache.clone();
        spawn(move || {
            for _ in 0..200_000 {
                cache.get("/k", Read::Any).unwrap();
            }
        })
    };
    while !reading.is_over() {
        assert_eq!(writer.attach(std::sync::Arc::<Counting>::default()).unwrap_err().code(), Code::Busy);
    }
    reading.end();
    drop(live);
    writer.attach(std::sync::Arc::<Counting>::default()).unwrap();
    assert_eq!(cache.status().state, State::NotReady);
}

/// Bytes that the caller shares are handed out as they are, beside attributes and decoded values, and are the caller's
/// alone again when nobody in the cache has them.
#[test]
fn shared_values_are_not_copied_and_come_back() {
    let length = |_: &[u8], value: &[u8]| Ok::<_, String>(value.len());
    // The first word is the field, the second one the label app.
    let word = |value: &[u8], at: usize| value.split(|byte| *byte == b' ').nth(at).map(<[u8]>::to_vec);
    let field = Attribute::extractor("f", move |_, value| Ok::<_, String>(word(value, 0)));
    let labels = Labels::extractor(move |_, value| {
        Ok::<_, String>(word(value, 1).into_iter().map(|app| (b"app".to_vec(), app)).collect())
    });
    let schema = |builder: Builder| builder.field(field.clone()).labels(labels.clone()).decoder(length);
    let bytes: Arc<[u8]> = Arc::from(&b"one web"[..]);
    for has_schema in [false, true] {
        let builder = if has_schema { schema(Cache::builder("/")) } else { Cache::builder("/") };
        let cache = builder.capacity(128).segment_slots(4).max_value_bytes(64).build().unwrap();
        let mut writer = cache.writer().unwrap();
        let mut all = cache.subscribe(Start::Now).open().unwrap();
        writer.apply(1, [Change::put_shared("/a", &bytes)]).unwrap();
        writer.apply(2, [Change::put_shared("/a", &bytes), Change::put_shared("/b", &bytes)]).unwrap();
        assert_eq!(Arc::strong_count(&bytes), 4);
        let (long, outside): (Arc<[u8]>, _) = (Arc::from(vec![0; 65]), Change::put_shared("x", &bytes));
        assert_eq!(writer.apply(3, [Change::put_shared("/a", &long)]).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(writer.apply(3, [outside]).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!((Arc::strong_count(&bytes), Arc::strong_count(&long)), (4, 1), "what is refused keeps nothing");

        let batch = all.poll(10).unwrap();
        let values: Vec<_> = batch.events().iter().map(|event| event.value().unwrap().as_ptr()).collect();
        assert_eq!(values, [bytes.as_ptr(); 3]);
        assert_eq!(batch.events()[1].prev_value().map(<[u8]>::as_ptr), Some(bytes.as_ptr()));
        let kv = cache.get("/a", Read::Any).unwrap().kv.unwrap();
        assert_eq!((kv.key(), kv.value(), kv.version()), (&b"/a"[..], Some(&bytes[..]), 2));
        if has_schema {
            assert_eq!(kv.decoded::<usize>().unwrap(), Some(&bytes.len()));
            let selected =
                |filter| cache.list_with(&Range::all(), &ReadOptions::new(Read::Any).filter(filter)).unwrap().len();
            assert_eq!(selected(Filter::any().fields("f=one").unwrap().labels("app=web").unwrap()), 2);
            assert_eq!(selected(Filter::any().fields("f=two").unwrap()), 0);
        }
        // A listing with the same bytes is no change; copied ones in their place leave the shared ones to the window.
        let record = |key| Record { key, value: &bytes, create_revision: 2, mod_revision: 2, version: 1, lease: 0 };
        writer
            .resync(
                5,
                [Record { create_revision: 1, version: 2, ..record(b"/a") }, record(b"/b")],
                ResyncReason::Requested,
            )
            .unwrap();
        assert!(all.poll(10).unwrap().events().iter().all(|event| event.kind() == Kind::Resync), "nothing differs");
        for revision in 6..140 {
            writer.apply(revision, [Change::put("/a", "copied"), Change::put("/b", "copied")]).unwrap();
        }
        drop((all, kv));
        assert_eq!(batch.events()[2].value(), Some(&bytes[..]), "a batch keeps what it shows");
        drop(batch);
        // The notifier may have the cache, or a waiter, for a moment longer.
        let is_alone = || quiesce(Duration::from_secs(60)) && Arc::strong_count(&bytes) == 1;
        until("the bytes are ours alone", is_alone);
        writer.apply(140, [Change::put_shared("/a", &bytes)]).unwrap();
        drop((cache, writer));
        until("they go with the cache", is_alone);
    }
}
