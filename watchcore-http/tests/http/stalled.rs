//! Clients that take nothing, or close one half: what a watch of theirs costs is bounded, on every transport.

use crate::support::client::Head;
use crate::support::ground::{Face, SHOP, WIDGETS};
use crate::support::{Client, Ground, eventually, figure, within};
use futures_util::FutureExt as _;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use watchcore_http::Limits;

const STALL: Duration = Duration::from_millis(200);
const KEYS: &str = "/v1/keys?prefix=/registry/&watch=1";
const UPGRADE: [(&str, &str); 4] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

/// What it is, its address, its headers.
type WatchCase = (&'static str, String, &'static [(&'static str, &'static str)]);

/// A watch of each face on each transport of HTTP/1.1.
fn watches() -> [WatchCase; 5] {
    [
        ("lines", KEYS.into(), &[]),
        ("objects", format!("{WIDGETS}?watch=1"), &[]),
        ("server-sent events", KEYS.into(), &[("Accept", "text/event-stream")]),
        ("a WebSocket of keys", KEYS.into(), &UPGRADE),
        ("a WebSocket of objects", format!("{WIDGETS}?watch=1"), &UPGRADE),
    ]
}

/// A server over more than a socket takes, and than the system keeps for it.
async fn full(face: Face, stall: Duration) -> Ground {
    let mut limits = Limits::default();
    limits.stall = stall;
    let ground = Ground::builder().face(face).api(move |api| api.limits(limits)).start().await;
    let large = "x".repeat(1 << 20);
    for number in 0..16 {
        ground.put_widget(&format!("shop/{number}"), &large);
    }
    ground
}

async fn open_watches(ground: &Ground) -> f64 {
    figure(ground.address, "watchcore_http_watches_open").await
}

/// A client with the head of its answer, which it has read; what came behind that is still to be read.
async fn begun(address: SocketAddr, what: &str, target: &str, headers: &[(&str, &str)]) -> (Client, Head) {
    let mut client = Client::connect(address).await;
    client.request("GET", target, headers).await;
    let head = client.head().await.expect("an answer");
    assert!([101, 200].contains(&head.code), "{what}: {}", head.text);
    (client, head)
}

/// The deadline of its watch passes while a client sleeps. Soon after that its place is free and its connection closed. When
/// it wakes up it finds what the system had kept for it, and an end that is no clean one.
#[tokio::test]
async fn client_that_sleeps_through_its_deadline_is_left() {
    for face in [Face::Own, Face::Nested] {
        let ground = full(face, STALL).await;
        let from = Instant::now();
        let mut clients = Vec::new();
        for (what, target, headers) in watches() {
            let target = format!("{target}&timeoutSeconds=1");
            clients.push((what, begun(ground.address, what, &target, headers).await));
        }
        // The head of each has come, so each was open.
        eventually("all are left", async || (open_watches(&ground).await == 0.0).then_some(())).await;
        assert!(from.elapsed() >= Duration::from_secs(1) + STALL, "not before: {:?}", from.elapsed());
        if face == Face::Own {
            // Whoever asks has a connection, too.
            let closed = async || (figure(ground.address, "watchcore_http_connections").await == 1.0).then_some(());
            eventually("the connections are closed, though nobody reads", closed).await;
        }
        for (what, (mut client, head)) in clients {
            let rest = client.rest().await;
            assert!(!rest.ends_with(b"0\r\n\r\n") && !ends_with_close(&rest), "{what}, {face:?}: a clean end");
            assert!(rest.len() < 14 << 20, "{what}, {face:?}: {} bytes", rest.len());
            assert_eq!(head.is_chunked(), head.code == 200, "{what}");
        }
    }
}

/// Whether the last frame is a close frame of the normal end.
fn ends_with_close(bytes: &[u8]) -> bool {
    bytes.ends_with(&[0x88, 2, 0x03, 0xe8])
}

/// The same on HTTP/2, and for lists: the stream is reset. Other answers on its connection go on.
#[tokio::test]
async fn stream_that_sleeps_through_its_deadline_is_left() {
    let ground = full(Face::Own, STALL).await;
    let stream = TcpStream::connect(ground.address).await.unwrap();
    let (mut client, connection) = within("the preface", h2::client::handshake(stream)).await.unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    let request = |target: &str| http::Request::get(format!("http://localhost{target}")).body(()).unwrap();
    let mut bodies = Vec::new();
    let watches = [format!("{WIDGETS}?watch=1&timeoutSeconds=1"), format!("{KEYS}&timeoutSeconds=1")];
    for target in watches.into_iter().chain([WIDGETS.to_owned(), "/v1/keys?prefix=/registry/".to_owned()]) {
        let (response, _) = client.send_request(request(&target), true).unwrap();
        bodies.push(within("a head", response).await.unwrap().into_body());
    }
    eventually("both are left", async || (open_watches(&ground).await == 0.0).then_some(())).await;
    // It still gives no room for more than came so far, so that nothing is asked of the body.
    for mut body in bodies {
        let ended = loop {
            match within("the end", body.data()).await {
                Some(Ok(_)) => {}
                ended => break ended,
            }
        };
        assert!(ended.is_some_and(|ended| ended.is_err_and(|error| error.is_reset())), "no clean end");
    }
    let (response, _) = client.send_request(request("/livez"), true).unwrap();
    assert_eq!(within("another answer", response).await.unwrap().status(), 200);
}

