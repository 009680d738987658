//! Our own server: connections and their limits, with raw sockets for slow and broken clients.

use crate::support::ground::{ServerKind, WIDGETS};
use crate::support::{self, Client, Ground, Watching, eventually, get, metric, metric_in, within};
use bytes::Bytes;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use watchcore::Code;
use watchcore_http::{Api, Limits, Server};

const QUICK: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_secs(600);

/// Starts a server with changed limits.
async fn limited(limit: impl FnOnce(&mut Limits)) -> (Ground, Server) {
    let mut limits = Limits::default();
    limit(&mut limits);
    let ground = Ground::builder().face(ServerKind::Nested).api(move |api| api.limits(limits)).start().await;
    let server = Server::builder(ground.api.clone()).address("127.0.0.1:0").start().await.expect("a port");
    (ground, server)
}

/// Returns how many were refused for a reason. Asks the nested router, whose connections are not counted.
async fn refused(ground: &Ground, reason: &str) -> f64 {
    metric(ground.address, &format!("watchcore_http_refused_total{{reason=\"{reason}\"}}")).await
}

async fn connections(ground: &Ground) -> f64 {
    metric(ground.address, "watchcore_http_connections").await
}

/// Waits until the server closes the connection, and returns what it sent.
async fn closed(stream: &mut TcpStream) -> String {
    let mut said = Vec::new();
    // A reset counts as closed too.
    let _ = within("the end of the connection", stream.read_to_end(&mut said)).await;
    String::from_utf8_lossy(&said).into_owned()
}

#[tokio::test]
async fn silent_client_is_closed() {
    let (ground, server) = limited(|limits| (limits.header_timeout, limits.idle) = (QUICK, LONG)).await;
    let mut silent = TcpStream::connect(server.address()).await.unwrap();
    assert_eq!(closed(&mut silent).await, "");
    assert_eq!(refused(&ground, "header_timeout").await, 1.0);
    eventually("the place is free", || async { (connections(&ground).await == 0.0).then_some(()) }).await;
}

