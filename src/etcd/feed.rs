//! The life of a feeder: sessions with one endpoint after another, until it is stopped.
//!
//! A session connects, finds out whether the history is still the one that was applied, lists if it
//! must, and then follows the watch.

use super::backoff::{Backoff, spread};
use super::config::Config;
use super::connect::{Reader, dial, within};
use super::counters::one;
use super::endpoints::Endpoints;
use super::failure::{Class, Failure};
use super::follow::compacted_at;
use super::integrity;
use super::list::{Listing, list};
use super::probe::{Proof, probe};
use super::resume::Resume;
use super::shared::Shared;
use super::version::too_old;
use crate::cache::{SourceReport, SourceState};
use crate::data::event::ResyncReason;
use crate::error::{Code, Error};
use crate::writer::Writer;
use std::cell::RefCell;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// No message is taken beyond it, whatever the limits of a server.
const LONGEST_MESSAGE: usize = 1 << 30;

/// How often a start revision that has not happened is looked for.
const FUTURE_RETRY: Duration = Duration::from_millis(250);

/// Between two reports while nothing but events comes.
const REPORTS: Duration = Duration::from_millis(100);

/// What a session has to do before it can watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Need {
    Nothing,
    Load,
    Resync(ResyncReason),
}

/// How following a watch ended, where that is no failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// List, for this reason.
    Resync(ResyncReason),
    /// Open the watch again, as the settings are now.
    Reopen,
}

/// The state of a feeder beyond its sessions.
pub(super) struct Feed<'a> {
    pub(super) config: &'a Config,
    pub(super) writer: &'a RefCell<Writer>,
    pub(super) shared: &'a Shared,
    pub(super) resume: Option<Resume>,
    pub(super) backoff: Backoff,
    /// Whether watches ask for fragments, and the longest message taken.
    pub(super) fragment: bool,
    pub(super) message_limit: usize,
    /// Silences since anything came.
    pub(super) silences: u32,
    /// The newest revision of etcd's that was seen.
    pub(super) newest_seen: u64,
    endpoints: Endpoints,
    readers: &'a watch::Sender<Option<Reader>>,
    report: SourceReport,
    reported: Instant,
    /// A listing that is to be made, until it is.
    owed: Option<ResyncReason>,
    /// Listings without any progress between them.
    listings_in_a_row: Backoff,
    warned_of: Option<String>,
}

