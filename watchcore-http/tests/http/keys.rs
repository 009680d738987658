//! The `/v1/keys` API: keys as a document, as lines, as server-sent events. Section HK of docs/HTTP.md.

use crate::support::client::{Head, Watching};
use crate::support::ground::{WIDGETS, widget};
use crate::support::{Answer, Client, Ground, get, request, token_from, within};
use serde_json::Value;
use std::io::Read as _;
use std::time::Duration;
use watchcore::{Change, Record, ResyncReason};

const P: &str = "/v1/keys?prefix=/registry/";

/// Writes /registry/a at 1 and 3, /registry/b, not UTF-8, at 2, and /registry/c at 4.
async fn filled() -> Ground {
    let ground = Ground::start().await;
    ground.put("/registry/a", "1");
    ground.put("/registry/b", [0xff, 0]);
    ground.put("/registry/a", "\"2\"\n");
    ground.put("/registry/c", "");
    ground
}

/// Opens a watch of lines below `/registry/`.
async fn watch(ground: &Ground, query: &str) -> Watching {
    Watching::open(ground.address, &format!("{P}&watch=1{query}")).await
}

async fn line(watching: &mut Watching) -> String {
    String::from_utf8(watching.line().await.expect("a line, not the end")).expect("text")
}

async fn lines(watching: &mut Watching, count: usize) -> Vec<String> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(line(watching).await.trim_end().to_owned());
    }
    all
}

/// A server-sent event.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Sent {
    kind: String,
    data: String,
    id: Option<u64>,
}

/// A client of server-sent events that remembers the last id, as browsers do.
struct Events {
    watching: Watching,
    last: Option<u64>,
}

impl Events {
    async fn open(ground: &Ground, query: &str, last: Option<u64>) -> Events {
        let id = last.map(|id| id.to_string()).unwrap_or_default();
        let mut headers = vec![("Accept", "text/event-stream")];
        if last.is_some() {
            headers.push(("Last-Event-ID", id.as_str()));
        }
        let mut watching = Watching::open_with(ground.address, &format!("{P}{query}"), &headers).await;
        assert_eq!(lines(&mut watching, 2).await, ["retry: 1000", ""]);
        Events { watching, last }
    }

    async fn next(&mut self) -> Sent {
        let mut sent = Sent::default();
        loop {
            let line = line(&mut self.watching).await;
            let line = line.strip_suffix('\n').expect("a whole line");
            match line.split_once(": ") {
                None if line.is_empty() => break,
                Some(("event", kind)) => sent.kind = kind.to_owned(),
                Some(("data", data)) => sent.data = data.to_owned(),
                Some(("id", id)) => sent.id = Some(id.parse().expect("a revision")),
                _ => panic!("{line:?}"),
            }
        }
        self.last = sent.id.or(self.last);
        sent
    }

    /// Returns the next `count` events as `TYPE key#id`; absent parts are omitted.
    async fn next_events(&mut self, count: usize) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..count {
            let sent = self.next().await;
            let data: Value = serde_json::from_str(&sent.data).expect("a line of JSON");
            assert_eq!(data["type"], sent.kind, "{}", sent.data);
            let key = data["key"].as_str().and_then(|key| key.strip_prefix("/registry/")).unwrap_or_default();
            let id = sent.id.map(|id| format!("#{id}")).unwrap_or_default();
            all.push(format!("{} {key}{id}", sent.kind));
        }
        all
    }
}