/// Each byte arrives in time, the whole head does not.
#[tokio::test]
async fn slow_header_is_closed() {
    let (ground, server) = limited(|limits| (limits.header_timeout, limits.idle) = (QUICK, LONG)).await;
    for (start, more) in [("GET / HTTP/1.1\r\nHost: localhost\r\n", "X"), ("PRI * HT", ""), ("", "X")] {
        let before = refused(&ground, "header_timeout").await;
        let mut slow = TcpStream::connect(server.address()).await.unwrap();
        slow.write_all(start.as_bytes()).await.unwrap();
        let (mut reading, mut writing) = slow.into_split();
        let dribble = tokio::spawn(async move {
            while writing.write_all(more.as_bytes()).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let mut said = Vec::new();
        let _ = within("the end", reading.read_to_end(&mut said)).await;
        assert!(said.is_empty(), "{start:?}: {:?}", String::from_utf8_lossy(&said));
        dribble.abort();
        eventually("it is counted", || async { (refused(&ground, "header_timeout").await > before).then_some(()) })
            .await;
        assert_eq!(get(server.address(), "/livez").await.code(), 200, "others are served");
    }
}

/// The second head of a connection has the same time limit as the first.
#[tokio::test]
async fn slow_second_header_is_closed() {
    let (ground, server) = limited(|limits| (limits.header_timeout, limits.idle) = (QUICK, LONG)).await;
    let mut client = Client::connect(server.address()).await;
    assert_eq!(client.answer("GET", "/livez", &[]).await.code(), 200);
    client.send("GET /livez HT").await;
    assert_eq!(client.rest().await, b"");
    assert_eq!(refused(&ground, "header_timeout").await, 1.0);
}

#[tokio::test]
async fn idle_connection_is_closed() {
    let (ground, server) = limited(|limits| (limits.header_timeout, limits.idle) = (LONG, QUICK)).await;
    let mut client = Client::connect(server.address()).await;
    for _ in 0..3 {
        assert_eq!(client.answer("GET", "/livez", &[]).await.code(), 200);
    }
    assert_eq!(client.rest().await, b"");
    assert_eq!(refused(&ground, "header_timeout").await, 0.0, "it is no refusal");
}

/// A watch is an answer, so its connection is not idle; the idle time begins when it ends.
#[tokio::test]
async fn watch_is_not_idle() {
    let (ground, server) = limited(|limits| (limits.header_timeout, limits.idle) = (QUICK, QUICK)).await;
    let mut watch = Watching::open(server.address(), &format!("{WIDGETS}?watch=1&timeoutSeconds=1")).await;
    let revision = ground.put_widget("shop/a", "red");
    assert_eq!(watch.next_event().await, format!("ADDED shop/a@{revision}"));
    watch.ended().await;
    assert_eq!(watch.client.rest().await, b"", "idle now");
}

/// Limits with which a server could serve nothing.
#[test]
fn limits_leave_something_to_serve() {
    type Say = fn(&mut Limits);
    let wrong: [(&str, Say); 6] = [
        ("queued_bytes", |limits| limits.queued_bytes = 0),
        ("url_bytes", |limits| limits.url_bytes = 0),
        ("header_timeout", |limits| limits.header_timeout = Duration::ZERO),
        ("handshake_timeout", |limits| limits.handshake_timeout = Duration::ZERO),
        ("stall", |limits| limits.stall = Duration::ZERO),
        ("list", |limits| limits.list = Duration::ZERO),
    ];
    for (name, say) in wrong {
        let mut limits = Limits::default();
        say(&mut limits);
        let error = Api::builder().limits(limits).build().err().expect(name);
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().starts_with(name), "{}", error.message());
    }
}

/// A layer of the program's own router that encodes bodies, and declares that in the head.
#[tokio::test]
async fn layers_see_the_body_of_a_watch() {
    use axum::body::Body;
    use http_body_util::BodyExt as _;
    let ground = Ground::builder().face(ServerKind::Nested).start().await;
    let encoded = async |response: http::Response<Body>| {
        let mut encoded = response.map(|body| {
            let encode = |bytes: Bytes| Bytes::from(bytes.iter().map(|byte| byte ^ 0x80).collect::<Vec<u8>>());
            Body::new(body.map_frame(move |frame| frame.map_data(encode)))
        });
        encoded.headers_mut().insert("content-encoding", http::HeaderValue::from_static("x-high"));
        encoded
    };
    let router = ground.api.router().layer(axum::middleware::map_response(encoded));
    let server = Server::builder(ground.api.clone()).router(router).address("127.0.0.1:0").start().await.unwrap();
    ground.put_widget("shop/a", "red");
    let mut client = Client::connect(server.address()).await;
    for target in [format!("{WIDGETS}?watch=1&timeoutSeconds=1"), WIDGETS.to_owned()] {
        client.request("GET", &target, &[]).await;
        let head = client.head().await.expect("an answer");
        assert_eq!((head.code, head.header("content-encoding")), (200, Some("x-high")));
        let body = client.body(&head).await;
        assert!(!body.is_empty() && body.iter().all(|byte| byte & 0x80 != 0), "{target}: it is not encoded");
    }
}

#[test]
fn headers_have_room() {
    let built = |header_bytes| {
        let mut limits = Limits::default();
        limits.header_bytes = header_bytes;
        Api::builder().limits(limits).build().err().map(|error| (error.code(), error.message().to_owned()))
    };
    let (code, message) = built(8191).expect("an error");
    assert!(code == Code::InvalidArgument && message.contains("Give 8192 or more"), "{message}");
    assert_eq!(built(8192), None);
}

#[tokio::test]
async fn large_headers_are_431() {
    let (ground, server) = limited(|limits| limits.header_bytes = 8 << 10).await;
    for (value, count) in [("x".repeat(9 << 10), 1), ("x".repeat(1 << 10), 9), ("x".repeat(100 << 10), 1)] {
        let before = refused(&ground, "header_bytes").await;
        let mut client = Client::connect(server.address()).await;
        let names: Vec<String> = (0..count).map(|number| format!("X-{number}")).collect();
        let headers: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), value.as_str())).collect();
        client.request("GET", "/livez", &headers).await;
        // The server may reset the connection before the answer is read, because it did not read the whole request.
        if let Some(head) = client.head().await {
            assert_eq!(head.code, 431, "{}", head.text);
        }
        eventually("it is counted", || async { (refused(&ground, "header_bytes").await > before).then_some(()) }).await;
    }
    let value = "x".repeat(7 << 10);
    let answer = Client::connect(server.address()).await.answer("GET", "/livez", &[("X-1", &value)]).await;
    assert_eq!(answer.code(), 200, "below the limit");
}

