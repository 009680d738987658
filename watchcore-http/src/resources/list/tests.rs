use super::*;
use crate::catalog::Catalog;
use crate::clients::ClientId;
use crate::list::ListPieces;
use crate::object::Resource;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use watchcore::{Cache, Change};

/// Returns `count` red widgets `shop/w00000` with at least `bytes` bytes each, all of revision 1.
fn widgets(count: usize, bytes: usize) -> Arc<Served> {
    let resource = Resource::new("matrix.test", "v1", "widgets", "Widget")
        .namespaced(true)
        .prefix("/w/")
        .field("spec.color", "/spec/color");
    let cache = Resource::declare(Cache::builder("/w/"), [&resource]).unwrap().build().unwrap();
    let keys: Vec<String> = (0..count).map(|at| format!("/w/shop/w{at:05}")).collect();
    let value = json!({"spec": {"color": "red"}, "data": "x".repeat(bytes)}).to_string();
    let changes: Vec<Change<'_>> = keys.iter().map(|key| Change::put(key.as_bytes(), value.as_bytes())).collect();
    cache.writer().unwrap().apply(1, changes).unwrap();
    Catalog::new(vec![cache], vec![resource], 0).unwrap().resources()[0].clone()
}

fn selection(served: &Served, query: &str) -> Selection {
    Selection::of(served, None, None, &Params::parse(Some(query)).unwrap()).unwrap()
}

fn walk(served: &Arc<Served>, query: &str) -> Pieces<ObjectItems> {
    let selection = selection(served, query);
    let source = ListSource::walk(served.cache.snapshot().unwrap(), selection).unwrap();
    pieces(served.clone(), Form::Json, source, PIECE)
}

fn all(mut pieces: Pieces<ObjectItems>) -> Vec<u8> {
    let mut out = Vec::new();
    while !pieces.is_over() {
        out.extend(pieces.next());
    }
    out
}

/// Whether a snapshot is held.
fn is_held(served: &Served) -> bool {
    served.cache.stats().snapshots > 0
}

/// More than are read on an async thread.
const LARGE: usize = 10_100;

fn reader() -> Reader {
    Reader { client: ClientId::Unknown, pool: Arc::default() }
}

fn client(gzip: bool, time_limit: Duration) -> ListClient {
    ListClient { gzip, reader: reader(), time_limit }
}

#[test]
fn piece_is_bounded_or_one_object() {
    for (count, bytes) in [(500, 1000), (3, 100_000)] {
        let mut pieces = walk(&widgets(count, bytes), "");
        let mut objects = 0;
        while !pieces.is_over() {
            let piece = pieces.next();
            let made = pieces.made() - objects;
            objects = pieces.made();
            assert!(piece.len() <= PIECE || made == 1, "{} bytes of {made} objects", piece.len());
            assert!(made > 0, "nothing is made for nothing");
        }
        assert_eq!(objects, count);
        assert!(pieces.next().is_empty(), "it is over");
    }
}

