//! State that the handle and the thread of a feeder share.

use super::counters::Counts;
use super::unanswered::ProgressAnswers;
use crate::log::log;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use watchcore::{Error, Position, Source, SourceMetric, Writer};

/// State shared by handle, thread and cache.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) counts: Counts,
    /// Notified once, by stop.
    pub(super) stop: Notify,
    /// Notified when a caller begins to wait for a revision, or requests a resync.
    pub(super) watch: Notify,
    /// Notified when a caller begins to wait for a consistent read.
    pub(super) tickets: Notify,
    /// Notified when the cache may have been closed.
    pub(super) life: Notify,
    /// Notified when a compaction is requested, and when the cache moves while a requested one waits.
    pub(super) compaction: Notify,
    /// The epoch of the cache, stored after each listing. Release, paired with the Acquire load in
    /// `request_compaction`.
    epoch: AtomicU64,
    /// The greatest requested compaction that is not yet taken, with the epoch of the request.
    compact_to: Mutex<Option<Position>>,
    /// Whether a requested compaction waits for the cache. Used only by the feeder's thread.
    pub(super) compaction_waits: AtomicBool,
    pub(super) resync: AtomicBool,
    /// Whether progress requests are answered.
    pub(super) progress: ProgressAnswers,
    /// The revision that a consistent read waits for; 0: none does. Used only by the feeder's thread.
    awaited: AtomicU64,
    /// The revision up to which a history is replayed before the cache is Ready. Used only by the feeder's thread.
    pub(super) catches_up_to: AtomicU64,
    /// Notified when a session continues without a listing: the whole cache is to be compared.
    pub(super) audit: Notify,
    /// Whether a comparison found that the cache and etcd differ. Used only by the feeder's thread.
    reset: AtomicBool,
    /// Whether a consistent read says that etcd's history went back. Used only by the feeder's thread.
    doubt: AtomicBool,
    /// When the client's certificate expires, in Unix time; 0 without one.
    pub(super) certificate_expires: AtomicU64,
    last_error: Mutex<Option<Error>>,
    ended: Mutex<bool>,
    ends: Condvar,
    /// The deadline of every wait for the end, set by the first stop.
    stop_deadline: OnceLock<Instant>,
    /// Whether a missed deadline was already logged.
    pub(super) overdue: AtomicBool,
}

impl Source for Shared {
    fn wake(&self) {
        self.watch.notify_one();
        self.tickets.notify_one();
        self.life.notify_one();
    }

    fn metrics(&self, each: &mut dyn FnMut(SourceMetric)) {
        self.counts.metrics(each);
        let expires = self.certificate_expires.load(Ordering::Relaxed);
        if expires > 0 {
            let help = "When the client's certificate that new connections show expires, in Unix time.";
            each(SourceMetric::gauge("client_certificate_expires_timestamp_seconds", help, expires));
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn request_resync(&self) {
        self.resync.store(true, Ordering::Release);
        self.watch.notify_one();
    }

    pub(super) fn take_resync(&self) -> bool {
        self.resync.swap(false, Ordering::AcqRel)
    }

    /// Records that a consistent read says etcd's history went back: the session has to check.
    pub(super) fn doubt(&self) {
        self.doubt.store(true, Ordering::Relaxed);
        self.watch.notify_one();
    }

    pub(super) fn take_doubt(&self) -> bool {
        self.doubt.swap(false, Ordering::Relaxed)
    }

    /// Records that the cache holds the same state as etcd at `revision`, which is above the cache's position: a
    /// progress request would have been answered.
    pub(super) fn progress_is_missing(&self, writer: &mut Writer, revision: u64) {
        if revision >= self.catches_up_to.load(Ordering::Relaxed) {
            writer.caught_up();
        }
        if self.progress.miss() {
            self.counts.progress_unanswered.store(1, Ordering::Relaxed);
            log!(
                warn,
                revision,
                "requests for progress are not answered, though etcd has moved on: something between drops them"
            );
            self.watch.notify_one();
        }
    }

    /// The revision that a consistent read waits for: the watch requests progress up to there.
    pub(super) fn awaited(&self) -> u64 {
        self.awaited.load(Ordering::Relaxed)
    }

    pub(super) fn set_awaited(&self, revision: u64) {
        if self.awaited.swap(revision, Ordering::Relaxed) != revision {
            self.watch.notify_one();
        }
    }

    /// Records a progress notification. True if answers were missing before.
    pub(super) fn progress_came(&self) -> bool {
        let is_news = self.progress.came();
        if is_news {
            self.counts.progress_unanswered.store(0, Ordering::Relaxed);
            log!(info, "requests for progress are answered again");
        }
        is_news
    }

    /// Makes the session list, as of another history: a comparison found that the cache and etcd differ.
    pub(super) fn request_reset(&self) {
        self.reset.store(true, Ordering::Relaxed);
        self.watch.notify_one();
    }

    pub(super) fn take_reset(&self) -> bool {
        self.reset.swap(false, Ordering::Relaxed)
    }

    /// Records the epoch of a new listing: requests made from now on belong to its history. A request made between
    /// the listing's publication and this call counts for the former epoch and is dropped.
    pub(super) fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Release);
    }

