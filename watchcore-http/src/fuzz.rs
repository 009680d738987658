//! Fuzz targets for untrusted input: paths, queries, selectors, tokens, headers, stored values, whole requests,
//! WebSocket frames.
//!
//! Each function takes arbitrary bytes and panics if they are interpreted wrongly: a key outside its resource's prefix,
//! a selector with another meaning than the core gives it, a value that changes when it is sent. The programs in
//! `fuzz/` call them with inputs from a coverage-guided fuzzer; the crate's tests call them with random bytes and with
//! nearly valid texts.

use crate::api::{Api, ApiBuilder};
use crate::catalog::Served;
use crate::json::layout::{Identity, Layout};
use crate::object::Form;
use crate::object::Resource;
use crate::request::{Params, Route, Selection, accepts_aggregated, accepts_gzip, accepts_json, form};
use crate::resources::watch::{self, Watched};
use crate::transport::websocket;
use axum::body::{Body, to_bytes};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tower::ServiceExt as _;
use watchcore::{Cache, Change, Code, Range, Read, ReadOptions};

const GROUP: &str = "matrix.test";

/// The color of objects outside every resource, which must only be visible through `/v1/keys`.
const OUTSIDE: &str = "of-no-resource";

/// Widgets and nodes, and keys close to theirs that must not be reachable.
static API: LazyLock<Api> = LazyLock::new(|| {
    let widgets = Resource::new(GROUP, "v1", "widgets", "Widget")
        .namespaced(true)
        .prefix("/registry/widgets/")
        .field("spec.color", "/spec/color");
    let nodes = Resource::new("", "v1", "nodes", "Node").prefix("/registry/nodes/");
    let resources = [widgets, nodes];
    let prepared = Resource::declare(Cache::builder("/registry/"), &resources).and_then(watchcore::Builder::build);
    let cache = prepared.unwrap_or_else(|error| panic!("the cache of a test: {error}"));
    let value = |color: &str| json!({"metadata": {"labels": {"app": "red"}}, "spec": {"color": color}}).to_string();
    let inside = ["widgets/a/b", "widgets/a/c", "widgets/b/b", "nodes/a", "nodes/b"].map(|key| (key, value("red")));
    let outside = ["secrets/a/b", "widgetsx/a/b", "widgets/a/b/c", "nodes/a/b"].map(|key| (key, value(OUTSIDE)));
    let all: Vec<(String, String)> =
        inside.into_iter().chain(outside).map(|(key, value)| (format!("/registry/{key}"), value)).collect();
    let written =
        cache.writer().and_then(|mut writer| writer.apply(1, all.iter().map(|(key, value)| Change::put(key, value))));
    written.unwrap_or_else(|error| panic!("the keys of a test: {error}"));
    let api = resources.into_iter().fold(Api::builder().cache(cache), ApiBuilder::resource).build();
    api.unwrap_or_else(|error| panic!("the service of a test: {error}"))
});

/// The runtime on which requests are answered.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.unwrap_or_else(|error| panic!("the runtime of a test: {error}"))
});

fn widgets() -> &'static Arc<Served> {
    API.0.catalog.resource(GROUP, "v1", "widgets").unwrap_or_else(|| unreachable!("it is declared"))
}

/// A whole request: method and target in the first line, one header per further line. It is answered or waits; a body
/// declared as JSON is JSON, and contains no object from outside the resources.
pub fn request(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines();
    let (method, target) = lines.next().and_then(|line| line.split_once(' ')).unwrap_or(("GET", "/"));
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        request = request.header(name, value);
    }
    let Ok(mut request) = request.body(Body::empty()) else { return };
    request.headers_mut().entry(header::HOST).or_insert(HeaderValue::from_static("127.0.0.1"));
    let keys = request.uri().path().contains("keys");
    // Waits for a revision, and watches, do not end by themselves.
    let answered = RUNTIME.block_on(within(ANSWER_TIMEOUT, async {
        let response = API.router().oneshot(request).await.unwrap_or_else(|never| match never {});
        let (head, body) = response.into_parts();
        (head, timeout(ANSWER_TIMEOUT, to_bytes(body, usize::MAX)).await)
    }));
    let Some((head, body)) = answered else { return };
    assert_ne!(head.status, StatusCode::INTERNAL_SERVER_ERROR, "{text:?}");
    let Ok(Ok(body)) = body else { return };
    if head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json")
        && !head.headers.contains_key(header::CONTENT_ENCODING)
        && !body.is_empty()
    {
        // A stream has one JSON value per line.
        let values = serde_json::Deserializer::from_slice(&body).into_iter::<Value>();
        values.for_each(|value| assert!(value.is_ok(), "{text:?}: {:?}", String::from_utf8_lossy(&body)));
    }
    assert!(keys || memchr::memmem::find(&body, OUTSIDE.as_bytes()).is_none(), "{text:?} reaches what is outside");
}

