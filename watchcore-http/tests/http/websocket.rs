//! Watches over WebSockets: the rows of section HF of docs/HTTP.md that are about them, and HK-21.

use crate::support::certificates::{Authority, Files, client, connect, install};
use crate::support::ground::{SHOP, ServerKind, WIDGETS};
use crate::support::{BOUND, Client, Ground, get, within};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::{SinkExt as _, StreamExt as _};
use proptest::prelude::*;
use serde_json::Value;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, client_async, connect_async};
use watchcore_http::{Server, Tls, Tokens};

pub(crate) type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A watch of all widgets; without widgets its first message is the mark that ends the initial state.
const WATCH: &str = "/apis/matrix.test/v1/widgets?watch=1&allowWatchBookmarks=1";

pub(crate) async fn open(ground: &Ground, target: &str) -> Socket {
    let opened = within("a WebSocket", connect_async(format!("ws://{}{target}", ground.address))).await;
    opened.unwrap_or_else(|error| panic!("{target}: {error}")).0
}

/// Returns the next message, ignoring pings, which the server sends every half minute.
async fn message<S: AsyncRead + AsyncWrite + Unpin>(socket: &mut WebSocketStream<S>) -> Option<Message> {
    loop {
        match within("a message", socket.next()).await.map(|message| message.expect("a message, and no error")) {
            Some(Message::Ping(_)) => {}
            other => return other,
        }
    }
}

/// Returns the next message, which must be a text with one JSON object.
pub(crate) async fn next_event<S: AsyncRead + AsyncWrite + Unpin>(socket: &mut WebSocketStream<S>) -> Value {
    match message(socket).await {
        Some(Message::Text(text)) => {
            assert!(!text.ends_with('\n'), "a message, not a line: {text:?}");
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
        }
        other => panic!("no text: {other:?}"),
    }
}

/// Returns the revision of an event's object.
fn version(event: &Value) -> &str {
    event["object"]["metadata"]["resourceVersion"].as_str().expect("a revision")
}

/// Returns the code of the next close frame, after which the connection must end.
pub(crate) async fn closed<S: AsyncRead + AsyncWrite + Unpin>(socket: &mut WebSocketStream<S>) -> u16 {
    let code = loop {
        match message(socket).await {
            Some(Message::Close(Some(frame))) => break u16::from(frame.code),
            Some(Message::Text(_)) => {}
            other => panic!("no close frame: {other:?}"),
        }
    };
    assert!(message(socket).await.is_none());
    code
}

/// A page cannot set headers of a WebSocket, so it offers its token as a subprotocol, beside one that the server
/// chooses.
#[tokio::test]
async fn token_may_be_a_subprotocol() {
    let token = |text: &str| format!("base64url.bearer.authorization.k8s.io.{}", URL_SAFE_NO_PAD.encode(text));
    let files = Files::new();
    let tokens = Tokens::from_file(files.write("tokens", "secret,alice\n")).unwrap();
    let ground = Ground::builder().face(ServerKind::Own).api(|api| api.authenticator(tokens)).start().await;
    let target = format!("{WIDGETS}?watch=1");
    let asked = async |protocols: &str| {
        let mut client = Client::connect(ground.address).await;
        let headers = [&HANDSHAKE[..], &[("Sec-WebSocket-Protocol", protocols)]].concat();
        client.request("GET", &target, &headers).await;
        client.head().await.expect("an answer")
    };
    let secret = token("secret");
    for protocols in [format!("{secret}, v1.watch"), format!("v1.watch,{secret}"), format!("{secret},v1.watch,other")] {
        let head = asked(&protocols).await;
        assert_eq!((head.code, head.header("sec-websocket-protocol")), (101, Some("v1.watch")), "{}", head.text);
        assert!(!head.text.contains(&secret) && !head.text.contains("secret"), "{}", head.text);
    }
    for protocols in ["v1.watch", &secret, &format!("{},v1.watch", token("wrong")), &format!("{secret},{secret},a")] {
        let head = asked(protocols).await;
        assert_eq!((head.code, head.header("sec-websocket-protocol")), (401, None), "{protocols}: {}", head.text);
    }
    let mut request = format!("ws://{}{target}", ground.address).into_client_request().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", format!("{secret}, v1.watch").parse().unwrap());
    let (mut socket, _) = within("a WebSocket", connect_async(request)).await.expect("a client takes what is chosen");
    ground.put_widget("shop/a", "red");
    assert_eq!(next_event(&mut socket).await["type"], "ADDED");
}

