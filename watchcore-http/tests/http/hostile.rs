//! Fairness: the shares of a user or an address are bounded, and other clients are served meanwhile.

use crate::support::ground::{SHOP, ServerKind, WIDGETS, widget, widget_key};
use crate::support::{Client, Ground, Watching, eventually, metric_in, request, within};
use bytes::Bytes;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use watchcore::Change;
use watchcore_http::{Authenticator, HookFuture, Limits, Refusal, User};

/// Takes the bearer token as the user's name.
struct ByName;

impl Authenticator for ByName {
    fn authenticate<'a>(&'a self, head: &'a http::request::Parts) -> HookFuture<'a, Result<Option<User>, Refusal>> {
        let token = head.headers.get("authorization").and_then(|value| value.to_str().ok());
        let name = token.and_then(|token| token.strip_prefix("Bearer "));
        Box::pin(async move { Ok(name.map(User::new)) })
    }
}

const ALICE: [(&str, &str); 1] = [("Authorization", "Bearer alice")];
const MALLORY: [(&str, &str); 1] = [("Authorization", "Bearer mallory")];
/// Options of a watch that sends nothing at its beginning.
const NOTHING: &str = "resourceVersion=0&resourceVersionMatch=NotOlderThan&sendInitialEvents=false";
const HEALTH: &str = "/livez";

async fn ground(limit: impl FnOnce(&mut Limits)) -> Ground {
    let mut limits = Limits::default();
    limit(&mut limits);
    let api = move |api: watchcore_http::ApiBuilder| api.limits(limits).authenticator(ByName);
    Ground::builder()
        .face(ServerKind::Own)
        .cache(|cache: watchcore::Builder| cache.capacity(1 << 15))
        .api(api)
        .start()
        .await
}

/// Returns an HTTP/2 client that grants each stream a window of `room` bytes.
async fn with_room(address: SocketAddr, room: u32) -> h2::client::SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    let handshake = h2::client::Builder::new().initial_window_size(room).handshake::<_, Bytes>(stream);
    let (client, connection) = within("the preface", handshake).await.unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    client
}

fn as_mallory(target: &str) -> http::Request<()> {
    let (name, value) = MALLORY[0];
    http::Request::get(format!("http://localhost{target}")).header(name, value).body(()).unwrap()
}

/// A client requests hundreds of objects of a megabyte and reads nothing: beyond its budget it is refused, the answer
/// without progress for longest is reset, and another client is answered. After it disconnects, no bytes count.
#[tokio::test]
async fn unread_answers_are_bounded() {
    const BUDGET: usize = 8 << 20;
    let ground = ground(|limits| limits.unread_bytes_per_client = BUDGET).await;
    ground.put_widget("shop/large", &"x".repeat(1 << 20));
    ground.put_widget("shop/small", "red");
    let mut mallory = with_room(ground.address, 0).await;
    let (mut refused, mut bodies) = (0, Vec::new());
    for _ in 0..100 {
        let (response, _) = mallory.send_request(as_mallory(&format!("{SHOP}/large")), true).unwrap();
        let response = within("a head", response).await.unwrap();
        match response.status().as_u16() {
            200 => bodies.push(response.into_body()),
            429 => {
                assert!(response.headers().contains_key("retry-after"));
                refused += 1;
            }
            other => panic!("{other}"),
        }
    }
    assert!(refused > 80 && bodies.len() >= 3, "{refused} of 100 refused, {} answered", bodies.len());
    let unread = async || {
        let text = request(ground.address, "GET", "/metrics", &ALICE).await.text();
        metric_in(&text, "watchcore_http_unread_bytes").unwrap()
    };
    let held = unread().await;
    assert!(held > 5e6 && held <= BUDGET as f64 * 1.1, "{held} bytes");
    for target in [WIDGETS.to_owned(), format!("{SHOP}/small")] {
        assert_eq!(request(ground.address, "GET", &target, &ALICE).await.code(), 200, "{target}");
    }
    let refusal = request(ground.address, "GET", HEALTH, &MALLORY).await;
    assert_eq!(refusal.code(), 200, "health is for everybody");
    drop((mallory, bodies));
    eventually("nothing counts any more", async || (unread().await < 1e6).then_some(())).await;
    assert_eq!(request(ground.address, "GET", &format!("{SHOP}/large"), &MALLORY).await.code(), 200);
}

