use super::*;
use crate::clients::ClientId;
use crate::watch::{Framing, OpenWatches};
use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, ready};
use tokio::io::ReadBuf;
use tokio::time::sleep;
use watchcore::{Cache, Change, Error as CacheError, Event, Position, Start};

/// A framing that sends each event's key as a line.
struct MessageFraming;

impl Framing for MessageFraming {
    fn event(&mut self, event: &Event, out: &mut Vec<Frame>) -> bool {
        out.push(Frame::new(64, |out| out.extend_from_slice(event.key())));
        true
    }

    fn failed(&mut self, _: &CacheError, _: &mut Vec<Frame>) {}

    fn deadline(&mut self, _: Position, _: &mut Vec<Frame>) {}
}

const STALL: Duration = Duration::from_secs(7);
fn taker() -> SocketClient {
    SocketClient { stall: STALL, answered: None }
}

/// Upper bound on every wait of a test.
const BOUND: Duration = Duration::from_secs(60);

/// Returns a served watch, and the client's end of its connection.
fn served() -> (Cache, Arc<OpenWatches>, tokio::task::JoinHandle<()>, tokio::io::DuplexStream) {
    served_until(None)
}

/// As [`served`], with a deadline.
fn served_until(
    deadline: Option<Duration>,
) -> (Cache, Arc<OpenWatches>, tokio::task::JoinHandle<()>, tokio::io::DuplexStream) {
    let cache = Cache::builder("/").build().unwrap();
    let open = OpenWatches::new(1, 1, Duration::MAX);
    let permit = open.admit(&ClientId::Unknown, None).unwrap();
    let stream = WatchStream::new(cache.subscribe(Start::Now).open().unwrap(), MessageFraming, deadline, permit);
    let (io, peer) = tokio::io::duplex(1024);
    let all = open.clone();
    let task = tokio::spawn(async move { serve(io, stream, &all, taker()).await });
    (cache, open, task, peer)
}

/// Writes an event whose message, with the frame's header, has this many bytes.
fn put(cache: &Cache, bytes: usize) {
    let head = if bytes > 127 { 4 } else { 2 };
    let key = format!("/{}", "k".repeat(bytes - head - 1));
    cache.writer().unwrap().apply(cache.position().revision + 1, [Change::put(&key, "")]).unwrap();
}

#[tokio::test(start_paused = true)]
async fn peer_without_pong_is_gone() {
    let (_cache, open, task, mut peer) = served();
    let from = Instant::now();
    let mut ping = [0; 2];
    peer.read_exact(&mut ping).await.unwrap();
    assert_eq!((ping, from.elapsed().as_secs()), ([0x89, 0], 30));
    // The client is connected but silent, like a half-open connection.
    task.await.unwrap();
    assert_eq!((from.elapsed().as_secs(), open.count()), (60, 0));
}

#[tokio::test(start_paused = true)]
async fn pong_keeps_a_watch() {
    let (_cache, open, task, mut peer) = served();
    let from = Instant::now();
    for round in 1..=5 {
        let mut ping = [0; 2];
        peer.read_exact(&mut ping).await.unwrap();
        assert_eq!((ping, from.elapsed().as_secs()), ([0x89, 0], 30 * round));
        peer.write_all(&[0x8a, 0x80, 0, 0, 0, 0]).await.unwrap();
    }
    assert!(!task.is_finished() && open.count() == 1);
}

#[tokio::test(start_paused = true)]
async fn silent_end_is_bounded() {
    let (_cache, open, task, mut peer) = served();
    let from = Instant::now();
    open.drain(Duration::ZERO).await;
    let mut close = [0; 4];
    peer.read_exact(&mut close).await.unwrap();
    assert_eq!((close[0], &close[2..]), (0x88, &1001_u16.to_be_bytes()[..]));
    task.await.unwrap();
    assert_eq!((from.elapsed(), open.count()), (CLOSE_TIMEOUT, 0));
}

