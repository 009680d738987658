//! Shutdown of our own server: clients that read get everything, and clients that do not read do not delay it.

use crate::support::ground::{ServerKind, WIDGETS};
use crate::support::{Client, Ground, Watching, eventually, get, metric, within};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use watchcore_http::Server;

/// The last quarter of it is for the last bytes, also on a loaded machine.
const GRACE: Duration = Duration::from_secs(8);

async fn served() -> (Ground, Server) {
    let ground = Ground::builder().face(ServerKind::Nested).start().await;
    let server = Server::builder(ground.api.clone()).address("127.0.0.1:0").start().await.expect("a port");
    (ground, server)
}

fn end(server: Server, grace: Duration) -> JoinHandle<Duration> {
    let begin = Instant::now();
    tokio::spawn(async move {
        server.shutdown(grace).await;
        begin.elapsed()
    })
}

#[tokio::test]
async fn hundred_watches_end_within_the_grace() {
    let (ground, server) = served().await;
    let mut watches = Vec::new();
    for _ in 0..100 {
        watches.push(Watching::open(server.address(), &format!("{WIDGETS}?watch=1")).await);
    }
    let revision = ground.put_widget("shop/a", "red");
    let address = server.address();
    let ended = end(server, GRACE);
    // Behind the grace time they would be cut off.
    for watch in &mut watches {
        assert_eq!(watch.next_event().await, format!("ADDED shop/a@{revision}"));
        watch.ended().await;
    }
    let took = within("the end", ended).await.unwrap();
    assert!(took > GRACE / 4, "they end one by one, not all at once: {took:?}");
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
    assert_eq!(metric(ground.address, "watchcore_http_watches_open").await, 0.0);
    assert_eq!(metric(ground.address, "watchcore_http_connections").await, 0.0);
}

#[tokio::test]
async fn ready_fails_and_nobody_connects() {
    let (ground, server) = served().await;
    let address = server.address();
    // An unread watch keeps the server in its grace time, because its last bytes cannot be sent.
    let mut watch = Client::connect(address).await;
    watch.request("GET", &format!("{WIDGETS}?watch=1"), &[]).await;
    assert_eq!(watch.head().await.unwrap().code, 200);
    assert_eq!(get(ground.address, "/readyz").await.code(), 200);
    let ended = end(server, GRACE);
    let answer = eventually("not ready", || async {
        let answer = get(ground.address, "/readyz").await;
        (answer.code() == 500).then_some(answer)
    });
    assert!(answer.await.text().contains("[-]shutdown failed"));
    assert_eq!(get(ground.address, "/livez").await.code(), 200, "it is alive");
    eventually("nobody listens", || async { TcpStream::connect(address).await.err() }).await;
    assert!(watch.chunk().await.is_none() && !watch.is_closed(), "a clean end");
    within("the end", ended).await.unwrap();
}

/// A grace time beyond the range of the clock never ends: watches end when their clients disconnect.
#[tokio::test]
async fn endless_grace_ends_nobody() {
    let ground = Ground::start().await;
    let open = async || metric(ground.address, "watchcore_http_watches_open").await;
    let target = format!("{WIDGETS}?watch=1");
    let watches = [Watching::open(ground.address, &target).await, Watching::open(ground.address, &target).await];
    let api = ground.api.clone();
    let drained = tokio::spawn(async move { api.drain(Duration::MAX).await });
    eventually("the first is ended", || async { (open().await == 1.0).then_some(()) }).await;
    assert!(!drained.is_finished(), "it waits for the other");
    drop(watches);
    eventually("both are gone", || async { (open().await == 0.0).then_some(()) }).await;
    drained.abort();
}

/// Without watches there is nothing to wait for, whatever the grace time.
#[tokio::test]
async fn idle_connections_close_at_once() {
    let (_ground, server) = served().await;
    let mut asked = Client::connect(server.address()).await;
    assert_eq!(asked.answer("GET", "/livez", &[]).await.code(), 200);
    let mut fresh = Client::connect(server.address()).await;
    let address = server.address();
    eventually("both are accepted", || async {
        (metric(address, "watchcore_http_connections").await >= 3.0).then_some(())
    })
    .await;
    let ended = end(server, Duration::from_secs(600));
    assert_eq!(asked.rest().await, b"");
    assert_eq!(fresh.rest().await, b"");
    within("the end", ended).await.unwrap();
}

