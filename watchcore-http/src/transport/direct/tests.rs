use super::*;
use crate::api::Api;
use crate::clients::{Activity, ClientId};
use crate::object::Form;
use crate::object::Resource;
use crate::request::Params;
use crate::resources::watch::{Watched, open};
use std::future::poll_fn;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use watchcore::{Cache, Change, ResyncReason, Writer};

const BOUND: Duration = Duration::from_secs(10);
/// Half of the stall limit.
const WHILE: Duration = Duration::from_secs(3);

struct Ground {
    api: Api,
    writer: Writer,
    revision: u64,
}

impl Ground {
    fn new(capacity: usize) -> Ground {
        let widgets = Resource::new("matrix.test", "v1", "widgets", "Widget").namespaced(true).prefix("/w/");
        let cache = Resource::declare(Cache::builder("/").capacity(capacity), [&widgets]).unwrap().build().unwrap();
        let writer = cache.writer().unwrap();
        Ground { api: Api::builder().cache(cache).resource(widgets).build().unwrap(), writer, revision: 0 }
    }

    fn put(&mut self, name: &str, text: &str) {
        self.revision += 1;
        let value = format!(r#"{{"metadata":{{"name":"{name}","namespace":"n"}},"text":"{text}"}}"#);
        self.writer.apply(self.revision, [Change::put(&format!("/w/n/{name}"), &value)]).unwrap();
    }

    async fn stream(&self, query: &str) -> WatchStream {
        let state = &self.api.0;
        let params = Params::parse(Some(query)).unwrap();
        let watched = Watched {
            served: &state.catalog.resources()[0],
            namespace: None,
            name: None,
            form: Form::Json,
            old_path: false,
            watcher: None,
            request: &http::Request::new(()).into_parts().0,
        };
        open(state, watched, &params).await.unwrap()
    }

    /// Returns a client's end of a socket with a buffer of `room` bytes, and the watch that is written to the other
    /// end.
    async fn client(&self, query: &str, room: usize, ahead: &'static [u8]) -> (DuplexStream, Watching) {
        let (client, server) = duplex(room);
        (client, self.watch_on(server, query, ahead).await)
    }

    /// Writes a watch to the server's end of a socket.
    async fn watch_on<I>(&self, server: I, query: &str, ahead: &'static [u8]) -> Watching
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = self.stream(query).await;
        let answered = self.api.0.unread.account(&ClientId::Unknown).answer(Box::new(Arc::new(Activity::default())));
        let head = Bytes::from_static(b"HEAD\r\n\r\n");
        let mut direct = Direct::new(server, head, Box::new(stream), Bytes::from_static(ahead), answered);
        let task = async move {
            poll_fn(|context| direct.poll(context)).await?;
            Ok(direct.into_parts().1)
        };
        tokio::spawn(task)
    }
}

type Watching = tokio::task::JoinHandle<io::Result<Bytes>>;

/// Reads until the text appears, and returns everything that was read.
async fn read_until(client: &mut DuplexStream, text: &str) -> String {
    let mut read = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&read).contains(text) {
            assert!(client.read_buf(&mut read).await.unwrap() > 0, "closed: {}", String::from_utf8_lossy(&read));
        }
    };
    tokio::time::timeout(BOUND, reading).await.unwrap_or_else(|_| panic!("no {text}"));
    String::from_utf8(read).unwrap()
}

/// Returns the payload of the chunks, and whether the last chunk was among them.
fn unchunked(mut text: &str) -> (String, bool) {
    let mut payload = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a size");
        if size == 0 {
            assert_eq!(rest, "\r\n");
            return (payload, true);
        }
        payload.push_str(&rest[..size]);
        assert_eq!(&rest[size..size + 2], "\r\n");
        text = &rest[size + 2..];
    }
    (payload, false)
}

#[tokio::test]
async fn events_are_chunks_behind_the_head() {
    let mut ground = Ground::new(1024);
    ground.put("a", "1");
    let (mut client, _task) = ground.client("watch=1&resourceVersion=0", 1 << 16, b"").await;
    let first = read_until(&mut client, "\"1\"}}\n\r\n").await;
    let chunks = first.strip_prefix("HEAD\r\n\r\n").expect("the head comes first");
    let (payload, ended) = unchunked(chunks);
    assert!(!ended);
    assert_eq!(
        payload,
        "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"resourceVersion\":\"1\",\"name\":\"a\",\"namespace\":\"n\"},\"text\":\"1\"}}\n"
    );
    ground.put("a", "2");
    let (payload, _) = unchunked(&read_until(&mut client, "\"2\"}}\n\r\n").await);
    assert!(payload.starts_with("{\"type\":\"MODIFIED\""), "{payload}");
}

#[tokio::test]
async fn next_request_is_given_back() {
    let ground = Ground::new(1024);
    let (mut client, task) = ground.client("watch=1&resourceVersion=0", 1 << 16, b"GET").await;
    client.write_all(b" /next").await.unwrap();
    read_until(&mut client, "HEAD\r\n\r\n").await;
    ground.api.drain(Duration::ZERO).await;
    assert_eq!(read_until(&mut client, "0\r\n\r\n").await, "0\r\n\r\n", "the clean end");
    assert_eq!(&task.await.unwrap().unwrap()[..], b"GET /next");
}

#[tokio::test]
async fn client_that_goes_ends_the_watch() {
    let ground = Ground::new(1024);
    let (mut client, task) = ground.client("watch=1&resourceVersion=0", 1 << 16, b"").await;
    read_until(&mut client, "HEAD\r\n\r\n").await;
    drop(client);
    let ended = tokio::time::timeout(BOUND, task).await.expect("it is noticed").unwrap();
    assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(ground.api.0.open.count(), 0, "its place is free");
}

