//! The open watches: their limits, and the ways in which they are ended from outside.

use crate::access::{Access, Admission, Verdict};
use crate::catalog::stale_for;
use crate::clients::{ClientId, ClientPermit, ClientPermits, Full};
use crate::request_record::RequestRecord;
use crate::status::Refusal;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use watchcore::{Cache, Closer, Error, Subscription};

/// Bounds on the time between two checks for overdue watches.
const TICKS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// Number of intervals for which a watch lasts without being confirmed.
pub(super) const MAX_MISSED: u32 = 4;

/// The hooks that recheck open watches, and the interval.
pub(crate) struct Recheck {
    pub(crate) access: Arc<Access>,
    /// Time from the end of one pass to the beginning of the next.
    pub(crate) interval: Duration,
}

impl Recheck {
    /// Returns the time for which a watch lasts without being confirmed.
    fn unconfirmed_limit(&self) -> Duration {
        self.interval.saturating_mul(MAX_MISSED)
    }
}

/// All open watches of an [`Api`](crate::Api).
pub(crate) struct OpenWatches {
    permits: Arc<ClientPermits>,
    of_connection: usize,
    /// How long after its deadline a transport may leave a watch unpolled.
    grace: Duration,
    /// How long a cache may be without its source before the watches on it end.
    stale_limit: Duration,
    open: Mutex<Open>,
    /// Counters. Relaxed: independent statistics.
    events: AtomicU64,
    bytes: AtomicU64,
    refused: AtomicU64,
    revoked: AtomicU64,
    /// Re-authorization of open watches; `None` in tests.
    recheck: Option<Recheck>,
}

#[derive(Default)]
struct Open {
    watches: HashMap<u64, Entry>,
    /// The recheck task, if it runs.
    judging: Option<AbortHandle>,
    next: u64,
    /// Whether the task runs that ends overdue watches.
    has_overdue_task: bool,
    /// Whether the server shuts down, so that no more watches are admitted.
    draining: bool,
}

/// Ends overdue watches, until none is open.
async fn end_overdue_periodically(all: Weak<OpenWatches>) {
    loop {
        let Some(tick) = all.upgrade().map(|all| (all.grace / 8).clamp(TICKS[0], TICKS[1])) else { return };
        tokio::time::sleep(tick).await;
        let Some(all) = all.upgrade() else { return };
        all.end_overdue(Instant::now());
        let mut open = all.lock();
        if open.watches.is_empty() {
            // Under the lock, so that the next watch starts a new task.
            open.has_overdue_task = false;
            return;
        }
    }
}

/// Returns the message for a reached limit.
fn limit_message(full: Full, client: &ClientId) -> String {
    match full {
        Full::All(limit) => format!("there are {limit} watches already, the most of this server: try again later"),
        Full::Share(has) => {
            format!("{client} has {has} watches already; the rest of the limit is for other clients: try again later")
        }
    }
}

/// The shared record of an open watch.
struct Entry {
    /// Closes the subscription, once it is open.
    closer: Option<Closer>,
    /// When the watch is overdue: its deadline plus the time that its transport may leave it unpolled.
    until: Option<Instant>,
    /// The admission, if it can be rechecked, and the time of the last confirmation.
    admission: Option<Arc<Admission>>,
    confirmed: Instant,
    /// Number of passes since then in which a hook was asked and did not answer.
    missed: u32,
    revocation: Arc<Revocation>,
    connection: Option<Arc<AtomicUsize>>,
    _permit: ClientPermit,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(count) = &self.connection {
            count.fetch_sub(1, Relaxed);
        }
    }
}

/// The order to end a watch whose user no longer exists or may no longer watch. Shared by the entry and the stream.
#[derive(Default)]
pub(crate) struct Revocation {
    error: OnceLock<Error>,
    revoked: Notify,
}

impl Revocation {
    /// Returns the error to send to the client, once the watch has to end.
    pub(crate) fn error(&self) -> Option<&Error> {
        self.error.get()
    }

    /// Waits until the watch has to end. At most one task may wait, because `notify_one` wakes one.
    pub(crate) async fn revoked(&self) -> &Error {
        loop {
            // If the error is set between the check and the wait, `notify_one` has stored a permit, and the wait
            // returns at once.
            match self.error.get() {
                Some(error) => return error,
                None => self.revoked.notified().await,
            }
        }
    }
}

/// The permit of an open watch. It is returned when the watch ends, or this is dropped.
pub(crate) struct OpenWatch {
    all: Arc<OpenWatches>,
    pub(super) number: u64,
    revocation: Arc<Revocation>,
    /// Keeps the request's record open: the request is counted and logged when the watch ends.
    pub(super) record: Option<Arc<RequestRecord>>,
}