fn record(key: &'static [u8], create_revision: u64, mod_revision: u64, version: u64) -> Record<'static> {
    Record { key, value: b"new", create_revision, mod_revision, version, lease: 0 }
}

/// The records of a listing after [`filled`]: a was changed, b and c are gone, d is new.
fn found() -> [Record<'static>; 2] {
    [record(b"/registry/a", 1, 6, 3), record(b"/registry/d", 7, 7, 1)]
}

#[tokio::test]
async fn list_is_one_document() {
    let ground = filled().await;
    let answer = get(ground.address, P).await;
    assert_eq!((answer.code(), answer.header("content-type")), (200, Some("application/json")));
    assert_eq!(
        answer.text(),
        "{\"revision\":4,\"count\":3,\"items\":[\
         {\"key\":\"/registry/a\",\"value\":\"\\\"2\\\"\\n\",\"create_revision\":1,\"mod_revision\":3,\"version\":2},\
         {\"key\":\"/registry/b\",\"value_base64\":\"/wA=\",\"create_revision\":2,\"mod_revision\":2,\"version\":1},\
         {\"key\":\"/registry/c\",\"value\":\"\",\"create_revision\":4,\"mod_revision\":4,\"version\":1}]}\n"
    );
    let none = get(ground.address, "/v1/keys?prefix=/registry/x").await;
    assert_eq!(none.text(), "{\"revision\":4,\"count\":0,\"items\":[]}\n");
}

#[tokio::test]
async fn list_in_pieces_is_the_same_document() {
    let ground = Ground::start().await;
    let keys: Vec<String> = (0..3000).map(|number| format!("/registry/{number:04}")).collect();
    let value = "v".repeat(100);
    ground.apply(&keys.iter().map(|key| Change::put(key, &value)).collect::<Vec<_>>());
    let mut client = Client::connect(ground.address).await;
    client.request("GET", P, &[]).await;
    let head = client.head().await.expect("an answer");
    let (mut body, mut largest) = (Vec::new(), 0);
    while let Some(chunk) = client.chunk().await {
        largest = largest.max(chunk.len());
        body.extend(chunk);
    }
    assert!(largest < 80 << 10 && body.len() > 500_000, "{} bytes in chunks of up to {largest}", body.len());
    let list = Answer { head, body }.json();
    assert_eq!((&list["revision"], &list["count"]), (&1.into(), &3000.into()));
    let listed: Vec<&str> = list["items"].as_array().unwrap().iter().map(|kv| kv["key"].as_str().unwrap()).collect();
    assert_eq!(listed, keys);
}

#[tokio::test]
async fn large_list_is_compressed_on_demand() {
    let ground = Ground::start().await;
    let value = "v".repeat(1000);
    for number in 0..300 {
        ground.put(&format!("/registry/{number}"), &value);
    }
    let plain = get(ground.address, P).await;
    assert_eq!((plain.code(), plain.header("content-encoding")), (200, None));
    let gzip = request(ground.address, "GET", P, &[("Accept-Encoding", "gzip")]).await;
    assert_eq!((gzip.header("content-encoding"), gzip.header("vary")), (Some("gzip"), Some("Accept-Encoding")));
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&gzip.body[..]).read_to_end(&mut unpacked).expect("gzip");
    assert!(gzip.body.len() < 20_000 && unpacked == plain.body, "{} bytes", gzip.body.len());
    let small = request(ground.address, "GET", &format!("{P}1"), &[("Accept-Encoding", "gzip")]).await;
    assert_eq!(small.header("content-encoding"), None);
}

#[tokio::test]
async fn token_of_another_list_is_refused() {
    let ground = filled().await;
    let first = get(ground.address, &format!("{P}&limit=2")).await.json();
    let token = first["continue"].as_str().expect("a token");
    assert_eq!(get(ground.address, &format!("{P}&continue=abc")).await.status(), (400, "BadRequest".into()));
    let foreign = get(ground.address, &format!("/v1/keys?prefix=/registry/a&continue={token}")).await;
    assert_eq!(foreign.code(), 400);
}

#[tokio::test]
async fn token_reaches_no_other_prefix() {
    let ground = filled().await;
    ground.put("/registry/bb", "");
    let path = "/v1/keys?prefix=/registry/b&limit=1";
    let first = get(ground.address, path).await;
    for next in ["/registry/", "/registry/a", "", "/registry/c"] {
        let answer = get(ground.address, &format!("{path}&continue={}", token_from(&first, next))).await;
        assert_eq!(answer.status(), (400, "BadRequest".into()), "{next}: {}", answer.text());
    }
}

#[tokio::test]
async fn list_of_a_revision_is_exactly_that() {
    let ground = filled().await;
    let at = async |revision: u64| get(ground.address, &format!("{P}&revision={revision}")).await;
    let list = at(2).await.json();
    assert_eq!((&list["revision"], &list["items"][0]["value"]), (&2.into(), &"1".into()));
    assert_eq!(at(0).await.json()["revision"], 4, "what there is");
    ground.writer().compact(3).unwrap();
    assert_eq!(at(3).await.json()["count"], 2);
    assert_eq!(at(2).await.status(), (410, "Expired".into()));
}

