//! Lists and single objects: the state from which they are answered, and their contents.

use crate::support::ground::{NODES, SHOP, WIDGETS, node_key, widget, widget_key, widgets};
use crate::support::{Answer, Client, Ground, eventually, get, request, within};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use watchcore::json::MAX_JSON_DEPTH;
use watchcore::{Cache, Change, Writer};
use watchcore_http::{Api, Limits, Resource, Server};

/// Writes widgets shop/a to shop/e, then other/z: revisions 1 to 6.
async fn six() -> Ground {
    let ground = Ground::start().await;
    for name in ["shop/a", "shop/b", "shop/c", "shop/d", "shop/e", "other/z"] {
        ground.put_widget(name, "red");
    }
    ground
}

/// Gets a path with a query.
async fn list(ground: &Ground, path: &str, query: &str) -> Answer {
    get(ground.address, &format!("{path}?{query}")).await
}

/// Returns the revision of a list.
fn revision(list: &Answer) -> String {
    list.json()["metadata"]["resourceVersion"].as_str().expect("a revision").to_owned()
}

/// Returns the continue token of a list or of a Status, percent-encoded.
fn token(answer: &Answer) -> String {
    let token = answer.json()["metadata"]["continue"].as_str().expect("a token").to_owned();
    token.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

#[tokio::test]
async fn list_has_all_objects_by_key() {
    let ground = six().await;
    let all = get(ground.address, WIDGETS).await;
    assert_eq!(all.names(), ["other/z", "shop/a", "shop/b", "shop/c", "shop/d", "shop/e"]);
    assert_eq!(all.header("content-type"), Some("application/json"));
    let json = all.json();
    assert_eq!((&json["kind"], &json["apiVersion"]), (&json!("WidgetList"), &json!("matrix.test/v1")));
    assert_eq!(json["metadata"], json!({"resourceVersion": "6"}));
    let mut first = widget("other/z", "red");
    first["metadata"]["resourceVersion"] = json!("6");
    assert_eq!(json["items"][0], first);
    assert!(all.text().ends_with("]}\n"));
    assert_eq!(get(ground.address, SHOP).await.names(), ["shop/a", "shop/b", "shop/c", "shop/d", "shop/e"]);
    let empty = get(ground.address, NODES).await.json();
    assert_eq!((&empty["kind"], &empty["apiVersion"], &empty["items"]), (&json!("NodeList"), &json!("v1"), &json!([])));
}

/// Without a revision, with revision 0, and with a minimum revision, a list is of the newest state, and states its
/// revision.
#[tokio::test]
async fn newest_state_carries_its_revision() {
    let ground = six().await;
    ground.put_widget("shop/a", "blue");
    for query in ["", "resourceVersion=", "resourceVersion=0", "resourceVersion=3", "resourceVersion=7"] {
        for more in ["", "&resourceVersionMatch=NotOlderThan"] {
            if more.is_empty() || query.contains("Version=0") || query.contains("Version=3") {
                let answer = list(&ground, SHOP, &format!("{query}{more}")).await;
                assert_eq!(revision(&answer), "7", "{query}{more}");
                assert_eq!(answer.json()["items"][0]["spec"]["color"], "blue", "{query}{more}");
                assert_eq!(answer.json()["items"][0]["metadata"]["resourceVersion"], "7");
                assert_eq!(answer.names().len(), 5);
            }
        }
    }
}

/// The limit applies with revision 0 too; Kubernetes ignores it there.
#[tokio::test]
async fn limit_holds_for_every_start() {
    let ground = six().await;
    for query in ["", "resourceVersion=0", "resourceVersion=2&resourceVersionMatch=NotOlderThan"] {
        let page = list(&ground, SHOP, &format!("{query}&limit=2")).await;
        assert_eq!((revision(&page).as_str(), page.names().len()), ("6", 2), "{query}");
        assert_eq!(page.json()["metadata"]["remainingItemCount"], 3, "{query}");
        let rest = list(&ground, SHOP, &format!("continue={}", token(&page))).await;
        assert_eq!(rest.names(), ["shop/c", "shop/d", "shop/e"]);
        assert_eq!(rest.json()["metadata"], json!({"resourceVersion": "6"}), "no token at the end");
    }
}

#[tokio::test]
async fn exact_revision_is_answered_exactly() {
    let ground = six().await;
    ground.delete(&widget_key("shop/a"));
    let exact = list(&ground, SHOP, "resourceVersion=3&resourceVersionMatch=Exact").await;
    assert_eq!(
        (revision(&exact).as_str(), exact.names()),
        ("3", vec!["shop/a".into(), "shop/b".into(), "shop/c".into()])
    );
    // With a limit, a revision without a match parameter is exact.
    let page = list(&ground, SHOP, "resourceVersion=3&limit=2").await;
    assert_eq!((revision(&page).as_str(), page.names()), ("3", vec!["shop/a".into(), "shop/b".into()]));
    assert_eq!(page.json()["metadata"]["remainingItemCount"], 1);
    ground.writer().compact(4).unwrap();
    let edge = list(&ground, SHOP, "resourceVersion=4&resourceVersionMatch=Exact").await;
    assert_eq!(edge.names().len(), 4);
    for query in ["resourceVersion=3&resourceVersionMatch=Exact", "resourceVersion=3&limit=2"] {
        let gone = list(&ground, SHOP, query).await;
        assert_eq!(gone.status(), (410, "Expired".into()), "{query}");
        assert_eq!(gone.message(), "too old resource version: 3 (4)");
    }
}

#[tokio::test]
async fn future_revision_is_waited_for() {
    let ground = six().await;
    for (query, count) in [
        ("resourceVersion=7&resourceVersionMatch=NotOlderThan", 1),
        ("resourceVersion=8", 2),
        ("resourceVersion=9&resourceVersionMatch=Exact", 3),
        ("resourceVersion=10&limit=1", 1),
    ] {
        let mut client = Client::connect(ground.address).await;
        let path = format!("{NODES}?{query}");
        client.request("GET", &path, &[]).await;
        let other = get(ground.address, &format!("{NODES}?resourceVersion=0")).await;
        assert_eq!(other.code(), 200, "others are answered meanwhile");
        let revision = ground.put_node(&format!("n{}", ground.revision()));
        let head = client.head().await.unwrap();
        let body: Value = serde_json::from_slice(&client.body(&head).await).unwrap();
        assert_eq!(body["metadata"]["resourceVersion"], revision.to_string(), "{query}");
        assert_eq!(body["items"].as_array().unwrap().len(), count, "{query}");
    }
}

#[tokio::test]
async fn revision_that_does_not_come_times_out() {
    let ground = six().await;
    let queries = ["resourceVersion=9&resourceVersionMatch=Exact", "resourceVersion=9", "resourceVersion=9&limit=1"];
    let mut waiting = Vec::new();
    let from = Instant::now();
    for path in
        queries.map(|query| format!("{SHOP}?{query}")).into_iter().chain([format!("{SHOP}/a?resourceVersion=9")])
    {
        let address = ground.address;
        waiting.push(tokio::spawn(async move { get(address, &path).await }));
    }
    for answer in waiting {
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), (504, "Timeout".into()));
        assert_eq!(answer.message(), "Timeout: Too large resource version: 9, current: 6");
        let details = &answer.json()["details"];
        assert_eq!(details["retryAfterSeconds"], 1);
        assert_eq!(details["causes"][0]["reason"], "ResourceVersionTooLarge");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    assert!(from.elapsed() >= Duration::from_millis(2900), "{:?}", from.elapsed());
}

