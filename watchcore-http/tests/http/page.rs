//! The live page as bytes, and the samples that its script shows; http-tests/browser runs the script. Section HK of
//! docs/HTTP.md.

use crate::support::client::Watching;
use crate::support::{Answer, Client, Ground, get, request, within};
use serde_json::Value;
use std::time::Duration;
use watchcore::{Start, Subscription};

/// A name that is also markup.
const EVIL: &str = "<script>alert('1')</script>\"&";

fn watcher(ground: &Ground, name: &str) -> Subscription {
    ground.cache.subscribe(Start::Now).name(name).open().expect("opens")
}

async fn page(ground: &Ground, path: &str) -> Answer {
    let answer = get(ground.address, path).await;
    assert_eq!((answer.code(), answer.header("content-type")), (200, Some("text/html; charset=utf-8")));
    answer
}

/// Returns the first sample that a new viewer gets.
async fn first_sample(ground: &Ground) -> Value {
    sample(&mut Watching::open(ground.address, "/events").await).await
}

/// Returns the names of an object's members.
fn members(object: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = object.as_object().expect("an object").keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// Returns the next sample of `/events`.
async fn sample(watching: &mut Watching) -> Value {
    loop {
        let line = String::from_utf8(watching.line().await.expect("a line, not the end")).expect("text");
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str(data).expect("one JSON a line");
        }
        assert_eq!(line, "\n");
    }
}

/// Each member exists with its value, and no others: http-tests/browser/page.mjs shows a sample of these names.
#[tokio::test]
async fn sample_has_the_numbers_of_the_page() {
    let ground = Ground::start().await;
    for number in 0..1234 {
        ground.put_widget(&format!("shop/{number}"), "red");
    }
    let _watcher = watcher(&ground, "the report");
    ground.put_node("n1");
    get(ground.address, "/api/v1/nodes").await;
    // A request is counted after its answer was sent.
    let counted = async || Some(first_sample(&ground).await).filter(|sample| sample["resources"][1]["requests"] == 1);
    let sample = crate::support::eventually("one request of nodes", counted).await;
    assert_eq!(members(&sample), ["caches", "more_resources", "resources", "server"]);
    assert_eq!(members(&sample["server"]), ["bytes", "connections", "events", "refused", "watches"]);
    let resource = &sample["resources"][1];
    assert_eq!(members(resource), ["frames_found", "frames_made", "left_out", "name", "prefix", "requests"]);
    assert_eq!((&resource["name"], &resource["prefix"]), (&"nodes/v1".into(), &"/registry/nodes/".into()));
    let cache = &sample["caches"][0];
    let names = [
        "bytes",
        "endpoint",
        "events",
        "events_per_second",
        "last_error",
        "more_watchers",
        "name",
        "objects",
        "oldest",
        "prefix",
        "reconnects",
        "resyncs",
        "resyncs_by_reason",
        "revision",
        "state",
        "subscriptions",
        "watchers",
        "window_bytes",
        "window_seconds",
    ];
    assert_eq!(members(cache), names);
    for (name, value) in
        [("revision", 1235), ("oldest", 1), ("objects", 1235), ("resyncs", 0), ("reconnects", 0), ("more_watchers", 0)]
    {
        assert_eq!(cache[name], value, "{name}");
    }
    assert_eq!((&cache["state"], &cache["last_error"]), (&"Ready".into(), &Value::Null));
    let watcher = &cache["watchers"][0];
    let names = [
        "handed_out",
        "id",
        "lag_events",
        "lag_revisions",
        "lag_seconds",
        "lagged",
        "last_poll_seconds",
        "name",
        "revision",
        "state",
    ];
    assert_eq!(members(watcher), names);
    assert_eq!((&watcher["name"], &watcher["lag_events"]), (&"the report".into(), &1.into()));
}