/// With indents, two bytes of a deeply nested value become hundreds.
#[tokio::test]
async fn pretty_piece_is_bounded() {
    let served = widgets(1, 10);
    let numbers = ["0"; 4000].join(",");
    let deep = format!(r#"{{"a":{}{numbers}{}}}"#, "[".repeat(120), "]".repeat(120));
    served.cache.writer().unwrap().apply(2, [Change::put("/w/shop/deep", &deep)]).unwrap();
    let response = respond(ListBytes::new(walk(&served, ""), true), client(false, Duration::MAX)).await;
    let (mut body, mut pretty) = (response.into_body(), Vec::new());
    while let Some(frame) = body.frame().await {
        let piece = frame.unwrap().into_data().unwrap();
        assert!(piece.len() <= PIECE, "{} bytes", piece.len());
        pretty.extend_from_slice(&piece);
    }
    assert!(pretty.len() > 800_000, "{} bytes", pretty.len());
    pretty.retain(|byte| !byte.is_ascii_whitespace());
    assert_eq!(pretty, all(walk(&served, "")).trim_ascii());
}

/// With a selector that hardly matches, or with keys that are not objects, each piece still visits a bounded number of
/// keys.
#[test]
fn visits_are_bounded() {
    let served = widgets(5000, 10);
    let list: Value = {
        let mut pieces = walk(&served, "fieldSelector=spec.color%3Dblue");
        let mut out = pieces.next();
        let mut empty = 0;
        while !pieces.is_over() {
            let piece = pieces.next();
            empty += usize::from(piece.is_empty());
            out.extend(piece);
        }
        assert!(empty >= 3, "{empty}");
        serde_json::from_slice(&out).unwrap()
    };
    assert_eq!(list["items"], json!([]));
    let keys: Vec<String> = (0..5000).map(|at| format!("/w/no-object-{at:05}")).collect();
    let changes: Vec<Change<'_>> = keys.iter().map(|key| Change::put(key.as_bytes(), &b"{}"[..])).collect();
    served.cache.writer().unwrap().apply(2, changes).unwrap();
    let mut pieces = walk(&served, "");
    assert!(!pieces.next().is_empty());
    assert!(pieces.next().is_empty() && pieces.made() == 0 && !pieces.is_over());
    assert_eq!(
        serde_json::from_slice::<Value>(&all(walk(&served, ""))).unwrap()["items"].as_array().unwrap().len(),
        5000
    );
    assert!(served.skipped.count() >= 5000);
}

#[tokio::test]
async fn page_and_walk_are_the_same_bytes() {
    let served = widgets(300, 1000);
    for query in ["", "fieldSelector=metadata.name!%3Dw00007", "fieldSelector=metadata.name%3Dw00007"] {
        let exact = source(&served, selection(&served, query), ListStart::Exact(1), 0, &reader()).await.unwrap();
        assert!(matches!(exact, ListSource::Page { .. }));
        let page = pieces(served.clone(), Form::Json, exact, PIECE);
        assert!(all(page) == all(walk(&served, query)), "{query}");
    }
}

/// Pages of a large cache are read on another thread, with equal results.
#[tokio::test]
async fn large_cache_is_paged_elsewhere() {
    let served = widgets(LARGE, 10);
    let mut start = ListStart::Consistent;
    let (mut names, mut pages) = (Vec::new(), 0);
    loop {
        let page = source(&served, selection(&served, ""), start, 5000, &reader()).await.unwrap();
        let list: Value = serde_json::from_slice(&all(pieces(served.clone(), Form::Json, page, PIECE))).unwrap();
        names.extend(list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].clone()));
        pages += 1;
        let Some(token) = list["metadata"]["continue"].as_str() else { break };
        start = ListStart::Continue(token.to_owned());
    }
    let whole: Value = serde_json::from_slice(&all(walk(&served, ""))).unwrap();
    let expected: Vec<_> = whole["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]).collect();
    assert_eq!((names.iter().collect::<Vec<_>>(), pages), (expected, 3));
    // Waiting and refusals are as with small caches.
    let damaged = source(&served, selection(&served, ""), ListStart::Continue("x".into()), 1, &reader()).await;
    assert_eq!(damaged.err().map(|refusal| refusal.code()), Some(400));
    let reader = reader();
    let future = source(&served, selection(&served, ""), ListStart::Exact(2), 1, &reader);
    let (page, ()) = tokio::join!(future, async {
        served.cache.writer().unwrap().apply(2, [Change::put("/w/shop/z", "{}")]).unwrap();
    });
    assert!(page.is_ok());
    served.cache.writer().unwrap().compact(2).unwrap();
    let gone = source(&served, selection(&served, ""), ListStart::Exact(1), 1, &reader).await;
    assert_eq!(gone.err().map(|refusal| refusal.code()), Some(410));
}

