//! Tests of connections over pipes with a fixed buffer size, unlike the kernel's sockets.

use super::*;
use crate::access::Peer;
use crate::clients::ClientId;
use crate::limits::Limits;
use bytes::Bytes;
use connection::ConnectionContext;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use watchcore::{Cache, Change};

const BOUND: Duration = Duration::from_secs(10);

fn shared() -> Arc<Shared> {
    limited(Limits::default())
}

fn limited(limits: Limits) -> Arc<Shared> {
    let widgets = crate::Resource::new("matrix.test", "v1", "widgets", "Widget").prefix("/w/");
    let cache = crate::Resource::declare(Cache::builder("/"), [&widgets]).unwrap().build().unwrap();
    cache.writer().unwrap().apply(1, [Change::put("/w/a", "{}")]).unwrap();
    let api = Api::builder().cache(cache).resource(widgets).limits(limits).build().unwrap();
    let state = &api.0;
    let clock = Clock::new(state.limits.clone(), state.counters.clone());
    let running = clock.clone();
    tokio::spawn(async move { running.run().await });
    Arc::new(Shared {
        router: api.router(),
        direct: true,
        requires_authentication: false,
        permits: ClientPermits::new(1000),
        clock,
        api,
        tls: None,
        asks_certificate: false,
        alive: Arc::default(),
    })
}

/// Returns the state of a connection besides its socket.
fn link(shared: &Arc<Shared>, connection: &clock::Connection) -> ConnectionContext {
    let peer = Peer {
        address: ([127, 0, 0, 1], 1).into(),
        local: None,
        certificate: None,
        is_encrypted: false,
        asks_certificate: false,
        watches: Arc::default(),
        activity: Some(connection.activity().clone()),
    };
    ConnectionContext { shared: shared.clone(), peer: Arc::new(peer), only_health: false }
}

/// Serves a connection over a pipe until it ends or is cut off.
fn serve<IO>(shared: &Arc<Shared>, io: IO, is_http2: bool)
where
    IO: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let address = ([127, 0, 0, 1], 1).into();
    let permit = shared.permits.acquire(&ClientId::Unknown).ok();
    let connection = shared.clock.enter(address, permit, false);
    let activity = connection.activity().clone();
    activity.is_known();
    let link = link(shared, &connection);
    tokio::spawn(async move {
        tokio::select! {
            () = activity.is_cut() => {}
            () = link.http(io, Bytes::new(), connection, is_http2) => {}
        }
    });
}

/// Returns an HTTP/1.1 connection over a pipe with a buffer of `room` bytes.
fn connection(shared: &Arc<Shared>, room: usize) -> DuplexStream {
    let (client, server) = tokio::io::duplex(room);
    serve(shared, server, false);
    client
}

/// Returns an HTTP/2 connection whose client grants each stream a window of `room` bytes, and reads while it is polled.
async fn connection2(shared: &Arc<Shared>, room: u32) -> (h2::client::SendRequest<Bytes>, Connection2) {
    let (client, server) = tokio::io::duplex(16 << 10);
    serve(shared, server, true);
    h2::client::Builder::new().initial_window_size(room).handshake(client).await.unwrap()
}

type Connection2 = h2::client::Connection<DuplexStream>;

