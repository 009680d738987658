//! Which watches are open, how many may be, and how all of them end.

use crate::exchange::Exchange;
use crate::status::Refusal;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use watchcore::{Closer, Subscription};

/// All open watches of an [`Api`](crate::Api).
#[derive(Default)]
pub(crate) struct OpenWatches {
    limit: usize,
    of_connection: usize,
    open: Mutex<Open>,
    /// Figures: Relaxed.
    events: AtomicU64,
    bytes: AtomicU64,
    refused: AtomicU64,
}

#[derive(Default)]
struct Open {
    /// Each with what closes it, once its subscription stands.
    watches: HashMap<u64, Option<Closer>>,
    next: u64,
    /// No more is admitted: the server ends.
    draining: bool,
}

/// A place among the open watches. It goes back when the watch ends, or this is dropped.
pub(crate) struct OpenWatch {
    all: Arc<OpenWatches>,
    number: u64,
    connection: Option<Arc<AtomicUsize>>,
    /// The request that opened it is done when it is.
    exchange: Option<Arc<Exchange>>,
}

impl OpenWatches {
    /// At most `limit` watches in all, and `of_connection` of one connection.
    pub(crate) fn new(limit: usize, of_connection: usize) -> Arc<OpenWatches> {
        Arc::new(OpenWatches { limit, of_connection, ..OpenWatches::default() })
    }

    /// A place, if there is one. `connection` counts those of the connection that asks.
    pub(crate) fn admit(self: &Arc<Self>, connection: Option<&Arc<AtomicUsize>>) -> Result<OpenWatch, Refusal> {
        let mut open = self.lock();
        let full = if open.draining {
            Some("the server is shutting down: watch another one, or this one later".to_owned())
        } else if open.watches.len() >= self.limit {
            Some(format!("there are {} watches already, the most of this server: try again later", self.limit))
        } else if connection.is_some_and(|count| count.load(Relaxed) >= self.of_connection) {
            Some(format!("this connection has {} watches already, the most of one: open another", self.of_connection))
        } else {
            None
        };
        if let Some(why) = full {
            self.refused.fetch_add(1, Relaxed);
            return Err(Refusal::too_many(why, 1));
        }
        // Relaxed: it is added to and compared under the lock alone.
        if let Some(count) = connection {
            count.fetch_add(1, Relaxed);
        }
        let number = open.next;
        open.next += 1;
        open.watches.insert(number, None);
        Ok(OpenWatch { all: self.clone(), number, connection: connection.cloned(), exchange: None })
    }

    /// Ends all watches, spread over `grace`, and admits no more. Returns when each was told to end; they go when their
    /// transports have written what they had.
    pub(crate) async fn drain(&self, grace: Duration) {
        let open: Vec<u64> = {
            let mut open = self.lock();
            open.draining = true;
            open.watches.keys().copied().collect()
        };
        let step = grace.checked_div(open.len() as u32).unwrap_or_default();
        let begin = tokio::time::Instant::now();
        for (at, number) in open.into_iter().enumerate() {
            // A grace time beyond what clocks can say never ends: who gives it waits for clients to go by themselves.
            match begin.checked_add(step * at as u32) {
                Some(turn) => tokio::time::sleep_until(turn).await,
                None => std::future::pending().await,
            }
            // Outside of the lock: closing wakes the watch, which may go at once.
            let closer = self.lock().watches.get(&number).cloned().flatten();
            if let Some(closer) = closer {
                closer.close();
            }
        }
    }

    /// Whether the server ends.
    pub(crate) fn is_draining(&self) -> bool {
        self.lock().draining
    }

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        self.lock().watches.len()
    }

    /// (events, bytes) that were framed for transports, and watches that were refused.
    pub(crate) fn figures(&self) -> (u64, u64, u64) {
        (self.events.load(Relaxed), self.bytes.load(Relaxed), self.refused.load(Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        // Nothing in here panics between two changes that belong together.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenWatch {
    /// From now on a drain ends this subscription; at once, if it began meanwhile.
    pub(crate) fn follow(&mut self, subscription: &Subscription) {
        let closer = subscription.closer();
        let mut open = self.all.lock();
        open.watches.insert(self.number, Some(closer.clone()));
        let draining = open.draining;
        drop(open);
        if draining {
            closer.close();
        }
    }

    /// The request that asked is logged when this is dropped, with what was framed.
    pub(crate) fn account(&mut self, exchange: Option<&Arc<Exchange>>) {
        if let Some(exchange) = exchange {
            exchange.watches();
        }
        self.exchange = exchange.cloned();
    }

    /// Counts what was framed.
    pub(crate) fn sent(&self, events: usize, bytes: usize) {
        if let Some(exchange) = &self.exchange {
            exchange.framed(bytes);
        }
        if events > 0 {
            self.all.events.fetch_add(events as u64, Relaxed);
            self.all.bytes.fetch_add(bytes as u64, Relaxed);
        }
    }

    /// Gives the place back before this is dropped.
    pub(crate) fn leave(&mut self) {
        let mut open = self.all.lock();
        // It is there until it has left once.
        let Some(closer) = open.watches.remove(&self.number) else { return };
        if let Some(count) = &self.connection {
            count.fetch_sub(1, Relaxed);
        }
        drop(open);
        drop(closer);
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.leave();
    }
}