/// A continue token of a future revision waits without occupying a thread of the pool.
#[tokio::test]
async fn tokens_of_the_future_wait_on_no_thread() {
    let [served, ahead] = [(); 2].map(|()| widgets(LARGE, 10));
    let second = |served: &Served| served.cache.writer().unwrap().apply(2, [Change::put("/w/shop/z", "{}")]).unwrap();
    second(&ahead);
    let first = source(&ahead, selection(&ahead, ""), ListStart::Consistent, 1, &reader()).await.unwrap();
    let token = ListStart::Continue(first.continue_token().unwrap().to_owned());
    let mut waiting = tokio::task::JoinSet::new();
    let many = std::thread::available_parallelism().unwrap().get();
    for _ in 0..many {
        let (served, token) = (served.clone(), token.clone());
        waiting.spawn(async move {
            let selection = selection(&served, "");
            source(&served, selection, token, 1, &reader()).await.map(|page| page.revision())
        });
    }
    let bound = Instant::now() + Duration::from_secs(10);
    while served.cache.stats().waiting < many as u64 {
        assert!(Instant::now() < bound, "they wait");
        tokio::task::yield_now().await;
    }
    let other = source(&served, selection(&served, ""), ListStart::Any, 1, &reader()).await.unwrap();
    assert_eq!(other.revision(), 1);
    second(&served);
    while let Some(page) = waiting.join_next().await {
        assert_eq!(page.unwrap().map_err(|refusal| refusal.message().to_owned()), Ok(2), "it waited, and came");
    }
}

/// A source that answers when the test tells it to.
struct Silent;

impl watchcore::Source for Silent {
    fn wake(&self) {}
}

/// A page of a large cache has the same time limit as any list, which includes the consistent read.
#[tokio::test(start_paused = true)]
async fn page_waits_no_longer_than_a_list() {
    let served = widgets(LARGE, 10);
    let mut writer = served.cache.writer().unwrap();
    writer.attach(Arc::new(Silent)).unwrap();
    let reader = reader();
    let page = source(&served, selection(&served, ""), ListStart::Consistent, 1, &reader);
    let (page, from) = tokio::join!(page, async {
        let ticket = loop {
            match writer.demand().consistent {
                0 => tokio::task::yield_now().await,
                ticket => break ticket,
            }
        };
        // It answers when the whole time has passed, with a revision that is not reached.
        tokio::time::advance(DEFAULT_WAIT).await;
        writer.serve_consistent(ticket, 9);
        std::time::Instant::now()
    });
    assert_eq!(page.err().map(|refusal| refusal.code()), Some(504));
    assert!(from.elapsed() < DEFAULT_WAIT, "it is not waited for anew: {:?}", from.elapsed());
}

/// Lists of the newest state are walked; lists with a limit, a token or an exact revision are pages.
#[tokio::test]
async fn only_the_newest_is_walked() {
    let served = widgets(3, 10);
    for (start, limit, walks) in [
        (ListStart::Consistent, 0, true),
        (ListStart::Any, 0, true),
        (ListStart::AtLeast(1), 0, true),
        (ListStart::Consistent, 2, false),
        (ListStart::Exact(1), 0, false),
    ] {
        let source = source(&served, selection(&served, ""), start.clone(), limit, &reader()).await.unwrap();
        assert_eq!(matches!(source, ListSource::Walk(_)), walks, "{start:?} {limit}");
    }
}

/// Returns the next frame of a body; `None` if the body is pending.
fn frame(body: &mut axum::body::Body) -> Option<Option<Result<usize, String>>> {
    match Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop())) {
        Poll::Pending => None,
        Poll::Ready(frame) => Some(frame.map(|frame| match frame {
            Ok(frame) => Ok(frame.into_data().unwrap().len()),
            Err(error) => Err(error.to_string()),
        })),
    }
}

/// Before the first poll only the first piece is produced; each poll produces one more.
#[tokio::test]
async fn nothing_is_made_ahead() {
    let served = widgets(2000, 1000);
    let mut pieces = walk(&served, "");
    pieces.next();
    let first = pieces.made();
    assert!((50..=64).contains(&first), "{first}");
    let response = respond(ListBytes::new(walk(&served, ""), false), client(false, Duration::from_secs(60))).await;
    let mut body = response.into_body();
    let mut frames = 0;
    while let Some(Some(Ok(bytes))) = frame(&mut body) {
        assert!(bytes <= PIECE);
        frames += 1;
    }
    assert_eq!(frames, 2000_usize.div_ceil(first));
    assert!(body.is_end_stream());
}

