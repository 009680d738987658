//! The endpoints for operators: health, metrics, the access log.

use crate::support::certificates::Files;
use crate::support::ground::{PREFIX, SHOP, ServerKind, WIDGETS};
use crate::support::{Client, Ground, Watching, eventually, get, metric, metric_in, request, within};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::sync::{Arc, Mutex, Once};
use std::thread::{self, ThreadId};
use std::time::Duration;
use tokio::net::TcpStream;
use watchcore::{Code, Error, Source, SourceMetric, SourceState};
use watchcore_http::Tokens;

#[tokio::test]
async fn healthy_is_ok() {
    for face in [ServerKind::Own, ServerKind::Nested] {
        let ground = Ground::builder().face(face).start().await;
        for path in ["/livez", "/readyz", "/healthz", "/readyz/", "/livez?other=1"] {
            let answer = get(ground.address, path).await;
            assert_eq!((answer.code(), answer.text().as_str()), (200, "ok"), "{face:?} {path}");
            assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
        }
        let head = request(ground.address, "HEAD", "/readyz", &[]).await;
        assert_eq!((head.code(), head.body.len()), (200, 0));
        let verbose = get(ground.address, "/readyz?verbose").await.text();
        assert_eq!(
            verbose,
            format!(
                "[+]ping ok\n[+]cache {PREFIX} ok\n[+]shutdown ok\n[+]consistent-reads of cache {PREFIX} ok\nreadyz check passed\n"
            )
        );
        let verbose = get(ground.address, "/livez?verbose=true").await.text();
        assert_eq!(verbose, format!("[+]ping ok\n[+]cache {PREFIX} ok\nlivez check passed\n"));
    }
}

#[tokio::test]
async fn unready_cache_is_named() {
    let ground = Ground::builder().cache(|cache| cache.expect_load(true)).start().await;
    for path in ["/readyz", "/healthz", "/readyz?verbose"] {
        let answer = get(ground.address, path).await;
        assert_eq!(answer.code(), 500, "{path}");
        let text = answer.text();
        assert!(text.contains(&format!("[-]cache {PREFIX} failed: NotReady\n")), "{path}: {text}");
        assert!(text.ends_with(" check failed\n"), "{path}: {text}");
    }
    assert_eq!(get(ground.address, "/livez").await.text(), "ok", "a restart would make nothing better");
    let excluded = get(ground.address, "/readyz?verbose&exclude=cache%20/registry/&exclude=nothing").await;
    assert_eq!(excluded.code(), 200);
    assert!(excluded.text().contains("[+]cache /registry/ excluded: ok\n"), "{}", excluded.text());
    assert!(excluded.text().contains("warn: some health checks cannot be excluded: no matches for \"nothing\"\n"));
    ground.writer().load(1, []).unwrap();
    assert_eq!(get(ground.address, "/readyz").await.text(), "ok");
}

#[tokio::test]
async fn stale_cache_fails_behind_the_limit() {
    let away = || SourceState::Stale(Error::new(Code::Unavailable, "etcd is away"));
    let patient = Ground::start().await;
    patient.writer().set_state(away());
    assert_eq!(get(patient.address, "/readyz").await.code(), 200, "it is away for less than a minute");
    let strict = Ground::builder().api(|api| api.stale_limit(Duration::ZERO)).start().await;
    strict.writer().set_state(away());
    let answer = get(strict.address, "/readyz").await;
    assert_eq!(answer.code(), 500);
    assert!(answer.text().contains("[-]cache /registry/ failed: Stale for 0 s\n"), "{}", answer.text());
    assert_eq!(get(strict.address, "/livez").await.code(), 200);
    strict.writer().set_state(SourceState::Fresh);
    assert_eq!(get(strict.address, "/readyz").await.code(), 200);
}

#[tokio::test]
async fn closed_cache_is_not_alive() {
    let ground = Ground::start().await;
    ground.cache.close();
    let answer = get(ground.address, "/livez").await;
    assert_eq!(answer.code(), 500);
    assert!(answer.text().contains("[-]cache /registry/ failed: Closed\n"), "{}", answer.text());
}

