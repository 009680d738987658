//! Runs slow reads on blocking threads, at most one fewer than there are CPUs, so that they do not delay watches.
//!
//! tokio runs several hundred blocking tasks at a time, and queues the rest without a bound. Clients may send requests,
//! abandon them, and send more; ten thousand clients may send requests at once. So each pool limits how many reads run.
//! A read that has not begun is discarded with its request. Each client has its own queue, and the queues are served
//! round-robin, however long one of them is. Lists have a pool of their own, so that metrics and health pages do not
//! wait for them.

use super::Who;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use watchcore::{Cache, Code, DEFAULT_WAIT, Error, Result};

/// In a cache with more objects than this, reading all of them takes about a millisecond.
const AT_ONCE: u64 = 10_000;

/// Whether a read that visits every key of the cache belongs on a blocking thread.
pub(crate) fn is_large(cache: &Cache) -> bool {
    cache.objects() > AT_ONCE
}

/// Deadline for reads of statistics to begin: the same as for lists.
pub(crate) fn soon() -> Instant {
    Instant::now() + DEFAULT_WAIT
}

/// How many reads of one pool run at a time.
fn most() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| processors.get() - 1).max(1)
}

/// A pool of blocking reads of one kind.
#[derive(Default)]
pub(crate) struct Turns(Mutex<Queues>);

#[derive(Default)]
struct Queues {
    running: usize,
    /// Clients with waiting reads, in the order in which they are served. Each has a non-empty queue.
    order: VecDeque<Who>,
    waiting: HashMap<Who, VecDeque<oneshot::Sender<Turn>>>,
}

/// The permit to run a read; dropping it passes it on to the next read.
struct Turn(Arc<Turns>);

impl Turns {
    /// Runs `work` on a blocking thread, and returns its result. If the future is dropped before the work begins, it
    /// never runs.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the read has not begun at the deadline; INTERNAL if it panics, or the runtime shuts down
    /// first.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        who: &Who,
        until: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let turn = timeout_at(until, self.turn(who)).await.map_err(|_| {
            let message = format!(
                "{who} has asked for more than could be read in this time: ask for less at a time, or try again"
            );
            Error::new(Code::ResourceExhausted, message)
        })?;
        let work = move || {
            // Work that has begun continues if its request is dropped, and keeps its permit until it ends.
            let _turn = turn;
            work()
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| Error::new(Code::Internal, format!("the answer was not made: {error}")))
    }

    /// Waits for a permit.
    async fn turn(self: &Arc<Self>, who: &Who) -> Turn {
        loop {
            let waiting = {
                let mut queues = self.lock();
                if queues.running < most() {
                    queues.running += 1;
                    return Turn(self.clone());
                }
                let (sender, waiting) = oneshot::channel();
                let Queues { order, waiting: all, .. } = &mut *queues;
                let queue = all.entry(who.clone()).or_default();
                if queue.is_empty() {
                    order.push_back(who.clone());
                }
                queue.push_back(sender);
                waiting
            };
            // Never an error: the sender is dropped only with the queues, which `self` keeps alive.
            if let Ok(turn) = waiting.await {
                return turn;
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
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let who = self.order.pop_front()?;
        let queue = self.waiting.get_mut(&who)?;
        let next = queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(&who);
        } else {
            self.order.push_back(who);
        }
        next
    }
}

impl Drop for Turn {
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
            drop(next.send(Turn(self.0.clone())));
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
        let turns = Arc::new(Turns::default());
        let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut reads = tokio::task::JoinSet::new();
        for _ in 0..300 {
            let (turns, now, peak) = (turns.clone(), now.clone(), peak.clone());
            reads.spawn(async move {
                let read = turns.run(&Who::Somebody, later(), move || {
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
        assert!(peak <= most(), "{peak} reads at a time");
    }

    /// Occupies the whole pool until the returned senders are dropped.
    async fn taken(turns: &Arc<Turns>) -> Vec<mpsc::Sender<()>> {
        let mut gates = Vec::new();
        for _ in 0..most() {
            let (gate, opened) = mpsc::channel::<()>();
            let (begun, begins) = oneshot::channel();
            let turns = turns.clone();
            tokio::spawn(async move {
                let read = turns.run(&Who::Somebody, later(), move || {
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
        let turns = Arc::new(Turns::default());
        let gates = taken(&turns).await;
        let done = Arc::new(AtomicUsize::new(0));
        let read = |done: Arc<AtomicUsize>| {
            let turns = turns.clone();
            async move { turns.run(&Who::Somebody, later(), move || done.fetch_add(1, SeqCst)).await }
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
        let turns = Arc::new(Turns::default());
        let gates = taken(&turns).await;
        let late = turns.run(&Who::User("mallory".into()), Instant::now(), || ()).await;
        let error = late.unwrap_err();
        assert!(error.code() == Code::ResourceExhausted && error.message().contains("user \"mallory\""), "{error}");
        drop(gates);
        turns.run(&Who::Somebody, later(), || ()).await.unwrap();
    }

    /// A client with a hundred waiting reads is served between clients with one each.
    #[tokio::test]
    async fn clients_have_their_turns_one_after_the_other() {
        let turns = Arc::new(Turns::default());
        let gates = taken(&turns).await;
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut reads = tokio::task::JoinSet::new();
        for (name, count) in [("mallory", 100), ("alice", 1), ("bob", 2)] {
            for _ in 0..count {
                let (turns, served) = (turns.clone(), served.clone());
                reads.spawn(async move {
                    let who = Who::User(name.into());
                    turns.run(&who, later(), move || served.lock().unwrap().push(name)).await
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
        assert!(last("alice") < 3 + most() && last("bob") < 5 + 2 * most(), "{:?}", &served[..12]);
    }
}
