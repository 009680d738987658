//! One user who measures beside another who attacks: what a get, a page of a list and an event take, and what memory the
//! server has, quiet and under each attack. An attacker has a machine of his own: here he is a process of the lowest
//! priority, which takes the processors that nobody else wants. The server's own work for him remains, so each attack is also
//! made on another server of the same machine: what a client loses by sharing the server lies between the two.

use crate::process;
use crate::servers::{self, Server, Widgets};
use bytes::Bytes;
use std::net::SocketAddr;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use support::etcd::Etcd;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support;

/// More than are read on the spot, so that a page has its turn.
const OBJECTS: usize = 20_000;
/// Requests of each kind that are measured.
const SAMPLES: usize = 300;
/// Requests of an attacker on one connection: as many streams as the server gives.
const STREAMS: usize = 1000;

/// What the attacker does.
#[derive(Clone, Copy)]
enum Attack {
    None,
    /// Objects of a megabyte over HTTP/2, of which no byte is read.
    Unread,
    /// Watches of everything over HTTP/1.1, of which no byte is read.
    DeafWatches,
    /// Pages of the whole cache of which nothing matches, always as many as there are streams.
    Pages,
}

impl Attack {
    const ALL: [Attack; 4] = [Attack::None, Attack::Unread, Attack::DeafWatches, Attack::Pages];

    fn name(self) -> &'static str {
        match self {
            Attack::None => "quiet",
            Attack::Unread => "4 connections ask for 1,000 objects of 1 MB each, and read none",
            Attack::DeafWatches => "1,000 watches of all objects, which read nothing",
            Attack::Pages => "4 connections of 1,000 pages each, again and again",
        }
    }

    /// Begins; it goes on until the process is dropped.
    async fn begin(self, address: SocketAddr) -> Option<Attacker> {
        if matches!(self, Attack::None) {
            return None;
        }
        let program = std::env::current_exe().expect("this program");
        let mut attacker = Command::new("nice");
        attacker.args(["-n", "19"]).arg(program).args(["attack", self.name(), &address.to_string()]);
        let attacker = Attacker(attacker.spawn().expect("nice"));
        // It is under way.
        tokio::time::sleep(Duration::from_secs(3)).await;
        Some(attacker)
    }

    /// Attacks, for ever.
    async fn run(self, address: SocketAddr) {
        let mut all = JoinSet::new();
        match self {
            Attack::None => {}
            Attack::Unread => {
                for _ in 0..4 {
                    all.spawn(streams(address, 0, format!("{}/large", servers::LARGE), false));
                }
            }
            Attack::Pages => {
                let path = format!("{}?limit=500&labelSelector=none%3Dsuch", servers::PATH);
                for _ in 0..4 {
                    all.spawn(streams(address, 1 << 20, path.clone(), true));
                }
            }
            Attack::DeafWatches => {
                for _ in 0..1000 {
                    let mut socket = TcpStream::connect(address).await.expect("a server");
                    let path = format!("{}?watch=1&timeoutSeconds=36000", servers::PATH);
                    socket.write_all(head(&path, "mallory").as_bytes()).await.expect("a server");
                    all.spawn(async move {
                        let _socket = socket;
                        std::future::pending::<()>().await;
                    });
                }
            }
        }
        std::future::pending().await
    }
}

/// The process of an attack.
struct Attacker(Child);

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program of that process: the name of an attack and an address.
pub(crate) fn attack(name: &str, address: &str) -> ! {
    let attack = Attack::ALL.into_iter().find(|attack| attack.name() == name).expect("an attack");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(attack.run(address.parse().expect("an address")));
    unreachable!("an attack has no end")
}

/// A connection of HTTP/2 that has as many requests as it may; anew, when they are answered.
async fn streams(address: SocketAddr, room: u32, path: String, reads: bool) {
    loop {
        let Ok(socket) = TcpStream::connect(address).await else { return };
        let mut builder = h2::client::Builder::new();
        let Ok((client, connection)) = builder.initial_window_size(room).handshake::<_, Bytes>(socket).await else {
            continue;
        };
        let running = tokio::spawn(connection);
        let mut answers = JoinSet::new();
        for _ in 0..STREAMS {
            let request =
                http::Request::get(format!("http://{address}{path}")).header("authorization", "Bearer mallory");
            let request = request.body(()).expect("a request");
            let Ok(mut ready) = client.clone().ready().await else { break };
            let Ok((response, _)) = ready.send_request(request, true) else { break };
            answers.spawn(async move {
                let Ok(response) = response.await else { return };
                let mut body = response.into_body();
                while let Some(Ok(data)) = body.data().await {
                    if reads {
                        let _ = body.flow_control().release_capacity(data.len());
                    }
                }
            });
        }
        while answers.join_next().await.is_some() {}
        drop(client);
        running.abort();
    }
}

