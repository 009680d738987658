//! What takes some milliseconds, and so is done elsewhere than where watches wait for their turn.
//!
//! tokio gives out some hundred threads that may block, and keeps what finds none of them in a queue without an end. A
//! client may ask, go, and ask again; ten thousand may ask at once. So of each kind no more run than there are processors,
//! what has not begun goes with the request that wants it, and the threads of the runtime keep their part. Lists have their
//! own turns, so that who asks how the server does need not wait for all of them.

use std::sync::LazyLock;
use tokio::sync::Semaphore;
use watchcore::{Cache, Code, Error, Result};

/// In a cache of more objects than this a read of all of them takes about a millisecond.
pub(crate) const AT_ONCE: u64 = 10_000;

/// Reads of all of a large cache.
pub(crate) static LISTS: Turns = Turns(LazyLock::new(turns));

/// What is gathered of all resources, caches or subscriptions.
pub(crate) static FIGURES: Turns = Turns(LazyLock::new(turns));

/// As many of one kind as run at a time.
pub(crate) struct Turns(LazyLock<Semaphore>);

fn turns() -> Semaphore {
    Semaphore::new(processors())
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Whether what visits every key of a cache is to be done elsewhere.
pub(crate) fn is_large(cache: &Cache) -> bool {
    cache.objects() > AT_ONCE
}

impl Turns {
    /// What `work` comes to on a thread that may block. Where this is dropped before it has begun, it is not done.
    ///
    /// # Errors
    /// INTERNAL where it panics, or the runtime ends before it.
    pub(crate) async fn run<T: Send + 'static>(&'static self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let failed = |why: String| Error::new(Code::Internal, format!("the answer was not made: {why}"));
        // The turns of a static are never closed.
        let turn = self.0.acquire().await.map_err(|closed| failed(closed.to_string()))?;
        let work = move || {
            // Where the request is dropped meanwhile, it goes on: it keeps its turn until it is done.
            let _turn = turn;
            work()
        };
        tokio::task::spawn_blocking(work).await.map_err(|error| failed(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc;
    use std::time::Duration;

    #[tokio::test]
    async fn as_many_run_as_there_are_processors() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut reads = tokio::task::JoinSet::new();
        for _ in 0..300 {
            let (now, most) = (now.clone(), most.clone());
            reads.spawn(LISTS.run(move || {
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
        assert!(most <= processors(), "{most} reads at a time");
    }

    #[tokio::test]
    async fn read_that_nobody_waits_for_is_not_done() {
        let (begun, mut all_begun) = tokio::sync::mpsc::unbounded_channel();
        let gates: Vec<mpsc::Sender<()>> = (0..processors())
            .map(|_| {
                let (gate, opened) = mpsc::channel::<()>();
                let begun = begun.clone();
                tokio::spawn(LISTS.run(move || {
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
        let read = |done: Arc<AtomicUsize>| LISTS.run(move || done.fetch_add(1, SeqCst));
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