/// Both requests arrive before a byte of an answer is taken, and the pipe holds only a part of the first answer.
#[tokio::test]
async fn watch_follows_the_whole_answer_before_it() {
    let shared = shared();
    let client = connection(&shared, 200);
    let (mut reading, mut writing) = tokio::io::split(client);
    let requests = "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /apis/matrix.test/v1/widgets?watch=1&timeoutSeconds=1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    tokio::time::timeout(BOUND, writing.write_all(requests.as_bytes())).await.expect("both are taken").unwrap();
    let mut said = String::new();
    tokio::time::timeout(BOUND, reading.read_to_string(&mut said)).await.expect("an end").unwrap();
    let answers: Vec<&str> = said.split("HTTP/1.1 200 OK").collect();
    assert_eq!(answers.len(), 3, "{said}");
    assert!(answers[1].ends_with("ok") && answers[2].contains(r#""type":"ADDED""#), "{said}");
}

const SECOND: Duration = Duration::from_secs(1);
const LARGE: &str = "GET /apis/matrix.test/v1/widgets/large HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Returns a server with a value of a megabyte at [`LARGE`].
fn with_large(limits: Limits) -> Arc<Shared> {
    let shared = limited(limits);
    let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(1 << 20));
    let cache = &shared.api.0.catalog.resources()[0].cache;
    cache.writer().unwrap().apply(2, [Change::put("/w/large", &large)]).unwrap();
    shared
}

/// hyper gets the answer at once and writes it for ten seconds. Meanwhile the connection is not idle, and the next
/// head, which has arrived already, does not time out.
#[tokio::test(start_paused = true)]
async fn answer_takes_as_long_as_its_client() {
    let mut limits = Limits::default();
    (limits.header_timeout, limits.idle, limits.stall) = (SECOND, SECOND, SECOND);
    let mut client = connection(&with_large(limits), 16 << 10);
    client.write_all(LARGE.as_bytes()).await.unwrap();
    let from = tokio::time::Instant::now();
    let (mut said, mut buffer) = (Vec::new(), [0; 11 << 10]);
    while !said.ends_with(b"ok") {
        tokio::time::sleep(SECOND / 10).await;
        let read = client.read(&mut buffer).await.unwrap();
        assert!(read > 0, "cut off behind {} bytes, {:?}", said.len(), from.elapsed());
        if said.is_empty() {
            client.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        }
        said.extend_from_slice(&buffer[..read]);
    }
    assert!(said.len() > 1 << 20 && from.elapsed() > SECOND * 9, "{} bytes, {:?}", said.len(), from.elapsed());
}

/// The same on HTTP/2, with a window of sixteen bytes.
#[tokio::test(start_paused = true)]
async fn answer_takes_as_long_as_its_stream() {
    let limits = Limits { idle: SECOND, ..Limits::default() };
    let (mut client, connection) = connection2(&limited(limits), 16).await;
    tokio::spawn(connection);
    let request = http::Request::get("http://localhost/apis/matrix.test/v1/widgets/a").body(()).unwrap();
    let (response, _) = client.send_request(request, true).unwrap();
    let mut body = response.await.unwrap().into_body();
    let (mut said, mut waited) = (Vec::new(), Duration::ZERO);
    while let Some(data) = body.data().await {
        let data = data.unwrap_or_else(|error| panic!("cut off behind {} bytes: {error}", said.len()));
        said.extend_from_slice(&data);
        tokio::time::sleep(SECOND * 2).await;
        waited += SECOND * 2;
        body.flow_control().release_capacity(data.len()).unwrap();
    }
    assert!(said.trim_ascii_end().ends_with(b"}") && waited > SECOND * 5, "{} bytes, {waited:?}", said.len());
}

/// A client that takes no byte of an answer that hyper has buffered is cut off after the stall limit.
#[tokio::test(start_paused = true)]
async fn client_that_takes_no_answer_is_left() {
    let limits = Limits { stall: SECOND, ..Limits::default() };
    let shared = with_large(limits);
    let mut client = connection(&shared, 16 << 10);
    client.write_all(LARGE.as_bytes()).await.unwrap();
    is_left(&shared, SECOND).await;
}

const WATCH: &str = "GET /apis/matrix.test/v1/widgets?watch=1&timeoutSeconds=36000 HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A watch whose client takes nothing is cut off after the stall limit: on the direct path, behind a buffer like that
/// of TLS, and on HTTP/2. A client that takes a little now and then keeps its watch.
#[tokio::test(start_paused = true)]
async fn watch_whose_client_takes_nothing_is_left() {
    let limits = || Limits { stall: SECOND, ..Limits::default() };
    let shared = with_large(limits());
    let mut client = connection(&shared, 16 << 10);
    client.write_all(WATCH.as_bytes()).await.unwrap();
    is_left(&shared, SECOND).await;

    let shared = with_large(limits());
    let (mut client, server) = tokio::io::duplex(64);
    serve(&shared, tokio::io::BufWriter::with_capacity(4 << 20, server), false);
    client.write_all(WATCH.as_bytes()).await.unwrap();
    is_left(&shared, SECOND).await;

    for room in [0, 10, 65_535] {
        let shared = with_large(limits());
        let (mut client, connection) = connection2(&shared, room).await;
        tokio::spawn(connection);
        let target = "http://localhost/apis/matrix.test/v1/widgets?watch=1&timeoutSeconds=36000";
        let (response, _) = client.send_request(http::Request::get(target).body(()).unwrap(), true).unwrap();
        let _body = response.await.unwrap();
        is_left(&shared, SECOND).await;
    }

    let shared = with_large(limits());
    let mut client = connection(&shared, 16 << 10);
    client.write_all(WATCH.as_bytes()).await.unwrap();
    for _ in 0..50 {
        tokio::time::sleep(SECOND / 2).await;
        let mut some = [0; 1000];
        assert!(client.read(&mut some).await.unwrap() > 0);
    }
    assert_eq!(shared.clock.count(), 1);
}

/// A watch without events is not cut off.
#[tokio::test(start_paused = true)]
async fn quiet_watch_goes_on() {
    let shared = limited(Limits { stall: SECOND, idle: SECOND, header_timeout: SECOND, ..Limits::default() });
    let mut client = connection(&shared, 16 << 10);
    client.write_all(WATCH.as_bytes()).await.unwrap();
    let (mut client2, connection) = connection2(&shared, 65_535).await;
    tokio::spawn(connection);
    let target = "http://localhost/apis/matrix.test/v1/widgets?watch=1&timeoutSeconds=36000";
    let (response, _) = client2.send_request(http::Request::get(target).body(()).unwrap(), true).unwrap();
    let mut body = response.await.unwrap().into_body();
    body.data().await.unwrap().unwrap();
    tokio::time::sleep(SECOND * 1800).await;
    assert_eq!(shared.clock.count(), 2);
}

/// A WebSocket lasts as long as its client answers pings: it is not idle between them, and a pong is not the beginning
/// of a request.
#[tokio::test(start_paused = true)]
async fn websocket_is_not_idle() {
    let shared = shared();
    let mut client = connection(&shared, 16 << 10);
    let request = "GET /apis/matrix.test/v1/widgets?watch=1&timeoutSeconds=36000&resourceVersion=1 HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    client.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    let from = tokio::time::Instant::now();
    while from.elapsed() < SECOND * 1800 {
        let mut ping = [0; 2];
        client.read_exact(&mut ping).await.expect("it goes on");
        assert_eq!(ping, [0x89, 0]);
        client.write_all(&[0x8a, 0x80, 0, 0, 0, 0]).await.unwrap();
    }
    assert_eq!(shared.clock.count(), 1);
}

/// Waits until the connection is closed, and checks that this takes `after`.
async fn is_left(shared: &Shared, after: Duration) {
    let from = tokio::time::Instant::now();
    while shared.clock.count() > 0 {
        tokio::time::sleep(after / 100).await;
        assert!(from.elapsed() < after * 2, "it is there");
    }
    assert!(from.elapsed() >= after, "{:?}", from.elapsed());
}

/// Host names are resolved on a blocking thread; here the only one is busy.
#[test]
fn names_are_looked_up_elsewhere() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let (gate, opened) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || opened.recv());
        let api = Api::builder().build().unwrap();
        let mut starting = Box::pin(Server::builder(api).address("localhost:0").start());
        let first = std::future::poll_fn(|context| std::task::Poll::Ready(starting.as_mut().poll(context).is_ready()));
        assert!(!first.await, "the runtime's own thread looked it up");
        gate.send(()).unwrap();
        busy.await.unwrap().unwrap();
        let started = tokio::time::timeout(Duration::from_secs(60), starting).await.expect("it is looked up");
        assert!(started.unwrap().address().ip().is_loopback());
    });
}

/// After a restart all clients connect at once; the kernel queues them until they are accepted.
#[tokio::test]
async fn many_may_connect_before_they_are_accepted() {
    let listener = bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").ok().and_then(|most| most.trim().parse().ok());
    let clients: Vec<_> = (0..most.unwrap_or(128).min(400))
        .map(|number| {
            std::net::TcpStream::connect_timeout(&address, Duration::from_secs(60))
                .unwrap_or_else(|error| panic!("client {number}: {error}"))
        })
        .collect();
    drop(clients);
}

/// The part that lasts as long as a watch is small; the larger handshake is freed when it is over.
#[tokio::test]
async fn task_of_a_connection_is_small() {
    let shared = shared();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _client = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, address) = listener.accept().await.unwrap();
    let connection = shared.clock.enter(address, None, false);
    let accepted = connection::Accepted { stream, address, connection, only_health: false };
    let task = size_of_val(&connection::run(accepted, shared.clone()));
    let (stream, _) = tokio::io::duplex(1);
    let connection = shared.clock.enter(address, None, false);
    let part = link(&shared, &connection).http(stream, Bytes::new(), connection, false);
    let part = size_of_val(&*part);
    assert!(task < 256 && part < 640, "a task of {task} bytes with a part of {part}");
}