/// A closed cache serves nothing until the server is restarted, so clients are not told to try again.
#[tokio::test]
async fn closed_cache_is_not_to_be_asked_again() {
    let ground = Ground::start().await;
    ground.put_widget("shop/a", "red");
    ground.cache.close();
    for target in [
        WIDGETS.to_owned(),
        format!("{WIDGETS}?limit=1"),
        format!("{WIDGETS}?watch=1"),
        format!("{WIDGETS}?watch=1&resourceVersion=1"),
        format!("{SHOP}/a"),
        "/v1/keys?prefix=/registry/".to_owned(),
        "/v1/keys?prefix=/registry/&watch=1".to_owned(),
    ] {
        let answer = get(ground.address, &target).await;
        assert_eq!(answer.status(), (503, "ServiceUnavailable".into()), "{target}");
        assert_eq!(
            answer.message(),
            "the cache of \"/registry/\" is closed: it serves again when the server is restarted"
        );
        assert_eq!((answer.header("retry-after"), &answer.json()["details"]), (None, &Value::Null), "{target}");
    }
}

/// Parses the Prometheus text format 0.0.4 strictly: each family has HELP and TYPE once, before its contiguous series;
/// no series is repeated; histograms are cumulative and complete. Returns the families.
fn parsed(text: &str) -> BTreeMap<String, (String, Vec<(String, f64)>)> {
    let is_name = |name: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        name.bytes().all(is_part) && !name.starts_with(|first: char| first.is_ascii_digit()) && !name.is_empty()
    };
    assert!(text.ends_with('\n') && !text.contains("# EOF"));
    let mut families: BTreeMap<String, (String, Vec<(String, f64)>)> = BTreeMap::new();
    let (mut current, mut helped, mut seen) = (String::new(), String::new(), HashSet::new());
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, said) = help.split_once(' ').unwrap_or_else(|| panic!("no help: {line}"));
            assert!(is_name(name) && !said.is_empty(), "{line}");
            helped = name.to_owned();
        } else if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, kind) = typed.split_once(' ').unwrap_or_else(|| panic!("no type: {line}"));
            assert_eq!(name, helped, "HELP stands before TYPE");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(families.insert(name.into(), (kind.into(), Vec::new())).is_none(), "twice: {line}");
            current = name.to_owned();
        } else {
            assert!(!line.starts_with('#'), "{line}");
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("no value: {line}"));
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let family = families.get_mut(&current).unwrap_or_else(|| panic!("of no family: {line}"));
            let suffixes: &[&str] = if family.0 == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.iter().any(|suffix| name == format!("{current}{suffix}")), "{line} in {current}");
            check_labels(labels);
            assert!(seen.insert(series.to_owned()), "twice: {series}");
            family.1.push((series.to_owned(), value));
        }
    }
    families.values().filter(|(kind, _)| kind == "histogram").for_each(|(_, series)| check_histogram(series));
    families
}

/// Checks `name="value",...}`, with its escapes.
fn check_labels(labels: &str) {
    let mut rest = labels.strip_suffix('}').unwrap_or_else(|| panic!("no end: {labels}"));
    while !rest.is_empty() {
        let (name, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("no label: {rest}"));
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{name}");
        let mut escaped = false;
        let end = value.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        let end = end.unwrap_or_else(|| panic!("no end of {name}: {labels}"));
        rest = value[end + 1..].strip_prefix(',').unwrap_or(&value[end + 1..]);
    }
}

fn check_histogram(series: &[(String, f64)]) {
    let mut before: Option<(f64, f64)> = None;
    for (name, count) in series {
        if let Some(at) = name.find("le=\"") {
            let bound = name[at + 4..].split('"').next().unwrap();
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() };
            if let Some((last, least)) = before {
                assert!(last == f64::INFINITY || (bound > last && *count >= least), "{name}");
            }
            before = Some((bound, *count));
        }
    }
    let counted = |suffix: &str, word: &str| {
        series
            .iter()
            .filter(|(name, _)| name.contains(suffix) && name.contains(word))
            .map(|(_, value)| value)
            .sum::<f64>()
    };
    assert_eq!(counted("_bucket", "le=\"+Inf\""), counted("_count", ""), "{series:?}");
}