/// Returns a future's output if it is ready in time. An async fn, so that the timer is created inside the runtime.
async fn within<T>(time_limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    timeout(time_limit, future).await.ok()
}

/// How long to wait for an answer that may never come.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(20);

/// Bytes that a client sends over a WebSocket before it disconnects: the connection ends, and the watch's permit is
/// free.
pub fn frames(data: &[u8]) {
    let params = Params::parse(None).unwrap_or_else(|refusal| panic!("no query: {refusal}"));
    let watched = Watched {
        served: widgets(),
        namespace: Some("a"),
        name: None,
        form: Form::Json,
        old_path: false,
        watcher: None,
        request: &http::Request::new(()).into_parts().0,
    };
    let ended = RUNTIME.block_on(within(Duration::from_secs(10), async {
        let stream = watch::open(&API.0, watched, &params).await.unwrap_or_else(|refusal| panic!("a watch: {refusal}"));
        let (client, server) = tokio::io::duplex(4 << 10);
        let (mut reads, mut writes) = tokio::io::split(client);
        let talks = async {
            // Ignored: the server may have closed the connection earlier.
            let _ = writes.write_all(data).await;
            let _ = writes.shutdown().await;
        };
        let mut heard = Vec::new();
        let taker = websocket::SocketClient { stall: Duration::from_secs(60), answered: None };
        let serves = websocket::serve(server, stream, &API.0.open, taker);
        let (_, read, ()) = tokio::join!(talks, reads.read_to_end(&mut heard), serves);
        read.is_ok()
    }));
    assert!(ended.is_some(), "a WebSocket does not end: {data:?}");
}

/// A path. The objects that it names are one key of their resource, or none.
pub fn path(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(Route::Objects { version, plural, namespace, name, .. }) = Route::of(&text) else { return };
    let served = API.0.catalog.resource(&version.group, &version.version, &plural).unwrap_or_else(|| widgets());
    let resource = &served.resource;
    if let Some(name) = &name
        && namespace.is_some() == resource.namespaced
    {
        let key = resource.key(namespace.as_deref(), name);
        assert_eq!(resource.identity(&key), Some((namespace.as_deref(), name.as_str())), "{text:?}");
    }
    let params = Params::parse(None).unwrap_or_else(|refusal| panic!("no query: {refusal}"));
    if let Ok(selection) = Selection::of(served, namespace.as_deref(), name.as_deref(), &params) {
        check_selection(served, &selection);
    }
}

/// A query, parsed for a list, a get and a watch.
pub fn query(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let params = match Params::parse(Some(&text)) {
        Ok(params) => params,
        Err(refusal) => return assert_eq!(refusal.code(), 400, "{text:?}"),
    };
    for refusal in [
        params.list_start().err(),
        params.get_start().err(),
        params.watch_start().err(),
        params.old_watch_start().err(),
    ] {
        assert!(refusal.is_none_or(|refusal| matches!(refusal.code(), 400 | 422)), "{text:?}");
    }
    if let Ok(selection) = Selection::of(widgets(), None, None, &params) {
        check_selection(widgets(), &selection);
    }
}

/// A selector: as a label selector, and as a field selector.
pub fn selector(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut params = Params::parse(None).unwrap_or_else(|refusal| panic!("no query: {refusal}"));
    params.label_selector = Some(text.clone().into_owned());
    if let Ok(selection) = Selection::of(widgets(), Some("a"), None, &params) {
        check_selection(widgets(), &selection);
    }
    params.label_selector = None;
    params.field_selector = Some(text.clone().into_owned());
    for namespace in [None, Some("a")] {
        let selection = Selection::of(widgets(), namespace, None, &params);
        match selection {
            Ok(selection) => check_selection(widgets(), &selection),
            Err(refusal) => assert_eq!(refusal.code(), 400, "{text:?}"),
        }
    }
}

/// Checks that all keys that pass a selection lie in its range, and the range in its resource's.
fn check_selection(served: &Served, selection: &Selection) {
    let snapshot = served.cache.snapshot().unwrap_or_else(|error| panic!("a state: {error}"));
    let passed = snapshot.filtered(&selection.filter).unwrap_or_else(|error| panic!("{selection:?}: {error}"));
    for kv in passed {
        assert!(kv.key().starts_with(served.resource.prefix.as_bytes()), "{selection:?} reaches {:?}", kv.key());
        assert!(selection.range.contains(kv.key()), "{selection:?} passes {:?}", kv.key());
    }
}

