//! The life of a feeder: sessions with one endpoint after another, until the feeder is stopped.
//!
//! A session connects, finds out whether etcd's history is still the one that was applied, lists if it must, and then
//! follows the watch. State that outlives a session is in [`Session`] too: the resume point, the pending resync, the
//! backoff.

mod publish;

use super::backoff::{Retries, spread};
use super::config::Config;
use super::connect::{Reader, dial, within};
use super::counters::increment;
use super::endpoints::Endpoints;
use super::failure::{Class, Failure};
use super::history::{HistoryCheck, check};
use super::report::{LONGEST_MESSAGE, Reporter};
use super::resume::Resume;
use super::sample;
use super::shared::Shared;
use super::unanswered::Unanswered;
use crate::log::log;
use etcd_client::StatusResponse;
use publish::stale_after_silence;
use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use watchcore::{Code, Error, ResyncReason, Writer};

/// How often the feeder asks again for a start revision that etcd has not reached.
const FUTURE_RETRY: Duration = Duration::from_millis(250);

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

    /// Runs sessions until the cache is closed or, with `stop_after_listing`, the listing is there.
    pub(super) async fn run(&mut self) {
        loop {
            let over = self.run_session().await;
            self.readers.send_replace(None);
            let Err(failure) = over else { return };
            match failure.class {
                Class::Closed => return,
                // A single key is longer than the limit.
                Class::TooLarge(length) if self.raise_limit(length) => continue,
                _ => {}
            }
            let delay = self.failed(&failure);
            tokio::time::sleep(delay).await;
        }
    }

    /// Runs one session with one endpoint. Returns `Ok` only when nothing is left to do.
    async fn run_session(&mut self) -> Result<(), Failure> {
        let url = self.endpoints.url().to_owned();
        let reader = self.connect(&url).await?;
        let mut step = self.next_step(&reader).await?.after(self.pending_resync);
        if step == NextStep::Load {
            // The cache has no listing yet, so no reader can compare it with another history.
            self.publish_reader(&reader);
        }
        if step == NextStep::Watch {
            // No listing follows, so only evidence and sample were compared: start an audit.
            self.shared.audit.notify_one();
        }
        loop {
            if let NextStep::Resync(reason) = step {
                self.pending_resync = Some(reason);
                if reason == ResyncReason::HistoryReset {
                    self.readers.send_replace(None);
                }
            }
            if step != NextStep::Watch {
                let stale = stale_after_silence(self.writer, self.shared, self.config, &url);
                tokio::select! {
                    biased;
                    listed = self.list(&reader, step, &url) => listed?,
                    never = stale => match never {},
                }
                if self.config.options.stop_after_listing {
                    self.endpoints.succeeded();
                    self.reporter.succeeded();
                    log!(info, endpoint = url, "listed; not watching, as asked");
                    return Ok(());
                }
            }
            self.publish_reader(&reader);
            let watch = self.open(&url).await?;
            step = match self.follow(&reader, watch).await? {
                WatchEnd::Resync(reason) => NextStep::Resync(reason),
                WatchEnd::Reopen => self.next_step(&reader).await?,
            };
            if let NextStep::Resync(reason) = step {
                self.may_list_again(reason)?;
            }
        }
    }

    /// Allows the first listing that etcd makes necessary at once. If another one is needed before the connection is
    /// stable again, the session fails: then there is a pause, the state shows it, and another endpoint may be tried.
    fn may_list_again(&mut self, reason: ResyncReason) -> Result<(), Failure> {
        self.retries.check_stability(Instant::now());
        if reason == ResyncReason::Requested || !self.retries.had_setback() {
            return Ok(());
        }
        self.needs_listing(reason);
        let text = format!("no watch lasts: a listing is needed again, with reason {}", reason.name());
        Err(Failure::new(Class::Retry, text).of_kind("listings in a row"))
    }

    /// Publishes the connection for reads to the futures beside the session: its answers are of the history that the
    /// cache has. While a listing of another history is pending, the connection is withdrawn, because revisions of
    /// one history would be compared with positions in the other.
    fn publish_reader(&self, reader: &Reader) {
        self.shared.progress.test();
        self.readers.send_if_modified(|shown| {
            let is_new = shown.is_none();
            shown.get_or_insert_with(|| reader.clone());
            is_new
        });
    }

    /// Opens the connection for reads, to a server that answers.
    async fn connect(&mut self, url: &str) -> Result<Reader, Failure> {
        let options = &self.config.options;
        let mut connection = dial(options, url).await?;
        let status = within("the status", options.request_timeout, connection.client.status()).await;
        match connection.with_tls_cause(status) {
            Ok(status) if lacks_leader(&status) => {
                return Err(Failure::new(Class::OtherEndpoint, "the member has no leader"));
            }
            Ok(status) => self.reporter.connected(url, Some(status.version())),
            // Servers need not let a user see their status.
            Err(failure) if matches!(failure.class, Class::Denied | Class::Authenticate) => {
                self.reporter.connected(url, None);
            }
            Err(failure) => return Err(failure),
        }
        Ok(Reader::new(url, connection, options, self.message_limit))
    }

    /// Compares etcd's history with the cache's and says what must be done before the watch can continue.
    async fn next_step(&mut self, reader: &Reader) -> Result<NextStep, Failure> {
        self.shared.take_doubt();
        let Some(resume) = &mut self.resume else {
            let loaded = self.writer.borrow().is_loaded();
            return Ok(if loaded { NextStep::Resync(ResyncReason::Requested) } else { NextStep::Load });
        };
        if self.shared.take_reset() {
            return Ok(NextStep::Resync(ResyncReason::HistoryReset));
        }
        let range = &self.config.range;
        let newest = reader.newest_since(range, resume.point()).await?;
        let header = newest.header();
        self.reporter.record_newest(header.revision);
        if newest.went_back() {
            return Ok(NextStep::Resync(ResyncReason::HistoryReset));
        }
        if resume.is_of_another_cluster(header) {
            log!(warn, cluster = %format_args!("{:x}", header.cluster), "etcd is another cluster: another history");
            return Ok(NextStep::Resync(ResyncReason::HistoryReset));
        }
        increment(&self.shared.counts.probes);
        let snapshot = self.writer.borrow().snapshot().map_err(|error| refused(&error))?;
        let checked = match check(reader, range, resume.evidence()).await? {
            HistoryCheck::Same => sample::check(reader, range, &snapshot, &self.shared.counts).await?,
            HistoryCheck::Other => {
                let applied = resume.evidence().revision();
                log!(warn, applied, "etcd does not hold what was applied: another history");
                HistoryCheck::Other
            }
            HistoryCheck::Compacted => HistoryCheck::Compacted,
        };
        match checked {
            HistoryCheck::Same => resume.is_of_cluster(newest.header()),
            HistoryCheck::Other => return Ok(NextStep::Resync(ResyncReason::HistoryReset)),
            HistoryCheck::Compacted => return Ok(NextStep::Resync(ResyncReason::Compacted)),
        }
        let behind = resume.behind(header.revision);
        if behind > self.config.options.too_far_behind && !resume.replays() {
            log!(info, behind, "too far behind to replay: listing");
            return Ok(NextStep::Resync(ResyncReason::TooFarBehind));
        }
        Ok(NextStep::Watch)
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

    /// Reports a failure, chooses the next endpoint, and returns the pause before the next session.
    fn failed(&mut self, failure: &Failure) -> Duration {
        let now = Instant::now();
        self.retries.failed(now);
        let options = &self.config.options;
        let url = self.endpoints.url().to_owned();
        match failure.class {
            Class::Denied | Class::Credentials | Class::Compacted(_) | Class::TooLarge(_) | Class::Future => {}
            Class::Authenticate | Class::AuthenticationOff if self.retries.is_fresh() => {}
            Class::Broken => {
                increment(&self.shared.counts.integrity_violations);
                if self.resume.is_some() {
                    self.pending_resync.get_or_insert(ResyncReason::ChainBroken);
                }
                self.endpoints.violated(now);
            }
            _ => self.endpoints.failed(now),
        }
        let is_elsewhere = self.endpoints.has_moved(&url, now);
        let (is_fatal, delay) = match failure.class {
            Class::Denied | Class::Credentials => (true, spread(options.refused_retry)),
            Class::Compacted(_) | Class::TooLarge(_) => (true, spread(options.refused_retry.min(options.backoff_most))),
            Class::Future => (false, self.retries.pause(now).min(FUTURE_RETRY)),
            Class::OtherEndpoint | Class::Broken | Class::Tls(_) | Class::Refused if is_elsewhere => {
                (false, Duration::ZERO)
            }
            // A limit of the cache, or an invalid endpoint: only the user can correct it.
            Class::Refused => (true, spread(options.refused_retry)),
            // A person has to replace the certificate, which may happen at any time: the pause is no longer than the
            // backoff.
            Class::Tls(_) => (true, self.retries.pause(now)),
            Class::Authenticate | Class::AuthenticationOff if self.retries.is_fresh() => {
                self.retries.pause(now);
                (false, Duration::ZERO)
            }
            _ => (false, self.retries.pause(now)),
        };
        self.reporter.failed(failure, &url, delay, is_fatal);
        delay
    }

    /// Reacts to a message of the watch that was too long: asks for fragments, or raises the limit. Returns the
    /// failure if neither is possible.
    pub(super) fn accept_longer(&mut self, length: u64, failure: Failure) -> Result<(), Failure> {
        if !self.fragment {
            self.fragment = true;
            increment(&self.shared.counts.fragment_switches);
            log!(info, length, limit = self.message_limit, "a long message: opening the watch with fragments");
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
        log!(info, length, limit = self.message_limit, "a long message: raising the limit");
        true
    }
}

/// Whether a member of a cluster has no leader. A server that offers etcd's API without raft reports neither leader
/// nor term.
fn lacks_leader(status: &StatusResponse) -> bool {
    status.leader() == 0 && status.raft_term() > 0
}

/// The failure for data that the cache refused.
pub(super) fn refused(error: &Error) -> Failure {
    let class = if error.code() == Code::Closed { Class::Closed } else { Class::Refused };
    Failure::new(class, format!("the cache refused etcd's data: {}", error.message()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_client::proto::PbStatusResponse;

    #[test]
    fn server_without_raft_lacks_no_leader() {
        let lacks = |leader, raft_term| {
            lacks_leader(&StatusResponse(PbStatusResponse { leader, raft_term, ..PbStatusResponse::default() }))
        };
        assert!(lacks(0, 7));
        assert!(!lacks(0, 0) && !lacks(1, 7));
    }

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
