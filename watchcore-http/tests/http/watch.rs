//! Watches of a resource: how each begins, its events, how it ends. Section HW of docs/HTTP.md.

use crate::support::client::Watching;
use crate::support::ground::{NODES, SHOP, ServerKind, WIDGETS, node, node_key, widget, widget_key};
use crate::support::{Ground, get, request};
use serde_json::{Value, json};
use std::time::Duration;
use watchcore::{Record, ResyncReason};

/// Writes shop/a at 1, shop/b at 2, shop/a again at 3, a node at 4.
async fn filled() -> Ground {
    let ground = Ground::start().await;
    ground.put_widget("shop/a", "red");
    ground.put_widget("shop/b", "blue");
    ground.put_widget("shop/a", "green");
    ground.put_node("n1");
    ground
}

async fn watch(ground: &Ground, query: &str) -> Watching {
    Watching::open(ground.address, &format!("{WIDGETS}?watch=1&{query}")).await
}

const STATE: [&str; 2] = ["ADDED shop/a@3", "ADDED shop/b@2"];
const LIST: &str = "resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

#[tokio::test]
async fn without_revision_comes_the_state() {
    let ground = filled().await;
    for query in ["", "resourceVersion=", "resourceVersion=&timeoutSeconds=50"] {
        let mut watching = watch(&ground, query).await;
        assert_eq!(watching.next_events(2).await, STATE, "{query}");
        let revision = ground.put_node("n2");
        let next = ground.put_widget("farm/z", "white");
        assert_eq!(watching.next_event().await, format!("ADDED farm/z@{next}"), "{query}: above {revision}");
        ground.delete(&widget_key("farm/z"));
    }
}

#[tokio::test]
async fn revision_zero_without_more_comes_the_state() {
    let ground = filled().await;
    let mut watching = watch(&ground, "resourceVersion=0").await;
    assert_eq!(watching.next_events(2).await, STATE);
    ground.put_widget("shop/c", "white");
    assert_eq!(watching.next_event().await, "ADDED shop/c@5");
    for query in ["", "resourceVersion=&", "resourceVersion=0&"] {
        let mut watching = watch(&ground, &format!("{query}allowWatchBookmarks=1")).await;
        assert_eq!(watching.next_events(4).await[3], "END @5", "{query} acts as one that asks for its initial state");
    }
}

#[tokio::test]
async fn initial_events_end_with_a_mark() {
    let ground = filled().await;
    for revision in ["", "0", "2", "4"] {
        let mut watching = watch(&ground, &format!("sendInitialEvents=true&resourceVersion={revision}&{LIST}")).await;
        let mut expected = STATE.to_vec();
        expected.push("END @4");
        assert_eq!(watching.next_events(3).await, expected, "{revision:?}: the mark has the cache's revision");
    }
    let quiet = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0";
    let mut watching = watch(&ground, quiet).await;
    assert_eq!(watching.next_events(2).await, STATE);
    ground.put_widget("shop/c", "white");
    assert_eq!(watching.next_event().await, "ADDED shop/c@5", "no mark where no bookmarks are allowed");
}

#[tokio::test]
async fn state_of_a_future_revision_waits_for_it() {
    let ground = filled().await;
    let address = ground.address;
    let waiting = tokio::spawn(async move {
        let target = format!("{WIDGETS}?watch=1&sendInitialEvents=true&resourceVersion=6&{LIST}");
        Watching::open(address, &target).await.next_events(3).await
    });
    ground.put_node("n2");
    assert!(!waiting.is_finished());
    ground.put_widget("shop/a", "white");
    assert_eq!(waiting.await.unwrap(), ["ADDED shop/a@6", "ADDED shop/b@2", "END @6"]);
}

