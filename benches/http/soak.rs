//! Watches through a proxy with its defaults, for as long as `MINUTES` says: nothing is lost, none is cut, nothing grows.
//!
//! haproxy stands between, with the timeouts that Debian gives it. Half of the watches are of HTTP/1.1 and half of HTTP/2.
//! Objects change for the first seconds of each minute, and nothing happens for the rest, which is longer than a proxy lets a
//! connection be silent. A watch that the server ends, as it does within an hour (`limits.watch`, `limits.connection_age`), is
//! opened again after its last event. Each has to see every change, in order.

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

/// What all watches have seen.
#[derive(Default)]
struct Seen {
    all: AtomicUsize,
    /// How often one was opened again after a clean end, and after another.
    reopened: AtomicUsize,
    cut: AtomicUsize,
}

/// Takes the numbers out of what a watch reads, and panics where one is missing.
struct Reader {
    next: usize,
    /// Of the last change.
    revision: i64,
    rest: Vec<u8>,
    seen: Arc<Seen>,
}

impl Reader {
    fn take(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = memchr::memchr(b'\n', &self.rest) {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let Some(number) = number_after(&line, b"\"note\":\"soak-") else { continue };
            assert_eq!(number, self.next, "a change is missing, or came twice");
            self.next += 1;
            let revision = number_after(&line, b"\"resourceVersion\":\"").expect("each object has one");
            self.revision = i64::try_from(revision).expect("a revision");
            self.seen.all.fetch_add(1, Relaxed);
        }
    }

    /// A watch has ended; what comes after it begins a line.
    fn ended(&mut self, is_clean: bool) {
        let count = if is_clean { &self.seen.reopened } else { &self.seen.cut };
        count.fetch_add(1, Relaxed);
        self.rest.clear();
    }
}

/// The digits after a text.
fn number_after(line: &[u8], text: &[u8]) -> Option<usize> {
    let rest = &line[memchr::memmem::find(line, text)? + text.len()..];
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    String::from_utf8_lossy(&rest[..digits]).parse().ok()
}

fn path(revision: i64) -> String {
    format!("{}?watch=1&resourceVersion={revision}&timeoutSeconds=86400", servers::PATH)
}

/// The body of an answer of HTTP/1.1: a proxy cuts it into chunks of its own.
#[derive(Default)]
struct Chunks {
    rest: Vec<u8>,
    /// Whether the head is over, and how much of a chunk is to come.
    is_body: bool,
    left: usize,
}

impl Chunks {
    /// Gives what is in more bytes to the reader. Whether it was the last chunk.
    fn take(&mut self, bytes: &[u8], reader: &mut Reader) -> bool {
        self.rest.extend_from_slice(bytes);
        let mut at = 0;
        let is_last = loop {
            let rest = &self.rest[at..];
            if self.left > 0 {
                let length = self.left.min(rest.len());
                reader.take(&rest[..length]);
                (self.left, at) = (self.left - length, at + length);
                if self.left > 0 {
                    break false;
                }
                continue;
            }
            let end: &[u8] = if self.is_body { b"\r\n" } else { b"\r\n\r\n" };
            let Some(length) = memchr::memmem::find(rest, end) else { break false };
            let line = String::from_utf8_lossy(&rest[..length]);
            at += length + end.len();
            // An empty line ends the chunk before.
            if self.is_body && !line.is_empty() {
                self.left = usize::from_str_radix(&line, 16).expect("the length of a chunk");
                if self.left == 0 {
                    break true;
                }
            }
            self.is_body = true;
        };
        self.rest.drain(..at);
        is_last
    }
}

async fn over_http1(address: SocketAddr, mut reader: Reader) {
    let mut room = vec![0; 16 << 10];
    loop {
        let mut socket = TcpStream::connect(address).await.expect("the proxy");
        let request = format!("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path(reader.revision));
        socket.write_all(request.as_bytes()).await.expect("the proxy");
        let (mut chunks, mut is_clean) = (Chunks::default(), false);
        while let Ok(read @ 1..) = socket.read(&mut room).await {
            is_clean = chunks.take(&room[..read], &mut reader);
            if is_clean {
                break;
            }
        }
        reader.ended(is_clean);
    }
}

/// A connection with a hundred watches at most. One that the server sends away is replaced when its watches have ended.
async fn over_http2(address: SocketAddr, mut readers: Vec<Reader>) {
    loop {
        let socket = TcpStream::connect(address).await.expect("the proxy");
        let (client, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
        let connection = tokio::spawn(async move { drop(connection.await) });
        let mut watches = JoinSet::new();
        for reader in readers.drain(..) {
            watches.spawn(stream(client.clone(), reader));
        }
        drop(client);
        while let Some(reader) = watches.join_next().await {
            readers.push(reader.expect("each watch sees each change once, in order"));
        }
        connection.abort();
    }
}

/// Watches until the connection takes no more streams.
async fn stream(mut client: h2::client::SendRequest<Bytes>, mut reader: Reader) -> Reader {
    loop {
        let request = http::Request::get(format!("http://localhost{}", path(reader.revision)));
        let Ok(mut ready) = client.ready().await else { return reader };
        let Ok((response, _)) = ready.send_request(request.body(()).expect("a request"), true) else { return reader };
        client = ready;
        // A stream that comes after the connection was sent away was not looked at.
        let Ok(response) = response.await else { return reader };
        let mut body = response.into_body();
        let is_clean = loop {
            match body.data().await {
                Some(Ok(data)) => {
                    let _ = body.flow_control().release_capacity(data.len());
                    reader.take(&data);
                }
                Some(Err(_)) => break false,
                None => break true,
            }
        };
        reader.ended(is_clean);
    }
}

/// A row for each minute.
pub(crate) async fn run(etcd: &Etcd, widgets: &mut Widgets) {
    let number = |name: &str, or: usize| std::env::var(name).map_or(or, |text| text.parse().expect("a number"));
    let (minutes, watches) = (number("MINUTES", 60), number("SOAKED", 5000));
    let server = Server::ALL[0](&etcd.url()).await.expect("always there");
    let Some(proxy) = Proxy::start(server.address).await else { return println!("soak: install haproxy") };
    widgets.window(1, "").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (revision, seen) = (widgets.revision(), Arc::new(Seen::default()));
    let mut all = JoinSet::new();
    let reader = || Reader { next: 0, revision, rest: Vec::new(), seen: seen.clone() };
    for _ in 0..watches / 2 {
        all.spawn(over_http1(proxy.http1, reader()));
    }
    for from in (0..watches / 2).step_by(STREAMS) {
        let readers = (from..(from + STREAMS).min(watches / 2)).map(|_| reader());
        all.spawn(over_http2(proxy.http2, readers.collect()));
    }
    println!(
        "| minute | changes seen, of all | ended by the server and opened again | cut | memory, MB |\n| --- | --- | --- | --- | --- |"
    );
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
        let [count, reopened, cut] = [&seen.all, &seen.reopened, &seen.cut].map(|count| count.load(Relaxed));
        let memory = process::memory(server.pid(), "VmRSS") as f64 / 1e6;
        println!("| {minute} | {count} of {} | {reopened} | {cut} | {memory:.0} |", written * (watches / 2 * 2));
    }
}