/// Returns a connection that was upgraded by hand, for malformed frames.
async fn raw(ground: &Ground, target: &str) -> TcpStream {
    let mut client = Client::connect(ground.address).await;
    client.request("GET", target, &HANDSHAKE).await;
    let head = client.head().await.expect("an answer");
    assert_eq!(head.code, 101, "{}", head.text);
    assert_eq!(head.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    client.into_stream().0
}

const HANDSHAKE: [(&str, &str); 4] = [
    ("Connection", "keep-alive, Upgrade"),
    ("Upgrade", "WebSocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

/// Returns what the server sends before it closes.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset connection counts as closed.
    let _ = within("the end", stream.read_to_end(&mut rest)).await;
    rest
}

/// Whether the last frame is a close frame with this code.
fn ends_with_close(bytes: &[u8], code: u16) -> bool {
    (2..=bytes.len().min(128)).any(|from| {
        let frame = &bytes[bytes.len() - from..];
        frame[0] == 0x88 && usize::from(frame[1]) == from - 2 && frame.get(2..4) == Some(&code.to_be_bytes()[..])
    })
}

#[tokio::test]
async fn each_event_is_a_text_message() {
    let ground = Ground::start().await;
    ground.put_widget("shop/a", "red");
    let mut socket = open(&ground, WATCH).await;
    let added = next_event(&mut socket).await;
    assert_eq!((&added["type"], &added["object"]["metadata"]["name"]), (&"ADDED".into(), &"a".into()));
    assert_eq!(next_event(&mut socket).await["type"], "BOOKMARK");
    ground.put_widget("shop/b", "red");
    assert_eq!(version(&next_event(&mut socket).await), "2");
}

/// A browser's WebSocket fails on any answer but 101, so `/v1/keys` refuses it with a message, before other errors.
/// Without an upgradable connection, or for another protocol, the request is answered as usual.
#[tokio::test]
async fn keys_have_no_websocket() {
    for face in [ServerKind::Own, ServerKind::Nested] {
        let ground = Ground::builder().face(face).start().await;
        for target in
            ["/v1/keys?prefix=/registry/", "/v1/keys?prefix=/registry/&watch=1", "/v1/keys?prefix=/elsewhere/"]
        {
            let mut client = Client::connect(ground.address).await;
            let refused = client.answer("GET", target, &HANDSHAKE).await;
            assert_eq!(refused.status(), (400, "BadRequest".into()), "{face:?} {target}");
            let message = refused.json()["message"].to_string();
            for advice in ["watch=1", "text/event-stream", "resources"] {
                assert!(message.contains(advice), "{message}");
            }
            assert_eq!(client.answer("GET", "/livez", &[]).await.code(), 200, "the connection goes on");
        }
        for headers in [&HANDSHAKE[1..], &[("Connection", "Upgrade"), ("Upgrade", "h2c")]] {
            let mut client = Client::connect(ground.address).await;
            assert_eq!(client.answer("GET", "/v1/keys?prefix=/registry/", headers).await.code(), 200, "{headers:?}");
        }
    }
}

#[tokio::test]
async fn every_path_of_a_watch_upgrades() {
    let ground = Ground::start().await;
    ground.put_widget("shop/a", "red");
    for path in [SHOP, &format!("{SHOP}/a"), "/apis/matrix.test/v1/watch/namespaces/shop/widgets"] {
        let mut socket = open(&ground, &format!("{path}?watch=1")).await;
        assert_eq!(next_event(&mut socket).await["type"], "ADDED", "{path}");
    }
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let mut request = format!("ws://{}{SHOP}?watch=1", ground.address).into_client_request().unwrap();
    request.headers_mut().insert("Accept", table.parse().unwrap());
    request.headers_mut().insert("Sec-WebSocket-Protocol", "base64.binary.k8s.io".parse().unwrap());
    let (mut socket, _) = connect_async(request).await.expect("a client that insists on its protocol");
    assert_eq!(next_event(&mut socket).await["object"]["kind"], "Table");
}

#[tokio::test]
async fn first_subprotocol_is_chosen() {
    let ground = Ground::start().await;
    ground.put_widget("shop/a", "red");
    let mut headers = HANDSHAKE.to_vec();
    for (offered, chosen) in
        [("base64.binary.k8s.io", "base64.binary.k8s.io"), (" , one, other", "one"), ("one,other", "one")]
    {
        headers.truncate(HANDSHAKE.len());
        headers.push(("Sec-WebSocket-Protocol", offered));
        let mut client = Client::connect(ground.address).await;
        client.request("GET", &format!("{SHOP}?watch=1"), &headers).await;
        let head = client.head().await.expect("an answer");
        assert_eq!((head.code, head.header("sec-websocket-protocol")), (101, Some(chosen)));
    }
}

#[tokio::test]
async fn what_is_refused_is_refused_before_the_upgrade() {
    let ground = Ground::start().await;
    let with = async |target: &str, headers: &[(&str, &str)]| {
        Client::connect(ground.address).await.answer("GET", target, headers).await
    };
    let old = with(WATCH, &[HANDSHAKE[0], HANDSHAKE[1], HANDSHAKE[3], ("Sec-WebSocket-Version", "8")]).await;
    assert_eq!(old.status(), (426, "UpgradeRequired".into()));
    assert_eq!((old.header("sec-websocket-version"), old.header("upgrade")), (Some("13"), Some("websocket")));
    // Missing, too short, not base64, 18 bytes.
    for key in [None, Some("short"), Some("!!!!!!!!!!!!!!!!!!!!!!!!"), Some("AAAAAAAAAAAAAAAAAAAAAAAA")] {
        let mut headers = HANDSHAKE[..3].to_vec();
        headers.extend(key.map(|key| ("Sec-WebSocket-Key", key)));
        assert_eq!(with(WATCH, &headers).await.status(), (400, "BadRequest".into()), "{key:?}");
    }
    assert_eq!(with("/apis/matrix.test/v1/gadgets?watch=1", &HANDSHAKE).await.code(), 404);
    assert_eq!(with(&format!("{WIDGETS}?watch=1&labelSelector=%5E"), &HANDSHAKE).await.code(), 400);
    ground.put_widget("shop/a", "red");
    // Without an upgradable connection it is a plain request.
    let plain = with(WIDGETS, &[("Upgrade", "websocket")]).await;
    assert_eq!(plain.names(), ["shop/a"]);
    assert_eq!(with(WIDGETS, &HANDSHAKE).await.names(), ["shop/a"], "a list is no watch");
}

#[tokio::test]
async fn end_of_a_watch_is_a_close_frame() {
    let ground = Ground::start().await;
    let mut timed = open(&ground, &format!("{WATCH}&timeoutSeconds=1")).await;
    assert_eq!(closed(&mut timed).await, 1000);
    let mut drained = open(&ground, WATCH).await;
    next_event(&mut drained).await;
    ground.api.drain(Duration::ZERO).await;
    assert_eq!(closed(&mut drained).await, 1001);
}

/// TLS records lie between frames and socket: an event is sent although nothing follows it, an object of many records
/// arrives whole, the client's messages are received, and both layers are closed.
#[tokio::test]
async fn watch_over_tls() {
    let (authority, files) = (Authority::new("ca"), Files::new());
    let (certificate, key) = install(&files, &authority.sign("server", &[]));
    let ca = files.write("ca.crt", authority.pem());
    let alice = client(&authority, Some(&authority.sign("alice", &[])), &["http/1.1"]);
    let ground = Ground::builder().face(ServerKind::Nested).start().await;
    let tls = Tls::new(certificate, key).client_ca(ca);
    let server = Server::builder(ground.api.clone()).address("127.0.0.1:0").tls(tls).start().await.unwrap();
    let open = async |target: &str| {
        let stream = connect(server.address(), &alice).await.unwrap();
        let mut request = format!("wss://localhost{target}").into_client_request().unwrap();
        request.headers_mut().insert("Origin", "https://localhost".parse().unwrap());
        within("a WebSocket", client_async(request, stream)).await.expect("it is upgraded").0
    };
    let (mut one, mut other) = (open(&format!("{SHOP}?watch=1")).await, open(WATCH).await);
    assert_eq!(next_event(&mut other).await["type"], "BOOKMARK");
    ground.put_widget("shop/a", "red");
    assert_eq!(next_event(&mut one).await["object"]["metadata"]["name"], "a");
    assert_eq!(version(&next_event(&mut other).await), "1");
    let large = "x".repeat(300_000);
    ground.put_widget("shop/b", &large);
    assert_eq!(next_event(&mut one).await["object"]["spec"]["color"], *large);
    assert_eq!(next_event(&mut other).await["object"]["spec"]["color"], *large);
    other.send(Message::Ping("here".into())).await.unwrap();
    assert_eq!(message(&mut other).await, Some(Message::Pong("here".into())));
    one.close(None).await.unwrap();
    assert!(matches!(message(&mut one).await, Some(Message::Close(_))), "the client's close frame is answered");
    let mut rest = Vec::new();
    within("the end", one.get_mut().read_to_end(&mut rest)).await.expect("TLS says that it ends");
    let ended = tokio::spawn(server.shutdown(Duration::from_secs(60)));
    assert_eq!(closed(&mut other).await, 1001);
    let mut stream = other.into_inner();
    within("the end", stream.read_to_end(&mut rest)).await.expect("TLS says that it ends");
    drop(stream);
    within("the server ends before its grace time", ended).await.unwrap();
}

#[tokio::test]
async fn error_of_a_watch_comes_before_its_close_frame() {
    let ground = Ground::start().await;
    ground.put_widget("shop/a", "red");
    ground.put_widget("shop/a", "blue");
    ground.writer().compact(2).unwrap();
    let mut socket = open(&ground, &format!("{WIDGETS}?watch=1&resourceVersion=1")).await;
    let error = next_event(&mut socket).await;
    assert_eq!((&error["type"], &error["object"]["code"]), (&"ERROR".into(), &410.into()));
    assert_eq!(closed(&mut socket).await, 1000);
}

#[tokio::test]
async fn client_closes_and_is_answered() {
    let ground = Ground::start().await;
    let mut socket = open(&ground, WATCH).await;
    next_event(&mut socket).await;
    socket.close(None).await.unwrap();
    while let Some(message) = message(&mut socket).await {
        assert!(matches!(message, Message::Close(_)), "{message:?}");
    }
    let gone = async || ground.cache.subscriptions().is_empty().then_some(());
    crate::support::eventually("the watch has gone", gone).await;
}

#[tokio::test]
async fn small_messages_are_passed_over() {
    let ground = Ground::start().await;
    let mut socket = open(&ground, WATCH).await;
    next_event(&mut socket).await;
    for size in [0, 1, 4096] {
        socket.send(Message::text("x".repeat(size))).await.unwrap();
        socket.send(Message::binary(vec![0; size])).await.unwrap();
    }
    socket.send(Message::Ping("are you there".into())).await.unwrap();
    assert_eq!(message(&mut socket).await, Some(Message::Pong("are you there".into())));
    ground.put_widget("shop/a", "red");
    assert_eq!(version(&next_event(&mut socket).await), "1");
}

#[tokio::test]
async fn large_message_closes_with_1009() {
    let ground = Ground::start().await;
    for large in [Message::text("x".repeat(4097)), Message::binary(vec![0; 1 << 20])] {
        let mut socket = open(&ground, WATCH).await;
        next_event(&mut socket).await;
        socket.feed(large).await.unwrap();
        let _ = socket.flush().await;
        assert_eq!(closed(&mut socket).await, 1009);
    }
    // Two fragments, each small enough.
    let mut stream = raw(&ground, WATCH).await;
    for opcode in [0x02, 0x80] {
        let mut frame = vec![opcode, 0x80 | 126, 0x0c, 0x00, 0, 0, 0, 0];
        frame.resize(8 + 0x0c00, 0);
        stream.write_all(&frame).await.unwrap();
    }
    assert!(ends_with_close(&rest(&mut stream).await, 1009));
}

#[tokio::test]
async fn broken_frames_close_with_their_codes() {
    let ground = Ground::start().await;
    let long_ping = [&[0x89, 0xfe, 0, 126, 0, 0, 0, 0][..], &[0; 126]].concat();
    for (frame, code, what) in [
        (&[0x81, 0x01, b'x'][..], 1002, "without a mask"),
        (&[0x83, 0x80, 0, 0, 0, 0], 1002, "a reserved opcode"),
        (&[0xc1, 0x80, 0, 0, 0, 0], 1002, "a reserved bit"),
        (&[0x80, 0x80, 0, 0, 0, 0], 1002, "a continuation of nothing"),
        (&long_ping, 1002, "a ping that is too long"),
        (&[0x81, 0x81, 0, 0, 0, 0, 0xff], 1007, "text that is none"),
    ] {
        let mut stream = raw(&ground, WATCH).await;
        stream.write_all(frame).await.unwrap();
        let rest = rest(&mut stream).await;
        assert!(ends_with_close(&rest, code), "{what}: {:?}", String::from_utf8_lossy(&rest));
    }
}

/// Eight clients do not read; another one that reads is unaffected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_read_cost_little() {
    let ground = Ground::builder().cache(|cache| cache.capacity(128)).start().await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(raw(&ground, WATCH).await);
    }
    let mut reader = open(&ground, WATCH).await;
    next_event(&mut reader).await;
    let large = "v".repeat(100_000);
    for revision in 1..=100 {
        ground.put_widget("shop/a", &large);
        let event = within("the reader's event", next_event(&mut reader)).await;
        assert_eq!(version(&event), revision.to_string());
    }
    // Each watch was offered 20 MB; an unread one holds a batch of the log, not all of that.
    let held = ground.cache.stats().bytes();
    assert!(held < 100 << 20, "{held} bytes");
    drop(reader);
    for number in 0..5000 {
        ground.put_widget("shop/b", &number.to_string());
    }
    let mut late = silent.pop().unwrap();
    let rest = rest(&mut late).await;
    let text = String::from_utf8_lossy(&rest);
    assert!(text.contains(r#"{"type":"ERROR""#) && text.contains(r#""code":410"#), "it is told that it lost something");
    assert!(ends_with_close(&rest, 1000));
}

#[tokio::test]
async fn watch_counts_while_it_is_open() {
    let ground = Ground::builder().api(|api| {
        let mut limits = watchcore_http::Limits::default();
        limits.watches = 1;
        api.limits(limits)
    });
    let ground = ground.start().await;
    let mut socket = open(&ground, WATCH).await;
    next_event(&mut socket).await;
    assert_eq!(get(ground.address, WATCH).await.code(), 429);
    drop(socket);
    let freed = async || {
        let mut client = Client::connect(ground.address).await;
        client.request("GET", WATCH, &[]).await;
        client.head().await.filter(|head| head.code == 200).map(drop)
    };
    crate::support::eventually("its place", freed).await;
}

/// One server for all hostile connections.
fn hostile() -> &'static (tokio::runtime::Runtime, Ground) {
    static HOSTILE: OnceLock<(tokio::runtime::Runtime, Ground)> = OnceLock::new();
    HOSTILE.get_or_init(|| {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let ground = runtime.block_on(Ground::start());
        (runtime, ground)
    })
}

fn hostile_bytes() -> impl Strategy<Value = Vec<u8>> {
    // Frames with a plausible header, and arbitrary bytes.
    let frame = (any::<u8>(), any::<u8>(), any::<[u8; 4]>(), proptest::collection::vec(any::<u8>(), 0..130)).prop_map(
        |(first, second, mask, payload)| {
            let length = if second % 4 == 0 { second & 0x7f } else { payload.len().min(125) as u8 };
            let mut frame = vec![first, 0x80 | length];
            frame.extend(mask);
            frame.extend(payload);
            frame
        },
    );
    let bytes = proptest::collection::vec(any::<u8>(), 0..64);
    proptest::collection::vec(prop_oneof![frame, bytes], 0..8).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// The server ends the connection or keeps it; the watch ends with the connection, and other clients are served.
    #[test]
    fn hostile_frames_harm_nobody(bytes in hostile_bytes()) {
        let (runtime, ground) = hostile();
        runtime.block_on(async {
            let mut stream = raw(ground, WATCH).await;
            // The server may have closed the connection already.
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
            rest(&mut stream).await;
            drop(stream);
            assert_eq!(get(ground.address, WIDGETS).await.code(), 200);
            let gone = async || ground.cache.subscriptions().is_empty().then_some(());
            crate::support::eventually("the watch goes with its connection", gone).await;
        });
        prop_assert!(BOUND > Duration::ZERO);
    }
}