/// All pages are of the first page's revision, whatever is written meanwhile.
#[tokio::test]
async fn pages_are_of_one_revision() {
    let ground = six().await;
    let first = list(&ground, SHOP, "limit=2").await;
    ground.delete(&widget_key("shop/c"));
    ground.put_widget("shop/d", "blue");
    ground.put_widget("shop/dd", "blue");
    let second = list(&ground, SHOP, &format!("limit=2&continue={}", token(&first))).await;
    assert_eq!((revision(&second).as_str(), second.names()), ("6", vec!["shop/c".into(), "shop/d".into()]));
    assert_eq!(second.json()["items"][1]["spec"]["color"], "red");
    assert_eq!(second.json()["metadata"]["remainingItemCount"], 1);
    // Revision 0 beside a token is ignored.
    let third = list(&ground, SHOP, &format!("resourceVersion=0&continue={}", token(&second))).await;
    assert_eq!((revision(&third).as_str(), third.names()), ("6", vec!["shop/e".into()]));
}

/// A page whose revision left the window is refused, with a token that continues in the newest state.
#[tokio::test]
async fn page_behind_the_window_goes_on_inconsistently() {
    let ground = six().await;
    let first = list(&ground, SHOP, "limit=2").await;
    ground.delete(&widget_key("shop/c"));
    ground.put_widget("shop/dd", "blue");
    ground.writer().compact(7).unwrap();
    let gone = list(&ground, SHOP, &format!("limit=1&continue={}", token(&first))).await;
    assert_eq!(gone.status(), (410, "Expired".into()));
    assert!(gone.message().contains("inconsistent list"), "{}", gone.message());
    let next = list(&ground, SHOP, &format!("limit=1&continue={}", token(&gone))).await;
    assert_eq!((revision(&next).as_str(), next.names()), ("8", vec!["shop/d".into()]));
    // From here on the pages are of that newer revision.
    ground.put_widget("shop/f", "blue");
    let rest = list(&ground, SHOP, &format!("continue={}", token(&next))).await;
    assert_eq!((revision(&rest).as_str(), rest.names()), ("8", vec!["shop/dd".into(), "shop/e".into()]));
}

