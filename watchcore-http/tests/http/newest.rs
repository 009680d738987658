//! Reads of `/v1/keys` without a revision are as new as etcd; the test plays the feeder.

use crate::support::ground::WIDGETS;
use crate::support::{Client, Ground, Watching, eventually, get, within};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};

const P: &str = "/v1/keys?prefix=/registry/";

/// A source that the test answers through the writer.
struct Silent;

impl watchcore::Source for Silent {
    fn wake(&self) {}
}

/// Returns a cache with one key, fed by the test.
async fn fed() -> Ground {
    let ground = Ground::start().await;
    ground.put("/registry/a", "1");
    ground.writer().attach(Arc::new(Silent)).unwrap();
    ground
}

/// Waits for a consistent read, and returns its ticket, which is higher than `before`.
async fn asked(ground: &Ground, before: u64) -> u64 {
    eventually("etcd is asked", async || {
        let ticket = ground.writer().demand().consistent;
        (ticket > before).then_some(ticket)
    })
    .await
}

/// The answer contains every write before the request, however far the cache lags.
#[tokio::test]
async fn list_waits_for_what_etcd_has() {
    let ground = fed().await;
    for (number, query) in ["", "&limit=100", "&labels=app%21%3Dx"].into_iter().enumerate() {
        let mut client = Client::connect(ground.address).await;
        let before = ground.writer().demand().consistent;
        client.request("GET", &format!("{P}{query}"), &[]).await;
        let ticket = asked(&ground, before).await;
        let newest = ground.revision() + 2;
        ground.writer().serve_consistent(ticket, newest);
        ground.put("/registry/b", "on the way");
        assert_eq!(
            get(ground.address, &format!("{P}&revision=0")).await.json()["revision"],
            newest - 1,
            "what is there"
        );
        let last = format!("written before {number}");
        ground.put("/registry/b", &last);
        let head = client.head().await.unwrap();
        let list: Value = serde_json::from_slice(&client.body(&head).await).unwrap();
        assert_eq!((head.code, &list["revision"]), (200, &newest.into()), "{query}");
        assert_eq!((&list["count"], &list["items"][1]["value"]), (&2.into(), &last.into()), "{query}");
    }
}

/// A watch without a revision begins with etcd's newest state, which its client may have seen at another server.
#[tokio::test]
async fn watch_of_keys_begins_with_what_etcd_has() {
    let ground = fed().await;
    for (number, headers) in [&[][..], &[("Accept", "text/event-stream")]].into_iter().enumerate() {
        let mut client = Client::connect(ground.address).await;
        let before = ground.writer().demand().consistent;
        client.request("GET", &format!("{P}&watch=1"), headers).await;
        let ticket = asked(&ground, before).await;
        let newest = ground.revision() + 1;
        ground.writer().serve_consistent(ticket, newest);
        let value = format!("written before {number}");
        ground.put("/registry/b", &value);
        let mut told = String::new();
        let head = within("an answer", client.head()).await.unwrap();
        assert_eq!(head.code, 200, "{}", head.text);
        let end = format!("\"revision\":{newest},\"initial_state_end\":true");
        while !told.contains(&end) {
            told += &String::from_utf8_lossy(&within("the state", client.chunk()).await.expect("the end of the state"));
        }
        assert!(told.contains(&value), "{told}");
    }
    let before = ground.writer().demand().consistent;
    let lags = async {
        let ticket = asked(&ground, before).await;
        ground.writer().serve_consistent(ticket, 99);
    };
    let target = format!("{P}&watch=1");
    let (lagging, ()) = tokio::join!(get(ground.address, &target), lags);
    assert_eq!(lagging.status(), (504, "Timeout".into()));
    assert!(lagging.message().starts_with("Timeout: Too large resource version: 99, "), "{}", lagging.message());
    assert_eq!(lagging.header("retry-after"), Some("1"));
}

/// If etcd does not answer, or the cache does not reach its revision, the answer is 504 in time, and later requests
/// work.
#[tokio::test]
async fn list_that_waits_in_vain_is_504() {
    let ground = fed().await;
    let from = Instant::now();
    let waits = async |query: &str| get(ground.address, &format!("{P}{query}")).await;
    let lags = async {
        let ticket = asked(&ground, 0).await;
        // etcd names a revision that is never reached.
        ground.writer().serve_consistent(ticket, 9);
    };
    let (lagging, ()) = tokio::join!(waits(""), lags);
    assert_eq!(lagging.status(), (504, "Timeout".into()));
    assert_eq!(lagging.message(), "Timeout: Too large resource version: 9, current: 1");
    let silent = waits("&limit=1").await;
    assert_eq!(silent.status(), (504, "Timeout".into()));
    assert!(silent.message().starts_with("Timeout: "), "{}", silent.message());
    for answer in [lagging, silent] {
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.json()["details"]["retryAfterSeconds"], 1);
    }
    assert!(from.elapsed() >= Duration::from_secs(6), "two waits of 3 s: {:?}", from.elapsed());
    assert_eq!(waits("&revision=0").await.json()["count"], 1, "what is there is there");
    let before = ground.writer().demand().consistent;
    let (after, ()) = tokio::join!(waits(""), async {
        let ticket = asked(&ground, before).await;
        ground.writer().serve_consistent(ticket, 1);
    });
    assert_eq!((after.code(), &after.json()["count"]), (200, &1.into()));
}

/// A revision above etcd's belongs to another etcd, so a watch from it must not wait for ever.
#[tokio::test]
async fn watch_above_etcd_ends_with_504() {
    let ground = fed().await;
    let mut watching = Watching::open(ground.address, &format!("{WIDGETS}?watch=1&resourceVersion=99")).await;
    let ticket = asked(&ground, 0).await;
    ground.writer().serve_consistent(ticket, 1);
    assert_eq!(watching.next_event().await, "ERROR 504 Timeout");
    watching.ended().await;
}

/// If etcd is lost, but not yet for the stale limit, consistent reads fail: the verbose report shows it, and readiness
/// is unaffected.
#[tokio::test]
async fn failing_consistent_reads_are_named() {
    let ground = fed().await;
    let verbose = async || get(ground.address, "/readyz?verbose").await;
    let silent = verbose().await;
    assert_eq!(silent.code(), 200, "{}", silent.text());
    let line = "\n[-]consistent-reads of cache /registry/ failed, which alone does not fail the server: ";
    assert!(silent.text().contains(line) && silent.text().ends_with("readyz check passed\n"), "{}", silent.text());
    assert_eq!(get(ground.address, "/readyz").await.text(), "ok");
    let before = ground.writer().demand().consistent;
    let answered = tokio::join!(verbose(), async {
        let ticket = asked(&ground, before).await;
        ground.writer().serve_consistent(ticket, 1);
    })
    .0;
    assert!(answered.text().contains("\n[+]consistent-reads of cache /registry/ ok\n"), "{}", answered.text());
}

/// A watch whose initial state waits for etcd reports in its first event that etcd does not answer.
#[tokio::test]
async fn watch_that_waits_in_vain_is_told() {
    let ground = fed().await;
    let mut watching = Watching::open(ground.address, &format!("{WIDGETS}?watch=1")).await;
    assert_eq!(watching.next_event().await, "ERROR 504 Timeout");
    watching.ended().await;
}
