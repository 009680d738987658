//! The servers that are measured, each a process; and the objects that they serve.

use crate::process;
use crate::watchers::{WRITTEN_AT, now};
use etcd_client::{Client, PutOptions, Txn, TxnOp, WatchOptions};
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::pin::Pin;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::CertificateDer;

/// Where the objects are served.
pub(crate) const PATH: &str = "/apis/bench.test/v1/widgets";
/// Where those of the namespace with the large one are.
pub(crate) const LARGE: &str = "/apis/bench.test/v1/namespaces/large/widgets";
/// Where they lie in etcd: both servers look there.
const PREFIX: &str = "/registry/bench.test/widgets/";

/// A server over etcd.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    child: Child,
}

type Starting<'e> = Pin<Box<dyn Future<Output = Option<Server>> + 'e>>;

impl Server {
    /// What starts each; `None`: it is not here.
    pub(crate) const ALL: [for<'e> fn(&'e str) -> Starting<'e>; 2] =
        [|endpoint| Box::pin(Server::watchcore(endpoint)), |endpoint| Box::pin(Server::kubernetes(endpoint))];

    async fn watchcore(endpoint: &str) -> Option<Server> {
        let (port, child) = spawn(endpoint, "");
        Some(Server::ready("watchcore serve", port, child).await)
    }