pub(crate) fn head(path: &str, user: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {user}\r\n\r\n")
}

/// How long an answer takes on a connection of its own; its code.
async fn asked(address: SocketAddr, path: &str) -> (Duration, String) {
    let from = Instant::now();
    let mut socket = TcpStream::connect(address).await.expect("a server");
    let request = head(path, "alice").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.expect("a server");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.expect("an answer");
    (from.elapsed(), String::from_utf8_lossy(&answer[9..12]).into_owned())
}

/// p50 and p99 in milliseconds.
fn quantiles(mut all: Vec<Duration>) -> (f64, f64) {
    all.sort_unstable();
    let at = |part: f64| all[((all.len() as f64 * part) as usize).min(all.len() - 1)].as_secs_f64() * 1e3;
    (at(0.5), at(0.99))
}

async fn requests(address: SocketAddr, path: &str) -> (f64, f64) {
    let mut all = Vec::new();
    for _ in 0..SAMPLES {
        let (took, code) = asked(address, path).await;
        assert_eq!(code, "200", "{path}");
        all.push(took);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    quantiles(all)
}

/// From before etcd has a change to the line of a watch.
pub(crate) async fn events(address: SocketAddr, widgets: &mut Widgets) -> (f64, f64) {
    let mut socket = BufReader::new(TcpStream::connect(address).await.expect("a server"));
    let path = format!("{}?watch=1&resourceVersion={}", servers::PATH, widgets.revision());
    socket.write_all(head(&path, "alice").as_bytes()).await.expect("a server");
    let (mut line, mut all) = (String::new(), Vec::new());
    for number in 0..SAMPLES {
        let note = format!("note-{number}");
        let from = Instant::now();
        widgets.window(1, &note).await;
        while !line.contains(&note) {
            line.clear();
            assert!(socket.read_line(&mut line).await.expect("a watch") > 0, "it ended");
        }
        all.push(from.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    quantiles(all)
}

/// A row for each attack.
pub(crate) async fn run(etcd: &Etcd, widgets: &mut Widgets) {
    println!(
        "| beside | get p50, p99 ms | page p50, p99 ms | event p50, p99 ms | memory, MB, most |\n| --- | --- | --- | --- | --- |"
    );
    widgets.fill(OBJECTS).await;
    widgets.large().await;
    let tokens = std::env::temp_dir().join(format!("watchcore-bench-{}.tokens", std::process::id()));
    std::fs::write(&tokens, "alice,alice\nmallory,mallory\n").expect("a temporary directory");
    let rows = Attack::ALL.into_iter().flat_map(|attack| match attack {
        Attack::None => vec![(attack, false)],
        _ => vec![(attack, true), (attack, false)],
    });
    for (attack, elsewhere) in rows {
        let server = Server::watchcore_with_tokens(&etcd.url(), &tokens).await;
        let other = match elsewhere {
            true => Some(Server::watchcore_with_tokens(&etcd.url(), &tokens).await),
            false => None,
        };
        let mut warm = Vec::new();
        for _ in 0..20 {
            warm.push(asked(server.address, servers::PATH).await);
        }
        process::forget_peak(server.pid());
        let attacking = attack.begin(other.as_ref().unwrap_or(&server).address).await;
        let get = requests(server.address, &servers::one(0)).await;
        let page = requests(server.address, &format!("{}?limit=500", servers::PATH)).await;
        let event = events(server.address, widgets).await;
        let memory = process::memory(server.pid(), "VmHWM") as f64 / 1e6;
        drop(attacking);
        println!(
            "| {}{} | {:.2}, {:.2} | {:.2}, {:.2} | {:.2}, {:.2} | {memory:.0} |",
            attack.name(),
            if elsewhere { ", on another server" } else { "" },
            get.0,
            get.1,
            page.0,
            page.1,
            event.0,
            event.1
        );
    }
    let _ = std::fs::remove_file(tokens);
}