#[tokio::test]
async fn prefix_lies_in_a_cache() {
    let ground = filled().await;
    let missing = get(ground.address, "/v1/keys").await;
    assert_eq!(missing.status(), (400, "BadRequest".into()));
    assert!(missing.message().contains("prefix"), "{}", missing.message());
    for outside in ["/other/", "/", "", "/registry"] {
        for watch in ["", "&watch=1"] {
            let answer = get(ground.address, &format!("/v1/keys?prefix={outside}{watch}")).await;
            assert_eq!(answer.status(), (404, "NotFound".into()), "{outside:?}");
            assert!(answer.message().contains("lies in no cache"), "{}", answer.message());
            assert!(answer.message().contains("\"/registry/\""), "it says what is served: {}", answer.message());
        }
    }
    assert_eq!(get(ground.address, "/v1/keys?prefix=%2Fregistry%2Fa").await.json()["count"], 1);
}

#[tokio::test]
async fn parameters_of_the_other_are_refused() {
    let ground = filled().await;
    for query in ["&after=1", "&watch=1&limit=1", "&watch=1&after=x", "&limit=-1", "&watch=1&revision=1"] {
        let answer = get(ground.address, &format!("{P}{query}")).await;
        assert_eq!(answer.status(), (400, "BadRequest".into()), "{query}");
    }
    assert_eq!(get(ground.address, &format!("{P}&watch=false&unknown=1")).await.json()["count"], 3);
    assert_eq!(request(ground.address, "POST", P, &[]).await.code(), 405);
}

