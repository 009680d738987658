//! The life of a feeder: sessions with one endpoint after another, until the feeder is stopped.
//!
//! A session connects, finds out whether etcd's history is still the one that was applied, lists if it must, and then
//! follows the watch. State that outlives a session is in [`Session`] too: the resume point, the pending resync, the
//! backoff.

mod publish;
mod run;

use super::backoff::Retries;
use super::config::Config;
use super::connect::Reader;
use super::counters::increment;
use super::endpoints::Endpoints;
use super::failure::{Class, Failure};
use super::report::{LONGEST_MESSAGE, Reporter};
use super::resume::Resume;
use super::shared::Shared;
use super::unanswered::Unanswered;
use crate::log::log;
use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use tokio::sync::watch;
use watchcore::{ResyncReason, Writer};

/// The next step of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NextStep {
    Watch,
    Load,
    Resync(ResyncReason),
}

impl NextStep {
    /// Combines this step with the pending resync: a pending resync replaces `Watch`, and a new reason replaces the
    /// pending one. A pending `HistoryReset` stays, whatever else asks for a listing before it is published.
    fn after(self, pending: Option<ResyncReason>) -> NextStep {
        match (self, pending) {
            (NextStep::Watch, Some(reason)) => NextStep::Resync(reason),
            (_, Some(ResyncReason::HistoryReset)) => NextStep::Resync(ResyncReason::HistoryReset),
            (step, _) => step,
        }
    }
}

/// Why following a watch ended without a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WatchEnd {
    /// A listing is needed, for this reason.
    Resync(ResyncReason),
    /// Check the history, and open the watch again with the present settings.
    Reopen,
}

