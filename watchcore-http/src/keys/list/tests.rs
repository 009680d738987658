use super::*;
use crate::clients::ClientId;
use crate::list::ListPieces;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use watchcore::{Change, Filter};

fn reader() -> Reader {
    Reader { client: ClientId::Unknown, pool: Arc::default() }
}

fn filled(count: usize, value: &str) -> Cache {
    let cache = Cache::builder("/").build().unwrap();
    let keys: Vec<String> = (0..count).map(|at| format!("/{at:05}")).collect();
    cache.writer().unwrap().apply(1, keys.iter().map(|key| Change::put(key, value))).unwrap();
    cache
}

/// Returns a selection by a predicate, and the threads on which the predicate ran.
fn selection(test: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> (Selection, Arc<Mutex<Vec<ThreadId>>>) {
    let asked: Arc<Mutex<Vec<ThreadId>>> = Arc::default();
    let threads = asked.clone();
    let filter = Filter::any().predicate(move |kv| {
        threads.lock().unwrap().push(thread::current().id());
        test(kv.key())
    });
    (Selection { filter, range: Range::all(), only_range: false }, asked)
}

fn newest() -> KeysList {
    KeysList { revision: Some(0), ..KeysList::default() }
}

/// Returns the sizes of a document's pieces, and the parsed whole.
fn pieces(mut document: Pieces<KeyItems>) -> (Vec<usize>, serde_json::Value) {
    let (mut sizes, mut all) = (Vec::new(), Vec::new());
    while !document.is_over() {
        let piece = document.next();
        sizes.push(piece.len());
        all.extend(piece);
    }
    (sizes, serde_json::from_slice(&all).unwrap())
}

/// A selector that hardly matches visits a bounded number of keys per piece.
#[tokio::test]
async fn visits_are_bounded() {
    let cache = filled(5000, "x");
    let (selection, asked) = selection(|key| key == b"/04999");
    let mut document = document(&cache, newest(), selection, &reader()).await.unwrap();
    loop {
        asked.lock().unwrap().clear();
        let piece = document.next();
        let visited = asked.lock().unwrap().len();
        assert!(visited <= 1024, "{visited} keys for a piece of {} bytes", piece.len());
        if document.is_over() {
            break;
        }
    }
    assert_eq!(document.made(), 1);
}

/// The bound holds even if escaping makes the output six times as long as the value.
#[tokio::test]
async fn piece_is_bounded_or_one_item() {
    for (count, value, least) in
        [(1000, "\u{1}".repeat(1000), 80), (3, "\u{1}".repeat(30_000), 3), (3000, "x".into(), 3)]
    {
        let cache = filled(count, &value);
        let all = Selection { filter: Filter::any(), range: Range::all(), only_range: true };
        let (sizes, list) = pieces(document(&cache, newest(), all, &reader()).await.unwrap());
        let most = if value.len() > 10_000 { PIECE * 3 } else { PIECE };
        assert!(sizes.len() >= least && sizes.iter().all(|size| *size <= most), "{sizes:?}");
        let items = list["items"].as_array().unwrap();
        assert_eq!((list["count"].as_u64(), items.len()), (Some(count as u64), count));
        assert!(items.iter().all(|item| item["value"] == *value));
    }
}

/// The items of a large cache are counted once, on a blocking thread.
#[tokio::test]
async fn large_cache_is_counted_elsewhere() {
    for (count, is_elsewhere) in [(100, false), (10_100, true)] {
        let cache = filled(count, "x");
        let (selection, asked) = selection(|key| key.ends_with(b"0"));
        let document = document(&cache, newest(), selection, &reader()).await.unwrap();
        {
            let asked = asked.lock().unwrap();
            assert_eq!(asked.len(), count, "each key is looked at once");
            let here = asked.iter().any(|thread| *thread == thread::current().id());
            assert_eq!(here, !is_elsewhere, "a cache of {count} keys");
        }
        let (_, list) = pieces(document);
        assert_eq!(list["count"].as_u64(), Some(count as u64 / 10));
        assert_eq!(list["items"].as_array().unwrap().len(), count / 10);
    }
}

/// A page of a large cache is read on a blocking thread too.
#[tokio::test]
async fn large_cache_is_paged_elsewhere() {
    let cache = filled(10_100, "x");
    let (selection, asked) = selection(|_| true);
    let page = KeysList { limit: 10, ..newest() };
    let (_, list) = pieces(document(&cache, page, selection, &reader()).await.unwrap());
    assert_eq!((list["count"].as_u64(), list["continue"].is_string()), (Some(10), true));
    assert!(asked.lock().unwrap().iter().all(|thread| *thread != thread::current().id()));
}