/// Watches whose clients read nothing hold no more than the budget: those without progress for longest are cut off.
#[tokio::test]
async fn unread_watches_are_bounded() {
    const BUDGET: usize = 4 << 20;
    let ground = ground(|limits| limits.unread_bytes_per_client = BUDGET).await;
    ground.put_widget("shop/large", &"x".repeat(1 << 20));
    let mut clients = Vec::new();
    for _ in 0..12 {
        let mut client = Client::connect(ground.address).await;
        client.request("GET", &format!("{WIDGETS}?watch=1"), &MALLORY).await;
        clients.push(client);
    }
    let cut = async || {
        let text = request(ground.address, "GET", "/metrics", &ALICE).await.text();
        let metric = |name: &str| metric_in(&text, name).unwrap();
        (metric("watchcore_http_unread_bytes") <= BUDGET as f64).then_some(metric("watchcore_http_answers_cut_total"))
    };
    eventually("some are cut off", async || cut().await.filter(|cut| *cut > 0.0)).await;
    let alice = Watching::open_with(ground.address, &format!("{WIDGETS}?watch=1"), &ALICE).await;
    assert_eq!(alice.head.code, 200);
}

/// One user's many watches do not keep another user from watching.
#[tokio::test]
async fn watches_are_shared_between_users() {
    let ground = ground(|limits| limits.watches = 20).await;
    let watch = format!("{WIDGETS}?watch=1&{NOTHING}");
    let mut taken = Vec::new();
    let refusal = loop {
        let mut client = Client::connect(ground.address).await;
        client.request("GET", &watch, &MALLORY).await;
        let head = client.head().await.unwrap();
        if head.code != 200 {
            break (head.code, String::from_utf8(client.body(&head).await).unwrap());
        }
        taken.push(client);
    };
    assert_eq!((taken.len(), refusal.0), (18, 429));
    assert!(refusal.1.contains("user \\\"mallory\\\" has 18 watches already"), "{}", refusal.1);
    let alice = Watching::open_with(ground.address, &watch, &ALICE).await;
    assert_eq!(alice.head.code, 200);
}

/// One user's thousand reads of a large cache do not delay another user's read.
#[tokio::test]
async fn reads_are_shared_between_users() {
    const MANY: usize = 600;
    let ground = ground(|_| ()).await;
    let keys: Vec<String> = (0..12_000).map(|number| widget_key(&format!("shop/{number:05}"))).collect();
    let value = widget("shop/a", "red").to_string();
    let changes: Vec<Change<'_>> = keys.iter().map(|key| Change::put(key.as_bytes(), value.as_bytes())).collect();
    ground.apply(&changes);
    let target = format!("{WIDGETS}?limit=500&labelSelector=app%3Dnone");
    let mut mallory = with_room(ground.address, 1 << 20).await;
    let (done, mut all_done) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..MANY {
        let (response, _) = mallory.send_request(as_mallory(&target), true).unwrap();
        let done = done.clone();
        tokio::spawn(async move { done.send(response.await.map(|response| response.status().as_u16())).unwrap() });
    }
    // One read is done, so the others are queued.
    assert_eq!(within("an answer", all_done.recv()).await.unwrap().unwrap(), 200);
    let before = all_done.len();
    assert_eq!(request(ground.address, "GET", &target, &ALICE).await.code(), 200);
    let meanwhile = all_done.len() - before;
    assert!(meanwhile < MANY / 4, "{meanwhile} of mallory's came first");
}