#[tokio::test]
async fn metrics_are_text_of_prometheus() {
    let ground = Ground::builder().cache(|cache| cache.name("a \"b\" \\c")).start().await;
    ground.put_widget("shop/a", "red");
    let watch = Watching::open(ground.address, &format!("{WIDGETS}?watch=1")).await;
    for path in [WIDGETS, "/nothing", "/metrics", "/v1/keys?prefix=/registry/", &format!("{SHOP}/a")] {
        get(ground.address, path).await;
    }
    let answer = get(ground.address, "/metrics").await;
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let families = parsed(&answer.text());
    let http: Vec<&str> = families.keys().filter_map(|name| name.strip_prefix("watchcore_http_")).collect();
    assert_eq!(
        http,
        [
            "answer_bytes_total",
            "answers_cut_total",
            "connections",
            "frames_bytes",
            "frames_found_total",
            "frames_made_total",
            "refused_total",
            "request_duration_seconds",
            "requests_total",
            "unread_bytes",
            "values_left_out_total",
            "watch_bytes_total",
            "watch_events_total",
            "watch_lag_events",
            "watch_lag_max_events",
            "watch_lag_max_seconds",
            "watches_open",
            "watches_refused_total",
            "watches_revoked_total",
        ]
    );
    for name in ["watchcore_revision", "watchcore_objects", "watchcore_subscriptions", "watchcore_events_total"] {
        assert!(families.contains_key(name), "the caches' own: {name}");
    }
    drop(watch);
}

#[tokio::test]
async fn requests_are_counted_by_verb_resource_code() {
    for face in [ServerKind::Own, ServerKind::Nested] {
        let ground = Ground::builder().face(face).start().await;
        ground.put_widget("shop/a", "red");
        let one = format!("{SHOP}/a");
        for path in [WIDGETS, WIDGETS, &one, &format!("{SHOP}/none"), &format!("{WIDGETS}?resourceVersion=x"), "/x/y"] {
            get(ground.address, path).await;
        }
        for resource in 0..50 {
            get(ground.address, &format!("/apis/matrix.test/v1/of{resource}")).await;
        }
        request(ground.address, "DELETE", &one, &[]).await;
        request(ground.address, "BREW", &one, &[]).await;
        for path in ["/livez", "/healthz"] {
            get(ground.address, path).await;
        }
        get(ground.address, "/v1/keys?prefix=/registry/").await;
        let text = eventually("all are counted", || async {
            let text = get(ground.address, "/metrics").await.text();
            let last = "watchcore_http_requests_total{verb=\"list\",group=\"\",version=\"\",resource=\"/v1/keys\",code=\"200\"}";
            metric_in(&text, last).map(|_| text)
        })
        .await;
        for (verb, resource, code, count) in [
            ("list", "widgets", 200, 2.0),
            ("list", "widgets", 400, 1.0),
            ("get", "widgets", 200, 1.0),
            ("get", "widgets", 404, 1.0),
            ("delete", "widgets", 405, 1.0),
            ("other", "widgets", 405, 1.0),
            ("list", "unknown", 404, 50.0),
            ("get", "unknown", 404, 1.0),
            ("get", "/livez", 200, 1.0),
            ("get", "/healthz", 200, 1.0),
        ] {
            let (group, version) = if resource == "widgets" { ("matrix.test", "v1") } else { ("", "") };
            let labels = format!(
                "{{verb=\"{verb}\",group=\"{group}\",version=\"{version}\",resource=\"{resource}\",code=\"{code}\"}}"
            );
            let series = format!("watchcore_http_requests_total{labels}");
            assert_eq!(metric_in(&text, &series), Some(count), "{face:?} {series} in\n{text}");
        }
        let durations = "watchcore_http_request_duration_seconds_count";
        let of = |verb: &str| {
            metric_in(
                &text,
                &format!("{durations}{{verb=\"{verb}\",group=\"matrix.test\",version=\"v1\",resource=\"widgets\"}}"),
            )
        };
        assert_eq!((of("list"), of("get"), of("delete")), (Some(3.0), Some(2.0), None));
        assert!(metric_in(&text, "watchcore_http_answer_bytes_total").unwrap() > 1000.0);
    }
}

