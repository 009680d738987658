//! Detects progress requests that are never answered: when that is suspected, and when it is certain.
//!
//! A proxy may drop progress requests and forward everything else, as etcd's own gRPC proxy does. The watch of a
//! quiet range then never says how far it is complete, and a wait for a revision would never end.
//! docs/internals/feeder.md says which read replaces the notification, and why that is exact.
//!
//! The states: before each watch, the session sets Answered to Untested. The follower sets Answered or Untested to
//! Suspected, by [`Unanswered::is_suspect`]. A read sets Suspected to Unanswered when etcd has moved on but holds the
//! same state as the cache: the watch has nothing to deliver first, so etcd would have answered. A progress
//! notification sets Unanswered to Untested, because etcd sends one unasked each ten minutes, and all other states to
//! Answered.

use super::connect::{Newest, Reader};
use super::failure::Failure;
use super::health::WatchState;
use super::range::KeyRange;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;
use watchcore::{Position, Writer};

/// A suspicion needs this many requests, the first of them this long ago.
const REQUESTS: u32 = 3;
const FOR: Duration = Duration::from_secs(2);
/// A watch that catches up answers nothing while it delivers, so it must also have been quiet for this long.
const QUIET: Duration = Duration::from_secs(1);

/// Whether progress requests are answered. Only the feeder's thread uses it, so all accesses are Relaxed.
#[derive(Default)]
pub(super) struct ProgressAnswers(AtomicU8);

const ANSWERED: u8 = 0;
const UNTESTED: u8 = 1;
const SUSPECTED: u8 = 2;
const UNANSWERED: u8 = 3;

impl ProgressAnswers {
    /// Whether reads cannot rely on progress notifications, or have to find out.
    pub(super) fn are_in_doubt(&self) -> bool {
        self.0.load(Relaxed) != ANSWERED
    }

    pub(super) fn are_untested(&self) -> bool {
        self.0.load(Relaxed) == UNTESTED
    }

    pub(super) fn are_suspected(&self) -> bool {
        self.0.load(Relaxed) == SUSPECTED
    }

    pub(super) fn are_missing(&self) -> bool {
        self.0.load(Relaxed) == UNANSWERED
    }

    /// Records that a watch is about to be opened, perhaps along another network path.
    pub(super) fn test(&self) {
        let _ = self.0.compare_exchange(ANSWERED, UNTESTED, Relaxed, Relaxed);
    }

    /// Records a suspicion. True if it is new.
    pub(super) fn suspect(&self) -> bool {
        self.0.fetch_max(SUSPECTED, Relaxed) < SUSPECTED
    }

    /// Records that answers are missing. True if that is new.
    pub(super) fn miss(&self) -> bool {
        self.0.swap(UNANSWERED, Relaxed) != UNANSWERED
    }

    /// Records a progress notification. True if answers were missing.
    pub(super) fn came(&self) -> bool {
        let were_missing = self.are_missing();
        self.0.store(if were_missing { UNTESTED } else { ANSWERED }, Relaxed);
        were_missing
    }
}

/// Counts progress requests since the last answer, over all watches: a watch that merely died is not mistaken for a
/// proxy that drops requests, because the next watch answers.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    requests: u32,
    first: Option<Instant>,
    watches: u32,
}

impl Unanswered {
    /// Records that a watch was opened.
    pub(super) fn opened(&mut self) {
        self.watches += u32::from(self.requests > 0);
    }

    /// Records a request that etcd itself would answer.
    pub(super) fn sent(&mut self, now: Instant) {
        self.requests = self.requests.saturating_add(1);
        self.first.get_or_insert(now);
    }

    pub(super) fn answered(&mut self) {
        *self = Unanswered::default();
    }

    /// Whether a read should find out. `heard`: when the watch last sent something.
    pub(super) fn is_suspect(&self, state: WatchState, heard: Instant, now: Instant) -> bool {
        let Some(first) = self.first else { return false };
        if self.requests < REQUESTS || now < first + FOR {
            return false;
        }
        match state {
            WatchState::Opening | WatchState::Mute => false,
            WatchState::CatchingUp => now >= heard + QUIET,
            // The watch sent something since, or it is another watch: so it is not merely a dead one.
            WatchState::Synced => heard > first || self.watches > 0,
        }
    }
}

/// The cache's state before a read of etcd's state began.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldState {
    pub(super) position: Position,
    keys: u64,
}

/// etcd's newest revision, and whether its state equals the cache's.
pub(super) struct StoredState {
    pub(super) newest: Newest,
    pub(super) is_same: bool,
}

impl HeldState {
    pub(super) fn now(writer: &Writer) -> HeldState {
        HeldState { position: writer.position(), keys: writer.objects() }
    }

    /// Reads etcd's newest state R, linearizably: how many keys it has, and whether one was modified above the
    /// cache's position P. If none was and the counts are equal, R has the same keys as P: each key of R was last
    /// modified at or below P, so it existed at P with the same value, and P has no other key.
    pub(super) async fn compare(&self, reader: &Reader, range: &KeyRange) -> Result<StoredState, Failure> {
        let state = reader.state_since(range, self.position.revision).await?;
        Ok(StoredState { newest: state.newest, is_same: !state.has_newer && state.keys == self.keys })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use WatchState::{CatchingUp, Mute, Opening, Synced};

    #[test]
    fn dead_watch_is_no_deaf_proxy() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut unanswered = Unanswered::default();
        unanswered.opened();
        (1..=3).for_each(|seconds| unanswered.sent(after(seconds)));
        assert!(!unanswered.is_suspect(Synced, start, after(60)), "it may be dead: the silence says so");
        assert!(unanswered.is_suspect(Synced, after(2), after(3)), "it speaks");
        assert!(!unanswered.is_suspect(Synced, after(2), after(2)), "not yet");
        assert!(!unanswered.is_suspect(CatchingUp, after(60), after(60)), "it delivers");
        assert!(unanswered.is_suspect(CatchingUp, after(59), after(60)));
        for state in [Opening, Mute] {
            assert!(!unanswered.is_suspect(state, after(2), after(60)), "{state:?}: etcd answers nothing");
        }
        unanswered.opened();
        assert!(unanswered.is_suspect(Synced, start, after(60)), "the second watch, too");
        unanswered.answered();
        unanswered.opened();
        assert!(!unanswered.is_suspect(Synced, after(59), after(60)));
    }
}