    /// The same with TLS, and what its clients are to trust.
    pub(crate) async fn watchcore_tls(endpoint: &str) -> (Server, Certificate) {
        let directory = std::env::temp_dir();
        let [cert, key] =
            ["crt", "key"].map(|kind| directory.join(format!("watchcore-bench-{}.{kind}", std::process::id())));
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        std::fs::write(&cert, made.cert.pem()).expect("a temporary directory");
        std::fs::write(&key, made.signing_key.serialize_pem()).expect("a temporary directory");
        let (port, child) = spawn(endpoint, &format!("[tls]\ncertificate = {cert:?}\nkey = {key:?}\n"));
        let server = Server { name: "watchcore serve", address: SocketAddr::from(([127, 0, 0, 1], port)), child };
        // It has read both when it listens. The cache is small, and filled soon after.
        let begin = Instant::now();
        while TcpStream::connect(server.address).await.is_err() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it does not listen");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        for file in [cert, key] {
            let _ = std::fs::remove_file(file);
        }
        (server, Certificate { der: made.cert.der().clone() })
    }

    /// The same where everybody has to be known, by a file of tokens.
    pub(crate) async fn watchcore_with_tokens(endpoint: &str, tokens: &Path) -> Server {
        let (port, child) = spawn(endpoint, &format!("[auth]\ntokens = {tokens:?}\n"));
        let server = Server { name: "watchcore serve", address: SocketAddr::from(([127, 0, 0, 1], port)), child };
        let begin = Instant::now();
        while status(server.address, "/readyz").await != Some(200) {
            assert!(begin.elapsed() < Duration::from_secs(60), "it is not ready");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        server
    }

    async fn kubernetes(endpoint: &str) -> Option<Server> {
        let binary = std::env::var("HTTP_APISERVER").ok()?;
        // It ends with its standard input.
        let mut child = Command::new(&binary)
            .args(["-etcd", endpoint])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{binary}: {error}"));
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("its address");
        let address = line.trim().rsplit("//").next().unwrap_or_default().to_owned();
        let port = address.rsplit(':').next().and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("{binary} says {line:?}"));
        declare(SocketAddr::from(([127, 0, 0, 1], port))).await;
        Some(Server::ready("Kubernetes' server", port, child).await)
    }

    /// Waits until a watch is answered: a list may be before the server has its cache, and a watch is 429 then.
    async fn ready(name: &'static str, port: u16, child: Child) -> Server {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let server = Server { name, address, child };
        let begin = Instant::now();
        while status(address, &format!("{PATH}?watch=1&resourceVersion=0&timeoutSeconds=1")).await != Some(200) {
            assert!(begin.elapsed() < Duration::from_secs(60), "{name} does not answer");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        server
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn cpu(&self) -> Duration {
        process::cpu(self.pid())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Declares the objects to Kubernetes' server; that they are declared already is no error.
async fn declare(address: SocketAddr) {
    let definition = r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.bench.test"},"spec":{"group":"bench.test","names":{"kind":"Widget","plural":"widgets"},"scope":"Namespaced","versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}"#;
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{definition}",
        definition.len()
    );
    let begin = Instant::now();
    loop {
        let mut text = Vec::new();
        if let Ok(mut socket) = TcpStream::connect(address).await
            && socket.write_all(request.as_bytes()).await.is_ok()
            && socket.read_to_end(&mut text).await.is_ok()
            && (text.starts_with(b"HTTP/1.1 201") || text.starts_with(b"HTTP/1.1 409"))
        {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "not declared: {}", String::from_utf8_lossy(&text));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A certificate that a server shows.
pub(crate) struct Certificate {
    pub(crate) der: CertificateDer<'static>,
}

/// Starts `watchcore serve`, with more in its configuration.
fn spawn(endpoint: &str, more: &str) -> (u16, Child) {
    let binary = std::env::var("WATCHCORE_SERVER")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../target/release/watchcore").into());
    let port = free_port();
    // More than the most that is measured, so that no limit is met.
    let configuration = format!(
        "etcd = [\"{endpoint}\"]\nlisten = \"127.0.0.1:{port}\"\n{more}[limits]\nwatches = 40000\nconnections = 40000\n[[cache]]\nprefix = \"/registry/\"\n[[resource]]\ngroup = \"bench.test\"\nversion = \"v1\"\nplural = \"widgets\"\nkind = \"Widget\"\nnamespaced = true\nprefix = \"{PREFIX}\"\n"
    );
    // Read once, at the start; whoever listens has read it, and the next server writes it anew.
    let file = std::env::temp_dir().join(format!("watchcore-bench-{}.toml", std::process::id()));
    std::fs::write(&file, configuration).expect("a temporary directory");
    let child = Command::new(&binary)
        .args(["serve", "--config"])
        .arg(&file)
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{binary}: {error}; build it: cargo build --release -p watchcore-cli"));
    (port, child)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

/// The loop of [`crate::bare`] in a process of its own.
pub(crate) struct Bare {
    pub(crate) address: SocketAddr,
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Bare {
    pub(crate) fn start() -> Bare {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .arg("bare")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program again");
        let mut answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        answers.read_line(&mut line).expect("its address");
        Bare { address: line.trim().parse().expect("an address"), child, answers }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes frames to all, and waits until they are written.
    pub(crate) fn write(&mut self, length: usize, count: usize) {
        let input = self.child.stdin.as_mut().expect("piped");
        writeln!(input, "{length} {count}").and_then(|()| input.flush()).expect("it lives");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it lives");
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn asked(address: SocketAddr, path: &str) -> std::io::Result<TcpStream> {
    let mut socket = TcpStream::connect(address).await?;
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    Ok(socket)
}

/// The code that a request is answered with.
pub(crate) async fn status(address: SocketAddr, path: &str) -> Option<u16> {
    let mut text = Vec::new();
    asked(address, path).await.ok()?.read_to_end(&mut text).await.ok()?;
    String::from_utf8_lossy(text.get(9..12)?).parse().ok()
}

/// Reads an answer to its end: when its body began, and its bytes.
pub(crate) async fn get(address: SocketAddr, path: &str) -> (Instant, u64) {
    let mut socket = asked(address, path).await.expect("a server");
    let mut room = vec![0; 1 << 20];
    let (mut first, mut bytes, mut head) = (None, 0, Vec::new());
    loop {
        let read = socket.read(&mut room).await.expect("an answer");
        if read == 0 {
            return (first.unwrap_or_else(|| panic!("no list: {}", String::from_utf8_lossy(&head))), bytes);
        }
        bytes += read as u64;
        if first.is_none() {
            head.extend_from_slice(&room[..read]);
            let body = memchr::memmem::find(&head, b"\"items\"").is_some();
            first = body.then(Instant::now);
        }
    }
}

/// The objects in etcd.
pub(crate) struct Widgets {
    client: Client,
    revision: i64,
    written: usize,
}

fn key(number: usize) -> String {
    format!("{PREFIX}shop-{:02}/widget-{number:06}", number % 100)
}

/// Some 550 bytes, as a custom object is stored.
fn value(number: usize, note: &str) -> String {
    let filler = "f".repeat(200);
    format!(
        "{{\"apiVersion\":\"bench.test/v1\",\"kind\":\"Widget\",\"metadata\":{{\"creationTimestamp\":\"2026-01-01T00:00:00Z\",\"generation\":1,\"name\":\"widget-{number:06}\",\"namespace\":\"shop-{:02}\",\"uid\":\"7c9e6679-7425-40de-944b-{number:012}\"}},\"spec\":{{{WRITTEN_AT}{:019}\",\"note\":\"{note:<14}\",\"filler\":\"{filler}\"}}}}",
        number % 100,
        now()
    )
}

/// The path of one of them.
pub(crate) fn one(number: usize) -> String {
    format!("/apis/bench.test/v1/namespaces/shop-{:02}/widgets/widget-{number:06}", number % 100)
}

impl Widgets {
    pub(crate) async fn new(endpoint: &str) -> Widgets {
        let client = Client::connect([endpoint], None).await.expect("etcd");
        Widgets { client, revision: 0, written: 0 }
    }

    /// Brings their number to `count`.
    pub(crate) async fn fill(&mut self, count: usize) {
        let numbers: Vec<usize> = (self.written..count).collect();
        for some in numbers.chunks(100) {
            let puts = some.iter().map(|number| TxnOp::put(key(*number), value(*number, ""), None)).collect::<Vec<_>>();
            let answer = self.client.txn(Txn::new().and_then(puts)).await.expect("etcd");
            self.revision = answer.header().expect("a header").revision();
        }
        self.written = self.written.max(count);
    }

    /// One of a megabyte, `large` in the namespace of that name.
    pub(crate) async fn large(&mut self) {
        let value = format!(
            "{{\"metadata\":{{\"name\":\"large\",\"namespace\":\"large\"}},\"spec\":\"{}\"}}",
            "x".repeat(1_000_000)
        );
        let answer = self.client.put(format!("{PREFIX}large/large"), value, None::<PutOptions>).await.expect("etcd");
        self.revision = answer.header().expect("a header").revision();
    }

    /// The revision of the last write.
    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    async fn put(&mut self, number: usize, note: &str) {
        let answer = self.client.put(key(number), value(number, note), None::<PutOptions>).await.expect("etcd");
        self.revision = answer.header().expect("a header").revision();
    }

    /// So many changes, the last of which has the marker.
    pub(crate) async fn window(&mut self, count: usize, marker: &str) {
        for number in 0..count {
            self.put(number, if number + 1 == count { marker } else { "" }).await;
        }
    }

    /// Changes at a steady rate, if etcd keeps up; the marker last. The rate that was reached.
    pub(crate) async fn steady(&mut self, rate: usize, time: Duration, marker: &str) -> f64 {
        const LANES: usize = 8;
        let total = (rate as f64 * time.as_secs_f64()) as usize;
        let begin = tokio::time::Instant::now();
        let mut lanes = tokio::task::JoinSet::new();
        for lane in 0..LANES {
            let mut client = self.client.clone();
            lanes.spawn(async move {
                for number in (lane..total).step_by(LANES) {
                    tokio::time::sleep_until(begin + Duration::from_secs_f64(number as f64 / rate as f64)).await;
                    client.put(key(number % 1000), value(number % 1000, ""), None).await.expect("etcd");
                }
            });
        }
        while let Some(lane) = lanes.join_next().await {
            lane.expect("etcd");
        }
        let reached = total as f64 / begin.elapsed().as_secs_f64();
        self.put(0, marker).await;
        reached
    }

    /// A watch of etcd itself that notes when changes arrive.
    pub(crate) async fn bare_watch(&mut self) -> BareWatch {
        let options = WatchOptions::new().with_prefix().with_start_revision(self.revision + 1);
        let mut stream = self.client.watch(PREFIX, Some(options)).await.expect("etcd");
        let task = tokio::spawn(async move {
            let mut latencies = Vec::new();
            while let Ok(Some(answer)) = stream.message().await {
                let arrived = now();
                for event in answer.events() {
                    let Some(kv) = event.kv() else { continue };
                    let Some(at) = memchr::memmem::find(kv.value(), WRITTEN_AT.as_bytes()) else { continue };
                    let digits = &kv.value()[at + WRITTEN_AT.len()..][..19];
                    if let Ok(written) = String::from_utf8_lossy(digits).parse::<u64>() {
                        latencies.push(arrived.saturating_sub(written));
                    }
                    if memchr::memmem::find(kv.value(), crate::MARKER.as_bytes()).is_some() {
                        return latencies;
                    }
                }
            }
            latencies
        });
        BareWatch(task)
    }
}

/// A watch of etcd beside those of a server.
pub(crate) struct BareWatch(tokio::task::JoinHandle<Vec<u64>>);

impl BareWatch {
    /// The latencies, in order, when the marker has come.
    pub(crate) async fn finish(self) -> Vec<u64> {
        let mut latencies = self.0.await.expect("no panic");
        latencies.sort_unstable();
        latencies
    }
}
