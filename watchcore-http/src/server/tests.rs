//! Connections over pipes that hold as much as a test wants, where a socket of the kernel holds what it wants.

use super::*;
use crate::access::Peer;
use bytes::Bytes;
use connection::Link;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use watchcore::{Cache, Change};

const BOUND: Duration = Duration::from_secs(10);

fn shared() -> Arc<Shared> {
    let widgets = crate::Resource::new("matrix.test", "v1", "widgets", "Widget").prefix("/w/");
    let cache = crate::Resource::declare(Cache::builder("/"), [&widgets]).unwrap().build().unwrap();
    cache.writer().unwrap().apply(1, [Change::put("/w/a", "{}")]).unwrap();
    let api = Api::builder().cache(cache).resource(widgets).build().unwrap();
    let alive = Arc::new(Alive::default());
    let (stages, mut staged) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(stage) = staged.recv().await {
            tokio::spawn(stage);
        }
    });
    Arc::new(Shared {
        router: api.router(),
        api,
        tls: None,
        asks_certificate: false,
        ending: watch::Sender::new(false),
        stages,
        streams: Streams(alive.clone()),
        alive,
    })
}

/// A connection of HTTP/1.1 over a pipe that holds so many bytes.
fn connection(shared: &Arc<Shared>, room: usize) -> DuplexStream {
    let (client, server) = tokio::io::duplex(room);
    let peer = Peer {
        address: ([127, 0, 0, 1], 1).into(),
        local: None,
        certificate: None,
        is_encrypted: false,
        asks_certificate: false,
        watches: Arc::default(),
        stalled: Notify::new(),
    };
    shared.figures().connect(usize::MAX);
    let link = Link::new(peer, shared.clone(), Place(shared.figures().clone()));
    tokio::spawn(link.http1(server, Bytes::new()));
    client
}

/// Both requests are there before a byte of an answer is taken, and the pipe holds a part of the first.
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

/// A name is looked up where it may take its time: here there is one such thread, and it is busy.
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

/// Behind a restart all clients come back at once: the system holds them until they are accepted.
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