#[tokio::test]
async fn watch_is_lines_of_the_command_line() {
    let ground = filled().await;
    let mut watching = watch(&ground, "").await;
    assert_eq!(watching.head.header("content-type"), Some("application/x-ndjson"));
    assert_eq!(
        lines(&mut watching, 4).await,
        [
            r#"{"type":"ADDED","revision":3,"key":"/registry/a","value":"\"2\"\n","create_revision":1,"mod_revision":3,"version":2}"#,
            r#"{"type":"ADDED","revision":2,"key":"/registry/b","value_base64":"/wA=","create_revision":2,"mod_revision":2,"version":1}"#,
            r#"{"type":"ADDED","revision":4,"key":"/registry/c","value":"","create_revision":4,"mod_revision":4,"version":1}"#,
            r#"{"type":"BOOKMARK","revision":4,"initial_state_end":true}"#,
        ]
    );
    let leased = Record { lease: 7, ..record(b"/registry/a", 1, 5, 3) };
    ground.apply(&[Change::put_exact(leased), Change::delete("/registry/b")]);
    ground.put(std::str::from_utf8(b"/registry/\xc3\xa9").unwrap(), "x");
    assert_eq!(
        lines(&mut watching, 3).await,
        [
            r#"{"type":"MODIFIED","revision":5,"key":"/registry/a","value":"new","prev_value":"\"2\"\n","create_revision":1,"mod_revision":5,"version":3,"lease":7}"#,
            r#"{"type":"DELETED","revision":5,"key":"/registry/b","prev_value_base64":"/wA=","create_revision":2,"mod_revision":2,"version":1}"#,
            r#"{"type":"ADDED","revision":6,"key":"/registry/é","value":"x","create_revision":6,"mod_revision":6,"version":1}"#,
        ]
    );
    ground.apply(&[Change::put(&b"/registry/\xff"[..], "x")]);
    assert!(line(&mut watching).await.contains(r#""key_base64":"L3JlZ2lzdHJ5L/8=""#));
}

#[tokio::test]
async fn selectors_select() {
    let ground = Ground::start().await;
    ground.put_widget("shop/a", "red");
    ground.put_widget("shop/b", "blue");
    let red = format!("{P}&labels=app%3Dred");
    assert_eq!(get(ground.address, &red).await.json()["count"], 1);
    let blue = get(ground.address, &format!("{P}&fields=spec.color%21%3Dred")).await.json();
    assert_eq!((&blue["count"], &blue["items"][0]["mod_revision"]), (&1.into(), &2.into()));
    let mut watching = watch(&ground, "&labels=app%3Dred").await;
    assert_eq!(lines(&mut watching, 2).await[1], r#"{"type":"BOOKMARK","revision":2,"initial_state_end":true}"#);
    ground.put_widget("shop/a", "green");
    let left = line(&mut watching).await;
    assert!(left.starts_with(r#"{"type":"DELETED","revision":3,"#), "it left the selector: {left}");
    ground.put_widget("shop/b", "red");
    let entered = line(&mut watching).await;
    assert!(entered.starts_with(r#"{"type":"ADDED","revision":4,"#), "it entered the selector: {entered}");
    for refused in ["&fields=spec.unknown%3D1", "&labels=a%20b", "&fields=a%5C", "&labels=%ff"] {
        for watch in ["", "&watch=1"] {
            let answer = get(ground.address, &format!("{P}{refused}{watch}")).await;
            assert_eq!(answer.status(), (400, "BadRequest".into()), "{refused}");
        }
    }
    let unknown = get(ground.address, &format!("{P}&fields=spec.unknown%3D1")).await;
    assert_eq!(unknown.message(), "field label not supported: spec.unknown");
}

#[tokio::test]
async fn resync_stands_between_its_marks() {
    let ground = filled().await;
    let mut watching = watch(&ground, "&after=4").await;
    ground.writer().resync(9, found(), ResyncReason::Compacted).unwrap();
    let told = lines(&mut watching, 6).await;
    let mark = |phase: &str| {
        format!(r#"{{"type":"RESYNC","phase":"{phase}","reason":"Compacted","from":4,"to":9,"epoch":2}}"#)
    };
    assert_eq!((told[0].clone(), told[5].clone()), (mark("begin"), mark("end")));
    assert_eq!(
        told[4],
        r#"{"type":"ADDED","revision":9,"synthetic":true,"key":"/registry/d","value":"new","create_revision":7,"mod_revision":7,"version":1}"#
    );
    assert!(told[1..3].iter().all(|line| line.starts_with(r#"{"type":"DELETED","revision":9,"synthetic":true"#)));
}

#[tokio::test]
async fn watcher_that_falls_behind_is_told_what_it_lost() {
    let ground = Ground::builder().cache(|cache| cache.capacity(1024)).start().await;
    let mut watching = watch(&ground, "&after=0").await;
    ground.put("/registry/a", "1");
    let mut before = line(&mut watching).await;
    // The server runs on this thread, so it sees all writes at once.
    for number in 0..4000 {
        ground.put("/registry/b", number.to_string());
    }
    loop {
        let line = line(&mut watching).await;
        if line.starts_with(r#"{"type":"LAGGED""#) {
            let lagged: Value = serde_json::from_str(&line).unwrap();
            let before: Value = serde_json::from_str(&before).unwrap();
            let (from, to) = (lagged["lost_from"].as_u64().unwrap(), lagged["lost_to"].as_u64().unwrap());
            assert_eq!(from, before["revision"].as_u64().unwrap() + 1, "{line}");
            assert_eq!((lagged["oldest"].as_u64(), lagged["current"].as_u64()), (Some(to + 1), Some(4001)), "{line}");
            break;
        }
        before = line;
    }
    let error: Value = serde_json::from_str(&line(&mut watching).await).unwrap();
    assert_eq!((&error["type"], &error["code"]), (&"ERROR".into(), &"LAGGED".into()), "{error}");
    assert!(error["message"].is_string() && error["oldest"].as_u64() > Some(1000), "{error}");
    assert!(watching.line().await.is_none() && !watching.client.is_closed(), "a clean end");
}

#[tokio::test]
async fn bookmarks_come_where_they_are_asked_for() {
    let ground = Ground::builder().api(|api| api.bookmark_interval(Duration::from_millis(20))).start().await;
    let mut quiet = watch(&ground, "x").await;
    let mut told = Watching::open(ground.address, "/v1/keys?prefix=/registry/x&watch=1&bookmarks=1").await;
    let end = r#"{"type":"BOOKMARK","revision":0,"initial_state_end":true}"#;
    assert_eq!((lines(&mut quiet, 1).await[0].as_str(), lines(&mut told, 1).await[0].as_str()), (end, end));
    ground.put("/registry/a", "1");
    assert_eq!(lines(&mut told, 1).await, [r#"{"type":"BOOKMARK","revision":1}"#], "though nothing matches");
    ground.put("/registry/x", "1");
    assert!(lines(&mut quiet, 2).await[1].contains("\"revision\":2"), "no bookmark before it");
}

#[tokio::test]
async fn watch_ends_cleanly_at_its_deadline() {
    let ground = filled().await;
    let mut watching = watch(&ground, "&after=3&bookmarks=1&timeoutSeconds=1").await;
    assert!(line(&mut watching).await.contains("\"revision\":4"));
    let mut last = String::new();
    while let Some(line) = watching.line().await {
        last = String::from_utf8(line).unwrap();
    }
    assert!(!watching.client.is_closed());
    assert_eq!(last, "{\"type\":\"BOOKMARK\",\"revision\":4}\n");
}

#[tokio::test]
async fn watch_ends_cleanly_at_shutdown() {
    let ground = filled().await;
    let mut watching = watch(&ground, "&after=3").await;
    let mut events = Events::open(&ground, "&after=4", None).await;
    line(&mut watching).await;
    ground.api.drain(Duration::ZERO).await;
    for ended in [&mut watching, &mut events.watching] {
        assert!(ended.line().await.is_none() && !ended.client.is_closed(), "the end, and no error");
    }
    assert_eq!(get(ground.address, &format!("{P}&watch=1")).await.code(), 429);
    assert_eq!(get(ground.address, P).await.json()["count"], 3, "lists go on");
}

#[tokio::test]
async fn nothing_is_served_before_the_cache_is_ready() {
    let ground = Ground::builder().cache(|cache| cache.expect_load(true)).start().await;
    for query in ["", "&watch=1", "&watch=1&after=7"] {
        let answer = get(ground.address, &format!("{P}{query}")).await;
        assert_eq!(answer.status(), (503, "ServiceUnavailable".into()), "{query}");
        assert!(answer.header("retry-after").is_some());
    }
}

#[tokio::test]
async fn events_have_ids_where_a_stream_can_go_on() {
    let ground = filled().await;
    let mut events = Events::open(&ground, "", None).await;
    let head: &Head = &events.watching.head;
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    assert_eq!(head.header("cache-control"), Some("no-cache"));
    assert_eq!(
        events.next().await.data,
        r#"{"type":"ADDED","revision":3,"key":"/registry/a","value":"\"2\"\n","create_revision":1,"mod_revision":3,"version":2}"#,
        "the same line"
    );
    assert_eq!(events.next_events(2).await, ["ADDED b", "ADDED c"], "no id in the initial state");
    let end = Sent {
        kind: "BOOKMARK".into(),
        data: r#"{"type":"BOOKMARK","revision":4,"initial_state_end":true}"#.into(),
        id: Some(4),
    };
    assert_eq!(events.next().await, end);
    ground.apply(&[Change::put("/registry/a", "5"), Change::put("/registry/b", "5"), Change::delete("/registry/c")]);
    ground.put("/registry/d", "6");
    assert_eq!(events.next_events(4).await, ["MODIFIED a", "MODIFIED b", "DELETED c#5", "ADDED d#6"]);
}

#[tokio::test]
async fn last_event_of_a_revision_is_the_last_that_matches() {
    let ground = filled().await;
    let mut events = Events::open(&ground, "a&after=4", None).await;
    ground.apply(&[Change::put("/registry/a", "5"), Change::put("/registry/a1", "5"), Change::put("/registry/z", "5")]);
    assert_eq!(events.next_events(2).await, ["MODIFIED a", "ADDED a1#5"]);
}

/// A revision of 1000 events spans several pieces, and several batches of the core.
#[tokio::test]
async fn stream_resumes_without_loss_through_a_large_revision() {
    let ground = Ground::start().await;
    let keys: Vec<String> = (0..1000).map(|number| format!("/registry/{number:03}")).collect();
    let value = "v".repeat(200);
    let mut first = Events::open(&ground, "", None).await;
    assert_eq!(first.next_events(1).await, ["BOOKMARK #0"]);
    ground.put("/registry/000", "first");
    ground.apply(&keys.iter().map(|key| Change::put(key, &value)).collect::<Vec<_>>());
    ground.put("/registry/999", "last");
    assert_eq!(first.next_events(1).await, ["ADDED 000#1"]);
    let inside = first.next_events(700).await;
    assert!(inside.iter().all(|told| !told.contains('#')), "no id inside the revision");
    assert_eq!(first.last, Some(1));
    drop(first);
    // The whole revision is sent again, because a client cannot resume inside it.
    let mut second = Events::open(&ground, "", Some(1)).await;
    let whole = second.next_events(1000).await;
    assert_eq!((whole[0].as_str(), whole[999].as_str()), ("MODIFIED 000", "ADDED 999#2"));
    assert!(whole[..999].iter().all(|told| !told.contains('#')));
    let told: Vec<&str> = whole.iter().filter_map(|told| told.split(' ').nth(1)?.split('#').next()).collect();
    assert_eq!(told, keys.iter().map(|key| &key["/registry/".len()..]).collect::<Vec<_>>(), "each once");
    let last = second.last;
    drop(second);
    let mut third = Events::open(&ground, "&after=0", last).await;
    assert_eq!(third.next_events(1).await, ["MODIFIED 999#3"], "what came already does not come again");
}

#[tokio::test]
async fn resumed_streams_see_each_event_once() {
    let ground = Ground::start().await;
    let mut expected = Vec::new();
    for number in 0..60_u64 {
        let keys: Vec<String> = (0..1 + number % 4).map(|key| format!("/registry/{number}-{key}")).collect();
        let revision = ground.apply(&keys.iter().map(|key| Change::put(key, "v")).collect::<Vec<_>>());
        expected.extend(keys.iter().map(|key| (revision, key.clone())));
    }
    let (mut kept, mut pending, mut last) = (Vec::new(), Vec::new(), Some(0));
    let mut cut = 1;
    while kept.len() < expected.len() {
        let mut events = Events::open(&ground, "", last).await;
        for _ in 0..cut.min(expected.len() - kept.len()) {
            let sent = events.next().await;
            let data: Value = serde_json::from_str(&sent.data).unwrap();
            pending.push((data["revision"].as_u64().unwrap(), data["key"].as_str().unwrap().to_owned()));
            // A client has complete data up to an id.
            if sent.id.is_some() {
                kept.append(&mut pending);
            }
        }
        pending.clear();
        (last, cut) = (events.last, cut % 7 + 1);
    }
    assert_eq!(kept, expected);
}

#[tokio::test]
async fn where_a_stream_broke_off_stands_in_a_header() {
    let ground = filled().await;
    let mut events = Events::open(&ground, "&after=1", Some(3)).await;
    assert_eq!(events.next_events(1).await, ["ADDED c#4"], "the header is newer than the address");
    let mut events = Events::open(&ground, "&after=3", None).await;
    assert_eq!(events.next_events(1).await, ["ADDED c#4"]);
    let with = async |id: &str| {
        request(ground.address, "GET", P, &[("Accept", "text/event-stream"), ("Last-Event-ID", id)]).await
    };
    assert_eq!(with("abc").await.status(), (400, "BadRequest".into()));
    ground.writer().compact(4).unwrap();
    assert_eq!(with("3").await.status(), (410, "Expired".into()));
}

#[tokio::test]
async fn stream_of_events_goes_through_a_resync() {
    let ground = filled().await;
    let mut events = Events::open(&ground, "", None).await;
    events.next_events(4).await;
    ground.writer().resync(9, found(), ResyncReason::TooFarBehind).unwrap();
    ground.put("/registry/e", "x");
    let told = events.next_events(7).await;
    assert_eq!(told[0], "RESYNC ");
    assert!(told[1..5].iter().all(|told| !told.contains('#')), "it is one change: {told:?}");
    assert_eq!(told[5..], ["RESYNC #9", "ADDED e#10"]);
    let mut events = Events::open(&ground, "", Some(4)).await;
    assert_eq!(events.next_events(7).await, told, "from before it the same comes again");
    let mut events = Events::open(&ground, "", Some(9)).await;
    assert_eq!(events.next_events(1).await, ["ADDED e#10"]);
}

#[tokio::test]
async fn accept_decides_on_events() {
    let ground = filled().await;
    let asked = async |accept: &str| {
        let mut client = Client::connect(ground.address).await;
        client.request("GET", &format!("{P}&watch=1"), &[("Accept", accept)]).await;
        within("a head", client.head()).await.expect("an answer").header("content-type").map(str::to_owned)
    };
    for accept in ["text/event-stream", "TEXT/Event-Stream;q=0.5", "text/html, text/event-stream , */*"] {
        assert_eq!(asked(accept).await.as_deref(), Some("text/event-stream"), "{accept}");
    }
    for accept in ["*/*", "application/json", "text/*", "text/event-stream;q=0"] {
        assert_eq!(asked(accept).await.as_deref(), Some("application/x-ndjson"), "{accept}");
    }
}

/// Objects of resources are keys too, shown as they are stored.
#[tokio::test]
async fn objects_are_shown_as_they_are_stored() {
    let ground = Ground::start().await;
    ground.put_widget("shop/a", "red");
    assert_eq!(get(ground.address, WIDGETS).await.names(), ["shop/a"]);
    let list = get(ground.address, P).await.json();
    assert_eq!(list["items"][0]["value"].as_str(), Some(widget("shop/a", "red").to_string().as_str()));
}