/// Endless headers: the server buffers a bounded part.
#[tokio::test]
async fn endless_headers_are_closed() {
    let (ground, server) = limited(|limits| limits.header_bytes = 8 << 10).await;
    let mut client = TcpStream::connect(server.address()).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    let line = format!("X: {}\r\n", "x".repeat(1000));
    let mut sent = 0;
    while within("write", client.write_all(line.as_bytes())).await.is_ok() {
        sent += line.len();
        assert!(sent < 64 << 20, "it is still read");
    }
    assert_eq!(refused(&ground, "header_bytes").await, 1.0);
}

#[tokio::test]
async fn long_url_is_414() {
    let (ground, server) = limited(|limits| limits.url_bytes = 1000).await;
    let target = format!("{WIDGETS}?other={}", "x".repeat(1000));
    let answer = support::request(server.address(), "GET", &target, &[("X-Request-ID", "long")]).await;
    assert_eq!(answer.status(), (414, "RequestURITooLong".into()));
    assert_eq!(refused(&ground, "url_bytes").await, 1.0);
    // The same headers as on each answer.
    assert_eq!(answer.header("cache-control"), Some("no-cache, private"));
    assert_eq!(answer.header("audit-id"), Some("long"));
    let counted =
        r#"watchcore_http_requests_total{verb="list",group="matrix.test",version="v1",resource="widgets",code="414"}"#;
    assert_eq!(metric(ground.address, counted).await, 1.0);
    assert_eq!(get(server.address(), &format!("{WIDGETS}?other={}", "x".repeat(900))).await.code(), 200);
    let mut client = Client::connect(server.address()).await;
    client.request("GET", &format!("/{}", "x".repeat(70_000)), &[]).await;
    if let Some(head) = client.head().await {
        assert!([414, 431].contains(&head.code), "{}", head.text);
    }
}

/// Checks that a response has a Status with this reason as its body.
fn is_status(said: &str, reason: &str) {
    let (head, body) = said.split_once("\r\n\r\n").expect("a head");
    let status: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    assert_eq!((&status["kind"], &status["reason"]), (&"Status".into(), &reason.into()), "{said:?}");
    let length = format!("content-length: {}", body.len());
    for line in [
        "content-type: application/json",
        "x-content-type-options: nosniff",
        "cache-control: no-cache, private",
        &length,
    ] {
        assert!(head.lines().any(|said| said == line), "{line} is not in {head:?}");
    }
}

/// hyper answers unparsable requests itself, without a body: the client gets a Status, also after other answers.
#[tokio::test]
async fn refusals_of_hyper_are_status() {
    let (_ground, server) = limited(|_| ()).await;
    let wide = format!("GET / HTTP/1.1\r\nHost: localhost\r\nWide: {}\r\n\r\n", "a".repeat(40_000));
    let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "Many: a\r\n".repeat(300));
    for (bytes, reason) in [
        ("nonsense\r\n\r\n", "BadRequest"),
        ("GET /livez HTTP/1.1\r\nHost: localhost\r\nBad Header: 1\r\n\r\n", "BadRequest"),
        (&*wide, "RequestHeaderFieldsTooLarge"),
        (&*many, "RequestHeaderFieldsTooLarge"),
    ] {
        let mut client = Client::connect(server.address()).await;
        assert_eq!(client.answer("GET", "/livez", &[]).await.code(), 200);
        client.send(bytes).await;
        let head = client.head().await.expect("an answer");
        let body = String::from_utf8(client.body(&head).await).unwrap();
        is_status(&format!("{}\r\n\r\n{body}", head.text.trim_end()), reason);
        assert!(head.header("connection") == Some("close") && client.rest().await.is_empty(), "{}", head.text);
    }
}

#[tokio::test]
async fn malformed_requests_are_refused() {
    let (ground, server) = limited(|_| ()).await;
    for (bytes, code) in [
        ("GET /livez HTTP/1.1\r\n\r\n", "400"),
        ("GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"),
        ("GET /livez HTTP/1.1\r\nHost: a@localhost\r\n\r\n", "400"),
        ("nonsense\r\n\r\n", "400"),
        ("GET /livez HTTP/9.9\r\nHost: localhost\r\n\r\n", "400"),
        ("GET /livez HTTP/1.1\r\nHost: localhost\r\nBad Header: 1\r\n\r\n", "400"),
        ("GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "400"),
        ("GET /livez HTTP/1.0\r\n\r\n", "200"),
    ] {
        let mut client = TcpStream::connect(server.address()).await.unwrap();
        client.write_all(bytes.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let said = closed(&mut client).await;
        assert_eq!(said.split(' ').nth(1), Some(code), "{bytes:?}: {said:?}");
        if code == "400" {
            is_status(&said, "BadRequest");
        }
    }
    assert!(refused(&ground, "malformed").await >= 4.0);
    let mut client = TcpStream::connect(server.address()).await.unwrap();
    client.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0, 0xff, b'\r', b'\n']).await.unwrap();
    client.shutdown().await.unwrap();
    closed(&mut client).await;
    assert_eq!(get(server.address(), "/livez").await.code(), 200);
}

