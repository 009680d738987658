//! Silent watches: rows HW-15 and HW-44 of docs/HTTP.md.

use crate::support::client::Watching;
use crate::support::ground::WIDGETS;
use crate::support::{Ground, metric, within};
use crate::websocket::{closed, next_event, open};
use serde_json::Value;
use std::time::Duration;
use watchcore::{Code, Error, SourceState};

const KEYS: &str = "/v1/keys?prefix=/registry/&watch=1&after=1";
const EVENTS: (&str, &str) = ("Accept", "text/event-stream");

/// Returns a service with a short bookmark interval, and one widget at revision 1.
async fn ground() -> Ground {
    let ground = Ground::builder().api(|api| api.bookmark_interval(Duration::from_millis(20))).start().await;
    ground.put_widget("shop/a", "red");
    ground
}

/// A watch that asked for bookmarks gets one each interval, even if the revision has not moved.
#[tokio::test]
async fn bookmarks_come_without_a_change() {
    let ground = ground().await;
    let target = format!("{WIDGETS}?watch=1&resourceVersion=1&allowWatchBookmarks=true");
    let mut widgets = Watching::open(ground.address, &target).await;
    // Keep-alives that come in between are not bookmarks.
    assert_eq!(within("bookmarks", widgets.next_events(3)).await, ["BOOKMARK @1"; 3]);
    let mut socket = open(&ground, &target).await;
    for _ in 0..3 {
        assert_eq!(next_event(&mut socket).await["type"], "BOOKMARK");
    }
    let keys = format!("{KEYS}&bookmarks=1");
    let mut lines = Watching::open(ground.address, &keys).await;
    let mut events = Watching::open_with(ground.address, &keys, &[EVENTS]).await;
    let line = r#"{"type":"BOOKMARK","revision":1}"#;
    for _ in 0..3 {
        assert_eq!(within("a line", lines.line()).await.unwrap(), format!("{line}\n").as_bytes());
        let mut event = Vec::new();
        while !event.ends_with(b"id: 1\n") {
            event.extend(within("an event", events.line()).await.unwrap());
        }
        assert!(String::from_utf8(event).unwrap().ends_with(&format!("event: BOOKMARK\ndata: {line}\nid: 1\n")));
    }
    ground.put_node("n");
    while within("a bookmark", widgets.next_event()).await != "BOOKMARK @2" {}
    // The server is behind this client, so it must not send a lower revision.
    let future = format!("{WIDGETS}?watch=1&resourceVersion=3&allowWatchBookmarks=true");
    let mut future = Watching::open(ground.address, &future).await;
    assert_eq!(future.client.chunk().await.unwrap(), b" ");
    ground.put_node("n");
    assert_eq!(within("a bookmark", future.next_event()).await, "BOOKMARK @3");
}

/// A watch without bookmarks breaks its silence with bytes that readers of JSON, of lines and of server-sent events
/// ignore, and that do not count as events. A WebSocket has pings instead.
#[tokio::test]
async fn silence_is_broken_by_what_clients_pass_over() {
    let ground = ground().await;
    let target = format!("{WIDGETS}?watch=1&resourceVersion=1");
    let mut socket = open(&ground, &target).await;
    for (target, accept, prelude, blank) in
        [(&*target, "*/*", "", " "), (KEYS, "*/*", "", " "), (KEYS, EVENTS.1, "retry: 1000\n\n", ": keep-alive\n\n")]
    {
        let mut watching = Watching::open_with(ground.address, target, &[("Accept", accept)]).await;
        let mut body = Vec::new();
        let expected = format!("{prelude}{blank}{blank}{blank}");
        while body.len() < expected.len() {
            body.extend(watching.client.chunk().await.expect("a chunk"));
        }
        assert_eq!(String::from_utf8(body).unwrap(), expected);
        assert_eq!(metric(ground.address, "watchcore_http_watch_events_total").await, 0.0);
    }
    // A JSON parser, and a line-based reader of JSON.
    let mut watching = Watching::open(ground.address, &target).await;
    let mut body = watching.client.chunk().await.expect("a chunk");
    ground.put_widget("shop/b", "red");
    while !body.ends_with(b"}\n") {
        body.extend(watching.client.chunk().await.expect("a chunk"));
    }
    assert!(body.starts_with(b" "));
    let texts = serde_json::Deserializer::from_slice(&body).into_iter::<Value>().map(Result::unwrap).count();
    let lines = body.split_inclusive(|byte| *byte == b'\n').map(|line| serde_json::from_slice::<Value>(line).unwrap());
    assert_eq!((texts, lines.count()), (1, 1));
    assert_eq!(next_event(&mut socket).await["type"], "ADDED", "its first message");
}

/// Watches of a cache that has been without etcd for longer than the limit end, so that their clients may find a better
/// server. Clients that come back have found none, so their watches stay until the cache has reconnected and lost etcd
/// again.
#[tokio::test]
async fn watches_of_a_stale_cache_end_once() {
    let builder =
        Ground::builder().api(|api| api.bookmark_interval(Duration::from_millis(20)).stale_limit(Duration::ZERO));
    let ground = builder.start().await;
    ground.put_widget("shop/a", "red");
    let widgets = format!("{WIDGETS}?watch=1&allowWatchBookmarks=true&resourceVersion=");
    let (now, future) = (format!("{widgets}1"), format!("{widgets}9"));
    for _ in 0..2 {
        let mut moved = Vec::new();
        for (target, accept) in [(&*now, "*/*"), (&future, "*/*"), (KEYS, "*/*"), (KEYS, EVENTS.1)] {
            moved.push(Watching::open_with(ground.address, target, &[("Accept", accept)]).await);
        }
        let mut socket = open(&ground, &now).await;
        ground.writer().set_state(SourceState::Stale(Error::new(Code::Unavailable, "etcd is away")));
        for mut watching in moved {
            within("an end", async { while watching.client.chunk().await.is_some() {} }).await;
        }
        assert_eq!(closed(&mut socket).await, 1000);
        let mut stays = Watching::open(ground.address, &now).await;
        assert_eq!(within("bookmarks", stays.next_events(3)).await, ["BOOKMARK @1"; 3]);
        ground.writer().set_state(SourceState::Fresh);
        assert_eq!(within("bookmarks", stays.next_events(3)).await, ["BOOKMARK @1"; 3]);
        ground.writer().set_state(SourceState::Stale(Error::new(Code::Unavailable, "etcd is away again")));
        within("an end", async { while stays.client.chunk().await.is_some() {} }).await;
        ground.writer().set_state(SourceState::Fresh);
    }
}