    pub(super) fn request_compaction(&self, revision: u64) {
        let asked = Position { epoch: self.epoch.load(Ordering::Acquire), revision };
        let mut greatest = locked(&self.compact_to);
        *greatest = (*greatest).max(Some(asked));
        drop(greatest);
        self.compaction.notify_one();
    }

    /// Takes the greatest compaction that was requested since the last call.
    pub(super) fn take_compaction(&self) -> Option<Position> {
        locked(&self.compact_to).take()
    }

    /// Records that the cache has reached another revision.
    pub(super) fn moved(&self) {
        if self.awaited() > 0 {
            self.tickets.notify_one();
        }
        if self.compaction_waits.load(Ordering::Relaxed) {
            self.compaction.notify_one();
        }
    }

    pub(super) fn last_error(&self) -> Option<Error> {
        locked(&self.last_error).clone()
    }

    pub(super) fn set_error(&self, error: Option<Error>) {
        *locked(&self.last_error) = error;
    }

    /// Records that the thread has ended and holds no resources.
    pub(super) fn end(&self) {
        *locked(&self.ended) = true;
        self.ends.notify_all();
    }

    pub(super) fn has_ended(&self) -> bool {
        *locked(&self.ended)
    }

    /// The deadline of a stop: `limit` after the first one. All callers share that deadline, so callers that stop at
    /// the same time, or a caller that stops and then frees, wait `limit` in total.
    pub(super) fn stop_deadline(&self, limit: Duration) -> Instant {
        *self.stop_deadline.get_or_init(|| Instant::now() + limit)
    }

    /// Waits for the thread's end; false if the deadline passes first. Waiting releases the lock.
    pub(super) fn wait_end(&self, deadline: Instant) -> bool {
        let mut ended = locked(&self.ended);
        while !*ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            ended = self.ends.wait_timeout(ended, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_the_end_is_bounded() {
        let shared = Shared::default();
        assert!(!shared.wait_end(Instant::now() + Duration::from_millis(1)));
        shared.end();
        assert!(shared.wait_end(Instant::now()) && shared.has_ended());
    }

    #[test]
    fn all_stops_share_one_deadline() {
        let shared = Shared::default();
        let first = shared.stop_deadline(Duration::from_secs(2));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| assert_eq!(shared.stop_deadline(Duration::from_secs(2)), first));
            }
        });
        assert_eq!(shared.stop_deadline(Duration::from_secs(9)), first, "a later stop does not begin anew");
    }

    #[test]
    fn the_greatest_compaction_is_taken_once() {
        let shared = Shared::default();
        assert_eq!(shared.take_compaction(), None);
        shared.set_epoch(1);
        shared.request_compaction(7);
        shared.request_compaction(5);
        assert_eq!(shared.take_compaction(), Some(Position { epoch: 1, revision: 7 }));
        assert_eq!(shared.take_compaction(), None);
        shared.request_compaction(7);
        shared.set_epoch(2);
        shared.request_compaction(5);
        assert_eq!(shared.take_compaction(), Some(Position { epoch: 2, revision: 5 }), "of the newest history");
    }

    #[test]
    fn a_request_is_taken_once() {
        let shared = Shared::default();
        assert!(!shared.take_resync());
        shared.request_resync();
        assert!(shared.take_resync());
        assert!(!shared.take_resync());
    }
}