/// The client takes nothing, so its permit is freed long before its deadline.
#[tokio::test(start_paused = true)]
async fn client_that_never_reads_is_left() {
    let (cache, open, task, _peer) = served_until(Some(Duration::from_secs(3600)));
    let from = Instant::now();
    put(&cache, 5000);
    let ended = timeout(Duration::from_secs(600), task).await;
    assert_eq!((ended.is_ok(), from.elapsed(), open.count()), (true, STALL, 0));
}

/// The last bytes of a watch that has ended are not kept for a client that takes nothing.
#[tokio::test(start_paused = true)]
async fn client_that_never_reads_ends_with_its_watch() {
    let cache = Cache::builder("/").build().unwrap();
    let open = OpenWatches::new(1, 1, Duration::MAX);
    let framing = LastFraming(Frame::new(5000, |out| out.resize(out.len() + 5000, b'x')));
    let subscription = cache.subscribe(Start::Now).open().unwrap();
    let stream = WatchStream::new(subscription, framing, None, open.admit(&ClientId::Unknown, None).unwrap());
    put(&cache, 10);
    let (io, _peer) = tokio::io::duplex(1024);
    let all = open.clone();
    let task = tokio::spawn(async move { serve(io, stream, &all, taker()).await });
    let from = Instant::now();
    let ended = timeout(Duration::from_secs(600), task).await;
    assert_eq!((ended.is_ok(), from.elapsed(), open.count()), (true, STALL, 0));
}

/// The client gets no event, but is pinged; it does not take the bytes before the ping either.
#[tokio::test(start_paused = true)]
async fn client_without_room_for_a_ping_is_gone() {
    let (cache, open, task, mut peer) = served();
    let from = Instant::now();
    put(&cache, 1024);
    let ended = timeout(Duration::from_secs(600), task).await;
    assert_eq!((ended.is_ok(), from.elapsed(), open.count()), (true, 2 * PING_INTERVAL, 0));
    let mut rest = Vec::new();
    peer.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest.len(), 1024, "the event, and no ping");
}

/// Pongs are not queued for a client that pings and does not read.
#[tokio::test(start_paused = true)]
async fn pings_wait_for_their_pongs() {
    let (_cache, _open, task, mut peer) = served();
    let ping = [&[0x89, 0x80 | 125, 0, 0, 0, 0][..], &[b'x'; 125]].concat();
    let mut heard = 0;
    while timeout(Duration::from_secs(5), peer.write_all(&ping)).await.is_ok() {
        heard += ping.len();
        assert!(heard < 64 << 10, "{heard} bytes of pings, and no pong was read");
    }
    // The pongs arrive when they are read.
    let mut pong = [0; 127];
    for _ in 0..heard / ping.len() {
        peer.read_exact(&mut pong).await.unwrap();
        assert_eq!(pong[..2], [0x8a, 125]);
    }
    assert!(!task.is_finished());
}

/// A connection that receives nothing, and records the address and length of each write.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<(usize, usize)>>>);

impl AsyncRead for Written {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncWrite for Written {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().unwrap().push((bytes.as_ptr() as usize, bytes.len()));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.lock().unwrap().extend(slices.iter().map(|slice| (slice.as_ptr() as usize, slice.len())));
        Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A framing that sends one frame and ends the watch.
struct LastFraming(Frame);

impl Framing for LastFraming {
    fn event(&mut self, _: &Event, out: &mut Vec<Frame>) -> bool {
        out.push(self.0.clone());
        false
    }

    fn failed(&mut self, _: &CacheError, _: &mut Vec<Frame>) {}