#[tokio::test]
async fn tokens_are_of_their_list() {
    let ground = six().await;
    let page = list(&ground, SHOP, "limit=2").await;
    let good = token(&page);
    // Replace the last character.
    let last = if good.ends_with("%41") { "%51" } else { "%41" };
    let damaged = format!("{}{last}", &good[..good.len() - 3]);
    for (path, query) in [
        (SHOP, format!("continue={damaged}")),
        (SHOP, format!("continue={good}A")),
        (SHOP, "continue=abc".into()),
        (SHOP, "continue=%25".into()),
        (SHOP, "continue=%2F%2F8".into()),
        (SHOP, "continue=%00%ff%fe".into()),
        (WIDGETS, format!("continue={good}")),
        (NODES, format!("continue={good}")),
        (SHOP, format!("continue={good}&labelSelector=app%3Dred")),
        (SHOP, format!("continue={good}&fieldSelector=spec.color%3Dred")),
    ] {
        let answer = list(&ground, path, &query).await;
        assert_eq!(answer.status(), (400, "BadRequest".into()), "{path}?{query}");
        if !query.contains("%ff") {
            assert!(
                answer.message().starts_with("invalid continue token: continue key is not valid"),
                "{query}: {}",
                answer.message()
            );
        }
    }
    let other = Ground::builder().cache(|cache| cache.name("other")).start().await;
    assert_eq!(list(&other, SHOP, &format!("continue={good}")).await.code(), 400);
}

/// An unprepared cache matches names by its keys; its tokens are bound to their selector too, in any order of the
/// terms.
#[tokio::test]
async fn tokens_know_selectors_on_names() {
    for prepared in [true, false] {
        let builder = Ground::builder();
        let ground = if prepared { builder } else { builder.undeclared() }.start().await;
        for name in ["a", "b", "c", "d", "e"] {
            ground.put_widget(&format!("shop/{name}"), "red");
        }
        let selector = |text: &str| format!("fieldSelector={}", text.replace(',', "%2C").replace('=', "%3D"));
        let one = selector("metadata.name!=a,metadata.name!=b");
        let good = token(&list(&ground, SHOP, &format!("{one}&limit=1")).await);
        for equal in [one, selector("metadata.name!=b,metadata.name!=a,metadata.name!=b")] {
            let page = list(&ground, SHOP, &format!("{equal}&continue={good}")).await;
            assert_eq!(page.json()["items"].as_array().unwrap().len(), 2, "{equal}");
        }
        let other = list(&ground, SHOP, &format!("{}&continue={good}", selector("metadata.name!=a"))).await;
        assert_eq!(other.status(), (400, "BadRequest".into()));
    }
}

