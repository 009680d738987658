//! The live page, as bytes; in a browser it is looked at by http-tests/browser. docs/HTTP.md, section HK.

use crate::support::client::Watching;
use crate::support::{Client, Ground, get, request, within};
use serde_json::Value;
use std::time::Duration;
use watchcore::{Start, Subscription};

/// What is a name for some, and markup for others.
const EVIL: &str = "<script>alert('1')</script>\"&";

fn watcher(ground: &Ground, name: &str) -> Subscription {
    ground.cache.subscribe(Start::Now).name(name).open().expect("opens")
}

async fn page(ground: &Ground) -> String {
    let answer = get(ground.address, "/").await;
    assert_eq!((answer.code(), answer.header("content-type")), (200, Some("text/html; charset=utf-8")));
    answer.text()
}

/// The next sample of `/events`.
async fn sample(watching: &mut Watching) -> Value {
    loop {
        let line = String::from_utf8(watching.line().await.expect("a line, not the end")).expect("text");
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str(data).expect("one JSON a line");
        }
        assert_eq!(line, "\n");
    }
}

#[tokio::test]
async fn page_is_whole_without_script() {
    let ground = Ground::start().await;
    for number in 0..1234 {
        ground.put_widget(&format!("shop/{number}"), "red");
    }
    let _watcher = watcher(&ground, "the report");
    ground.put_node("n1");
    get(ground.address, "/api/v1/nodes").await;
    // A request is counted when its answer has gone.
    let counted = async || {
        let page = page(&ground).await;
        page.contains("/registry/nodes/</td><td>1</td>").then_some(page)
    };
    let page = crate::support::eventually("one request of nodes", counted).await;
    let shown = |name: &str| {
        let (_, rest) = page.split_once(&format!("<dt>{name}</dt><dd>")).unwrap_or_else(|| panic!("no {name}: {page}"));
        rest.split_once('<').expect("the end of a figure").0.to_owned()
    };
    assert_eq!((shown("revision"), shown("oldest"), shown("objects")), ("1,235".into(), "1".into(), "1,235".into()));
    assert!(shown("window").starts_with("1,235 revisions, "), "{}", shown("window"));
    assert_eq!((shown("resyncs"), shown("reconnects"), shown("watches")), ("0".into(), "0".into(), "0".into()));
    for text in [">Ready<", "the report", "<meter ", ">1</meter>", "widgets.matrix.test/v1", "nodes/v1</td><td"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(page.contains("<noscript><meta http-equiv=\"refresh\""));
    assert!(page.contains("data-events=\"./events\""));
}

#[tokio::test]
async fn page_runs_nothing_but_its_own() {
    let ground = Ground::start().await;
    let answer = get(ground.address, "/").await;
    let policy = answer.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    assert_eq!(policy.matches("'sha256-").count(), 2, "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains("http") && !policy.contains('*'), "{policy}");
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let page = answer.text();
    for forbidden in ["src=", "style=\"", "onclick", "onload", "http://", "https://", "@import"] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert_eq!((page.matches("<script>").count(), page.matches("<style>").count()), (1, 1));
}

#[tokio::test]
async fn names_are_no_markup() {
    let ground = Ground::builder().cache(|cache| cache.name(EVIL)).start().await;
    let _watcher = watcher(&ground, EVIL);
    let escaped = "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&quot;&amp;";
    let text = page(&ground).await;
    assert_eq!((text.matches(escaped).count(), text.matches("alert(").count()), (2, 2), "{text}");
    let mut events = Watching::open(ground.address, "/events").await;
    let sample = sample(&mut events).await;
    assert_eq!(
        (&sample["caches"][0]["name"], &sample["caches"][0]["watchers"][0]["name"]),
        (&EVIL.into(), &EVIL.into())
    );
    let markup = sample["markup"].as_str().expect("markup");
    assert_eq!((markup.matches(escaped).count(), markup.matches("alert(").count()), (2, 2), "{markup}");
}

#[tokio::test]
async fn watchers_are_sorted_by_lag() {
    let ground = Ground::start().await;
    let mut watchers = Vec::new();
    for number in 0..53 {
        watchers.push(watcher(&ground, &format!("watcher {number} ")));
        ground.put_node("n1");
    }
    let page = page(&ground).await;
    let at = |number: usize| page.find(&format!("watcher {number} "));
    let places: Vec<usize> = (0..50).map(|number| at(number).unwrap_or_else(|| panic!("watcher {number}"))).collect();
    assert!(places.is_sorted(), "the first lags most");
    assert!((50..53).all(|number| at(number).is_none()) && page.contains("and 3 more"), "{page}");
}

#[tokio::test]
async fn events_are_figures_each_second() {
    let ground = Ground::start().await;
    let mut events = Watching::open(ground.address, "/events").await;
    assert_eq!(events.head.header("content-type"), Some("text/event-stream"));
    let first = sample(&mut events).await;
    assert_eq!((&first["caches"][0]["revision"], &first["server"]["watches"]), (&0.into(), &1.into()));
    ground.put_node("n1");
    let second = sample(&mut events).await;
    let cache = &second["caches"][0];
    assert_eq!((&cache["revision"], &cache["objects"], &cache["state"]), (&1.into(), &1.into(), &"Ready".into()));
    assert!(second["markup"].as_str().expect("markup").contains("<dt>revision</dt><dd>1</dd>"));
    // Of samples that lie close, as behind a tick that came late, the second has the rate of the first, which has none.
    let rate = async {
        for revision in 2.. {
            ground.put_node("n1");
            let sample = sample(&mut events).await;
            let cache = &sample["caches"][0];
            if let Some(rate) = cache["events_per_second"].as_f64().filter(|rate| *rate > 0.0) {
                return (rate, f64::from(revision));
            }
        }
        unreachable!("the loop has no end");
    };
    let (rate, events_at_most) = within("a rate", rate).await;
    assert!(rate < events_at_most / 0.9, "{rate} a second of {events_at_most} in at least 0.9 s");
    ground.api.drain(Duration::ZERO).await;
    while let Some(line) = events.line().await {
        assert!(line.starts_with(b"data: ") || line == b"\n");
    }
    assert!(!events.client.is_closed(), "a clean end");
}

#[tokio::test]
async fn viewers_count_as_watches() {
    let ground = Ground::builder().api(|api| {
        let mut limits = watchcore_http::Limits::default();
        limits.watches = 1;
        api.limits(limits)
    });
    let ground = ground.start().await;
    let mut events = Watching::open(ground.address, "/events").await;
    sample(&mut events).await;
    assert_eq!(get(ground.address, "/events").await.status(), (429, "TooManyRequests".into()));
    drop(events);
    let freed = async || {
        let mut client = Client::connect(ground.address).await;
        client.request("GET", "/events", &[]).await;
        client.head().await.filter(|head| head.code == 200).map(drop)
    };
    crate::support::eventually("its place", freed).await;
}

#[tokio::test]
async fn nested_page_finds_its_events() {
    let ground = Ground::builder().nest("/cache").start().await;
    let page = get(ground.address, "/cache").await.text();
    assert!(page.contains("data-events=\"./cache/events\""), "{page}");
    let mut events = Watching::open(ground.address, "/cache/events").await;
    sample(&mut events).await;
    assert_eq!(request(ground.address, "POST", "/cache", &[]).await.code(), 405);
}
