//! Half of the users lose their tokens: how long each of their watches goes on, whether anybody else's ends, what an event
//! takes meanwhile, and what it costs to look at open watches while nothing is revoked.
//!
//! A thousand users have `WATCHERS` watches (10,000); half of these are of HTTP/1.1, and half streams of HTTP/2.

use crate::hostile::{events, head};
use crate::servers::{self, Server, Widgets};
use crate::support::etcd::Etcd;
use bytes::Bytes;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

const USERS: usize = 1000;
/// Streams of a connection of HTTP/2.
const STREAMS: usize = 100;
/// Within this a watch of a user who is gone has to be over.
const PROMISED: Duration = Duration::from_secs(60);

/// Which user's watch has ended, and when.
type Ended = (usize, Instant);

fn tokens(users: impl Iterator<Item = usize>) -> String {
    let mut lines = "alice,alice\n".to_owned();
    for user in users {
        let _ = writeln!(lines, "user-{user},user-{user}");
    }
    lines
}

async fn over_http1(address: SocketAddr, path: String, user: usize, opened: UnboundedSender<()>) -> Ended {
    let mut socket = TcpStream::connect(address).await.expect("a server");
    socket.write_all(head(&path, &format!("user-{user}")).as_bytes()).await.expect("a server");
    let mut room = vec![0; 4 << 10];
    let read = socket.read(&mut room).await.expect("a head");
    assert!(room[..read].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&room[..read]));
    let _ = opened.send(());
    // A chunk of no bytes ends it: a connection that is kept alive does not say so otherwise.
    while let Ok(read @ 1..) = socket.read(&mut room).await {
        if room[..read].ends_with(b"\r\n0\r\n\r\n") || room[..read] == *b"0\r\n\r\n" {
            break;
        }
    }
    (user, Instant::now())
}

async fn over_http2(
    client: h2::client::SendRequest<Bytes>,
    path: String,
    user: usize,
    opened: UnboundedSender<()>,
) -> Ended {
    let request =
        http::Request::get(format!("http://localhost{path}")).header("authorization", format!("Bearer user-{user}"));
    let mut client = client.ready().await.expect("a stream");
    let (response, _) = client.send_request(request.body(()).expect("a request"), true).expect("a stream");
    let response = response.await.expect("a head");
    assert_eq!(response.status(), 200);
    let _ = opened.send(());
    let mut body = response.into_body();
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
    }
    (user, Instant::now())
}

/// Opens them; a hundred begin at a time.
async fn open(address: SocketAddr, path: &str, watches: usize, all: &mut JoinSet<Option<Ended>>) {
    let (opened, mut has_opened): (_, UnboundedReceiver<()>) = unbounded_channel();
    for from in (0..watches).step_by(STREAMS) {
        let numbers = from..(from + STREAMS).min(watches);
        let count = numbers.len();
        if (from / STREAMS).is_multiple_of(2) {
            for number in numbers {
                let (path, opened) = (path.to_owned(), opened.clone());
                all.spawn(async move { Some(over_http1(address, path, number % USERS, opened).await) });
            }
        } else {
            let socket = TcpStream::connect(address).await.expect("a server");
            let (client, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
            all.spawn(async move {
                let _ = connection.await;
                None
            });
            for number in numbers {
                let (path, opened, client) = (path.to_owned(), opened.clone(), client.clone());
                all.spawn(async move { Some(over_http2(client, path, number % USERS, opened).await) });
            }
        }
        for _ in 0..count {
            has_opened.recv().await.expect("they open");
        }
    }
}

/// Processor time of a server in half a minute, in which it looks at its watches twice.
async fn half_a_minute(server: &Server) -> f64 {
    let before = server.cpu();
    tokio::time::sleep(Duration::from_secs(30)).await;
    (server.cpu() - before).as_secs_f64() * 1e3
}

pub(crate) async fn run(etcd: &Etcd, widgets: &mut Widgets) {
    let watches = std::env::var("WATCHERS").map_or(10_000, |text| text.parse().expect("a number"));
    let file = std::env::temp_dir().join(format!("watchcore-bench-{}.tokens", std::process::id()));
    std::fs::write(&file, tokens(0..USERS)).expect("a temporary directory");
    let server = Server::watchcore_with_tokens(&etcd.url(), &file).await;
    let quiet = half_a_minute(&server).await;
    widgets.window(1, "").await;
    // No event of the measured window passes: what ends a watch is all that is read.
    let path = format!(
        "{}?watch=1&resourceVersion={}&timeoutSeconds=3600&labelSelector=none%3Dsuch",
        servers::PATH,
        widgets.revision()
    );
    let mut all = JoinSet::new();
    open(server.address, &path, watches, &mut all).await;
    let looked = half_a_minute(&server).await;
    let event = events(server.address, widgets).await;
    // In one step: a file that is read while it is written is a shorter one.
    let next = file.with_extension("next");
    std::fs::write(&next, tokens(USERS / 2..USERS)).expect("a temporary directory");
    std::fs::rename(&next, &file).expect("a temporary directory");
    let begin = Instant::now();
    let revoked = watches / USERS * (USERS / 2);
    let meanwhile = events(server.address, widgets).await;
    let mut times = Vec::new();
    while times.len() < revoked {
        let ended =
            tokio::time::timeout(2 * PROMISED, all.join_next()).await.expect("they end").expect("some are left");
        if let Some((user, at)) = ended.expect("no panic") {
            assert!(user < USERS / 2, "a watch of user {user}, whose token is there, has ended");
            times.push(at.saturating_duration_since(begin));
        }
    }
    let (first, last) = (times.iter().min().expect("some"), times.iter().max().expect("some"));
    assert!(*last < PROMISED, "the last one ended after {last:?}");
    assert!(all.try_join_next().is_none(), "nobody else's has ended");
    println!(
        "| watches | of users who lost their token | first, last end, s | event p50, p99 ms before | and meanwhile | half a minute, ms of processor, without watches | with them |\n| --- | --- | --- | --- | --- | --- | --- |\n| {watches} | {revoked} | {:.1}, {:.1} | {:.2}, {:.2} | {:.2}, {:.2} | {quiet:.0} | {looked:.0} |",
        first.as_secs_f64(),
        last.as_secs_f64(),
        event.0,
        event.1,
        meanwhile.0,
        meanwhile.1
    );
    let _ = std::fs::remove_file(file);
}
