//! Work of some milliseconds, done on other threads than those on which watches wait for their turn.
//!
//! tokio gives out some hundred threads that may block, and keeps what finds none of them in a queue without an end. A
//! client may ask, go, and ask again; ten thousand may ask at once. So of each kind no more run than there are
//! processors, and one is left for everything else; what has not begun goes with the request that wants it. Clients
//! have their turns one after the other, however much one of them asks for: the queue of each is its own. Lists have
//! turns of their own, so that who asks how the server does need not wait for all of them.

use super::Who;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use watchcore::{Cache, Code, DEFAULT_WAIT, Error, Result};

/// In a cache of more objects than this a read of all of them takes about a millisecond.
const AT_ONCE: u64 = 10_000;

/// Whether what visits every key of a cache is to be done elsewhere.
pub(crate) fn is_large(cache: &Cache) -> bool {
    cache.objects() > AT_ONCE
}

/// Until when a turn is waited for by who asks for figures: as long as who asks for a list.
pub(crate) fn soon() -> Instant {
    Instant::now() + DEFAULT_WAIT
}

/// How many of a kind run at a time.
fn most() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| processors.get() - 1).max(1)
}

/// The turns of one kind.
#[derive(Default)]
pub(crate) struct Turns(Mutex<Queues>);

#[derive(Default)]
struct Queues {
    running: usize,
    /// Clients that wait, in the order of their turns. Each has a queue that is not empty.
    order: VecDeque<Who>,
    waiting: HashMap<Who, VecDeque<oneshot::Sender<Turn>>>,
}

/// A turn, until it is dropped.
struct Turn(Arc<Turns>);

impl Turns {
    /// Runs `work` on a thread that may block, and returns its result. A future that is dropped before its turn does no work.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where the turn of the client does not come until then; INTERNAL where it panics, or the runtime
    /// ends before it.
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
            // Work that has begun goes on where its request is dropped, and keeps its turn until it is done.
            let _turn = turn;
            work()
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| Error::new(Code::Internal, format!("the answer was not made: {error}")))
    }

    /// The next turn of a client.
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
            // The sender is dropped with the queues alone, and `self` holds these.
            if let Ok(turn) = waiting.await {
                return turn;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        // No code under this lock panics between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queues {
    /// Takes the next request: the first one of the client whose turn it is. That client then waits behind the others.
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
            // Requests that were dropped meanwhile take no turn.
            let next = std::iter::from_fn(|| queues.next()).find(|next| !next.is_closed());
            if next.is_none() {
                queues.running -= 1;
            }
            next
        };
        if let Some(next) = next {
            // A request that is dropped at this moment drops its turn, which is passed on in the same way.
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
                    // Others have the time to begin.
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

    /// All turns are taken until the gates are dropped.
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

    /// A client that has asked for a hundred reads is served between clients that ask for one each.
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
                // Each is in the queue before the next comes.
                tokio::task::yield_now().await;
            }
        }
        drop(gates);
        while let Some(read) = reads.join_next().await {
            read.unwrap().unwrap();
        }
        let served = served.lock().unwrap();
        let last = |name| served.iter().rposition(|served| *served == name).unwrap();
        // With several turns at a time two that run beside each other may end in another order.
        assert!(last("alice") < 3 + most() && last("bob") < 5 + 2 * most(), "{:?}", &served[..12]);
    }
}
