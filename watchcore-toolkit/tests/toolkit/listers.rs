//! Listers and indexes of informers.

use crate::support::{BOUND, Text, delete, put, wide_cache};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;
use watchcore::{Cache, Change, Code, Filter, KeyValue, Range};
use watchcore_toolkit::Informer;

/// An index is read as of one revision, never half of it; it waits also for revisions without an object of its own.
#[test]
fn si_09_index_shows_whole_revisions() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    let informer = Informer::<Text>::builder(&cache)
        .filter(Filter::any().path("/a"))
        .index("value", |text: &Text| vec![text.to_string()])
        .build()
        .unwrap();
    let lister = informer.lister();
    informer.wait_synced(BOUND).unwrap();
    let reading = {
        let lister = lister.clone();
        thread::spawn(move || {
            loop {
                let (odd, even) = (lister.by_index("value", "odd").unwrap(), lister.by_index("value", "even").unwrap());
                assert!(matches!(odd.len(), 0 | 20), "{}", odd.len());
                assert!(matches!(even.len(), 0 | 20), "{}", even.len());
                if lister.get("/a/end").unwrap().is_some() {
                    return;
                }
            }
        })
    };
    for revision in 1..=500 {
        let value = if revision % 2 == 0 { "even" } else { "odd" };
        let keys: Vec<String> = (0..20).map(|key| format!("/a/{key}")).collect();
        writer.apply(revision, keys.iter().map(|key| Change::put(key, value))).unwrap();
    }
    put(&mut writer, "/a/end", "end");
    reading.join().unwrap();
    let elsewhere = put(&mut writer, "/b", "no object of this informer");
    assert_eq!(lister.wait_until(elsewhere, BOUND).unwrap().revision, elsewhere);
    writer.progress(elsewhere + 10).unwrap();
    assert_eq!(lister.wait_until(elsewhere + 10, BOUND).unwrap().revision, elsewhere + 10);
    let future = lister.wait_until(elsewhere + 11, Duration::from_millis(1)).unwrap_err();
    assert_eq!(future.code(), Code::FutureRevision);
}

/// An index that does not come ends both waits for it at their timeouts, with the same error.
#[test]
fn si_09_index_that_stands_ends_waits_in_time() {
    let cache = wide_cache();
    let (go, stands) = mpsc::channel::<()>();
    let stands = Mutex::new(stands);
    let informer = Informer::<Text>::builder(&cache)
        .index("never", move |_: &Text| {
            stands.lock().unwrap().recv().ok();
            vec![]
        })
        .build()
        .unwrap();
    let lister = informer.lister();
    informer.wait_synced(BOUND).unwrap();
    let revision = put(&mut cache.writer().unwrap(), "/a", "1");
    let blocking = lister.wait_until(revision, Duration::from_millis(1)).unwrap_err();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let awaited = lister.wait_until_async(revision, Duration::from_millis(1));
    let awaited = runtime.block_on(async { tokio::time::timeout(BOUND, awaited).await });
    let awaited = awaited.expect("it has a timeout of its own").unwrap_err();
    assert_eq!((awaited.code(), awaited.message()), (Code::FutureRevision, blocking.message()));
    drop(go);
    runtime.block_on(lister.wait_until_async(revision, Duration::MAX)).unwrap();
}

/// Indexes that a panic of the filter's predicate has ended say so to who waits, and to who reads.
#[test]
fn si_09_predicate_that_panics_ends_the_indexes() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    let filter = Filter::any().predicate(|kv| {
        assert_ne!(kv.value(), Some(&b"boom"[..]), "the predicate's fault");
        true
    });
    let builder = Informer::<Text>::builder(&cache).filter(filter);
    let informer = builder.index("value", |text: &Text| vec![text.to_string()]).build().unwrap();
    let lister = informer.lister();
    informer.wait_synced(BOUND).unwrap();
    let revision = put(&mut writer, "/a", "boom");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for error in [
        lister.wait_until(revision, BOUND).unwrap_err(),
        runtime.block_on(lister.wait_until_async(revision, BOUND)).unwrap_err(),
        lister.by_index("value", "boom").unwrap_err(),
        lister.index_values("value").unwrap_err(),
    ] {
        assert_eq!(error.code(), Code::Closed);
        assert!(error.message().contains("predicate"), "{error}");
    }
}

