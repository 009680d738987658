//! Requests for progress that nobody answers: when that is suspected, and when it is known.
//!
//! A proxy may drop such requests and pass all else on, as etcd's own gRPC proxy does. The watch of a quiet range then never says
//! how far it is complete, and whoever waits for a revision waits for ever. docs/internals/feeder.md says what is
//! read instead, and why that is exact.
//!
//! Untested: the session, before each watch, until the first notification. Answered, Untested -> Suspected: the follower, by
//! [`Unanswered::is_suspect`]. Suspected -> Unanswered: a read shows that etcd has moved on and holds what the cache holds, so
//! the watch has nothing to deliver first and etcd would have answered. A notification of progress ends each of them: Unanswered
//! becomes Untested, for etcd sends one by itself each ten minutes, all others become Answered.

use super::connect::{Newest, Reader};
use super::failure::Failure;
use super::health::WatchState;
use super::range::KeyRange;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;
use watchcore::{Position, Writer};

/// So many requests, the first of them so long ago.
const REQUESTS: u32 = 3;
const FOR: Duration = Duration::from_secs(2);
/// A watch that catches up answers nothing while it delivers: it has to be quiet for so long.
const QUIET: Duration = Duration::from_secs(1);

/// What is known of the answers. Of the feeder's thread.
#[derive(Default)]
pub(super) struct ProgressAnswers(AtomicU8);

const ANSWERED: u8 = 0;
const UNTESTED: u8 = 1;
const SUSPECTED: u8 = 2;
const UNANSWERED: u8 = 3;

impl ProgressAnswers {
    /// Whether reads have to do without them, or are to find out.
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

    /// A watch is about to be opened, perhaps by another way.
    pub(super) fn test(&self) {
        let _ = self.0.compare_exchange(ANSWERED, UNTESTED, Relaxed, Relaxed);
    }

    /// True: it is news.
    pub(super) fn suspect(&self) -> bool {
        self.0.fetch_max(SUSPECTED, Relaxed) < SUSPECTED
    }

    /// True: it is news.
    pub(super) fn miss(&self) -> bool {
        self.0.swap(UNANSWERED, Relaxed) != UNANSWERED
    }

    /// One came. True: they were missing.
    pub(super) fn came(&self) -> bool {
        let were_missing = self.are_missing();
        self.0.store(if were_missing { UNTESTED } else { ANSWERED }, Relaxed);
        were_missing
    }
}

/// Requests since the last answer, over all watches: a watch that died is no proxy that drops requests, and the next watch
/// shows it.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    requests: u32,
    first: Option<Instant>,
    watches: u32,
}

impl Unanswered {
    /// A watch was opened.
    pub(super) fn opened(&mut self) {
        self.watches += u32::from(self.requests > 0);
    }

    /// A request was sent that etcd answers.
    pub(super) fn sent(&mut self, now: Instant) {
        self.requests = self.requests.saturating_add(1);
        self.first.get_or_insert(now);
    }

    pub(super) fn answered(&mut self) {
        *self = Unanswered::default();
    }

    /// Whether it is worth a read to find out. `heard`: when the watch last spoke.
    pub(super) fn is_suspect(&self, state: WatchState, heard: Instant, now: Instant) -> bool {
        let Some(first) = self.first else { return false };
        if self.requests < REQUESTS || now < first + FOR {
            return false;
        }
        match state {
            WatchState::Opening | WatchState::Mute => false,
            WatchState::CatchingUp => now >= heard + QUIET,
            // The watch speaks, or it is another watch: it is not one that died.
            WatchState::Synced => heard > first || self.watches > 0,
        }
    }
}

/// What the cache held before a read of etcd's state began.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldState {
    pub(super) position: Position,
    keys: u64,
}

/// What etcd held, and whether it is the same state.
pub(super) struct StoredState {
    pub(super) newest: Newest,
    pub(super) is_same: bool,
}

impl HeldState {
    pub(super) fn now(writer: &Writer) -> HeldState {
        HeldState { position: writer.position(), keys: writer.objects() }
    }

    /// Reads etcd's newest state R, linearizably: how many keys it has, and whether one was modified above the cache's
    /// position P. If none was and there are as many, R has the same keys as P: each key of R was last modified at P or
    /// before, so it was there at P with the same value, and there is no other.
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
