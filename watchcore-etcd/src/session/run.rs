//! The steps of a session, and the pause before the next one.

use super::publish::stale_after_silence;
use super::{NextStep, Session, WatchEnd};
use crate::backoff::spread;
use crate::connect::{Reader, dial, within};
use crate::counters::increment;
use crate::failure::{Class, Failure};
use crate::history::{HistoryCheck, check};
use crate::log::log;
use crate::sample;
use etcd_client::StatusResponse;
use std::time::{Duration, Instant};
use watchcore::ResyncReason;

/// How often the feeder asks again for a start revision that etcd has not reached.
const FUTURE_RETRY: Duration = Duration::from_millis(250);

impl Session<'_> {
    /// Runs sessions until the cache is closed or, with `stop_after_listing`, the listing is there.
    pub(crate) async fn run(&mut self) {
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
                    log!(info, endpoint = url, "listed; the feeder does not watch, as configured");
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
            log!(warn, cluster = %format_args!("{:x}", header.cluster), "etcd is another cluster, so it has another history");
            return Ok(NextStep::Resync(ResyncReason::HistoryReset));
        }
        increment(&self.shared.counts.probes);
        let snapshot = self.writer.borrow().snapshot().map_err(|error| Failure::refused(&error))?;
        let checked = match check(reader, range, resume.evidence()).await? {
            HistoryCheck::Same => sample::check(reader, range, &snapshot, &self.shared.counts).await?,
            HistoryCheck::Other => {
                let applied = resume.evidence().revision();
                log!(warn, applied, "etcd does not hold what was applied, so it has another history");
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
            log!(info, behind, "the cache is too far behind to replay the events: listing");
            return Ok(NextStep::Resync(ResyncReason::TooFarBehind));
        }
        Ok(NextStep::Watch)
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
}

/// Whether a member of a cluster has no leader. A server that offers etcd's API without raft reports neither leader
/// nor term.
fn lacks_leader(status: &StatusResponse) -> bool {
    status.leader() == 0 && status.raft_term() > 0
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
}