/// The sessions of a feeder, one after another.
pub(super) struct Session<'a> {
    pub(super) config: &'a Config,
    pub(super) writer: &'a RefCell<Writer>,
    pub(super) shared: &'a Shared,
    /// Whether watches ask for fragments, and the length limit of messages.
    pub(super) fragment: bool,
    pub(super) message_limit: usize,
    /// Progress requests that were not answered.
    pub(super) unanswered: Unanswered,
    /// Silences in a row, since an event or progress last came.
    pub(super) silences: u32,
    /// The cache's position in etcd's history, once it has its listing.
    resume: Option<Resume>,
    /// The reason for a listing that is needed, kept until the listing is published.
    pending_resync: Option<ResyncReason>,
    endpoints: Endpoints,
    /// Publishes the present session's connection to the futures beside it.
    readers: &'a watch::Sender<Option<Reader>>,
    reporter: Reporter<'a>,
    retries: Retries,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        config: &'a Config,
        writer: &'a RefCell<Writer>,
        shared: &'a Shared,
        readers: &'a watch::Sender<Option<Reader>>,
    ) -> Session<'a> {
        let options = &config.options;
        Session {
            config,
            writer,
            shared,
            fragment: false,
            message_limit: options.message_limit,
            unanswered: Unanswered::default(),
            silences: 0,
            resume: None,
            pending_resync: None,
            endpoints: Endpoints::new(options.endpoints.iter().cloned()),
            readers,
            reporter: Reporter::new(config, writer, shared),
            retries: Retries::new(options.backoff_first, options.backoff_most),
        }
    }

    /// The cache's position in etcd's history. A session lists before it watches, so every watch finds one.
    pub(super) fn resume(&self) -> &Resume {
        self.resume.as_ref().expect("a session lists before it watches")
    }

    pub(super) fn resume_mut(&mut self) -> &mut Resume {
        self.resume.as_mut().expect("a session lists before it watches")
    }

    /// Records that a listing has to be published before anything is watched again, by this connection or a later
    /// one.
    pub(super) fn needs_listing(&mut self, reason: ResyncReason) {
        self.pending_resync = Some(reason);
    }

    /// Updates the status with the findings of the futures beside the session.
    pub(super) fn report_changes(&mut self) {
        if self.shared.progress.are_missing() {
            self.reporter.changed();
        }
    }

    /// Records a progress notification.
    pub(super) fn progress_came(&mut self) {
        self.unanswered.answered();
        if self.shared.progress_came() {
            self.reporter.changed();
        }
    }

    /// Records etcd's newest revision, as a header named it.
    pub(super) fn record_newest(&mut self, revision: u64) {
        self.reporter.record_newest(revision);
    }

    pub(super) fn newest_seen(&self) -> u64 {
        self.reporter.newest_seen()
    }

    /// Records that the watch is confirmed: events are applied again. After several setbacks in a row, the status
    /// shows this only once the watch has followed for a while.
    pub(super) fn watch_confirmed(&mut self) {
        self.retries.opened(Instant::now());
        self.reporter.opened();
        if !self.retries.is_unstable() {
            self.endpoints.succeeded();
            self.reporter.following();
        }
    }

    /// Records that a revision was applied.
    pub(super) fn applied(&mut self) {
        self.retries.applied();
        self.check_stability();
        self.progressed();
    }

    /// Records that a revision was applied or progress came.
    pub(super) fn progressed(&mut self) {
        self.silences = 0;
        self.caught_up();
        self.shared.moved();
    }

    /// The revision up to which the history is being replayed while readers wait for it; `None` once it is reached.
    pub(super) fn catches_up_to(&self) -> Option<u64> {
        self.resume().replays_to().filter(|_| self.config.options.start_revision.is_none())
    }

    /// Makes the cache Ready when it has reached etcd's revision as of the first listing's end.
    fn caught_up(&mut self) {
        self.shared.catches_up_to.store(self.catches_up_to().unwrap_or(0), Relaxed);
        if self.catches_up_to().is_none() {
            self.writer.borrow_mut().caught_up();
        }
    }

    /// When [`check_stability`](Session::check_stability) may declare the connection stable again.
    pub(super) fn stable_due(&self) -> Option<Instant> {
        self.retries.stable_due()
    }

    /// Declares the connection stable again once the watch has followed for long enough.
    pub(super) fn check_stability(&mut self) {
        let was_unstable = self.retries.is_unstable();
        self.retries.check_stability(Instant::now());
        if was_unstable && !self.retries.is_unstable() {
            self.endpoints.succeeded();
            self.reporter.following();
        }
    }

    /// The watch is below a revision that etcd has reached, and makes no progress towards it.
    pub(super) fn give_up_stale(&mut self, goal: u64) -> Failure {
        increment(&self.shared.counts.stale_watches);
        self.retries.setback();
        let point = self.resume().point();
        let text = format!("the watch stands at revision {point} and says so, while etcd has had {goal}");
        Failure::new(Class::Retry, text).of_kind("the watch is behind")
    }

    /// Reacts to a message of the watch that was too long: asks for fragments, or raises the limit. Returns the
    /// failure if neither is possible.
    pub(super) fn accept_longer(&mut self, length: u64, failure: Failure) -> Result<(), Failure> {
        if !self.fragment {
            self.fragment = true;
            increment(&self.shared.counts.fragment_switches);
            log!(
                info,
                length,
                limit = self.message_limit,
                "a message is longer than the limit: opening the watch with fragments"
            );
            return Ok(());
        }
        if self.raise_limit(length) { Ok(()) } else { Err(failure) }
    }

    /// Raises the limit of message lengths; false if this message is too long for any limit.
    fn raise_limit(&mut self, length: u64) -> bool {
        if self.message_limit >= LONGEST_MESSAGE || length > LONGEST_MESSAGE as u64 {
            return false;
        }
        let wanted = usize::try_from(length).unwrap_or(LONGEST_MESSAGE).max(self.message_limit.saturating_mul(2));
        self.message_limit = wanted.min(LONGEST_MESSAGE);
        log!(info, length, limit = self.message_limit, "a message is longer than the limit: raising the limit");
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_history_stays_pending() {
        use ResyncReason::{Compacted, HistoryReset, TooFarBehind};
        let resync = NextStep::Resync;
        assert_eq!(NextStep::Watch.after(None), NextStep::Watch);
        assert_eq!(NextStep::Watch.after(Some(Compacted)), resync(Compacted));
        assert_eq!(resync(TooFarBehind).after(Some(Compacted)), resync(TooFarBehind));
        for step in [NextStep::Watch, resync(TooFarBehind), resync(Compacted), resync(HistoryReset)] {
            assert_eq!(step.after(Some(HistoryReset)), resync(HistoryReset));
        }
    }
}