impl OpenWatches {
    /// Creates the registry with `limit` watches in all, `of_connection` per connection, and `grace` for unpolled
    /// transports. Without rechecks.
    #[cfg(test)]
    pub(crate) fn new(limit: usize, of_connection: usize, grace: Duration) -> Arc<OpenWatches> {
        Arc::new(OpenWatches::of(limit, of_connection, grace, Duration::MAX, None))
    }

    /// Creates the registry with rechecks. Its watches end when their cache has been without its source for `stale_limit`.
    pub(crate) fn rechecked(
        limit: usize,
        of_connection: usize,
        grace: Duration,
        stale_limit: Duration,
        recheck: Recheck,
    ) -> Arc<OpenWatches> {
        Arc::new(OpenWatches::of(limit, of_connection, grace, stale_limit, Some(recheck)))
    }

    fn of(
        limit: usize,
        of_connection: usize,
        grace: Duration,
        stale_limit: Duration,
        recheck: Option<Recheck>,
    ) -> OpenWatches {
        OpenWatches {
            permits: ClientPermits::new(limit),
            of_connection,
            grace,
            stale_limit,
            recheck,
            open: Mutex::default(),
            events: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            revoked: AtomicU64::new(0),
        }
    }

    /// How open watches are rechecked, if they are.
    pub(super) fn recheck(&self) -> Option<&Recheck> {
        self.recheck.as_ref()
    }

    /// Has a watch rechecked by this admission. `start` starts the task that rechecks all, if none runs.
    pub(super) fn recheck_by(&self, number: u64, admission: Arc<Admission>, start: impl FnOnce() -> AbortHandle) {
        let mut open = self.lock();
        if let Some(entry) = open.watches.get_mut(&number) {
            entry.admission = Some(admission);
        }
        // The task ends with the runtime that it was started on, and the service may be used on another runtime later.
        if open.judging.as_ref().is_none_or(AbortHandle::is_finished) {
            open.judging = Some(start());
        }
    }

    /// Returns the watches to recheck in this pass. Watches whose hooks did not answer come last, so that they do not
    /// use up the time of the others. `None` if no watch has an admission: the recheck task then ends.
    pub(super) fn watches_to_recheck(&self) -> Option<Vec<(u64, Arc<Admission>)>> {
        let mut open = self.lock();
        let candidate = |(number, entry): (&u64, &Entry)| Some((entry.missed, (*number, entry.admission.clone()?)));
        let mut all: Vec<_> = open.watches.iter().filter_map(candidate).collect();
        if all.is_empty() {
            // Set under the lock, so that the next watch starts a new task.
            open.judging = None;
            return None;
        }
        drop(open);
        all.sort_by_key(|(missed, _)| *missed);
        Some(all.into_iter().map(|(_, watch)| watch).collect())
    }

    /// Applies a verdict. Returns the error with which the watch ends, if this call has ended it.
    pub(super) fn apply_verdict(&self, number: u64, verdict: Verdict) -> Option<Error> {
        let mut open = self.lock();
        let entry = open.watches.get_mut(&number)?;
        let is_asked = !matches!(verdict, Verdict::Unasked(_));
        let error = match verdict {
            Verdict::Stays => {
                (entry.confirmed, entry.missed) = (Instant::now(), 0);
                return None;
            }
            Verdict::Ends(error) => error,
            Verdict::Unknown(error) | Verdict::Unasked(error) => {
                entry.missed += u32::from(is_asked);
                let limit = self.recheck.as_ref().map(Recheck::unconfirmed_limit);
                limit.is_some_and(|limit| entry.confirmed.elapsed() >= limit).then_some(error)?
            }
        };
        // A watch is ended once; its transport may need a while to notice.
        entry.revocation.error.set(error.clone()).ok()?;
        let (closer, revocation) = (entry.closer.clone(), entry.revocation.clone());
        drop(open);
        self.revoked.fetch_add(1, Relaxed);
        // Outside the lock, because closing wakes the watch, which may return its permit at once and take the lock.
        revocation.revoked.notify_one();
        if let Some(closer) = closer {
            closer.close();
        }
        Some(error)
    }

    /// Admits a watch of a client. `connection` counts the watches of the client's connection.
    ///
    /// # Errors
    /// 429 at a limit, or during shutdown.
    pub(crate) fn admit(
        self: &Arc<Self>,
        client: &ClientId,
        connection: Option<&Arc<AtomicUsize>>,
    ) -> Result<OpenWatch, Refusal> {
        let mut open = self.lock();
        let full = if open.draining {
            Some("the server is shutting down: watch another one, or this one later".to_owned())
        } else if connection.is_some_and(|count| count.load(Relaxed) >= self.of_connection) {
            Some(format!("this connection has {} watches already, the most of one: open another", self.of_connection))
        } else {
            None
        };
        let permit = full.map_or_else(|| self.permits.acquire(client).map_err(|full| limit_message(full, client)), Err);
        let permit = permit.map_err(|why| {
            self.refused.fetch_add(1, Relaxed);
            Refusal::too_many(why, 1)
        })?;
        // Relaxed: increments and comparisons happen only under the lock.
        if let Some(count) = connection {
            count.fetch_add(1, Relaxed);
        }
        let number = open.next;
        open.next += 1;
        let revocation = Arc::<Revocation>::default();
        let entry = Entry {
            closer: None,
            until: None,
            admission: None,
            confirmed: Instant::now(),
            missed: 0,
            revocation: revocation.clone(),
            connection: connection.cloned(),
            _permit: permit,
        };
        open.watches.insert(number, entry);
        if !std::mem::replace(&mut open.has_overdue_task, true) {
            tokio::spawn(end_overdue_periodically(Arc::downgrade(self)));
        }
        Ok(OpenWatch { all: self.clone(), number, revocation, record: None })
    }

