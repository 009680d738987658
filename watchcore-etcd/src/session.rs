//! The life of a feeder: sessions with one endpoint after another, until it is stopped.
//!
//! A session connects, finds out whether the history is still the one that was applied, lists if it
//! must, and then follows the watch. What outlives a session is in [`Session`] too: the resume point, the pending
//! resync, the backoff.

use super::backoff::{Backoff, spread};
use super::compaction::compacted_at;
use super::config::Config;
use super::connect::{Reader, dial, within};
use super::counters::one;
use super::endpoints::Endpoints;
use super::failure::{Class, Failure};
use super::health::silence;
use super::history::{HistoryCheck, check};
use super::integrity;
use super::list::{KeptPages, Listing, LoadedPages, TakesPages, list};
use crate::log::log;

use super::report::{LONGEST_MESSAGE, Reporter};
use super::resume::Resume;
use super::sample;
use super::server_text;
use super::shared::Shared;
use super::unanswered::Unanswered;
use etcd_client::StatusResponse;
use std::cell::RefCell;
use std::convert::Infallible;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use watchcore::{Code, Error, ResyncReason, SourceState, Writer};

/// How often a start revision that has not happened is looked for.
const FUTURE_RETRY: Duration = Duration::from_millis(250);

/// What a session has to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NextStep {
    Watch,
    Load,
    Resync(ResyncReason),
}

impl NextStep {
    /// What it is where a resync is pending: that one, unless now there is another reason. Another history stays one,
    /// whatever else asks for a listing before it is published.
    fn after(self, pending: Option<ResyncReason>) -> NextStep {
        match (self, pending) {
            (NextStep::Watch, Some(reason)) => NextStep::Resync(reason),
            (_, Some(ResyncReason::HistoryReset)) => NextStep::Resync(ResyncReason::HistoryReset),
            (step, _) => step,
        }
    }
}

/// How following a watch ended, where that is no failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WatchEnd {
    /// List, for this reason.
    Resync(ResyncReason),
    /// Make sure of the history, and open the watch again, as the settings are now.
    Reopen,
}

