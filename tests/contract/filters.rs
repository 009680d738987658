//! Section 4: selectors, conjunctions and predicates; section 3: the boundary of a filter.

use crate::tools::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use watchcore::*;

/// Values are `web Running`: the label app, absent where the value is empty, and the field phase.
fn attributed() -> (Cache, Writer) {
    let words = |value: &[u8]| text(value).split(' ').map(str::to_string).collect::<Vec<_>>();
    let labels = Labels::extractor(move |_, value| {
        let app = words(value).swap_remove(0);
        Ok::<_, String>(if value.is_empty() { Vec::new() } else { vec![(b"app".to_vec(), app.into())] })
    });
    let phase = Attribute::extractor("phase", move |_, value| {
        Ok::<_, String>(words(value).get(1).map(|phase| phase.clone().into()))
    });
    let cache = Cache::builder("/").labels(labels).field(phase).build().unwrap();
    let writer = cache.writer().unwrap();
    (cache, writer)
}

fn pod(app: &str, phase: &str) -> String {
    format!("{app} {phase}")
}

#[test]
fn predicates_choose_for_subscriptions_and_reads() {
    let (cache, mut writer) = attributed();
    let objects = [("/1", "web", "Running"), ("/2", "web", "Pending"), ("/3", "db", "Running"), ("/4", "", "")];
    let values: Vec<String> = objects.iter().map(|(_, app, phase)| pod(app, phase)).collect();
    let mut changes: Vec<Change> =
        objects.iter().zip(&values).map(|((key, ..), value)| Change::put(key, value)).collect();
    changes.push(Change::put("/5", ""));
    writer.apply(1, changes).unwrap();
    let labels = |text: &str| Filter::any().labels(text).unwrap();
    let rows: Vec<(Filter, &[&str])> = vec![
        (Filter::none().and(labels("app=web")), &[]),
        (Filter::any().predicate(|kv| kv.key() > &b"/3"[..]), &["/4", "/5"]),
        (labels("app").predicate(|kv| kv.key() > &b"/1"[..]), &["/2", "/3", "/4"]),
    ];
    for (filter, must) in rows {
        let mut state = cache.subscribe(Start::State).filter(filter.clone()).open().unwrap();
        let shown = state.poll(100).unwrap();
        let keys: Vec<String> = shown.into_iter().map(|event| text(event.key())).collect();
        assert_eq!(keys[..keys.len() - 1], *must, "{filter:?}");
        let mut history = cache.subscribe(Start::After(0)).filter(filter.clone()).open().unwrap();
        let keys: Vec<String> = history.poll(100).unwrap().into_iter().map(|event| text(event.key())).collect();
        assert_eq!(keys, must, "{filter:?}");
        let options = ReadOptions::new(Read::Any).filter(filter.clone());
        let page = cache.list_with(&Range::all(), &options).unwrap();
        assert_eq!(page.iter().map(|kv| text(kv.key())).collect::<Vec<_>>(), must, "{filter:?}");
        assert_eq!(cache.count_with(&Range::all(), &options).unwrap().count, must.len() as u64);
        let found = ["/1", "/2", "/3", "/4", "/5"]
            .into_iter()
            .filter(|key| cache.get_with(key, &options).unwrap().kv.is_some());
        assert_eq!(found.collect::<Vec<_>>(), must, "{filter:?}");
    }
}

#[test]
fn each_distinct_filter_is_evaluated_once_an_event() {
    let (cache, mut writer) = embedded();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    let filter = Filter::any().predicate(move |kv| {
        counted.fetch_add(1, SeqCst);
        kv.key() == b"/wanted"
    });
    let set = WakeSet::new().unwrap();
    let open = |filter: &Filter| cache.subscribe(Start::Now).filter(filter.clone()).open().unwrap();
    let mut parked: Vec<Subscription> = (0..50).map(|_| open(&filter)).collect();
    for (tag, one) in (0..).zip(&mut parked) {
        set.add(one, tag).unwrap();
        assert!(!one.arm().unwrap());
    }
    let before = calls.load(SeqCst);
    // The clock's own filter shows when the notifier has looked at everything.
    let mut clock = cache.subscribe(Start::Now).key("/clock").open().unwrap();
    let ticks = WakeSet::new().unwrap();
    ticks.add(&mut clock, 99).unwrap();
    assert!(!clock.arm().unwrap());
    for revision in 1..=100 {
        writer.apply(revision, [Change::put(&format!("/{revision}"), "x")]).unwrap();
    }
    writer.apply(101, [Change::put("/clock", "x")]).unwrap();
    assert!(ticks.wait(BOUND));
    writer.apply(102, [Change::put("/wanted", "x")]).unwrap();
    let mut tags = [0; 64];
    let mut woken = 0;
    while woken < 50 {
        assert!(set.wait(BOUND));
        woken += set.take(&mut tags);
    }
    // An event asks for the value before too, where there is one: here there is none.
    assert_eq!(calls.load(SeqCst) - before, 102, "for 50 parked subscriptions");
}

#[test]
fn equal_filters_of_one_bucket_are_evaluated_once_an_event_too() {
    let cache = Cache::builder("/").index(Index::prefix(1)).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    let filter = Filter::any().prefix("/a/").predicate(move |kv| {
        counted.fetch_add(1, SeqCst);
        kv.key() == b"/a/wanted"
    });
    let set = WakeSet::new().unwrap();
    let mut parked: Vec<Subscription> =
        (0..50).map(|_| cache.subscribe(Start::Now).filter(filter.clone()).open().unwrap()).collect();
    // The writer answers some of those who ask for a bucket with each revision.
    for revision in 1..=10 {
        writer.apply(revision, [Change::put("/b/x", "")]).unwrap();
    }
    for (tag, one) in (0..).zip(&mut parked) {
        assert!(one.poll(1).unwrap().is_empty());
        assert_eq!(one.stats().read_path, ReadPath::Chain { index: "prefix of depth 1".into() });
        set.add(one, tag).unwrap();
        assert!(!one.arm().unwrap());
    }
    for revision in 11..60 {
        writer.apply(revision, [Change::put(&format!("/a/{revision}"), "x")]).unwrap();
    }
    writer.apply(60, [Change::put("/a/wanted", "x")]).unwrap();
    let mut tags = [0; 64];
    let mut woken = 0;
    while woken < 50 {
        assert!(set.wait(BOUND));
        woken += set.take(&mut tags);
    }
    assert_eq!(calls.load(SeqCst), 50, "for 50 parked subscriptions");
}
