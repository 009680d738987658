//! What takes long in a large cache, and so is done elsewhere than where others wait for their turn.
//!
//! tokio gives out some hundred threads that may block, and keeps what finds none of them in a queue without an end. A
//! client may ask, go, and ask again; ten thousand may ask at once. So no more reads run than there are processors, a read
//! that has not begun goes with the request that wants it, and the threads of the runtime keep their part.

use std::sync::LazyLock;
use tokio::sync::Semaphore;
use watchcore::{Cache, Code, Error, Result};

/// In a cache of more objects than this a read of all of them takes about a millisecond.
pub(super) const AT_ONCE: u64 = 10_000;

/// As many reads as run at a time.
static READERS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(readers()));

fn readers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Whether what visits every key of a cache is to be done elsewhere.
pub(super) fn is_large(cache: &Cache) -> bool {
    cache.status().objects > AT_ONCE
}

/// What a read comes to that is done on a thread that may block. Where this is dropped, a read that has not begun is not
/// done.
///
/// # Errors
/// INTERNAL where the read panics, or the runtime ends before it.
pub(super) async fn elsewhere<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let failed = |why: String| Error::new(Code::Internal, format!("the list was not read: {why}"));
    let turn = READERS.acquire().await.map_err(|closed| failed(closed.to_string()))?;
    let read = move || {
        // Where the request is dropped meanwhile, the read goes on: it keeps its turn until it is done.
        let _turn = turn;
        read()
    };
    tokio::task::spawn_blocking(read).await.map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc;
    use std::time::Duration;

    #[tokio::test]
    async fn reads_are_as_many_as_processors() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut reads = tokio::task::JoinSet::new();
        for _ in 0..300 {
            let (now, most) = (now.clone(), most.clone());
            reads.spawn(elsewhere(move || {
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                // Others have the time to begin.
                std::thread::sleep(Duration::from_millis(1));
                now.fetch_sub(1, SeqCst);
            }));
        }
        while let Some(read) = reads.join_next().await {
            read.unwrap().unwrap();
        }
        let most = most.load(SeqCst);
        assert!(most <= readers(), "{most} reads at a time");
    }

    #[tokio::test]
    async fn read_that_nobody_waits_for_is_not_done() {
        let (begun, mut all_begun) = tokio::sync::mpsc::unbounded_channel();
        let gates: Vec<mpsc::Sender<()>> = (0..readers())
            .map(|_| {
                let (gate, opened) = mpsc::channel::<()>();
                let begun = begun.clone();
                tokio::spawn(elsewhere(move || {
                    begun.send(()).unwrap();
                    let _ = opened.recv();
                }));
                gate
            })
            .collect();
        for _ in &gates {
            all_begun.recv().await.unwrap();
        }
        let done = Arc::new(AtomicUsize::new(0));
        let read = |done: Arc<AtomicUsize>| elsewhere(move || done.fetch_add(1, SeqCst));
        let waiting = tokio::spawn(read(done.clone()));
        tokio::task::yield_now().await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        let last = tokio::spawn(read(done.clone()));
        drop(gates);
        last.await.unwrap().unwrap();
        assert_eq!(done.load(SeqCst), 1, "only the one that was waited for");
    }
}