/// Without a time limit, a client that takes a piece now and then is not cut off. Dropping a body releases its
/// snapshot.
#[tokio::test(start_paused = true)]
async fn slow_list_goes_on() {
    let served = widgets(1000, 1000);
    let mut body = respond(ListBytes::new(walk(&served, ""), false), client(false, Duration::MAX)).await.into_body();
    let from = Instant::now();
    while let Some(Some(frame)) = frame(&mut body) {
        frame.expect("not cut off");
        tokio::time::sleep(Duration::from_secs(3600)).await;
    }
    assert!(body.is_end_stream() && from.elapsed() > Duration::from_secs(36_000));
    drop(body);
    tokio::task::yield_now().await;
    let body =
        respond(ListBytes::new(walk(&served, ""), false), client(false, Duration::from_secs(60))).await.into_body();
    assert!(is_held(&served));
    tokio::task::yield_now().await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks(), 1);
    drop(body);
    tokio::task::yield_now().await;
    assert_eq!(tasks(), 0, "who watches the time goes with the body");
    assert!(!is_held(&served));
}

/// A client that keeps taking pieces is cut off too, because it holds more and more of the log.
#[tokio::test(start_paused = true)]
async fn list_without_an_end_is_cut_off() {
    const LONGEST: Duration = Duration::from_secs(600);
    let served = widgets(2000, 1000);
    let mut body = respond(ListBytes::new(walk(&served, ""), false), client(false, LONGEST)).await.into_body();
    let from = Instant::now();
    let error = loop {
        match frame(&mut body) {
            Some(Some(Ok(_))) => tokio::time::sleep(Duration::from_secs(50)).await,
            Some(Some(Err(error))) => break error,
            end => panic!("{end:?} after {:?}", from.elapsed()),
        }
        assert!(from.elapsed() >= LONGEST || is_held(&served), "not before");
    };
    assert!(error.contains("cut off") && !is_held(&served), "{error}");
    assert!(from.elapsed() < LONGEST + Duration::from_secs(60), "{:?}", from.elapsed());
}

/// After 128 KiB the list is compressed, a piece at a time.
#[tokio::test]
async fn compression_begins_behind_its_limit() {
    for (count, compressed) in [(110, false), (140, true)] {
        let served = widgets(count, 1000);
        let plain = all(walk(&served, ""));
        assert_eq!(plain.len() > 128 << 10, compressed, "{}", plain.len());
        let response = respond(ListBytes::new(walk(&served, ""), false), client(true, Duration::MAX)).await;
        assert_eq!(response.headers().contains_key("content-encoding"), compressed);
        assert_eq!(response.into_body().size_hint().exact().is_some(), !compressed);
    }
}

/// A small piece may have visited as many keys as a large one, so the body yields between small pieces, even if the
/// transport polls without pause.
#[tokio::test]
async fn others_have_their_turn_between_small_pieces() {
    let served = widgets(10_000, 10);
    let blue = json!({"spec": {"color": "blue"}}).to_string();
    let keys: Vec<String> = (0..10).map(|at| format!("/w/shop/w{:05}", at * 1000 + 500)).collect();
    let changes: Vec<Change<'_>> = keys.iter().map(|key| Change::put(key.as_bytes(), blue.as_bytes())).collect();
    served.cache.writer().unwrap().apply(2, changes).unwrap();
    let query = "fieldSelector=spec.color%3Dblue";
    let bytes = || ListBytes::new(walk(&served, query), false);
    let mut body = respond(bytes(), client(false, Duration::MAX)).await.into_body();
    let (mut pieces, mut turns) = (0, 0);
    loop {
        match frame(&mut body) {
            Some(Some(piece)) => {
                piece.unwrap();
                pieces += 1;
            }
            Some(None) => break,
            None => turns += 1,
        }
    }
    assert!(pieces >= 8 && turns + 2 >= pieces, "{pieces} pieces, {turns} turns");
    // If the client accepts gzip, all pieces are made before the head is sent.
    let mut response = std::pin::pin!(respond(bytes(), client(true, Duration::MAX)));
    let mut turns = 0;
    while response.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        turns += 1;
    }
    assert!(turns >= 8, "{turns} turns");
}