impl<'a> Feed<'a> {
    pub(super) fn new(
        config: &'a Config,
        writer: &'a RefCell<Writer>,
        shared: &'a Shared,
        readers: &'a watch::Sender<Option<Reader>>,
    ) -> Feed<'a> {
        let options = &config.options;
        let backoff = || Backoff::new(options.backoff_first, options.backoff_most);
        Feed {
            config,
            writer,
            shared,
            resume: None,
            backoff: backoff(),
            fragment: false,
            message_limit: options.message_limit,
            silences: 0,
            newest_seen: 0,
            endpoints: Endpoints::new(options.endpoints.iter().cloned()),
            readers,
            report: SourceReport::default(),
            reported: Instant::now(),
            owed: None,
            listings_in_a_row: backoff(),
            warned_of: None,
        }
    }

    /// Runs until the cache is closed or, if that was asked, the listing is there.
    pub(super) async fn run(&mut self) {
        loop {
            let over = self.session().await;
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
    async fn session(&mut self) -> Result<(), Failure> {
        let url = self.endpoints.url().to_owned();
        let reader = self.connect(&url).await?;
        self.readers.send_replace(Some(reader.clone()));
        let mut need = match (self.standing(&reader).await?, self.owed) {
            (Need::Nothing, Some(reason)) => Need::Resync(reason),
            (need, _) => need,
        };
        loop {
            if let Need::Resync(reason) = need {
                self.owed = Some(reason);
            }
            if need != Need::Nothing {
                self.list(&reader, need, &url).await?;
                if self.config.options.stop_after_listing {
                    tracing::info!(endpoint = url, "listed; not watching, as asked");
                    return Ok(());
                }
            }
            let watch = self.open(&url).await?;
            need = match self.follow(&reader, watch).await? {
                End::Resync(reason) => Need::Resync(reason),
                End::Reopen => self.standing(&reader).await?,
            };
        }
    }

    /// The connection for reads, to a server that answers.
    async fn connect(&mut self, url: &str) -> Result<Reader, Failure> {
        let options = &self.config.options;
        let mut client = dial(options, url).await?;
        match within("the status", options.request_timeout, client.status()).await {
            Ok(status) => {
                if status.leader() == 0 {
                    return Err(Failure::new(Class::OtherEndpoint, "the member has no leader"));
                }
                let version = status.version().to_owned();
                if let Some(minimum) = too_old(&version)
                    && self.warned_of.as_ref() != Some(&version)
                {
                    tracing::warn!(
                        endpoint = url,
                        version,
                        minimum,
                        "this etcd is known to lose watch events; upgrade it to the minimum of its line"
                    );
                    self.warned_of = Some(version.clone());
                }
                self.report.server_version = version;
            }
            // Servers need not let a user see their status.
            Err(failure) if matches!(failure.class, Class::Denied | Class::Authenticate) => {}
            Err(failure) => return Err(failure),
        }
        self.report.endpoint = url.to_owned();
        Ok(Reader::new(url, &client, &self.config.options, self.message_limit))
    }

    /// What must be done before the watch can go on.
    async fn standing(&mut self, reader: &Reader) -> Result<Need, Failure> {
        let Some(resume) = &self.resume else {
            let loaded = self.writer.borrow().is_loaded();
            return Ok(if loaded { Need::Resync(ResyncReason::Requested) } else { Need::Load });
        };
        let header = reader.newest(&self.config.range).await?;
        self.newest_seen = self.newest_seen.max(header.revision);
        let point = resume.point();
        if header.cluster != resume.cluster() || header.revision < point {
            tracing::warn!(applied = point, newest = header.revision, "etcd has another history");
            return Ok(Need::Resync(ResyncReason::HistoryReset));
        }
        one(&self.shared.counts.probes);
        match probe(reader, &self.config.range, resume.evidence(), resume.firm()).await? {
            Proof::Same => {}
            Proof::Other => {
                tracing::warn!(applied = resume.firm(), "etcd does not hold what was applied: another history");
                return Ok(Need::Resync(ResyncReason::HistoryReset));
            }
            Proof::Compacted => return Ok(Need::Resync(ResyncReason::Compacted)),
        }
        let behind = resume.behind(header.revision);
        if behind > self.config.options.too_far_behind && !resume.replays() {
            tracing::info!(behind, "too far behind to replay: listing");
            return Ok(Need::Resync(ResyncReason::TooFarBehind));
        }
        Ok(Need::Nothing)
    }

    /// Lists and publishes.
    async fn list(&mut self, reader: &Reader, need: Need, url: &str) -> Result<(), Failure> {
        if matches!(need, Need::Resync(_)) && !self.listings_in_a_row.is_fresh() {
            tokio::time::sleep(self.listings_in_a_row.next()).await;
        }
        self.shared.take_resync();
        let options = &self.config.options;
        let at = options.start_revision.filter(|_| need == Need::Load);
        let started = Instant::now();
        let listing = match list(reader, &self.config.range, at, options.page_size, &self.shared.counts).await {
            Ok(listing) => listing,
            Err(failure) => return Err(self.of_listing(failure, at, url).await),
        };
        let revision = listing.revision;
        let cluster = listing.header.cluster;
        self.report.cluster_id = cluster;
        self.report.member_id = listing.header.member;
        // Before the listing shows: its continue tokens carry the cluster.
        self.report();
        match need {
            Need::Resync(wanted) => {
                let reset = self.resume.as_ref().is_some_and(|old| {
                    revision < old.point()
                        || listing.header.cluster != old.cluster()
                        // What a read could have proved is gone: the listing itself has to tell.
                        || wanted == ResyncReason::Compacted && !self.continues(&listing, old.point())
                });
                let reason = if reset { ResyncReason::HistoryReset } else { wanted };
                let from = self.writer.borrow().position().revision;
                tracing::warn!(reason = reason.name(), from, to = revision, keys = listing.count, "resync");
                // Before it shows: who sees the marks finds it counted.
                self.shared.counts.resynced(reason);
                let done = self.writer.borrow_mut().resync(revision, listing.records(), reason);
                done.map_err(|error| refused(&error))?;
                // Another one before any progress has to wait.
                self.listings_in_a_row.next();
            }
            _ => self.writer.borrow_mut().load(revision, listing.records()).map_err(|error| refused(&error))?,
        }
        tracing::info!(endpoint = url, revision, keys = listing.count, elapsed = ?started.elapsed(), "listed");
        self.owed = None;
        self.newest_seen = listing.header.revision.max(revision);
        let replay_until = if at.is_some() { listing.header.revision } else { 0 };
        let newest = listing.newest().cloned();
        self.resume = Some(Resume::listed(revision, cluster, listing.count, newest, replay_until));
        self.report();
        Ok(())
    }

    /// Whether a listing can be what became of the state at `point`. A restored backup whose revisions
    /// were raised shows by the keys that went back.
    fn continues(&self, listing: &Listing, point: u64) -> bool {
        let writer = self.writer.borrow();
        let other =
            listing.records().find(|record| !integrity::continues(record, writer.get(record.key).as_deref(), point));
        let Some(record) = other else { return true };
        tracing::warn!(
            key = %record.key.escape_ascii(),
            modified = record.mod_revision,
            applied = point,
            "a key that does not follow from what was applied: another history"
        );
        false
    }

    /// A listing at an old revision fails in ways that only the user can mend.
    async fn of_listing(&self, failure: Failure, at: Option<u64>, url: &str) -> Failure {
        let Some(at) = at else { return failure };
        let asked = format!("the feeder was asked to begin at revision {at}, which etcd {url} has");
        match failure.class {
            Class::Compacted(_) => match compacted_at(self.config, url, at).await {
                Some(kept) => Failure::new(
                    Class::Compacted(kept),
                    format!(
                        "{asked} compacted; it holds the state at {kept} and all changes after it. Begin at {kept} or later"
                    ),
                ),
                None => Failure::new(
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

    /// The endpoint in use.
    pub(super) fn url(&self) -> &str {
        &self.report.endpoint
    }

    /// The watch goes on: events are applied again.
    pub(super) fn live(&mut self) {
        let before = self.shared.counts.connects.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if before > 0 {
            one(&self.shared.counts.reconnects);
        }
        self.endpoints.succeeded();
        self.shared.set_error(None);
        self.report();
        self.writer.borrow_mut().set_state(SourceState::Fresh);
    }

    /// Something was applied, or progress came.
    pub(super) fn progressed(&mut self) {
        self.backoff.reset();
        self.listings_in_a_row.reset();
        self.silences = 0;
    }

    /// Keeps etcd's newest revision in the status, not with each message.
    pub(super) fn report_now_and_then(&mut self) {
        if self.reported.elapsed() >= REPORTS {
            self.report();
        }
    }

    fn report(&mut self) {
        use std::sync::atomic::Ordering::Relaxed;
        self.reported = Instant::now();
        let counters = &self.shared.counts;
        self.report.connects = counters.connects.load(Relaxed);
        self.report.reconnects = counters.reconnects.load(Relaxed);
        self.report.resyncs = counters.read().resyncs.iter().sum();
        self.report.etcd_revision = self.newest_seen;
        self.writer.borrow_mut().source_report(self.report.clone());
    }

    /// Records a failure; gives the time to wait.
    fn failed(&mut self, failure: &Failure) -> Duration {
        one(&self.shared.counts.failures);
        let now = Instant::now();
        let options = &self.config.options;
        let url = self.endpoints.url().to_owned();
        let text = self.describe(failure, &url);
        let (fatal, delay) = match failure.class {
            Class::Denied | Class::Credentials | Class::Refused => (true, spread(options.refused_retry)),
            Class::Compacted(_) | Class::TooLarge(_) => (true, spread(options.refused_retry.min(options.backoff_most))),
            Class::Future => (false, self.backoff.next().min(FUTURE_RETRY)),
            Class::OtherEndpoint => {
                self.endpoints.failed(now);
                let elsewhere = self.endpoints.len() > 1 && self.endpoints.is_rested(now);
                (false, if elsewhere { Duration::ZERO } else { self.backoff.next() })
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
        if fatal {
            tracing::error!(endpoint = url, ?delay, "{text}");
        } else {
            tracing::warn!(endpoint = url, ?delay, "{text}");
        }
        let error = Error::new(failure.code(), text);
        let error = match (failure.class, options.start_revision) {
            // The state at the compacted revision is still there, and every change after it.
            (Class::Compacted(kept), Some(asked)) => {
                error.with_asked(asked).with_oldest(if kept > 0 { kept + 1 } else { 0 })
            }
            (Class::Future, Some(asked)) => error.with_asked(asked).with_current(self.newest_seen),
            _ => error,
        };
        self.shared.set_error(Some(error.clone()));
        self.report.endpoint = url;
        self.report();
        self.writer.borrow_mut().set_state(if fatal { SourceState::Failed(error) } else { SourceState::Stale(error) });
        delay
    }

    /// What happened, what holds, what to do next.
    fn describe(&self, failure: &Failure, url: &str) -> String {
        let text = &failure.text;
        let options = &self.config.options;
        let every = options.refused_retry.as_secs_f64();
        let user = options.user.as_ref().map(|user| user.name.as_str());
        match (failure.class, user) {
            (Class::Denied, user) => {
                let range = &self.config.range;
                let who = user.map_or("a client without a user".to_owned(), |user| format!("the user {user:?}"));
                format!(
                    "etcd {url} refused {who}: permission denied on range {range}. \
                     Grant read access; retrying every {every} s."
                )
            }
            (Class::Credentials, Some(user)) => {
                format!(
                    "etcd {url} refused the user {user:?}: {text}. Check name and password; retrying every {every} s."
                )
            }
            (Class::Credentials, None) => {
                format!("etcd {url} asks for a user: {text}. Give name and password; retrying every {every} s.")
            }
            (Class::Refused, _) => format!("etcd {url}: {text}. Correct it; retrying every {every} s."),
            (Class::TooLarge(_), _) => format!(
                "etcd {url}: {text}. The cache cannot take messages above {LONGEST_MESSAGE} bytes; write smaller values."
            ),
            (Class::Compacted(_) | Class::Future, _) => format!("{text}."),
            _ => format!("etcd {url}: {text}; trying again."),
        }
    }

    /// A message on the watch was too long: what to change, or the failure if nothing can be.
    pub(super) fn lengthen(&mut self, length: u64, failure: Failure) -> Result<(), Failure> {
        if !self.fragment {
            self.fragment = true;
            one(&self.shared.counts.fragment_switches);
            tracing::info!(length, limit = self.message_limit, "a long message: opening the watch with fragments");
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
        tracing::info!(length, limit = self.message_limit, "a long message: raising the limit");
        true
    }
}

/// The cache refused what etcd said.
pub(super) fn refused(error: &Error) -> Failure {
    let class = if error.code() == Code::Closed { Class::Closed } else { Class::Refused };
    Failure::new(class, format!("the cache refused etcd's data: {}", error.message()))
}