#[tokio::test]
async fn client_that_sends_too_much_is_cut() {
    let ground = Ground::new(1024);
    let (mut client, task) = ground.client("watch=1&resourceVersion=0", 1 << 20, b"").await;
    client.write_all(&[b'x'; MAX_AHEAD + 1]).await.unwrap();
    let ended = tokio::time::timeout(BOUND, task).await.unwrap().unwrap();
    assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::InvalidData);
}

/// A client that does not read keeps its position in the log. When the window has passed it, an ERROR in the stream
/// reports the loss.
#[tokio::test]
async fn client_that_does_not_read_is_told_what_it_lost() {
    let mut ground = Ground::new(256);
    let (mut client, task) = ground.client("watch=1&resourceVersion=0", 256, b"").await;
    ground.put("a", "first");
    read_until(&mut client, "first").await;
    for number in 0..4000 {
        ground.put("a", &format!("{number:0200}"));
        tokio::task::yield_now().await;
    }
    let all = read_until(&mut client, "\r\n0\r\n\r\n").await;
    assert!(
        all.contains(r#"{"type":"ERROR","object":{"kind":"Status""#),
        "{} bytes: {}",
        all.len(),
        &all[all.len().saturating_sub(700)..]
    );
    assert!(all.contains(r#""message":"too old resource version: "#) && all.contains(r#""code":410"#));
    assert!(
        all.matches("MODIFIED").count() < 2500,
        "it was not given what had left: {}",
        all.matches("MODIFIED").count()
    );
    assert!(task.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn deadline_ends_it_cleanly() {
    let mut ground = Ground::new(1024);
    let (mut client, task) =
        ground.client("watch=1&resourceVersion=0&timeoutSeconds=7&allowWatchBookmarks=1", 1 << 16, b"").await;
    let begin = tokio::time::Instant::now();
    read_until(&mut client, "initial-events-end").await;
    ground.put("a", "1");
    let all = read_until(&mut client, "\r\n0\r\n\r\n").await;
    assert!(begin.elapsed() >= Duration::from_secs(7));
    assert!(all.contains(r#"{"type":"BOOKMARK","object":{"kind":"Widget","apiVersion":"matrix.test/v1","metadata":{"resourceVersion":"1"}}}"#), "{all}");
    assert!(task.await.unwrap().is_ok());
}

/// The deadline passes in the middle of an event, of which the client takes a little at a time.
#[tokio::test(start_paused = true)]
async fn client_that_reads_slowly_has_it_all() {
    let mut ground = Ground::new(1024);
    ground.put("a", &"x".repeat(1000));
    let (mut client, task) = ground.client("watch=1&resourceVersion=0&timeoutSeconds=7", 64, b"").await;
    let mut said = Vec::new();
    let mut buffer = [0; 64];
    while !said.ends_with(b"\r\n0\r\n\r\n") {
        tokio::time::sleep(WHILE).await;
        let read = client.read(&mut buffer).await.unwrap();
        assert!(read > 0, "cut off behind {} bytes", said.len());
        said.extend_from_slice(&buffer[..read]);
    }
    assert!(said.len() > 1000 && task.await.unwrap().is_ok());
}

/// Only last bytes wait for the client, so the watch's permit is free for another.
#[tokio::test(start_paused = true)]
async fn watch_that_has_ended_has_no_place() {
    let mut ground = Ground::new(1024);
    let (_client, task) = ground.client("watch=1&resourceVersion=0&timeoutSeconds=3600", 64, b"").await;
    ground.writer.resync(9, [], ResyncReason::HistoryReset).unwrap();
    tokio::time::sleep(WHILE).await;
    assert!(!task.is_finished(), "its last bytes wait");
    assert_eq!(ground.api.0.open.count(), 0);
}

/// The client resumes from the last revision that it saw.
#[tokio::test(start_paused = true)]
async fn deadline_ends_it_behind_a_whole_revision() {
    let mut ground = Ground::new(16_384);
    let (mut client, task) = ground.client("watch=1&resourceVersion=0&timeoutSeconds=7", 64, b"").await;
    read_until(&mut client, "HEAD\r\n\r\n").await;
    let names: Vec<String> = (0..2500).map(|number| format!("/w/n/{number:04}")).collect();
    let puts = names.iter().map(|name| Change::put(name, r#"{"metadata":{"name":"a","namespace":"n"}}"#));
    ground.writer.apply(1, puts).unwrap();
    // The deadline passes while the first events wait for the client.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let all = read_until(&mut client, "\r\n0\r\n\r\n").await;
    assert_eq!(all.matches("ADDED").count(), 2500);
    assert!(task.await.unwrap().is_ok());
}

/// Bytes that the client has not taken count, and stop counting when it takes them.
#[tokio::test]
async fn frames_count_until_they_are_taken() {
    let mut ground = Ground::new(1024);
    ground.put("a", &"x".repeat(100_000));
    let (mut client, _task) = ground.client("watch=1&resourceVersion=0", 64, b"").await;
    read_until(&mut client, "ADDED").await;
    assert!(ground.api.0.unread.held() > 100_000);
    read_until(&mut client, "xxx\"}}\n\r\n").await;
    ground.put("b", "1");
    read_until(&mut client, "\"1\"}}\n\r\n").await;
    tokio::task::yield_now().await;
    assert_eq!(ground.api.0.unread.held(), 0);
}