#[tokio::test]
async fn state_of_a_revision_that_does_not_come_is_an_event() {
    let ground = filled().await;
    let mut watching = watch(&ground, &format!("sendInitialEvents=true&resourceVersion=99&{LIST}")).await;
    let error = watching.event().await;
    assert_eq!((&error["type"], &error["object"]["code"]), (&json!("ERROR"), &json!(504)), "{error}");
    let status = &error["object"];
    assert_eq!(status["message"], "Timeout: Too large resource version: 99, current: 4");
    assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    watching.ended().await;
}

#[tokio::test]
async fn no_initial_events_begin_now() {
    let ground = filled().await;
    for revision in ["", "0"] {
        let query = format!("sendInitialEvents=false&resourceVersion={revision}&{LIST}");
        let mut watching = watch(&ground, &query).await;
        let revision = ground.put_widget("shop/a", "white");
        assert_eq!(watching.next_event().await, format!("MODIFIED shop/a@{revision}"), "{query}");
    }
}

#[tokio::test]
async fn history_comes_from_a_revision_on() {
    let ground = filled().await;
    ground.delete(&widget_key("shop/b"));
    for query in ["resourceVersion=1", &format!("resourceVersion=1&sendInitialEvents=false&{LIST}")] {
        let mut watching = watch(&ground, query).await;
        assert_eq!(
            watching.next_events(3).await,
            ["ADDED shop/b@2", "MODIFIED shop/a@3", "DELETED shop/b@5"],
            "a deletion has its own revision: {query}"
        );
    }
    let mut watching = watch(&ground, "resourceVersion=5").await;
    ground.put_widget("shop/b", "red");
    assert_eq!(watching.next_event().await, "ADDED shop/b@6");
}

#[tokio::test]
async fn future_revision_is_waited_for() {
    let ground = filled().await;
    let mut watching = watch(&ground, "resourceVersion=6").await;
    ground.put_widget("shop/a", "1");
    ground.put_widget("shop/a", "2");
    ground.put_widget("shop/a", "3");
    assert_eq!(watching.next_event().await, "MODIFIED shop/a@7");
}

/// A watch can begin at the revision before the oldest one in the window, but not earlier.
#[tokio::test]
async fn compacted_revision_is_an_error_event() {
    let ground = filled().await;
    ground.writer().compact(3).unwrap();
    let mut watching = watch(&ground, "resourceVersion=3").await;
    ground.put_widget("shop/a", "1");
    assert_eq!(watching.next_event().await, "MODIFIED shop/a@5");

    let mut watching = watch(&ground, "resourceVersion=2").await;
    let event = watching.event().await;
    assert_eq!(event["type"], "ERROR");
    assert_eq!(event["object"]["message"], "too old resource version: 2 (3)");
    assert_eq!((&event["object"]["code"], &event["object"]["reason"]), (&json!(410), &json!("Expired")));
    assert_eq!(event["object"]["kind"], "Status");
    watching.ended().await;
}

#[tokio::test]
async fn watcher_that_falls_behind_the_window_is_told() {
    let ground = Ground::builder().cache(|cache| cache.capacity(256)).start().await;
    let mut watching = watch(&ground, "resourceVersion=0").await;
    let large = "x".repeat(100_000);
    for _ in 0..600 {
        ground.put_widget("shop/a", &large);
        tokio::task::yield_now().await;
    }
    let mut last = String::new();
    while let Some(line) = watching.line().await {
        last = String::from_utf8(line).unwrap();
    }
    let event: Value = serde_json::from_str(&last).unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    let message = event["object"]["message"].as_str().unwrap();
    assert!(message.starts_with("too old resource version: "), "{message}");
}