/// A continue token: it is refused, or continues within its list. The bytes are tried as a token, and as changes to a
/// valid token whose checksum is then recomputed, as any client can do.
pub fn token(data: &[u8]) {
    continues_within(&list_of_one_namespace(), String::from_utf8_lossy(data).into_owned());
    for range in [list_of_one_namespace(), Range::path("/registry/widgets/a")] {
        continues_within(&range, signed_anew(&real_token(&range), data));
    }
}

fn list_of_one_namespace() -> Range {
    Range::prefix("/registry/widgets/a/")
}

fn continues_within(range: &Range, token: String) {
    let options = ReadOptions::new(Read::Any).timeout(Duration::ZERO).continue_from(token);
    match widgets().cache.list_with(range, &options) {
        Ok(page) => assert!(page.iter().all(|kv| range.contains(kv.key())), "{page:?} reaches out of {range:?}"),
        Err(error) => {
            let codes = [Code::InvalidArgument, Code::Compacted, Code::FutureRevision];
            assert!(codes.contains(&error.code()), "{error}");
        }
    }
}

/// Returns a valid token of a list, from which nearly valid ones are made.
fn real_token(range: &Range) -> String {
    let page = widgets().cache.list_with(range, &ReadOptions::new(Read::Any).limit(1));
    let page = page.unwrap_or_else(|error| panic!("a page: {error}"));
    page.continue_token().unwrap_or_else(|| unreachable!("the list has more than one")).to_owned()
}