    fn deadline(&mut self, _: Position, _: &mut Vec<Frame>) {}
}

/// However many clients watch, the bytes of an event exist once: no connection copies them, or keeps a buffer for them.
#[tokio::test(start_paused = true)]
async fn events_are_written_where_they_lie() {
    for (bytes, head) in [(1, 2), (125, 2), (126, 4), (0xffff, 4), (0x1_0000, 10)] {
        let frame = Frame::new(bytes, |out| out.resize(out.len() + bytes, b'x'));
        let cache = Cache::builder("/").build().unwrap();
        let open = OpenWatches::new(1, 1, Duration::MAX);
        let subscription = cache.subscribe(Start::Now).open().unwrap();
        let framing = LastFraming(frame.clone());
        let stream = WatchStream::new(subscription, framing, None, open.admit(&ClientId::Unknown, None).unwrap());
        put(&cache, 10);
        let written = Written::default();
        serve(written.clone(), stream, &open, taker()).await;
        let payload = frame.message();
        let written = written.0.lock().unwrap();
        let at = written.iter().position(|write| *write == (payload.as_ptr() as usize, bytes));
        let at = at.unwrap_or_else(|| panic!("{bytes} bytes are copied: {written:?}"));
        assert_eq!(written[at - 1].1, head, "the head of {bytes} bytes");
    }
}

/// A client that sends pongs without pause, as fast as they are read. Like a socket, it yields when the budget is used
/// up. Counts the reads.
#[derive(Clone, Default)]
struct Talking(Arc<AtomicUsize>);

impl AsyncRead for Talking {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(pin!(tokio::task::consume_budget()).poll(context));
        self.0.fetch_add(1, Relaxed);
        let pong = [0x8a, 0x80, 0, 0, 0, 0];
        while room.remaining() >= pong.len() {
            room.put_slice(&pong);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Talking {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Messages of a client are ignored, however many they are: its watch ends at its deadline.
#[tokio::test]
async fn client_that_talks_all_the_time_is_ended_in_time() {
    let cache = Cache::builder("/").build().unwrap();
    let open = OpenWatches::new(1, 1, Duration::MAX);
    let subscription = cache.subscribe(Start::Now).open().unwrap();
    let deadline = Some(Duration::from_millis(20));
    let stream =
        WatchStream::new(subscription, MessageFraming, deadline, open.admit(&ClientId::Unknown, None).unwrap());
    let all = open.clone();
    let task = tokio::spawn(async move { serve(Talking::default(), stream, &all, taker()).await });
    let ended = async {
        while open.count() > 0 {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(BOUND, ended).await.expect("its deadline is seen");
    task.abort();
}

/// One read yields hundreds of messages. The task must yield after some messages, not after some reads: otherwise it
/// would hold a thread, with every client on it, for tens of milliseconds.
#[tokio::test]
async fn client_that_talks_gives_way_by_messages() {
    let cache = Cache::builder("/").build().unwrap();
    let open = OpenWatches::new(1, 1, Duration::MAX);
    let subscription = cache.subscribe(Start::Now).open().unwrap();
    let stream = WatchStream::new(subscription, MessageFraming, None, open.admit(&ClientId::Unknown, None).unwrap());
    let (all, talking) = (open.clone(), Talking::default());
    let client = talking.clone();
    let task = tokio::spawn(async move { serve(client, stream, &all, taker()).await });
    let read_in_turns = async || {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        talking.0.swap(0, Relaxed)
    };
    let reads = read_in_turns().await;
    assert!((1..=20).contains(&reads), "{reads} reads in 20 turns");
    // The same holds while the connection is closing.
    open.drain(Duration::ZERO).await;
    let left = async {
        while open.count() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(BOUND, left).await.expect("it is left");
    read_in_turns().await;
    let reads = read_in_turns().await;
    assert!((1..=20).contains(&reads), "{reads} reads in 20 turns of a farewell");
    task.abort();
}

/// The deadline passes while the client sleeps. It resumes in time, and gets everything and a clean end.
#[tokio::test(start_paused = true)]
async fn client_that_sleeps_comes_back_in_time() {
    let (cache, _open, task, mut peer) = served_until(Some(Duration::from_secs(10)));
    put(&cache, 5000);
    let mut all = vec![0; 5000 + 4];
    for some in all.chunks_mut(1024) {
        sleep(STALL / 2).await;
        peer.read_exact(some).await.unwrap();
    }
    assert_eq!(all[5000..], [0x88, 2, 0x03, 0xe8], "the event, and the close frame behind it");
    peer.write_all(&[0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8]).await.unwrap();
    task.await.unwrap();
}