#[tokio::test]
async fn objects_that_enter_and_leave_a_selector_change_their_kind() {
    let ground = filled().await;
    let mut watching = watch(&ground, "resourceVersion=4&fieldSelector=spec.color%3Dred&labelSelector=").await;
    ground.put_widget("shop/b", "red");
    ground.put_widget("shop/b", "red");
    ground.put_widget("shop/b", "blue");
    ground.put_widget("shop/b", "green");
    ground.put_widget("shop/b", "red");
    assert_eq!(
        watching.next_events(4).await,
        ["ADDED shop/b@5", "MODIFIED shop/b@6", "DELETED shop/b@7", "ADDED shop/b@9"]
    );
    let mut again = watch(&ground, "resourceVersion=6&fieldSelector=spec.color%3Dred").await;
    let gone = again.event().await;
    assert_eq!(gone["type"], "DELETED");
    assert_eq!(gone["object"]["spec"]["color"], "red", "what has left is shown as it last matched");
    assert_eq!(gone["object"]["metadata"]["resourceVersion"], "7", "with the revision of its leaving");
}

#[tokio::test]
async fn namespace_and_name_select() {
    let ground = filled().await;
    ground.put_widget("farm/a", "red");
    let mut shop = Watching::open(ground.address, &format!("{SHOP}?watch=1&resourceVersion=0")).await;
    assert_eq!(shop.next_events(2).await, STATE);
    let mut one = Watching::open(ground.address, &format!("{SHOP}/a?watch=1&resourceVersion=0")).await;
    assert_eq!(one.next_event().await, "ADDED shop/a@3");
    let mut named = watch(&ground, "resourceVersion=0&fieldSelector=metadata.name%3Da").await;
    assert_eq!(named.next_events(2).await, ["ADDED farm/a@5", "ADDED shop/a@3"]);
    ground.put_widget("shop/b", "red");
    ground.put_widget("farm/a", "blue");
    ground.put_widget("shop/a", "blue");
    assert_eq!(shop.next_events(2).await, ["MODIFIED shop/b@6", "MODIFIED shop/a@8"]);
    assert_eq!(one.next_event().await, "MODIFIED shop/a@8");
    assert_eq!(named.next_events(2).await, ["MODIFIED farm/a@7", "MODIFIED shop/a@8"]);
    let mut nodes = Watching::open(ground.address, &format!("{NODES}/n1?watch=1")).await;
    assert_eq!(nodes.next_event().await, "ADDED n1@4");
}

#[tokio::test]
async fn old_path_watches_without_end_mark() {
    let ground = filled().await;
    let asked = "watch/namespaces/shop/widgets?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&";
    for path in ["watch/widgets?", "watch/namespaces/shop/widgets?", "watch/namespaces/shop/widgets/b?", asked] {
        let target = format!("/apis/matrix.test/v1/{path}resourceVersion=0&allowWatchBookmarks=true");
        let mut watching = Watching::open(ground.address, &target).await;
        while !watching.next_event().await.starts_with("ADDED shop/b@") {}
        let revision = ground.put_widget("shop/b", "white");
        assert_eq!(watching.next_event().await, format!("MODIFIED shop/b@{revision}"), "{path}: no mark in between");
    }
}

/// Values that are not objects of the resource count as absent.
#[tokio::test]
async fn values_that_are_no_objects_are_not_there() {
    let ground = filled().await;
    let mut watching = watch(&ground, "resourceVersion=4").await;
    ground.put(&widget_key("shop/a"), "not JSON");
    ground.put(&widget_key("shop/a"), "[]");
    ground.put_widget("shop/a", "red");
    ground.put(&widget_key("shop/x"), "k8s\0\x01");
    ground.put("/registry/matrix.test/widgets/no-namespace", "{}");
    ground.put("/registry/matrix.test/widgets/too/many/parts", "{}");
    ground.delete(&widget_key("shop/x"));
    ground.put_widget("shop/b", "last");
    assert_eq!(watching.next_events(3).await, ["DELETED shop/a@5", "ADDED shop/a@7", "MODIFIED shop/b@12"]);
    let mut state = watch(&ground, "resourceVersion=0").await;
    assert_eq!(state.next_events(2).await, ["ADDED shop/a@7", "ADDED shop/b@12"]);
}