/// A client of HTTP/2 that gives each stream room for so many bytes, and no more until its bodies are read.
async fn with_room(address: SocketAddr, room: u32) -> h2::client::SendRequest<bytes::Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    let handshake = h2::client::Builder::new().initial_window_size(room).handshake::<_, bytes::Bytes>(stream);
    let (client, connection) = within("the preface", handshake).await.unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    client
}

/// The body of an answer whose head has come.
async fn body_of(client: &mut h2::client::SendRequest<bytes::Bytes>, target: &str) -> h2::RecvStream {
    let request = http::Request::get(format!("http://localhost{target}")).body(()).unwrap();
    let (response, _) = client.send_request(request, true).unwrap();
    within("a head", response).await.unwrap().into_body()
}

/// Waits until the stream is reset, and gives no room meanwhile for what is still to come.
async fn is_reset(what: &str, body: &mut h2::RecvStream) {
    let ended = loop {
        match within(what, body.data()).await {
            Some(Ok(_)) => {}
            ended => break ended,
        }
    };
    assert!(ended.is_some_and(|ended| ended.is_err_and(|error| error.is_reset())), "{what}: no clean end");
}

/// A client of HTTP/2 that never gives room for a byte: of the body no more is taken than one piece.
#[tokio::test]
async fn stream_without_room_is_left() {
    let ground = full(Face::Own, STALL).await;
    let mut client = with_room(ground.address, 0).await;
    let mut body = body_of(&mut client, &format!("{WIDGETS}?watch=1&timeoutSeconds=1")).await;
    assert_eq!(open_watches(&ground).await, 1.0);
    eventually("it is left", async || (open_watches(&ground).await == 0.0).then_some(())).await;
    is_reset("a watch", &mut body).await;
}

/// Whatever an answer is, and however much of it the client has taken before: an object, a list of one piece, figures,
/// discovery, health, and a watch that has only to say that it is too late. Meanwhile a watch goes on, on the same
/// connection, whose client has not read it either.
#[tokio::test]
async fn answer_without_room_is_left() {
    let ground = full(Face::Own, STALL).await;
    ground.put_node("a");
    ground.writer().compact(16).unwrap();
    for room in [0, 1, 20_000] {
        let mut client = with_room(ground.address, room).await;
        let mut watch = body_of(&mut client, &format!("{WIDGETS}?watch=1")).await;
        let mut targets = vec![format!("{SHOP}/0"), WIDGETS.to_owned()];
        if room < 2 {
            let small = ["/api/v1/nodes", "/metrics", "/", "/apis", "/livez?verbose=1"].map(str::to_owned);
            targets.extend(small);
            targets.push(format!("{WIDGETS}?watch=1&resourceVersion=1"));
        }
        for target in targets {
            let mut body = body_of(&mut client, &target).await;
            is_reset(&format!("{target} with room for {room}"), &mut body).await;
        }
        assert_eq!(open_watches(&ground).await, 1.0, "a watch may wait until its deadline");
        let some = async { poll_fn(|context| watch.poll_data(context)).now_or_never() };
        assert!(some.await.is_none_or(|data| data.is_some_and(|data| data.is_ok())), "it goes on");
    }
}

/// One that closes its half and reads on is gone: nothing tells it from one whose process has ended.
#[tokio::test]
async fn client_that_closes_its_half_is_gone() {
    let ground = Ground::builder().face(Face::Own).start().await;
    ground.put_widget("shop/a", "red");
    for (what, target, headers) in watches() {
        let (client, _) = begun(ground.address, what, &target, headers).await;
        eventually("it is open", async || (open_watches(&ground).await == 1.0).then_some(())).await;
        let (mut stream, _) = client.into_stream();
        stream.shutdown().await.unwrap();
        eventually(what, async || (open_watches(&ground).await == 0.0).then_some(())).await;
        let mut rest = Vec::new();
        let _ = within("the end of the connection", stream.read_to_end(&mut rest)).await;
    }
}