#[tokio::test]
async fn connections_above_the_limit_are_closed() {
    let (ground, server) = limited(|limits| limits.connections = 2).await;
    let mut first = Client::connect(server.address()).await;
    let mut second = Client::connect(server.address()).await;
    assert_eq!(first.answer("GET", "/livez", &[]).await.code(), 200);
    assert_eq!(second.answer("GET", "/livez", &[]).await.code(), 200);
    let mut third = TcpStream::connect(server.address()).await.unwrap();
    assert_eq!(closed(&mut third).await, "");
    assert_eq!((refused(&ground, "connections").await, connections(&ground).await), (1.0, 2.0));
    drop(first);
    let answer = eventually("a place", || async {
        let mut client = Client::connect(server.address()).await;
        client.request("GET", "/livez", &[]).await;
        client.head().await
    });
    assert_eq!(answer.await.code, 200);
    assert_eq!(second.answer("GET", "/livez", &[]).await.code(), 200, "who was there stays");
}

/// Counts the sockets of this process whose local end is the server's.
fn sockets_of(address: SocketAddr) -> usize {
    let text = std::fs::read_to_string("/proc/net/tcp").expect("a system with /proc");
    let local = format!(":{:04X}", address.port());
    let is_open = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        let is_local = fields.next().is_some_and(|field| field.ends_with(&local));
        // Excludes LISTEN, and states that outlive the process's own close.
        is_local && fields.nth(1).is_some_and(|state| matches!(state, "01" | "08"))
    };
    text.lines().skip(1).filter(is_open).count()
}

/// Clients leave in every way: before the first byte, within a head, after a request, within an answer.
#[tokio::test]
async fn ten_thousand_connections_come_and_go() {
    let (ground, server) = limited(|limits| limits.connections = 150).await;
    let address = server.address();
    ground.put_widget("shop/a", "red");
    let watch = format!("GET {WIDGETS}?watch=1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let words = ["".to_owned(), "GET /li".into(), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), watch];
    for batch in 0..100 {
        let mut open = Vec::new();
        for number in 0..100 {
            let mut stream = within("connect", TcpStream::connect(address)).await.unwrap();
            let words = &words[(batch + number) % words.len()];
            // The connection may be beyond the limit, and closed already.
            let _ = stream.write_all(words.as_bytes()).await;
            open.push(stream);
        }
    }
    eventually("all are gone", || async { (connections(&ground).await == 0.0).then_some(()) }).await;
    assert_eq!(metric(ground.address, "watchcore_http_watches_open").await, 0.0);
    eventually("the sockets come back", || async { (sockets_of(address) == 0).then_some(()) }).await;
    assert_eq!(get(address, "/livez").await.code(), 200);
}

/// Returns an HTTP/2 client with prior knowledge.
async fn http2(address: SocketAddr) -> h2::client::SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (client, connection) = within("the preface", h2::client::handshake(stream)).await.unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    within("streams", client.ready()).await.unwrap()
}

fn request(target: &str) -> http::Request<()> {
    http::Request::get(format!("http://localhost{target}")).body(()).unwrap()
}

