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