    /// Ends all watches, spread over `grace`, and admits no more. Returns when each was told to end; they disappear
    /// when their transports have written their last frames.
    pub(crate) async fn drain(&self, grace: Duration) {
        let open: Vec<u64> = {
            let mut open = self.lock();
            open.draining = true;
            open.watches.keys().copied().collect()
        };
        let step = grace.checked_div(open.len() as u32).unwrap_or_default();
        let begin = tokio::time::Instant::now();
        for (at, number) in open.into_iter().enumerate() {
            // A grace time beyond the range of the clock means to wait for the clients to leave.
            match begin.checked_add(step * at as u32) {
                Some(turn) => tokio::time::sleep_until(turn).await,
                None => std::future::pending().await,
            }
            // Outside the lock: closing wakes the watch, which may leave at once.
            let closer = self.lock().watches.get(&number).and_then(|entry| entry.closer.clone());
            if let Some(closer) = closer {
                closer.close();
            }
        }
    }

    /// Ends watches that their transport did not poll in time after their deadline: frees their permits and their hold
    /// on the log. On our own server the clock closes the connection before; other servers have no such limit.
    pub(crate) fn end_overdue(&self, now: Instant) {
        let overdue: Vec<Entry> = {
            let mut open = self.lock();
            let is_over = |watch: &Entry| watch.until.is_some_and(|until| until <= now);
            open.watches.extract_if(|_, watch| is_over(watch)).map(|(_, watch)| watch).collect()
        };
        for mut watch in overdue {
            if let Some(closer) = watch.closer.take() {
                closer.close();
            }
        }
    }

    /// Whether the server shuts down.
    pub(crate) fn is_draining(&self) -> bool {
        self.lock().draining
    }

    /// Returns the number of open watches.
    pub(crate) fn count(&self) -> usize {
        self.permits.held()
    }

    /// Returns (framed events, framed bytes, refused watches).
    pub(crate) fn counters(&self) -> (u64, u64, u64) {
        (self.events.load(Relaxed), self.bytes.load(Relaxed), self.refused.load(Relaxed))
    }

    /// Returns how many watches were ended because their user no longer exists or may no longer watch.
    pub(crate) fn revoked(&self) -> u64 {
        self.revoked.load(Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        // A panic cannot leave half a change: no code below this lock panics between two related writes.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenWatch {
    /// Lets a drain or a revocation close this subscription; closes it at once if either began already.
    pub(crate) fn follow(&mut self, subscription: &Subscription) {
        let closer = subscription.closer();
        let mut open = self.all.lock();
        if let Some(entry) = open.watches.get_mut(&self.number) {
            entry.closer = Some(closer.clone());
        }
        let ends = open.draining || self.revocation.error().is_some();
        drop(open);
        if ends {
            closer.close();
        }
    }

    /// Whether a cache has been without its source for longer than the limit.
    pub(crate) fn is_too_stale(&self, cache: &Cache) -> bool {
        stale_for(cache).is_some_and(|age| age > self.all.stale_limit)
    }

    /// Returns the shared order to end this watch.
    pub(crate) fn revocation(&self) -> &Arc<Revocation> {
        &self.revocation
    }

    /// Sets the deadline. The stream ends itself then if its transport polls it; otherwise `end_overdue` ends it later.
    pub(crate) fn ends_at(&mut self, deadline: Instant) {
        let until = deadline.checked_add(self.all.grace);
        if let Some(watch) = self.all.lock().watches.get_mut(&self.number) {
            watch.until = until;
        }
    }

    /// Counts framed events and bytes.
    pub(crate) fn sent(&self, events: usize, bytes: usize) {
        if let Some(record) = &self.record {
            record.add_watch_bytes(bytes);
        }
        if events > 0 {
            self.all.events.fetch_add(events as u64, Relaxed);
            self.all.bytes.fetch_add(bytes as u64, Relaxed);
        }
    }

    /// Returns the permit before this is dropped.
    pub(crate) fn release(&mut self) {
        // Dropped after the lock is released. Later calls find no entry.
        let entry = self.all.lock().watches.remove(&self.number);
        drop(entry);
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.release();
    }
}