/// A source that records the threads on which its statistics are read.
#[derive(Default)]
struct NotedThreads(Mutex<HashSet<ThreadId>>);

impl Source for NotedThreads {
    fn wake(&self) {}

    fn metrics(&self, _each: &mut dyn FnMut(SourceMetric)) {
        self.0.lock().unwrap().insert(thread::current().id());
    }
}

/// With ten thousand watches this takes milliseconds, which would delay events on an async thread.
#[tokio::test]
async fn metrics_are_gathered_off_the_runtime() {
    let ground = Ground::builder().face(ServerKind::Own).start().await;
    let source = Arc::new(NotedThreads::default());
    ground.writer().attach(source.clone()).unwrap();
    // The server runs on the test's thread.
    let here = thread::current().id();
    for path in ["/metrics", "/events"] {
        if path == "/events" {
            let mut events = Watching::open(ground.address, path).await;
            events.line().await.expect("a sample");
        } else {
            assert_eq!(get(ground.address, path).await.code(), 200, "{path}");
        }
        let noted = std::mem::take(&mut *source.0.lock().unwrap());
        assert!(!noted.is_empty() && !noted.contains(&here), "{path}: {noted:?}, the server is on {here:?}");
    }
}

/// Frames of `/v1/keys` have their own series, over all caches.
#[tokio::test]
async fn frames_of_keys_are_counted() {
    let ground = Ground::start().await;
    let mut watch = Watching::open(ground.address, "/v1/keys?prefix=/registry/&watch=1").await;
    for _ in 0..10 {
        ground.put_widget("shop/a", "red");
        watch.line().await.expect("an event");
    }
    let text = get(ground.address, "/metrics").await.text();
    let of = |name: &str| {
        let series = format!(r#"watchcore_http_{name}{{group="",version="",resource="/v1/keys"}}"#);
        metric_in(&text, &series).unwrap_or_else(|| panic!("no {series} in\n{text}"))
    };
    assert!(of("frames_made_total") >= 10.0 && of("frames_bytes") > 1000.0);
    assert_eq!(of("frames_found_total"), 0.0, "nobody else watches");
}

#[tokio::test]
async fn watches_are_counted_with_their_lag() {
    for face in [ServerKind::Own, ServerKind::Nested] {
        let ground = Ground::builder().face(face).start().await;
        ground.put("/registry/matrix.test/widgets/shop/bad", "no object");
        let mut one = Watching::open(ground.address, &format!("{WIDGETS}?watch=1")).await;
        let mut two = Watching::open(ground.address, &format!("{WIDGETS}?watch=1")).await;
        for _ in 0..10 {
            ground.put_widget("shop/a", "red");
        }
        one.next_events(10).await;
        two.next_events(10).await;
        let text = get(ground.address, "/metrics").await.text();
        let of = |name: &str| {
            metric_in(&text, &format!("watchcore_http_{name}")).unwrap_or_else(|| panic!("no {name} in\n{text}"))
        };
        assert_eq!((of("watches_open"), of("watch_events_total")), (2.0, 20.0), "{face:?}");
        assert!(of("watch_bytes_total") > 20.0 * 100.0);
        assert_eq!(
            of("frames_made_total{group=\"matrix.test\",version=\"v1\",resource=\"widgets\"}")
                + of("frames_found_total{group=\"matrix.test\",version=\"v1\",resource=\"widgets\"}"),
            20.0
        );
        assert!(of("frames_found_total{group=\"matrix.test\",version=\"v1\",resource=\"widgets\"}") > 0.0);
        assert!(of("frames_bytes{group=\"matrix.test\",version=\"v1\",resource=\"widgets\"}") > 1000.0);
        assert!(of("values_left_out_total{group=\"matrix.test\",version=\"v1\",resource=\"widgets\"}") >= 1.0);
        assert_eq!((of("watch_lag_max_events"), of("watch_lag_events_count")), (0.0, 2.0));
        drop(two);
        eventually("one is left", || async {
            (metric(ground.address, "watchcore_http_watches_open").await == 1.0).then_some(())
        })
        .await;

        // This client does not read, so events beyond the kernel's buffer lag.
        let mut deaf = Client::connect(ground.address).await;
        deaf.request("GET", &format!("{WIDGETS}?watch=1"), &[]).await;
        assert_eq!(deaf.head().await.unwrap().code, 200);
        let large = "x".repeat(1 << 20);
        for _ in 0..30 {
            ground.put_widget("shop/a", &large);
        }
        eventually("lag is seen", || async {
            let text = get(ground.address, "/metrics").await.text();
            let most = metric_in(&text, "watchcore_http_watch_lag_max_events").unwrap();
            let age = metric_in(&text, "watchcore_http_watch_lag_max_seconds").unwrap();
            (most > 5.0 && age > 0.0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn connections_are_counted() {
    let ground = Ground::builder().face(ServerKind::Own).start().await;
    let open = async || metric(ground.address, "watchcore_http_connections").await;
    assert_eq!(open().await, 1.0, "that of the scrape");
    let mut others = Vec::new();
    for _ in 0..5 {
        others.push(within("connect", TcpStream::connect(ground.address)).await.unwrap());
    }
    eventually("they are accepted", || async { (open().await == 6.0).then_some(()) }).await;
    drop(others);
    eventually("they are gone", || async { (open().await == 1.0).then_some(()) }).await;
}

/// Collects the log lines of this thread.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

thread_local! {
    /// Destination of this thread's log lines: each test has its own thread, on which its server runs.
    static LINES: RefCell<Logged> = RefCell::default();
}

impl Logged {
    /// Installs one subscriber for all tests, which looks up the destination by thread. With a subscriber per thread,
    /// lines were lost now and then: tracing caches for all threads whether a call site has a subscriber, and had
    /// cached that it has none.
    fn start() -> Logged {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let here = || LINES.with_borrow(Logged::clone);
            let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(here).finish();
            tracing::subscriber::set_global_default(subscriber).expect("the only one");
        });
        let logged = Logged::default();
        LINES.set(logged.clone());
        logged
    }

    fn all(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Waits for the access log line that contains all words.
    async fn line(&self, words: &[&str]) -> String {
        eventually(&format!("a line with {words:?} in:\n{}", self.all()), || async {
            let all = self.all();
            let mut lines = all
                .lines()
                .filter(|line| line.contains("watchcore_http::access") && words.iter().all(|word| line.contains(word)));
            let line = lines.next()?.to_owned();
            assert_eq!(lines.next(), None, "once");
            Some(line)
        })
        .await
    }
}

#[tokio::test]
async fn requests_are_logged_without_secrets() {
    let logged = Logged::start();
    let files = Files::new();
    let tokens = Tokens::from_file(files.write("tokens", "secret,alice\n")).unwrap();
    // Our own server knows the client's address.
    let ground = Ground::builder().face(ServerKind::Own).api(move |api| api.authenticator(tokens)).start().await;
    let target = format!("{WIDGETS}?limit=5&token=hidden&access_token=hidden");
    let headers = [("Authorization", "Bearer secret"), ("X-Request-Id", "of-client-1")];
    let answer = request(ground.address, "GET", &target, &headers).await;
    assert_eq!(answer.header("x-request-id"), Some("of-client-1"));
    assert_eq!(answer.header("audit-id"), Some("of-client-1"));
    let line = logged.line(&["id=\"of-client-1\""]).await;
    for word in [
        "method=GET",
        "path=/apis/matrix.test/v1/widgets ",
        "query=limit=5 ",
        "verb=\"list\"",
        "resource=widgets.matrix.test",
        "code=200",
        &format!("bytes={}", answer.body.len()),
        "duration_ms=",
        "user=\"alice\"",
        "peer=127.0.0.1:",
    ] {
        assert!(line.contains(word), "{word} in {line}");
    }
    let answer = get(ground.address, WIDGETS).await;
    let id = answer.header("x-request-id").expect("a name").to_owned();
    assert_eq!(id.len(), 32);
    let line = logged.line(&[&id]).await;
    assert!(line.contains("code=401") && line.contains("reason=\"Unauthorized\"") && !line.contains("user"), "{line}");
    let wild = request(ground.address, "GET", "/livez", &[("X-Request-Id", "a b\"c")]).await;
    assert_ne!(wild.header("x-request-id"), Some("a b\"c"));
    assert!(!logged.all().contains("secret") && !logged.all().contains("hidden"), "{}", logged.all());
}

/// A request line may contain any UTF-8: line breaks, text direction marks, terminal escapes.
#[tokio::test]
async fn logged_lines_are_plain_text() {
    let logged = Logged::start();
    let ground = Ground::builder().face(ServerKind::Own).start().await;
    let target = "/\u{2028}x\u{85}y\u{202e}z?labelSelector=\u{9b}31m\u{2029}";
    let answer = request(ground.address, "GET", target, &[("X-Request-Id", "wild")]).await;
    assert_eq!(answer.code(), 404);
    let line = logged.line(&["id=\"wild\""]).await;
    assert!(line.is_ascii(), "{line:?}");
    let shown = ["path=/%E2%80%A8x%C2%85y%E2%80%AEz ", "query=labelSelector=%C2%9B31m%E2%80%A9 "];
    assert!(shown.iter().all(|word| line.contains(word)), "{line}");
}

#[tokio::test]
async fn streams_are_logged_when_they_end() {
    for face in [ServerKind::Own, ServerKind::Nested] {
        let logged = Logged::start();
        let ground = Ground::builder().face(face).start().await;
        for (id, target) in
            [("resource", format!("{WIDGETS}?watch=1")), ("keys", "/v1/keys?prefix=/registry/&watch=1".into())]
        {
            let mut watch = Watching::open_with(ground.address, &target, &[("X-Request-Id", id)]).await;
            ground.put_widget("shop/a", "red");
            let line = watch.line().await.expect("an event");
            get(ground.address, "/livez").await;
            assert!(!logged.all().contains(&format!("id=\"{id}\"")), "{face:?}: not before its end");
            drop(watch);
            let logged = logged.line(&[&format!("id=\"{id}\"")]).await;
            assert!(logged.contains("verb=\"watch\"") && logged.contains("code=200"), "{logged}");
            let bytes = logged.split("bytes=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
            assert!(bytes.parse::<usize>().unwrap() >= line.len(), "{face:?} {id}: {logged}");
        }
    }
}

#[tokio::test]
async fn websockets_are_logged_when_they_end() {
    let logged = Logged::start();
    let ground = Ground::start().await;
    let url = format!("ws://{}{WIDGETS}?watch=1", ground.address);
    let (socket, _) = within("upgrade", tokio_tungstenite::connect_async(&url)).await.unwrap();
    get(ground.address, "/livez").await;
    assert!(!logged.all().contains("code=101"), "not before its end");
    drop(socket);
    let line = logged.line(&["code=101"]).await;
    assert!(line.contains("verb=\"watch\""), "{line}");
}

/// A client that disconnects gets no answer; the log and the metrics count it separately.
#[tokio::test]
async fn clients_that_go_are_499() {
    let logged = Logged::start();
    let ground = Ground::start().await;
    // A list of a revision that is not reached waits for 3 s.
    let mut client = Client::connect(ground.address).await;
    client.request("GET", &format!("{WIDGETS}?resourceVersion=99"), &[("X-Request-Id", "gone")]).await;
    let waiters = format!("watchcore_waiters{{cache=\"{PREFIX}\"}}");
    eventually("it waits", || async { (metric(ground.address, &waiters).await == 1.0).then_some(()) }).await;
    drop(client);
    let line = logged.line(&["id=\"gone\""]).await;
    assert!(line.contains("code=499"), "{line}");
}