/// The sessions of a feeder, one after another.
pub(super) struct Session<'a> {
    pub(super) config: &'a Config,
    pub(super) writer: &'a RefCell<Writer>,
    pub(super) shared: &'a Shared,
    /// Whether watches ask for fragments, and the longest message taken.
    pub(super) fragment: bool,
    pub(super) message_limit: usize,
    /// Requests for progress that were not answered.
    pub(super) unanswered: Unanswered,
    /// Silences since anything came.
    pub(super) silences: u32,
    /// Where the cache stands in etcd's history, once it has its listing.
    resume: Option<Resume>,
    /// The reason of a listing that is needed, until it is published.
    pending_resync: Option<ResyncReason>,
    endpoints: Endpoints,
    /// Where the connection of the present session shows for the futures beside it.
    readers: &'a watch::Sender<Option<Reader>>,
    reporter: Reporter<'a>,
    backoff: Backoff,
    /// Listings without any progress between them.
    listings_in_a_row: Backoff,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        config: &'a Config,
        writer: &'a RefCell<Writer>,
        shared: &'a Shared,
        readers: &'a watch::Sender<Option<Reader>>,
    ) -> Session<'a> {
        let options = &config.options;
        let backoff = || Backoff::new(options.backoff_first, options.backoff_most);
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
            backoff: backoff(),
            listings_in_a_row: backoff(),
        }
    }

    /// Runs until the cache is closed or, if that was asked, the listing is there.
    pub(super) async fn run(&mut self) {
        loop {
            let over = self.one().await;
            self.readers.send_replace(None);
            let Err(failure) = over else { return };
            match failure.class {
                Class::Closed => return,
                // One key alone is longer than the limit.
                Class::TooLarge(length) if self.raise_limit(length) => continue,
                _ => {}
            }
            let delay = self.failed(&failure);
            tokio::time::sleep(delay).await;
        }
    }

    /// One session with one endpoint. It ends well only when there is nothing more to do.
    async fn one(&mut self) -> Result<(), Failure> {
        let url = self.endpoints.url().to_owned();
        let reader = self.connect(&url).await?;
        let mut step = self.standing(&reader).await?.after(self.pending_resync);
        if step == NextStep::Load {
            // Nothing can be read of the cache yet.
            self.publish(&reader);
        }
        if step == NextStep::Watch {
            // Nothing is listed, so nothing but evidence and sample was compared.
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
            self.publish(&reader);
            let watch = self.open(&url).await?;
            step = match self.follow(&reader, watch).await? {
                WatchEnd::Resync(reason) => NextStep::Resync(reason),
                WatchEnd::Reopen => self.standing(&reader).await?,
            };
        }
    }

    /// Shows the connection for reads to the futures beside the session: what it reads is of the history that the
    /// cache has. While a listing of another history is to come it is not shown, for revisions of the one would be
    /// compared with positions in the other.
    fn publish(&self, reader: &Reader) {
        self.readers.send_if_modified(|shown| {
            let is_new = shown.is_none();
            shown.get_or_insert_with(|| reader.clone());
            is_new
        });
    }

    /// The connection for reads, to a server that answers.
    async fn connect(&mut self, url: &str) -> Result<Reader, Failure> {
        let options = &self.config.options;
        let mut connection = dial(options, url).await?;
        let status = within("the status", options.request_timeout, connection.client.status()).await;
        match connection.explained(status) {
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

    /// What must be done before the watch can continue.
    async fn standing(&mut self, reader: &Reader) -> Result<NextStep, Failure> {
        self.shared.take_doubt();
        let Some(resume) = &self.resume else {
            let loaded = self.writer.borrow().is_loaded();
            return Ok(if loaded { NextStep::Resync(ResyncReason::Requested) } else { NextStep::Load });
        };
        if self.shared.take_reset() {
            return Ok(NextStep::Resync(ResyncReason::HistoryReset));
        }
        let range = &self.config.range;
        let newest = reader.newest_since(range, resume.point()).await?;
        let header = newest.header();
        self.reporter.saw(header.revision);
        if newest.went_back() {
            return Ok(NextStep::Resync(ResyncReason::HistoryReset));
        }
        if resume.is_of_another_cluster(header) {
            log!(warn, cluster = %format_args!("{:x}", header.cluster), "etcd is another cluster: another history");
            return Ok(NextStep::Resync(ResyncReason::HistoryReset));
        }
        one(&self.shared.counts.probes);
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
            HistoryCheck::Same => {}
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

    /// Lists and publishes.
    async fn list(&mut self, reader: &Reader, step: NextStep, url: &str) -> Result<(), Failure> {
        if matches!(step, NextStep::Resync(_)) && !self.listings_in_a_row.is_fresh() {
            tokio::time::sleep(self.listings_in_a_row.next()).await;
        }
        self.shared.take_resync();
        self.shared.take_reset();
        let asked = self.config.options.start_revision.filter(|_| step == NextStep::Load);
        let mut at = asked;
        let started = Instant::now();
        let listing = match step {
            NextStep::Resync(wanted) => {
                let mut pages = KeptPages::default();
                let listing = self.read(reader, at, url, &mut pages).await?;
                self.resync(&listing, &pages, wanted)?;
                listing
            }
            NextStep::Load | NextStep::Watch => {
                let mut pages = LoadedPages::new(self.writer);
                let has_history = self.config.options.history > 0 && !self.config.options.stop_after_listing;
                let listing = if at.is_none() && has_history {
                    let (listing, from) = self.read_history(reader, url, &mut pages).await?;
                    at = from;
                    listing
                } else {
                    self.read(reader, at, url, &mut pages).await?
                };
                // Who asked for a revision wants to see its state. A history is there to be resumed in: whoever reads
                // is not to be taken back to where it begins.
                pages.publish(asked.is_some() || listing.revision >= listing.header.revision)?;
                listing
            }
        };
        let elapsed = started.elapsed();
        log!(info, endpoint = url, revision = listing.revision, keys = listing.count, ?elapsed, "listed");
        self.pending_resync = None;
        self.shared.set_epoch(self.writer.borrow().position().epoch);
        self.resume = Some(Resume::listed(&listing, at.is_some()));
        self.caught_up();
        self.reporter.listed(listing.header.revision.max(listing.revision));
        self.shared.moved();
        Ok(())
    }

    /// Reads a listing so many revisions below the newest as were asked for; where etcd is compacted above that, at the
    /// oldest that it has. With the revision that was listed, unless it is the newest.
    async fn read_history(
        &mut self,
        reader: &Reader,
        url: &str,
        takes: &mut impl TakesPages,
    ) -> Result<(Listing, Option<u64>), Failure> {
        let newest = reader.pin(&self.config.range).await?.revision;
        let mut at = Some(newest.saturating_sub(self.config.options.history).max(1)).filter(|at| *at < newest);
        loop {
            match self.read(reader, at, url, takes).await {
                Ok(listing) => return Ok((listing, at)),
                // Each time it is compacted further up, and the newest is never compacted.
                Err(Failure { class: Class::Compacted(kept), .. }) if at.is_some() => {
                    if at >= Some(kept) {
                        let text = "etcd does not say how far it is compacted, so the history cannot begin there";
                        return Err(Failure::new(Class::Retry, text));
                    }
                    at = Some(kept);
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Reads a listing, at the revision `at` or the newest.
    async fn read(
        &mut self,
        reader: &Reader,
        at: Option<u64>,
        url: &str,
        takes: &mut impl TakesPages,
    ) -> Result<Listing, Failure> {
        let page_size = self.config.options.page_size.unwrap_or(i64::MAX);
        match list(reader, &self.config.range, at, page_size, &self.shared.counts, takes).await {
            Ok(listing) => {
                self.reporter.listing(&listing.header);
                Ok(listing)
            }
            Err(failure) => {
                let failure = self.of_listing(reader, failure, at, url).await;
                // The refusal does not say how far etcd is: whoever waits for the revision wants to know.
                if failure.class == Class::Future
                    && let Ok(newest) = reader.pin(&self.config.range).await
                {
                    self.reporter.saw(newest.revision);
                }
                Err(failure)
            }
        }
    }

    /// Publishes the difference to a listing; for another reason, where the listing shows that one.
    fn resync(&mut self, listing: &Listing, pages: &KeptPages, wanted: ResyncReason) -> Result<(), Failure> {
        // The evidence is gone, or nothing is known of what came between it and the point: the listing itself has to
        // show whether the history is the same. With other reasons the cache itself may lack what etcd had.
        let is_open = matches!(wanted, ResyncReason::Compacted | ResyncReason::TooFarBehind);
        let is_reset = self
            .resume
            .as_ref()
            .is_some_and(|old| old.is_refuted_by(listing) || is_open && !self.continues(pages, old.point()));
        let reason = if is_reset { ResyncReason::HistoryReset } else { wanted };
        let before = self.writer.borrow().position();
        // Before it shows: a reader who sees the marks finds it counted.
        self.shared.counts.resynced(reason);
        let done = self.writer.borrow_mut().resync(listing.revision, pages.records(), reason);
        let is_published = done.as_ref().is_ok_and(|now| now.epoch != before.epoch);
        if !is_published {
            self.shared.counts.no_resync(reason);
        }
        done.map_err(|error| refused(&error))?;
        if is_published {
            let (from, to) = (before.revision, listing.revision);
            log!(warn, reason = reason.name(), from, to, keys = listing.count, "resync");
        }
        // Another one before any progress has to wait.
        self.listings_in_a_row.next();
        Ok(())
    }

    /// Whether a listing can be what became of the state at `point`. A restored backup whose revisions
    /// were raised shows by the keys that went back.
    fn continues(&self, pages: &KeptPages, point: u64) -> bool {
        let writer = self.writer.borrow();
        let other =
            pages.records().find(|record| !integrity::continues(record, writer.get(record.key).as_deref(), point));
        let Some(record) = other else { return true };
        log!(
            warn,
            key = server_text::key(record.key),
            modified = record.mod_revision,
            applied = point,
            "a key that does not follow from what was applied: another history"
        );
        false
    }

    /// A listing at an old revision fails in ways that only the user can mend.
    async fn of_listing(&self, reader: &Reader, failure: Failure, at: Option<u64>, url: &str) -> Failure {
        let Some(at) = at else { return failure };
        let asked = format!("the feeder was asked to begin at revision {at}, which etcd {url} has");
        match failure.class {
            Class::Compacted(_) => match compacted_at(reader, &self.config.range, at).await {
                Ok(kept) => Failure::new(
                    Class::Compacted(kept),
                    format!(
                        "{asked} compacted; it holds the state at {kept} and all changes after it. Begin at {kept} or later"
                    ),
                ),
                Err(_) => Failure::new(
                    Class::Compacted(0),
                    format!("{asked} compacted. Begin at a later revision, or without one"),
                ),
            },
            Class::Future => {
                Failure::new(Class::Future, format!("{asked} not reached. Wait for it, or begin without a revision"))
            }
            _ => failure,
        }
    }

    /// Where the cache stands. A session lists before it watches, so a watch always finds it.
    pub(super) fn resume(&self) -> &Resume {
        self.resume.as_ref().expect("a session lists before it watches")
    }

    pub(super) fn resume_mut(&mut self) -> &mut Resume {
        self.resume.as_mut().expect("a session lists before it watches")
    }

    /// Whatever becomes of this session: a listing has to be published before anything is watched again.
    pub(super) fn needs_listing(&mut self, reason: ResyncReason) {
        self.pending_resync = Some(reason);
    }

    /// Shows the status what the futures beside the session found.
    pub(super) fn report_changes(&mut self) {
        if self.shared.progress.are_missing() {
            self.reporter.changed();
        }
    }

    /// A notification of progress came.
    pub(super) fn progress_came(&mut self) {
        self.unanswered.answered();
        if self.shared.progress_came() {
            self.reporter.changed();
        }
    }

    /// A header spoke of etcd's newest revision.
    pub(super) fn saw(&mut self, revision: u64) {
        self.reporter.saw(revision);
    }

    pub(super) fn newest_seen(&self) -> u64 {
        self.reporter.newest_seen()
    }

    /// The watch is confirmed: events are applied again.
    pub(super) fn live(&mut self) {
        self.endpoints.succeeded();
        self.reporter.live();
    }

    /// Something was applied, or progress came.
    pub(super) fn progressed(&mut self) {
        self.backoff.reset();
        self.listings_in_a_row.reset();
        self.silences = 0;
        self.caught_up();
        self.shared.moved();
    }

    /// Whether readers still wait for the history to be replayed: up to which revision.
    pub(super) fn catches_up_to(&self) -> Option<u64> {
        self.resume().replays_to().filter(|_| self.config.options.start_revision.is_none())
    }

    /// The cache is Ready when it has what etcd had as the first listing ended.
    fn caught_up(&mut self) {
        self.shared.catches_up_to.store(self.catches_up_to().unwrap_or(0), Relaxed);
        if self.catches_up_to().is_none() {
            self.writer.borrow_mut().caught_up();
        }
    }

    /// Reports a failure, chooses the next endpoint, and gives the time to wait.
    fn failed(&mut self, failure: &Failure) -> Duration {
        let now = Instant::now();
        let options = &self.config.options;
        let url = self.endpoints.url().to_owned();
        let (is_fatal, delay) = match failure.class {
            Class::Denied | Class::Credentials | Class::Refused => (true, spread(options.refused_retry)),
            Class::Compacted(_) | Class::TooLarge(_) => (true, spread(options.refused_retry.min(options.backoff_most))),
            Class::Future => (false, self.backoff.next().min(FUTURE_RETRY)),
            Class::OtherEndpoint => {
                self.endpoints.failed(now);
                let elsewhere = self.endpoints.len() > 1 && self.endpoints.is_rested(now);
                (false, if elsewhere { Duration::ZERO } else { self.backoff.next() })
            }
            // Where no other endpoint is left to try, it waits for somebody who mends it: no longer than the backoff,
            // for a new certificate comes at any time.
            Class::Tls(_) => {
                self.endpoints.failed(now);
                let elsewhere = self.endpoints.len() > 1 && self.endpoints.is_rested(now);
                (!elsewhere, if elsewhere { Duration::ZERO } else { self.backoff.next() })
            }
            Class::Authenticate | Class::AuthenticationOff if self.backoff.is_fresh() => {
                self.backoff.next();
                (false, Duration::ZERO)
            }
            _ => {
                self.endpoints.failed(now);
                (false, self.backoff.next())
            }
        };
        self.reporter.failed(failure, &url, delay, is_fatal);
        delay
    }

    /// A message on the watch was too long: what to change, or the failure if nothing can be.
    pub(super) fn lengthen(&mut self, length: u64, failure: Failure) -> Result<(), Failure> {
        if !self.fragment {
            self.fragment = true;
            one(&self.shared.counts.fragment_switches);
            log!(info, length, limit = self.message_limit, "a long message: opening the watch with fragments");
            return Ok(());
        }
        if self.raise_limit(length) { Ok(()) } else { Err(failure) }
    }

    /// Takes longer messages from now on; false if this one is too long for any limit.
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

/// Whether a member of a cluster has no leader. A server of etcd's API that has no raft names neither leader nor term.
fn lacks_leader(status: &StatusResponse) -> bool {
    status.leader() == 0 && status.raft_term() > 0
}

/// Beside a listing: where it takes longer than a watch may be silent, the cache is not Ready meanwhile. What ends the
/// listing sets the state anew.
async fn stale_after_silence(writer: &RefCell<Writer>, shared: &Shared, config: &Config, url: &str) -> Infallible {
    tokio::time::sleep(silence(&config.options)).await;
    let text = format!("etcd {url} is being listed again, and what is there is of before the listing.");
    let error = Error::new(Code::Unavailable, text);
    if writer.borrow().is_loaded() && shared.last_error().is_none() {
        shared.set_error(Some(error.clone()));
        writer.borrow_mut().set_state(SourceState::Stale(error));
    }
    std::future::pending().await
}

/// The cache refused what etcd said.
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