/// The document contains no data, so no name can become markup; and it loads nothing from other origins.
#[tokio::test]
async fn page_is_one_document_for_all() {
    let ground = Ground::builder().cache(|cache| cache.name(EVIL)).start().await;
    let _watcher = watcher(&ground, EVIL);
    let answer = page(&ground, "/").await;
    let policy = answer.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    assert_eq!(policy.matches("'sha256-").count(), 2, "{policy}");
    assert!(policy.contains("require-trusted-types-for 'script'; trusted-types 'none';"), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains("http") && !policy.contains('*'), "{policy}");
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let text = answer.text();
    for foreign in ["src=", "style=\"", "onclick", "onload", "http:", "https:", "@import", "url("] {
        assert!(!text.contains(foreign), "{foreign}");
    }
    for sink in ["innerHTML", "outerHTML", "insertAdjacentHTML", "DOMParser", "document.write", "eval(", "Function("] {
        assert!(!text.contains(sink), "{sink} makes markup or script of text");
    }
    assert_eq!((text.matches("<script").count(), text.matches("<style").count()), (1, 1));
    let (_, without) = text.split_once("<noscript>").expect("a sentence for those without script");
    let (sentence, _) = without.split_once("</noscript>").expect("its end");
    assert!(sentence.contains("/metrics") && sentence.contains("/readyz?verbose"), "{sentence}");
    let other = Ground::builder().nest("/cache").start().await;
    assert_eq!(page(&other, "/cache").await.text(), text);
}

/// Runs the page's script in node: how it shows a sample, and how it reconnects. Skipped without node, because no other
/// test here runs the page.
#[test]
fn script_shows_a_sample() {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../http-tests/browser/page.mjs");
    match std::process::Command::new("node").arg(program).output() {
        Ok(ran) => assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr)),
        Err(error) => eprintln!("not looked at: node does not run: {error}"),
    }
}

#[tokio::test]
async fn names_are_no_markup() {
    let ground = Ground::builder().cache(|cache| cache.name(EVIL)).start().await;
    let _watcher = watcher(&ground, EVIL);
    let sample = first_sample(&ground).await;
    let cache = &sample["caches"][0];
    assert_eq!((&cache["name"], &cache["watchers"][0]["name"]), (&EVIL.into(), &EVIL.into()), "as they are");
}

#[tokio::test]
async fn watchers_are_sorted_by_lag() {
    let ground = Ground::start().await;
    let mut watchers = Vec::new();
    for number in 0..53 {
        watchers.push(watcher(&ground, &number.to_string()));
        ground.put_node("n1");
    }
    // The first watcher lagged most, and now takes everything.
    while !watchers[0].poll(100).expect("no loss").events().is_empty() {}
    let sample = first_sample(&ground).await;
    let cache = &sample["caches"][0];
    let shown = cache["watchers"].as_array().expect("watchers").iter();
    let names: Vec<&str> = shown.map(|watcher| watcher["name"].as_str().expect("a name")).collect();
    let most: Vec<String> = (1..=50).map(|number| number.to_string()).collect();
    assert_eq!((names, &cache["more_watchers"]), (most.iter().map(String::as_str).collect(), &3.into()));
}

#[tokio::test]
async fn events_are_numbers_each_second() {
    let ground = Ground::start().await;
    let mut events = Watching::open(ground.address, "/events").await;
    assert_eq!(events.head.header("content-type"), Some("text/event-stream"));
    let first = sample(&mut events).await;
    assert_eq!((&first["caches"][0]["revision"], &first["server"]["watches"]), (&0.into(), &1.into()));
    ground.put_node("n1");
    let second = sample(&mut events).await;
    let cache = &second["caches"][0];
    assert_eq!((&cache["revision"], &cache["objects"], &cache["state"]), (&1.into(), &1.into(), &"Ready".into()));
    // Of two samples close together, as after a delayed tick, the second repeats the first one's rate, which is
    // unknown.
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
async fn nested_page_has_its_events() {
    let ground = Ground::builder().nest("/cache").start().await;
    let mut events = Watching::open(ground.address, "/cache/events").await;
    sample(&mut events).await;
    assert_eq!(request(ground.address, "POST", "/cache", &[]).await.code(), 405);
}
