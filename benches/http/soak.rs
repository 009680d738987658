//! Watches through a proxy with its defaults, for as long as `MINUTES` says: nothing is lost, none is cut, nothing grows.
//!
//! haproxy stands between, with the timeouts that Debian gives it. Half of the watches are of HTTP/1.1 and half of HTTP/2.
//! Objects change for the first seconds of each minute, and nothing happens for the rest, which is longer than a proxy lets a
//! connection be silent. Each watch has to see every change, in order.

use crate::process;
use crate::servers::{self, Server, Widgets};
use crate::support::etcd::Etcd;
use bytes::Bytes;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Streams of one connection, as haproxy has them by default.
const STREAMS: usize = 100;
/// Changes of one minute.
const CHANGES: usize = 100;

struct Proxy {
    child: Child,
    http1: SocketAddr,
    http2: SocketAddr,
}

impl Proxy {
    /// haproxy before a server; `None`: it is not here.
    async fn start(server: SocketAddr) -> Option<Proxy> {
        let free = || TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
        let (http1, http2) = (free(), free());
        let configuration = format!(
            "defaults\n mode http\n timeout connect 5000\n timeout client 50000\n timeout server 50000\nfrontend one\n bind {http1}\n default_backend all\nfrontend two\n bind {http2} proto h2\n default_backend all\nbackend all\n server a {server}\n"
        );
        let file = std::env::temp_dir().join(format!("watchcore-soak-{}.cfg", std::process::id()));
        std::fs::write(&file, configuration).expect("a temporary directory");
        let child = Command::new("haproxy").arg("-q").arg("-f").arg(&file).spawn().ok()?;
        let proxy = Proxy { child, http1, http2 };
        for _ in 0..200 {
            if TcpStream::connect(http2).await.is_ok() {
                return Some(proxy);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("haproxy does not listen");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a watch has seen: the number of the next change.
#[derive(Default)]
struct Seen {
    all: AtomicUsize,
    ended: AtomicUsize,
}

/// Takes the numbers out of what a watch reads, and panics where one is missing.
struct Reader {
    next: usize,
    rest: Vec<u8>,
    seen: Arc<Seen>,
}

impl Reader {
    fn take(&mut self, bytes: &[u8]) {
        const MARK: &[u8] = b"\"note\":\"soak-";
        self.rest.extend_from_slice(bytes);
        let mut from = 0;
        while let Some(at) = memchr::memmem::find(&self.rest[from..], MARK) {
            let digits = from + at + MARK.len();
            let Some(number) = self.rest.get(digits..digits + 6) else { break };
            let number: usize = String::from_utf8_lossy(number).parse().expect("a number");
            assert_eq!(number, self.next, "a change is missing, or came twice");
            self.next += 1;
            self.seen.all.fetch_add(1, Relaxed);
            from = digits + 6;
        }
        // A mark may be cut in two.
        let keep = self.rest.len().saturating_sub(MARK.len() + 6).max(from);
        self.rest.drain(..keep);
    }
}

fn path(revision: i64) -> String {
    format!("{}?watch=1&resourceVersion={revision}&timeoutSeconds=86400", servers::PATH)
}

async fn over_http1(address: SocketAddr, path: &str, mut reader: Reader) {
    let mut socket = TcpStream::connect(address).await.expect("the proxy");
    socket.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.expect("the proxy");
    let mut room = vec![0; 16 << 10];
    while let Ok(read @ 1..) = socket.read(&mut room).await {
        reader.take(&room[..read]);
    }
    reader.seen.ended.fetch_add(1, Relaxed);
}

async fn over_http2(mut client: h2::client::SendRequest<Bytes>, path: String, mut reader: Reader) {
    let request = http::Request::get(format!("http://localhost{path}")).body(()).expect("a request");
    let (response, _) = client.send_request(request, true).expect("a stream");
    let mut body = response.await.expect("a head").into_body();
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
        reader.take(&data);
    }
    reader.seen.ended.fetch_add(1, Relaxed);
}

/// A row for each minute.
pub(crate) async fn run(etcd: &Etcd, widgets: &mut Widgets) {
    let number = |name: &str, or: usize| std::env::var(name).map_or(or, |text| text.parse().expect("a number"));
    let (minutes, watches) = (number("MINUTES", 60), number("SOAKED", 5000));
    let server = Server::ALL[0](&etcd.url()).await.expect("always there");
    let Some(proxy) = Proxy::start(server.address).await else { return println!("soak: install haproxy") };
    widgets.window(1, "").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (path, seen) = (path(widgets.revision()), Arc::new(Seen::default()));
    let mut all = JoinSet::new();
    let reader = || Reader { next: 0, rest: Vec::new(), seen: seen.clone() };
    for _ in 0..watches / 2 {
        let (path, reader) = (path.clone(), reader());
        all.spawn(async move { over_http1(proxy.http1, &path, reader).await });
    }
    for from in (0..watches / 2).step_by(STREAMS) {
        let socket = TcpStream::connect(proxy.http2).await.expect("the proxy");
        let (client, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
        all.spawn(async move { drop(connection.await) });
        for _ in from..(from + STREAMS).min(watches / 2) {
            let client = client.clone().ready().await.expect("a stream");
            all.spawn(over_http2(client, path.clone(), reader()));
        }
    }
    println!("| minute | changes seen, of all | watches ended | memory, MB |\n| --- | --- | --- | --- |");
    let mut written = 0;
    for minute in 1..=minutes {
        let begin = tokio::time::Instant::now();
        for _ in 0..CHANGES {
            widgets.window(1, &format!("soak-{written:06}")).await;
            written += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep_until(begin + Duration::from_secs(60)).await;
        while let Some(ended) = all.try_join_next() {
            ended.expect("each watch sees each change once, in order");
        }
        let (count, ended) = (seen.all.load(Relaxed), seen.ended.load(Relaxed));
        let memory = process::memory(server.pid(), "VmRSS") as f64 / 1e6;
        println!("| {minute} | {count} of {} | {ended} | {memory:.0} |", written * (watches / 2 * 2));
    }
}