/// Returns a changed token with a valid checksum. The lower bits of the first byte of `data` select which of scope,
/// epoch, revision and filter are replaced by the following 8-byte numbers; the rest of `data` becomes the key.
fn signed_anew(token: &str, data: &[u8]) -> String {
    let Some((changed, mut rest)) = data.split_first() else { return String::new() };
    let mut bytes = URL_SAFE_NO_PAD.decode(token).unwrap_or_else(|error| panic!("{token}: {error}"));
    bytes.truncate(1 + 4 * 8);
    for (at, place) in bytes[1..].chunks_exact_mut(8).enumerate() {
        if changed & (1 << at) != 0
            && let Some((number, behind)) = rest.split_first_chunk::<8>()
        {
            place.copy_from_slice(number);
            rest = behind;
        }
    }
    bytes.extend(rest);
    let signed = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.extend(bytes.iter().fold(0xcbf2_9ce4_8422_2325, signed).to_le_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The headers Accept and Accept-Encoding.
pub fn accept(data: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in data.split(|b| *b == b'\n') {
        if let Ok(value) = HeaderValue::from_bytes(line) {
            headers.append(header::ACCEPT, value.clone());
            headers.append(header::ACCEPT_ENCODING, value);
        }
    }
    let params = Params::parse(Some("includeObject=x")).unwrap_or_else(|refusal| panic!("a query: {refusal}"));
    if let Err(refusal) = form(&headers, &params) {
        assert!(matches!(refusal.code(), 400 | 406), "{refusal}");
        assert!(refusal.to_json().len() < 4096, "what was asked for is cut: {refusal}");
    }
    let _ = (accepts_json(&headers), accepts_aggregated(&headers), accepts_gzip(&headers));
}

/// A stored value: it has a layout if it is a JSON object, and is sent as that object with its revision.
pub fn layout(data: &[u8]) {
    let identity = Identity { namespace: Some("a"), name: "b" };
    let parsed: Option<Value> = serde_json::from_slice(data).ok();
    let Some(layout) = Layout::of(b"/w/a/b", data) else {
        assert!(!parsed.is_some_and(|value| value.is_object()), "an object without a layout: {data:?}");
        return;
    };
    assert_eq!(Layout::from_bytes(&layout.to_bytes()), Some(layout));
    let (mut whole, mut metadata) = (Vec::new(), Vec::new());
    layout.write(data, identity, 42, &mut whole);
    layout.write_metadata(data, identity, 42, &mut metadata);
    // serde_json refuses numbers beyond the range of f64 and deep nesting.
    let Some(parsed) = parsed else { return };
    let [whole, metadata] = [whole, metadata].map(|bytes| -> Value {
        serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&bytes)))
    });
    assert_eq!(whole["metadata"], metadata, "{data:?}");
    assert_eq!(metadata["resourceVersion"], "42", "{data:?}");
    assert_eq!((&metadata["name"], &metadata["namespace"]), (&json!("b"), &json!("a")), "{data:?}");
    let mut expected = parsed;
    expected["metadata"] = metadata;
    assert_eq!(whole, expected, "nothing but metadata is another: {data:?}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const ALL: [fn(&[u8]); 8] = [path, query, selector, token, accept, layout, request, frames];

    /// Parts of nearly valid texts.
    const PIECES: &[&str] = &[
        "/",
        "api",
        "apis",
        "v1",
        "matrix.test",
        "namespaces",
        "widgets",
        "nodes",
        "watch",
        "a",
        "b",
        "..",
        "%2F",
        "%2e",
        "%",
        "%00",
        "%ff",
        "?",
        "&",
        "=",
        "==",
        "!=",
        "!",
        ",",
        "\\",
        " in ",
        "(",
        ")",
        " ",
        "+",
        "0",
        "1",
        "-1",
        "18446744073709551615",
        "watch=",
        "limit=",
        "resourceVersion=",
        "resourceVersionMatch=",
        "Exact",
        "NotOlderThan",
        "sendInitialEvents=",
        "continue=",
        "labelSelector=",
        "fieldSelector=",
        "metadata.name",
        "metadata.namespace",
        "spec.color",
        "red",
        "app",
        "application/json",
        "*/*",
        ";",
        "as=Table",
        "v=v1",
        "g=meta.k8s.io",
        "q=0",
        "\n",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\"metadata\":",
        "\"resourceVersion\":",
        "\"name\":",
        "null",
        ":",
        "1e9",
        "\\u006d",
        "ä",
    ];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn random_bytes_break_nothing(data in vec(any::<u8>(), 0..200)) {
            ALL.iter().for_each(|one| one(&data));
        }

        #[test]
        fn nearly_right_texts_break_nothing(pieces in vec(prop::sample::select(PIECES), 0..24)) {
            let text = pieces.concat();
            ALL.iter().for_each(|one| one(text.as_bytes()));
        }

    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

        /// Mostly valid paths and parameters: lists, watches, documents, keys.
        #[test]
        fn requests_are_answered(
            path in prop::sample::select(&["/apis/matrix.test/v1/widgets", "/api/v1/nodes", "/apis/matrix.test/v1/namespaces/a/widgets/b", "/apis/matrix.test/v1/namespaces/%2e%2e/widgets/b", "/api/v1/nodes/a%2Fb", "/apis", "/openapi/v3/api/v1", "/v1/keys", "/metrics", "/"][..]),
            query in vec(prop::sample::select(&["watch=1", "limit=1", "resourceVersion=0", "resourceVersion=1", "resourceVersionMatch=Exact", "pretty=1", "fieldSelector=metadata.name=b", "fieldSelector=metadata.namespace!=a", "labelSelector=app", "includeObject=Object", "prefix=/registry/", "timeoutSeconds=1"][..]), 0..5),
            accept in prop::sample::select(&["*/*", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "text/event-stream", "text/html"][..]),
        ) {
            request(format!("GET {path}?{}\nAccept: {accept}", query.join("&")).as_bytes());
        }

        /// Nearly valid client frames: masked or not, of each opcode, cut short.
        #[test]
        fn nearly_right_frames_break_nothing(frame in vec((any::<u8>(), any::<u8>(), vec(any::<u8>(), 0..140)), 0..4)) {
            let mut data = Vec::new();
            for (first, length, rest) in frame {
                data.extend([first & 0x8f, 0x80 | (length & 0x7f)]);
                data.extend(rest);
            }
            frames(&data);
        }

        #[test]
        fn damaged_tokens_break_nothing(at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>()) {
            let mut data = real_token(&list_of_one_namespace()).into_bytes();
            token(&data);
            let at = at.index(data.len());
            data[at] = byte;
            token(&data);
            token(&data[..cut.index(data.len())]);
        }

        /// Scope, epoch, revision and filter of the list or others, with a key close to it.
        #[test]
        fn tokens_signed_anew_stay_in_their_list(
            changed in prop_oneof![Just(0), any::<u8>()],
            numbers in vec(prop_oneof![0..3_u64, any::<u64>()], 4),
            key in vec(prop::sample::select(&["/registry/", "widgets", "/", "a", "b", "c", "0", "x", "\0", "nodes", "secrets"][..]), 0..6),
        ) {
            let numbers = numbers.iter().take((changed & 15).count_ones() as usize).flat_map(|number| number.to_le_bytes());
            let data: Vec<u8> = [changed].into_iter().chain(numbers).chain(key.concat().into_bytes()).collect();
            token(&data);
        }
    }
}