/// One limit on nesting holds for both: values that are served are visible to selectors.
#[tokio::test]
async fn depth_of_what_is_served_is_that_of_selectors() {
    let ground = Ground::start().await;
    for (name, depth) in [("even", MAX_JSON_DEPTH), ("deeper", MAX_JSON_DEPTH + 1)] {
        let (open, close) = ("[".repeat(depth - 1), "]".repeat(depth - 1));
        let value = format!(r#"{{"metadata":{{"labels":{{"app":"red"}}}},"spec":{open}{close}}}"#);
        ground.put(&widget_key(&format!("shop/{name}")), value);
    }
    for query in ["", "labelSelector=app%3Dred", "labelSelector=!app"] {
        // Compared as text: the list itself adds two levels of nesting.
        let page = list(&ground, SHOP, query).await.text().to_owned();
        let has = |name: &str| page.contains(&format!(r#""name":"{name}""#));
        assert_eq!((has("even"), has("deeper")), (!query.contains('!'), false), "{query}");
    }
}

/// A member whose name is not valid text is a different member, for the framing and for selectors.
#[tokio::test]
async fn names_that_are_no_text_hide_nothing() {
    let ground = Ground::start().await;
    let value = r#"{"metadata":{"labels":{"app":"red"},"\ud834x":1},"spec":{"color":"red","\udd1e":2},"\ud834":0}"#;
    ground.put(&widget_key("shop/odd"), value);
    for query in ["", "labelSelector=app%3Dred", "fieldSelector=spec.color%3Dred"] {
        let page = list(&ground, SHOP, query).await.text().to_owned();
        assert!(page.contains(r#""name":"odd""#), "{query}: {page}");
    }
}

/// The number of remaining objects is known only without a selector.
#[tokio::test]
async fn remaining_count_is_exact_or_absent() {
    let ground = six().await;
    let by_key = list(&ground, WIDGETS, "limit=2").await.json();
    assert_eq!(by_key["metadata"]["remainingItemCount"], 4);
    for query in ["labelSelector=app%3Dred", "fieldSelector=spec.color%3Dred", "fieldSelector=metadata.name!%3Dz"] {
        let metadata = list(&ground, SHOP, &format!("{query}&limit=2")).await.json()["metadata"].take();
        assert!(metadata["continue"].is_string(), "{query}: {metadata}");
        assert!(metadata.get("remainingItemCount").is_none(), "{query}: {metadata}");
    }
    let whole = list(&ground, WIDGETS, "limit=6").await.json();
    assert_eq!(whole["metadata"], json!({"resourceVersion": "6"}));
}

/// A value that is not an object, or whose key has another shape, is skipped without further effect.
#[tokio::test]
async fn values_that_are_no_objects_are_left_out() {
    for ground in [Ground::start().await, Ground::builder().undeclared().start().await] {
        ground.put_widget("shop/a", "red");
        for (key, value) in [
            ("shop/b", &b"no json"[..]),
            ("shop/c", b"[1]"),
            ("shop/d", b"k8s\0\x0a"),
            ("shop/e", b"{\"a\":1} x"),
            ("shop/f", b"{\"a\":\"\xff\"}"),
            ("shop/g", b""),
            ("shop/h/i", b"{}"),
            ("h", b"{}"),
        ] {
            ground.put(&widget_key(key), value);
        }
        ground.put_widget("shop/z", "red");
        for query in ["", "limit=100", "resourceVersion=10&resourceVersionMatch=Exact"] {
            assert_eq!(list(&ground, WIDGETS, query).await.names(), ["shop/a", "shop/z"], "{query}");
        }
        let page = list(&ground, WIDGETS, "limit=3").await;
        assert!(page.names().len() < 3 && page.json()["metadata"]["continue"].is_string(), "a page with fewer objects");
        assert_eq!(get(ground.address, &format!("{SHOP}/b")).await.status(), (404, "NotFound".into()));
        let metrics = get(ground.address, "/metrics").await.text();
        let of_widgets =
            |line: &&str| line.starts_with("watchcore_http_values_left_out_total") && line.contains("widgets");
        let counted = metrics.lines().find(of_widgets).and_then(|line| line.rsplit(' ').next()).expect("a counter");
        assert!(counted.parse::<u64>().unwrap() >= 3 * 8, "{counted}");
    }
}

#[tokio::test]
async fn missing_names_come_from_keys() {
    for ground in [Ground::start().await, Ground::builder().undeclared().start().await] {
        ground.put(&widget_key("shop/a"), "{ \"n\" : 1.0 }");
        ground.put(&node_key("n1"), r#"{"metadata":{"labels":{}}}"#);
        let widgets = get(ground.address, WIDGETS).await;
        assert_eq!(widgets.names(), ["shop/a"]);
        assert_eq!(widgets.json()["items"][0]["metadata"]["resourceVersion"], "1");
        assert!(widgets.text().contains("\"n\" : 1.0 }"), "no other byte moves: {}", widgets.text());
        assert_eq!(get(ground.address, NODES).await.names(), ["n1"]);
        let one = get(ground.address, &format!("{SHOP}/a")).await.json();
        assert_eq!(one["metadata"], json!({"name": "a", "namespace": "shop", "resourceVersion": "1"}));
    }
}

/// Before the first listing every read gets 503 with Retry-After, even one that would wait; then the embedded cache's
/// newest revision is the consistent one.
#[tokio::test]
async fn cache_that_is_not_ready_is_busy() {
    let ground = Ground::builder().cache(|cache| cache.expect_load(true)).start().await;
    for target in [
        WIDGETS.to_owned(),
        format!("{WIDGETS}?resourceVersion=0"),
        format!("{WIDGETS}?resourceVersion=5"),
        format!("{WIDGETS}?resourceVersion=5&limit=1"),
        format!("{WIDGETS}?limit=1"),
        format!("{SHOP}/a"),
        format!("{SHOP}/a?resourceVersion=0"),
        format!("{SHOP}/a?resourceVersion=9"),
    ] {
        let from = Instant::now();
        let answer = get(ground.address, &target).await;
        assert!(from.elapsed() < Duration::from_secs(3), "nothing is waited for");
        assert_eq!(answer.status(), (503, "ServiceUnavailable".into()), "{target}");
        assert_eq!(answer.header("retry-after"), Some("1"), "{target}");
    }
    let (key, value) = (widget_key("shop/a"), widget("shop/a", "red").to_string());
    let record = watchcore::Record {
        key: key.as_bytes(),
        value: value.as_bytes(),
        create_revision: 3,
        mod_revision: 4,
        version: 2,
        lease: 0,
    };
    ground.writer().load(9, [record]).unwrap();
    let list = get(ground.address, WIDGETS).await;
    assert_eq!((revision(&list).as_str(), list.names()), ("9", vec!["shop/a".into()]));
    assert_eq!(list.json()["items"][0]["metadata"]["resourceVersion"], "4");
}

#[tokio::test]
async fn one_object_is_got() {
    let ground = six().await;
    ground.put_node("n1");
    for query in ["", "?resourceVersion=0", "?resourceVersion=2", "?resourceVersion=7"] {
        let answer = get(ground.address, &format!("{SHOP}/b{query}")).await;
        let mut expected = widget("shop/b", "red");
        expected["metadata"]["resourceVersion"] = json!("2");
        assert_eq!((answer.code(), answer.json()), (200, expected), "{query}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    assert_eq!(get(ground.address, &format!("{NODES}/n1")).await.json()["metadata"]["resourceVersion"], "7");
    let head = request(ground.address, "HEAD", &format!("{SHOP}/b"), &[]).await;
    assert_eq!((head.code(), head.body.len()), (200, 0));
}

#[tokio::test]
async fn absent_object_is_not_found() {
    let ground = six().await;
    let absent = get(ground.address, &format!("{SHOP}/x")).await;
    assert_eq!(absent.status(), (404, "NotFound".into()));
    assert_eq!(absent.message(), "widgets.matrix.test \"x\" not found");
    assert_eq!(absent.json()["details"], json!({"name": "x", "group": "matrix.test", "kind": "widgets"}));
    let node = get(ground.address, &format!("{NODES}/n1")).await;
    assert_eq!(node.message(), "nodes \"n1\" not found");
    // No name in a path reaches another prefix.
    for name in ["..%2f..%2fnodes%2fn1", "%2e%2e", "a%00"] {
        assert_eq!(get(ground.address, &format!("{SHOP}/{name}")).await.code(), 404, "{name}");
    }
}

/// A get of a future revision is answered when the cache has reached it.
#[tokio::test]
async fn get_waits_for_its_revision() {
    let ground = six().await;
    let mut client = Client::connect(ground.address).await;
    client.request("GET", &format!("{SHOP}/a?resourceVersion=7"), &[]).await;
    assert_eq!(get(ground.address, &format!("{SHOP}/a?resourceVersion=0")).await.code(), 200);
    ground.put_widget("shop/a", "blue");
    let head = client.head().await.unwrap();
    let body: Value = serde_json::from_slice(&client.body(&head).await).unwrap();
    assert_eq!((&body["spec"]["color"], &body["metadata"]["resourceVersion"]), (&json!("blue"), &json!("7")));
}

/// With etcd, a list or get without a revision asks etcd for its newest revision, and waits until the cache has reached
/// it.
#[tokio::test]
async fn consistent_reads_wait_for_etcd() {
    struct Silent;
    impl watchcore::Source for Silent {
        fn wake(&self) {}
    }
    let ground = six().await;
    ground.writer().attach(std::sync::Arc::new(Silent)).unwrap();
    for (at, target) in [SHOP.to_owned(), format!("{SHOP}?limit=100"), format!("{SHOP}/a")].into_iter().enumerate() {
        let mut client = Client::connect(ground.address).await;
        let before = ground.writer().demand().consistent;
        client.request("GET", &target, &[]).await;
        let ticket = eventually("etcd is asked", async || {
            let ticket = ground.writer().demand().consistent;
            (ticket > before).then_some(ticket)
        })
        .await;
        let newest = ground.revision() + 2;
        ground.writer().serve_consistent(ticket, newest);
        ground.put_widget("shop/a", "green");
        assert_eq!(get(ground.address, &format!("{SHOP}?resourceVersion=0")).await.code(), 200);
        ground.put_widget("shop/a", &format!("blue{at}"));
        let head = client.head().await.unwrap();
        let body: Value = serde_json::from_slice(&client.body(&head).await).unwrap();
        assert_eq!(body["metadata"]["resourceVersion"], newest.to_string(), "{target}");
    }
}

/// Writes widgets of 10 KB each, in total more than a socket buffers.
fn fill(writer: &mut Writer) {
    let mut value = widget("shop/a", "red");
    value["data"] = json!("x".repeat(10_000));
    let value = value.to_string();
    let keys: Vec<String> = (0..4000).map(|at| widget_key(&format!("shop/w{at:05}"))).collect();
    writer.apply(1, keys.iter().map(|key| Change::put(key.as_bytes(), value.as_bytes()))).unwrap();
}

async fn large(limit: impl FnOnce(&mut Limits)) -> Ground {
    let mut limits = Limits::default();
    limit(&mut limits);
    let ground = Ground::builder().api(move |api| api.limits(limits)).start().await;
    fill(&mut ground.writer());
    ground
}

/// Waits until a snapshot is held, or none is.
async fn snapshot_is_held(cache: &Cache, held: bool) {
    eventually("a snapshot", async || ((cache.stats().snapshots > 0) == held).then_some(())).await;
}

/// A list is produced as the client takes it: the rest is not produced, and the snapshot is held.
#[tokio::test]
async fn list_is_made_as_it_is_taken() {
    let ground = large(|_| {}).await;
    let mut client = Client::connect(ground.address).await;
    client.request("GET", WIDGETS, &[]).await;
    let head = client.head().await.unwrap();
    let first = client.chunk().await.expect("the first piece");
    assert!(head.is_chunked() && first.len() <= 64 << 10, "{}", first.len());
    snapshot_is_held(&ground.cache, true).await;
    // The cache changes meanwhile, the list does not.
    ground.delete(&widget_key("shop/w03999"));
    let mut all = first;
    all.extend(client.body(&head).await);
    let list: Value = serde_json::from_slice(&all).unwrap();
    assert_eq!((&list["metadata"]["resourceVersion"], list["items"].as_array().unwrap().len()), (&json!("1"), 4000));
    snapshot_is_held(&ground.cache, false).await;
}

/// A client that takes nothing of its list is cut off, and the snapshot is released.
#[tokio::test]
async fn client_that_takes_nothing_is_cut_off() {
    let ground = large(|limits| limits.stall = Duration::from_millis(500)).await;
    let mut client = Client::connect(ground.address).await;
    client.request("GET", WIDGETS, &[]).await;
    let head = client.head().await.unwrap();
    client.chunk().await.expect("the first piece");
    snapshot_is_held(&ground.cache, true).await;
    snapshot_is_held(&ground.cache, false).await;
    assert!(head.is_chunked());
    let rest = client.rest().await;
    assert!(!rest.ends_with(b"0\r\n\r\n"), "no list that looks whole");
    assert!(rest.len() < 30_000_000, "{}", rest.len());
}

/// On our own server the connection is closed too, although its full socket cannot carry an error.
#[tokio::test]
async fn connection_of_a_stalled_list_is_closed() {
    let cache = Resource::declare(Cache::builder("/registry/"), [&widgets()]).unwrap().build().unwrap();
    fill(&mut cache.writer().unwrap());
    let mut limits = Limits::default();
    limits.stall = Duration::from_millis(500);
    let api = Api::builder().cache(cache.clone()).resource(widgets()).limits(limits).build().unwrap();
    let server = Server::builder(api).address("127.0.0.1:0").start().await.unwrap();
    let mut client = Client::connect(server.address()).await;
    client.request("GET", WIDGETS, &[]).await;
    client.head().await.unwrap();
    snapshot_is_held(&cache, true).await;
    // Without reading, a closed connection shows only in failing writes.
    within("the connection is gone", async {
        while client.try_send(b"GET / HTTP/1.1\r\n\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(cache.stats().snapshots, 0);
}
