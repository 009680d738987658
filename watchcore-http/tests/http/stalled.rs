//! Clients that take nothing, or close one half: what a watch of theirs costs is bounded, on every transport.

use crate::support::client::Head;
use crate::support::ground::{Face, WIDGETS};
use crate::support::{Client, Ground, eventually, figure, within};
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

/// A client of HTTP/2 that never gives room for a byte: nothing is ever asked of the body.
#[tokio::test]
async fn stream_without_room_is_left() {
    let ground = full(Face::Own, STALL).await;
    let stream = TcpStream::connect(ground.address).await.unwrap();
    let handshake = h2::client::Builder::new().initial_window_size(0).handshake::<_, bytes::Bytes>(stream);
    let (mut client, connection) = within("the preface", handshake).await.unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    let target = format!("http://localhost{WIDGETS}?watch=1&timeoutSeconds=1");
    let (response, _) = client.send_request(http::Request::get(target).body(()).unwrap(), true).unwrap();
    let mut body = within("a head", response).await.unwrap().into_body();
    assert_eq!(open_watches(&ground).await, 1.0);
    eventually("it is left", async || (open_watches(&ground).await == 0.0).then_some(())).await;
    let ended = within("the end", body.data()).await;
    assert!(ended.is_some_and(|ended| ended.is_err_and(|error| error.is_reset())), "no clean end");
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