#[tokio::test]
async fn bookmarks_come_where_they_are_allowed() {
    let ground = Ground::builder().api(|api| api.bookmark_interval(Duration::from_millis(50))).start().await;
    let mut watching = watch(&ground, "resourceVersion=0&allowWatchBookmarks=true").await;
    assert_eq!(watching.next_event().await, "END @0");
    ground.put_node("n1");
    ground.put_node("n2");
    // Changes that do not match move the position too.
    let mut last = String::new();
    while last != "BOOKMARK @2" {
        last = watching.next_event().await;
        assert!(last.starts_with("BOOKMARK @"), "{last}");
    }
    let mut plain = watch(&ground, "resourceVersion=2").await;
    ground.put_node("n3");
    let mut marked = watch(&ground, "resourceVersion=2&allowWatchBookmarks=true").await;
    assert_eq!(marked.next_event().await, "BOOKMARK @3");
    ground.put_widget("shop/a", "red");
    assert_eq!(plain.next_event().await, "ADDED shop/a@4", "and no bookmark before");
}

#[tokio::test]
async fn bookmark_is_an_object_of_the_form() {
    let ground = Ground::start().await;
    let target = format!("{WIDGETS}?watch=1&resourceVersion=0&allowWatchBookmarks=true");
    let forms = [
        ("application/json", "Widget", "matrix.test/v1"),
        ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "PartialObjectMetadata", "meta.k8s.io/v1"),
        ("application/json;as=Table;v=v1;g=meta.k8s.io", "Table", "meta.k8s.io/v1"),
    ];
    for (accept, kind, version) in forms {
        let mut watching = Watching::open_with(ground.address, &target, &[("Accept", accept)]).await;
        let object = &watching.event().await["object"];
        assert_eq!((&object["kind"], &object["apiVersion"]), (&json!(kind), &json!(version)));
        let marked = if kind == "Table" { &object["rows"][0]["object"] } else { object };
        assert_eq!(marked["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}), "{kind}");
        assert_eq!(object["metadata"]["resourceVersion"], "0");
    }
}

#[tokio::test]
async fn deadline_ends_the_stream() {
    let ground = filled().await;
    let mut watching = watch(&ground, "resourceVersion=4&timeoutSeconds=1&allowWatchBookmarks=true").await;
    watching.ended().await;
    let mut moved = watch(&ground, "resourceVersion=4&timeoutSeconds=1&allowWatchBookmarks=true").await;
    ground.put_node("n2");
    assert_eq!(moved.next_event().await, "BOOKMARK @5", "the revision has moved");
    moved.ended().await;
}

/// After its cache had to list again, the watch continues with the difference.
#[tokio::test]
async fn resync_goes_out_as_its_difference() {
    let ground = filled().await;
    let mut watching = watch(&ground, "resourceVersion=4").await;
    resync(&ground, &[("shop/a", "new", 1, 30), ("shop/c", "new", 20, 20)]);
    let difference = ["DELETED shop/b@4", "MODIFIED shop/a@30", "ADDED shop/c@20"];
    assert_eq!(watching.next_events(3).await, difference, "what is gone has the revision before");
    ground.put_widget("shop/b", "red");
    assert_eq!(watching.next_event().await, "ADDED shop/b@41", "and goes on");
}

/// Lists these widgets at 40, each with its color and its revisions, and the node of [`filled`].
fn resync(ground: &Ground, widgets: &[(&str, &str, u64, u64)]) {
    let mut records = vec![(node_key("n1"), node("n1").to_string(), 4, 4)];
    for (name, color, create_revision, mod_revision) in widgets {
        records.push((widget_key(name), widget(name, color).to_string(), *create_revision, *mod_revision));
    }
    records.sort();
    let records = records.iter().map(|(key, value, create_revision, mod_revision)| Record {
        key: key.as_bytes(),
        value: value.as_bytes(),
        create_revision: *create_revision,
        mod_revision: *mod_revision,
        version: 1,
        lease: 0,
    });
    ground.writer().resync(40, records, ResyncReason::Compacted).unwrap();
}

/// A client is cut off after any event of a resync: resuming from that event's revision gives it the rest, or 410.
#[tokio::test]
async fn difference_that_breaks_off_is_not_lost() {
    let ground = filled().await;
    let mut watching = watch(&ground, "resourceVersion=4").await;
    resync(&ground, &[("shop/c", "last", 40, 40), ("shop/d", "new", 30, 30)]);
    let difference = ["DELETED shop/a@4", "DELETED shop/b@4", "ADDED shop/d@30", "ADDED shop/c@40"];
    assert_eq!(watching.next_events(4).await, difference, "what is of its end comes last");
    ground.put_widget("shop/e", "red");
    for (told, rest) in [
        (0, &[difference.as_slice(), &["ADDED shop/e@41"]].concat()[..]),
        (1, &[difference.as_slice(), &["ADDED shop/e@41"]].concat()[..]),
        (2, &["ERROR 410 Expired"]),
        (3, &["ADDED shop/e@41"]),
    ] {
        let (_, revision) = difference[told].rsplit_once('@').unwrap();
        let mut again = watch(&ground, &format!("resourceVersion={revision}")).await;
        assert_eq!(again.next_events(rest.len()).await, rest, "behind {}", difference[told]);
    }
}

/// Objects of a resync's own revision are held back until its end; if they are too large, the client gets 410.
#[tokio::test]
async fn difference_too_large_to_order_is_410() {
    let ground = filled().await;
    let mut watching = watch(&ground, "resourceVersion=4").await;
    let large = "x".repeat(1 << 20);
    let names = ["shop/a", "shop/b", "shop/c", "shop/d"].map(|name| (name, large.as_str(), 40, 40));
    resync(&ground, &names);
    let told = watching.next_events(3).await;
    assert_eq!(told, ["DELETED shop/a@4", "DELETED shop/b@4", "ERROR 410 Expired"]);
    watching.ended().await;
}

#[tokio::test]
async fn another_history_ends_the_stream() {
    let ground = filled().await;
    let mut watching = watch(&ground, "resourceVersion=0").await;
    assert_eq!(watching.next_events(2).await, STATE);
    ground.writer().resync(2, [], ResyncReason::HistoryReset).unwrap();
    assert_eq!(watching.next_event().await, "ERROR 410 Expired");
    watching.ended().await;
}

#[tokio::test]
async fn cache_that_closes_ends_the_stream() {
    let ground = filled().await;
    let mut watching = watch(&ground, "resourceVersion=4").await;
    ground.put_widget("shop/a", "last");
    assert_eq!(watching.next_event().await, "MODIFIED shop/a@5");
    ground.cache.close();
    watching.ended().await;
}

#[tokio::test]
async fn drain_ends_all_and_admits_none() {
    let ground = filled().await;
    let mut all = Vec::new();
    for _ in 0..20 {
        all.push(watch(&ground, "resourceVersion=4").await);
    }
    ground.api.drain(Duration::from_millis(50)).await;
    for watching in &mut all {
        watching.ended().await;
    }
    assert_eq!(get(ground.address, &format!("{WIDGETS}?watch=1")).await.code(), 429);
}

#[tokio::test]
async fn watches_above_the_limit_are_refused() {
    let ground = Ground::builder()
        .api(|api| {
            let mut limits = watchcore_http::Limits::default();
            limits.watches = 2;
            api.limits(limits)
        })
        .start()
        .await;
    let one = watch(&ground, "resourceVersion=0").await;
    let _two = watch(&ground, "resourceVersion=0").await;
    let answer = get(ground.address, &format!("{WIDGETS}?watch=1")).await;
    assert_eq!(answer.status(), (429, "TooManyRequests".into()));
    assert_eq!(answer.header("retry-after"), Some("1"));
    drop(one);
    let bound = tokio::time::Instant::now() + Duration::from_secs(10);
    while get(ground.address, &format!("{WIDGETS}?watch=1&timeoutSeconds=1")).await.code() != 200 {
        assert!(tokio::time::Instant::now() < bound, "the place of the one that went is not free");
    }
}

#[tokio::test]
async fn watch_of_a_cache_that_is_not_ready_is_503() {
    let ground = Ground::builder().cache(|cache| cache.expect_load(true)).start().await;
    let answer = get(ground.address, &format!("{WIDGETS}?watch=1")).await;
    assert_eq!(answer.status(), (503, "ServiceUnavailable".into()));
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn head_goes_out_before_the_first_event() {
    let ground = Ground::start().await;
    let watching = watch(&ground, "resourceVersion=0").await;
    assert!(watching.head.is_chunked());
    assert_eq!(watching.head.header("content-type"), Some("application/json"));
    let head = request(ground.address, "HEAD", &format!("{WIDGETS}?watch=1"), &[]).await;
    assert_eq!((head.code(), head.body.len()), (200, 0));
}

/// The second watcher gets the frame that was made for the first, as a million watchers would.
#[tokio::test]
async fn event_is_framed_once_for_all() {
    let ground = filled().await;
    let mut all = Vec::new();
    for _ in 0..30 {
        all.push(watch(&ground, "resourceVersion=4").await);
    }
    let revision = ground.put_widget("shop/a", "shared");
    let mut lines = Vec::new();
    for watching in &mut all {
        lines.push(watching.line().await.unwrap());
    }
    assert!(lines.iter().all(|line| *line == lines[0]));
    let event: Value = serde_json::from_slice(&lines[0]).unwrap();
    assert_eq!(event["object"]["metadata"]["resourceVersion"], revision.to_string());
}

/// On our own server the connection is taken apart for the watch, and returned to hyper after it.
#[tokio::test]
async fn connection_is_kept_behind_a_watch() {
    for face in [ServerKind::Own, ServerKind::Nested] {
        let ground = Ground::builder().face(face).start().await;
        ground.put_widget("shop/a", "red");
        let target = format!("{WIDGETS}?watch=1&resourceVersion=0&timeoutSeconds=1");
        let mut watching = Watching::open(ground.address, &target).await;
        assert_eq!(watching.next_event().await, "ADDED shop/a@1");
        watching.ended().await;
        let mut client = watching.client;
        assert_eq!(client.answer("GET", &format!("{SHOP}/a"), &[]).await.code(), 200, "{face:?}");
        client.request("GET", &target, &[("Connection", "close")]).await;
        assert_eq!(client.head().await.expect("a second watch").code, 200);
        let rest = String::from_utf8(client.rest().await).unwrap();
        assert!(rest.contains("ADDED") && rest.ends_with("\r\n0\r\n\r\n"), "{face:?}: {rest}");
    }
}

/// Kubernetes stores custom resources with a final line feed, and other programs may store formatted JSON.
#[tokio::test]
async fn value_of_many_lines_is_one_line() {
    let ground = Ground::start().await;
    let text = serde_json::to_string_pretty(&widget("shop/a", "red")).unwrap();
    ground.put(&widget_key("shop/a"), format!("{text}\r\n"));
    for accept in ["application/json", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"] {
        let target = format!("{WIDGETS}?watch=1&sendInitialEvents=true&{LIST}");
        let mut watching = Watching::open_with(ground.address, &target, &[("Accept", accept)]).await;
        assert_eq!(watching.next_events(2).await, ["ADDED shop/a@1", "END @1"], "{accept}");
    }
    let mut watching = watch(&ground, "resourceVersion=1").await;
    ground.put(&widget_key("shop/b"), format!("\n{text}\n"));
    let line = watching.line().await.unwrap();
    assert!(serde_json::from_slice::<Value>(&line).is_ok(), "{}", String::from_utf8_lossy(&line));
}