/// A client that does not read is cut off at the end of the grace time.
#[tokio::test]
async fn client_that_never_reads_is_cut() {
    let (ground, server) = served().await;
    let large = "x".repeat(1 << 20);
    for number in 0..16 {
        ground.put_widget(&format!("shop/{number}"), &large);
    }
    let mut deaf = Client::connect(server.address()).await;
    deaf.request("GET", &format!("{WIDGETS}?watch=1"), &[]).await;
    let mut list = Client::connect(server.address()).await;
    list.request("GET", WIDGETS, &[]).await;
    eventually("the watch is open", || async {
        (metric(ground.address, "watchcore_http_watches_open").await == 1.0).then_some(())
    })
    .await;
    let ended = end(server, Duration::from_millis(500));
    within("the end", ended).await.unwrap();
    assert_eq!(metric(ground.address, "watchcore_http_connections").await, 0.0);
    assert_eq!(metric(ground.address, "watchcore_http_watches_open").await, 0.0);
    drop((deaf, list));
}

/// A list that has begun is sent whole.
#[tokio::test]
async fn list_is_sent_whole() {
    let (ground, server) = served().await;
    let large = "x".repeat(1 << 20);
    for number in 0..16 {
        ground.put_widget(&format!("shop/{number}"), &large);
    }
    let mut list = Client::connect(server.address()).await;
    list.request("GET", WIDGETS, &[]).await;
    let head = list.head().await.unwrap();
    let ended = end(server, GRACE);
    eventually("it has begun", || async { (get(ground.address, "/readyz").await.code() == 500).then_some(()) }).await;
    let body = list.body(&head).await;
    assert!(body.trim_ascii_end().ends_with(b"]}"), "{} bytes", body.len());
    assert_eq!(list.rest().await, b"", "then it is closed");
    within("the end", ended).await.unwrap();
}

#[tokio::test]
async fn http2_streams_end_cleanly() {
    let (ground, server) = served().await;
    let stream = TcpStream::connect(server.address()).await.unwrap();
    let (mut client, connection) = within("the preface", h2::client::handshake(stream)).await.unwrap();
    let gone = tokio::spawn(connection);
    let mut bodies = Vec::new();
    for _ in 0..20 {
        let request = http::Request::get(format!("http://localhost{WIDGETS}?watch=1")).body(()).unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        bodies.push(within("a watch", response).await.unwrap().into_body());
    }
    ground.put_widget("shop/a", "red");
    let ended = end(server, GRACE);
    for body in &mut bodies {
        let mut text = Vec::new();
        while let Some(data) = within("the stream", body.data()).await {
            text.extend_from_slice(&data.expect("a clean end"));
        }
        assert!(text.ends_with(b"\n"), "{text:?}");
    }
    within("GOAWAY", gone).await.unwrap().expect("a connection that was told to go");
    within("the end", ended).await.unwrap();
}

/// WebSockets, which are no longer served by their connection's task, are ended and cut off too.
#[tokio::test]
async fn websockets_end_with_the_server() {
    use futures_core::Stream;
    use std::future::poll_fn;
    use std::pin::Pin;
    use tokio_tungstenite::tungstenite::Message;
    let (ground, server) = served().await;
    let url = format!("ws://{}{WIDGETS}?watch=1", server.address());
    let (mut reads, _) = within("upgrade", tokio_tungstenite::connect_async(&url)).await.unwrap();
    let (deaf, _) = within("upgrade", tokio_tungstenite::connect_async(&url)).await.unwrap();
    assert_eq!(metric(ground.address, "watchcore_http_connections").await, 2.0);
    let ended = end(server, GRACE);
    loop {
        let message = within("a message", poll_fn(|context| Pin::new(&mut reads).poll_next(context))).await;
        match message.expect("a close frame first").expect("a clean end") {
            Message::Close(_) => break,
            other => assert!(!other.is_empty() || other.is_ping()),
        }
    }
    within("the end", ended).await.unwrap();
    assert_eq!(metric(ground.address, "watchcore_http_connections").await, 0.0);
    drop(deaf);
}

#[tokio::test]
async fn dropped_server_ends_at_once() {
    let (ground, server) = served().await;
    let mut watch = Client::connect(server.address()).await;
    watch.request("GET", &format!("{WIDGETS}?watch=1"), &[]).await;
    assert_eq!(watch.head().await.unwrap().code, 200);
    drop(server);
    watch.rest().await;
    eventually("it is gone", || async {
        (metric(ground.address, "watchcore_http_connections").await == 0.0).then_some(())
    })
    .await;
}
