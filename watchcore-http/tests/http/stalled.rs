//! Clients that take nothing, or close one direction: the cost of their watches is bounded, on every transport.

use crate::support::client::Head;
use crate::support::ground::{SHOP, ServerKind, WIDGETS};
use crate::support::{Client, Ground, eventually, metric, within};
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

/// A description, a target, and headers.
type WatchCase = (&'static str, String, &'static [(&'static str, &'static str)]);

/// A watch of each API on each transport of HTTP/1.1.
fn watches() -> [WatchCase; 4] {
    [
        ("lines", KEYS.into(), &[]),
        ("objects", format!("{WIDGETS}?watch=1"), &[]),
        ("server-sent events", KEYS.into(), &[("Accept", "text/event-stream")]),
        ("a WebSocket", format!("{WIDGETS}?watch=1"), &UPGRADE),
    ]
}

/// Starts a server with more data than the sockets' buffers hold.
async fn full(face: ServerKind, stall: Duration) -> Ground {
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
    metric(ground.address, "watchcore_http_watches_open").await
}

/// Returns a client that has read the head of its answer, but not the body.
async fn begun(address: SocketAddr, what: &str, target: &str, headers: &[(&str, &str)]) -> (Client, Head) {
    let mut client = Client::connect(address).await;
    client.request("GET", target, headers).await;
    let head = client.head().await.expect("an answer");
    assert!([101, 200].contains(&head.code), "{what}: {}", head.text);
    (client, head)
}

/// A client takes nothing of its watch: its permit is freed and its connection closed. When the client reads again, it
/// finds what the kernel had buffered, and no clean end.
#[tokio::test]
async fn client_that_takes_nothing_is_left() {
    let ground = full(ServerKind::Own, STALL).await;
    let from = Instant::now();
    let mut clients = Vec::new();
    for (what, target, headers) in watches() {
        let target = format!("{target}&timeoutSeconds=9223372036854775807");
        clients.push((what, begun(ground.address, what, &target, headers).await));
    }
    left(&ground, from + STALL, clients).await;
    assert!(metric(ground.address, "watchcore_http_refused_total{reason=\"stall\"}").await >= 3.0);
}

/// In another server nothing observes what the client takes, so the watch is ended after its deadline.
#[tokio::test]
async fn nested_watch_is_left_behind_its_deadline() {
    let ground = full(ServerKind::Nested, STALL).await;
    let from = Instant::now();
    let mut clients = Vec::new();
    for (what, target, headers) in watches() {
        let (client, head) = begun(ground.address, what, &format!("{target}&timeoutSeconds=1"), headers).await;
        // A WebSocket enforces its own limit.
        if head.code == 200 {
            clients.push((what, (client, head)));
        }
    }
    eventually("all are left", async || (open_watches(&ground).await == 0.0).then_some(())).await;
    assert!(from.elapsed() >= Duration::from_secs(1) + STALL, "not before: {:?}", from.elapsed());
    // Frames that the transport took before are complete, and so is the end.
    for (_, (mut client, head)) in clients {
        client.body(&head).await;
    }
}

/// Waits until all watches have ended and their connections are closed.
async fn left(ground: &Ground, least: Instant, clients: Vec<(&str, (Client, Head))>) {
    // Each head was received, so each watch was open.
    eventually("all are left", async || (open_watches(ground).await == 0.0).then_some(())).await;
    assert!(Instant::now() >= least, "not before");
    for (what, (mut client, head)) in clients {
        let rest = client.rest().await;
        assert!(!rest.ends_with(b"0\r\n\r\n") && !ends_with_close(&rest), "{what}: a clean end");
        assert!(rest.len() < 14 << 20, "{what}: {} bytes", rest.len());
        assert_eq!(head.is_chunked(), head.code == 200, "{what}");
    }
}

/// Whether the last frame is a close frame with code 1000.
fn ends_with_close(bytes: &[u8]) -> bool {
    bytes.ends_with(&[0x88, 2, 0x03, 0xe8])
}

/// Returns an HTTP/2 client that grants each stream a window of `room` bytes, until its bodies are read.
async fn with_room(address: SocketAddr, room: u32) -> h2::client::SendRequest<bytes::Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    let handshake = h2::client::Builder::new().initial_window_size(room).handshake::<_, bytes::Bytes>(stream);
    let (client, connection) = within("the preface", handshake).await.unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    client
}

/// Returns the body of an answer whose head was received.
async fn body_of(client: &mut h2::client::SendRequest<bytes::Bytes>, target: &str) -> h2::RecvStream {
    let request = http::Request::get(format!("http://localhost{target}")).body(()).unwrap();
    let (response, _) = client.send_request(request, true).unwrap();
    within("a head", response).await.unwrap().into_body()
}

/// On HTTP/2, the connection of a client that grants no window to any of its answers ends, whatever they are, and
/// however much the client took before.
#[tokio::test]
async fn connection_without_room_is_left() {
    let ground = full(ServerKind::Own, STALL).await;
    ground.put_node("a");
    ground.writer().compact(16).unwrap();
    for room in [0, 1, 20_000] {
        let mut targets = vec![format!("{SHOP}/0"), WIDGETS.to_owned(), format!("{WIDGETS}?watch=1")];
        if room < 2 {
            let small = ["/api/v1/nodes", "/metrics", "/", "/apis", "/livez?verbose=1"].map(str::to_owned);
            targets.extend(small);
            targets.push(format!("{WIDGETS}?watch=1&resourceVersion=1"));
        }
        for target in targets {
            let what = format!("{target} with room for {room}");
            let mut client = with_room(ground.address, room).await;
            let mut body = body_of(&mut client, &target).await;
            let ended = loop {
                match within(&what, body.data()).await {
                    Some(Ok(_)) => {}
                    ended => break ended,
                }
            };
            assert!(ended.is_some_and(|ended| ended.is_err()), "{what}: no clean end");
        }
    }
    eventually("its places are free", async || (open_watches(&ground).await == 0.0).then_some(())).await;
}

/// One stalled stream does not end a connection whose other streams progress.
#[tokio::test]
async fn connection_that_takes_something_goes_on() {
    let ground = full(ServerKind::Own, STALL).await;
    let mut client = with_room(ground.address, 20_000).await;
    let mut watch = body_of(&mut client, &format!("{WIDGETS}?watch=1")).await;
    let from = Instant::now();
    while from.elapsed() < STALL * 5 {
        let mut body = body_of(&mut client, "/livez").await;
        assert_eq!(within("an answer", body.data()).await.unwrap().unwrap(), "ok");
    }
    let some = async { poll_fn(|context| watch.poll_data(context)).now_or_never() };
    assert!(some.await.is_none_or(|data| data.is_some_and(|data| data.is_ok())), "it goes on");
}

/// A client that closes its sending direction counts as gone: it looks like one whose process has exited.
#[tokio::test]
async fn client_that_closes_its_half_is_gone() {
    let ground = Ground::builder().face(ServerKind::Own).start().await;
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
