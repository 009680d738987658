//! Measures a list: the time to its first piece and to its end, and its memory above the cache's.
//!
//! Usage: `lists OBJECTS FORM [gzip]`; FORM is json, metadata, table, label (a selector that one object in a hundred
//! matches) or pages (of 500). One thread produces and consumes the list, without a socket. To count instructions per
//! object:
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='lists::counted*' target/release/examples/lists 10000 json
//! ```

use axum::Router;
use http::{Request, header};
use http_body_util::BodyExt;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tower::ServiceExt;
use watchcore::{Cache, Change};
use watchcore_http::{Api, Resource};

const PATH: &str = "/apis/matrix.test/v1/widgets";

/// A list that was read whole.
struct Taken {
    first: Duration,
    whole: Duration,
    bytes: usize,
    frames: usize,
    /// The continue token in the first piece, if there is one.
    token: Option<String>,
}

/// The measured part.
#[inline(never)]
fn counted(runtime: &Runtime, router: &Router, request: Request<axum::body::Body>) -> Taken {
    runtime.block_on(async {
        let from = Instant::now();
        // Never an error: the router's error type is `Infallible`.
        let Ok(response) = router.clone().oneshot(request).await;
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        let mut taken = Taken { first: Duration::ZERO, whole: Duration::ZERO, bytes: 0, frames: 0, token: None };
        while let Some(frame) = body.frame().await {
            let data = frame.expect("a whole list").into_data().unwrap_or_default();
            if taken.frames == 0 {
                taken.first = from.elapsed();
                let head = String::from_utf8_lossy(&data[..data.len().min(2048)]).into_owned();
                taken.token = head
                    .split_once("\"continue\":\"")
                    .and_then(|(_, rest)| rest.split_once('"'))
                    .map(|(token, _)| token.to_owned());
            }
            taken.frames += 1;
            taken.bytes += data.len();
        }
        taken.whole = from.elapsed();
        taken
    })
}

fn router(objects: u64) -> watchcore::Result<Router> {
    let widgets = Resource::new("matrix.test", "v1", "widgets", "Widget").namespaced(true).prefix("/w/").column(
        "Size",
        "integer",
        "/spec/size",
    );
    let cache = Resource::declare(Cache::builder("/w/"), [&widgets])?.build()?;
    let mut writer = cache.writer()?;
    for at in 0..objects {
        let value = format!(
            r#"{{"apiVersion":"matrix.test/v1","kind":"Widget","metadata":{{"name":"w{at:06}","namespace":"ns-{:02}","uid":"8f4b2c5e-{at:06}","creationTimestamp":"2026-01-01T00:00:00Z","labels":{{"app":"a{:02}","tier":"front"}},"annotations":{{"note":"{}"}}}},"spec":{{"size":{at},"color":"red"}},"status":{{"phase":"Running","message":"{}"}}}}"#,
            at % 20,
            at % 100,
            "n".repeat(60),
            "m".repeat(200),
        );
        let key = format!("/w/ns-{:02}/w{at:06}", at % 20);
        writer.apply(at + 1, [Change::put(&key, &value)])?;
    }
    Ok(Api::builder().cache(cache).resource(widgets).build()?.router())
}

/// Returns a line of this process's status, in KiB.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim_matches([':', '\t', ' ', 'k', 'B']).parse().ok()).unwrap_or(0)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let objects = words.first().and_then(|word| word.parse().ok()).unwrap_or(150_000);
    let form = words.get(1).map_or("json", String::as_str);
    let gzip = words.get(2).is_some_and(|word| word == "gzip");
    let accept = match form {
        "table" => "application/json;as=Table;v=v1;g=meta.k8s.io",
        "metadata" => "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        _ => "application/json",
    };
    let encoding = if gzip { "gzip" } else { "identity" };
    let request = |target: &str| {
        let request = Request::get(target).header(header::ACCEPT, accept).header(header::ACCEPT_ENCODING, encoding);
        request.body(axum::body::Body::empty())
    };
    let router = router(objects)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Warm up: threads of the core, tables of the router.
    counted(&runtime, &router, request(&format!("{PATH}?limit=1"))?);
    let before = memory("VmRSS");
    // Writing 5 resets the high-water mark.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let target = match form {
        "label" => format!("{PATH}?labelSelector=app%3Da07"),
        "pages" => format!("{PATH}?limit=500"),
        _ => PATH.to_owned(),
    };
    let mut taken = counted(&runtime, &router, request(&target)?);
    while let Some(token) = taken.token.take().filter(|_| form == "pages") {
        let next = counted(&runtime, &router, request(&format!("{PATH}?limit=500&continue={token}"))?);
        let (whole, bytes, frames) = (taken.whole + next.whole, taken.bytes + next.bytes, taken.frames + next.frames);
        taken = Taken { first: taken.first, whole, bytes, frames, token: next.token };
    }
    let above = memory("VmHWM").saturating_sub(before);
    let Taken { first, whole, bytes, frames, .. } = taken;
    println!(
        "{objects} objects, {form} {encoding}: first {first:?}, whole {whole:?}, {bytes} bytes in {frames} pieces, {above} KiB above"
    );
    Ok(())
}