/// Unauthenticated clients hold all permits: only health probes are answered beyond them, and idle connections are
/// closed soon.
#[tokio::test]
async fn strangers_keep_nobody_from_health() {
    let ground = ground(|limits| {
        limits.connections = 4;
        limits.idle_unknown = Duration::from_millis(400);
    })
    .await;
    let mut strangers = Vec::new();
    for _ in 0..4 {
        let mut client = Client::connect(ground.address).await;
        assert_eq!(client.answer("GET", HEALTH, &[]).await.code(), 200);
        strangers.push(client);
    }
    // More connections than permits, which never send a request.
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(ground.address).await.unwrap());
    }
    let mut client = Client::connect(ground.address).await;
    let answer = client.answer("GET", HEALTH, &[]).await;
    assert_eq!((answer.code(), answer.header("connection")), (200, Some("close")));
    let answer = request(ground.address, "GET", WIDGETS, &ALICE).await;
    assert_eq!((answer.code(), answer.header("connection")), (429, Some("close")));
    for mut silent in silent {
        let _ = within("the end of one that says nothing", silent.read_to_end(&mut Vec::new())).await;
    }
    let answered = async || {
        let answer = request(ground.address, "GET", WIDGETS, &ALICE).await;
        (answer.code() == 200).then_some(())
    };
    eventually("their places are free", answered).await;
}

/// `timeoutSeconds` is capped by the server's limit, and the watch ends cleanly.
#[tokio::test]
async fn watch_lasts_as_long_as_the_server_says() {
    let ground = ground(|limits| limits.watch = Duration::from_millis(300)).await;
    for seconds in ["", "&timeoutSeconds=9223372036854775807"] {
        let target = format!("{WIDGETS}?watch=1{seconds}");
        let mut watching = Watching::open_with(ground.address, &target, &ALICE).await;
        watching.ended().await;
    }
}

/// An old HTTP/1.1 connection closes with its next answer; an old HTTP/2 connection takes no more requests, but
/// completes those that it has begun.
#[tokio::test]
async fn old_connections_end() {
    let ground = ground(|limits| limits.connection_age = Duration::from_millis(200)).await;
    let mut client = Client::connect(ground.address).await;
    let closes = async {
        while client.answer("GET", WIDGETS, &ALICE).await.header("connection") != Some("close") {}
        client.rest().await
    };
    assert_eq!(within("it closes", closes).await, b"");
    let mut mallory = with_room(ground.address, 1 << 20).await;
    let target = format!("{WIDGETS}?watch=1&{NOTHING}");
    let (response, _) = mallory.send_request(as_mallory(&target), true).unwrap();
    let mut watch = within("a head", response).await.unwrap().into_body();
    let goes_away = async {
        while let Ok((response, _)) = mallory.send_request(as_mallory(HEALTH), true) {
            if response.await.is_err() {
                return;
            }
        }
    };
    within("it goes away", goes_away).await;
    ground.put_widget("shop/a", "red");
    let event = within("an event", watch.data()).await.unwrap().unwrap();
    assert!(event.starts_with(br#"{"type":"ADDED""#), "{event:?}");
}

/// Of a connection's concurrent requests a hundred are worked on, the others queue; other connections are not delayed.
#[tokio::test]
async fn requests_of_a_connection_are_made_in_turns() {
    const AT_ONCE: u64 = 100;
    let ground = ground(|_| ()).await;
    ground.put_widget("shop/a", "red");
    let mut mallory = with_room(ground.address, 1 << 20).await;
    let target = format!("{SHOP}/a?resourceVersion={}", ground.revision() + 1);
    let mut answers = tokio::task::JoinSet::new();
    for _ in 0..AT_ONCE + 50 {
        let (response, _) = mallory.send_request(as_mallory(&target), true).unwrap();
        answers.spawn(async move { response.await.map(|response| response.status().as_u16()) });
    }
    let waiting = async || (ground.cache.stats().waiting == AT_ONCE).then_some(());
    eventually("a hundred wait for the revision", waiting).await;
    assert_eq!(request(ground.address, "GET", &format!("{SHOP}/a"), &ALICE).await.code(), 200);
    assert_eq!(ground.cache.stats().waiting, AT_ONCE);
    ground.put_widget("shop/a", "blue");
    while let Some(answer) = within("all are answered", answers.join_next()).await {
        assert_eq!(answer.unwrap().unwrap(), 200);
    }
}