/// Indexes that were stopped are read as they stand. One that there is not is refused with the names of those that there are.
#[test]
fn si_09_stopped_indexes_are_read() {
    let cache = wide_cache();
    put(&mut cache.writer().unwrap(), "/a", "1");
    let builder = Informer::<Text>::builder(&cache).index("value", |text| vec![text.to_string()]);
    let informer = builder.index("length", |text| vec![text.len().to_string()]).build().unwrap();
    informer.wait_synced(BOUND).unwrap();
    informer.stop();
    assert_eq!(informer.lister().wait_until(2, Duration::from_millis(1)).unwrap_err().code(), Code::FutureRevision);
    assert_eq!(informer.lister().by_index("value", "1").unwrap().len(), 1);
    assert_eq!(informer.lister().by_index("length", "1").unwrap().len(), 1);
    let unknown = informer.lister().by_index("colour", "red").unwrap_err();
    assert!(unknown.message().contains("value, length"), "{unknown}");
}

/// Reads: by key, range, namespace, filter; of now and of a snapshot, in two informers at one revision.
#[test]
fn si_09_reads_of_a_lister() {
    let labels = watchcore::Labels::json("/l").unwrap();
    let cache = Cache::builder("/r/").labels(labels).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let of = |path| Informer::<KeyValue>::builder(&cache).filter(Filter::any().path(path)).build().unwrap();
    let (pods, nodes) = (of("/r/pods"), of("/r/nodes"));
    let all = Informer::<KeyValue>::new(&cache).unwrap();
    let web = r#"{"l":{"app":"web"}}"#;
    writer
        .apply(1, [Change::put("/r/pods/a", web), Change::put("/r/pods/b", "{}"), Change::put("/r/nodes/n", web)])
        .unwrap();
    let snapshot = cache.snapshot().unwrap();
    delete(&mut writer, "/r/pods/a");
    let (pods, nodes, all) = (pods.lister(), nodes.lister(), all.lister());
    assert_eq!((pods.list().unwrap().len(), nodes.list().unwrap().len()), (1, 1));
    assert_eq!(pods.list().unwrap().position, cache.position());
    assert!(pods.get("/r/nodes/n").unwrap().is_none(), "outside of its filter");
    assert!(nodes.get("/r/nodes/n").unwrap().is_some());
    assert_eq!(all.namespace("pods").unwrap().len(), 1);
    assert_eq!(all.namespace("pod").unwrap().len(), 0);
    assert_eq!(all.range(&Range::prefix("/r/")).unwrap().len(), 2);
    assert_eq!(all.select(&Filter::any().labels("app=web").unwrap()).unwrap().len(), 1);
    let mut seen = Vec::new();
    let position = pods.visit(&Range::all(), |kv, pod| seen.push((kv.key().to_vec(), pod.unwrap().version()))).unwrap();
    assert_eq!((seen, position), (vec![(b"/r/pods/b".to_vec(), 1)], cache.position()));
    let (pods_then, nodes_then) = (pods.at(&snapshot).unwrap(), nodes.at(&snapshot).unwrap());
    assert_eq!((pods_then.list().unwrap().len(), nodes_then.list().unwrap().len()), (2, 1));
    assert_eq!(pods_then.position(), nodes_then.position());
    assert!(pods_then.get("/r/pods/a").unwrap().is_some() && pods_then.get("/r/nodes/n").unwrap().is_none());
    assert_eq!(pods_then.select(&Filter::any().labels("app=web").unwrap()).unwrap().len(), 1);
    let other = Cache::builder("/r/").name("other").build().unwrap();
    assert_eq!(pods.at(&other.snapshot().unwrap()).unwrap_err().code(), Code::InvalidArgument);
}

/// A value that cannot be decoded is no reason not to list the others, and is not left out in silence.
#[test]
fn rf_14_lists_name_what_they_cannot_decode() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/a", "1"), Change::put("/b", &[0xff_u8]), Change::put("/c", "3")]).unwrap();
    let lister = Informer::<Text>::new(&cache).unwrap().lister();
    let listed = lister.list().unwrap();
    assert_eq!(listed.iter().map(|text| text.as_str()).collect::<Vec<_>>(), ["1", "3"]);
    let [(kv, error)] = &listed.refused[..] else { panic!("one is refused") };
    assert!(kv.key() == b"/b" && error.message().contains("/b"), "{error}");
    assert_eq!(lister.get("/b").unwrap_err().code(), Code::InvalidArgument);
    let mut refused = 0;
    lister.visit(&Range::all(), |_, text| refused += u32::from(text.is_err())).unwrap();
    assert_eq!(refused, 1);
}
