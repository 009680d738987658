//! Runs slow reads on blocking threads, at most one fewer than there are CPUs, so that they do not delay watches.
//!
//! tokio runs several hundred blocking tasks at a time, and queues the rest without a bound. Clients may send requests,
//! abandon them, and send more; ten thousand clients may send requests at once. So each pool limits how many reads run.
//! A read that has not begun is discarded with its request. Each client has its own queue, and the queues are served
//! round-robin, however long one of them is. Lists have a pool of their own, so that metrics and health pages do not
//! wait for them.

use super::ClientId;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use watchcore::{Cache, Code, DEFAULT_WAIT, Error, Result};

/// In a cache with more objects than this, reading all of them takes about a millisecond.
const MAX_INLINE_OBJECTS: u64 = 10_000;

/// Whether a read that visits every key of the cache belongs on a blocking thread.
pub(crate) fn is_large(cache: &Cache) -> bool {
    cache.objects() > MAX_INLINE_OBJECTS
}

/// Deadline for reads of statistics to begin: the same as for lists.
pub(crate) fn read_deadline() -> Instant {
    Instant::now() + DEFAULT_WAIT
}

/// How many reads of one pool run at a time.
fn max_running() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| processors.get() - 1).max(1)
}

/// A pool of blocking reads of one kind.
#[derive(Default)]
pub(crate) struct BlockingPool(Mutex<Queues>);

#[derive(Default)]
struct Queues {
    running: usize,
    /// Clients with waiting reads, in the order in which they are served. Each has a non-empty queue.
    order: VecDeque<ClientId>,
    waiting: HashMap<ClientId, VecDeque<oneshot::Sender<PoolPermit>>>,
}

/// The permit to run a read; dropping it passes it on to the next read.
struct PoolPermit(Arc<BlockingPool>);