#[tokio::test]
async fn http2_has_many_streams() {
    let (ground, server) = limited(|limits| limits.watches_per_connection = 100).await;
    ground.put_widget("shop/a", "red");
    let mut client = http2(server.address()).await;
    let mut watches = Vec::new();
    for _ in 0..100 {
        let (response, _) = client.send_request(request(&format!("{WIDGETS}?watch=1")), true).unwrap();
        let response = within("a watch", response).await.unwrap();
        assert_eq!(response.status(), 200);
        watches.push(response.into_body());
    }
    for round in 0..3 {
        let mut answers = Vec::new();
        for _ in 0..50 {
            answers.push(client.send_request(request(WIDGETS), true).unwrap().0);
            client = within("room", client.ready()).await.unwrap();
        }
        for answer in answers {
            let mut body = within("a list", answer).await.unwrap().into_body();
            let mut text = Vec::new();
            while let Some(data) = within("its body", body.data()).await {
                text.extend_from_slice(&data.unwrap());
            }
            assert!(text.trim_ascii_end().ends_with(b"]}"), "round {round}: {:?}", String::from_utf8_lossy(&text));
        }
    }
    for body in &mut watches {
        let line = within("the state", body.data()).await.unwrap().unwrap();
        assert!(line.starts_with(br#"{"type":"ADDED""#), "{line:?}");
    }
    let (response, _) = client.send_request(request(&format!("{WIDGETS}?watch=1")), true).unwrap();
    assert_eq!(within("one more", response).await.unwrap().status(), 429, "one above the limit of a connection");
    drop(watches);
    eventually("places", || async {
        (metric(ground.address, "watchcore_http_watches_open").await == 0.0).then_some(())
    })
    .await;
    let (response, _) = client.send_request(request(&format!("{WIDGETS}?watch=1")), true).unwrap();
    assert_eq!(within("a watch", response).await.unwrap().status(), 200, "the places came back");
}

#[tokio::test]
async fn idle_http2_is_closed() {
    let (ground, server) = limited(|limits| (limits.header_timeout, limits.idle) = (LONG, QUICK)).await;
    let mut client = http2(server.address()).await;
    let (response, _) = client.send_request(request("/livez"), true).unwrap();
    assert_eq!(within("an answer", response).await.unwrap().status(), 200);
    eventually("it is gone", || async { (connections(&ground).await == 0.0).then_some(()) }).await;
}

#[tokio::test]
async fn http2_that_asks_nothing_is_closed() {
    let (ground, server) = limited(|limits| (limits.header_timeout, limits.idle) = (QUICK, LONG)).await;
    let client = http2(server.address()).await;
    eventually("it is gone", || async { (connections(&ground).await == 0.0).then_some(()) }).await;
    assert_eq!(refused(&ground, "header_timeout").await, 1.0);
    drop(client);
}

/// The list exceeds the kernel's buffers, and is not read before the pipelined watch begins.
#[tokio::test]
async fn pipelined_watch_follows_a_whole_list() {
    let (ground, server) = limited(|_| ()).await;
    let large = "x".repeat(1 << 20);
    for number in 0..8 {
        ground.put_widget(&format!("shop/{number}"), &large);
    }
    let mut client = Client::connect(server.address()).await;
    client.request("GET", WIDGETS, &[]).await;
    client.request("GET", &format!("{WIDGETS}?watch=1&resourceVersion=8"), &[]).await;
    let head = client.head().await.expect("the list");
    let body = client.body(&head).await;
    assert!(body.len() > 8 << 20 && body.trim_ascii_end().ends_with(b"]}"), "{} bytes", body.len());
    assert_eq!(client.head().await.expect("the watch").code, 200);
    ground.put_widget("shop/a", "red");
    assert!(client.chunk().await.expect("an event").starts_with(br#"{"type":"ADDED""#));
}

/// A server in a separate process, which lives until its standard input ends: started by
/// [`server_without_descriptors_goes_on`].
#[test]
#[ignore = "a process of its own, which server_without_descriptors_goes_on starts"]
fn few_files_child() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (_ground, server) = runtime.block_on(limited(|_| ()));
    eprintln!("ADDRESS {}", server.address());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
}

/// The process has no free descriptors: accepting pauses between attempts, and serves the waiting clients when
/// descriptors become free.
#[tokio::test]
async fn server_without_descriptors_goes_on() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    const TRIES: f64 = 4.0;
    let test = std::env::current_exe().unwrap();
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -n 40 && exec \"$0\" --exact sockets::few_files_child --ignored --nocapture"])
        .arg(test)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let address = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("ADDRESS ").map(str::to_owned));
    let address: SocketAddr = address.expect("it listens").parse().unwrap();
    let from = Instant::now();
    let mut open = Vec::new();
    // The first client sends a request while the others connect.
    let mut asks = Client::connect(address).await;
    for _ in 0..60 {
        open.push(within("the queue of the listener", TcpStream::connect(address)).await.unwrap());
    }
    let series = "watchcore_http_refused_total{reason=\"accept\"}";
    let tried = async {
        loop {
            let text = asks.answer("GET", "/metrics", &[]).await.text();
            match metric_in(&text, series) {
                Some(tried) if tried >= TRIES => break tried,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    let tried = within("it tries again", tried).await;
    let took = from.elapsed();
    // There is a pause of 100 ms between two attempts.
    let pauses = Duration::from_millis(100) * (tried as u32 - 1);
    assert!(took >= pauses, "it tried {tried} times within {took:?}");
    drop((open, asks));
    assert_eq!(get(address, "/livez").await.code(), 200, "who comes now is served");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
