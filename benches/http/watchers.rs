//! Many watching connections in one process, raw sockets on a runtime of their own threads.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// What an object says when it was written: nanoseconds since 1970, in as many digits.
pub(crate) const WRITTEN_AT: &str = "\"writtenAt\":\"";

/// So many connections are opened at once.
const AT_ONCE: usize = 64;

/// What the watchers of one server share.
pub(crate) struct Watchers {
    /// How often a watcher has seen the text that it waits for.
    seen: AtomicUsize,
    seen_more: Notify,
    pub(crate) bytes: AtomicU64,
    /// Nanoseconds from the writing of an object to its arrival, of some watchers.
    latencies: std::sync::Mutex<Vec<u64>>,
    tasks: std::sync::Mutex<Vec<tokio::task::JoinHandle<()>>>,
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64
}

impl Watchers {
    /// Opens `count` watches. Each looks for `marker`; every `sampled`-th notes when objects arrive. Those that do not read
    /// (`deaf`) take the head and nothing more.
    pub(crate) async fn open(
        address: SocketAddr,
        path: &str,
        count: usize,
        marker: &'static str,
        sampled: usize,
        deaf: bool,
    ) -> Arc<Watchers> {
        let watchers = Arc::new(Watchers {
            seen: AtomicUsize::new(0),
            seen_more: Notify::new(),
            bytes: AtomicU64::new(0),
            latencies: std::sync::Mutex::default(),
            tasks: std::sync::Mutex::default(),
        });
        let request: Arc<str> =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\n\r\n").into();
        let places = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
        let mut opening = tokio::task::JoinSet::new();
        for number in 0..count {
            let (places, request, watchers) = (places.clone(), request.clone(), watchers.clone());
            opening.spawn(async move {
                let _place = places.acquire_owned().await.expect("open");
                let (socket, rest) = watch(address, &request).await;
                let is_sampled = sampled != 0 && number % sampled == 0;
                let reader = watchers.clone();
                let task = tokio::spawn(async move {
                    if deaf {
                        std::future::pending::<()>().await;
                    }
                    reader.read(socket, rest, marker, is_sampled).await;
                });
                watchers.tasks.lock().expect("no panic").push(task);
            });
        }
        while let Some(opened) = opening.join_next().await {
            opened.expect("a watch");
        }
        watchers
    }

    async fn read(&self, mut socket: TcpStream, mut text: Vec<u8>, marker: &str, is_sampled: bool) {
        let finder = memchr::memmem::Finder::new(marker);
        let mut room = vec![0; 16 << 10];
        loop {
            let Ok(read) = socket.read(&mut room).await else { return };
            if read == 0 {
                return;
            }
            let arrived = now();
            self.bytes.fetch_add(read as u64, Ordering::Relaxed);
            text.extend_from_slice(&room[..read]);
            let found = finder.find_iter(&text).count();
            if is_sampled {
                self.note(&text, arrived);
            }
            // What may be the beginning of a text that goes on in what comes next. Both texts are followed by more, and
            // neither is found twice: what was found has left.
            let keep = if found > 0 { 0 } else { text.len().min(marker.len() - 1) };
            text.drain(..text.len() - keep);
            if found > 0 {
                self.seen.fetch_add(found, Ordering::Relaxed);
                self.seen_more.notify_one();
            }
        }
    }

    fn note(&self, text: &[u8], arrived: u64) {
        let mut latencies = self.latencies.lock().expect("no panic");
        for at in memchr::memmem::find_iter(text, WRITTEN_AT) {
            let digits = text.get(at + WRITTEN_AT.len()..at + WRITTEN_AT.len() + 19);
            if let Some(written) = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u64>().ok()) {
                latencies.push(arrived.saturating_sub(written));
            }
        }
    }

    /// Waits until all markers together were seen so often.
    pub(crate) async fn wait_seen(&self, count: usize, bound: Duration) -> bool {
        let all = async {
            loop {
                let more = self.seen_more.notified();
                if self.seen.load(Ordering::Relaxed) >= count {
                    return;
                }
                more.await;
            }
        };
        tokio::time::timeout(bound, all).await.is_ok()
    }

    pub(crate) fn seen(&self) -> usize {
        self.seen.load(Ordering::Relaxed)
    }

    /// The latencies that were noted, in order.
    pub(crate) fn latencies(&self) -> Vec<u64> {
        let mut sorted = std::mem::take(&mut *self.latencies.lock().expect("no panic"));
        sorted.sort_unstable();
        sorted
    }

    pub(crate) fn close(&self) {
        for task in self.tasks.lock().expect("no panic").drain(..) {
            task.abort();
        }
    }
}

/// Opens a watch: its socket, and what came behind the head. Kubernetes' server asks who comes too fast to come again.
async fn watch(address: SocketAddr, request: &str) -> (TcpStream, Vec<u8>) {
    loop {
        let mut socket = TcpStream::connect(address).await.expect("a server that takes so many");
        socket.write_all(request.as_bytes()).await.expect("a server that reads");
        let mut text = Vec::new();
        while memchr::memmem::find(&text, b"\r\n\r\n").is_none() {
            assert!(
                socket.read_buf(&mut text).await.expect("a head") > 0,
                "closed: {}",
                String::from_utf8_lossy(&text)
            );
        }
        if text.starts_with(b"HTTP/1.1 200") {
            let at = memchr::memmem::find(&text, b"\r\n\r\n").unwrap_or_default();
            return (socket, text.split_off(at + 4));
        }
        assert!(text.starts_with(b"HTTP/1.1 429"), "{}", String::from_utf8_lossy(&text));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