impl BlockingPool {
    /// Runs `work` on a blocking thread, and returns its result. If the future is dropped before the work begins, it
    /// never runs.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the read has not begun at the deadline; INTERNAL if it panics, or the runtime shuts down
    /// first.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        client: &ClientId,
        until: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let permit = timeout_at(until, self.permit(client)).await.map_err(|_| {
            let message = format!(
                "{client} has asked for more than could be read in this time: ask for less at a time, or try again"
            );
            Error::new(Code::ResourceExhausted, message)
        })?;
        let work = move || {
            // Work that has begun continues if its request is dropped, and keeps its permit until it ends.
            let _permit = permit;
            work()
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| Error::new(Code::Internal, format!("the answer could not be made: {error}")))
    }

    /// Waits for a permit.
    async fn permit(self: &Arc<Self>, client: &ClientId) -> PoolPermit {
        loop {
            let waiting = {
                let mut queues = self.lock();
                if queues.running < max_running() {
                    queues.running += 1;
                    return PoolPermit(self.clone());
                }
                let (sender, waiting) = oneshot::channel();
                let Queues { order, waiting: all, .. } = &mut *queues;
                let queue = all.entry(client.clone()).or_default();
                if queue.is_empty() {
                    order.push_back(client.clone());
                }
                queue.push_back(sender);
                waiting
            };
            // Never an error: the sender is dropped only with the queues, which `self` keeps alive.
            if let Ok(permit) = waiting.await {
                return permit;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        // A panic cannot leave half a change: no code below this lock panics between two related writes.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queues {
    /// Takes the next waiting read: the first one of the client whose turn it is. That client then moves to the end of
    /// the order.
    fn next(&mut self) -> Option<oneshot::Sender<PoolPermit>> {
        let client = self.order.pop_front()?;
        let queue = self.waiting.get_mut(&client)?;
        let next = queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(&client);
        } else {
            self.order.push_back(client);
        }
        next
    }
}

impl Drop for PoolPermit {
    fn drop(&mut self) {
        let next = {
            let mut queues = self.0.lock();
            // Reads whose request was dropped meanwhile are skipped.
            let next = std::iter::from_fn(|| queues.next()).find(|next| !next.is_closed());
            if next.is_none() {
                queues.running -= 1;
            }
            next
        };
        if let Some(next) = next {
            // If the request is dropped at this moment, the unsent permit is dropped, and passed on in the same way.
            drop(next.send(PoolPermit(self.0.clone())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc;
    use std::time::Duration;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(600)
    }

    #[tokio::test]
    async fn as_many_run_as_there_are_turns() {
        let pool = Arc::new(BlockingPool::default());
        let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut reads = tokio::task::JoinSet::new();
        for _ in 0..300 {
            let (pool, now, peak) = (pool.clone(), now.clone(), peak.clone());
            reads.spawn(async move {
                let read = pool.run(&ClientId::Unknown, later(), move || {
                    peak.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                    // Gives other reads the time to begin.
                    std::thread::sleep(Duration::from_millis(1));
                    now.fetch_sub(1, SeqCst);
                });
                read.await
            });
        }
        while let Some(read) = reads.join_next().await {
            read.unwrap().unwrap();
        }
        let peak = peak.load(SeqCst);
        assert!(peak <= max_running(), "{peak} reads at a time");
    }

    /// Occupies the whole pool until the returned senders are dropped.
    async fn occupied(pool: &Arc<BlockingPool>) -> Vec<mpsc::Sender<()>> {
        let mut gates = Vec::new();
        for _ in 0..max_running() {
            let (gate, opened) = mpsc::channel::<()>();
            let (begun, begins) = oneshot::channel();
            let pool = pool.clone();
            tokio::spawn(async move {
                let read = pool.run(&ClientId::Unknown, later(), move || {
                    begun.send(()).unwrap();
                    let _ = opened.recv();
                });
                read.await
            });
            begins.await.unwrap();
            gates.push(gate);
        }
        gates
    }

    #[tokio::test]
    async fn read_that_nobody_waits_for_is_not_done() {
        let pool = Arc::new(BlockingPool::default());
        let gates = occupied(&pool).await;
        let done = Arc::new(AtomicUsize::new(0));
        let read = |done: Arc<AtomicUsize>| {
            let pool = pool.clone();
            async move { pool.run(&ClientId::Unknown, later(), move || done.fetch_add(1, SeqCst)).await }
        };
        let waiting = tokio::spawn(read(done.clone()));
        tokio::task::yield_now().await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        let last = tokio::spawn(read(done.clone()));
        drop(gates);
        last.await.unwrap().unwrap();
        assert_eq!(done.load(SeqCst), 1, "only the one that was waited for");
    }

    #[tokio::test]
    async fn turn_that_does_not_come_is_refused() {
        let pool = Arc::new(BlockingPool::default());
        let gates = occupied(&pool).await;
        let late = pool.run(&ClientId::User("mallory".into()), Instant::now(), || ()).await;
        let error = late.unwrap_err();
        assert!(error.code() == Code::ResourceExhausted && error.message().contains("user \"mallory\""), "{error}");
        drop(gates);
        pool.run(&ClientId::Unknown, later(), || ()).await.unwrap();
    }

    /// A client with a hundred waiting reads is served between clients with one each.
    #[tokio::test]
    async fn clients_have_their_turns_one_after_the_other() {
        let pool = Arc::new(BlockingPool::default());
        let gates = occupied(&pool).await;
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut reads = tokio::task::JoinSet::new();
        for (name, count) in [("mallory", 100), ("alice", 1), ("bob", 2)] {
            for _ in 0..count {
                let (pool, served) = (pool.clone(), served.clone());
                reads.spawn(async move {
                    let client = ClientId::User(name.into());
                    pool.run(&client, later(), move || served.lock().unwrap().push(name)).await
                });
                // Each read is queued before the next one is spawned.
                tokio::task::yield_now().await;
            }
        }
        drop(gates);
        while let Some(read) = reads.join_next().await {
            read.unwrap().unwrap();
        }
        let served = served.lock().unwrap();
        let last = |name| served.iter().rposition(|served| *served == name).unwrap();
        // Concurrent reads may end in another order than they began.
        assert!(last("alice") < 3 + max_running() && last("bob") < 5 + 2 * max_running(), "{:?}", &served[..12]);
    }
}
